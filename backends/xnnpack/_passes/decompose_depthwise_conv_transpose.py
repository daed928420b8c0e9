import logging
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple, Union

import torch
from executorch.backends.xnnpack import custom_ops_lib  # noqa: F401
from executorch.backends.xnnpack._passes.fuse_activation_pass import FuseActivationPass
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.backends.xnnpack.utils.constant_placeholders import (
    delete_unused,
    store_like,
    stored_input,
)
from executorch.backends.xnnpack.utils.conv_transpose_phases import (
    AxisPhase,
    PhasePlan,
    plan_phases,
    why_not_faster,
)
from executorch.backends.xnnpack.utils.depth_to_space import (
    decline_depth_to_space,
    DTYPES,
)
from executorch.backends.xnnpack.utils.options import options_of
from executorch.backends.xnnpack.utils.utils import get_param_tensor
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import PassResult
from torch.export import ExportedProgram
from torch.fx import Graph, Node

logger = logging.getLogger(__name__)

_CONVOLUTION = exir_ops.edge.aten.convolution.default
_RELU = exir_ops.edge.aten.relu.default
_HARDTANH = exir_ops.edge.aten.hardtanh.default
_CLAMP = exir_ops.edge.aten.clamp.default

# XNNPACK's concatenation node takes no more inputs.
_MAX_CONCATENATED = 5


@dataclass(frozen=True)
class _Rewrite:
    """One transposed convolution and what it becomes.

    Attributes:
        node: the transposed convolution.
        plan: its phases.
        channels: C.
        shape: of the output, -1 where it is dynamic.
        activation: the clamp behind it, if it can be computed on the phases.
        bounds: operator and bounds of that clamp, as FuseActivationPass takes them.
    """

    node: Node
    plan: PhasePlan
    channels: int
    shape: Tuple[int, ...]
    activation: Optional[Node]
    bounds: Tuple


class DecomposeDepthwiseConvTransposePass(XNNPACKPass):
    """
    Turns a depthwise transposed convolution into stride-1 depthwise convolutions.

    XNNPACK runs a transposed convolution one group at a time, which with one channel per
    group is far slower than its depthwise kernels. Source of the arithmetic:
    `conv_transpose_phases.py`. Example for stride 2:

    Before:                                 After:
        x (N, C, H, W)                          x -> pad -> convolution -> relu -+
        -> convolution (transposed)             x -> pad -> convolution -> relu -+
        -> relu                                 x -> pad -> convolution -> relu -+
                                                x -> pad -> convolution -> relu -+
                                                -> cat -> depth_to_space_2d
        (N, C, 2H, 2W)                          (N, C, 2H, 2W)

    The input of rank 3 gets a fourth dimension of 1, and the phases, concatenated along
    that dimension, are its length's neighbours in memory already:
        x (N, C, L) -> unsqueeze -> phases (N, C, L, 1) -> cat (N, C, L, s) -> view

    Preconditions, each a reason in the debug log when it fails:
        1. the weight is a parameter, buffer or constant nobody writes;
        2. groups, input and output channels are one number;
        3. float32 or float16;
        4. the phases exist, see `plan_phases`, and are faster, see `why_not_faster`;
        5. the target runtime can interleave them: see `decline_depth_to_space`, and in
           one dimension at most one of batch and length is dynamic.

    Every product is summed as before, in another order: equal up to rounding. A ReLU, ReLU6,
    hardtanh or clamp behind it moves to the phases, exactly. Has to stand before
    FuseActivationPass, which fuses those, and behind the batch norm passes, whose
    results it takes.
    """

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        if not options_of(self.exported_program).decompose_depthwise_conv_transpose:
            return PassResult(graph_module, False)
        graph = graph_module.graph
        # A rewritten neighbour has no shapes yet, so all are planned first.
        rewrites = []
        for node in graph.find_nodes(op="call_function", target=_CONVOLUTION):
            if node.args[6]:
                rewrite = plan_rewrite(node, self.exported_program)
                if isinstance(rewrite, str):
                    logger.debug(f"{node} is left alone: {rewrite}")
                else:
                    rewrites.append(rewrite)
        if not rewrites:
            return PassResult(graph_module, False)

        weights = [rewrite.node.args[1] for rewrite in rewrites]
        phase_weights: Dict[Tuple, List[Node]] = {}
        for rewrite in rewrites:
            self._rewrite(graph, rewrite, phase_weights)
        delete_unused(self.exported_program, weights)
        graph.lint()
        graph_module.recompile()
        # New nodes get their shapes by tracing.
        return PassResult(super().call(graph_module).graph_module, True)

    def _rewrite(
        self, graph: Graph, rewrite: _Rewrite, phase_weights: Dict[Tuple, List[Node]]
    ) -> None:
        node, plan = rewrite.node, rewrite.plan
        key = (node.args[1], plan.stride, plan.padding)
        if key not in phase_weights:
            phase_weights[key] = self._phase_weights(graph, node.args[1], plan)

        meta = {key: value for key, value in node.meta.items() if key != "val"}
        aten = exir_ops.edge.aten

        def call(target, *args) -> Node:
            new = graph.call_function(target, args)
            new.meta = dict(meta)
            return new

        def concatenate(nodes: List[Node], dim: int) -> Node:
            """In as few nodes as their inputs allow, each value as near to the end as can be."""
            while len(nodes) > _MAX_CONCATENATED:
                groups = []
                surplus = len(nodes) - _MAX_CONCATENATED
                while surplus > 0 and len(nodes) > 1:
                    size = min(_MAX_CONCATENATED, surplus + 1)
                    group, nodes = nodes[:size], nodes[size:]
                    groups.append(call(aten.cat.default, group, dim))
                    surplus -= len(group) - 1
                nodes = groups + nodes
            return call(aten.cat.default, nodes, dim) if len(nodes) > 1 else nodes[0]

        with graph.inserting_before(node):
            one_dimensional = len(rewrite.shape) == 3
            x = node.args[0]
            if one_dimensional:
                x = call(aten.unsqueeze_copy.default, x, -1)
            phases = []
            for phase, weight in zip(plan.phases, phase_weights[key]):
                pads = _pads(phase)
                padded = (
                    call(aten.constant_pad_nd.default, x, pads, 0.0) if any(pads) else x
                )
                value = call(
                    _CONVOLUTION,
                    padded,
                    weight,
                    node.args[2],
                    [1, 1],
                    [0, 0],
                    [1, 1],
                    False,
                    [0, 0],
                    rewrite.channels,
                )
                if rewrite.activation is not None:
                    target, *bounds = rewrite.bounds
                    value = call(target, value, *bounds)
                phases.append(value)
            if one_dimensional:
                blocks = concatenate(phases, 3)
                result = call(aten.view_copy.default, blocks, list(rewrite.shape))
            elif len(phases) > 1:
                result = call(
                    exir_ops.edge.et_xnnpack.depth_to_space_2d.default,
                    concatenate(phases, 1),
                    plan.stride,
                )
            else:
                (result,) = phases

        for old in (rewrite.activation, node):
            if old is not None:
                old.replace_all_uses_with(result)
                graph.erase_node(old)

    def _phase_weights(
        self, graph: Graph, weight: Node, plan: PhasePlan
    ) -> List[Node]:
        """One placeholder per phase, of the kind and with the external tag of `weight`."""
        tensor = get_param_tensor(self.exported_program, weight).detach()
        geometry = f"s{plan.stride}_p{'x'.join(map(str, plan.padding))}"
        nodes = []
        for i, phase in enumerate(plan.phases):
            kernel = plan.kernel(tensor, phase)
            nodes.append(
                store_like(
                    self.exported_program,
                    weight,
                    f"{weight.name}_{geometry}_phase_{i}",
                    kernel.unsqueeze(-1) if kernel.dim() == 3 else kernel,
                )
            )
        return nodes


def plan_rewrite(node: Node, program: ExportedProgram) -> Union[_Rewrite, str]:
    """What the transposed convolution `node` of `program` becomes, or why it stays."""
    x, weight, _, stride, padding, dilation, _, output_padding, groups = node.args
    if stored_input(program, weight) is None:
        return f"its weight {weight} is not a constant parameter, buffer or tensor"
    image, kernel = x.meta["val"], weight.meta["val"]
    if kernel.dim() not in (3, 4):
        return f"its weight has {kernel.dim()} dimensions"
    in_channels, multiplier, *kernel_size = kernel.shape
    if groups != in_channels or multiplier != 1:
        return (
            f"it is not depthwise: {groups} groups, {in_channels} input and "
            f"{multiplier * groups} output channels"
        )
    if image.dtype not in DTYPES or kernel.dtype != image.dtype:
        return f"its input is {image.dtype} and its weight {kernel.dtype}"
    if FuseActivationPass.get_fused_activation(node) is not None:
        return "an activation is fused into it already"
    plan = plan_phases(kernel_size, stride, padding, output_padding, dilation)
    if isinstance(plan, str):
        return plan
    reason = why_not_faster(plan, image.shape)
    if reason is not None:
        return reason

    shape = tuple(
        size if isinstance(size, int) else -1 for size in node.meta["val"].shape
    )
    if len(shape) == 3:
        if shape.count(-1) > 1:
            return "batch and length are both dynamic, and a reshape infers only one"
    elif plan.stride > 1:
        target_runtime = options_of(program).target_runtime
        reason = decline_depth_to_space(image, target_runtime)
        if reason is not None:
            # It runs many times slower for what the caller can change.
            logger.warning(f"{node} stays a slow transposed convolution: {reason}")
            return reason
    activation = next(iter(node.users)) if len(node.users) == 1 else None
    bounds = _fusable_bounds(activation) if activation is not None else None
    return _Rewrite(
        node, plan, groups, shape, activation if bounds else None, bounds or ()
    )


def _fusable_bounds(activation: Node) -> Optional[Tuple]:
    """The operator and arguments by which FuseActivationPass fuses this clamp, if any."""
    if activation.target == _RELU:
        return (_RELU,)
    if activation.target not in (_HARDTANH, _CLAMP):
        return None
    default = (-1.0, 1.0) if activation.target == _HARDTANH else (None, None)
    given = activation.args[1:]
    low, high = (*given, *default[len(given) :])
    if low == 0 and high is None:
        return (_RELU,)
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low < high:
        return (_HARDTANH, low, high)
    return None


def _pads(phase: Sequence[AxisPhase]) -> List[int]:
    """As constant_pad_nd takes them for a 4-D tensor: the last axis first."""
    rows, columns = (*(axis.pad for axis in phase), (0, 0))[:2]
    return [*columns, *rows]
