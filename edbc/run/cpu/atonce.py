"""Segments of a structure that is placed already, with next to no Python between a cut and its values.

While instances read values (`edbc.capture.forward.fibers`) hundreds of small segments run per mini-batch, nearly all of
structures that came before. What `CpuArenas`, `load_externals` and `collect` do for any mini-batch, an object or a call
for each source and class, took longer than their batches. Here all that a structure tells is made once. The batches run
in the same call of `walk`, so that values have the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from edbc.capture.code.shadow import ModelView
from edbc.capture.forward.build import Capture
from edbc.native.memory import require_memory
from edbc.native.pool import aligned
from edbc.run.cpu.walk import ONE_ROW, ROWS, bind_tables, gather_rows
from edbc.run.passes.arenas import Shared
from edbc.run.passes.boundary import Wanted, table_of

if TYPE_CHECKING:
    from edbc.run.cpu.cpubackend import CpuBackend, CpuDemand
    from edbc.run.passes.minibatch import MiniBatch

_KINDS = frozenset(("carried", "row", "whole"))
"""Of sources that are bound here."""


class AtOnce:
    """See the module's docstring. Never changes; threads may share it."""

    def __init__(self, backend: CpuBackend, batch: MiniBatch, demand: CpuDemand):
        """`serves(batch, demand)` holds."""
        self._backend, self._demand, self._schedule = backend, demand, batch.schedule
        ((_, _, dtype),) = demand.stretches
        assert dtype is not None
        self._dtype = dtype
        self._lookups, self._dtypes = batch.boundary.lookups, batch.placement.dtypes
        self._wants = [
            (want.class_index, want.rows, want.shape, self._dtypes[want.class_index])
            for want in batch.boundary.wants
            if isinstance(want, Wanted)
        ]
        self._size = sum(want.size for want in batch.boundary.wants if isinstance(want, Wanted))
        """Bytes of what is carried."""

    @staticmethod
    def serves(batch: MiniBatch, demand: CpuDemand) -> bool:
        """Whether a segment is one stretch of native batches, and reads parameters and earlier segments only."""
        capture, stretches = batch.capture, demand.stretches
        kinds = {capture.sources[number].kind for number, *_ in batch.boundary.lookups.of_source}
        is_native = len(stretches) == 1 and stretches[0][2] is not None and demand.tasks is None
        return capture.in_tables and is_native and kinds <= _KINDS and bool(batch.boundary.wants)

    def run(self, capture: Capture, shared: Shared, view: ModelView) -> list[torch.Tensor]:
        """What a segment of this structure carries, class by class."""
        demand, lookups, told = self._demand, self._lookups, []
        for number, c, begin, end in lookups.of_source:
            pool = capture.constants.get(number)
            if pool is None:
                key = "address", number
                found = shared.get(key) or shared.setdefault(key, self._parameter(capture, number, c, shared, view))
                told.append((c, begin, end, *found[:2]))
            else:
                assert pool.in_tables
                told.append((c, begin, end, *pool.where()))
        require_memory(self._size, "the results of this mini-batch")
        backend, record = self._backend, demand.frame.record.copy()
        buffer = backend.pool.take(demand.room)
        try:
            address = aligned(buffer.data_ptr())
            workspace = address + demand.frame.size
            tables = np.array(told, np.int64).reshape(-1, 5)
            bind_tables(lookups.rows, capture.external_index[lookups.order], tables, record, address)
            batches = (0, self._schedule.num_batches)
            shot = backend.snapshot_of(demand.kernels, shared)
            backend.walk(batches, batches, self._schedule, demand, shot, workspace, record, self._dtype)
            carried = []
            for c, rows, shape, dtype in self._wants:
                table = torch.empty(shape, dtype=dtype)
                gather_rows(table.data_ptr(), rows, c, record)
                carried.append(table)
            return carried
        finally:
            backend.pool.give(buffer)

    def _parameter(self, capture: Capture, number: int, c: int, shared: Shared,
                   view: ModelView) -> tuple[int, int, torch.Tensor]:  # fmt: skip
        """Of a source its address, whether it has rows, and what is there."""
        table = shared.get(number)
        if table is None:
            table = shared[number] = table_of(capture.sources[number], view)
        table = laid_out(table, self._dtypes[c])
        return table.data_ptr(), ROWS if table.shape[0] > 1 else ONE_ROW, table


def laid_out(table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A table as native code reads its rows."""
    if table.dtype is not dtype or not table.is_cpu:
        table = table.to(dtype=dtype, device="cpu")
    return table.contiguous()
