import logging
import operator
from collections import Counter
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple, Union

import torch
from executorch.backends.xnnpack import custom_ops_lib  # noqa: F401
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.backends.xnnpack.utils.options import options_of
from executorch.backends.xnnpack.utils.quant_utils import (
    is_dynamic_qdq,
    is_qparam,
    is_tagged_as_implicit_q_dq,
)
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import PassResult
from torch.fx import Node

logger = logging.getLogger(__name__)

_CONVOLUTION = exir_ops.edge.aten.convolution.default
_PADDED_CONVOLUTION = exir_ops.edge.et_xnnpack.padded_convolution_2d.default
_PAD = exir_ops.edge.aten.constant_pad_nd.default
_UNSQUEEZE = exir_ops.edge.aten.unsqueeze_copy.default
_QUANTIZE = exir_ops.edge.quantized_decomposed.quantize_per_tensor.default
_DEQUANTIZE = exir_ops.edge.quantized_decomposed.dequantize_per_tensor.default
_QUANTIZE_DYNAMIC = exir_ops.edge.quantized_decomposed.quantize_per_tensor.tensor
_DEQUANTIZE_DYNAMIC = exir_ops.edge.quantized_decomposed.dequantize_per_tensor.tensor

# Per dimension, how much is padded (before, after).
Amounts = List[Tuple[int, int]]


@dataclass(frozen=True)
class Fold:
    """The pad becomes `padding` (top, right, bottom, left) of `convolution`."""

    convolution: Node
    padding: Tuple[int, int, int, int]


@dataclass(frozen=True)
class Remove:
    """The pad pads nothing."""


Plan = Union[Fold, Remove, str]


class FusePadIntoConvPass(XNNPACKPass):
    """
    Folds a pad with zeros into the padding of the convolution behind it. XNNPACK's convolutions
    pad top, right, bottom and left separately, at no cost.

    Before:                                     After:
        x -> constant_pad_nd -> convolution         x -> padded_convolution_2d

        dq -> constant_pad_nd -> q -> dq -> convolution
                                                    dq -> padded_convolution_2d

    Such pads come from ZeroPad2d, from padding="same" with an even kernel, from models with
    TensorFlow's rules, and from the decomposition of transposed convolutions.

    A pad is folded if
    1. its amounts are known now, none is negative, and its value is zero,
    2. it pads height and width alone (length, in front of a one-dimensional convolution),
    3. one convolution that is not transposed is its only reader, as its image; an unsqueeze_copy,
       another such pad, and one quantize/dequantize pair per tensor may stand between, static
       or dynamic. Zero is quantized to the zero point, which is what XNNPACK pads with.
    What the convolution pads by itself is added. A pad of zero amounts is removed wherever it
    stands, unless it is an output. The result is exact.

    Equal paddings on both sides of each axis stay an aten.convolution.

    Has to stand behind FuseActivationPass and Conv1dUnsqueezePass, which know aten.convolution
    alone, and in front of ChannelsLastTaggedReshapePass, which would put a transpose
    between pad and convolution.
    """

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        if not options_of(self.exported_program).fuse_pads:
            return PassResult(graph_module, False)
        graph = graph_module.graph
        plans = plan_pads(graph)
        paddings: Dict[Node, Counter] = {}
        for pad, plan in plans.items():
            if isinstance(plan, str):
                logger.debug("%s is not folded into a convolution: %s", pad, plan)
                continue
            if isinstance(plan, Fold):
                total = paddings.setdefault(plan.convolution, Counter())
                total.update(dict(enumerate(plan.padding)))
            _bypass(pad)
        for convolution, padding in paddings.items():
            _replace(convolution, [padding[side] for side in range(4)])

        modified = any(not isinstance(plan, str) for plan in plans.values())
        if not modified:
            return PassResult(graph_module, False)
        graph.eliminate_dead_code()
        graph.lint()
        graph_module.recompile()
        # Values between a pad and its convolution have other shapes now.
        return PassResult(super().call(graph_module).graph_module, True)


def plan_pads(graph: torch.fx.Graph) -> Dict[Node, Plan]:
    """What to do with each constant_pad_nd of `graph`, or the reason why it stays."""
    plans: Dict[Node, Plan] = {}
    # Back to front: a pad in front of another one has to know whether that one goes away.
    for node in reversed(graph.nodes):
        if node.op == "call_function" and node.target is _PAD:
            plans[node] = _plan_pad(node, plans)
    return plans


def _plan_pad(pad: Node, plans: Dict[Node, Plan]) -> Plan:
    amounts = _amounts(pad)
    if isinstance(amounts, str):
        return amounts
    if not any(before or after for before, after in amounts):
        if any(user.op == "output" for user in pad.users):
            return "it pads nothing, but is an output"
        return Remove()
    value = pad.args[2] if len(pad.args) > 2 else pad.kwargs.get("value", 0)
    if not isinstance(value, (int, float)) or value != 0:
        return f"its value is {value}, not zero"

    node = pad
    while not _is_convolution(node):
        step = _reader(node, plans)
        if isinstance(step, str):
            return step
        node, unsqueezed = step
        if unsqueezed is not None:
            amounts.insert(unsqueezed, (0, 0))
    if node.args[6]:
        return f"{node} is transposed"
    if len(amounts) != 4 or any(amounts[0] + amounts[1]):
        return f"it pads more than the height and width of {node}"
    (top, bottom), (left, right) = amounts[2:]
    return Fold(node, (top, right, bottom, left))


def _amounts(pad: Node) -> Union[Amounts, str]:
    flat = list(pad.args[1])
    if not all(isinstance(amount, int) for amount in flat):
        return "its amounts are not known before run time"
    if any(amount < 0 for amount in flat):
        return "it crops: an amount is negative"
    pairs = list(zip(flat[::2], flat[1::2]))
    rank = len(pad.meta["val"].shape)
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


def _is_convolution(node: Node) -> bool:
    return node.target in (_CONVOLUTION, _PADDED_CONVOLUTION)


def _reader(
    node: Node, plans: Dict[Node, Plan]
) -> Union[Tuple[Node, Optional[int]], str]:
    """The only reader of `node`'s value if zeros in its input are zeros (or the zero point) in
    its output, and the dimension it inserts; else the reason."""
    user = _dynamic_dequantize(node)
    if user is not None:
        return user, None
    if len(node.users) != 1:
        return f"{node} has {len(node.users)} readers"
    (user,) = node.users
    if _is_convolution(user) and user.args[0] is node:
        return user, None
    if user.target is _UNSQUEEZE:
        return user, user.args[1] % len(user.meta["val"].shape)
    if user.target is _QUANTIZE:
        _, zero_point, low, high = user.args[1:5]
        if not low <= zero_point <= high:
            return f"{user} clamps its zero point"
        return user, None
    if user.target is _DEQUANTIZE and node.target is _QUANTIZE:
        if _parameters(user) != _parameters(node):
            return f"{user} reads other quantization parameters than {node} writes"
        return user, None
    if user.target is _PAD:
        plan = plans[user]
        if isinstance(plan, str):
            return f"{user} stays: {plan}"
        return user, None
    return f"{user} reads it, which is no convolution"


def _parameters(node: Node) -> Tuple:
    """Scale, zero point, range and type of a quantize or dequantize per tensor."""
    return tuple(node.args[1:])


def _dynamic_dequantize(node: Node) -> Optional[Node]:
    """The dequantize behind `node` if all that reads it is one dynamic quantization."""
    quantizes = [user for user in node.users if user.target is _QUANTIZE_DYNAMIC]
    chooses = [user for user in node.users if is_qparam(user)]
    if len(quantizes) != 1 or len(chooses) != 1 or len(node.users) != 2:
        return None
    (quantize,), (choose,) = quantizes, chooses
    if not is_dynamic_qdq(quantize) or len(quantize.users) != 1:
        return None
    (dequantize,) = quantize.users
    chosen = set(choose.users)
    if (
        dequantize.target is not _DEQUANTIZE_DYNAMIC
        or set(quantize.args[1:3]) != chosen
        or set(dequantize.args[1:3]) != chosen
        or any(set(part.users) != {quantize, dequantize} for part in chosen)
        or any(part.target is not operator.getitem for part in chosen)
    ):
        return None
    return dequantize


def _bypass(pad: Node) -> None:
    """Lets the readers of `pad` read its input, without quantizing a second time what is
    quantized with the same parameters."""
    source, readers = pad.args[0], list(pad.users)
    pad.replace_all_uses_with(source)
    pad.graph.erase_node(pad)
    if source.target is not _DEQUANTIZE:
        return
    for quantize in readers:
        if quantize.target is not _QUANTIZE or _parameters(quantize) != _parameters(
            source
        ):
            continue
        if any(user.op == "output" for user in quantize.users):
            continue
        if not is_tagged_as_implicit_q_dq(quantize):
            quantize.replace_all_uses_with(source.args[0])
        elif all(
            user.target is _DEQUANTIZE and _parameters(user) == _parameters(source)
            for user in quantize.users
        ):
            for dequantize in list(quantize.users):
                dequantize.replace_all_uses_with(source)


def _replace(convolution: Node, padding: List[int]) -> None:
    """Puts `padding` (top, right, bottom, left) on top of what `convolution` pads."""
    image, weight, bias, stride, own, dilation, _, _, groups = convolution.args
    if convolution.target is _PADDED_CONVOLUTION:
        own_padding = own
    else:
        height, width = _pair(own)
        own_padding = [height, width, height, width]
    total = [a + b for a, b in zip(padding, own_padding)]
    top, right, bottom, left = total
    symmetric = top == bottom and left == right
    with convolution.graph.inserting_before(convolution):
        replacement = convolution.graph.call_function(
            _CONVOLUTION if symmetric else _PADDED_CONVOLUTION,
            (
                image,
                weight,
                bias,
                _pair(stride),
                [top, left] if symmetric else total,
                _pair(dilation),
                False,
                [0, 0],
                groups,
            ),
        )
    replacement.meta = convolution.meta.copy()
    convolution.replace_all_uses_with(replacement)
    convolution.graph.erase_node(convolution)


def _pair(values: List[int]) -> List[int]:
    """ATen broadcasts a single value over height and width."""
    return [values[0], values[-1]]
