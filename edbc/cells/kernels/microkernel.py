"""Products of rows, found by address, with a packed weight: a kernel of our own, generated as LLVM's text.

Definitions.

(1) A *tile* is a block of the result that stands in registers: up to `rows` rows times a *panel* of columns, up to
    `vectors` vector registers wide. For every element of its rows a tile reads one row of the panel, multiplies and
    adds, with one rounding for both where the processor has that.
(2) Weights are packed in panels, one after the other: (inputs, panel's columns), the last panel as many whole vectors
    wide as its columns need, the rest zeros. See `Shape.panels`.
    Of bfloat16, which the processor multiplies in pairs and adds up in float32, two rows of a panel stand beside each
    other element by element.
(3) What is multiplied consists of *pieces*, each a stretch of a slot's rows (`edbc.cells.kernels.steps`), whose
    addresses stand in a table: nothing is gathered before the product.
(4) A result is its addend plus its bias, plus the products of the elements of its row in their order. No number of rows
    or columns, and no place among them, changes that order: a row has the same bits in any company.

The library inside torch takes other paths for few rows, with other bits, and slow ones on some processors. Where a
processor adds products with two roundings, tiles of edbc's are as fast for all but the fewest rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce

import torch
from llvmlite.binding import llvm_version_info

from edbc.cells.kernels.formulas import Vectors
from edbc.cells.kernels.steps import PIECE_FIELDS, StepField
from edbc.native.llvm import Body, Index, function
from edbc.native.machinecode import address_of, processor

ELEMENT = {2: "bf16", 4: "f32", 8: "f64"}
"""Element types of native code, by their bytes."""
_WITH_BFLOAT = 17
"""The first LLVM whose products of bfloat16 take vectors of that type."""


@dataclass(frozen=True)
class Shape:
    """Of tiles: bytes of an element, results in a vector register, registers of a row, rows."""

    width: int
    lanes: int
    vectors: int
    rows: int

    @property
    def group(self) -> int:
        """Rows of a weight that are multiplied at once."""
        return 2 if self.width == 2 else 1

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
            part = matrix[:, first : first + count].unflatten(0, (rows // self.group, self.group))
            self._panel(packed, rows, first, count).copy_(part)
        return packed

    def unpack(self, packed: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """The matrix that was packed."""
        parts = [self._panel(packed, rows, first, count).flatten(0, 1) for first, count in self.panels(columns)]
        return torch.cat(parts, 1) if parts else packed.new_empty(rows, 0)

    def of_panel(self, b: Body, columns: str, first: Index) -> tuple[str, str]:
        """How many vectors the panel from column `first` on has, and how many columns the last of them."""
        count = b.smaller(b.new(f"sub i64 {columns}, {first}"), self.columns)
        vectors = b.new(f"udiv i64 {b.sum(count, self.lanes - 1)}, {self.lanes}")
        return vectors, b.new(f"sub i64 {count}, {b.times(b.sum(vectors, -1), self.lanes)}")

    def _panel(self, packed: torch.Tensor, rows: int, first: int, count: int) -> torch.Tensor:
        """(groups of rows, rows of a group, columns)."""
        padded = self.padded(count)
        panel = packed[rows * first :][: rows * padded].view(rows // self.group, padded, self.group)
        return panel.transpose(1, 2)[:, :, :count]


@cache
def shape_of(width: int) -> Shape | None:
    """The tiles that fill this processor's registers with elements of `width` bytes; None for bfloat16 (2) where it has
    no products of pairs that LLVM knows of."""
    features = set(processor()[1].split(","))
    if width == 2:
        return Shape(width, 16, 4, 6) if "+avx512bf16" in features and llvm_version_info[0] >= _WITH_BFLOAT else None
    if "+avx512f" in features:
        return Shape(width, 64 // width, 4, 6)
    if features & {"+avx", "+avx2"}:
        return Shape(width, 32 // width, 2, 6)
    return Shape(width, 16 // width, 4, 6) if "+neon" in features else Shape(width, 16 // width, 3, 3)


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
    widths, declared = range(1, shape.vectors + 1), set[str]()
    tiles = [_Tile(shape, rows, vectors, declared).text() for rows in range(1, shape.rows + 1) for vectors in widths]
    columns = [_all_rows(shape, vectors) for vectors in widths]
    return "\n".join([*sorted(declared), *tiles, *columns, _kernel(shape)])


def _name(shape: Shape) -> str:
    return f"edbc_product_{ELEMENT[shape.width]}"


class _Tile:
    """Definition (1). `%row` is the address of the first row's entries in the table, `%column` the panel's first column
    in bytes, `%tail` how many columns of its last vector are written. Values are numbered row by row."""

    def __init__(self, shape: Shape, rows: int, vectors: int, declared: set[str]):
        self.shape, self.rows, self.vectors = shape, rows, vectors
        self.values = [(r, v) for r in range(rows) for v in range(vectors)]
        self.b = Body()
        self.of = Vectors(self.b, shape.width, shape.lanes, declared)

    def text(self) -> str:
        """The whole function."""
        b = self.b
        b.begin("entry")
        self.is_full = b.new(f"icmp eq i64 %tail, {self.shape.lanes}")
        self.mask = self.of.first("%tail")
        self.table = ["%row"]
        for _ in range(self.rows - 1):
            self.table.append(b.sum(self.table[-1], "%row_bytes"))
        sums = self._multiplied(self._added(self._biased()))
        targets = self._rows_at(StepField.TARGET)
        b.either(self.is_full, [], lambda: self._write(targets, sums, ""),
                 lambda: self._write(targets, sums, self.mask))  # fmt: skip
        b.add("ret void")
        arguments = "i64 %row, i64 %row_bytes, i64 %step, i64 %pieces, i64 %panel, i64 %bias, i64 %column, i64 %tail"
        return function(f"internal void @tile_{self.rows}_{self.vectors}({arguments}) noinline", b)

    def _biased(self) -> list[str]:
        """The bias, or zeros, by vector."""
        return self.b.either(self.b.new("icmp ne i64 %bias, 0"), [self.of.kind] * self.vectors,
                             lambda: [self.of.read(self._vector_at("%bias", v)) for v in range(self.vectors)],
                             lambda: ["zeroinitializer"] * self.vectors)  # fmt: skip

    def _added(self, bias: Sequence[str]) -> list[str]:
        """With the addend, if there is one."""
        b, kinds = self.b, [self.of.kind] * len(self.values)

        def added() -> list[str]:
            rows = self._rows_at(StepField.ADDEND)
            read = b.either(self.is_full, kinds, lambda: self._read(rows, ""), lambda: self._read(rows, self.mask))
            return [self.of.two("fadd", x, bias[v]) for x, (_, v) in zip(read, self.values, strict=True)]

        is_added = b.new(f"icmp sge i64 {b.field('%step', StepField.ADDEND)}, 0")
        return b.either(is_added, kinds, added, lambda: [bias[v] for _, v in self.values])

    def _multiplied(self, start: Sequence[str]) -> Sequence[str]:
        """With the products of all pieces, element after element."""
        b = self.b
        begin, end = (b.field("%step", field) for field in (StepField.BEGIN, StepField.END))
        carried = [("i64", "%panel"), *((self.of.kind, x) for x in start)]
        return b.repeated(b.new(f"sub i64 {end}, {begin}"), 1, carried, self._piece)[1:]

    def _piece(self, number: Index, so_far: Sequence[str]) -> Sequence[str]:
        """With one piece; the first of what is carried is where in the panel its rows stand."""
        b = self.b
        piece = b.sum("%pieces", b.times(str(number), 8 * PIECE_FIELDS))
        slot, offset, size = (b.field(piece, i) for i in range(3))
        sources = [b.sum(b.load(b.sum(row, b.times(slot, 8))), offset) for row in self.table]
        carried = [("i64", so_far[0]), *((self.of.kind, x) for x in so_far[1:])]
        step = self.shape.group * self.shape.width
        return b.counted(b.times(size, self.shape.width), step, carried, partial(self._turn, sources))

    def _turn(self, sources: Sequence[str], k: Index, so_far: Sequence[str]) -> list[str]:
        """An element of every row times a row of the panel; of bfloat16 two of each."""
        (at, *sums), of, group = so_far, self.of, self.shape.group
        read, add = (of.read, of.product_added) if group == 1 else (of.pairs, of.dot)
        weights = [read(self._vector_at(at, group * v)) for v in range(self.vectors)]
        for r, source in enumerate(sources):
            place = self.b.sum(source, k)
            every = of.splat(of.element_at(place)) if group == 1 else of.pair_at(place)
            for i, weight in enumerate(weights, r * self.vectors):
                sums[i] = add(every, weight, sums[i])
        return [self._vector_at(at, group * self.vectors), *sums]

    def _rows_at(self, field: int) -> list[str]:
        """Addresses of the panel's columns in rows of the slot in `field`, at the offset in the next one."""
        b = self.b
        slot, inside = b.field("%step", field), b.sum(b.field("%step", field + 1), "%column")
        return [b.sum(b.load(b.sum(row, b.times(slot, 8))), inside) for row in self.table]

    def _vector_at(self, address: str, v: int) -> str:
        return self.b.sum(address, v * self.shape.lanes * self.shape.width)

    def _read(self, rows: Sequence[str], mask: str) -> list[str]:
        """Vectors of rows, of each row's last one what a mask lets through."""
        return [self.of.read(self._vector_at(rows[r], v), mask if v + 1 == self.vectors else "")
                for r, v in self.values]  # fmt: skip

    def _write(self, rows: Sequence[str], found: Sequence[str], mask: str) -> tuple[()]:
        for value, (r, v) in zip(found, self.values, strict=True):
            self.of.write(self._vector_at(rows[r], v), value, mask if v + 1 == self.vectors else "")
        return ()


def _all_rows(shape: Shape, vectors: int) -> str:
    """All rows times one panel, in tiles of as equal numbers of rows as can be."""
    b = Body()
    b.begin("entry")
    row_bytes = b.times("%slots", 8)
    tiles = b.new(f"udiv i64 {b.sum('%n', shape.rows - 1)}, {shape.rows}")

    def tile(i: Index, carried: Sequence[str]) -> Sequence[str]:
        (begin,) = carried
        end = b.new(f"udiv i64 {b.times('%n', b.sum(str(i), 1))}, {tiles}")
        row = b.sum("%at", b.times(begin, row_bytes))
        arguments = f"i64 {row}, i64 {row_bytes}, i64 %step, i64 %pieces, i64 %panel, i64 %bias, i64 %column, i64 %tail"
        calls = {rows: f"call void @tile_{rows}_{vectors}({arguments})" for rows in range(1, shape.rows + 1)}
        b.choose(b.new(f"sub i64 {end}, {begin}"), calls)
        return [end]

    b.repeated(tiles, 1, [("i64", "0")], tile)
    b.add("ret void")
    given = "i64 %at, i64 %slots, i64 %n, i64 %step, i64 %pieces, i64 %panel, i64 %bias, i64 %column, i64 %tail"
    return function(f"internal void @rows_{vectors}({given}) noinline", b)


def _kernel(shape: Shape) -> str:
    b = Body()
    b.begin("entry")
    columns, inputs = (b.field("%step", field) for field in (StepField.COLUMNS, StepField.ROWS))
    weight, bias = (b.field("%step", field) for field in (StepField.WEIGHT, StepField.BIAS))
    bytes_of_column, biased = b.times(inputs, shape.width), b.new(f"icmp ne i64 {bias}, 0")

    def panel(first: Index, _: Sequence[str]) -> None:
        vectors, tail = shape.of_panel(b, columns, first)
        packed, column = b.sum(weight, b.times(str(first), bytes_of_column)), b.times(str(first), shape.width)
        of_panel = b.new(f"select i1 {biased}, i64 {b.sum(bias, column)}, i64 0")
        arguments = (f"i64 %at, i64 %slots, i64 %n, i64 %step, i64 %pieces, i64 {packed}, i64 {of_panel}, "
                     f"i64 {column}, i64 {tail}")  # fmt: skip
        b.choose(vectors, {v: f"call void @rows_{v}({arguments})" for v in range(1, shape.vectors + 1)})

    b.repeated(columns, shape.columns, [], panel)
    b.add("ret void")
    return function(f"void @{_name(shape)}(i64 %at, i64 %slots, i64 %n, i64 %step, i64 %pieces, i64 %x, i64 %y)", b)


def text_of_peak(shape: Shape) -> tuple[str, int]:
    """The text of as many independent chains of multiply-adds as a tile has, a step of each per turn, and how many
    chains that is: `edbc_peak_f32(turns, where a vector is written)`."""
    b, chains, declared = Body(), shape.rows * shape.vectors, set[str]()
    of = Vectors(b, shape.width, shape.lanes, declared)
    b.begin("entry")
    factor = b.new(f"bitcast {of.kind} zeroinitializer to {of.kind}")
    carried = [(of.kind, "zeroinitializer")] * chains
    found = b.repeated("%turns", 1, carried, lambda _, sums: [of.product_added(x, factor, x) for x in sums])
    of.write("%out", reduce(partial(of.two, "fadd"), found))
    b.add("ret void")
    text = function(f"void @edbc_peak_f{8 * shape.width}(i64 %turns, i64 %out)", b)
    return "\n".join([*declared, text]), chains
