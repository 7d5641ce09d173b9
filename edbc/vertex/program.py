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

from edbc.errors import ModelError
from edbc.trace.recorder import Recorder, call_user_code
from edbc.trace.values import Slot
from edbc.vertex.fragment import Fragment, Surroundings, record_fragment
from edbc.vertex.function import unknown_type, vertex_functions
from edbc.vertex.inputs import Columns
from edbc.vertex.instance import VertexInstance
from edbc.vertex.join import Batch, Longs, VertexCapture, concatenate, write
from edbc.vertex.tables import AutomatonBuilder, FragmentTables, tabulate

MAX_REFERENCES = 1 << 22
"""Operands of all fragments together; beyond, fragments are forgotten and recorded again. Only vertices of very many
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

    def join(self, instances: Sequence[VertexInstance]) -> VertexCapture:
        """The Capture of a mini-batch.

        Raises InputError for a vertex that the model cannot handle, UnsupportedError for what a vertex function does
        that cannot be batched, both with the first vertex that met it.
        """
        batch = concatenate(instances)
        tables, fragment_of = self._find_fragments(batch, instances)
        columns, pools = tables.columns.fill(instances, len(batch.types), tables.constants)
        table = self.recorder.table
        written = write(batch, tables, table.graph_types(), fragment_of, columns)
        return VertexCapture(written.graph, table.sources, written.external_source, written.external_index, pools,
                             written.result_node, written.result_output, [], [], written.outputs)  # fmt: skip

    def _find_fragments(self, batch: Batch, instances: Sequence[VertexInstance]) -> tuple[FragmentTables, Longs]:
        """The fragment of every vertex, and the tables that number them; records those that are new."""
        from edbc.vertex import kernels

        fragment_of = np.empty(len(batch.types), np.int64)
        interface_of = np.empty(len(batch.types), np.int64)
        while True:
            tables = self._tables
            instance, vertex = kernels.find_fragments(batch, tables.automaton, fragment_of, interface_of)
            if vertex < 0:
                return tables, fragment_of
            with self._lock:
                if self._tables is tables:
                    self._record(int(instance), instances[instance], *self._kind(batch, instance, vertex, interface_of))

    def _kind(self, batch: Batch, instance: int, vertex: int, interface_of: Longs) -> tuple[int, list[int]]:
        """Number of a vertex in its instance, and the interfaces of its predecessors."""
        number = vertex - int(batch.vertex_ptr[instance])
        first = int(batch.edge_start[instance])
        span = slice(first + batch.edge_ptr[vertex + instance], first + batch.edge_ptr[vertex + instance + 1])
        return number, interface_of[batch.vertex_ptr[instance] + batch.edges[span]].tolist()

    def _record(self, position: int, instance: VertexInstance, vertex: int, interfaces: list[int]) -> None:
        """Record the fragment of a vertex."""
        kind = int(instance.types[vertex])
        if kind >= len(self.functions):
            raise unknown_type(f"instance {position}, vertex {vertex}", kind, len(self.functions))
        if self._num_references > MAX_REFERENCES:
            self._forget()
            return
        name, function = list(self.functions.items())[kind]
        where = f"vertex {vertex} of instance {position}, vertex type {name!r}"
        known = [self._automaton.interface(number) for number in interfaces]
        fragment = call_user_code(
            where, lambda: self._checked(record_fragment(function, known, self._around, instance))
        )
        self._automaton.add(kind, interfaces, fragment.interface)
        self._fragments.append(fragment)
        self._num_references += fragment.num_operands
        self._tabulate()

    def _checked(self, fragment: Fragment) -> Fragment:
        """The fragment, once its pushed values fit what was pushed under the same names."""
        for name, slot, _ in fragment.pushed:
            known = self._outputs.setdefault(name, slot)
            if known is not slot:
                raise ModelError(
                    f"push({name!r}): expected values {known.text} as other vertices push, got {slot.text}; push them "
                    "under another name"
                )
        return fragment
