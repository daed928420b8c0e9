"""Operators of the `et_xnnpack` namespace: what XNNPACK has and ATen lacks.

They exist in exported graphs and inside the XNNPACK delegate. The implementations
here serve tracing and tests; no kernel of this namespace is in a runtime.
"""

from typing import List, Optional

import torch

_DEPTH_TO_SPACE_2D = "et_xnnpack::depth_to_space_2d"
_PADDED_CONVOLUTION_2D = "et_xnnpack::padded_convolution_2d"


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


def padded_convolution_2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    stride: List[int],
    padding: List[int],
    dilation: List[int],
    transposed: bool,
    output_padding: List[int],
    groups: int,
) -> torch.Tensor:
    """A two-dimensional convolution that pads each side of the image by its own amount.

    `aten.convolution` has one padding per axis; XNNPACK's convolutions have four. The
    arguments are those of `aten.convolution` and in its order, so that code which
    reads a convolution's arguments can read these, save for the padding.

    Args:
        input: (N, C, H, W), floating point. N, H and W may be symbolic.
        weight: (O, C / groups, kernel height, kernel width).
        bias: (O,) or None.
        stride, dilation: (height, width).
        padding: (top, right, bottom, left), zeros, not negative.
        transposed: False.
        output_padding: has no effect.
        groups: divides C and O.
    Returns:
        (N, O, H', W'), in the memory format that `aten.convolution` gives for the
        padded input.
    Raises:
        ValueError: there are not four paddings, one is negative, or transposed.
    """
    if len(padding) != 4 or any(amount < 0 for amount in padding):
        raise ValueError(
            f"{_PADDED_CONVOLUTION_2D}: expected padding (top, right, bottom, left) "
            f"and no negative amount, got {list(padding)}"
        )
    if transposed:
        raise ValueError(f"{_PADDED_CONVOLUTION_2D}: transposed has to be False")
    top, right, bottom, left = padding
    padded = torch.ops.aten.constant_pad_nd.default(input, [left, right, top, bottom])
    return torch.ops.aten.convolution.default(
        padded, weight, bias, stride, [0, 0], dilation, False, [0, 0], groups
    )


# The dispatcher outlives this module: a second import, under this or another
# module name, finds the operator and leaves it alone.
if not hasattr(torch.ops.et_xnnpack, "depth_to_space_2d"):
    torch.library.define(_DEPTH_TO_SPACE_2D, "(Tensor x, int block_size) -> Tensor")
    torch.library.impl(_DEPTH_TO_SPACE_2D, "default", depth_to_space_2d)
    torch.library.register_fake(_DEPTH_TO_SPACE_2D, _depth_to_space_2d_fake)
if not hasattr(torch.ops.et_xnnpack, "padded_convolution_2d"):
    torch.library.define(
        _PADDED_CONVOLUTION_2D,
        "(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, "
        "SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor",
    )
    torch.library.impl(_PADDED_CONVOLUTION_2D, "default", padded_convolution_2d)
    torch.library.register_fake(_PADDED_CONVOLUTION_2D, padded_convolution_2d)
