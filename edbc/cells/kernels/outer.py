"""Sums of outer products over rows, for gradients of weights: `target[c, i] += sum over n of d[n, c] x[n, i]`.

A tile of the target stands in registers, some columns of `d` times some vectors of `x`, while all rows go by; then it
is added to what is there. So an element's order of additions is that of the rows, whatever stands beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import IntEnum
from functools import cache

from edbc.cells.kernels.formulas import Vectors
from edbc.cells.kernels.microkernel import Shape, shape_of
from edbc.native.llvm import Body, Index, function
from edbc.native.machinecode import address_of


class OuterField(IntEnum):
    """Words of what the kernel is told; strides in bytes."""

    ROWS = 0
    X = 1
    X_STRIDE = 2
    D = 3
    D_STRIDE = 4
    TARGET = 5
    """Its rows follow each other."""
    INPUTS = 6
    COLUMNS = 7


OUTER_FIELDS = 8


@cache
def address_of_outer(width: int) -> int:
    """The address of the kernel for elements of `width` bytes. It is a function of seven integers: the address of the
    fields, and six that say nothing to it."""
    shape = shape_of(width)
    assert shape is not None
    return address_of(f"edbc_outer_f{8 * width}", text_of(shape))


def text_of(shape: Shape) -> str:
    """LLVM's text: a function per size of tile, and the kernel, which goes over the target by panels of inputs and
    within a panel by columns."""
    declared: set[str] = set()
    tiles = [_Tile(shape, rows, vectors, declared).text()
             for rows in range(1, shape.rows + 1) for vectors in range(1, shape.vectors + 1)]  # fmt: skip
    return "\n".join([*sorted(declared), *tiles, _kernel(shape)])


class _Tile:
    """`rows` columns of `d` from `%c` on, `vectors` vectors of `x` from `%i` on, of whose last `%tail` elements are
    there."""

    def __init__(self, shape: Shape, rows: int, vectors: int, declared: set[str]):
        self.shape, self.rows, self.vectors, self.declared = shape, rows, vectors, declared
        self.b = Body()
        self.of = Vectors(self.b, shape.width, shape.lanes, declared)

    def text(self) -> str:
        """The whole function."""
        b, width = self.b, self.shape.width
        b.begin("entry")
        count, x, x_stride, d, d_stride, target, inputs = (b.field("%fields", k) for k in range(OuterField.INPUTS + 1))
        self.mask = self.of.first("%tail")
        x, d = b.sum(x, b.times("%i", width)), b.sum(d, b.times("%c", width))
        start = [("i64", x), ("i64", d), *[(self.of.kind, "zeroinitializer")] * (self.rows * self.vectors)]
        _, _, *totals = b.repeated(count, 1, start, lambda _, so_far: self._row(so_far, x_stride, d_stride))
        row = b.sum(target, b.times(b.sum(b.times("%c", inputs), "%i"), width))
        for r in range(self.rows):
            for v in range(self.vectors):
                at, mask = self._vector(row, v)
                self.of.write(at, self.of.two("fadd", self.of.read(at, mask), totals[r * self.vectors + v]), mask)
            row = b.sum(row, b.times(inputs, width))
        b.add("ret void")
        return function(f"internal void @outer_{self.rows}_{self.vectors}(i64 %fields, i64 %c, i64 %i, i64 %tail)", b)

    def _row(self, so_far: Sequence[str], x_stride: str, d_stride: str) -> Sequence[str]:
        """One more row of both."""
        x, d, *totals = so_far
        found = [self.of.read(*self._vector(x, v)) for v in range(self.vectors)]
        made = []
        for r in range(self.rows):
            every = self.of.splat(self.of.element_at(self.b.sum(d, r * self.shape.width)))
            made += [self.of.product_added(every, found[v], totals[r * self.vectors + v]) for v in range(self.vectors)]
        return [self.b.sum(x, x_stride), self.b.sum(d, d_stride), *made]

    def _vector(self, address: str, v: int) -> tuple[str, str]:
        """Its address, and the mask of the last one."""
        at = self.b.sum(address, v * self.shape.lanes * self.shape.width)
        return at, self.mask if v + 1 == self.vectors else ""


def _kernel(shape: Shape) -> str:
    b = Body()
    b.begin("entry")
    inputs, columns = b.field("%fields", OuterField.INPUTS), b.field("%fields", OuterField.COLUMNS)

    def panel(i: Index, _: Sequence[str]) -> None:
        vectors, tail = shape.of_panel(b, inputs, i)
        b.repeated(columns, shape.rows, [], lambda c, _: tile(c, i, vectors, tail))

    def tile(c: Index, i: Index, vectors: str, tail: str) -> None:
        rows = b.smaller(b.new(f"sub i64 {columns}, {c}"), shape.rows)
        sizes = itertools.product(range(1, shape.rows + 1), range(1, shape.vectors + 1))
        arguments = f"i64 %fields, i64 {c}, i64 {i}, i64 {tail}"
        lines = {r * shape.vectors + v: f"call void @outer_{r}_{v}({arguments})" for r, v in sizes}
        b.choose(b.sum(b.times(rows, shape.vectors), vectors), lines)

    b.repeated(inputs, shape.columns, [], panel)
    b.add("ret void")
    others = ", ".join(f"i64 %x{k}" for k in range(6))
    return function(f"void @edbc_outer_f{8 * shape.width}(i64 %fields, {others})", b)
