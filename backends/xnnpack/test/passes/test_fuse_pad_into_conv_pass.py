"""Pads with zeros become paddings of the convolution behind them."""

import logging
import os
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from executorch.backends.xnnpack._passes import fuse_pad_into_conv, XNNPACKPassManager
from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import (
    ChannelsLastTaggedReshapePass,
)
from executorch.backends.xnnpack._passes.conv1d_unsqueeze_pass import (
    Conv1dUnsqueezePass,
)
from executorch.backends.xnnpack._passes.fuse_activation_pass import FuseActivationPass
from executorch.backends.xnnpack._passes.fuse_pad_into_conv import FusePadIntoConvPass
from executorch.backends.xnnpack.partition.config.gemm_configs import ConvolutionConfig
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    get_symmetric_quantization_config,
    XNNPACKQuantizer,
)
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import (
    XNNConv2d,
    XNNDepthwiseConv2d,
)
from executorch.backends.xnnpack.test.lowered import lower
from executorch.backends.xnnpack.utils.target_runtime import (
    native_library_installed,
    PATCHED,
    STOCK,
)
from executorch.exir import to_edge
from executorch.exir.pass_base import ExportPass
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.export import Dim, export
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

quantized = torch.ops.quantized_decomposed

PAD = "aten.constant_pad_nd.default"
CONVOLUTION = "aten.convolution.default"
PADDED = "et_xnnpack.padded_convolution_2d.default"


class Apply(nn.Module):
    def __init__(self, function, *layers):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x):
        return self.function(x, *self.layers)


def padded(pad, *layers, **how):
    """A module that pads, then runs `layers`."""

    def function(x, *layers):
        x = F.pad(x, pad, **how)
        for layer in layers:
            x = layer(x)
        return x

    return Apply(function, *layers).eval()


def conv(channels=4, out=6, kernel=3, **how):
    torch.manual_seed(0)
    return nn.Conv2d(channels, out, kernel, **how)


def image(*shape, dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(*(shape or (2, 4, 6, 7)), dtype=dtype)


def quantize(model, x, **config):
    """`model` quantized with PT2E; "is_dynamic" and "is_per_channel" are the choices."""
    quantizer = XNNPACKQuantizer()
    quantizer.set_global(get_symmetric_quantization_config(**config))
    prepared = prepare_pt2e(export(model.eval(), (x,)).module(), quantizer)
    prepared(x)
    return convert_pt2e(prepared)


# One pass on one graph


def edge(model, x):
    return to_edge(export(model, (x,))).exported_program()


def run(program, passes=(FusePadIntoConvPass,)):
    return XNNPACKPassManager(program, list(passes)).transform()


def operators(program):
    return [
        node.target.__name__
        for node in program.graph.nodes
        if node.op == "call_function"
    ]


def find(program, name):
    (node,) = (
        node
        for node in program.graph.nodes
        if node.op == "call_function" and node.target.__name__ == name
    )
    return node


FOLDS = {
    # Model, operator afterwards, its padding.
    "four sides": (padded((1, 2, 3, 4), conv()), PADDED, [3, 2, 4, 1]),
    "one axis": (padded((1, 2), conv()), PADDED, [0, 2, 0, 1]),
    "equal sides": (padded((1, 1, 2, 2), conv()), CONVOLUTION, [2, 1]),
    "on top of its own": (
        padded((1, 0, 0, 2), conv(padding=(2, 1), stride=(2, 1))),
        PADDED,
        [2, 1, 4, 2],
    ),
    "made equal by its own": (
        padded((1, 0, 0, 2), nn.ZeroPad2d((0, 1, 2, 0)), conv(padding=1)),
        CONVOLUTION,
        [3, 2],
    ),
    "same": (conv(kernel=4, padding="same"), PADDED, [1, 2, 2, 1]),
    "two pads": (padded((1, 0, 2, 0), nn.ZeroPad2d((0, 3, 0, 0)), conv()), PADDED, [2, 3, 0, 1]),
    "a pad and nothing": (padded((1, 0), nn.ZeroPad2d(0), conv()), PADDED, [0, 0, 0, 1]),
    "zero batch and channel": (padded((1, 0, 0, 0, 0, 0, 0, 0), conv()), PADDED, [0, 0, 0, 1]),
    "integer value": (padded((1, 0), conv(), value=0), PADDED, [0, 0, 0, 1]),
    "minus zero": (padded((1, 0), conv(), value=-0.0), PADDED, [0, 0, 0, 1]),
    "groups": (padded((1, 0), conv(groups=2)), PADDED, [0, 0, 0, 1]),
    "depthwise": (padded((1, 0), conv(out=8, groups=4)), PADDED, [0, 0, 0, 1]),
    "dilated": (padded((1, 0), conv(dilation=2, padding=1)), PADDED, [1, 1, 1, 2]),
}


@pytest.mark.parametrize("name", FOLDS)
def test_folds(name):
    model, operator, padding = FOLDS[name]
    x = image()
    program = edge(model, x)
    shape = program.graph.output_node().args[0][0].meta["val"].shape
    result = run(program)
    assert operators(result) == [operator]
    assert list(find(result, operator).args[4]) == padding
    torch.testing.assert_close(result.module()(x), model(x), atol=1e-6, rtol=1e-5)

    # Whoever retraces finds the shape, and nothing more to do.
    retraced = ExportPass()(result.graph_module).graph_module
    assert retraced.graph.output_node().args[0][0].meta["val"].shape == shape
    assert not FusePadIntoConvPass(result)(result.graph_module).modified


def test_broadcast_arguments_are_written_out():
    def single(x, layer):
        x = F.pad(x, (1, 0))
        return torch.ops.aten.convolution(
            x, layer.weight, None, [2], [1], [1], False, [0], 1
        )

    model, x = Apply(single, conv()), image()
    result = run(edge(model, x))
    arguments = find(result, PADDED).args[3:]
    assert [list(a) if not isinstance(a, (bool, int)) else a for a in arguments] == [
        [2, 2], [1, 1, 1, 2], [1, 1], False, [0, 0], 1
    ]  # fmt: skip
    torch.testing.assert_close(result.module()(x), model(x), atol=1e-6, rtol=1e-5)


def test_one_dimensional_convolution():
    torch.manual_seed(0)
    model = padded((1, 2), nn.Conv1d(4, 6, 3, padding=1, dilation=2))
    x = image(2, 4, 9)
    result = run(edge(model, x), [Conv1dUnsqueezePass, FusePadIntoConvPass])
    assert PAD not in operators(result)
    assert list(find(result, PADDED).args[4]) == [2, 0, 3, 0]
    assert not FusePadIntoConvPass(result)(result.graph_module).modified


def test_fused_activation_stays():
    model, x = padded((1, 0), conv(), nn.ReLU()), image()
    result = run(edge(model, x), [FuseActivationPass, FusePadIntoConvPass])
    assert operators(result) == [PADDED]
    assert FuseActivationPass.get_fused_activation(find(result, PADDED)).output_min == 0


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_memory_format_is_that_of_the_convolution(layout):
    x = image().contiguous(memory_format=layout)
    program = edge(padded((1, 0), conv()), x)
    strides = program.graph.output_node().args[0][0].meta["val"].stride()
    result = run(program)
    assert find(result, PADDED).meta["val"].stride() == strides


def two_readers(x, first, second):
    x = F.pad(x, (1, 0, 0, 2))
    return first(x) + second(x)


def also_output(x, layer):
    x = F.pad(x, (1, 0, 0, 2))
    return layer(x), x


def as_quantized(x, scale=0.05, zero_point=3, low=-128):
    limits = (scale, zero_point, low, 127, torch.int8)
    x = quantized.quantize_per_tensor.default(x, *limits)
    return quantized.dequantize_per_tensor.default(x, *limits)


def clamped_zero_point(x, layer):
    return layer(as_quantized(F.pad(x, (1, 0)), zero_point=-20, low=-10))


def other_parameters(x, layer):
    x = quantized.quantize_per_tensor.default(F.pad(x, (1, 0)), 0.1, 3, -128, 127, torch.int8)
    return layer(quantized.dequantize_per_tensor.default(x, 0.1, 4, -128, 127, torch.int8))


DECLINES = {
    "cropped": (padded((-1, 1), conv()), "it crops: an amount is negative"),
    "value": (padded((1, 1), conv(), value=1.0), "its value is 1.0, not zero"),
    "infinity": (padded((1, 1), conv(), value=float("-inf")), "its value is -inf, not zero"),
    "not a number": (padded((1, 1), conv(), value=float("nan")), "its value is nan, not zero"),
    "channels": (padded((1, 0, 0, 0, 0, 1), conv(5)), "it pads more than the height and width of"),
    "batch": (padded((0, 1, 0, 0, 0, 0, 1, 0), conv()), "it pads more than the height and width of"),
    "two readers": (Apply(two_readers, conv(), conv()), "has 2 readers"),
    "output and convolution": (Apply(also_output, conv()), "has 2 readers"),
    "only output": (padded((1, 0)), "reads it, which is no convolution"),
    "something between": (padded((1, 0), nn.Sigmoid(), conv()), "reads it, which is no convolution"),
    "transposed": (padded((1, 0), nn.ConvTranspose2d(4, 6, 3)), "is transposed"),
    "a pad that stays": (
        padded((1, 0), nn.ConstantPad2d((1, 0, 0, 0), 2.0), conv()),
        "stays: its value is 2.0, not zero",
    ),
    "nothing, but an output": (padded((0, 0)), "it pads nothing, but is an output"),
    "clamped zero point": (Apply(clamped_zero_point, conv()), "clamps its zero point"),
    "other parameters": (Apply(other_parameters, conv()), "reads other quantization parameters than"),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLINES)
def test_declines(name, caplog):
    model, reason = DECLINES[name]
    x = image()
    program = edge(model, x)
    before = operators(program)
    with caplog.at_level(logging.DEBUG, logger=fuse_pad_into_conv.__name__):
        result = FusePadIntoConvPass(program)(program.graph_module)
    assert not result.modified
    assert reason in caplog.messages[-1]
    assert operators(program) == before and PAD in before
    torch.testing.assert_close(
        program.module()(x), model(x), atol=1e-6, rtol=1e-5, equal_nan=True
    )


def test_declines_amounts_known_at_run_time(caplog):
    class Symbolic(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = conv()

        def forward(self, x):
            return self.layer(F.pad(x, (0, x.shape[3], 1, 0)))

    model, shapes = Symbolic().eval(), ({3: Dim("w", min=4, max=16)},)
    program = to_edge(export(model, (image(),), dynamic_shapes=shapes)).exported_program()
    with caplog.at_level(logging.DEBUG, logger=fuse_pad_into_conv.__name__):
        assert not FusePadIntoConvPass(program)(program.graph_module).modified
    assert "its amounts are not known before run time" in caplog.messages[-1]
    forward = lower(model, (image(),), dynamic_shapes=shapes).load()
    for width in (7, 16, 4):
        x = image(2, 4, 6, width)
        torch.testing.assert_close(forward(x)[0], model(x), atol=1e-5, rtol=1e-5)


def test_a_pad_of_nothing_goes_away_wherever_it_stands():
    def nothing(x):
        return torch.sigmoid(F.pad(x, (0, 0, 0, 0), value=5.0)) + F.pad(x, (0, 0))

    model, x = Apply(nothing), image()
    result = run(edge(model, x))
    assert PAD not in operators(result)
    assert torch.equal(result.module()(x), model(x))
    lowered = lower(model, (x,))
    assert lowered.census() == Counter(XNNSigmoid=1, XNNAdd=1)
    torch.testing.assert_close(lowered.run(x)[0], model(x), atol=1e-5, rtol=1e-5)


def test_stands_where_the_docstring_says():
    passes = XNNPACKPassManager(edge(conv(), image())).passes
    place = passes.index(FusePadIntoConvPass)
    assert passes.index(FuseActivationPass) < place
    assert passes.index(Conv1dUnsqueezePass) < place
    assert place < passes.index(ChannelsLastTaggedReshapePass)


# Through the default pipeline, on the runtime


def lower_both(model, x, **options):
    """Lowered with the pads folded and without."""
    return [
        lower(model, (x,), [XnnpackPartitioner(fuse_pads=fuse)], **options)
        for fuse in (True, False)
    ]


def check_folded(model, x, census, pads=1, saved=Counter(), **tolerance):
    """`census` with the pads folded, `pads` pads and `saved` nodes more without, same bits."""
    folded, explicit = lower_both(model, x)
    assert not folded.outside() and folded.delegates() == 1
    assert folded.census() == Counter(census)
    assert explicit.census() == Counter(census) + Counter(XNNStaticConstantPad=pads) + saved
    (result,) = folded.run(x)
    assert torch.equal(result, explicit.run(x)[0])
    torch.testing.assert_close(result, model(x), **(tolerance or {"atol": 1e-5, "rtol": 1e-5}))
    return folded


def paddings(lowered):
    """(top, right, bottom, left) of each serialized convolution."""
    return [
        (node.padding_top, node.padding_right, node.padding_bottom, node.padding_left)
        for graph in lowered.graphs
        for node in (xnode.xnode_union for xnode in graph.xnodes)
        if isinstance(node, (XNNConv2d, XNNDepthwiseConv2d))
    ]


TO_NHWC_AND_BACK = {"XNNStaticTranspose": 2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_same_padding_with_an_even_kernel(dtype):
    model, x = conv(kernel=4, padding="same").to(dtype).eval(), image(dtype=dtype)
    loose = {"atol": 1e-2, "rtol": 1e-2} if dtype is torch.float16 else {}
    lowered = check_folded(model, x, {"XNNConv2d": 1, **TO_NHWC_AND_BACK}, **loose)
    assert paddings(lowered) == [(1, 2, 2, 1)]


def test_same_padding_in_one_dimension():
    torch.manual_seed(0)
    model, x = nn.Conv1d(4, 6, 4, padding="same").eval(), image(2, 4, 9)
    lowered = check_folded(
        model, x, {"XNNConv2d": 1, "XNNStaticReshape": 2, **TO_NHWC_AND_BACK}
    )
    assert paddings(lowered) == [(1, 0, 2, 0)]


def test_all_sides_of_several_convolutions():
    def chain(x, first, second, third):
        x = torch.relu(second(F.pad(first(x), (1, 2, 3, 4))))
        return F.hardtanh(third(F.pad(x, (0, 3, 0, 0))))

    model = Apply(chain, conv(), conv(6), conv(6, groups=6, padding=1, stride=2)).eval()
    census = {"XNNConv2d": 2, "XNNDepthwiseConv2d": 1, **TO_NHWC_AND_BACK}
    lowered = check_folded(model, image(), census, pads=2)
    assert paddings(lowered) == [(0, 0, 0, 0), (3, 2, 4, 1), (1, 4, 1, 1)]


def test_one_layer_behind_different_pads():
    def shared(x, layer):
        return layer(F.pad(layer(F.pad(x, (1, 0, 0, 2))), (2, 2, 0, 1)))

    model = Apply(shared, conv(out=4)).eval()
    lowered = check_folded(model, image(), {"XNNConv2d": 2, **TO_NHWC_AND_BACK}, pads=2)
    assert paddings(lowered) == [(0, 0, 2, 1), (0, 2, 1, 2)]


def test_channels_last_input_and_output():
    model, x = padded((1, 0, 0, 2), conv()), image()
    x = x.contiguous(memory_format=torch.channels_last)
    check_folded(model, x, {"XNNConv2d": 1})


def test_dynamic_batch_height_and_width():
    model = padded((1, 0, 0, 2), conv(stride=2, padding=1))
    shapes = {0: Dim("n", min=1, max=4), 2: Dim("h", max=16), 3: Dim("w", max=16)}
    folded, explicit = lower_both(model, image(), dynamic_shapes=(shapes,))
    assert folded.census()["XNNStaticConstantPad"] == 0
    assert explicit.census()["XNNStaticConstantPad"] == 1
    forward = folded.load()
    for shape in ((1, 4, 5, 6), (4, 4, 16, 16), (2, 4, 4, 7), (1, 4, 5, 6)):
        x = image(*shape)
        torch.testing.assert_close(forward(x)[0], model(x), atol=1e-5, rtol=1e-5)


def test_pads_that_stay_are_right():
    names = ["channels", "batch", "two readers", "transposed", "value", "output and convolution"]

    def all_of_them(x, *models):
        results = [model(x) for model in models]
        return tuple(y for result in results for y in (result if isinstance(result, tuple) else [result]))

    model, x = Apply(all_of_them, *(DECLINES[name][0] for name in names)).eval(), image()
    lowered = lower(model, (x,))
    assert lowered.census()["XNNStaticConstantPad"] == len(names)
    torch.testing.assert_close(tuple(lowered.run(x)), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(
            PATCHED,
            marks=pytest.mark.skipif(
                not native_library_installed(),
                reason="the installed executorch has no runtime of the patch set",
            ),
        ),
        STOCK,
    ],
)
def test_phases_of_a_deconvolution_share_one_transpose(target):
    """What a depthwise transposed convolution is decomposed into."""
    pads = [(1, 0, 1, 0), (0, 1, 1, 0), (1, 0, 0, 1), (0, 1, 0, 1)]

    def upscale(x, *layers):
        phases = [layer(F.pad(x, pad)) for layer, pad in zip(layers, pads)]
        return torch.ops.et_xnnpack.depth_to_space_2d(torch.cat(phases, 1), 2)

    model = Apply(upscale, *(conv(4, 4, 2, groups=4) for _ in pads)).eval()
    x = image()
    lowered = lower(model, (x,), [XnnpackPartitioner(target_runtime=target)])
    to_space = {"XNNDepthToSpace2d": 1}
    if target == STOCK:
        to_space = {"XNNStaticReshape": 2, "XNNStaticTranspose": 1}
    assert lowered.census() == Counter(
        XNNStaticTranspose=2, XNNDepthwiseConv2d=4, XNNConcatenate4=1
    ) + Counter(to_space)
    assert paddings(lowered) == [(1, 0, 0, 1), (1, 1, 0, 0), (0, 0, 1, 1), (0, 1, 1, 0)]
    torch.testing.assert_close(lowered.run(x)[0], model(x), atol=1e-5, rtol=1e-5)


# Quantized: the value is padded with the zero point


QUANTIZED = {
    # Model, input, census, what else the pads cost. The input is far from symmetric, so
    # its zero point is far from zero.
    "first": (padded((1, 2, 0, 3), conv()), image() + 0.7, {"XNNConv2d": 1}, {}),
    "same and between": (
        nn.Sequential(conv(kernel=4, padding="same"), nn.ReLU(), nn.ZeroPad2d((1, 2, 0, 3)), conv(6, groups=6)),
        image() + 0.7,
        {"XNNConv2d": 1, "XNNDepthwiseConv2d": 1},
        {"XNNConvert": 2, "XNNStaticConstantPad": 1},
    ),
    "one-dimensional": (
        nn.Sequential(nn.Conv1d(4, 6, 4, padding="same"), nn.ConstantPad1d((1, 2), 0.0), nn.Conv1d(6, 6, 3)),
        image(2, 4, 9) + 0.7,
        {"XNNConv2d": 2, "XNNStaticReshape": 4, "XNNStaticTranspose": 2},
        {"XNNConvert": 2, "XNNStaticConstantPad": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name, is_per_channel",
    [
        ("first", False),
        ("same and between", True),
        ("one-dimensional", True),
    ],
)
def test_static_quantization(name, is_per_channel):
    model, x, nodes, saved = QUANTIZED[name]
    model = quantize(model, x, is_per_channel=is_per_channel)
    (input_zero_point, *_) = (
        node.args[2]
        for node in model.graph.nodes
        if node.target is quantized.quantize_per_tensor.default
    )
    assert input_zero_point < -10
    output_scale = list(model.graph.nodes)[-2].args[1]
    # A step of the output: eager accumulates in floating point.
    check_folded(
        model,
        x,
        Counter(nodes) + Counter(TO_NHWC_AND_BACK) + Counter(XNNConvert=2),
        saved=Counter(saved),
        atol=1.01 * output_scale,
        rtol=0,
    )


@pytest.mark.parametrize(
    "model", [padded((1, 2, 0, 3), conv()), conv(kernel=4, padding="same")], ids=["in front", "same"]
)
def test_dynamic_quantization(model):
    # Batch 1: the runtime chooses parameters per image, eager per tensor.
    x = image(1, 4, 6, 7) + 0.7
    model = quantize(model, x, is_per_channel=True, is_dynamic=True)
    lowered = lower(model, (x,))
    assert not lowered.outside() and lowered.delegates() == 1
    assert lowered.census() == Counter(XNNConv2d=1, XNNConvert=1, **TO_NHWC_AND_BACK)
    torch.testing.assert_close(lowered.run(x)[0], model(x), atol=1e-5, rtol=1e-5)


def test_other_quantization_between_two_convolutions():
    """A pad that is quantized with other parameters than its input leaves two conversions."""

    def requantized(x, pad):
        return as_quantized(pad(as_quantized(x)), 0.07, -20)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.register_buffer("W", torch.randint(-50, 50, (6, 4, 3, 3), dtype=torch.int8))

        def forward(self, x):
            weight = quantized.dequantize_per_tensor.default(self.W, 0.01, 0, -127, 127, torch.int8)
            x = requantized(x, lambda x: F.pad(x, (0, 1, 1, 0)))
            return as_quantized(F.conv2d(x, weight))

    model, x = Model(), image()
    lowered = lower(model, (x,))
    assert lowered.census() == Counter(XNNConv2d=1, XNNConvert=4, **TO_NHWC_AND_BACK)
    assert paddings(lowered) == [(1, 1, 0, 0)]
    torch.testing.assert_close(lowered.run(x)[0], model(x), atol=0.051, rtol=0)


def test_symbolic_amounts_in_front_of_a_quantized_convolution(caplog):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("W", torch.ones(6, 4, 3, 3, dtype=torch.int8))

        def forward(self, x):
            weight = quantized.dequantize_per_tensor.default(self.W, 0.01, 0, -127, 127, torch.int8)
            return as_quantized(F.conv2d(F.pad(as_quantized(x), (0, x.shape[3])), weight))

    program = to_edge(
        export(Model(), (image(),), dynamic_shapes=({3: Dim("w", min=4, max=16)},))
    ).exported_program()
    assert not ConvolutionConfig().check_constraints(find(program, CONVOLUTION), program)


# At random

GEOMETRY = st.fixed_dictionaries(
    {
        "pad": st.tuples(*[st.integers(0, 4)] * 4),
        "kernel": st.tuples(*[st.integers(1, 4)] * 2),
        "stride": st.tuples(*[st.integers(1, 3)] * 2),
        "padding": st.tuples(*[st.integers(0, 2)] * 2),
        "dilation": st.tuples(*[st.integers(1, 2)] * 2),
        "groups": st.sampled_from([1, 2, 6]),
        "multiplier": st.integers(1, 2),
        "bias": st.booleans(),
        "relu": st.booleans(),
    }
)
# A longer run with other examples: HYPOTHESIS_EXAMPLES=200.
EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", 0))


@settings(max_examples=EXAMPLES or 3, derandomize=not EXAMPLES, deadline=None, database=None)
@given(
    layers=st.lists(GEOMETRY, min_size=3, max_size=5),
    size=st.tuples(st.integers(1, 3), st.just(6), st.integers(7, 9), st.integers(7, 9)),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    channels_last=st.booleans(),
)
def test_random_geometry(layers, size, dtype, channels_last):
    def branches(x, *convolutions):
        results = []
        for layer, convolution in zip(layers, convolutions):
            result = convolution(F.pad(x, layer["pad"]))
            results.append(torch.relu(result) if layer["relu"] else result)
        return tuple(results)

    torch.manual_seed(0)
    convolutions = [
        nn.Conv2d(
            6,
            6 * layer["multiplier"],
            layer["kernel"],
            **{key: layer[key] for key in ("stride", "padding", "dilation", "groups", "bias")},
        )
        for layer in layers
    ]
    model = Apply(branches, *convolutions).eval().to(dtype)
    x = image(*size, dtype=dtype)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    folded, explicit = lower_both(model, x)
    assert not folded.outside() and folded.census()["XNNStaticConstantPad"] == 0
    assert explicit.census()["XNNStaticConstantPad"] == len(layers)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    for result, reference, expected in zip(folded.run(x), explicit.run(x), model(x), strict=True):
        assert torch.equal(result, reference)
        torch.testing.assert_close(result, expected, atol=tolerance, rtol=tolerance)
