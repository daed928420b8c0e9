import logging
from dataclasses import dataclass
from typing import List, Optional, Tuple, Union

import torch
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.backends.xnnpack.utils.constants import add_constant, constant_of
from executorch.backends.xnnpack.utils.elementwise import rank_of, shape_of
from executorch.backends.xnnpack.utils.options import options_of
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import PassResult
from torch.export import ExportedProgram
from torch.fx import Graph, Node

logger = logging.getLogger(__name__)

aten = exir_ops.edge.aten

_GEMMS = (aten.convolution.default, aten.linear.default)
_HOMOGENEOUS = (aten.relu.default, aten.leaky_relu.default)
_SCALES = (aten.mul.Tensor, aten.div.Tensor)
_SHIFTS = (aten.add.Tensor, aten.sub.Tensor)


@dataclass(frozen=True)
class Move:
    """`node` computes factor * x + shift; both are per output channel of `gemm`, or one number, in float64.

    `between` are additions of constants on the way: the operator, where its constant stands, and the tensor.
    """

    node: Node
    passed_on: Node
    gemm: Node
    factor: torch.Tensor
    shift: torch.Tensor
    between: Tuple[Tuple[Node, int, torch.Tensor], ...]


class MoveScalesPass(XNNPACKPass):
    """
    Moves scales and shifts by constants into the convolution or linear before them.

    Before:  conv(w, b) -- leaky_relu -- mul(1.41)
    After:   conv(1.41 w, 1.41 b) -- leaky_relu

    ReLU and LeakyReLU commute with a positive factor: f * relu(x) = relu(f * x). Directly behind the layer any
    finite factor or shift can move, one number or one per output channel. A factor moves through additions of
    constants on its way, which it scales. Exact but for rounding: of weights, once.

    Preconditions: (1) multiplication, division by, addition or subtraction of a constant that the delegate owns, with
    the shape of the other operand; (2) the constant is one number or one per channel, and finite; behind an
    activation it is a factor and positive; (3) nothing else reads the values in between; (4) the layer's weight and
    bias are static, not quantized and of no other layer; (5) scaled, they are finite. Has to stand before
    FuseActivationPass, which then finds the activation behind the layer, and before passes that split layers.
    """

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        if not options_of(self.exported_program).move_scales:
            return PassResult(graph_module, False)
        graph = graph_module.graph
        modified = False
        # One after the other: behind a scale that moved, a shift may be next.
        for node in list(graph.nodes):
            move = plan_move(self.exported_program, node)
            if isinstance(move, Move) and self._apply(graph, move):
                modified = True
            elif isinstance(move, str):
                logger.debug(f"{node} is not moved: {move}")
        if modified:
            graph.eliminate_dead_code()
            graph_module.recompile()
            graph.lint()
        return PassResult(graph_module, modified)

    def _apply(self, graph: Graph, move: Move) -> bool:
        """Rewrites, or returns False where a scaled constant would not be finite."""
        gemm, program = move.gemm, self.exported_program
        weight_node, bias_node = gemm.args[1], gemm.args[2] if len(gemm.args) > 2 else None
        weight, bias = (constant_of(program, n) for n in (weight_node, bias_node))
        new_weight = (weight.double() * _along_outputs(gemm, weight, move.factor)).to(weight.dtype)
        outputs = channels_of(gemm)
        new_bias = bias
        if bias is not None or move.shift.count_nonzero():
            old = torch.zeros(outputs, dtype=torch.float64) if bias is None else bias.double()
            new_bias = (move.factor * old + move.shift).to(weight.dtype).contiguous()
        constants = [(c.double() * move.factor).to(c.dtype) for _, _, c in move.between]
        if not all(c.isfinite().all() for c in (new_weight, new_bias, *constants) if c is not None):
            logger.debug(f"{move.node} is not moved: a scaled constant is not finite")
            return False
        gemm.update_arg(1, add_constant(program, graph, new_weight.contiguous(), weight_node))
        if new_bias is not None:
            stored = add_constant(program, graph, new_bias, bias_node or weight_node)
            gemm.args = (*gemm.args[:2], stored, *gemm.args[3:])
        for (node, place, _), constant in zip(move.between, constants, strict=True):
            node.update_arg(place, add_constant(program, graph, constant, node.args[place]))
        move.node.replace_all_uses_with(move.passed_on)
        graph.erase_node(move.node)
        return True


def plan_move(program: ExportedProgram, node: Node) -> Union[Move, str, None]:
    """What moves where, or why not; None for operators that are no scale or shift."""
    if node.target not in _SCALES + _SHIFTS:
        return None
    place = _constant_place(program, node)
    if place is None:
        return "not one of its operands is a constant"
    value, constant = node.args[1 - place], constant_of(program, node.args[place])
    if node.target is aten.div.Tensor and place == 0:
        return "it divides the constant"
    if node.kwargs.get("alpha", 1) != 1:
        return "alpha is not 1"
    if shape_of(node) != shape_of(value):
        return "the constant broadcasts the value"
    if not constant.is_floating_point() or not constant.isfinite().all():
        return "the constant is not finite"
    below, between = value, []
    activated = below.target in _HOMOGENEOUS
    if activated:
        if len(below.users) != 1:
            return f"{below} has other readers"
        below = below.args[0]
    while below.target in _SHIFTS and node.target in _SCALES:
        step = _addition(program, below)
        if isinstance(step, str):
            return step
        between.append(step)
        below = below.args[1 - step[1]]
    reason = decline_gemm(program, below)
    if reason is not None:
        return reason
    numbers = _per_channel(below, constant, rank_of(value))
    if numbers is None:
        return "the constant is not per channel"
    factor, shift = _affine(node, place, numbers.double())
    if activated and (shift.count_nonzero() or not (factor > 0).all()):
        return f"no positive factor, behind {value}"
    if between and factor.numel() != 1:
        return "a factor per channel, behind an addition"
    return Move(node, value, below, factor, shift, tuple(between))


def decline_gemm(program: ExportedProgram, gemm: Node) -> Optional[str]:
    """Why the weight and bias of `gemm` cannot take a scale, or None."""
    if gemm.target not in _GEMMS:
        return f"{gemm} is no convolution or linear"
    if len(gemm.users) != 1:
        return f"{gemm} has other readers"
    weight, bias = gemm.args[1], gemm.args[2] if len(gemm.args) > 2 else None
    for constant in (weight, bias):
        if constant is None:
            continue
        tensor = constant_of(program, constant)
        if tensor is None or not tensor.is_floating_point():
            return f"{constant} is not static"
        if len(constant.users) != 1:
            return f"{constant} is shared"
    return None


def channels_of(gemm: Node) -> int:
    """Output channels of a convolution, output features of a linear."""
    return shape_of(gemm)[_channel_axis(gemm)]


def _channel_axis(gemm: Node) -> int:
    return 1 if gemm.target is aten.convolution.default else rank_of(gemm) - 1


def _constant_place(program: ExportedProgram, node: Node) -> Optional[int]:
    """Which of two operands is a constant; None unless it is exactly one."""
    tensors = [constant_of(program, operand) for operand in node.args[:2]]
    known = [index for index, tensor in enumerate(tensors) if tensor is not None]
    both_nodes = all(isinstance(operand, Node) for operand in node.args[:2])
    return known[0] if both_nodes and len(known) == 1 else None


def _addition(
    program: ExportedProgram, node: Node
) -> Union[Tuple[Node, int, torch.Tensor], str]:
    """An addition of a constant that a factor can pass through, or why it cannot."""
    place = _constant_place(program, node)
    if place is None or node.kwargs.get("alpha", 1) != 1:
        return f"{node} adds no constant"
    if len(node.users) != 1 or len(node.args[place].users) != 1:
        return f"{node} or its constant has other readers"
    if shape_of(node) != shape_of(node.args[1 - place]):
        return f"{node} broadcasts"
    return node, place, constant_of(program, node.args[place])


def _per_channel(gemm: Node, constant: torch.Tensor, rank: int) -> Optional[torch.Tensor]:
    """`constant` as [1] or [channels] if it varies along the channels alone."""
    sizes: List[int] = [1] * (rank - constant.dim()) + list(constant.shape)
    axis = _channel_axis(gemm)
    if any(size != 1 for i, size in enumerate(sizes) if i != axis):
        return None
    return constant.reshape(-1)


def _affine(node: Node, place: int, c: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """factor and shift of `node` as a function of its operand that is no constant."""
    one, zero = torch.ones(1, dtype=c.dtype), torch.zeros(1, dtype=c.dtype)
    if node.target is aten.mul.Tensor:
        return c, zero
    if node.target is aten.div.Tensor:
        return 1 / c, zero
    if node.target is aten.add.Tensor:
        return one, c
    return (one, -c) if place == 1 else (-one, c)


def _along_outputs(gemm: Node, weight: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """`factor` in a shape that broadcasts with `weight` along its output channels."""
    if factor.numel() == 1:
        return factor
    is_transposed = gemm.target is aten.convolution.default and gemm.args[6]
    if not is_transposed:
        return factor.reshape(-1, *[1] * (weight.dim() - 1))
    # [in, out / groups, ...]: the inputs of a group are consecutive.
    groups = gemm.args[8]
    per_input = factor.reshape(groups, -1).repeat_interleave(weight.shape[0] // groups, 0)
    return per_input.reshape(*weight.shape[:2], *[1] * (weight.dim() - 2))
