"""Fold the computed weights of convolutions and linears before partitioning.

The GEMM configs take a weight or bias only if it is a static parameter. One that is computed from
constants (weight_norm, spectral_norm, any parametrization, a LoRA merge) becomes one here:

    Before: conv1d(x, _weight_norm(v, g), bias)
    After:  conv1d(x, weight, bias)                # `weight` is a new lifted constant

A convolution or linear is folded if
 1. the partitioner has a config for it that takes its rank and dtype,
 2. every weight and bias of it is a constant, or computed from constants by deterministic
    operators, none of which is a quantization primitive,
 3. the program's constants do not grow by more than `max_growth` times the bytes of the
    constants that the weight is computed from, all folds that read those taken together.
    Beyond that, all folds of a program together may add `_FREE_GROWTH`.

Folding is exact: the operators are evaluated once, as they are.
"""

import functools
import hashlib
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Callable, Container, Dict, Iterable, List, Optional, Set, Tuple

import torch
from executorch.backends.transforms.utils import delete_constant_placeholder
from executorch.backends.xnnpack._passes.convert_to_linear import ConvertToLinearPass
from executorch.exir.passes.constant_prop_pass import get_fake_mode
from executorch.exir.passes.constant_values import (
    ConstantValues,
    is_fill,
    is_quantization_primitive,
    nbytes,
    reads,
)
from executorch.exir.program._written_state import state_written_by_methods
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)
from torch.fx import Node
from torch.fx.passes.utils.source_matcher_utils import get_source_partitions
from torch.utils import _pytree as pytree

aten = torch.ops.aten

# Growth that is not worth a question; also what a weight of no stored constant is measured by.
_FREE_GROWTH = 64 * 1024

# `node.meta["custom"]` survives decomposition, so the reason is still there when the convolution
# or linear is found on the portable kernels at the end.
REFUSED = "xnnpack_fold_refused"


@dataclass(frozen=True)
class _Gemm:
    """Operands by schema name: `static` ones have to be constants, `sides` may be.

    A constant side is folded where that makes nothing larger, since it unlocks no delegation;
    only the right side of a matmul with a matrix becomes the weight of an mm.
    `configs` are the target names of the partitioner configs that take the operator or what it
    decomposes to.
    """

    configs: Tuple[str, ...]
    static: Tuple[str, ...] = ()
    sides: Tuple[str, ...] = ()
    max_weight_rank: Optional[int] = None


_LINEAR_CONFIGS = ("linear.default", "addmm.default", "mm.default")
_CONVOLUTION = _Gemm(("convolution.default",), ("weight", "bias"), max_weight_rank=4)
_RECURRENT = _Gemm(_LINEAR_CONFIGS, ("params",))

_GEMMS = {
    aten.linear: _Gemm(_LINEAR_CONFIGS, ("weight", "bias")),
    aten.addmm: _Gemm(("addmm.default",), ("mat2", "self")),
    aten.mm: _Gemm(("mm.default",), ("mat2",)),
    aten.matmul: _Gemm(("mm.default", "bmm.default"), sides=("self", "other")),
    aten.linalg_matmul: _Gemm(("mm.default", "bmm.default"), sides=("self", "other")),
    aten.bmm: _Gemm(("bmm.default",), sides=("self", "mat2")),
    aten.baddbmm: _Gemm(("bmm.default",), sides=("batch1", "batch2")),
    aten.addbmm: _Gemm(("bmm.default",), sides=("batch1", "batch2")),
    aten.conv1d: _CONVOLUTION,
    aten.conv2d: _CONVOLUTION,
    aten.conv3d: _CONVOLUTION,
    aten.conv_transpose1d: _CONVOLUTION,
    aten.conv_transpose2d: _CONVOLUTION,
    aten.conv_transpose3d: _CONVOLUTION,
    aten.convolution: _CONVOLUTION,
    aten.lstm: _RECURRENT,
    aten.gru: _RECURRENT,
    aten.rnn_relu: _RECURRENT,
    aten.rnn_tanh: _RECURRENT,
}

# Operators of which export sees one node, and that are made of the operators above.
_MADE_OF_GEMMS = {
    aten.chain_matmul.default,
    aten.einsum.default,
    aten.gru_cell.default,
    aten.inner.default,
    aten.linalg_multi_dot.default,
    aten.lstm_cell.default,
    aten.rnn_relu_cell.default,
    aten.rnn_tanh_cell.default,
    aten.tensordot.default,
}

# Regions of torch.no_grad() and autocast; functionalising inlines them.
_REGIONS = {
    torch.ops.higher_order.wrap_with_autocast,
    torch.ops.higher_order.wrap_with_set_grad_enabled,
}

# ConvertToLinearPass looks through these at the weight of a decomposed linear.
_TRANSPOSES = {aten.permute.default, aten.t.default, aten.transpose.int}

_TRAINING = {
    OutputKind.LOSS_OUTPUT,
    OutputKind.GRADIENT_TO_PARAMETER,
    OutputKind.GRADIENT_TO_USER_INPUT,
}


@dataclass
class FoldPlan:
    """`folds` maps each constant to fold to the nodes that compute it; `dead` is what nothing
    needs afterwards; `refused` has the reason for each GEMM with a computed weight that stays;
    `values` has the folded tensors."""

    folds: Dict[Node, List[Node]] = field(default_factory=dict)
    values: Dict[Node, torch.Tensor] = field(default_factory=dict)
    dead: Set[Node] = field(default_factory=set)
    refused: Dict[Node, str] = field(default_factory=dict)


def _gemm(node: Node) -> Optional[_Gemm]:
    if node.op != "call_function":
        return None
    return _GEMMS.get(getattr(node.target, "overloadpacket", None))


def _argument(node: Node, name: str) -> object:
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.name == name and index < len(node.args):
            return node.args[index]
    return node.kwargs.get(name)


def _computed(node: Node, names: Iterable[str]) -> List[Tuple[str, Node]]:
    """The named operands that an operator computes, with their names.

    A dequantize stays in front of its GEMM; what counts is what it dequantizes.
    """
    computed = []
    for name in names:
        for operand in pytree.tree_leaves(_argument(node, name)):
            sources = [operand]
            if isinstance(operand, Node) and is_quantization_primitive(operand):
                sources = operand.all_input_nodes
            computed += [
                (name, source)
                for source in sources
                if isinstance(source, Node) and source.op == "call_function"
            ]
    return computed


def _readers(node: Node) -> List[Node]:
    """The users that read the folded constant in place of the computed `node`.

    A program does not return its constants, and a constant that a delegate owns cannot be an
    operand of control flow. A fill is cheaper as an operator, so of a fill only weights and
    biases are stored.
    """
    return [
        user
        for user in node.users
        if user.op == "call_function"
        and not isinstance(user.target, torch._ops.HigherOrderOperator)
        and (not is_fill(node) or _gemm(user) or is_quantization_primitive(user))
    ]


class _Planner:
    def __init__(
        self,
        program: ExportedProgram,
        values: ConstantValues,
        configs: Container[str],
        dtypes: Container[torch.dtype],
        max_growth: float,
    ):
        self._program = program
        self._values = values
        self._configs = configs
        self._dtypes = dtypes
        self._max_growth = max_growth
        self._twins: Dict[Node, List[Node]] = defaultdict(list)
        self._grown: Dict[Optional[Node], float] = defaultdict(float)
        self._free: float = _FREE_GROWTH
        for node in program.graph.nodes:
            if node.op != "output" and values.why_not(node) is None:
                self._twins[values.twin(node)].append(node)

    def plan(self) -> FoldPlan:
        plan = FoldPlan()
        for node in self._program.graph.nodes:
            gemm = _gemm(node)
            if gemm is None or self._is_part_of_a_constant(plan, node):
                continue
            static = [
                (name, weight)
                for name, weight in self._untransposed(node, _computed(node, gemm.static))
                if weight.op == "call_function"
            ]
            sides = [
                (name, side)
                for name, side in _computed(node, gemm.sides)
                if self._values.why_not(side) is None
            ]
            weights = [operand for _, operand in static]
            weights += [side for name, side in sides if _is_mm_weight(name, side)]
            if weights:
                reason = self._why_not_taken(node, gemm)
                reason = reason or self._why_not_constant(static)
                reason = reason or self._add(plan, weights, self._max_growth)
                if reason is not None:
                    plan.refused[node] = reason
            elif sides and self._why_not_taken(node, gemm) is None:
                self._add(plan, [side for _, side in sides], None)
        return plan

    def _is_part_of_a_constant(self, plan: FoldPlan, node: Node) -> bool:
        """A GEMM of constants is part of a computed weight, or a constant of its own."""
        if self._values.why_not(node) is not None:
            return False
        for user in node.users:
            if self._values.why_not(user) is not None and _gemm(user) is None:
                is_tensor = isinstance(node.meta["val"], torch.Tensor)
                return is_tensor and self._add(plan, [node], None) is None
        return True

    def _untransposed(
        self, node: Node, operands: List[Tuple[str, Node]]
    ) -> List[Tuple[str, Node]]:
        """For a decomposed linear, the weight as the linear had it.

        ConvertToLinearPass takes the first constant on the way for that.
        """
        if node not in self._linears:
            return operands
        return [
            (name, value.args[0] if name == "mat2" and value.target in _TRANSPOSES else value)
            for name, value in operands
        ]

    @functools.cached_property
    def _linears(self) -> Set[Node]:
        """mm and addmm nodes that ConvertToLinearPass takes for parts of a linear."""
        partitions = get_source_partitions(
            self._program.graph, ConvertToLinearPass.linear_modules
        )
        return {
            node
            for found in partitions.values()
            for partition in found
            for node in partition.nodes
            if node.target in (aten.addmm.default, aten.mm.default)
        }

    def _why_not_taken(self, node: Node, gemm: _Gemm) -> Optional[str]:
        if not any(config in self._configs for config in gemm.configs):
            return "the partitioner has no config for it"
        if gemm.max_weight_rank is not None:
            weight = _argument(node, "weight").meta["val"]
            if weight.dim() > gemm.max_weight_rank:
                return f"XNNPACK has no convolution in {weight.dim() - 2} dimensions"
        if node.target in (aten.addmm.default, aten.linear.default):
            # What XNNPACK's fully connected node cannot say.
            linear = node.target is aten.linear.default
            if linear and _argument(node, "weight").meta["val"].dim() != 2:
                return "its weight is not a matrix"
            bias = _argument(node, "bias" if linear else "self")
            rows = node.meta["val"].shape[-1:] if bias is None else bias.meta["val"].shape
            if rows[-1:] != node.meta["val"].shape[-1:] or any(n != 1 for n in rows[:-1]):
                return "its bias is not one value per output channel"
            if not linear and any(
                _argument(node, name) not in (None, 1) for name in ("alpha", "beta")
            ):
                return "it scales its operands"
        value = node.meta["val"]
        dtype = (value[0] if isinstance(value, (tuple, list)) else value).dtype
        if dtype not in self._dtypes:
            return f"the partitioner does not take {dtype}"
        return None

    def _why_not_constant(self, operands: List[Tuple[str, Node]]) -> Optional[str]:
        for name, operand in operands:
            reason = self._values.why_not(operand)
            if reason is not None:
                return f"the {_role(name)} is not constant: {reason}"
        return None

    def _add(
        self, plan: FoldPlan, operands: List[Node], max_growth: Optional[float]
    ) -> Optional[str]:
        """Adds the values of `operands` to the plan, or returns why they cannot be folded.

        Without `max_growth`, the constants of the program must not grow at all.
        """
        folds = {self._values.twin(operand) for operand in operands} - plan.folds.keys()
        if not folds:
            return None
        replaced = {twin for fold in folds for twin in self._twins[fold]}
        chain = self._values.chain(replaced)
        dead = self._dead(chain, replaced.union(*plan.folds.values()), plan.dead)
        sources = {self._values.twin(n) for n in chain if self._values.is_stored(n)}
        freed = sum(nbytes(n) for n in sources if dead.issuperset(self._twins[n]))
        sizes = {n: nbytes(n) for n in sources if nbytes(n)} or {None: _FREE_GROWTH}
        growth = sum(nbytes(n) for n in folds) - freed
        if max_growth is None and growth > 0:
            return "it would make the program larger"
        # What several folds add to one source counts together.
        grown = growth + sum(self._grown[n] for n in sizes)
        limit = math.inf if max_growth is None else max_growth * sum(sizes.values())
        over = max(0.0, grown - limit)
        if over > self._free:
            enough = math.ceil(10 * grown / sum(sizes.values())) / 10
            return (
                f"folding the weight would add {growth / 1024:,.0f} KiB to the constants of the "
                f"program, more than XnnpackPartitioner(max_fold_growth={max_growth:g}) "
                f"allows; {enough:g} is enough"
            )
        try:
            values = {fold: self._values.evaluate(fold) for fold in folds}
        except Exception as error:  # e.g. a custom operator without a kernel for this machine
            return f"computing the weight failed: {str(error).splitlines()[0]}"
        self._free -= over
        for source, size in sizes.items():
            share = size / sum(sizes.values())
            self._grown[source] += max(0.0, growth - over) * share
        plan.values.update(values)
        plan.folds.update((fold, self._twins[fold]) for fold in folds)
        plan.dead |= dead
        return None

    def _dead(
        self, chain: List[Node], replaced: Set[Node], dead: Set[Node]
    ) -> Set[Node]:
        """`dead`, and what of `chain` nobody uses once the `replaced` nodes are constants."""
        dead = set(dead)
        for node in reversed(chain):
            users = set(node.users) - dead
            if node in replaced:
                users.difference_update(_readers(node))
            if not users:
                dead.add(node)
        return dead


def _is_mm_weight(name: str, side: Node) -> bool:
    return name == "other" and side.meta["val"].dim() == 2


def _role(name: str) -> str:
    return {"bias": "bias", "self": "bias"}.get(name, "weight")


def _may_fold(program: ExportedProgram) -> bool:
    """Whether a GEMM has a weight or bias that is computed, and not from the inputs.

    Cheap, and may say yes too often: `program` is not functionalised yet.
    """
    inputs = set(program.graph_signature.user_inputs)
    from_input: Set[Node] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            dynamic = node.name in inputs
        else:
            dynamic = any(source in from_input for source in reads(node))
        if dynamic:
            from_input.add(node)
        if node.target in _MADE_OF_GEMMS:
            if any(source not in from_input for source in node.all_input_nodes):
                return True
        elif node.target in _REGIONS and _has_gemm(program.graph_module, node):
            return True
        gemm = _gemm(node)
        if gemm is None:
            continue
        operands = _computed(node, gemm.static + gemm.sides)
        if any(operand not in from_input for _, operand in operands):
            return True
    return False


def _has_gemm(module: torch.fx.GraphModule, region: Node) -> bool:
    for operand in region.all_input_nodes:
        if operand.op == "get_attr":
            inner = getattr(module, operand.target)
            for node in inner.graph.nodes:
                if (
                    _gemm(node) is not None
                    or node.target in _MADE_OF_GEMMS
                    or (node.target in _REGIONS and _has_gemm(inner, node))
                ):
                    return True
    return False


def _name(source: Optional[Node], tensor: torch.Tensor) -> str:
    """After the largest constant it is computed from, and what is in it.

    Constants of several methods meet in one file by name, where equal names mean equal values.
    """
    content = tensor.reshape(-1).view(torch.uint8).numpy()
    digest = hashlib.sha256(content).hexdigest()[:16]
    kind = "x".join(str(size) for size in tensor.shape) + f"_{tensor.dtype}".replace("torch.", "")
    return f"{source.name if source else 'fill'}_folded_{kind}_{digest}"


def _lift(program: ExportedProgram, name: str, tensor: torch.Tensor) -> Node:
    """The placeholder of a lifted constant, added unless it is there.

    It is named as export names it, since retracing keeps metadata by name.
    """
    graph, signature = program.graph, program.graph_signature
    inputs = set(signature.user_inputs)
    placeholders = {node.name: node for node in graph.find_nodes(op="placeholder")}
    if name in program.constants:
        return placeholders[f"c_{name}"]
    first = next(n for n in graph.nodes if n.op != "placeholder" or n.name in inputs)
    index = next(i for i, node in enumerate(graph.nodes) if node is first)
    fake = get_fake_mode(program).from_tensor(tensor, static_shapes=True)
    with graph.inserting_before(first):
        placeholder = graph.placeholder(f"c_{name}")
    placeholder.meta["val"] = fake
    program.constants[name] = tensor
    argument = TensorArgument(placeholder.name)
    spec = InputSpec(InputKind.CONSTANT_TENSOR, argument, name)
    signature.input_specs.insert(index, spec)
    return placeholder


def _apply(program: ExportedProgram, plan: FoldPlan, values: ConstantValues) -> None:
    # One folded constant may be computed from another, so all are traced back before any is replaced.
    all_sources = {
        fold: sorted(filter(values.is_stored, values.chain([fold])), key=nbytes)
        for fold in plan.folds
    }
    for fold, nodes in plan.folds.items():
        sources = all_sources[fold]
        tensor = plan.values[fold]
        name = _name(sources[-1] if sources else None, tensor)
        placeholder = _lift(program, name, tensor)
        # Where sources disagree, the largest decides, e.g. on the external file it is stored in.
        placeholder.meta["custom"] = {
            key: value
            for source in sources
            for key, value in source.meta.get("custom", {}).items()
        }
        for node in nodes:
            for user in _readers(node):
                user.replace_input_with(node, placeholder)
    for node in sorted(plan.dead, reverse=True):
        if values.is_stored(node):
            delete_constant_placeholder(program, node)
        else:
            program.graph.erase_node(node)


def _decompositions(program: ExportedProgram) -> Dict[torch._ops.OpOverload, Callable]:
    """What takes apart the operators that are made of GEMMs, one of which may hide another."""
    modules = program.graph_module.modules()
    graphs = [module.graph for module in modules if isinstance(module, torch.fx.GraphModule)]
    if not any(node.target in _MADE_OF_GEMMS for graph in graphs for node in graph.nodes):
        # Making the table takes longer than lowering a small layer.
        return {}
    table = torch.export.default_decompositions()
    return {op: table[op] for op in _MADE_OF_GEMMS}


def fold_computed_weights(
    program: ExportedProgram,
    configs: Container[str],
    dtypes: Container[torch.dtype],
    max_growth: float,
) -> ExportedProgram:
    """Stores the computed weights and biases of convolutions and linears as constants.

    Args:
        program: an ATen program as exported, functionalised or not. It is not changed.
        configs: target names of the partitioner configs in use.
        dtypes: dtypes that these configs take.
        max_growth: how many times the bytes of the constants that a weight is computed from
            its fold may add to the program; 64 KiB more are free, for all folds together.

    Returns:
        `program` itself if nothing in it is computed from constants, otherwise a program of its
        own that shares the tensors that are not folded.
    """
    if any(s.kind in _TRAINING for s in program.graph_signature.output_specs):
        return program
    if not _may_fold(program):
        return program
    functional = program.run_decompositions(_decompositions(program))
    # The new program has a state dict of its own, but shares the dict of constants.
    functional._constants = dict(functional.constants)
    written = state_written_by_methods(program, functional)
    values = ConstantValues(functional, written.writer)
    plan = _Planner(functional, values, configs, dtypes, max_growth).plan()
    if not plan.folds and not plan.refused:
        return program
    for node, reason in plan.refused.items():
        node.meta["custom"] = {**node.meta.get("custom", {}), REFUSED: reason}
    _apply(functional, plan, values)
    functional.graph.lint()
    functional.graph_module.recompile()
    functional.validate()
    return functional


def fold_for(partitioner, program: ExportedProgram) -> ExportedProgram:
    """`fold_computed_weights` with the configs and options of an `XnnpackPartitioner`."""
    if not partitioner.fold_computed_weights:
        return program
    configs = partitioner.target_partitioner_configs
    dtypes = {torch.float32, torch.float16}
    if any(config.enable_bf16 for config in configs.values()):
        dtypes.add(torch.bfloat16)
    # A linear that takes its weight as an input is delegated whatever its weight is.
    taken = {
        target
        for target, config in configs.items()
        if target not in _LINEAR_CONFIGS
        or not config.force_non_static_weights_for_f32_linear
    }
    return fold_computed_weights(program, taken, dtypes, partitioner.max_fold_growth)
