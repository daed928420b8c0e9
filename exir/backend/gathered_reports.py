"""Says once what many parts of a lowering call have to say."""

from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Callable, Dict, Iterator, List, Optional

Report = Callable[[List[Any]], None]

_gathered: ContextVar[Optional[Dict[Report, List[Any]]]] = ContextVar(
    "gathered", default=None
)


def report(function: Report, items: List[Any]) -> None:
    """Calls `function` with `items`, and with those of other calls in the same scope, at its end.

    Outside of a scope, and without items, there is nothing to wait for.
    """
    gathered = _gathered.get()
    if gathered is not None:
        gathered.setdefault(function, []).extend(items)
    elif items:
        function(items)


@contextmanager
def gather_reports() -> Iterator[None]:
    """A scope, which may also decorate a function; the outermost one counts.

    What was gathered is said as well if the scope ends with an exception: it may be the cause.
    """
    if _gathered.get() is not None:
        yield
        return
    gathered: Dict[Report, List[Any]] = {}
    token = _gathered.set(gathered)
    try:
        yield
    finally:
        _gathered.reset(token)
        for function, items in gathered.items():
            if items:
                function(items)
