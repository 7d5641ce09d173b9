"""What calls take: clocks take turns; the median counts, and the spread is half of what lies between the quartiles.

A *clock* runs something once and gives what it took, in nanoseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from edbc.stages.table import Cost

ROUNDS, MOST_ROUNDS = 7, 40
SECONDS = 0.03
Clock = Callable[[], float]


def clock(run: Callable[[], object]) -> Clock:
    """The host's."""

    def timed() -> float:
        before = time.perf_counter_ns()
        run()
        return time.perf_counter_ns() - before

    return timed


def timed(run: Callable[[], object]) -> Cost:
    """Median and spread of a call, in nanoseconds."""
    return turns({"": clock(run)}, SECONDS)[""]


def turns(clocks: Mapping[str, Clock], seconds: float) -> dict[str, Cost]:
    """Medians and spreads of what takes turns, after two rounds each that pack weights and warm caches: ROUNDS at
    least, until the time is over, MOST_ROUNDS at most."""
    found: dict[str, list[float]] = {name: [] for name in clocks}
    for run in clocks.values():
        run()
        run()
    started = time.perf_counter()
    for number in range(MOST_ROUNDS):
        if number >= ROUNDS and time.perf_counter() - started > seconds:
            break
        for name, run in clocks.items():
            found[name].append(run())
    return {name: cost_of(times) for name, times in found.items()}


def cost_of(times: Sequence[float]) -> Cost:
    """Median and spread of what was taken."""
    low, median, high = statistics.quantiles(times, n=4)
    return Cost(max(1, round(median)), round((high - low) / 2))
