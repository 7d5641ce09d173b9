"""Any torch function on the rows of a batch: by its batched form, by torch.vmap, or row after row where vmap cannot.

A batched form is a guess from two numbers of rows, and torch.vmap gives wrong results for some functions without a word
(`roll` of a scalar takes another row's, operators of other libraries may do anything). So neither is believed:
what it computes is compared with what the call computes of single rows, until it was right for rows that differ (equal
ones are turned, each by one more); where it is wrong, the call runs row after row from then on. So it is with gradients
where elements are equal: of the median of equal ones each has a share in eager PyTorch, and one has all in a batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from edbc.capture.record.table import View, fill, through
from edbc.capture.semantics.autocast import Under
from edbc.capture.semantics.shapes import split_outputs
from edbc.cells.rows.batched import Form, Shared, batched_form, vmapped

CHECKED = 4
"""Rows that are compared with single ones."""


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
    """A call's template whose holes see operands through `views`. `is_slow` tells that only row after row is right: a
    function without a batching rule or with a wrong one, or one that looks at values inside torch."""

    def __init__(self, call: Callable[..., Any], template: Any, views: Sequence[Sequence[View]]):
        self.call = call
        self.template = template
        self.views = views
        self.is_slow = False
        self.is_believed = False
        """Whether what runs all rows in one call was right for rows that differ."""
        self.form: Form | None = None
        self._form_is_known = False

    def __call__(self, values: Sequence[torch.Tensor], count: int, shared: Shared) -> list[torch.Tensor]:
        """The tensors that the call returns, `(count, ...)` each, for operands `(count, ...)`; `shared` gives
        parameters."""
        if not values:
            return [result.expand(count, *result.shape) for result in self._one(shared)]
        if values[0].shape[0] == 1:  # what a batched form would be compared with; `len` takes a microsecond
            return self._rows(values, shared)
        if self.is_believed and self.form is not None and not values[0].is_meta:
            return self.form(values, count, shared)
        whole = None if self.is_slow else self._whole(values, shared)
        if whole is not None and (self.is_believed or self._is_right(whole, values, shared)):
            return whole
        self.is_slow = True
        return self._rows(values, shared)

    def _rows(self, values: Sequence[torch.Tensor], shared: Shared) -> list[torch.Tensor]:
        """Row after row, each in memory of its own as in eager: some functions ask where memory begins, and views in
        which order it runs, which a convolution of all rows may have turned."""
        alone = torch.contiguous_format
        rows = [self._one(shared, *(x.clone(memory_format=alone) for x in row)) for row in zip(*values, strict=True)]
        if len(rows) == 1:
            return [result.unsqueeze(0) for result in rows[0]]
        return [torch.stack(results) for results in zip(*rows, strict=True)]

    def _whole(self, values: Sequence[torch.Tensor], shared: Shared) -> list[torch.Tensor] | None:
        """All rows in one call; None where there is none."""
        form = None if values[0].is_meta else self._batched_form(values, shared)
        if form is not None:
            try:
                return form(values, len(values[0]), shared)
            except Exception:
                self.form = None  # it does not fit after all
        if isinstance(self.call, Under):  # torch.vmap does not see torch.autocast
            return None
        try:
            with _no_hidden_loops():
                whole = [value.contiguous() for value in values]  # as in eager: some functions warn of strides
                return vmapped(lambda *row: self._one(shared, *row), whole)
        except Exception:  # an error of the call itself, a row alone raises too
            return None

    def _is_right(self, whole: Sequence[torch.Tensor], values: Sequence[torch.Tensor], shared: Shared) -> bool:
        """Whether some rows are what the call computes of them alone; believed from then on when they differ, or when
        it is right for others that do. Without data there is nothing to compare."""
        if values[0].is_meta:
            return True
        some = [value[:CHECKED] for value in values]
        is_right = self._gives(whole, some, len(values[0]), shared)
        if is_right and not any(map(_differ, some)):  # masks of one size, positions
            some = list(map(_turned, some))
            self.is_believed = any(map(_differ, some)) and self._gives_of_others(some, shared)
        else:
            self.is_believed = is_right
        has_slopes = any(x.is_floating_point() for x in some)
        if self.is_believed and has_slopes and not all(self._has_right_slopes(some, shared, n) for n in (0, 1)):
            self.is_believed = is_right = False
        return is_right

    def _has_right_slopes(self, some: Sequence[torch.Tensor], shared: Shared, number: float) -> bool:
        """Whether gradients are those of single rows where all elements are a number, which some functions refuse."""
        with torch.inference_mode(False), torch.enable_grad(), suppress(Exception):
            rows = [torch.full_like(x, number, requires_grad=True) if x.is_floating_point() else x for x in some]
            slopes = [_slopes(rows, run(rows, shared)) for run in (self._whole, self._rows)]
            return all(map(_is_close, *slopes))
        return True

    def _gives(self, whole: Sequence[torch.Tensor], some: Sequence[torch.Tensor], count: int, shared: Shared) -> bool:
        """Whether `whole`, of so many rows, begins with what the call computes of each of some."""
        with torch.no_grad():
            of_row = self._rows(some, shared)
        has_rows = len(of_row) == len(whole) and all(x.shape[:1] == (count,) for x in whole)
        return has_rows and all(map(_is_close, (x[:CHECKED].detach() for x in whole), of_row))

    def _gives_of_others(self, rows: Sequence[torch.Tensor], shared: Shared) -> bool:
        try:
            whole = self._whole(rows, shared)
            return whole is not None and self._gives(whole, rows, len(rows[0]), shared)
        except Exception:  # made-up numbers may be none that the call takes
            return False

    def _batched_form(self, values: Sequence[torch.Tensor], shared: Shared) -> Form | None:
        if not self._form_is_known:
            self._form_is_known = True
            with suppress(Exception), warnings.catch_warnings(), _no_hidden_loops():
                warnings.simplefilter("ignore")  # what is wrong with the call, a row alone says
                self.form = batched_form(self.call, self.template, self._seen, values, shared)
        return self.form

    def _seen(self, shared: Shared, *row: torch.Tensor) -> list[torch.Tensor]:
        """What the call sees of a row's operands."""
        return [through(chain, value, shared) for value, chain in zip(row, self.views, strict=True)]

    def _one(self, shared: Shared, *row: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = fill(self.template, self._seen(shared, *row), shared)
        return tuple(split_outputs(self.call(*args, **kwargs), "a generic operation")[1])


def _slopes(rows: Sequence[torch.Tensor], results: Sequence[torch.Tensor] | None) -> list[torch.Tensor]:
    """Of a sum that weighs every element of the results differently."""
    sums = [(x.flatten() * torch.arange(1, x.numel() + 1)).sum() for x in results or () if x.requires_grad]
    leaves = [x for x in rows if x.requires_grad]
    found = torch.autograd.grad(torch.stack(sums).sum(), leaves, allow_unused=True) if sums else []
    return [torch.zeros_like(x) if slope is None else slope for x, slope in zip(leaves, found, strict=False)]


def _differ(rows: torch.Tensor) -> bool:
    return not torch.equal(rows[:1].expand_as(rows), rows)


def _turned(rows: torch.Tensor) -> torch.Tensor:
    """Rows of the same numbers, each turned by one more; of one number, rows of others, but for integers, which may be
    indices."""
    turned = torch.stack([row.reshape(-1).roll(k).view(row.shape) for k, row in enumerate(rows)])
    if _differ(turned) or not turned.numel():
        return turned
    steps = torch.arange(turned.numel()).view(turned.shape)
    if turned.dtype is torch.bool:
        return steps % torch.arange(2, 2 + len(rows)).view(-1, *[1] * (rows.ndim - 1)) == 0
    return turned + steps / turned.numel() if turned.is_floating_point() else turned


def _is_close(some: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal but for rounding: a wrong rule is off by the size of the numbers."""
    if some.shape != right.shape or some.dtype != right.dtype:
        return False
    if not (right.is_floating_point() or right.is_complex()):
        return torch.equal(some, right)
    scale = right.abs().nan_to_num(0, 0, 0).max().item() if right.numel() else 0.0
    tolerance = torch.finfo(right.dtype).eps ** 0.5
    return torch.allclose(some, right, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
