from typing import Dict, List

import torch
from executorch.backends.xnnpack.operators.node_visitor import (
    get_tensor_value,
    NodeVisitor,
    register_node_visitor,
)
from executorch.backends.xnnpack.operators.op_depth_to_space import _internal_value
from executorch.backends.xnnpack.partition.config.upsample_nearest_config import (
    upsampling_factors,
)
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import (
    XNNConcatenate2,
    XNNConcatenate3,
    XNNConcatenate4,
    XNNConcatenate5,
    XNNCopy,
    XNNGraph,
    XNNStaticReshape,
    XNode,
)
from executorch.backends.xnnpack.utils.utils import check_or_raise, get_input_node
from executorch.backends.xnnpack.utils.xnnpack_constants import XNN_INVALID_VALUE_ID

_CONCATENATE = {
    2: XNNConcatenate2,
    3: XNNConcatenate3,
    4: XNNConcatenate4,
    5: XNNConcatenate5,
}


@register_node_visitor
class UpsampleNearest2d(NodeVisitor):
    """Serializes nearest upsampling by whole factors, NHWC on both sides.

    A pixel twice in a row is [N*H*W, C] concatenated with itself to [N*H*W, 2*C]; a row twice below itself is
    [N*H, W*C] concatenated with itself. Between them stand reshapes, which cost nothing. The batch may be dynamic.
    """

    target = "aten.upsample_nearest2d.vec"

    def define_node(
        self,
        node: torch.fx.Node,
        xnn_graph: XNNGraph,
        vals_to_ids: Dict[torch.fx.Node, int],
        debug_handle: int,
    ) -> None:
        factors = upsampling_factors(node)
        check_or_raise(not isinstance(factors, str), f"{node}: {factors}")
        rows, columns = factors
        input_node = get_input_node(node, 0)
        for value in (node, input_node):
            self.define_tensor(value, xnn_graph, vals_to_ids, convert_to_nhwc=True)
        batch, height, width, channels = get_tensor_value(
            xnn_graph.xvalues[vals_to_ids[input_node]]
        ).dims
        like = xnn_graph.xvalues[vals_to_ids[node]]
        nodes: List[object] = []
        last = vals_to_ids[input_node]
        for factor, shape in (
            (columns, [batch * height * width, channels]),
            (rows, [batch * height, width * columns * channels]),
        ):
            if factor == 1:
                continue
            flat = _internal_value(xnn_graph, like, shape)
            nodes.append(_reshape(last, flat, [0, shape[1]]))
            last = _internal_value(xnn_graph, like, [shape[0], shape[1] * factor])
            nodes.append(_concatenate([flat] * factor, last))
        output = vals_to_ids[node]
        if nodes:
            shape = [0, height * rows, width * columns, channels]
            nodes.append(_reshape(last, output, shape))
        else:
            nodes.append(XNNCopy(input_id=last, output_id=output, flags=0))
        xnn_graph.xnodes.extend(
            XNode(xnode_union=union, debug_handle=debug_handle) for union in nodes
        )


def _reshape(input_id: int, output_id: int, shape: List[int]) -> XNNStaticReshape:
    """A size of 0 is inferred."""
    return XNNStaticReshape(
        num_dims=len(shape),
        new_shape=shape,
        input_id=input_id,
        output_id=output_id,
        flags=0,
    )


def _concatenate(inputs: List[int], output_id: int) -> object:
    unused = [XNN_INVALID_VALUE_ID] * (5 - len(inputs))
    ids = dict(zip((f"input{i}_id" for i in range(1, 6)), inputs + unused, strict=True))
    return _CONCATENATE[len(inputs)](axis=1, output_id=output_id, flags=0, **ids)
