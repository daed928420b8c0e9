"""Interleaved timing: the machine is shared and noisy, so only ratios from one run count."""

import statistics
import time
from typing import Callable, Dict, List

from rich.progress import track

Seconds = List[float]


def interleaved(
    contenders: Dict[str, Callable[[], object]], rounds: int, label: str
) -> Dict[str, Seconds]:
    """Runs every contender once per round; a first round warms up and does not count.

    Returns the seconds of each counted round, by contender.
    """
    seconds: Dict[str, Seconds] = {name: [] for name in contenders}
    steps = [(turn, name) for turn in range(rounds + 1) for name in contenders]
    for turn, name in track(steps, description=label):
        start = time.perf_counter()
        contenders[name]()
        if turn > 0:
            seconds[name].append(time.perf_counter() - start)
    return seconds


def milliseconds(seconds: Seconds) -> str:
    """Median and spread, e.g. `144.1 (143.0 to 151.2)`."""
    low, middle, high = (1e3 * f(seconds) for f in (min, statistics.median, max))
    return f"{middle:,.1f} ({low:,.1f} to {high:,.1f})"


def ratio(numerator: Seconds, denominator: Seconds) -> float:
    """Median over the rounds: what slows one down slows the other down as well."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))
