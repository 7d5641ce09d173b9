"""The programs of one job as lines of Triton source; arguments and types are named as in `edbc.run.cuda.tritonsource`.

A value is rendered at elements whose numbers stand in a name: of a part, a spread, a transpose or a concatenation they
are other numbers; an element-wise operation is a line, anything else a load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edbc.cells.values.value import REDUCTIONS, TRANSPOSED, V, in_order, pieces_of
from edbc.run.cuda.stages import MADE, Job, Stages, Store, whole
from edbc.run.cuda.tritonops import lines_of

ELEMENT = {"f32": "tl.float32", "f64": "tl.float64", "bf16": "tl.bfloat16", "f16": "tl.float16"}
# What reductions of items, and values' by the same names, begin with and do with one more.
START = {"sum": "0.0", "mean": "0.0", **dict.fromkeys(("max", "amax"), 'float("-inf")'),
         **dict.fromkeys(("min", "amin"), 'float("inf")')}  # fmt: skip
STEP = {
    **dict.fromkeys(("sum", "mean"), "acc + {x}"),
    **dict.fromkeys(("max", "amax"), "tl.where(({x} > acc) | ({x} != {x}), {x}, acc)"),
    **dict.fromkeys(("min", "amin"), "tl.where(({x} < acc) | ({x} != {x}), {x}, acc)"),
}
_NAMED = {"total": "sum", "largest": "max", "smallest": "min"}


def compute_type(dtype: str) -> str:
    """`F` of elements of a dtype."""
    return ELEMENT["f64" if dtype == "f64" else "f32"]


@dataclass(frozen=True)
class Tile:
    """Tile sizes of a job: rows, columns and inner size."""

    rows: int
    columns: int
    inner: int = 1


def power(size: int, least: int, most: int) -> int:
    """The power of two that holds `size`, within limits."""
    return min(max(1 << max(size - 1, 0).bit_length(), least), most)


def tiles(size: int, tile: int) -> int:
    """How many tiles cover `size`."""
    return -(-size // tile)


_Sums = Mapping[V, Mapping[int, str]]
"""Names of sums by product and first column."""


@dataclass(frozen=True)
class Run:
    """Pieces of products' sources that one loop reads, since each loop begins with a wait for its first reads: of every
    product that reads them, the row of its weight that is the first one's. `is_whole` when no turn is of two pieces."""

    pieces: list[V]
    rows: list[tuple[V, int]]
    is_whole: bool

    @property
    def size(self) -> int:
        """Elements of all pieces."""
        return sum(piece.size for piece in self.pieces)


class Body:
    """The source of one job's programs."""

    def __init__(self, stages: Stages, job: Job, tile: Tile):
        self.stages = stages
        self.element, self.compute = ELEMENT[stages.dtype], compute_type(stages.dtype)
        self.job = job
        self.places = {v: at for v, at in stages.places.items() if v not in {store.v for store in job.stores}}
        """Of made values that the job may read."""
        self.tile = tile
        self.known: dict[object, str] = {}
        self.sums: dict[tuple[V, int], str] = {}
        """Names of what was taken in."""
        self.written: list[str] = []
        self.head = 0
        """So many lines at first read nothing that a step has written: which tile it is, and rows of operands."""
        self.names = 0
        self.indent = ""

    def lines(self) -> tuple[list[str], list[str]]:
        """Lines that compute the tile whose number is in `tile`: the head, and all others."""
        v = self.job.v
        if v.op == "product":
            self._product(v)
        elif v.op == "matmul":
            self._row_product(v)
        elif v.op in REDUCTIONS:
            self._reduction(v)
        else:
            self._map()
        return self.written[: self.head], self.written[self.head :]

    def _line(self, text: str) -> None:
        self.written.append(self.indent + text)

    # --- products and reductions -----------------------------------------------------------------------------------

    def _product(self, v: V) -> None:
        self._tile_rows(v.size)
        self._line(f"inside = c < {v.size}")
        self._operand_rows()
        self._sums({v: {0: "acc"}})
        self._store_made("c", "valid & inside")

    def _sums(self, sums: _Sums) -> None:
        """Columns of products, from so many columns on, left in these names: what the tile reads is read once."""
        for product, names in sums.items():
            weight, bias = product.arg
            for first, name in names.items():
                self._line(f"{name} = tl.zeros(({self.tile.rows}, {self.tile.columns}), {self.compute})")
                if bias is True:
                    self._line(f"{name} += tl.load(b{weight} + {first} + c, mask=inside, other=0.0).to({self.compute})")
        for run in self._runs(sums):
            self._accumulate(run, sums)

    def _tile_rows(self, size: int) -> None:
        """Rows `r` and columns `c` of a tile of a matrix with a row per node."""
        across, rows = tiles(size, self.tile.columns), self.tile.rows
        self._line(f"r = (tile // {across} * {rows} + tl.arange(0, {rows})[:, None]).to(tl.int64)")
        self._line(f"c = tile % {across} * {self.tile.columns} + tl.arange(0, {self.tile.columns})[None, :]")
        self._line("valid = r < count")

    def _runs(self, products: Iterable[V]) -> list[Run]:
        """The runs of what products read, in the order in which they come to it."""
        readers: dict[V, list[tuple[V, int]]] = {}
        for product in products:
            row = 0
            for piece in pieces_of(product.sources[0]):
                readers.setdefault(piece, []).append((product, row))
                row += piece.size
        runs: list[Run] = []
        for piece, rows in readers.items():
            behind = [(product, row - runs[-1].size) for product, row in rows] if runs else []
            is_whole = piece.op == "load" and piece.size % self.tile.inner == 0
            if behind and behind == runs[-1].rows and is_whole and runs[-1].is_whole:
                runs[-1].pieces.append(piece)
            else:
                runs.append(Run([piece], rows, is_whole))
        return runs

    def _accumulate(self, run: Run, sums: _Sums) -> None:
        """What a run adds to all products that read it: `acc += pieces @ weight[row : row + size]`."""
        places = self._places(run.pieces) if len(run.pieces) > 1 else []
        self._begin_loop(run.size)
        self._line(f"kc = k0 + tl.arange(0, {self.tile.inner})[None, :]")
        self._line(f"live = valid & (kc < {run.size})")
        if places:
            self._line(f"left = tl.load({_chosen(places)} + kc, mask=live, other=0.0)")
        else:
            x = self._factor(run.pieces[0], "kc", "live")
            self._line(f"left = {x}")
        self._line(f"kr = k0 + tl.arange(0, {self.tile.inner})[:, None]")
        for product, row in run.rows:
            weight, bias = product.arg
            for first, name in sums[product].items():
                where = f"({row} + kr) * {product.size} + {first} + c"
                if bias == TRANSPOSED:
                    where = f"({first} + c) * {product.sources[0].size} + ({row} + kr)"
                self._line(f"w = tl.load(w{weight} + {where}, mask=(kr < {run.size}) & inside, other=0.0)")
                self._multiply("left", "w", name)
        self._end_loop()

    def _places(self, pieces: Sequence[V]) -> list[tuple[int, str]]:
        """Per piece, where it ends in its run, and the name of the address at which it would have to begin for its
        elements to stand at their numbers in the run."""
        found, begin = [], 0
        for piece in pieces:
            operand, offset = piece.arg
            size = self.stages.operand_sizes[operand]
            name = self._named(f"a{operand} + i{operand} * {size} + {offset - begin}")
            begin += piece.size
            found.append((begin, name))
        return found

    def _multiply(self, left: str, right: str, sums: str = "acc") -> None:
        if self.compute == ELEMENT["f64"]:
            self._line(f"{sums} += tl.sum({left}[:, :, None] * {right}[None, :, :], 1)")
        else:
            factors = f"{left}.to({self.element}), {right}.to({self.element})"
            self._line(f"{sums} = tl.dot({factors}, {sums}, input_precision=PRECISION)")

    def _factor(self, v: V, at: str, mask: str, other: str = "0.0") -> str:
        """The value in the tile's own shape, with `other` outside the mask, so that a tile's rest changes nothing."""
        if v.op in ("load", "parameter") or whole(v) in self.places:
            return self._value(v, at, mask, other)
        name = self._value(v, at, mask, "1.0")
        self._line(f"x = tl.where({mask}, {name}, {other})")
        return "x"

    def _begin_loop(self, size: int) -> None:
        self._line(f"for k0 in range(0, {size}, {self.tile.inner}):")
        self.indent += "    "
        self.outside = dict(self.known)

    def _end_loop(self) -> None:
        self.indent = self.indent[4:]
        self.known = self.outside

    def _row_product(self, v: V) -> None:
        (m, _, n), b = v.arg, v.sources[1]
        down, across = tiles(m, self.tile.rows), tiles(n, self.tile.columns)
        self._line(f"r = tile // {down * across} + tl.zeros((1, 1), tl.int64)")
        self._line(f"m = tile // {across} % {down} * {self.tile.rows} + tl.arange(0, {self.tile.rows})[:, None]")
        self._line(f"c = tile % {across} * {self.tile.columns} + tl.arange(0, {self.tile.columns})[None, :]")
        self._line("valid = r < count")
        self._operand_rows()
        self._line(f"acc = tl.zeros(({self.tile.rows}, {self.tile.columns}), {self.compute})")
        pieces, row = pieces_of(b), 0
        for piece in pieces if all(piece.size % n == 0 for piece in pieces) else (b,):
            self._accumulate_rows(v, piece, row)
            row += piece.size // n
        self._store_made(f"m * {n} + c", f"(m < {m}) & (c < {n})")

    def _accumulate_rows(self, v: V, piece: V, row: int) -> None:
        """Some rows of the right matrix: `acc += a[:, row : row + rows] @ piece`."""
        m, k, n = v.arg
        rows = piece.size // n
        self._begin_loop(rows)
        self._line(f"kc = k0 + tl.arange(0, {self.tile.inner})[None, :]")
        self._line(f"e = m * {k} + ({row} + kc)")
        self._line(f"live = (m < {m}) & (kc < {rows})")
        left = self._factor(v.sources[0], "e", "live")
        self._line(f"left = {left}")
        self._line(f"kr = k0 + tl.arange(0, {self.tile.inner})[:, None]")
        self._line(f"held = (kr < {rows}) & (c < {n})")
        self._line(f"f = kr * {n} + c")
        self._multiply("left", self._factor(piece, "f", "held"))
        self._end_loop()

    def _reduction(self, v: V) -> None:
        """A row of the tile for each element of each node, along which the source's elements stand."""
        _, n, inner = v.arg
        start, step = START[_NAMED[v.op]], STEP[_NAMED[v.op]]
        rows = self.tile.rows
        self._line(f"q = tile * {rows} + tl.arange(0, {rows})[:, None]")
        self._line(f"r = (q // {v.size}).to(tl.int64)")
        self._line(f"e = q % {v.size}")
        self._line("valid = r < count")
        self._operand_rows()
        self._line(f"acc = tl.full(({rows}, {self.tile.inner}), {start}, {self.compute})")
        self._begin_loop(n)
        self._line(f"kc = k0 + tl.arange(0, {self.tile.inner})[None, :]")
        self._line(f"live = valid & (kc < {n})")
        self._line(f"f = e // {inner} * {n * inner} + kc * {inner} + e % {inner}" if inner > 1 else f"f = e * {n} + kc")
        x = self._factor(v.sources[0], "f", "live", start)
        self._line(f"acc = {step.format(x=x)}")
        self._end_loop()
        if v.op == "total":
            self._line("acc = tl.sum(acc, 1)[:, None]")
        else:
            self._line(f"known = tl.{_NAMED[v.op]}(tl.where(acc == acc, acc, {start}), 1)[:, None]")
            self._line('acc = tl.where(tl.sum((acc != acc).to(tl.int32), 1)[:, None] > 0, float("nan"), known)')
        self._store_made("e", "valid")

    # --- maps and values -------------------------------------------------------------------------------------------

    def _map(self) -> None:
        size = self.job.v.size
        self._tile_rows(size)
        self._line(f"inside = c < {size}")
        self._operand_rows()
        self._line("here = valid & inside")
        if self.job.sums:
            self._read_elements()
        self._take_in({product: {first: self._name() for first in firsts} for product, firsts in self.job.sums})
        for store in self.job.stores:
            self._store(store, "c", "here", self._value(store.v, "c", "here", "1.0"))

    def _read_elements(self) -> None:
        """What the stored values read in step with their elements, while there are no sums to wait for yet."""
        waiting, seen = [store.v for store in self.job.stores], set[V]()
        while waiting:
            v = waiting.pop()
            if v in seen:
                continue
            seen.add(v)
            if v.op == "load" or whole(v) in self.places:
                self._value(v, "c", "here", "1.0")
            elif v.is_elementwise:
                waiting += v.sources

    def _take_in(self, sums: _Sums) -> None:
        """Sums of products in the place of their parts; 1 outside of the tile, as everything else that maps read."""
        self._sums(sums)
        for product, names in sums.items():
            for first, name in names.items():
                self._line(f"{name} = tl.where(valid & inside, {name}, 1.0)")
                self.sums[product, first] = name

    def _operand_rows(self) -> None:
        """The row numbers of every operand that the job reads, with which the head ends."""
        inside = {*self.places, *(product for product, _ in self.job.sums)} - {store.v for store in self.job.stores}
        loads = {v.arg[0] for v in in_order(self.job.read, inside) if v.op == "load"}
        for number in sorted(loads):
            self._line(f"i{number} = tl.load(at{number} + r, mask=valid, other=0).to(tl.int64)")
        self.head = len(self.written)

    def _value(self, v: V, at: str, mask: str, other: str) -> str:
        """The name that holds elements number `at` of a value, written when it is first asked for."""
        key = v, at, mask, other
        if key not in self.known:
            self.known[key] = self._computed(v, at, mask, other)
        return self.known[key]

    def _computed(self, v: V, at: str, mask: str, other: str) -> str:
        taken = self.sums.get((whole(v), v.arg if v.op == "part" else 0))
        if taken is not None:
            return taken
        if v.op == "part" and whole(v).op not in MADE:
            return self._value(whole(v), self._named(f"({at}) + {v.arg}"), mask, other)
        if v.op == "turned":
            rows, columns = v.arg
            turned = self._named(f"({at}) % {rows} * {columns} + ({at}) // {rows}")
            return self._value(v.sources[0], turned, mask, other)
        if v.op == "spread":
            return self._value(v.sources[0], self._named(_narrow(at, *v.arg)), mask, other)
        if v.op == "cat":
            return self._concatenation(v, at, mask, other)
        if not v.is_elementwise or v in self.places:
            return self._named(self._leaf(v, at, mask, other))
        sources = [self._value(source, at, mask, other) for source in v.sources]
        name = self._name()
        for line in lines_of(v.op, name, sources, self.compute):
            self._line(line)
        return name

    def _concatenation(self, v: V, at: str, mask: str, other: str) -> str:
        """Each piece where it stands; behind the last one as before the first, nobody looks."""
        found, begin = "" if v.sources else self._named(f"tl.full((1, 1), 0.0, {self.compute})"), 0
        for piece in v.sources:
            place = self._named(f"({at}) - {begin}")
            held = self._named(f"{mask} & ({place} >= 0) & ({place} < {piece.size})")
            name = self._value(piece, place, held, other)
            found = self._named(f"tl.where({place} < 0, {found}, {name})") if found else name
            begin += piece.size
        return found

    def _named(self, text: str) -> str:
        """A name for what a text says."""
        name = self._name()
        self._line(f"{name} = {text}")
        return name

    def _name(self) -> str:
        self.names += 1
        return f"v{self.names - 1}"

    def _leaf(self, v: V, at: str, mask: str, other: str) -> str:
        if v.op == "number":
            number = repr(v.arg) if math.isfinite(v.arg) else f'float("{v.arg}")'
            return f"tl.full((1, 1), {number}, {self.compute})"
        if v.op == "parameter":
            pointer = f"p{self.stages.parameters.index(v.arg[0])} + {v.arg[1]}"
        elif v.op == "load":
            operand, offset = v.arg
            pointer = f"a{operand} + i{operand} * {self.stages.operand_sizes[operand]} + {offset}"
        else:
            made, first = (v.sources[0], v.arg) if v.op == "part" else (v, 0)
            pointer = self._address(None, self.places[made] + first)
        return f"tl.load({pointer} + ({at}), mask={mask}, other={other}).to({self.compute})"

    def _address(self, output: int | None, offset: int) -> str:
        if output is None:
            return f"work + r * {self.stages.workspace} + {offset}"
        return f"o{output} + (row{output} + r) * {self.stages.output_sizes[output]} + {offset}"

    def _store_made(self, at: str, mask: str) -> None:
        """What the job made, wherever it goes."""
        for store in self.job.stores:
            held = mask
            if store.size != store.v.size:
                held = f"{mask} & ({at} >= {store.first}) & ({at} < {store.first + store.size})"
            self._store(store, at, held, "acc")

    def _store(self, store: Store, at: str, mask: str, name: str) -> None:
        kind = self.compute if store.output is None else self.element
        address = self._address(store.output, store.offset - store.first)
        self._line(f"tl.store({address} + ({at}), {name}.to({kind}), mask={mask})")


def _chosen(places: Sequence[tuple[int, str]]) -> str:
    """The address for the turn that begins at `k0`."""
    (end, name), *others = places
    return f"tl.where(k0 < {end}, {name}, {_chosen(others)})" if others else name


def _narrow(at: str, outer: int, n: int, inner: int) -> str:
    """Which of (outer, inner) elements is number `at` of (outer, n, inner)."""
    if outer == 1:
        return f"({at}) % {inner}"
    return f"({at}) // {n}" if inner == 1 else f"({at}) // {n * inner} * {inner} + ({at}) % {inner}"
