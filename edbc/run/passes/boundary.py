"""Into and out of arenas: the externals of a mini-batch, and what its instances return."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from edbc.base.frozen import frozen
from edbc.base.graph import ValueClass
from edbc.capture.code.shadow import ModelView
from edbc.capture.forward.build import Capture
from edbc.capture.forward.carried import Carried, each_row, split_rows, split_shapes
from edbc.capture.forward.returned import Result, filled, filler_of
from edbc.capture.record.table import Source
from edbc.capture.semantics.shapes import of_rows
from edbc.capture.standins.standin import Slot
from edbc.native.memory import require_memory
from edbc.run.passes.arenas import Arenas, Table, Values
from edbc.run.passes.placement import Longs, Placement
from edbc.run.passes.randomrows import draw_seeds, drawn
from edbc.run.weights.touched import require_storage

_ONE_EACH = frozenset((Result,))
_NO_SEEDS = np.zeros(0, np.int64)


@frozen
class Lookups:
    """The externals of a mini-batch that are read, as far as its structure tells."""

    order: Longs
    """Source by source, and in the order of their rows."""
    rows: Longs
    """These rows."""
    of_source: list[tuple[int, int, int, int]]
    """Sources that any are of, their class, and where theirs begin and end."""
    draws: bool
    """Whether any are random numbers."""


@frozen
class Boundary:
    """What crosses between a mini-batch and its arenas, known before anything executes."""

    lookups: Lookups
    wants: list[Wanted | Mixed]


def boundary_of(capture: Capture, placement: Placement, mixes: bool = False) -> Boundary:
    """For every mini-batch of this structure."""
    return Boundary(lookups_of(capture, placement), wanted(capture, placement, mixes))


def lookups_of(capture: Capture, placement: Placement) -> Lookups:
    """What `load_externals` binds."""
    from edbc.run.passes import placeloops

    order, rows, ptr, classes = placeloops.externals_by_source(
        capture.external_source, placement.external_class, placement.external_row, placement.class_externals,
        len(capture.sources),
    )  # fmt: skip
    pairs = enumerate(zip(classes.tolist(), itertools.pairwise(ptr.tolist()), strict=True))
    of_source = [(number, c, begin, end) for number, (c, (begin, end)) in pairs if begin < end]
    draws = any(capture.sources[number].kind == "draw" for number, *_ in of_source)
    return Lookups(order, rows, of_source, draws)


def load_externals(capture: Capture, lookups: Lookups, arenas: Arenas, view: ModelView) -> None:
    """Bind every external that is read to its row of a table: rows of parameters and of earlier segments as they are,
    constants stacked, random numbers drawn. Tables that have it as the external says are bound together."""
    seeds = draw_seeds(capture.sources, capture.external_source, capture.external_index) if lookups.draws else _NO_SEEDS
    indices = capture.external_index[lookups.order]
    tables: list[Table] = []
    for number, c, begin, end in lookups.of_source:
        pool = capture.constants.get(number)
        if isinstance(pool, torch.Tensor | Carried):
            tables.append((c, begin, end, pool))
            continue
        source = capture.sources[number]
        rows, index = lookups.rows[begin:end], indices[begin:end]
        if source.kind == "constant":
            assert pool is not None
            arenas.bind_each(c, rows, [pool[i] for i in index.tolist()])
        elif source.kind == "offset":
            arenas.bind(c, rows, torch.from_numpy(index), np.arange(len(index)))
        elif source.kind == "draw":
            arenas.bind(c, rows, drawn(source, index, seeds), np.arange(len(index)))
        else:
            table = arenas.shared.get(number)
            if table is None:
                table = arenas.shared[number] = table_of(source, view)
            tables.append((c, begin, end, table))
    if tables:
        arenas.bind_tables(lookups.rows, indices, tables)


def table_of(source: Source, view: ModelView) -> torch.Tensor:
    """The parameter that externals are rows of."""
    assert source.ref is not None
    tensor = view.shared(source.ref).detach()
    if view.needs_data:
        require_storage(tensor, ", ".join(source.ref.names))
    return tensor.unsqueeze(0) if source.kind == "whole" else tensor


@frozen
class Wanted:
    """Rows of one class that leave the arenas together: of results `which`, all in order without it."""

    class_index: int
    which: list[int] | None
    rows: Longs
    shape: tuple[int, ...]
    """Of all of them, `(rows, ...)`."""
    size: int
    """Bytes of them."""
    sizes: list[int] | None = None
    """Where some leave as stacks: how many of the rows each result of `which` has, 0 for one that is no stack."""

    @classmethod
    def of(cls, placement: Placement, slots: Iterable[Slot], c: int, which: list[int] | None, rows: Longs,
           sizes: list[int] | None = None) -> Wanted:  # fmt: skip
        """Rows of the arena of a number, where `slots` are those of all results. Vectors, where their classes have
        several shapes: `arrange` gives each its own."""
        shapes = {slot.base.shape for slot in slots if placement.class_index[slot.base] == c}
        shape = shapes.pop() if len(shapes) == 1 else (placement.classes[c].size,)
        return cls(c, which, rows, (len(rows), *shape), len(rows) * int(placement.row_bytes[c]), sizes)


@frozen
class Mixed:
    """Rows of several classes of one dtype that leave the arenas in one piece of memory: of results `which`, or stacks
    of them."""

    which: list[int]
    rows: Longs
    classes: Longs
    lengths: list[int]
    """Elements of each result."""
    shapes: list[tuple[int, ...] | None]
    """None for a vector."""


def wanted(capture: Capture, placement: Placement, mixes: bool = False) -> list[Wanted | Mixed]:
    """What `collect` will read, known before anything executes; of several classes at once if arenas can (`mixes`)."""
    nodes, outputs = capture.result_node, capture.result_output
    if capture.in_tables:
        rows = placement.value_rows(nodes, outputs)
        pairs = [(capture.result_slots[run.start], rows[run.start : run.stop]) for run in capture.results]
        return [Wanted.of(placement, (slot,), placement.class_index[slot.base], None, of) for slot, of in pairs]
    slots = distinct(capture.result_slots)
    rows, classes, only = placement.value_places(capture.graph.node_type, nodes, outputs)
    if only >= 0:
        sizes = [stop - start for start, stop in capture.stacks]
        if sum(sizes) == len(rows):
            return [Wanted.of(placement, slots, only, [start for start, _ in capture.stacks], rows, sizes)]
        if not sizes:
            return [Wanted.of(placement, slots, only, None, rows)]
    first, rows_of = pieces(capture)
    if mixes:
        bases = [slot.base for slot in map(capture.result_slots.__getitem__, first.tolist())]
        return list(_mixed(placement, bases, rows, classes, first, rows_of))
    all_of = dict(_by_class(classes))
    return [
        Wanted.of(
            placement,
            slots,
            c,
            first[which].tolist(),
            rows[all_of[c]],
            rows_of[which].tolist() if capture.stacks else None,
        )
        for c, which in _by_class(classes[first])
    ]


def _mixed(placement: Placement, bases: Sequence[ValueClass], rows: Longs, classes: Longs, first: Longs,
           rows_of: Longs) -> Iterator[Mixed]:  # fmt: skip
    """One for each dtype; `first` and `rows_of` are as `pieces` has them, `bases` the classes of the pieces."""
    dtypes = dict.fromkeys(base.dtype for base in bases)
    for dtype in dtypes:
        are_here = np.array([c.dtype == dtype for c in placement.classes], np.bool_) if len(dtypes) > 1 else None
        here = slice(None) if are_here is None else are_here[classes]
        which = first if are_here is None else first[are_here[classes[first]]]
        told = [(c, count) for c, count in zip(bases, rows_of.tolist(), strict=True) if c.dtype == dtype]
        yield Mixed(
            which.tolist(), rows[here], classes[here], [c.size * (count or 1) for c, count in told],
            [(count, *c.shape) if count else None if len(c.shape) == 1 else c.shape for c, count in told],
        )  # fmt: skip


def _by_class(classes: Longs) -> Iterator[tuple[int, Longs]]:
    """Each class, and where it stands, in order."""
    order = np.argsort(classes, kind="stable")
    grouped = classes[order]
    borders = [0, *(np.flatnonzero(grouped[1:] != grouped[:-1]) + 1).tolist(), len(order)]
    for begin, end in itertools.pairwise(borders):
        if begin < end:
            yield int(grouped[begin]), order[begin:end]


def pieces(capture: Capture) -> tuple[Longs, Longs]:
    """The results at which tensors leave, and how many rows each has: 0 for one that is no stack."""
    count = len(capture.result_node)
    if not capture.stacks:
        return np.arange(count), np.zeros(count, np.int64)
    start, stop = np.array(capture.stacks, np.int64).T
    inside = np.zeros(count + 1, np.int64)
    inside[start] += 1
    inside[stop] -= 1
    sizes = np.zeros(count, np.int64)
    sizes[start] = stop - start
    first = np.flatnonzero((np.cumsum(inside[:-1]) == 0) | (sizes > 0))
    return first, sizes[first]


def collect(capture: Capture, placement: Placement, arenas: Values, wants: Sequence[Wanted | Mixed]) -> list[Any]:
    """What each instance's forward returned, with tensors that own their memory: no later mini-batch changes them."""
    if capture.in_tables:
        return [_picked(want, arenas) for want in wants if isinstance(want, Wanted)]
    if len(wants) == 1 and wants[0].which is None:
        return arrange(capture, list(each_row(_picked(wants[0], arenas))))
    tensors: list[Any] = [None] * len(capture.result_node)
    for want in wants:
        assert want.which is not None
        for i, tensor in zip(want.which, _parts(want, placement, arenas), strict=True):
            tensors[i] = tensor
    return arrange(capture, tensors)


def _parts(want: Wanted | Mixed, placement: Placement, arenas: Values) -> Sequence[torch.Tensor]:
    """The results that leave together, one by one."""
    if isinstance(want, Mixed):
        size = sum(want.lengths) * placement.dtypes[int(want.classes[0])].itemsize
        require_memory(size, "the results of this mini-batch")
        return split_shapes(arenas.mixed(want.classes, want.rows, sum(want.lengths)), want.lengths, want.shapes)
    picked = _picked(want, arenas)
    return each_row(picked) if want.sizes is None else split_rows(picked, want.sizes)


def _picked(want: Wanted, arenas: Values) -> torch.Tensor:
    require_memory(want.size, "the results of this mini-batch")
    rows = arenas.rows(want.class_index, want.rows)
    return rows if len(want.shape) == 2 else rows.view(want.shape)


def distinct(slots: Sequence[Slot]) -> list[Slot]:
    """Each slot once; nearly always there is one, which is told without hashing all."""
    if slots and slots.count(slots[0]) == len(slots):
        return [slots[0]]
    return list(dict.fromkeys(slots))


def share_rows(slots: Sequence[Slot]) -> bool:
    """Whether values of several shapes stand in one arena; of slots that are `distinct`."""
    return len(slots) > 1 and len({slot.base.row for slot in slots}) < len({slot.base for slot in slots})


def arrange(capture: Capture, tensors: list[Any]) -> list[Any]:
    """What each instance's forward returned, given its tensors before views are taken of them, a stack at its first
    row. What it left on the caller's objects is written there."""
    slots = distinct(capture.result_slots)
    if any(slot.views for slot in slots) or share_rows(slots):
        tensors = _seen(capture, tensors)
    if capture.given is not None:
        tensors = capture.given.among(tensors)
    for left in capture.left:
        left.write(tensors)
    nests, starts = capture.results, capture.result_ptr
    if _ONE_EACH.issuperset(map(type, nests)):
        return [tensors[first + nest.index] for nest, first in zip(nests, starts, strict=False)]
    bounds = itertools.pairwise(starts)
    if len({*map(id, nests)}) == 1 < len(nests) and (fill := filler_of(nests[0])):
        return fill(tensors, bounds)
    return [filled(nest, tensors, *of) for nest, of in zip(nests, bounds, strict=True)]


def _seen(capture: Capture, tensors: Sequence[Any]) -> list[Any]:
    """The tensors as their slots have them, with views taken; of every row of a stack."""
    seen = list(tensors)
    is_stack = dict(capture.stacks)
    for i, slot in enumerate(capture.result_slots):
        if seen[i] is None:
            continue
        shape = slot.shape if slot.keeps_order else slot.base.shape
        rows = seen[i].shape[:1] if i in is_stack else ()
        if seen[i].shape != (*rows, *shape):
            seen[i] = seen[i].reshape((*rows, *shape))
        if slot.keeps_order or not slot.views:
            continue
        for step in slot.views:
            seen[i] = of_rows(step.apply, seen[i]) if i in is_stack else step.apply(seen[i])
    return seen
