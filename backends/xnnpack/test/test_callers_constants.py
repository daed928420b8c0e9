"""Lowering leaves the constants of the caller's program where they are."""

import torch
from executorch.backends.xnnpack.test.lowered import lower
from torch import nn
from torch.nn import functional as F


class Constants(nn.Module):
    """A non-persistent buffer as weight and as operand, an attribute and a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(4, 3), persistent=False)
        self.register_buffer("scale", torch.randn(4), persistent=False)
        self.shift = torch.randn(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight) * self.scale + self.shift - torch.tensor([4.0])


def test_a_program_is_lowered_twice():
    model, x = Constants(), torch.randn(2, 3)
    program = torch.export.export(model, (x,))
    constants = dict(program.constants)
    for _ in range(2):
        lowered = lower(program, (x,))
        assert lowered.delegates() == 1 and not lowered.outside()
        torch.testing.assert_close(lowered.run(x)[0], model(x))
        assert program.constants.keys() == constants.keys()
        assert all(program.constants[name] is tensor for name, tensor in constants.items())
    torch.testing.assert_close(program.module()(x), model(x))
