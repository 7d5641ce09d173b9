"""From a Program to launches: which kernels a batch of a type takes on a device, and what each of them computes.

Definitions.

(1) An *atom* is a smallest span of the program's columns that no load, step or store cuts, borders carried through
    copies and maps. Every column is assigned once, so an atom has one *value* in every row.
(2) A value is *stored* when it stands in memory: an operand's row (found through the index array that the mini-batch
    uploaded), the workspace, an output's row, a parameter. Any other value is an `Apply`: an operation of the fixed
    table on values, computed again where it is read. Results of products are stored, straight in an output where they
    are one; results of maps are stored only where they are an output; a copy is its source.
(3) A *job* fills stored values from values: a product of pieces with a packed weight, a product of a row's own
    matrices, or a map of outputs. Its *level* is one more than the highest level among what it reads; operands and
    parameters have level 0. What is added to a product (`Product.addend`) is added where its result is read.
(4) All jobs of one level are one *launch*. Maps that feed a product are computed as the product reads its source, so a
    cell whose products follow each other d deep takes d launches and one for the outputs that are no product: two for
    an LSTM, three for a GRU.

Neubig et al. (NIPS 2017) and ED-Batch gather operands into contiguous memory before each batched kernel; here the
gather is the product's own read of its source, and the plan's layout decides how many pieces that source has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from edbc.cells.program import Call, Copy, Map, Product, Program, Span
from edbc.kernels.rowproduct import RowProduct, row_product
from edbc.runtime.cuda.operations import OPERATIONS
from edbc.trace.table import SharedRef


@dataclass(frozen=True)
class Operand:
    """Elements of an operand's row, from `offset` on."""

    operand: int
    offset: int


@dataclass(frozen=True)
class Computed:
    """Workspace columns from `offset` on."""

    offset: int


@dataclass(frozen=True)
class Written:
    """Elements of an output's row, from `offset` on."""

    output: int
    offset: int


@dataclass(frozen=True)
class Parameter:
    """Elements of a parameter, the same for every row."""

    ref: SharedRef
    offset: int


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True, eq=False)
class Apply:
    """`op(*sources)`, element by element; equal only to itself, so that shared work is found by identity."""

    op: str
    sources: tuple[Value, ...]


Value = Operand | Computed | Written | Parameter | Number | Apply
Place = Computed | Written
_V = TypeVar("_V", bound=Value)


@dataclass(frozen=True)
class Piece:
    """`size` elements of a value."""

    value: Value
    size: int


@dataclass(frozen=True)
class ProductJob:
    """`target = pieces side by side @ weight[:, column : column + columns] + bias`, for all rows of the batch."""

    pieces: tuple[Piece, ...]
    weight: int
    total: int
    """Columns of the whole packed weight."""
    bias: bool
    column: int
    columns: int
    target: Place


@dataclass(frozen=True)
class RowProductJob:
    """`target = a @ b`, matrices (m, k) and (k, n) of every row; `b` may come in pieces of whole matrix rows."""

    a: Piece
    b: tuple[Piece, ...]
    m: int
    k: int
    n: int
    target: Place


@dataclass(frozen=True)
class MapJob:
    """Outputs of one size that no product writes."""

    size: int
    targets: tuple[tuple[Written, Value], ...]


Job = ProductJob | RowProductJob | MapJob


@dataclass(frozen=True, eq=False)
class Launches:
    """The jobs of every launch in order, the width of a workspace row, and parameters that are read whole."""

    jobs: tuple[tuple[Job, ...], ...]
    workspace: int
    parameters: tuple[SharedRef, ...]
    operand_sizes: tuple[int, ...]
    output_sizes: tuple[int, ...]
    dtype: str


def launches_of(program: Program) -> Launches | None:
    """See the module's docstring; None when a step is not in the table of operations.

    `program` assigns every column once (`lower(..., reuse=False)`).
    """
    steps = [row_product(step) if isinstance(step, Call) else step for step in program.steps]
    known = [step for step in steps if step is not None]
    maps = [step for step in known if isinstance(step, Map)]
    if len(known) < len(steps) or any(step.op not in OPERATIONS for step in maps):
        return None
    try:
        return _Leveling(program, known).launches()
    except _NotExpressible:
        return None


class _NotExpressible(Exception):
    """A step that only torch can run."""


_Step = Product | Map | Copy | RowProduct


@dataclass
class _Leveling:
    program: Program
    steps: Sequence[_Step]
    value: dict[int, Value] = field(default_factory=dict)
    """Per atom, by its offset."""
    level: dict[Place, int] = field(default_factory=dict)
    jobs: list[tuple[int, Job]] = field(default_factory=list)
    parameters: dict[SharedRef, None] = field(default_factory=dict)
    width: int = 0

    def __post_init__(self) -> None:
        self.sizes = dict(_atoms_of(self.program, self.steps))
        self.home = {
            atom: Written(store.output, atom - store.span.offset)
            for store in reversed(self.program.stores) for atom, _ in self._atoms(store.span)
        }  # fmt: skip
        self.depth: dict[int, int] = {}

    def launches(self) -> Launches:
        for load in self.program.loads:
            for atom, _ in self._atoms(load.span):
                self.value[atom] = Operand(load.operand, atom - load.span.offset)
        for step in self.steps:
            self._step(step)
        self._maps()
        last = max((level for level, _ in self.jobs), default=0)
        ordered = tuple(tuple(job for at, job in self.jobs if at == level) for level in range(1, last + 1))
        loads = sorted(self.program.loads, key=lambda load: load.operand)
        stores = sorted(self.program.stores, key=lambda store: store.output)
        return Launches(ordered, self.width, tuple(self.parameters), tuple(load.span.size for load in loads),
                        tuple(store.span.size for store in stores), self.program.dtype)  # fmt: skip

    def _step(self, step: _Step) -> None:
        if isinstance(step, Product):
            self._product(step)
        elif isinstance(step, RowProduct):
            self._row_product(step)
        elif isinstance(step, Copy):
            for (source, _), (result, _) in zip(self._atoms(step.source), self._atoms(step.result), strict=True):
                self.value[result] = self.value[source]
        else:
            for atom, _ in self._atoms(step.result):
                at = atom - step.result.offset
                self.value[atom] = Apply(step.op, tuple(self._source(s, at) for s in step.sources))

    def _source(self, source: Span | SharedRef | float, at: int) -> Value:
        if isinstance(source, Span):
            return self.value[source.offset + at]
        if isinstance(source, SharedRef):
            return self._parameter(source, at)
        if not math.isfinite(source):
            raise _NotExpressible
        return Number(float(source))

    def _parameter(self, ref: SharedRef, offset: int) -> Parameter:
        self.parameters[ref] = None
        return Parameter(ref, offset)

    def _product(self, step: Product) -> None:
        packed = self.program.weights[step.weight]
        pieces = self._pieces(step.source)
        level = 1 + self._level_of_span(step.source)
        column = 0
        for target, size in self._materialise(step.result, level, in_place=step.addend is None):
            job = ProductJob(pieces, step.weight, packed.columns, bool(packed.biases), column, size, target)
            self.jobs.append((level, job))
            column += size
        if step.addend is not None:
            for (atom, _), (addend, _) in zip(self._atoms(step.result), self._atoms(step.addend), strict=True):
                self.value[atom] = Apply("add", (self.value[atom], self.value[addend]))

    def _row_product(self, step: RowProduct) -> None:
        a = self._matrix(step.a, step.m * step.k)
        b = self._matrix(step.b, step.k * step.n)
        if len(a) > 1 or any(piece.size % step.n for piece in b):
            raise _NotExpressible
        level = 1 + max((self._level_of_span(part) for part in _sources(step)), default=0)
        targets = list(self._materialise(step.result, level))
        if len(targets) > 1:
            raise _NotExpressible
        if targets:
            left = a[0] if a else Piece(Number(0.0), 0)
            self.jobs.append((level, RowProductJob(left, b, step.m, step.k, step.n, targets[0][0])))

    def _matrix(self, part: Span | SharedRef, size: int) -> tuple[Piece, ...]:
        return self._pieces(part) if isinstance(part, Span) else (Piece(self._parameter(part, 0), size),)

    def _materialise(self, span: Span, level: int, in_place: bool = True) -> Iterator[tuple[Place, int]]:
        """A place for every atom of a job's result, in an output if it may be (`in_place`) and is one; neighbours that
        stand side by side are given together."""
        placed: list[tuple[Place, int]] = []
        for atom, size in self._atoms(span):
            place: Place = (self.home.get(atom) if in_place else None) or Computed(self.width)
            self.width += size if isinstance(place, Computed) else 0
            self.value[atom], self.level[place] = place, level
            placed.append((place, size))
        yield from _joined(placed)

    def _maps(self) -> None:
        """Outputs that are not written yet: a job per launch and size."""
        groups: dict[tuple[int, int], list[tuple[Written, Value]]] = {}
        for store in self.program.stores:
            for atom, size in self._atoms(store.span):
                target, value = Written(store.output, atom - store.span.offset), self.value[atom]
                if value != target:
                    groups.setdefault((1 + self._level([value]), size), []).append((target, value))
        self.jobs += [(level, MapJob(size, tuple(targets))) for (level, size), targets in groups.items()]

    def _level_of_span(self, span: Span) -> int:
        return self._level(self.value[atom] for atom, _ in self._atoms(span))

    def _level(self, values: Iterable[Value]) -> int:
        return max(map(self._level_of, values), default=0)

    def _level_of(self, value: Value) -> int:
        if isinstance(value, Computed | Written):
            return self.level[value]
        if not isinstance(value, Apply):
            return 0
        if id(value) not in self.depth:
            self.depth[id(value)] = self._level(value.sources)
        return self.depth[id(value)]

    def _pieces(self, span: Span) -> tuple[Piece, ...]:
        return tuple(Piece(value, size) for value, size in _joined([(self.value[a], s) for a, s in self._atoms(span)]))

    def _atoms(self, span: Span) -> Iterator[tuple[int, int]]:
        """(offset, size) of the atoms of a span, in order."""
        offset = span.offset
        while offset < span.stop:
            yield offset, self.sizes[offset]
            offset += self.sizes[offset]


def _joined(values: Sequence[tuple[_V, int]]) -> list[tuple[_V, int]]:
    """Neighbours in memory as one."""
    joined: list[tuple[_V, int]] = []
    for value, size in values:
        if joined and _after(*joined[-1]) == value:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((value, size))
    return joined


def _after(value: Value, size: int) -> Value | None:
    """What stands right behind `size` elements of a stored value."""
    if isinstance(value, Operand):
        return Operand(value.operand, value.offset + size)
    if isinstance(value, Computed):
        return Computed(value.offset + size)
    if isinstance(value, Written):
        return Written(value.output, value.offset + size)
    return Parameter(value.ref, value.offset + size) if isinstance(value, Parameter) else None


def _atoms_of(program: Program, steps: Sequence[_Step]) -> list[tuple[int, int]]:
    """Definition (1): (offset, size) of every atom."""
    spans = [load.span for load in program.loads] + [store.span for store in program.stores]
    spans += [span for step in steps for span in (step.result, *_sources(step))]
    borders = {0, program.width, *(span.offset for span in spans), *(span.stop for span in spans)}
    tied = [(s, step.result) for step in steps if isinstance(step, Map | Copy) for s in _sources(step)]
    tied += [(p.addend, p.result) for p in steps if isinstance(p, Product) and p.addend is not None]
    known = 0
    while len(borders) != known:
        known = len(borders)
        for source, result in tied:
            shift = result.offset - source.offset
            borders |= {b + shift for b in borders if source.offset < b < source.stop}
            borders |= {b - shift for b in borders if result.offset < b < result.stop}
    ordered = sorted(borders)
    return [(begin, end - begin) for begin, end in zip(ordered, ordered[1:], strict=False)]


def _sources(step: _Step) -> list[Span]:
    parts: tuple[object, ...]
    if isinstance(step, RowProduct):
        parts = (step.a, step.b)
    elif isinstance(step, Product):
        parts = (step.source, step.addend)
    else:
        parts = step.sources if isinstance(step, Map) else (step.source,)
    return [part for part in parts if isinstance(part, Span)]
