"""Recurrent cells on ragged values: row by row, as one node of the cell's type each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from edbc.capture.ragged.lasting import lasting_of
from edbc.capture.ragged.pattern import Event
from edbc.capture.ragged.rows import is_tensor, rows_of
from edbc.capture.ragged.value import Ragged, each_row

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder


def cell_rows(rec: Recorder, module: nn.Module, args: tuple[Any, ...]) -> list[Ragged] | None:
    """The rows of each argument, in order, of a recurrent cell that gets matrices of rows; None for other calls."""
    if not isinstance(module, nn.RNNCellBase):
        return None
    tensors = list(_leaves(args))
    if not all(is_tensor(t) and t.ndim == 2 for t in tensors) or len({t.shape[0] for t in tensors}) != 1:
        return None
    if any(type(t) is Ragged and t.at for t in tensors):
        return None
    return [rows_of(rec, t, 0) for t in tensors]


def row_call(rec: Recorder, rows: list[Ragged], path: str, call: Callable[..., Any]) -> Any:
    """A cell's call of all rows, found by its key in closed code that is kept."""
    key = Ragged, path, *[row.row for row in rows]
    known, count = rec.functions.get(key), len(rows[0].refs)
    if known is not None and count > 1 and not rec.looks:
        begin = len(rec.entries)
        result = known.again(rec, [row.refs for row in rows], ())
        if rec.tape is not None:
            rec.tape.append(Event(begin, known, tuple(rows), (), result))
        return result
    before, rec.patterns = rec.patterns, []
    result = each_row(rec, rows, call, 0)
    known = lasting_of(rec.patterns, rows, (), result) if count > 1 else None
    if known is not None:
        rec.functions[key] = known
    rec.patterns = before
    return result


def regrouped(args: tuple[Any, ...], values: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments with other tensors in their order."""
    rest = iter(values)
    return tuple(tuple(next(rest) for _ in arg) if isinstance(arg, tuple | list) else next(rest) for arg in args)


def _leaves(args: Sequence[Any]) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, tuple | list):
            yield from arg
        else:
            yield arg
