"""Collects the reasons that partitioner configs give for the nodes they decline."""

from contextlib import contextmanager
from contextvars import ContextVar
from typing import Dict, Iterator, List, Optional

from torch.fx import Node

Reasons = Dict[Node, List[str]]

_collected: ContextVar[Optional[Reasons]] = ContextVar("collected", default=None)


def record_reason(node: Node, reason: str) -> None:
    """Called by `WhyNoPartition` for every reason; kept only while somebody collects."""
    reasons = _collected.get()
    if reasons is not None:
        reasons.setdefault(node, []).append(reason)


@contextmanager
def collect_reasons() -> Iterator[Reasons]:
    """The reasons given inside the scope, by node, in the order they were given."""
    token = _collected.set({})
    try:
        yield _collected.get()
    finally:
        _collected.reset(token)
