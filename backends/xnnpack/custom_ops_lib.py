"""Operators of the `et_xnnpack` namespace: what XNNPACK has and ATen lacks.

They exist in exported graphs and inside the XNNPACK delegate. The implementations
here serve tracing and tests; no kernel of this namespace is in a runtime.
"""

import torch

_DEPTH_TO_SPACE_2D = "et_xnnpack::depth_to_space_2d"


def _check(x: torch.Tensor, block_size: int) -> None:
    if x.dim() != 4:
        raise ValueError(
            f"{_DEPTH_TO_SPACE_2D}: expected a 4-D input (N, C, H, W), got shape {tuple(x.shape)}"
        )
    if block_size < 1:
        raise ValueError(
            f"{_DEPTH_TO_SPACE_2D}: block_size must be at least 1, got {block_size}"
        )
    if x.shape[1] % (block_size * block_size) != 0:
        raise ValueError(
            f"{_DEPTH_TO_SPACE_2D}: {x.shape[1]} channels are not divisible by "
            f"block_size^2 = {block_size * block_size}"
        )


def depth_to_space_2d(x: torch.Tensor, block_size: int) -> torch.Tensor:
    """Moves blocks of channels to space, block-major (ONNX: DepthToSpace, mode DCR).

    Channel (by * s + bx) * C + c of input pixel (h, w) becomes channel c of output
    pixel (h * s + by, w * s + bx), with s = block_size. `aten.pixel_shuffle` is
    channel-major instead; the two agree only for C = 1.

    Args:
        x: (N, s * s * C, H, W), any dtype. N, H and W may be symbolic.
        block_size: s, at least 1.
    Returns:
        (N, C, H * s, W * s), contiguous, never an alias of `x`.
    Raises:
        ValueError: `x` is not 4-D, block_size < 1, or block_size^2 does not divide
            the channels.
    """
    _check(x, block_size)
    n, channels, h, w = x.shape
    s = block_size
    c = channels // (s * s)
    blocks = x.reshape(n, s, s, c, h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.clone(memory_format=torch.contiguous_format).view(n, c, h * s, w * s)


def _depth_to_space_2d_fake(x: torch.Tensor, block_size: int) -> torch.Tensor:
    _check(x, block_size)
    n, channels, h, w = x.shape
    s = block_size
    return x.new_empty((n, channels // (s * s), h * s, w * s))


# The dispatcher outlives this module: a second import, under this or another
# module name, finds the operator and leaves it alone.
if not hasattr(torch.ops.et_xnnpack, "depth_to_space_2d"):
    torch.library.define(_DEPTH_TO_SPACE_2D, "(Tensor x, int block_size) -> Tensor")
    torch.library.impl(_DEPTH_TO_SPACE_2D, "default", depth_to_space_2d)
    torch.library.register_fake(_DEPTH_TO_SPACE_2D, _depth_to_space_2d_fake)
