"""From values to stages: what the steps of a device compute for a batch of a type, one stage after the other.

Definitions.

(1) A value is *made* when it is a product, a product of a row's own matrices or a reduction: each element is of many
    others, so a job of its own computes it, for all rows. So is what a product reads where that is computed of a made
    value or of more than MOST_LOADS loads. Any other value is computed where it is read, as often as it is: elements
    of a value that is seen in part, spread or in a concatenation are found by their numbers.
(2) A *job* makes one value, or computes values of one size that nothing makes, and stores them: what an output has of
    a made value goes there at once, and what other jobs read stands in the workspace, which has a row per node. (What
    is added to a product is added where that is read: `values_of(..., adds=False)`.)
(3) A product is *taken in* by a job of values where these read it element by element, `size` columns at a time: a tile
    of the job then multiplies for its own columns of every gate and goes on with the sums in registers. So gather,
    product and gates are one pass over a cell, and the product stands nowhere. It is taken in where every part of it is
    read by one job, in step with that job's elements, no more than MOST_SUMS parts by any.
(4) The *level* of a value is the number of made values, those taken in apart, that follow each other in it. Jobs of one
    level are one *stage*; outputs that nothing makes are of the level behind what they read. So an LSTM or a tree-LSTM
    takes one stage, a GRU two, a softmax three. A stage of a batch runs in one step, the next stage in the next step.

Native steps (`edbc.cells.kernels.steps`) have other levels, since a pass over a row may reduce what it has just
computed; programs of a step know nothing of each other.

Neubig et al. (NIPS 2017) and ED-Batch gather operands into contiguous memory before each batched kernel; here the
gather is the product's own read of its source, and the plan's layout decides how many pieces that source has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from edbc.capture.record.table import SharedRef
from edbc.cells.program import Program
from edbc.cells.values.read import ShapeOf, values_of
from edbc.cells.values.value import REDUCTIONS, V, in_order, pieces_of
from edbc.run.cuda.tritonops import OPERATIONS

MADE = ("product", "matmul", *REDUCTIONS)
"""Definition (1)."""
MOST_LOADS = 4
"""Definition (1), numbers among them. Each load of a product's source takes up to 16 KB of shared memory (a row tile of
64), and the smallest cards have 99 KB."""
MOST_SUMS = 8
"""Definition (3): of a tile of 32 rows and 16 columns each takes 4 registers of a thread."""


@dataclass(frozen=True)
class Store:
    """Elements `first` to `first + size` of `v` go to an output's row, of the workspace where that is None, from
    `offset` on."""

    v: V
    output: int | None
    offset: int
    first: int
    size: int


@dataclass(frozen=True)
class Job:
    """Definition (2): stores of one made value, or of values of one size; and for the latter the products that it takes
    in, each with the elements from which its parts are read."""

    stores: tuple[Store, ...]
    sums: tuple[tuple[V, tuple[int, ...]], ...] = ()

    @property
    def v(self) -> V:
        """The value that it makes, or one of those that it computes."""
        return self.stores[0].v

    @property
    def read(self) -> list[V]:
        """What its tiles go on from: values stored, or what these are made of."""
        return [store.v for store in self.stores] + [source for product, _ in self.sums for source in product.sources]


@dataclass(frozen=True, eq=False)
class Stages:
    """The jobs of every stage in order; where in a workspace row made values begin, and the width of one; and
    parameters that are read whole."""

    jobs: tuple[tuple[Job, ...], ...]
    places: dict[V, int]
    workspace: int
    parameters: tuple[SharedRef, ...]
    operand_sizes: tuple[int, ...]
    output_sizes: tuple[int, ...]
    dtype: str


def stages_of(program: Program, shape_of: ShapeOf) -> Stages | None:
    """See the module's docstring; None when a step is not in the kernel language or its operation not in the table.
    `shape_of` tells parameters' shapes. O(values)."""
    outputs = values_of(program, shape_of, adds=False)
    if outputs is None or not is_known(outputs):
        return None
    sizes = dict(sorted((load.operand, load.span.size) for load in program.loads))
    return stages_of_values(outputs, tuple(sizes.values()), program.dtype)


def is_known(outputs: Sequence[V]) -> bool:
    """True when the table has every operation that outputs are made of."""
    return all(v.op in OPERATIONS for v in in_order(outputs) if v.is_elementwise)


def stages_of_values(outputs: Sequence[V], operand_sizes: tuple[int, ...], dtype: str) -> Stages:
    """The stages that compute outputs."""
    order = in_order(outputs)
    made = _made(order)
    taken = _takable(order, outputs, made)
    while True:
        stored = made - taken
        places, width = _placed(order, stored)
        jobs = _jobs(order, outputs, stored, places)
        sums = {group: _sums(stores, taken, stored) for group, stores in jobs.items()}
        refused = _refused(sums)
        if not refused:
            break
        taken -= refused
    stages: dict[int, list[Job]] = {}
    for group, stores in sorted(jobs.items(), key=lambda item: item[0][0]):
        of_job = tuple((p, tuple(sorted(offsets))) for p, offsets in sums[group].items())
        stages.setdefault(group[0], []).append(Job(tuple(stores), of_job))
    parameters = dict.fromkeys(v.arg[0] for v in order if v.op == "parameter")
    return Stages(tuple(map(tuple, stages.values())), places, width, tuple(parameters), operand_sizes,
                  tuple(output.size for output in outputs), dtype)  # fmt: skip


_Group = tuple[int, V | int]
"""A level, and the made value or the size of those that are not."""


def _jobs(order: Sequence[V], outputs: Sequence[V], made: Collection[V],
          places: dict[V, int]) -> dict[_Group, list[Store]]:  # fmt: skip
    """Stores by job; definitions (2) and (4)."""
    level = dict[V, int]()
    for v in order:
        level[v] = (v in made) + max((level[source] for source in v.sources), default=0)
    stores = [Store(v, None, at, 0, v.size) for v, at in places.items()]
    stores += [store for number, output in enumerate(outputs) for store in _stores(number, output)]
    groups: dict[_Group, list[Store]] = {}
    for store in stores:
        at = level[store.v] + (store.v not in made)
        groups.setdefault((at, store.v if store.v.op in MADE else store.size), []).append(store)
    return groups


def whole(v: V) -> V:
    """What a value is a part of, or itself."""
    return v.sources[0] if v.op == "part" else v


def _made(order: Sequence[V]) -> set[V]:
    """Definition (1)."""
    made = {v for v in order if v.op in MADE}
    for v in order:
        computed = [piece for piece in pieces_of(v.sources[0]) if piece.is_elementwise] if v.op == "product" else []
        below = [u for piece in computed for u in in_order([piece], made)]
        if any(u in made for u in below) or sum(not u.sources for u in below) > MOST_LOADS:
            made.update(computed)
    return made


# --- definition (3) ------------------------------------------------------------------------------------------------


def _takable(order: Sequence[V], outputs: Sequence[V], made: Collection[V]) -> set[V]:
    """Products that are read by element-wise operations alone, of which no output has a part as it stands."""
    found = {v for v in order if v.op == "product"}
    found -= {whole(piece) for output in outputs for piece in pieces_of(output)}
    for v in order:
        if not v.is_elementwise and v.op not in ("part", "cat"):
            found -= {whole(u) for source in v.sources for u in _read_through(source, made)}
    return found


def _read_through(v: V, made: Collection[V]) -> Iterator[V]:
    """A value and what it is computed of, up to made values."""
    waiting, seen = [v], set[V]()
    while waiting:
        u = waiting.pop()
        if u not in seen:
            seen.add(u)
            yield u
            waiting += u.sources if u not in made else ()


def _sums(stores: Sequence[Store], taken: Collection[V], stored: Collection[V]) -> dict[V, set[int]]:
    """The products that a job takes in, with the elements from which it reads them."""
    found: dict[V, set[int]] = {}
    waiting, seen = [store.v for store in stores if store.v.is_elementwise], set[V]()
    while waiting:
        v = waiting.pop()
        for source in v.sources:
            if whole(source) in taken:
                found.setdefault(whole(source), set()).add(source.arg if source.op == "part" else 0)
            elif source.is_elementwise and source not in seen and source not in stored:
                seen.add(source)
                waiting.append(source)
    return found


def _refused(sums: dict[_Group, dict[V, set[int]]]) -> set[V]:
    """Products of which two jobs read one part, or that a job reads in more parts than it has room for."""
    refused: set[V] = set()
    readers: dict[tuple[V, int], int] = {}
    for of_job in sums.values():
        if sum(map(len, of_job.values())) > MOST_SUMS:
            refused |= of_job.keys()
        for product, offsets in of_job.items():
            for offset in offsets:
                readers[product, offset] = readers.get((product, offset), 0) + 1
    return refused | {product for (product, _), count in readers.items() if count > 1}


def _placed(order: Sequence[V], made: Collection[V]) -> tuple[dict[V, int], int]:
    """Made values that a value reads, outputs' parts and concatenations aside, one behind the other; their size."""
    readers = (v for v in order if v.op not in ("part", "cat"))
    read = {whole(piece) for v in readers for source in v.sources for piece in pieces_of(source)}
    places, width = {}, 0
    for v in order:
        if v in read and v in made:
            places[v] = width
            width += v.size
    return places, width


def _stores(number: int, output: V) -> Iterator[Store]:
    """Those of an output."""
    at = 0
    for piece in pieces_of(output):
        is_part = piece.op == "part" and whole(piece).op in MADE
        v, first = (whole(piece), piece.arg) if is_part else (piece, 0)
        yield Store(v, number, at, first, piece.size)
        at += piece.size
