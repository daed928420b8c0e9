"""Every convolution or linear left to the portable kernels is named once, with place and reason."""

import inspect
import logging
import re

import pytest
import torch
from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
from executorch.backends.xnnpack.partition.config.gemm_configs import ConvolutionConfig
from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.test.small_factors import SmallFactors
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime
from torch import nn
from torch.export import export
from torch.nn import functional as F

LOGGER = "executorch.backends.xnnpack.partition.undelegated_gemms"
HEAD = (
    "XNNPACK leaves {} convolution(s) or linear(s) of '{}' to the portable kernels, which are "
    "much slower:"
)


def warnings(caplog, programs, partitioner=None, runs=True):
    """The messages of one lowering; what stayed on the portable kernels has to run as well."""
    with caplog.at_level(logging.WARNING):
        manager = to_edge_transform_and_lower(
            programs, partitioner=partitioner or [XnnpackPartitioner()]
        )
    if runs:
        inputs = programs.example_inputs[0]
        method = Runtime.get().load_program(manager.to_executorch().buffer)
        (actual,) = method.load_method("forward").execute(list(inputs))
        expected = programs.module()(*inputs)
        torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)
    return [r.getMessage().split("\n") for r in caplog.records if r.name == LOGGER]


def line_of(function, text):
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if text in line)


class Block(nn.Module):
    """The portable kernels have no convolution in three dimensions, so this one only lowers."""

    def __init__(self):
        super().__init__()
        self.volume = nn.Conv3d(1, 1, 1)
        self.linear = nn.Linear(4, 4)

    def forward(self, x, weight):
        x = self.volume(x[None, None])[0, 0]
        return F.linear(self.linear(x), weight)  # the weight is an input


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x, weight):
        return self.block(x, weight)


@pytest.mark.parametrize("strict", [False, True])
def test_names_operator_place_and_reason(caplog, strict):
    program = export(Net(), (torch.randn(2, 3, 4), torch.randn(4, 4)), strict=strict)
    (message,) = warnings(caplog, program, runs=False)
    line = line_of(Block.forward, "the weight is an input")
    assert message == [
        HEAD.format(2, "forward"),
        f"  conv3d in block.volume at {__file__}:{line - 1}: Only support 1D + 2D Conv",
        f"  linear in block at {__file__}:{line}: Expected weight to be a static param",
    ]


def test_nothing_is_said_when_all_are_delegated(caplog):
    assert not warnings(caplog, export(nn.Linear(4, 4), (torch.randn(2, 4),)))


def test_same_place_and_reason_is_one_line(caplog):
    class Loop(nn.Module):
        def forward(self, x, weight):
            for _ in range(3):
                x = F.linear(x, weight)
            return x

    program = export(Loop(), (torch.randn(2, 4), torch.randn(4, 4)))
    (message,) = warnings(caplog, program)
    assert len(message) == 2 and message[1].endswith("static param (3 times)")


def test_one_message_for_each_method(caplog):
    inputs = (torch.randn(2, 3, 4), torch.randn(4, 4))
    programs = {name: export(Net(), inputs) for name in ("encode", "decode")}
    heads = [message[0] for message in warnings(caplog, programs, runs=False)]
    assert heads == [HEAD.format(2, "encode"), HEAD.format(2, "decode")]


def test_only_what_the_last_partitioner_leaves_is_named(caplog):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 1)
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(self.conv(x))

    program = export(Both(), (torch.randn(1, 1, 4, 4),))
    convolution = XnnpackPartitioner(configs=[ConvolutionConfig])
    assert not warnings(caplog, program, [convolution, XnnpackPartitioner()])
    (message,) = warnings(caplog, program, [convolution])
    assert len(message) == 2
    assert re.search(r"linear in linear at .*: the partitioner has no config for it", message[1])


def test_branch_of_control_flow(caplog):
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(4, 4, 1)

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: self.conv(x), lambda x: x + 1, (x,))

    (message,) = warnings(caplog, export(Branch(), (torch.randn(1, 4, 4),)))
    line = line_of(Branch.forward, "torch.cond")
    assert message[1:] == [
        f"  conv1d in the top module at {__file__}:{line}: XNNPACK does not partition the "
        "branches and bodies of control flow"
    ]


def test_reasons_of_dtype_and_precision(caplog):
    program = export(nn.Linear(4, 4).double(), (torch.randn(2, 4).double(),))
    (message,) = warnings(caplog, program)
    assert message[1].endswith(": invalid dtype")
    configs = [c for c in ALL_PARTITIONER_CONFIGS if c is ConvolutionConfig]
    partitioner = XnnpackPartitioner(configs, ConfigPrecisionType.FP32)
    partitioner.target_partitioner_configs["convolution.default"].enabled_precision_types = []
    caplog.clear()
    program = export(nn.Conv1d(1, 1, 1), (torch.randn(1, 1, 4),))
    (message,) = warnings(caplog, program, [partitioner])
    assert message[1].endswith(": not enabled precision types")


def test_why_a_computed_weight_was_not_folded(caplog):
    (message,) = warnings(caplog, export(SmallFactors(), (torch.randn(1, 512),)))
    assert message[1].endswith(
        ": Expected weight to be a static param; not folded, because folding the weight would "
        "add 1,008 KiB to the constants of the program, more than "
        "XnnpackPartitioner(max_fold_growth=1) allows; 63 is enough"
    )
