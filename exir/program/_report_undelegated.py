"""Tells the partitioners of a lowering call what is left when all of them have run."""

from typing import Mapping, Sequence

from executorch.exir.backend.partitioner import Partitioner
from torch.export import ExportedProgram


def report_undelegated(
    partitioners: Mapping[str, Sequence[Partitioner]],
    programs: Mapping[str, ExportedProgram],
) -> None:
    """For each method, lets the last partitioner that has something to say report."""
    for method, program in programs.items():
        for partitioner in reversed(partitioners.get(method, [])):
            if partitioner.report_undelegated(method, program):
                break
