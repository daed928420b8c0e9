"""Which values of an ATen program are constants, why the others are not, and what they are."""

from typing import Callable, Dict, Hashable, Iterable, List, Optional

import operator

import torch
from executorch.exir.passes.constant_prop_pass import get_constant_placeholder_dict
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

aten = torch.ops.aten

# Operators that read only shape, dtype and device of this argument.
_SHAPE_ONLY = {
    packet: 0
    for packet in (
        aten.copy,
        aten.empty_like,
        aten.full_like,
        aten.new_full,
        aten.new_ones,
        aten.new_zeros,
        aten.ones_like,
        aten.zeros_like,
    )
}

# Of these, the ones that take their shape from elsewhere.
_SHAPE_GIVEN = {aten.new_full, aten.new_ones, aten.new_zeros}

# Uninitialized memory is not impure to torch.fx, but two runs differ.
_UNINITIALIZED = {
    aten.empty,
    aten.empty_like,
    aten.empty_permuted,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
}

# Values of one repeated number: cheaper as an operator than as a stored tensor.
_FILLS = {
    aten.fill,
    aten.full,
    aten.full_like,
    aten.new_full,
    aten.new_ones,
    aten.new_zeros,
    aten.ones,
    aten.ones_like,
    aten.scalar_tensor,
    aten.zero,
    aten.zeros,
    aten.zeros_like,
}

# Backends match these patterns, so a quantized value is never computed ahead of time.
_QUANTIZATION_NAMESPACES = {"quantized_decomposed", "torchao"}


def _packet(node: Node) -> object:
    return getattr(node.target, "overloadpacket", node.target)


def is_fill(node: Node) -> bool:
    return node.op == "call_function" and _packet(node) in _FILLS


def is_quantization_primitive(node: Node) -> bool:
    return (
        node.op == "call_function"
        and getattr(node.target, "namespace", None) in _QUANTIZATION_NAMESPACES
    )


def reads(node: Node) -> List[Node]:
    """Inputs whose elements `node` depends on."""
    packet = _packet(node)
    index = _SHAPE_ONLY.get(packet) if node.op == "call_function" else None
    if index is None or index >= len(node.args):
        return list(node.all_input_nodes)
    if packet not in _SHAPE_GIVEN and not _has_static_shape(node.args[index]):
        return list(node.all_input_nodes)
    rest = [arg for i, arg in enumerate(node.args) if i != index]
    leaves = pytree.tree_leaves((rest, dict(node.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, Node)]


def _has_static_shape(arg: object) -> bool:
    value = arg.meta.get("val") if isinstance(arg, Node) else None
    return isinstance(value, torch.Tensor) and all(
        isinstance(size, int) for size in value.shape
    )


def nbytes(node: Node) -> int:
    value = node.meta["val"]
    return value.numel() * value.element_size()


class ConstantValues:
    """Constness of every value of a functionalised ATen program.

    A value is constant if it is a parameter, a lifted constant or a buffer that nobody writes,
    or a deterministic operator of constants. `writer(name, tensor)` names the method that
    writes a piece of state, or returns None.
    """

    def __init__(
        self,
        program: ExportedProgram,
        writer: Callable[[str, torch.Tensor], Optional[str]],
    ):
        self._graph = program.graph
        self._tensors: Dict[Node, torch.Tensor] = {}
        self._reasons: Dict[Node, Optional[str]] = {}
        self._keys: Dict[Node, Hashable] = {}
        self._twins: Dict[Hashable, Node] = {}
        constants = get_constant_placeholder_dict(program)
        names = {
            spec.arg.name: spec.target
            for spec in program.graph_signature.input_specs
            if spec.target is not None
        }
        for node in self._graph.nodes:
            if node.op == "placeholder":
                name = names.get(node.name)
                reason = self._placeholder_reason(node, name, constants.get(node), writer)
            else:
                reason = self._operator_reason(node)
            self._reasons[node] = reason
            if reason is None:
                key = self._key(node)
                self._keys[node] = key
                self._twins.setdefault(key, node)

    def _placeholder_reason(self, node, name, tensor, writer) -> Optional[str]:
        if name is None:
            return f"it depends on the input '{node.name}'"
        # A buffer that this program writes has no entry in the dictionary of constants.
        if tensor is None:
            return f"it depends on '{name}', which the program writes"
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return f"it depends on '{name}', which is a {type(tensor).__name__}"
        if tensor.layout is not torch.strided:
            return f"it depends on '{name}', whose layout is {tensor.layout}"
        if (method := writer(name, tensor)) is not None:
            return f"it depends on '{name}', which the method '{method}' writes"
        self._tensors[node] = tensor
        return None

    def _operator_reason(self, node: Node) -> Optional[str]:
        if node.op != "call_function":
            return f"it depends on '{node.name}', which is not an operator"
        for source in reads(node):
            if self._reasons[source] is not None:
                return self._reasons[source]
        if node.target is operator.getitem:
            return None
        if not isinstance(node.target, torch._ops.OpOverload):
            return f"it depends on {node.target}, which is not an operator with a schema"
        if is_quantization_primitive(node):
            return f"{node.target} is a quantization primitive"
        if node.is_impure():
            return f"{node.target} is random or has side effects"
        if _packet(node) in _UNINITIALIZED:
            return f"{node.target} is uninitialized memory"
        return None

    def _key(self, node: Node) -> Hashable:
        if node.op == "placeholder":
            tensor = self._tensors[node]
            # Tied parameters are one tensor under two names.
            return (
                tensor.untyped_storage()._cdata,
                tensor.storage_offset(),
                tensor.shape,
                tensor.stride(),
                tensor.dtype,
            )
        leaves, spec = pytree.tree_flatten((node.args, dict(node.kwargs)))
        return (
            node.target,
            str(spec),
            tuple(
                self._twins[self._keys[leaf]]
                if isinstance(leaf, Node) and leaf in self._keys
                # 1, 1.0 and True are equal, and give values of different dtypes.
                else leaf if isinstance(leaf, Node) else (type(leaf), str(leaf))
                for leaf in leaves
            ),
        )

    def why_not(self, node: Node) -> Optional[str]:
        """None for a constant, otherwise what makes the value differ between runs."""
        return self._reasons[node]

    def is_stored(self, node: Node) -> bool:
        """Whether the value is a constant of the program already."""
        return node in self._tensors

    def twin(self, node: Node) -> Node:
        """The first constant of the graph that has the same value by construction."""
        return self._twins[self._keys[node]]

    def chain(self, nodes: Iterable[Node]) -> List[Node]:
        """The constants that `nodes` are computed from, and themselves, in graph order."""
        found = set()
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack.extend(reads(node))
        return sorted(found)

    def evaluate(self, node: Node) -> torch.Tensor:
        """The value of a constant: contiguous, without gradient, in a storage of its own."""
        chain = self.chain([node])
        graph = torch.fx.Graph()
        copies: Dict[Node, Node] = {}
        stored = [link for link in chain if self.is_stored(link)]
        for link in stored:
            copies[link] = graph.placeholder(link.name)

        def copy(arg: Node) -> object:
            return copies[arg] if arg in copies else _stand_in(graph, arg)

        for link in chain:
            if link not in copies:
                copies[link] = graph.node_copy(link, copy)
        graph.output(copies[node])
        module = torch.fx.GraphModule({}, graph)
        with torch.no_grad():
            # The interpreter drops each intermediate value after its last use.
            value = torch.fx.Interpreter(module).run(
                *(self._tensors[link].detach() for link in stored)
            )
        owned = value.untyped_storage().nbytes() == value.numel() * value.element_size()
        shared = {self._tensors[link].untyped_storage()._cdata for link in stored}
        if not owned or value.untyped_storage()._cdata in shared:
            return value.clone(memory_format=torch.contiguous_format)
        return value.contiguous()


def _stand_in(graph: torch.fx.Graph, node: Node) -> Node:
    """An operand of which only shape, dtype and device are read."""
    value = node.meta["val"]
    return graph.call_function(
        torch.empty,
        (tuple(value.shape) if _has_static_shape(node) else (),),
        {"dtype": value.dtype, "device": value.device},
    )
