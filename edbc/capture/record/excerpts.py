"""Rows, slices and elements of recorded values: an offset that is data, not a part of any type.

Definitions.

(1) An *excerpt* of a value is a run of its elements, in the order of memory: `x[i]`, `x[i:j]`, `x[i, j]`, of views too.
    It is a node whose type says the class of the excerpt alone: neither that of the value that it is taken of nor
    where in it. The *offset*, the number of elements before it, is an operand.
(2) A view *takes* a part of its tensor when it is one of TAKES, and not the whole tensor whatever the tensor's sizes.

So all rows of one class are one type, and run in one batch, whatever matrices they are rows of. What is no run of
elements (a column, a row of a transposed matrix) stays a view in the signatures of who reads it, as does what
`chunk` and `split` give: how many parts there are is said in code. A matrix out of a batch of one (`x[0]` of the whole
`x`) is a view too, but not a vector, which may be the row of a matrix that has one row by chance. Cells have views
only: their sizes are the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from edbc.base.graph import EXCERPT, NodeType, ValueClass
from edbc.capture.record.keys import quick_key
from edbc.capture.record.table import Entry, Hole, Operation, fill, through
from edbc.capture.semantics import rules
from edbc.capture.semantics.shapes import split_outputs, take_views
from edbc.capture.standins.source import user_location
from edbc.capture.standins.standin import Lazy, Rows, Shared, Slot, Symbol, Value, class_of, torch_dtype

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

TAKES = frozenset("getitem select narrow unbind".split())
"""Definition (2)."""
OFFSET = ValueClass((), "i64")


class Excerpts(NamedTuple):
    """The entry of a call that takes parts of a value, and the offset of each."""

    entry: Entry | None
    """None for a part that is the whole value as it is."""
    source: int
    """Of offsets."""
    offsets: tuple[int, ...]
    outputs: Any
    steps: Sequence[Any]
    """The views that they are."""


def excerpt(value: torch.Tensor, offset: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Definition (1)."""
    size = torch.Size(shape).numel()
    return value.reshape(-1).narrow(0, int(offset), size).view(shape)


def excerpts(rec: Recorder, func: Any, name: str, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call takes of a recorded value, as nodes; None where it is not definition (1)."""
    if name not in TAKES or rec.in_cell or not args or type(args[0]) is Shared or not _takes(name, args, kwargs):
        return None
    if type(args[0]) is Rows:
        found = rows_seen(rec, func, args, kwargs)
        if found is not None:
            return found
    value = args[0].materialise() if isinstance(args[0], Lazy) else args[0]
    known = _described(rec, func, name, value, (value, *args[1:]), kwargs)
    if known is None:
        return None
    if key is not None:
        rec.functions[key] = known
    if name == "getitem" and known.entry is not None:
        index = args[1]
        if type(index) is int:
            rec.rows[value.slot, index] = known
        elif type(index) is slice:
            rec.rows[value.slot, index.start, index.stop, index.step] = known
    return rec.take(value, known)


def rows_seen(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a view shows of rows of a table: rows too, in another shape perhaps; None where it shows anything else."""
    key = _key_of_rows(rec, func, args, kwargs)
    shown = None if key is None else rec.shown.get(key)
    if shown is None:
        shown = _shown(args[0], func, args, kwargs)
        if key is not None:
            rec.shown[key] = shown
    return _made_of(args[0], *shown)


def rows_seen_again(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a view shows that has shown it of rows like these; None of others."""
    key = _key_of_rows(rec, func, args, kwargs)
    shown = None if key is None else rec.shown.get(key)
    return None if shown is None else _made_of(args[0], *shown)


def _key_of_rows(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rows: Rows = args[0]
    parts: list[Any] = [func, len(rows.indices), rows.seen_as]
    return tuple(parts) if quick_key((args[1:], kwargs), parts, [], rec, False) else None


def _made_of(rows: Rows, outputs: Any, parts: list[Any]) -> Any:
    found = [_as_rows(rows, *part) for part in parts]
    return None if outputs is None else found[0] if type(outputs) is Hole else fill(outputs, found)


def _shown(rows: Rows, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
    """For each result of a view, its first row, its number of rows (0 for one row alone), and its rows' shape; nothing
    where one is no row."""
    whole = rows._meta()
    outputs, metas = split_outputs(func(whole, *args[1:], **kwargs))
    found = [_rows_of(meta, rows.seen_as.numel()) if _is_run(meta, whole) else None for meta in metas]
    return (None, []) if None in found else (outputs, found)


def _rows_of(part: torch.Tensor, size: int) -> tuple[int, int, torch.Size] | None:
    first, skipped = divmod(int(part.storage_offset()), size)
    if skipped:
        return None
    if part.ndim and part.shape[0] and part[0].numel() == size:
        return first, part.shape[0], part.shape[1:]
    return (first, 0, part.shape) if part.numel() == size else None


def _as_rows(rows: Rows, first: int, count: int, shape: torch.Size) -> Any:
    return rows.some(slice(first, first + count), shape) if count else rows.row(rows.indices[first], shape)


def _takes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if not isinstance(args[0], Symbol) or any(isinstance(a, torch.Tensor) for a in (*args[1:], *kwargs.values())):
        return False
    if name != "getitem":
        return True
    index = args[1] if type(args[1]) is tuple else (args[1],)
    return rules.is_constant_index(args[1]) and any(
        type(i) is int or (type(i) is slice and not (i.start is i.stop is None)) for i in index
    )


def _described(rec: Recorder, func: Any, name: str, value: Value, args: tuple[Any, ...],
               kwargs: dict[str, Any]) -> Excerpts | None:  # fmt: skip
    """The call as Excerpts, or None. Raises what torch raises for an index out of bounds."""
    _, template = rec.describe((args, kwargs), [], [])
    _, _, steps = take_views(func, name, template, value.slot.meta())
    if any(view.detaches for view in value.slot.views) or value.slot.dtype is not torch_dtype(value.slot.base.dtype):
        return None  # bits seen as another dtype are no run of elements
    whole = torch.empty(value.slot.base.shape, dtype=value.slot.meta().dtype, device="meta")
    filled, keywords = fill(template, [through(value.slot.views, whole, rec.shared_meta)])
    outputs, metas = split_outputs(func(*filled, **keywords))
    if not metas or not all(_is_run(meta, whole) for meta in metas):
        return None
    is_whole = metas[0].numel() == whole.numel()
    if is_whole and metas[0].shape != whole.shape and metas[0].ndim > 1:
        return None
    is_same = is_whole and metas[0].shape == whole.shape
    entry = None if is_same else excerpt_entry(rec, rec.table.slot(class_of(metas[0])))
    offsets = tuple(int(meta.storage_offset()) for meta in metas)
    return Excerpts(entry, rec.table.given_source("offset", OFFSET), offsets, outputs, steps)


def _is_run(part: torch.Tensor, whole: torch.Tensor) -> bool:
    is_there = part.untyped_storage()._cdata == whole.untyped_storage()._cdata
    return is_there and part.dtype is whole.dtype and part.is_contiguous() and part.numel() > 0


def excerpt_entry(rec: Recorder, slot: Slot) -> Entry:
    """The entry of excerpts of one class."""
    entry = rec.entry_of_excerpts.get(slot)
    if entry is None:
        draft = NodeType(EXCERPT, EXCERPT, (slot.base, OFFSET), (slot.base,))
        index = rec.table.add_type(draft, [rec.returned or user_location()])
        template: Any = ((Hole(0), Hole(1), slot.base.shape), {})
        operation = Operation("function", EXCERPT, excerpt, template, (slot, rec.table.slot(OFFSET)))
        entry = rec.entry_of_excerpts[slot] = rec.table.add_entry(index, operation, (slot,), Hole(0))
    return entry
