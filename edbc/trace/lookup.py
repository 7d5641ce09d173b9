"""Look-ups whose gradient differs from indexing: those of nn.Embedding with `padding_idx` or `sparse`.

The values that a look-up gives are the table's rows either way, so it stays an operand and no node. What differs is the
gradient of the table: a padding row gets none, and a sparse one is a sparse tensor. Such look-ups read the table by
another reference: a view that changes nothing and says how its gradient is to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from edbc.trace.table import Hole, SharedRef, View
from edbc.trace.values import Shared


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
