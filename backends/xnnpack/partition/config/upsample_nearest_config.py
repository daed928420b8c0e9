import logging
from typing import List, Optional, Tuple, Union

import torch
from executorch.backends.xnnpack.partition.config.generic_node_configs import (
    GenericNodePartitionerConfig,
)
from executorch.backends.xnnpack.partition.config.xnnpack_config import (
    ConfigPrecisionType,
)
from executorch.backends.xnnpack.utils.options import XnnpackOptions
from executorch.exir.backend.utils import WhyNoPartition
from torch.export import ExportedProgram
from torch.fx import Node

logger = logging.getLogger(__name__)
why = WhyNoPartition(logger=logger)

# A concatenation takes five inputs.
MAX_FACTOR = 5


class UpsampleNearest2dConfig(GenericNodePartitionerConfig):
    """Takes nearest upsampling by whole factors, so that it does not cut the delegate in two."""

    target_name = "upsample_nearest2d.vec"

    # Set by XnnpackPartitioner.
    options: Optional[XnnpackOptions] = None

    def supported_precision_types(self) -> List[ConfigPrecisionType]:
        return [ConfigPrecisionType.FP32]

    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        if not (self.options or XnnpackOptions()).keep_channels_last:
            why(node, "keep_channels_last is off")
            return False
        factors = upsampling_factors(node)
        if isinstance(factors, str):
            why(node, factors)
            return False
        return self.check_common_constraints(node, ep)


def upsampling_factors(node: Node) -> Union[Tuple[int, int], str]:
    """How many rows and columns upsample_nearest2d.vec makes of one, or why it is not delegated."""
    before, after = node.args[0].meta["val"], node.meta["val"]
    sizes = [*before.shape[1:], *after.shape[2:]]
    if before.dim() != 4 or not all(isinstance(size, int) for size in sizes):
        return "channels, height and width have to be static"
    factors = []
    for axis in (2, 3):
        factor, rest = divmod(after.shape[axis], before.shape[axis])
        if rest or not 1 <= factor <= MAX_FACTOR:
            return f"only whole factors up to {MAX_FACTOR} are supported"
        scales = node.args[2]
        scale = scales[axis - 2] if scales else factor
        if not _repeats(before.shape[axis], factor, scale):
            return f"a scale of {scale} does not repeat every row or column {factor} times"
        factors.append(factor)
    return tuple(factors)


def _repeats(size: int, factor: int, scale: float) -> bool:
    """ATen divides the position by the scale in floating point, so it decides itself."""
    line = torch.arange(size, dtype=torch.float32).reshape(1, 1, size)
    upsampled = torch.ops.aten.upsample_nearest1d.default(line, [size * factor], scale)
    return torch.equal(upsampled, line.repeat_interleave(factor, -1))
