import logging
from typing import List, Optional

import torch
from executorch.backends.xnnpack import custom_ops_lib  # noqa: F401
from executorch.backends.xnnpack.partition.config.generic_node_configs import (
    _q_dq_quantization_params_match,
    GenericNodePartitionerConfig,
)
from executorch.backends.xnnpack.partition.config.xnnpack_config import (
    ConfigPrecisionType,
)
from executorch.backends.xnnpack.utils.depth_to_space import decline_depth_to_space
from executorch.backends.xnnpack.utils.options import XnnpackOptions
from executorch.backends.xnnpack.utils.quant_utils import (
    is_dequant,
    is_dynamic_qdq,
    is_per_tensor,
    is_quant,
)
from executorch.backends.xnnpack.utils.utils import get_input_node
from executorch.exir.backend.gathered_reports import report
from executorch.exir.backend.utils import WhyNoPartition
from torch.export import ExportedProgram

logger = logging.getLogger(__name__)
why = WhyNoPartition(logger=logger)


class DepthToSpace2dConfig(GenericNodePartitionerConfig):
    """Takes et_xnnpack::depth_to_space_2d, which has no kernel outside a delegate.

    Between a dequantize and a quantize node of equal parameters it runs on the
    quantized values; between unequal ones in floating point.
    """

    target_name = "depth_to_space_2d.default"

    # Set by XnnpackPartitioner.
    options: Optional[XnnpackOptions] = None

    def supported_precision_types(self) -> List[ConfigPrecisionType]:
        return [ConfigPrecisionType.FP32, ConfigPrecisionType.STATIC_QUANT]

    def check_constraints(self, node: torch.fx.Node, ep: ExportedProgram) -> bool:
        options = self.options or XnnpackOptions()
        reason = decline_depth_to_space(
            get_input_node(node, 0).meta["val"], options.target_runtime
        )
        if reason is None:
            return self.check_common_constraints(node, ep)
        why(node, reason)
        # Nothing else can run the operator, so its author hears about it.
        report(_warn, [f"{node} ({node.target.__name__}) is not delegated: {reason}"])
        return False

    def get_node_and_deps(
        self, node: torch.fx.Node, ep: ExportedProgram
    ) -> List[torch.fx.Node]:
        if _keeps_quantization(node, ep):
            return super().get_node_and_deps(node, ep)
        return [node]


def _warn(messages: List[str]) -> None:
    """Each config of each partitioner is asked, for the same node."""
    for message in dict.fromkeys(messages):
        logger.warning(message)


def _keeps_quantization(node: torch.fx.Node, ep: ExportedProgram) -> bool:
    """dequantize -> node -> quantize: static int8 per tensor, with equal parameters."""
    dequantize, quantize = get_input_node(node, 0), next(iter(node.users), None)
    return (
        quantize is not None
        and len(node.users) == 1
        and is_dequant(dequantize)
        and is_quant(quantize)
        and all(
            is_per_tensor(qdq) and not is_dynamic_qdq(qdq) and torch.int8 in qdq.args
            for qdq in (dequantize, quantize)
        )
        and _q_dq_quantization_params_match(dequantize, quantize, ep)
    )
