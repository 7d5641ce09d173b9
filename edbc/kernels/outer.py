"""Sums of outer products over rows, for gradients of weights: `target[c, i] += sum over n of d[n, c] x[n, i]`.

A tile of the target stands in registers, some columns of `d` times some vectors of `x`, while all rows go by; then it
is added to what is there. So an element's order of additions is that of the rows, whatever stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cache

from edbc.kernels.formulas import Vectors
from edbc.kernels.llvm import Body, function
from edbc.kernels.machinecode import address_of, pointer
from edbc.kernels.microkernel import Shape, shape_of


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
OUTER_WORDS = OUTER_FIELDS + 9
"""With room to work in."""


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
        self.mask = self._valid()
        x, d = b.sum(x, b.times("%i", width)), b.sum(d, b.times("%c", width))
        zero = self.of.number(0.0)
        start = [("i64", x), ("i64", d), *[(self.of.kind, zero)] * (self.rows * self.vectors)]
        _, _, *totals = b.repeated(count, 1, start, lambda _, so_far: self._row(so_far, x_stride, d_stride))
        row = b.sum(target, b.times(b.sum(b.times("%c", inputs), "%i"), width))
        for r in range(self.rows):
            for v in range(self.vectors):
                at = self._vector(row, v)
                self._write(at, v, self.of.two("fadd", self._read(at, v), totals[r * self.vectors + v]))
            row = b.sum(row, b.times(inputs, width))
        b.add("ret void")
        return function(f"internal void @outer_{self.rows}_{self.vectors}(i64 %fields, i64 %c, i64 %i, i64 %tail)", b)

    def _valid(self) -> str:
        lanes = self.shape.lanes
        tail = self.b.new("trunc i64 %tail to i32")
        one = self.b.new(f"insertelement <{lanes} x i32> undef, i32 {tail}, i32 0")
        kind = f"<{lanes} x i32>"
        every = self.b.new(f"shufflevector {kind} {one}, {kind} undef, {kind} zeroinitializer")
        numbers = ", ".join(f"i32 {lane}" for lane in range(lanes))
        return self.b.new(f"icmp slt <{lanes} x i32> <{numbers}>, {every}")

    def _row(self, so_far: Sequence[str], x_stride: str, d_stride: str) -> Sequence[str]:
        """One more row of both."""
        x, d, *totals = so_far
        found = [self._read(self._vector(x, v), v) for v in range(self.vectors)]
        made = []
        for r in range(self.rows):
            one = self.b.load(self.b.sum(d, r * self.shape.width), self.of.element, self.shape.width)
            every = self.of.splat(one)
            made += [self.of.fma(every, found[v], totals[r * self.vectors + v]) for v in range(self.vectors)]
        return [self.b.sum(x, x_stride), self.b.sum(d, d_stride), *made]

    def _vector(self, address: str, v: int) -> str:
        return self.b.sum(address, v * self.shape.lanes * self.shape.width)

    def _pointer(self, address: str) -> str:
        kind = pointer(self.of.kind)
        return f"{kind} {self.b.new(f'inttoptr i64 {address} to {kind}')}"

    def _read(self, address: str, v: int) -> str:
        kind, at = self.of.kind, self._pointer(address)
        if v + 1 < self.vectors:
            return self.b.new(f"load {kind}, {at}, align {self.shape.width}")
        mask = f"<{self.shape.lanes} x i1>"
        called = f"{kind} @llvm.masked.load.v{self.shape.lanes}f{8 * self.shape.width}.p0"
        self.declared.add(f"declare {called}({pointer(kind)}, i32, {mask}, {kind})")
        rest = f"{mask} {self.mask}, {kind} {self.of.number(0.0)}"
        return self.b.new(f"call {called}({at}, i32 {self.shape.width}, {rest})")

    def _write(self, address: str, v: int, value: str) -> None:
        kind, at = self.of.kind, self._pointer(address)
        if v + 1 < self.vectors:
            self.b.add(f"store {kind} {value}, {at}, align {self.shape.width}")
            return
        mask = f"<{self.shape.lanes} x i1>"
        called = f"void @llvm.masked.store.v{self.shape.lanes}f{8 * self.shape.width}.p0"
        self.declared.add(f"declare {called}({kind}, {pointer(kind)}, i32, {mask})")
        self.b.add(f"call {called}({kind} {value}, {at}, i32 {self.shape.width}, {mask} {self.mask})")


def _kernel(shape: Shape) -> str:
    b = Body()
    b.begin("entry")
    inputs, columns = b.field("%fields", OuterField.INPUTS), b.field("%fields", OuterField.COLUMNS)

    def panel(i: str | int, _: Sequence[str]) -> Sequence[str]:
        rest = b.new(f"sub i64 {inputs}, {i}")
        count = b.smaller(rest, shape.columns)
        vectors = b.new(f"udiv i64 {b.sum(count, shape.lanes - 1)}, {shape.lanes}")
        tail = b.new(f"sub i64 {count}, {b.times(b.sum(vectors, -1), shape.lanes)}")
        b.repeated(columns, shape.rows, [], lambda c, _: tile(c, i, vectors, tail))
        return ()

    def tile(c: str | int, i: str | int, vectors: str, tail: str) -> Sequence[str]:
        rows = b.smaller(b.new(f"sub i64 {columns}, {c}"), shape.rows)
        which = b.sum(b.times(rows, shape.vectors), vectors)
        sizes = [(r, v) for r in range(1, shape.rows + 1) for v in range(1, shape.vectors + 1)]
        behind, labels = b.label(), [b.label() for _ in sizes]
        cases = " ".join(f"i64 {r * shape.vectors + v}, label %{label}"
                         for (r, v), label in zip(sizes, labels, strict=True))  # fmt: skip
        b.add(f"switch i64 {which}, label %{behind} [ {cases} ]")
        for (r, v), label in zip(sizes, labels, strict=True):
            b.begin(label)
            b.add(f"call void @outer_{r}_{v}(i64 %fields, i64 {c}, i64 {i}, i64 {tail})", f"br label %{behind}")
        b.begin(behind)
        return ()

    b.repeated(inputs, shape.columns, [], panel)
    b.add("ret void")
    others = ", ".join(f"i64 %x{k}" for k in range(6))
    return function(f"void @edbc_outer_f{8 * shape.width}(i64 %fields, {others})", b)
