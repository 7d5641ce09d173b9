"""From values to launches: which kernels a batch of a type takes on a device, and what each of them computes.

Definitions.

(1) A value is *made* when it is a product, a product of a row's own matrices or a reduction: each element is of many
    others, so a job of its own computes it, for all rows. So is what a product reads where that is computed of more
    than MOST_LOADS loads, as deltas are. Any other value is computed where it is read, as often as
    it is: elements of a value that is seen in part, spread or in a concatenation are found by their numbers.
(2) A *job* makes one value, or computes outputs of one size that nothing makes, and stores them: what an output has of
    a made value goes there at once, and what other jobs read stands in the workspace, which has a row per node. (What
    is added to a product is added where that is read: `values_of(..., adds=False)`.)
(3) The *level* of a value is the number of made values that follow each other in it. Jobs of one level are one
    *launch*; outputs that nothing makes are of the level behind what they read. So a cell whose products follow each
    other d deep takes d launches and one for such outputs: two for an LSTM, three for a GRU, three for a softmax.

Native steps (`edbc.cells.kernels.steps`) have other levels, since a pass over a row may reduce what it has just
computed; programs of a launch know nothing of each other.

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
    """Definition (2): stores of one made value, or of values of one size."""

    stores: tuple[Store, ...]

    @property
    def v(self) -> V:
        """The value that it makes, or one of those that it computes."""
        return self.stores[0].v


@dataclass(frozen=True, eq=False)
class Launches:
    """The jobs of every launch in order; where in a workspace row made values begin, and the width of one; and
    parameters that are read whole."""

    jobs: tuple[tuple[Job, ...], ...]
    places: dict[V, int]
    workspace: int
    parameters: tuple[SharedRef, ...]
    operand_sizes: tuple[int, ...]
    output_sizes: tuple[int, ...]
    dtype: str


def launches_of(program: Program, shape_of: ShapeOf) -> Launches | None:
    """See the module's docstring; None when a step is not in the kernel language or its operation not in the table.
    `shape_of` tells parameters' shapes. O(values)."""
    outputs = values_of(program, shape_of, adds=False)
    if outputs is None or not is_known(outputs):
        return None
    sizes = dict(sorted((load.operand, load.span.size) for load in program.loads))
    return launches_of_values(outputs, tuple(sizes.values()), program.dtype)


def is_known(outputs: Sequence[V]) -> bool:
    """True when the table has every operation that outputs are made of."""
    return all(v.op in OPERATIONS for v in in_order(outputs) if v.is_elementwise)


def launches_of_values(outputs: Sequence[V], operand_sizes: tuple[int, ...], dtype: str) -> Launches:
    """The launches that compute outputs."""
    order = in_order(outputs)
    made, level = _made(order), dict[V, int]()
    for v in order:
        level[v] = (v in made) + max((level[source] for source in v.sources), default=0)
    places, width = _placed(order, made)
    stores = [Store(v, None, at, 0, v.size) for v, at in places.items()]
    stores += [store for number, output in enumerate(outputs) for store in _stores(number, output)]
    groups: dict[tuple[int, V | int], list[Store]] = {}
    for store in stores:
        at = level[store.v] + (store.v not in made)
        groups.setdefault((at, store.v if store.v.op in MADE else store.size), []).append(store)
    launches: list[list[Job]] = [[] for _ in range(max(level.values(), default=0) + 2)]
    for (at, _), of_group in groups.items():
        launches[at].append(Job(tuple(of_group)))
    parameters = dict.fromkeys(v.arg[0] for v in order if v.op == "parameter")
    return Launches(tuple(tuple(jobs) for jobs in launches if jobs), places, width, tuple(parameters), operand_sizes,
                    tuple(output.size for output in outputs), dtype)  # fmt: skip


def whole(v: V) -> V:
    """What a value is a part of, or itself."""
    return v.sources[0] if v.op == "part" else v


def _made(order: Sequence[V]) -> set[V]:
    """Definition (1)."""
    made = {v for v in order if v.op in MADE}
    for v in order:
        computed = [piece for piece in pieces_of(v.sources[0]) if piece.is_elementwise] if v.op == "product" else []
        if sum(not u.sources or u in made for piece in computed for u in in_order([piece], made)) > MOST_LOADS:
            made.update(computed)
    return made


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
