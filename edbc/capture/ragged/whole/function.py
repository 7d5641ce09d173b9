"""Run functions: torch functions of whole runs of rows, whatever their length (`cells.rows.segmented` runs them)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class RunFunction:
    """A torch function of runs. Row k of argument i stands along dimension `places[i]`, that of the result along `at`;
    the result is one value where that is -1. Of a function with several results it gives that of an index."""

    function: Callable[..., Any]
    places: tuple[int, ...]
    at: int
    index: int | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Of runs (n, ...), and what else the function gets."""
        places = iter(self.places)
        moved = [x.movedim(0, next(places)) if isinstance(x, torch.Tensor) else x for x in args]
        found = self.function(*moved, **kwargs)
        result: torch.Tensor = found if self.index is None else found[self.index]
        return result if self.at < 0 else result.movedim(self.at, 0)
