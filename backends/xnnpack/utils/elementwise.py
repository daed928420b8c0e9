"""The elementwise operators that the delegate takes, and which operands fit which layout."""

from typing import Iterator, Tuple

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from torch.fx import Node

aten = exir_ops.edge.aten

# Operators of two tensors that broadcast.
BINARY = frozenset(
    {
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.div.Tensor,
        aten.maximum.default,
        aten.minimum.default,
    }
)

# Operators of one tensor; further arguments are numbers.
UNARY = frozenset(
    {
        aten.abs.default,
        aten.ceil.default,
        aten.clamp.default,
        aten.cos.default,
        aten.elu.default,
        aten.exp.default,
        aten.floor.default,
        aten.gelu.default,
        aten.hardswish.default,
        aten.hardtanh.default,
        aten.leaky_relu.default,
        aten.log.default,
        aten.neg.default,
        aten.pow.Tensor_Scalar,
        aten.relu.default,
        aten.rsqrt.default,
        aten.sigmoid.default,
        aten.sin.default,
        aten.sqrt.default,
        aten.tanh.default,
    }
)

# Quantize and dequantize with one scale: elementwise as well.
PER_TENSOR_QDQ = frozenset(
    {
        exir_ops.edge.quantized_decomposed.quantize_per_tensor.default,
        exir_ops.edge.quantized_decomposed.dequantize_per_tensor.default,
    }
)


def combines_tensors(node: Node) -> bool:
    """True for operators whose tensor operands must share one layout."""
    return node.target in BINARY or node.target is aten.cat.default


def operands(node: Node) -> Iterator[Tuple[Tuple[int, ...], Node]]:
    """Place and value of every tensor operand of a binary operator or a concatenation."""
    if node.target is aten.cat.default:
        for index, operand in enumerate(node.args[0]):
            yield (0, index), operand
        return
    for index, operand in enumerate(node.args[:2]):
        if isinstance(operand, Node):
            yield (index,), operand


def replace_operand(node: Node, place: Tuple[int, ...], operand: Node) -> None:
    """Puts `operand` at one place that `operands` gave, and nowhere else."""
    if len(place) == 1:
        node.update_arg(place[0], operand)
        return
    tensors = list(node.args[place[0]])
    tensors[place[1]] = operand
    node.update_arg(place[0], tensors)


def shape_of(node: Node) -> Tuple:
    """Shape of a value, () for what has none; dimensions may be symbolic."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def rank_of(node: Node) -> int:
    return len(shape_of(node))


def is_one_element(node: Node) -> bool:
    return all(isinstance(size, int) and size == 1 for size in shape_of(node))


def dynamic_sizes(shape: Tuple) -> int:
    return sum(not isinstance(size, int) for size in shape)


def reshape_sizes(shape: Tuple) -> list:
    """`shape` as XNNStaticReshape and view_copy take it: at most one dynamic size, as -1."""
    if dynamic_sizes(shape) > 1:
        raise ValueError(f"a reshape infers one size, not {shape}")
    return [size if isinstance(size, int) else -1 for size in shape]
