"""Arenas of one mini-batch as matrices, one per value class, externals copied in; what reference and device use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch

from edbc.base.graph import ValueClass
from edbc.capture.forward.carried import Carried
from edbc.capture.standins.standin import torch_dtype
from edbc.native.memory import MemoryErrors, require_memory
from edbc.run.passes.placement import Longs, Placement

Shared = dict[Any, Any]
"""What segments of one mini-batch have in common: parameters by the number of their source, and what a back end puts
into it."""


Table = tuple[int, int, int, torch.Tensor | Carried]
"""A class, where in rows and indices those of a table begin and end, and the table, or what earlier segments have
computed."""


class Values(Protocol):
    """What leaves arenas."""

    def rows(self, class_index: int, rows: Longs) -> torch.Tensor:
        """A copy of rows of a class, `(len(rows), size)`."""

    def mixed(self, classes: Longs, rows: Longs, count: int) -> torch.Tensor:
        """A copy of rows, each of a class of its own, all of one dtype, one after the other: so many elements. Asked of
        back ends that mix."""


class Arenas(Values, Protocol):
    """Where the values of a segment are while its mini-batch lives."""

    placement: Placement
    shared: Shared

    def bind(self, class_index: int, rows: Longs, table: torch.Tensor, index: Longs) -> None:
        """The external in row `rows[i]` of a class is row `index[i]` of `table`, `(rows, ...)`."""

    def bind_tables(self, rows: Longs, index: Longs, tables: Sequence[Table]) -> None:
        """`bind` of several tables, each with a part of `rows` and `index`; one of a single row has it for all."""

    def bind_each(self, class_index: int, rows: Longs, tensors: Sequence[torch.Tensor]) -> None:
        """The external in row `rows[i]` of a class is `tensors[i]`."""

    def expect(self, class_index: int, rows: Longs) -> None:
        """A promise that `rows` will be called with this very array: a device's arenas take its indices up early."""

    def release(self) -> None:
        """Nothing needs the values any more."""


class TensorArenas:
    """One matrix per value class, `(rows, size)`, all in one piece of memory. Not initialised: every row is written
    before it is read. So many bytes of `workspace` stand behind them."""

    def __init__(self, placement: Placement, device: torch.device, workspace: int = 0):
        self.placement = placement
        self.shared: Shared = {}
        self.device = device
        end = int(placement.begins[-1])
        if device.type == "cpu":
            require_memory(end + workspace, "the values of this mini-batch")
        with MemoryErrors("the values of this mini-batch"):
            self.memory = torch.empty(end + workspace, dtype=torch.uint8, device=device)

    @property
    def addresses(self) -> Longs:
        """Where each class begins, and their end, which is where the workspace does."""
        return self.placement.begins + self.memory.data_ptr()

    @cached_property
    def tensors(self) -> list[torch.Tensor]:
        """The matrices."""
        rows = zip(
            self.placement.classes, self.placement.class_rows.tolist(), self.placement.begins.tolist(), strict=False
        )
        return [_matrix(self.memory, begin, count, value_class) for value_class, count, begin in rows]

    def bind(self, class_index: int, rows: Longs, table: torch.Tensor, index: Longs) -> None:
        """See Arenas: copies the rows."""
        arena = self.tensors[class_index]
        picked = table.index_select(0, torch.from_numpy(index).to(table.device)).reshape(len(index), -1)
        where = torch.from_numpy(np.ascontiguousarray(rows)).to(arena.device)
        arena.index_copy_(0, where, picked.to(device=arena.device, dtype=arena.dtype))

    def bind_tables(self, rows: Longs, index: Longs, tables: Sequence[Table]) -> None:
        """See Arenas: one after the other."""
        for c, begin, end, table in tables:
            here = index[begin:end]
            if isinstance(table, Carried):
                self.bind_each(c, rows[begin:end], [table[i] for i in here.tolist()])
            else:
                self.bind(c, rows[begin:end], table, here if table.shape[0] > 1 else np.zeros_like(here))

    def bind_each(self, class_index: int, rows: Longs, tensors: Sequence[torch.Tensor]) -> None:
        """See Arenas: as one table."""
        self.bind(class_index, rows, torch.stack(list(tensors)), np.arange(len(rows)))

    def expect(self, class_index: int, rows: Longs) -> None:
        """See Arenas: nothing to prepare."""

    def rows(self, class_index: int, rows: Longs) -> torch.Tensor:
        """See Arenas."""
        arena = self.tensors[class_index]
        return arena.index_select(0, torch.from_numpy(rows).to(arena.device))

    def mixed(self, classes: Longs, rows: Longs, count: int) -> torch.Tensor:
        """See Arenas."""
        return torch.cat([self.tensors[c][row] for c, row in zip(classes.tolist(), rows.tolist(), strict=True)])

    def release(self) -> None:
        """See Arenas: the allocator takes the memory back."""
        for name in ("tensors", "memory"):
            self.__dict__.pop(name, None)


def _matrix(memory: torch.Tensor, begin: int, rows: int, value_class: ValueClass) -> torch.Tensor:
    dtype = torch_dtype(value_class.dtype)
    end = begin + rows * value_class.size * dtype.itemsize
    return memory[begin:end].view(dtype).view(rows, value_class.size)


def arena_bytes(placement: Placement, externals: bool = True) -> int:
    """Bytes of all rows, those of externals counted or not."""
    rows = placement.class_rows if externals else placement.class_rows - placement.class_externals
    return int(rows @ placement.row_bytes)
