"""Two ways of running what has no program: reductions over a variable number of operands, and any torch function.

(1) `SegmentKernel`: mean, max and min of a node's items, as `SumKernel` is for sums.
(2) `RowFunction`: a function of one node's tensors for all nodes of a batch, by torch.vmap; where vmap cannot (a
    function without a batching rule, one that looks at values inside torch), node after node. `is_slow` tells which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from edbc.trace.shapes import split_outputs
from edbc.trace.table import SharedRef, fill

_REDUCE = {"mean": "mean", "max": "amax", "min": "amin"}


class SegmentKernel:
    """Definition (1). `op` is the op of the type."""

    def __init__(self, op: str):
        self.reduce = _REDUCE[op]

    def run(self, items: torch.Tensor, segment: torch.Tensor, output: torch.Tensor) -> None:
        """`output[segment[i]]` is the reduction of the rows `items[i]`, `(items, size)`."""
        index = segment[:, None].expand_as(items)
        output.scatter_reduce_(0, index, items, self.reduce, include_self=False)


@contextmanager
def _no_hidden_loops() -> Iterator[None]:
    """torch.vmap runs what it has no rule for row by row inside itself, with a warning; here it shall fail instead."""
    functorch: Any = torch._C._functorch
    was_enabled = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(was_enabled)


class RowFunction:
    """Definition (2), for a call's template whose holes see operands through `views`."""

    def __init__(self, call: Callable[..., Any], template: Any, views: Sequence[Sequence[Any]],
                 shared: Callable[[SharedRef], torch.Tensor]):  # fmt: skip
        self.call = call
        self.template = template
        self.views = views
        self.shared = shared
        self.is_slow = False

    def __call__(self, values: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
        """The tensors that the call returns, `(count, ...)` each, for operands `(count, ...)`."""
        with torch.no_grad():
            if not values:
                return [result.expand(count, *result.shape) for result in self._one()]
            if not self.is_slow:
                try:
                    with _no_hidden_loops():
                        return list(torch.vmap(self._one)(*values))
                except (RuntimeError, NotImplementedError, ValueError):
                    self.is_slow = True
            rows = [self._one(*row) for row in zip(*values, strict=True)]
            return [torch.stack(results) for results in zip(*rows, strict=True)]

    def _one(self, *row: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen = []
        for value, chain in zip(row, self.views, strict=True):
            for view in chain:
                value = view.apply(value)
            seen.append(value)
        args, kwargs = fill(self.template, seen, self.shared)
        return tuple(split_outputs(self.call(*args, **kwargs), "a generic operation")[1])
