"""Where every value of a mini-batch lives: one arena per size and dtype of values, in schedule order.

Definitions.

(1) The *arena* of a value class is a matrix with one row per value: `f32[64]` and `f32[1,64]` share one, so that a
    batch may read either. Externals come first, in the order in which batches read them; then every batch writes its
    outputs as one contiguous slice.
(2) An operand of a batch whose rows are a contiguous run is read in place; any other needs a gather.
(3) Batches of a transient type all write to the same rows, as many as the largest of them has.
(4) Where a schedule is cut (`edbc.run.passes.cut`), rows from `class_kept` on belong to one segment at a time, those of
    what crosses stand before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.base.frozen import frozen
from edbc.base.graph import Graph, NodeType, ValueClass
from edbc.base.kept import Kept
from edbc.capture.standins.standin import torch_dtype
from edbc.run.passes import placeloops
from edbc.schedule.schedule import Schedule

if TYPE_CHECKING:
    from edbc.run.passes.cut import Cut

Longs = NDArray[np.int64]


@frozen
class Placement:
    """Rows for one graph and schedule; see `placeloops` for the arrays' meaning. b batches, k externals."""

    classes: tuple[ValueClass, ...]
    """Of each arena the class that was met first."""
    class_index: dict[ValueClass, int]
    """The arena of each class."""
    dtypes: tuple[torch.dtype, ...]
    """Of the classes."""
    row_bytes: Longs  # (classes,)
    operand_class: Longs  # (types, operands) -1 where a type has fewer
    output_class: Longs  # (types, outputs) -1 where a type has fewer
    segmented: NDArray[np.bool_]  # (types,)
    segmented_batches: NDArray[np.bool_]  # (b,)
    class_rows: Longs  # (classes,)
    begins: Longs  # (classes + 1,) bytes: where arenas begin that stand in one piece of memory, and their end
    class_externals: Longs  # (classes,) rows of externals, which come first
    class_kept: Longs  # (classes,) rows before those of one segment at a time, definition (4)
    borders: Longs  # (segments + 1,) the batches where each segment begins, and the end
    external_class: Longs  # (k,)
    batch_of: Longs  # (n,)
    position: Longs  # (n,) of the first item where the type is segmented
    output_row: Longs  # (b, outputs)
    made: Longs  # (b,) rows that each output has: nodes, or items of a segmented type
    external_row: Longs  # (k,) -1 where nobody reads it
    rows: Longs  # (operand entries,)
    segment: Longs  # (operand entries,)
    origin: Longs  # (operand entries,) classes of what excerpts are taken of; empty where no type is an excerpt
    start: Longs  # (b + 1,)
    items: Longs  # (b,)
    run: Longs  # (b, operands)
    widest: Longs  # (types,) nodes of the largest batch, 0 where a type has none

    @cached_property
    def widest_batches(self) -> dict[int, int]:
        """`widest` of the types that run."""
        return {kind: count for kind, count in enumerate(self.widest.tolist()) if count}

    @property
    def gathered_rows(self) -> int:
        """Operand rows that need a gather."""
        in_run = (self.run >= 0).sum(axis=1)
        return int(self.start[-1] - (in_run * self.items).sum())

    def value_rows(self, nodes: Longs, outputs: Longs) -> Longs:
        """Rows of values given as (node or -1 - external, output)."""
        nodes, outputs = np.ascontiguousarray(nodes), np.ascontiguousarray(outputs)
        return placeloops.value_rows(nodes, outputs, self.batch_of, self.position, self.output_row, self.external_row,
                                     self.segmented_batches)  # fmt: skip

    def value_places(self, node_type: NDArray[np.int32], nodes: Longs, outputs: Longs) -> tuple[Longs, Longs, int]:
        """`value_rows`, the class number of each value, and the one that all have: -1 where they differ."""
        found: tuple[Longs, Longs, int] = placeloops.value_places(
            nodes, outputs, node_type, self.batch_of, self.position, self.output_row, self.external_row,
            self.segmented_batches, self.external_class, self.output_class,
        )  # fmt: skip
        return found

    def value_classes(self, kinds: NDArray[np.integer], outputs: Longs) -> Longs:
        """Class numbers of outputs of nodes of these types."""
        return self.output_class[kinds, np.where(self.segmented[kinds], 0, outputs)]


def place(graph: Graph, schedule: Schedule, result_nodes: Longs, cut: Cut | None = None) -> Placement:
    """A row for every value of the graph under a schedule; with a cut, definition (4), no type may be transient.
    O(nodes + operands)."""
    tables = _tables_of(graph.types, graph.classes)
    borders, crosses = _NOT_CUT, _NOTHING_CROSSES
    if cut is not None:
        assert not tables.transient.any()
        borders, crosses = cut.borders, cut.crosses
    arrays = placeloops.place_rows(
        schedule.batch_type, schedule.batch_ptr, schedule.nodes, graph.operand_ptr, graph.operands,
        graph.operand_output, graph.external_class, tables.class_of_external_class, result_nodes, tables.arity,
        tables.variadic, tables.segmented, tables.excerpt, tables.transient, tables.output_class, borders, crosses,
        tables.row_bytes,
    )  # fmt: skip
    return Placement(
        tables.classes, tables.class_index, tables.dtypes, tables.row_bytes, tables.operand_class, tables.output_class,
        tables.segmented, tables.segmented[schedule.batch_type], *arrays,
    )  # fmt: skip


_Flags = NDArray[np.bool_]
_NOT_CUT = np.zeros(0, np.int64)
_NOTHING_CROSSES = np.zeros((0, 0), np.bool_)


@dataclass(frozen=True, eq=False)
class _Tables:
    """What placement reads of types, and of the classes of externals."""

    classes: tuple[ValueClass, ...]
    """The first of each arena, in order of first mention."""
    class_index: dict[ValueClass, int]
    dtypes: tuple[torch.dtype, ...]
    row_bytes: Longs
    class_of_external_class: Longs
    arity: Longs
    variadic: _Flags
    segmented: _Flags
    excerpt: _Flags
    transient: _Flags
    operand_class: Longs
    output_class: Longs


_KNOWN: Kept[int, tuple[tuple[NodeType, ...], tuple[ValueClass, ...], _Tables]] = Kept(64)


def _tables_of(types: tuple[NodeType, ...], classes: tuple[ValueClass, ...]) -> _Tables:
    """What placement reads of a graph's types, remembered for the very same tuple of types: a table of types gives it
    out until it grows, and hashing it would cost as much as working it out."""
    known = _KNOWN.get(id(types))
    if known is None or known[1] != classes:
        known = _KNOWN.add(id(types), (types, classes, _new_tables(types, classes)))
    return known[2]


def _new_tables(types: tuple[NodeType, ...], of_externals: tuple[ValueClass, ...]) -> _Tables:
    met = dict.fromkeys([*(c for t in types for c in (*t.operands, *t.outputs)), *of_externals])
    arenas: dict[tuple[Any, ...], ValueClass] = {}
    of_arena = [arenas.setdefault(c.row, c) for c in met]
    classes = tuple(arenas.values())
    index = {c: i for i, c in enumerate(classes)}
    class_index = {c: index[first] for c, first in zip(met, of_arena, strict=True)}
    return _Tables(
        classes,
        class_index,
        tuple(torch_dtype(c.dtype) for c in classes),
        row_bytes(classes),
        np.array([class_index[c] for c in of_externals], np.int64),
        np.array([len(t.operands) for t in types], np.int64),
        np.array([t.variadic for t in types], np.bool_),
        np.array([t.segmented for t in types], np.bool_),
        np.array([t.is_excerpt for t in types], np.bool_),
        np.array([t.transient for t in types], np.bool_),
        _class_table([t.operands for t in types], class_index),
        _class_table([t.outputs for t in types], class_index),
    )


@lru_cache(maxsize=64)
def row_bytes(classes: tuple[ValueClass, ...]) -> Longs:
    """Bytes of a row of each class; not to be written to. A Placement has those of its classes: hashing them takes
    longer than a mini-batch should."""
    return np.array([c.size * torch_dtype(c.dtype).itemsize for c in classes], np.int64)


def _class_table(rows: Sequence[Sequence[ValueClass]], class_index: dict[ValueClass, int]) -> Longs:
    table = np.full((max(len(rows), 1), max(1, *map(len, rows), 1)), -1, np.int64)
    for row, classes in zip(table, rows, strict=False):
        row[: len(classes)] = [class_index[c] for c in classes]
    return table
