"""Numbers that exist when forward asks: elements of values that segments have computed, and comparisons of two.

Who sorts n things by a score asks n log n times which of two is larger, and each answer is there once the scores are:
no instance has to wait for it. The first time one waits, and all that is computed as the two are is computed with them
(`forward.cutting`, definition (1)). Python's numbers compare as torch's do where both are of one dtype.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from edbc.base.graph import EXCERPT
from edbc.capture.forward.carried import Carried
from edbc.capture.record.table import Hole, through

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder
    from edbc.capture.record.table import Entry
    from edbc.capture.standins.standin import Slot, Value

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_OF_TWO: Any = ((Hole(0), Hole(1)), {})
_NEAR = 5
"""Nodes back from the last one among which a value is looked for: a comparison, and two elements of rows."""


def existing(rec: Recorder, value: Value, met: set[int]) -> Any:
    """The number that a value is that has just been recorded; None where it has to be computed. `met` are the entries
    of which that is known, those of other operations, and, negative, comparisons whose operands are asked for."""
    entry, refs = _node(rec, value.ref)
    if entry is None:
        return None
    compare, slots = _COMPARISONS.get(entry.operation.name), entry.given
    if compare is None or entry.operation.template != _OF_TWO or slots[0].dtype is not slots[1].dtype:
        if entry.operation.name != EXCERPT:
            met.add(entry.index)
            return None
        return _number(rec, value.ref, value.slot)
    numbers = [_number(rec, ref, slot) for ref, slot in zip(refs, slots, strict=True)]
    if None not in numbers:
        return compare(*numbers)
    if (asked := -1 - entry.index) not in met:
        met.add(asked)
        _let_exist_together(rec, [ref for ref in refs if ref >= 0])
    return None


class Existing(Sequence[torch.Tensor]):
    """Such a number, a tensor as eager code has it once somebody asks: making one takes as long as comparing two."""

    __slots__ = ("number", "slot")

    def __init__(self, number: Any, slot: Slot):
        self.number, self.slot = number, slot

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        return torch.full(self.slot.shape, self.number, dtype=self.slot.dtype)


def _node(rec: Recorder, ref: int) -> tuple[Entry | None, Sequence[int]]:
    """Of the last nodes the one that computes a value, with its operands."""
    value, end = rec.next_value, len(rec.refs)
    for number in islice(reversed(rec.entries), _NEAR):
        if number < 0:  # a run
            break
        entry = rec.table.entries[number]
        value, begin = value - len(entry.output_slots), end - entry.num_operands
        if value <= ref:
            return entry, rec.refs[begin:end]
        end = begin
    return None, ()


def _number(rec: Recorder, ref: int, slot: Slot) -> Any:
    if slot.shape.numel() != 1:
        return None
    if ref < 0:
        return _element(rec, ref, slot.views, 0)
    offset = 0
    while ref >= 0:  # an element of a row of a matrix
        entry, refs = _node(rec, ref)
        if entry is None or entry.operation.name != EXCERPT or slot.views:
            return None
        ref, offset = refs[0], offset + rec.external_index[_external(rec, refs[1])]
    return _element(rec, ref, (), offset)


def _element(rec: Recorder, ref: int, views: Sequence[Any], offset: int) -> Any:
    """An element, in the order of memory, of what segments have computed; None of any other external."""
    number = _external(rec, ref)
    rows = rec.constants.get(rec.external_source[number])
    if type(rows) is not Carried:
        return None
    index = rec.external_index[number]
    found = None if views else rows.number(index)
    if type(found) is list:  # of lists, where rows are matrices
        found = None if type(found[0]) is list else found[offset]
    if found is None:
        found = through(views, rows[index].detach()).reshape(-1)[offset].item()
    return found


def _external(rec: Recorder, ref: int) -> int:
    return -1 - rec.first_external - ref


def _let_exist_together(rec: Recorder, refs: Sequence[int]) -> None:
    """Values are computed as soon as any that is computed like them is."""
    value = rec.first_value
    for number in rec.entries:
        if number < 0:  # a run, whose values have entries of their own
            return
        end = value + len(rec.table.entries[number].output_slots)
        if any(value <= ref < end for ref in refs):
            rec.table.was_read()[number] = True
        value = end
