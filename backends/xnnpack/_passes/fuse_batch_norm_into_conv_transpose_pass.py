import logging
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple, Union

import torch
from executorch.backends.xnnpack._passes.decompose_batch_norm import DecomposeBatchNorm
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.backends.xnnpack.utils.constant_placeholders import (
    delete_unused,
    inherit_custom_meta,
    store_like,
    stored_input,
)
from executorch.backends.xnnpack.utils.utils import get_param_tensor
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import PassResult
from torch.export import ExportedProgram
from torch.fx import Node

logger = logging.getLogger(__name__)

_CONVOLUTION = exir_ops.edge.aten.convolution.default


@dataclass(frozen=True)
class _Fold:
    """The batch norm node goes away and its constants go into the convolution's."""

    convolution: Node
    batch_norm: Node

    @property
    def constants(self) -> Tuple[object, ...]:
        """Weight and bias; scale, shift, mean, variance and epsilon of the batch norm."""
        norm = self.batch_norm.args
        return (*self.convolution.args[1:3], *norm[1:5], norm[-1])


class FuseBatchNormIntoConvTransposePass(XNNPACKPass):
    """
    Folds a batch norm into the transposed convolution with groups in front of it.

    Before:                                     After:
        x -> convolution (transposed)               x -> convolution (transposed)
          -> batch norm -> getitem 0

    The weight of a transposed convolution is (in, out / groups, ...). FuseBatchNormPass takes
    its second dimension for all output channels, which holds for one group; with more, the
    export fails. Here channel c of group g is row c of the group's weight, (in / groups,
    out / groups, ...), scaled by element g * out / groups + c.

    Preconditions, each a reason in the debug log when it fails:
        1. the batch norm is the convolution's only reader, and its statistics are fixed;
        2. it is read through getitem 0 only;
        3. the weight, the bias and the batch norm's tensors are stored constants.

    Computed in double precision and rounded once to the weight's type. Convolutions that
    share all constants share the folded ones too. Has to stand before FuseBatchNormPass,
    which would take these batch norms.
    """

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        graph = graph_module.graph
        folds: List[_Fold] = []
        for node in graph.find_nodes(op="call_function", target=_CONVOLUTION):
            if node.args[6] and node.args[8] > 1:
                fold = plan_fold(node, self.exported_program)
                if isinstance(fold, _Fold):
                    folds.append(fold)
                elif fold is not None:
                    logger.debug(f"The batch norm behind {node} stays: {fold}")
        if not folds:
            return PassResult(graph_module, False)

        replaced = [constant for fold in folds for constant in fold.constants]
        folded: Dict[Tuple[object, ...], Tuple[Node, Node]] = {}
        for fold in folds:
            if fold.constants not in folded:
                folded[fold.constants] = self._fold_constants(fold)
            convolution, norm = fold.convolution, fold.batch_norm
            for i, constant in enumerate(folded[fold.constants], start=1):
                convolution.update_arg(i, constant)
            for item in list(norm.users):
                item.replace_all_uses_with(convolution)
                graph.erase_node(item)
            graph.erase_node(norm)
        delete_unused(self.exported_program, replaced)
        graph.lint()
        graph_module.recompile()
        return PassResult(graph_module, True)

    def _fold_constants(self, fold: _Fold) -> Tuple[Node, Node]:
        """The placeholders of the folded weight and bias."""
        program = self.exported_program
        weight, bias, gamma, beta, mean, variance, eps = fold.constants
        groups = fold.convolution.args[8]

        def value(node: Optional[Node], default: float = 0.0) -> torch.Tensor:
            tensor = get_param_tensor(program, node)
            tensor = torch.tensor(default) if tensor is None else tensor.detach()
            return tensor.double()

        scale = value(gamma, 1.0) / torch.sqrt(value(variance) + eps)
        new_bias = value(beta) + (value(bias) - value(mean)) * scale
        per_group = value(weight).unflatten(0, (groups, -1))
        ones = [1] * (per_group.dim() - 3)
        new_weight = (per_group * scale.view(groups, 1, -1, *ones)).flatten(0, 1)

        dtype = weight.meta["val"].dtype
        name = f"{weight.name}_with_batch_norm"
        weight_node, bias_node = (
            store_like(program, weight, name + suffix, tensor.to(dtype))
            for suffix, tensor in (("", new_weight), ("_bias", new_bias))
        )
        inherit_custom_meta(bias_node, bias, weight)
        return weight_node, bias_node


def plan_fold(
    convolution: Node, program: ExportedProgram
) -> Union[_Fold, str, None]:
    """The fold of the batch norm behind `convolution`, or why it stays; None if there is none."""
    norms = [
        user for user in convolution.users if user.target in DecomposeBatchNorm.BATCH_NORM_OPS
    ]
    if not norms:
        return None
    norm = norms[0]
    if len(convolution.users) > 1:
        return f"{convolution} has {len(convolution.users)} readers"
    if not DecomposeBatchNorm.can_decompose_batch_norm(norm, program):
        return "its statistics are not fixed, or read"
    fold = _Fold(convolution, norm)
    for constant in fold.constants[:-1]:
        if constant is not None and stored_input(program, constant) is None:
            return f"{constant} is not a constant parameter, buffer or tensor"
    return fold
