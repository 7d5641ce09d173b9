"""Rows of what is not ragged yet: tensors that the instance brings, parameters, recorded values."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edbc.capture.ragged.program import ALIAS, JOIN, Triple
from edbc.capture.ragged.value import All, Ragged, each_row, filled, one_step
from edbc.capture.record.excerpts import OFFSET, excerpt_entry
from edbc.capture.standins.made import Description, Made
from edbc.capture.standins.standin import Lazy, Shared, Symbol, Value, class_of, value_of

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder
    from edbc.capture.standins.standin import Slot


class Written(NamedTuple):
    """A copy of a tensor's elements: where they begin in some memory. Versions do not tell whether a tensor still holds
    them: a write through NumPy's view of its memory or through `.data` counts nowhere, and tensors made in inference
    mode count nothing at all."""

    memory: bytearray
    begin: int


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor has changed, as far as torch knows; inference tensors do not tell."""
    try:
        return tensor._version
    except RuntimeError:
        return 0


def holds(tensor: torch.Tensor, copied: Written | torch.Tensor) -> bool:
    """Whether a tensor has the elements that a copy of it has. O(elements)."""
    if isinstance(copied, Written):
        elements = tensor.numpy().tobytes()
        return copied.memory[copied.begin : copied.begin + len(elements)] == elements
    if tensor.layout is not torch.strided or torch.equal(tensor, copied):
        return True
    return bool(((tensor == copied) | ((tensor != tensor) & (copied != copied))).all())


class Pool(list[torch.Tensor]):
    """The constants of one source: matrices of rows, and rows alone, which are written one behind the other where no
    gradient goes to them."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        """Of a row."""
        self.written = bytearray()
        """Rows behind all matrices."""
        self.num_written = 0
        self.matrices: list[torch.Tensor] = []
        """And rows that require a gradient, as they are: it may turn out that nobody asks for that."""
        self.begin: list[int] = []
        self.num_rows = 0

    def add(self, rows: torch.Tensor) -> None:
        """All rows of a matrix."""
        self._end_written()
        self._add(rows, len(rows))

    def _add(self, rows: torch.Tensor, count: int) -> None:
        self.matrices.append(rows)
        self.begin.append(self.num_rows)
        self.num_rows += count

    def append(self, row: torch.Tensor) -> None:
        """One row, which may change from then on where it requires no gradient."""
        self.copied(row)

    def copied(self, row: torch.Tensor) -> Written | torch.Tensor:
        """One row, which may change from then on where it requires no gradient; the copy that is kept."""
        if row.requires_grad:
            self._end_written()
            self._add(row, 1)
            return row
        begin = len(self.written)
        try:
            self.write(row.numpy())
        except (TypeError, ValueError, RuntimeError):  # no type of NumPy's, elements in another order or elsewhere
            copied = row.clone()
            self.add(copied.unsqueeze(0))
            return copied
        return Written(self.written, begin)

    def write(self, elements: Any) -> None:
        """One row, by its memory."""
        self.written.extend(elements)
        self.num_written += 1

    def _end_written(self) -> None:
        if not self.num_written:
            return
        rows = torch.frombuffer(self.written, dtype=self.dtype) if self.written else torch.empty(0, dtype=self.dtype)
        self._add(rows.view(self.num_written, *self.shape), self.num_written)
        self.written, self.num_written = bytearray(), 0

    def __len__(self) -> int:
        return self.num_rows + self.num_written

    def __getitem__(self, number: Any) -> Any:
        self._end_written()
        which = bisect.bisect_right(self.begin, number) - 1
        return self._rows(self.matrices[which])[number - self.begin[which]]

    def requires_grad(self, number: int) -> bool:
        """Whether a row requires a gradient. O(log matrices): asked of each tensor that is written to."""
        return number < self.num_rows and self.matrices[bisect.bisect_right(self.begin, number) - 1].requires_grad

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._end_written()
        return (row for matrix in self.matrices for row in self._rows(matrix).unbind(0))

    def _rows(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix if matrix.ndim > len(self.shape) else matrix.unsqueeze(0)

    def settled(self) -> Any:
        """As a mini-batch has them: one table, or a list where gradients go to some."""
        self._end_written()
        if any(matrix.requires_grad for matrix in self.matrices):
            return list(self)
        rows = list(map(self._rows, self.matrices))
        return rows[0] if len(rows) == 1 else torch.cat(rows)


def rows_of(rec: Recorder, tensor: Any, dim: int) -> Ragged:
    """The slices of a tensor along a dimension, as rows."""
    if type(tensor) is Ragged and tensor.at == dim:
        return tensor
    if type(tensor) is Made:
        tensor = tensor.real()
    if type(tensor) is torch.Tensor:
        return constant_rows_of(rec, tensor, dim)
    if isinstance(tensor, Lazy):
        tensor = tensor.materialise()
    moved = tensor.movedim(dim, 0) if dim else tensor
    if type(moved) is Shared:
        rows = [moved.lookup(i) for i in range(moved.shape[0])]
        rec.lookups[rows[0].ref] = All(partial(rows_of, tensor=moved, dim=0), len(rows)), None
        return Ragged(rec, range(rows[0].ref, rows[0].ref - len(rows), -1), rows[0].slot, dim)
    if moved.shape[0] == 1:
        value = _bare(rec, moved.squeeze(0))
        return Ragged(rec, range(value.ref, value.ref + 1), value.slot, dim)
    return excerpts_of_rows(rec, _bare(rec, moved)).like_at(dim)


def repeated_row(rec: Recorder, item: Any, dim: int) -> Value | None:
    """The value that is each slice of another along a dimension (`h.expand(n, -1)`); None where it is none."""
    if type(item) is not Value or not item.slot.views or not item.slot.is_repeated(dim):
        return None
    return value_of(rec, item.ref, rec.table.slot(item.slot.base))


def _bare(rec: Recorder, value: Value) -> Any:
    """A value without views: the one that is seen, where views show it as it is, or one of its own."""
    slot = value.slot
    if slot.views and slot.keeps_order and slot.base.shape == slot.shape:
        return value_of(rec, value.ref, rec.table.slot(slot.base))
    return as_own(rec, value) if slot.views else value


def constant_rows_of(rec: Recorder, tensor: torch.Tensor, dim: int, may_be_equal: bool = True) -> Ragged:
    """One external per row; one alone where all rows are equal, as they `may_be`, and there is no gradient.

    Of integers there is one per row always: a call that is kept knows them as indices, and would take what they are
    here for what they always are."""
    with nullcontext() if rec.books is None else torch._C.DisableTorchFunction():  # which see each call on a tensor
        return _constant_rows_of(rec, tensor, dim, may_be_equal)


def _constant_rows_of(rec: Recorder, tensor: torch.Tensor, dim: int, may_be_equal: bool) -> Ragged:
    if tensor.dtype is torch.int64 and tensor.ndim == 1 and len(tensor):
        return rec.rows_of_numbers(rec.numbers_of(tensor))
    key = "rows", id(tensor), version_of(tensor), dim
    known = rec.ragged_constants.get(key)
    if known is not None and holds(tensor, known[2].movedim(0, dim)):
        return Ragged(rec, known[1].refs, known[1].row, dim)
    moved = tensor if tensor.layout is torch.strided else tensor.to_dense()
    moved = (moved.movedim(dim, 0) if dim else moved).clone(memory_format=torch.contiguous_format)
    count = moved.shape[0]
    slot = rec.slot_of_constant(moved.shape[1:], tensor.dtype)[1]
    refs = range(0)
    if (
        count > 1
        and may_be_equal
        and tensor.is_floating_point()
        and not tensor.requires_grad
        and moved[0].equal(moved[-1])
        and bool((moved == moved[:1]).all())
    ):
        refs = filled(rec, rec.constant_row(moved[0]).ref, count)
    elif count:
        refs = rec.constant_rows(moved)
    found = Ragged(rec, refs, slot, dim)
    rec.ragged_constants[key] = tensor, found, moved
    return found


def adopted(rec: Recorder, item: Any) -> Any:
    """A tensor of numbers that the instance brings as rows, where its class is ragged; anything else as it is."""
    if type(item) is Made:
        item = item.real() if item.tensor is not None or item.assigned else _rows_of_made(rec, item)
    if type(item) is not torch.Tensor or not item.ndim or not item.is_floating_point():
        return item
    if rec.books is not None:
        item = rec.books.stand_in(item)
        if type(item) is not torch.Tensor:
            return item
    at = rec.place_of_rows(item.shape, item.dtype)
    if at >= 0 and rec.keeping and item.shape[at] not in rec.keeping:  # a constant of the code, no rows of an instance
        return item
    if at < 0:
        return item
    rows = rows_of(rec, item, at)
    if rec.books is not None and rec.books.is_fresh(item):  # who is given them may give them on
        rows = Ragged(rec, rows.refs, rows.row, at)
        rows.is_own = True
        rec.books.stand_for(item, rows)
    return rows


def _rows_of_made(rec: Recorder, made: Made) -> Any:
    """A description (`standins.made`) as rows, where its class is ragged."""
    described, known = made.described, made.as_rows
    at = rec.place_of_rows(described.shape, described.dtype)
    if at < 0 or not described.shape[at]:
        return made
    if known is None or known.rec is not rec or known.refs.start < rec.first_value:
        known = made.as_rows = rows_described(rec, described, at=at)
    return known


def rows_described(rec: Recorder, described: Description, like: Triple | None = None, at: int = 0) -> Ragged:
    """A constant that forward makes (`standins.made`) as equal rows, as many as there are of others, if any."""
    row = described.of_row(at)
    value = rec.shared_constant(row, row.make)
    return Ragged(rec, filled(rec, value.ref, described.shape[at], like), value.slot, at)


def plain(ragged: Ragged) -> Ragged:
    """The same rows as values of their own, not as parts or views of others."""
    if not ragged.row.views:
        return ragged
    rec = ragged.rec
    return each_row(rec, [ragged], lambda row: as_own(rec, row), ragged.at)


def own(rec: Recorder, tensor: Any) -> Value:
    """A tensor as a value that is no part or view of another."""
    if isinstance(tensor, Lazy):
        tensor = tensor.materialise()
    elif type(tensor) is torch.Tensor:
        tensor = rec.constant(tensor)
    return as_own(rec, tensor) if type(tensor) is Shared or tensor.slot.views else tensor


def as_own(rec: Recorder, value: Value) -> Any:
    """The same numbers as a value of its own."""
    if value.slot.floats:
        return rec.function(torch.mul, (value, 1.0), {})
    return rec.node(torch.clone, (value,), {})


def of_one_slot(parts: Sequence[Ragged]) -> list[Ragged] | None:
    """Rows of several ragged values in one slot; None where their shapes or dtypes differ."""
    if any(p.row is not parts[0].row for p in parts):
        parts = [plain(p) for p in parts]
    return list(parts) if all(p.row is parts[0].row for p in parts) else None


def is_tensor(item: Any) -> bool:
    """Whether a call's argument is a tensor of any kind."""
    return isinstance(item, Symbol) or type(item) is torch.Tensor


def excerpts_of_rows(rec: Recorder, value: Value) -> Ragged:
    """The rows of a value that was computed whole, as excerpts (`record.excerpts`)."""
    count, row_shape = value.shape[0], value.shape[1:]
    slot = rec.table.slot(class_of(torch.empty(row_shape, dtype=value.dtype, device="meta")))
    entry, place = excerpt_entry(rec, slot), _offsets(rec, count, row_shape.numel())
    return each_row(rec, [place], lambda where: rec.emit(entry, (value.ref, where.ref)), 0)


def _offsets(rec: Recorder, count: int, step: int) -> Ragged:
    """Where so many rows begin."""
    rec.external_source += [rec.table.given_source("offset", OFFSET)] * count
    rec.external_index += [place * step for place in range(count)]  # rows of no elements begin at 0
    first = rec.last_external - 1
    rec.last_external -= count
    rec.lookups[first] = All(partial(_offsets, count=count, step=step), count), None
    return Ragged(rec, range(first, first - count, -1), rec.table.slot(OFFSET))


def rows_at(rec: Recorder, refs: Sequence[int], row: Slot, at: int = 0) -> Ragged:
    """Rows wherever they stand."""
    if rec.keeping and refs:
        return Ragged(rec, one_step(rec, JOIN, (), [(ref, 0, 1) for ref in refs]), row, at)
    held = rec.hold(np.array(refs, np.int64), False)
    return Ragged(rec, one_step(rec, ALIAS, (), [held.triple]), row, at)


def cell_rows(rec: Recorder, module: nn.Module, args: tuple[Any, ...]) -> list[Ragged] | None:
    """The rows of each argument, in order, of a recurrent cell that gets matrices of rows; None for other calls."""
    if not isinstance(module, nn.RNNCellBase):
        return None
    tensors = [x for arg in args for x in (arg if isinstance(arg, tuple | list) else [arg])]
    if not all(is_tensor(t) and t.ndim == 2 for t in tensors):
        return None
    if len({len(t.refs) if type(t) is Ragged and not t.at else t.shape[0] for t in tensors}) != 1:
        return None
    return None if any(type(t) is Ragged and t.at for t in tensors) else [rows_of(rec, t, 0) for t in tensors]


def regrouped(args: tuple[Any, ...], values: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments with other tensors in their order."""
    rest = iter(values)
    return tuple(tuple(next(rest) for _ in arg) if isinstance(arg, tuple | list) else next(rest) for arg in args)
