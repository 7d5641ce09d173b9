"""What segments carry to later ones: values as rows of tables (`forward.cutting`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.capture.record.table import through
from edbc.capture.standins.standin import bits_of

if TYPE_CHECKING:
    from edbc.capture.forward.returned import Collected
    from edbc.capture.record.recording import Recording

_EXCLUDE: Any = getattr(torch._C, "_ExcludeDispatchKeyGuard", None)
_OF_NUMPY = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64, torch.bool: np.bool_}
_PLACE = Struct("3q")
_VIEWS: Any = None if _EXCLUDE is None else torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


class Piece(NamedTuple):
    """Rows on the host, a tensor where somebody asks for one: making it takes longer than reading numbers."""

    memory: NDArray[np.uint8]
    """Others are in it, too."""
    begin: int
    end: int
    address: int
    of_row: int
    """Bytes of a row."""
    shape: tuple[int, ...]
    """`(rows, ...)`."""
    dtype: torch.dtype

    def tensor(self) -> torch.Tensor:
        """The rows."""
        count = (self.end - self.begin) // self.dtype.itemsize
        return torch.frombuffer(self.memory, dtype=self.dtype, count=count, offset=self.begin).view(self.shape)

    def array(self) -> Any:
        """The same for NumPy, where that has the dtype; `tolist` of either gives equal lists."""
        dtype = _OF_NUMPY.get(self.dtype)
        return self.tensor() if dtype is None else self.memory[self.begin : self.end].view(dtype).reshape(self.shape)


Table = torch.Tensor | list[torch.Tensor] | Piece
"""Values of one class, `(rows, ...)`, or one by one where autograd shall know them so."""


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
        self.rows: list[torch.Tensor | None] = []
        """Those of a table as tensors, once somebody has asked for one."""
        self.numbers: list[Any] = []
        """The same as Python's numbers, of more than one element lists of those."""
        self._on_host: dict[int, torch.Tensor] = {}
        """Rows that have crossed from a device."""
        self._starts: list[int] = []
        self._where = np.empty((8, 3), np.int64)
        """Of every table: its first row, and the address and the bytes of a row."""
        self._address = self._where.ctypes.data

    def add(self, table: Table) -> None:
        """Append the rows of a table."""
        number, start = len(self._tables), len(self.rows)
        self._starts.append(start)
        self._tables.append(table)
        if isinstance(table, Piece):
            count, address, of_row = table.shape[0], table.address, table.of_row
        elif isinstance(table, list):
            count, address, of_row, self.in_tables = len(table), 0, 0, False
        else:
            count, address, of_row = table.shape[0], table.data_ptr(), table.stride(0) * table.itemsize
        self.rows += [None] * count
        self.numbers += [None] * count
        if number == len(self._where):
            self._where = np.concatenate([self._where, self._where])
            self._address = self._where.ctypes.data
        _PLACE.pack_into(self._where.data, number * _PLACE.size, start, address, of_row)

    def __len__(self) -> int:
        return self.length

    def _table_of(self, index: int) -> int:
        """The number of the table that a row is in: nearly always the last."""
        number = len(self._starts) - 1
        return number if index >= self._starts[number] else bisect_right(self._starts, index) - 1

    def __getitem__(self, index: Any) -> Any:
        found = self.rows[index]
        if found is None:
            number = self._table_of(index)
            table, start = _as_tensors(self._tables[number]), self._starts[number]
            tensors = table if isinstance(table, list) else each_row(table)
            self.rows[start : start + len(tensors)] = tensors
            found = tensors[index - start]
        return found

    def number(self, index: int) -> Any:
        """What a row is as Python's numbers; its table's cross with it."""
        found = self.numbers[index]
        if found is None:
            number = self._table_of(index)
            self.have_numbers(number, self._numbers_of(self._tables[number]))
            found = self.numbers[index]
        return found

    def _numbers_of(self, table: Table) -> list[Any]:
        if isinstance(table, list):
            return [row.item() if self.are_numbers else row.tolist() for row in table]
        rows = table.array() if isinstance(table, Piece) else table
        numbers: list[Any] = (rows.reshape(-1) if self.are_numbers else rows).tolist()
        return numbers

    def have_numbers(self, number: int, numbers: list[Any]) -> None:
        """Of all rows of a table."""
        start = self._starts[number]
        self.numbers[start : start + len(numbers)] = numbers

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

    rows: list[tuple[int, Carried, int, tuple[Any, ...]]]
    """The number of each among all results, the row that it is of what is carried, and the views that it is seen by."""
    rest: list[int]
    """The numbers of the others."""

    @classmethod
    def of(cls, recording: Recording, collected: Collected, pools: Sequence[Carried | None]) -> Given | None:
        """Those that `pools` hold, by source; None for none."""
        rows, rest = [], []
        first = -1 - recording.first_external
        source, index = recording.external_source, recording.external_index
        for number, ref in enumerate(collected.refs.tolist()):
            external = first - ref
            pool = pools[source[external]] if ref < 0 and 0 <= external < len(source) else None
            if pool is None:
                rest.append(number)
            else:
                rows.append((number, pool, index[external], collected.slots[number].views))
        return cls(rows, rest) if rows else None

    def among(self, others: Sequence[Any]) -> list[Any]:
        """All results, in order."""
        found: list[Any] = [None] * (len(self.rows) + len(self.rest))
        for number, tensor in zip(self.rest, others, strict=True):
            found[number] = tensor
        for number, pool, at, views in self.rows:
            found[number] = through(views, pool[at])
        return found


def copy_to_host(rows: Sequence[tuple[Carried, int]]) -> int:
    """Let rows cross from a device in one copy, with the whole tables of those that are numbers: how many bytes."""
    places = dict.fromkeys((pool, pool._table_of(i) if pool.are_numbers else i) for pool, i in rows)
    tensors = [torch.as_tensor(_as_tensors(pool._tables[at])) if pool.are_numbers else pool[at] for pool, at in places]
    pieces = list(map(bits_of, tensors))
    if not pieces:
        return 0
    parts = torch.cat(pieces).cpu().split([len(piece) for piece in pieces])
    for (pool, at), tensor, part in zip(places, tensors, parts, strict=True):
        found = part.clone().view(tensor.dtype).view(tensor.shape)
        if pool.are_numbers:
            pool.have_numbers(at, pool._numbers_of(found))
        else:
            pool._on_host[at] = found
    return sum(map(len, pieces))


def _as_tensors(table: Table) -> torch.Tensor | list[torch.Tensor]:
    return table.tensor() if isinstance(table, Piece) else table


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
