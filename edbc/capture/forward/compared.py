"""Comparisons of numbers that exist already: answered on the host, and no instance waits.

Who sorts n things by a score asks n log n times which of two is larger. The first time the instance waits, and all that
is computed as the two are is computed with them; from then on each answer is a comparison of Python's numbers, which
are those of torch where both are of one dtype.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from edbc.capture.forward.carried import Carried
from edbc.capture.record.table import Hole

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder
    from edbc.capture.standins.standin import Slot, Value

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_OF_TWO: Any = ((Hole(0), Hole(1)), {})


def compared(rec: Recorder, value: Value, met: set[int]) -> bool | None:
    """What a value is that has just been recorded, a comparison of two numbers that segments have computed; None for
    any other. `met` are the entries of comparisons whose operands are known to be asked for."""
    if value.ref != rec.next_value - 1 or not rec.entries or rec.entries[-1] < 0:
        return None
    entry = rec.table.entries[rec.entries[-1]]
    compare, slots = _COMPARISONS.get(entry.operation.name), entry.operation.slots
    if (
        compare is None
        or len(slots) != 2
        or slots[0].dtype is not slots[1].dtype
        or entry.operation.template != _OF_TWO
    ):
        return None
    numbers = list(map(_number, (rec, rec), rec.refs[-2:], slots))
    if None not in numbers:
        return compare(*numbers)
    if entry.index not in met:
        met.add(entry.index)
        _let_exist_together(rec, [ref for ref in rec.refs[-2:] if ref >= 0])
    return None


@lru_cache(maxsize=64)
def as_tensor(answer: bool, shape: torch.Size) -> torch.Tensor:
    """An answer as eager code has it, which nobody changes."""
    return torch.full(shape, answer)


def _number(rec: Recorder, ref: int, slot: Slot) -> Any:
    number = -1 - rec.first_external - ref
    rows = None if ref >= 0 else rec.constants.get(rec.external_source[number])
    if type(rows) is not Carried or slot.shape.numel() != 1:
        return None
    index = rec.external_index[number]
    if rows.are_numbers:
        return rows.number(index)
    tensor = rows[index].detach()
    for step in slot.views:
        tensor = step.apply(tensor)
    return tensor.item()


def _let_exist_together(rec: Recorder, refs: list[int]) -> None:
    """Values are computed as soon as any that is computed like them is (`forward.cutting`, definition (1))."""
    value = rec.first_value
    for number in rec.entries:
        if number < 0:  # a run, whose values have entries of their own
            return
        end = value + len(rec.table.entries[number].output_slots)
        if any(value <= ref < end for ref in refs):
            rec.table.was_read()[number] = True
        value = end
