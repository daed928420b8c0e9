import logging
from typing import List, Union

import torch
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.backends.xnnpack.utils.constants import add_constant, constant_of
from executorch.backends.xnnpack.utils.elementwise import BINARY, UNARY
from executorch.backends.xnnpack.utils.options import options_of
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import PassResult
from torch.fx import Node

logger = logging.getLogger(__name__)


class FoldConstantsPass(XNNPACKPass):
    """
    Computes elementwise operators of constants ahead of time.

    Before:                                      After:
        noise[H,W] --+                               noise * strength --+
                     mul --+                                            +-- add
        strength[] --+     +-- add                                  x --+
                       x --+

    The operands are those that own_constants gave to the delegate; among them are the casts by which integers meet
    floating point values. Preconditions: (1) an elementwise operator, a cast or a copy; (2) all of its tensors are
    constants; (3) but for casts and copies, the result has no more bytes than an operand that nothing else reads, so
    files do not grow; (4) no output of the delegate, which cannot be a constant. Exact: the same kernel
    computes the same value. Has to stand after DimOrderOpsRevertPass, which turns dim-order copies into the copies
    matched here, and before passes that read constants.
    """

    # XNNPACK has no node for these; own_constants gives the delegate those that are to be stored.
    COPIES = frozenset(
        {exir_ops.edge.aten._to_copy.default, exir_ops.edge.aten.clone.default}
    )

    def plan(self, node: Node) -> Union[List[torch.Tensor], str]:
        """The tensors that `node` computes with, or why it stays."""
        if node.target not in BINARY | UNARY | self.COPIES:
            return "it is not elementwise"
        values = [constant_of(self.exported_program, n) for n in node.all_input_nodes]
        if not values or any(value is None for value in values):
            return "an operand is no constant"
        if any(user.op == "output" for user in node.users):
            return "the delegate returns it"
        gone = [v.nbytes for n, v in zip(node.all_input_nodes, values) if len(n.users) == 1]
        if node.target not in self.COPIES and node.meta["val"].nbytes > max(gone, default=0):
            return "the result is larger than what it makes needless"
        return values

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        if not options_of(self.exported_program).keep_channels_last:
            return PassResult(graph_module, False)
        graph = graph_module.graph
        modified = False
        for node in list(graph.nodes):
            if node.op != "call_function":
                continue
            values = self.plan(node)
            if isinstance(values, str):
                logger.debug(f"{node} is not folded: {values}")
                continue
            known = dict(zip(node.all_input_nodes, values, strict=True))
            args, kwargs = torch.fx.map_arg(
                (node.args, node.kwargs), lambda n: known[n]
            )
            result = node.target(*args, **kwargs).contiguous()
            folded = add_constant(
                self.exported_program, graph, result, node.all_input_nodes[0]
            )
            node.replace_all_uses_with(folded)
            graph.erase_node(node)
            modified = True
        if modified:
            graph_module.recompile()
            graph.lint()
        return PassResult(graph_module, modified)
