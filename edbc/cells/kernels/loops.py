"""Passes as LLVM's text: a function per pass, which goes from row to row and runs all its loops on each.

Definitions.

(1) A loop's domain is a nest of counted loops, the innermost in vectors (`edbc.cells.kernels.elements`).
(2) A spread reads its source with a stride along each size of the domain, 0 along those that it repeats; a reduction
    writes with such strides, and goes along the sizes of stride 0 inside all others.

Constants of the text are sizes, offsets and numbers. Addresses of parameters stand in the table of pieces, one
behind the other in the order of `constants_of`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from edbc.base.operations import FORMULAS
from edbc.cells.kernels.elements import IS, Elements, Fold, Made, Matrices, Nest, Number, Seen, Statement
from edbc.cells.kernels.steps import PIECE_FIELDS, Loop, Pass, Place
from edbc.cells.values.value import REDUCTIONS, Sizes, V, pieces_of
from edbc.native.llvm import named


def constants_of(step: Pass) -> tuple[V, ...]:
    """Parameters that a pass reads, once each."""
    return tuple(dict.fromkeys(u for loop in step.loops for u in loop.places if u.op == "parameter"))


def text_of(step: Pass, width: int, lanes: int) -> tuple[str, str]:
    """The name of a pass' function for elements of `width` bytes in vectors of `lanes`, and its text; equal names mean
    equal texts."""
    return _Function(step, width, lanes).text()


class _Function(Elements):
    def __init__(self, step: Pass, width: int, lanes: int):
        super().__init__(width, lanes)
        self.step = step
        self.constants = {v: f"%c{i}" for i, v in enumerate(constants_of(step))}

    def text(self) -> tuple[str, str]:
        b = self.body
        b.begin("entry")
        for i, name in enumerate(self.constants.values()):
            b.add(f"{name} = bitcast i64 {b.load(b.sum('%pieces', 8 * PIECE_FIELDS * i))} to i64")
        b.add("%row_bytes = mul i64 %slots, 8")
        b.over_rows("%at", "%row_bytes", self._row)
        arguments = "i64 %at, i64 %slots, i64 %n, i64 %step, i64 %pieces, i64 %x, i64 %y"
        return named("pass", arguments, b, self.declared)

    def _row(self) -> None:
        b = self.body
        self.base = {slot: b.load(b.sum("%row", 8 * slot)) for slot in sorted(self._slots())}
        for loop in self.step.loops:
            _Loop(self, loop).emit()

    def _slots(self) -> set[int]:
        loops = self.step.loops
        places = [place for loop in loops for place in (*loop.places.values(), *(store.place for store in loop.stores))]
        return {place[0] for place in places if place is not None}

    def address(self, place: Place) -> str:
        """Of a place in this row."""
        return self.body.sum(self.base[place[0]], place[1] * self.width)


class _Loop:
    def __init__(self, function: _Function, loop: Loop):
        self.f, self.loop = function, loop
        self.behind = [math.prod(loop.domain[d + 1 :]) for d in range(len(loop.domain))]
        self.addresses: dict[V, str] = {}
        self.made: dict[V, Made] = {}
        self.statements: list[Statement] = []

    def emit(self) -> None:
        """Everything."""
        loop, inner, first = self.loop, len(self.loop.domain) - 1, self.loop.stores[0]
        is_alone = first.v not in loop.places
        if first.v.op == "matmul" and is_alone:
            self._matrices(first.v, self.f.address(first.place))
        elif first.v.op in REDUCTIONS and is_alone:
            strides = self._strides(first.v.arg)
            self._store(first.v.sources[0], self._seen(self.f.address(first.place), strides))
            along = [d for d, stride in enumerate(strides) if not stride and loop.domain[d] > 1]
            Fold(self.f, loop.domain, inner, self.statements, first.v.op, along).emit()
        else:
            for store in loop.stores:
                self._store(store.v, self._seen(self.f.address(store.place), self.behind), store.adds)
            Nest(self.f, loop.domain, inner, self.statements).emit()

    def _store(self, v: V, target: Seen, adds: bool = False) -> None:
        operand = self._operand(v)
        self.statements.append(Statement(IS, (operand,), target, adds))

    def _operand(self, v: V) -> Seen | Number | Made:
        """A value at one place: seen, or what a statement computes."""
        if v.op == "number":
            return Number(v.arg)
        if v in self.loop.places:
            return self._seen(self._address(v), self.behind)
        if v.op == "spread":
            return self._seen(self._address(v.sources[0]), self._strides(v.arg))
        if v.op == "turned":  # elements of a row stand apart
            return self._seen(self._address(v.sources[0]), [1, self.loop.domain[0]])
        if v not in self.made:
            operands = tuple(map(self._operand, v.sources))
            self.made[v] = Made(len(self.statements))
            self.statements.append(Statement(FORMULAS[v.op], operands))
        return self.made[v]

    def _seen(self, address: str, strides: Sequence[int]) -> Seen:
        return Seen(address, tuple([stride * self.f.width for stride in strides]))

    def _address(self, u: V) -> str:
        """Of what stands in memory."""
        if u not in self.addresses:
            place = self.loop.places[u]
            self.addresses[u] = self.f.constants[u] if place is None else self.f.address(place)
        return self.addresses[u]

    def _strides(self, sizes: Sizes) -> list[int]:
        """Definition (2), in elements."""
        _, n, inner = sizes
        return [b if b < inner else 0 if b < n * inner else b // n for b in self.behind]

    def _matrices(self, v: V, target: str) -> None:
        m, k, n = v.arg
        left, right = self._seen(self._address(v.sources[0]), (0, k, 0, 1)), v.sources[1]
        pieces, at = [], 0
        for piece in (right,) if right in self.loop.places else pieces_of(right):
            count = piece.size // n
            part = left._replace(address=self.f.further(left.address, at, self.f.width))
            pieces.append((part, self._seen(self._address(piece), (0, 0, 1, n)), count))
            at += count
        Matrices(self.f, (1, m, n), pieces, self._seen(target, (0, n, 1, 0))).emit()
