"""Whole models with channels-last values kept and scales moved, against both off.

    python -m benchmarks.keep_channels_last [--rounds N] [MODEL ...]

Prints per model: latency of both, their ratio from one interleaved run, the transposes and delegates of
both, file sizes, and the difference to eager relative to the spread of the output.
"""

import argparse
from typing import Callable, Dict, Tuple

import torch
from benchmarks.measure import interleaved, median, ratio
from benchmarks.models import hifigan, images, migan
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.test.lowered import lower
from rich.console import Console
from rich.table import Table
from torch import nn

MODELS: Dict[str, Callable[[], Tuple[nn.Module, torch.Tensor]]] = {
    "MI-GAN 256, published": lambda: (migan.migan(), migan.example_input()),
    "MI-GAN 256, deconvolution": lambda: (migan.migan("deconvolution"), migan.example_input()),
    "HiFi-GAN V2, 32 frames": lambda: (hifigan.hifigan(), hifigan.example_input()),
    "MobileNetV3-like, 224": lambda: (images.mobilenet_like(), images.example_input()),
    "EfficientNet-like, 224": lambda: (images.efficientnet_like(), images.example_input()),
    "U-Net-like, 224": lambda: (images.unet_like(), images.example_input()),
    "plain residual, 224": lambda: (images.plain(), images.example_input()),
}
OPTIONS = {
    "off": {"keep_channels_last": False, "move_scales": False},
    "on": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)} (default all)")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each (default 15)")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.models if name not in MODELS]
    if unknown:
        parser.error(f"unknown model {unknown[0]!r}; there are {', '.join(MODELS)}")
    console = Console(width=120)
    columns = ("", "off ms", "on ms", "off / on", "transposes", "delegates", ".pte bytes", "difference")
    table = Table(title="channels-last kept and scales moved, off against on, fp32")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for name in arguments.models or MODELS:
        table.add_row(name, *measure(name, arguments.rounds))
    console.print(table)


def measure(name: str, rounds: int) -> Tuple[str, ...]:
    model, x = MODELS[name]()
    with torch.no_grad():
        expected = model(x)
    lowered = {
        key: lower(model, (x,), [XnnpackPartitioner(**options)]) for key, options in OPTIONS.items()
    }
    runs = {key: program.load() for key, program in lowered.items()}
    errors = {key: (run(x)[0] - expected).abs().max() / expected.std() for key, run in runs.items()}
    seconds = interleaved({key: lambda run=run: run(x) for key, run in runs.items()}, rounds, name)

    def both(value: Callable[[str], object]) -> str:
        return f"{value('off')} / {value('on')}"

    growth = len(lowered["on"].buffer) / len(lowered["off"].buffer) - 1
    return (
        median(seconds["off"]),
        median(seconds["on"]),
        f"{ratio(seconds['off'], seconds['on']):.2f}",
        both(lambda key: lowered[key].census()["XNNStaticTranspose"]),
        both(lambda key: lowered[key].delegates()),
        f"{growth:+.2%}",
        both(lambda key: f"{errors[key].item():.0e}"),
    )


if __name__ == "__main__":
    main()
