"""Products of rows, found by address, with a packed weight: a kernel of our own, generated as LLVM's text.

Definitions.

(1) A *tile* is a block of the result that stands in registers: up to `rows` rows times a *panel* of columns, up to
    `vectors` vector registers wide. For every element of its rows a tile reads one row of the panel, multiplies and
    adds, with one rounding for both.
(2) Weights are packed in panels, one after the other: (inputs, panel's columns), the last panel as many whole vectors
    wide as its columns need, the rest zeros. See `Shape.panels`.
(3) What is multiplied consists of *pieces*, each a stretch of a slot's rows (`edbc.kernels.steps`), whose addresses
    stand in a table: nothing is gathered before the product.
(4) A result is its addend plus its bias, plus the products of the elements of its row in their order. No number of rows
    or columns, and no place among them, changes that order: a row has the same bits in any company.

The library inside torch takes other paths for few rows, with other bits, and slow ones on some processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from edbc.kernels.llvm import Body, function
from edbc.kernels.machinecode import address_of, pointer, processor
from edbc.kernels.steps import PIECE_FIELDS, StepField


@dataclass(frozen=True)
class Shape:
    """Of tiles: bytes of an element, elements of a vector register, registers of a row, rows."""

    width: int
    lanes: int
    vectors: int
    rows: int

    @property
    def columns(self) -> int:
        """Of a whole panel."""
        return self.lanes * self.vectors

    def padded(self, columns: int) -> int:
        """Columns rounded up to whole vectors."""
        return -(-columns // self.lanes) * self.lanes

    def panels(self, columns: int) -> Iterator[tuple[int, int]]:
        """First column and columns of each panel of a matrix; `padded` columns are packed."""
        for first in range(0, columns, self.columns):
            yield first, min(self.columns, columns - first)

    def pack(self, matrix: torch.Tensor) -> torch.Tensor:
        """A matrix (inputs, columns) by definition (2)."""
        rows, columns = matrix.shape
        packed = matrix.new_zeros(rows * self.padded(columns))
        for first, count in self.panels(columns):
            self._panel(packed, rows, first, count).copy_(matrix[:, first : first + count])
        return packed

    def unpack(self, packed: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """The matrix that was packed."""
        parts = [self._panel(packed, rows, first, count) for first, count in self.panels(columns)]
        return torch.cat(parts, 1) if parts else packed.new_empty(rows, 0)

    def _panel(self, packed: torch.Tensor, rows: int, first: int, count: int) -> torch.Tensor:
        return packed[rows * first :][: rows * self.padded(count)].view(rows, -1 if rows else count)[:, :count]


@cache
def shape_of(width: int) -> Shape | None:
    """The tiles that fill this processor's registers with elements of `width` bytes; None where it has no fused
    multiply-add on vectors that LLVM knows of."""
    features = set(processor()[1].split(","))
    if "+avx512f" in features:
        return Shape(width, 64 // width, 4, 6)
    if {"+avx2", "+fma"} <= features:
        return Shape(width, 32 // width, 2, 6)
    return Shape(width, 16 // width, 4, 6) if "+neon" in features else None


def lanes_of(width: int) -> int:
    """Elements of `width` bytes in the widest vector register that code here uses."""
    shape = shape_of(width)
    return 16 // width if shape is None else shape.lanes


@cache
def address_of_product(width: int) -> int:
    """The address of the kernel (`StepField`) for elements of `width` bytes, compiled when it is first asked for."""
    shape = shape_of(width)
    assert shape is not None
    return address_of(_name(shape), text_of(shape))


def text_of(shape: Shape) -> str:
    """LLVM's text of the kernel: a function per number of rows and of vectors, one per number of vectors for all rows,
    and the kernel, which goes from panel to panel."""
    widths = range(1, shape.vectors + 1)
    tiles = (_Tile(shape, rows, vectors).text() for rows in range(1, shape.rows + 1) for vectors in widths)
    columns = (_all_rows(shape, vectors) for vectors in widths)
    return "\n".join([f"declare {_vector(shape)} @{_fma(shape)}({', '.join([_vector(shape)] * 3)})", *tiles, *columns,
                      _kernel(shape)])  # fmt: skip


def _name(shape: Shape) -> str:
    return f"edbc_product_f{8 * shape.width}"


def _element(shape: Shape) -> str:
    return "float" if shape.width == 4 else "double"


def _vector(shape: Shape) -> str:
    return f"<{shape.lanes} x {_element(shape)}>"


def _fma(shape: Shape) -> str:
    return f"llvm.fma.v{shape.lanes}f{8 * shape.width}"


class _Tile:
    """Definition (1). `%row` is the address of the first row's entries in the table, `%column` the panel's first column
    in bytes, `%tail` how many columns of its last vector are written. Values are numbered row by row."""

    def __init__(self, shape: Shape, rows: int, vectors: int):
        self.shape, self.rows, self.vectors = shape, rows, vectors
        self.kind, self.element = _vector(shape), _element(shape)
        self.values = [(r, v) for r in range(rows) for v in range(vectors)]
        self.b = Body()

    def text(self) -> str:
        """The whole function."""
        b = self.b
        b.add("entry:")
        buffer = b.new(f"alloca {self.kind}, align 64")
        self.buffer = b.new(f"ptrtoint {pointer(self.kind)} {buffer} to i64")
        self.table = ["%row"]
        for _ in range(self.rows - 1):
            self.table.append(b.sum(self.table[-1], "%row_bytes"))
        sums = self._multiplied(self._added(self._biased()))
        for r, target in enumerate(self._rows_at(StepField.TARGET)):
            for v in range(self.vectors):
                self._write(target, v, sums[r * self.vectors + v], f"w{r}")
        b.add("ret void")
        arguments = "i64 %row, i64 %row_bytes, i64 %step, i64 %pieces, i64 %panel, i64 %bias, i64 %column, i64 %tail"
        return function(f"internal void @tile_{self.rows}_{self.vectors}({arguments}) noinline", b)

    def _biased(self) -> list[str]:
        """The bias, or zeros, by vector."""
        b = self.b
        b.add("%biased = icmp ne i64 %bias, 0", "br i1 %biased, label %bias_in, label %start", "bias_in:")
        found = [b.load(self._vector_at("%bias", v), self.kind, self.shape.width) for v in range(self.vectors)]
        b.add("br label %start", "start:")
        return [b.new(f"phi {self.kind} [ zeroinitializer, %entry ], [ {x}, %bias_in ]") for x in found]

    def _added(self, bias: Sequence[str]) -> list[str]:
        """With the addend, if there is one."""
        b = self.b
        addend = b.field("%step", StepField.ADDEND)
        b.add(f"%added = icmp sge i64 {addend}, 0", "br i1 %added, label %add_in, label %sum", "add_in:")
        sources = self._rows_at(StepField.ADDEND)
        read = [self._read(sources[r], v, f"a{r}") for r, v in self.values]
        sums = [b.new(f"fadd {self.kind} {x}, {bias[v]}") for x, (_, v) in zip(read, self.values, strict=True)]
        b.add("br label %summed", "summed:", "br label %sum", "sum:")
        return [b.new(f"phi {self.kind} [ {bias[v]}, %start ], [ {x}, %summed ]")
                for x, (_, v) in zip(sums, self.values, strict=True)]  # fmt: skip

    def _multiplied(self, start: Sequence[str]) -> list[str]:
        """With the products of all pieces, element after element; what follows stands at label `write`."""
        b = self.b
        begin, end = (b.field("%step", field) for field in (StepField.BEGIN, StepField.END))
        count = b.new(f"sub i64 {end}, {begin}")
        b.add("br label %head", "head:", "%number = phi i64 [ 0, %sum ], [ %next_number, %inner ]",
              "%panel_at = phi i64 [ %panel, %sum ], [ %next_at, %inner ]")  # fmt: skip
        sums = [b.new(f"phi {self.kind} [ {x}, %sum ], [ %r{i}, %inner ]") for i, x in enumerate(start)]
        b.add(f"%more = icmp slt i64 %number, {count}", "br i1 %more, label %piece, label %write", "piece:",
              "%next_number = add i64 %number, 1")  # fmt: skip
        piece = b.sum("%pieces", b.times("%number", 8 * PIECE_FIELDS))
        slot, offset, size = (b.field(piece, i) for i in range(3))
        sources = [b.sum(b.load(b.sum(row, b.times(slot, 8))), offset) for row in self.table]
        size = b.times(size, self.shape.width)
        b.add("br label %inner", "inner:", "%k = phi i64 [ 0, %piece ], [ %next_k, %inner ]",
              "%at = phi i64 [ %panel_at, %piece ], [ %next_at, %inner ]",
              *(f"%s{i} = phi {self.kind} [ {x}, %piece ], [ %r{i}, %inner ]" for i, x in enumerate(sums)))  # fmt: skip
        self._step(sources)
        b.add(f"%inside = icmp slt i64 %next_k, {size}", "br i1 %inside, label %inner, label %head", "write:")
        return sums

    def _step(self, sources: Sequence[str]) -> None:
        """An element of every row times a row of the panel."""
        b, shape = self.b, self.shape
        weights = [b.load(self._vector_at("%at", v), self.kind, shape.width) for v in range(self.vectors)]
        zeros = f"<{shape.lanes} x i32> zeroinitializer"
        for r, source in enumerate(sources):
            element = b.load(b.sum(source, "%k"), self.element, shape.width)
            one = b.new(f"insertelement {self.kind} undef, {self.element} {element}, i32 0")
            every = b.new(f"shufflevector {self.kind} {one}, {self.kind} undef, {zeros}")
            for i, weight in enumerate(weights, r * self.vectors):
                arguments = ", ".join(f"{self.kind} {x}" for x in (every, weight, f"%s{i}"))
                b.add(f"%r{i} = call {self.kind} @{_fma(shape)}({arguments})")
        b.add(f"%next_k = add i64 %k, {shape.width}", f"%next_at = add i64 %at, {self._offset(self.vectors)}")

    def _rows_at(self, field: int) -> list[str]:
        """Addresses of the panel's columns in rows of the slot in `field`, at the offset in the next one."""
        b = self.b
        slot, inside = b.field("%step", field), b.sum(b.field("%step", field + 1), "%column")
        return [b.sum(b.load(b.sum(row, b.times(slot, 8))), inside) for row in self.table]

    def _offset(self, v: int) -> int:
        return v * self.shape.lanes * self.shape.width

    def _vector_at(self, address: str, v: int) -> str:
        return self.b.sum(address, self._offset(v))

    def _read(self, address: str, v: int, label: str) -> str:
        """A vector of a row, of the last one only the columns that there are."""
        at = self._vector_at(address, v)
        if v + 1 < self.vectors:
            return self.b.load(at, self.kind, self.shape.width)
        b = self.b
        self._if_full(label)
        whole = b.load(at, self.kind, self.shape.width)
        b.add(f"br label %{label}_done", f"{label}_cut:")
        b.store(self.buffer, self.kind, "zeroinitializer", 64)
        self._copy_tail(self.buffer, at, label)
        part = b.load(self.buffer, self.kind, 64)
        b.add(f"br label %{label}_done", f"{label}_done:")
        return b.new(f"phi {self.kind} [ {whole}, %{label}_full ], [ {part}, %{label}_end ]")

    def _write(self, address: str, v: int, value: str, label: str) -> None:
        b, at = self.b, self._vector_at(address, v)
        if v + 1 < self.vectors:
            b.store(at, self.kind, value, self.shape.width)
            return
        self._if_full(label)
        b.store(at, self.kind, value, self.shape.width)
        b.add(f"br label %{label}_done", f"{label}_cut:")
        b.store(self.buffer, self.kind, value, 64)
        self._copy_tail(at, self.buffer, label)
        b.add(f"br label %{label}_done", f"{label}_done:")

    def _if_full(self, label: str) -> None:
        """What follows is for last vectors that are written whole, what stands at label `cut` for others."""
        self.b.add(f"%{label}_is_full = icmp eq i64 %tail, {self.shape.lanes}",
                   f"br i1 %{label}_is_full, label %{label}_full, label %{label}_cut", f"{label}_full:")  # fmt: skip

    def _copy_tail(self, target: str, source: str, label: str) -> None:
        """Copy `%tail` elements, at least one."""
        b, before, width = self.b, f"{label}_copy_from", self.shape.width
        b.add(f"br label %{before}", f"{before}:", f"br label %{label}_copy", f"{label}_copy:",
              f"%{label}_i = phi i64 [ 0, %{before} ], [ %{label}_next, %{label}_copy ]")  # fmt: skip
        inside = b.times(f"%{label}_i", width)
        b.store(b.sum(target, inside), self.element, b.load(b.sum(source, inside), self.element, width), width)
        b.add(f"%{label}_next = add i64 %{label}_i, 1", f"%{label}_more = icmp slt i64 %{label}_next, %tail",
              f"br i1 %{label}_more, label %{label}_copy, label %{label}_end", f"{label}_end:")  # fmt: skip


def _all_rows(shape: Shape, vectors: int) -> str:
    """All rows times one panel, in tiles of as equal numbers of rows as can be."""
    b = Body()
    b.add("entry:", "%row_bytes = mul i64 %slots, 8")
    tiles = b.new(f"udiv i64 {b.sum('%n', shape.rows - 1)}, {shape.rows}")
    b.add("br label %head", "head:", "%i = phi i64 [ 0, %entry ], [ %next, %behind ]",
          "%begin = phi i64 [ 0, %entry ], [ %end, %behind ]",
          f"%more = icmp ult i64 %i, {tiles}", "br i1 %more, label %body, label %done", "body:",
          "%next = add i64 %i, 1")  # fmt: skip
    b.add(f"%end = udiv i64 {b.times('%n', '%next')}, {tiles}", "%count = sub i64 %end, %begin")
    row = b.sum("%at", b.times("%begin", "%row_bytes"))
    arguments = f"i64 {row}, i64 %row_bytes, i64 %step, i64 %pieces, i64 %panel, i64 %bias, i64 %column, i64 %tail"
    _choose(b, "%count", range(1, shape.rows + 1), lambda rows: f"call void @tile_{rows}_{vectors}({arguments})")
    b.add("br label %head", "done:", "ret void")
    given = "i64 %at, i64 %slots, i64 %n, i64 %step, i64 %pieces, i64 %panel, i64 %bias, i64 %column, i64 %tail"
    return function(f"internal void @rows_{vectors}({given}) noinline", b)


def _choose(b: Body, number: str, of: Iterable[int], line: Callable[[int], str]) -> None:
    """The line for `number`; control goes on at label `behind`."""
    cases = list(of)
    b.add(f"switch i64 {number}, label %behind [ {' '.join(f'i64 {i}, label %case{i}' for i in cases)} ]")
    for i in cases:
        b.add(f"case{i}:", line(i), "br label %behind")
    b.add("behind:")


def _kernel(shape: Shape) -> str:
    b = Body()
    b.add("entry:")
    columns, inputs = (b.field("%step", field) for field in (StepField.COLUMNS, StepField.ROWS))
    weight, bias = (b.field("%step", field) for field in (StepField.WEIGHT, StepField.BIAS))
    bytes_of_column, biased = b.times(inputs, shape.width), b.new(f"icmp ne i64 {bias}, 0")
    b.add("br label %head", "head:", "%first = phi i64 [ 0, %entry ], [ %next, %behind ]",
          f"%more = icmp ult i64 %first, {columns}", "br i1 %more, label %body, label %done", "body:",
          f"%next = add i64 %first, {shape.columns}")  # fmt: skip
    rest = b.new(f"sub i64 {columns}, %first")
    whole = b.new(f"icmp ult i64 {rest}, {shape.columns}")
    count = b.new(f"select i1 {whole}, i64 {rest}, i64 {shape.columns}")
    vectors = b.new(f"udiv i64 {b.sum(count, shape.lanes - 1)}, {shape.lanes}")
    tail = b.new(f"sub i64 {count}, {b.times(b.sum(vectors, -1), shape.lanes)}")
    panel, column = b.sum(weight, b.times("%first", bytes_of_column)), b.times("%first", shape.width)
    of_panel = b.new(f"select i1 {biased}, i64 {b.sum(bias, column)}, i64 0")
    arguments = (f"i64 %at, i64 %slots, i64 %n, i64 %step, i64 %pieces, i64 {panel}, i64 {of_panel}, "
                 f"i64 {column}, i64 {tail}")  # fmt: skip
    _choose(b, vectors, range(1, shape.vectors + 1), lambda v: f"call void @rows_{v}({arguments})")
    b.add("br label %head", "done:", "ret void")
    return function(f"void @{_name(shape)}(i64 %at, i64 %slots, i64 %n, i64 %step, i64 %pieces, i64 %x, i64 %y)", b)


def text_of_peak(shape: Shape) -> tuple[str, int]:
    """The text of as many independent chains of multiply-adds as a tile has, a step of each per turn, and how many
    chains that is: `edbc_peak_f32(turns, where a vector is written)`."""
    b, kind, chains = Body(), _vector(shape), shape.rows * shape.vectors
    b.add("entry:", "br label %turn", "turn:", "%i = phi i64 [ 0, %entry ], [ %next, %turn ]")
    b.add(*(f"%s{c} = phi {kind} [ zeroinitializer, %entry ], [ %r{c}, %turn ]" for c in range(chains)))
    factor = b.new(f"bitcast {kind} zeroinitializer to {kind}")
    for c in range(chains):
        b.add(f"%r{c} = call {kind} @{_fma(shape)}({kind} %s{c}, {kind} {factor}, {kind} %s{c})")
    b.add(
        "%next = add i64 %i, 1", "%more = icmp slt i64 %next, %turns", "br i1 %more, label %turn, label %done", "done:"
    )
    total = "%r0"
    for c in range(1, chains):
        total = b.new(f"fadd {kind} {total}, %r{c}")
    b.store("%out", kind, total, shape.width)
    b.add("ret void")
    declared = f"declare {kind} @{_fma(shape)}({', '.join([kind] * 3)})"
    return f"{declared}\n" + function(f"void @edbc_peak_f{8 * shape.width}(i64 %turns, i64 %out)", b), chains
