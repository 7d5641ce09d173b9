"""Eager and lazy parts of a mini-batch: which cells run split, and the graph and schedule that then execute.

The plan names the operands that may be eager and the outputs that may be lazy (`edbc.cells.split` has the definitions);
whether they are is told by the mini-batch: the operand has to be external in every node of the type, no node may read
the output, there has to be memory for what eager parts compute (`edbc.runtime.chunks`), and few rows per batch
(`SplitCell.pays`). What executes is a graph in which a node of such a type is up to three nodes, under a schedule with
more batches: eager ones chunk by chunk, each before the first batch of cores that reads it, lazy ones last. Everything
after that (placement, arenas, back ends) treats the parts as types like any other. Nodes of a type's eager part stand
in the order of the schedule, so every batch of cores reads a contiguous run of their rows.

O(nodes + operands) per mini-batch, and one look at the operands when a type could be split and none is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edbc.cells.graph import CellGraph
from edbc.cells.program import Program
from edbc.cells.split import CORE, EAGER, LAZY, PARTS, SplitCell, split_cell
from edbc.graph import Graph, NodeType, ValueClass
from edbc.runtime import splitting
from edbc.runtime.chunks import Need, find_room
from edbc.schedule.schedule import Schedule
from edbc.trace.build import Capture
from edbc.trace.table import TypeTable
from edbc.trace.values import torch_dtype

Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Splittable:
    """What a plan says of one type that may run split."""

    cell: CellGraph
    batches: Sequence[Sequence[str]]
    order: Sequence[str]
    eager: tuple[str, ...]
    lazy: tuple[str, ...]
    where: str = "cell"

    @property
    def eager_operands(self) -> list[int]:
        """Their numbers."""
        return [i for i, (name, _) in enumerate(self.cell.operands) if name in self.eager]

    @property
    def lazy_outputs(self) -> list[int]:
        """Their numbers."""
        return [i for i, name in enumerate(self.cell.outputs) if name in self.lazy]


@dataclass(frozen=True, eq=False)
class Variant:
    """A type split in one way."""

    cell: SplitCell
    type_of_part: dict[str, int]
    """In the table of types."""
    row_bytes: int
    """Of what the parts of one node hand over."""


@dataclass(frozen=True, eq=False)
class SplitBatch:
    """A mini-batch as it executes."""

    capture: Capture
    schedule: Schedule
    whole: tuple[Capture, Schedule]
    """What was captured, and the policy's schedule for it."""
    executed: Longs
    """Which executed batch each batch of the policy's schedule is."""
    variants: dict[int, Variant]
    """Of every type that is split."""


class Splitter:
    """Splits the mini-batches of one bound plan. `splittable(kind)` is what the plan says of a type, if anything."""

    def __init__(self, table: TypeTable, splittable: Callable[[int], Splittable | None]):
        self.table = table
        self.programs: dict[int, Program] = {}
        """Of the types that are parts."""
        self._splittable = splittable
        self._known: dict[int, Splittable | None] = {}
        self._variants: dict[tuple[int, bool, bool], Variant | None] = {}
        self._tables: dict[tuple[int, ...], _Tables] = {}
        self._lock = threading.RLock()

    def split(self, capture: Capture, schedule: Schedule) -> SplitBatch | None:
        """The mini-batch with its cells split where that pays; None where it pays for none."""
        variants, room = self.choose(capture.graph, schedule)
        if not variants:
            return None
        tables = self._tables_of(capture.graph, variants)
        return _split(capture, schedule, tables, variants, room, self.table.graph_types())

    def choose(self, graph: Graph, schedule: Schedule) -> tuple[dict[int, Variant], Longs]:
        """The types that run split in this mini-batch, and per type the room for its hand-over, in rows."""
        sizes = splitting.batch_sizes(schedule.batch_type, schedule.batch_ptr, graph.num_types)
        nodes, batches, _ = sizes
        room = np.zeros(graph.num_types, np.int64)
        size = {k: (int(nodes[k]), int(batches[k])) for k in np.flatnonzero(batches > 1).tolist()}
        kinds = [k for k in size if self._hopeful(k, *size[k])]
        if not kinds:
            return {}, room
        external, read = find_usage(graph)
        wanted = {k: self._choose(k, self._ways(k, external, read), *size[k]) for k in kinds}
        variants = {k: variant for k, variant in wanted.items() if variant is not None}
        for kind, rows in find_room(_needs(variants, sizes), _output_bytes(graph, nodes)).items():
            room[kind] = rows
        chunks = splitting.count_chunks(schedule.batch_type, schedule.batch_ptr, room)
        return {
            k: variant for k, variant in variants.items()
            if room[k] and variant.cell.pays(*size[k], int(chunks[k]))
        }, room  # fmt: skip

    def kept_whole(self, graph: Graph, schedule: Schedule) -> Iterator[str]:
        """Why types that the plan lets run in parts do not in this mini-batch, a line each."""
        chosen, room = self.choose(graph, schedule)
        nodes, batches = graph.counts(), np.bincount(schedule.batch_type, minlength=graph.num_types)
        external, read = find_usage(graph)
        for kind in np.flatnonzero(batches).tolist():
            if self._of_plan(kind) is None or kind in chosen:
                continue
            name, size = graph.types[kind].name, (int(nodes[kind]), int(batches[kind]))
            ways = self._ways(kind, external, read)
            if not any(ways):
                yield f"{name} ran whole: its operands were not all look-ups, or its outputs were read"
            elif size[1] < 2 or room[kind] or self._choose(kind, ways, *size) is None:
                yield f"{name} ran whole: {size[0]:,} rows in {size[1]:,} batches gain nothing from parts"
            else:
                yield f"{name} ran whole: what its parts hand over takes too much memory beside the outputs"

    def _ways(self, kind: int, external: NDArray[np.bool_], read: NDArray[np.bool_]) -> tuple[bool, bool]:
        """Whether the operands that may be eager are, and the outputs that may be lazy; see `find_usage`."""
        planned = self._of_plan(kind)
        assert planned is not None
        operands, outputs = planned.eager_operands, planned.lazy_outputs
        eager = bool(operands) and bool(external[kind, operands].all())
        return eager, bool(outputs) and not read[kind, outputs].any()

    def _choose(self, kind: int, ways: tuple[bool, bool], nodes: int, batches: int) -> Variant | None:
        """What pays of the `ways` that are open to a type: eager operands, lazy outputs."""
        eager, lazy = ways
        for open_ways in ((eager, lazy), (eager, False), (False, lazy)):
            variant = self._variant(kind, *open_ways) if any(open_ways) else None
            if variant is not None and variant.cell.pays(nodes, batches):
                return variant
        return None

    def _hopeful(self, kind: int, nodes: int, batches: int) -> bool:
        """Whether a type would pay if all operands and outputs were as its plan hopes: known without a look at them."""
        planned = self._of_plan(kind)
        ways = (bool(planned.eager), bool(planned.lazy)) if planned is not None else (False, False)
        return self._choose(kind, ways, nodes, batches) is not None

    def _of_plan(self, kind: int) -> Splittable | None:
        if kind not in self._known:
            self._known[kind] = self._splittable(kind)
        return self._known[kind]

    def _variant(self, kind: int, eager: bool, lazy: bool) -> Variant | None:
        key = (kind, eager, lazy)
        with self._lock:
            if key not in self._variants:
                self._variants[key] = self._new_variant(kind, eager, lazy)
            return self._variants[key]

    def _new_variant(self, kind: int, eager: bool, lazy: bool) -> Variant | None:
        planned, whole = self._of_plan(kind), self.table.types[kind]
        assert planned is not None
        assert whole is not None
        names = planned.eager if eager else (), planned.lazy if lazy else ()
        cell = split_cell(planned.cell, planned.batches, planned.order, *names, planned.where)
        if cell is None:
            return None
        types = {}
        for part in PARTS:
            if part in cell.parts:
                types[part] = self.table.add_type(_type_of(part, whole, cell, names), whole.source)
                self.programs[types[part]] = cell.parts[part].program
        return Variant(cell, types, cell.handed_over * torch_dtype(cell.parts[CORE].program.dtype).itemsize)

    def _tables_of(self, graph: Graph, variants: dict[int, Variant]) -> _Tables:
        key = (graph.num_types, *(id(variants.get(k)) for k in range(graph.num_types)))
        tables = self._tables.get(key)
        if tables is None:
            tables = self._tables[key] = _new_tables(graph, variants)
        return tables


def _type_of(part: str, whole: NodeType, cell: SplitCell, names: tuple[tuple[str, ...], tuple[str, ...]]) -> NodeType:
    """The type of a part: its signature says of which cell and how that is split."""
    operands: list[ValueClass] = []
    for origin in cell.parts[part].operands:
        classes = whole.operands if origin.part is None else cell.parts[origin.part].outputs
        operands.append(classes[origin.index])
    constants = f"{whole.signature}; {EAGER} {','.join(names[0])}; {LAZY} {','.join(names[1])}"
    return NodeType(f"{whole.name}.{part}", f"{part} part of {whole.op}", tuple(operands), cell.parts[part].outputs,
                    constants, transient=part == EAGER and not cell.lasts)  # fmt: skip


def _needs(variants: dict[int, Variant], sizes: Longs) -> list[Need]:
    """What the types would hand over; `sizes` is of `splitting.batch_sizes`."""
    found = []
    for kind, variant in variants.items():
        nodes, _, largest = sizes[:, kind].tolist()
        found.append(Need(kind, nodes, variant.row_bytes, nodes if variant.cell.lasts else largest))
    return found


def _output_bytes(graph: Graph, nodes: Longs) -> int:
    """Of all outputs of all nodes."""
    return sum(
        int(nodes[kind]) * sum(c.size * torch_dtype(c.dtype).itemsize for c in graph.types[kind].outputs)
        for kind in np.flatnonzero(nodes).tolist()
    )


def find_usage(graph: Graph) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Per type and number, which operands are external in every node and which outputs some node reads."""
    most = max((len(c) for t in graph.types for c in (t.operands, t.outputs)), default=1)
    return splitting.find_usage(graph.node_type, graph.operand_ptr, graph.operands, graph.operand_output,
                                graph.num_types, most)  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Tables:
    """See `splitting.split_nodes`."""

    has_part: NDArray[np.bool_]
    home: Longs
    part_type: Longs
    origin_ptr: Longs
    origin: Longs


def _new_tables(graph: Graph, variants: dict[int, Variant]) -> _Tables:
    number = {EAGER: splitting.EAGER, CORE: splitting.CORE, LAZY: splitting.LAZY, None: splitting.WHOLE}
    most = max((len(t.outputs) for t in graph.types), default=1)
    home = np.zeros((graph.num_types, max(most, 1), 2), np.int64)
    home[:, :, 0], home[:, :, 1] = splitting.CORE, np.arange(max(most, 1))
    part_type = np.full((len(PARTS), graph.num_types), -1, np.int64)
    part_type[splitting.CORE] = np.arange(graph.num_types)
    origin_ptr = np.zeros((len(PARTS), graph.num_types + 1), np.int64)
    origins: list[tuple[int, int]] = []
    for p, part in enumerate(PARTS):
        for kind in range(graph.num_types):
            origin_ptr[p, kind] = len(origins)
            if kind in variants and part in variants[kind].cell.parts:
                part_type[p, kind] = variants[kind].type_of_part[part]
                origins += [(number[o.part], o.index) for o in variants[kind].cell.parts[part].operands]
        origin_ptr[p, graph.num_types] = len(origins)
    for kind, variant in variants.items():
        for j, origin in enumerate(variant.cell.homes):
            home[kind, j] = number[origin.part], origin.index
    has_part = part_type >= 0
    return _Tables(has_part, home, part_type, origin_ptr, np.array(origins, np.int64).reshape(-1, 2))


def _split(capture: Capture, schedule: Schedule, tables: _Tables, variants: dict[int, Variant], room: Longs,
           types: tuple[NodeType, ...]) -> SplitBatch:  # fmt: skip
    graph = capture.graph
    number = splitting.number_parts(schedule.nodes, tables.has_part, graph.node_type)
    kinds, ptr, order, executed = splitting.part_batches(schedule.batch_type, schedule.batch_ptr, schedule.nodes,
                                                         graph.node_type, number, room)  # fmt: skip
    arrays = splitting.split_nodes(graph.node_type, graph.operand_ptr, graph.operands, graph.operand_output, number,
                                   tables.home, tables.part_type, tables.origin_ptr, tables.origin)  # fmt: skip
    node_type, operand_ptr, operands, outputs = map(_frozen, arrays)
    parts = replace(graph, types=types, node_type=node_type, operand_ptr=operand_ptr, operands=operands,
                    operand_output=outputs)  # fmt: skip
    node, output = _moved(capture, tables, number)
    batch_type = tables.part_type[kinds[:, 0], kinds[:, 1]]
    return SplitBatch(
        replace(capture, graph=parts, result_node=node, result_output=output),
        replace(schedule, graph=parts, batch_type=_frozen(batch_type), batch_ptr=_frozen(ptr), nodes=_frozen(order)),
        (capture, schedule),
        executed,
        variants,
    )


def _moved(capture: Capture, tables: _Tables, number: Longs) -> tuple[Longs, Longs]:
    """Where results are in the split graph."""
    node, output = capture.result_node, capture.result_output
    inside = node >= 0
    if not inside.any():
        return node, output
    safe = np.where(inside, node, 0)
    home = tables.home[capture.graph.node_type[safe], np.where(inside, output, 0)]
    moved = number[home[:, 0], safe]
    return np.where(inside, moved, node), np.where(inside, home[:, 1], output)


def _frozen(array: Longs) -> NDArray[np.int32]:
    result = np.ascontiguousarray(array, dtype=np.int32)
    result.setflags(write=False)
    return result
