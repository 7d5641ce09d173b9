"""One outcome per instance: a bad one fails alone, and the others of its mini-batch have their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Failure:
    """In place of a result: what was raised for this instance."""

    error: Exception


def outcomes(run: Callable[[Sequence[Any]], Sequence[Any]], instances: Sequence[Any],
             tell: Callable[[], object] = lambda: None) -> list[Any]:  # fmt: skip
    """What `run` returns for each instance, or a Failure. A mini-batch that fails runs again as two halves, which is
    told, and so on: O(log n) runs of it for one bad instance of n."""
    if not instances:
        return []
    try:
        return list(run(instances))
    except Exception as error:
        if len(instances) == 1:
            return [Failure(error)]
    tell()
    half = len(instances) // 2
    return outcomes(run, instances[:half], tell) + outcomes(run, instances[half:], tell)
