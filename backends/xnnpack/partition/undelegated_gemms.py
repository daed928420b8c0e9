"""Names every convolution and linear that lowering leaves to the portable kernels, and why."""

import logging
import os
import re
from collections import Counter
from typing import Iterator, Mapping, Optional, Tuple

import torch
from executorch.backends.xnnpack.partition.fold_computed_weights import REFUSED
from executorch.exir.backend.canonical_partitioners.config_partitioner import (
    format_target_name,
    PartitionerConfig,
)
from executorch.exir.backend.no_partition_reasons import collect_reasons
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

logger = logging.getLogger(__name__)

_GEMMS = {
    exir_ops.edge.aten.addmm.default,
    exir_ops.edge.aten.bmm.default,
    exir_ops.edge.aten.convolution.default,
    exir_ops.edge.aten.linear.default,
    exir_ops.edge.aten.mm.default,
}

_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+)')
_TORCH = os.path.dirname(torch.__file__) + os.sep


def _gemms(
    module: GraphModule, caller: Optional[Node] = None
) -> Iterator[Tuple[Node, Optional[Node]]]:
    """Every GEMM, with the control-flow operator that it is inside of, if it is."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in _GEMMS:
            yield node, caller
    for _, submodule, node in get_control_flow_submodules(module):
        yield from _gemms(submodule, caller or node)


def _operator(node: Node) -> str:
    """The name of the operator in the user's source, e.g. linear for an mm."""
    _, function = node.meta.get("torch_fn", ("", ""))
    name = function.rsplit(".", 1)[-1]
    if name and not name.startswith("wrap_with_"):
        return name
    # What is in a region of torch.no_grad() or autocast carries the region's name.
    target = node.meta.get("original_aten") or node.target
    return format_target_name(target.__name__).split(".")[0]


def _place(node: Node) -> str:
    """Module path, file and line of a node, as far as its metadata has them."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((path for path, _ in reversed(stack.values())), "")
    frames = [
        f"{frame['file']}:{frame['line']}"
        for frame in _FRAME.finditer(node.meta.get("stack_trace") or "")
        if not frame["file"].startswith((_TORCH, "<"))
    ]
    return " at ".join([f"in {path or 'the top module'}", *frames[-1:]])


def _reason(
    node: Node,
    caller: Optional[Node],
    configs: Mapping[str, PartitionerConfig],
    program: ExportedProgram,
) -> str:
    if caller is not None:
        return "XNNPACK does not partition the branches and bodies of control flow"
    config = configs.get(format_target_name(node.target.__name__))
    if config is None:
        return "the partitioner has no config for it"
    with collect_reasons() as reasons:
        taken = config.check_constraints(node, program)
    if taken:
        return "no partition took it"
    given = list(dict.fromkeys(reasons.get(node, []))) or ["its config gives no reason"]
    return "; ".join(given)


def warn_undelegated_gemms(
    method: str,
    program: ExportedProgram,
    configs: Mapping[str, PartitionerConfig],
) -> None:
    """One WARNING for all convolutions and linears left in an edge program.

    Each line has the operator, its place in the user's source and the reasons that `configs`,
    by target name, give; for a weight that was not folded, that reason as well.
    """
    lines: Counter = Counter()
    for node, caller in _gemms(program.graph_module):
        reason = _reason(node, caller, configs, program)
        refused: Optional[str] = (node.meta.get("custom") or {}).get(REFUSED)
        if refused is not None:
            reason += f"; not folded, because {refused}"
        # The nodes of a branch or body say nothing of the source, the one that calls it does.
        lines[f"{_operator(node)} {_place(caller or node)}: {reason}"] += 1
    if lines:
        logger.warning(
            "XNNPACK leaves %d convolution(s) or linear(s) of '%s' to the portable kernels, "
            "which are much slower:\n%s",
            lines.total(),
            method,
            "\n".join(
                f"  {line}" + (f" ({count} times)" if count > 1 else "")
                for line, count in lines.items()
            ),
        )
