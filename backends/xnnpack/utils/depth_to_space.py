"""How depth-to-space is written down, as pure functions over shapes.

XNNPACK computes it on NHWC data. A runtime of the patch set has a node for it; a
released one gets reshape, transpose, reshape, which compute the same.
"""

from dataclasses import dataclass
from typing import List, Optional, Sequence

import torch
from executorch.backends.xnnpack.utils.target_runtime import STOCK

DTYPES = (torch.float32, torch.float16)


def decline_depth_to_space(x: torch.Tensor, target_runtime: str) -> Optional[str]:
    """Why depth_to_space_2d of `x` cannot be delegated, or None.

    Args:
        x: the (fake) NCHW input; a quantized one is seen after its dequantize node.
        target_runtime: "patched" or "stock", see `target_runtime.py`.
    """
    if x.dim() != 4:
        return f"the input must be 4-D (N, C, H, W), got rank {x.dim()}"
    if x.dtype not in DTYPES:
        return f"the input must be float32, float16 or quantized int8, got {x.dtype}"
    if not isinstance(x.shape[1], int):
        return f"the number of channels must be static, got {x.shape[1]}"
    dynamic = [
        name
        for name, axis in (("batch", 0), ("height", 2), ("width", 3))
        if not isinstance(x.shape[axis], int)
    ]
    if target_runtime == STOCK and len(dynamic) > 1:
        return (
            f"{', '.join(dynamic)} are dynamic and the reshape node of a stock runtime "
            "takes one dynamic dimension; export with at most one, or lower with "
            "XnnpackPartitioner(target_runtime='patched')"
        )
    return None


@dataclass(frozen=True)
class StockDepthToSpace:
    """Depth-to-space of NHWC data as nodes of every 1.5 runtime.

    reshape [N, H, W, s*s*C] -> [N*H, W, s, s*C], transpose by `perm`, reshape to
    [N, H*s, W*s, C]. A shape holds 0 where its one dynamic dimension is inferred.
    """

    blocks: List[int]
    perm: List[int]
    out: List[int]


def stock_depth_to_space(
    nhwc: Sequence[Optional[int]], block_size: int
) -> StockDepthToSpace:
    """The nodes for an input of shape `nhwc`, None where a dimension is dynamic.

    Raises:
        ValueError: more than one dimension is dynamic.
    """
    if sum(size is None for size in nhwc) > 1:
        raise ValueError(
            f"depth-to-space for a stock runtime takes one dynamic dimension, got {list(nhwc)}"
        )
    # 0 stands for the inferred dimension, and products keep it.
    n, h, w, channels = (size or 0 for size in nhwc)
    s = block_size
    c = channels // (s * s)
    return StockDepthToSpace(
        blocks=[n * h, w, s, s * c],
        perm=[0, 2, 1, 3],
        out=[n, h * s, w * s, c],
    )
