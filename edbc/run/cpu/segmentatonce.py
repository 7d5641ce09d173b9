"""Segments that are one stretch of native batches, in one native call between a cut and what they carry.

While instances read values (`edbc.capture.forward.fibers`) hundreds of small segments run per mini-batch, nearly all of
structures that came before: a call for each source and class, and a tensor for each of these, took longer than their
batches. Here one call binds, runs and carries, by the same walk, so that values have the same bits.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.capture.code.shadow import ModelView
from edbc.capture.forward.build import Capture
from edbc.capture.forward.carried import Carried, Piece
from edbc.capture.forward.cutting import Segment
from edbc.native.memory import require_memory
from edbc.native.pointers import record_of
from edbc.native.pool import ALIGNMENT, Pool, aligned
from edbc.run.cpu.atonce import AtOnce, laid_out, plain
from edbc.run.cpu.walk import EACH, INDICES, LIKE, ONE_ROW, ROWS, run_at_once
from edbc.run.passes.arenas import Shared
from edbc.run.passes.boundary import Wanted, table_of

if TYPE_CHECKING:
    from edbc.run.cpu.cpubackend import CpuBackend, CpuDemand
    from edbc.run.passes.minibatch import MiniBatch


class Lent:
    """What segments of one mini-batch have in common here: memory for their values, which goes back to the pool with
    it, and where sources are."""

    __slots__ = ("_buffer", "_constants", "_pool", "address", "is_told", "size", "told")

    def __init__(self, pool: Pool):
        self._pool = pool
        self._buffer: torch.Tensor | None = None
        self.address = self.size = 0
        self.told = np.zeros((0, 2), np.int64)
        """Of each source an address and what is there, as `walk.bind_tables` takes them."""
        self.is_told: dict[int, torch.Tensor | None] = {}
        """Sources of which that stays, with the parameters that are there."""
        self._constants: dict[int, tuple[list[torch.Tensor], array[int]]] = {}
        """Of other sources constants so far, and where they are."""

    def require(self, size: int, num_sources: int) -> None:
        """Have so many bytes, and room for so many sources."""
        if size > self.size:
            self.__del__()
            self._buffer = self._pool.take(size)
            self.address, self.size = aligned(self._buffer.data_ptr()), size
        if num_sources > len(self.told):
            more = np.zeros((num_sources - len(self.told), 2), np.int64)
            self.told = np.concatenate([self.told, more])

    def tell(self, number: int, table: torch.Tensor | None) -> None:
        """Where a parameter is; of offsets, which are the indices themselves, None."""
        self.is_told[number] = table
        if table is None:
            self.told[number] = 0, INDICES
        else:
            self.told[number] = table.data_ptr(), ROWS if table.shape[0] > 1 else ONE_ROW

    def tell_constants(self, number: int, pool: list[torch.Tensor], dtype: torch.dtype) -> None:
        """Where constants are, of which there may be more by now."""
        kept, addresses = self._constants.setdefault(number, ([], array("q")))
        for tensor in pool[len(kept) :]:
            kept.append(plain(tensor, dtype))
            addresses.append(kept[-1].data_ptr())
        self.told[number] = addresses.buffer_info()[0], EACH

    def __del__(self) -> None:
        if self._buffer is not None:
            self._pool.give(self._buffer)
            self._buffer, self.size = None, 0


class SegmentAtOnce(AtOnce):
    """See the module's docstring. Threads may share it."""

    kinds = AtOnce.kinds | {"offset"}
    takes_segments = True

    def __init__(self, backend: CpuBackend, batch: MiniBatch, demand: CpuDemand):
        """`serves(batch, demand)` holds."""
        super().__init__(backend, batch, demand)
        dtype = self._dtype
        self._like = LIKE[dtype]
        lookups, dtypes = batch.boundary.lookups, batch.placement.dtypes
        self._of_source = [(number, dtypes[c]) for number, c, *_ in lookups.of_source]
        self._num_sources = 1 + max((number for number, _ in self._of_source), default=-1)
        wants = [want for want in batch.boundary.wants if isinstance(want, Wanted)]
        self._pieces = []
        """Of what is carried, class by class: bytes from the first to behind the last, of each row, shape and dtype."""
        end, told = 0, []
        for want in wants:
            begin, end = end, end + want.size
            told.append((want.class_index, len(want.rows), begin))
            of_row, dtype_of = want.size // len(want.rows), dtypes[want.class_index]
            self._pieces.append((begin, end, of_row, want.shape, dtype_of))
            end = aligned(end)
        self._size = end
        sizes = np.array(
            (batch.schedule.num_batches, demand.block, demand.frame.size, demand.workspace, dtype.itemsize)
        )
        arrays = (
            lookups.rows, lookups.order, np.array(lookups.of_source, np.int64).reshape(-1, 4),
            np.concatenate([want.rows for want in wants]), np.array(told, np.int64), sizes, demand.record,
            demand.frame.record,
        )  # fmt: skip
        self._arrays, self._record = arrays, record_of(arrays)

    @classmethod
    def serves(cls, batch: MiniBatch, demand: CpuDemand) -> bool:
        """Whether a segment is one stretch of native batches, and reads nothing that is drawn or ragged."""
        is_flat = all(type(pool) in (list, Carried) for pool in batch.capture.constants.values())
        return batch.capture.in_tables and super().serves(batch, demand) and is_flat and _carries_bytes(batch)

    def run(self, segment: Capture | Segment, shared: Shared, view: ModelView) -> list[Any]:
        """See AtOnce."""
        constants = segment.constants
        lent: Lent | None = shared.get("lent")
        backend, demand = self._backend, self._demand
        if lent is None:
            lent = shared["lent"] = Lent(backend.pool)
        lent.require(demand.room, self._num_sources)
        for number, dtype in self._of_source:
            pool = constants.get(number)
            if type(pool) is Carried:
                if not pool.in_tables:  # a gradient is wanted of some of it
                    return super().run(segment if isinstance(segment, Capture) else segment.capture(), shared, view)
                lent.told[number] = pool.where()
            elif pool is not None:
                lent.tell_constants(number, pool, dtype)
            elif number not in lent.is_told:
                source = segment.sources[number]
                lent.tell(number, None if source.kind == "offset" else laid_out(table_of(source, view), dtype))
        require_memory(self._size, "the results of this mini-batch")
        carried = np.empty(self._size + ALIGNMENT, np.uint8)  # in a sixth of the time that torch.empty takes
        shot = backend.snapshot_of(demand.kernels, shared)
        with backend.helped((0, self._schedule.num_batches), self._schedule, demand, shot, self._dtype) as team:
            address, first = run_at_once(segment.external_index, lent.told, self._record, shot.record, lent.address,
                                         carried, self._like, team)  # fmt: skip
        return [Piece(carried, first + begin, first + end, address + begin, of_row, shape, dtype)
                for begin, end, of_row, shape, dtype in self._pieces]  # fmt: skip


def _carries_bytes(batch: MiniBatch) -> bool:
    """Whether anything is carried, and nothing without elements."""
    sizes = [want.size for want in batch.boundary.wants if isinstance(want, Wanted)]
    return bool(sizes) and all(sizes)
