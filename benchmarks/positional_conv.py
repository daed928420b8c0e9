"""wav2vec2-large's positional convolution, fold of the computed weight off against on.

    python -m benchmarks.positional_conv [--rounds N]

Prints the five figures that the fold changes, or must not: latency, delegates, operators left
outside, file size and difference to eager.
"""

import argparse

import torch
from benchmarks.measure import interleaved, median, ratio, spread
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.test.lowered import lower
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


def positional_convolution() -> nn.Module:
    """NCW: 1024 channels in 16 groups, kernel 128, weight-normed over the kernel axis."""
    torch.manual_seed(0)
    return weight_norm(nn.Conv1d(1024, 1024, 128, padding=64, groups=16), dim=2).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2, help="runs of each (default 2)")
    rounds = parser.parse_args().rounds
    console = Console()
    model, x = positional_convolution(), torch.randn(1, 1024, 499)
    expected = model(x)
    with console.status("Lowering twice"):
        lowered = {
            "off": lower(model, (x,), [XnnpackPartitioner(fold_computed_weights=False)]),
            "on": lower(model, (x,)),
        }
    runs = {name: program.load() for name, program in lowered.items()}
    error = {name: (run(x)[0] - expected).abs().max().item() for name, run in runs.items()}
    seconds = interleaved(
        {name: lambda run=run: run(x) for name, run in runs.items()},
        rounds,
        "Running; without the fold a run takes some 20 s",
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
