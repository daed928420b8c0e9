import logging
from typing import Dict, List, Tuple, Union

import torch
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.backends.xnnpack.utils.elementwise import (
    BINARY,
    dynamic_sizes,
    is_one_element,
    operands,
    rank_of,
    shape_of,
    UNARY,
)
from executorch.backends.xnnpack.utils.options import options_of
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import PassResult
from torch.fx import Graph, Node

logger = logging.getLogger(__name__)

aten = exir_ops.edge.aten


class KeepFourDimensionsPass(XNNPACKPass):
    """
    Keeps what stands between one-dimensional convolutions in the four dimensions they run in.

    Before:  conv -- squeeze -- leaky_relu -- unsqueeze -- conv
    After:   conv -- leaky_relu -- conv

    Conv1dUnsqueezePass wraps every one-dimensional convolution into an unsqueeze and a squeeze of the last
    dimension. A value of three dimensions is in NCHW, so each convolution is transposed forth and back.
    Here the squeeze moves behind the operators that follow and meets the next unsqueeze.

    Preconditions of an operator: (1) elementwise, a concatenation, a slice or a constant pad; (2) its result has three
    dimensions; (3) at least one tensor comes from a squeeze of the last of four dimensions; (4) every other has one
    element or at most one dynamic size, so that the reshape that unsqueezes it can be said. Exact. Has to stand
    behind Conv1dUnsqueezePass and FusePadIntoConvPass.
    """

    TARGETS = (
        BINARY
        | UNARY
        | {
            aten.cat.default,
            aten.constant_pad_nd.default,
            aten.slice_copy.Tensor,
        }
    )

    def plan(self, node: Node) -> Union[List[Node], str]:
        """The tensors that `node` reads, or why it stays three-dimensional."""
        if node.target not in self.TARGETS:
            return "it is not elementwise and moves no elements"
        if rank_of(node) != 3:
            return "it has other than three dimensions"
        tensors = [operand for _, operand in operands(node)]
        if node.target not in BINARY and node.target is not aten.cat.default:
            tensors = tensors[:1]
        if not any(_squeezed(tensor) for tensor in tensors):
            return "none of its tensors comes from a convolution"
        for tensor in tensors:
            if _squeezed(tensor) or is_one_element(tensor):
                continue
            if dynamic_sizes(shape_of(tensor)) > 1:
                return f"a reshape of {tensor} takes one dynamic size"
        return tensors

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        if not options_of(self.exported_program).keep_channels_last:
            return PassResult(graph_module, False)
        graph = graph_module.graph
        unsqueezed: Dict[Node, Node] = {}
        modified = False
        # A squeeze that moved behind one operator is what the next one is judged by.
        for node in list(graph.nodes):
            if node.op != "call_function":
                continue
            if _meets_squeeze(node):
                node.replace_all_uses_with(node.args[0].args[0])
                modified = True
                continue
            tensors = self.plan(node)
            if isinstance(tensors, str):
                logger.debug(f"{node} stays: {tensors}")
                continue
            lifted = {t: self._lift(graph, node, t, unsqueezed) for t in tensors}
            self._rewrite(graph, node, lifted)
            modified = True
        if modified:
            graph.eliminate_dead_code()
            graph_module.recompile()
            graph.lint()
        return PassResult(graph_module, modified)

    def _lift(
        self, graph: Graph, node: Node, tensor: Node, unsqueezed: Dict[Node, Node]
    ) -> Node:
        if _squeezed(tensor):
            return tensor.args[0]
        if is_one_element(tensor) and node.target in BINARY:
            return tensor
        if tensor not in unsqueezed:
            with graph.inserting_before(node):
                lifted = graph.call_function(aten.unsqueeze_copy.default, (tensor, -1))
            lifted.meta["val"] = tensor.meta["val"].unsqueeze(-1)
            unsqueezed[tensor] = lifted
        return unsqueezed[tensor]

    def _rewrite(self, graph: Graph, node: Node, lifted: Dict[Node, Node]) -> None:
        with graph.inserting_before(node):
            wide = graph.node_copy(node, lambda n: lifted.get(n, n))
            wide.args = _with_last_dimension(node, wide.args)
            squeeze = graph.call_function(aten.squeeze_copy.dim, (wide, -1))
        wide.meta = dict(node.meta)
        wide.meta["val"] = node.meta["val"].unsqueeze(-1)
        squeeze.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(squeeze)
        graph.erase_node(node)


def _squeezed(node: Node) -> bool:
    """A squeeze of the last of four dimensions, which has one element."""
    if node.target is not aten.squeeze_copy.dim or node.args[1] not in (-1, 3):
        return False
    return rank_of(node.args[0]) == 4 and rank_of(node) == 3


def _meets_squeeze(node: Node) -> bool:
    if node.target is not aten.unsqueeze_copy.default or node.args[1] not in (-1, 3):
        return False
    return _squeezed(node.args[0])


def _with_last_dimension(node: Node, args: Tuple) -> Tuple:
    """The arguments of `node` for tensors with one more dimension at the end."""
    if node.target is aten.constant_pad_nd.default:
        return (args[0], [0, 0, *args[1]], *args[2:])
    if node.target in (aten.cat.default, aten.slice_copy.Tensor) and len(args) > 1:
        return (args[0], args[1] % 3, *args[2:])
    return args
