"""Patterns: what a row-wise call records for one row, ready to be repeated for any number of them.

A pattern is a list of nodes whose operands are rows of the call's ragged arguments, values that the call gets as they
are, numbers, or values that earlier nodes of the pattern have made. Repeating it appends numbers to the recorder's
lists, node after node for all rows. A pattern whose operands are all of these kinds holds for equal calls of later
instances and mini-batches (`is_lasting`), which find it by their key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from edbc.capture.standins.nests import rebuilt
from edbc.capture.standins.standin import Lazy, Slot, Value, value_of

if TYPE_CHECKING:
    from edbc.capture.ragged.value import Ragged
    from edbc.capture.record.recorder import Recorder

Refs = Sequence[int]
PLACE = -(1 << 61)
"""Refs from here downwards are places of rows in a call that is being recorded for all of them."""


class OfRow(NamedTuple):
    """A row of argument `number`."""

    number: int


class Made(NamedTuple):
    """Value `number` of those that the pattern makes for a row."""

    number: int


class Given(NamedTuple):
    """A value by its ref, the same for all rows."""

    ref: int


class Number(NamedTuple):
    """A Python number that is an operand (`trace.numbers`)."""

    number: float
    dtype: torch.dtype


Source = OfRow | Made | Given | Number


class Node(NamedTuple):
    """One node per row: its entry, its operands and how many values it makes."""

    entry: int
    sources: tuple[Source, ...]
    num_outputs: int


class Place(NamedTuple):
    """Where a ragged result goes in what the call returns."""

    source: Source
    slot: Slot
    at: int


class Pattern(NamedTuple):
    """See the module's docstring."""

    nodes: tuple[Node, ...]
    result: Any
    """What the call returns, with a Place for each ragged value."""
    is_lasting: bool

    def applied(self, rec: Recorder, rows: Sequence[Refs], given: dict[int, int] | None = None) -> Any:
        """What the call returns for these rows; `given` has other refs in the place of some. O(rows * operands)."""
        count = len(rows[0])
        made: list[Refs] = []
        for node in self.nodes:
            rec.entries += [node.entry] * count
            arity = len(node.sources)
            if arity == 1:
                rec.refs += _refs(rec, node.sources[0], rows, made, given)
            else:
                flat = [0] * (arity * count)
                for k, source in enumerate(node.sources):
                    flat[k::arity] = _refs(rec, source, rows, made, given)
                rec.refs += flat
            base, outputs = rec.next_value, node.num_outputs
            rec.next_value = end = base + count * outputs
            made += [range(base + k, end, outputs) for k in range(outputs)]
        return _results(rec, self.result, rows, made, given)


def _refs(rec: Recorder, source: Source, rows: Sequence[Refs], made: Sequence[Refs],
          given: dict[int, int] | None) -> Refs:  # fmt: skip
    if isinstance(source, OfRow):
        return rows[source.number]
    if isinstance(source, Made):
        return made[source.number]
    count = len(rows[0])
    if isinstance(source, Number):
        return [rec.number(*source).ref] * count
    ref = source.ref if given is None else given.get(source.ref, source.ref)
    return _drawn(rec, ref, count) or [ref] * count


def _results(rec: Recorder, item: Any, rows: Sequence[Refs], made: Sequence[Refs], given: dict[int, int] | None) -> Any:
    if type(item) is Place:
        return rec.rows_value(_refs(rec, item.source, rows, made, given), item.slot, item.at)
    if isinstance(item, tuple | list):
        found = [_results(rec, x, rows, made, given) for x in item]
        return found if type(item) is list else rebuilt(item, found)
    return item


def _drawn(rec: Recorder, ref: int, count: int) -> list[int]:
    """Random numbers are drawn for each row; nothing for any other operand."""
    number = -1 - (ref + rec.first_external) if ref < 0 else -1
    source = rec.table.sources[rec.external_source[number]] if number >= 0 else None
    if source is None or source.draw is None:
        return []
    draw, value_class = source.draw, source.value_class
    return [ref, *[rec.draw(draw, value_class).ref for _ in range(count - 1)]][:count]


def pattern_of(rec: Recorder, entries: Sequence[int], refs: Refs, first: int, result: Any,
               at: int | Callable[[Value], int]) -> Pattern:  # fmt: skip
    """The pattern of what was recorded on places of rows: nodes whose values are numbered from `first` on."""
    end = first + sum(len(rec.table.entries[number].output_slots) for number in entries)
    is_lasting = True

    def source_of(ref: int) -> Source:
        nonlocal is_lasting
        if ref <= PLACE:
            return OfRow(PLACE - ref)
        if first <= ref < end:
            return Made(ref - first)
        number = rec.number_of_ref.get(ref)
        if number is not None:
            return Number(*number)
        is_lasting = is_lasting and not _drawn(rec, ref, 1)
        return Given(ref)

    nodes, begin = [], 0
    for number in entries:
        entry = rec.table.entries[number]
        operands = refs[begin : begin + entry.num_operands]
        nodes.append(Node(number, tuple(map(source_of, operands)), len(entry.output_slots)))
        begin += entry.num_operands
    return Pattern(tuple(nodes), _placed(result, source_of, at), is_lasting)


def _placed(item: Any, source_of: Callable[[int], Source], at: int | Callable[[Value], int]) -> Any:
    if type(item) is Value:
        return Place(source_of(item.ref), item.slot, at if isinstance(at, int) else at(item))
    if isinstance(item, Lazy):
        raise TypeError("a row-wise call gave a stack that is no node yet")
    if isinstance(item, tuple | list):
        found = [_placed(x, source_of, at) for x in item]
        return found if type(item) is list else rebuilt(item, found)
    return item


class Repeated(NamedTuple):
    """A row-wise call: a pattern, and the refs of the values that the call was given beside rows."""

    pattern: Pattern
    given: tuple[int, ...]

    def again(self, rec: Recorder, rows: Sequence[Refs], given: Sequence[int]) -> Any:
        """The call on other rows and values."""
        others = dict(zip(self.given, given, strict=True)) if given else None
        return self.pattern.applied(rec, rows, others)


class Reduced(NamedTuple):
    """A reduction of all rows to one value."""

    op: str
    base: Slot
    slot: Slot

    def again(self, rec: Recorder, rows: Sequence[Refs], given: Sequence[int]) -> Any:
        """The reduction of other rows."""
        found = rec.reduction_of(self.op, self.base, rows[0])
        return found if found.slot is self.slot else value_of(rec, found.ref, self.slot)


class Event(NamedTuple):
    """A ragged call: the number of nodes before it, what is known of it for good, and what it got and gave."""

    begin: int
    known: Repeated | Reduced | None
    rows: tuple[Ragged, ...]
    given: tuple[int, ...]
    result: Any
