"""wav2vec2-large's positional convolution, fold of the computed weight off against on.

    python -m benchmarks.positional_conv [--rounds N]

Prints the five figures that the fold changes, or must not: latency, delegates, operators left
outside, file size and difference to eager.
"""

import argparse

import benchmarks.quiet  # first
import torch
from benchmarks.measure import interleaved, median, ratio, spread
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.test.lowered import lower
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class PositionalConvolution(nn.Module):
    """NCW: 1024 channels in 16 groups, kernel 128, weight-normed over the kernel axis."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        convolution = nn.Conv1d(1024, 1024, 128, padding=64, groups=16)
        self.convolution = weight_norm(convolution, dim=2)

    def forward(self, x):
        return self.convolution(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2, help="runs of each (default 2)")
    rounds = parser.parse_args().rounds
    console = Console()
    model, x = PositionalConvolution().eval(), torch.randn(1, 1024, 499)
    expected = model(x)
    lowered = {}
    for name in ("off", "on"):
        console.print(f"Lowering, fold {name}")
        partitioner = XnnpackPartitioner(fold_computed_weights=name == "on")
        lowered[name] = lower(model, (x,), [partitioner])
    console.print("Running each once, to compare with eager; without the fold it takes some 20 s")
    with benchmarks.quiet.native_notes_held():
        runs = {name: program.load() for name, program in lowered.items()}
    error = {name: (run(x)[0] - expected).abs().max().item() for name, run in runs.items()}
    seconds = interleaved(
        {name: lambda run=run: run(x) for name, run in runs.items()},
        rounds,
        "Measuring, a warm-up first",
    )

    table = Table(title="wav2vec2-large positional convolution, length 499, fp32")
    for column in ("", "fold off", "fold on"):
        table.add_column(column, justify="right" if column else "left")
    for label, value in {
        "latency in ms, median": lambda name: median(seconds[name]),
        "fastest to slowest": lambda name: spread(seconds[name]),
        "delegates": lambda name: str(lowered[name].delegates()),
        "operators outside": lambda name: str(lowered[name].outside().total()),
        ".pte size in bytes": lambda name: f"{len(lowered[name].buffer):,}",
        "max abs difference to eager": lambda name: f"{error[name]:.1e}",
    }.items():
        table.add_row(label, value("off"), value("on"))
    console.print(table)
    console.print(f"Off / on: {ratio(seconds['off'], seconds['on']):.0f} times as fast folded.")


if __name__ == "__main__":
    main()
