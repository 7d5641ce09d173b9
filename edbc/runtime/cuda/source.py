"""Triton source for launches: text made from jobs, where only sizes and operations of the fixed table appear.

Definitions.

(1) A launch is one kernel. Its programs are numbered job after job; a job's programs cover its target tile by tile,
    row tiles outside. The host computes the same counts (`programs_of`) from the number of nodes in the batch.
(2) Arguments by name: `ix` the uploaded indices; `count` nodes; `work` the workspace; per operand k `a{k}` its arena
    and `at{k}` where its row numbers start in `ix`; per output j `o{j}` its arena and `row{j}` the batch's first row
    there; `w{i}` and `b{i}` packed weights and biases; `p{i}` parameters. A launch takes those that its text mentions.
(3) Types: `E` of elements in memory, which is what products multiply; `F` of computation, of sums and of the
    workspace, float32 unless elements are float64. So a bfloat16 value is rounded once, when it is stored or becomes a
    factor, to the nearest (ties to even) as torch does.

Float64 products are sums of element-wise products, which any device has; float32 products follow torch's setting for
float32 matrix products (`PRECISION`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edbc.runtime.cuda.launches import (
    Apply,
    Computed,
    Job,
    Launches,
    MapJob,
    Number,
    Operand,
    Parameter,
    Piece,
    Place,
    ProductJob,
    RowProductJob,
    Value,
    Written,
)  # fmt: skip
from edbc.runtime.cuda.operations import lines_of

ELEMENT = {"f32": "tl.float32", "f64": "tl.float64", "bf16": "tl.bfloat16", "f16": "tl.float16"}
ROW_TILES = (16, 32, 64)
"""Row tiles of products, the constant `BM`: the smallest that holds the batch, or the largest."""
_HEADER = (
    "import triton\nimport triton.language as tl\n\n\n@triton.jit(do_not_specialize=[{fixed}])\ndef launch({names}):\n"
)
CONSTANTS = ("BM", "PRECISION")


@dataclass(frozen=True)
class Kernel:
    """The text of one launch, the names of its arguments in order, and its number of programs for a batch."""

    text: str
    names: tuple[str, ...]
    programs: Callable[[int, int], int] = field(compare=False)
    """Of the number of nodes and BM."""


def row_tile(count: int, dtype: str) -> int:
    """BM for a batch of `count` nodes."""
    if dtype == "f64":
        return ROW_TILES[0]
    return next((tile for tile in ROW_TILES if tile >= count), ROW_TILES[-1])


def reduction_kernel(op: str, sizes: Sequence[int], dtype: str) -> Kernel:
    """The kernel of a variadic type: field f of a node is the reduction of its items' rows, in the items' order.

    `seg` says where in `ix` the borders of the nodes' items start, count + 1 of them.
    """
    compute = "tl.float64" if dtype == "f64" else "tl.float32"
    lines, begin = ["pid = tl.program_id(0)"], "0"
    for f, size in enumerate(sizes):
        columns = _power(size, 1, 256)
        across = _tiles(size, columns)
        lines += [
            f"end{f} = {begin} + count * {across}",
            f"if (pid >= {begin}) & (pid < end{f}):",
            f"    tile = pid - {begin}",
            f"    node = tile // {across}",
            f"    c = tile % {across} * {columns} + tl.arange(0, {columns})",
            f"    inside = c < {size}",
            "    first = tl.load(ix + seg + node)",
            "    last = tl.load(ix + seg + node + 1)",
            f"    acc = tl.full(({columns},), {_START[op]}, {compute})",
            "    for i in range(first, last):",
            f"        row = tl.load(ix + at{f} + i).to(tl.int64)",
            f"        x = tl.load(a{f} + row * {size} + c, mask=inside, other=0.0).to({compute})",
            f"        acc = {_STEP[op]}",
            *([f"    acc = acc / (last - first).to({compute})"] if op == "mean" else []),
            f"    tl.store(o{f} + (row{f} + node).to(tl.int64) * {size} + c, acc.to({ELEMENT[dtype]}), mask=inside)",
        ]
        begin = f"end{f}"
    body = "\n".join(f"    {line}" for line in lines) + "\n"
    names = ["ix", "count", "seg", *(f"{name}{f}" for f in range(len(sizes)) for name in ("a", "at", "o", "row"))]
    total = sum(_tiles(size, _power(size, 1, 256)) for size in sizes)
    return _kernel(body, names, lambda count, rows: count * total)


_START = {"sum": "0.0", "mean": "0.0", "max": 'float("-inf")', "min": 'float("inf")'}
_STEP = {
    "sum": "acc + x",
    "mean": "acc + x",
    "max": "tl.where((x > acc) | (x != x), x, acc)",
    "min": "tl.where((x < acc) | (x != x), x, acc)",
}


def _kernel(body: str, names: Sequence[str], programs: Callable[[int, int], int]) -> Kernel:
    """A kernel that takes those of `names` that its body mentions. Integers are not specialised: one compilation
    serves every batch."""
    words = set(re.findall(r"\w+", body))
    taken = [name for name in names if name in words]
    fixed = [name for name in taken if name in ("count", "seg") or name.startswith(("at", "row"))]
    constants = [f"{name}: tl.constexpr" for name in CONSTANTS]
    text = _HEADER.format(fixed=", ".join(map(repr, fixed)), names=", ".join([*taken, *constants])) + body
    return Kernel(text, tuple(taken), programs)


def kernels_of(launches: Launches) -> tuple[Kernel, ...]:
    """The kernel of every launch."""
    writer = _Writer(launches)
    return tuple(writer.kernel(jobs) for jobs in launches.jobs)


@dataclass(frozen=True)
class _Tile:
    """Tile sizes of a job: columns and inner size. Rows are BM, or `rows` where that is given."""

    columns: int
    inner: int = 1
    rows: int = 0


def _power(size: int, least: int, most: int) -> int:
    """The power of two that holds `size`, within limits."""
    return min(max(1 << max(size - 1, 0).bit_length(), least), most)


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)


class _Writer:
    """Writes kernels; one per launch."""

    def __init__(self, launches: Launches):
        self.launches = launches
        self.element = ELEMENT[launches.dtype]
        self.is_double = launches.dtype == "f64"
        self.compute = "tl.float64" if self.is_double else "tl.float32"
        self.parameter = {ref: number for number, ref in enumerate(launches.parameters)}

    def kernel(self, jobs: Sequence[Job]) -> Kernel:
        """See Kernel."""
        lines, begin = ["pid = tl.program_id(0)"], "0"
        for number, job in enumerate(jobs):
            lines.append(f"end{number} = {begin} + {self._programs_text(job)}")
            lines.append(f"if (pid >= {begin}) & (pid < end{number}):")
            lines += [f"    {line}" for line in _Body(self, job, self._tile(job)).lines(begin)]
            begin = f"end{number}"
        body = "\n".join(f"    {line}" for line in lines) + "\n"
        return _kernel(body, self._names(), lambda count, rows: sum(self._programs(job, count, rows) for job in jobs))

    def _names(self) -> list[str]:
        operands, outputs = range(len(self.launches.operand_sizes)), range(len(self.launches.output_sizes))
        weights = 1 + max(
            (job.weight for jobs in self.launches.jobs for job in jobs if isinstance(job, ProductJob)), default=-1
        )
        return [
            "ix", "count", "work",
            *(f"{name}{k}" for k in operands for name in ("a", "at")),
            *(f"{name}{j}" for j in outputs for name in ("o", "row")),
            *(f"{name}{i}" for i in range(weights) for name in ("w", "b")),
            *(f"p{i}" for i in range(len(self.parameter))),
        ]  # fmt: skip

    def _tile(self, job: Job) -> _Tile:
        if isinstance(job, ProductJob):
            widest = max((piece.size for piece in job.pieces), default=1)
            return _Tile(_power(job.columns, 16, 32 if self.is_double else 64), _power(widest, 16, self._inner))
        if isinstance(job, RowProductJob):
            columns = 1 if job.n == 1 else _power(job.n, 16, 32)
            return _Tile(columns, _power(job.k, 16, self._inner), _power(job.m, 16, self._inner))
        columns = _power(job.size, 1, 128)
        return _Tile(columns, rows=1024 // columns)

    @property
    def _inner(self) -> int:
        """Half as much where a number takes two registers: a tile more and products of float64 leave the registers."""
        return 16 if self.is_double else 32

    def _programs(self, job: Job, count: int, rows: int) -> int:
        tile = self._tile(job)
        if isinstance(job, RowProductJob):
            return count * _tiles(job.m, tile.rows) * _tiles(job.n, tile.columns)
        columns = job.columns if isinstance(job, ProductJob) else job.size
        return _tiles(count, tile.rows or rows) * _tiles(columns, tile.columns)

    def _programs_text(self, job: Job) -> str:
        tile = self._tile(job)
        if isinstance(job, RowProductJob):
            return f"count * {_tiles(job.m, tile.rows) * _tiles(job.n, tile.columns)}"
        columns = job.columns if isinstance(job, ProductJob) else job.size
        return f"tl.cdiv(count, {tile.rows or 'BM'}) * {_tiles(columns, tile.columns)}"


class _Body:
    """The source of one job's programs."""

    def __init__(self, writer: _Writer, job: Job, tile: _Tile):
        self.writer = writer
        self.job = job
        self.tile = tile
        self.known: dict[object, str] = {}
        self.written: list[str] = []
        self.indent = ""

    def lines(self, begin: str) -> list[str]:
        """Lines of the job whose programs start at `begin`."""
        self._line(f"tile = pid - {begin}")
        if isinstance(self.job, ProductJob):
            self._product(self.job)
        elif isinstance(self.job, RowProductJob):
            self._row_product(self.job)
        else:
            self._map(self.job)
        return self.written

    def _line(self, text: str) -> None:
        self.written.append(self.indent + text)

    # --- products --------------------------------------------------------------------------------------------------

    def _product(self, job: ProductJob) -> None:
        across = _tiles(job.columns, self.tile.columns)
        self._line(f"r = (tile // {across} * BM + tl.arange(0, BM)[:, None]).to(tl.int64)")
        self._line(f"c = tile % {across} * {self.tile.columns} + tl.arange(0, {self.tile.columns})[None, :]")
        self._line("valid = r < count")
        self._line(f"inside = c < {job.columns}")
        self._operand_rows(piece.value for piece in job.pieces)
        self._line(f"acc = tl.zeros((BM, {self.tile.columns}), {self.writer.compute})")
        row = 0
        for piece in job.pieces:
            self._accumulate(job, piece, row)
            row += piece.size
        if job.bias:
            self._line(
                f"acc += tl.load(b{job.weight} + {job.column} + c, mask=inside, other=0.0).to({self.writer.compute})"
            )
        self._store(job.target, "c", "valid & inside", "acc")

    def _accumulate(self, job: ProductJob, piece: Piece, row: int) -> None:
        """One piece of the source: `acc += piece @ weight[row : row + size]`."""
        self._begin_loop(piece.size)
        self._line(f"kc = k0 + tl.arange(0, {self.tile.inner})[None, :]")
        self._line(f"live = valid & (kc < {piece.size})")
        x = self._factor(piece.value, "kc", "live")
        self._line(f"kr = k0 + tl.arange(0, {self.tile.inner})[:, None]")
        self._line(
            f"w = tl.load(w{job.weight} + ({row} + kr) * {job.total} + ({job.column} + c), "
            f"mask=(kr < {piece.size}) & inside, other=0.0)"
        )
        self._multiply(x, "w")
        self._end_loop()

    def _multiply(self, left: str, right: str) -> None:
        if self.writer.is_double:
            self._line(f"acc += tl.sum({left}[:, :, None] * {right}[None, :, :], 1)")
        else:
            factors = f"{left}.to({self.writer.element}), {right}.to({self.writer.element})"
            self._line(f"acc = tl.dot({factors}, acc, input_precision=PRECISION)")

    def _factor(self, value: Value, at: str, mask: str) -> str:
        """The value in the tile's own shape, with zeros outside the mask, so that a tile's rest adds nothing."""
        if not isinstance(value, Apply | Number):
            return self._value(value, at, mask, "0.0")
        name = self._value(value, at, mask, "1.0")
        self._line(f"x = tl.where({mask}, {name}, 0.0)")
        return "x"

    def _begin_loop(self, size: int) -> None:
        self._line(f"for k0 in range(0, {size}, {self.tile.inner}):")
        self.indent += "    "
        self.outside = dict(self.known)

    def _end_loop(self) -> None:
        self.indent = self.indent[4:]
        self.known = self.outside

    def _row_product(self, job: RowProductJob) -> None:
        down, across = _tiles(job.m, self.tile.rows), _tiles(job.n, self.tile.columns)
        self._line(f"r = (tile // {down * across}).to(tl.int64)")
        self._line(f"m = tile // {across} % {down} * {self.tile.rows} + tl.arange(0, {self.tile.rows})[:, None]")
        self._line(f"c = tile % {across} * {self.tile.columns} + tl.arange(0, {self.tile.columns})[None, :]")
        self._line("valid = r < count")
        self._operand_rows(piece.value for piece in (job.a, *job.b))
        self._line(f"acc = tl.zeros(({self.tile.rows}, {self.tile.columns}), {self.writer.compute})")
        row = 0
        for piece in job.b:
            self._accumulate_rows(job, piece, row)
            row += piece.size // job.n
        self._store(job.target, f"m * {job.n} + c", f"(m < {job.m}) & (c < {job.n})", "acc")

    def _accumulate_rows(self, job: RowProductJob, piece: Piece, row: int) -> None:
        """Some rows of the right matrix: `acc += a[:, row : row + rows] @ piece`."""
        rows = piece.size // job.n
        self._begin_loop(rows)
        self._line(f"kc = k0 + tl.arange(0, {self.tile.inner})[None, :]")
        self._line(f"e = m * {job.k} + ({row} + kc)")
        self._line(f"live = (m < {job.m}) & (kc < {rows})")
        left = self._factor(job.a.value, "e", "live")
        self._line(f"left = {left}")
        self.known = dict(self.outside)
        if job.n == 1:
            self._line(f"held = kc < {rows}")
            right = self._factor(piece.value, "kc", "held")
            self._line(f"acc += tl.sum(left * {right}, 1)[:, None]")
        else:
            self._line(f"kr = k0 + tl.arange(0, {self.tile.inner})[:, None]")
            self._line(f"held = (kr < {rows}) & (c < {job.n})")
            self._line(f"f = kr * {job.n} + c")
            self._multiply("left", self._factor(piece.value, "f", "held"))
        self._end_loop()

    # --- maps and values -------------------------------------------------------------------------------------------

    def _map(self, job: MapJob) -> None:
        across = _tiles(job.size, self.tile.columns)
        self._line(f"r = (tile // {across} * {self.tile.rows} + tl.arange(0, {self.tile.rows})[:, None]).to(tl.int64)")
        self._line(f"c = tile % {across} * {self.tile.columns} + tl.arange(0, {self.tile.columns})[None, :]")
        self._line("valid = r < count")
        self._line(f"live = valid & (c < {job.size})")
        self._operand_rows(value for _, value in job.targets)
        for target, value in job.targets:
            self._store(target, "c", "live", self._value(value, "c", "live", "1.0"))

    def _operand_rows(self, values: object) -> None:
        """The row numbers of every operand that the values read."""
        seen: set[int] = set()
        for number in sorted(_operands_in(values, seen)):
            self._line(f"i{number} = tl.load(ix + at{number} + r, mask=valid, other=0).to(tl.int64)")

    def _value(self, value: Value, at: str, mask: str, other: str) -> str:
        """The name that holds a value at columns `at`, written when it is first asked for."""
        key = id(value) if isinstance(value, Apply) else value
        if key not in self.known:
            if isinstance(value, Apply):
                sources = [self._value(source, at, mask, other) for source in value.sources]
                name = f"v{len(self.known)}"
                for line in lines_of(value.op, name, sources, self.writer.compute):
                    self._line(line)
            else:
                name = f"v{len(self.known)}"
                self._line(f"{name} = {self._leaf(value, at, mask, other)}")
            self.known[key] = name
        return self.known[key]

    def _leaf(self, value: Value, at: str, mask: str, other: str) -> str:
        compute = self.writer.compute
        if isinstance(value, Number):
            return f"tl.full((1, 1), {value.value!r}, {compute})"
        if isinstance(value, Parameter):
            pointer = f"p{self.writer.parameter[value.ref]} + {value.offset}"
        elif isinstance(value, Operand):
            size = self.writer.launches.operand_sizes[value.operand]
            pointer = f"a{value.operand} + i{value.operand} * {size} + {value.offset}"
        else:
            assert isinstance(value, Computed | Written)
            pointer = self._address(value)
        return f"tl.load({pointer} + ({at}), mask={mask}, other={other}).to({compute})"

    def _address(self, place: Place) -> str:
        if isinstance(place, Computed):
            return f"work + r * {self.writer.launches.workspace} + {place.offset}"
        return f"o{place.output} + (row{place.output} + r) * {self._stride(place)} + {place.offset}"

    def _stride(self, place: Written) -> int:
        return self.writer.launches.output_sizes[place.output]

    def _store(self, place: Place, at: str, mask: str, name: str) -> None:
        kind = self.writer.compute if isinstance(place, Computed) else self.writer.element
        self._line(f"tl.store({self._address(place)} + ({at}), {name}.to({kind}), mask={mask})")


def _operands_in(values: object, seen: set[int]) -> set[int]:
    found: set[int] = set()
    for value in values:  # type: ignore[attr-defined]
        if isinstance(value, Operand):
            found.add(value.operand)
        elif isinstance(value, Apply) and id(value) not in seen:
            seen.add(id(value))
            found |= _operands_in(value.sources, seen)
    return found
