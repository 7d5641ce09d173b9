"""Functions of whole runs as nodes of one type whatever n is.

A call that no row-wise rule knows (a cumulative sum, a sort, a standard deviation over n, attention) is a node whose
operands are all rows, and whose results are as many rows, or one value. What says so are shapes: the function is asked
for those of its result at two sizes, and they must differ in one dimension, by as much as n does, or in none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from edbc.capture.ragged.program import ONE, RUN, SEGMENTED, RunOf, triple
from edbc.capture.ragged.value import Ragged, one_step
from edbc.capture.ragged.whole.function import RunFunction
from edbc.capture.record.table import Hole, Operation, fill
from edbc.capture.semantics.randomness import Dispatched
from edbc.capture.standins.nests import rebuilt
from edbc.capture.standins.standin import class_of, value_of

if TYPE_CHECKING:
    from edbc.capture.ragged.call import Call
    from edbc.capture.record.recorder import Recorder

SIZES = 5, 7
"""Lengths at which functions are asked for shapes; no size that a model is likely to have beside them."""


def run_call(call: Call) -> Any:
    """A call as a node of a function of runs; NotImplemented where it is none: where it has other operands than rows
    of one number, or what it gives has not that number of rows."""
    rows: list[Ragged] = []
    template = tuple(_placed(a, rows) for a in call.args)
    named = {key: _placed(value, rows) for key, value in call.kwargs.items()}
    is_plain = all(_is_constant(item) for item in (*template, *named.values()))
    if not is_plain or not rows or len({len(r.refs) for r in rows}) != 1 or not len(rows[0].refs):
        return NotImplemented
    if any(type(item) is Hole for item in named.values()):
        return NotImplemented
    return run_of(call.rec, call.func, call.name, rows, (template, named))


def run_of(rec: Recorder, function: Callable[..., Any], name: str, rows: Sequence[Ragged], template: Any) -> Any:
    """A function of runs of one number of rows, which the template has holes for: a node for each of its results."""
    if rec.autocast is not None or rec.books is not None or not rec.flows:
        return NotImplemented
    shapes = [_shapes(function, rows, template, size) for size in SIZES]
    if shapes[0] is None or shapes[1] is None:
        return NotImplemented
    if isinstance(shapes[0], torch.Tensor):
        found = _place(shapes[0], shapes[1])
        return NotImplemented if found is None else _node(rec, function, name, rows, template, *found, None)
    places = [_place(a, b) for a, b in zip(shapes[0], shapes[1], strict=True)]
    if None in places:
        return NotImplemented
    results = [
        _node(rec, function, name, rows, template, *found, index)
        for index, found in enumerate(places) if found is not None
    ]  # fmt: skip
    return rebuilt(shapes[0], results)


def _node(rec: Recorder, function: Callable[..., Any], name: str, rows: Sequence[Ragged], template: Any, at: int,
          meta: torch.Tensor, index: int | None) -> Any:  # fmt: skip
    """One result of a function of runs."""
    places, slots = tuple(r.at for r in rows), tuple(r.row for r in rows)
    operation = Operation("function", name if index is None else f"{name}.{index}",
                          RunFunction(function, places, at, index), template, slots)  # fmt: skip
    key = function, repr((template, places, at, index)), slots
    run = RunOf(operation, rec.table.slot(class_of(meta)), at >= 0, key)
    parameters = rec.note_run(run), ONE if at < 0 else SEGMENTED
    made = one_step(rec, RUN, parameters, [triple(r.refs) for r in rows])
    return Ragged(rec, made, run.result, at) if at >= 0 else value_of(rec, made.start, run.result)


def _shapes(function: Callable[..., Any], rows: Sequence[Ragged], template: Any, size: int) -> Any:
    """What the function gives of so many rows, without data; None where it fails, draws, or gives no tensors."""
    args, kwargs = fill(template, [_meta(r, size) for r in rows])
    with Dispatched() as dispatched:
        try:
            result = function(*args, **kwargs)
        except Exception:  # whatever it is, the call itself will say so
            return None
    tensors = result if isinstance(result, tuple) else (result,)
    if dispatched.draws or dispatched.shape_by_value or dispatched.is_foreign:
        return None
    return result if all(type(x) is torch.Tensor and x.layout is torch.strided for x in tensors) else None


def _place(one: torch.Tensor, other: torch.Tensor) -> tuple[int, torch.Tensor] | None:
    """Where the rows of a result stand, -1 where it is one value, and what one looks like; None where it is not of
    n rows, given what it is of `SIZES`."""
    if one.ndim != other.ndim:
        return None
    differ = [d for d, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)) if a != b]
    if not differ:
        return -1, one
    at = differ[0]
    if len(differ) > 1 or (one.shape[at], other.shape[at]) != SIZES:
        return None
    return at, one.select(at, 0)


def _meta(ragged: Ragged, size: int) -> torch.Tensor:
    shape = ragged.row.shape
    return torch.empty((*shape[: ragged.at], size, *shape[ragged.at :]), dtype=ragged.row.dtype, device="meta")


def _placed(item: Any, rows: list[Ragged]) -> Any:
    """An argument with a hole for a ragged value, which goes to `rows`."""
    if type(item) is Ragged:
        rows.append(item)
        return Hole(len(rows) - 1)
    return item


def _is_constant(item: Any) -> bool:
    """Whether an argument is a hole, or says the same for every instance."""
    if type(item) is Hole or item is None or isinstance(item, int | float | str | bool | torch.dtype):
        return True
    return isinstance(item, tuple | list) and all(_is_constant(x) and type(x) is not Hole for x in item)
