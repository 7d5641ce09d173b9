"""`VertexProgram`: a model's vertex functions with all fragments recorded so far.

Joining a mini-batch looks for the fragment of every vertex; the first vertex of a kind (a vertex type with
predecessors of certain interfaces) that has not been met before stops the search, its fragment is recorded, and the
search starts again. So recording is driven by data, needs no declaration of shapes, and stops once the kinds of
vertices have all been met.

A fragment is a record as a captured instance is, and the mini-batch is joined by the same loops (`captured.joinloops`).
Nodes and operands are numbered exactly as define-by-run capture numbers them when it runs the vertex functions in
vertex order. Python runs per instance (to collect arrays) and per fragment that is new; what is done per vertex is
native.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from edbc.capture.captured.block import Parts, capture_of
from edbc.capture.code.shadow import dtype_of
from edbc.capture.forward.build import Capture
from edbc.capture.forward.forward import Recorded
from edbc.capture.forward.returned import Stacked
from edbc.capture.record.recorder import Recorder
from edbc.capture.standins.standin import Slot
from edbc.capture.vertex import vertexloops
from edbc.capture.vertex.automaton import AutomatonBuilder, FragmentTables, tabulate
from edbc.capture.vertex.fragment import Fragment, Surroundings, record_fragment
from edbc.capture.vertex.pulls import Columns, Pools
from edbc.capture.vertex.vertexfunction import unknown_type, vertex_functions
from edbc.capture.vertex.vertexinstance import VertexInstance
from edbc.errors import InputError

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
_NO_COLUMNS = np.zeros((0, 0), np.int64)
MAX_REFERENCES = 1 << 22
"""Operands of all fragments together; beyond, they are forgotten before the next mini-batch. Only vertices of very many
different numbers of predecessors come there."""


class Joined(NamedTuple):
    """What `vertexloops.join` returns."""

    status: int
    instance: int
    vertex: int
    column: int
    interfaces: Longs
    pulls: Longs
    columns: Longs
    block: Longs
    parts: Any


class VertexProgram:
    """The vertex functions of a model; `shadow` and `recorder` are those of `code.shadow.recording_shadow`.

    Several threads may join at once. Raises ModelError when the model has no vertex functions.
    """

    def __init__(self, shadow: nn.Module, recorder: Recorder):
        self.functions = vertex_functions(shadow)
        self.recorder = recorder
        self.float_dtype = dtype_of(shadow)
        self._lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        self._fragments: list[Fragment] = []
        self._num_references = 0
        self._automaton = AutomatonBuilder(len(self.functions))
        self._around = Surroundings(self.recorder, Columns(self.float_dtype), {}, [], {}, {})
        self._tabulate()

    def _forget_when_full(self) -> None:
        with self._lock:
            if self._num_references > MAX_REFERENCES:
                self._forget()

    def _tabulate(self) -> None:
        self._tables = tabulate(self._automaton.build(), self._fragments, self._around)

    @property
    def num_fragments(self) -> int:
        """Number of fragments recorded so far."""
        return len(self._fragments)

    def join(self, instances: Sequence[VertexInstance]) -> Capture:
        """The Capture of a mini-batch: of each instance a dict of what was pushed under each name, as one tensor.

        Raises InputError for a vertex that the model cannot handle, UnsupportedError for what a vertex function does
        that cannot be batched, both with the first vertex that met it.
        """
        self.recorder.tracer.require_unchanged()
        if self._num_references > MAX_REFERENCES:
            self._forget_when_full()
        packed = np.frombuffer(bytearray().join([x.packed for x in instances]), np.int32)
        while True:
            tables = self._tables
            positions = tables.columns.positions(instances)
            pools: Pools = {source: list(tensors) for source, tensors in tables.constants.items()}
            joined = self._join(packed, instances, tables, positions, _NO_COLUMNS)
            if joined.status == vertexloops.UNFILLED:
                tables.columns.fill(joined.columns, positions, joined.pulls.tolist(), instances, pools)
                joined = self._join(packed, instances, tables, positions, joined.columns)
            if joined.status == vertexloops.JOINED:
                return self._captured(Parts(*joined.parts), tables, pools)
            if joined.status == vertexloops.BEYOND:
                raise _beyond_table(joined, tables, instances)
            with self._lock:
                if self._tables is tables:
                    self._record(joined.instance, instances[joined.instance], joined.vertex, joined.interfaces.tolist())

    def _join(self, packed: Ints, instances: Sequence[VertexInstance], tables: FragmentTables, positions: Longs,
              given: Longs) -> Joined:  # fmt: skip
        """See `vertexloops.join`."""
        return Joined(*vertexloops.join(
            packed, len(instances), *tables.automaton, positions, given, tables.words, tables.begin, *tables.sources,
            len(tables.outputs),
        ))  # fmt: skip

    def _captured(self, parts: Parts, tables: FragmentTables, pools: Pools) -> Capture:
        rows = parts.result_ptr.reshape(-1, len(parts.node_ptr)).tolist()
        nests: list[dict[str, Stacked]] = [{} for _ in parts.node_ptr[1:]]
        slots: list[Slot] = []
        stacks: list[tuple[int, int]] = []
        for (name, slot), of_output in zip(tables.outputs, rows, strict=True):
            slots += [slot] * (of_output[-1] - of_output[0])
            for nest, (start, stop) in zip(nests, pairwise(of_output), strict=True):
                if start < stop:
                    nest[name] = Stacked(start, stop)
                    stacks.append((start, stop))
        return capture_of(self.recorder.table, parts, slots, nests, pools, stacks, [0] * len(parts.node_ptr))

    def _record(self, position: int, instance: VertexInstance, vertex: int, interfaces: list[int]) -> None:
        """Record the fragment of a vertex whose predecessors have the interfaces with these numbers."""
        kind = int(instance.types[vertex])
        if kind >= len(self.functions):
            raise unknown_type(f"instance {position}, vertex {vertex}", kind, len(self.functions))
        name, function = list(self.functions.items())[kind]
        known = self._automaton.interfaces()
        with Recorded("a vertex function", "vertex", f"{vertex} of instance {position}, vertex type {name!r}"):
            fragment = record_fragment(function, [known[number] for number in interfaces], self._around, instance)
        self._automaton.add(kind, interfaces, fragment.interface)
        self._fragments.append(fragment)
        self._num_references += fragment.num_operands
        self._tabulate()


def _beyond_table(joined: Joined, tables: FragmentTables, instances: Sequence[VertexInstance]) -> InputError:
    base = sum(instance.num_vertices for instance in instances[: joined.instance])
    return InputError(
        f"instance {joined.instance}, vertex {joined.vertex}: input {tables.columns.names[joined.column]!r}: expected "
        f"a row of its table, got {joined.columns[joined.column, base + joined.vertex]}; correct the input or give the "
        "table more rows"
    )
