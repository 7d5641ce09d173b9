"""Programs of loops as LLVM's text: one function, which goes from node to node and runs all steps on each.

Definitions.

(1) A node is a row of a table of integers: its lengths, then the addresses of the buffers that are given. All nodes
    work in the same memory.
(2) The innermost loop of a step goes in vectors, along a size whose elements stand side by side where there is one; the
    last vector of a size has masked reads and writes. Elements that stand apart are gathered and scattered.
(3) Sums along the innermost size add up in a vector, and that in halves. Sums up to each element add up in float64, as
    torch's do.
(4) A product goes by tiles of `_ROWS` rows and one or two vectors.

An order of additions depends on sizes alone, so a node has the same bits in any company.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

from edbc.cells.arrays.program import Made, Nest, Program, Step, accesses_of
from edbc.cells.arrays.sizes import Poly, const
from edbc.cells.arrays.tape import Access, Fold, Number, Product, Scan
from edbc.cells.kernels.formulas import OfVectors, Vectors
from edbc.native.llvm import Index, named

_ROWS = 4
_ONE, _ZERO = const(1), const(0)
Addresses = dict[Access, str]


def text_of(program: Program, width: int, lanes: int) -> tuple[str, str]:
    """The name of a program's function for elements of `width` bytes in vectors of `lanes`, and its text; equal names
    mean equal texts."""
    return _Function(program, width, lanes).text()


class _Function(OfVectors):
    def __init__(self, program: Program, width: int, lanes: int):
        super().__init__(width, lanes)
        self.program = program
        self.known: dict[Poly, Index] = {}

    def text(self) -> tuple[str, str]:
        self.body.begin("entry")
        self.body.over_rows("%table", 8 * (self.program.symbols + self.program.given), self._row)
        return named("arrays", "i64 %n, i64 %table, i64 %memory", self.body, self.declared)

    def _row(self) -> None:
        b, program = self.body, self.program
        self.lengths = [b.field("%row", i) for i in range(program.symbols)]
        self.given = [b.field("%row", program.symbols + i) for i in range(program.given)]
        for step in program.steps:  # before any block, so that all blocks may use them
            for poly in (*step.sizes, *[p for x in accesses_of(step) for p in self._bytes(x)], *_numbers(step)):
                self.size(poly)
        self.bases = {x: self._base(x) for step in program.steps for x in accesses_of(step)}
        for step in program.steps:
            _WRITERS[type(step)](self, step)

    def _bytes(self, x: Access) -> list[Poly]:
        width = const(self.width)
        number = int(x.buffer.number)
        begin = _ZERO if number < self.program.given else self.program.begins[number]
        return [(x.offset + begin) * width, *[stride * width for stride in x.strides]]

    def size(self, poly: Poly) -> Index:
        """What a polynomial is at this node's lengths."""
        if poly.number is not None:
            return poly.number
        if poly not in self.known:
            parts = []
            for which, factor in poly.terms:
                part = reduce(self.body.times, [self.lengths[i] for i in which]) if which else str(factor)
                parts.append(self.body.times(part, factor) if which and factor != 1 else part)
            self.known[poly] = reduce(self.body.sum, parts)
        return self.known[poly]

    def _base(self, x: Access) -> str:
        number = int(x.buffer.number)
        base = self.given[number] if number < self.program.given else "%memory"
        offset = self.size(self._bytes(x)[0])
        return base if offset == 0 else self.body.sum(base, offset)

    # --- loops -----------------------------------------------------------------------------------------------------

    def moved(self, at: Addresses, d: int, i: Index) -> Addresses:
        """Addresses further along a size."""
        if i == 0:
            return at
        return {x: self.further(address, x.strides[d], i) for x, address in at.items()}

    def further(self, address: str, stride: Poly, i: Index) -> str:
        """An address i elements of a stride on."""
        if stride == _ZERO:
            return address
        by = self.size(stride * const(self.width))
        if isinstance(by, int) and isinstance(i, int):
            return self.body.sum(address, by * i)
        return self.body.sum(address, self.body.times(*((i, by) if isinstance(i, str) else (str(by), i))))

    def along(self, sizes: Sequence[Poly], dims: Sequence[int], at: Addresses, index: dict[int, Index],
              inside: Callable[[Addresses, dict[int, Index]], None]) -> None:  # fmt: skip
        """A loop within a loop for each of some sizes."""
        if not dims:
            inside(at, index)
            return

        def turn(i: Index, _: Sequence[str]) -> None:
            self.along(sizes, dims[1:], self.moved(at, dims[0], i), {**index, dims[0]: i}, inside)

        self.body.counted(self.size(sizes[dims[0]]), 1, [], turn)

    def in_vectors(self, sizes: Sequence[Poly], at: Addresses, d: int | None,
                   inside: Callable[[Vectors, Index, str, Addresses], None]) -> None:  # fmt: skip
        """Definition (2), along size d, if any: `inside` gets the first element's number, the mask, and addresses
        there."""
        if d is None:
            inside(self.vectors(1), 0, "", at)
            return
        count = self.size(sizes[d])

        def turn(i: Index, vectors: Vectors, mask: str) -> None:
            inside(vectors, i, mask, self.moved(at, d, i))

        if isinstance(count, int):
            self.body.in_parts(count, self.lanes, lambda valid, i: turn(i, *self.some(valid)))
        else:
            vectors = self.vectors(self.lanes)
            self.body.counted(count, self.lanes, [], lambda i, _: turn(i, vectors, self.rest(vectors, count, i)))

    def rest(self, vectors: Vectors, count: Index, i: Index) -> str:
        """The mask of the elements from i on."""
        is_told = isinstance(count, int) and isinstance(i, int)
        return vectors.first(count - i if is_told else self.body.new(f"sub i64 {count}, {i}"))  # type: ignore[operator]

    # --- memory ----------------------------------------------------------------------------------------------------

    def read(self, vectors: Vectors, x: Access, d: int | None, address: str, mask: str) -> str:
        """A vector along size d."""
        stride = _ZERO if d is None else x.strides[d]
        if stride == _ZERO or vectors.lanes == 1:
            return vectors.splat(vectors.element_at(address))
        if stride == _ONE:
            return vectors.read(address, mask)
        return vectors.gathered(address, self.size(stride * const(self.width)), mask)

    def write(self, vectors: Vectors, x: Access, d: int | None, address: str, value: str, mask: str) -> None:
        """The same, written."""
        if d is None or vectors.lanes == 1 or x.strides[d] == _ONE:
            vectors.write(address, value, mask)
        else:
            vectors.scattered(address, self.size(x.strides[d] * const(self.width)), value, mask)


def _numbers(step: Step) -> list[Poly]:
    """Numbers that depend on lengths."""
    of = step.statements if isinstance(step, Nest) else ()
    numbers = [x for each in of for x in each.operands if isinstance(x, Number)]
    return [part for number in numbers for part in number if isinstance(part, Poly)]


def _innermost(sizes: Sequence[Poly], accesses: Sequence[Access], among: Sequence[int]) -> int | None:
    """Definition (2): the size whose elements stand side by side most often, the last of equal ones, what comes first
    counting most."""
    if not among:
        return None
    weight = {x: len(accesses) - i for i, x in enumerate(accesses)}
    return max(among, key=lambda d: (sum(weight[x] for x in accesses if x.strides[d] == _ONE), d))


def _write_nest(f: _Function, step: Nest) -> None:
    accesses = accesses_of(step)
    targets = [of.target for of in step.statements if of.target]
    inner = _innermost(step.sizes, [*targets, *[x for x in accesses if x not in targets]], range(len(step.sizes)))
    outer = [d for d in range(len(step.sizes)) if d != inner]

    def elements(index: dict[int, Index], vectors: Vectors, i: Index, mask: str, at: Addresses) -> None:
        made: list[str] = []
        values: dict[object, str] = {}
        for of in step.statements:
            operands = []
            for x in of.operands:
                if isinstance(x, Made):
                    operands.append(made[x.statement])
                    continue
                key = type(x), x
                if key not in values:
                    if isinstance(x, Access):
                        values[key] = f.read(vectors, x, inner, at[x], mask)
                    elif isinstance(x, Number):
                        values[key] = _number(f, vectors, x)
                    else:
                        values[key] = vectors.counting(i) if x.along == inner else vectors.of_integer(index[x.along])
                operands.append(values[key])
            made.append(vectors.formula(of.formula.text, **dict(zip(of.formula.names, operands, strict=True))))
            if of.target:
                f.write(vectors, of.target, inner, at[of.target], made[-1], mask)
                values.pop((Access, of.target), None)

    f.along(step.sizes, outer, {x: f.bases[x] for x in accesses}, {},
            lambda at, index: f.in_vectors(step.sizes, at, inner, partial(elements, index)))  # fmt: skip


def _number(f: _Function, vectors: Vectors, x: Number) -> str:
    value, over = (_one_number(f, vectors, of) for of in x)
    return value if x.over in (1, _ONE) else vectors.two("fdiv", value, over)


def _one_number(f: _Function, vectors: Vectors, of: Any) -> str:
    if isinstance(of, Poly):
        return vectors.of_integer(f.size(of))
    return vectors.number(float(of))


def _write_fold(f: _Function, step: Fold) -> None:
    source, target, along = step.source, step.target, step.along
    kept = [d for d in range(len(step.sizes)) if d not in along]
    inner = _innermost(step.sizes, [source], range(len(step.sizes)))
    assert inner is not None

    def folded(dims: Sequence[int], at: str, vectors: Vectors, so_far: str, mask: str) -> str:
        """Along some sizes, from an address on."""
        if not dims:
            value = f.read(vectors, source, inner, at, mask)
            if inner in along:
                value = vectors.only(mask, value, vectors.neutral(step.op))
            return vectors.reduced(step.op, value, so_far)

        def turn(i: Index, so_far: Sequence[str]) -> Sequence[str]:
            (address,) = f.moved({source: at}, dims[0], i).values()
            return [folded(dims[1:], address, vectors, so_far[0], mask)]

        return f.body.counted(f.size(step.sizes[dims[0]]), 1, [(vectors.kind, so_far)], turn)[0]

    def columns(vectors: Vectors, i: Index, mask: str, at: Addresses) -> None:
        total = folded(along, at[source], vectors, vectors.neutral(step.op), mask)
        f.write(vectors, target, inner, at[target], total, mask)

    def to_vectors(at: Addresses, index: dict[int, Index]) -> None:
        f.in_vectors(step.sizes, at, inner, columns)

    def to_one(at: Addresses, index: dict[int, Index]) -> None:
        others = [d for d in along if d != inner]
        vectors, count = f.vectors(f.lanes), f.size(step.sizes[inner])

        def turn(i: Index, so_far: Sequence[str]) -> Sequence[str]:
            (address,) = f.moved({source: at[source]}, inner, i).values()
            mask = f.rest(vectors, count, i)
            return [folded(others, address, vectors, so_far[0], mask)]

        (total,) = f.body.counted(count, f.lanes, [(vectors.kind, vectors.neutral(step.op))], turn)
        total = vectors.folded(total, lambda of, x, y: of.reduced(step.op, x, y))
        f.vectors(1).write(at[target], total)

    outer = [d for d in kept if d != inner]
    at = {x: f.bases[x] for x in (source, target)}
    f.along(step.sizes, outer, at, {}, to_one if inner in along else to_vectors)


def _write_scan(f: _Function, step: Scan) -> None:
    source, target, d = step.source, step.target, step.along
    others = [e for e in range(len(step.sizes)) if e != d]
    inner = _innermost(step.sizes, [target, source], others)

    def column(vectors: Vectors, i: Index, mask: str, at: Addresses) -> None:
        wide = Vectors(f.body, 8, vectors.lanes, f.declared)

        def turn(i: Index, so_far: Sequence[str]) -> Sequence[str]:
            here = f.moved(at, d, i)
            value = f.read(vectors, source, inner, here[source], mask)
            total = wide.two("fadd", so_far[0], vectors.converted("fpext", value, wide))
            f.write(vectors, target, inner, here[target], wide.converted("fptrunc", total, vectors), mask)
            return [total]

        f.body.counted(f.size(step.sizes[d]), 1, [(wide.kind, wide.number(0.0))], turn)

    f.along(step.sizes, [e for e in others if e != inner], {x: f.bases[x] for x in (source, target)}, {},
            lambda at, _: f.in_vectors(step.sizes, at, inner, column))  # fmt: skip


def _write_product(f: _Function, step: Product) -> None:
    """Definition (4)."""
    b = f.body
    batch, _, k, n = step.sizes
    rows, columns = f.size(step.sizes[1]), f.size(n)
    beside = 2 if isinstance(columns, int) and columns > f.lanes else 1
    operands = (step.left, step.right, step.target)
    along = {"batch": (0, 0, 0), "row": (1, None, 1), "inner": (2, 1, None), "column": (None, 2, 2)}

    def moved(at: Sequence[str], which: str, i: Index) -> list[str]:
        """The addresses of all three, further along."""
        return [address if d is None or i == 0 else f.further(address, x.strides[d], i)
                for address, x, d in zip(at, operands, along[which], strict=True)]  # fmt: skip

    def tile(count: int, at: Sequence[str], vectors: Vectors, masks: Sequence[str]) -> None:
        of_row = [moved(at, "row", r) for r in range(count)]
        lefts = [left for left, _, _ in of_row]
        rights = [moved(at, "column", c * f.lanes)[1] for c in range(len(masks))]

        def turn(i: Index, so_far: Sequence[str]) -> Sequence[str]:
            ones = [vectors.splat(vectors.element_at(moved([x] * 3, "inner", i)[0])) for x in lefts]
            others = [f.read(vectors, step.right, 2, moved([x] * 3, "inner", i)[1], mask)
                      for x, mask in zip(rights, masks, strict=True)]  # fmt: skip
            return [vectors.fma(ones[r], others[c], so_far[r * len(masks) + c])
                    for r in range(count) for c in range(len(masks))]  # fmt: skip

        zeros = [(vectors.kind, vectors.number(0.0))] * (count * len(masks))
        totals = iter(b.counted(f.size(k), 1, zeros, turn))
        for at_row in of_row:
            for c, mask in enumerate(masks):
                f.write(vectors, step.target, 2, moved(at_row, "column", c * f.lanes)[2], next(totals), mask)

    def panel(at: Sequence[str], i: Index, _: Sequence[str]) -> None:
        at, vectors = moved(at, "column", i), f.vectors(f.lanes)
        masks = [f.rest(vectors, columns, b.shifted(i, c * f.lanes)) for c in range(beside)]

        def some(count: int, begin: Index, r: Index, _: Sequence[str]) -> None:
            tile(count, moved(at, "row", r if begin == 0 else b.sum(str(r), begin)), vectors, masks)

        whole = b.new(f"and i64 {rows}, -{_ROWS}")
        b.repeated(whole, _ROWS, [], partial(some, _ROWS, 0))
        b.repeated(b.new(f"sub i64 {rows}, {whole}"), 1, [], partial(some, 1, whole))

    def turn(i: Index, _: Sequence[str]) -> None:
        at = moved([f.bases[x] for x in operands], "batch", i)
        b.counted(columns, beside * f.lanes, [], partial(panel, at))

    b.counted(f.size(batch), 1, [], turn)


_WRITERS: dict[type, Callable[[_Function, Any], None]] = {
    Nest: _write_nest,
    Fold: _write_fold,
    Scan: _write_scan,
    Product: _write_product,
}
