"""The adjoint of values: gradients as values, by one rule per operation.

Definitions.

(1) The *gradient* of a value is the sum of what its readers pass on to it; parts and concatenations pass on parts. A
    value that no output depends on has none.
(2) Of an element-wise operation the table of operations says what it passes on (`edbc.base.operations`). A product
    passes on its gradient, called its *delta*, times the transposed weight; weights' own gradients are products of
    deltas with what was read, over all nodes, and no values.
(3) A value of the forward pass that gradients read is read where it *stands*, in an operand or an output, or computed
    again of such values, element by element; or else it is *saved*.

Nothing here knows of memory or of an engine: what comes out is lowered, rendered and interpreted as any other value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edbc.base.operations import FORMULAS, derivative
from edbc.capture.record.table import SharedRef
from edbc.cells.values.value import LEAVES, V, Values, in_order

Pieces = list[tuple[int, V]]
"""Offsets, and what is to be added there."""


@dataclass(frozen=True)
class Gradients:
    """Of some outputs with respect to everything that they read: by operand, by parameter, and deltas by product."""

    operands: dict[int, Pieces] = field(default_factory=dict)
    parameters: dict[SharedRef, Pieces] = field(default_factory=dict)
    deltas: dict[V, V] = field(default_factory=dict)


def gradients_of(values: Values, outputs: Sequence[V], given: Sequence[V]) -> Gradients:
    """Gradients of outputs, given theirs. O(values)."""
    return _Differentiation(values, outputs, given).gradients()


class _Differentiation:
    def __init__(self, values: Values, outputs: Sequence[V], given: Sequence[V]):
        self.values = values
        self.order = in_order(outputs)
        self.passed: dict[V, Pieces] = {}
        for output, gradient in zip(outputs, given, strict=True):
            self._pass(output, gradient)
        self.found = Gradients()

    def gradients(self) -> Gradients:
        for v in reversed(self.order):
            pieces = self.passed.pop(v, [])
            if not pieces:
                continue
            if v.op == "load":
                self.found.operands.setdefault(v.arg[0], []).extend((v.arg[1] + at, d) for at, d in pieces)
            elif v.op == "parameter":
                ref, first = v.arg
                self.found.parameters.setdefault(ref, []).extend((first + at, d) for at, d in pieces)
            elif v.op == "cat":
                self._cut(v, pieces)
            elif v.op != "number":
                self._through(v, added(self.values, pieces, v.size))
        return self.found

    def _pass(self, to: V, gradient: V, offset: int = 0) -> None:
        """`gradient` belongs to the elements of a value from an offset on."""
        if to.op == "part":
            to, offset = to.sources[0], offset + to.arg
        self.passed.setdefault(to, []).append((offset, gradient))

    def _cut(self, v: V, pieces: Pieces) -> None:
        begin = 0
        for source in v.sources:
            for at, d in pieces:
                first, last = max(begin, at), min(begin + source.size, at + d.size)
                if first < last:
                    self._pass(source, self.values.part(d, first - at, last - first), first - begin)
            begin += source.size

    def _through(self, v: V, d: V) -> None:
        """Definition (2)."""
        values = self.values
        match v.op:
            case "product":
                self.found.deltas[v] = d
                self._pass(v.sources[0], values.transposed_product(d, v.arg[0], v.sources[0].size))
                for addend in v.sources[1:]:
                    self._pass(addend, d)
            case "matmul":
                (m, k, n), (a, b) = v.arg, v.sources
                self._pass(a, values.matmul(d, values.turned(b, k, n), m, n, k))
                self._pass(b, values.matmul(values.turned(a, m, k), d, k, m, n))
            case "turned":
                rows, columns = v.arg
                self._pass(v.sources[0], values.turned(d, columns, rows))
            case "total":
                self._pass(v.sources[0], values.spread(d, v.arg))
            case "spread":
                self._pass(v.sources[0], values.reduce("total", d, v.arg))
            case "largest" | "smallest":
                self._to_extremes(v, d)
            case op:
                for operand, source in enumerate(v.sources):
                    if source.op != "number" and derivative(op, operand) in FORMULAS:
                        self._pass(source, self._derivative(v, operand, d))

    def _to_extremes(self, v: V, d: V) -> None:
        """All elements that are the extreme one share its gradient, as torch has it."""
        values, source = self.values, v.sources[0]
        is_it = values.map("equal", (source, values.spread(v, v.arg)))
        share = values.map("div", (d, values.reduce("total", is_it, v.arg)))
        self._pass(source, values.map("mul", (is_it, values.spread(share, v.arg))))

    def _derivative(self, v: V, operand: int, d: V) -> V:
        name = derivative(v.op, operand)
        text, (_, *read) = FORMULAS[name]
        if text == "d":
            return d
        by_name = {**dict(zip("xy", v.sources, strict=False)), "r": v}
        return self.values.map("neg", (d,)) if text == "-d" else self.values.map(name, (d, *(by_name[n] for n in read)))


def added(values: Values, pieces: Pieces, size: int) -> V:
    """The sum of pieces that stand at offsets among `size` elements, 0 where there is none."""
    borders = sorted({0, size}.union(*({at, at + d.size} for at, d in pieces)))
    found = []
    for begin, end in zip(borders, borders[1:], strict=False):
        terms = [values.part(d, begin - at, end - begin) for at, d in pieces if at <= begin and end <= at + d.size]
        found.append(values.map("sum", terms) if terms else values.number(0.0, end - begin))
    return values.cat(found)


def in_terms_of(values: Values, gradients: Sequence[V], is_forward: Callable[[V], bool], standing: dict[V, V],
                saved_at: Callable[[V], V]) -> tuple[V, ...]:  # fmt: skip
    """Gradients with every value of the forward pass replaced by what it is read from: `standing` has those that stand
    somewhere, `saved_at` gives a load of one that has to be saved, asked in the order of computation."""
    order = in_order(gradients)
    needed = {u for v in order if not is_forward(v) for u in v.sources if is_forward(u)}
    needed |= set(filter(is_forward, gradients))
    known = dict(standing)
    again = _Again(values, known)
    for v in order:
        if not is_forward(v):
            known[v] = values.of(v, [known[source] for source in v.sources])
        elif v in needed and again.of(v) is None:
            known[v] = saved_at(v)
            again.hopeless.clear()
    return tuple(known[v] for v in gradients)


class _Again:
    """Forward values computed again of what stands."""

    def __init__(self, values: Values, known: dict[V, V]):
        self.values, self.known = values, known
        self.hopeless: set[V] = set()
        """What could not be computed of what stood so far."""

    def of(self, v: V) -> V | None:
        """A value of what stands, or None where that takes more than element-wise work."""
        if v.op in LEAVES:
            return v
        if v not in self.known and v not in self.hopeless:
            found = self._new(v)
            if found is None:
                self.hopeless.add(v)
            else:
                self.known[v] = found
        return self.known.get(v)

    def _new(self, v: V) -> V | None:
        if not (v.is_elementwise or v.op in ("cat", "part", "spread")):
            return None
        sources = [self.of(source) for source in v.sources]
        known = [source for source in sources if source is not None]
        return self.values.of(v, known) if len(known) == len(sources) else None
