"""Pads with zeros become paddings of the convolution behind them."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.test.lowered import lower
from torch import nn


class Apply(nn.Module):
    def __init__(self, function, *layers):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *inputs):
        return self.function(self.layers, *inputs)


def lower_with(fuse_pads, model, inputs, **options):
    return lower(model, inputs, [XnnpackPartitioner(fuse_pads=fuse_pads)], **options)


def test_same_padding_with_an_even_kernel_is_one_convolution():
    torch.manual_seed(0)
    model, x = nn.Conv2d(4, 8, 4, padding="same").eval(), torch.randn(2, 4, 6, 7)
    lowered = lower(model, (x,))
    assert lowered.census() == Counter(XNNConv2d=1, XNNStaticTranspose=2)
    torch.testing.assert_close(lowered.run(x)[0], model(x), atol=1e-5, rtol=1e-5)
    without = lower_with(False, model, (x,))
    assert without.census() == lowered.census() + Counter(XNNStaticConstantPad=1)
    assert torch.equal(without.run(x)[0], lowered.run(x)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_phases_of_a_deconvolution_share_one_transpose(dtype):
    torch.manual_seed(0)
    pads = [(1, 0, 1, 0), (0, 1, 1, 0), (1, 0, 0, 1), (0, 1, 0, 1)]

    def upscale(layers, x):
        phases = [layer(F.pad(x, pad)) for layer, pad in zip(layers, pads)]
        return torch.ops.et_xnnpack.depth_to_space_2d(torch.cat(phases, 1), 2)

    model = Apply(upscale, *(nn.Conv2d(6, 6, 2, groups=6) for _ in pads)).eval().to(dtype)
    x = torch.randn(2, 6, 5, 7).to(dtype)
    lowered = lower(model, (x,))
    assert lowered.census() == Counter(
        XNNStaticTranspose=2,
        XNNDepthwiseConv2d=4,
        XNNConcatenate4=1,
        XNNDepthToSpace2d=1,
    )
    assert torch.equal(lowered.run(x)[0], lower_with(False, model, (x,)).run(x)[0])
