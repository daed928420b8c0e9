"""Which runtime will run the file: the one of this patch set, or a released one."""

import logging
import os
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Iterator, List, Optional

from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import XNNGraph

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

_noted: ContextVar[Optional[List[str]]] = ContextVar("noted", default=None)


def note_patched_nodes(graph: XNNGraph) -> None:
    """Records the nodes of a serialized graph that released runtimes lack."""
    kinds = (type(node.xnode_union).__name__ for node in graph.xnodes)
    found = [kind for kind in kinds if kind in PATCHED_NODES]
    noted = _noted.get()
    if noted is None:
        _warn(found)
    else:
        noted.extend(found)


@contextmanager
def one_warning_per_program() -> Iterator[None]:
    """Gathers what is noted for all partitions and methods into one warning."""
    found: List[str] = []
    token = _noted.set(found)
    try:
        yield
    finally:
        _noted.reset(token)
    _warn(found)


def _warn(found: List[str]) -> None:
    if found:
        logger.warning(
            f"This program holds {len(found)} XNNPACK node(s) that released runtimes refuse "
            f"({', '.join(sorted(set(found)))}); run it on a runtime built with this patch "
            f"set, or lower with XnnpackPartitioner(target_runtime='{STOCK}') or "
            f"{TARGET_RUNTIME_VARIABLE}={STOCK} for any 1.5 runtime."
        )
