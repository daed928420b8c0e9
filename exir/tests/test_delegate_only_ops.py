"""An operator that only a delegate runs, left outside: the error names it."""

import pytest
import torch
from executorch.backends.xnnpack import custom_ops_lib  # noqa: F401
from executorch.exir import to_edge, to_edge_transform_and_lower
from torch.export import export

MESSAGE = r"et_xnnpack::depth_to_space_2d .*XnnpackPartitioner"


class Alone(torch.nn.Module):
    def forward(self, x):
        return torch.ops.et_xnnpack.depth_to_space_2d(x, 2)


class InBranch(torch.nn.Module):
    def forward(self, p, x):
        return torch.cond(
            p,
            lambda x: torch.ops.et_xnnpack.depth_to_space_2d(x, 2).sum(),
            lambda x: torch.ops.et_xnnpack.depth_to_space_2d(x, 2).mean(),
            (x,),
        )


X = torch.randn(1, 8, 2, 2)


@pytest.mark.parametrize("lower", [to_edge, to_edge_transform_and_lower])
@pytest.mark.parametrize(
    "model, inputs", [(Alone(), (X,)), (InBranch(), (torch.tensor(True), X))]
)
def test_error_without_a_partitioner(lower, model, inputs):
    manager = lower(export(model, inputs))
    with pytest.raises(RuntimeError, match=MESSAGE):
        manager.to_executorch()


def test_other_missing_out_variants_are_reported_as_before():
    torch.library.define("delegate_only_test::plain", "(Tensor x) -> Tensor")
    torch.library.impl("delegate_only_test::plain", "default", lambda x: x.clone())
    torch.library.register_fake("delegate_only_test::plain", torch.empty_like)

    class Other(torch.nn.Module):
        def forward(self, x):
            return torch.ops.delegate_only_test.plain(x)

    with pytest.raises(RuntimeError, match="Missing out variants"):
        to_edge(export(Other(), (X,))).to_executorch()
