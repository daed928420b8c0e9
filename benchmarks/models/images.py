"""Small image models with the blocks of well-known ones: squeeze-excite, hardswish, per-channel scales, skips.

Each takes [N, 3, R, R].
"""

from typing import Callable, Optional

import torch
from benchmarks.models.seeded import seeded
from torch import nn
from torch.nn import functional as F


def example_input(resolution: int = 224, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 3, resolution, resolution, generator=torch.Generator().manual_seed(seed))


class ConvNorm(nn.Sequential):
    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: Optional[nn.Module] = None
    ) -> None:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(outputs), act or nn.Identity())


class SqueezeExcite(nn.Module):
    """Scales every channel of [N, C, H, W] by a gate computed from its mean."""

    def __init__(self, channels: int, squeezed: int, gate: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, channels, 1)
        self.gate = gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = F.adaptive_avg_pool2d(x, 1)
        return x * self.gate(self.excite(F.relu(self.squeeze(mean))))


class InvertedResidual(nn.Module):
    """Widen, depthwise, squeeze-excite, project; with a learned scale per channel on the residual where asked."""

    def __init__(
        self, inputs: int, wide: int, outputs: int, kernel: int, stride: int, act: Callable[[], nn.Module],
        gate: Optional[Callable[[torch.Tensor], torch.Tensor]] = None, scaled: bool = False,
    ) -> None:
        super().__init__()
        self.widen = ConvNorm(inputs, wide, 1, act=act())
        self.depthwise = ConvNorm(wide, wide, kernel, stride, groups=wide, act=act())
        self.attend = SqueezeExcite(wide, max(8, wide // 4), gate) if gate else nn.Identity()
        self.project = ConvNorm(wide, outputs, 1)
        self.scale = nn.Parameter(torch.ones(outputs, 1, 1)) if scaled else None
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(self.attend(self.depthwise(self.widen(x))))
        if self.scale is not None:
            y = y * self.scale
        return x + y if self.skip else y


class Classifier(nn.Module):
    def __init__(self, features: nn.Module, channels: int, act: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Sequential(nn.Linear(channels, 256), act, nn.Linear(256, 100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


def mobilenet_like(seed: int = 0) -> nn.Module:
    """After MobileNetV3 small: ReLU and hardswish, hard-sigmoid gates."""
    layers = [ConvNorm(3, 16, 3, 2, act=nn.Hardswish())]
    for inputs, wide, outputs, kernel, stride, act, attend in (
        (16, 16, 16, 3, 2, nn.ReLU, True),
        (16, 72, 24, 3, 2, nn.ReLU, False),
        (24, 88, 24, 3, 1, nn.ReLU, False),
        (24, 96, 40, 5, 2, nn.Hardswish, True),
        (40, 240, 40, 5, 1, nn.Hardswish, True),
        (40, 120, 48, 5, 1, nn.Hardswish, True),
        (48, 288, 96, 5, 2, nn.Hardswish, True),
        (96, 576, 96, 5, 1, nn.Hardswish, True),
    ):
        gate = F.hardsigmoid if attend else None
        layers.append(InvertedResidual(inputs, wide, outputs, kernel, stride, act, gate))
    layers.append(ConvNorm(96, 576, 1, act=nn.Hardswish()))
    return seeded(Classifier(nn.Sequential(*layers), 576, nn.Hardswish()), seed)


def efficientnet_like(seed: int = 0) -> nn.Module:
    """After EfficientNet: SiLU, sigmoid gates; residuals scaled per channel."""
    layers = [ConvNorm(3, 32, 3, 2, act=nn.SiLU())]
    for inputs, wide, outputs, kernel, stride in (
        (32, 32, 16, 3, 1),
        (16, 96, 24, 3, 2),
        (24, 144, 24, 3, 1),
        (24, 144, 40, 5, 2),
        (40, 240, 40, 5, 1),
        (40, 240, 80, 3, 2),
        (80, 480, 80, 3, 1),
        (80, 480, 112, 5, 1),
        (112, 672, 112, 5, 1),
        (112, 672, 192, 5, 2),
        (192, 1152, 192, 5, 1),
    ):
        layers.append(InvertedResidual(inputs, wide, outputs, kernel, stride, nn.SiLU, torch.sigmoid, scaled=True))
    layers.append(ConvNorm(192, 768, 1, act=nn.SiLU()))
    return seeded(Classifier(nn.Sequential(*layers), 768, nn.SiLU()), seed)


class UNet(nn.Module):
    """Max-pooling encoder, bilinear decoder, skips by concatenation, squeeze-excite and a scale per channel each."""

    def __init__(self, channels: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1, 3, 1, 1))
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.scales = nn.ParameterList()
        inputs = 3
        for level in range(depth):
            self.down.append(self.stage(inputs, channels << level))
            inputs = channels << level
        for level in reversed(range(depth - 1)):
            self.up.append(self.stage(inputs + (channels << level), channels << level))
            self.scales.append(nn.Parameter(torch.ones(inputs, 1, 1)))
            inputs = channels << level
        self.leave = nn.Conv2d(inputs, 1, 1)

    @staticmethod
    def stage(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            ConvNorm(inputs, outputs, 3, act=nn.Hardswish()),
            ConvNorm(outputs, outputs, 3, act=nn.LeakyReLU(0.1)),
            SqueezeExcite(outputs, max(8, outputs // 4), F.hardsigmoid),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - self.shift) * (1 / 0.226)
        skips = []
        for index, stage in enumerate(self.down):
            x = stage(F.max_pool2d(x, 2) if index else x)
            skips.append(x)
        skips.pop()
        for stage, scale in zip(self.up, self.scales, strict=True):
            x = F.interpolate(x * scale, scale_factor=2.0, mode="bilinear", align_corners=False)
            x = stage(torch.cat([x, skips.pop()], dim=1))
        return torch.sigmoid(self.leave(x))


def unet_like(seed: int = 0) -> nn.Module:
    return seeded(UNet(), seed)


class Plain(nn.Module):
    """A residual network of convolutions, batch norms and ReLUs alone: no layout change to save."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = ConvNorm(3, 32, 7, 2, act=nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(ConvNorm(32, 32, 3, act=nn.ReLU()), ConvNorm(32, 32, 3)) for _ in range(4)
        )
        self.leave = nn.Conv2d(32, 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.enter(x), 2)
        for block in self.blocks:
            x = F.relu(x + block(x))
        return self.leave(x)


def plain(seed: int = 0) -> nn.Module:
    return seeded(Plain(), seed)
