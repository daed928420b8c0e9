"""Chains of convolutions, elementwise operators and constants that hypothesis makes up, against eager.

HYPOTHESIS_PROFILE=long runs many more of them, at random.
"""

import os
from dataclasses import dataclass
from typing import Optional, Tuple

import torch
from executorch.backends.xnnpack.test.lowered import lower
from hypothesis import given, HealthCheck, settings, strategies as st
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

_COMMON = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "database": None,
}
settings.register_profile("default", max_examples=8, derandomize=True, **_COMMON)
settings.register_profile("long", max_examples=500, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

C, H, W = 4, 6, 5
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
UNARY = {
    "leaky_relu": lambda y: F.leaky_relu(y, 0.2),
    "relu": F.relu,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "clamp": lambda y: y.clamp(-0.5, 2),
    "neg": torch.neg,
    "hardsigmoid": F.hardsigmoid,
}
MOVES = {
    "gate": lambda y: y * y.mean((2, 3), keepdim=True).sigmoid(),
    "cat": lambda y: torch.cat([y, -y], 1)[:, 2 : C + 2],
    "pool": lambda y: F.max_pool2d(y, 3, 1, 1),
    "skip": lambda y: y + y.tanh(),
    "square": lambda y: F.pad(y.flatten(1), (0, 0)).reshape(y.shape),
}
# Sizes along height and width fit dynamic ones only as 1.
STATIC_SHAPES = ((W,), (H, W), (1, 1, H, W), (1, C, H, W), (C, H, 1))
SHAPES = ((), (1,), (1, 1), (C, 1, 1), (1, C, 1, 1))


@dataclass(frozen=True)
class Step:
    kind: str
    name: str = ""
    shape: Optional[Tuple[int, ...]] = None
    left: bool = False
    source: str = "buffer"


def steps(dynamic: bool) -> st.SearchStrategy:
    shapes = SHAPES if dynamic else SHAPES + STATIC_SHAPES
    moves = [m for m in MOVES if not dynamic or m not in ("cat", "square")]
    binary = st.builds(
        Step,
        st.just("binary"),
        st.sampled_from(sorted(BINARY)),
        st.sampled_from(shapes),
        st.booleans(),
        st.sampled_from(["buffer", "parameter", "input", "shared"]),
    )
    return st.lists(
        st.one_of(
            binary,
            binary,
            st.builds(Step, st.just("unary"), st.sampled_from(sorted(UNARY))),
            st.builds(Step, st.just("move"), st.sampled_from(moves)),
            st.just(Step("conv")),
        ),
        min_size=2,
        max_size=7,
    )


class Chain(nn.Module):
    def __init__(self, plan, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.plan = plan
        self.first, self.last = nn.Conv2d(3, C, 3, padding=1), nn.Conv2d(C, 2, 1)
        self.inputs = []
        for index, step in enumerate(plan):
            if step.kind == "conv":
                setattr(self, f"conv{index}", nn.Conv2d(C, C, 3, padding=1))
            elif step.source == "input" and step.kind == "binary":
                self.inputs.append(self.operand(step))
            elif step.kind == "binary":
                name = self.name(index, step)
                if step.source == "parameter":
                    setattr(self, name, nn.Parameter(self.operand(step)))
                elif not hasattr(self, name):
                    self.register_buffer(name, self.operand(step))

    @staticmethod
    def operand(step: Step) -> torch.Tensor:
        return 0.5 + torch.rand(step.shape)

    @staticmethod
    def name(index: int, step: Step) -> str:
        shared = "_".join(map(str, step.shape or ()))
        return f"shared_{shared}" if step.source == "shared" else f"c{index}"

    def forward(self, x, others):
        others = list(others)
        y = self.first(x)
        for index, step in enumerate(self.plan):
            if step.kind == "conv":
                y = getattr(self, f"conv{index}")(y)
            elif step.kind == "unary":
                y = UNARY[step.name](y)
            elif step.kind == "move":
                y = MOVES[step.name](y)
            else:
                other = (
                    others.pop(0)
                    if step.source == "input"
                    else getattr(self, self.name(index, step))
                )
                pair = (other, y) if step.left else (y, other)
                if step.name == "div" and step.left:
                    pair = (other, y.abs() + 1.0)
                y = BINARY[step.name](*pair)
        return self.last(y)


def assert_equals_eager(run, model: Chain, x: torch.Tensor) -> None:
    expected = model(x, model.inputs)
    torch.testing.assert_close(run(x, *model.inputs)[0], expected, atol=1e-4, rtol=1e-3)


@given(plan=steps(dynamic=False), seed=st.integers(0, 99))
def test_static_sizes(plan, seed):
    model = Chain(plan, seed).eval()
    x = torch.randn(1, 3, H, W)
    assert_equals_eager(lower(model, (x, model.inputs)).load(), model, x)


@given(plan=steps(dynamic=True), seed=st.integers(0, 99))
def test_dynamic_height_and_width(plan, seed):
    model = Chain(plan, seed).eval()
    sizes = {2: Dim("height", min=3, max=32), 3: Dim("width", min=3, max=32)}
    x = torch.randn(1, 3, H, W)
    shapes = {"x": sizes, "others": [None] * len(model.inputs)}
    run = lower(model, (x, model.inputs), dynamic_shapes=shapes).load()
    for height, width in ((H, W), (17, 9), (3, 4)):
        assert_equals_eager(run, model, torch.randn(1, 3, height, width))
