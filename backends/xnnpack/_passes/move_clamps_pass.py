import logging
import math
from dataclasses import dataclass
from typing import Optional, Tuple, Union

import torch
from executorch.backends.xnnpack._passes.fuse_activation_pass import FuseActivationPass
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.backends.xnnpack.utils.options import options_of
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import PassResult
from torch.fx import Node

logger = logging.getLogger(__name__)

aten = exir_ops.edge.aten


@dataclass(frozen=True)
class Move:
    """`clamp` becomes a hardtanh with `bounds` in front of or instead of `activation`, or where it stands."""

    clamp: Node
    activation: Optional[Node]
    bounds: Tuple[float, float]


class MoveClampsPass(XNNPACKPass):
    """
    Moves clamps to the operator whose node can compute them.

    Before:  conv -- leaky_relu(slope) -- clamp(low, high)
    After:   conv -- hardtanh(low / slope, high) -- leaky_relu(slope)        for low < 0 < high

    LeakyReLU rises everywhere, so that a clamp behind it is a clamp in front of it, at the values which it maps to
    the bounds. A ReLU and a clamp are one hardtanh. FuseActivationPass, which takes hardtanh and no clamp, then fuses
    it: one or two passes over the activations less. Exact but for the rounding of a bound.

    Preconditions: (1) a clamp or hardtanh with two finite bounds, the lower below the upper one; (2) of floating
    point; (3) behind an operator that FuseActivationPass fuses into, or one ReLU or LeakyReLU of positive slope after
    that; (4) nothing else reads the values in between; (5) the moved bounds are finite in the dtype of the value.
    Has to stand behind MoveScalesPass, before DecomposeDepthwiseConvTransposePass and FuseActivationPass.
    """

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        if not options_of(self.exported_program).move_scales:
            return PassResult(graph_module, False)
        graph = graph_module.graph
        modified = False
        for node in list(graph.nodes):
            move = plan_move(node)
            if isinstance(move, Move):
                self._apply(graph, move)
                modified = True
            elif move is not None:
                logger.debug(f"{node} is not moved: {move}")
        if modified:
            graph_module.recompile()
            graph.lint()
        return PassResult(graph_module, modified)

    def _apply(self, graph: torch.fx.Graph, move: Move) -> None:
        clamp, activation = move.clamp, move.activation
        below = (activation or clamp).args[0]
        with graph.inserting_after(below):
            hardtanh = graph.call_function(aten.hardtanh.default, (below, *move.bounds))
        hardtanh.meta = dict(clamp.meta)
        if activation is None or activation.target is aten.relu.default:
            clamp.replace_all_uses_with(hardtanh)
        else:
            activation.update_arg(0, hardtanh)
            clamp.replace_all_uses_with(activation)
        graph.erase_node(clamp)
        if activation is not None and not activation.users:
            graph.erase_node(activation)


def plan_move(node: Node) -> Union[Move, str, None]:
    """Where the clamp `node` moves, or why it does not; None for other operators."""
    if node.target not in (aten.clamp.default, aten.hardtanh.default):
        return None
    bounds = _bounds(node)
    if bounds is None:
        return "it does not have two finite bounds, the lower below the upper one"
    value = node.args[0]
    if not node.meta["val"].is_floating_point():
        return "it clamps no floating point values"
    if value.target is aten.relu.default:
        activation, moved = value, (max(0.0, bounds[0]), bounds[1])
    elif value.target is aten.leaky_relu.default:
        slope = value.args[1] if len(value.args) > 1 else 0.01
        if slope <= 0:
            return f"{value} has a slope of {slope}"
        activation, moved = value, tuple(b if b >= 0 else b / slope for b in bounds)
    else:
        activation, moved = None, bounds
        if node.target is aten.hardtanh.default:
            return "FuseActivationPass takes it where it can"
    if activation is not None and len(activation.users) != 1:
        return f"{activation} has other readers"
    below = (activation or node).args[0]
    if below.target not in FuseActivationPass.FUSEABLE_OPS:
        return f"no clamp can be fused into {below}"
    if len(below.users) != 1:
        return f"{below} has other readers"
    if moved[0] >= moved[1] or max(map(abs, moved)) > torch.finfo(node.meta["val"].dtype).max:
        return f"the bounds {moved} are none"
    return Move(node, activation, moved)


def _bounds(node: Node) -> Optional[Tuple[float, float]]:
    defaults = (-1.0, 1.0) if node.target is aten.hardtanh.default else (None, None)
    low, high = (*node.args[1:3], *defaults[len(node.args) - 1 :])
    numbers = all(isinstance(bound, (int, float)) and math.isfinite(bound) for bound in (low, high))
    return (float(low), float(high)) if numbers and low < high else None
