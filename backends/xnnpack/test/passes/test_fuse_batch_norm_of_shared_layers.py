"""Layers that share a weight or bias, each with a batch norm behind it."""

import pytest
import torch
from executorch.backends.xnnpack.test.lowered import lower
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm


class Shared(nn.Module):
    """`layer` before two batch norms of different statistics."""

    def __init__(self, layer, norm):
        super().__init__()
        self.layer, self.norms = layer, nn.ModuleList([norm(4), norm(4)])
        for scale, batch_norm in enumerate(self.norms, 1):
            batch_norm.running_mean.normal_()
            batch_norm.running_var.uniform_(scale, 2 * scale)

    def forward(self, x):
        first, second = self.norms
        return first(self.layer(x)) + second(self.layer(x))


class SharedBias(nn.Module):
    """Two weights; the biases are equal fills, of which a fold makes one constant."""

    def __init__(self):
        super().__init__()
        self.shared = Shared(nn.Identity(), nn.BatchNorm2d)
        self.weights = nn.ParameterList(torch.randn(4, 3, 3, 3) for _ in range(2))

    def forward(self, x):
        first, second = (
            norm(F.conv2d(x, weight, weight.new_zeros(4)))
            for norm, weight in zip(self.shared.norms, self.weights)
        )
        return first + second


MODELS = {
    "conv2d": (lambda: Shared(nn.Conv2d(3, 4, 3), nn.BatchNorm2d), (1, 3, 6, 6)),
    "conv1d": (lambda: Shared(nn.Conv1d(3, 4, 3), nn.BatchNorm1d), (1, 3, 6)),
    "linear": (lambda: Shared(nn.Linear(3, 4), nn.BatchNorm1d), (2, 3)),
    "no_bias": (lambda: Shared(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d), (1, 3, 6, 6)),
    "computed_conv2d": (lambda: Shared(weight_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d), (1, 3, 6, 6)),
    "computed_linear": (lambda: Shared(weight_norm(nn.Linear(3, 4)), nn.BatchNorm1d), (2, 3)),
    "bias": (SharedBias, (1, 3, 6, 6)),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_batch_norm_is_fused_with_its_own_numbers(name):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model, x = make().eval(), torch.randn(shape)
    lowered = lower(model, (x,))
    assert not lowered.outside()
    census = lowered.census()
    assert census["XNNConv2d"] + census["XNNFullyConnected"] == 2
    assert not census["XNNDepthwiseConv2d"]
    torch.testing.assert_close(lowered.run(x)[0], model(x), atol=1e-5, rtol=1e-5)
