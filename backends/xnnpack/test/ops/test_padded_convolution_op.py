"""The operator by itself: which side is which, shapes, errors."""

import pytest
import torch
import torch.nn.functional as F
from executorch.backends.xnnpack import custom_ops_lib  # noqa: F401
from torch.export import Dim, export

padded_convolution_2d = torch.ops.et_xnnpack.padded_convolution_2d


class Padded(torch.nn.Module):
    def __init__(self, stride=(1, 2), padding=(1, 2, 3, 4), dilation=(2, 1), groups=2):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(6, 4 // groups, 3, 2))
        self.bias = torch.nn.Parameter(torch.randn(6))
        self.how = (list(stride), list(padding), list(dilation), False, [0, 0], groups)

    def forward(self, x):
        return padded_convolution_2d(x, self.weight, self.bias, *self.how)

    def reference(self, x):
        stride, (top, right, bottom, left), dilation, _, _, groups = self.how
        x = F.pad(x, (left, right, top, bottom))
        return F.conv2d(x, self.weight, self.bias, stride, 0, dilation, groups)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_is_pad_and_convolution(layout):
    model, x = Padded(), torch.randn(2, 4, 5, 6).contiguous(memory_format=layout)
    result, expected = model(x), model.reference(x)
    assert torch.equal(result, expected) and result.stride() == expected.stride()


def test_exports_with_dynamic_sizes():
    model = Padded()
    shapes = ({0: Dim("n", min=1, max=4), 2: Dim("h", max=16), 3: Dim("w", max=16)},)
    program = export(model, (torch.randn(2, 4, 5, 6),), dynamic_shapes=shapes)
    for shape in ((1, 4, 2, 9), (4, 4, 16, 16)):
        x = torch.randn(shape)
        assert torch.equal(program.module()(x), model.reference(x))


def test_registration_agrees_with_itself():
    x, model = torch.randn(2, 4, 5, 6), Padded()
    torch.library.opcheck(
        padded_convolution_2d.default,
        (x, model.weight.detach(), None, *model.how),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("padding", [(1, 2), (1, 2, 3, -1), ()])
def test_refuses_other_paddings(padding):
    with pytest.raises(ValueError, match=r"expected padding \(top, right, bottom, left\)"):
        Padded(padding=padding)(torch.randn(1, 4, 5, 6))


def test_refuses_transposed():
    model = Padded()
    stride, padding, dilation, _, output_padding, groups = model.how
    with pytest.raises(ValueError, match="transposed has to be False"):
        padded_convolution_2d(
            torch.randn(1, 4, 5, 6), model.weight, None, stride, padding, dilation, True, output_padding, groups
        )
