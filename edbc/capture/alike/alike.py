"""Instances that are alike: one is recorded, and the others are joined from its record, without running Python.

Where a model's `forward` is closed (`code.closed`), what it records is a function of what the instance tells it. So an
instance that tells the same as an earlier one, but for what stands in its tensors, adds the same to a mini-batch with
other constants: nobody has to promise it, as `captured.structurecache` needs.

Definitions.

(1) Leaves, numbers, and the patterns of instances that are keyed: `alike.reading`. Forward gets a stand-in for a leaf,
    which it can compute with, but not read. Numbers are stand-ins too (`standins.told`), by which it can look up rows
    of parameters and multiply, and which it can make tensors of.
(2) The *key* of an instance is its pattern, with the numbers that forward wants to know: which these are is found out
    by trying, where an attribute, key or place in a tuple leads to one in all patterns at once.
    What forward reads of what follows from an instance (`alike.steps`, definition (3)) is part of its key too, one
    reading after the other, as what is read later may hang on it: the key up to a reading leads to a `Branch`.
(3) A *mould* is what the first instance of a key has added: a part (`captured.joining.Part`), where the rows that it
    looks up and its constants are told by the places of numbers and leaves.

Nothing is taken from a mould where forward reads values, changes in place what the instance brings or torch computes of
that alone, keeps something on the instance, or changes a list or dict of it, or where what it returns has no text
(`captured.nesttext`): such keys are recorded as they are. States that it keeps on modules (`code.closed`, definition
(5)) are results of a mould, of which the model has the last one's; the key of an instance that reads one before it
assigns it is recorded as it is. Where recording keeps books of who shares memory, so do moulds.
When few instances have turned out to be alike, no other is looked at.

What forward computes of leaves and numbers alone is torch's at once, as where instances are recorded
(`alike.steps`): what is taken from a mould has the nodes and constants of a recording, and its bits.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import nn

from edbc.base.kept import Kept
from edbc.capture.alike.reading import FLOATS, Column, memory_of, names, read, tensor_of_array
from edbc.capture.alike.steps import (
    MOST_READS,
    Memory,
    OfNumbers,
    Place,
    Runs,
    Steps,
    Written,
    filled_each,
    needed,
    written,
)
from edbc.capture.captured.instance import WORD, Words, sections
from edbc.capture.captured.joining import (
    Part,
    joined_alike,
    num_results,
    number_of_structure,
    part_of,
    recorded_together,
)
from edbc.capture.captured.nesttext import text_of
from edbc.capture.captured.vocabulary import Lexicon, Nest
from edbc.capture.forward.build import Capture
from edbc.capture.forward.left import recorded
from edbc.capture.ragged.program import CannotKeep
from edbc.capture.record.functionalise import MustKeepBooks
from edbc.capture.record.recorder import Recorder
from edbc.capture.record.table import Source
from edbc.capture.semantics import rules
from edbc.capture.standins.made import Made
from edbc.capture.standins.shown import Shown
from edbc.capture.standins.standin import Rows, Shared, Value, torch_dtype
from edbc.capture.standins.told import (
    NUMBERS,
    Array,
    Fill,
    Fills,
    Known,
    Leaf,
    Number,
    Real,
    Told,
    as_operand,
    fill,
    filled,
    tensor_of,
    told,
)
from edbc.capture.standins.unread import settle

if TYPE_CHECKING:
    from edbc.capture.code.shadow import ModelView

MOST_MOULDS = 1024
NAMED = 1 << 30
"""From here on a row stands for an integer of the instance: more rows than any table has."""
FEW = 96
"""Instances that are looked at in any case. Of later ones half must be of a key that came before, by how much they
bring, or no other is: large ones come again less often, and recording them for others takes longest."""
RECENT = 512
"""Looks from which on earlier ones count half: where the same instances came a hundred times, as many new ones would
have to come before nobody looks for them."""
TOGETHER = 4
"""Attempts with a mini-batch's new keys at once, before each is tried alone."""

_FAILED = object()


class Looks(NamedTuple):
    """Rows of tables that integers of an instance say."""

    number: int
    """Of them."""
    at: bytes
    """The words that are one, as 64-bit integers."""
    rows: bytes
    """How many rows there are, so too."""
    pick: Callable[[Sequence[Any]], Sequence[Any]]
    """The integers, of the instance's numbers."""

    @classmethod
    def of(cls, at: Sequence[int], places: Sequence[int], rows: Sequence[int]) -> Looks | None:
        """None for none."""
        if not at:
            return None
        pick = operator.itemgetter(*places) if len(places) > 1 else operator.itemgetter(slice(places[0], places[0] + 1))
        return cls(len(at), np.array(at, np.int64).tobytes(), np.array(rows, np.int64).tobytes(), pick)


_AT_AND_ROWS = operator.attrgetter("at"), operator.attrgetter("rows")


class Mould(NamedTuple):
    """Definition (3)."""

    structure: int | None
    """As a captured instance's (`captured.joining.Part`)."""
    words: bytes
    nest: Nest
    constants: Sequence[tuple[int, Runs | Fills | tuple[int, ...] | list[Any]]]
    """By source, runs of leaves; filled tensors; the numbers of values (`alike.steps`); or some so, and others by
    numbers of the instance, or as they are."""
    values: Written | None
    """What makes those, where steps do."""
    followed: Sequence[int]
    """The values whose integers are further numbers of the instance."""
    looks: Looks | None
    """What it looks up by the instance's integers."""
    of_leaves: bool
    """Whether all constants are leaves."""


class Branch(NamedTuple):
    """Where forward reads a value: the instances of a key so far are told apart by it."""

    outcome: Callable[[Sequence[torch.Tensor], Sequence[Any]], Any]
    """What an instance with such leaves and numbers has."""

    def key(self, before: Any, leaves: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
        """That of an instance behind it; where torch raises, one that nothing is kept of."""
        try:
            return before, self.outcome(leaves, numbers)
        except (IndexError, OverflowError, ValueError, RuntimeError):
            return before, None


class Read(NamedTuple):
    """An instance."""

    pattern: Any
    leaves: Sequence[torch.Tensor]
    numbers: Sequence[Any]


class Pattern(NamedTuple):
    """A pattern that came before."""

    number: int
    asked: tuple[int, ...]
    """The places of numbers that are part of the key."""

    def key(self, numbers: Sequence[Any]) -> Any:
        """Definition (2), of an instance with these."""
        return (self.number, *[_told(numbers[place]) for place in self.asked]) if self.asked else self.number


class Alike:
    """The moulds of a net in one mode. Threads may share it."""

    def __init__(self, view: ModelView, lexicon: Lexicon, lease: Callable[[], tuple[nn.Module, Recorder]],
                 takes_new: bool = True):  # fmt: skip
        """`lease` gives a shadow and a recorder that nobody else has. Types that compiling has not met, as those of
        floats that are operands may be, are recorded only if it `takes_new`."""
        self._view, self._lexicon, self._lease, self._takes_new = view, lexicon, lease, takes_new
        self._leased: tuple[nn.Module, Recorder] | None = None
        self._moulds: Kept[Any, Mould | Branch | None] = Kept(MOST_MOULDS)
        self._has_branches = False
        self._patterns: Kept[Any, Pattern] = Kept(MOST_MOULDS)
        self._serial = itertools.count()
        self._tells_masks = False
        """Whether an attempt has failed for what forward does with masks: they are part of patterns then."""
        self.looked = self.found = 0
        self._looked_size = self._found_size = 0
        """The same in leaves and numbers, and one for each instance."""
        self._few = FEW
        self._num_types = len(lexicon.table.types)
        self._wanted: set[int] = set()
        """The numbers that the last attempt looked at, of its instance `_asker`."""
        self._asker = 0
        self._names: set[Any] = set()
        """Numbers that are asked for in all patterns; see `names`."""
        self._lock = threading.Lock()

    @property
    def pays(self) -> bool:
        """Whether instances are worth a look."""
        of_later = self.looked - self._few
        return of_later < 0 or 2 * self._found_size * self.looked > self._looked_size * of_later

    def judge(self) -> None:
        """Decide by what has been looked at: the same instances are to come again, which is not being alike."""
        self._few = 0

    def keys(self, instances: Sequence[Any]) -> list[Any]:
        """Definition (2), of instances that have been captured."""
        return self._keys(read(instances, self._view.closed.fields, not self._tells_masks))

    def capture(self, instances: Sequence[Any]) -> Capture | None:
        """The mini-batch of instances each of which is alike an earlier one, or the first of a key that others can be
        taken from; None where one is neither. Linear in the items of their nests."""
        if self.looked >= RECENT:
            self._few, self.looked, self.found = 0, self.looked // 2, self.found // 2
            self._looked_size, self._found_size = self._looked_size // 2, self._found_size // 2
        tells_masks = self._tells_masks
        column = read(instances, self._view.closed.fields, not tells_masks)
        self.looked += len(instances)
        if not instances or None in column.patterns:
            self._looked_size += len(instances)
            return None
        nothing = [()] * len(instances)
        leaves, numbers = column.leaves or nothing, column.numbers or nothing
        size = len(instances) + sum(map(len, leaves)) + sum(map(len, numbers))
        self._looked_size += size
        moulds: list[Any] = [*map(self._moulds.get, self._keys(column), itertools.repeat(NotImplemented))]
        new: dict[Any, int] = {}
        if NotImplemented in moulds:
            self._learn(_each(column), instances)
            if self._tells_masks and not tells_masks:
                self.looked, self._looked_size = self.looked - len(instances), self._looked_size - size
                return self.capture(instances)
            keys = self._keys(column)
            of_new = zip(moulds, keys, leaves, numbers, strict=True)
            new = {key: 1 + len(own) + len(of) for mould, key, own, of in of_new if mould is NotImplemented}
            moulds = [*map(self._moulds.get, keys)]
        if None in moulds:
            return None
        found = self._capture(moulds, leaves, numbers)
        if found is not None:
            self.found += len(instances) - len(new)
            self._found_size += size - sum(new.values())
        return found

    def _keys(self, column: Column) -> list[Any]:
        """Definition (2), of each instance, up to the first reading that nobody knows; None for one whose pattern is
        new."""
        keys = self._without_reads(column)
        if not self._has_branches:
            return keys
        nothing = itertools.repeat(())
        return [*map(self._behind_reads, keys, column.leaves or nothing, column.numbers or nothing)]

    def _behind_reads(self, key: Any, leaves: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
        while type(found := self._moulds.get(key)) is Branch:
            key = found.key(key, leaves, numbers)
        return key

    def _without_reads(self, column: Column) -> list[Any]:
        only = self._patterns.get(column.patterns[0])
        if only and not only.asked and column.patterns.count(column.patterns[0]) == len(column.patterns):
            return [only.number] * len(column.patterns)
        known = [*map(self._patterns.get, column.patterns)]
        if None in known or column.numbers is None or any(of.asked for of in known):  # type: ignore[union-attr]
            numbers = column.numbers or itertools.repeat(())
            return [of and of.key(own) for of, own in zip(known, numbers, strict=False)]
        return [of.number for of in known]  # type: ignore[union-attr]

    def _key(self, of: Read) -> Any:
        return self._keys(_alone(of))[0]

    def _ask(self, pattern: Any, places: Iterable[int]) -> None:
        """From now on the numbers in these places are part of the keys of a pattern's instances."""
        self._patterns.add(pattern, Pattern(next(self._serial), tuple(sorted(places))))

    def _asked(self, pattern: Any) -> tuple[int, ...]:
        known = self._patterns.get(pattern)
        return () if known is None else known.asked

    def _capture(self, moulds: Sequence[Mould], leaves: Sequence[Any], numbers: Sequence[Any]) -> Capture | None:
        structures = (*[mould.structure for mould in moulds],)
        numbers = list(numbers)
        try:
            constants = self._constants(moulds, leaves, numbers)
        except (IndexError, OverflowError, ValueError, RuntimeError):  # which the code is to raise where it has it too
            return None
        words = partial(_words_of, moulds, numbers)
        try:
            return joined_alike(self._lexicon, structures, words, [mould.nest for mould in moulds], constants)
        except _NoRow:
            return None

    def _constants(self, moulds: Sequence[Mould], leaves: Sequence[Any],
                   numbers: list[Sequence[Any]]) -> dict[int, torch.Tensor]:  # fmt: skip
        """By source; `numbers` get those that follow from others. Raises what torch raises for numbers that are no
        indices, say."""
        sources, first = self._lexicon.table.sources, moulds[0]
        if first.of_leaves and len({*map(id, moulds)}) == 1:
            return {source: _stacked([of[item] for of in leaves for item in items], *_class_of(sources[source]))
                    for source, items in first.constants if type(items) is tuple}  # fmt: skip
        pools: dict[int, list[Any]] = {}
        others: set[int] = set()
        wanted: list[Any] = [() if mould.values is None else mould.values.fills for mould in moulds]
        fills = filled_each(wanted, numbers) if any(wanted) else wanted
        for number, mould in enumerate(moulds):
            values = leaves[number]
            if mould.values is not None:
                values = mould.values.run(values, numbers[number], fills[number])
                for followed in mould.followed:
                    numbers[number] = (*numbers[number], *values[followed].reshape(-1).tolist())
            for source, items in mould.constants:
                pool = pools.get(source)
                if pool is None:
                    pool = pools[source] = []
                if type(items) is tuple:
                    pool += [values[item] for item in items]
                else:
                    others.add(source)
                    pool.append(_Others(number, values, items))
        memory, constants = Memory(leaves), dict[int, torch.Tensor]()
        filling: dict[Any, list[tuple[int, list[Any]]]] = {}
        for source, pool in pools.items():
            shape, dtype = _class_of(sources[source])
            if source not in others:
                constants[source] = _stacked(pool, shape, dtype)
                continue
            kinds = {type(of.items) if type(of) is _Others else None for of in pool}
            if kinds == {Runs}:
                constants[source] = memory.rows(dtype, [(of.number, of.items) for of in pool], torch.Size(shape))
            elif kinds == {Fills}:
                filling.setdefault(pool[0].items.base.dtype, []).append((source, pool))
            else:
                constants[source] = _put_together(pool, numbers, shape, dtype)
        for of_dtype in filling.values():
            runs = [(of.items, numbers[of.number]) for _, pool in of_dtype for of in pool]
            whole = torch.from_numpy(filled(runs))
            sizes = [sum([of.items.base.size for of in pool]) for _, pool in of_dtype]
            for (source, _), part in zip(of_dtype, whole.split(sizes), strict=True):
                constants[source] = part.view(-1, *sources[source].value_class.shape)
        return constants

    # --- the first of a key ------------------------------------------------------------------------------------------

    def _learn(self, read: Sequence[Read], instances: Sequence[Any]) -> None:
        """The moulds of the first instance of each key that is unknown, or that there is none."""
        with self._lock:
            num_failed = 0
            for _ in range(TOGETHER + MOST_READS):  # behind what is read there are keys that nobody has met
                firsts = self._firsts(read, instances)
                if not firsts:
                    return
                if self._try(list(firsts.values())):
                    continue
                num_failed += 1
                if self._tell_masks(firsts.values()):
                    return
                if num_failed == TOGETHER or not self._ask_by_name(list(firsts.values())):
                    break
            for _ in range(2):  # then those of a pattern whose numbers are told
                for of, instance in self._firsts(read, instances).values():
                    if self.pays and self._key(of) not in self._moulds:
                        self._learn_one(of, instance)
                        is_none = self._moulds.get(self._key(of), NotImplemented) is None
                        if is_none and self._tell_masks([(of, instance)]):
                            return

    def _firsts(self, read: Sequence[Read], instances: Sequence[Any]) -> dict[Any, tuple[Read, Any]]:
        """The first instance of each key that is unknown."""
        found: dict[Any, tuple[Read, Any]] = {}
        for of, instance in zip(read, instances, strict=True):
            if of.pattern not in self._patterns:
                named = [*names(instance, self._view.closed.fields)] if self._names else ()
                self._ask(of.pattern, [i for i, name in enumerate(named) if name in self._names])
            key = self._key(of)
            if key not in self._moulds:
                found.setdefault(key, (of, instance))
        return found

    def _tell_masks(self, firsts: Iterable[tuple[Read, Any]]) -> bool:
        """Let masks be part of patterns, where the last attempt has failed with some for nothing else that is known."""
        new = not self._tells_masks and not self._wanted
        self._tells_masks |= new and any(leaf.dtype is torch.bool for of, _ in firsts for leaf in of.leaves)
        return new and self._tells_masks

    def _ask_by_name(self, firsts: Sequence[tuple[Read, Any]]) -> bool:
        """Let what the last attempt looked at be told in all patterns that have a number of its name. False where it
        has none, or that is known."""
        named = [*names(firsts[self._asker][1], self._view.closed.fields)]
        new = {named[place] for place in self._wanted} - self._names - {None}
        self._names |= new
        for of, _ in firsts if new else ():
            self._patterns.pop(of.pattern, None)
        return bool(new)

    def _learn_one(self, of: Read, instance: Any) -> None:
        """The mould of an instance: with integers told that forward was seen to look at, or with all."""
        every = range(len(of.numbers))
        for asks_all in (False, True):
            if self._try([(of, instance)]):
                return
            wanted = every if asks_all else self._wanted or every
            self._ask(of.pattern, {*self._asked(of.pattern), *wanted})
            if not every:
                break
        if not every or not self._try([(of, instance)]):
            self._moulds.add(self._key(of), None)

    def _try(self, firsts: Sequence[tuple[Read, Any]]) -> bool:
        """Record instances with stand-ins. False where that cannot be: they run as they are then, and raise what eager
        execution does."""
        states = self._view.closed.states_of_forward
        if states and len(firsts) > 1:  # what each has left is told of one alone
            failed = next((number for number, first in enumerate(firsts) if not self._try([first])), None)
            self._asker = failed or 0
            return failed is None
        if self._leased is None:
            self._leased = self._lease()
        shadow, recorder = self._leased
        shows = Shows(recorder, [(of, self._asked(of.pattern)) for of, _ in firsts])
        recorder.shows, recorder.captures = shows, True
        try:
            if states:
                _take_off(shadow, states)
                recorder.gone = states
                parts: Any = [part_of(shadow, recorder, self._lexicon, firsts[0][1], 0)]
            else:
                parts = recorded_together(shadow, recorder, self._lexicon, [instance for _, instance in firsts])
            moulds = None if parts is None else [*map(self._mould, parts, shows.steps, itertools.repeat(shows))]
            branches = [[_branch(steps, read) for read in steps.reads] for steps in shows.steps]
        except (CannotKeep, Exception):
            moulds = None
        finally:
            shows.let_go()
        self._wanted, self._asker = shows.asked, shows.asker
        if shows.moved and recorder.before_books is not None:  # once: code runs as it is written from now on
            recorder.keep_books()
            return self._try(firsts)
        if shows.moved and self._records_otherwise(shadow, recorder, firsts):
            return self._try(firsts)
        if recorder.reads:
            self._leased = moulds = None
        if moulds is not None and not self._takes_new and any(map(self._has_new, moulds)):
            moulds = None
        for (of, _), mould, own in zip(firsts, moulds or (), branches if moulds else (), strict=False):
            if of.pattern in self._patterns:  # more new ones than are kept may have come since
                self._moulds.add(self._branched(of, own), mould)
        self.looked += moulds is None  # as an instance more
        return moulds is not None

    def _records_otherwise(self, shadow: nn.Module, recorder: Recorder, firsts: Sequence[tuple[Read, Any]]) -> bool:
        """Whether a recorder records otherwise from now on, as a tensor changes in place, once it has recorded
        instances as they are: what serves others is recorded as they would be."""
        before = self._ways(recorder)
        recorder.shows = None
        with suppress(Exception):
            recorded(shadow, recorder, [instance for _, instance in firsts], settles=True)
        return self._ways(recorder) != before

    def _ways(self, recorder: Recorder) -> Any:
        return recorder.keeps_books, self._view.is_everywhere, len(self._view.changing)

    def _branched(self, of: Read, branches: Sequence[Branch]) -> Any:
        """The key of an instance that has come by these."""
        [key] = self._without_reads(_alone(of))
        for branch in branches:
            known = self._moulds.get(key)
            if type(known) is not Branch:
                self._has_branches, known = True, branch
                self._moulds.add(key, branch)
            key = known.key(key, of.leaves, of.numbers)
        return key

    def _has_new(self, mould: Mould) -> bool:
        types = sections(np.frombuffer(mould.words, WORD))[0]
        return bool((types >= self._num_types).any())

    def _mould(self, part: Part, steps: Steps, shows: Shows) -> Mould:
        """Raises UnsupportedError for what forward returns that has no text."""
        text = text_of(part.nest.nest, num_results(part.words), self._lexicon.class_number, part.nest.assigned)
        constants: list[tuple[int, Any]] = [
            (source, [shows.copies.get(id(tensor), tensor) for tensor in pool]) for source, pool in part.constants
        ]
        words = np.frombuffer(part.words, WORD)
        first = len(words) - int(words[2])
        at = [int(i) for i in first + np.flatnonzero(words[first:] >= NAMED)]
        named = [shows.named[words[i] - NAMED] for i in at]
        constants = [(source, _as_runs(items, steps)) for source, items in constants]
        of_items = [items for _, items in constants if isinstance(items, list) or type(items) is tuple]
        wanted = {item for items in of_items for item in items if type(item) is int}.union(steps.followed)
        structure, own = number_of_structure(self._lexicon, part.words, text), needed(steps.steps, wanted)
        values = written(own, steps.num_leaves) if own else None
        of_leaves = values is None and all(type(items) is tuple for _, items in constants)
        looks = Looks.of(at, [place for place, _ in named], [rows for _, rows in named])
        nest = self._lexicon.nest(text)
        return Mould(structure, part.words, nest, constants, values, steps.followed, looks, of_leaves)


def _branch(steps: Steps, read: int) -> Branch:
    """Where an instance has read a value."""
    if read in steps.comparisons:
        compare, one, other = steps.comparisons[read]
        if type(other) is Place:
            return Branch(lambda _, numbers: compare(numbers[one], numbers[other.place]))
        return Branch(lambda _, numbers: compare(numbers[one], other))
    values = written(needed([step for step in steps.steps if step.first <= read], {read}), steps.num_leaves)

    def outcome(leaves: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
        fills = filled_each([values.fills], [numbers])[0] if values.fills else ()
        return repr(values.run(leaves, numbers, fills)[read].tolist())

    return Branch(outcome)


def _take_off(shadow: nn.Module, states: Iterable[tuple[str, str]]) -> None:
    """Let modules have no such attributes, told by path and name."""
    modules = dict(shadow.named_modules())
    for path, name in states:
        modules[path].__dict__.pop(name, None)


def _alone(of: Read) -> Column:
    return Column([of.pattern], [of.leaves], [of.numbers])


def _each(column: Column) -> list[Read]:
    """Its instances one by one."""
    nothing = itertools.repeat(())
    each = zip(column.patterns, column.leaves or nothing, column.numbers or nothing, strict=False)
    return [*map(Read._make, each)]


def _told(number: float) -> Any:
    """What tells a number from others of its kind: zeros have signs."""
    return repr(number) if type(number) is float else number


def _as_runs(items: list[Any], steps: Steps) -> Runs | Fills | tuple[int, ...] | list[Any]:
    """Constants of one source, as runs where all are and not all are leaves: these stand one by one already; or as
    filled tensors."""
    if all(type(item) is Fill for item in items):
        return Fills(items)
    if any(type(item) is not int for item in items):
        return items
    runs = [steps.run_of(item) for item in items]
    if None in runs or all(item < steps.num_leaves for item in items):
        return tuple(items)
    return Runs.of(runs, steps.values[: steps.num_leaves])  # type: ignore[arg-type]


class _Others(NamedTuple):
    """An instance's constants of one source that are not all values, and its values."""

    number: int
    values: Any
    items: Any


def _put_together(pool: Sequence[Any], numbers: Sequence[Any], shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """Constants of one source, values and others of this shape and dtype."""
    found: list[Any] = []
    for of in pool:
        if type(of) is not _Others:
            found.append(of)
        elif type(of.items) is Runs:
            found += of.items.each(of.values, torch.Size(shape))
        elif type(of.items) is Fills:
            found += torch.from_numpy(filled([(of.items, numbers[of.number])])).view(-1, *shape)
        else:
            found += [_of_instance(item, of.values, numbers[of.number]) for item in of.items]
    if set(map(type, found)) == {list}:
        return torch.tensor(found, dtype=dtype).view(len(found), *shape)
    for i, item in enumerate(found):
        if type(item) is list:
            found[i] = torch.tensor(item, dtype=dtype).view(shape)
    return _stacked(found, shape, dtype)


def _of_instance(item: Any, values: Any, numbers: Sequence[Any]) -> Any:
    """One of them: a tensor, or the numbers in it."""
    kind = type(item)
    if kind is int:
        return values[item]
    if kind is Fill:
        return torch.from_numpy(item.of(numbers))
    return item.of(numbers) if kind is OfNumbers else item


def _class_of(source: Source) -> tuple[Any, torch.dtype]:
    """Shape and dtype of its values."""
    value_class = source.value_class
    return value_class.shape, torch_dtype(value_class.dtype)


def _stacked(pool: Sequence[torch.Tensor], shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """Constants of this class. Raises ValueError where they are of another."""
    found = torch.stack(pool)  # type: ignore[arg-type]
    if found.shape[1:] != shape or found.dtype is not dtype:
        raise ValueError
    return found


class _NoRow(Exception):
    """An instance looks up what its table does not have."""


def _words_of(moulds: Sequence[Mould], of_instances: Sequence[Sequence[Any]]) -> Words:
    """The words of all, with the rows that instances look up where they stand. Raises _NoRow."""
    words = np.frombuffer(b"".join([mould.words for mould in moulds]), WORD)
    looking = [(mould.looks, numbers) for mould, numbers in zip(moulds, of_instances, strict=True)]
    values = [looks.pick(numbers) for looks, numbers in looking if looks]
    if not values:
        return words
    try:
        found = np.array([*itertools.chain.from_iterable(values)], np.int64)
    except OverflowError:
        raise _NoRow from None
    at, rows = (np.frombuffer(b"".join([of(looks) for looks, _ in looking if looks]), np.int64) for of in _AT_AND_ROWS)
    if (found < 0).any() or (found >= rows).any():
        raise _NoRow
    sizes = np.array([len(mould.words) // WORD.itemsize for mould in moulds])
    begin = np.repeat(np.cumsum(sizes) - sizes, [looks.number if looks else 0 for looks, _ in looking])
    words = words.copy()
    words[begin + at] = found
    return words


class Shows:
    """What instances are recorded with in the place of leaves and integers, and what becomes of these."""

    def __init__(self, rec: Recorder, read: Sequence[tuple[Read, Sequence[int]]]):
        self.rec, self.read = rec, read
        self.steps: list[Steps] = []
        """Of each instance that has begun to run."""
        self.copies: dict[int, int | OfNumbers | Fill] = {}
        """What constants hold, by their addresses."""
        self.named: list[tuple[int, int]] = []
        """Rows that were looked up: the place of the integer, and how many rows there are."""
        self.asked: set[int] = set()
        self.asker = 0
        """What the instance of this number was asked for."""
        self.moved = False
        """Whether a tensor was changed in place that nobody knows to be alone, in code that may be moved."""

    def forward_of(self, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`forward`, which `run` runs, of instances with stand-ins."""

        def forward(instance: Any) -> Any:
            read, asked = self.read[self.rec.instance]
            del self.steps[self.rec.instance :]
            self.steps.append(Steps(self, read.leaves, read.numbers))
            shown, result = _Shown(self.rec, self, read, asked), _FAILED
            try:
                made = [run(shown.of(instance))]
                settle(self.rec.unread, made)
                result = made.pop()
            except (Exception, MustKeepBooks, CannotKeep) as error:
                self.moved |= isinstance(error, MustKeepBooks)
                clear_frames(error.__traceback__)
            if result is _FAILED:  # with no stand-in and no context: nobody is to look for these, or for the reason
                del shown
                raise CannotKeep
            shown.require_unchanged()
            self.steps[-1].end()
            return result

        return forward

    def let_go(self) -> None:
        """Nobody asks for steps any more, and no circle is left to the garbage collector: what it holds would count as
        left by forward (`forward.left`), which takes a look at all of the process's objects."""
        for steps in self.steps:
            steps.end()
        self.steps.clear()

    def ask(self, places: Sequence[int]) -> NoReturn:
        """Somebody wants to know the numbers in these places; those that follow from others are no part of a key."""
        count = len(self.read[self.rec.instance][0].numbers)
        self.asked.update(place for place in places if place < count)
        self.asker = self.rec.instance
        raise CannotKeep

    def row_of(self, table: Shared, place: int) -> Value:
        """The row of a table by the integer in a place."""
        self.named.append((place, table.look()))
        return table.row(NAMED + len(self.named) - 1)

    def note(self, constant: Value, places: torch.Tensor) -> None:
        """A constant holds the numbers in these places."""
        copy = self.rec.tensor_of_constant(constant)
        self.copies[id(copy)] = OfNumbers(places.flatten().tolist(), copy.shape, copy.dtype)

    def note_leaf(self, constant: Value, number: int) -> None:
        """A constant is this value of its instance (`alike.steps`)."""
        self.copies[id(self.rec.tensor_of_constant(constant))] = number

    def tensor_of(self, places: Sequence[int | Known], values: torch.Tensor) -> Leaf:
        """A tensor that code made of floats, or of integers and others, at these places."""
        return self.steps[-1].tensor_of(places, values)

    def at_once(self, func: Any, args: Any, kwargs: Any, name: str | None) -> Any:
        """See `Steps.take`."""
        return self.steps[-1].take(func, args, kwargs, name)

    def constant_filled(self, fill: Fill) -> Value:
        """The constant that is filled so."""
        numbers = self.read[self.rec.instance][0].numbers
        constant = self.rec.constant(torch.from_numpy(fill.of(numbers)))
        self.copies[id(self.rec.tensor_of_constant(constant))] = fill
        return constant

    def fill(self, made: Made, index: Any, value: Any) -> bool:
        """See `told.fill`."""
        return fill(self, made, index, value)

    def operands(self, func: Any, one: Any, other: Any) -> tuple[Any, Any]:
        """Two arguments of a torch function, an instance's number as an operand where it may be one."""
        is_first = type(one) in NUMBERS
        if (is_first or type(other) in NUMBERS) and rules.name_of(func) in rules.NUMERIC:
            return (as_operand(one, other), other) if is_first else (one, as_operand(other, one))
        return one, other

    def look_up(self, table: Shared, index: Any) -> Any:
        """Rows of a table by integers of the instance; None for others."""
        kind = type(index)
        if kind is Number:
            return index.row_of(table)
        if kind is Told or kind is Leaf:
            return index.rows_of(table)
        return Rows(table, list(index)) if kind is list and Number in set(map(type, index)) else None

    def constant_of(self, numbers: list[Any]) -> Value | None:
        """The constant that holds integers of the instance; None for others."""
        first = told(numbers)
        return None if first is None else tensor_of(first, numbers).materialise()


class _Shown(Shown):
    """An instance with stand-ins for its leaves, and for integers that are not told."""

    def __init__(self, rec: Recorder, watch: Shows, read: Read, asked: Sequence[int]):
        super().__init__(rec)
        self.watch, self.asked, self.place = watch, set(asked), 0
        self.number = {id(leaf): i for i, leaf in enumerate(read.leaves)}
        self.of_memory = {memory_of(leaf): i for i, leaf in enumerate(read.leaves)}
        """The same, of leaves that are arrays too."""

    def of_tensor(self, item: torch.Tensor) -> Any:
        number = self.number.get(id(item))
        if number is None and item.dtype in FLOATS:
            number = self.of_memory[memory_of(item)]
        if number is not None:
            return self.watch.steps[-1].leaves[number]
        if item.dtype is not torch.int64:
            return item
        first, self.place = self.place, self.place + item.numel()
        places = torch.arange(first, self.place).view(item.shape)
        return item if self.asked.issuperset(range(first, self.place)) else Told(self.rec, self.watch, item, places)

    def of_array(self, item: np.ndarray) -> Any:
        """See Shown. A leaf of its memory."""
        tensor = tensor_of_array(item)
        if tensor is None or (tensor.dtype is not torch.int64 and tensor.dtype not in FLOATS):
            return item
        stand_in = self.of_tensor(tensor)
        return item if type(stand_in) is torch.Tensor else Array(item, stand_in)

    def of_integer(self, value: int) -> Any:
        self.place += 1
        return value if self.place - 1 in self.asked else Number(self.rec, self.watch, self.place - 1, value)

    def of_real(self, value: float) -> Any:
        self.place += 1
        return value if self.place - 1 in self.asked else Real(self.rec, self.watch, self.place - 1, value)
