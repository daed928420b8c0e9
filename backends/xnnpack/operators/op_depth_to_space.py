from dataclasses import replace
from typing import Dict, List, Optional

import torch
from executorch.backends.xnnpack import custom_ops_lib  # noqa: F401
from executorch.backends.xnnpack.operators.node_visitor import (
    get_tensor_value,
    NodeVisitor,
    register_node_visitor,
)
from executorch.backends.xnnpack.operators.quant_params import QuantParams
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import (
    XNNCopy,
    XNNDepthToSpace2d,
    XNNGraph,
    XNNQuantizedTensorValue,
    XNNStaticReshape,
    XNNStaticTranspose,
    XNode,
    XValue,
)
from executorch.backends.xnnpack.utils.depth_to_space import stock_depth_to_space
from executorch.backends.xnnpack.utils.options import options_of
from executorch.backends.xnnpack.utils.target_runtime import STOCK
from executorch.backends.xnnpack.utils.utils import (
    check_or_raise,
    get_input_node,
    PERM_NCHW_TO_NHWC,
)
from executorch.backends.xnnpack.utils.xnnpack_constants import XNN_INVALID_VALUE_ID


@register_node_visitor
class DepthToSpace2d(NodeVisitor):
    """Serializes depth_to_space_2d, NHWC on both sides.

    As XNNDepthToSpace2d, or for a stock runtime as reshape, transpose, reshape. The
    choice is made here because only serialized values have NHWC shapes: in the graph,
    a reshape of a channels-last tensor would speak of other elements.
    """

    target = "et_xnnpack.depth_to_space_2d.default"

    def define_node(
        self,
        node: torch.fx.Node,
        xnn_graph: XNNGraph,
        vals_to_ids: Dict[torch.fx.Node, int],
        debug_handle: int,
    ) -> None:
        input_node = get_input_node(node, 0)
        block_size = node.args[1]
        self._check_quantization(node, input_node)
        self.define_nodes_tensor_inputs_outputs(
            node, xnn_graph, vals_to_ids, convert_to_nhwc=True
        )
        input_id, output_id = vals_to_ids[input_node], vals_to_ids[node]

        if block_size == 1:
            # XNNPACK's node starts at a block size of 2.
            nodes = [XNNCopy(input_id=input_id, output_id=output_id, flags=0)]
        elif options_of(self.exported_program).target_runtime == STOCK:
            nodes = self._stock_nodes(node, xnn_graph, input_id, output_id)
        else:
            nodes = [
                XNNDepthToSpace2d(
                    block_size=block_size,
                    input_id=input_id,
                    output_id=output_id,
                    flags=0,
                )
            ]
        xnn_graph.xnodes.extend(
            XNode(xnode_union=union, debug_handle=debug_handle) for union in nodes
        )

    def _check_quantization(
        self, node: torch.fx.Node, input_node: torch.fx.Node
    ) -> None:
        """Data movement keeps the quantization: both sides have it, and the same."""

        def parameters(quant: Optional[QuantParams]):
            return quant and (quant.scale, quant.zp, quant.dtype)

        before = parameters(QuantParams.from_inputs(input_node, self.exported_program))
        after = parameters(QuantParams.from_outputs(node))
        check_or_raise(
            before == after,
            f"{node}: quantization differs between input {before} and output {after}",
        )

    def _stock_nodes(
        self, node: torch.fx.Node, xnn_graph: XNNGraph, input_id: int, output_id: int
    ) -> List[object]:
        nchw = get_input_node(node, 0).meta["val"].shape
        static = [size if isinstance(size, int) else None for size in nchw]
        plan = stock_depth_to_space(
            [static[i] for i in PERM_NCHW_TO_NHWC], node.args[1]
        )
        # The same plan over the serialized (upper bound) dims sizes the values between.
        bounds = stock_depth_to_space(
            get_tensor_value(xnn_graph.xvalues[input_id]).dims, node.args[1]
        ).blocks
        like = xnn_graph.xvalues[output_id]
        blocks_id = _internal_value(xnn_graph, like, bounds)
        swapped_id = _internal_value(xnn_graph, like, [bounds[i] for i in plan.perm])
        return [
            XNNStaticReshape(
                num_dims=len(plan.blocks),
                new_shape=plan.blocks,
                input_id=input_id,
                output_id=blocks_id,
                flags=0,
            ),
            XNNStaticTranspose(
                num_dims=len(plan.perm),
                perm=plan.perm,
                input_id=blocks_id,
                output_id=swapped_id,
                flags=0,
            ),
            XNNStaticReshape(
                num_dims=len(plan.out),
                new_shape=plan.out,
                input_id=swapped_id,
                output_id=output_id,
                flags=0,
            ),
        ]


def _internal_value(xnn_graph: XNNGraph, like: XValue, dims: List[int]) -> int:
    """Adds a value with the datatype and quantization of `like`; returns its id."""
    new_id = len(xnn_graph.xvalues)
    tensor = replace(
        get_tensor_value(like),
        num_dims=len(dims),
        dims=dims,
        external_id=XNN_INVALID_VALUE_ID,
        flags=0,
        id_out=new_id,
    )
    union = like.xvalue_union
    if isinstance(union, XNNQuantizedTensorValue):
        union = replace(union, tensor_value=tensor)
    else:
        union = tensor
    xnn_graph.xvalues.append(XValue(xvalue_union=union))
    return new_id
