"""Calls with ragged arguments that are kept: an equal call of a later instance is recorded as one run.

A torch function, a module of torch.nn, and a method or region whose code is closed (`code.closed`) record the same
nodes whenever they are called with arguments of the same slots, but for n. So what such a call has recorded is put
together as one program, and found by its key from then on; the user's Python does not run.

Kept are calls all of whose operands are their arguments, numbers, constants, random numbers that they draw, and each
other. Closed code that asks for a size (`len(h)`, `h.shape`) may do anything with it: it is kept for these sizes alone,
and so it is for sizes beyond the bounds that its comparisons gave (`ragged.symbols`). Sizes that had to be equal, and
indices that had to be below a size, are told by the program, and compared at every call; where they are not, the call
runs as it is written, and fails as eager does. As broadcasting and reductions treat one row and none in their own way,
a call with one row of something is kept for one row of it, and nothing where there is none, or where one follows that
may be more in another call (`TooFew`). What comes twice among the arguments does so whenever the call comes again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edbc.base.kept import Kept
from edbc.capture.code.automatic import shape_of
from edbc.capture.forward.returned import Result, Stacked
from edbc.capture.ragged.program import (
    EACH,
    GROUP,
    INDICES,
    NONE,
    REDUCE,
    RUN,
    SCAN,
    SLICE,
    TAKE,
    Below,
    CannotKeep,
    Count,
    Draft,
    Numbers,
    Program,
    Says,
    Times,
    Triple,
    arguments_of,
    count_after,
    count_of,
    size_of,
    triple,
)
from edbc.capture.ragged.rows import adopted
from edbc.capture.ragged.symbols import MOST, Index, Line, Listed, Mask, Size, along_of, asked, untold, vectors_of
from edbc.capture.ragged.value import All, Drawn, NotRagged, Ragged
from edbc.capture.ragged.whole.function import renumbered
from edbc.capture.ragged.whole.recipes import MOST_KNOWN, Claim, Claims, Recipe, WorkedOut, worked_out
from edbc.capture.record.functionalise import MustKeepBooks
from edbc.capture.standins.lazy import Indices, Stack
from edbc.capture.standins.made import Made
from edbc.capture.standins.nests import inside
from edbc.capture.standins.standin import PLAIN, Shared, Slot, Symbol, Value, value_of
from edbc.capture.standins.unread import Check

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder


TRIES = 2
"""Sizes at which a call is tried before it is not kept: one of them may be what a model has by chance."""
SizeOf = Triple | tuple[Triple, Triple]
"""A register, or two of the rows of which there are pairs."""
MOST_NESTS = 256
"""Of one call that returns rows: one for each number of them."""


class Given(NamedTuple):
    """Arguments of a call that differ between calls of one key."""

    rows: list[Ragged]
    values: list[int]
    indices: list[Numbers]
    every: Sequence[Ragged] = ()
    """The rows, and those that are the same as some of them, in the order of the arguments."""

    @classmethod
    def none(cls) -> Given:
        """For `is_keyed` to append to."""
        return cls([], [], [], [])

    def are_distinct(self) -> bool:
        """Whether each can be told by its refs from the others."""
        refs = [row.refs for row in self.rows]
        starts, one = [r.start for r in refs], [r.start for r in refs if len(r) == 1]
        offsets = [numbers.offset for numbers in self.indices]
        return all(len(set(of)) == len(of) for of in (starts, self.values + one, offsets))

    def sizes(self) -> tuple[int, ...]:
        """How many rows and indices there are."""
        return (*[len(row.refs) for row in self.rows], *[numbers.size for numbers in self.indices])

    def triples(self) -> list[int]:
        """As arguments of a run."""
        flat: list[int] = []
        for row in self.rows:
            refs = row.refs
            flat += refs.start, refs.step, len(refs)
        for ref in self.values:
            flat += ref, 0, 1
        for numbers in self.indices:
            flat += numbers.offset, INDICES, numbers.size
        return flat


class Literal(NamedTuple):
    """Indices that the code itself has made."""

    numbers: np.ndarray

    def triple(self, rec: Recorder, given: Given | None, sizes: Sequence[int]) -> Triple:
        """As an argument of a run."""
        return rec.hold(self.numbers).offset, INDICES, len(self.numbers)

    def size(self, indices: Sequence[Numbers], sizes: Sequence[Any]) -> int:
        """How many there are."""
        return len(self.numbers)


class Remade(NamedTuple):
    """A value that a later mini-batch has too, so many times."""

    what: Any
    times: int = 1

    def triple(self, rec: Recorder, given: Given | None, sizes: Sequence[int]) -> Triple:
        """As an argument of a run."""
        return self.what.again(rec).ref, 0, self.times

    def size(self, indices: Sequence[Numbers], sizes: Sequence[Any]) -> int:
        """How many there are."""
        return self.times


class ByIndices(NamedTuple):
    """Rows of a parameter by the indices that are argument `number`, or these integers as rows."""

    table: Shared | Below
    number: int

    def triple(self, rec: Recorder, given: Given, sizes: Sequence[int]) -> Triple:
        """As an argument of a run. Raises CannotKeep where they are others than those must be."""
        numbers = given.indices[self.number]
        if not isinstance(self.table, Below):
            return triple(rec.looked_up(self.table, numbers).refs)
        if not self.table.holds(numbers):
            raise CannotKeep
        return triple(rec.rows_of_numbers(numbers).refs)

    def holds(self, numbers: Numbers) -> Any:
        """See Below."""
        return (self.table if isinstance(self.table, Below) else Below(self.table.shape[0])).holds(numbers)

    def size(self, indices: Sequence[Numbers], sizes: Sequence[Any]) -> int:
        """How many there are."""
        return indices[self.number].size


class First(NamedTuple):
    """So many first rows of a parameter: `positions[:n]`; or so many integers as rows: `torch.arange(n)`."""

    table: Shared | Below
    num: Count

    def triple(self, rec: Recorder, given: Given, sizes: Sequence[int]) -> Triple:
        """As an argument of a run. Raises CannotKeep where there are no so many rows."""
        size = size_of(self.num, sizes)
        if not 0 < size <= (MOST if isinstance(self.table, Below) else self.table.shape[0]):
            raise CannotKeep
        if isinstance(self.table, Below):
            return triple(rec.constant_rows(torch.arange(size)))
        found = rec.rows_of_table(self.table, range(size), True)
        if found is None:
            raise CannotKeep
        return triple(found.refs)

    def size(self, indices: Sequence[Numbers], sizes: Sequence[Any]) -> Any:
        """How many there are."""
        return size_of(self.num, sizes)


Extra = Literal | Remade | ByIndices | First | All | Drawn | WorkedOut


class Rows(NamedTuple):
    """Place of a ragged value in what a call returns: result `source` of the run, or argument -1 - `source`."""

    source: int
    slot: Slot
    at: int
    is_own: bool = False
    """See `Symbol.is_own`."""


class One(NamedTuple):
    """Place of a single value."""

    source: int
    slot: Slot


class Many(NamedTuple):
    """Place of a size, which is a number of rows."""

    source: int


class Which(NamedTuple):
    """Place of what says which of some rows are the largest or smallest (`standins.lazy.Indices`)."""

    rows: Rows
    name: str
    dim: int
    keepdim: bool


class Piled(NamedTuple):
    """Place of a stack that nobody has made yet (`standins.lazy.Stack`): the last states of layers."""

    items: tuple[One, ...]
    cat: bool
    at: int
    call: tuple[Any, Any]


class Form(NamedTuple):
    """What a call returns whose tensors are single values and stacks of rows, each where One or Rows says."""

    sources: list[int]
    slots: list[Slot]
    rows: list[bool]
    """Which of them are stacks."""
    count_of: list[Count]
    """How many rows each has; then the numbers of rows that are returned."""
    nest_of: Callable[[Sequence[int]], Any]
    """By these numbers the nest, with places that count from 0 (`forward.returned`)."""

    @property
    def is_single(self) -> bool:
        """Whether it has no stacks, and none of their numbers: the nest is always the same."""
        return len(self.count_of) == len(self.rows) and True not in self.rows


class KeptCall(NamedTuple):
    """What a call has recorded."""

    program: Program
    extras: tuple[Extra, ...]
    """Arguments beside those that the call is given."""
    result: Any
    """What the call returns, with Rows, One and Many in it."""
    form: Form
    """The same."""
    equal: tuple[tuple[Count, Count], ...]
    """Sizes that must be equal."""
    below: tuple[tuple[int, Count, int], ...]
    """Indices that must be below a size, by the number of the argument, and how far below 0 they may be (sizes)."""
    within: tuple[tuple[Count, int, int], ...]
    """Sizes that must be no smaller, and no larger than that."""
    apart: tuple[tuple[int, int], ...]
    """Numbers that no index may be, by the number of the argument."""
    zeros: tuple[int, ...]
    """Results of the run that are rows of zeros, to which others are added as if they were not there."""
    unread: frozenset[int]
    """Arguments that it is given and neither reads nor returns, by number; nor does it matter how many they are."""
    claims: Claims | None = None
    left: KeptCall | None = None
    """Of a forward that leaves attributes on modules: the call that gives these, by path and name, and no more."""

    def fits(self, indices: Sequence[Any], sizes: Sequence[Any]) -> Any:
        """Whether arguments have the sizes that the program needs; of arrays, one item per call, which of them do."""
        fit: Any = True
        known: dict[int, Any] = {}
        for a, b in self.equal:
            fit = fit & (size_of(a, sizes, known) == size_of(b, sizes, known))
        for number, count, negative in self.below:
            size, numbers = size_of(count, sizes, known), indices[number]
            fit = fit & (numbers.highest < size) & (numbers.lowest >= -size * negative)
        for count, least, most in self.within:
            size = size_of(count, sizes, known)
            fit = fit & (size >= least) & (size <= most)
        if self.claims is not None:
            fit = fit & self.claims.fit(sizes)
        return fit & self.is_apart(indices)

    def is_apart(self, indices: Sequence[Any]) -> Any:
        """The same of the numbers that no index may be."""
        apart: Any = True
        for number, index in self.apart:
            apart = apart & ((indices[number].lowest > index) | (indices[number].highest < index))
        return apart

    def again(self, rec: Recorder, given: Given) -> Any:
        """The call on other arguments; NotImplemented where they do not fit. O(arguments)."""
        flat = self.flat(rec, given)
        return NotImplemented if flat is None else self.of(rec, flat)

    def flat(self, rec: Recorder, given: Given) -> list[int] | None:
        """The arguments of the program; None where they do not fit."""
        flat, draws = given.triples(), len(rec.draws)
        given = given._replace(indices=[*given.indices])  # behind which those come that are worked out
        with suppress(CannotKeep):
            for extra in self.extras:
                flat += extra.triple(rec, given, flat[2::3])
            if self.fits(given.indices, flat[2::3]):
                return flat
        del rec.draws[draws:]
        return None

    @property
    def draws(self) -> bool:
        """Whether random numbers are among the arguments."""
        return any(type(extra) is Drawn for extra in self.extras)

    def of(self, rec: Recorder, flat: Sequence[int], program: Program | None = None) -> Any:
        """The call on these arguments of the program, which fit; of one that does the same in its place."""
        return self.returned(rec, rec.run(program or self.program, flat), flat)

    def returned(self, rec: Recorder, results: Sequence[range], flat: Sequence[int]) -> Any:
        """What the call gives, of the refs of the results of its run."""
        if self.zeros:
            rec.zeros.update([results[k].start for k in self.zeros])
        place = self.result
        if type(place) is not Rows or place.source < 0:
            return _filled(rec, place, results, flat)
        made = Ragged(rec, results[place.source], place.slot, place.at)  # as nearly all give
        made.is_own = place.is_own
        return made


def _filled(rec: Recorder, item: Any, results: Sequence[range], flat: Sequence[int]) -> Any:
    def value(place: Any) -> Any:
        kind = type(place)
        if kind is Which:
            return Indices(value(place.rows), *place[1:])
        if kind is Piled:
            return Stack(rec, [*map(value, place.items)], *place[1:])
        source = place.source
        if source >= 0:
            refs = results[source]
        else:
            first, step, count = flat[-3 - 3 * source : -3 * source]
            refs = range(count) if kind is Many else range(first, first + (step or 1) * count, step or 1)
        if kind is Many:
            return len(refs)
        if kind is One:
            return value_of(rec, refs.start, place.slot)
        made = Ragged(rec, refs, place.slot, place.at)
        made.is_own = place.is_own
        return made

    return _placed(item, value)


def _placed(item: Any, value: Callable[[Any], Any]) -> Any:
    """A result with what a function gives for each place in it."""
    kind = type(item)
    if kind is Rows or kind is One or kind is Many or kind is Which or kind is Piled:
        return value(item)
    return inside(lambda part: _placed(part, value), item)


def _form(program: Program, result: Any) -> Form:
    """See `KeptCall.form`."""
    every: list[Any] = []
    _placed(result, lambda place: every.extend(
        place.items if type(place) is Piled else [place.rows if type(place) is Which else place]))  # fmt: skip
    placed = [place for place in every if type(place) is not Many]
    count_of = [_count_of(program, place) for place in placed + [place for place in every if type(place) is Many]]
    nests: Kept[tuple[int, ...], Any] = Kept(MOST_NESTS)

    def nest_of(sizes: Sequence[int]) -> Any:
        found = nests.get(key := (*sizes,))
        if found is None:
            begins = itertools.accumulate(key[: len(placed)], initial=0)
            counts, numbers = iter(key), iter(key[len(placed) :])

            def value(place: Any) -> Any:
                if type(place) is Many:
                    return next(numbers)
                begin, size = next(begins), next(counts)
                return Result(begin) if type(place) is One else Stacked(begin, begin + size, place.at)

            found = nests.add(key, (_placed(result, value),))
        return found[0]

    rows = [type(place) is Rows for place in placed]
    return Form([place.source for place in placed], [place.slot for place in placed], rows, count_of, nest_of)


def _count_of(program: Program, place: Rows | One | Many) -> Count:
    if type(place) is One:
        return None
    return program.counts[place.source] if place.source >= 0 else -1 - place.source


SAME = "same"
"""Of a call's key: rows that are those of an earlier argument, whose number follows."""


def number_of_same(rows: Sequence[Ragged], item: Ragged) -> int:
    """Which of the rows an argument is, by another name or not; -1 for none."""
    for number, row in enumerate(rows):
        if row.refs == item.refs and row.row is item.row and row.at == item.at:
            return number
    return -1


def is_keyed(rec: Recorder, items: Iterable[Any], parts: list[Any], given: Given) -> bool:
    """Append what tells a call from others; False for calls that have no key, or none whose result lasts."""
    for item in items:
        kind = type(item)
        if kind is Ragged:
            given.every.append(item)  # type: ignore[attr-defined]
            same = number_of_same(given.rows, item)
            if same >= 0:
                parts += SAME, same
                continue
            given.rows.append(item)
            parts += Ragged, item.row, item.at, item.refs.start in rec.zeros, len(item.refs) == 1
        elif kind is Value:
            given.values.append(item.ref)
            parts.append(item.slot)
        elif kind is Shared:
            parts.append(item.key)
        elif kind in PLAIN or (kind is float and item and item == item):
            parts += kind, item
        elif kind is torch.Tensor or kind is Made:
            if rec.books is not None or not _is_keyed_tensor(rec, item, parts, given):
                return False
        elif kind is Index or (kind is Listed and type(item.as_index) is Index):
            index = item.as_index
            given.indices.extend(index.vectors)
            parts += kind, item.kind if kind is Listed else Numbers, index.along, len(index.vectors)
        elif kind is Uniform:
            parts += item
        elif kind is tuple or kind is list or kind is torch.Size:
            parts += kind, len(item)
            if not is_keyed(rec, item, parts, given):
                return False
        elif kind is slice:
            parts += kind, item.start, item.stop, item.step
        elif item is Ellipsis:
            parts.append(Ellipsis)
        else:
            return False
    return True


def _is_keyed_tensor(rec: Recorder, item: Any, parts: list[Any], given: Given) -> bool:
    """`is_keyed` for a tensor of the instance's, or a constant that forward makes."""
    if type(item) is torch.Tensor and item.dtype is torch.int64:
        found = vectors_of(rec, item)
        if found is not None:
            given.indices.extend(found[0])
            parts += Numbers, found[1], len(found[0])
        return found is not None
    rows = adopted(rec, item)
    if type(rows) is Ragged:
        return is_keyed(rec, (rows,), parts, given)
    if type(item) is Made or not item.is_floating_point():
        return False
    return is_keyed(rec, (rec.constant(item),), parts, given)


def whole_call(rec: Recorder, path: str, function: Callable[..., Any], module: nn.Module, args: tuple[Any, ...],
               kwargs: dict[str, Any], written: tuple[Any, ...]) -> Any:  # fmt: skip
    """A call of closed code with ragged arguments, as one run where it is known; else of arguments as `written`, the
    caller's own lists among them."""
    given = Given.none()
    parts: list[Any] = [KeptCall, path, module.training]
    args = tuple([x.materialise() if type(x) is Stack and len(x.items) == 1 else x for x in args])
    told, tells_lengths = _told(rec, args)
    if not can_keep(rec) or kwargs or rec.keeping or not is_keyed(rec, told, parts, given):
        return function(module, *written, **kwargs)  # in one that is being kept, which has to know what this one asks
    key = tuple(parts)
    known = BY_SIZES if tells_lengths else rec.functions.get(key)
    by_sizes = known is BY_SIZES
    if type(known) is KeptCall:
        found = known.again(rec, given)
        if found is not NotImplemented:
            return shared(found, given.every)
        by_sizes = True
    if by_sizes:
        known = rec.functions.get((key, given.sizes()))
    if by_sizes and type(known) is KeptCall:
        found = known.again(rec, given)
        return function(module, *written) if found is NotImplemented else shared(found, given.every)
    if known is NOT_KEPT or not may_keep(given):
        return function(module, *written)
    rows, indices = iter(given.every), iter(given.indices)
    own = (t.shown(rec, args) if type(t) is Uniform else x for x, t in zip(args, told, strict=True))
    shown = tuple(x if type(t) is str or type(t) is Uniform else _symbolic(rec, x, rows, indices)
                  for x, t in zip(own, told, strict=True))  # fmt: skip
    before, lists = shape_of(shown), {id(x) for x in _lists(shown)}

    def call(of: Any) -> Any:
        result = function(module, *of)
        if of is shown and lists and (shape_of(of) != before or any(id(x) in lists for x in _lists(result))):
            raise CannotKeep  # the caller's own list is to change, or to come back
        return result

    return first_whole_call(rec, key, given.sizes(), by_sizes, given, call, (shown, written))


def _lists(item: Any) -> Iterator[list[Any]]:
    """The lists in a nest."""
    kind = type(item)  # stand-ins are not asked who asks for their class
    if issubclass(kind, list):
        yield item
    if issubclass(kind, list | tuple | dict):
        for x in item.values() if issubclass(kind, dict) else item:
            yield from _lists(x)


NO_ROWS = "no rows"
"""Of a call that is recorded as a node."""


def again_at_once(rec: Recorder, parts: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                  by_count: bool = False) -> Any:  # fmt: skip
    """A call that is kept, of rows, values, numbers, tensors of the instance's, and lists of what has a key, where
    nobody looks; NotImplemented for others, NO_ROWS for one of values, parameters and numbers alone. `parts` are what
    its key begins with; numbers of rows are part of it `by_count`.

    Most calls of forwards that are not kept whole are such. The key is that of `is_keyed`, and what follows is
    `KeptCall.again`, both in one: calling these takes 1.2 to 1.5 microseconds more, of 2 to 4."""
    if rec.looks or rec.symbolic or rec.keeping or rec.shows is not None or rec.books is not None or not rec.flows:
        return NotImplemented
    rows: list[Ragged] = []
    flat: list[int] = []
    values: list[int] = []
    indices: list[Numbers] = []
    has_key = True
    for item in args:
        kind = type(item)
        if kind is torch.Tensor or kind is Made:
            if item.dtype is torch.int64 and kind is torch.Tensor:
                found = None if item.shape == (1,) else vectors_of(rec, item)  # `_told` tells more of one
                if found is None:
                    has_key = False
                    continue
                indices.extend(found[0])
                parts += Numbers, found[1], len(found[0])
                continue
            given = item
            item = adopted(rec, given)
            if type(item) is not Ragged:
                if kind is Made or not given.is_floating_point():
                    has_key = False
                    continue
                item = rec.constant(given)
            kind = type(item)
        if kind is Ragged:
            if rows and (same := number_of_same(rows, item)) >= 0:
                parts += SAME, same
                continue
            rows.append(item)
            refs = item.refs
            parts += Ragged, item.row, item.at, refs.start in rec.zeros, len(refs) == 1
            flat += refs.start, refs.step, len(refs)
        elif kind is Value:
            parts.append(item.slot)
            values += item.ref, 0, 1
        elif kind is Shared:
            parts.append(item.key)
        elif kind in PLAIN or (kind is float and item and item == item):
            parts += kind, item
        elif kind is list or kind is tuple:
            parts += kind, len(item)
            begin, held = len(rows), Given(rows, [], [], [])
            if not is_keyed(rec, item, parts, held):
                return NotImplemented
            for row in rows[begin:]:
                flat += row.refs.start, row.refs.step, len(row.refs)
            for ref in held.values:
                values += ref, 0, 1
            indices.extend(held.indices)
        else:
            return NotImplemented
    if not flat:  # which is recorded as a node
        return NotImplemented if indices else NO_ROWS
    if not has_key:
        return NotImplemented
    for name, item in kwargs.items():
        if type(item) not in PLAIN:
            return NotImplemented
        parts += tuple, 2, str, name, type(item), item
    if by_count:
        parts += flat[2::3]
    known = rec.functions.get(tuple(parts))
    if type(known) is not KeptCall or known.claims:
        return NotImplemented
    flat += values
    for numbers in indices:
        flat += numbers.offset, INDICES, numbers.size
    for extra in known.extras:
        if type(extra) is not Remade and type(extra) is not Literal:  # which ask nothing of what is given
            return NotImplemented
        flat += extra.triple(rec, None, ())
    if (known.equal or known.within or indices) and not known.fits(indices, flat[2::3]):
        return NotImplemented
    return known.of(rec, flat)


def shared(result: Any, given: Iterable[Any]) -> Any:
    """What a call gives, which may show the memory of what it was given, unless it is memory of its own."""
    if not (isinstance(result, Symbol) and result.is_own):
        for item in given:
            if type(item) is list or type(item) is tuple:
                shared(None, item)
            elif type(item) is Ragged:
                item.show()
            elif isinstance(item, Symbol) and item.is_own:
                item.is_own = False  # type: ignore[misc]
    return result


class Uniform(NamedTuple):
    """A mask that says the same everywhere, in the place of one of the instance's; sizes are numbers of arguments, or
    as they are."""

    number: str
    dtype: torch.dtype
    dims: tuple[tuple[bool, int], ...]

    def shown(self, rec: Recorder, args: tuple[Any, ...]) -> Mask:
        """What code that is being kept gets."""
        rows = {size: args[size].refs for is_of, size in self.dims if is_of}
        dims = [Size(rec, len(rows[k]), triple(rows[k])) if is_of else k for is_of, k in self.dims]
        number = bool(self.number)
        return Mask(rec, dims, (0, number, number), self.dtype)


def _told(rec: Recorder, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """Arguments as they are keyed. In the place of a tensor that holds one number, the length of a ragged argument, it
    says of which: what is kept for sizes is kept for it then, which is told. In that of a mask as long as ragged
    arguments are that says the same everywhere, what it says."""
    sizes = {len(x.refs): k for k, x in enumerate(args) if type(x) is Ragged}
    if not sizes:
        return args, False
    told = tuple([_as_told(x, sizes) for x in args])
    return told, any(type(x) is str and x is not y for x, y in zip(told, args, strict=True))


def _as_told(item: Any, sizes: dict[int, int]) -> Any:
    if type(item) is not torch.Tensor:
        return item
    if item.dtype is torch.bool and item.numel() and not sizes.keys().isdisjoint(item.shape):
        first = bool(item[(0,) * item.ndim])
        dims = tuple([(size in sizes, sizes.get(size, size)) for size in item.shape])
        return Uniform("yes" * first, item.dtype, dims) if bool((item == first).all()) else item
    if item.shape != (1,) or item.dtype is not torch.int64:
        return item
    of = sizes.get(int(item))
    return item if of is None else f"the length of argument {of}"


def _symbolic(rec: Recorder, item: Any, rows: Iterator[Ragged], indices: Iterator[Numbers]) -> Any:
    """An argument as code that is being kept gets it."""
    kind = type(item)
    if kind is torch.Tensor or (kind is Made and rec.place_of_rows(item.shape, item.dtype) >= 0):
        return symbolic_tensor(rec, item, rows, indices)
    if kind is Ragged:
        return next(rows)
    if kind is Index or kind is Listed:
        for _ in item.as_index.vectors:
            next(indices)
        return item
    return kind([_symbolic(rec, x, rows, indices) for x in item]) if kind is tuple or kind is list else item


def symbolic_tensor(rec: Recorder, item: Any, rows: Iterator[Ragged], indices: Iterator[Numbers]) -> Any:
    """A tensor of the instance's as code that is being kept gets it: a stand-in."""
    if item.dtype is torch.int64:
        along = along_of(rec, item.shape)
        vectors = tuple(next(indices) for _ in range(1 if along < 0 else item.shape[along]))
        if along == 0 and len(vectors) == 1:  # a batch of one
            return Line(Index(rec, item[0], vectors, -1))
        return Index(rec, item, vectors, along)
    return next(rows) if rec.place_of_rows(item.shape, item.dtype) >= 0 else rec.constant(item)


BY_SIZES, NOT_KEPT = "by sizes", "not kept"
"""What is known of a call that is kept for each combination of sizes apart, and of one that is not kept."""


def can_keep(rec: Recorder) -> bool:
    """Whether calls do no more than record."""
    return rec.books is None and rec.flows


def may_keep(given: Given) -> bool:
    """Whether what a call with these arguments records may be kept: with one row of an argument for one row of it."""
    has_rows = all(row.refs for row in given.rows) and all(numbers.size > 1 for numbers in given.indices)
    return has_rows and given.are_distinct()


def first_whole_call(rec: Recorder, key: Any, sizes: tuple[int, ...], by_sizes: bool, given: Given,
                     function: Callable[[Any], Any], args: tuple[Any, Any]) -> Any:  # fmt: skip
    """A call that is not known: of stand-ins for what differs between instances; where that does not do, as it is. It
    is kept for all sizes, or `by_sizes`. Raises MustKeepBooks where lines that move hide what changes in place."""
    shown, written = args
    if sizes in rec.not_kept.get(key, ()):
        return function(written)
    begin, unread = rec.place(), len(rec.unread)
    rec.last_stacked = rec.next_value - 1  # of what was there before nothing changes in place
    rec.keeping, rec.symbolic = frozenset((0, *sizes)), True
    reading, rec.reading = rec.reading, untold
    rec.kept_wholes = []
    rec.asked_size, rec.counted, rec.num_amounts = False, False, 0
    rec.equal_sizes, rec.within, rec.apart, rec.claims = [], [], [], []
    result, own = None, [row for row in given.every or given.rows if row.is_own]
    shared(None, own)  # what is kept changes no argument
    try:
        result = asked(function(shown))
        if any(type(of) is Check for of in rec.unread[unread:]):  # which leaves with no result of this call
            raise CannotKeep
        if (rec.asked_size or rec.counted) and not by_sizes:
            rec.functions[key], by_sizes = BY_SIZES, True
        rec.functions[(key, sizes) if by_sizes else key] = _Keeping(rec, begin, given).kept(
            result, by_sizes, rec.equal_sizes, rec.within, rec.apart, rec.claims
        )
        return with_integers(result)
    except TooFew:
        result, rec.num_amounts = None, 0
    except (CannotKeep, MustKeepBooks, NotRagged, Exception) as error:  # the code's own are raised again below
        result = None
        if type(error) is MustKeepBooks and rec.before_books is not None:  # code runs as it is written from now on
            rec.forget_since(*begin)
            raise
        if not (rec.num_amounts and rec.tells_amounts):
            tried = rec.not_kept.setdefault(key, set())
            tried.add(sizes)
            if by_sizes or (type(error) is not Says and len(tried) >= TRIES):
                rec.functions[(key, sizes) if by_sizes else key] = NOT_KEPT
    finally:
        rec.keeping, rec.symbolic = frozenset(), False
        rec.reading = reading
        for row in own if result is None or getattr(result, "is_own", False) else ():
            row.is_own = True
    rec.forget_since(*begin)
    del rec.unread[unread:]
    if result is None and rec.num_amounts and rec.tells_amounts:  # once more, with integers for these
        rec.tells_amounts = False
        try:
            return first_whole_call(rec, key, sizes, by_sizes, given, function, args)
        finally:
            rec.tells_amounts = True
    return function(written)


def with_integers(item: Any) -> Any:
    """What a call returns or leaves, as who is not being kept gets it: sizes are integers."""
    if isinstance(item, tuple | list) or type(item) is dict:
        return inside(with_integers, item)
    return item.value if type(item) is Size else item


def with_left(rec: Recorder, key: Any, known: KeptCall, begin: tuple[int, int, int, int], given: Given, by_sizes: bool,
              left: dict[tuple[str, str], Any]) -> None:  # fmt: skip
    """Let a call that has just been kept have what it leaves; it is not kept where that cannot be."""
    try:
        if known.draws:  # a call that gives what is left would draw other numbers
            raise CannotKeep
        kept = _Keeping(rec, begin, given).kept(left, by_sizes, rec.equal_sizes, rec.within, rec.apart, rec.claims)
        rec.functions[key] = known._replace(left=kept)
    except CannotKeep:
        rec.functions[key] = NOT_KEPT


def keep(rec: Recorder, key: Any, begin: tuple[int, int, int, int], given: Given, result: Any) -> None:
    """Keep what one call has recorded since `begin`, if it can be. What a rule has read of the indices that it was
    given (`repeat_interleave`) it writes as indices of its own, which no other call has. What it has read of numbers
    that it was given is a constant, and they are not: of a matrix of ones one row is, so often, and the matrix is
    unread."""
    keeping = _Keeping(rec, begin, given)
    keeping.has_own = not given.indices
    try:
        kept = keeping.kept(result)
        reads_all = all(number >= len(given.rows) + len(given.values) for number in kept.unread)
        rec.functions[key] = kept if reads_all else NOT_KEPT
    except TooFew:
        pass
    except CannotKeep:  # whatever instance calls
        rec.functions[key] = NOT_KEPT


class TooFew(CannotKeep):
    """Some rows are one or none in this call, and may be more in another."""


class _Keeping:
    """The program of what has been recorded since `begin`: runs with their steps, and single nodes."""

    def __init__(self, rec: Recorder, begin: tuple[int, int, int, int], given: Given):
        self.rec, self.given = rec, given
        self.entry, self.ref, self.value, self.num_draws = begin
        triples = given.triples()
        self.draft = Draft(len(triples) // 3)
        self.rows: dict[Triple, int] = {}
        self.values: dict[int, int] = {}
        self.indices: dict[int, int] = {}
        for k in range(self.draft.num_args):
            first, step, count = triples[3 * k : 3 * k + 3]
            if step == INDICES:
                self.indices[first] = -1 - k
            elif step:
                self.rows[first, step, count] = -1 - k
            if step == 0 or (count == 1 and step != INDICES):
                self.values[first] = -1 - k
        self.extras: list[Extra] = []
        self.held = [*given.indices]
        """Indices that it is given, and that are worked out."""
        self.numbers = {register: k for k, register in enumerate(self.indices.values())}
        """By register, which of these it is."""
        self.equal: set[tuple[Count, Count]] = set()
        self.below: set[tuple[int, Count, int]] = set()
        self.within: set[tuple[Count, int, int]] = set()
        self.results: list[int] = []
        self.zeros: set[int] = set()
        self.sizes: list[int] = triples[2::3]
        """Of the arguments; those that are more in other calls are `more` there."""
        self.more = [size if 0 <= k - len(given.rows) < len(given.values) or size == 1 else size + 7
                     for k, size in enumerate(self.sizes)]  # fmt: skip
        self.has_own = True
        """Whether indices that are no arguments are what every such call has."""

    def kept(self, result: Any, by_sizes: bool = False, equal: Iterable[tuple[Triple, SizeOf]] = (),
             within: Iterable[tuple[Triple, int, int]] = (),
             apart: Iterable[tuple[Triple, int]] = (), claims: Sequence[Claim] = ()) -> KeptCall:  # fmt: skip
        """See `KeptCall`; some registers have to be of `equal` sizes, some sizes `within` bounds, indices `apart` from
        numbers, and `claims` right. Raises CannotKeep, also where gradients were off in between, which a run does not
        tell."""
        entries = self.rec.entries
        if self.rec.has_switched(self.entry):
            raise CannotKeep
        while self.entry < len(entries):
            number = entries[self.entry]
            self.entry += 1
            if number < 0:
                self.run(self.rec.table.programs[-1 - number])
            else:
                self.node(number)
        if self.num_draws != len(self.rec.draws):  # what is drawn and read by none
            raise CannotKeep
        first = len(self.sizes) - len(self.extras)
        worked = {k for k, extra in enumerate(self.extras, first) if type(extra) is WorkedOut}
        for count in () if by_sizes else {*self.draft.counts, *worked}:
            if count is None or (size := size_of(count, self.sizes)) > 1:
                continue
            if size_of(count, self.more) > 1:
                raise TooFew
            if type(count) is not int or count in worked:  # `h[12:]`, of which longer ones have some
                self.within.add((count, size, size))
        for like, other in equal:
            a, b = self.count_of(like), self.count_of(other)
            self.equal |= {(a, b)} if a != b else set()
        for like, least, most in within:
            self.within.add((self.draft.count_of(self.sized(like)), least, most))
        placed = self.placed(result)
        program = self.rec.table.programs.made_of(self.draft, self.results)
        form = _form(program, placed)
        first = len(self.given.rows) + len(self.given.values) + 1
        numbers = dict.fromkeys((-self.sized(of) - first, index) for of, index in apart)
        told = tuple(self.equal), tuple(self.below), tuple(self.within), tuple(numbers), tuple(sorted(self.zeros))
        claimed = None if by_sizes or not claims else self.claimed(claims)
        return KeptCall(program, tuple(self.extras), placed, form, *told, self.unread(form, told, claimed), claimed)

    def claimed(self, claims: Sequence[Claim]) -> Claims:
        """What is told, in terms of the sizes of arguments."""
        likes = [*dict.fromkeys(like for claim in claims for like in claim.likes)]
        roots = []
        for *both, own in claims:
            numbers = [likes.index(like) for like in own]
            roots += [renumbered(root, numbers) for root in both]
        return Claims(tuple(roots), tuple([self.draft.count_of(self.sized(like)) for like in likes]), Kept(MOST_KNOWN))

    def unread(self, form: Form, told: Any, claimed: Claims | None) -> frozenset[int]:
        """See `KeptCall`."""
        registers = {-1 - r for step in self.draft.steps for r in step.registers} | {-1 - r for r in self.results}
        registers |= {-1 - r for r in form.sources}
        counts = [*self.draft.counts, *form.count_of, *[c for pair in told[0] for c in pair]]
        counts += [count for _, count, _ in told[1]] + [count for count, *_ in told[2]]
        counts += [extra.num for extra in self.extras if isinstance(extra, First | Drawn)]
        counts += [count for extra in self.extras if isinstance(extra, WorkedOut) for count in extra.counts]
        counts += () if claimed is None else claimed.counts
        of_indices = [number for number, *_ in (*told[1], *told[3])]
        of_indices += [extra.number for extra in self.extras if isinstance(extra, ByIndices)]
        first = len(self.given.rows) + len(self.given.values)
        read = registers.union(*map(arguments_of, counts), (first + number for number in of_indices))
        return frozenset(range(first + len(self.given.indices))) - read

    def node(self, number: int) -> None:
        """A node of single values."""
        entry = self.rec.table.entries[number]
        refs = self.rec.refs[self.ref : self.ref + entry.num_operands]
        first = self.draft.each(number, len(entry.output_slots), [self.single(ref) for ref in refs], -1)
        for k in range(len(entry.output_slots)):
            self.values[self.value + k] = first + k
        self.ref += len(refs)
        self.value += len(entry.output_slots)

    def run(self, program: Program) -> None:
        """The steps of a run."""
        refs = self.rec.refs[self.ref : self.ref + 3 * program.num_args]
        self.ref += len(refs)
        args: list[int] = []
        for k in range(program.num_args):
            args.append(self.argument(refs[3 * k], refs[3 * k + 1], refs[3 * k + 2], args))
        first = len(self.draft.counts)
        made: list[int] = []
        for op, parameters, registers in program.steps:
            own = [args[-1 - r] if r < 0 else made[r] for r in registers]
            begin = self.step(op, parameters, own)
            made += range(begin, len(self.draft.counts))
        assert len(self.draft.counts) == first + len(made)
        sizes = refs[2::3]
        for register, count in zip(program.results, program.counts, strict=True):
            own_register = args[-1 - register] if register < 0 else made[register]
            size = size_of(count, sizes)
            self.rows[self.value, 1, size] = own_register
            if size == 1:
                self.values[self.value] = own_register
            self.value += size

    def step(self, op: int, parameters: tuple[int, ...], own: list[int]) -> int:
        """One step, on registers of this program; what it needs of sizes is noted."""
        draft = self.draft
        counts = [draft.count_of(r) for r in own]
        if op == EACH:
            leader = parameters[2]
            if leader >= 0:
                several = [c for c in counts if c is not None and size_of(c, self.more) != 1]  # one is of all rows
                self.equal |= {(counts[leader], c) for c in several if c != counts[leader]}
            return draft.each(parameters[0], parameters[1], own, leader)
        if op == GROUP:
            self.equal |= {(counts[1], counts[2])} if counts[1] != counts[2] else set()
            self.bound(own[2], counts[0], 0)
        elif op == TAKE:
            self.bound(own[1], counts[0], 1)
        elif op == REDUCE:
            self.within.add((counts[0], 1, MOST))
        elif op == RUN:
            known: dict[int, Count] = {}
            for symbol, count in zip(parameters[3:], counts, strict=False):
                if known.setdefault(symbol, count) != count:
                    self.equal.add((known[symbol], count))
                self.within.add((count, 1, MOST))
        elif op == SLICE and parameters[1] != NONE and parameters[1] - parameters[0] == 1:
            first = parameters[0]
            self.within.add((counts[0], first + 1 if first >= 0 else -first, MOST))
        elif op == SCAN:
            self.within.add((counts[0], 1, MOST))
        return draft.add(op, parameters, own, count_after(op, parameters, counts))

    def bound(self, register: int, count: Count, negative: int) -> None:
        """Indices that must be below a size; those that code has made are, for the sizes that it is kept for."""
        if register in self.numbers:
            self.below.add((self.numbers[register], count, negative))

    def argument(self, first: int, step: int, count: int, before: Sequence[int] = ()) -> int:
        """The register of a run's argument, behind those `before` it."""
        if step == INDICES:
            known = self.indices.get(first)
            if known is None:
                numbers, recipe = self.rec.literals.get(first), self.rec.recipes.get(first)
                if recipe is not None:
                    known = self.indices[first] = self.worked_out(recipe)
                    self.numbers[known] = len(self.held) - 1
                    return known
                if numbers is None or not self.has_own:
                    raise CannotKeep
                known = self.indices[first] = self.extra(Literal(numbers))
            return known
        if count == 1 and (first not in self.rec.lookups or self.rec.lookups[first][1] is not None):
            return self.single(first)
        if not step:
            return self.extra(Remade(self.what(first), count))
        register = self.rows.get((first, step, count))
        if register is None:
            is_drawn = self.rec.drawn_from(first) is not None
            found = self.drawn(first, count, before) if is_drawn else self.looked_up(first, count)
            register = self.rows[first, step, count] = self.extra(found)
        return register

    def drawn(self, first: int, count: int, before: Sequence[int]) -> Drawn:
        """Random numbers that are an argument behind those `before` it, whose sizes tell how many. They are drawn in
        the order of arguments, so that a call that is known has the numbers that it has as it is written."""
        drawn = self.rec.drawn.get(first)
        if drawn is None or self.rec.number_of_draw(first) != self.num_draws:
            raise CannotKeep
        self.num_draws += count
        return drawn._replace(num=count_of(drawn.num, [self.draft.count_of(register) for register in before]))

    def looked_up(self, first: int, count: int) -> ByIndices | First | All | WorkedOut:
        """So many rows of a parameter, or of integers, from a ref on."""
        table, numbers = self.rec.lookups.get(first, (None, None))
        if isinstance(table, All) and count == table.num:
            return table
        if isinstance(table, Recipe):
            return worked_out(table, self.counts_of(table))
        if table is None or isinstance(table, All) or numbers is None:
            raise CannotKeep
        if isinstance(numbers, Size):
            if numbers.value != count:
                raise CannotKeep
            if numbers.like[1] < 0 and numbers.like[2] > 1:  # other rows, which no run may have had yet
                self.argument(*numbers.like)
            return First(table, self.draft.count_of(self.sized(numbers.like)))
        if numbers.offset in self.rec.recipes:
            self.argument(*numbers.triple)
        number = self.indices.get(numbers.offset)
        if number is None or numbers.size != count:
            raise CannotKeep
        return ByIndices(table, self.numbers[number])

    def worked_out(self, recipe: Recipe) -> int:
        """The register of indices that follow from sizes."""
        found = worked_out(recipe, self.counts_of(recipe))
        tensor, size, lowest, highest = found.alone(self.sizes)
        assert tensor is not None
        self.held.append(Numbers(-1, size, lowest, highest, tensor.numpy()))
        return self.extra(found)

    def counts_of(self, recipe: Recipe) -> list[Count]:
        """The sizes that a recipe is of."""
        for like in recipe.likes:
            if like[1] < 0 and like[2] > 1:  # other rows, which no run may have had yet
                self.argument(*like)
        return [self.draft.count_of(self.sized(like)) for like in recipe.likes]

    def single(self, ref: int) -> int:
        """The register of a value."""
        known = self.values.get(ref)
        if known is None:
            is_drawn = self.rec.drawn_from(ref) is not None
            known = self.values[ref] = self.extra(self.drawn(ref, 1, ()) if is_drawn else Remade(self.what(ref)))
        return known

    def what(self, ref: int) -> Any:
        what = self.rec.remade.get(ref)
        if what is None:
            raise CannotKeep
        return what

    def count_of(self, like: SizeOf) -> Count:
        """The size of what a register says, or of pairs of the rows of two."""
        if isinstance(like[0], tuple):
            return Times(tuple([self.count_of(part) for part in like]))
        return self.draft.count_of(self.sized(like))

    def sized(self, like: Triple) -> int:
        """The register of rows or indices."""
        register = self.indices.get(like[0]) if like[1] == INDICES else self.rows.get(like)
        if register is None:
            raise CannotKeep
        return register

    def extra(self, item: Extra) -> int:
        self.extras.append(item)
        size = item.size(self.held, self.sizes)
        self.sizes.append(size)
        with suppress(CannotKeep):
            self.more.append(item.size(self.held, self.more) if isinstance(item, WorkedOut) else size)
        if isinstance(item, ByIndices | First) or len(self.more) < len(self.sizes):
            self.more[len(self.sizes) - 1 :] = [size + 7]
        return self.draft.argument()

    def placed(self, item: Any) -> Any:
        """What the call returns, with places."""
        kind = type(item)
        if kind is Ragged:
            register = self.rows.get(triple(item.refs))
            if register is None:
                raise CannotKeep
            source = self.result(register)
            self.zeros |= {source} if source >= 0 and item.refs.start in self.rec.zeros else set()
            return Rows(source, item.row, item.at, item.is_own and item.of is None and source >= 0)
        if kind is Value:
            register = self.values.get(item.ref)
            if register is None:
                raise CannotKeep
            return One(self.result(register), item.slot)
        if kind is Stack and item.whole is None:
            return Piled(tuple(map(self.placed, item.items)), item.cat, item.at, item.call)
        if kind is Indices and type(item.of) is Ragged:
            return Which(self.placed(item.of), item.name, *item.arguments)
        if kind is Size:
            register = self.sized(item.like)
            return Many(register if register < 0 else self.result(register))
        if isinstance(item, tuple | list) or kind is dict:
            return inside(self.placed, item)
        if kind in PLAIN or kind is float:
            return item
        raise CannotKeep

    def result(self, register: int) -> int:
        if register < 0:
            if -register > len(self.given.rows) + len(self.given.values):
                raise CannotKeep
            return register
        if register not in self.results:
            self.results.append(register)
        return self.results.index(register)
