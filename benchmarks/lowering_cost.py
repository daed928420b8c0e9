"""What the fold costs while lowering: time with nothing to fold, peak memory on a large model.

    python -m benchmarks.lowering_cost [--rounds N]

Every figure comes from a process of its own; fold on and off take turns.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


def nothing_to_fold() -> tuple[nn.Module, torch.Tensor]:
    """A 4-layer transformer encoder without a computed weight."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 4), torch.randn(1, 16, 64)


def one_small_fold() -> tuple[nn.Module, torch.Tensor]:
    """1.07 GB of weights in 16 linears, and one weight-normed linear of 16 KB."""
    layers = [nn.Linear(4096, 4096, bias=False) for _ in range(16)]
    return nn.Sequential(weight_norm(nn.Linear(1, 4096)), *layers), torch.randn(1, 1)


MODELS = {"time": nothing_to_fold, "memory": one_small_fold}


def lower_once(model_name: str, fold: bool) -> None:
    """Prints the seconds of one lowering and the peak memory of the process as JSON."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower

    model, x = MODELS[model_name]()
    program = torch.export.export(model.eval(), (x,))
    partitioner = XnnpackPartitioner(fold_computed_weights=fold)
    start = time.perf_counter()
    to_edge_transform_and_lower(program, partitioner=[partitioner])
    seconds = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(json.dumps({"seconds": seconds, "peak": peak}))


def measure(model_name: str, rounds: int) -> dict[str, list[dict]]:
    results: dict[str, list[dict]] = {"off": [], "on": []}
    steps = [fold for _ in range(rounds) for fold in results]
    for fold in track(steps, description=f"Lowering ({model_name})"):
        child = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--child", model_name, fold]
        output = subprocess.run(child, check=True, capture_output=True, text=True).stdout
        results[fold].append(json.loads(output.splitlines()[-1]))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="processes of each (default 5)")
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "FOLD"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        model_name, fold = arguments.child
        lower_once(model_name, fold == "on")
        return
    table = Table(title="Cost of the fold while lowering")
    for column in ("", "fold off", "fold on", "on / off"):
        table.add_column(column, justify="right" if column else "left")
    for model_name, key, unit, scale, label in (
        ("time", "seconds", "s", 1, "lowering time, nothing to fold"),
        ("memory", "peak", "MB", 1e6, "peak memory, 1.07 GB of weights, one small fold"),
    ):
        rounds = arguments.rounds if model_name == "time" else 2
        results = measure(model_name, rounds)
        off, on = ([result[key] / scale for result in results[fold]] for fold in results)
        ratios = statistics.median(a / b for a, b in zip(on, off, strict=True))
        table.add_row(
            label,
            *(f"{statistics.median(values):,.2f} {unit}" for values in (off, on)),
            f"{ratios:.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
