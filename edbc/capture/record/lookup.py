"""Look-ups whose gradient differs from indexing: those of nn.Embedding with `padding_idx` or `sparse`.

The values that a look-up gives are the table's rows either way, so it stays an operand and no node. What differs is the
gradient of the table: a padding row gets none, and a sparse one is a sparse tensor. Such look-ups read the table by
another reference: a view that changes nothing and says how its gradient is to be.

And look-ups by Python numbers. `self.words(torch.tensor(word))` makes a tensor, and is asked for the number in it: 2.5
microseconds, where appending an external takes 0.3. So copies of the user's methods (`code.regions`) hand the number
over as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from edbc.capture.ragged.symbols import Listed
from edbc.capture.record.table import Hole, SharedRef, View
from edbc.capture.standins.standin import Lazy, Shared, Slot, Value
from edbc.capture.standins.told import Array

LOOK_UP, LOOK_UP_ONE = "look up", "look up one"
"""The variables that copies call in place of a look-up by numbers, and by `[number]`; no names that a user's function
could have."""
_ROWS = "rows by number"
"""What a recording nn.Embedding has for it."""


@dataclass(frozen=True)
class LookUp:
    """The view, which gives back the table."""

    padding_index: int | None
    sparse: bool

    def __call__(self, table: torch.Tensor) -> torch.Tensor:
        return table


def looked_up(table: Shared, padding_index: int | None, sparse: bool) -> Shared:
    """The table by the reference that these options ask for."""
    if padding_index is None and not sparse:
        return table

    def derive() -> tuple[Any, list[Shared]]:
        row = None if padding_index is None else padding_index % len(table.tensor)
        view = View(LookUp(row, sparse), ((Hole(0),), {}), None, "")
        return None, [Shared(table.rec, table.ref._replace(views=(*table.ref.views, view)), table.tensor)]

    return table.derived((LookUp, padding_index, sparse), derive)[1][0]


def look_up_of(ref: SharedRef) -> LookUp | None:
    """The options that a table is looked up with, if any."""
    function = ref.views[-1].function if ref.views else None
    return function if isinstance(function, LookUp) else None


def look_up(words: Any, numbers: Any, make: Any = None) -> Any:
    """`words(torch.tensor(numbers))`, or what else makes a tensor: `torch.LongTensor`, to which a number is a size."""
    if make is not None and type(numbers) is not list:
        return words(make(numbers))
    if type(numbers) is Array:
        numbers = numbers.tensor
    elif type(numbers) is Listed:
        numbers = numbers.as_index
    rows = words.__dict__.get(_ROWS) if isinstance(words, nn.Module) else None
    found = None if rows is None else rows(numbers)
    if found is not None:
        return found
    if make is not None:
        return words(make(numbers))
    if isinstance(numbers, Lazy):
        return words(numbers)
    is_empty = type(numbers) is list and not numbers
    return words(torch.tensor(numbers, dtype=torch.int64) if is_empty else torch.tensor(numbers))


def look_up_one(words: Any, number: Any, make: Any = None) -> Any:
    """`words(torch.tensor([number]))`, which is a row seen as `(1, ...)`, or of what else makes the tensor."""
    rows = words.__dict__.get(_ROWS) if isinstance(words, nn.Module) else None
    if make is None and type(number) is Listed:
        number = number.as_index
    if make is None and isinstance(number, Lazy):
        return words(number.unsqueeze(0))
    found = None if rows is None or not isinstance(number, int) else rows(number, True)
    if found is not None:
        return found
    return words(torch.tensor([number]) if make is None else make(number))


def looks_up_numbers(recorder: Any, module: Any) -> None:
    """Let a recording nn.Embedding give the row of a number, or the rows of a list of them; None where a tensor must be
    made."""
    tables: list[Shared] = []
    slot_of_one: list[Slot] = []

    def rows(numbers: Any, is_one: bool = False) -> Any:
        if not recorder.flows or (recorder.books is not None and (is_one or type(numbers) is not int)):
            return None
        if not tables:
            tables.append(looked_up(module.weight, module.padding_idx, module.sparse))
        [table] = tables
        if recorder.shows is not None and (told := recorder.shows.look_up(table, numbers)) is not None:
            return told.unsqueeze(0) if is_one else told
        if type(numbers) is int and 0 <= numbers < (table.rows or table.look()):  # `Shared.row` without its call
            recorder.external_source.append(table.source)
            recorder.external_index.append(numbers)
            value = Value()
            value.rec = recorder
            value.ref = recorder.last_external = recorder.last_external - 1
            if is_one and not slot_of_one:
                slot_of_one.append(table.lookup(numbers).unsqueeze(0).slot)
            value.slot = slot_of_one[0] if is_one else table.row_slot
            return value
        if type(numbers) is list and numbers and table.rows and {int} == set(map(type, numbers)):
            return table._many(numbers) if min(numbers) >= 0 and max(numbers) < table.rows else None
        return None

    module.__dict__[_ROWS] = rows
