"""Ragged values that change in place: names that show other rows from then on.

A ragged value that nothing else shows memory of changes by itself. What shares memory with rows (`h[i]`, `h[1:]`, a
view of a tensor that forward made) is not followed: the instance is recorded again without ragged classes.
"""

from __future__ import annotations

from typing import Any

import torch

from edbc.capture.ragged.across import written
from edbc.capture.ragged.call import Call
from edbc.capture.ragged.rows import rows_of
from edbc.capture.ragged.value import NotRagged, Ragged
from edbc.capture.semantics import rules
from edbc.capture.standins.standin import Symbol

_OPERATORS = {"iadd": torch.add, "isub": torch.sub, "imul": torch.mul, "itruediv": torch.true_divide}


def change_rows(call: Call) -> Any:
    """A function that changes its first argument, some of whose arguments are ragged."""
    rec = call.rec
    rec.open_books()
    target = _name_of(call)
    if not rec.flows or call.kwargs.get("out") is not None or call.kwargs.get("inplace") is True:
        raise NotRagged
    if type(target) is not Ragged or target.aliased:
        raise NotRagged
    new = _set_item(call, target) if call.name == "setitem" else _changed(call, target)
    if type(new) is not Ragged or new.shape != target.shape or new.dtype is not target.dtype:
        raise NotRagged
    target.become(new)
    return target


def _name_of(call: Call) -> Any:
    """What is changed: a ragged value, or the one that stands for a tensor that forward has just made."""
    item, books = call.args[0], call.rec.open_books()
    if type(item) is not torch.Tensor:
        return item
    known = books.stand_in(item)
    if known is not item:
        return known
    if not books.is_fresh(item) or not item.ndim or not item.is_floating_point() or not item.shape[0]:
        raise NotRagged
    found = rows_of(call.rec, item, 0)
    name = Ragged(call.rec, found.refs, found.row)
    books.stand_for(item, name)
    return name


def _changed(call: Call, target: Ragged) -> Any:
    name = call.name
    function: Any = _OPERATORS.get(name) or getattr(torch.Tensor, name.removesuffix("_"), None)
    if function is None or not (name in _OPERATORS or name.endswith("_")) or name in ("zero_", "fill_", "copy_"):
        raise NotRagged
    if any(x is target for x in call.args[1:]) and not rules.is_pointwise(name.removesuffix("_")):
        raise NotRagged
    return call.rec.function(function, (target, *call.args[1:]), call.kwargs)


def _set_item(call: Call, target: Ragged) -> Any:
    """`x[index] = value`, of whole rows."""
    _, index, value = call.args
    if target.at or not isinstance(value, Symbol | torch.Tensor):
        raise NotRagged
    numbers = torch.arange(len(target.refs))
    if isinstance(index, tuple) or index is None or index is Ellipsis or isinstance(index, Symbol):
        raise NotRagged
    chosen = numbers[index]
    if type(index) is int:
        value = value.unsqueeze(0)
    if value.ndim != target.ndim or value.shape[0] != chosen.numel() or value.shape[1:] != target.shape[1:]:
        raise NotRagged
    return written(call, target, 0, chosen.reshape(-1).tolist(), value)
