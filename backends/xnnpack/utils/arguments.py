"""Checks of the arguments that XnnpackPartitioner is given."""

import difflib
import inspect
import logging
from numbers import Real
from typing import Any, Iterable

logger = logging.getLogger(__name__)


def checked_fold(fold_computed_weights: Any) -> bool:
    """`fold_computed_weights`, or a TypeError if it is no bool."""
    if not isinstance(fold_computed_weights, bool):
        raise TypeError(
            f"fold_computed_weights is True or False, got {fold_computed_weights!r}"
        )
    return fold_computed_weights


def checked_growth(max_fold_growth: Any) -> float:
    """`max_fold_growth`, or a TypeError if it is no number, a ValueError if it is
    negative or not a number that compares."""
    reason = f"max_fold_growth is a number from 0 to math.inf, got {max_fold_growth!r}"
    if isinstance(max_fold_growth, bool) or not isinstance(max_fold_growth, Real):
        raise TypeError(reason)
    if not max_fold_growth >= 0:
        raise ValueError(reason)
    return max_fold_growth


def warn_misspelt(partitioner: type, others: Iterable[str]) -> None:
    """Warns of each of `others`, keyword arguments that no parameter of `partitioner`
    took, whose name is close to a parameter's.

    They cannot be refused: partitioner configs may take any keyword, and callers in
    ExecuTorch pass some that nothing reads.
    """
    known = [
        parameter.name
        for parameter in inspect.signature(partitioner.__init__).parameters.values()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    for name in others:
        for close in difflib.get_close_matches(name, known, n=1, cutoff=0.7):
            logger.warning(
                "%s has no argument %r and ignores it; did you mean %r?",
                partitioner.__name__,
                name,
                close,
            )
