"""Eager parts of a mini-batch: which cells run split, and the graph and schedule that then execute.

The plan names the operands that may be eager (`edbc.cells.parts` has the definitions); whether they are is told by the
mini-batch: the operand has to be external in every node of the type, there has to be memory for what eager parts
compute (`edbc.run.passes.chunks`), and few rows per batch (`SplitCell.pays`). What executes is a graph in which a node
of such a type is two nodes, under a schedule with more batches: eager ones chunk by chunk, each before the first batch
of cores that reads it. Everything after that (placement, arenas, back ends) treats the parts as types like any other.
Nodes of a type's eager part stand in the order of the schedule, so every batch of cores reads a contiguous run of their
rows; but where nodes with equal eager operands share one, rows stand where the schedule first needs them.

O(nodes + operands) per mini-batch, and one look at the operands when a type could be split and none is.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.base.frozen import frozen
from edbc.base.graph import Graph, GraphArrays, NodeType, ValueClass, ints
from edbc.base.kept import Kept
from edbc.capture.forward.build import Capture
from edbc.capture.record.table import TypeTable
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.opgraph import CellGraph
from edbc.cells.parts import CORE, EAGER, ON_CPU, PARTS, Rates, SplitCell, split_cell
from edbc.cells.program import Program
from edbc.run.passes import shareloops, splitloops
from edbc.run.passes.chunks import Need, find_room
from edbc.schedule.schedule import Schedule

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
FEWEST_ROWS = 600
"""Look-ups that differ, among many nodes of a type: words are rarely fewer. Looking for equal ones in vain takes 2 % of
the time of 32 lattices."""
MOST_KNOWN = 1000
"""Sets of types of which a `Splitter` knows what it worked out: small mini-batches of many types have a set each."""
_NO_CHUNKS = (np.zeros(0, np.int32), np.zeros((0, 2), np.int32), np.zeros((2, 0), np.int64))


@dataclass(frozen=True, eq=False)
class Splittable:
    """What a plan says of one type that may run split."""

    cell: CellGraph
    batches: Sequence[Sequence[str]]
    order: Sequence[str]
    eager: tuple[str, ...]
    where: str = "cell"

    @cached_property
    def eager_operands(self) -> list[int]:
        """Their numbers."""
        return [i for i, (name, _) in enumerate(self.cell.operands) if name in self.eager]


@dataclass(frozen=True, eq=False)
class Variant:
    """A type split in one way."""

    cell: SplitCell
    type_of_part: dict[str, int]
    """In the table of types."""
    row_bytes: int
    """Of what the parts of one node hand over."""


@frozen
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
    row: Ints
    """This, `opened` and `counts` are of `splitloops.find_chunks`."""
    opened: Ints
    counts: Longs


class _Present(NamedTuple):
    """What is known of the types of a mini-batch before it is looked at."""

    weight_bytes: int
    """Of all of them."""
    output_bytes: list[int]
    """Per type, of the outputs of a node; 0 for those without nodes."""
    hopes: list[tuple[int, list[SplitCell]]]
    """Of types that could be split, the ways to do it if all operands are as the plan hopes."""
    whole: Chosen
    """No type runs split."""


class _Asked(NamedTuple):
    """What is looked for in the operands of types."""

    ptr: Longs
    """This and `operands` are of `shareloops.find_equal_operands`."""
    operands: Longs


class Splitter:
    """Splits the mini-batches of one bound plan. `splittable(kind)` is what the plan says of a type, if anything,
    `weight_bytes(kind)` how many bytes its products read beside their operands.
    Without `share` every node has an eager part of its own; `rates` say when parts pay."""

    def __init__(self, table: TypeTable, splittable: Callable[[int], Splittable | None],
                 weight_bytes: Callable[[int], int], share: bool = True, rates: Rates = ON_CPU):  # fmt: skip
        self.table = table
        self.share = share
        self.rates = rates
        self.programs: dict[int, Program] = {}
        """Of the types that are parts."""
        self._splittable = splittable
        self._weight_bytes = cache(weight_bytes)
        self._known: dict[int, Splittable | None] = {}
        self._variants: dict[int, list[Variant]] = {}
        self._tables: Kept[tuple[int | Variant, ...], splitloops.Tables] = Kept(MOST_KNOWN)
        self._present: Kept[tuple[int, ...], _Present] = Kept(MOST_KNOWN)
        self._asked: Kept[tuple[int, ...], _Asked] = Kept(MOST_KNOWN)
        self._lock = threading.RLock()

    def split(self, capture: Capture, schedule: Schedule) -> SplitBatch | None:
        """The mini-batch with its cells split where that pays; None where it pays for none."""
        chosen = self.choose(capture, schedule)
        if not chosen.variants:
            return None
        tables = self._tables_of(capture.graph, chosen.variants)
        return _split(capture, schedule, tables, chosen, self.table.graph_types())

    def has_hope(self, graph: Graph, schedule: Schedule) -> bool:
        """Whether splitting hangs on which rows a mini-batch looks up: without hope, nothing of its structure is
        split."""
        nodes, batches, _ = splitloops.batch_sizes(schedule.batch_type, schedule.batch_ptr, graph.num_types).tolist()
        return bool(self._hopeful(self._present_in(graph, nodes), nodes, batches))

    def choose(self, capture: Capture, schedule: Schedule) -> Chosen:
        """The types that run split in this mini-batch."""
        graph = capture.graph
        sizes = splitloops.batch_sizes(schedule.batch_type, schedule.batch_ptr, graph.num_types)
        nodes, batches, largest = sizes.tolist()
        present = self._present_in(graph, nodes)
        weights = present.weight_bytes
        kinds = self._hopeful(present, nodes, batches)
        if not kinds:
            return present.whole
        equal, distinct = self._look(capture, schedule, kinds)
        variants = {}
        for k in kinds:
            variant = self._choose(k, nodes[k], batches[k], distinct[k], weights)
            if variant is not None:
                variants[k] = variant
        if not variants:
            return present.whole
        output_bytes = sum(map(operator.mul, nodes, present.output_bytes))
        room, shares = np.zeros(graph.num_types, np.int64), np.zeros(graph.num_types, np.bool_)
        for kind, rows in find_room(_needs(variants, nodes, largest, distinct), output_bytes).items():
            room[kind], shares[kind] = rows, variants[kind].cell.shares
        chunks = splitloops.find_chunks(schedule.batch_type, schedule.batch_ptr, schedule.nodes, equal, shares, room)
        num_chunks, num_rows = chunks[-1].tolist()
        return Chosen({
            k: variant for k, variant in variants.items()
            if room[k] and variant.cell.pays(nodes[k], batches[k], num_chunks[k], num_rows[k], weights, self.rates)
        }, room, *chunks)  # fmt: skip

    def _look(self, capture: Capture, schedule: Schedule, kinds: Sequence[int]) -> tuple[Ints, list[int]]:
        """Which nodes have equal operands, and how many differ per type, as `find_equal_operands` gives it: -1 where
        an operand that may be eager is none."""
        graph, asked = capture.graph, self._asked_of(capture.graph, kinds)
        equal, found = shareloops.find_equal_operands(
            schedule.batch_type, schedule.batch_ptr, schedule.nodes, graph.operand_ptr, graph.operands,
            capture.external_source, capture.external_index, asked.ptr, asked.operands, self.share,
        )  # fmt: skip
        return equal, found.tolist()

    def _asked_of(self, graph: Graph, kinds: Sequence[int]) -> _Asked:
        """For these types, which the plan lets run in parts."""
        key = (graph.num_types, *kinds)
        known = self._asked.get(key)
        if known is None:
            planned = [self._of_plan(k) if k in kinds else None for k in range(graph.num_types)]
            operands = [[] if p is None else p.eager_operands for p in planned]
            ptr = np.array(list(itertools.accumulate(map(len, operands), initial=0)), np.int64)
            known = self._asked.add(key, _Asked(ptr, np.array(list(itertools.chain(*operands)), np.int64)))
        return known

    def _present_in(self, graph: Graph, nodes: Sequence[int]) -> _Present:
        """For a graph with so many nodes of each type."""
        key = (len(nodes), *[k for k, count in enumerate(nodes) if count])
        known = self._present.get(key)
        if known is None:
            kinds = key[1:]
            sizes = [[c.size * torch_dtype(c.dtype).itemsize for c in t.outputs] for t in graph.types]
            known = self._present.add(key, _Present(
                sum(map(self._weight_bytes, kinds)),
                [sum(sizes[k]) if count else 0 for k, count in enumerate(nodes)],
                [(k, cells) for k in kinds if (cells := [variant.cell for variant in self._variants_of(k)])],
                Chosen({}, np.zeros(len(nodes), np.int64), *_NO_CHUNKS),
            ))  # fmt: skip
        return known

    def kept_whole(self, capture: Capture, schedule: Schedule) -> Iterator[str]:
        """Why types that the plan lets run in parts do not in this mini-batch, a line each."""
        graph = capture.graph
        chosen = self.choose(capture, schedule)
        nodes, batches = graph.counts().tolist(), np.bincount(schedule.batch_type, minlength=graph.num_types).tolist()
        present = self._present_in(graph, nodes)
        hopeful = self._hopeful(present, nodes, batches)
        for kind in np.flatnonzero(batches).tolist():
            if self._of_plan(kind) is None or kind in chosen.variants:
                continue
            name, size = graph.types[kind].name, (nodes[kind], batches[kind])
            distinct = self._look(capture, schedule, [kind])[1]
            if distinct[kind] < 0:
                yield f"{name} ran whole: its operands were not all look-ups"
            elif (
                kind not in hopeful
                or chosen.room[kind]
                or self._choose(kind, *size, distinct[kind], present.weight_bytes) is None
            ):
                yield f"{name} ran whole: {size[0]:,} rows in {size[1]:,} batches gain nothing from parts"
            else:
                yield f"{name} ran whole: what its parts hand over takes too much memory beside the outputs"

    def _choose(self, kind: int, nodes: int, batches: int, distinct: int, weights: int) -> Variant | None:
        """What pays of the ways to split a type whose eager operands differ in so many nodes (0 where none may be
        shared, less where they are not eager), where all types have so many bytes of `weights`."""
        best, most = None, 0.0
        for variant in self._variants_of(kind) if distinct >= 0 else ():
            if not variant.cell.shares or distinct > 0:
                gain = variant.cell.gain(nodes, batches, 1, distinct, weights, self.rates)
                if gain > most:
                    best, most = variant, gain
        return best

    def _hopeful(self, present: _Present, nodes: Sequence[int], batches: Sequence[int]) -> list[int]:
        """Types for which a look at the operands is worth it: those that differ will not be fewer than FEWEST_ROWS, nor
        than half of all."""
        kinds = []
        for kind, cells in present.hopes:
            if batches[kind] > 1:
                rows = min(nodes[kind] // 2, FEWEST_ROWS) if self.share else nodes[kind]
                for cell in cells:
                    if cell.gain(nodes[kind], batches[kind], 1, rows, present.weight_bytes, self.rates) > 0:
                        kinds.append(kind)
                        break
        return kinds

    def _variants_of(self, kind: int) -> list[Variant]:
        """The ways to split a type: with an eager part for each node, and with shared ones."""
        with self._lock:
            if kind not in self._variants:
                planned = self._of_plan(kind)
                ways = [] if planned is None or not planned.eager else [False, True] if self.share else [False]
                self._variants[kind] = [v for shares in ways if (v := self._new_variant(kind, shares)) is not None]
            return self._variants[kind]

    def _of_plan(self, kind: int) -> Splittable | None:
        if kind not in self._known:
            self._known[kind] = self._splittable(kind)
        return self._known[kind]

    def _new_variant(self, kind: int, shares: bool) -> Variant | None:
        planned, whole = self._of_plan(kind), self.table.types[kind]
        assert planned is not None
        assert whole is not None
        cell = split_cell(planned.cell, planned.batches, planned.order, planned.eager, planned.where, shares)
        if cell is None:
            return None
        types = {}
        for part in PARTS:
            types[part] = self.table.add_type(_type_of(part, whole, cell, planned.eager), whole.source)
            self.programs[types[part]] = cell.parts[part].program
        return Variant(
            cell, types, cell.parts[EAGER].handed_over * torch_dtype(cell.parts[CORE].program.dtype).itemsize
        )

    def _tables_of(self, graph: Graph, variants: dict[int, Variant]) -> splitloops.Tables:
        key: tuple[int | Variant, ...] = (graph.num_types, *variants.values())
        tables = self._tables.get(key)
        if tables is None:
            tables = self._tables.add(key, _new_tables(graph, variants))
        return tables


def _type_of(part: str, whole: NodeType, cell: SplitCell, eager: tuple[str, ...]) -> NodeType:
    """The type of a part: its signature says of which cell and how that is split."""
    operands: list[ValueClass] = []
    for origin in cell.parts[part].operands:
        classes = whole.operands if origin.part is None else cell.parts[origin.part].outputs
        operands.append(classes[origin.index])
    constants = f"{whole.signature}; {EAGER} {','.join(eager)}"
    name = f"{whole.name}.{part}"
    if cell.shares and part == CORE:
        constants, name = f"{constants}; {EAGER} part shared", f"{whole.name}.shared.{part}"
    return NodeType(name, f"{part} part of {whole.op}", tuple(operands), cell.parts[part].outputs, constants,
                    transient=part == EAGER and not cell.lasts)  # fmt: skip


def _needs(variants: dict[int, Variant], nodes: list[int], largest: list[int], distinct: list[int]) -> list[Need]:
    """What the types would hand over; `nodes` and `largest` are of `splitloops.batch_sizes`, `distinct` of
    `shareloops.find_equal_operands`."""
    found = []
    for kind, variant in variants.items():
        rows = distinct[kind] if variant.cell.shares else nodes[kind]
        found.append(Need(kind, rows, variant.row_bytes, rows if variant.cell.lasts else min(rows, largest[kind])))
    return found


def external_operands(graph: Graph) -> NDArray[np.bool_]:
    """Per type and number, which operands are external in every node."""
    most = max((len(t.operands) for t in graph.types), default=1)
    return splitloops.external_operands(graph.arrays, graph.num_types, most)


def _new_tables(graph: Graph, variants: dict[int, Variant]) -> splitloops.Tables:
    number = {EAGER: splitloops.EAGER, CORE: splitloops.CORE, None: splitloops.WHOLE}
    most = max((len(t.outputs) for t in graph.types), default=1)
    home = np.zeros((graph.num_types, max(most, 1), 2), np.int64)
    home[:, :, 0], home[:, :, 1] = splitloops.CORE, np.arange(max(most, 1))
    part_type = np.full((len(PARTS), graph.num_types), -1, np.int64)
    part_type[splitloops.CORE] = np.arange(graph.num_types)
    origin_ptr = np.zeros((len(PARTS), graph.num_types + 1), np.int64)
    origins: list[tuple[int, int]] = []
    for p, part in enumerate(PARTS):
        for kind in range(graph.num_types):
            origin_ptr[p, kind] = len(origins)
            if kind in variants:
                part_type[p, kind] = variants[kind].type_of_part[part]
                origins += [(number[o.part], o.index) for o in variants[kind].cell.parts[part].operands]
        origin_ptr[p, graph.num_types] = len(origins)
    for kind, variant in variants.items():
        for j, origin in enumerate(variant.cell.homes):
            home[kind, j] = number[origin.part], origin.index
    in_place = bool((home[:, :, 0] == splitloops.CORE).all() and (home[:, :, 1] == np.arange(home.shape[1])).all())
    in_place &= all(len(v.cell.parts[CORE].operands) == len(graph.types[k].operands) for k, v in variants.items())
    return splitloops.Tables(home, in_place, part_type, origin_ptr, np.array(origins, np.int64).reshape(-1, 2))


def _split(capture: Capture, schedule: Schedule, tables: splitloops.Tables, chosen: Chosen,
           types: tuple[NodeType, ...]) -> SplitBatch:  # fmt: skip
    nodes, batches, executed, results = splitloops.split_graph(
        schedule.arrays, capture.graph.arrays, splitloops.Results(capture.result_node, capture.result_output),
        splitloops.Chunks(chosen.row, chosen.opened, chosen.counts[1]), tables,
    )  # fmt: skip
    batch_type, batch_ptr, order = batches
    parts = Graph(types, *GraphArrays(*map(ints, nodes)), capture.graph.external_class, capture.graph.classes)
    return SplitBatch(
        capture.changed(graph=parts, result_node=results[0], result_output=results[1]),
        replace(schedule, graph=parts, batch_type=batch_type, batch_ptr=batch_ptr, nodes=order, step=None),
        (capture, schedule),
        executed,
        chosen.variants,
    )
