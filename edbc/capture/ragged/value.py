"""Ragged values: tensors whose size along one dimension differs between instances, as ranges of rows.

Problem. `h = self.emb(ids)` has shape (n, H), and n is another for every sentence: as one node, `linear(h)` would be of
a type for each length, and nothing would batch. Taken row by row it is n nodes of one type, and rows of all instances
stand one after the other in the same batch. So a ragged value is no value of the graph at all, but rows that are;
schedule, placement, kernels, gradients and policy know nothing of it.

Definitions.

(1) A `Ragged` stands for a tensor whose slices along one dimension, `at`, are recorded values of one slot: the *rows*.
    Its shape is the row's with n in place `at`, and n is the Python integer that it is in eager.
(2) A call is *row-wise* when each row of its result is the same function of the operands' rows of that number (and of
    what all rows share). It is recorded once, on stand-ins for a row, and what that has recorded is repeated for all
    rows (`each_row`): O(n) numbers appended to lists, and Python runs once whatever n is.
(3) What a call does to whole rows (slices, joins, gathers by the instance's indices) renames rows, and is no node.
(4) Where no rule knows a call, the rows are stacked, by a node of a type per size, and the call is recorded as one of
    such a value: `Recorder.stacked` tells which calls.

Related: jagged tensors of torch.nested and TensorFlow's RaggedTensor keep rows of a whole batch as one matrix; here
rows belong to instances until the schedule joins them, so sizes may be anything, and control flow too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.capture.ragged.pattern import PLACE, Event, Repeated, pattern_of
from edbc.capture.standins.standin import Lazy, Slot, Value, value_of

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

Refs = Sequence[int]


class NotRagged(BaseException):
    """Something that rows cannot follow: the instance is recorded again, and no class is ragged from then on."""


class Ragged(Lazy):
    """Definition (1)."""

    __slots__ = ("aliased", "at", "rec", "refs", "row")

    def __init__(self, rec: Recorder, refs: Refs, row: Slot, at: int = 0):
        self.rec = rec
        self.refs = refs
        self.row = row
        self.at = at
        self.whole = None
        self.aliased = False
        """Whether something else may show the same memory, where books are kept (`trace.changes`)."""

    @property
    def shape(self) -> torch.Size:
        """Of the whole; the size along `at` is a Python integer."""
        self.rec.asked_size = True
        row = self.row.shape
        return torch.Size((*row[: self.at], len(self.refs), *row[self.at :]))

    dtype = property(lambda self: self.row.dtype)
    ndim = property(lambda self: len(self.row.shape) + 1)

    @property
    def behind(self) -> int:
        """Dimensions from the ragged one on, it included: its place counted from the right, from 1."""
        return len(self.row.shape) - self.at + 1

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self.row.shape) + 1

    def size(self, dim: int | None = None) -> Any:
        """Shape, or one dimension of it."""
        return self.shape if dim is None else self.shape[dim]

    def is_floating_point(self) -> bool:
        """True for floating dtypes."""
        return self.row.floats

    def _meta(self) -> torch.Tensor:
        self.rec.asked_size = True
        return torch.empty(self.shape, dtype=self.row.dtype, device="meta")

    def __len__(self) -> int:
        self.rec.asked_size = True
        return len(self.refs) if self.at == 0 else self.row.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.at:
            return iter([self[i] for i in range(len(self))])
        return iter(self.values())

    def __getitem__(self, index: Any) -> Any:
        if self.at == 0 and self.rec.books is None and self.rec.flows:
            kind = type(index)
            if kind is torch.Tensor and index.ndim == 1 and index.dtype is torch.int64:
                self.rec.asked_size = True
                refs = self.refs
                return self.like([refs[i] for i in index.tolist()])
            if kind is int:
                return self.value(index)
        return Lazy.__getitem__(self, index)

    def value(self, number: int) -> Value:
        """One row. Raises IndexError as a tensor would."""
        self.rec.asked_size = True
        count = len(self.refs)
        if not -count <= number < count:
            raise IndexError(f"index {number} is out of bounds for dimension {self.at} with size {count}")
        return self._of(self.refs[number])

    def values(self) -> list[Value]:
        """All rows."""
        self.rec.asked_size = True
        return [self._of(ref) for ref in self.refs]

    def _of(self, ref: int) -> Value:
        rec = self.rec
        value = value_of(rec, ref, self.row)
        if rec.books is not None:
            self.aliased = True
            rec.books.memory_of(value).is_row = True
        return value if rec.flows else rec.without_gradient(value)

    def take(self, numbers: Sequence[int] | np.ndarray | slice) -> Ragged:
        """Rows by number, which may be negative; definition (3). Raises IndexError as a tensor would."""
        self.rec.asked_size = True
        if isinstance(numbers, slice):
            return self.like(self.refs[numbers])
        wanted = np.asarray(numbers, np.int64).reshape(-1)
        count = len(self.refs)
        if len(wanted) and not (-count <= wanted.min() and wanted.max() < count):
            raise IndexError(f"index out of range: expected rows of {count}, got {wanted.min()} to {wanted.max()}")
        return self.like(np.asarray(self.refs, np.int64)[wanted].tolist() if len(wanted) else [])

    def like(self, refs: Refs, at: int | None = None) -> Ragged:
        """Other rows of the same slot."""
        return Ragged(self.rec, refs, self.row, self.at if at is None else at)

    def like_at(self, at: int) -> Ragged:
        """The same rows along another dimension."""
        return self if at == self.at else self.like(self.refs, at)

    def repeated(self, count: int) -> Ragged:
        """The one row `count` times, as broadcasting does."""
        return self.like([self.refs[0]] * count) if len(self.refs) == 1 != count else self

    def become(self, other: Ragged) -> None:
        """Show other rows from now on: a change in place."""
        self.refs, self.row, self.at, self.whole = other.refs, other.row, other.at, None

    def without_gradient(self) -> Ragged:
        """The same rows, seen such that no gradient passes."""
        rec = self.rec
        seen: Value = rec.without_gradient(value_of(rec, PLACE, self.row))
        return Ragged(rec, self.refs, seen.slot, self.at)

    def make(self) -> Value:
        """The rows as one value, by a node of a type per size: definition (4)."""
        rec, count = self.rec, len(self.refs)
        if not count:
            return rec.constant(torch.zeros(self.shape, dtype=self.dtype))
        if count == 1:
            return value_of(rec, self.refs[0], self.row).unsqueeze(self.at)
        key = Ragged, count, self.row, self.at
        known = rec.functions.get(key)
        if known is not None:
            return rec.emit(known, self.refs)
        return rec.node(torch.stack, ([value_of(rec, ref, self.row) for ref in self.refs], self.at), {}, key=key)


def each_row(rec: Recorder, rows: Sequence[Ragged], call: Callable[..., Any], at: int | Callable[[Value], int]) -> Any:
    """What `call` gives for every row of ragged values of equal numbers, definition (2): `call` gets one stand-in for a
    row of each. The results' rows stand along `at`; results that are no tensors stay."""
    num_entries, num_refs, first = len(rec.entries), len(rec.refs), rec.next_value
    result = call(*[value_of(rec, PLACE - k, ragged.row) for k, ragged in enumerate(rows)])
    entries, refs = rec.entries[num_entries:], rec.refs[num_refs:]
    del rec.entries[num_entries:], rec.refs[num_refs:]
    rec.next_value = first
    pattern = pattern_of(rec, entries, refs, first, result, at)
    found = pattern.applied(rec, [ragged.refs for ragged in rows])
    rec.patterns.append((pattern, tuple(rows), found))
    if rec.tape is not None:
        known = Repeated(pattern, ()) if pattern.is_lasting else None
        rec.tape.append(Event(num_entries, known, tuple(rows), (), found))
    return found
