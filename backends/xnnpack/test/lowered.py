"""Lower a module through the default pipeline and keep what was serialized."""

import operator
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Iterator, List, Optional, Sequence, Union
from unittest import mock

import torch
from executorch.backends.xnnpack import xnnpack_preprocess
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import XNNGraph
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.delegate import executorch_call_delegate
from executorch.runtime import Runtime
from torch.export import export, ExportedProgram


_DELEGATE = executorch_call_delegate.__name__


@contextmanager
def serialized_graphs() -> Iterator[List[XNNGraph]]:
    """Collects every XNNGraph that the XNNPACK backend serializes in this scope."""
    graphs: List[XNNGraph] = []
    serialize = xnnpack_preprocess.serialize_xnnpack_binary

    def keep(graph, *args):
        graphs.append(graph)
        return serialize(graph, *args)

    with mock.patch.object(xnnpack_preprocess, "serialize_xnnpack_binary", keep):
        yield graphs


@dataclass
class Lowered:
    """One lowered method: what stayed at top level, its delegate payloads and its file."""

    calls: Counter
    graphs: List[XNNGraph]
    buffer: bytes

    def outside(self) -> Counter:
        """Operators left at top level, by name; the delegate calls do not count."""
        return Counter({k: v for k, v in self.calls.items() if k != _DELEGATE})

    def delegates(self) -> int:
        return self.calls[_DELEGATE]

    def census(self) -> Counter:
        """Serialized XNNPACK nodes over all delegates, by schema name."""
        return Counter(
            type(node.xnode_union).__name__
            for graph in self.graphs
            for node in graph.xnodes
        )

    def load(self):
        """Returns a function that runs the file's `forward` on the runtime."""
        program = Runtime.get().load_program(self.buffer)
        method = program.load_method("forward")
        # The method needs its program; keep both alive with the closure.
        return lambda *inputs, _program=program: method.execute(list(inputs))

    def run(self, *inputs) -> List[torch.Tensor]:
        return self.load()(*inputs)


def lower(
    model: Union[torch.nn.Module, ExportedProgram],
    inputs: Sequence[torch.Tensor],
    partitioner=None,
    dynamic_shapes=None,
    strict: bool = False,
    executorch_config: Optional[object] = None,
) -> Lowered:
    """Export, lower with `XnnpackPartitioner()` unless told otherwise, and emit."""
    if isinstance(model, torch.nn.Module):
        model = export(
            model, tuple(inputs), dynamic_shapes=dynamic_shapes, strict=strict
        )
    with serialized_graphs() as graphs:
        manager = to_edge_transform_and_lower(
            model, partitioner=partitioner or [XnnpackPartitioner()]
        )
    # Emission rewrites the edge program, so count before it.
    calls = Counter(
        node.target.__name__
        for node in manager.exported_program().graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    )
    return Lowered(calls, graphs, manager.to_executorch(executorch_config).buffer)
