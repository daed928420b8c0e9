"""Depthwise transposed convolutions become stride-1 convolutions: arithmetic, graph, file."""

import logging
import os
from collections import Counter
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from executorch.backends.xnnpack import custom_ops_lib  # noqa: F401
from executorch.backends.xnnpack._passes import (
    decompose_depthwise_conv_transpose,
    FuseActivationPass,
    XNNPACKPassManager,
)
from executorch.backends.xnnpack._passes.decompose_depthwise_conv_transpose import (
    DecomposeDepthwiseConvTransposePass,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    get_symmetric_quantization_config,
    XNNPACKQuantizer,
)
from executorch.backends.xnnpack.test.deconvolutions import (
    build,
    build_all,
    CASES,
    Clamp,
    depthwise,
    nodes_of,
    Parallel,
)
from executorch.backends.xnnpack.test.lowered import lower
from executorch.backends.xnnpack.utils.conv_transpose_phases import (
    plan_phases,
    why_not_faster,
)
from executorch.backends.xnnpack.utils.options import attach_options, XnnpackOptions
from executorch.backends.xnnpack.utils.target_runtime import PATCHED, STOCK
from executorch.exir import to_edge, to_edge_transform_and_lower
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.program._program import _transform
from executorch.extension.pybindings.portable_lib import (
    _load_for_executorch_from_buffer,
)
from hypothesis import assume, given, settings, strategies as st
from torch import nn
from torch.export import Dim, export
from torch.export.graph_signature import InputKind
from torch.nn.utils.parametrizations import weight_norm
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

LOGGER = decompose_depthwise_conv_transpose.__name__
TOLERANCE = {
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    torch.float16: {"atol": 5e-3, "rtol": 5e-3},
}

CONVOLUTION = exir_ops.edge.aten.convolution.default
DEPTH_TO_SPACE = exir_ops.edge.et_xnnpack.depth_to_space_2d.default


# The arithmetic, in plain torch


def integers(*shape):
    """All different and small enough that sums of products are exact in float32."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 211 - 100).reshape(shape).float()


def by_phases(x, weight, plan):
    """The transposed convolution as the plan says, with nothing but torch operators."""
    axes, channels = x.dim() - 2, x.shape[1]
    convolve = F.conv2d if axes == 2 else F.conv1d
    outputs = []
    for phase in plan.phases:
        pads = [amount for axis in reversed(phase) for amount in axis.pad]
        kernel = plan.kernel(weight, phase)
        assert kernel.shape[2:] == tuple(axis.taps for axis in phase)
        outputs.append(convolve(F.pad(x, pads), kernel, groups=channels))
    if axes == 1:
        return torch.stack(outputs, -1).flatten(2)
    return torch.ops.et_xnnpack.depth_to_space_2d(torch.cat(outputs, 1), plan.stride)


def geometries(strides, kernels):
    """Every kernel, stride, padding and output padding that torch takes."""
    return [
        (k, s, p, extra)
        for s, k in product(strides, kernels)
        for p, extra in product(range(k), range(s))
    ]


def upscales(k, s, p, extra):
    return k + extra - 2 * p == s


def covered(k, s, p, extra):
    """Whether one axis has phases, counted out: each has a tap, and none a crop."""
    if not upscales(k, s, p, extra):
        return False
    for r in range(s):
        taps = [i for i in range(k) if (r + p - i) % s == 0]
        # Output r of input 0 needs tap r + p; the taps above it read in front.
        if not taps or len([i for i in taps if i > r + p]) != len(
            taps
        ) - 1 - (r + p) // s or len(taps) - 1 < (r + p) // s:
            return False
    return True


def test_phases_equal_the_transposed_convolution_exactly():
    x, rounds = integers(3, 5, 4, 6), 0
    for k, s, p, extra in geometries((1, 2, 3, 4), range(1, 10)):
        plan = plan_phases([k, k], [s], [p], [extra], [1])
        assert isinstance(plan, str) != covered(k, s, p, extra), (k, s, p, extra, plan)
        if isinstance(plan, str):
            continue
        weight = integers(5, 1, k, k)
        expected = F.conv_transpose2d(x, weight, None, s, p, extra, groups=5)
        assert expected.shape == (3, 5, 4 * s, 6 * s)
        assert torch.equal(by_phases(x, weight, plan), expected), (k, s, p, extra)
        rounds += 1
    assert rounds == 33


def test_rectangular_phases_are_exact():
    x, rounds = integers(2, 3, 5, 4), 0
    for rows, columns in product(geometries((2, 3), range(2, 8)), repeat=2):
        (ky, s, py, ey), (kx, sx, px, ex) = rows, columns
        if s != sx or not covered(*rows) or not covered(*columns):
            continue
        plan = plan_phases([ky, kx], [s, s], [py, px], [ey, ex], [1, 1])
        weight = integers(3, 1, ky, kx)
        expected = F.conv_transpose2d(x, weight, None, s, (py, px), (ey, ex), groups=3)
        assert torch.equal(by_phases(x, weight, plan), expected), (rows, columns)
        rounds += 1
    assert rounds == 85


def test_one_dimensional_phases_are_exact():
    """The output may be any multiple of the stride here."""
    x, rounds, other_sizes = integers(2, 3, 12), 0, 0
    for k, s, p, extra in geometries((1, 2, 3, 4, 5), range(1, 11)):
        plan = plan_phases([k], [s], [p], [extra], [1])
        assert not (isinstance(plan, str) and covered(k, s, p, extra)), (k, s, p, extra)
        if isinstance(plan, str):
            continue
        weight = integers(3, 1, k)
        expected = F.conv_transpose1d(x, weight, None, s, p, extra, groups=3)
        assert torch.equal(by_phases(x, weight, plan), expected), (k, s, p, extra)
        rounds += 1
        other_sizes += not upscales(k, s, p, extra)
    assert (rounds, other_sizes) == (185, 137)


@pytest.mark.parametrize(
    "k, s, p, extra, taps, pads",
    [
        (2, 2, 0, 0, [1, 1], [(0, 0), (0, 0)]),
        (4, 2, 1, 0, [2, 2], [(1, 0), (0, 1)]),
        (3, 2, 1, 1, [1, 2], [(0, 0), (0, 1)]),
        (5, 2, 2, 1, [3, 2], [(1, 1), (0, 1)]),
        (7, 2, 3, 1, [3, 4], [(1, 1), (1, 2)]),
        (9, 2, 4, 1, [5, 4], [(2, 2), (1, 2)]),
        (8, 4, 2, 0, [2] * 4, [(1, 0)] * 2 + [(0, 1)] * 2),
        (16, 8, 4, 0, [2] * 8, [(1, 0)] * 4 + [(0, 1)] * 4),
        (4, 2, 0, 0, [2, 2], [(1, 1), (1, 1)]),
    ],
)
def test_taps_and_pads(k, s, p, extra, taps, pads):
    plan = plan_phases([k], [s], [p], [extra], [1])
    axis = [phase for (phase,) in plan.phases]
    assert [phase.taps for phase in axis] == taps
    assert [phase.pad for phase in axis] == pads


# The graph


def edge(model, inputs, dynamic_shapes=None, **options):
    exported = export(model.eval(), tuple(inputs), dynamic_shapes=dynamic_shapes)
    program = to_edge(exported).exported_program()
    attach_options(program, XnnpackOptions(**options).to_compile_specs())
    return program


def decompose(program):
    """The program after the pass, and whether the pass says that it changed something."""
    pass_ = DecomposeDepthwiseConvTransposePass(program)
    modified = []
    call = pass_.call
    pass_.call = lambda gm: (result := call(gm), modified.append(result.modified))[0]
    return _transform(program, pass_), modified[0]


def targets(program):
    return Counter(
        node.target for node in program.graph.nodes if node.op == "call_function"
    )


def stored(program):
    """Names, kinds and persistence of the stored tensors."""
    return [
        (spec.arg.name, spec.kind, spec.persistent)
        for spec in program.graph_signature.input_specs
        if spec.kind != InputKind.USER_INPUT
    ]


X = torch.randn(2, 6, 5, 7)


def test_structure():
    program, modified = decompose(edge(depthwise(6, 4, 2, 1), (X,)))
    assert modified
    aten = exir_ops.edge.aten
    assert targets(program) == {
        aten.constant_pad_nd.default: 4,
        CONVOLUTION: 4,
        aten.cat.default: 1,
        DEPTH_TO_SPACE: 1,
    }
    for node in program.graph.find_nodes(op="call_function", target=CONVOLUTION):
        x, weight, bias, stride, padding, dilation, transposed, *rest = node.args
        assert len(x.users) == 1 and x.args[2] == 0 and bias.name == "p_bias"
        assert (stride, padding, dilation) == ([1, 1], [0, 0], [1, 1])
        assert not transposed and rest == [[0, 0], 6]
        assert weight.meta["val"].shape == (6, 1, 2, 2)
    (output,) = program.graph.output_node().args[0]
    assert output.meta["val"].shape == (2, 6, 10, 14)
    weights = [f"p_weight_s2_p1x1_phase_{i}" for i in range(4)]
    assert [name for name, *_ in stored(program)] == [*weights, "p_bias"]
    assert sorted(program.state_dict) == sorted([*weights, "bias"])
    assert all(program.state_dict[name].is_contiguous() for name in weights)
    again, modified = decompose(program)
    assert not modified and targets(again) == targets(program)


class Functional(nn.Module):
    """The weight as a parameter, a buffer of either persistence or a plain tensor."""

    def __init__(self, kind):
        super().__init__()
        weight = torch.randn(6, 1, 4, 4)
        if kind == "parameter":
            self.weight = nn.Parameter(weight)
        elif kind == "constant":
            self.weight = weight
        else:
            self.register_buffer("weight", weight, persistent=kind == "buffer")

    def forward(self, x):
        return F.conv_transpose2d(x, self.weight, None, 2, 1, groups=6)


@pytest.mark.parametrize(
    "kind, expected, persistent",
    [
        ("parameter", InputKind.PARAMETER, None),
        ("buffer", InputKind.BUFFER, True),
        ("temporary", InputKind.BUFFER, False),
        ("constant", InputKind.CONSTANT_TENSOR, None),
    ],
)
def test_phase_weights_are_what_the_weight_was(kind, expected, persistent):
    program = edge(Functional(kind), (X,))
    (spec,) = program.graph_signature.input_specs[:1]
    assert spec.kind == expected
    for node in program.graph.find_nodes(op="placeholder"):
        node.meta["custom"] = {"delegate_constant_tag": "model"}
    program, modified = decompose(program)
    assert modified
    assert [what for _, *what in stored(program)] == [[expected, persistent]] * 4
    data = program.state_dict if persistent is not False and kind != "constant" else program.constants
    assert len(data) == 4 and all(name.endswith(f"phase_{i}") for i, name in enumerate(data))
    for node in program.graph.find_nodes(op="placeholder"):
        assert node.meta["custom"] == {"delegate_constant_tag": "model"}


def shared(first, second, axes_of_sharing=("weight",)):
    """Both layers on one weight."""
    for name in axes_of_sharing:
        setattr(second, name, getattr(first, name))
    return nn.Sequential(first, second)


def test_a_shared_weight_has_one_set_of_phases_per_geometry():
    # The second makes an output of three times the size plus or minus nothing: p4, op2.
    layers = shared(depthwise(6, 9, 3, 3), depthwise(6, 9, 3, 4, 2))
    program, modified = decompose(edge(layers, (X,)))
    weights = [name for name, *_ in stored(program) if "phase" in name]
    assert modified and len(weights) == len(set(weights)) == 18
    tensors = {program.state_dict[name].numpy().tobytes() for name in weights}
    assert len(tensors) == 9

    layers = shared(depthwise(6, 9, 3, 3), depthwise(6, 9, 3, 3))
    program, modified = decompose(edge(layers, (X,)))
    assert modified and sum("phase" in name for name, *_ in stored(program)) == 9


def test_a_weight_with_another_user_is_kept():
    class Both(Functional):
        def forward(self, x):
            return super().forward(x), self.weight + 1

    program, modified = decompose(edge(Both("parameter"), (X,)))
    assert modified and "weight" in program.state_dict
    names = [name for name, *_ in stored(program)]
    assert "p_weight" in names and sum("phase" in name for name in names) == 4


def test_two_names_of_one_tensor():
    """A second entry in the state stays; two inputs are two weights."""
    program = edge(shared(depthwise(6, 4, 2, 1), depthwise(6, 4, 2, 1)), (X,))
    (name,) = (name for name in program.state_dict if name.endswith("weight"))
    program.state_dict["tied"] = program.state_dict[name]
    program, modified = decompose(program)
    assert modified and sum("phase" in name for name, *_ in stored(program)) == 4
    assert "tied" in program.state_dict and name not in program.state_dict

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            weight = torch.randn(6, 1, 4, 4)
            self.register_buffer("first", weight)
            self.register_buffer("second", weight)

        def forward(self, x):
            x = F.conv_transpose2d(x, self.first, None, 2, 1, groups=6)
            return F.conv_transpose2d(x, self.second, None, 2, 1, groups=6)

    model = Tied()
    program, modified = decompose(edge(model, (X,)))
    assert modified and targets(program)[DEPTH_TO_SPACE] == 2
    lowered = lower(model, (X,))
    torch.testing.assert_close(lowered.run(X)[0], model(X), **TOLERANCE[torch.float32])


def test_a_taken_name_is_left_alone():
    """A stored tensor is never overwritten by a phase weight."""

    class Taken(Functional):
        def __init__(self):
            super().__init__("parameter")
            self.register_buffer("p_weight_s2_p1x1_phase_0", torch.full((1,), 3.0))

        def forward(self, x):
            return super().forward(x) * self.p_weight_s2_p1x1_phase_0

    program, modified = decompose(edge(Taken(), (X,)))
    assert modified
    assert torch.equal(program.state_dict["p_weight_s2_p1x1_phase_0"], torch.full((1,), 3.0))
    assert "p_weight_s2_p1x1_phase_0_" in program.state_dict


# What is left alone


class Dequantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.ones(6, 1, 4, 4, dtype=torch.int8))

    def forward(self, x):
        dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default
        weight = dequantize(self.weight, 0.1, 0, -127, 127, torch.int8)
        return F.conv_transpose2d(x, weight, None, 2, 1, groups=6)


class Written(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.ones(6, 1, 4, 4))

    def forward(self, x):
        y = F.conv_transpose2d(x, self.weight, None, 2, 1, groups=6)
        self.weight.add_(1)
        return y


GROUPED = "not depthwise"
SIZE = "as large as the input"
STRIDES = "one block size cannot express the strides"
DECLINED = {
    "grouped": (nn.ConvTranspose2d(6, 6, 4, 2, 1, groups=2), GROUPED),
    "multiplier": (nn.ConvTranspose2d(6, 12, 4, 2, 1, groups=6), GROUPED),
    "common_divisor": (nn.ConvTranspose2d(6, 4, 4, 2, 1, groups=2), GROUPED),
    "dense": (nn.ConvTranspose2d(6, 6, 4, 2, 1), GROUPED),
    "k4_s2_p0": (depthwise(6, 4, 2), SIZE),
    "k6_s3_p1": (depthwise(6, 6, 3, 1), SIZE),
    "k3_s2_p0_op1": (depthwise(6, 3, 2, 0, 1), SIZE),
    "k3_s2_p2": (depthwise(6, 3, 2, 2), SIZE),
    "k2_s3": (depthwise(6, 2, 3), SIZE),
    "clean_rows_only": (depthwise(6, 4, 2, (1, 0)), SIZE),
    "k1_s2_op1": (depthwise(6, 1, 2, 0, 1), "without a tap"),
    "s16_s1": (depthwise(6, (32, 1), (16, 1), (8, 0)), STRIDES),
    "s2_s1": (depthwise(6, (4, 3), (2, 1), 1), STRIDES),
    "s1_s2": (depthwise(6, (3, 4), (1, 2), 1), STRIDES),
    "s2_s3": (depthwise(6, (4, 5), (2, 3), 1), STRIDES),
    "taps": (depthwise(6, 7, 1, 3), "a phase has 49 taps"),
    "taps_of_one_phase": (depthwise(6, 11, 2, 5, 1), "a phase has 36 taps"),
    "phases": (depthwise(6, 32, 32), "stride 32 has 1024 phases"),
    "dilated": (
        nn.ConvTranspose2d(6, 6, 3, 2, 2, 1, groups=6, dilation=2),
        "dilation [2, 2] is not 1",
    ),
}


def reasons(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == LOGGER and record.levelno == logging.DEBUG
    ]


@pytest.fixture
def debug(caplog):
    caplog.set_level(logging.DEBUG, LOGGER)
    return caplog


def assert_declined(program, caplog, reason):
    before = targets(program)
    program, modified = decompose(program)
    assert not modified and targets(program) == before
    (message,) = reasons(caplog)
    assert reason in message and "is left alone" in message


@pytest.mark.parametrize("name", DECLINED)
def test_declines(name, debug):
    layer, reason = DECLINED[name]
    assert_declined(edge(layer, (X,)), debug, reason)


@pytest.mark.parametrize(
    "model, x, reason",
    [
        (Dequantized(), X, "is not a constant parameter, buffer or tensor"),
        (Written(), X, "is not a constant parameter, buffer or tensor"),
        (depthwise(6, 4, 2, 1).to(torch.bfloat16), X.to(torch.bfloat16), "bfloat16"),
        (
            nn.ConvTranspose3d(6, 6, 4, 2, 1, groups=6),
            torch.randn(1, 6, 3, 3, 3),
            "5 dimensions",
        ),
    ],
    ids=["dequantized", "written", "bfloat16", "three_dimensional"],
)
def test_declines_by_weight(model, x, reason, debug):
    assert_declined(edge(model, (x,)), debug, reason)


def test_declines_a_negative_pad():
    # 3 * (H - 2) outputs, the first of which starts at the second input.
    assert "crop" in plan_phases([3], [3], [3], [0], [1])


@pytest.mark.parametrize(
    "channels, size, stride, fires",
    [
        (1, (200, 200), 2, False),
        (2, (4, 5), 2, False),
        # The smallest filter of MI-GAN's image path.
        (3, (4, 4), 2, True),
        (3, (4, 4), 4, False),
        (4, (4, 4), 4, True),
        (5, (4, 4), 8, False),
        (6, (4, 4), 8, True),
        (9, (4, 4), 16, False),
        (10, (4, 4), 16, True),
        (512, (1, 1), 16, True),
    ],
)
def test_break_even(channels, size, stride, fires):
    plan = plan_phases([stride] * 2, [stride], [0], [0], [1])
    reason = why_not_faster(plan, (1, channels, *size))
    assert (reason is None) == fires, reason
    # Batches count, and what is not known is taken for large.
    assert (why_not_faster(plan, (64, channels, *size)) is None) == (channels > 1)
    assert (why_not_faster(plan, (1, channels, None, 1)) is None) == (channels > 1)


def test_declines_what_would_not_be_faster(debug):
    assert_declined(edge(depthwise(3, 8, 8), (X[:1, :3, :4, :4],)), debug, "48 elements")
    debug.clear()
    assert_declined(edge(depthwise(1, 4, 2, 1), (X[:, :1],)), debug, "one channel")


def test_declines_behind_a_fused_activation(debug):
    program = edge(nn.Sequential(depthwise(6, 4, 2, 1), nn.ReLU()), (X,))
    program = _transform(program, FuseActivationPass(program))
    assert_declined(program, debug, "an activation is fused into it already")


DYNAMIC = {
    0: Dim("batch", min=1, max=4),
    2: Dim("height", min=4, max=64),
    3: Dim("width", min=4, max=64),
}


def test_declines_what_a_stock_runtime_cannot_interleave(debug):
    program = edge(
        depthwise(6, 4, 2, 1), (X,), (DYNAMIC,), target_runtime=STOCK
    )
    assert_declined(program, debug, "batch, height, width are dynamic")
    (warning,) = [r.getMessage() for r in debug.records if r.levelno == logging.WARNING]
    assert "target_runtime='patched'" in warning
    # A single phase needs no interleaving.
    program = edge(depthwise(6, 3, 1, 1), (X,), (DYNAMIC,), target_runtime=STOCK)
    assert decompose(program)[1]


def test_declines_a_reshape_of_two_dynamic_dimensions(debug):
    layer, x = depthwise(6, 4, 2, 1, axes=1), torch.randn(2, 6, 9)
    program = edge(layer, (x,), ({0: DYNAMIC[0], 2: DYNAMIC[2]},))
    assert_declined(program, debug, "batch and length are both dynamic")


def test_the_option_turns_it_off(debug):
    program = edge(
        depthwise(6, 4, 2, 1), (X,), decompose_depthwise_conv_transpose=False
    )
    assert not decompose(program)[1] and not reasons(debug)


def test_an_ordinary_convolution_is_no_news(debug):
    assert not decompose(edge(nn.Conv2d(6, 6, 3, groups=6), (X,)))[1]
    assert not reasons(debug)


# The file, through the default pipeline, on the runtime


def assert_matches_eager(lowered, model, *inputs, dtype=torch.float32):
    expected = model(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    outputs = lowered.run(*inputs)
    assert len(outputs) == len(expected)
    for output, reference in zip(outputs, expected):
        assert output.shape == reference.shape
        torch.testing.assert_close(output, reference, **TOLERANCE[dtype])


@pytest.mark.parametrize(
    "target, dtype",
    list(product((PATCHED, STOCK), (torch.float32, torch.float16))),
    ids=str,
)
def test_equals_eager(target, dtype):
    model, inputs, nodes = build_all(dtype)
    lowered = lower(model, inputs, [XnnpackPartitioner(target_runtime=target)])
    assert lowered.delegates() == 1 and not lowered.outside()
    if target == STOCK:
        del nodes["XNNDepthToSpace2d"]
    assert nodes_of(lowered.census()) == nodes
    assert_matches_eager(lowered, model, *inputs, dtype=dtype)


def test_a_lone_layer_is_transposed_once_on_each_side():
    model, inputs = build(CASES["k4_s2_p1"])
    lowered = lower(model, inputs, [XnnpackPartitioner(target_runtime=PATCHED)])
    assert lowered.census() == {
        "XNNStaticTranspose": 2,
        "XNNDepthwiseConv2d": 4,
        "XNNConcatenate4": 1,
        "XNNDepthToSpace2d": 1,
    }


def test_what_is_left_alone_is_as_before():
    """Every declined geometry in one file, with the rewrite and without."""
    model = Parallel(*(layer for layer, _ in DECLINED.values())).eval()
    inputs = tuple(torch.randn(2, 6, 5, 7) for _ in DECLINED)
    lowered = lower(model, inputs)
    assert not lowered.census()["XNNDepthwiseConv2d"]
    assert_matches_eager(lowered, model, *inputs)
    options = XnnpackPartitioner(decompose_depthwise_conv_transpose=False)
    assert lower(model, inputs, [options]).census() == lowered.census()


def test_the_partitioner_turns_it_off():
    model, inputs = build(CASES["k4_s2_p1"])
    lowered = lower(
        model, inputs, [XnnpackPartitioner(decompose_depthwise_conv_transpose=False)]
    )
    assert nodes_of(lowered.census()) == {"XNNConvTranspose2d": 1}
    assert_matches_eager(lowered, model, *inputs)


def ranges(lowered):
    """What is fused into each depthwise convolution."""
    return [
        (node.output_min_max.output_min, node.output_min_max.output_max)
        if node.output_min_max
        else None
        for graph in lowered.graphs
        for node in graph.xnodes
        if type(node.xnode_union).__name__ == "XNNDepthwiseConv2d"
    ]


ACTIVATIONS = {
    "relu": (nn.ReLU(), (0, "+inf")),
    "relu6": (nn.ReLU6(), (0, 6)),
    "hardtanh": (nn.Hardtanh(), (-1, 1)),
    "narrow": (nn.Hardtanh(-0.2, 0.3), (-0.2, 0.3)),
    "clamp": (Clamp(-0.1, 0.4), (-0.1, 0.4)),
    "from_zero": (Clamp(0, None), (0, "+inf")),
}


def test_activations_are_computed_on_the_phases():
    activations = [activation for activation, _ in ACTIVATIONS.values()]
    layers = [nn.Sequential(depthwise(6, 4, 2, 1, bias=i % 2), a) for i, a in enumerate(activations)]
    model, inputs = Parallel(*layers).eval(), (3 * X,) * len(layers)
    lowered = lower(model, inputs)
    assert not lowered.census()["XNNClamp"]
    assert ranges(lowered) == [fused for _, fused in ACTIVATIONS.values() for _ in range(4)]
    assert_matches_eager(lowered, model, *inputs)


def test_activations_that_stay_behind_the_rewrite():
    class TwoUsers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = depthwise(6, 4, 2, 1)

        def forward(self, x):
            y = self.layer(x)
            return torch.relu(y) + torch.cat((y, y), 1)[:, :6]

    kept = [
        TwoUsers(),
        nn.Sequential(depthwise(6, 4, 2, 1), Clamp(-0.1, None)),
        nn.Sequential(depthwise(6, 4, 2, 1), Clamp(None, 0.1)),
    ]
    model, inputs = Parallel(*kept).eval(), (X,) * len(kept)
    lowered = lower(model, inputs)
    assert lowered.census()["XNNClamp"] == 3
    assert ranges(lowered) == [None] * 12
    assert_matches_eager(lowered, model, *inputs)


def test_dynamic_batch_height_and_width():
    model = nn.Sequential(depthwise(6, 4, 2, 1), nn.ReLU()).eval()
    lowered = lower(
        model,
        (X,),
        [XnnpackPartitioner(target_runtime=PATCHED)],
        dynamic_shapes=(DYNAMIC,),
    )
    assert lowered.census()["XNNDepthToSpace2d"] == 1
    run = lowered.load()
    for shape in ((1, 8, 8), (4, 64, 63), (2, 9, 30), (1, 8, 8)):
        x = torch.randn(shape[0], 6, *shape[1:])
        torch.testing.assert_close(run(x)[0], model(x), **TOLERANCE[torch.float32])


@pytest.mark.parametrize("axis", [0, 2, 3])
def test_one_dynamic_dimension_on_a_stock_runtime(axis):
    model = depthwise(6, 4, 2, 1).eval()
    lowered = lower(
        model,
        (X,),
        [XnnpackPartitioner(target_runtime=STOCK)],
        dynamic_shapes=({axis: DYNAMIC[axis]},),
    )
    assert lowered.census()["XNNDepthwiseConv2d"] == 4
    run = lowered.load()
    for size in (4, 2, 3) if axis == 0 else (40, 5, 12):
        x = torch.randn([size if i == axis else n for i, n in enumerate(X.shape)])
        torch.testing.assert_close(run(x)[0], model(x), **TOLERANCE[torch.float32])


@pytest.mark.parametrize("axis", [0, 2])
def test_one_dynamic_dimension_of_one_dimensional_layers(axis):
    model = nn.Sequential(depthwise(6, 3, 2, 1, 1, axes=1), nn.ReLU()).eval()
    x = torch.randn(2, 6, 9)
    lowered = lower(model, (x,), dynamic_shapes=({axis: DYNAMIC[axis]},))
    assert lowered.census()["XNNDepthwiseConv2d"] == 2
    run = lowered.load()
    for size in (4, 2, 3) if axis == 0 else (40, 5, 12):
        x = torch.randn([size if i == axis else n for i, n in enumerate(x.shape)])
        torch.testing.assert_close(run(x)[0], model(x), **TOLERANCE[torch.float32])


def test_upsampling_filter_equals_the_one_written_by_hand():
    """MI-GAN publishes it as nearest upsampling, a checkerboard, a pad and a convolution."""
    line = torch.tensor([1.0, 3.0, 3.0, 1.0])
    filter_ = torch.outer(line, line) / 16

    def by_hand(x):
        kept = torch.zeros(2, 2)
        kept[0, 0] = 1
        x = F.interpolate(x, scale_factor=2.0) * kept.repeat(x.shape[2], x.shape[3])
        weight = filter_.expand(x.shape[1], 1, 4, 4)
        return F.conv2d(F.pad(x, (2, 1, 2, 1)), weight, groups=x.shape[1])

    shapes = ((1, 512, 4, 4), (1, 3, 4, 4), (1, 3, 32, 32))
    model = Parallel(*(depthwise(shape[1], 4, 2, 1, bias=False) for shape in shapes))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(filter_.expand_as(weight))
    inputs = tuple(torch.randn(shape) for shape in shapes)
    lowered = lower(model.eval(), inputs)
    assert lowered.census()["XNNDepthwiseConv2d"] == 12
    for output, x in zip(lowered.run(*inputs), inputs, strict=True):
        torch.testing.assert_close(output, by_hand(x), **TOLERANCE[torch.float32])


def test_weight_normed_layer_of_dynamic_length():
    """As in Kokoro's decoder: the fold makes a stored weight of it first."""
    layer = weight_norm(depthwise(109, 3, 2, 1, 1, axes=1)).eval()
    x = torch.randn(1, 109, 9)
    lowered = lower(layer, (x,), dynamic_shapes=({2: DYNAMIC[2]},))
    assert lowered.delegates() == 1 and not lowered.outside()
    assert nodes_of(lowered.census()) == {"XNNDepthwiseConv2d": 2, "XNNConcatenate2": 1}
    run = lowered.load()
    for length in (33, 4, 64):
        x = torch.randn(1, 109, length)
        torch.testing.assert_close(run(x)[0], layer(x), **TOLERANCE[torch.float32])


def test_bfloat16_is_as_before():
    model, x = depthwise(6, 4, 2, 1).eval().to(torch.bfloat16), X.to(torch.bfloat16)
    off = XnnpackPartitioner(decompose_depthwise_conv_transpose=False)
    on, off = (lower(model, (x,), partitioner) for partitioner in (None, [off]))
    assert on.census() == off.census() and on.outside() == off.outside()


def test_in_a_statically_quantized_model():
    """Whatever the quantizer does with the transposed convolution, the result stays."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(),
        depthwise(8, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 4, 3, padding=1),
    ).eval()
    quantizer = XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=True)
    )
    prepared = prepare_pt2e(export(model, (X,)).module(), quantizer)
    prepared(X)
    program = export(convert_pt2e(prepared), (X,))
    off = XnnpackPartitioner(decompose_depthwise_conv_transpose=False)
    on, off = (lower(program, (X,), partitioner) for partitioner in (None, [off]))
    assert on.outside() == off.outside()
    scale = model(X).abs().max().item() / 128
    torch.testing.assert_close(on.run(X)[0], off.run(X)[0], atol=2 * scale, rtol=0)


def test_the_callers_program_is_unchanged():
    model, inputs = build(CASES["chain"])
    program = export(model, inputs)
    names = list(program.state_dict)
    first, second = (lower(program, inputs).buffer for _ in range(2))
    assert first == second and list(program.state_dict) == names
    torch.testing.assert_close(program.module()(*inputs), model(*inputs))


def test_external_phase_weights():
    model, x = depthwise(6, 4, 2, 1).eval(), X
    program = export(model, (x,))
    for node in program.graph.find_nodes(op="placeholder"):
        node.meta["custom"] = {"delegate_constant_tag": "model"}
    manager = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    file = manager.to_executorch()
    assert not file._named_data.pte_data
    assert len(file._named_data.external_data["model"]) == 5
    (data,) = file._tensor_data.values()
    # The module reads both buffers in place, so they have to outlive it.
    buffer, weights = file.buffer, bytes(data)
    module = _load_for_executorch_from_buffer(buffer, weights)
    torch.testing.assert_close(
        module.forward([x])[0], model(x), **TOLERANCE[torch.float32]
    )


def test_channel_counts_of_no_vector_width_and_large_ones():
    counts = (1, 2, 3, 49, 1090)
    model = Parallel(*(depthwise(c, 4, 2, 1) for c in counts)).eval()
    inputs = tuple(torch.randn(1, c, 6, 5) for c in counts)
    lowered = lower(model, inputs)
    assert_matches_eager(lowered, model, *inputs)
    census = lowered.census()
    # One channel stays.
    assert census["XNNConvTranspose2d"] == 1
    assert census["XNNDepthwiseConv2d"] == 4 * census["XNNDepthToSpace2d"] == 16


# Any model: hypothesis draws, the runtime and eager must agree

settings.register_profile("ci", max_examples=8, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=300, deadline=None)

# (kernel, padding, output padding) of an axis by stride, those with phases and all.
AXES = {s: [g for g in geometries((s,), range(1, 9))] for s in (1, 2, 3, 4)}
CLEAN = {s: [axis for axis in AXES[s] if covered(*axis)] for s in AXES}


@st.composite
def stacks(draw):
    """One to two layers on one input, their shapes, and how many have phases."""
    axes = draw(st.sampled_from((1, 2, 2)))
    s = draw(st.sampled_from((1, 2, 2, 3, 4)))
    channels = draw(st.integers(4, 20))
    bounds = (4, 7) if axes == 2 else (20, 40)
    size = draw(st.lists(st.integers(*bounds), min_size=axes, max_size=axes))
    layers, fired, weight = [], 0, None
    shape = (draw(st.integers(1, 3)), channels, *size)
    for _ in range(draw(st.integers(1, 2))):
        source = draw(st.sampled_from((CLEAN, CLEAN, AXES)))[s]
        if weight is not None and draw(st.booleans()):
            # On the same weight, so with its kernel.
            source = [axis for axis in source if axis[0] == weight.shape[-1]]
            source = source or [(weight.shape[-1], s, 0, 0)]
        else:
            weight = None
        chosen = [draw(st.sampled_from(source)) for _ in range(axes)]
        if weight is not None:
            chosen = chosen[:1] * axes
        kernel, _, padding, extra = (tuple(values) for values in zip(*chosen))
        size = [(n - 1) * s - 2 * p + k + e for n, (k, _, p, e) in zip(size, chosen)]
        # Above break-even, whatever the stride.
        assume(min(size) >= 1 and torch.Size(size).numel() >= 20)
        layer = depthwise(
            channels, kernel, s, padding, extra, draw(st.booleans()), axes=axes
        )
        if weight is not None and weight.shape == layer.weight.shape:
            layer.weight = weight
        weight = layer.weight
        layers.append(layer)
        layers += draw(st.sampled_from(([], [nn.ReLU()], [nn.ReLU6()], [Clamp(-0.2, 0.3)])))
        fired += has_phases(layer)
    return nn.Sequential(*layers), shape, fired


def has_phases(layer):
    """By counting taps; the layer is large enough for any stride."""
    axes = list(
        zip(layer.kernel_size, layer.stride, layer.padding, layer.output_padding)
    )
    (s,) = set(layer.stride)
    if torch.Size(-(-k // s) for k in layer.kernel_size).numel() > 25:
        return False
    if len(axes) == 2:
        return all(covered(*axis) for axis in axes)
    ((k, s, p, extra),) = axes
    growth, rest = divmod(k + extra - 2 * p - s, s)
    phases = [[i for i in range(k) if (r + p - i) % s == 0] for r in range(s)]
    delays = [(r + p) // s for r in range(s)]
    return not rest and all(
        taps and len(taps) - 1 >= delay and delay + growth >= 0
        for taps, delay in zip(phases, delays)
    )


@settings(settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci")))
@given(
    stacks=st.lists(stacks(), min_size=1, max_size=3),
    dtype=st.sampled_from((torch.float32, torch.float32, torch.float16)),
    target=st.sampled_from((PATCHED, STOCK)),
    seed=st.integers(0, 2**16),
)
def test_any_model_equals_eager(stacks, dtype, target, seed):
    random = torch.Generator().manual_seed(seed)
    model = Parallel(*(layers for layers, _, _ in stacks))
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(torch.rand(parameter.shape, generator=random) - 0.5)
    model = model.eval().to(dtype)
    inputs = tuple(
        torch.randn(shape, generator=random).to(dtype) for _, shape, _ in stacks
    )
    lowered = lower(model, inputs, [XnnpackPartitioner(target_runtime=target)])
    assert not lowered.outside() and lowered.delegates() == 1
    layers = [m for m in model.modules() if isinstance(m, nn.modules.conv._ConvTransposeNd)]
    fired = sum(fired for _, _, fired in stacks)
    assert lowered.census()["XNNConvTranspose2d"] == len(layers) - fired
    expected = model(*inputs)
    for output, reference in zip(lowered.run(*inputs), expected, strict=True):
        tolerance = 2e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(output, reference, atol=tolerance, rtol=tolerance)


# Proof that it is the default pipeline that does it


def change_passes(monkeypatch, change):
    init = XNNPACKPassManager.__init__

    def changed(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.passes = change(list(self.passes))

    monkeypatch.setattr(XNNPACKPassManager, "__init__", changed)


def removed(passes):
    passes.remove(DecomposeDepthwiseConvTransposePass)
    return passes


def behind_fusion(passes):
    passes = removed(passes)
    passes.insert(passes.index(FuseActivationPass) + 1, DecomposeDepthwiseConvTransposePass)
    return passes


@pytest.mark.parametrize("change", [removed, behind_fusion])
def test_these_tests_fail_without_the_pass_in_its_place(change, monkeypatch):
    change_passes(monkeypatch, change)
    with pytest.raises(AssertionError):
        test_activations_are_computed_on_the_phases()
    if change is removed:
        with pytest.raises(AssertionError):
            test_a_lone_layer_is_transposed_once_on_each_side()


def test_stands_directly_before_activations_are_fused():
    passes = XNNPACKPassManager(edge(depthwise(6, 4, 2, 1), (X,))).passes
    at = passes.index(DecomposeDepthwiseConvTransposePass)
    assert passes[at + 1] is FuseActivationPass
