"""Computed weights are folded before partitioning, and nothing else changes."""

import copy
import logging
import math

import pytest
import torch
from executorch.backends.xnnpack.partition.fold_computed_weights import REFUSED
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    get_symmetric_quantization_config,
    XNNPACKQuantizer,
)
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import (
    PerChannelQuant,
    XNNDatatype,
    XNNQuantizedTensorValue,
)
from executorch.backends.xnnpack.test.lowered import lower
from executorch.backends.xnnpack.test.small_factors import SmallFactors
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.extension.pybindings.portable_lib import (
    _load_for_executorch_from_buffer,
)
from executorch.runtime import Runtime
from torch import nn
from torch.export import export
from torch.nn import functional as F
from torch.nn.utils import weight_norm as weight_norm_by_hook
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def folded(program, **options):
    return XnnpackPartitioner(**options).transform_for_pre_decomposition(program)


def refusals(program):
    reasons = (node.meta.get("custom", {}).get(REFUSED) for node in program.graph.nodes)
    return [reason for reason in reasons if reason]


def targets(program):
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def assert_matches_eager(lowered, model, *inputs, atol=1e-4):
    expected = model(*inputs)
    expected = expected if isinstance(expected, (tuple, list)) else [expected]
    for actual, wanted in zip(lowered.run(*inputs), expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=atol, rtol=1e-4)


def assert_folds(model, *inputs, gemms=1, strict=False):
    """All of the model is one delegate with `gemms` convolutions and linears in it."""
    model = model.eval()
    program = export(model, inputs, strict=strict)
    lowered = lower(program, inputs)
    assert not lowered.outside() and lowered.delegates() == 1
    census = lowered.census()
    names = ("XNNConv2d", "XNNDepthwiseConv2d", "XNNConvTranspose2d", "XNNFullyConnected")
    assert sum(census[name] for name in names) == gemms, census
    assert_matches_eager(lowered, program.module(), *inputs)
    return program, lowered


class Computed(nn.Module):
    """A linear whose weight is `compute(W)`."""

    def __init__(self, compute, size=8):
        super().__init__()
        self.W = nn.Parameter(torch.randn(size, size))
        self.g = nn.Parameter(torch.randn(size, 1))
        self.register_buffer("scale", torch.rand(size, 1))
        self.compute = compute

    def forward(self, x):
        return F.linear(x, self.compute(self))


def positional_convolution(channels=64, kernel=16, groups=4):
    return weight_norm(
        nn.Conv1d(channels, channels, kernel, padding=kernel // 2, groups=groups), dim=2
    )


def test_parametrized_weight_is_folded_before_partitioning():
    model = positional_convolution()
    x = torch.randn(1, 64, 50)
    program, lowered = assert_folds(model, x)
    plain = nn.Conv1d(64, 64, 16, padding=8, groups=4)
    plain.load_state_dict({"weight": model.weight, "bias": model.bias})
    by_hand = lower(plain, (x,))
    assert abs(len(lowered.buffer) - len(by_hand.buffer)) < 512
    # Without the fold, none of what `assert_folds` asserts holds.
    off = lower(program, (x,), [XnnpackPartitioner(fold_computed_weights=False)])
    assert off.outside()["aten.convolution.default"] == 1 and off.delegates() == 2
    assert off.census()["XNNConv2d"] == 0


LAYERS = {
    "conv1d": (lambda: nn.Conv1d(6, 8, 3, padding=1), (2, 6, 9)),
    "conv1d_grouped": (lambda: nn.Conv1d(6, 6, 3, groups=3), (1, 6, 9)),
    "conv1d_same": (lambda: nn.Conv1d(6, 6, 3, padding="same"), (1, 6, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, stride=2, bias=False), (1, 3, 9, 9)),
    "conv2d_depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (1, 4, 9, 9)),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(6, 4, 4, 2, 1), (1, 6, 9)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(3, 4, 4, 2, 1), (1, 3, 5, 5)),
    "linear": (lambda: nn.Linear(8, 5), (2, 8)),
    "linear_3d_no_bias": (lambda: nn.Linear(8, 5, bias=False), (2, 3, 8)),
}


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("layer", LAYERS)
def test_weight_norm_by_parametrization(layer, dim):
    make, shape = LAYERS[layer]
    assert_folds(weight_norm(make(), dim=dim), torch.randn(shape))


@pytest.mark.parametrize("layer", ["conv1d", "conv2d"])
def test_weight_norm_along_the_kernel(layer):
    make, shape = LAYERS[layer]
    assert_folds(weight_norm(make(), dim=2), torch.randn(shape))


@pytest.mark.parametrize("layer", ["conv1d", "conv2d", "conv_transpose1d", "linear"])
@pytest.mark.parametrize("dim, strict", [(0, False), (0, True), (1, False), (None, True)])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_weight_norm_by_hook_gives_the_same_weight(layer, dim, strict):
    make, shape = LAYERS[layer]
    inner, x = make(), torch.randn(shape)
    old = nn.Sequential(weight_norm_by_hook(copy.deepcopy(inner), dim=dim))
    new = nn.Sequential(weight_norm(inner, dim=dim)).eval()
    program, _ = assert_folds(old, x, strict=strict)
    (by_hook,) = folded(program).constants.values()
    (by_parametrization,) = folded(export(new, (x,), strict=strict)).constants.values()
    assert torch.equal(by_hook, by_parametrization)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm_in_strict_export(dim):
    assert_folds(weight_norm(nn.Conv1d(6, 6, 3), dim=dim), torch.randn(1, 6, 9), strict=True)


def test_weight_normed_conv3d_is_left_alone_with_a_reason():
    model = weight_norm(nn.Conv3d(2, 2, 1)).eval()
    program = export(model, (torch.randn(1, 2, 3, 3, 3),))
    assert refusals(folded(program)) == ["XNNPACK has no convolution in 3 dimensions"]
    lowered = lower(program, ())
    assert lowered.outside()["aten.convolution.default"] == 1


@pytest.mark.parametrize("make", [spectral_norm, orthogonal])
def test_other_parametrizations(make):
    assert_folds(make(nn.Linear(8, 8)).eval(), torch.randn(2, 8))


def test_spectral_norm_in_training_mode_is_left_alone():
    model = spectral_norm(nn.Linear(8, 8)).train()
    x = torch.randn(2, 8)
    program = export(model, (x,))
    functional = folded(program)
    assert [r.split(":")[0] for r in refusals(functional)] == ["the weight is not constant"]
    assert functional.graph_signature.buffers_to_mutate
    config = ExecutorchBackendConfig(passes=[InitializedMutableBufferPass(["_u", "_v"])])
    lowered = lower(program, (x,), executorch_config=config)
    run = lowered.load()
    for _ in range(3):
        torch.testing.assert_close(run(x)[0], model(x), atol=1e-5, rtol=1e-5)


def in_place(self):
    weight = self.W.clone()
    weight.mul_(self.g)
    return weight


def filled_in_place(self):
    weight = torch.empty_like(self.W)
    weight.copy_(self.W * self.g)
    return weight


def without_gradient(self):
    with torch.no_grad():
        return self.W * 2


COMPUTED = {
    "multi_output_op": lambda self: torch.split(self.W * 2, 8)[0],
    "qr": lambda self: torch.linalg.qr(self.W)[0] @ torch.linalg.qr(self.W)[1],
    "buffer": lambda self: self.W * self.scale,
    "lifted_constant": lambda self: self.W * torch.tensor([[2.0]]),
    "transposed_product": lambda self: (self.W @ self.W).t(),
    "in_place": in_place,
    "filled_in_place": filled_in_place,
    "no_grad": without_gradient,
    "detach": lambda self: self.W.detach() + 1,
    "standardized": lambda self: (self.W - self.W.mean(1, True)) / self.W.std(1, keepdim=True),
    "roll": lambda self: self.W.roll(1, 0).flip(1),
    "cast": lambda self: self.W.double().mul(0.5).float(),
    "mask": lambda self: torch.where(torch.ones(8, 8).tril().bool(), self.W, 0.0),
    "memory_format": lambda self: (self.W * 2).clone(memory_format=torch.contiguous_format),
}


@pytest.mark.parametrize("compute", COMPUTED)
def test_folds_through_any_deterministic_operator(compute):
    assert_folds(Computed(COMPUTED[compute]), torch.randn(2, 8))


def test_folded_weight_is_contiguous_and_owns_its_storage():
    class Permuted(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(3, 4, 3, 3))

        def forward(self, x):
            return F.conv2d(x, self.W.permute(1, 0, 2, 3))

    model = Permuted()
    program, _ = assert_folds(model, torch.randn(1, 3, 5, 5))
    (constant,) = folded(program).constants.values()
    assert constant.is_contiguous() and not constant.requires_grad
    assert constant.untyped_storage().nbytes() == constant.numel() * 4
    assert constant.data_ptr() != model.W.data_ptr()


class MatrixProducts(nn.Module):
    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(torch.randn(4, 4))
        self.b = nn.Parameter(torch.randn(4))
        self.E = nn.Parameter(torch.randn(2, 4, 4))
        self.G = nn.Parameter(torch.randn(2, 4, 4))
        self.kept = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x):
        y = torch.addmm(self.b + 1, x[0], self.W * 2)
        y = torch.mm(y, self.W * 3) @ (self.W * 4)
        y = torch.bmm(x + y, self.E * 5) + torch.matmul(self.G.abs(), x)
        return torch.bmm(y, self.kept.neg()) + self.kept


def test_matrix_products_with_a_constant_side():
    model = MatrixProducts()
    x = torch.randn(2, 4, 4)
    program = export(model, (x,))
    ours = folded(program)
    assert torch.ops.aten.mul.Tensor not in targets(ours)
    assert torch.ops.aten.abs.default not in targets(ours)
    # A side that is no weight is not folded if that makes the file larger.
    assert torch.ops.aten.neg.default in targets(ours)
    assert len(ours.constants) == 6 and set(ours.state_dict) == {"kept"}
    lowered = lower(program, (x,))
    assert lowered.census()["XNNFullyConnected"] == 3
    assert not any("mm" in name or "mul" in name for name in lowered.outside())
    assert_matches_eager(lowered, model, x)


@pytest.mark.parametrize("rows", [(8,), (1, 8), (2, 8), (2, 1), (1,)])
def test_addmm_with_any_bias(rows):
    class Addmm(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(4, 8))
            self.b = nn.Parameter(torch.randn(rows))

        def forward(self, x):
            return torch.addmm(self.b * 2, x, self.W * 2)

    model, x = Addmm(), torch.randn(2, 4)
    lowered = lower(model, (x,))
    assert lowered.census()["XNNFullyConnected"] == (rows[-1] == 8 and rows[0] != 2)
    assert_matches_eager(lowered, model, x)


@pytest.mark.parametrize("rows", [(), (1,), (2, 8)])
def test_linear_with_any_bias(rows):
    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(8, 8))
            self.b = nn.Parameter(torch.randn(rows))

        def forward(self, x):
            return F.linear(x, self.W * 2, self.b * 3)

    model, x = Linear(), torch.randn(2, 8)
    assert_matches_eager(lower(model, (x,)), model, x)


def test_scaled_addmm():
    class Addmm(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(4, 8))
            self.b = nn.Parameter(torch.randn(8))

        def forward(self, x):
            return torch.addmm(self.b * 2, x, self.W * 2, beta=0.5, alpha=3)

    program = export(Addmm(), (torch.randn(2, 4),))
    assert refusals(folded(program)) == ["it scales its operands"]


@torch.library.custom_op("fold_test::no_kernel", mutates_args=(), device_types="cuda")
def no_kernel(weight: torch.Tensor) -> torch.Tensor:
    return weight.clone()


@no_kernel.register_fake
def _(weight):
    return torch.empty_like(weight)


def test_operator_without_a_kernel_is_not_folded():
    program = export(
        Computed(lambda self: torch.ops.fold_test.no_kernel(self.W)), (torch.randn(1, 8),)
    )
    (reason,) = refusals(folded(program))
    assert reason.startswith("computing the weight failed: ") and "no_kernel" in reason


def test_sparse_state_is_no_constant():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("S", torch.eye(4).to_sparse(), persistent=False)
            self.W = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return F.linear(x, self.W * 2)

    assert len(folded(export(Sparse(), (torch.randn(1, 4),))).state_dict) == 0


def test_recurrent_layers():
    layer = weight_norm(nn.LSTM(8, 8), "weight_hh_l0")
    x = torch.randn(3, 1, 8)
    program = export(nn.Sequential(layer).eval(), (x,))
    ours = folded(program)
    assert torch.ops.aten._weight_norm.default not in targets(ours)
    lowered = lower(program, (x,))
    assert not any("mm" in name for name in lowered.outside())
    torch.testing.assert_close(lowered.run(x)[0], layer(x)[0], atol=1e-5, rtol=1e-5)


class Cells(nn.Module):
    """Every recurrent cell, with computed weights."""

    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(torch.randn(8, 8) / 4)
        self.G = nn.Parameter(torch.randn(24, 8) / 4)
        self.L = nn.Parameter(torch.randn(32, 8) / 4)
        self.b = nn.Parameter(torch.randn(8))

    def forward(self, x, h):
        h = torch.rnn_tanh_cell(x, h, self.W * 2, self.W.t(), self.b * 2, self.b)
        h = torch.rnn_relu_cell(x, h, self.W.neg(), self.W.abs())
        h = torch.gru_cell(x, h, self.G * 2, self.G * 3)
        return torch.lstm_cell(x, (h, h), self.L * 2, self.L.neg())


def test_recurrent_cells():
    model, inputs = Cells(), (torch.randn(3, 8), torch.randn(3, 8))
    lowered = lower(model, inputs)
    assert not any("mm" in name for name in lowered.outside())
    assert lowered.census()["XNNFullyConnected"] == 8
    assert_matches_eager(lowered, model, *inputs)


# One operator for export, matrix products for the partitioner.
HIDDEN = {
    "tensordot": lambda x, W: torch.tensordot(x, W * 2, dims=([1], [1])),
    "tensordot_of_a_parameter": lambda x, W: torch.tensordot(x, W, dims=([1], [0])),
    "inner": lambda x, W: torch.inner(x, W * 2),
    "linalg_matmul": lambda x, W: torch.linalg.matmul(x, W * 2),
    "chain_matmul": lambda x, W: torch.chain_matmul(x, W * 2),
    "multi_dot": lambda x, W: torch.linalg.multi_dot([x, W * 2]),
    "einsum": lambda x, W: torch.einsum("bi,io->bo", x, W * 2),
    "baddbmm": lambda x, W: torch.baddbmm(x[None], x[None], (W * 2)[None])[0],
}


@pytest.mark.parametrize("product", HIDDEN)
@pytest.mark.filterwarnings("ignore:torch.chain_matmul")
def test_products_of_other_names(product):
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return HIDDEN[product](x, self.W)

    model, x = Product(), torch.randn(8, 8)
    program = export(model, (x,))
    assert len(folded(program).constants) == 1
    lowered = lower(program, (x,))
    assert not any("mm" in name or "mul" in name for name in lowered.outside())
    assert_matches_eager(lowered, model, x)


@pytest.mark.parametrize("decompositions", [{}, None], ids=["functional", "core"])
def test_decomposed_program(decompositions):
    layer = nn.Linear(8, 8)
    model = nn.Sequential(weight_norm(nn.Linear(8, 8)), layer, Computed(lambda self: self.W.t() * 2))
    x = torch.randn(2, 8)
    program = export(model.eval(), (x,)).run_decompositions(decompositions)
    lowered = lower(program, ())
    assert not lowered.outside() and lowered.census()["XNNFullyConnected"] == 3
    assert_matches_eager(lowered, model, x)
    plain = export(layer, (x,)).run_decompositions(decompositions)
    assert folded(plain) is plain


def test_layer_of_a_constant_input():
    class Query(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = weight_norm(nn.Linear(8, 8))
            self.register_buffer("query", torch.randn(2, 8))

        def forward(self, x):
            return x + self.layer(self.query)

    model, x = Query().eval(), torch.randn(2, 8)
    lowered = lower(model, (x,))
    assert not lowered.outside() and lowered.census()["XNNFullyConnected"] == 0
    assert_matches_eager(lowered, model, x)


class Regions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = weight_norm(nn.Linear(8, 8))
        self.W = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        with torch.no_grad():
            y = self.layer(x)
            with torch.enable_grad():
                y = torch.inner(y, self.W * 2)
        with torch.autocast("cpu", enabled=False):
            y = F.linear(y, self.W.abs())
        return y.relu()


@pytest.mark.parametrize("strict", [False, True])
def test_layers_in_regions_of_no_grad_and_autocast(strict):
    assert_folds(Regions(), torch.randn(2, 8), gemms=3, strict=strict)


def test_region_with_nothing_to_fold_comes_back_as_the_same_object():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            with torch.no_grad():
                y = self.layer(x)
            return y.relu()

    program = export(Plain(), (torch.randn(2, 8),))
    assert "wrap_with_set_grad_enabled" in map(str, targets(program))
    assert folded(program) is program


# Low-rank updates.


class LowRank(nn.Module):
    def __init__(self, use_raw):
        super().__init__()
        self.W = nn.Parameter(torch.randn(64, 64, 3, 3) / 24)
        self.A = nn.Parameter(torch.randn(4, 192) / 24)
        self.B = nn.Parameter(torch.randn(192, 4))
        self.use_raw = use_raw

    def forward(self, x):
        update = (self.B @ self.A).view(self.W.shape) * 0.5
        y = F.conv2d(x, self.W + update, padding=1)
        return F.conv2d(y, self.W, padding=1) if self.use_raw else y


@pytest.mark.parametrize("use_raw", [False, True])
def test_low_rank_update_folds_and_keeps_the_weight_only_if_used(use_raw):
    model = LowRank(use_raw)
    x = torch.randn(1, 64, 5, 5)
    program, lowered = assert_folds(model, x, gemms=2 if use_raw else 1)
    assert set(folded(program).state_dict) == ({"W"} if use_raw else set())


def test_product_of_small_factors_is_not_folded_by_default():
    model, x = SmallFactors(), torch.randn(1, 512)
    program = export(model, (x,))
    assert refusals(folded(program)) == [
        "folding the weight would add 1,008 KiB to the constants of the program, more than "
        "XnnpackPartitioner(max_fold_growth=1) allows; 63 is enough"
    ]
    small = lower(program, (x,))
    assert len(small.buffer) < 64 * 1024
    assert_matches_eager(small, model, x)
    for enough in (63, math.inf):
        large = lower(program, (x,), [XnnpackPartitioner(max_fold_growth=enough)])
        assert not large.outside() and len(large.buffer) > 1024 * 1024
        assert_matches_eager(large, model, x)


def test_growth_counts_over_all_folds_of_one_parameter():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(256, 256))

        def forward(self, x):
            for i in range(8):
                x = F.linear(x, self.W * (i + 2))
            return x

    ours = folded(export(Shared(), (torch.randn(1, 256),)))
    stored = sum(t.nbytes for t in (*ours.constants.values(), *ours.state_dict.values()))
    assert stored <= 2 * 256 * 256 * 4 and len(refusals(ours)) == 7
    # Once allowed, the last fold frees the parameter.
    assert not folded(
        export(Shared(), (torch.randn(1, 256),)), max_fold_growth=8
    ).state_dict


def test_weight_of_no_stored_constant_counts_as_growth():
    class Identity(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.size = size

        def forward(self, x):
            return F.linear(x, torch.eye(self.size) * 2)

    small = export(Identity(64), (torch.randn(1, 64),))
    large = export(Identity(512), (torch.randn(1, 512),))
    assert len(folded(small).constants) == 1
    (reason,) = refusals(folded(large))
    assert reason.endswith("; 16 is enough")
    assert len(folded(large, max_fold_growth=16).constants) == 1
    assert len(folded(large, max_fold_growth=math.inf).constants) == 1


MANY = {
    "one_scalar": lambda self, i: self.p.expand(90, 90) * (i + 1),
    "no_source": lambda self, i: torch.eye(90) * (i + 1),
}


@pytest.mark.parametrize("compute", MANY)
def test_many_small_folds_do_not_grow_the_program(compute):
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.randn(1))

        def forward(self, x):
            for i in range(20):
                x = F.linear(x, MANY[compute](self, i))
            return x

    ours = folded(export(Many(), (torch.randn(1, 90),)))
    stored = sum(tensor.nbytes for tensor in ours.constants.values())
    assert stored <= 2 * 64 * 1024 and len(refusals(ours)) >= 15


def test_expanded_parameter_does_not_grow_the_file():
    class Expanded(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.randn(1))

        def forward(self, x):
            return F.linear(x, self.p.expand(512, 512))

    model, x = Expanded(), torch.randn(1, 512)
    lowered = lower(model, (x,))
    assert len(lowered.buffer) < 64 * 1024
    assert_matches_eager(lowered, model, x, atol=1e-3)


# State that is written.


class Written(nn.Module):
    """A linear on a buffer that `write` changes after use."""

    def __init__(self, write):
        super().__init__()
        self.register_buffer("state", torch.ones(8, 8))
        self.write = write

    def forward(self, x):
        y = F.linear(x, self.state * 2)
        self.write(self.state, y)
        return y


WRITES = {
    "copy_": lambda state, y: state.copy_(state + y.mean()),
    "index_put_": lambda state, y: state.index_put_((torch.tensor([1]),), y[0]),
    "index_copy_": lambda state, y: state.index_copy_(0, torch.tensor([2]), y[:1]),
    "view": lambda state, y: state.view(-1)[:8].copy_(y[0]),
    "add_": lambda state, y: state.add_(1),
}


@pytest.mark.parametrize("write", WRITES)
def test_buffer_written_later_in_the_forward_is_never_folded(write):
    model, x = Written(WRITES[write]), torch.randn(1, 8) / 8
    program = export(model, (x,))
    assert refusals(folded(program)) == [
        "the weight is not constant: it depends on 'state', which the program writes"
    ]
    config = ExecutorchBackendConfig(passes=[InitializedMutableBufferPass(["state"])])
    run = lower(program, (x,), executorch_config=config).load()
    for _ in range(3):
        torch.testing.assert_close(run(x)[0], model(x), atol=1e-4, rtol=1e-4)


@torch.library.custom_op("fold_test::bump", mutates_args=("state",))
def bump(state: torch.Tensor) -> None:
    state.add_(1)


@bump.register_fake
def _(state):
    return None


def test_buffer_written_by_a_custom_op_is_never_folded():
    model = Written(lambda state, y: torch.ops.fold_test.bump(state))
    program = export(model, (torch.randn(1, 8),))
    ours = folded(program)
    assert refusals(ours) == [
        "the weight is not constant: it depends on 'state', which the program writes"
    ]
    assert torch.ops.aten.mul.Tensor in targets(ours)


class TwoMethods(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.ones(8, 8))


class Reader(nn.Module):
    def __init__(self, owner, name="state"):
        super().__init__()
        self.register_buffer(name, owner.state)
        self.name = name

    def forward(self, x):
        return F.linear(x, getattr(self, self.name) * 1.0)


class Writer(nn.Module):
    def __init__(self, owner):
        super().__init__()
        self.register_buffer("state", owner.state)

    def forward(self, x):
        self.state.add_(x.sum())
        return x + 1


@pytest.mark.parametrize("name", ["state", "same_storage_other_name"])
def test_buffer_written_by_another_method_is_never_folded(name, caplog):
    owner, x = TwoMethods(), torch.randn(1, 8)
    programs = {"read": export(Reader(owner, name), (x,)), "write": export(Writer(owner), (x,))}
    with caplog.at_level(logging.WARNING):
        manager = to_edge_transform_and_lower(
            programs, partitioner=[XnnpackPartitioner()]
        )
    assert f"it depends on '{name}', which the method 'write' writes" in caplog.text
    read = manager.exported_program("read").graph.nodes
    assert any(n.op == "call_function" and "mm" in n.target.__name__ for n in read)
    file = Runtime.get().load_program(manager.to_executorch().buffer)
    expected = programs["read"].module()(x)
    torch.testing.assert_close(file.load_method("read").execute([x])[0], expected)
    # On its own, or beside a method that writes other state, the same program folds.
    assert not lower(programs["read"], (x,)).outside()
    other = export(Writer(TwoMethods()), (x,))
    if name != "state":
        manager = to_edge_transform_and_lower(
            {"read": programs["read"], "write": other}, partitioner=[XnnpackPartitioner()]
        )
        read = manager.exported_program("read").graph.nodes
        assert not any(n.op == "call_function" and "mm" in n.target.__name__ for n in read)


def test_joint_forward_backward_program_is_left_alone():
    from torch.export.experimental import _export_forward_backward

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = weight_norm(nn.Linear(4, 4))

        def forward(self, x):
            return self.linear(x).sum()

    program = _export_forward_backward(export(Loss(), (torch.randn(2, 4),)))
    assert folded(program) is program


# Operators that stay.


class Fills(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.conv = weight_norm(nn.Conv1d(4, 4, 3))
        self.W = nn.Parameter(torch.randn(4, 4, 3))
        self.fill = fill

    def forward(self, x):
        y = self.conv(F.conv1d(x, self.W, self.W.new_zeros(4)))
        return y, y.sum() + self.fill(self.W).sum()


FILLS = {
    "full": lambda w: torch.full((300, 300), 2.0),
    "zeros": lambda w: torch.zeros(300, 300),
    "ones": lambda w: torch.ones(300, 300),
    "full_like": lambda w: torch.full_like(w.expand(90, 4, 4, 3), 2.0),
    "new_full": lambda w: w.new_full((300, 300), 2.0),
    "scalar_tensor": lambda w: torch.scalar_tensor(2.0),
    "arange": lambda w: torch.arange(90000.0),
    "causal_mask": lambda w: torch.arange(300)[None] <= torch.arange(300)[:, None],
    "expanded_table": lambda w: w.expand(2000, 4, 4, 3),
}


@pytest.mark.parametrize("fill", FILLS)
def test_only_the_weight_folds_and_fills_stay_operators(fill):
    model, x = Fills(FILLS[fill]).eval(), torch.randn(1, 4, 9)
    program = export(model, (x,))
    ours = folded(program)
    # The bias of zeros and the weight; nothing for the fill elsewhere.
    assert sorted(t.numel() for t in ours.constants.values() if t.numel() > 1) == [4, 48]
    lowered = lower(program, (x,))
    assert lowered.census()["XNNConv2d"] == 2
    assert len(lowered.buffer) < 16 * 1024
    assert_matches_eager(lowered, model, x, atol=1.0 if fill == "arange" else 1e-2)


def test_bias_filled_from_the_input_folds():
    class Bias(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return F.linear(x, self.W, x.new_ones(4))

    assert_folds(Bias(), torch.randn(2, 4))


RANDOM = {
    "rand": lambda self: self.W + torch.rand(8, 8),
    "randn_like": lambda self: self.W + 0.1 * torch.randn_like(self.W),
    "dropout": lambda self: F.dropout(self.W, 0.5, training=True),
    "bernoulli": lambda self: torch.bernoulli(self.W.sigmoid()),
}


@pytest.mark.parametrize("compute", RANDOM)
def test_random_weights_are_not_folded(compute):
    program = export(Computed(RANDOM[compute]), (torch.randn(1, 8),))
    ours = folded(program)
    (reason,) = refusals(ours)
    assert reason.endswith("is random or has side effects")
    x = torch.randn(1, 8)
    module = ours.module()
    assert not torch.equal(module(x), module(x))


def test_random_weight_differs_between_two_calls_on_the_runtime():
    x = torch.randn(1, 8)
    run = lower(Computed(RANDOM["rand"]), (x,)).load()
    assert not torch.equal(run(x)[0].clone(), run(x)[0])


@pytest.mark.parametrize(
    "empty", [lambda w: torch.empty(8, 8), lambda w: w.new_empty(8, 8), torch.empty_like]
)
def test_uninitialized_memory_is_not_folded(empty):
    model = Computed(lambda self: self.W + empty(self.W))
    (reason,) = refusals(folded(export(model, (torch.randn(1, 8),))))
    assert reason.endswith("is uninitialized memory")


def test_program_without_computed_weights_comes_back_as_the_same_object(caplog):
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x) + torch.ones(4) * 2
            return torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,)) @ y

    program = export(Plain(), (torch.randn(4, 4),))
    with caplog.at_level(logging.WARNING):
        assert folded(program) is program
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


# What the caller keeps.


def snapshot(program):
    return (
        str(program.graph),
        str(program.graph_signature),
        {k: (v.data_ptr(), v.clone()) for k, v in program.state_dict.items()},
        list(program.constants),
        [dict(node.meta.get("custom") or {}) for node in program.graph.nodes],
    )


def test_caller_keeps_the_program_and_may_lower_it_twice():
    model = nn.Sequential(positional_convolution(), SmallFactors()).eval()
    x = torch.randn(1, 64, 511)
    program = export(model, (x,))
    before, expected = snapshot(program), program.module()(x)
    first, second = lower(program, (x,)), lower(program, (x,))
    after = snapshot(program)
    assert before[:2] == after[:2] and before[3:] == after[3:]
    for (pointer, value), (new_pointer, new_value) in zip(
        before[2].values(), after[2].values(), strict=True
    ):
        assert pointer == new_pointer and torch.equal(value, new_value)
    assert torch.equal(program.module()(x), expected)
    assert first.buffer == second.buffer


def test_weights_that_are_not_folded_are_not_copied():
    model = nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4))
    program = export(model, (torch.randn(1, 4),))
    ours = folded(program)
    assert set(ours.state_dict) == {"0.bias", "1.weight", "1.bias"}
    for name, tensor in ours.state_dict.items():
        assert tensor.data_ptr() == program.state_dict[name].data_ptr()


class UsedElsewhere(nn.Module):
    """The parameter and the computed weight both have other uses."""

    def __init__(self, branch_on_computed):
        super().__init__()
        self.W = nn.Parameter(torch.randn(4, 4))
        self.branch_on_computed = branch_on_computed

    def forward(self, x):
        weight = self.W * 2
        y = F.linear(x, weight)
        operand = weight if self.branch_on_computed else self.W
        branch = torch.cond(x.sum() > 0, lambda w: w + 1, lambda w: w - 1, (operand,))
        return y, weight, y + weight, branch


@pytest.mark.parametrize("branch_on_computed", [False, True])
def test_parameter_with_other_uses_is_kept(branch_on_computed):
    model = UsedElsewhere(branch_on_computed)
    program = export(model, (torch.randn(4, 4),))
    ours = folded(program)
    assert set(ours.state_dict) == {"W"} and len(ours.constants) == 1
    namespaces = {getattr(t, "namespace", "") for t in targets(ours)}
    assert namespaces <= {"aten", "higher_order", ""}
    for x in (torch.ones(4, 4), -torch.ones(4, 4)):
        torch.testing.assert_close(ours.module()(x), model(x))
        lowered = lower(program, (x,))
        assert lowered.census()["XNNFullyConnected"] == 1
        assert_matches_eager(lowered, model, x)


def test_constants_computed_from_each_other_inherit_the_external_tag():
    class Chained(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            first = self.W * 2
            return F.linear(F.linear(x, first), first + 1)

    program = export(Chained(), (torch.randn(2, 8),))
    for node in program.graph.find_nodes(op="placeholder"):
        node.meta["custom"] = {"delegate_constant_tag": "model"}
    ours = folded(program)
    tags = [
        node.meta["custom"]["delegate_constant_tag"]
        for node in ours.graph.find_nodes(op="placeholder")
        if node.name.startswith("c_")
    ]
    assert tags == ["model", "model"] and not ours.state_dict


def test_equal_bytes_of_different_dtypes_are_two_constants():
    class Fills(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(8, 8))

        def forward(self, x, y):
            half, brain = self.W.half(), self.W.bfloat16()
            x = F.linear(x, half, half.new_zeros(8))
            return x, F.linear(y, brain, brain.new_zeros(8))

    inputs = (torch.randn(2, 8).half(), torch.randn(2, 8).bfloat16())
    ours = folded(export(Fills(), inputs), enable_bf16=True)
    assert len(ours.constants) == 4


def test_one_folded_weight_is_stored_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = weight_norm(nn.Conv1d(8, 8, 3, padding=1))
            self.tied = weight_norm(nn.Conv1d(8, 8, 3, padding=1))
            for name in ("original0", "original1"):
                tensor = getattr(self.conv.parametrizations.weight, name)
                setattr(self.tied.parametrizations.weight, name, tensor)

        def forward(self, x):
            return self.tied(self.conv(self.conv(x)))

    program, _ = assert_folds(Twice(), torch.randn(1, 8, 9), gemms=3)
    assert [t.numel() for t in folded(program).constants.values()] == [192]


def test_fold_is_idempotent_and_its_names_do_not_clash():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("_prop_tensor_constant0", torch.randn(4))
            self.W = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return F.linear(x, self.W * 2, self._prop_tensor_constant0)

    program, _ = assert_folds(Named(), torch.randn(2, 4))
    once = folded(program)
    assert folded(once) is once
    used = {spec.target for spec in once.graph_signature.input_specs if spec.target}
    assert used == once.state_dict.keys() | once.constants.keys()
    assert "_prop_tensor_constant0" in used and len(used) == 2


def test_constants_of_two_methods_do_not_meet_in_an_external_file():
    class Scaled(nn.Module):
        def __init__(self, owner, scale):
            super().__init__()
            self.W, self.scale = owner.W, scale

        def forward(self, x):
            # The second use keeps the constant outside of the delegate.
            weight = self.W * self.scale
            return F.linear(x, weight) + torch.cumsum(weight, 0)

    owner, x = Computed(None), torch.randn(8, 8)
    models = {"a": Scaled(owner, 2), "b": Scaled(owner, 3)}
    manager = to_edge_transform_and_lower(
        {name: export(model, (x,)) for name, model in models.items()},
        partitioner=[XnnpackPartitioner()],
    )
    config = ExecutorchBackendConfig(external_constants=True)
    data = manager.to_executorch(config)._tensor_data
    (blob,) = data.values()
    for model in models.values():
        assert bytes((model.W * model.scale).detach().numpy().tobytes()) in bytes(blob)


@pytest.mark.parametrize("tagged", ["all", "largest"])
def test_folded_weight_inherits_the_external_tag(tagged):
    model = weight_norm(nn.Conv1d(8, 8, 3))
    x = torch.randn(1, 8, 9)
    program = export(model, (x,))
    for node in program.graph.find_nodes(op="placeholder"):
        if tagged == "all" or not node.name.endswith("original0"):
            node.meta["custom"] = {"delegate_constant_tag": "model"}
    manager = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    file = manager.to_executorch()
    assert not file._named_data.pte_data and len(file._named_data.external_data["model"]) == 2
    (data,) = file._tensor_data.values()
    # The module reads both buffers in place, so they have to outlive it.
    buffer, weights = file.buffer, bytes(data)
    module = _load_for_executorch_from_buffer(buffer, weights)
    torch.testing.assert_close(module.forward([x])[0], model(x), atol=1e-5, rtol=1e-5)


# Quantized models.


def quantize(model, inputs, **config):
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**config))
    prepared = prepare_pt2e(export(model, inputs).module(), quantizer)
    prepared(*inputs)
    return export(convert_pt2e(prepared), inputs)


def quantization_nodes(program):
    namespaces = [(getattr(t, "namespace", ""), t) for t in targets(program)]
    return [t for namespace, t in namespaces if namespace == "quantized_decomposed"]


CONFIGS = {
    "static": {},
    "static_per_channel": {"is_per_channel": True},
    "dynamic": {"is_per_channel": True, "is_dynamic": True},
}


@pytest.mark.parametrize("config", CONFIGS)
def test_pre_decomposition_folding_keeps_quantization_primitives(config):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    inputs = (torch.randn(2, 8),)
    program = quantize(model, inputs, **CONFIGS[config])
    assert folded(program) is program and quantization_nodes(program)
    on = lower(program, inputs)
    off = lower(program, inputs, [XnnpackPartitioner(fold_computed_weights=False)])
    assert on.buffer == off.buffer
    assert_matches_eager(on, program.module(), *inputs, atol=0.05)


def test_weight_computed_before_its_dequantize_folds():
    class Packed(nn.Module):
        """Two int8 halves are joined, then dequantized per tensor."""

        def __init__(self):
            super().__init__()
            self.register_buffer("top", torch.randint(-9, 9, (4, 8), dtype=torch.int8))
            self.register_buffer("bottom", torch.randint(-9, 9, (4, 8), dtype=torch.int8))

        def forward(self, x):
            ops = torch.ops.quantized_decomposed
            weight = torch.cat([self.top, self.bottom])
            return F.linear(
                x,
                ops.dequantize_per_tensor.default(weight, 0.5, 0, -127, 127, torch.int8),
            )

    packed = Packed()
    ours = folded(export(packed, (torch.randn(1, 8),)))
    assert len(quantization_nodes(ours)) == 1
    (constant,) = ours.constants.values()
    assert constant.dtype == torch.int8 and constant.shape == (8, 8)
    x = torch.randn(1, 8)
    torch.testing.assert_close(ours.module()(x), packed(x))


def test_weight_normed_convolution_stays_int8_after_quantization():
    inputs = (torch.randn(1, 8, 9, 9),)
    model = nn.Sequential(weight_norm(nn.Conv2d(8, 16, 3))).eval()
    stripped = nn.Sequential(nn.Conv2d(8, 16, 3)).eval()
    stripped[0].load_state_dict({"weight": model[0].weight, "bias": model[0].bias})
    lowered, by_hand = (
        lower(quantize(m, inputs, is_per_channel=True), inputs) for m in (model, stripped)
    )
    assert not lowered.outside() and lowered.census() == by_hand.census()
    assert abs(len(lowered.buffer) - len(by_hand.buffer)) < 512
    (weight,) = (
        value.xvalue_union
        for value in lowered.graphs[0].xvalues
        if isinstance(value.xvalue_union, XNNQuantizedTensorValue)
        and isinstance(value.xvalue_union.quant_params, PerChannelQuant)
        and value.xvalue_union.tensor_value.num_dims == 4
    )
    assert weight.tensor_value.datatype == XNNDatatype.xnn_datatype_qcint8
    assert list(weight.tensor_value.dims) == [16, 3, 3, 8]
    torch.testing.assert_close(lowered.run(*inputs), by_hand.run(*inputs))
    torch.testing.assert_close(lowered.run(*inputs)[0], model(*inputs), atol=0.1, rtol=0.1)


# Options.


def test_fold_can_be_turned_off():
    program = export(positional_convolution(), (torch.randn(1, 64, 50),))
    assert folded(program, fold_computed_weights=False) is program


def test_force_non_static_weights_need_no_fold_of_a_linear():
    program = export(Computed(lambda self: self.W * 2), (torch.randn(1, 8),))
    ours = folded(program, force_non_static_weights_for_f32_linear=True)
    assert not ours.constants


def test_dtypes():
    class Half(nn.Module):
        def __init__(self, dtype):
            super().__init__()
            self.W = nn.Parameter(torch.randn(8, 8, dtype=dtype))

        def forward(self, x):
            return F.linear(x, self.W * 2)

    x = torch.randn(2, 8, dtype=torch.float16)
    model = Half(torch.float16)
    lowered = lower(model, (x,))
    assert not lowered.outside()
    assert_matches_eager(lowered, model, x, atol=0.05)
    program = export(Half(torch.bfloat16), (x.bfloat16(),))
    assert refusals(folded(program)) == ["the partitioner does not take torch.bfloat16"]
    assert len(folded(program, enable_bf16=True).constants) == 1


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_wav2vec2_base():
    transformers = pytest.importorskip("transformers")
    # The defaults of the configuration are those of wav2vec2-base.
    config = transformers.Wav2Vec2Config(attn_implementation="eager")
    model = transformers.Wav2Vec2Model(config).eval()

    class Features(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, audio):
            return self.model(audio).last_hidden_state

    audio = torch.randn(1, 4000)
    lowered = lower(Features(), (audio,))
    gemms = ("convolution", "linear", "mm")
    assert not any(gemm in name for name in lowered.outside() for gemm in gemms)
    assert_matches_eager(lowered, Features(), audio, atol=1e-3)
