"""Partitioners see the state that other methods of the same lowering call write."""

import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.program._written_state import state_written_by_methods
from torch import nn
from torch.export import export


class Holder(nn.Module):
    def __init__(self, tensor, name="state", write=False):
        super().__init__()
        self.register_buffer(name, tensor)
        self.name, self.write = name, write

    def forward(self, x):
        state = getattr(self, self.name)
        if self.write:
            state.view(-1)[:1].add_(1)
        return x + state


class Looks(Partitioner):
    """Asks for the writer of every buffer before decomposition."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def transform_for_pre_decomposition(self, exported_program):
        written = state_written_by_methods(exported_program)
        for name, tensor in exported_program.state_dict.items():
            self.seen.append((name, written.writer(name, tensor)))
        return exported_program

    def partition(self, exported_program):
        return PartitionResult(exported_program, {})


def test_same_name_or_same_storage_is_the_same_state():
    x, tensor = torch.randn(2, 2), torch.zeros(2, 2)
    looks = Looks()
    programs = {
        "write": export(Holder(tensor, write=True), (x,)),
        "same_name": export(Holder(torch.zeros(2, 2)), (x,)),
        "same_storage": export(Holder(tensor[:1], "row"), (x,)),
        "neither": export(Holder(torch.zeros(2, 2), "mine"), (x,)),
    }
    to_edge_transform_and_lower(programs, partitioner=[looks])
    assert looks.seen == [
        ("state", "write"),
        ("state", "write"),
        ("row", "write"),
        ("mine", None),
    ]


def test_outside_of_a_lowering_call_the_program_stands_alone():
    x, tensor = torch.randn(2, 2), torch.zeros(2, 2)
    reader, writer = Holder(tensor), Holder(tensor, write=True)
    to_edge_transform_and_lower({"w": export(writer, (x,))}, partitioner=[Looks()])
    assert state_written_by_methods(export(reader, (x,))).writer("state", tensor) is None
    assert state_written_by_methods(export(writer, (x,))).writer("state", tensor) == "forward"
