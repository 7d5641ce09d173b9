"""Look-ups whose gradient differs from indexing: those of nn.Embedding with `padding_idx` or `sparse`.

The values that a look-up gives are the table's rows either way, so it stays an operand and no node. What differs is the
gradient of the table: a padding row gets none, and a sparse one is a sparse tensor. Such look-ups read the table by
another reference: a view that changes nothing and says how its gradient is to be.

And look-ups by Python numbers. `self.words(torch.tensor(word))` makes a tensor, and is asked for the number in it: 2.5
microseconds, where appending an external takes 0.3. So copies of the user's methods (`code.regions`) hand the number
over as it is (`code.rebind.look_up`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from edbc.capture.record.table import Hole, SharedRef, View
from edbc.capture.standins.standin import Shared, Slot, Value

ROWS = "rows by number"
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

    module.__dict__[ROWS] = rows
