"""Stored tensors of a program: replace one by others that keep its kind and its file."""

from typing import Iterable, Optional

import torch
from executorch.backends.transforms.utils import (
    create_constant_placeholder,
    delete_constant_placeholder,
)
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import Node

_STORED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def stored_input(program: ExportedProgram, node: Node) -> Optional[InputSpec]:
    """The input spec of a parameter, buffer or constant that nobody writes, else None."""
    signature = program.graph_signature
    written = signature.buffers_to_mutate.values()
    for spec in signature.input_specs:
        if spec.arg.name == node.name:
            stored = spec.kind in _STORED and spec.target not in written
            return spec if stored else None
    return None


def inherit_custom_meta(node: Node, *sources: object) -> None:
    """Gives `node` the custom metadata, and so the file of its data, of the first node
    among `sources` that has some."""
    for source in sources:
        if isinstance(source, Node) and "custom" in source.meta:
            node.meta["custom"] = source.meta["custom"]
            return


def store_like(
    program: ExportedProgram, like: Node, name: str, data: torch.Tensor
) -> Node:
    """A new placeholder in front of `like`, of its kind, persistence and external file.

    Underscores are appended to `name` if a node or a stored tensor has it.
    """
    graph = like.graph
    taken = {node.name for node in graph.nodes}
    while name in taken or name in program.state_dict or name in program.constants:
        name += "_"
    spec = stored_input(program, like)
    with graph.inserting_before(like):
        node = create_constant_placeholder(
            program, graph, name, spec.kind, data, spec.persistent
        )
    inherit_custom_meta(node, like)
    return node


def delete_unused(program: ExportedProgram, nodes: Iterable[object]) -> None:
    """Deletes those of `nodes` that are stored tensors without users, and their data."""
    # The pass manager runs passes on a shallow copy of the program, which sees the
    # signature's list of inputs, but not a new signature.
    shared = program.graph_signature.input_specs
    for node in dict.fromkeys(nodes):
        if isinstance(node, Node) and not node.users and stored_input(program, node):
            delete_constant_placeholder(program, node)
    shared[:] = program.graph_signature.input_specs
