"""Which constants of elementwise operators belong to the delegate.

The partitioner configs take the weights of convolutions and linears; the constants of all other
operators reach the delegate as inputs, where no pass knows their values and no layout can be chosen
ahead of time. Here the delegate takes them as well.
"""

import logging
from typing import Optional

from executorch.backends.xnnpack.utils.elementwise import (
    BINARY,
    PER_TENSOR_QDQ,
    rank_of,
    UNARY,
)
from executorch.exir.backend.canonical_partitioners.config_partitioner import (
    is_constant_data,
)
from executorch.exir.backend.partitioner import PartitionResult
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.program._written_state import WrittenState
from torch.export import ExportedProgram
from torch.fx import Node

logger = logging.getLogger(__name__)

_TAG = "delegation_tag"

# Casts and copies, which fold_constants_pass computes when they read a constant alone.
_COPIES = frozenset(
    {
        exir_ops.edge.aten._to_copy.default,
        exir_ops.edge.aten.clone.default,
        exir_ops.edge.dim_order_ops._to_dim_order_copy.default,
        exir_ops.edge.dim_order_ops._clone_dim_order.default,
    }
)
# Bytes that a cast may take although its operand has less: one number, or few.
_ALWAYS_SMALL = 64
_ELEMENTWISE = BINARY | UNARY | {exir_ops.edge.aten.cat.default}


def own_constants(
    result: PartitionResult, written: Optional[WrittenState] = None
) -> PartitionResult:
    """Tags constants that nobody but the delegates' elementwise operators read.

    A constant that delegates share goes to one of them, as the lowering copies it for the others; named
    data is stored once per content. `written` tells which state the other methods of this lowering call write.
    """
    program = result.tagged_exported_program
    nodes = list(program.graph.nodes)
    for node in nodes:
        if node.op != "placeholder" or _TAG in node.meta:
            continue
        if not is_constant_data(program, node):
            continue
        casts = [user for user in node.users if _own_cast(user)]
        reason = decline_constant(program, node, written)
        if reason is None:
            node.meta[_TAG] = min(user.meta[_TAG] for user in node.users)
        else:
            logger.debug(f"{node} stays an input: {reason}")
            # XNNPACK has no casts: they are computed ahead of time, or outside.
            for cast in casts:
                del cast.meta[_TAG]
    return result


def decline_constant(
    program: ExportedProgram, node: Node, written: Optional[WrittenState]
) -> Optional[str]:
    """Why the delegate does not take the constant `node`, or None."""
    if not node.users:
        return "nothing reads it"
    for user in node.users:
        if _TAG not in user.meta:
            return f"{user} reads it outside"
        if not _reads_elementwise(user):
            return f"not only elementwise operators read {user}"
    return decline_state(program, node, written)


def _reads_elementwise(reader: Node) -> bool:
    """Not for gemms: those whose weights are not static are asked to keep them outside."""
    if reader.target not in _ELEMENTWISE | PER_TENSOR_QDQ | _COPIES:
        return False
    # Constants of rank 0 have rank 1 in XNNPACK, and so has what is computed of them: it has to stay inside.
    if reader.target in _ELEMENTWISE and rank_of(reader) > 0:
        return True
    tag = reader.meta.get(_TAG)
    return all(user.meta.get(_TAG) == tag and _reads_elementwise(user) for user in reader.users)


def decline_state(
    program: ExportedProgram, node: Node, written: Optional[WrittenState]
) -> Optional[str]:
    """Why the tensor behind the placeholder `node` is no constant, or None."""
    signature = program.graph_signature
    name = signature.inputs_to_buffers.get(node.name)
    if name is None:
        return None
    if name in signature.buffers_to_mutate.values():
        return "it is written"
    if written is not None:
        tensor = program.state_dict.get(name, program.constants.get(name))
        writer = written.writer(name, tensor)
        if writer is not None:
            return f"method {writer} writes it"
    return None


def _own_cast(node: Node) -> bool:
    """Tags a cast of a constant, the form in which integers meet floating point values."""
    if node.target not in _COPIES or _TAG in node.meta:
        return False
    tags = {user.meta.get(_TAG) for user in node.users}
    if len(tags) != 1 or None in tags:
        return False
    # It is computed ahead of time, and stored.
    if node.meta["val"].nbytes > max(node.args[0].meta["val"].nbytes, _ALWAYS_SMALL):
        return False
    node.meta[_TAG] = tags.pop()
    return True
