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

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from edbc.base.operations import FORMULAS
from edbc.cells.kernels.formulas import Vectors
from edbc.cells.kernels.steps import PIECE_FIELDS, Loop, Pass, Place
from edbc.cells.values.value import REDUCTIONS, V, pieces_of
from edbc.native.llvm import Body, Index, function

_BESIDE = 4
"""Vectors that a long sum adds up in; and rows and vectors of a tile of a product of matrices."""
_COMBINE = {"total": "x + y", "largest": FORMULAS["maximum"].text, "smallest": FORMULAS["minimum"].text}
_NEUTRAL = {"total": 0.0, "largest": float("-inf"), "smallest": float("inf")}


def constants_of(step: Pass) -> tuple[V, ...]:
    """Parameters that a pass reads, once each."""
    return tuple(dict.fromkeys(u for loop in step.loops for u in loop.places if u.op == "parameter"))


def text_of(step: Pass, width: int, lanes: int) -> tuple[str, str]:
    """The name of a pass' function for elements of `width` bytes in vectors of `lanes`, and its text; equal names mean
    equal texts."""
    text = _Function(step, width, lanes).text()
    name = f"edbc_pass_{hashlib.sha256(text.encode()).hexdigest()[:20]}"
    return name, text.replace("@pass(", f"@{name}(", 1)


class _Function:
    def __init__(self, step: Pass, width: int, lanes: int):
        self.step, self.width, self.lanes = step, width, lanes
        self.body = Body()
        self.declared: set[str] = set()
        self.constants = {v: f"%c{i}" for i, v in enumerate(constants_of(step))}

    def text(self) -> str:
        b = self.body
        b.begin("entry")
        for i, name in enumerate(self.constants.values()):
            b.add(f"{name} = bitcast i64 {b.load(b.sum('%pieces', 8 * PIECE_FIELDS * i))} to i64")
        b.add("%row_bytes = mul i64 %slots, 8", "br label %head")
        b.begin("head")
        b.add("%r = phi i64 [ 0, %entry ], [ %r_next, %behind ]",
              "%row = phi i64 [ %at, %entry ], [ %row_next, %behind ]",
              "%more = icmp slt i64 %r, %n", "br i1 %more, label %body, label %done")  # fmt: skip
        b.begin("body")
        self.base = {slot: b.load(b.sum("%row", 8 * slot)) for slot in sorted(self._slots())}
        for loop in self.step.loops:
            self._loop(loop)
        b.add("br label %behind")
        b.begin("behind")
        b.add("%r_next = add i64 %r, 1", "%row_next = add i64 %row, %row_bytes", "br label %head")
        b.begin("done")
        b.add("ret void")
        arguments = "i64 %at, i64 %slots, i64 %n, i64 %step, i64 %pieces, i64 %x, i64 %y"
        return "\n".join([*sorted(self.declared), function(f"void @pass({arguments})", b)])

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

    def vectors(self, lanes: int) -> Vectors:
        """Of so many lanes."""
        return Vectors(self.body, self.width, lanes, self.declared)

    def chunks(self, count: int) -> Iterator[tuple[int, int, int, int]]:
        """Definition (1): (begin, end, lanes, elements of them) of what goes in vectors and of the rest."""
        whole = count // self.lanes * self.lanes
        if whole:
            yield 0, whole, self.lanes, self.lanes
        if whole < count:
            yield whole, count, 1 << (count - whole - 1).bit_length(), count - whole


def _mask(vectors: Vectors, valid: int) -> str:
    return "" if valid == vectors.lanes else vectors.first(valid)


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
        self.outer(range(len(self.domain) - 1), [], lambda index: self._innermost(index, addresses))

    def find_bases(self) -> None:
        """Addresses of all that is read."""
        self.bases = {u: self.function.source(u, self.loop) for u in self.loop.places}

    def outer(self, dims: Sequence[int], index: list[Index], inside: Callable[[list[Index]], None]) -> None:
        """A loop within a loop for each of some dimensions."""
        if not dims:
            inside(index)
            return

        def turn(i: Index, _: Sequence[str]) -> Sequence[str]:
            self.outer(dims[1:], [*index, i], inside)
            return ()

        self.body.counted(self.domain[dims[0]], 1, [], turn)

    def _innermost(self, index: list[Index], addresses: list[str]) -> None:
        for begin, end, lanes, valid in self.function.chunks(self.domain[-1]):
            turn = partial(self._store, index, addresses, begin, lanes, valid)
            self.body.counted(end - begin, lanes, [], turn)

    def _store(self, index: list[Index], addresses: list[str], begin: int, lanes: int, valid: int, i: Index,
               _: Sequence[str]) -> Sequence[str]:  # fmt: skip
        """One vector of every value of the loop."""
        whole = [*index, self.body.shifted(i, begin)]
        values = _Values(self, whole, lanes, valid)
        made = [values.of(store.v) for store in self.loop.stores]
        offset = self.offset(self.behind, whole)
        for base, value, store in zip(addresses, made, self.loop.stores, strict=True):
            address = self.body.sum(base, offset)
            if store.adds:  # read behind the writes before, which may have been there
                value = values.vectors.two("fadd", values.vectors.read(address, values.mask), value)
            values.vectors.write(address, value, values.mask)
        return ()

    def offset(self, strides: Sequence[int], index: Sequence[Index]) -> Index:
        """In bytes, of strides in elements."""
        return self.body.offset(*zip(index, (stride * self.function.width for stride in strides), strict=True))

    def strides(self, sizes: tuple[int, int, int]) -> list[int]:
        """Definition (2), in elements."""
        _, n, inner = sizes
        return [b if b < inner else 0 if b < n * inner else b // n for b in self.behind]


class _Values:
    """Values at one place of a nest."""

    def __init__(self, nest: _Nest, index: Sequence[Index], lanes: int, valid: int):
        self.nest, self.index = nest, index
        self.vectors = nest.function.vectors(lanes)
        self.mask = _mask(self.vectors, valid)
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
            self.outer(self.kept, [], self._to_one)
        else:
            self.outer(self.kept[:-1], [], self._to_vectors)

    def _index(self, kept: Sequence[Index], along: Sequence[Index]) -> list[Index]:
        """Of the whole domain."""
        found = dict(zip(self.kept, kept, strict=True)) | dict(zip(self.along, along, strict=True))
        return [found[d] for d in range(len(self.domain))]

    def _combined(self, vectors: Vectors, x: str, y: str) -> str:
        return vectors.formula(_COMBINE[self.v.op], x=x, y=y)

    def _inner(self, dims: Sequence[int], index: list[Index], vectors: Vectors, carried: Sequence[str],
               inside: Callable[[list[Index], Sequence[str]], Sequence[str]]) -> Sequence[str]:  # fmt: skip
        """A loop within a loop, through all of which go the totals so far."""
        if not dims:
            return inside(index, carried)

        def turn(i: Index, so_far: Sequence[str]) -> Sequence[str]:
            return self._inner(dims[1:], [*index, i], vectors, so_far, inside)

        return self.body.counted(self.domain[dims[0]], 1, [(vectors.kind, x) for x in carried], turn)

    def _to_vectors(self, kept: list[Index]) -> None:
        """Elements side by side, each along its own column."""
        for begin, end, lanes, valid in self.function.chunks(self.domain[-1]):
            self.body.counted(end - begin, lanes, [], partial(self._columns, kept, begin, lanes, valid))

    def _columns(self, kept: list[Index], begin: int, lanes: int, valid: int, i: Index,
                 _: Sequence[str]) -> Sequence[str]:  # fmt: skip
        """A vector of columns."""
        vectors, here = self.function.vectors(lanes), [*kept, self.body.shifted(i, begin)]

        def add(along: list[Index], so_far: Sequence[str]) -> Sequence[str]:
            value = _Values(self, self._index(here, along), lanes, valid).of(self.v.sources[0])
            return [self._combined(vectors, value, so_far[0])]

        (total,) = self._inner(self.along, [], vectors, [vectors.number(_NEUTRAL[self.v.op])], add)
        offset = self.offset([self.target[d] for d in self.kept], here)
        vectors.write(self.body.sum(self.address, offset), total, _mask(vectors, valid))
        return ()

    def _to_one(self, kept: list[Index]) -> None:
        """Definition (3)."""
        count, lanes = self.domain[-1], self.function.lanes
        beside = _BESIDE if count >= 2 * _BESIDE * lanes else 1
        vectors = self.function.vectors(lanes)
        whole = count // (lanes * beside) * lanes * beside
        totals = [vectors.number(_NEUTRAL[self.v.op])] * beside
        *outer, _ = self.along

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

        found = self._inner(outer, [], vectors, totals, add)
        offset = self.offset([self.target[d] for d in self.kept], kept)
        self.function.vectors(1).write(self.body.sum(self.address, offset), self._folded(list(found)))

    def _added(self, vectors: Vectors, kept: Sequence[Index], along: Sequence[Index], total: str, valid: int) -> str:
        value = _Values(self, self._index(kept, along), vectors.lanes, valid).of(self.v.sources[0])
        if valid < vectors.lanes:
            (_, _, mask) = vectors.first(valid).partition("> ")
            value = vectors.chosen(mask, value, vectors.number(_NEUTRAL[self.v.op]))
        return self._combined(vectors, value, total)

    def _folded(self, totals: list[str]) -> str:
        """All vectors into one, then its halves, down to one lane."""
        vectors = self.function.vectors(self.function.lanes)
        while len(totals) > 1:
            totals = [self._combined(vectors, x, y) for x, y in zip(totals[::2], totals[1::2], strict=True)]
        return vectors.folded(totals[0], self._combined)


class _Turned(_Nest):
    """A matrix, transposed: the elements of a vector stand apart in what is read."""

    def _store(self, index: list[Index], addresses: list[str], begin: int, lanes: int, valid: int, i: Index,
               _: Sequence[str]) -> Sequence[str]:  # fmt: skip
        (source,) = self.loop.stores[0].v.sources
        whole, vectors = [*index, self.body.shifted(i, begin)], self.function.vectors(lanes)
        first = self.body.sum(self.bases[source], self.offset([1, self.domain[0]], whole))
        found = "undef"
        for lane in range(valid):
            element = vectors.element_at(self.body.sum(first, lane * self.domain[0] * self.function.width))
            place = f"{vectors.element} {element}, i32 {lane}"
            found = self.body.new(f"insertelement {vectors.kind} {found}, {place}")
        vectors.write(self.body.sum(addresses[0], self.offset(self.behind, whole)), found, _mask(vectors, valid))
        return ()


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
        panel = f.lanes * _BESIDE
        whole = self.n // panel * panel
        for begin, end, wide in ((0, whole, panel), (whole, self.n, self.n - whole)):
            if begin < end:
                self.body.counted(end - begin, wide, [], self._panel(begin, wide))

    def _panel(self, begin: int, wide: int) -> Callable[[Index, Sequence[str]], Sequence[str]]:
        def turn(i: Index, _: Sequence[str]) -> Sequence[str]:
            column = self.body.shifted(i, begin)
            whole = self.m // _BESIDE * _BESIDE
            for first, last, rows in ((0, whole, _BESIDE), (whole, self.m, self.m - whole)):
                if first < last:
                    self.body.counted(last - first, rows, [], self._tile(first, rows, column, wide))
            return ()

        return turn

    def _tile(self, begin: int, rows: int, column: Index, wide: int) -> Callable[[Index, Sequence[str]], Sequence[str]]:
        f, b = self.function, self.body

        def turn(i: Index, _: Sequence[str]) -> Sequence[str]:
            row = b.shifted(i, begin)
            chunks = list(self._vectors(wide))
            totals = [f.vectors(lanes).number(0.0) for _ in range(rows) for _, lanes, _ in chunks]
            at = 0
            for base, count in self.b:
                totals = list(self._along(row, rows, column, chunks, totals, base, at, count))
                at += count
            for r in range(rows):
                for c, (first, lanes, valid) in enumerate(chunks):
                    inside = self._bytes((row, self.n), (column, 1), r * self.n + first)
                    vectors = f.vectors(lanes)
                    vectors.write(b.sum(self.target, inside), totals[r * len(chunks) + c], _mask(vectors, valid))
            return ()

        return turn

    def _vectors(self, wide: int) -> Iterator[tuple[int, int, int]]:
        for begin, end, lanes, valid in self.function.chunks(wide):
            yield from ((first, lanes, valid) for first in range(begin, end, lanes))

    def _along(self, row: Index, rows: int, column: Index, chunks: Sequence[tuple[int, int, int]],
               totals: Sequence[str], base: str, at: int, count: int) -> Sequence[str]:  # fmt: skip
        """With the products of columns `at` on of the left matrix with `count` rows of the right one."""
        f, b = self.function, self.body

        def turn(k: Index, so_far: Sequence[str]) -> Sequence[str]:
            weights = []
            for first, lanes, valid in chunks:
                vectors = f.vectors(lanes)
                address = b.sum(base, self._bytes((k, self.n), (column, 1), first))
                weights.append(vectors.read(address, _mask(vectors, valid)))
            made = []
            for r in range(rows):
                one = f.vectors(1).element_at(b.sum(self.a, self._bytes((row, self.k), (k, 1), r * self.k + at)))
                splats: dict[int, str] = {}
                for c, (_, lanes, _) in enumerate(chunks):
                    vectors = f.vectors(lanes)
                    if lanes not in splats:
                        splats[lanes] = vectors.splat(one)
                    made.append(vectors.fma(splats[lanes], weights[c], so_far[r * len(chunks) + c]))
            return made

        kinds = [f.vectors(lanes).kind for _ in range(rows) for _, lanes, _ in chunks]
        return b.counted(count, 1, list(zip(kinds, totals, strict=True)), turn)

    def _bytes(self, first: tuple[Index, int], second: tuple[Index, int], fixed: int) -> Index:
        """An offset of two indices with strides in elements, and a fixed one."""
        width = self.function.width
        return self.body.offset(*((i, stride * width) for i, stride in (first, second)), fixed=fixed * width)
