"""Eager and lazy parts of a mini-batch: which cells run split, and the graph and schedule that then execute.

The plan names the operands that may be eager and the outputs that may be lazy (`edbc.cells.split` has the definitions);
whether they are is told by the mini-batch: the operand has to be external in every node of the type, no node may read
the output, there has to be memory for what eager parts compute (`edbc.runtime.chunks`), and few rows per batch
(`SplitCell.pays`). What executes is a graph in which a node of such a type is up to three nodes, under a schedule with
more batches: eager ones chunk by chunk, each before the first batch of cores that reads it, lazy ones last. Everything
after that (placement, arenas, back ends) treats the parts as types like any other. Nodes of a type's eager part stand
in the order of the schedule, so every batch of cores reads a contiguous run of their rows; but where nodes with equal
eager operands share one, rows stand where the schedule first needs them.

O(nodes + operands) per mini-batch, and one look at the operands when a type could be split and none is.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.cells.graph import CellGraph
from edbc.cells.program import Program
from edbc.cells.split import CORE, EAGER, LAZY, PARTS, SplitCell, split_cell
from edbc.graph import Graph, NodeType, ValueClass
from edbc.runtime import sharing, splitting
from edbc.runtime.chunks import Need, find_room
from edbc.schedule.schedule import Schedule
from edbc.trace.build import Capture
from edbc.trace.table import TypeTable
from edbc.trace.values import torch_dtype

Longs = NDArray[np.int64]
FEWEST_ROWS = 600
"""Look-ups that differ, among many nodes of a type: words are rarely fewer. Looking for equal ones in vain takes 2 % of
the time of 32 lattices."""
_NO_CHUNKS = (np.zeros(0, np.int64), np.zeros((0, 2), np.int64), np.zeros((2, 0), np.int64))


@dataclass(frozen=True, eq=False)
class Splittable:
    """What a plan says of one type that may run split."""

    cell: CellGraph
    batches: Sequence[Sequence[str]]
    order: Sequence[str]
    eager: tuple[str, ...]
    lazy: tuple[str, ...]
    where: str = "cell"

    @cached_property
    def eager_operands(self) -> list[int]:
        """Their numbers."""
        return [i for i, (name, _) in enumerate(self.cell.operands) if name in self.eager]

    @cached_property
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

    @property
    def shared_parts(self) -> int:
        """Nodes that read another one's eager part."""
        nodes, parts = self.whole[0].graph.counts(), self.capture.graph.counts()
        shared = [(kind, v.type_of_part[EAGER]) for kind, v in self.variants.items() if v.cell.shares]
        return sum(int(nodes[kind] - parts[eager]) for kind, eager in shared)


class Chosen(NamedTuple):
    """The types of a mini-batch that run split, and the rows of their eager parts."""

    variants: dict[int, Variant]
    room: Longs
    """Per type, for its hand-over, in rows."""
    row: Longs
    """This, `opened` and `counts` are of `splitting.find_chunks`."""
    opened: Longs
    counts: Longs


class Splitter:
    """Splits the mini-batches of one bound plan. `splittable(kind)` is what the plan says of a type, if anything,
    `weight_bytes(kind)` how many bytes its products read beside their operands.
    Without `share` every node has an eager part of its own."""

    def __init__(self, table: TypeTable, splittable: Callable[[int], Splittable | None],
                 weight_bytes: Callable[[int], int], share: bool = True):  # fmt: skip
        self.table = table
        self.share = share
        self.programs: dict[int, Program] = {}
        """Of the types that are parts."""
        self._splittable = splittable
        self._weight_bytes = cache(weight_bytes)
        self._known: dict[int, Splittable | None] = {}
        self._hoped: dict[int, tuple[Variant, ...]] = {}
        self._variants: dict[tuple[int, bool, bool, bool], Variant | None] = {}
        self._ordered: dict[tuple[int, bool, bool, bool], list[list[Variant]]] = {}
        self._tables: dict[tuple[int, ...], _Tables] = {}
        self._asked: dict[tuple[int, ...], tuple[Longs, Longs]] = {}
        self._bytes: dict[int, int] = {}
        self._most: dict[int, int] = {}
        """By the number of types: the most operands or outputs of one. A table of types only grows."""
        self._lock = threading.RLock()

    def split(self, capture: Capture, schedule: Schedule) -> SplitBatch | None:
        """The mini-batch with its cells split where that pays; None where it pays for none."""
        chosen = self.choose(capture, schedule)
        if not chosen.variants:
            return None
        tables = self._tables_of(capture.graph, chosen.variants)
        return _split(capture, schedule, tables, chosen, self.table.graph_types())

    def choose(self, capture: Capture, schedule: Schedule) -> Chosen:
        """The types that run split in this mini-batch."""
        graph = capture.graph
        sizes = splitting.batch_sizes(schedule.batch_type, schedule.batch_ptr, graph.num_types)
        room = np.zeros(graph.num_types, np.int64)
        nodes, batches, largest = sizes.tolist()
        size = {k: of_kind for k, of_kind in enumerate(zip(nodes, batches, strict=True)) if of_kind[1] > 1}
        weights = sum(self._weight_bytes(k) for k, count in enumerate(nodes) if count)
        kinds = [k for k, of_kind in size.items() if self._may_pay(k, *of_kind, weights)]
        if not kinds:
            return Chosen({}, room, *_NO_CHUNKS)
        most = self._most.get(graph.num_types)
        if most is None:
            most = self._most[graph.num_types] = most_values(graph)
        external, read = find_usage(graph, most)
        ways = {k: self._ways(k, external, read) for k in kinds}
        leader, num_distinct = self._find_equal(capture, schedule, [k for k in kinds if ways[k][0]])
        distinct = num_distinct.tolist()
        wanted = {k: self._choose(k, ways[k], *size[k], distinct[k], weights) for k in kinds}
        variants = {k: variant for k, variant in wanted.items() if variant is not None}
        if not variants:
            return Chosen({}, room, *_NO_CHUNKS)
        output_bytes = sum(count * self._output_bytes(graph, k) for k, count in enumerate(nodes) if count)
        for kind, rows in find_room(_needs(variants, nodes, largest, distinct), output_bytes).items():
            room[kind] = rows
        shares = np.array([k in variants and variants[k].cell.shares for k in range(graph.num_types)], np.bool_)
        chunks = splitting.find_chunks(schedule.batch_type, schedule.batch_ptr, schedule.nodes, leader, shares, room)
        num_chunks, num_rows = chunks[-1].tolist()
        return Chosen({
            k: variant for k, variant in variants.items()
            if room[k] and variant.cell.pays(*size[k], num_chunks[k], num_rows[k], weights)
        }, room, *chunks)  # fmt: skip

    def _find_equal(self, capture: Capture, schedule: Schedule, kinds: Collection[int]) -> tuple[Longs, Longs]:
        """See `sharing.find_equal_operands`, for the operands of these types that may be eager."""
        graph = capture.graph
        key = (graph.num_types, *kinds)
        if key not in self._asked:
            asked = [self._eager_operands(k) if self.share and k in kinds else [] for k in range(graph.num_types)]
            ptr = np.array(list(itertools.accumulate(map(len, asked), initial=0)), np.int64)
            self._asked[key] = ptr, np.array(list(itertools.chain(*asked)), np.int64)
        return sharing.find_equal_operands(
            schedule.nodes, graph.node_type, graph.operand_ptr, graph.operands, capture.external_source,
            capture.external_index, *self._asked[key],
        )  # fmt: skip

    def kept_whole(self, capture: Capture, schedule: Schedule) -> Iterator[str]:
        """Why types that the plan lets run in parts do not in this mini-batch, a line each."""
        graph = capture.graph
        chosen = self.choose(capture, schedule)
        nodes, batches = graph.counts(), np.bincount(schedule.batch_type, minlength=graph.num_types)
        external, read = find_usage(graph)
        weights = sum(self._weight_bytes(kind) for kind in np.flatnonzero(nodes).tolist())
        for kind in np.flatnonzero(batches).tolist():
            if self._of_plan(kind) is None or kind in chosen.variants:
                continue
            name, size = graph.types[kind].name, (int(nodes[kind]), int(batches[kind]))
            ways = self._ways(kind, external, read)
            distinct = int(self._find_equal(capture, schedule, [kind] if ways[0] else [])[1][kind])
            if not any(ways):
                yield f"{name} ran whole: its operands were not all look-ups, or its outputs were read"
            elif (
                size[1] < 2
                or not self._may_pay(kind, *size, weights)
                or chosen.room[kind]
                or self._choose(kind, ways, *size, distinct, weights) is None
            ):
                yield f"{name} ran whole: {size[0]:,} rows in {size[1]:,} batches gain nothing from parts"
            else:
                yield f"{name} ran whole: what its parts hand over takes too much memory beside the outputs"

    def _ways(self, kind: int, external: NDArray[np.bool_], read: NDArray[np.bool_]) -> tuple[bool, bool]:
        """Whether the operands that may be eager are, and the outputs that may be lazy; see `find_usage`."""
        planned = self._of_plan(kind)
        assert planned is not None
        operands, outputs = planned.eager_operands, planned.lazy_outputs
        eager = bool(operands) and all(external[kind, k] for k in operands)
        return eager, bool(outputs) and not any(read[kind, k] for k in outputs)

    def _choose(self, kind: int, ways: tuple[bool, bool], nodes: int, batches: int, distinct: int,
                weights: int) -> Variant | None:  # fmt: skip
        """What pays of the `ways` that are open to a type: eager operands, of which `distinct` nodes differ (0 where
        none may be shared), lazy outputs; where all types have so many bytes of `weights`."""
        for found in self._variants_of(kind, ways, distinct > 0):
            best, most = None, 0.0
            for variant in found:
                gain = variant.cell.gain(nodes, batches, 1, distinct, weights)
                if gain > most:
                    best, most = variant, gain
            if best is not None:
                return best
        return None

    def _may_pay(self, kind: int, nodes: int, batches: int, weights: int) -> bool:
        """Whether a look at the operands is worth it: they will not be fewer than FEWEST_ROWS, nor than half of all."""
        rows = min(nodes // 2, FEWEST_ROWS) if self.share else nodes
        return any(hope.cell.pays(nodes, batches, 1, rows, weights) for hope in self._hopes(kind))

    def _hopes(self, kind: int) -> tuple[Variant, ...]:
        """The ways to split a type, if all operands and outputs are as its plan hopes."""
        known = self._hoped.get(kind)
        if known is None:
            planned = self._of_plan(kind)
            eager, lazy = (bool(planned.eager), bool(planned.lazy)) if planned is not None else (False, False)
            found = self._variants_of(kind, (eager, lazy), self.share)
            known = self._hoped[kind] = tuple(itertools.chain(*found))
        return known

    def _variants_of(self, kind: int, ways: tuple[bool, bool], may_share: bool) -> Sequence[Sequence[Variant]]:
        """The ways to split a type, the one with the most parts first, each with and without shared eager parts."""
        key = (kind, *ways, may_share)
        known = self._ordered.get(key)
        if known is None:
            known = self._ordered[key] = list(self._new_variants(*key))
        return known

    def _new_variants(self, kind: int, eager: bool, lazy: bool, may_share: bool) -> Iterator[list[Variant]]:
        for open_ways in dict.fromkeys(((eager, lazy), (eager, False), (False, lazy))):
            shares = [False, True] if open_ways[0] and may_share else [False]
            found = [self._variant(kind, *open_ways, s) for s in shares] if any(open_ways) else []
            yield [variant for variant in found if variant is not None]

    def _of_plan(self, kind: int) -> Splittable | None:
        if kind not in self._known:
            self._known[kind] = self._splittable(kind)
        return self._known[kind]

    def _output_bytes(self, graph: Graph, kind: int) -> int:
        """Of all outputs of a node of a type."""
        if kind not in self._bytes:
            self._bytes[kind] = sum(c.size * torch_dtype(c.dtype).itemsize for c in graph.types[kind].outputs)
        return self._bytes[kind]

    def _eager_operands(self, kind: int) -> list[int]:
        planned = self._of_plan(kind)
        return planned.eager_operands if planned is not None else []

    def _variant(self, kind: int, eager: bool, lazy: bool, shares: bool) -> Variant | None:
        key = (kind, eager, lazy, shares)
        with self._lock:
            if key not in self._variants:
                self._variants[key] = self._new_variant(*key)
            return self._variants[key]

    def _new_variant(self, kind: int, eager: bool, lazy: bool, shares: bool) -> Variant | None:
        planned, whole = self._of_plan(kind), self.table.types[kind]
        assert planned is not None
        assert whole is not None
        names = planned.eager if eager else (), planned.lazy if lazy else ()
        cell = split_cell(planned.cell, planned.batches, planned.order, *names, planned.where, shares)
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
    name = f"{whole.name}.{part}"
    if cell.shares and part == CORE:
        constants, name = f"{constants}; {EAGER} part shared", f"{whole.name}.shared.{part}"
    return NodeType(name, f"{part} part of {whole.op}", tuple(operands), cell.parts[part].outputs, constants,
                    transient=part == EAGER and not cell.lasts)  # fmt: skip


def _needs(variants: dict[int, Variant], nodes: list[int], largest: list[int], distinct: list[int]) -> list[Need]:
    """What the types would hand over; `nodes` and `largest` are of `splitting.batch_sizes`, `distinct` of
    `_find_equal`."""
    found = []
    for kind, variant in variants.items():
        rows = distinct[kind] if variant.cell.shares else nodes[kind]
        found.append(Need(kind, rows, variant.row_bytes, rows if variant.cell.lasts else min(rows, largest[kind])))
    return found


def most_values(graph: Graph) -> int:
    """The most operands or outputs that a type of the graph has."""
    return max((len(c) for t in graph.types for c in (t.operands, t.outputs)), default=1)


def find_usage(graph: Graph, most: int | None = None) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Per type and number, which operands are external in every node and which outputs some node reads; `most` is
    `most_values` where that is known."""
    most = most_values(graph) if most is None else most
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


def _split(capture: Capture, schedule: Schedule, tables: _Tables, chosen: Chosen,
           types: tuple[NodeType, ...]) -> SplitBatch:  # fmt: skip
    graph = capture.graph
    (node_type, operand_ptr, operands, outputs), batches, executed, results = splitting.split_graph(
        schedule.batch_type, schedule.batch_ptr, schedule.nodes, graph.node_type, graph.operand_ptr, graph.operands,
        graph.operand_output, capture.result_node, capture.result_output, chosen.row, chosen.opened, chosen.counts[1],
        tables.has_part, tables.home, tables.part_type, tables.origin_ptr, tables.origin,
    )  # fmt: skip
    batch_type, batch_ptr, order = batches
    for array in (node_type, operand_ptr, operands, outputs, batch_type, batch_ptr, order):
        array.setflags(write=False)
    parts = Graph(types, node_type, operand_ptr, operands, outputs, graph.external_class, graph.classes)
    return SplitBatch(
        capture.changed(graph=parts, result_node=results[0], result_output=results[1]),
        Schedule(parts, batch_type, batch_ptr, order, schedule.table_steps, schedule.unseen_states, schedule.by_rule),
        (capture, schedule),
        executed,
        chosen.variants,
    )
