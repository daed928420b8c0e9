"""Constness, twins and values of a functionalised ATen program."""

import pytest
import torch
from executorch.exir.passes.constant_values import ConstantValues, is_fill, reads
from torch import nn
from torch.export import export


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(torch.randn(2, 3))
        self.register_buffer("written", torch.zeros(2, 3))

    def forward(self, x):
        twice, again, other = self.W * 2, self.W * 2, self.W * 2.5
        filled = x.new_zeros(2, 3)
        self.written.add_(1)
        total = twice + again + other + filled
        return total + self.written * 2 + x, twice.t(), torch.rand(2), torch.empty(2)


@pytest.fixture(scope="module")
def nodes():
    program = export(Model(), (torch.randn(2, 3),)).run_decompositions({})
    values = ConstantValues(
        program, lambda name, tensor: "other" if name == "nothing" else None
    )
    return program, values, {node.name: node for node in program.graph.nodes}


def test_reasons(nodes):
    _, values, by_name = nodes
    reasons = {name: values.why_not(node) for name, node in by_name.items()}
    assert [reasons[name] for name in ("p_w", "mul", "mul_1", "new_zeros")] == [None] * 4
    assert reasons["x"] == "it depends on the input 'x'"
    assert reasons["b_written"] == "it depends on 'written', which the program writes"
    assert reasons["rand"] == "aten.rand.default is random or has side effects"
    assert reasons["empty"] == "aten.empty.memory_format is uninitialized memory"


def test_twins(nodes):
    _, values, by_name = nodes
    assert values.twin(by_name["mul_1"]) is by_name["mul"]
    assert values.twin(by_name["mul_2"]) is by_name["mul_2"]


def test_equal_scalars_of_different_types_are_no_twins():
    class Scalars(nn.Module):
        def forward(self, x):
            return torch.full((2,), 1), torch.full((2,), 1.0), torch.full((2,), True), x

    program = export(Scalars(), (torch.randn(1),)).run_decompositions({})
    values = ConstantValues(program, lambda name, tensor: None)
    fills = [node for node in program.graph.nodes if is_fill(node)]
    assert [values.twin(node) for node in fills] == fills and len(fills) == 3


def test_fill_reads_no_elements(nodes):
    _, _, by_name = nodes
    assert reads(by_name["new_zeros"]) == []
    assert reads(by_name["mul"]) == [by_name["p_w"]]


def test_chain_and_value(nodes):
    program, values, by_name = nodes
    transposed = by_name["t"] if "t" in by_name else by_name["permute"]
    chain = values.chain([transposed])
    assert chain == [by_name["p_w"], by_name["mul"], transposed]
    value = values.evaluate(transposed)
    assert torch.equal(value, (program.state_dict["W"] * 2).t())
    assert value.is_contiguous() and not value.requires_grad


def test_view_of_a_parameter_is_copied():
    class View(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return self.W[1:2].view(-1) + x

    program = export(View(), (torch.randn(4),)).run_decompositions({})
    values = ConstantValues(program, lambda name, tensor: None)
    view = [n for n in program.graph.nodes if n.op == "call_function"][-2]
    value = values.evaluate(view)
    assert torch.equal(value, program.state_dict["W"][1])
    assert value.untyped_storage().nbytes() == 16
    assert value.data_ptr() != program.state_dict["W"][1].data_ptr()


def test_state_that_another_method_writes():
    class Read(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.ones(2))

        def forward(self, x):
            return x + self.state * 2

    program = export(Read(), (torch.randn(2),)).run_decompositions({})
    values = ConstantValues(program, lambda name, tensor: "decode")
    (product,) = [n for n in program.graph.nodes if n.name == "mul"]
    assert values.why_not(product) == "it depends on 'state', which the method 'decode' writes"
