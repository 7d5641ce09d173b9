"""Triton source of step kernels: text made from jobs, where only sizes and operations of the fixed table appear.

Definitions.

(1) A *record* is a row of WIDTH numbers in a table on the device: what one job of one batch is to do. Its first fields
    are `Field`; what its branch wants to know follows, in the order of `Branch.names`. The records of a step stand one
    behind the other, those of the next step behind them.
(2) A *branch* is the text of one job with one tile size: a function of a record that computes the tiles `start`,
    `start + PROGRAMS`, ... of it. A *step kernel* holds the branches of all types that a plan has met, and runs every
    record of one step, each by its branch. Its programs take turns: a record's first tile goes to the program behind
    the one that got the last tile of the record before.
(3) What a branch is told, by name: per operand k `a{k}` its arena and `at{k}` where its row numbers stand; per output j
    `o{j}` its arena and `row{j}` the batch's first row there; `w{i}` and `b{i}` packed weights and biases; `p{i}`
    parameters; `work` the batch's workspace; `seg` the borders of items. All but `row{j}` are addresses.
(4) A chain is so many launches, whose `number` says which step each of them is; where these stand is told on the
    device: the first word of `cursor` points to the address of the first record of the chain's first step, behind which
    stand those of the following steps. The first launch, which is told how many steps it is `ahead` of the next chain,
    points the second word there; the last one, number -1, counts from that word, and moves the first. So a chain serves
    every mini-batch, and nothing that a launch reads of its step is written by the one before. A step without work is a
    record without tiles.
(5) Types: `E` of elements in memory, which is what products multiply; `F` of computation, of sums and of the
    workspace, float32 unless elements are float64. So a bfloat16 value is rounded once, when it is stored or becomes a
    factor, to the nearest (ties to even) as torch does.

Programs of a step never wait for each other, so nothing needs to be resident together: a step ends where its launch
does. With PDL (programmatic dependent launch, from compute capability 9.0 on) the programs of the next step are put in
place meanwhile, read what they are to do and from which rows, and wait there until this one's writes are visible. They
are not put in place before this one has seen those of the one before it: so what a launch reads before it waits may
have been written two launches before, and a chain has three at least.

Float64 products are sums of element-wise products, which any device has; float32 products follow torch's setting for
float32 matrix products (`PRECISION`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from edbc.cells.values.value import REDUCTIONS, pieces_of
from edbc.run.cuda.body import ELEMENT, START, STEP, Body, Tile, compute_type, power, tiles
from edbc.run.cuda.stages import MOST_LOADS, Job, Stages, whole

CONSTANTS = ("PROGRAMS", "PRECISION", "PDL")
MOST_STORES = 4
"""Of a map that takes a product in, for a tile of 64 columns."""
FAR, MOST_FAR = 64, 8
"""Factors that a turn of a small tile reads: it waits for memory more than it computes, so much is under way at once.
That is 4 KB of shared memory for each matrix that it reads, three times, and the smallest cards have 99."""
EARLY = 256
"""Elements of a tile whose head is run early. What the head finds is carried from tile to tile, which costs more than
it saves where tiles are large: on an H200 early heads took 32 trees of hidden size 128 from 138 to 127 microseconds,
256 of 512 from 1,359 to 1,829."""
GATES = 64, 16
"""Rows and most columns of a large tile of several gates."""
ALIGNED = ("a", "o", "w", "b", "work")
"""Addresses that 16 divides, so that neighbouring elements go together."""


class Field(IntEnum):
    """The first fields of a record."""

    BRANCH = 0
    LEFT = 1
    """Records of the step from this one on."""
    FIRST = 2
    """The program that takes the first tile is the one to which this number is missing to a multiple of PROGRAMS."""
    TILES = 3
    COUNT = 4
    """Nodes."""


FIELDS = len(Field)


@dataclass(frozen=True)
class Branch:
    """Definition (2); `grid` are rows of a node, rows of a tile and tiles side by side. Equal branches are one."""

    text: str
    names: tuple[str, ...]
    grid: tuple[int, int, int]

    def tiles(self, count: int) -> int:
        """Tiles of a batch of `count` nodes."""
        per_node, height, across = self.grid
        return tiles(count * per_node, height) * across


Variants = tuple[Branch, ...]
"""One job with tiles of several sizes, the smallest first: a step takes the largest that occupies the device."""


def step_kernel(branches: Sequence[Branch], width: int) -> str:
    """The text of a module whose function `step` runs a step; `width` is that of records."""
    functions = [branch.text.format(number=number) for number, branch in enumerate(branches)]
    constants = ", ".join(CONSTANTS)
    calls = [
        f"        if branch == {k}:\n            branch{k}(words, start, tiles, record == 0, {constants})"
        for k in range(len(branches))
    ]
    numbers = {"width": width, **{field.name.lower(): int(field) for field in Field}}
    return _HEAD.format(functions="\n\n".join(functions)) + _STEP.format(calls="\n".join(calls), **numbers)


_HEAD = """import triton
import triton.language as tl


{functions}


"""
_STEP = """@triton.jit(do_not_specialize=["number", "ahead"])
def step(cursor, number, ahead, PROGRAMS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr):
    pid = tl.program_id(0)
    word = cursor + (number < 0).to(tl.int32)
    starts = tl.load(word)
    words = tl.load(starts.to(tl.pointer_type(tl.int64)) + number).to(tl.pointer_type(tl.int64))
    left = tl.load(words + {left}).to(tl.int32)
    if PDL:
        if tl.load(words + {branch}) < 0:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
    for record in range(left):
        branch = tl.load(words + {branch}).to(tl.int32)
        tiles = tl.load(words + {tiles}).to(tl.int32)
        start = (pid + tl.load(words + {first}).to(tl.int32)) % PROGRAMS
{calls}
        words += {width}
    if pid == 0:
        if ahead > 0:
            tl.store(cursor + 1, starts + ahead * 8)
        if number < 0:
            tl.store(cursor, starts)
"""
_BRANCH = """@triton.jit
def branch{{number}}(words, start, tiles, waits, PROGRAMS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr):
    count = tl.load(words + {count}).to(tl.int32)
{arguments}
    tile = start
{head}
    if PDL:
        if waits:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
    for turn in range(start, tiles, PROGRAMS):
{body}
        tile = turn + PROGRAMS
{next}
"""


def _branch(lines: Sequence[str], names: Sequence[str], grid: tuple[int, int, int], dtype: str,
            head: Sequence[str] = ()) -> Branch:  # fmt: skip
    """A branch that is told those of `names` that its lines mention. The `head` of a tile is run while the one before
    is being stored, that of the first tile before the step before has ended."""
    words = set(re.findall(r"\w+", "\n".join([*head, *lines])))
    taken = tuple(name for name in names if name in words)
    arguments = "\n".join(f"    {name} = {_argument(name, at, dtype)}" for at, name in enumerate(taken, FIELDS))
    texts = {"head": _indented(head, 4), "body": _indented(lines, 8), "next": _indented(head, 8)}
    return Branch(_BRANCH.format(count=int(Field.COUNT), arguments=arguments, **texts), taken, grid)


def _indented(lines: Sequence[str], by: int) -> str:
    return "\n".join(" " * by + line for line in lines).replace("{", "{{").replace("}", "}}")


def _argument(name: str, at: int, dtype: str) -> str:
    number = f"tl.load(words + {at})"
    kind = name.rstrip("0123456789")
    if kind == "row":
        return number
    pointer = {"at": "tl.int32", "seg": "tl.int32", "work": compute_type(dtype)}.get(kind, ELEMENT[dtype])
    address = f"{number}.to(tl.pointer_type({pointer}))"
    return f"tl.multiple_of({address}, 16)" if kind in ALIGNED else address


# --- branches of types ---------------------------------------------------------------------------------------------


def reduction_branches(op: str, sizes: Sequence[int], dtype: str) -> tuple[Variants, ...]:
    """Of a variadic type, one per field: field f of a node is the reduction of its items' rows, in the items' order.
    `seg` says where the borders of the nodes' items start, count + 1 of them."""
    return tuple((_reduction(op, f, size, dtype),) for f, size in enumerate(sizes))


def _reduction(op: str, f: int, size: int, dtype: str) -> Branch:
    compute = compute_type(dtype)
    columns = power(size, 1, 256)
    across = tiles(size, columns)
    lines = [
        *_items_of_node(op, size, columns, compute),
        "for i in range(first, last):",
        f"    row = tl.load(at{f} + i).to(tl.int64)",
        f"    x = tl.load(a{f} + row * {size} + c, mask=inside, other=0.0).to({compute})",
        f"    acc = {STEP[op].format(x='x')}",
        *([f"acc = acc / (last - first).to({compute})"] if op == "mean" else []),
        f"tl.store(o{f} + (row{f} + node) * {size} + c, acc.to({ELEMENT[dtype]}), mask=inside)",
    ]
    return _branch(lines, ["seg", f"a{f}", f"at{f}", f"o{f}", f"row{f}"], (1, 1, across), dtype)


def _items_of_node(op: str, size: int, columns: int, compute: str) -> list[str]:
    """The columns of a tile, the items of its node, and what nothing is reduced to."""
    across = tiles(size, columns)
    return [
        f"node = tile // {across}",
        f"c = tile % {across} * {columns} + tl.arange(0, {columns})",
        f"inside = c < {size}",
        "first = tl.load(seg + node)",
        "last = tl.load(seg + node + 1)",
        f"acc = tl.full(({columns},), {START[op]}, {compute})",
    ]


def extreme_branch(size: int, dtype: str, op: str) -> Branch:
    """The gradient of an extreme of items, node by node: rows from `row1` on of `a1` are the nodes' gradients, items
    stand in rows `at0` of `a0`, theirs go to rows from `row0` on of `o0`. Equal ones share it evenly, or the first one
    of `max` and `min` has it."""
    compute, is_first = compute_type(dtype), op in ("max", "min")
    columns = power(size, 1, 256)
    across = tiles(size, columns)
    each_item = [
        "for i in range(first, last):",
        "    row = tl.load(at0 + i).to(tl.int64)",
        f"    x = tl.load(a0 + row * {size} + c, mask=inside, other=0.0).to({compute})",
    ]
    lines = [
        *_items_of_node(op, size, columns, compute),
        *each_item,
        f"    acc = {STEP[op].format(x='x')}",
        f"share = tl.zeros(({columns},), {compute})",
        *each_item,
        "    share += tl.where(x == acc, 1.0, 0.0)",
        f"each = tl.load(a1 + (row1 + node) * {size} + c, mask=inside, other=0.0).to({compute})"
        + ("" if is_first else " / share"),
        f"left = tl.full(({columns},), 1.0, {compute})",
        *each_item,
        "    taken = tl.where(x == acc, left, 0.0)",
        f"    tl.store(o0 + (row0 + i) * {size} + c, (taken * each).to({ELEMENT[dtype]}), mask=inside)",
        *(["    left -= taken"] if is_first else []),
    ]
    return _branch(lines, ["a0", "at0", "a1", "seg", "o0", "row0", "row1"], (1, 1, across), dtype)


def copy_branch(size: int, dtype: str, op: str) -> Branch:
    """Rows `at0` of `a0` to rows from `row0` on of `o0`; to `fill`, to rows `at1`. For a `mean` each is divided by the
    number of items of its node: that is the number of the row, less `row1`, and `seg` says as above where the nodes'
    borders stand."""
    columns = power(size, 1, 128)
    across, rows = tiles(size, columns), 1024 // columns
    compute = compute_type(dtype)
    lines = [
        f"r = (tile // {across} * {rows} + tl.arange(0, {rows})[:, None]).to(tl.int64)",
        f"c = tile % {across} * {columns} + tl.arange(0, {columns})[None, :]",
        "valid = r < count",
        f"inside = valid & (c < {size})",
        "i = tl.load(at0 + r, mask=valid, other=0).to(tl.int64)",
        f"x = tl.load(a0 + i * {size} + c, mask=inside, other=0.0)",
    ]
    if op == "mean":
        lines += [
            "node = i - row1",
            "items = tl.load(seg + node + 1, mask=valid, other=1) - tl.load(seg + node, mask=valid, other=0)",
            f"x = (x.to({compute}) / items.to({compute})).to({ELEMENT[dtype]})",
        ]
    if op == "fill":
        lines.append("to = tl.load(at1 + r, mask=valid, other=0).to(tl.int64)")
    to = "to" if op == "fill" else "(row0 + r)"
    lines.append(f"tl.store(o0 + {to} * {size} + c, x, mask=inside)")
    return _branch(lines, ["a0", "at0", "at1", "seg", "o0", "row0", "row1"], (1, rows, across), dtype)


def branches_of(stages: Stages) -> tuple[tuple[Variants, ...], ...]:
    """The branches of every job of every stage."""
    writer = _Writer(stages)
    return tuple(tuple(writer.variants(job) for job in jobs) for jobs in stages.jobs)


class _Writer:
    """Writes the branches of one type."""

    def __init__(self, stages: Stages):
        self.stages = stages
        self.is_double = stages.dtype == "f64"
        operands, outputs = range(len(stages.operand_sizes)), range(len(stages.output_sizes))
        jobs = [job for of_stage in stages.jobs for job in of_stage]
        products = [v for job in jobs for v in (job.v, *(p for p, _ in job.sums)) if v.op == "product"]
        weights = 1 + max((v.arg[0] for v in products), default=-1)
        self.names = [
            "work",
            *(f"{name}{k}" for k in operands for name in ("a", "at")),
            *(f"{name}{j}" for j in outputs for name in ("o", "row")),
            *(f"{name}{i}" for i in range(weights) for name in ("w", "b")),
            *(f"p{i}" for i in range(len(stages.parameters))),
        ]

    def variants(self, job: Job) -> Variants:
        """See Variants."""
        return tuple(dict.fromkeys(self._written(job, tile) for tile in self._tiles(job)))

    def _written(self, job: Job, tile: Tile) -> Branch:
        head, lines = Body(self.stages, job, tile).lines()
        if tile.rows * tile.columns > EARLY:
            head, lines = [], [*head, *lines]
        return _branch(lines, self.names, self._grid(job, tile), self.stages.dtype, head)

    def _tiles(self, job: Job) -> list[Tile]:
        v = job.v
        if v.op == "product" or job.sums:
            return self._product_tiles(job)
        if v.op == "matmul":
            m, k, n = v.arg
            return [Tile(power(m, 16, self._inner), power(n, 16, 32), power(k, 16, self._inner))]
        if v.op in REDUCTIONS:
            inner = power(v.arg[1], 1, 128)
            return [Tile(1024 // inner, inner)]
        columns = power(v.size, 1, 128)
        elements = 512 if self.is_double and len(job.stores) > 4 else 1024  # or numbers leave the registers
        return [Tile(elements // columns, columns)]

    def _product_tiles(self, job: Job) -> list[Tile]:
        """Small tiles, so that a batch of few rows occupies many multiprocessors; and large ones, which read weights
        and operands less often."""
        products = [product for product, _ in job.sums] or [job.v]
        pieces = [piece for product in products for piece in pieces_of(product.sources[0])]
        widest = max((piece.size for piece in pieces), default=1)
        inner, sums = power(widest, 16, self._inner), sum(len(firsts) for _, firsts in job.sums) or 1
        loads = 1 if all(piece.op == "load" for piece in pieces) else MOST_LOADS
        is_far = not self.is_double and sums + loads <= MOST_FAR
        found = [Tile(16, 16, power(widest, 16, FAR) if is_far else inner)]
        if not self.is_double:
            # what several gates become fills the registers, and so do factors of float32, which no tensor core holds:
            # elements, or what stands in the workspace; and what is stored in many places
            is_large = self.stages.dtype == "f32" or len(job.stores) > MOST_STORES
            is_large = is_large or any(whole(piece) in self.stages.places for piece in pieces)
            rows, most = GATES if sums > 1 else (64, 32 if is_large else 64)
            found.append(Tile(rows, power(job.v.size, 16, most), inner))
        return found

    @property
    def _inner(self) -> int:
        """Half as much where a number takes two registers: a tile more and products of float64 leave the registers."""
        return 16 if self.is_double else 32

    def _grid(self, job: Job, tile: Tile) -> tuple[int, int, int]:
        v = job.v
        if v.op == "matmul":
            m, _, n = v.arg
            return 1, 1, tiles(m, tile.rows) * tiles(n, tile.columns)
        return (v.size, tile.rows, 1) if v.op in REDUCTIONS else (1, tile.rows, tiles(v.size, tile.columns))
