"""depth_to_space_2d through the default pipeline, for both targets, on the runtime."""

import logging
from collections import Counter

import pytest
import torch
from executorch.backends.xnnpack.operators.node_visitor import get_tensor_value
from executorch.backends.xnnpack.partition.config.xnnpack_config import (
    ConfigPrecisionType,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    get_symmetric_quantization_config,
    XNNPACKQuantizer,
)
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import XNNDatatype
from executorch.backends.xnnpack.test.lowered import lower
from executorch.backends.xnnpack.utils.depth_to_space import (
    decline_depth_to_space,
    stock_depth_to_space,
)
from executorch.backends.xnnpack.utils.target_runtime import (
    native_library_installed,
    PATCHED,
    STOCK,
)
from torch.export import Dim, export, ExportedProgram
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

depth_to_space_2d = torch.ops.et_xnnpack.depth_to_space_2d
quantized = torch.ops.quantized_decomposed

needs_native = pytest.mark.skipif(
    not native_library_installed(),
    reason="the installed executorch has no runtime of the patch set",
)
both_targets = pytest.mark.parametrize(
    "target", [pytest.param(PATCHED, marks=needs_native), STOCK]
)

NATIVE_NODES = Counter(XNNDepthToSpace2d=1)
STOCK_NODES = Counter(XNNStaticReshape=2, XNNStaticTranspose=1)


def nodes(target, **others):
    """The census of one depth-to-space for `target` plus `others`."""
    return (NATIVE_NODES if target == PATCHED else STOCK_NODES) + Counter(others)


class Apply(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def lower_for(target, model, inputs=(), **options):
    """Lowers a module, a function or an exported program for `target`."""
    if not isinstance(model, (torch.nn.Module, ExportedProgram)):
        model = Apply(model)
    return lower(model, inputs, [XnnpackPartitioner(target_runtime=target, **options)])


def check_all_delegated(lowered, model, *inputs, **tolerance):
    assert not lowered.outside()
    assert lowered.delegates() == 1
    expected = model(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    torch.testing.assert_close(
        tuple(lowered.run(*inputs)), expected, **(tolerance or {"atol": 0, "rtol": 0})
    )


def all_different(*shape, dtype=torch.float32):
    x = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    assert x.unique().numel() == x.numel()
    return x


@both_targets
@pytest.mark.parametrize(
    "shape, block_size, dtype",
    [
        ((3, 20, 4, 3), 2, torch.float32),
        ((3, 18, 3, 5), 3, torch.float32),
        ((2, 48, 1, 2), 4, torch.float32),
        ((1, 4, 5, 2), 2, torch.float32),
        ((3, 18, 3, 5), 3, torch.float16),
    ],
)
def test_order(target, shape, block_size, dtype):
    def model(x):
        return depth_to_space_2d(x, block_size)

    x = all_different(*shape, dtype=dtype)
    lowered = lower_for(target, model, (x,))
    # Between a contiguous input and output: to NHWC and back, of one channel without moving it.
    one_channel = shape[1] == block_size**2
    back = "XNNStaticReshape" if one_channel else "XNNStaticTranspose"
    assert lowered.census() == nodes(target, XNNStaticTranspose=1) + Counter([back])
    check_all_delegated(lowered, model, x)


@both_targets
def test_block_size_one_is_a_copy(target):
    def model(x):
        return depth_to_space_2d(x, 1)

    x = all_different(2, 3, 4, 5)
    lowered = lower_for(target, model, (x,))
    assert lowered.census() == Counter(XNNCopy=1, XNNStaticTranspose=2)
    check_all_delegated(lowered, model, x)


@both_targets
def test_arguments_by_name(target):
    def model(x):
        return depth_to_space_2d(block_size=2, x=x)

    x = all_different(1, 8, 2, 3)
    check_all_delegated(lower_for(target, model, (x,)), model, x)


@both_targets
def test_channels_last_input(target):
    def model(x):
        return depth_to_space_2d(x, 2)

    x = all_different(2, 8, 3, 5).contiguous(memory_format=torch.channels_last)
    lowered = lower_for(target, model, (x,))
    assert lowered.census() == nodes(target, XNNStaticTranspose=1)
    check_all_delegated(lowered, model, x)


class BetweenConvolutions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.before = torch.nn.Conv2d(3, 20, 3, padding=1)
        self.after = torch.nn.Conv2d(5, 4, 3, padding=1)

    def forward(self, x):
        return self.after(torch.relu(depth_to_space_2d(self.before(x), 2)))


@both_targets
@pytest.mark.parametrize("half", [False, True])
def test_no_transposes_between_convolutions(target, half):
    model, x = BetweenConvolutions().eval(), torch.randn(3, 3, 5, 7)
    tolerance = 1e-5
    if half:
        model, x, tolerance = model.half(), x.half(), 1e-2
    lowered = lower_for(target, model, (x,))
    # The two transposes are those of the graph's input and output.
    assert lowered.census() == nodes(
        target, XNNConv2d=2, XNNClamp=1, XNNStaticTranspose=2
    )
    check_all_delegated(lowered, model, x, atol=tolerance, rtol=tolerance)


@both_targets
def test_result_used_twice_and_returned(target):
    def model(x):
        y = depth_to_space_2d(x, 2)
        return y, depth_to_space_2d(y, 2), torch.relu(y)

    x = all_different(1, 32, 2, 3) - 50
    lowered = lower_for(target, model, (x,))
    assert lowered.census()["XNNDepthToSpace2d"] == (2 if target == PATCHED else 0)
    check_all_delegated(lowered, model, x)


def fake_quantize(x, scale, zero_point):
    limits = (-128, 127, torch.int8)
    x = quantized.quantize_per_tensor.default(x, scale, zero_point, *limits)
    return quantized.dequantize_per_tensor.default(x, scale, zero_point, *limits)


def datatypes(lowered):
    (graph,) = lowered.graphs
    return Counter(get_tensor_value(value).datatype for value in graph.xvalues)


@both_targets
@pytest.mark.parametrize("block_size", [1, 2])
def test_static_int8(target, block_size):
    def model(x):
        y = depth_to_space_2d(fake_quantize(x, 0.5, 3), block_size)
        return fake_quantize(y, 0.5, 3)

    # Every int8 value, by way of its float.
    x = (all_different(1, 8, 4, 8) - 128 - 3) * 0.5
    lowered = lower_for(target, model, (x,))
    census = nodes(target) if block_size == 2 else Counter(XNNCopy=1)
    assert lowered.census() == census + Counter(XNNConvert=2, XNNStaticTranspose=2)
    # Only the graph's input and output are floating point.
    assert datatypes(lowered)[XNNDatatype.xnn_datatype_fp32] == 2
    check_all_delegated(lowered, model, x)


@both_targets
def test_int8_input_and_output(target):
    limits = (0.5, 3, -128, 127, torch.int8)

    def model(x):
        y = quantized.dequantize_per_tensor.default(x, *limits)
        return quantized.quantize_per_tensor.default(depth_to_space_2d(y, 2), *limits)

    x = all_different(1, 8, 4, 8, dtype=torch.int8)
    lowered = lower_for(target, model, (x,))
    assert lowered.census() == nodes(target, XNNStaticTranspose=2)
    assert XNNDatatype.xnn_datatype_fp32 not in datatypes(lowered)
    check_all_delegated(lowered, model, x)


@both_targets
@pytest.mark.parametrize(
    "model",
    [
        lambda x: fake_quantize(
            depth_to_space_2d(fake_quantize(x, 0.5, 3), 2), 0.25, 3
        ),
        lambda x: fake_quantize(depth_to_space_2d(fake_quantize(x, 0.5, 3), 2), 0.5, 0),
        lambda x: depth_to_space_2d(fake_quantize(x, 0.5, 3), 2),
        lambda x: fake_quantize(depth_to_space_2d(x, 2), 0.5, 3),
    ],
    ids=["scale", "zero point", "input only", "output only"],
)
def test_runs_in_floating_point_unless_quantization_is_equal(target, model):
    x = all_different(1, 8, 2, 3) - 20
    lowered = lower_for(target, model, (x,))
    (graph,) = lowered.graphs
    moved = {
        get_tensor_value(graph.xvalues[i]).datatype
        for node in graph.xnodes
        if type(node.xnode_union).__name__ in NATIVE_NODES + STOCK_NODES
        for i in (node.xnode_union.input_id, node.xnode_union.output_id)
    }
    assert XNNDatatype.xnn_datatype_fp32 in moved
    check_all_delegated(lowered, model, x)


@both_targets
def test_pt2e_static_int8(target):
    torch.manual_seed(0)
    before = torch.nn.Conv2d(3, 20, 3, padding=1)
    after = torch.nn.Conv2d(5, 4, 3, padding=1)
    model = Apply(lambda x: after(depth_to_space_2d(before(x), 2)))
    model.before, model.after = before, after
    x = torch.randn(1, 3, 6, 6)
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(export(model.eval(), (x,)).module(), quantizer)
    prepared(x)
    converted = convert_pt2e(prepared)
    lowered = lower_for(target, export(converted, (x,)))
    # Both observers saw the same values in another order, so it stays in int8.
    assert lowered.census() == nodes(
        target, XNNConv2d=2, XNNConvert=2, XNNStaticTranspose=2
    )
    check_all_delegated(lowered, converted, x, atol=0.05, rtol=0)


def shapes(dynamic):
    """A dynamic_shapes for NCHW and small, large, small inputs of such shapes."""
    dims = {
        "batch": (0, Dim("n", min=1, max=4)),
        "height": (2, Dim("h", min=1, max=33)),
        "width": (3, Dim("w", min=1, max=33)),
    }
    small, large = [2, 8, 3, 2], [2, 8, 3, 2]
    for name in dynamic:
        index, dim = dims[name]
        large[index] = dim.max
    return ({dims[name][0]: dims[name][1] for name in dynamic},), (small, large, small)


@pytest.mark.parametrize(
    "target, dynamic",
    [
        *((STOCK, (d,)) for d in ("batch", "height", "width")),
        *(
            pytest.param(PATCHED, d, marks=needs_native)
            for d in (
                ("batch",),
                ("height",),
                ("width",),
                ("height", "width"),
                ("batch", "height", "width"),
            )
        ),
    ],
)
def test_dynamic_shapes_on_one_loaded_method(target, dynamic):
    class Both(torch.nn.Module):
        """Once between a convolution and a relu, once between input and output."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.before = torch.nn.Conv2d(8, 20, 3, padding=1)

        def forward(self, x):
            inner = torch.relu(depth_to_space_2d(self.before(x), 2))
            return inner, depth_to_space_2d(x, 2)

    model = Both().eval()
    dynamic_shapes, sequence = shapes(dynamic)
    program = export(model, (torch.randn(sequence[0]),), dynamic_shapes=dynamic_shapes)
    lowered = lower_for(target, program)
    assert not lowered.outside()
    assert lowered.census()["XNNDepthToSpace2d"] == (2 if target == PATCHED else 0)
    run = lowered.load()
    for shape in sequence:
        x = all_different(*shape) / 1024
        (inner, outer), (expected, exact) = run(x), model(x)
        torch.testing.assert_close(inner, expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(outer, exact)


@pytest.mark.parametrize(
    "shape, dtype, target, reason",
    [
        ((1, 8, 2, 2), torch.bfloat16, PATCHED, "bfloat16"),
        ((1, 8, 2, 2), torch.float64, PATCHED, "float64"),
        ((1, 8, 2, 2), torch.int8, PATCHED, "int8"),
        ((8, 2, 2), torch.float32, PATCHED, "rank 3"),
    ],
)
def test_decline(shape, dtype, target, reason):
    x = torch.zeros(shape, dtype=dtype)
    assert reason in decline_depth_to_space(x, target)


def declines(caplog):
    """Messages of the warnings about nodes that were not delegated."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "not delegated" in record.getMessage()
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32, torch.float64])
def test_declined_dtype_is_told_and_never_reaches_the_emitter(dtype, caplog):
    x = torch.ones(1, 8, 2, 2, dtype=dtype)
    with pytest.raises(RuntimeError, match="et_xnnpack::depth_to_space_2d"):
        lower_for(STOCK, lambda x: depth_to_space_2d(x, 2), (x,), enable_bf16=True)
    (message,) = declines(caplog)
    assert str(dtype) in message


@pytest.mark.parametrize(
    "dynamic",
    [("height", "width"), ("batch", "width"), ("batch", "height", "width")],
    ids=" ".join,
)
def test_stock_declines_two_dynamic_dimensions(dynamic, caplog):
    dynamic_shapes, (shape, *_) = shapes(dynamic)
    program = export(
        Apply(lambda x: depth_to_space_2d(x, 2)),
        (torch.randn(shape),),
        dynamic_shapes=(dynamic_shapes,),
    )
    with pytest.raises(RuntimeError, match="et_xnnpack::depth_to_space_2d"):
        lower_for(STOCK, program)
    (message,) = declines(caplog)
    assert f"{', '.join(dynamic)} are dynamic" in message
    assert "target_runtime='patched'" in message


def test_dynamic_channels_are_declined(caplog):
    c = Dim("c", min=1, max=8)
    program = export(
        Apply(lambda x: depth_to_space_2d(x, 2)),
        (torch.randn(1, 8, 2, 2),),
        dynamic_shapes=(({1: 4 * c},),),
    )
    with pytest.raises(RuntimeError, match="et_xnnpack::depth_to_space_2d"):
        lower(program, (), [XnnpackPartitioner(target_runtime=PATCHED) for _ in range(2)])
    # Once, though both partitioners decline it.
    (message,) = declines(caplog)
    assert "channels must be static" in message and "(Tensor" not in message


def test_a_partitioner_of_another_precision_is_silent(caplog):
    def model(x):
        return depth_to_space_2d(x, 2)

    x = all_different(1, 8, 2, 2)
    partitioners = [
        XnnpackPartitioner(config_precisions=ConfigPrecisionType.DYNAMIC_QUANT),
        XnnpackPartitioner(target_runtime=STOCK),
    ]
    lowered = lower(Apply(model), (x,), partitioners)
    check_all_delegated(lowered, model, x)
    assert not declines(caplog)


def test_stock_plan():
    plan = stock_depth_to_space([2, 3, 5, 8], 2)
    assert (plan.blocks, plan.perm, plan.out) == (
        [6, 5, 2, 4],
        [0, 2, 1, 3],
        [2, 6, 10, 2],
    )
    assert stock_depth_to_space([None, 3, 5, 8], 2).blocks == [0, 5, 2, 4]
    assert stock_depth_to_space([None, 3, 5, 8], 2).out == [0, 6, 10, 2]
    assert stock_depth_to_space([2, None, 5, 8], 2).out == [2, 0, 10, 2]
    assert stock_depth_to_space([2, 3, None, 8], 2).blocks == [6, 0, 2, 4]
    with pytest.raises(ValueError, match="one dynamic dimension"):
        stock_depth_to_space([None, None, 5, 8], 2)
