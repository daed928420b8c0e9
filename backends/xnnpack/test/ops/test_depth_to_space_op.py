"""The operator by itself: order, shapes, errors, registration."""

import importlib
import runpy

import pytest
import torch
from executorch.backends.xnnpack import custom_ops_lib
from torch.export import Dim, export

depth_to_space_2d = torch.ops.et_xnnpack.depth_to_space_2d


def reference(x: torch.Tensor, s: int) -> torch.Tensor:
    """By the definition: block (by, bx) of the channels fills out[by::s, bx::s]."""
    n, channels, h, w = x.shape
    c = channels // (s * s)
    out = torch.zeros((n, c, h * s, w * s), dtype=x.dtype)
    for by in range(s):
        for bx in range(s):
            first = (by * s + bx) * c
            out[:, :, by::s, bx::s] = x[:, first : first + c]
    return out


class DepthToSpace(torch.nn.Module):
    def __init__(self, block_size):
        super().__init__()
        self.block_size = block_size

    def forward(self, x):
        return depth_to_space_2d(x, self.block_size)


def all_different(*shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


@pytest.mark.parametrize("block_size", [1, 2, 3])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool],
)
def test_order(block_size, dtype):
    x = all_different(3, 5 * block_size**2, 2, 4, dtype=dtype)
    torch.testing.assert_close(
        depth_to_space_2d(x, block_size), reference(x, block_size), atol=0, rtol=0
    )


def test_order_is_not_that_of_pixel_shuffle():
    x = all_different(1, 8, 2, 2)
    assert not torch.equal(depth_to_space_2d(x, 2), torch.pixel_shuffle(x, 2))
    one = x[:, :4]
    assert torch.equal(depth_to_space_2d(one, 2), torch.pixel_shuffle(one, 2))


@pytest.mark.parametrize("block_size", [1, 2])
@pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last], ids=str
)
def test_result_is_contiguous_and_no_alias(block_size, layout):
    x = all_different(2, 8, 3, 4).contiguous(memory_format=layout)
    before = x.clone()
    out = depth_to_space_2d(x, block_size)
    assert out.is_contiguous()
    out.zero_()
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    "x, block_size",
    [
        (torch.randn(2, 8, 3, 4), 2),
        (torch.randn(2, 8, 3, 4), 1),
        (torch.randn(1, 18, 2, 2).half(), 3),
        (torch.randn(2, 8, 3, 4).contiguous(memory_format=torch.channels_last), 2),
        (torch.randint(-9, 9, (1, 4, 1, 5), dtype=torch.int8), 2),
        (torch.randn(0, 8, 3, 4), 2),
    ],
)
def test_opcheck(x, block_size):
    torch.library.opcheck(depth_to_space_2d.default, (x, block_size))


ERRORS = [
    ((8, 3, 4), 2, "4-D"),
    ((1, 2, 8, 3, 4), 2, "4-D"),
    ((1, 8, 3, 4), 0, "block_size must be at least 1, got 0"),
    ((1, 8, 3, 4), -2, "block_size must be at least 1, got -2"),
    ((1, 6, 3, 4), 2, "6 channels are not divisible by block_size.2 = 4"),
]


@pytest.mark.parametrize("shape, block_size, message", ERRORS)
def test_error_in_eager(shape, block_size, message):
    with pytest.raises(ValueError, match=message):
        depth_to_space_2d(torch.randn(shape), block_size)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("shape, block_size, message", ERRORS)
def test_error_at_trace_time(shape, block_size, message, strict):
    with pytest.raises((ValueError, RuntimeError), match=message):
        export(DepthToSpace(block_size), (torch.randn(shape),), strict=strict)


@pytest.mark.parametrize("strict", [False, True])
def test_symbolic_shapes(strict):
    dims = {0: Dim("n", max=4), 2: Dim("h", min=2, max=64), 3: Dim("w", min=2, max=64)}
    program = export(
        DepthToSpace(2),
        (torch.randn(2, 8, 3, 4),),
        dynamic_shapes=(dims,),
        strict=strict,
    )
    (node,) = program.graph.find_nodes(
        op="call_function", target=depth_to_space_2d.default
    )
    out = node.meta["val"].shape
    assert out[1] == 2 and isinstance(out[1], int)
    assert all(isinstance(out[i], torch.SymInt) for i in (0, 2, 3))
    for shape in [(1, 8, 2, 2), (4, 8, 33, 64), (2, 8, 3, 5)]:
        x = torch.randn(shape)
        assert torch.equal(program.module()(x), reference(x, 2))


def test_imported_again_under_this_and_another_name():
    before = depth_to_space_2d.default
    importlib.reload(custom_ops_lib)
    runpy.run_path(custom_ops_lib.__file__, run_name="another_module")
    assert torch.ops.et_xnnpack.depth_to_space_2d.default is before
    x = all_different(1, 8, 2, 2)
    assert torch.equal(depth_to_space_2d(x, 2), reference(x, 2))
