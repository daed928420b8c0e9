import logging
from typing import Optional

import torch
from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import (
    ChannelsLastTaggedReshapePass,
)
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.backends.xnnpack.utils.constants import add_constant, constant_of
from executorch.backends.xnnpack.utils.elementwise import (
    BINARY,
    dynamic_sizes,
    is_one_element,
    reshape_sizes,
    shape_of,
)
from executorch.backends.xnnpack.utils.options import options_of
from executorch.backends.xnnpack.utils.quant_utils import is_dequant, is_quant
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import PassResult
from torch.fx import Graph, Node

logger = logging.getLogger(__name__)

aten = exir_ops.edge.aten
_NHWC = ChannelsLastTaggedReshapePass.XNN_NHWC_NODE


class SettleLayoutsPass(XNNPACKPass):
    """
    Takes changes of layout away that need not happen at run time.

    Before:                                     After:
        constant -- view -- to NHWC -- mul          constant, stored NHWC -- mul
        number[] -- view -- to NHWC -- mul          number[] -- mul
        [N,C,1,1] -- to NHWC -- mul                 [N,C,1,1] -- reshape [N,1,1,C] -- mul

    (1) A view or a change of layout of a constant is a constant, with or without quantize nodes
    between. A constant used in both layouts becomes two, and no more. (2) A number that is not known
    ahead of time broadcasts as it is. (3) A change of layout that moves no element, of one channel
    or one pixel, is a reshape; it has at most one dynamic size. Exact. Has to stand behind
    ChannelsLastTaggedReshapePass and RemoveRedundantCopyPass, and nothing may retrace behind it.
    """

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        if not options_of(self.exported_program).keep_channels_last:
            return PassResult(graph_module, False)
        graph = graph_module.graph
        modified = False
        for node in list(graph.nodes):
            if node.target not in (aten._to_copy.default, aten.view_copy.default):
                continue
            if not node.users:
                continue
            modified |= (
                self._store(graph, node)
                or self._store_quantized(graph, node)
                or self._broadcast(node)
                or self._reshape(node)
            )
        if modified:
            graph.eliminate_dead_code()
            graph_module.recompile()
            graph.lint()
        return PassResult(graph_module, modified)

    def _store(self, graph: Graph, node: Node) -> bool:
        tensor = constant_of(self.exported_program, node.args[0])
        if tensor is None or not _is_layout_change(node):
            return False
        # The delegate cannot return a constant.
        if any(user.op == "output" for user in node.users):
            return False
        stored = self._stored(graph, tensor, node.args[0], node)
        node.replace_all_uses_with(stored)
        return True

    def _store_quantized(self, graph: Graph, node: Node) -> bool:
        """constant [-- quantize] -- dequantize -- `node` -- quantize, all with the same parameters."""
        dequantize = node.args[0]
        quantize = next(iter(node.users))
        if not is_dequant(dequantize) or not _is_layout_change(node):
            return False
        if len(node.users) != 1 or not is_quant(quantize):
            return False
        if quantize.args[1:] != dequantize.args[1:]:
            return False
        source = dequantize.args[0]
        if is_quant(source):
            if source.args[1:] != dequantize.args[1:]:
                return False
            tensor = constant_of(self.exported_program, source.args[0])
            if tensor is None:
                return False
            stored = self._stored(graph, tensor, source.args[0], node)
            node.replace_all_uses_with(stored)
            return True
        tensor = constant_of(self.exported_program, source)
        if tensor is None:
            return False
        quantize.replace_all_uses_with(self._stored(graph, tensor, source, node))
        return True

    def _stored(
        self, graph: Graph, tensor: torch.Tensor, source: Node, node: Node
    ) -> Node:
        stored = add_constant(
            self.exported_program,
            graph,
            tensor.contiguous().reshape(shape_of(node)),
            source,
        )
        if node.meta.get(_NHWC, False):
            stored.meta[_NHWC] = True
        return stored

    def _broadcast(self, node: Node) -> bool:
        number = node.args[0]
        if not is_one_element(node) or not is_one_element(number):
            return False
        if any(user.target not in BINARY or is_one_element(user) for user in node.users):
            return False
        while number.target is aten.view_copy.default and is_one_element(number.args[0]):
            number = number.args[0]
        node.replace_all_uses_with(number)
        return True

    def _reshape(self, node: Node) -> bool:
        reason = decline_reshape(node)
        if reason is not None:
            logger.debug(f"{node} stays a transpose: {reason}")
            return False
        to_nhwc = node.kwargs["memory_format"] is torch.channels_last
        node.target = aten.view_copy.default
        node.args = (node.args[0], reshape_sizes(shape_of(node)))
        node.kwargs = {}
        # The visitor of a view asks for the tag, not for its value.
        node.meta.pop(_NHWC, None)
        if to_nhwc:
            node.meta[_NHWC] = True
        return True


def _is_layout_change(node: Node) -> bool:
    """A view, or a copy that the layout pass made: it changes nothing but the memory format."""
    return node.target is aten.view_copy.default or set(node.kwargs) == {"memory_format"}


def decline_reshape(node: Node) -> Optional[str]:
    """Why a change of layout moves elements, or None."""
    if node.target is not aten._to_copy.default or not _is_layout_change(node):
        return "it is no change of layout"
    shape = shape_of(node)
    if len(shape) != 4:
        return "it does not have four dimensions"
    one_channel = isinstance(shape[1], int) and shape[1] == 1
    one_pixel = all(isinstance(size, int) and size == 1 for size in shape[2:])
    if not one_channel and not one_pixel:
        return "it moves elements"
    if dynamic_sizes(shape) > 1:
        return "a reshape takes one dynamic size"
    return None
