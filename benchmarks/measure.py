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


def median(seconds: Seconds) -> str:
    """In milliseconds."""
    return f"{1e3 * statistics.median(seconds):,.1f}"


def spread(seconds: Seconds) -> str:
    """Fastest and slowest in milliseconds."""
    return f"{1e3 * min(seconds):,.1f} to {1e3 * max(seconds):,.1f}"


def ratio(numerator: Seconds, denominator: Seconds) -> float:
    """Median over the rounds: what slows one down slows the other down as well."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))
