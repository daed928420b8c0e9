"""A one-dimensional convolution may share its weight."""

import pytest
import torch
from executorch.backends.xnnpack._passes.unshare_conv1d_weights_pass import (
    UnshareConv1dWeightsPass,
)
from executorch.backends.xnnpack.test.lowered import lower
from executorch.exir import to_edge
from torch import nn
from torch.export import export


class Repeated(nn.Module):
    def __init__(self, layer, times):
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x):
        for _ in range(self.times):
            x = self.layer(x)
        return x


LAYERS = {
    "conv1d": (nn.Conv1d, (1, 64, 16), "XNNConv2d"),
    "conv2d": (nn.Conv2d, (1, 64, 16, 16), "XNNConv2d"),
    "conv_transpose1d": (nn.ConvTranspose1d, (1, 64, 16), "XNNConvTranspose2d"),
}


def edge(model, x):
    return to_edge(export(model, (x,))).exported_program()


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("layer", LAYERS)
def test_each_one_dimensional_convolution_gets_a_weight(layer, times):
    make, shape, _ = LAYERS[layer]
    program = edge(Repeated(make(64, 64, 3), times), torch.randn(shape))
    result = UnshareConv1dWeightsPass(program)(program.graph_module)
    assert result.modified == (times > 1 and layer != "conv2d")
    weights = [
        node.args[1] for node in result.graph_module.graph.nodes if "convolution" in node.name
    ]
    assert len(weights) == times and len(set(weights)) == (1 if layer == "conv2d" else times)
    again = UnshareConv1dWeightsPass(program)(result.graph_module)
    assert not again.modified


@pytest.mark.parametrize("layer", LAYERS)
def test_repeated_layer_in_the_default_pipeline(layer):
    torch.manual_seed(0)
    make, shape, node = LAYERS[layer]
    model, x = Repeated(make(64, 64, 3, padding=1), 3), torch.randn(shape)
    lowered = lower(model, (x,))
    assert lowered.delegates() == 1 and lowered.census()[node] == 3
    torch.testing.assert_close(lowered.run(x)[0], model(x), atol=1e-5, rtol=1e-5)
    once = lower(Repeated(model.layer, 1), (x,))
    # The 49 KB or more of weights are stored once however often the layer is called.
    assert len(lowered.buffer) - len(once.buffer) < 4096


def test_weight_with_another_user():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(4, 4, 3))

        def forward(self, x):
            return nn.functional.conv1d(x, self.W) + self.W

    model, x = Both(), torch.randn(4, 4, 5)
    lowered = lower(model, (x,))
    assert lowered.census()["XNNConv2d"] == 1
    torch.testing.assert_close(lowered.run(x)[0], model(x), atol=1e-5, rtol=1e-5)


class Quantized(nn.Module):
    """Static int8 convolutions on one weight, behind one dequantize or one for each."""

    def __init__(self, shared):
        super().__init__()
        self.register_buffer("W", torch.randint(-50, 50, (4, 4, 3), dtype=torch.int8))
        self.shared = shared

    def forward(self, x):
        ops = torch.ops.quantized_decomposed
        byte = (-128, 127, torch.int8)

        def fake_quantize(value):
            stored = ops.quantize_per_tensor.default(value, 0.05, 3, *byte)
            return ops.dequantize_per_tensor.default(stored, 0.05, 3, *byte)

        def weight():
            return ops.dequantize_per_tensor.default(self.W, 0.01, 0, -127, 127, torch.int8)

        first = weight()
        x = fake_quantize(nn.functional.conv1d(fake_quantize(x), first))
        second = first if self.shared else weight()
        return fake_quantize(nn.functional.conv1d(x, second))


@pytest.mark.parametrize("shared", [False, True])
def test_weight_behind_a_dequantize(shared):
    torch.manual_seed(0)
    model, x = Quantized(shared), torch.randn(1, 4, 16)
    lowered = lower(model, (x,))
    assert lowered.delegates() == 1 and lowered.census()["XNNConv2d"] == 2
    torch.testing.assert_close(lowered.run(x)[0], model(x), atol=0.051, rtol=0)
