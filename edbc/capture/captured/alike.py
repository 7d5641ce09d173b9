"""Instances that are alike: one is recorded, and the others are joined from its record, without running Python.

Where a model's `forward` is closed (`code.closed`), what it records is a function of what the instance tells it. So an
instance that tells the same as an earlier one, but for what stands in its tensors, adds the same to a mini-batch with
other constants: nobody has to promise it, as `captured.structurecache` needs.

Definitions.

(1) A *leaf* is a tensor or array of floating numbers in an instance. Forward gets a stand-in for it, which it can
    compute with, but not read. Integers, in tensors and arrays too, and floats are stand-ins (`standins.told`), by
    which it can look up rows of parameters and multiply, and which it can make tensors of.
(2) An instance is *keyed* when it is a nest of tuples, lists, dicts and objects (`code.closed.Closed.fields`) of
    leaves, integers, floats and plain values. Its *pattern* says all of that but for the numbers, and of a leaf its
    shape, its dtype, and which earlier one it is. Its *key* is its pattern, with the numbers that forward wants to
    know: which these are is found out by trying, where an attribute, key or place in a tuple leads to one in all
    patterns at once.
(3) A *mould* is what the first instance of a key has added: a part (`captured.joining.Part`), where the rows that it
    looks up and its constants are told by the places of numbers and leaves.

Nothing is taken from a mould where forward reads values, changes tensors in place, keeps something, or changes a list
or dict of the instance, or where what it returns has no text (`captured.nesttext`): such keys are recorded as they are.
When few instances have turned out to be alike, no other is looked at.

What forward computes of leaves and numbers alone is torch's at once, as where instances are recorded
(`captured.steps`): what is taken from a mould has the nodes and constants of a recording, and its bits.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import nn

from edbc.base.graph import ValueClass
from edbc.base.kept import Kept
from edbc.capture.captured.instance import WORD, Words, sections
from edbc.capture.captured.joining import Part, joined_alike, num_results, number_of_structure, recorded_together
from edbc.capture.captured.nesttext import text_of
from edbc.capture.captured.steps import Memory, OfNumbers, Runs, Steps, Values, needed, written
from edbc.capture.captured.vocabulary import Lexicon, Nest
from edbc.capture.forward.build import Capture
from edbc.capture.ragged.program import CannotKeep
from edbc.capture.record.functionalise import MustKeepBooks
from edbc.capture.record.recorder import Recorder
from edbc.capture.semantics import rules
from edbc.capture.standins.made import Made
from edbc.capture.standins.nests import is_named
from edbc.capture.standins.shown import Shown
from edbc.capture.standins.standin import PLAIN, Rows, Shared, Value, torch_dtype
from edbc.capture.standins.told import (
    NUMBERS,
    Array,
    Fill,
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

if TYPE_CHECKING:
    from edbc.capture.code.shadow import ModelView

DEEPEST = 8
"""Levels of an instance that is keyed: deeper ones are structures that code recurses on."""
MOST_ITEMS = 512
"""Items of its nests."""
MOST_MOULDS = 1024
MOST_LEAVES = 64
"""Of one instance."""
NAMED = 1 << 30
"""From here on a row stands for an integer of the instance: more rows than any table has."""
FEW = 96
"""Instances that are looked at in any case. Of later ones half must be of a key that came before, or no other is."""
TOGETHER = 4
"""Attempts with a mini-batch's new keys at once, before each is tried alone."""
FAILED = 1
"""Instances that an attempt which fails counts as."""

_FAILED = object()
_KEYS = frozenset((int, str))
_TUPLES, _LISTS, _INTEGERS, _REALS = {tuple}, {list}, {int}, {float}
_STRIDED = torch.strided
_NOT_TORCHS = frozenset(("f16", "u2", "u4", "u8"))
_FLOATS = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))
_NUMBERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool))


class Mould(NamedTuple):
    """Definition (3)."""

    structure: int | None
    """As a captured instance's (`captured.joining.Part`)."""
    words: bytes
    nest: Nest
    constants: Sequence[tuple[int, Runs | list[Any]]]
    """By source, runs of leaves; or each as the number of a value (`captured.steps`), by numbers, or as it is."""
    values: Values | None
    """What makes those, where steps do."""
    at: list[int]
    """The words that are a row which the instance's integer in one of `places` says, of `rows` that there are."""
    places: list[int]
    rows: list[int]


class Read(NamedTuple):
    """An instance."""

    pattern: tuple[Any, ...]
    leaves: list[torch.Tensor]
    numbers: list[Any]


class Alike:
    """The moulds of a net in one mode. Threads may share it."""

    def __init__(self, view: ModelView, lexicon: Lexicon, lease: Callable[[], tuple[nn.Module, Recorder]],
                 takes_new: bool = True):  # fmt: skip
        """`lease` gives a shadow and a recorder that nobody else has. Types that compiling has not met, as those of
        floats that are operands may be, are recorded only if it `takes_new`."""
        self._view, self._lexicon, self._lease, self._takes_new = view, lexicon, lease, takes_new
        self._leased: tuple[nn.Module, Recorder] | None = None
        self._moulds: Kept[Any, Mould | None] = Kept(MOST_MOULDS)
        self._asked: Kept[Any, tuple[int, ...]] = Kept(MOST_MOULDS)
        """By pattern, the integers that are part of the key."""
        self.looked = self.found = 0
        self._num_types = len(lexicon.table.types)
        self._wanted: set[int] = set()
        """The numbers that the last attempt looked at, of its instance `_asker`."""
        self._asker = 0
        self._names: set[Any] = set()
        """Numbers that are asked for in all patterns; see `_names`."""
        self._lock = threading.Lock()

    @property
    def pays(self) -> bool:
        """Whether instances are worth a look."""
        return 2 * self.found > self.looked - FEW

    def judge(self) -> None:
        """Decide by what has been looked at: the same instances are to come again, which is not being alike."""
        self.looked += FEW

    def capture(self, instances: Sequence[Any]) -> Capture | None:
        """The mini-batch of instances each of which is alike an earlier one, or the first of a key that others can be
        taken from; None where one is neither. Linear in the items of their nests."""
        read: list[Any] = [self._read(instance) for instance in instances]
        self.looked += len(instances)
        if None in read:
            return None
        moulds: list[Any] = [self._moulds.get(self._key(of), NotImplemented) for of in read]
        num_new = 0
        if NotImplemented in moulds:
            num_new = self._learn(read, instances)
            moulds = [self._moulds.get(self._key(of)) for of in read]
        if None in moulds:
            return None
        found = self._capture(moulds, read)
        self.found += len(instances) - num_new
        return found

    def _read(self, instance: Any) -> Read | None:
        leaves: list[torch.Tensor] = []  # `list[torch.Tensor]()` takes a microsecond
        numbers: list[Any] = []
        parts: list[Any] = [torch.get_default_dtype()]
        keyed = _is_keyed(instance, parts, leaves, numbers, self._view, DEEPEST)
        return Read(tuple(parts), leaves, numbers) if keyed else None

    def _key(self, read: Read) -> Any:
        asked = self._asked.get(read.pattern)
        return read.pattern if asked is None else (read.pattern, *[_told(read.numbers[place]) for place in asked])

    def _capture(self, moulds: Sequence[Mould], read: Sequence[Read]) -> Capture | None:
        try:
            constants = self._constants(moulds, read)
        except (IndexError, OverflowError, ValueError, RuntimeError):  # which the code is to raise where it has it too
            return None
        structures = (*[mould.structure for mould in moulds],)
        words = partial(_words_of, moulds, read)
        try:
            return joined_alike(self._lexicon, structures, words, [mould.nest for mould in moulds], constants)
        except _NoRow:
            return None

    def _constants(self, moulds: Sequence[Mould], read: Sequence[Read]) -> dict[int, torch.Tensor]:
        """By source. Raises what torch raises for numbers that are no indices, say."""
        parts: dict[int, list[tuple[int, Any]]] = {}
        for number, mould in enumerate(moulds):
            for source, items in mould.constants:
                parts.setdefault(source, []).append((number, items))
        memory, sources = Memory([of.leaves for of in read]), self._lexicon.table.sources
        values = [of.leaves if mould.values is None else mould.values(of.leaves, of.numbers)
                  for mould, of in zip(moulds, read, strict=True)]  # fmt: skip
        constants = {}
        for source, pool in parts.items():
            value_class = sources[source].value_class
            if all(type(items) is Runs for _, items in pool):
                shape, dtype = torch.Size(value_class.shape), torch_dtype(value_class.dtype)
                constants[source] = memory.rows(dtype, pool, shape)
                continue
            found: list[Any] = []
            for number, items in pool:
                found += _of_instance(items, values[number], read[number].numbers, value_class)
            constants[source] = _stacked(found, value_class)
        return constants

    # --- the first of a key ------------------------------------------------------------------------------------------

    def _learn(self, read: Sequence[Read], instances: Sequence[Any]) -> int:
        """The moulds of the first instance of each key that is unknown, or that there is none; how many keys."""
        with self._lock:
            count = 0
            for _ in range(TOGETHER):
                firsts = self._firsts(read, instances)
                count = max(count, len(firsts))
                if not firsts or self._try(list(firsts.values())):
                    return count
                if not self._ask_by_name(list(firsts.values())):
                    break
            firsts = self._firsts(read, instances)
            for _ in range(2):  # then those of a pattern whose numbers are told
                for of, instance in firsts.values():
                    if self.pays and self._key(of) not in self._moulds:
                        self._learn_one(of, instance)
                firsts = self._firsts(read, instances)
            return count + len(firsts)

    def _firsts(self, read: Sequence[Read], instances: Sequence[Any]) -> dict[Any, tuple[Read, Any]]:
        """The first instance of each key that is unknown."""
        found: dict[Any, tuple[Read, Any]] = {}
        for of, instance in zip(read, instances, strict=True):
            if self._names and of.pattern not in self._asked:
                names = [*_names(instance, self._view)]
                self._asked.add(of.pattern, tuple(i for i, name in enumerate(names) if name in self._names))
            if self._key(of) not in self._moulds:
                found.setdefault(self._key(of), (of, instance))
        return found

    def _ask_by_name(self, firsts: Sequence[tuple[Read, Any]]) -> bool:
        """Let what the last attempt looked at be told in all patterns that have a number of its name. False where it
        has none, or that is known."""
        names = [*_names(firsts[self._asker][1], self._view)]
        new = {names[place] for place in self._wanted} - self._names - {None}
        self._names |= new
        for of, _ in firsts if new else ():
            self._asked.pop(of.pattern, None)
        return bool(new)

    def _learn_one(self, of: Read, instance: Any) -> None:
        """The mould of an instance: with integers told that forward was seen to look at, or with all."""
        every = range(len(of.numbers))
        for asks_all in (False, True):
            if self._try([(of, instance)]):
                return
            wanted = every if asks_all else self._wanted or every
            self._asked.add(of.pattern, tuple(sorted({*self._asked.get(of.pattern, ()), *wanted})))
            if not every:
                break
        if not every or not self._try([(of, instance)]):
            self._moulds.add(self._key(of), None)

    def _try(self, firsts: Sequence[tuple[Read, Any]]) -> bool:
        """Record instances with stand-ins. False where that cannot be: they run as they are then, and raise what eager
        execution does."""
        if self._leased is None:
            self._leased = self._lease()
        shadow, recorder = self._leased
        shows = _Shows(recorder, [(of, self._asked.get(of.pattern, ())) for of, _ in firsts])
        recorder.shows, recorder.captures = shows, True
        try:
            parts = recorded_together(shadow, recorder, self._lexicon, [instance for _, instance in firsts])
            moulds = None if parts is None else [*map(self._mould, parts, shows.steps, itertools.repeat(shows))]
        except (CannotKeep, Exception):
            moulds = None
        self._wanted, self._asker = shows.asked, shows.asker
        if recorder.keeps_books or recorder.reads:
            self._leased = moulds = None
        if moulds is not None and not self._takes_new and any(map(self._has_new, moulds)):
            moulds = None
        for (of, _), mould in zip(firsts, moulds or (), strict=False):
            self._moulds.add(self._key(of), mould)
        self.looked += FAILED * (moulds is None)
        return moulds is not None

    def _has_new(self, mould: Mould) -> bool:
        types = sections(np.frombuffer(mould.words, WORD))[0]
        return bool((types >= self._num_types).any())

    def _mould(self, part: Part, steps: Steps, shows: _Shows) -> Mould:
        """Raises UnsupportedError for what forward returns that has no text."""
        text = text_of(part.nest.nest, num_results(part.words), self._lexicon.class_number)
        constants: list[tuple[int, Any]] = [
            (source, [shows.copies.get(id(tensor), tensor) for tensor in pool]) for source, pool in part.constants
        ]
        words = np.frombuffer(part.words, WORD)
        first = len(words) - int(words[2])
        at = [int(i) for i in first + np.flatnonzero(words[first:] >= NAMED)]
        named = [shows.named[words[i] - NAMED] for i in at]
        constants = [(source, _as_runs(items, steps)) for source, items in constants]
        wanted = {item for _, items in constants if type(items) is list for item in items if type(item) is int}
        structure, own = number_of_structure(self._lexicon, part.words, text), needed(steps.steps, wanted)
        values = written(own, steps.num_leaves) if own else None
        return Mould(structure, part.words, self._lexicon.nest(text), constants, values, at, [p for p, _ in named],
                     [rows for _, rows in named])  # fmt: skip


def _told(number: float) -> Any:
    """What tells a number from others of its kind: zeros have signs."""
    return repr(number) if type(number) is float else number


def _as_runs(items: list[Any], steps: Steps) -> Runs | list[Any]:
    """Constants of one source, as runs where all are and not all are leaves: these stand one by one already."""
    runs = [steps.run_of(item) if type(item) is int else None for item in items]
    if None in runs or all(item < steps.num_leaves for item in items):
        return items
    return Runs.of(runs, steps.values[: steps.num_leaves])  # type: ignore[arg-type]


def _of_instance(items: Any, values: Any, numbers: Sequence[Any], value_class: ValueClass) -> list[Any]:
    """An instance's constants of one source, as `_stacked` takes them."""
    if type(items) is Runs:
        return items.each(values, torch.Size(value_class.shape))
    found: list[Any] = []
    for item in items:
        kind = type(item)
        if kind is int:
            item = values[item]
        elif kind is not torch.Tensor:
            item = item.of(numbers) if kind is OfNumbers else (item, numbers)
        found.append(item)
    return found


def _stacked(pool: list[Any], value_class: ValueClass) -> torch.Tensor:
    """Constants of this class, some of which are the numbers in them, or told by these (`told.Fill`)."""
    kinds, shape, dtype = set(map(type, pool)), value_class.shape, torch_dtype(value_class.dtype)
    if kinds == {list}:
        return torch.tensor(pool, dtype=dtype).view(len(pool), *shape)
    if kinds == {tuple}:
        return torch.from_numpy(filled(pool))
    for i, item in enumerate(pool):
        if type(item) is list:
            pool[i] = torch.tensor(item, dtype=dtype).view(shape)
        elif type(item) is tuple:
            pool[i] = torch.from_numpy(filled([item])[0])
    found = torch.stack(pool)
    if found.shape[1:] != shape or found.dtype is not dtype:
        raise ValueError
    return found


class _NoRow(Exception):
    """An instance looks up what its table does not have."""


def _words_of(moulds: Sequence[Mould], read: Sequence[Read]) -> Words:
    """The words of all, with the rows that instances look up where they stand. Raises _NoRow."""
    words = np.frombuffer(b"".join([mould.words for mould in moulds]), WORD)
    if not any(mould.at for mould in moulds):
        return words
    begin, at, values, rows = 0, list[int](), list[int](), list[int]()
    for mould, of in zip(moulds, read, strict=True):
        numbers = of.numbers
        at += [begin + place for place in mould.at]
        values += [numbers[place] for place in mould.places]
        rows += mould.rows
        begin += len(mould.words) // WORD.itemsize
    try:
        found = np.array(values, np.int64)
    except OverflowError:
        raise _NoRow from None
    if (found < 0).any() or (found >= np.array(rows)).any():
        raise _NoRow
    words = words.copy()
    words[at] = found
    return words


class _Shows:
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

    def forward_of(self, shadow: nn.Module) -> Callable[[Any], Any]:
        """`forward`, of instances with stand-ins."""

        def forward(instance: Any) -> Any:
            read, asked = self.read[self.rec.instance]
            del self.steps[self.rec.instance :]
            self.steps.append(Steps(self, read.leaves, read.numbers))
            shown, result = _Shown(self.rec, self, read, asked), _FAILED
            try:
                result = shadow.forward(shown.of(instance))
            except (Exception, MustKeepBooks, CannotKeep) as error:
                clear_frames(error.__traceback__)
            if result is _FAILED:  # with no stand-in and no context: nobody is to look for these, or for the reason
                del shown
                raise CannotKeep
            shown.require_unchanged()
            self.steps[-1].end()
            return result

        return forward

    def ask(self, places: Sequence[int]) -> NoReturn:
        """See Watch."""
        self.asked.update(places)
        self.asker = self.rec.instance
        raise CannotKeep

    def row_of(self, table: Shared, place: int) -> Value:
        """See Watch."""
        self.named.append((place, table.look()))
        return table.row(NAMED + len(self.named) - 1)

    def note(self, constant: Value, places: torch.Tensor) -> None:
        """See Watch."""
        copy = self.rec.tensor_of_constant(constant)
        self.copies[id(copy)] = OfNumbers(places.flatten().tolist(), copy.shape, copy.dtype)

    def note_leaf(self, constant: Value, number: int) -> None:
        """See Watch."""
        self.copies[id(self.rec.tensor_of_constant(constant))] = number

    def tensor_of(self, places: torch.Tensor, values: torch.Tensor) -> Leaf:
        """See Watch."""
        return self.steps[-1].tensor_of(places, values)

    def at_once(self, func: Any, args: Any, kwargs: Any, name: str | None) -> Any:
        """See `Steps.take`."""
        return self.steps[-1].take(func, args, kwargs, name)

    def constant_filled(self, fill: Fill) -> Value:
        """See Watch."""
        numbers = self.read[self.rec.instance][0].numbers
        constant = self.rec.constant(torch.from_numpy(fill.of(numbers)))
        self.copies[id(self.rec.tensor_of_constant(constant))] = fill
        return constant

    def fill(self, made: Made, index: Any, value: Any) -> bool:
        """See `told.fill`."""
        return fill(self, made, index, value)

    def operands(self, func: Any, one: Any, other: Any) -> tuple[Any, Any]:
        """Two arguments of a torch function, an instance's number as an operand where it may be one."""
        if type(one) in NUMBERS and rules.name_of(func) in rules.NUMERIC:
            operand = as_operand(one, other)
            return (one if operand is None else operand), other
        if type(other) in NUMBERS and rules.name_of(func) in rules.NUMERIC:
            operand = as_operand(other, one)
            return one, (other if operand is None else operand)
        return one, other

    def look_up(self, table: Shared, index: Any) -> Any:
        """Rows of a table by integers of the instance; None for others."""
        kind = type(index)
        if kind is Number:
            return index.row_of(table)
        if kind is Told:
            return index.rows_of(table)
        return Rows(table, list(index)) if kind is list and Number in set(map(type, index)) else None

    def constant_of(self, numbers: list[Any]) -> Value | None:
        """The constant that holds integers of the instance; None for others."""
        first = told(numbers)
        return None if first is None else tensor_of(first, numbers).materialise()


class _Shown(Shown):
    """An instance with stand-ins for its leaves, and for integers that are not told."""

    def __init__(self, rec: Recorder, watch: _Shows, read: Read, asked: Sequence[int]):
        super().__init__(rec)
        self.watch, self.asked, self.place = watch, set(asked), 0
        self.number = {id(leaf): i for i, leaf in enumerate(read.leaves)}

    def of_tensor(self, item: torch.Tensor) -> Any:
        """See Shown."""
        number = self.number.get(id(item))
        if number is not None:
            return self.watch.steps[-1].leaves[number]
        if item.dtype is not torch.int64:
            return item
        first, self.place = self.place, self.place + item.numel()
        places = torch.arange(first, self.place).view(item.shape)
        return item if self.asked.issuperset(range(first, self.place)) else Told(self.rec, self.watch, item, places)

    def of_array(self, item: np.ndarray) -> Any:
        """See Shown. A leaf of its memory."""
        tensor = _tensor_of(item)
        if tensor is None or (tensor.dtype is not torch.int64 and tensor.dtype not in _FLOATS):
            return item
        if tensor.dtype is not torch.int64:
            leaves = self.watch.read[self.rec.instance][0].leaves
            tensor = next(leaf for leaf in leaves if _is_same_memory(leaf, tensor))
        stand_in = self.of_tensor(tensor)
        return item if type(stand_in) is torch.Tensor else Array(item, stand_in)

    def of_integer(self, value: int) -> Any:
        """See Shown."""
        self.place += 1
        return value if self.place - 1 in self.asked else Number(self.rec, self.watch, self.place - 1, value)

    def of_real(self, value: float) -> Any:
        """See Shown."""
        self.place += 1
        return value if self.place - 1 in self.asked else Real(self.rec, self.watch, self.place - 1, value)


def _is_keyed(item: Any, parts: list[Any], leaves: list[torch.Tensor], numbers: list[Any], view: ModelView,
              depth: int) -> bool:  # fmt: skip
    """Append what tells one item from others, each kind of which begins in its own way, its leaves, and its integers;
    definition (2)."""
    kind = type(item)
    if kind is torch.Tensor:
        return _is_keyed_tensor(item, parts, leaves, numbers)
    if kind is np.ndarray:
        parts.append(kind)
        tensor = _tensor_of(item)
        return tensor is not None and _is_keyed_tensor(tensor, parts, leaves, numbers)
    if kind is int or kind is float:
        parts.append(kind)
        numbers.append(item)
        return True
    if kind in PLAIN:
        parts += kind, item
        return True
    if kind is dict:
        kinds = set(map(type, item))
        if len(kinds) > 1 or not kinds <= _KEYS:
            return False
        parts += kind, len(item), *kinds, *item
        items: Any = item.values()
    elif kind is tuple or kind is list or is_named(kind):  # type: ignore[arg-type]
        items = item
        kinds = set(map(type, item))
        if len(kinds) == 1 and (kinds <= PLAIN or float in kinds):
            if int in kinds or float in kinds:
                parts += kind, *kinds, len(item)
                numbers += item
            else:
                parts += kind, *kinds, tuple(item)
            return len(item) <= MOST_ITEMS
        if kinds in (_TUPLES, _LISTS):  # edges, or rows of numbers
            inner = set(map(type, itertools.chain.from_iterable(item)))
            if inner in (_INTEGERS, _REALS):
                parts += kind, *kinds, *inner, (*map(len, item),)
                first = len(numbers)
                numbers += itertools.chain.from_iterable(item)
                return len(numbers) - first <= MOST_ITEMS
        parts += kind, len(item)
    else:
        fields = view.fields_of(kind)
        if fields is None:
            return False
        of_object = {name: value for name, value in vars(item).items() if name in fields}
        parts += kind, len(of_object), *of_object
        items = of_object.values()
    if not depth or len(parts) > MOST_ITEMS:
        return False
    return all(_is_keyed(part, parts, leaves, numbers, view, depth - 1) for part in items)


def _names(item: Any, view: ModelView, name: tuple[Any, ...] | None = ()) -> Iterator[tuple[Any, ...] | None]:
    """Names of the numbers in an instance, in their order: the attributes, keys and places in tuples that lead to each;
    None for those in lists and tensors."""
    kind, fields = type(item), None
    if kind is int or kind is float:
        yield name
    elif kind is torch.Tensor or kind is np.ndarray:
        yield from [None] * (torch.as_tensor(item).numel() if item.dtype in (torch.int64, np.int64) else 0)
    elif kind is list:
        for part in item:
            yield from _names(part, view, None)
    elif kind is dict or issubclass(kind, tuple) or (fields := view.fields_of(kind)) is not None:
        of_names = item if kind is dict else vars(item) if fields is not None else None
        for key, part in enumerate(item) if of_names is None else of_names.items():
            if fields is None or key in fields:
                yield from _names(part, view, None if name is None else (*name, key))


def _tensor_of(array: np.ndarray) -> torch.Tensor | None:
    """Of an array's memory; None where torch has none without a warning."""
    flags = array.flags
    is_known = flags.c_contiguous and flags.writeable and array.dtype.isnative and array.dtype.kind in "fiub"
    return torch.from_numpy(array) if is_known and array.dtype.str[1:] not in _NOT_TORCHS else None


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.dtype) == (other.data_ptr(), other.shape, other.dtype)


def _is_keyed_tensor(item: torch.Tensor, parts: list[Any], leaves: list[torch.Tensor], numbers: list[Any]) -> bool:
    dtype = item.dtype
    if item.requires_grad or item.layout is not _STRIDED or not item.is_cpu or item.is_nested:
        return False
    if dtype in _FLOATS:
        if leaves:
            for i, leaf in enumerate(leaves):
                if leaf is item:
                    parts += torch.Tensor, i
                    return True
        parts += dtype, item.shape
        if not item.is_contiguous():
            parts.append(item.stride())
        leaves.append(item)
        return len(leaves) <= MOST_LEAVES
    if dtype not in _NUMBERS or item.numel() > MOST_ITEMS:
        return False
    parts += dtype, item.shape
    if dtype is torch.int64:
        numbers += item.flatten().tolist()
    else:
        parts.append(item.numpy().tobytes())
    return True
