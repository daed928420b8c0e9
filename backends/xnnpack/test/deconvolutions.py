"""Models with depthwise transposed convolutions, and what the rewrite makes of them."""

from collections import Counter
from typing import Callable, Dict, NamedTuple, Tuple

import torch
from torch import nn


def depthwise(channels, kernel, stride, padding=0, output_padding=0, bias=True, axes=2):
    """A depthwise transposed convolution, all weights different."""
    layer = nn.ConvTranspose2d if axes == 2 else nn.ConvTranspose1d
    return layer(
        channels,
        channels,
        kernel,
        stride,
        padding,
        output_padding,
        groups=channels,
        bias=bias,
    )


class Parallel(nn.Module):
    """Every layer on its own input, so that one file answers for all of them."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *inputs):
        return tuple(layer(x) for layer, x in zip(self.layers, inputs))


class Clamp(nn.Module):
    def __init__(self, low, high):
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x):
        return torch.clamp(x, self.low, self.high)


class Trimmed(nn.Module):
    """A streaming decoder's layer, which drops the outputs that later input changes."""

    def __init__(self, layer, trim):
        super().__init__()
        self.layer, self.trim = layer, trim

    def forward(self, x):
        return self.layer(x)[..., : -self.trim]


class Case(NamedTuple):
    model: Callable[[], nn.Module]
    shapes: Tuple[Tuple[int, ...], ...]
    # Serialized nodes but for pads, transposes and reshapes, on the native node.
    nodes: Dict[str, int]


def _case(layer, shape, phases, concatenations=(4,), interleaved=1, **others):
    """One layer and the nodes of its rewrite."""
    nodes = Counter(XNNDepthwiseConv2d=phases, XNNDepthToSpace2d=interleaved, **others)
    nodes.update(f"XNNConcatenate{inputs}" for inputs in concatenations)
    return Case(layer, (shape,), +nodes)


CASES = {
    "k4_s2_p1": _case(lambda: depthwise(6, 4, 2, 1), (2, 6, 5, 7), 4),
    "k3_s2_p1_op1": _case(lambda: depthwise(7, 3, 2, 1, 1), (1, 7, 6, 4), 4),
    "rectangular": _case(
        lambda: depthwise(5, (2, 4), 2, (0, 1), bias=False), (1, 5, 4, 6), 4
    ),
    "k9_s2_p4_op1": _case(lambda: depthwise(8, 9, 2, 4, 1), (1, 8, 6, 5), 4),
    "k5_s3_p1": _case(lambda: depthwise(9, 5, 3, 1), (3, 9, 4, 5), 9, (5, 5)),
    "k8_s4_p2": _case(lambda: depthwise(16, 8, 4, 2), (1, 16, 5, 6), 16, (5, 5, 5, 4)),
    "k3_s1_p1": _case(lambda: depthwise(6, 3, 1, 1), (1, 6, 5, 7), 1, (), 0),
    "chain": _case(
        lambda: nn.Sequential(depthwise(6, 4, 2, 1), depthwise(6, 3, 2, 1, 1), nn.ReLU()),
        (1, 6, 4, 5),
        8,
        (4, 4),
        2,
    ),
    "one_dimensional": _case(
        lambda: nn.Sequential(depthwise(10, 3, 2, 1, 1, axes=1), nn.ReLU()),
        (2, 10, 9),
        2,
        (2,),
        0,
    ),
    "trimmed": _case(
        lambda: Trimmed(depthwise(8, 4, 2, bias=False, axes=1), 2),
        (1, 8, 7),
        2,
        (2,),
        0,
        XNNStaticSlice=1,
    ),
}


def nodes_of(census: Counter) -> Counter:
    """The census without pads and data layout, which other passes answer for."""
    layout = ("XNNStaticConstantPad", "XNNStaticTranspose", "XNNStaticReshape")
    return Counter({node: n for node, n in census.items() if node not in layout})


def build(case: Case, dtype=torch.float32):
    """The seeded model of a case and its inputs."""
    torch.manual_seed(0)
    model = case.model().eval().to(dtype)
    return model, tuple(torch.randn(shape).to(dtype) for shape in case.shapes)


def build_all(dtype=torch.float32):
    """All cases in one model, its inputs, and the nodes of the rewrite."""
    built = [build(case, dtype) for case in CASES.values()]
    model = Parallel(*(model for model, _ in built)).eval()
    nodes = sum((Counter(case.nodes) for case in CASES.values()), Counter())
    return model, tuple(x for _, inputs in built for x in inputs), nodes
