"""Which types native code runs, asked of their programs before anything is compiled."""

from __future__ import annotations

import torch

from edbc.base.families import family
from edbc.base.graph import NodeType
from edbc.capture.code.shadow import ModelView
from edbc.capture.record.table import Entry, TypeTable
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.lower import lower
from edbc.cells.rows.segmented import RunKernel
from edbc.errors import EdbcError
from edbc.run.backend import Backend, backend_of
from edbc.run.session import cell_of


class Natives:
    """The types of a model that were asked about, by operation and family: one of each is lowered once, in whatever
    table it is. Of those that differ in a size that is a guess, which tells what they cost and no more."""

    def __init__(self) -> None:
        self.backend: Backend = backend_of(None, torch.device("cpu"))
        self._known: dict[tuple[str, str], bool] = {}

    def run(self, table: TypeTable, kind: int, view: ModelView) -> bool:
        """Whether native code runs a type that has a program, or a function of runs."""
        node_type = table.types[kind]
        assert node_type is not None
        entry = table.operation_of_type[kind]
        key = entry.operation.name, family(node_type.signature)
        known = self._known.get(key)
        if known is None:
            try:
                known = self._asked(entry, node_type, view)
            except EdbcError:
                known = False
            self._known[key] = known
        return known

    def _asked(self, entry: Entry, node_type: NodeType, view: ModelView) -> bool:
        if node_type.is_run:
            return RunKernel(entry.operation, node_type.segmented).is_native
        cell = cell_of(entry, view)
        program = lower(cell, [[op.name] for op in cell.ops], list(cell.classes()))
        dtype = torch_dtype(program.dtype) if program.dtype else torch.float32
        kernel = self.backend.program_kernel(program, view, dtype, torch.device("cpu"))
        return self.backend.runs_natively(node_type, kernel)
