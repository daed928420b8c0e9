"""The HiFi-GAN generator (Kong et al., NeurIPS 2020), its V2 configuration: mel spectrogram to waveform.

Input [N, 80, T], output [N, 1, 256 T]. Transposed one-dimensional convolutions stretch time; after each, the mean of
three stacks of dilated residual convolutions. Weight norm is left out: deployment folds it.
"""

import torch
from benchmarks.models.seeded import seeded
from torch import nn
from torch.nn import functional as F

SLOPE = 0.1


class Residual(nn.Module):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()

        def layer(dilation: int) -> nn.Module:
            return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=dilation * (kernel // 2))

        self.dilated = nn.ModuleList(layer(dilation) for dilation in (1, 3, 5))
        self.plain = nn.ModuleList(layer(1) for _ in self.dilated)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, SLOPE)), SLOPE))
        return x


class Generator(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = nn.Conv1d(80, channels, 7, padding=3)
        self.stretch, self.residuals = nn.ModuleList(), nn.ModuleList()
        for stride, kernel in ((8, 16), (8, 16), (2, 4), (2, 4)):
            padding = (kernel - stride) // 2
            self.stretch.append(nn.ConvTranspose1d(channels, channels // 2, kernel, stride, padding))
            channels //= 2
            self.residuals.append(nn.ModuleList(Residual(channels, kernel) for kernel in (3, 7, 11)))
        self.leave = nn.Conv1d(channels, 1, 7, padding=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for stretch, residuals in zip(self.stretch, self.residuals, strict=True):
            x = stretch(F.leaky_relu(x, SLOPE))
            x = sum(residual(x) for residual in residuals) / len(residuals)
        return torch.tanh(self.leave(F.leaky_relu(x)))


def hifigan(channels: int = 128, seed: int = 0) -> nn.Module:
    return seeded(Generator(channels), seed)


def example_input(frames: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 80, frames, generator=torch.Generator().manual_seed(seed))
