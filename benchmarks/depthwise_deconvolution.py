"""Depthwise transposed convolutions: rewrite off, rewrite on, and the filter written by hand.

    python -m benchmarks.depthwise_deconvolution [--rounds N] [--only NAME ...] [--dtype float16]

Single layers and the MI-GAN generator. By hand means nearest upsampling, a checkerboard of zeros and ones, a pad and a
depthwise convolution, as the generator is published. The difference is the one to eager in fp32.
"""

import argparse
import time
from typing import Callable, Dict, NamedTuple, Tuple

import torch
from benchmarks.measure import interleaved, median, ratio
from benchmarks.models.migan import example_input, migan
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.test.lowered import lower
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F


class ByHand(nn.Module):
    """The same numbers as the transposed convolution `layer`, for inputs of one size."""

    def __init__(self, layer: nn.ConvTranspose2d, size: int) -> None:
        super().__init__()
        (k, _), (s, _), (p, _) = layer.kernel_size, layer.stride, layer.padding
        channels = layer.in_channels
        self.stride = s
        # Nearest upsampling leaves s - 1 more rows behind the last pixel than zeros are needed.
        self.pads = (k - 1 - p, k - p - s) * 2
        corner = torch.zeros(s, s)
        corner[0, 0] = 1
        self.register_buffer("kept", corner.repeat(1, 1, size, size))
        self.filter = nn.Conv2d(channels, channels, k, groups=channels)
        with torch.no_grad():
            self.filter.weight.copy_(layer.weight.flip(2, 3))
            self.filter.bias.copy_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.interpolate(x, scale_factor=float(self.stride), mode="nearest") * self.kept
        return self.filter(F.pad(x, self.pads))


class Contest(NamedTuple):
    deconvolution: nn.Module
    by_hand: nn.Module
    x: torch.Tensor


def layer(channels: int, size: int, kernel: int, stride: int) -> Contest:
    torch.manual_seed(0)
    padding = (kernel - stride) // 2
    deconvolution = nn.ConvTranspose2d(channels, channels, kernel, stride, padding, groups=channels)
    return Contest(deconvolution, ByHand(deconvolution, size), torch.randn(1, channels, size, size))


def generator(resolution: int) -> Contest:
    models = (migan(filter, resolution) for filter in ("deconvolution", "published"))
    return Contest(*models, example_input(resolution))


def layer_of(*geometry: int) -> Tuple[str, Callable[[], Contest]]:
    channels, size, kernel, stride = geometry
    return f"C{channels} {size}x{size} k{kernel} s{stride}", lambda: layer(*geometry)


CONTESTS: Dict[str, Callable[[], Contest]] = dict(
    [
        layer_of(64, 64, 4, 2),
        layer_of(512, 32, 4, 2),
        layer_of(256, 64, 4, 2),
        layer_of(128, 128, 4, 2),
        layer_of(64, 32, 8, 4),
        layer_of(64, 16, 16, 8),
        ("MI-GAN 256", lambda: generator(256)),
        ("MI-GAN 512", lambda: generator(512)),
    ]
)


def measure(name: str, dtype: torch.dtype, rounds: int) -> Table:
    """One interleaved run of the three."""
    contest = CONTESTS[name]()
    with torch.no_grad():
        expected = contest.deconvolution.eval()(contest.x)
    x = contest.x.to(dtype)
    lowered, lowering = {}, {}
    for contender, model, rewrite in (
        ("off", contest.deconvolution, False),
        ("on", contest.deconvolution, True),
        ("by hand", contest.by_hand, True),
    ):
        partitioner = XnnpackPartitioner(decompose_depthwise_conv_transpose=rewrite)
        start = time.perf_counter()
        lowered[contender] = lower(model.eval().to(dtype), (x,), [partitioner])
        lowering[contender] = time.perf_counter() - start
    runs = {contender: program.load() for contender, program in lowered.items()}
    error = {c: (run(x)[0].float() - expected).abs().max().item() for c, run in runs.items()}
    timed = {c: lambda run=run: run(x) for c, run in runs.items()}
    seconds = interleaved(timed, rounds, f"{name} {dtype}")
    table = Table(title=f"{name}, {str(dtype).removeprefix('torch.')}")
    for column in ("rewrite", "ms, median", "times 'on'", ".pte bytes", "max abs difference", "lowering, s"):
        table.add_column(column, justify="left" if column == "rewrite" else "right")
    for contender in lowered:
        table.add_row(
            contender,
            median(seconds[contender]),
            f"{ratio(seconds[contender], seconds['on']):.2f}",
            f"{len(lowered[contender].buffer):,}",
            f"{error[contender]:.1e}",
            f"{lowering[contender]:.1f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=11, help="runs of each (default 11)")
    parser.add_argument("--only", nargs="+", choices=CONTESTS, default=list(CONTESTS), metavar="NAME")
    parser.add_argument("--dtype", nargs="+", default=["float32", "float16"], help="float32, float16")
    arguments = parser.parse_args()
    console = Console()
    # The first lowering of a process takes longer.
    lower(nn.ReLU(), (torch.zeros(1),))
    for name in arguments.only:
        for dtype in arguments.dtype:
            console.print(measure(name, getattr(torch, dtype), arguments.rounds))


if __name__ == "__main__":
    main()
