"""`VertexProgram`: a model's vertex functions with all fragments recorded so far.

Joining a mini-batch looks for the fragment of every vertex; the first vertex of a kind (a vertex type with
predecessors of certain interfaces) that has not been met before stops the search, its fragment is recorded, and the
search starts again. So recording is driven by data, needs no declaration of shapes, and stops once the kinds of
vertices have all been met.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from edbc.errors import EdbcError, ModelError
from edbc.trace.recorder import Recorder
from edbc.trace.values import Slot
from edbc.vertex import kernels
from edbc.vertex.fragment import Fragment, Surroundings, record_fragment
from edbc.vertex.function import unknown_type, vertex_functions
from edbc.vertex.inputs import Columns
from edbc.vertex.instance import VertexInstance
from edbc.vertex.join import Batch, Longs, VertexCapture, write
from edbc.vertex.tables import SIZES, AutomatonBuilder, FragmentTables, tabulate

MAX_REFERENCES = 1 << 22
"""Operands of all fragments together; beyond, they are forgotten before the next mini-batch. Only vertices of very many
different numbers of predecessors come there."""


class VertexProgram:
    """The vertex functions of a model; `shadow` and `recorder` are those of `trace.shadow.recording_shadow`.

    Several threads may join at once. Raises ModelError when the model has no vertex functions.
    """

    def __init__(self, shadow: nn.Module, recorder: Recorder):
        self.functions = vertex_functions(shadow)
        self.recorder = recorder
        self.float_dtype = next((p.dtype for p in shadow.parameters() if p.is_floating_point()), torch.float32)
        self._lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        self._fragments: list[Fragment] = []
        self._num_references = 0
        self._outputs: dict[str, Slot] = {}
        self._automaton = AutomatonBuilder(len(self.functions))
        self._around = Surroundings(self.recorder, Columns(self.float_dtype), {})
        self._tabulate()

    def _tabulate(self) -> None:
        self._tables = tabulate(
            self._automaton.build(), self._fragments, self._outputs, self._around.columns, self._around.constants
        )

    @property
    def num_fragments(self) -> int:
        """Number of fragments recorded so far."""
        return len(self._fragments)

    def join(self, instances: Sequence[VertexInstance], share: bool = False) -> VertexCapture:
        """The Capture of a mini-batch; where it may `share`, with equal nodes as one (`edbc.runtime.share`).

        Raises InputError for a vertex that the model cannot handle, UnsupportedError for what a vertex function does
        that cannot be batched, both with the first vertex that met it.
        """
        self.recorder.tracer.require_unchanged()
        with self._lock:
            if self._num_references > MAX_REFERENCES:
                self._forget()
        batch, tables, totals, columns, positions = self._find_fragments(instances)
        pulls = totals[SIZES + len(tables.outputs) :].tolist()
        pools = tables.columns.fill(columns, positions, pulls, instances, tables.constants)
        return write(batch, tables, self.recorder.table, totals, columns, pools, share)

    def _find_fragments(self, instances: Sequence[VertexInstance]) -> tuple[Batch, FragmentTables, Longs, Longs, Longs]:
        """The batch of some instances, the tables that number its fragments, their sizes in sum, and the columns, of
        which those that have a position among the packed inputs are filled.

        Records the fragments that are new.
        """
        packed = np.concatenate([x.packed for x in instances]) if instances else np.zeros(0, np.int32)
        while True:
            tables = self._tables
            positions = tables.columns.positions(instances)
            start, vertex_ptr, fragment_of, interface_of, totals, columns, instance, vertex = kernels.find_fragments(
                packed, len(instances), tables.automaton, tables.sizes, positions
            )
            if vertex < 0:
                return Batch(packed, start, vertex_ptr, fragment_of), tables, totals, columns, positions
            predecessors = vertex_ptr[instance] + np.array(instances[instance].predecessors(vertex), np.int64)
            with self._lock:
                if self._tables is tables:
                    self._record(instance, instances[instance], vertex, interface_of[predecessors].tolist())

    def _record(self, position: int, instance: VertexInstance, vertex: int, interfaces: list[int]) -> None:
        """Record the fragment of a vertex whose predecessors have the interfaces with these numbers."""
        kind = int(instance.types[vertex])
        if kind >= len(self.functions):
            raise unknown_type(f"instance {position}, vertex {vertex}", kind, len(self.functions))
        name, function = list(self.functions.items())[kind]
        known = self._automaton.interfaces()
        with _Vertex(f"vertex {vertex} of instance {position}, vertex type {name!r}"):
            fragment = record_fragment(function, [known[number] for number in interfaces], self._around, instance)
            self._check(fragment)
        self._automaton.add(kind, interfaces, fragment.interface)
        self._fragments.append(fragment)
        self._num_references += fragment.num_operands
        self._tabulate()

    def _check(self, fragment: Fragment) -> None:
        """Raise ModelError when pushed values do not fit what was pushed under the same names."""
        for name, slot, _ in fragment.pushed:
            known = self._outputs.setdefault(name, slot)
            if known is not slot:
                raise ModelError(
                    f"push({name!r}): expected values {known.text} as other vertices push, got {slot.text}; push them "
                    "under another name"
                )


class _Vertex:
    """Names the vertex in exceptions of the user's code."""

    def __init__(self, where: str):
        self.where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, EdbcError):
            raise type(error)(f"{error} (while recording {self.where})") from error
        if error is not None:
            error.add_note(f"while recording {self.where}")
