"""Passes as LLVM's text: a function per pass, which goes from row to row and runs all its loops on each.

Definitions.

(1) A loop's domain is a nest of counted loops, the innermost in vectors. Its rest is one vector more, of the least
    power of two elements that holds it, with masked reads and writes. So elements beyond a value are neither read nor
    written, and every element is computed by the same operations.
(2) A spread reads its source with a stride along each size of the domain, 0 along those that it repeats; a reduction
    writes with such strides, and goes along the sizes of stride 0 inside all others.
(3) A sum along the innermost size adds up in vectors, several beside each other where it is long, and these in halves
    in the end: an order that the size alone decides.
(4) A product of a row's own matrices goes by tiles, as products with packed weights do
    (`edbc.cells.kernels.microkernel`), over the rows of its right matrix where they stand.

Constants of the text are sizes, offsets and numbers. Addresses of parameters stand in the table of pieces, one
behind the other in the order of `constants_of`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from edbc.base.operations import FORMULAS
from edbc.cells.kernels.formulas import OfVectors, Vectors
from edbc.cells.kernels.steps import PIECE_FIELDS, Loop, Pass, Place
from edbc.cells.values.value import REDUCTIONS, V, pieces_of
from edbc.native.llvm import Index, named

_BESIDE = 4
"""Vectors that a long sum adds up in; and rows and vectors of a tile of a product of matrices."""


def constants_of(step: Pass) -> tuple[V, ...]:
    """Parameters that a pass reads, once each."""
    return tuple(dict.fromkeys(u for loop in step.loops for u in loop.places if u.op == "parameter"))


def text_of(step: Pass, width: int, lanes: int) -> tuple[str, str]:
    """The name of a pass' function for elements of `width` bytes in vectors of `lanes`, and its text; equal names mean
    equal texts."""
    return _Function(step, width, lanes).text()


class _Function(OfVectors):
    def __init__(self, step: Pass, width: int, lanes: int):
        super().__init__(width, lanes)
        self.step = step
        self.constants = {v: f"%c{i}" for i, v in enumerate(constants_of(step))}

    def text(self) -> tuple[str, str]:
        b = self.body
        b.begin("entry")
        for i, name in enumerate(self.constants.values()):
            b.add(f"{name} = bitcast i64 {b.load(b.sum('%pieces', 8 * PIECE_FIELDS * i))} to i64")
        b.add("%row_bytes = mul i64 %slots, 8")
        b.over_rows("%at", "%row_bytes", self._row)
        arguments = "i64 %at, i64 %slots, i64 %n, i64 %step, i64 %pieces, i64 %x, i64 %y"
        return named("pass", arguments, b, self.declared)

    def _row(self) -> None:
        b = self.body
        self.base = {slot: b.load(b.sum("%row", 8 * slot)) for slot in sorted(self._slots())}
        for loop in self.step.loops:
            self._loop(loop)

    def _slots(self) -> set[int]:
        loops = self.step.loops
        places = [place for loop in loops for place in (*loop.places.values(), *(store.place for store in loop.stores))]
        return {place[0] for place in places if place is not None}

    def _loop(self, loop: Loop) -> None:
        alone = loop.stores[0].v
        if alone.op == "matmul" and alone not in loop.places:
            _Matrices(self, loop, alone).emit()
        elif alone.op == "turned" and alone not in loop.places:
            _Turned(self, loop).emit()
        elif alone.op in REDUCTIONS and alone not in loop.places:
            _Reduction(self, loop, alone).emit()
        else:
            _Nest(self, loop).emit()

    # --- memory ----------------------------------------------------------------------------------------------------

    def address(self, place: Place) -> str:
        """Of a place in this row."""
        return self.body.sum(self.base[place[0]], place[1] * self.width)

    def source(self, u: V, loop: Loop) -> str:
        """The address of what stands in memory."""
        place = loop.places[u]
        return self.constants[u] if place is None else self.address(place)


class _Nest:
    """Element-wise values over a domain."""

    def __init__(self, function: _Function, loop: Loop):
        self.function, self.loop, self.body = function, loop, function.body
        self.domain = loop.domain
        self.behind = [math.prod(self.domain[d + 1 :]) for d in range(len(self.domain))]
        self.bases: dict[V, str] = {}

    def emit(self) -> None:
        """Everything."""
        addresses = [self.function.address(store.place) for store in self.loop.stores]
        self.find_bases()
        self.outer(range(len(self.domain) - 1), lambda index: self.inner(partial(self._store, index, addresses)))

    def find_bases(self) -> None:
        """Addresses of all that is read."""
        self.bases = {u: self.function.source(u, self.loop) for u in self.loop.places}

    def outer(self, dims: Sequence[int], inside: Callable[[list[Index]], None]) -> None:
        """A loop within a loop for each of some dimensions."""
        self.body.nested([self.domain[d] for d in dims], [], lambda index, _: inside(index))

    def inner(self, inside: Callable[[int, Index], None]) -> None:
        """Along the innermost dimension."""
        self.body.in_parts(self.domain[-1], self.function.lanes, inside)

    def _store(self, index: list[Index], addresses: list[str], count: int, i: Index) -> None:
        """One vector of every value of the loop."""
        whole = [*index, i]
        values = _Values(self, whole, *self.function.some(count))
        made = [values.of(store.v) for store in self.loop.stores]
        offset = self.offset(self.behind, whole)
        for base, value, store in zip(addresses, made, self.loop.stores, strict=True):
            address = self.body.sum(base, offset)
            if store.adds:  # read behind the writes before, which may have been there
                value = values.vectors.two("fadd", values.vectors.read(address, values.mask), value)
            values.vectors.write(address, value, values.mask)

    def offset(self, strides: Sequence[int], index: Sequence[Index]) -> Index:
        """In bytes, of strides in elements."""
        return self.body.offset(*zip(index, (stride * self.function.width for stride in strides), strict=True))

    def strides(self, sizes: tuple[int, int, int]) -> list[int]:
        """Definition (2), in elements."""
        _, n, inner = sizes
        return [b if b < inner else 0 if b < n * inner else b // n for b in self.behind]


class _Values:
    """Values at one place of a nest."""

    def __init__(self, nest: _Nest, index: Sequence[Index], vectors: Vectors, mask: str):
        self.nest, self.index, self.vectors, self.mask = nest, index, vectors, mask
        self.known: dict[V, str] = {}

    def of(self, v: V) -> str:
        """A vector of a value's elements."""
        if v not in self.known:
            self.known[v] = self._new(v)
        return self.known[v]

    def _new(self, v: V) -> str:
        if v.op == "number":
            return self.vectors.number(v.arg)
        if v in self.nest.bases:
            return self._read(v, self.nest.behind)
        if v.op == "spread":
            return self._read(v.sources[0], self.nest.strides(v.arg))
        formula = FORMULAS[v.op]
        return self.vectors.formula(formula.text, **dict(zip(formula.names, map(self.of, v.sources), strict=True)))

    def _read(self, v: V, strides: Sequence[int]) -> str:
        nest = self.nest
        address = nest.body.sum(nest.bases[v], nest.offset(strides, self.index))
        if strides[-1] == 0:
            return self.vectors.splat(self.vectors.element_at(address))
        return self.vectors.read(address, self.mask)


class _Reduction(_Nest):
    """Along the sizes of stride 0."""

    def __init__(self, function: _Function, loop: Loop, v: V):
        super().__init__(function, loop)
        self.v = v
        self.target = self.strides(v.arg)
        self.along = [d for d, stride in enumerate(self.target) if not stride and self.domain[d] > 1]
        self.kept = [d for d in range(len(self.domain)) if d not in self.along]

    def emit(self) -> None:
        """Everything."""
        self.address = self.function.address(self.loop.stores[0].place)
        self.find_bases()
        if self.along[-1] == len(self.domain) - 1:
            self.outer(self.kept, self._to_one)
        else:
            self.outer(self.kept[:-1], lambda kept: self.inner(partial(self._columns, kept)))

    def _index(self, kept: Sequence[Index], along: Sequence[Index]) -> list[Index]:
        """Of the whole domain."""
        found = dict(zip(self.kept, kept, strict=True)) | dict(zip(self.along, along, strict=True))
        return [found[d] for d in range(len(self.domain))]

    def _columns(self, kept: list[Index], count: int, i: Index) -> None:
        """A vector of columns, each along its own."""
        (vectors, mask), here = self.function.some(count), [*kept, i]

        def add(along: list[Index], so_far: Sequence[str]) -> Sequence[str]:
            value = _Values(self, self._index(here, along), vectors, mask).of(self.v.sources[0])
            return [vectors.reduced(self.v.op, value, so_far[0])]

        start = [(vectors.kind, vectors.neutral(self.v.op))]
        (total,) = self.body.nested([self.domain[d] for d in self.along], start, add)
        offset = self.offset([self.target[d] for d in self.kept], here)
        vectors.write(self.body.sum(self.address, offset), total, mask)

    def _to_one(self, kept: list[Index]) -> None:
        """Definition (3)."""
        count, lanes = self.domain[-1], self.function.lanes
        beside = _BESIDE if count >= 2 * _BESIDE * lanes else 1
        vectors = self.function.vectors(lanes)
        whole = count // (lanes * beside) * lanes * beside
        totals = [(vectors.kind, vectors.neutral(self.v.op))] * beside

        def add(along: list[Index], so_far: Sequence[str]) -> Sequence[str]:
            if whole:

                def turn(i: Index, totals: Sequence[str]) -> Sequence[str]:
                    return [self._added(vectors, kept, [*along, self.body.shifted(i, k * lanes)], x, lanes)
                            for k, x in enumerate(totals)]  # fmt: skip

                so_far = self.body.counted(whole, lanes * beside, [(vectors.kind, x) for x in so_far], turn)
            first, *rest = so_far
            for at in range(whole, count, lanes):
                first = self._added(vectors, kept, [*along, at], first, min(lanes, count - at))
            return [first, *rest]

        found = self.body.nested([self.domain[d] for d in self.along[:-1]], totals, add)
        offset = self.offset([self.target[d] for d in self.kept], kept)
        self.function.vectors(1).write(self.body.sum(self.address, offset), self._folded(list(found)))

    def _added(self, vectors: Vectors, kept: Sequence[Index], along: Sequence[Index], total: str, valid: int) -> str:
        mask = vectors.mask(valid)
        value = _Values(self, self._index(kept, along), vectors, mask).of(self.v.sources[0])
        value = vectors.only(mask, value, vectors.neutral(self.v.op))
        return vectors.reduced(self.v.op, value, total)

    def _folded(self, totals: list[str]) -> str:
        """All vectors into one, then its halves, down to one lane."""
        vectors = self.function.vectors(self.function.lanes)
        while len(totals) > 1:
            totals = [vectors.reduced(self.v.op, x, y) for x, y in zip(totals[::2], totals[1::2], strict=True)]
        return vectors.folded(totals[0], lambda of, x, y: of.reduced(self.v.op, x, y))


class _Turned(_Nest):
    """A matrix, transposed: the elements of a vector stand apart in what is read."""

    def _store(self, index: list[Index], addresses: list[str], count: int, i: Index) -> None:
        (source,) = self.loop.stores[0].v.sources
        whole, (vectors, mask) = [*index, i], self.function.some(count)
        first = self.body.sum(self.bases[source], self.offset([1, self.domain[0]], whole))
        found = "undef"
        for lane in range(count):
            element = vectors.element_at(self.body.sum(first, lane * self.domain[0] * self.function.width))
            place = f"{vectors.element} {element}, i32 {lane}"
            found = self.body.new(f"insertelement {vectors.kind} {found}, {place}")
        vectors.write(self.body.sum(addresses[0], self.offset(self.behind, whole)), found, mask)


class _Matrices:
    """Definition (4): `target = a @ b`, tile by tile."""

    def __init__(self, function: _Function, loop: Loop, v: V):
        self.function, self.loop, self.body = function, loop, function.body
        self.v = v
        self.m, self.k, self.n = v.arg

    def emit(self) -> None:
        """Columns in panels of up to `_BESIDE` vectors, rows in tiles of up to so many."""
        f, place = self.function, self.loop.stores[0].place
        self.target, self.a = f.address(place), f.source(self.v.sources[0], self.loop)
        right = self.v.sources[1]
        pieces = (right,) if right in self.loop.places else pieces_of(right)
        self.b = [(f.source(piece, self.loop), piece.size // self.n) for piece in pieces]
        self.body.in_parts(self.n, f.lanes * _BESIDE, lambda wide, column: self.body.in_parts(
            self.m, _BESIDE, partial(self._tile, wide, column)))  # fmt: skip

    def _tile(self, wide: int, column: Index, rows: int, row: Index) -> None:
        f = self.function
        parts = [(first, *f.some(min(f.lanes, wide - first))) for first in range(0, wide, f.lanes)]
        totals = [vectors.number(0.0) for _ in range(rows) for _, vectors, _ in parts]
        at = 0
        for base, count in self.b:
            totals = list(self._along(row, rows, column, parts, totals, base, at, count))
            at += count
        for r in range(rows):
            for c, (first, vectors, mask) in enumerate(parts):
                inside = self._bytes((row, self.n), (column, 1), r * self.n + first)
                vectors.write(self.body.sum(self.target, inside), totals[r * len(parts) + c], mask)

    def _along(self, row: Index, rows: int, column: Index, parts: Sequence[tuple[int, Vectors, str]],
               totals: Sequence[str], base: str, at: int, count: int) -> Sequence[str]:  # fmt: skip
        """With the products of columns `at` on of the left matrix with `count` rows of the right one."""
        f, b = self.function, self.body

        def turn(k: Index, so_far: Sequence[str]) -> Sequence[str]:
            weights = []
            for first, vectors, mask in parts:
                address = b.sum(base, self._bytes((k, self.n), (column, 1), first))
                weights.append(vectors.read(address, mask))
            made = []
            for r in range(rows):
                one = f.vectors(1).element_at(b.sum(self.a, self._bytes((row, self.k), (k, 1), r * self.k + at)))
                splats: dict[int, str] = {}
                for c, (_, vectors, _) in enumerate(parts):
                    if vectors.lanes not in splats:
                        splats[vectors.lanes] = vectors.splat(one)
                    made.append(vectors.fma(splats[vectors.lanes], weights[c], so_far[r * len(parts) + c]))
            return made

        kinds = [vectors.kind for _ in range(rows) for _, vectors, _ in parts]
        return b.counted(count, 1, list(zip(kinds, totals, strict=True)), turn)

    def _bytes(self, first: tuple[Index, int], second: tuple[Index, int], fixed: int) -> Index:
        """An offset of two indices with strides in elements, and a fixed one."""
        width = self.function.width
        return self.body.offset(*((i, stride * width) for i, stride in (first, second)), fixed=fixed * width)
