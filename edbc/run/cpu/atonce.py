"""Mini-batches and segments that are one stretch of native batches, with next to no Python between a graph and results.

What `CpuArenas`, `load_externals` and `execute` do for any mini-batch, an object or a call for each source, class and
stretch, took longer than the batches of a small one; and while instances read values (`edbc.capture.forward.fibers`)
hundreds of small segments run per mini-batch. Here all that a structure tells is made once, which one that comes again
has already. The batches run in the same call of `walk`, so that values have the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.capture.code.shadow import ModelView
from edbc.capture.forward.build import Capture
from edbc.capture.forward.carried import Carried
from edbc.native.pool import aligned
from edbc.run.cpu.walk import INDICES, ONE_ROW, ROWS, bind_tables, gather_mixed, gather_rows
from edbc.run.passes.arenas import Shared
from edbc.run.passes.boundary import collect, table_of
from edbc.run.passes.placement import Longs, Placement

if TYPE_CHECKING:
    from edbc.run.cpu.cpubackend import CpuBackend, CpuDemand
    from edbc.run.passes.minibatch import MiniBatch


class Leaving:
    """Values of native batches by their rows, given the record of their memory."""

    __slots__ = ("dtypes", "placement", "record")

    def __init__(self, placement: Placement, record: Longs):
        self.placement, self.dtypes, self.record = placement, placement.dtypes, record

    def rows(self, class_index: int, rows: Longs) -> torch.Tensor:
        """See `edbc.run.passes.arenas.Values`."""
        result = torch.empty(len(rows), self.placement.classes[class_index].size, dtype=self.dtypes[class_index])
        gather_rows(result.data_ptr(), rows, class_index, self.record)
        return result

    def mixed(self, classes: Longs, rows: Longs, count: int) -> torch.Tensor:
        """See `edbc.run.passes.arenas.Values`."""
        result = torch.empty(count, dtype=self.dtypes[int(classes[0])])
        gather_mixed(result.data_ptr(), rows, classes, self.record)
        return result


class AtOnce:
    """See the module's docstring. Threads may share it."""

    kinds = frozenset(("carried", "row", "whole", "constant"))
    """Of sources that are bound here."""
    takes_segments = False
    """Whether `run` takes what is cut off as it is (`edbc.capture.forward.cutting`), in the place of its Capture."""

    def __init__(self, backend: CpuBackend, batch: MiniBatch, demand: CpuDemand):
        """`serves(batch, demand)` holds."""
        self._backend, self._demand, self._schedule = backend, demand, batch.schedule
        ((_, _, dtype),) = demand.stretches
        assert dtype is not None
        self._dtype = dtype
        self._placement, self._boundary = batch.placement, batch.boundary

    @classmethod
    def serves(cls, batch: MiniBatch, demand: CpuDemand) -> bool:
        """Whether it is one stretch of native batches on one thread, and draws nothing."""
        sources, stretches = batch.capture.sources, demand.stretches
        kinds = {sources[number].kind for number, *_ in batch.boundary.lookups.of_source}
        is_native = len(stretches) == 1 and stretches[0][2] is not None and demand.tasks is None
        return is_native and kinds <= cls.kinds

    def run(self, capture: Capture, shared: Shared, view: ModelView) -> list[Any]:
        """What each instance of a mini-batch of this structure returns, or what a segment carries, class by class."""
        demand, lookups, backend = self._demand, self._boundary.lookups, self._backend
        index = capture.external_index[lookups.order]
        told, kept = self._tables(capture, index, shared, view)
        record, buffer = demand.frame.record.copy(), backend.pool.take(demand.room)
        try:
            address = aligned(buffer.data_ptr())
            bind_tables(lookups.rows, index, told, record, address)
            batches = (0, self._schedule.num_batches)
            shot = backend.snapshot_of(demand.kernels, shared)
            workspace = address + demand.frame.size
            backend.walk(batches, self._schedule, demand, shot, workspace, record, self._dtype)
            return collect(capture, self._placement, Leaving(self._placement, record), self._boundary.wants)
        finally:
            backend.pool.give(buffer)
            del kept

    def _tables(self, capture: Capture, index: Longs, shared: Shared,
                view: ModelView) -> tuple[Longs, list[Any]]:  # fmt: skip
        """What externals are rows of, as `bind_tables` reads it, and what has to be kept meanwhile."""
        kept: list[Any] = []
        told: list[tuple[int, int, int, int, int]] = []
        for number, c, begin, end in self._boundary.lookups.of_source:
            pool = capture.constants.get(number)
            if pool is None:
                key = "address", number
                found = shared.get(key) or shared.setdefault(key, self._parameter(capture, number, c, shared, view))
                told.append((c, begin, end, *found[:2]))
                continue
            if isinstance(pool, Carried) and pool.in_tables:
                told.append((c, begin, end, *pool.where()))
                continue
            if isinstance(pool, torch.Tensor):
                table = laid_out(pool, self._placement.dtypes[c])
                told.append((c, begin, end, table.data_ptr(), ROWS if table.shape[0] > 1 else ONE_ROW))
                kept.append(table)
                continue
            each = [plain(pool[i], self._placement.dtypes[c]) for i in index[begin:end].tolist()]
            told += [(c, at, at + 1, one.data_ptr(), ONE_ROW) for at, one in enumerate(each, begin)]
            kept.append(each)
        return np.array(told, np.int64).reshape(-1, 5), kept

    def _parameter(self, capture: Capture, number: int, c: int, shared: Shared,
                   view: ModelView) -> tuple[int, int, torch.Tensor]:  # fmt: skip
        """Of a source its address, whether it has rows, and what is there."""
        if capture.sources[number].kind == "offset":  # the indices themselves, which are there until all has run
            return 0, INDICES, _NOTHING
        table = shared.get(number)
        if table is None:
            table = shared[number] = table_of(capture.sources[number], view)
        table = laid_out(table, self._placement.dtypes[c])
        return table.data_ptr(), ROWS if table.shape[0] > 1 else ONE_ROW, table


_NOTHING = torch.empty(0)


def laid_out(table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A table as native code reads its rows."""
    if table.dtype is not dtype or not table.is_cpu:
        table = table.to(dtype=dtype, device="cpu")
    return table.contiguous()


def plain(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose elements stand in its memory as they are, in order."""
    is_plain = tensor.is_contiguous() and tensor.is_cpu and not tensor.is_neg() and not tensor.is_conj()
    if tensor.dtype is dtype and is_plain:
        return tensor
    return tensor.to(dtype=dtype, device="cpu").resolve_neg().resolve_conj().contiguous()
