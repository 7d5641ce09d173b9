"""Numbers that follow from sizes (`symbols.Amount`), where code that is being kept gives them to torch.

(1) Arithmetic of a tensor and a size, or an amount, computes with a value of the graph: as many ones as there are rows,
    summed, and what the amount makes of that. So `h.sum(0) / n` and `h / math.sqrt(n)` are kept for all n, and
    `h.sum(1) / lengths` of a tensor of one length.
(2) `n - 1` is a place among n rows, counted from the end: `h[n - 1]` is `h[-1]`, `h[: n - 1]` is `h[:-1]`, for n that
    are large enough; `h[-n:]` is h.
(3) Other places that follow from sizes (`h[n // 2]`, `h[: n // 2]`) are indices that are worked out (`whole.worked`).
(4) Anything else asks for the integer, so what is recorded is kept for these sizes alone.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from edbc.capture.ragged.masks import of_sizes
from edbc.capture.ragged.program import triple
from edbc.capture.ragged.rows import rows_described
from edbc.capture.ragged.symbols import MOST, Amount, Mask, Range, Size, asked, offset_of
from edbc.capture.ragged.value import Ragged
from edbc.capture.semantics import rules
from edbc.capture.semantics.shapes import flat
from edbc.capture.standins.made import Description
from edbc.capture.standins.standin import Symbol

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

_ARITHMETIC = frozenset(
    [name
     for one in ("add", "sub", "mul", "div", "truediv", "true_divide", "pow", "multiply", "divide", "subtract")
     for name in (one, f"r{one}", f"i{one}", f"{one}_")]
)  # fmt: skip

_VIEWS = frozenset(("view", "reshape"))
"""Functions that may be told `n * m`, of rows by pairs (`ragged.whole.pairs`)."""
_OF_TENSORS: dict[Callable[..., Any], Callable[..., Any]] = {math.sqrt: torch.sqrt, math.log: torch.log}


def told(rec: Recorder, func: Callable[..., Any], args: tuple[Any, ...],
         kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    """The arguments of a torch function with no amount among them, and no size as an operand of arithmetic."""
    name = rules.name_of(func)
    if name == "getitem" and len(args) == 2 and type(args[0]) is Ragged:
        args = args[0], _index(rec, args[0], args[1])
    like = next((x for x in args if isinstance(x, Symbol) and x.dtype.is_floating_point), None)
    if like is not None and name in _ARITHMETIC and not kwargs:
        return tuple([_value(rec, x, like.dtype) for x in args]), kwargs
    if name in _VIEWS and all(type(x) is not Amount or x.factors is not None for x in flat(args, kwargs)):
        return args, kwargs
    return asked(args), asked(kwargs)


def _value(rec: Recorder, item: Any, dtype: torch.dtype) -> Any:
    """Definition (1)."""
    if type(item) is Size:
        described = Description(torch.full, torch.Size([item.value]), (1.0,), dtype)
        return rows_described(rec, described, item.like).sum(0)
    if type(item) is Mask and type(item.number) is Size and item.dtype is torch.int64:
        is_one = item.ndim and all(type(size) is int and size == 1 for size in item.dims)
        return _value(rec, item.number, dtype).view(item.dims) if is_one else item  # it takes a float's dtype
    if type(item) is not Amount:
        return item
    call = _OF_TENSORS.get(item.call, item.call)
    return call(*[_value(rec, x, dtype) for x in item.operands])


def _index(rec: Recorder, rows: Ragged, index: Any) -> Any:
    """Definition (2)."""
    items, dim, found = index if type(index) is tuple else (index,), 0, []
    if any(item is Ellipsis for item in items):
        return index
    for item in items:
        found.append(_worked_out(rec, rows, _place(rec, rows, item)) if dim == rows.at else item)
        dim += item is not None
    return tuple(found) if type(index) is tuple else found[0]


def _worked_out(rec: Recorder, rows: Ragged, item: Any) -> Any:
    """Definition (3): indices in the place of a number, or of a slice, that follows from sizes."""
    of = (item.start, item.stop, item.step) if type(item) is slice else (item,)
    if all(type(x) not in (Size, Amount) for x in of):
        return item
    size = Size(rec, len(rows.refs), triple(rows.refs))
    found = of_sizes(rec, torch.Tensor.__getitem__, (Range(size), item), {})
    return item if found is None else found


def _place(rec: Recorder, rows: Ragged, item: Any) -> Any:
    if type(item) is not slice:
        return _from_end(rec, rows, item) if offset_of(item) is not None else item
    if item.step not in (None, 1):
        return item
    stop = offset_of(item.stop)
    is_all = stop is not None and stop[1] >= 0 and stop[0].counts(rows.refs)
    of, size = item.start.operands if type(item.start) is Amount and item.start.call is operator.sub else (None, None)
    if type(of) is int and not of and type(size) is Size and size.counts(rows.refs):
        item = slice(None, item.stop)  # `h[-n:]` of n rows
    return slice(_from_end(rec, rows, item.start), None if is_all else _from_end(rec, rows, item.stop))


def _from_end(rec: Recorder, rows: Ragged, item: Any) -> Any:
    """A negative number in the place of one that is less than there are rows; anything else as it is."""
    of = offset_of(item)
    if of is None or not -len(rows.refs) <= of[1] < 0 or not of[0].counts(rows.refs):
        return item
    rec.within.append((of[0].like, -of[1], MOST))
    return of[1]
