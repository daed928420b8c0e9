"""Batch norms behind transposed convolutions with groups are folded."""

import logging
from collections import Counter

import pytest
import torch
from executorch.backends.xnnpack._passes import (
    fuse_batch_norm_into_conv_transpose_pass,
    FuseBatchNormPass,
    XNNPACKPassManager,
)
from executorch.backends.xnnpack._passes.fuse_batch_norm_into_conv_transpose_pass import (
    FuseBatchNormIntoConvTransposePass,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.test.deconvolutions import (
    depthwise,
    nodes_of,
    Parallel,
)
from executorch.backends.xnnpack.test.lowered import lower
from executorch.exir import to_edge, to_edge_transform_and_lower
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.program._program import _transform
from executorch.extension.pybindings.portable_lib import (
    _load_for_executorch_from_buffer,
)
from torch import nn
from torch.export import export

LOGGER = fuse_batch_norm_into_conv_transpose_pass.__name__
NORM = exir_ops.edge.aten._native_batch_norm_legit_no_training.default
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}
X = torch.randn(2, 6, 5, 7, generator=torch.manual_seed(0))


def trained(norm):
    """Statistics and, if it has them, parameters that a wrong fold cannot hide behind."""
    for tensor in (norm.running_mean, norm.weight, norm.bias):
        if tensor is not None:
            nn.init.normal_(tensor, 0.5)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm


def normed(layer, *rest, **options):
    norm = nn.BatchNorm2d if layer.weight.dim() == 4 else nn.BatchNorm1d
    channels = layer.out_channels
    return nn.Sequential(layer, trained(norm(channels, **options)), *rest)


def grouped(channels_in, channels_out, groups, bias=True, axes=2):
    layer = nn.ConvTranspose2d if axes == 2 else nn.ConvTranspose1d
    return layer(channels_in, channels_out, 4, 2, 1, groups=groups, bias=bias)


def fold(model, x):
    """The program after the pass, and whether the pass says that it changed something."""
    program = to_edge(export(model.eval(), (x,))).exported_program()
    pass_ = FuseBatchNormIntoConvTransposePass(program)
    results = []
    call = pass_.call
    pass_.call = lambda gm: results.append(call(gm)) or results[-1]
    return _transform(program, pass_), results[0].modified


def targets(program):
    return Counter(node.target for node in program.graph.nodes if node.op == "call_function")


def constants(program):
    return {name for name in program.state_dict if "num_batches" not in name}


@pytest.mark.parametrize("bias", [True, False])
def test_structure(bias):
    model = normed(grouped(6, 9, 3, bias))
    program, modified = fold(model, X)
    convolution = exir_ops.edge.aten.convolution.default
    assert modified and targets(program) == {convolution: 1}
    (node,) = program.graph.find_nodes(op="call_function", target=convolution)
    weight, shift = (program.state_dict[arg.name] for arg in node.args[1:3])
    # All that was folded is deleted.
    assert constants(program) == {arg.name for arg in node.args[1:3]}
    # The input and the batch norm's counter, which has no reader.
    assert len(program.graph_signature.input_specs) == 2 + 2
    layer, norm = model
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    expected = torch.cat(
        [
            rows * scale[3 * g : 3 * g + 3].view(1, 3, 1, 1)
            for g, rows in enumerate(layer.weight.split(2))
        ]
    )
    torch.testing.assert_close(weight, expected.detach(), check_stride=True)
    expected = norm.bias + ((layer.bias if bias else 0) - norm.running_mean) * scale
    torch.testing.assert_close(shift, expected.detach())
    assert weight.dtype == shift.dtype == torch.float32
    again = FuseBatchNormIntoConvTransposePass(program)(program.graph_module)
    assert not again.modified


class Reused(nn.Module):
    """One layer called twice, and once more with another batch norm."""

    def __init__(self):
        super().__init__()
        self.first, self.second = normed(depthwise(6, 4, 2, 1)), trained(nn.BatchNorm2d(6))

    def forward(self, x):
        x = self.first(self.first(x))
        return self.second(self.first[0](x))


def test_constants_are_shared_by_what_shares_all_of_them():
    program, modified = fold(Reused(), X)
    assert modified and not targets(program)[NORM]
    assert len(constants(program)) == 4


class TwoReaders(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = normed(depthwise(6, 4, 2, 1))

    def forward(self, x):
        y = self.layers[0](x)
        return self.layers[1](y) + y


class StatisticsRead(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = normed(depthwise(6, 4, 2, 1))

    def forward(self, x):
        norm = self.layers[1]
        y, mean, _ = torch.ops.aten._native_batch_norm_legit_no_training(
            self.layers[0](x), norm.weight, norm.bias, norm.running_mean, norm.running_var, 0.1, 1e-5
        )
        return y, mean


class ComputedWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = normed(depthwise(6, 4, 2, 1))

    def forward(self, x):
        layer, norm = self.layers
        y = torch.nn.functional.conv_transpose2d(x, layer.weight * 2, None, 2, 1, groups=6)
        return norm(y)


@pytest.mark.parametrize(
    "model, reason",
    [
        (TwoReaders(), "2 readers"),
        (StatisticsRead(), "statistics"),
        (ComputedWeight(), "is not a constant parameter, buffer or tensor"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_declines(model, reason, caplog):
    caplog.set_level(logging.DEBUG, LOGGER)
    program, modified = fold(model, X)
    assert not modified and targets(program)[NORM] == 1
    (message,) = (r.getMessage() for r in caplog.records if r.name == LOGGER)
    assert reason in message


@pytest.mark.parametrize(
    "model",
    [normed(nn.ConvTranspose2d(6, 6, 4, 2, 1)), normed(nn.Conv2d(6, 6, 3, groups=6)), grouped(6, 6, 6)],
    ids=["one_group", "not_transposed", "no_batch_norm"],
)
def test_what_is_not_its_own(model, caplog):
    caplog.set_level(logging.DEBUG, LOGGER)
    assert not fold(model, X)[1]
    assert not [r for r in caplog.records if r.name == LOGGER]


LAYERS = {
    "depthwise": normed(depthwise(6, 4, 2, 1, bias=False)),
    "depthwise_bias_relu": normed(depthwise(6, 4, 2, 1), nn.ReLU()),
    "depthwise_no_parameters": normed(depthwise(6, 4, 2, 1), nn.ReLU6(), affine=False),
    "depthwise_left_alone": normed(depthwise(6, 4, 2)),
    "grouped": normed(grouped(6, 6, 2, False)),
    "grouped_wider_relu": normed(grouped(6, 12, 3), nn.ReLU()),
    "grouped_narrower": normed(grouped(6, 4, 2)),
    "multiplier": normed(grouped(6, 12, 6)),
    "one_group": normed(grouped(6, 9, 1)),
    "one_dimensional": normed(depthwise(6, 4, 2, 1, axes=1)),
    "one_dimensional_grouped": normed(grouped(6, 9, 3, axes=1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_equals_eager(dtype):
    model = Parallel(*LAYERS.values()).eval()
    inputs = tuple(X[..., 0].contiguous() if "one_dim" in name else X for name in LAYERS)
    expected = model(*inputs)
    model = model.to(dtype)
    inputs = tuple(x.to(dtype) for x in inputs)
    try:
        lowered = lower(model, inputs)
        assert lowered.delegates() == 1 and not lowered.outside()
        assert nodes_of(lowered.census()) == {
            "XNNDepthwiseConv2d": 3 * 4 + 2,
            "XNNConcatenate4": 3,
            "XNNConcatenate2": 1,
            "XNNDepthToSpace2d": 3,
            "XNNConvTranspose2d": 7,
        }
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        for output, reference in zip(lowered.run(*inputs), expected, strict=True):
            assert output.dtype == dtype
            torch.testing.assert_close(
                output.float(), reference, atol=tolerance, rtol=tolerance
            )
    finally:
        model.float()


def test_a_reused_layer_equals_eager():
    model = Reused().eval()
    lowered = lower(model, (X,))
    assert lowered.census()["XNNDepthwiseConv2d"] == 12
    torch.testing.assert_close(lowered.run(X)[0], model(X), **TOLERANCE)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "make, constants",
    [
        (lambda bias: depthwise(6, 4, 2, 1, bias=bias), 5),
        (lambda bias: nn.Conv2d(6, 6, 3, bias=bias), 2),
    ],
    ids=["this_pass", "fuse_batch_norm_pass"],
)
def test_folded_constants_keep_the_external_tag(make, constants, bias):
    model = normed(make(bias)).eval()
    program = export(model, (X,))
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name.startswith("p_0_"):
            node.meta["custom"] = {"delegate_constant_tag": "model"}
    file = to_edge_transform_and_lower(
        program, partitioner=[XnnpackPartitioner()]
    ).to_executorch()
    assert not file._named_data.pte_data
    assert len(file._named_data.external_data["model"]) == constants
    (data,) = file._tensor_data.values()
    # The module reads both buffers in place, so they have to outlive it.
    buffer, weights = file.buffer, bytes(data)
    module = _load_for_executorch_from_buffer(buffer, weights)
    torch.testing.assert_close(module.forward([X])[0], model(X), **TOLERANCE)


def test_stands_in_front_of_fuse_batch_norm_pass():
    """Without it, the export fails."""
    program = to_edge(export(depthwise(6, 4, 2, 1), (X,))).exported_program()
    passes = XNNPACKPassManager(program).passes
    at = passes.index(FuseBatchNormIntoConvTransposePass)
    assert at < passes.index(FuseBatchNormPass)


def test_the_export_fails_without_it(monkeypatch):
    init = XNNPACKPassManager.__init__

    def without(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.passes.remove(FuseBatchNormIntoConvTransposePass)

    monkeypatch.setattr(XNNPACKPassManager, "__init__", without)
    with pytest.raises(Exception, match="FuseBatchNormPass") as failure:
        lower(LAYERS["depthwise"].eval(), (X,))
    assert "bias to be 1-dimensional" in str(failure.value.__cause__)
