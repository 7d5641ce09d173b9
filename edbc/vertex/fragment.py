"""Fragments: what one vertex function does, recorded once for all vertices that are alike.

Definitions.

(1) The *interface* of a vertex is what vertices that gather from it can tell about it: the slot of each value that it
    scatters, and which of these values come from one node.
(2) A *fragment* is the part of a dataflow graph that a vertex function makes for predecessors of given interfaces:
    nodes, their operands, externals, and where pushed and scattered values come from. The number of predecessors is
    part of that, so vertex functions may run any Python over the list of their predecessors.
(3) A *reference* says where an operand comes from: an own node's output, an own external, or a value that a
    predecessor scattered.

A fragment is made by define-by-run capture (`trace.recorder`, `trace.build`) on stand-ins for gathered values, so
types, signatures, views, constants and the fusing of sums are those of the first front end, by construction. Gathered
values are outputs of nodes of a pseudo-type while recording; these nodes come first and are dropped.

Two things are decided within a fragment where define-by-run sees the whole mini-batch. A sum that is scattered stays a
node of its own, though the only vertex that gathers it may add to it. Sums of several values over the same
predecessors become one node even where a predecessor scatters externals (learned initial states), because interfaces
do not tell externals from nodes: if they did, vertices of k predecessors would come in 2**k kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch

from edbc.errors import InputError, ModelError
from edbc.graph import ValueClass
from edbc.trace.build import Capture, build
from edbc.trace.recorder import Recorder
from edbc.trace.table import Entry, Hole, Operation, TypeTable
from edbc.trace.values import Rows, Shared, Slot, Value
from edbc.vertex.function import Vertex, VertexFunction
from edbc.vertex.inputs import Columns
from edbc.vertex.instance import VertexInstance

OWN, EXTERNAL, GATHERED = 0, 1, 2
"""Kinds of references."""
COLUMN, FIXED, SHARED = 0, 1, 2
"""Kinds of externals: index from an input of the vertex; index known; one external for the whole mini-batch."""


class Interface(NamedTuple):
    """Definition (1)."""

    slots: tuple[Slot, ...]
    producers: tuple[int, ...]
    """Equal numbers for values of one producer, numbered by first occurrence; all externals count as one producer."""


class Reference(NamedTuple):
    """Definition (3). `item` is an own node, an own external or a predecessor, `output` which value of it."""

    kind: int
    item: int
    output: int


class External(NamedTuple):
    """An external of a fragment. `item` is a column (`vertex.inputs`), or which item of the source."""

    kind: int
    source: int
    item: int
    value_class: ValueClass
    limit: int
    """Rows of the source's table; unused for other kinds."""


@dataclass(frozen=True, eq=False)
class Fragment:
    """Definition (2)."""

    node_types: tuple[int, ...]
    """Index into the table's types."""
    operands: tuple[tuple[Reference, ...], ...]
    externals: tuple[External, ...]
    pushed: tuple[tuple[str, Slot, Reference], ...]
    scattered: tuple[Reference, ...]
    interface: Interface

    @property
    def num_operands(self) -> int:
        """Operands of all nodes."""
        return sum(map(len, self.operands))


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What recording fragments needs besides the vertex function: shared by all fragments of one model."""

    recorder: Recorder
    columns: Columns
    constants: dict[int, list[torch.Tensor]]
    """Constants in the vertex functions' code, by source; grows."""


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
    function(vertex)
    values = [_as_value(recorder, value) for _, value in vertex.pushed]
    values += [_as_value(recorder, value) for value in vertex.scattered or ()]
    recording = recorder.finish([values])
    built = build(replace(recording, table=gathered.table()))
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
        """A new pseudo-entry. Its number is negative and so finds it at the end of `table().entries`."""
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
        """The type table with the pseudo-entries behind its own."""
        return cast(TypeTable, _Extended(self._table, [*self._table.entries, *reversed(self._entries)]))


class _Extended:
    """A type table with other entries."""

    def __init__(self, table: TypeTable, entries: list[Entry]):
        self._table = table
        self.entries = entries

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


class _Pulls:
    """Answers pulls with externals and remembers which column each of them reads."""

    def __init__(self, around: Surroundings, instance: VertexInstance):
        self.around = around
        self.instance = instance
        self.column_of_external: dict[int, int] = {}

    def read(self, name: str, table: Any) -> Value:
        """The stand-in for a pulled row."""
        value_class = self.around.columns.class_of_input(name, self.instance)
        type_table = self.around.recorder.table
        if table is None:
            source = type_table.constant_source(value_class)
            return self._external(self.around.columns.of(name, source), source, type_table.slot(value_class))
        if type(table) is not Shared or table.row_slot is None:
            raise ModelError(f"pull({name!r}): expected a parameter or buffer as table, got {table!r}")
        if value_class != ValueClass((), "i64"):
            raise InputError(f"input {name!r}: expected one integer per vertex to look up, got {value_class}")
        return self._external(self.around.columns.of(name, None), table.source, table.row_slot)

    def _external(self, column: int, source: int, slot: Slot) -> Value:
        value = self.around.recorder.external(source, column, slot)
        self.column_of_external[-1 - value.ref] = column
        return value


class _Reading:
    """A built recording read as a fragment."""

    def __init__(self, built: Capture, gathered: _Gathered, pulls: _Pulls):
        self.built = built
        self.gathered = gathered
        self.pulls = pulls

    def fragment(self, names: list[str]) -> Fragment:
        """The fragment whose first results are pushed under `names`; the others are scattered."""
        graph, built = self.built.graph, self.built
        first = self.gathered.num_nodes
        operands = [[self.reference(*o) for o in graph.operands_of(v)] for v in range(first, graph.num_nodes)]
        results = [self.reference(int(v), int(o)) for v, o in zip(built.result_node, built.result_output, strict=True)]
        pushed, scattered = results[: len(names)], results[len(names) :]
        slots = tuple(built.result_slots[len(names) :])
        return Fragment(
            tuple(graph.node_type[first:].tolist()),
            tuple(map(tuple, operands)),
            tuple(self.external(e) for e in range(graph.num_externals)),
            tuple(zip(names, built.result_slots[: len(names)], pushed, strict=True)),
            tuple(scattered),
            Interface(slots, self.producers(scattered)),
        )

    def reference(self, node: int, output: int) -> Reference:
        """A reference from a node or external of the built graph."""
        if node < 0:
            return Reference(EXTERNAL, -1 - node, 0)
        if node < self.gathered.num_nodes:
            return Reference(GATHERED, *self.gathered.field(node, output))
        return Reference(OWN, node - self.gathered.num_nodes, output)

    def external(self, number: int) -> External:
        """External `number` of the recording."""
        around, built = self.pulls.around, self.built
        source, index = int(built.external_source[number]), int(built.external_index[number])
        value_class = built.graph.classes[int(built.graph.external_class[number])]
        kind = built.sources[source].kind
        if number in self.pulls.column_of_external:
            limit = self.num_rows(source) if kind == "row" else torch.iinfo(torch.int64).max
            return External(COLUMN, source, self.pulls.column_of_external[number], value_class, limit)
        if kind == "row":
            return External(FIXED, source, index, value_class, 0)
        if kind == "constant":
            pool = around.constants.setdefault(source, [])
            pool.append(built.constants[source][index])
            index = len(pool) - 1
        return External(SHARED, source, index, value_class, 0)

    def num_rows(self, source: int) -> int:
        """Rows of the table that a source looks up."""
        ref = self.built.sources[source].ref
        tracer = self.pulls.around.recorder._tracer
        assert ref is not None
        assert tracer is not None
        return tracer.shared(ref).shape[0]

    def producers(self, scattered: Sequence[Reference]) -> tuple[int, ...]:
        """Which scattered values come from one node; see `Interface`."""
        numbers: dict[Any, int] = {}
        return tuple(numbers.setdefault(self.producer(r), len(numbers)) for r in scattered)

    def producer(self, reference: Reference) -> Any:
        """What tells the node of a reference apart, as far as the fragment knows."""
        if reference.kind == GATHERED:
            interface = self.gathered.interfaces[reference.item]
            return GATHERED, reference.item, interface.producers[reference.output]
        return (EXTERNAL,) if reference.kind == EXTERNAL else (OWN, reference.item)


def _as_value(recorder: Recorder, item: Any) -> Value:
    """What was pushed or scattered, as a recorded value."""
    kind = type(item)
    if kind is Value:
        return item
    if kind is Shared:
        return recorder.whole(item)
    if kind is Rows:
        return item.materialise()
    if isinstance(item, torch.Tensor):
        return recorder.constant(item)
    raise ModelError(f"push and scatter: expected tensors, got {kind.__name__}")
