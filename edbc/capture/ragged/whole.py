"""Closed code on ragged values: what it records, once and for all numbers of rows.

A module of torch.nn, and a method or region whose code is closed (`trace.closed`), records the same nodes whenever it
is called with arguments of the same slots, but for n. So what a call with ragged arguments has recorded is kept as a
list of steps: nodes of each row, reductions of all rows, nodes of single values. Equal calls of later instances repeat
the steps, and the user's Python does not run.

Kept are calls all of whose nodes are made of their arguments, numbers and each other, by calls whose results last
(`ragged.lasting`). Code that asks for a size (`len(h)`, `h.shape`) may do anything with it: its steps are kept for
these sizes alone. Sizes that had to be equal are inferred from the steps, and checked at every call; of one row or none
nothing is kept, as broadcasting and reductions treat them in their own way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from edbc.capture.ragged.lasting import is_keyed
from edbc.capture.ragged.pattern import (
    Event,
    Given,
    Made,
    Number,
    OfRow,
    Pattern,
    Place,
    Reduced,
    Refs,
    Repeated,
    Source,
)
from edbc.capture.ragged.value import Ragged
from edbc.capture.standins.nests import rebuilt
from edbc.capture.standins.standin import PLAIN, Slot, Value, value_of

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

_Operand = tuple[bool, int] | Number
"""Rows (True) or a single value, by number; or a Python number."""


class Each(NamedTuple):
    """A node per row; the first operand that is rows tells how many."""

    entry: int
    operands: tuple[_Operand, ...]
    num_outputs: int
    leader: int


class Reduce(NamedTuple):
    """A reduction of rows to a value."""

    op: str
    base: Slot
    rows: int


class One(NamedTuple):
    """A node of single values."""

    entry: int
    operands: tuple[_Operand, ...]
    num_outputs: int


class Steps(NamedTuple):
    """What a call has recorded."""

    steps: tuple[Each | Reduce | One, ...]
    result: Any
    equal: tuple[tuple[int, int], ...]
    """Arguments that must have equally many rows."""

    def fits(self, rows: Sequence[Refs]) -> bool:
        """Whether arguments have the sizes that the steps need."""
        return all(len(rows[a]) == len(rows[b]) for a, b in self.equal)

    def again(self, rec: Recorder, rows: list[Refs], values: list[int]) -> Any:
        """The call on other rows and values; O(nodes), and Python's time is that of the steps."""
        for step in self.steps:
            if isinstance(step, Each):
                _each(rec, step, rows, values)
            elif isinstance(step, Reduce):
                values.append(rec.reduction_of(step.op, step.base, rows[step.rows]).ref)
            else:
                rec.entries.append(step.entry)
                rec.refs += [_single(rec, x, values) for x in step.operands]
                first = rec.next_value
                rec.next_value = first + step.num_outputs
                values += range(first, rec.next_value)
        return _filled(rec, self.result, rows, values)


def _single(rec: Recorder, operand: _Operand, values: Sequence[int]) -> int:
    return rec.number(*operand).ref if isinstance(operand, Number) else values[operand[1]]


def _each(rec: Recorder, step: Each, rows: list[Refs], values: list[int]) -> None:
    count = len(rows[step.leader])
    rec.entries += [step.entry] * count
    first = step.operands[0] if len(step.operands) == 1 else None
    if first is not None and not isinstance(first, Number) and first[0]:
        rec.refs += rows[first[1]]
    else:
        arity = len(step.operands)
        flat = [0] * (arity * count)
        for k, operand in enumerate(step.operands):
            if not isinstance(operand, Number) and operand[0]:
                flat[k::arity] = rows[operand[1]]
            else:
                flat[k::arity] = [_single(rec, operand, values)] * count
        rec.refs += flat
    base, outputs = rec.next_value, step.num_outputs
    rec.next_value = end = base + count * outputs
    rows += [range(base + k, end, outputs) for k in range(outputs)]


class _Rows(NamedTuple):
    number: int
    slot: Slot
    at: int


class _One(NamedTuple):
    number: int
    slot: Slot


def _filled(rec: Recorder, item: Any, rows: Sequence[Refs], values: Sequence[int]) -> Any:
    kind = type(item)
    if kind is _Rows:
        return Ragged(rec, rows[item.number], item.slot, item.at)
    if kind is _One:
        return value_of(rec, values[item.number], item.slot)
    if isinstance(item, tuple | list):
        found = [_filled(rec, x, rows, values) for x in item]
        return found if kind is list else rebuilt(item, found)
    return item


class _CannotKeep(Exception):
    """Some operand is neither an argument nor made by the call."""


def whole_call(rec: Recorder, path: str, function: Callable[..., Any], module: Any, args: tuple[Any, ...],
               kwargs: dict[str, Any]) -> Any:  # fmt: skip
    """A call of closed code with ragged arguments: its steps where they are known."""
    rows: list[Ragged] = []
    given: list[int] = []
    parts: list[Any] = [Steps, path, module.training]
    is_plain = rec.tape is None and rec.books is None and rec.flows and not (rec.looks or kwargs)
    if not is_plain or not is_keyed(args, parts, rows, given) or any(len(row.refs) < 2 for row in rows):
        return function(module, *args, **kwargs)
    if len({*map(id, (row.refs for row in rows))}) < len(rows) or len(set(given)) < len(given):
        return function(module, *args)
    key = tuple(parts)
    known = rec.functions.get(key)
    if known is _BY_SIZES:
        key = (*key, *[len(row.refs) for row in rows])
        known = rec.functions.get(key)
    if type(known) is Steps and known.fits([row.refs for row in rows]):
        return known.again(rec, [row.refs for row in rows], given)
    if known is _NOT_KEPT:
        return function(module, *args)
    return _kept(rec, key, function, module, args, rows, given)


_BY_SIZES, _NOT_KEPT = "by sizes", "not kept"


def _kept(rec: Recorder, key: Any, function: Callable[..., Any], module: Any, args: tuple[Any, ...],
          rows: Sequence[Ragged], given: Sequence[int]) -> Any:  # fmt: skip
    begin = len(rec.entries), len(rec.refs), rec.next_value
    rec.tape, rec.asked_size = [], False
    try:
        result = function(module, *args)
        tape, asked = rec.tape, rec.asked_size
    finally:
        rec.tape = None
    if asked and len(key) == len(_plain_key(key, rows)):
        rec.functions[key] = _BY_SIZES
        key = (*key, *[len(row.refs) for row in rows])
    try:
        rec.functions[key] = _Builder(rec, begin, rows, given).steps(tape, result)
    except _CannotKeep:
        rec.functions[key] = _NOT_KEPT
    return result


def _plain_key(key: tuple[Any, ...], rows: Sequence[Ragged]) -> tuple[Any, ...]:
    """The key without sizes behind it."""
    sizes = tuple(len(row.refs) for row in rows)
    return key[: -len(sizes)] if key[-len(sizes) :] == sizes and type(key[-1]) is int else key


class _Builder:
    """Steps from what has been recorded since `begin`: nodes, refs and values."""

    def __init__(self, rec: Recorder, begin: tuple[int, int, int], rows: Sequence[Ragged], given: Sequence[int]):
        self.rec = rec
        self.entry, self.ref, self.value = begin
        self.rows = {id(row.refs): k for k, row in enumerate(rows)}
        self.values = {ref: k for k, ref in enumerate(given)}
        self.num_rows, self.num_values, self.num_given = len(rows), len(given), len(rows)
        self.made: list[Each | Reduce | One] = []
        self.leader = list(range(len(rows)))
        """Of rows, which others they must be as many as: union-find."""

    def steps(self, tape: Sequence[Event], result: Any) -> Steps:
        """See `Steps`. Raises _CannotKeep."""
        for event in tape:
            while self.entry < event.begin:
                self.one()
            if event.known is None:
                raise _CannotKeep
            if isinstance(event.known, Reduced):
                self.reduction(event.known, event)
            else:
                self.repeated(event.known, event)
        while self.entry < len(self.rec.entries):
            self.one()
        placed = self.placed(result)
        equal = [(self.find(k), k) for k in range(self.num_given)]
        equal = [(a, b) for a, b in equal if a != b and a < self.num_given]
        return Steps(tuple(self.made), placed, tuple(equal))

    def find(self, number: int) -> int:
        while self.leader[number] != number:
            number = self.leader[number]
        return number

    def row_number(self, refs: Refs) -> int:
        number = self.rows.get(id(refs))
        if number is None:
            raise _CannotKeep
        return number

    def value_number(self, ref: int) -> _Operand:
        number = self.rec.number_of_ref.get(ref)
        if number is not None:
            return Number(*number)
        known = self.values.get(ref)
        if known is None:
            raise _CannotKeep
        return False, known

    def one(self) -> None:
        """A node of single values."""
        entry = self.rec.table.entries[self.rec.entries[self.entry]]
        refs = self.rec.refs[self.ref : self.ref + entry.num_operands]
        outputs = len(entry.output_slots)
        self.made.append(One(entry.index, tuple(map(self.value_number, refs)), outputs))
        self.advance(1, len(refs), outputs)

    def advance(self, entries: int, refs: int, outputs: int) -> None:
        """Past nodes, of which single values are numbered."""
        for k in range(outputs):
            self.values[self.value + k] = self.num_values
            self.num_values += 1
        self.entry, self.ref, self.value = self.entry + entries, self.ref + refs, self.value + outputs

    def reduction(self, known: Reduced, event: Event) -> None:
        refs = event.rows[0].refs
        self.made.append(Reduce(known.op, known.base, self.row_number(refs)))
        self.advance(1, len(refs), 1)

    def repeated(self, known: Repeated, event: Event) -> None:
        """The nodes of a pattern."""
        given = dict(zip(known.given, event.given, strict=True))
        inputs = [self.row_number(row.refs) for row in event.rows]
        for number in inputs[1:]:
            self.leader[self.find(max(inputs[0], number))] = self.find(min(inputs[0], number))
        count, first = len(event.rows[0].refs), self.num_rows

        def operand_of(source: Source) -> _Operand:
            if type(source) is OfRow:
                return True, inputs[source.number]
            if type(source) is Made:
                return True, first + source.number
            if type(source) is Number:
                return source
            assert type(source) is Given
            return self.value_number(given.get(source.ref, source.ref))

        for node in known.pattern.nodes:
            operands = tuple(map(operand_of, node.sources))
            self.made.append(Each(node.entry, operands, node.num_outputs, inputs[0]))
            for _ in range(node.num_outputs):
                self.leader.append(self.find(inputs[0]))
                self.num_rows += 1
            self.entry += count
            self.ref += count * len(operands)
            self.value += count * node.num_outputs
        self.bind(known.pattern, event.result, operand_of)

    def bind(self, pattern: Pattern, result: Any, operand_of: Callable[[Source], _Operand]) -> None:
        """Note which rows the results of a pattern are."""
        pairs = [(pattern.result, result)]
        while pairs:
            place, item = pairs.pop()
            if type(place) is Place:
                operand = operand_of(place.source)
                if isinstance(operand, Number) or not operand[0]:
                    raise _CannotKeep
                self.rows[id(item.refs)] = operand[1]
            elif isinstance(place, tuple | list):
                pairs += zip(place, item, strict=True)

    def placed(self, item: Any) -> Any:
        kind = type(item)
        if kind is Ragged:
            return _Rows(self.row_number(item.refs), item.row, item.at)
        if kind is Value:
            number = self.values.get(item.ref)
            if number is None:
                raise _CannotKeep
            return _One(number, item.slot)
        if isinstance(item, tuple | list):
            found = [self.placed(x) for x in item]
            return found if kind is list else rebuilt(item, found)
        if kind in PLAIN or kind is float:
            return item
        raise _CannotKeep
