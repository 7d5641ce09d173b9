"""What segments carry to later ones: values as rows of tables (`forward.cutting`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from edbc.capture.forward.returned import Collected
    from edbc.capture.record.recording import Recording

Table = torch.Tensor | list[torch.Tensor]
"""Values of one class, `(rows, ...)`, or one by one where autograd shall know them so."""
_EXCLUDE: Any = getattr(torch._C, "_ExcludeDispatchKeyGuard", None)
_VIEWS: Any = None if _EXCLUDE is None else torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


class Carried(Sequence[torch.Tensor]):
    """The values of one class that the segments of a mini-batch have carried so far. `are_numbers` says that each is of
    one element."""

    def __init__(self, are_numbers: bool = False) -> None:
        self.are_numbers = are_numbers
        self.length = 0
        """Of all tables, and of those that are yet to come."""
        self.in_tables = True
        """Whether `where` can tell."""
        self._tables: list[Table] = []
        self._rows: dict[int, Sequence[torch.Tensor]] = {}
        """The rows of a table as tensors, by its number, once somebody has asked for one."""
        self._numbers: dict[int, list[Any]] = {}
        """The same as Python's numbers."""
        self._on_host: dict[int, torch.Tensor] = {}
        """Rows that have crossed from a device."""
        self._starts: list[int] = []
        self._end = 0
        """Of the rows of all tables."""
        self._where = np.empty((8, 3), np.int64)
        """Of every table: its first row, and the address and the bytes of a row."""
        self._address = self._where.ctypes.data

    def add(self, table: Table) -> None:
        """Append the rows of a table."""
        number, start = len(self._tables), self._end
        self._starts.append(start)
        self._end = start + (len(table) if isinstance(table, list) else table.shape[0])
        self._tables.append(table)
        if isinstance(table, list):
            self.in_tables = False
            return
        if number == len(self._where):
            self._where = np.concatenate([self._where, self._where])
            self._address = self._where.ctypes.data
        self._where[number] = start, table.data_ptr(), table.stride(0) * table.itemsize

    def __len__(self) -> int:
        return self.length

    def _table_of(self, index: int) -> int:
        """The number of the table that a row is in: nearly always the last."""
        number = len(self._starts) - 1
        return number if index >= self._starts[number] else bisect_right(self._starts, index) - 1

    def __getitem__(self, index: Any) -> Any:
        number = self._table_of(index)
        rows = self._rows.get(number)
        if rows is None:
            table = self._tables[number]
            rows = self._rows[number] = table if isinstance(table, list) else each_row(table)
        return rows[index - self._starts[number]]

    def number(self, index: int) -> Any:
        """What a row is, of values of one element; its table's cross with it."""
        number = len(self._starts) - 1
        if index < self._starts[number]:
            number = self._table_of(index)
        numbers = self._numbers.get(number)
        if numbers is None:
            numbers = self._numbers[number] = _numbers_of(self._tables[number])
        return numbers[index - self._starts[number]]

    def on_host(self, index: int) -> torch.Tensor:
        """A row there."""
        known = self._on_host.get(index)
        return self[index].cpu() if known is None else known

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[index] for index in range(self.length))

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient of any of them is wanted."""
        return any(isinstance(table, list) and any(row.requires_grad for row in table) for table in self._tables)

    def where(self) -> tuple[int, int]:
        """The address of three integers for every table: its first row, and the address and the bytes of a row; and how
        many tables there are. Rows are on the host, their elements in order."""
        return self._address, len(self._tables)


@dataclass(frozen=True, eq=False)
class Given:
    """Results of a mini-batch that earlier segments of it computed."""

    tensors: dict[int, torch.Tensor]
    """By their numbers among all results."""
    rest: list[int]
    """The numbers of the others."""

    @classmethod
    def of(cls, recording: Recording, collected: Collected, pools: Sequence[Carried | None]) -> Given | None:
        """Those that `pools` hold, by source; None for none."""
        tensors, rest = {}, []
        first = -1 - recording.first_external
        source, index = recording.external_source, recording.external_index
        for number, ref in enumerate(collected.refs.tolist()):
            external = first - ref
            pool = pools[source[external]] if ref < 0 and 0 <= external < len(source) else None
            if pool is None:
                rest.append(number)
                continue
            tensor = pool[index[external]]
            for step in collected.slots[number].views:
                tensor = step.apply(tensor)
            tensors[number] = tensor
        return cls(tensors, rest) if tensors else None

    def among(self, others: Sequence[Any]) -> list[Any]:
        """All results, in order."""
        found: list[Any] = [None] * (len(self.tensors) + len(self.rest))
        for number, tensor in zip(self.rest, others, strict=True):
            found[number] = tensor
        for number, tensor in self.tensors.items():
            found[number] = tensor
        return found


def copy_to_host(rows: Sequence[tuple[Carried, int]]) -> int:
    """Let rows cross from a device in one copy, with the whole tables of those that are numbers: how many bytes."""
    places = dict.fromkeys((pool, pool._table_of(i) if pool.are_numbers else i) for pool, i in rows)
    tensors = [torch.as_tensor(pool._tables[at]) if pool.are_numbers else pool[at] for pool, at in places]
    pieces = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    if not pieces:
        return 0
    parts = torch.cat(pieces).cpu().split([len(piece) for piece in pieces])
    for (pool, at), tensor, part in zip(places, tensors, parts, strict=True):
        found = part.clone().view(tensor.dtype).view(tensor.shape)
        if pool.are_numbers:
            pool._numbers[at] = _numbers_of(found)
        else:
            pool._on_host[at] = found
    return sum(map(len, pieces))


def _numbers_of(table: Table) -> list[Any]:
    if isinstance(table, list):
        return [row.item() for row in table]
    numbers: list[Any] = table.reshape(-1).tolist()
    return numbers


def each_row(table: torch.Tensor) -> Sequence[torch.Tensor]:
    """Tensors `(...)` of `(rows, ...)`. Vectors are taken by their sizes, in 0.8 of `unbind`'s time (by hand)."""
    with _no_views():
        if table.ndim != 2:
            return table.unbind(0)
        count, size = table.shape
        parts: Sequence[torch.Tensor] = table.view(-1).split_with_sizes([size] * count)
        return parts


def split_rows(table: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Tensors of so many rows `(rows, ...)` each, one after the other; of size 0, the next row `(...)`."""
    with _no_views():
        parts = table.split_with_sizes([size or 1 for size in sizes])
        return [part if size else part.squeeze(0) for part, size in zip(parts, sizes, strict=True)]


def split_shapes(
    flat: torch.Tensor, lengths: Sequence[int], shapes: Sequence[tuple[int, ...] | None]
) -> Sequence[torch.Tensor]:
    """Tensors of so many elements and of these shapes, one after the other; None is that of a vector."""
    with _no_views():
        parts = flat.split_with_sizes(lengths)
        return [part if shape is None else part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _no_views() -> AbstractContextManager[Any]:
    """In it, torch's views are tensors that know of no base: rows that nobody has as a whole are no views, and making
    them takes 0.8 of the time. A plain context where torch has no such switch."""
    return _EXCLUDE(_VIEWS) if _EXCLUDE is not None else nullcontext()
