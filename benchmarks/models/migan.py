"""The generator of MI-GAN (Sargsyan et al., ICCV 2023; github.com/Picsart-AI-Research/MI-GAN), for inference.

Input [N, 4, R, R]: mask and masked image. Output [N, 3, R, R]. An encoder of separable convolutions halves the
resolution R down to 4; a decoder doubles it again, adds the encoder's features, a fixed noise map per layer, and sums one
RGB image per resolution. Every convolution but the RGB ones is followed by a leaky ReLU times sqrt(2), clamped to +-256.
"""

from typing import Dict, List, Optional

import torch
from benchmarks.models.seeded import seeded
from torch import nn
from torch.nn import functional as F


def migan(filter: str = "published", resolution: int = 256, seed: int = 0) -> nn.Module:
    """The generator in eval mode with seeded weights.

    `filter` says how the decoder doubles a resolution. Both give the same numbers:
        "published": nearest upsampling, times a 0/1 checkerboard, padding, and a 4x4 depthwise convolution;
        "deconvolution": one depthwise transposed convolution, kernel 4, stride 2, padding 1.
    """
    model = seeded(Generator(resolution, filter), seed)
    random = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (Downsample, Upsample, Deconvolution)):
            module.reset_filter()
        elif isinstance(module, Separable) and module.noisy:
            module.noise.normal_(generator=random)
    return model


def example_input(resolution: int = 256, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 4, resolution, resolution, generator=torch.Generator().manual_seed(seed))


def channels_at(resolution: int) -> int:
    return min(512, 32768 // resolution)


def binomial(gain: float) -> torch.Tensor:
    """[4, 4], sums to `gain`."""
    line = torch.tensor([1.0, 3.0, 3.0, 1.0])
    return gain * torch.outer(line, line) / line.sum() ** 2


def activate(x: torch.Tensor) -> torch.Tensor:
    return (F.leaky_relu(x, 0.2) * 2**0.5).clamp(-256, 256)


class Downsample(nn.Conv2d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 4, stride=2, padding=1, groups=channels, bias=False)

    @torch.no_grad()
    def reset_filter(self) -> None:
        self.weight.copy_(binomial(1).expand_as(self.weight))


class Upsample(nn.Module):
    """Keeps every fourth pixel of the nearest upsampling, which the filter then spreads."""

    def __init__(self, channels: int, resolution: int) -> None:
        super().__init__()
        corner = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
        self.register_buffer("kept", corner.repeat(1, 1, resolution // 2, resolution // 2))
        self.spread = nn.Conv2d(channels, channels, 4, groups=channels, bias=False)

    @torch.no_grad()
    def reset_filter(self) -> None:
        self.spread.weight.copy_(binomial(4).expand_as(self.spread.weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.interpolate(x, scale_factor=2.0, mode="nearest") * self.kept
        return self.spread(F.pad(x, (2, 1, 2, 1)))


class Deconvolution(nn.ConvTranspose2d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 4, stride=2, padding=1, groups=channels, bias=False)

    @torch.no_grad()
    def reset_filter(self) -> None:
        # A transposed convolution applies its kernel flipped.
        self.weight.copy_(binomial(4).flip(0, 1).expand_as(self.weight))


def upsampling(filter: str, channels: int, resolution: int) -> nn.Module:
    if filter == "published":
        return Upsample(channels, resolution)
    if filter == "deconvolution":
        return Deconvolution(channels)
    raise ValueError(f'filter is "published" or "deconvolution", not {filter!r}')


class Separable(nn.Module):
    """Depthwise 3x3, activation, [downsample], 1x1, [upsample], [noise], activation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        downsample: bool = False,
        upsample: Optional[nn.Module] = None,
        noise_resolution: Optional[int] = None,
    ) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs)
        self.downsample = Downsample(inputs) if downsample else nn.Identity()
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.upsample = upsample or nn.Identity()
        self.noisy = noise_resolution is not None
        if self.noisy:
            # Filled with the seeded weights: every layer has its own.
            self.register_buffer("noise", torch.empty(noise_resolution, noise_resolution))
            self.noise_strength = nn.Parameter(torch.zeros([]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pointwise(self.downsample(activate(self.depthwise(x))))
        x = self.upsample(x)
        if self.noisy:
            x = x + self.noise * self.noise_strength
        return activate(x)


class EncoderStage(nn.Module):
    """Returns the features that the decoder adds, and the input of the next stage."""

    def __init__(self, inputs: int, outputs: int, downsample: bool) -> None:
        super().__init__()
        self.features = Separable(inputs, inputs)
        self.next = Separable(inputs, outputs, downsample=downsample)

    def forward(self, x: torch.Tensor) -> List[torch.Tensor]:
        features = self.features(x)
        return [features, self.next(features)]


class DecoderStage(nn.Module):
    def __init__(self, inputs: int, resolution: int, filter: str) -> None:
        super().__init__()
        outputs = channels_at(resolution)
        first = resolution == 4
        noise = None if first else resolution
        self.enter = Separable(
            inputs,
            outputs,
            upsample=None if first else upsampling(filter, outputs, resolution),
            noise_resolution=noise,
        )
        self.leave = Separable(outputs, outputs, noise_resolution=noise)
        self.to_rgb = nn.Conv2d(outputs, 3, 1)
        self.upsample_image = None if first else upsampling(filter, 3, resolution)

    def forward(self, x: torch.Tensor, features: torch.Tensor, image: Optional[torch.Tensor]) -> List[torch.Tensor]:
        x = self.leave(self.enter(x) + features)
        rgb = self.to_rgb(x)
        return [x, rgb if image is None else self.upsample_image(image) + rgb]


class Generator(nn.Module):
    def __init__(self, resolution: int, filter: str) -> None:
        super().__init__()
        if resolution < 8 or resolution & (resolution - 1):
            raise ValueError(f"resolution is a power of two from 8 on, not {resolution}")
        self.resolutions = [2**i for i in range(resolution.bit_length() - 1, 1, -1)]
        self.from_rgb = nn.Conv2d(4, channels_at(resolution), 1)
        self.encoder = nn.ModuleDict(
            {
                str(r): EncoderStage(channels_at(r), channels_at(max(4, r // 2)), downsample=r > 4)
                for r in self.resolutions
            }
        )
        self.decoder = nn.ModuleDict(
            {
                str(r): DecoderStage(channels_at(max(4, r // 2)), r, filter)
                for r in reversed(self.resolutions)
            }
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: Dict[str, torch.Tensor] = {}
        x = activate(self.from_rgb(x))
        for name, stage in self.encoder.items():
            features[name], x = stage(x)
        image = None
        for name, stage in self.decoder.items():
            x, image = stage(x, features[name], image)
        return image
