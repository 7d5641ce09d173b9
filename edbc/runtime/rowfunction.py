"""Any torch function on the rows of a batch: by its batched form, by torch.vmap, or row after row where vmap cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from edbc.runtime.rowrules import BatchedForm, Shared
from edbc.trace.autocast import Under
from edbc.trace.shapes import split_outputs
from edbc.trace.table import View, fill


@contextmanager
def _no_hidden_loops() -> Iterator[None]:
    """torch.vmap runs what it has no rule for row by row inside itself, with a warning; here it shall fail instead."""
    was_enabled = torch._C._functorch._is_vmap_fallback_enabled()  # type: ignore[attr-defined]
    torch._C._functorch._set_vmap_fallback_enabled(False)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(was_enabled)  # type: ignore[attr-defined]


class RowFunction:
    """A call's template whose holes see operands through `views`. `is_slow` tells that vmap could not run it: a
    function without a batching rule, or one that looks at values inside torch."""

    def __init__(self, call: Callable[..., Any], template: Any, views: Sequence[Sequence[View]]):
        self.call = call
        self.template = template
        self.views = views
        self.is_slow = isinstance(call, Under)  # torch.vmap does not see torch.autocast
        self._form: BatchedForm | None = None
        self._form_is_known = False

    def __call__(self, values: Sequence[torch.Tensor], count: int, shared: Shared) -> list[torch.Tensor]:
        """The tensors that the call returns, `(count, ...)` each, for operands `(count, ...)`; `shared` gives
        parameters."""
        if not values:
            return [result.expand(count, *result.shape) for result in self._one(shared)]
        form = self._batched_form(values, shared)
        if form is not None:
            return split_outputs(form.apply(values, shared), "a generic operation")[1]
        if not self.is_slow:
            try:
                with _no_hidden_loops():
                    whole = [value.contiguous() for value in values]  # as in eager: some functions warn of strides
                    return list(torch.vmap(lambda *row: self._one(shared, *row))(*whole))
            except (RuntimeError, NotImplementedError, ValueError):
                self.is_slow = True
        rows = [self._one(shared, *row) for row in zip(*values, strict=True)]
        return [torch.stack(results) for results in zip(*rows, strict=True)]

    def _batched_form(self, values: Sequence[torch.Tensor], shared: Shared) -> BatchedForm | None:
        if not self._form_is_known:
            shapes = [value.shape[1:] for value in values]
            self._form = BatchedForm.find(self.call, self.template, self.views, shapes, shared)
            self._form_is_known = True
        return self._form

    def _one(self, shared: Shared, *row: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen = []
        for value, chain in zip(row, self.views, strict=True):
            for view in chain:
                value = view.apply(value, shared)
            seen.append(value)
        args, kwargs = fill(self.template, seen, shared)
        return tuple(split_outputs(self.call(*args, **kwargs), "a generic operation")[1])
