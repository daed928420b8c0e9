from typing import Dict

import torch
from executorch.backends.xnnpack import custom_ops_lib  # noqa: F401
from executorch.backends.xnnpack.operators.node_visitor import (
    get_node_visitors,
    NodeVisitor,
    register_node_visitor,
)
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import XNNGraph


@register_node_visitor
class PaddedConv2d(NodeVisitor):
    """Serializes padded_convolution_2d as the convolution it is, with its four paddings.

    The visitor of aten.convolution does the work: the arguments are the same and in the
    same order, save for the padding.
    """

    target = "et_xnnpack.padded_convolution_2d.default"

    def define_node(
        self,
        node: torch.fx.Node,
        xnn_graph: XNNGraph,
        vals_to_ids: Dict[torch.fx.Node, int],
        debug_handle: int,
    ) -> None:
        visitors = get_node_visitors(
            self.exported_program, self.external_ids, self._named_data_store
        )
        visitors["aten.convolution.default"].define_node(
            node, xnn_graph, vals_to_ids, debug_handle
        )
        convolution = xnn_graph.xnodes[-1].xnode_union
        (
            convolution.padding_top,
            convolution.padding_right,
            convolution.padding_bottom,
            convolution.padding_left,
        ) = node.args[4]
