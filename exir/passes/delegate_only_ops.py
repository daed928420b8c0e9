"""Operators that only a delegate can run: left outside, they end in a clear error."""

import torch

# Namespace of the operators, and what to do about one that no delegate took.
DELEGATE_ONLY_NAMESPACES = {
    "et_xnnpack": (
        "lower with to_edge_transform_and_lower(..., partitioner=[XnnpackPartitioner()]); "
        "if that was done, the partitioner's warning tells why it declined the node"
    ),
}


def refuse_delegate_only_ops(graph_module: torch.fx.GraphModule) -> None:
    """Checks, before out variants are looked up, that no such operator is left.

    Raises:
        RuntimeError: names the operator, the node and the remedy.
    """
    for node in graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        remedy = DELEGATE_ONLY_NAMESPACES.get(getattr(node.target, "namespace", None))
        if remedy is not None:
            raise RuntimeError(
                f"{node.target._schema.name} (node {node}) runs only inside a delegate "
                f"and is left outside: {remedy}"
            )
