import logging
from typing import Dict, Union

import torch
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.backends.xnnpack.utils.constants import add_constant, constant_of
from executorch.backends.xnnpack.utils.elementwise import (
    combines_tensors,
    dynamic_sizes,
    operands,
    PER_TENSOR_QDQ,
    rank_of,
    replace_operand,
    reshape_sizes,
    shape_of,
)
from executorch.backends.xnnpack.utils.options import options_of
from executorch.backends.xnnpack.utils.quant_utils import is_dequant, is_quant
from executorch.backends.xnnpack.utils.utils import is_param_node
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import PassResult
from torch.fx import Graph, Node

logger = logging.getLogger(__name__)

aten = exir_ops.edge.aten


class AlignOperandsPass(XNNPACKPass):
    """
    Gives the operands of four-dimensional binary operators and concatenations four dimensions.

    Before:                          After:
        scale[C,1,1] --+                 scale[C,1,1] -- view[1,C,1,1] --+
                       +-- mul                                           +-- mul
        x[N,C,H,W] ----+                                  x[N,C,H,W] ----+

    ChannelsLastTaggedReshapePass turns a channels-last `x` back if the other operand has fewer
    dimensions, or is a constant, which it pins to NCHW. A view is neither: it is turned to channels
    last like any value, and SettleLayoutsPass makes a constant of a constant, and a reshape of a
    value of one channel or one pixel. Missing dimensions are leading ones, as in broadcasting.

    Preconditions: (1) the result has four dimensions; (2) the operand has fewer, or is a
    constant; (3) a quantized operand has its quantize node here, so that the view can stand
    before it; a value that arrives quantized keeps its shape. More than one dynamic size is
    beyond a reshape, so such a value is multiplied by a one of four dimensions. Exact. Has to
    stand behind every pass that makes operators or reads constants, and directly before
    ChannelsLastTaggedReshapePass.
    """

    def plan(self, operand: Node) -> Union[Node, str]:
        """The value that is to be viewed for `operand`, or why nothing is to be done."""
        source = operand
        if is_dequant(source):
            source = source.args[0]
            if is_quant(source):
                source = source.args[0]
            elif not is_param_node(self.exported_program, source):
                return "it arrives quantized"
        if operand is not source and not self._per_tensor(operand, source):
            return "it is not quantized per tensor"
        if not isinstance(source.meta.get("val"), torch.Tensor):
            return "it is no tensor"
        if rank_of(source) < 4 or is_param_node(self.exported_program, source):
            return source
        return "it has four dimensions"

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        if not options_of(self.exported_program).keep_channels_last:
            return PassResult(graph_module, False)
        graph = graph_module.graph
        plans = [
            (node, place, operand, self.plan(operand))
            for node in graph.nodes
            if combines_tensors(node) and rank_of(node) == 4
            for place, operand in operands(node)
        ]
        views: Dict[Node, Node] = {}
        modified = False
        for node, place, operand, source in plans:
            if isinstance(source, str):
                logger.debug(f"{operand}, read by {node}, stays: {source}")
                continue
            if source not in views:
                views[source] = self._view(graph, source)
            aligned = self._requantized(graph, operand, source, views[source])
            replace_operand(node, place, aligned)
            modified = True
        if modified:
            graph.eliminate_dead_code()
            graph_module.recompile()
            graph.lint()
        return PassResult(graph_module, modified)

    def _per_tensor(self, dequantize: Node, source: Node) -> bool:
        chain = [dequantize]
        if dequantize.args[0] is not source:
            chain.append(dequantize.args[0])
        return all(node.target in PER_TENSOR_QDQ for node in chain)

    def _view(self, graph: Graph, source: Node) -> Node:
        shape = (1,) * (4 - rank_of(source)) + shape_of(source)
        first_reader = _first_reader(source)
        constant = constant_of(self.exported_program, source)
        # The layout pass indexes what a view reads, and takes strides for a layout.
        if constant is not None and (constant.dim() == 0 or not constant.is_contiguous()):
            constant = constant.contiguous().reshape(shape)
            source = add_constant(self.exported_program, graph, constant, source)
        value = source.meta["val"].reshape(shape)
        if dynamic_sizes(shape) > 1:
            one = torch.ones(1, 1, 1, 1, dtype=value.dtype)
            one = add_constant(self.exported_program, graph, one, source)
            target, args = aten.mul.Tensor, (source, one)
        else:
            target, args = aten.view_copy.default, (source, reshape_sizes(shape))
        with graph.inserting_before(first_reader):
            view = graph.call_function(target, args)
        view.meta["val"] = value
        return view

    def _requantized(
        self, graph: Graph, operand: Node, source: Node, view: Node
    ) -> Node:
        """`operand` with `view` for its `source`; its own copy, as the layout pass moves all readers."""
        if operand is source:
            return view
        renamed = {source: view}
        chain = [operand] if operand.args[0] is source else [operand.args[0], operand]
        for node in chain:
            with graph.inserting_before(operand):
                copy = graph.node_copy(node, lambda n: renamed.get(n, n))
            copy.meta = dict(node.meta)
            copy.meta["val"] = node.meta["val"].reshape(shape_of(view))
            renamed[node] = copy
        return renamed[operand]


def _first_reader(node: Node) -> Node:
    """The first operator that reads `node`; before it, `node` exists and nothing misses the view."""
    return min(node.users)
