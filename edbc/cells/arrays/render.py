"""Programs of loops as LLVM's text: one function, which goes from node to node and runs all steps on each.

Definitions.

(1) A node is a row of a table of integers: its lengths, then the addresses of the buffers that are given. All nodes
    work in the same memory.
(2) A step is loops over elements (`edbc.cells.kernels.elements`) whose sizes depend on the node's lengths. The size in
    vectors is one whose elements stand side by side, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from edbc.cells.arrays import program, tape
from edbc.cells.arrays.program import Program, Step
from edbc.cells.arrays.sizes import Poly, const
from edbc.cells.arrays.tape import Access
from edbc.cells.kernels.elements import IS, Elements, Fold, Matrices, Nest, Number, Scan, Seen, Statement
from edbc.native.llvm import Index, named


def text_of(program: Program, width: int, lanes: int) -> tuple[str, str]:
    """The name of a program's function for elements of `width` bytes in vectors of `lanes`, and its text; equal names
    mean equal texts."""
    return _Function(program, width, lanes).text()


class _Function(Elements):
    def __init__(self, program: Program, width: int, lanes: int):
        super().__init__(width, lanes)
        self.program = program
        self.known: dict[Poly, Index] = {}
        self.seen: dict[Access, Seen] = {}

    def text(self) -> tuple[str, str]:
        self.body.begin("entry")
        self.body.over_rows("%table", 8 * (self.program.symbols + self.program.given), self._row)
        return named("arrays", "i64 %n, i64 %table, i64 %memory", self.body, self.declared)

    def _row(self) -> None:
        b, symbols = self.body, self.program.symbols
        self.lengths = [b.field("%row", i) for i in range(symbols)]
        self.given = [b.field("%row", symbols + i) for i in range(self.program.given)]
        # Sizes and addresses stand before any block, so that all blocks may use them.
        for loops in [_LOOPS[type(step)](self, step) for step in self.program.steps]:
            loops.emit()

    def sizes(self, step: Step) -> list[Index]:
        """Of a step at this node's lengths."""
        return [*map(self.size, step.sizes)]

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

    def operand(self, x: Any) -> Any:
        """As loops over elements know it."""
        if isinstance(x, Number):
            return Number(*[self.size(of) if isinstance(of, Poly) else of for of in x])
        if not isinstance(x, Access):
            return x
        if x not in self.seen:
            number, width = int(x.buffer.number), const(self.width)
            is_given = number < self.program.given
            begin = x.offset if is_given else x.offset + self.program.begins[number]
            base, offset = self.given[number] if is_given else "%memory", self.size(begin * width)
            strides = tuple([self.size(stride * width) for stride in x.strides])
            self.seen[x] = Seen(base if offset == 0 else self.body.sum(base, offset), strides)
        return self.seen[x]

    def innermost(self, accesses: Sequence[Seen], among: Sequence[int]) -> int | None:
        """Definition (2): the size whose elements stand side by side most often, the last of equal ones, what comes
        first counting most."""
        weight = {x: len(accesses) - i for i, x in enumerate(accesses)}
        side_by_side = {d: sum(weight[x] for x in accesses if x.strides[d] == self.width) for d in among}
        return max(among, key=lambda d: (side_by_side[d], d), default=None)


def _nest(f: _Function, step: program.Nest) -> Nest:
    statements = [of._replace(operands=tuple(map(f.operand, of.operands)), target=f.operand(of.target))
                  for of in step.statements]  # fmt: skip
    targets = [of.target for of in statements if of.target]
    seen = dict.fromkeys([*targets, *[x for of in statements for x in of.operands if isinstance(x, Seen)]])
    return Nest(f, f.sizes(step), f.innermost([*seen], range(len(step.sizes))), statements)


def _fold(f: _Function, step: tape.Fold) -> Fold:
    source, target = map(f.operand, (step.source, step.target))
    inner = f.innermost([source], range(len(step.sizes)))
    assert inner is not None
    return Fold(f, f.sizes(step), inner, [Statement(IS, (source,), target)], step.op, step.along)


def _scan(f: _Function, step: tape.Scan) -> Scan:
    source, target = map(f.operand, (step.source, step.target))
    inner = f.innermost([target, source], [d for d in range(len(step.sizes)) if d != step.along])
    return Scan(f, f.sizes(step), inner, Statement(IS, (source,), target), step.along)


def _product(f: _Function, step: tape.Product) -> Matrices:
    batch, rows, count, columns = f.sizes(step)
    left, right, target = map(f.operand, (step.left, step.right, step.target))
    (a, i, k), (b, d, j), (c, m, n) = left.strides, right.strides, target.strides
    pieces = [(Seen(left.address, (a, i, 0, k)), Seen(right.address, (b, 0, j, d)), count)]
    return Matrices(f, (batch, rows, columns), pieces, Seen(target.address, (c, m, n, 0)))


_LOOPS: dict[type, Callable[[_Function, Any], Nest | Matrices]] = {
    program.Nest: _nest,
    tape.Fold: _fold,
    tape.Scan: _scan,
    tape.Product: _product,
}
