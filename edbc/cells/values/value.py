"""Values: what a cell computes of one row of its operands, as a graph in which equal values are one object.

Definitions.

(1) A *value* is `size` elements of a row, in one dtype for all where nothing is cast, `V(op, sources, arg, size)`:

    ========== ============================================ ==========================================================
    load       arg (operand, offset)                        elements of an operand's row
    parameter  arg (reference, offset)                      elements of a parameter, the same for every row
    number     arg x                                        one number, as often as it is asked for
    part       arg offset, of a value                       elements of it
    cat        of values                                    one behind the other
    product    arg (weight, bias), of a value               times a packed weight, plus its bias, plus a second source;
                                                            or, bias being TRANSPOSED, times the weight transposed
    matmul     arg (m, k, n), of values                     a row's own matrices (m, k) and (k, n), row-major
    total, largest, smallest   arg (outer, n, inner)        of elements seen so, along the middle
    spread     arg (outer, n, inner), of (outer, inner)     every element n times along the middle
    turned     arg (rows, columns), of a value              a row-major matrix, transposed
    call       arg a step of a program, of values           a result of any function of torch, for torch alone
    cast       arg a dtype, of a value                      the same in another dtype, for torch alone
    any other  of values of its size                        an operation of `edbc.base.operations`, element by element
    ========== ============================================ ==========================================================

(2) Values of one `Values` are *hash-consed*: made of equal parts they are the same object, so that common
    subexpressions are found by identity, and a dictionary over values costs what one over objects does.
(3) Parts move towards the leaves: a part of an element-wise operation is that operation of parts, one of a
    concatenation lies in its pieces, one of a load is a load. Neighbours in a concatenation that continue each other
    are one value again.

A layout decides what stands side by side in a product's source and result (`edbc.cells.lower`), and nothing else here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from edbc.base.operations import FORMULAS
from edbc.capture.record.table import Hole, SharedRef, View
from edbc.cells.program import Call

Sizes = tuple[int, int, int]
REDUCTIONS = ("total", "largest", "smallest")
TRANSPOSED = "transposed"
"""In a product's argument: with the weight transposed, and without a bias."""
LEAVES = ("load", "parameter", "number")


@dataclass(frozen=True, eq=False, repr=False)
class V:
    """See the module's docstring. Made by `Values` alone."""

    op: str
    sources: tuple[V, ...]
    arg: Any
    size: int

    @property
    def is_elementwise(self) -> bool:
        """True when element i is a function of the sources' elements i."""
        return self.op in FORMULAS


class Values:
    """Makes values; definitions (2) and (3)."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], V] = {}
        self._parts: dict[tuple[int, int, int], V] = {}
        self._begins: dict[int, list[int]] = {}
        """Where the pieces of concatenations begin, and where the last ends."""
        self.moved = 0
        """Parts that movements are made of (`cells.values.dispatched`)."""

    def _make(self, op: str, sources: tuple[V, ...], arg: Any, size: int) -> V:
        key = op, tuple(map(id, sources)), repr(arg) if op == "number" else arg, size
        value = self._known.get(key)
        if value is None:
            value = self._known[key] = V(op, sources, arg, size)
        return value

    def load(self, operand: int, offset: int, size: int) -> V:
        """Elements of an operand's row."""
        return self._make("load", (), (operand, offset), size)

    def parameter(self, reference: SharedRef, offset: int, size: int) -> V:
        """Elements of a parameter, which is seen flat."""
        return self._make("parameter", (), (reference, offset), size)

    def number(self, x: float, size: int) -> V:
        """A number. `0.0` and `-0.0` are two."""
        return self._make("number", (), float(x), size)

    def cat(self, pieces: Iterable[V]) -> V:
        """Pieces one behind the other; one alone is itself."""
        flat: list[V] = []
        for piece in pieces:
            for v in piece.sources if piece.op == "cat" else (piece,):
                joined = self._joined(flat[-1], v) if flat else None
                if joined is not None:
                    flat[-1] = joined
                elif v.size:
                    flat.append(v)
        if len(flat) == 1:
            return flat[0]
        return self._make("cat", tuple(flat), None, sum(v.size for v in flat))

    def _joined(self, left: V, right: V) -> V | None:
        """Neighbours as one, where the right one continues the left one."""
        size = left.size + right.size
        if left.op == right.op and left.op in ("load", "parameter"):
            what, offset = left.arg
            return self._make(left.op, (), left.arg, size) if right.arg == (what, offset + left.size) else None
        if left.op == right.op == "part" and left.sources == right.sources and right.arg == left.arg + left.size:
            return self.part(left.sources[0], left.arg, size)
        return None

    def part(self, v: V, offset: int, size: int) -> V:
        """Elements of a value; definition (3). Kept, for what is made of shared values has many paths to each."""
        if size == v.size:
            return v
        key = id(v), offset, size
        if key not in self._parts:
            self._parts[key] = self._part(v, offset, size)
        return self._parts[key]

    def _part(self, v: V, offset: int, size: int) -> V:
        if v.op in ("load", "parameter"):
            return self._make(v.op, (), (v.arg[0], v.arg[1] + offset), size)
        if v.op == "number":
            return self.number(v.arg, size)
        if v.op == "part":
            return self.part(v.sources[0], v.arg + offset, size)
        if v.is_elementwise:
            return self.map(v.op, [self.part(source, offset, size) for source in v.sources])
        if v.op == "cat":
            return self.cat(self._inside(v, offset, offset + size))
        return self._make("part", (v,), offset, size)

    def _inside(self, v: V, begin: int, end: int) -> Iterator[V]:
        begins = self._begins.get(id(v))
        if begins is None:
            begins = self._begins[id(v)] = list(accumulate((piece.size for piece in v.sources), initial=0))
        for k in range(bisect_right(begins, begin) - 1, bisect_left(begins, end)):
            first, last = max(begin, begins[k]), min(end, begins[k + 1])
            yield self.part(v.sources[k], first - begins[k], last - first)

    def map(self, op: str, sources: Sequence[V]) -> V:
        """`op(*sources)` element by element. Where a source is a concatenation, its borders cut the others, so that no
        concatenation is ever an operand. A `sum` is of additions from the left."""
        if op == "sum":
            total, *rest = sources
            for term in rest:
                total = self.map("add", (total, term))
            return total
        size = sources[0].size
        borders = sorted({0, size}.union(*(_borders(v) for v in sources)))
        if len(borders) > 2:
            runs = zip(borders, borders[1:], strict=False)
            return self.cat([self.map(op, [self.part(v, a, b - a) for v in sources]) for a, b in runs])
        return self._make(op, tuple(sources), None, size)

    def product(self, source: V, weight: int, columns: int, has_bias: bool, addend: V | None = None) -> V:
        """A row times packed weight number `weight`, (source.size, columns)."""
        return self._make("product", (source, *([] if addend is None else [addend])), (weight, has_bias), columns)

    def transposed_product(self, source: V, weight: int, rows: int) -> V:
        """A row times packed weight number `weight` transposed, (source.size, rows)."""
        return self._make("product", (source,), (weight, TRANSPOSED), rows)

    def of(self, v: V, sources: Sequence[V]) -> V:
        """The value that `v` is of other sources."""
        match v.op:
            case "load" | "parameter" | "number":
                return v
            case "part":
                return self.part(sources[0], v.arg, v.size)
            case "cat":
                return self.cat(sources)
        return self.map(v.op, sources) if v.is_elementwise else self._make(v.op, tuple(sources), v.arg, v.size)

    def matmul(self, a: V, b: V, m: int, k: int, n: int) -> V:
        """A row's own matrices. Of one column the product is a sum along the rows."""
        if any(v.op == "number" and v.arg == 0 for v in (a, b)):
            return self.number(0.0, m * n)
        if n == 1:
            spread = self.spread(b, (1, m, k))
            return self.reduce("total", self.map("mul", (a, spread)), (m, k, 1))
        return self._make("matmul", (a, b), (m, k, n), m * n)

    def reduce(self, op: str, v: V, sizes: Sizes) -> V:
        """`op` along the middle of (outer, n, inner) elements. Of one element it is that."""
        outer, n, inner = sizes
        if v.op == "number":
            return self.number(v.arg * n if op == "total" else v.arg, outer * inner)
        return v if n == 1 else self._make(op, (v,), sizes, outer * inner)

    def turned(self, v: V, rows: int, columns: int) -> V:
        """A row-major matrix (rows, columns) as (columns, rows). Of a parameter it is one, transposed once for all."""
        if 1 in (rows, columns) or v.op == "number":
            return v
        if v.op == "parameter":
            ref, offset = v.arg
            return self.parameter(turned_reference(ref, offset, rows, columns), 0, v.size)
        if v.op == "turned" and v.arg == (columns, rows):
            return v.sources[0]
        return self._make("turned", (v,), (rows, columns), v.size)

    def call(self, step: Call, sources: Sequence[V]) -> V:
        """What a call of torch computes."""
        return self._make("call", tuple(sources), step, step.result.size)

    def cast(self, v: V, dtype: str) -> V:
        """In another dtype; "": in its own."""
        return self._make("cast", (v,), dtype, v.size) if dtype else v

    def spread(self, v: V, sizes: Sizes) -> V:
        """(outer, inner) elements as (outer, n, inner)."""
        outer, n, inner = sizes
        if n == 1:
            return v
        if v.op == "number":
            return self.number(v.arg, outer * n * inner)
        return self._make("spread", (v,), sizes, outer * n * inner)


def turned_reference(ref: SharedRef, offset: int, rows: int, columns: int) -> SharedRef:
    """Elements of a parameter seen as a matrix, transposed."""
    turned = View(_turned, ((Hole(0), offset, rows, columns), {}), None, f".turned({offset}, {rows}, {columns})")
    return ref._replace(views=(*ref.views, turned))


def _turned(parameter: torch.Tensor, offset: int, rows: int, columns: int) -> torch.Tensor:
    return parameter.reshape(-1)[offset : offset + rows * columns].view(rows, columns).t()


def before_turning(ref: SharedRef) -> tuple[SharedRef, int, int, int] | None:
    """What `turned_reference` made a reference of; None where it did not."""
    if not ref.views or ref.views[-1].function is not _turned:
        return None
    (_, offset, rows, columns), _ = ref.views[-1].template
    return ref._replace(views=ref.views[:-1]), offset, rows, columns


def root_of(ref: SharedRef) -> SharedRef:
    """The parameter that a reference is of, which reads it as it stands or transposed."""
    while (turned := before_turning(ref)) is not None:
        ref = turned[0]
    return ref


def _borders(v: V) -> set[int]:
    if v.op != "cat":
        return set()
    found, at = set(), 0
    for piece in v.sources:
        at += piece.size
        found.add(at)
    return found


def pieces_of(v: V) -> tuple[V, ...]:
    """The pieces of a concatenation, of any other value itself."""
    return v.sources if v.op == "cat" else (v,) if v.size else ()


def in_order(outputs: Iterable[V], leaves: Collection[V] = ()) -> list[V]:
    """All values that outputs are made of, sources first, not looking into `leaves`. O(values)."""
    found: dict[V, None] = {}
    for output in outputs:
        waiting = [(output, False)]
        while waiting:
            v, is_ready = waiting.pop()
            if v in found:
                continue
            if is_ready:
                found[v] = None
            else:
                waiting.append((v, True))
                waiting += ((source, False) for source in reversed(v.sources) if v not in leaves)
    return list(found)
