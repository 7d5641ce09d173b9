"""Fragments: what one vertex function does, recorded once for all vertices that are alike.

Definitions.

(1) The *interface* of a vertex is what vertices that gather from it can tell about it: the slot of each value that it
    scatters, and which of these values come from one node.
(2) A *fragment* is the part of a dataflow graph that a vertex function makes for predecessors of given interfaces:
    nodes, their operands, externals, and where pushed and scattered values come from, as a record
    (`captured.joinloops`). The number of predecessors is part of that, so vertex functions may run any Python over the
    list of their predecessors.

A fragment is made by define-by-run capture (`record.recorder`, `forward.build`) on stand-ins for gathered values, so
types, signatures, views, constants and the fusing of sums are those of the first front end, by construction. Gathered
values are outputs of nodes of a pseudo-type while recording; these nodes come first and are dropped.

Sums are fused within a fragment, where define-by-run sees the whole mini-batch: a sum that is scattered stays a node of
its own, though the only vertex that gathers it may add to it, and sums of two vertices never become one node. Sums of
several values over the same predecessors do, even where a predecessor scatters externals (learned initial states),
because interfaces do not tell externals from nodes: if they did, vertices of k predecessors would come in 2**k kinds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from edbc.base.graph import ValueClass
from edbc.capture.captured.nesttext import Numbers
from edbc.capture.forward.build import Capture, build
from edbc.capture.record.draws import VERTEX_BITS
from edbc.capture.record.functionalise import MustKeepBooks
from edbc.capture.record.recorder import Recorder
from edbc.capture.record.table import Entry, EntryArrays, Hole, Operation, TypeTable
from edbc.capture.semantics.autocast import entered
from edbc.capture.semantics.gradmode import watched_by
from edbc.capture.semantics.randomness import NoRandomNumbers
from edbc.capture.standins.standin import Shared, Slot, Symbol, Value, refuse, require_none_caught
from edbc.capture.vertex.pulls import Columns
from edbc.capture.vertex.vertexfunction import Vertex, VertexFunction
from edbc.capture.vertex.vertexinstance import VertexInstance
from edbc.errors import InputError, ModelError


class Interface(NamedTuple):
    """Definition (1)."""

    slots: tuple[Slot, ...]
    producers: tuple[int, ...]
    """Equal numbers for values of one producer, by first occurrence; all externals count as one producer."""


class Fragment(NamedTuple):
    """Definition (2)."""

    words: list[int]
    interface: Interface
    num_operands: int
    """Of all nodes."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What recording fragments needs besides the vertex function: shared by all fragments of one model."""

    recorder: Recorder
    columns: Columns
    constants: dict[int, list[torch.Tensor]]
    """Constants in the vertex functions' code, by source; grows."""
    items: list[int]
    """The place of each of them among those of its source."""
    limits: dict[int, int]
    """What is above the row numbers that vertices pull, by source."""
    outputs: dict[str, Slot]
    """The slots of what is pushed, by name."""

    def number_of_output(self, name: str, slot: Slot) -> int:
        """Of what is pushed under a name. Raises ModelError where others push what does not fit."""
        known = self.outputs.setdefault(name, slot)
        if known is not slot:
            raise ModelError(
                f"push({name!r}): expected values {known.text} as other vertices push, got {slot.text}; push them "
                "under another name"
            )
        return list(self.outputs).index(name)


def record_fragment(function: VertexFunction, interfaces: Sequence[Interface], around: Surroundings,
                    instance: VertexInstance) -> Fragment:  # fmt: skip
    """Run a vertex function on stand-ins for what predecessors of these interfaces scatter.

    `instance` is one that needs the fragment: it tells the classes of inputs.
    """
    recorder = around.recorder
    recorder.begin()
    gathered = _Gathered(recorder, interfaces)
    pulls = _Pulls(around, instance)
    vertex = Vertex(gathered.states, pulls.read)
    recorder.in_fragment = True
    with NoRandomNumbers(), entered(recorder.home), watched_by(recorder):
        recorder.switch_autocast()
        try:
            function(vertex)
            require_none_caught(recorder.refused)
        except MustKeepBooks:
            refuse("a vertex function changed a tensor in place", "write the result to a new variable (h = h + x)")
    values = [*(value for _, value in vertex.pushed), *(vertex.scattered or ())]
    recording = recorder.finish([_recorded(recorder, value) for value in values])
    built = build(recording.changed(table=gathered.table()))
    return _Reading(built, gathered, pulls).fragment([name for name, _ in vertex.pushed])


class _Gathered:
    """Stand-ins for gathered values: outputs of pseudo-nodes, one per predecessor and producer."""

    def __init__(self, recorder: Recorder, interfaces: Sequence[Interface]):
        self._table = recorder.table
        self._entries: list[Entry] = []
        self._fields: list[list[tuple[int, int]]] = []
        self.interfaces = interfaces
        self.states: list[tuple[Value, ...]] = []
        for predecessor, interface in enumerate(interfaces):
            values: dict[int, Value] = {}
            for producer in dict.fromkeys(interface.producers):
                fields = [f for f, p in enumerate(interface.producers) if p == producer]
                entry = self._add([interface.slots[f] for f in fields], [(predecessor, f) for f in fields])
                values.update(zip(fields, recorder.emit(entry, ()), strict=True))
            self.states.append(tuple(values[f] for f in range(len(interface.slots))))

    def _add(self, slots: Sequence[Slot], fields: list[tuple[int, int]]) -> Entry:
        """A new pseudo-entry, with a negative number."""
        outputs = tuple(Hole(i) for i in range(len(slots)))
        operation = Operation("gather", "", None, ((), {}), ())
        entry = Entry(-1 - len(self._entries), -1, operation, tuple(slots), outputs, False, True)
        self._entries.append(entry)
        self._fields.append(fields)
        return entry

    @property
    def num_nodes(self) -> int:
        """Number of pseudo-nodes."""
        return len(self._entries)

    def field(self, node: int, output: int) -> tuple[int, int]:
        """Predecessor and field that an output of a pseudo-node stands for."""
        return self._fields[node][output]

    def table(self) -> TypeTable:
        """The type table with the pseudo-entries behind its own, where their negative numbers find them."""
        return cast(TypeTable, _Extended(self._table, self._entries[::-1]))


class _Extended:
    """A type table with more entries."""

    def __init__(self, table: TypeTable, more: Sequence[Entry]):
        self._table = table
        self.entries = [*table.entries, *more]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def arrays(self) -> EntryArrays:
        """The arrays of all entries; pseudo-nodes are of no type and have no operands."""
        known, num_outputs = self._table.arrays(), [len(entry.output_slots) for entry in self.entries]
        missing = len(self.entries) - len(known.type_index)
        return replace(
            known,
            type_index=np.append(known.type_index, np.full(missing, -1)),
            num_operands=np.append(known.num_operands, np.zeros(missing, np.int64)),
            num_outputs=np.array(num_outputs, np.int64),
            is_sum=np.append(known.is_sum, np.zeros(missing, np.bool_)),
            output_class=np.append(known.output_class, np.full(missing, -1)),
        )


class _Pulls:
    """Answers pulls with externals and remembers the column that each of them reads, and its limit."""

    def __init__(self, around: Surroundings, instance: VertexInstance):
        self.around = around
        self.instance = instance
        self.column_of_external: dict[int, tuple[int, int]] = {}

    def read(self, name: str, table: Any) -> Value:
        """The stand-in for a pulled row."""
        recorder, columns = self.around.recorder, self.around.columns
        value_class = columns.class_of_input(name, self.instance)
        number = len(recorder.external_source)
        if table is None:
            source = recorder.table.given_source("constant", value_class)
            self.column_of_external[number] = columns.of(name, source), np.iinfo(np.int64).max
            return recorder.external(source, 0, recorder.table.slot(value_class))
        if type(table) is not Shared or not table.tensor.ndim:
            raise ModelError(f"pull({name!r}): expected a parameter or buffer of rows as table, got {table!r}")
        if value_class != ValueClass((), "i64"):
            raise InputError(f"input {name!r}: expected one integer per vertex to look up, got {value_class}")
        self.column_of_external[number] = columns.of(name, None), len(table.tensor)
        return table.lookup(0)


class _Reading:
    """A built recording read as a fragment."""

    def __init__(self, built: Capture, gathered: _Gathered, pulls: _Pulls):
        self.built = built
        self.gathered = gathered
        self.pulls = pulls
        self.num_nodes = built.graph.num_nodes - gathered.num_nodes

    def fragment(self, names: list[str]) -> Fragment:
        """The fragment whose first results are pushed under `names`; the others are scattered."""
        built, graph, first = self.built, self.built.graph, self.gathered.num_nodes
        externals = [self.external(e) for e in range(graph.num_externals)]
        of_nodes = [[self.coded(*o) for o in graph.operands_of(v)] for v in range(first, graph.num_nodes)]
        operands = [*itertools.chain.from_iterable(of_nodes)]
        results = [self.coded(int(v), int(o)) for v, o in zip(built.result_node, built.result_output, strict=True)]
        pushed, scattered = results[: len(names)], results[len(names) :]
        of_pushed, of_scattered = built.result_slots[: len(names)], built.result_slots[len(names) :]
        outputs = [self.pulls.around.number_of_output(*each) for each in zip(names, of_pushed, strict=True)]
        slots = [-1] * len(scattered) + outputs
        off = [] if built.detached is None else np.flatnonzero(built.detached[first:]).tolist()
        words = [
            self.num_nodes, len(operands), len(externals), len(results), len(off), len(slots),
            *graph.node_type[first:].tolist(), *np.cumsum([len(of_node) for of_node in of_nodes]).tolist(),
            *_columns(operands), *(source for source, _ in externals), *_columns(scattered + pushed), *slots, *off,
            *(item for _, item in externals),
        ]  # fmt: skip
        return Fragment(words, Interface(tuple(of_scattered), self.producers(scattered)), len(operands))

    def external(self, number: int) -> tuple[int, int]:
        """Of an external of the recording the source, and what of it it is: a number, or of a column or a constant of
        the code one below 0 (`captured.joinloops`, definition (6))."""
        around, built = self.pulls.around, self.built
        source, item = int(built.external_source[number]), int(built.external_index[number])
        kind = built.sources[source].kind
        if kind == "draw" and item >> VERTEX_BITS:
            refuse(f"a vertex function draws random numbers more than {1 << VERTEX_BITS} times", "draw larger tensors")
        if number in self.pulls.column_of_external:
            column, around.limits[source] = self.pulls.column_of_external[number]
            return source, -1 - 2 * column
        if kind != "constant":
            return source, item
        pool = around.constants.setdefault(source, [])
        around.items.append(len(pool))
        pool.append(built.constants[source][item])
        return source, -2 * len(around.items)

    def coded(self, node: int, output: int) -> tuple[int, int]:
        """A value of the built graph as records have it, definitions (1) and (4) there."""
        if node < 0:
            return node, 0
        if node >= self.gathered.num_nodes:
            return node - self.gathered.num_nodes, output
        predecessor, field = self.gathered.field(node, output)
        return self.num_nodes + predecessor, field

    def producers(self, scattered: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Which scattered values come from one node, as far as the fragment knows; see `Interface`."""
        numbers = Numbers()
        return tuple([numbers[self.producer(*value)] for value in scattered])

    def producer(self, node: int, output: int) -> Any:
        """What tells the node of a coded value apart."""
        if node < self.num_nodes:
            return max(node, -1)
        return node, self.gathered.interfaces[node - self.num_nodes].producers[output]


def _columns(pairs: Sequence[tuple[int, int]]) -> list[int]:
    return [first for first, _ in pairs] + [second for _, second in pairs]


def _recorded(recorder: Recorder, item: Any) -> Any:
    """What was pushed or scattered, with plain tensors as constants."""
    if isinstance(item, Symbol):
        return item
    if isinstance(item, torch.Tensor):
        return recorder.constant(item)
    raise ModelError(f"push and scatter: expected tensors, got {type(item).__name__}")
