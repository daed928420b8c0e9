"""Which runtime will run the file: the one of this patch set, or a released one."""

import logging
import os
from pathlib import Path
from typing import List, Optional

from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import XNNGraph
from executorch.exir.backend.gathered_reports import report

logger = logging.getLogger(__name__)

# A runtime that has every node of the patch set.
PATCHED = "patched"
# Any released 1.5 runtime: only nodes it knows are written.
STOCK = "stock"
TARGET_RUNTIMES = (PATCHED, STOCK)

TARGET_RUNTIME_VARIABLE = "EXECUTORCH_XNNPACK_TARGET_RUNTIME"

_NATIVE_LIBRARY = "libexecutorch_backend_xnnpack_base.so"


def native_library_installed() -> bool:
    """Whether the installed executorch carries the runtime of this patch set."""
    package = Path(__file__).parents[3]
    return (package / "lib" / _NATIVE_LIBRARY).exists()


def resolve_target_runtime(requested: Optional[str] = None) -> str:
    """The target: `requested`, else the environment's, else what is installed.

    Raises:
        ValueError: the value is not one of TARGET_RUNTIMES.
    """
    source, target = "target_runtime", requested
    if target is None:
        source = TARGET_RUNTIME_VARIABLE
        target = os.environ.get(TARGET_RUNTIME_VARIABLE) or None
    if target is None:
        return PATCHED if native_library_installed() else STOCK
    if target not in TARGET_RUNTIMES:
        raise ValueError(
            f"{source} must be one of {', '.join(TARGET_RUNTIMES)}, got {target!r}"
        )
    return target


# Serialized nodes that released runtimes refuse with NotImplemented.
PATCHED_NODES = frozenset({"XNNDepthToSpace2d"})


def note_patched_nodes(graph: XNNGraph) -> None:
    """One warning per lowering call for the nodes of its graphs that released runtimes lack."""
    kinds = (type(node.xnode_union).__name__ for node in graph.xnodes)
    report(_warn, [kind for kind in kinds if kind in PATCHED_NODES])


def _warn(kinds: List[str]) -> None:
    logger.warning(
        f"This program holds {len(kinds)} XNNPACK node(s) that released runtimes refuse "
        f"({', '.join(sorted(set(kinds)))}); run it on a runtime built with this patch "
        f"set, or lower with XnnpackPartitioner(target_runtime='{STOCK}') or "
        f"{TARGET_RUNTIME_VARIABLE}={STOCK} for any 1.5 runtime."
    )
