"""A lowered cell's program as values: each step writes a span of columns, and what a span holds is a value.

Columns are an interval map: writing covers what was there, reading makes a concatenation of what lies inside, cut at
the ends. Values carry cuts to where they matter (`edbc.cells.values.value`, definition 3), so no borders are carried
through copies here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from sys import maxsize

from edbc.capture.record.table import SharedRef
from edbc.cells.program import Call, Copy, Map, Product, Program, Span
from edbc.cells.values.dispatched import value_of_call
from edbc.cells.values.value import V, Values

ShapeOf = Callable[[SharedRef], Sequence[int]]


def values_of(program: Program, shape_of: ShapeOf, adds: bool = True) -> tuple[V, ...] | None:
    """The value of every output; None when a step is not in the kernel language. `shape_of` tells parameters' shapes;
    `adds` whether products take an addend, or sums are of their own.

    O(steps * values per span)."""
    return _Reading(program, shape_of, adds).outputs()


def values_in_torch(program: Program) -> tuple[V, ...]:
    """The same for torch alone, which runs calls as they are, and has several dtypes."""
    found = _Reading(program, None, adds=True).outputs()
    assert found is not None
    return found


@dataclass
class _Columns:
    """What stands in the columns of a row."""

    values: Values
    begins: list[int] = field(default_factory=list)
    found: list[V] = field(default_factory=list)

    def write(self, offset: int, v: V) -> None:
        """Put a value at a column."""
        if not v.size:
            return
        stop = offset + v.size
        touched = self._touched(offset, stop)
        pieces = [*self._cut(touched, 0, offset), (offset, v), *self._cut(touched, stop, maxsize)]
        self.begins[touched], self.found[touched] = [at for at, _ in pieces], [piece for _, piece in pieces]

    def read(self, span: Span) -> V:
        """What a span holds."""
        inside = self._cut(self._touched(span.offset, span.stop), span.offset, span.stop)
        return self.values.cat(piece for _, piece in inside)

    def _touched(self, begin: int, end: int) -> slice:
        """The pieces that stand between two columns, also in part, and at most one before them."""
        return slice(max(bisect_right(self.begins, begin) - 1, 0), bisect_left(self.begins, end))

    def _cut(self, which: slice, begin: int, end: int) -> Iterator[tuple[int, V]]:
        """Of some pieces, columns and values between two columns."""
        for at, v in zip(self.begins[which], self.found[which], strict=True):
            first, last = max(begin, at), min(end, at + v.size)
            if first < last:
                yield first, self.values.part(v, first - at, last - first)


class _Reading:
    def __init__(self, program: Program, shape_of: ShapeOf | None, adds: bool):
        self.program, self.shape_of, self.adds = program, shape_of, adds
        self.values = Values()
        self.columns = {dtype: _Columns(self.values) for dtype, _ in program.widths or [("", 0)]}

    def outputs(self) -> tuple[V, ...] | None:
        for load in self.program.loads:
            self._write(load.span, self.values.load(load.operand, 0, load.span.size))
        for step in self.program.steps:
            v = self._value(step)
            if v is None:
                return None
            self._write(step.result, v)
        stores = sorted(self.program.stores, key=lambda store: store.output)
        return tuple(self._read(store.span) for store in stores)

    def _write(self, span: Span, v: V) -> None:
        """As what the span's workspace holds."""
        self.columns[span.dtype].write(span.offset, self.values.cast(v, span.dtype))

    def _read(self, span: Span) -> V:
        return self.columns[span.dtype].read(span)

    def _value(self, step: Product | Map | Copy | Call) -> V | None:
        values = self.values
        if isinstance(step, Product):
            packed = self.program.weights[step.weight]
            addend = None if step.addend is None else self._read(step.addend)
            source, has_bias = self._read(step.source), bool(packed.biases)
            if addend is None or self.adds:
                return values.product(source, step.weight, packed.columns, has_bias, addend)
            return values.map("add", (values.product(source, step.weight, packed.columns, has_bias), addend))
        if isinstance(step, Copy):
            return self._read(step.source)
        if isinstance(step, Map):
            sources = [self._source(source, step.result.size) for source in step.sources]
            return values.map(step.op, sources) if step.result.size else values.cat(())
        return self._call(step)

    def _call(self, step: Call) -> V | None:
        values = self.values
        if self.shape_of is None:
            return values.call(step, [self._read(span) for span, _ in step.sources])
        return value_of_call(step, values, self._read, self.shape_of, self.program.dtype)

    def _source(self, source: Span | SharedRef | float | int, size: int) -> V:
        if isinstance(source, Span):
            return self._read(source)
        if isinstance(source, SharedRef):
            return self.values.parameter(source, 0, size)
        return self.values.number(source, size)
