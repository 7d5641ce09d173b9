"""Loops over elements as LLVM's text: what passes over rows and programs of arrays consist of.

Definitions.

(1) Memory is *seen* from an address on, with a stride in bytes along each size of a loop, 0 along those that repeat it.
    A size or a stride is a number of the text or a value that is known before the loop.
(2) One of the sizes goes in vectors, inside all others. Its rest is one vector more, of the least power of two elements
    that holds it where the size is known, with masked reads and writes. So elements beyond a value are neither read nor
    written, and every element is computed by the same operations. Elements that stand apart are gathered and scattered.
(3) A fold along the size in vectors adds up in vectors, several beside each other where it is known to be long, and
    these in halves in the end. Sums up to each element add up in float64, as torch's do.
(4) A product goes by tiles of up to `_BESIDE` rows and so many vectors, over the rows of its right matrix where they
    stand, as products with packed weights do (`edbc.cells.kernels.microkernel`).

An order of additions depends on sizes alone, so a row has the same bits in any company.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from edbc.base.operations import Formula
from edbc.cells.kernels.formulas import OfVectors, Vectors
from edbc.native.llvm import Carried, Index

_BESIDE = 4
"""Vectors that a long sum adds up in; and rows and vectors of a tile of a product."""
_PART = 64
"""Rows of which columns are added up before that is added to other parts."""
_OF_AVX2 = 2
"""Vectors of a tile where there are 16 registers: with more, products took up to twice as long."""
IS = Formula("x", ("x",))


class Seen(NamedTuple):
    """Definition (1)."""

    address: str
    strides: tuple[Index, ...]


class Number(NamedTuple):
    """An operand that is one number, or that over another."""

    value: Any
    over: Any = 1


class Place(NamedTuple):
    """An operand that is an element's own number along a size."""

    along: int


class Made(NamedTuple):
    """An operand that an earlier statement has computed."""

    statement: int


class Statement(NamedTuple):
    """A formula of a loop's elements, and where they go, if anywhere, or what they are added to. They are written
    behind all that a loop computes at one place."""

    formula: Formula
    operands: tuple[Any, ...]
    target: Any = None
    adds: bool = False


class Here(NamedTuple):
    """A place in a loop: addresses of what is seen, and numbers by size."""

    at: Mapping[Seen, str]
    numbers: Mapping[int, Index]


Inside = Callable[[Here, Sequence[str]], Sequence[str] | None]
Parts = Sequence[tuple[int, Vectors, str]]
"""Vectors of a panel: the first column, the vector and its mask."""


class Elements(OfVectors):
    """A function whose lines are loops over elements."""

    def by(self, i: Index, stride: Index) -> Index:
        """So many elements of a stride, in bytes."""
        if isinstance(i, int) and isinstance(stride, int):
            return i * stride
        if 0 in (i, stride):
            return 0
        return self.body.times(i, stride) if isinstance(i, str) else self.body.times(str(stride), i)

    def further(self, address: str, i: Index, stride: Index) -> str:
        """An address so many elements on."""
        by = self.by(i, stride)
        return address if by == 0 else self.body.sum(address, by)

    def read(self, vectors: Vectors, stride: Index, address: str, mask: str) -> str:
        """Elements so far apart."""
        if vectors.lanes == 1 or stride == self.width:
            return vectors.read(address, mask)
        return vectors.splat(vectors.element_at(address)) if stride == 0 else vectors.gathered(address, stride, mask)

    def write(self, vectors: Vectors, stride: Index, address: str, value: str, mask: str) -> None:
        """The same, written."""
        if vectors.lanes == 1 or stride == self.width:
            vectors.write(address, value, mask)
        else:
            vectors.scattered(address, stride, value, mask)

    def rest(self, vectors: Vectors, count: Index, i: Index) -> str:
        """The mask of the elements from i on."""
        is_told = isinstance(count, int) and isinstance(i, int)
        return vectors.first(count - i if is_told else self.body.new(f"sub i64 {count}, {i}"))  # type: ignore[operator]


class Nest:
    """Statements for all elements of some sizes, of which `inner`, if any, goes in vectors."""

    def __init__(self, f: Elements, sizes: Sequence[Index], inner: int | None, statements: Sequence[Statement]):
        self.f, self.body, self.sizes, self.inner, self.statements = f, f.body, sizes, inner, statements

    def emit(self) -> None:
        """Everything."""
        self.outside(self.inner, inside=lambda here, _: self.in_vectors(here, self._elements))

    def outside(self, *dims: int | None, inside: Inside) -> None:
        """Loops along all other sizes."""
        parts = [x for of in self.statements for x in (*of.operands, of.target)]
        here = Here({x: x.address for x in parts if isinstance(x, Seen)}, {})
        self.within([d for d in range(len(self.sizes)) if d not in dims], here, [], inside)

    def within(self, dims: Sequence[int], here: Here, carried: Carried, inside: Inside) -> Sequence[str]:
        """A loop within a loop for each of some sizes."""
        if not dims:
            return inside(here, [x for _, x in carried]) or ()
        kinds = [kind for kind, _ in carried]
        return self.body.counted(self.sizes[dims[0]], 1, carried, lambda i, so_far: self.within(
            dims[1:], self.moved(here, dims[0], i), [*zip(kinds, so_far, strict=True)], inside))  # fmt: skip

    def moved(self, here: Here, d: int, i: Index) -> Here:
        """Further along a size."""
        by = {stride: self.f.by(i, stride) for stride in dict.fromkeys(x.strides[d] for x in here.at)}
        at = {x: self.body.sum(address, by[x.strides[d]]) if by[x.strides[d]] != 0 else address
              for x, address in here.at.items()}  # fmt: skip
        return Here(at, {**here.numbers, d: i})

    def in_vectors(self, here: Here, inside: Callable[[Here, Vectors, str], None]) -> None:
        """Definition (2); `inside` gets the mask, too."""
        f, inner = self.f, self.inner
        if inner is None:
            inside(here, f.vectors(1), "")
        elif isinstance(count := self.sizes[inner], int):
            self.body.in_parts(count, f.lanes, lambda valid, i: inside(self.moved(here, inner, i), *f.some(valid)))
        else:
            vectors = f.vectors(f.lanes)
            self.body.counted(count, f.lanes, [], lambda i, _: inside(
                self.moved(here, inner, i), vectors, f.rest(vectors, count, i)))  # fmt: skip

    def _elements(self, here: Here, vectors: Vectors, mask: str) -> None:
        for of, value in zip(self.statements, self.made(here, vectors, mask), strict=True):
            if of.target is not None:
                self.put(of, value, here, vectors, mask)

    def made(self, here: Here, vectors: Vectors, mask: str) -> list[str]:
        """One vector of what each statement computes."""
        made: list[str] = []
        known: dict[Seen, str] = {}

        def value(x: Any) -> str:
            match x:
                case Made(statement):
                    return made[statement]
                case Number(_, over):
                    value, under = (vectors.of_integer(n) if type(n) is str else vectors.number(float(n)) for n in x)
                    return value if over == 1 else vectors.two("fdiv", value, under)
                case Place(along):
                    return (vectors.counting if along == self.inner else vectors.of_integer)(here.numbers[along])
            if x not in known:
                known[x] = self.f.read(vectors, self._stride(x), here.at[x], mask)
            return known[x]

        for (text, names), operands, *_ in self.statements:
            made.append(vectors.formula(text, **dict(zip(names, map(value, operands), strict=True))))
        return made

    def _stride(self, x: Seen) -> Index:
        return 0 if self.inner is None else x.strides[self.inner]

    def put(self, of: Statement, value: str, here: Here, vectors: Vectors, mask: str) -> None:
        """What a statement computes goes where it belongs."""
        stride, address = self._stride(of.target), here.at[of.target]
        if of.adds:  # read behind the writes before, which may have been there
            value = vectors.two("fadd", self.f.read(vectors, stride, address, mask), value)
        self.f.write(vectors, stride, address, value, mask)


class Fold(Nest):
    """What the last statement computes, combined along some sizes, along which its target has stride 0. Sums of
    columns that may be long are added up in parts of _PART: one after the other, many would round too much."""

    def __init__(self, f: Elements, sizes: Sequence[Index], inner: int, statements: Sequence[Statement], op: str,
                 along: Sequence[int]):  # fmt: skip
        super().__init__(f, sizes, inner, statements)
        self.op, self.along = op, along
        self.apart = [d for d in along if d != inner]
        self.in_parts = op == "total" and len(self.apart) == 1 and not isinstance(sizes[self.apart[0]], int)

    def emit(self) -> None:
        """Everything."""
        is_one = self.inner in self.along
        self.outside(self.inner, *self.along, inside=self._to_one if is_one else (
            lambda here, _: self.in_vectors(here, self._columns)))  # fmt: skip

    def _combined(self, here: Here, vectors: Vectors, mask: str, total: str) -> str:
        """With one more vector."""
        value = self.made(here, vectors, mask)[-1]
        if self.inner in self.along:
            value = vectors.only(mask, value, vectors.neutral(self.op))
        return vectors.reduced(self.op, value, total)

    def _columns(self, here: Here, vectors: Vectors, mask: str) -> None:
        """A vector of columns, each along its own."""
        start, b = [(vectors.kind, vectors.neutral(self.op))], self.body

        def turn(at: Here, so_far: Sequence[str]) -> Sequence[str]:
            return [self._combined(at, vectors, mask, *so_far)]

        def part(i: Index, so_far: Sequence[str]) -> Sequence[str]:
            size = b.smaller(b.new(f"sub i64 {count}, {i}"), _PART)
            (found,) = b.counted(size, 1, start, lambda k, of: turn(self.moved(here, d, b.sum(str(i), k)), of))
            return [vectors.reduced(self.op, so_far[0], found)]

        if self.in_parts:
            (d,) = self.apart
            count = self.sizes[d]
            (total,) = b.counted(count, _PART, start, part)
        else:
            (total,) = self.within(self.apart, here, start, turn)
        self.put(self.statements[-1], total, here, vectors, mask)

    def _to_one(self, here: Here, _: Sequence[str]) -> None:
        """Definition (3)."""
        assert self.inner is not None
        count, vectors = self.sizes[self.inner], self.f.vectors(self.f.lanes)
        beside = _BESIDE if isinstance(count, int) and count >= 2 * _BESIDE * vectors.lanes else 1
        start = [(vectors.kind, vectors.neutral(self.op))] * beside
        found = self.within(self.apart, here, start, partial(self._line, vectors, self.inner, count))
        while len(found) > 1:
            found = [vectors.reduced(self.op, x, y) for x, y in zip(found[::2], found[1::2], strict=True)]
        total = vectors.folded(found[0], lambda of, x, y: of.reduced(self.op, x, y))
        self.f.vectors(1).write(here.at[self.statements[-1].target], total)

    def _line(self, vectors: Vectors, inner: int, count: Index, here: Here, so_far: Sequence[str]) -> Sequence[str]:
        """Along the size in vectors."""
        lanes, start = vectors.lanes, [(vectors.kind, x) for x in so_far]
        if not isinstance(count, int):
            return self.body.counted(count, lanes, start, lambda i, so_far: [self._combined(
                self.moved(here, inner, i), vectors, self.f.rest(vectors, count, i), *so_far)])  # fmt: skip
        whole = count // (lanes * len(so_far)) * lanes * len(so_far)
        if whole:
            so_far = self.body.counted(whole, lanes * len(so_far), start, lambda i, so_far: [self._combined(
                self.moved(here, inner, self.body.shifted(i, k * lanes)), vectors, "", x)
                for k, x in enumerate(so_far)])  # fmt: skip
        first, *rest = so_far
        for at in range(whole, count, lanes):
            mask = vectors.mask(min(lanes, count - at))
            first = self._combined(self.moved(here, inner, at), vectors, mask, first)
        return [first, *rest]


class Scan(Nest):
    """Sums of what the one statement computes, up to each element along a size."""

    def __init__(self, f: Elements, sizes: Sequence[Index], inner: int | None, statement: Statement, along: int):
        super().__init__(f, sizes, inner, [statement])
        self.along = along

    def emit(self) -> None:
        """Everything."""
        self.outside(self.inner, self.along, inside=lambda here, _: self.in_vectors(here, self._columns))

    def _columns(self, here: Here, vectors: Vectors, mask: str) -> None:
        wide = Vectors(self.body, 8, vectors.lanes, self.f.declared)

        def turn(here: Here, so_far: Sequence[str]) -> Sequence[str]:
            (value,) = self.made(here, vectors, mask)
            total = wide.two("fadd", so_far[0], vectors.converted("fpext", value, wide))
            self.put(self.statements[0], wide.converted("fptrunc", total, vectors), here, vectors, mask)
            return [total]

        self.within([self.along], here, [(wide.kind, wide.number(0.0))], turn)


class Matrices(Nest):
    """Definition (4): `target[b, i, j] = sum over k of left[b, i, k] right[b, k, j]` for sizes (b, i, j), of pieces of
    both matrices with so many k each; all are seen along (b, i, j, k)."""

    def __init__(self, f: Elements, sizes: Sequence[Index], pieces: Sequence[tuple[Seen, Seen, Index]], target: Seen):
        super().__init__(f, sizes, None, [Statement(IS, (left, right), target) for left, right, _ in pieces])
        self.pieces, self.target = pieces, target

    def emit(self) -> None:
        """Everything."""
        self.outside(1, 2, inside=self._panels)

    def _panels(self, here: Here, _: Sequence[str]) -> None:
        """By columns: of each vector where in its panel it begins, and its mask."""
        f, lanes, columns = self.f, self.f.lanes, self.sizes[2]
        if isinstance(columns, int):
            beside = _OF_AVX2 if f.vectors(lanes).bytes == 32 else _BESIDE
            self.body.in_parts(columns, lanes * beside, lambda has, i: self._tiles(self.moved(here, 2, i), [
                (first, *f.some(min(lanes, has - first))) for first in range(0, has, lanes)]))  # fmt: skip
        else:
            vectors = f.vectors(lanes)
            self.body.counted(columns, lanes, [], lambda i, _: self._tiles(
                self.moved(here, 2, i), [(0, vectors, f.rest(vectors, columns, i))]))  # fmt: skip

    def _tiles(self, here: Here, parts: Parts) -> None:
        """By rows."""
        b, rows = self.body, self.sizes[1]
        if isinstance(rows, int):
            b.in_parts(rows, _BESIDE, lambda has, i: self._tile(has, self.moved(here, 1, i), parts))
        else:
            whole = b.new(f"and i64 {rows}, -{_BESIDE}")
            rest = b.new(f"sub i64 {rows}, {whole}")
            b.repeated(whole, _BESIDE, [], lambda i, _: self._tile(_BESIDE, self.moved(here, 1, i), parts))
            b.repeated(rest, 1, [], lambda i, _: self._tile(1, self.moved(here, 1, b.sum(whole, i)), parts))

    def _tile(self, rows: int, here: Here, parts: Parts) -> None:
        f, target = self.f, self.target
        kinds = [vectors.kind for _ in range(rows) for _, vectors, _ in parts]
        totals: Sequence[str] = [vectors.number(0.0) for _ in range(rows) for _, vectors, _ in parts]
        for left, right, count in self.pieces:
            lefts = [f.further(here.at[left], r, left.strides[1]) for r in range(rows)]
            rights = [f.further(here.at[right], first, right.strides[2]) for first, *_ in parts]
            start = [*zip(kinds, totals, strict=True)]
            totals = self.body.counted(count, 1, start, partial(self._turn, left, right, lefts, rights, parts))
        found = iter(totals)
        for r in range(rows):
            address, stride = f.further(here.at[target], r, target.strides[1]), target.strides[2]
            for first, vectors, mask in parts:
                f.write(vectors, stride, f.further(address, first, stride), next(found), mask)

    def _turn(self, left: Seen, right: Seen, lefts: Sequence[str], rights: Sequence[str], parts: Parts, k: Index,
              so_far: Sequence[str]) -> Sequence[str]:  # fmt: skip
        """A column of the left matrix times a row of the right one."""
        f, b = self.f, self.body
        down, along = f.by(k, right.strides[3]), f.by(k, left.strides[3])
        weights = [f.read(vectors, right.strides[2], b.sum(x, down), mask)
                   for x, (_, vectors, mask) in zip(rights, parts, strict=True)]  # fmt: skip
        widths = {vectors.lanes: vectors for _, vectors, _ in parts}
        made: list[str] = []
        for x in lefts:
            one = f.vectors(1).element_at(b.sum(x, along))
            every = {lanes: vectors.splat(one) for lanes, vectors in widths.items()}
            for (_, vectors, _), weight in zip(parts, weights, strict=True):
                made.append(vectors.product_added(every[vectors.lanes], weight, so_far[len(made)]))
        return made
