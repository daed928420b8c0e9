"""Which scales and shifts move into the layer before them, and which do not."""

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.test.lowered import lower, Lowered
from torch import nn
from torch.nn import functional as F

ELEMENTWISE = ("XNNMultiply", "XNNAdd", "XNNDiv", "XNNSubtract")
C = 6


class Layer(nn.Module):
    """layer -> body -> convolution."""

    def __init__(self, layer: nn.Module, body, *constants: torch.Tensor):
        super().__init__()
        self.layer, self.body = layer, body
        self.constants = nn.ParameterList(constants)

    def forward(self, x):
        return self.body(self.layer(x), *self.constants)


def lowered_and_equal(model: nn.Module, x: torch.Tensor, **options) -> Lowered:
    lowered = lower(model.eval(), (x,), [XnnpackPartitioner(**options)])
    torch.testing.assert_close(lowered.run(x)[0], model(x), atol=1e-5, rtol=1e-4)
    return lowered


def left(lowered: Lowered) -> int:
    return sum(lowered.census()[name] for name in ELEMENTWISE)


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) + 0.5


IMAGE = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(1))
LAYERS = {
    "convolution": (nn.Conv2d(4, C, 3), IMAGE, (C, 1, 1)),
    "no bias": (nn.Conv2d(4, C, 3, bias=False), IMAGE, (1, C, 1, 1)),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4), IMAGE, (8, 1, 1)),
    "transposed": (nn.ConvTranspose2d(4, C, 3, 2), IMAGE, (C, 1, 1)),
    "grouped transposed": (nn.ConvTranspose2d(4, 4, 2, 2, groups=4), IMAGE, (4, 1, 1)),
    "one-dimensional": (nn.Conv1d(4, C, 3), IMAGE[..., 0].contiguous(), (C, 1)),
    "linear": (nn.Linear(5, C, bias=False), IMAGE[0, 0].contiguous(), (C,)),
    "linear with bias": (nn.Linear(5, C), IMAGE, (C,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_scales_and_shifts_of_every_layer_move(name):
    layer, x, per_channel = LAYERS[name]
    scale, shift = positive(*per_channel), torch.randn(per_channel)

    def body(y, scale, shift):
        y = 1.0 - (y * scale + shift) / 0.7 - shift
        y = y * scale * -2.0
        return F.leaky_relu(y, 0.2) * 2**0.5 * scale / scale

    lowered = lowered_and_equal(Layer(layer, body, scale, shift), x)
    assert left(lowered) == 0, lowered.census()


def test_a_factor_passes_through_the_addition_of_a_constant():
    def body(y, noise, more):
        return F.relu((noise + y) - more) * 1.5

    model = Layer(nn.Conv2d(4, C, 1), body, torch.randn(5, 5), torch.randn(1, C, 5, 5))
    census = lowered_and_equal(model, IMAGE).census()
    assert census["XNNMultiply"] == 0
    assert census["XNNAdd"] + census["XNNSubtract"] == 2


def test_relu_fuses_into_the_layer():
    model = Layer(nn.Conv2d(4, C, 1), lambda y: F.relu(y) * 1.5)
    census = lowered_and_equal(model, IMAGE).census()
    assert left(lowered_and_equal(model, IMAGE)) == 0 and census["XNNClamp"] == 0


DECLINED = {
    "negative behind relu": (lambda y: F.relu(y) * -1.5, 1),
    "zero behind relu": (lambda y: F.relu(y) * 0.0, 1),
    "shift behind relu": (lambda y: F.relu(y) + 1.5, 1),
    "behind tanh": (lambda y: torch.tanh(y) * 1.5, 1),
    "value read twice": (lambda y: y * 1.5 + y, 2),
    "activation read twice": (lambda y: (lambda z: z * 1.5 + z)(F.relu(y)), 2),
    "constant divided": (lambda y: 1.5 / y, 1),
    "along the width": (lambda y: y * torch.arange(1.0, 6.0), 1),
    "broadcasts": (lambda y: y.mean((2, 3), keepdim=True) * torch.ones(1, 1, 3, 3), 1),
    "infinite": (lambda y: (y * 0.0 + 1.0) * float("inf"), 1),
}


@pytest.mark.parametrize("name", DECLINED)
def test_declined(name):
    body, expected = DECLINED[name]
    lowered = lowered_and_equal(Layer(nn.Conv2d(4, C, 1), body), IMAGE)
    assert left(lowered) == expected, lowered.census()


def test_a_shared_layer_keeps_its_weight():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(4, 4, 1)

        def forward(self, x):
            return self.layer(self.layer(x) * 1.5)

    assert left(lowered_and_equal(Twice(), IMAGE)) == 1


def test_half_precision_that_would_overflow_stays():
    layer = nn.Conv2d(4, C, 1)
    with torch.no_grad():
        layer.weight.fill_(100.0)
        layer.bias.zero_()
    model = Layer(layer, lambda y: y * 1000.0).half().eval()
    x = (IMAGE * 1e-4).half()
    lowered = lower(model, (x,))
    torch.testing.assert_close(lowered.run(x)[0], model(x), atol=0.2, rtol=2e-2)
    assert left(lowered) == 1


def test_off_by_argument():
    model = Layer(nn.Conv2d(4, C, 1), lambda y: F.leaky_relu(y) * 1.5)
    assert left(lowered_and_equal(model, IMAGE, move_scales=False)) == 1
    assert left(lowered_and_equal(model, IMAGE)) == 0
