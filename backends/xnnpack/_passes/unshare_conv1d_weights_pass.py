import torch
from executorch.backends.transforms import get_shape
from executorch.backends.transforms.utils import create_constant_placeholder
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.backends.xnnpack.utils.quant_utils import is_dequant
from executorch.backends.xnnpack.utils.utils import get_param_tensor, is_param_node
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import PassResult
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node


class UnshareConv1dWeightsPass(XNNPACKPass):
    """
    Gives every one-dimensional convolution a weight placeholder of its own.

    Conv1dUnsqueezePass adds a dimension to the weight itself, so whoever else reads it fails;
    with a layer that is called twice, the export does.

    Before:                             After:
        w ----+--------+                    w ----+    w' ---+
              v        v                          v          v
        x -> conv1d -> conv1d               x -> conv1d -> conv1d

    The copies share the tensor, and named data is stored once per content, so files do not
    grow. Preconditions: the weight is a static parameter, as is or behind a dequantize, and has
    three dimensions. Has to stand before Conv1dUnsqueezePass.
    """

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        graph = graph_module.graph
        modified = False
        for node in graph.find_nodes(
            op="call_function", target=exir_ops.edge.aten.convolution.default
        ):
            weight = node.args[1]
            stored = weight.args[0] if is_dequant(weight) else weight
            if not is_param_node(self.exported_program, stored):
                continue
            if len(get_shape(stored)) != 3:
                continue
            if len(stored.users) > 1 or len(weight.users) > 1:
                node.update_arg(1, self._copy(graph, weight, stored))
                modified = True
        if modified:
            graph.eliminate_dead_code()
            graph_module.recompile()
            graph.lint()
        return PassResult(graph_module, modified)

    def _copy(self, graph: Graph, weight: Node, stored: Node) -> Node:
        tensor = get_param_tensor(self.exported_program, stored)
        taken = {node.name for node in graph.nodes}
        names = (f"{stored.name}_unshared_{i}" for i in range(len(taken) + 1))
        name = next(name for name in names if name not in taken)
        with graph.inserting_after(stored):
            copy = create_constant_placeholder(
                self.exported_program, graph, name, InputKind.CONSTANT_TENSOR, tensor
            )
        copy.meta = {**stored.meta, **copy.meta}
        if weight is stored:
            return copy
        with graph.inserting_after(weight):
            dequantize = graph.node_copy(weight, lambda n: copy if n is stored else n)
        return dequantize
