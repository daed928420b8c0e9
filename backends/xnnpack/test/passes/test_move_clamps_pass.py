"""Which clamps move to the operator before, and which do not."""

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.test.lowered import lower, Lowered
from torch import nn
from torch.nn import functional as F

X = 3 * torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(1))
LAYERS = {
    "convolution": nn.Conv2d(4, 4, 3, padding=1),
    "depthwise": nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "transposed": nn.ConvTranspose2d(4, 4, 4, 2, 1),
    "depthwise transposed": nn.ConvTranspose2d(4, 4, 4, 2, 1, groups=4),
    "linear": nn.Linear(6, 6),
}


class Behind(nn.Module):
    def __init__(self, layer: nn.Module, body) -> None:
        super().__init__()
        self.layer, self.body = layer, body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.layer(x))


def lowered_and_equal(layer: nn.Module, body, x: torch.Tensor = X, atol: float = 1e-5, **options) -> Lowered:
    model = Behind(layer, body).eval()
    lowered = lower(model, (x,), [XnnpackPartitioner(**options)])
    torch.testing.assert_close(lowered.run(x)[0], model(x), atol=atol, rtol=1e-4)
    assert not lowered.outside()
    return lowered


def clamps(lowered: Lowered) -> int:
    return lowered.census()["XNNClamp"]


@pytest.mark.parametrize("name", LAYERS)
def test_a_clamp_behind_an_activation_moves_to_the_layer(name):
    def body(y):
        return F.leaky_relu(y, 0.2).clamp(-0.3, 0.5)

    lowered = lowered_and_equal(LAYERS[name], body)
    assert clamps(lowered) == 0 and lowered.census()["XNNLeakyReLU"] == 1
    kept = lowered_and_equal(LAYERS[name], body, move_scales=False)
    assert clamps(kept) == 1


@pytest.mark.parametrize(
    "body",
    [
        lambda y: y.clamp(-0.5, 0.5),
        lambda y: y.relu().clamp(-1, 0.5),
        lambda y: y.relu().clamp(0.1, 0.5),
        lambda y: F.leaky_relu(y).clamp(0.1, 0.5),
        lambda y: F.leaky_relu(y, 0.5).clamp(-0.4, -0.1),
        lambda y: F.hardtanh(F.leaky_relu(y, 0.5), -0.2, 0.2),
        lambda y: (F.leaky_relu(y, 0.2) * 2**0.5).clamp(-0.3, 0.3),
        lambda y: F.leaky_relu(y + y.sigmoid(), 0.2).clamp(-0.3, 0.3),
        lambda y: F.leaky_relu(y, 0.2).clamp(-0.4, 0.4).clamp(-0.3, 0.5),
    ],
)
def test_bounds_of_every_sign(body):
    lowered = lowered_and_equal(LAYERS["convolution"], body)
    chained = lowered.census()["XNNLeakyReLU"] and clamps(lowered)
    assert clamps(lowered) == (1 if chained else 0), lowered.census()


@pytest.mark.parametrize(
    "body",
    [
        lambda y: F.leaky_relu(y, 0.2).clamp(min=-0.3),
        lambda y: F.leaky_relu(y, 0.2).clamp(max=0.3),
        lambda y: y.tanh().clamp(-0.3, 0.3),
        lambda y: F.leaky_relu(y.sigmoid(), 0.2).clamp(0.1, 0.6),
        lambda y: F.leaky_relu(y, -0.2).clamp(-0.3, 0.6),
        lambda y: y.relu().clamp(-2, -1),
    ],
)
def test_what_stays(body):
    assert clamps(lowered_and_equal(LAYERS["convolution"], body)) == 1


def test_values_in_between_that_something_else_reads():
    def activation_read(y):
        y = F.leaky_relu(y, 0.2)
        return y.clamp(-0.3, 0.3) + y

    def layer_read(y):
        return F.leaky_relu(y, 0.2).clamp(-0.3, 0.3) + y

    for body in (activation_read, layer_read):
        assert clamps(lowered_and_equal(LAYERS["convolution"], body)) == 1


def test_half_precision_and_bounds_beyond_it():
    layer = nn.Conv2d(4, 4, 3).half()
    x = X.half()
    moved = lowered_and_equal(layer, lambda y: F.leaky_relu(y, 0.2).clamp(-0.3, 0.3), x, atol=2e-2)
    assert clamps(moved) == 0
    # The lower bound would be -3e8, which no half is.
    kept = lowered_and_equal(layer, lambda y: F.leaky_relu(y, 1e-4).clamp(-3e4, 3e4), x, atol=2e-2)
    assert clamps(kept) == 1
