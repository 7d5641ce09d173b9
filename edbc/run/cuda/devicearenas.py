"""Arenas on the device: rows of externals, indices and wanted results known beforehand, so that one copy serves all.

Before execution the host only notes what to bind and which rows will be asked for. The first steps, or the first look
at values, send the note (`edbc.run.cuda.upload`); rows of tables are copied in the first step, by the step kernel;
nothing here waits for the device. Binding or asking for rows afterwards works, and takes a copy of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from edbc.capture.standins.standin import torch_dtype
from edbc.run.backend import Demand
from edbc.run.cuda.upload import ALIGNMENT, Part, Upload
from edbc.run.passes.arenas import TensorArenas
from edbc.run.passes.placement import Longs, Placement


@dataclass(eq=False)
class Binding:
    """Externals to fill: from rows `index` of a table on the device, or from data that go up themselves."""

    class_index: int
    rows: Longs
    """Where they stand."""
    index: Longs
    table: torch.Tensor | None
    data: Part | None
    part: Part | None = None
    """`rows` on the device, and behind that part another of the same size has `index`."""

    @property
    def count(self) -> int:
        """Externals."""
        return len(self.rows)

    def is_copy(self, dtype: str) -> bool:
        """True where a step can fill them, values of that dtype: rows of a table as they are."""
        table = self.table
        return (
            table is not None
            and table.dtype == torch_dtype(dtype)
            and table.is_contiguous()
            and table.data_ptr() % ALIGNMENT == 0
        )


class CudaArenas(TensorArenas):
    """See the module's docstring and `edbc.run.passes.arenas.Arenas`."""

    def __init__(self, placement: Placement, device: torch.device, demand: Demand):
        super().__init__(placement, device, demand.workspace)
        self.demand = demand
        self.upload = Upload(device)
        self.indices: Part | None = None
        """On the device: operand rows of all batches."""
        self.segment: Part | None = None
        """Of which node of its batch an item is, where torch counts items."""
        self.bindings: list[Binding] = []
        self._expected: list[tuple[int, Longs, Part | None]] = []
        self.copies = 0
        """Copies from host to device so far: one for a mini-batch."""
        self._room: torch.Tensor | None = None

    @property
    def workspace(self) -> int:
        """The address of the workspace."""
        return int(self.addresses[-1]) if self._room is None else self._room.data_ptr()

    def make_room(self, size: int) -> None:
        """A workspace of so many bytes, where more are asked for than the demand was."""
        if size > self.demand.workspace:
            self._room = torch.empty(size, dtype=torch.uint8, device=self.device)

    def bind(self, class_index: int, rows: Longs, table: torch.Tensor, index: Longs) -> None:
        """See Arenas: noted, not copied yet."""
        self.open()
        on_device = table.device.type == self.device.type
        data = None if on_device else self.upload.data(table[torch.from_numpy(index)])
        self.bindings.append(Binding(class_index, rows, index, table if on_device else None, data))

    def expect(self, class_index: int, rows: Longs) -> None:
        """`rows(class_index, rows)` will be asked for, with this very array."""
        self.open()
        self._expected.append((class_index, rows, None))

    def open(self) -> None:
        """What comes after the first copy goes up in another; parts of the first stay readable."""
        if self.upload.is_sent:
            self.upload = Upload(self.device)

    def note(self) -> None:
        """Append rows of externals, what is copied there and what is asked for, all that is new, as one part."""
        bindings = [binding for binding in self.bindings if binding.part is None]
        expected = [number for number, (*_, part) in enumerate(self._expected) if part is None]
        arrays = []
        for binding in bindings:
            arrays += [binding.rows, binding.index]
        arrays += [self._expected[number][1] for number in expected]
        if not arrays:
            return
        whole, at = self.upload.indices(np.concatenate(arrays)), 0
        for binding in bindings:
            binding.part = whole.part(at, binding.count)
            at += 2 * binding.count
        for number in expected:
            class_index, rows, _ = self._expected[number]
            self._expected[number] = class_index, rows, whole.part(at, len(rows))
            at += len(rows)

    def send(self) -> None:
        """Copy what was noted, and fill those externals that no step is to fill: `bindings` holds the others."""
        if not self.upload.is_sent:
            self.note()
            self.upload.send()
            self.copies += 1
        for binding in self.bindings:
            self._fill(binding)
        self.bindings = []

    def _fill(self, binding: Binding) -> None:
        arena, rows = self.tensors[binding.class_index], binding.rows
        assert binding.part is not None
        source = binding.part.behind().tensor if binding.data is None else binding.data.tensor
        is_run = rows[-1] - rows[0] == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all())
        run = arena.narrow(0, int(rows[0]), binding.count) if is_run else None
        if binding.table is not None:
            table = binding.table.reshape(binding.table.shape[0], -1)
            if run is not None and table.dtype == arena.dtype:
                torch.index_select(table, 0, source, out=run)
                return
            source = table.index_select(0, source)
        values = source.reshape(binding.count, -1).to(arena.dtype)
        if run is not None:
            run.copy_(values)
        else:
            arena.index_copy_(0, binding.part.tensor.long(), values)

    def rows(self, class_index: int, rows: Longs) -> torch.Tensor:
        """See Arenas."""
        self.send()
        for expected_class, array, part in self._expected:
            if expected_class == class_index and array is rows and part is not None:
                return self.tensors[class_index].index_select(0, part.tensor)
        self.copies += 1
        return super().rows(class_index, rows)
