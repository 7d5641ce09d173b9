"""Triton source for launches: text made from jobs, where only sizes and operations of the fixed table appear.

Definitions.

(1) A launch is one kernel. Its programs are numbered job after job; a job's programs cover its target tile by tile,
    row tiles outside. The host computes the same counts (`Kernel.programs`) from the number of nodes in the batch.
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

from edbc.cells.values.value import REDUCTIONS, pieces_of
from edbc.run.cuda.body import ELEMENT, START, STEP, Body, Tile, compute_type, power, tiles
from edbc.run.cuda.launches import Job, Launches

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
    compute = compute_type(dtype)
    lines, begin = ["pid = tl.program_id(0)"], "0"
    for f, size in enumerate(sizes):
        columns = power(size, 1, 256)
        across = tiles(size, columns)
        lines += [
            f"end{f} = {begin} + count * {across}",
            f"if (pid >= {begin}) & (pid < end{f}):",
            f"    tile = pid - {begin}",
            f"    node = tile // {across}",
            f"    c = tile % {across} * {columns} + tl.arange(0, {columns})",
            f"    inside = c < {size}",
            "    first = tl.load(ix + seg + node)",
            "    last = tl.load(ix + seg + node + 1)",
            f"    acc = tl.full(({columns},), {START[op]}, {compute})",
            "    for i in range(first, last):",
            f"        row = tl.load(ix + at{f} + i).to(tl.int64)",
            f"        x = tl.load(a{f} + row * {size} + c, mask=inside, other=0.0).to({compute})",
            f"        acc = {STEP[op].format(x='x')}",
            *([f"    acc = acc / (last - first).to({compute})"] if op == "mean" else []),
            f"    tl.store(o{f} + (row{f} + node).to(tl.int64) * {size} + c, acc.to({ELEMENT[dtype]}), mask=inside)",
        ]
        begin = f"end{f}"
    body = "\n".join(f"    {line}" for line in lines) + "\n"
    names = ["ix", "count", "seg", *(f"{name}{f}" for f in range(len(sizes)) for name in ("a", "at", "o", "row"))]
    total = sum(tiles(size, power(size, 1, 256)) for size in sizes)
    return _kernel(body, names, lambda count, rows: count * total)


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


class _Writer:
    """Writes kernels; one per launch."""

    def __init__(self, launches: Launches):
        self.launches = launches
        self.is_double = launches.dtype == "f64"

    def kernel(self, jobs: Sequence[Job]) -> Kernel:
        """See Kernel."""
        lines, begin = ["pid = tl.program_id(0)"], "0"
        for number, job in enumerate(jobs):
            lines.append(f"end{number} = {begin} + {self._programs_text(job)}")
            lines.append(f"if (pid >= {begin}) & (pid < end{number}):")
            lines += [f"    {line}" for line in Body(self.launches, job, self._tile(job)).lines(begin)]
            begin = f"end{number}"
        body = "\n".join(f"    {line}" for line in lines) + "\n"
        return _kernel(body, self._names(), lambda count, rows: sum(self._programs(job, count, rows) for job in jobs))

    def _names(self) -> list[str]:
        operands, outputs = range(len(self.launches.operand_sizes)), range(len(self.launches.output_sizes))
        made = [job.v for jobs in self.launches.jobs for job in jobs]
        weights = 1 + max((v.arg[0] for v in made if v.op == "product"), default=-1)
        return [
            "ix", "count", "work",
            *(f"{name}{k}" for k in operands for name in ("a", "at")),
            *(f"{name}{j}" for j in outputs for name in ("o", "row")),
            *(f"{name}{i}" for i in range(weights) for name in ("w", "b")),
            *(f"p{i}" for i in range(len(self.launches.parameters))),
        ]  # fmt: skip

    def _tile(self, job: Job) -> Tile:
        v = job.v
        if v.op == "product":
            widest = max((piece.size for piece in pieces_of(v.sources[0])), default=1)
            return Tile(power(v.size, 16, 32 if self.is_double else 64), power(widest, 16, self._inner))
        if v.op == "matmul":
            m, k, n = v.arg
            return Tile(power(n, 16, 32), power(k, 16, self._inner), power(m, 16, self._inner))
        if v.op in REDUCTIONS:
            inner = power(v.arg[1], 1, 128)
            return Tile(1, inner, 1024 // inner)
        columns = power(v.size, 1, 128)
        elements = 512 if self.is_double and len(job.stores) > 4 else 1024  # or numbers leave the registers
        return Tile(columns, rows=elements // columns)

    @property
    def _inner(self) -> int:
        """Half as much where a number takes two registers: a tile more and products of float64 leave the registers."""
        return 16 if self.is_double else 32

    def _programs(self, job: Job, count: int, rows: int) -> int:
        per_node, height, across = self._grid(job)
        return tiles(count * per_node, height or rows) * across

    def _programs_text(self, job: Job) -> str:
        per_node, height, across = self._grid(job)
        rows = "count" if per_node == 1 else f"count * {per_node}"
        return f"{rows} * {across}" if height == 1 else f"tl.cdiv({rows}, {height or 'BM'}) * {across}"

    def _grid(self, job: Job) -> tuple[int, int, int]:
        """Rows of a node, rows of a tile (0 stands for BM), and tiles side by side."""
        v, tile = job.v, self._tile(job)
        if v.op == "matmul":
            m, _, n = v.arg
            return 1, 1, tiles(m, tile.rows) * tiles(n, tile.columns)
        return (v.size, tile.rows, 1) if v.op in REDUCTIONS else (1, tile.rows, tiles(v.size, tile.columns))
