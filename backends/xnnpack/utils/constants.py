"""Constants of the program that a pass works on: read, add."""

from typing import Optional

import torch
from executorch.backends.transforms.utils import create_constant_placeholder
from executorch.backends.xnnpack.utils.utils import get_param_tensor, is_param_node
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node


def constant_of(program: ExportedProgram, node: object) -> Optional[torch.Tensor]:
    """The tensor behind a placeholder that the delegate owns, or None."""
    if not isinstance(node, Node) or not is_param_node(program, node):
        return None
    tensor = get_param_tensor(program, node)
    return None if tensor is None else tensor.detach()


def add_constant(
    program: ExportedProgram, graph: Graph, tensor: torch.Tensor, source: Node
) -> Node:
    """A placeholder for `tensor`, which comes from that of `source`: external data stays external."""
    nodes = list(graph.nodes)
    taken = {node.name for node in nodes}.union(program.state_dict, program.constants)
    names = (f"{source.name}_{i}" for i in range(len(taken) + 1))
    name = next(name for name in names if name not in taken)
    # The new placeholder takes its fake mode from the first node, which Conv1dUnsqueezePass may
    # have given a real tensor.
    first = nodes[0]
    if not isinstance(first.meta.get("val"), FakeTensor):
        values = (node.meta.get("val") for node in nodes)
        mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
        first.meta["val"] = mode.from_tensor(first.meta["val"], static_shapes=True)
    with graph.inserting_before(first):
        node = create_constant_placeholder(
            program, graph, name, InputKind.CONSTANT_TENSOR, tensor
        )
    if "custom" in source.meta:
        node.meta["custom"] = source.meta["custom"]
    return node
