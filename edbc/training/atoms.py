"""A program as a graph of atoms: what is differentiated.

Definitions.

(1) An *atom* is a piece of a variable that no step of the program cuts: borders of spans are carried through maps and
    copies until nothing changes. So a map falls into element-wise operations from whole atoms to a whole atom.
(2) Copies make no atoms: what stands in their result is the source's atom.
(3) An atom comes from an operand (*load*), a product (*product*), an element-wise operation (*map*) or a product of the
    row's own matrices (*matmul*), and is assigned once. Atoms are numbered in the order in which the program computes
    them.
(4) Of a matmul the left matrix and the result are one atom each; the right one may fall into atoms that are whole rows
    of it (a concatenation), for then the product is the sum of products of the left one's columns with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edbc.cells.program import Call, Copy, Map, Product, Program, Span
from edbc.kernels.rowproduct import RowProduct, row_product
from edbc.trace.table import SharedRef


@dataclass(frozen=True)
class Vector:
    """A piece of a parameter that a map reads: `size` elements from `offset` on."""

    ref: SharedRef
    offset: int
    size: int


Source = int | Vector | float
"""An atom (as an `int`), a parameter, or a number (always as a `float`)."""


@dataclass(frozen=True)
class Atom:
    """Definition (1) and (3)."""

    number: int
    size: int
    kind: str
    """`load`, `product`, `map` or `matmul`."""
    index: int = 0
    """Operand or product."""
    offset: int = 0
    """First element of the operand, or first column of the product's result."""
    op: str = ""
    sources: tuple[Source, ...] = ()
    """Of a matmul the left matrix, then the rows of the right one."""
    shape: tuple[int, int, int] = (0, 0, 0)
    """Of a matmul (m, k, n): matrices (m, k) and (k, n)."""


@dataclass(frozen=True)
class AtomProduct:
    """The atoms of a product's source and result, in order."""

    weight: int
    sources: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Atoms:
    """A program's atoms, its products and which atoms its outputs consist of."""

    atoms: tuple[Atom, ...]
    products: tuple[AtomProduct, ...]
    outputs: tuple[tuple[int, ...], ...]
    span_of: tuple[Span, ...]
    """Columns of the program in which each atom first stands."""
    num_operands: int

    def size(self, numbers: tuple[int, ...]) -> int:
        """Elements of some atoms together."""
        return sum(self.atoms[number].size for number in numbers)


def atoms_of(program: Program) -> Atoms | None:
    """The atoms of a program, or None when it has other calls of torch, matrices in pieces or products with addends."""
    steps = [row_product(step) if isinstance(step, Call) else step for step in program.steps]
    known = [step for step in steps if step is not None and getattr(step, "addend", None) is None]
    if len(known) < len(steps):
        return None
    reading = _Reading(program, known)
    if not all(reading.is_readable(step) for step in known if isinstance(step, RowProduct)):
        return None
    return reading.atoms()


_Known = Product | Map | Copy | RowProduct


class _Reading:
    def __init__(self, program: Program, steps: Sequence[_Known]):
        self.program = program
        self.steps = steps
        self.borders = sorted(_borders(program, steps))
        self.at: dict[int, int] = {}
        """The atom that stands at a column."""
        self.found: list[Atom] = []
        self.spans: list[Span] = []
        self.products: list[AtomProduct] = []

    def is_readable(self, step: RowProduct) -> bool:
        """Definition (4)."""
        whole = [span for span in (step.a, step.result) if isinstance(span, Span)]
        rows = list(self._pieces(step.b)) if isinstance(step.b, Span) else []
        return all(len(list(self._pieces(span))) == 1 for span in whole) and all(r.size % step.n == 0 for r in rows)

    def atoms(self) -> Atoms:
        for load in self.program.loads:
            for piece in self._pieces(load.span):
                self._new(piece, "load", load.operand, piece.offset - load.span.offset)
        for step in self.steps:
            if isinstance(step, Product):
                self._product(step)
            elif isinstance(step, RowProduct):
                self._matmul(step)
            elif isinstance(step, Map):
                self._map(step)
            elif isinstance(step, Copy):
                for source, result in zip(self._pieces(step.source), self._pieces(step.result), strict=True):
                    self.at[result.offset] = self.at[source.offset]
        stores = sorted(self.program.stores, key=lambda store: store.output)
        outputs = tuple(self._numbers(store.span) for store in stores)
        return Atoms(tuple(self.found), tuple(self.products), outputs, tuple(self.spans), len(self.program.loads))

    def _pieces(self, span: Span) -> Iterator[Span]:
        inside = [b for b in self.borders if span.offset <= b <= span.stop]
        yield from (Span(a, b - a) for a, b in zip(inside, inside[1:], strict=False))

    def _numbers(self, span: Span) -> tuple[int, ...]:
        return tuple(self.at[piece.offset] for piece in self._pieces(span))

    def _new(self, piece: Span, kind: str, index: int = 0, offset: int = 0, op: str = "",
             sources: tuple[Source, ...] = (), shape: tuple[int, int, int] = (0, 0, 0)) -> int:  # fmt: skip
        number = self.at[piece.offset] = len(self.found)
        self.found.append(Atom(number, piece.size, kind, index, offset, op, sources, shape))
        self.spans.append(piece)
        return number

    def _product(self, step: Product) -> None:
        sources, number = self._numbers(step.source), len(self.products)
        results = tuple(
            self._new(piece, "product", number, piece.offset - step.result.offset)
            for piece in self._pieces(step.result)
        )
        self.products.append(AtomProduct(step.weight, sources, results))

    def _matmul(self, step: RowProduct) -> None:
        a = self._source(step.a, 0, step.m * step.k)
        b = self._numbers(step.b) if isinstance(step.b, Span) else (Vector(step.b, 0, step.k * step.n),)
        self._new(step.result, "matmul", op="matmul", sources=(a, *b), shape=(step.m, step.k, step.n))

    def _map(self, step: Map) -> None:
        for piece in list(self._pieces(step.result)):
            inside = piece.offset - step.result.offset
            sources = tuple(self._source(source, inside, piece.size) for source in step.sources)
            self._new(piece, "map", op=step.op, sources=sources)

    def _source(self, source: Span | SharedRef | float | int, inside: int, size: int) -> Source:
        if isinstance(source, Span):
            return self.at[source.offset + inside]
        return Vector(source, inside, size) if isinstance(source, SharedRef) else float(source)


def _borders(program: Program, steps: Sequence[_Known]) -> set[int]:
    """Definition (1)."""
    pairs: list[tuple[Span, Span]] = []
    spans = [load.span for load in program.loads] + [store.span for store in program.stores]
    for step in steps:
        read = _read(step)
        spans += [step.result, *read]
        if isinstance(step, Map | Copy):
            pairs += [(source, step.result) for source in read]
    borders = {edge for span in spans for edge in (span.offset, span.stop)}
    known = 0
    while len(borders) != known:
        known = len(borders)
        for a, b in pairs:
            shift = b.offset - a.offset
            borders |= {x + shift for x in borders if a.offset <= x <= a.stop}
            borders |= {x - shift for x in borders if b.offset <= x <= b.stop}
    return borders


def _read(step: _Known) -> list[Span]:
    """The spans that a step reads."""
    if isinstance(step, RowProduct):
        sources: tuple[object, ...] = (step.a, step.b)
    else:
        sources = step.sources if isinstance(step, Map) else (step.source,)
    return [source for source in sources if isinstance(source, Span)]
