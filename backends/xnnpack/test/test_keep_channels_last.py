"""Between two convolutions no value changes its layout, whatever elementwise chain stands there."""

import itertools
import operator
from typing import Callable, Sequence

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    get_symmetric_quantization_config,
    XNNPACKQuantizer,
)
from executorch.backends.xnnpack.test.lowered import lower, Lowered
from executorch.exir import ExecutorchBackendConfig
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch import nn
from torch.export import Dim, export
from torch.nn import functional as F
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

C, H, W = 8, 6, 5

BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
SHAPES = ((), (1,), (C, 1, 1), (1, C, 1, 1), (W,), (H, W), (1, 1, H, W), (1, C, H, W))


class Between(nn.Module):
    """convolution, `body`, convolution: one transpose in and one out are due."""

    def __init__(self, body: Callable, constants: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, C, 3, padding=1)
        self.last = nn.Conv2d(C, 4, 1)
        self.body = body
        # Alternately parameters and buffers.
        self.count = len(constants)
        for i, constant in enumerate(constants):
            if i % 2:
                self.register_buffer(f"constant{i}", constant)
            else:
                setattr(self, f"constant{i}", nn.Parameter(constant))

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        constants = [getattr(self, f"constant{i}") for i in range(self.count)]
        y = self.body(self.first(x), *constants, *others)
        return self.last(y) if y.dim() == 4 and y.shape[1] == C else y


def image(seed: int = 0, height: int = H, width: int = W) -> torch.Tensor:
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(seed))


def near_one(*shape: int) -> torch.Tensor:
    return 0.5 + torch.rand(shape, generator=torch.Generator().manual_seed(len(shape)))


def check(lowered: Lowered, model: nn.Module, *inputs: torch.Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(
        lowered.run(*inputs)[0], model(*inputs), atol=atol, rtol=1e-4
    )
    assert lowered.outside().total() == 0
    assert lowered.delegates() == 1


def transposes(lowered: Lowered) -> int:
    return lowered.census()["XNNStaticTranspose"]


def assert_channels_last(
    model: nn.Module, *inputs: torch.Tensor, extra: int = 0, atol: float = 1e-5, **kwargs
) -> Lowered:
    lowered = lower(model.eval(), inputs, **kwargs)
    check(lowered, model, *inputs, atol=atol)
    assert transposes(lowered) == 2 + extra, lowered.census()
    return lowered


@pytest.mark.parametrize("side", ("left", "right"))
def test_constant_operands_of_every_shape(side):
    """Six operators, eight shapes, parameters and buffers: one chain of 48."""

    def body(y, *constants):
        for (apply, _), constant in zip(cases, constants, strict=True):
            # Bounded, so that a division by it is.
            y = apply(y, constant) if side == "right" else apply(constant, y.abs() + 1)
        return y

    cases = list(itertools.product(BINARY.values(), SHAPES))
    model = Between(body, [near_one(*shape) for _, shape in cases])
    lowered = assert_channels_last(model, image(), atol=1e-4)
    assert len(lowered.graphs[0].input_ids) == 1, "every constant is the delegate's own"
    assert lowered.census()["XNNStaticReshape"] == 0


def test_numbers_and_literals():
    def body(y):
        y = (y * 1.5 + 2) / 3
        y = 1 - y
        y = (y.abs() + 1) / 2.0
        return torch.tensor(0.5) * y + torch.tensor([[[2.0]]])

    lowered = assert_channels_last(Between(body), image())
    assert len(lowered.graphs[0].input_ids) == 1


def test_constants_of_constants_are_computed_ahead():
    noise, strength = torch.randn(H, W), torch.tensor(0.3)
    model = Between(lambda y, n, s: y + n * s, [noise, strength])
    lowered = assert_channels_last(model, image())
    assert lowered.census()["XNNMultiply"] == 0
    assert lowered.census()["XNNAdd"] == 1


def test_unary_operators():
    def body(y):
        y = F.hardswish(F.gelu(F.leaky_relu(y, 0.1)))
        y = torch.sigmoid(torch.tanh(torch.sin(torch.cos(y))))
        y = torch.log(torch.exp(y).sqrt().rsqrt() + 1.0)
        y = -(y.abs() ** 2).clamp(0.1, 3)
        return F.hardtanh(torch.floor(y * 8) + torch.ceil(y * 4), -4, 4).relu()

    assert_channels_last(Between(body), image(), atol=1e-4)


def test_values_computed_outside():
    """Numbers broadcast as they are, one channel or one pixel is a reshape, a full value one transpose."""

    def body(y, number, single, scale, map, full):
        return (y * number + single) * scale + map - full

    inputs = (torch.tensor(1.5), torch.rand(1), near_one(C, 1, 1), near_one(H, W))
    lowered = assert_channels_last(
        Between(body), image(), *inputs, near_one(1, C, H, W), extra=1
    )
    assert len(lowered.graphs[0].input_ids) == 6
    # None for the numbers; two for the scale and two for the map, to four dimensions and to their layout.
    assert lowered.census()["XNNStaticReshape"] == 4


def test_dynamic_height_and_width():
    def body(y, number, scale, map):
        return (y * number * 0.5 + scale) * map

    height, width = Dim("height", min=3, max=16), Dim("width", min=3, max=16)
    model = Between(body, [torch.tensor(1.5), near_one(C, 1, 1)])
    # The map of [H, W] has two dynamic sizes: its one channel is transposed.
    lowered = assert_channels_last(
        model,
        image(),
        near_one(H, W),
        extra=1,
        dynamic_shapes={
            "x": {2: height, 3: width},
            "others": ({0: height, 1: width},),
        },
    )
    run = lowered.load()
    for h, w in ((3, 4), (16, 13), (3, 4)):
        inputs = image(1, h, w), near_one(h, w)
        torch.testing.assert_close(run(*inputs)[0], model(*inputs), atol=1e-5, rtol=1e-4)


def test_data_movement_in_between():
    def body(y, plane, scale, wide):
        y = torch.cat([y, plane, y * scale], dim=1)
        y = F.pad(y, (1, 2, 1, 0))[:, 1 : C + 1, :H, :W].clamp(-1, 1)
        y = F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        y = F.interpolate(y, scale_factor=2.0, mode="nearest") * wide
        return y * torch.sigmoid(y.mean((2, 3), keepdim=True) * scale)

    constants = [near_one(1, 2, H, W), near_one(C, 1, 1), near_one(4 * H, 4 * W)]
    assert_channels_last(Between(body, constants), image())


@pytest.mark.parametrize("scale", [(2, 3), (1, 2), (3, 1), (5, 1)])
def test_nearest_upsampling(scale):
    model = Between(lambda y: F.interpolate(y, scale_factor=scale, mode="nearest"))
    lowered = assert_channels_last(model, image())
    assert torch.equal(
        F.interpolate(model.first(image()), scale_factor=scale, mode="nearest"),
        model.first(image()).repeat_interleave(scale[0], 2).repeat_interleave(scale[1], 3),
    )
    concatenations = sum(n for name, n in lowered.census().items() if "Concatenate" in name)
    assert concatenations == sum(factor > 1 for factor in scale)


@pytest.mark.parametrize(
    "size", [(2 * H + 1, 2 * W), (H // 2, W)], ids=["no whole factor", "smaller"]
)
def test_other_nearest_resizing_stays_outside(size):
    model = Between(lambda y: F.interpolate(y, size=size, mode="nearest")).eval()
    lowered = lower(model, (image(),))
    assert lowered.outside() == {"aten.upsample_nearest2d.vec": 1}
    torch.testing.assert_close(lowered.run(image())[0], model(image()))


def test_one_constant_in_both_layouts():
    """The left half runs channels-last, the right half behind a view; each layout is stored once."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, C, 1)
            self.last = nn.Conv2d(C, 4, 1)
            self.register_buffer("full", near_one(1, C, H, W))

        def forward(self, x, z):
            y = self.first(x) * self.full + self.full
            return self.last(y), z.reshape(1, C, H, W).exp() * self.full - self.full

    model, z = Both().eval(), torch.randn(1, C * H * W)
    lowered = lower(model, (image(), z))
    results = lowered.run(image(), z)
    for result, expected in zip(results, model(image(), z), strict=True):
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)
    assert transposes(lowered) == 2
    stored = {
        entry.named_key
        for graph in lowered.graphs
        for entry in graph.constant_data
        if entry.size == 4 * C * H * W
    }
    assert len(stored) == 2


def test_consumers_in_different_layouts():
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, C, 1)
            self.last = nn.Conv2d(C, 4, 1)
            self.linear = nn.Linear(C * H * W, 3)

        def forward(self, x):
            y = self.first(x) * 1.5
            z = (y + 1.0).relu()
            return self.last(z), self.linear(y.flatten(1)), z.flatten(1)

    model = Fork().eval()
    lowered = lower(model, (image(),))
    for result, expected in zip(lowered.run(image()), model(image()), strict=True):
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)
    # In, out, and one for each of the two values that are read flat.
    assert transposes(lowered) == 4


@pytest.mark.parametrize(
    "body",
    (
        lambda y: (y * 2.5).flatten(1) * 0.5,
        lambda y: F.linear(y * 2.5, torch.ones(3, W)) * 0.5,
        lambda y: torch.softmax((y * 2.5).abs() * 0.5, -1),
    ),
    ids=("view", "linear", "softmax"),
)
def test_what_needs_nchw_gets_one_transpose(body):
    model = Between(body).eval()
    lowered, expected = lower(model, (image(),)), model(image())
    torch.testing.assert_close(lowered.run(image())[0], expected, atol=1e-5, rtol=1e-4)
    # In, and to NCHW; what is still an image goes on to the last convolution and out.
    assert transposes(lowered) == (2 if expected.dim() == 2 else 4), lowered.census()


def test_squeeze_excite_by_linear_moves_nothing():
    def body(y, weight):
        gate = F.linear(y.mean((2, 3), keepdim=True).flatten(1), weight)
        return y * torch.sigmoid(gate).reshape(-1, C, 1, 1)

    assert_channels_last(Between(body, [near_one(C, C)]), image())


class Sequence1d(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Conv1d(3, C, 3, padding=1), nn.Conv1d(2 * C, 4, 1)
        self.mid = nn.Conv1d(C, C, 3, padding=2, dilation=2)
        self.stretch = nn.ConvTranspose1d(C, C, 4, 2, 1)
        self.norm = nn.BatchNorm1d(C)
        self.register_buffer("scale", near_one(C, 1))
        self.register_buffer("line", near_one(10))

    def forward(self, x, z):
        y = F.leaky_relu(self.enter(x), 0.1)
        y = self.norm(F.relu(y + self.mid(y) / 3) * self.scale) + self.line + z
        y = F.pad(self.stretch(y)[:, :, 1:], (1, 0))
        return torch.tanh(self.leave(torch.cat([y, -y], 1)))


def test_one_dimensional_convolutions():
    model, x, z = Sequence1d().eval(), torch.randn(1, 3, 10), torch.randn(1, C, 10)
    lowered = lower(model, (x, z))
    check(lowered, model, x, z)
    # One per input and output; [N, C, 10] has more than one channel.
    assert transposes(lowered) == 3, lowered.census()


def test_one_dimensional_convolutions_of_dynamic_length():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Conv1d(3, C, 3, padding=1), nn.Conv1d(C, 2, 1)

        def forward(self, x):
            y = self.first(x)
            return self.last((F.leaky_relu(y, 0.1) + torch.sigmoid(y)) * 1.5)

    model, x = Model().eval(), torch.randn(1, 3, 10)
    lowered = lower(model, (x,), dynamic_shapes={"x": {2: Dim("length", min=4, max=64)}})
    assert transposes(lowered) == 2
    run = lowered.load()
    for length in (10, 64, 4):
        x = torch.randn(1, 3, length)
        torch.testing.assert_close(run(x)[0], model(x), atol=1e-5, rtol=1e-4)


def test_half_precision():
    def body(y, scale, map, full):
        return (F.leaky_relu(y * 1.5) + scale) * map - full

    constants = [near_one(C, 1, 1), near_one(H, W), near_one(1, C, H, W)]
    model = Between(body, constants).half()
    assert_channels_last(model, image().half(), atol=2e-2)


def test_static_int8():
    def body(y, scale, full):
        return ((y + scale) * full + scale).relu()

    model = Between(body, [near_one(1, C, 1, 1), near_one(1, C, H, W)]).eval()
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(export(model, (image(),)).module(), quantizer)
    prepared(image())
    converted = convert_pt2e(prepared)
    expected = converted(image())
    on = lower(converted, (image(),))
    off = lower(converted, (image(),), [XnnpackPartitioner(keep_channels_last=False)])
    torch.testing.assert_close(on.run(image())[0], expected, atol=0.05, rtol=0)
    assert transposes(on) == 2, on.census()
    assert transposes(off) > 2


def test_off_by_argument_and_what_it_saves():
    model = Between(lambda y, c: F.leaky_relu(y) * 1.5 + c, [near_one(C, 1, 1)])
    off = XnnpackPartitioner(keep_channels_last=False, move_scales=False)
    lowered = lower(model.eval(), (image(),), [off])
    check(lowered, model, image())
    assert transposes(lowered) == 4
    assert len(lowered.graphs[0].input_ids) == 3


def test_a_written_buffer_is_no_constant():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, C, 1)
            self.last = nn.Conv2d(C, 4, 1)
            self.register_buffer("state", torch.ones(C, 1, 1))

        def forward(self, x):
            y = self.last(self.first(x) * self.state)
            self.state.add_(1)
            return y

    model = Counter().eval()
    # The file has to hold where the state starts.
    config = ExecutorchBackendConfig(
        passes=[InitializedMutableBufferPass(["state"])]
    )
    run = lower(model, (image(),), executorch_config=config).load()
    for _ in range(3):
        torch.testing.assert_close(run(image())[0], model(image()), atol=1e-5, rtol=1e-4)


def test_a_buffer_that_another_method_writes_is_no_constant():
    from executorch.backends.xnnpack.test.lowered import serialized_graphs
    from executorch.exir import to_edge_transform_and_lower

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, C, 1)
            self.register_buffer("state", torch.ones(C, 1, 1))

        def forward(self, x):
            return self.conv(x) * self.state

        def write(self, x):
            self.state.copy_(x)
            return x + 1

    class Writer(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model.write(x)

    class Reader(Writer):
        def forward(self, x):
            return self.model(x)

    model = Model().eval()
    programs = {
        "forward": export(Reader(model), (image(),)),
        "write": export(Writer(model), (torch.ones(C, 1, 1),)),
    }
    with serialized_graphs() as graphs:
        to_edge_transform_and_lower(programs, partitioner=[XnnpackPartitioner()])
    reader = next(g for g in graphs if any("Conv" in type(n.xnode_union).__name__ for n in g.xnodes))
    assert len(reader.input_ids) == 2, "the image and the state"


@pytest.mark.parametrize("rank", (0, 1, 3))
def test_what_is_computed_of_constants_alone_may_be_returned(rank):
    """Values of constants that the delegate, or an operator outside, hands on."""

    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)
            self.register_buffer("whole", torch.tensor(3).reshape([1] * rank))
            self.scale = nn.Parameter(near_one(*((3, 1, 1) if rank == 3 else [1] * rank)))

        def forward(self, x):
            y = self.conv(x) * self.whole + self.scale.abs() * 3
            y = self.conv(y / self.scale.exp().sqrt())
            computed = self.scale.abs() * 3, self.scale * self.whole, self.scale * 2
            joined = torch.cat([self.scale.exp().reshape(-1), computed[2].reshape(-1)])
            return y, *computed, joined, self.whole + 1, self.whole.float() * 2

    model = Returns().eval()
    lowered = lower(model, (image(),))
    for actual, expected in zip(lowered.run(image()), model(image()), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_a_constant_that_two_layers_scale_is_stored_once():
    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))

    def body(y, noise, first, second):
        y = (y + noise * first).relu()
        return y + noise * second

    constants = [noise, near_one(), near_one() + 1]
    model = Between(body, constants)
    lowered = assert_channels_last(model, image(0, 64, 64), atol=1e-4)
    assert len(lowered.buffer) < 2 * noise.nbytes


@pytest.mark.parametrize("of", ("layout", "strides", "halves"))
def test_constants_of_other_layouts_and_types(of):
    """Stored channels-last, strided, or as halves, which stay halves in the file and are cast outside."""
    full = near_one(1, C, 16, 16)
    if of == "layout":
        full = full.to(memory_format=torch.channels_last)
    elif of == "strides":
        full = full.transpose(1, 2).contiguous().transpose(1, 2)
    else:
        full = full.half()

    def body(y, full):
        return torch.cat([y * full, full.float()], 1)[:, 4 : C + 4] - full

    model = Between(body, [full] if of != "halves" else [torch.ones(1), full])
    if of == "halves":
        model.body = lambda y, one, full: body(y, full) * one
    lowered = lower(model.eval(), (image(0, 16, 16),))
    torch.testing.assert_close(lowered.run(image(0, 16, 16))[0], model(image(0, 16, 16)), atol=1e-5, rtol=1e-4)
    if of == "halves":
        assert lowered.outside() and len(lowered.buffer) < 2 * 4 * full.numel()
    else:
        check(lowered, model, image(0, 16, 16))
        assert transposes(lowered) == 2


def test_numbers_in_static_int8():
    model = Between(lambda y, number: F.relu(y * 1.5 + 0.2) * number, [torch.tensor(1.25)]).eval()
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(export(model, (image(),)).module(), quantizer)
    prepared(image())
    quantized = convert_pt2e(prepared)
    lowered = lower(quantized, (image(),))
    torch.testing.assert_close(lowered.run(image())[0], quantized(image()), atol=3e-2, rtol=0)
    assert transposes(lowered) == 2
