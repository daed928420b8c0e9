from typing import Optional

from executorch.backends.xnnpack.utils.options import XnnpackOptions
from executorch.backends.xnnpack.utils.quant_utils import is_dequant, is_dynamic_qdq
from executorch.exir.dialects._ops import ops as exir_ops
from torch.fx import Node


def is_dynamic_behind_pad(convolution: Node, options: Optional[XnnpackOptions]) -> bool:
    """Whether `convolution` is quantized dynamically, with a pad behind the dequantize.

    Export writes padding="same" with an even kernel as a pad, in front of the convolution and so
    behind what the quantizer has put in front. The runtime cannot pad a dynamically quantized
    value, so this holds only where FusePadIntoConvPass will fold the pad.
    """
    pad, weight = convolution.args[:2]
    return (
        (options or XnnpackOptions()).fuse_pads
        and is_dequant(weight)
        and pad.target is exir_ops.edge.aten.constant_pad_nd.default
        and has_known_amounts(pad)
        and is_dynamic_qdq(pad.args[0])
    )


def has_known_amounts(pad: Node) -> bool:
    """Whether how much a constant_pad_nd pads is known before run time."""
    return all(isinstance(amount, int) for amount in pad.args[1])
