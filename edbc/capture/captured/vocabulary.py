"""What the numbers in captured instances mean: texts, so that other processes can tell whether they mean it too.

Definitions.

(1) A *home* is all that a recording depends on besides its instance: edbc's version, the plan's types, model file and
    config, the model's class and dtype, which modules are in training mode, and torch.autocast.
(2) A *vocabulary* is a home with the signatures of types, the texts of sources (tables, constants, draws) and of slots
    (how results are seen), and the names of classes of results, by number. It says what is meant, not how it is done.
(3) A *lexicon* is the vocabulary of a net in one mode. It grows; numbers of types and sources are those of its
    `TypeTable`. A vocabulary from elsewhere is read through it by equal texts. What a net has not recorded yet it has
    no operations for: it *learns* by recording instances (of the plan's model file, of a data set).
"""

from __future__ import annotations

import hashlib
import inspect
import json
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edbc._version import __version__
from edbc.base.graph import ValueClass
from edbc.base.kept import Kept
from edbc.capture.captured import joinloops
from edbc.capture.captured.checkloops import Known, facts_of
from edbc.capture.captured.nesttext import Assignments, is_of_all, nest_in, nest_of, require_text, stacks_in
from edbc.capture.code.shadow import flags_of
from edbc.capture.ragged.whole.runs import triangle_of
from edbc.capture.record.lookup import look_up_of
from edbc.capture.record.table import Source, TypeTable
from edbc.capture.standins.nests import is_plain
from edbc.capture.standins.standin import Slot, dtype_name
from edbc.errors import InputError, StaleError, printable

if TYPE_CHECKING:
    from edbc.capture.code.shadow import ModelView
    from edbc.capture.forward.build import Capture
    from edbc.run.session import Net

Longs = NDArray[np.int64]
KINDS = {"row": joinloops.ROW, "whole": joinloops.WHOLE, "constant": joinloops.CONSTANT, "draw": joinloops.DRAW,
         "offset": joinloops.OFFSET}  # fmt: skip
_MOST = np.iinfo(np.int32).max
_MOST_NESTS = 4096
_MOST_JOINED = 512


class Home(NamedTuple):
    """Definition (1), as texts."""

    edbc: str
    types: str
    """A digest of the plan's."""
    model: str
    """sha256 of the plan's model file."""
    config: str
    code: str
    """Name of the model's class, and a digest of the file that it stands in."""
    structure: str
    """A digest of its modules, the shapes of its tensors, and its numbers and texts: what its config made of it; and of
    flags and buffers that are triangles, which a recording may rely on (`ModelView.relied_on`)."""
    dtype: str
    training: str
    autocast: str


REMEDY = {
    "edbc": "capture again with this version",
    "types": "capture again with this plan",
    "model": "capture again with this plan's model",
    "config": "capture again with this config",
    "code": "capture again with the model as it is now",
    "structure": "capture again with a model of these modules, sizes and attributes",
    "dtype": "capture again in this dtype",
    "training": "capture once more in this mode, in which forward may do other things (a CapturedDataset does)",
    "autocast": "capture under the same torch.autocast",
}


class Vocabulary(NamedTuple):
    """Definition (2)."""

    home: Home
    types: tuple[str, ...]
    sources: tuple[str, ...]
    slots: tuple[str, ...]
    classes: tuple[str, ...]


class Nest(NamedTuple):
    """What an instance returns."""

    nest: Any
    stacks: Sequence[tuple[int, int | None]]
    """The ranges of all `Stacked` in it, and in what is assigned."""
    assigned: Assignments = ()


def training_of(model: nn.Module) -> str:
    """Which of a model's modules are in training mode, as text."""
    flags = [name for name, module in model.named_modules() if module.training]
    return "evaluation" if not flags else "training" if len(flags) == len(list(model.modules())) else repr(flags)


def home_of(net: Net, training: str) -> Home:
    """The home of a net whose modules are, or were when it was made, in this mode."""
    plan, model = net.plan, net.model
    types = hashlib.sha256("\n".join(t.signature for t in plan.types).encode()).hexdigest()[:16]
    config = json.dumps(plan.model.config, sort_keys=True)
    return Home(
        __version__, types, plan.model.sha256, config, _code_of(type(model)),
        _structure_of(model, net.view.closed.assigned),
        dtype_name(net.dtype), training, str(net.autocast),
    )  # fmt: skip


def _code_of(kind: type) -> str:
    try:
        text = Path(inspect.getfile(kind)).read_bytes()
    except (OSError, TypeError):
        text = b""
    return f"{_name_of(kind)} {hashlib.sha256(text).hexdigest()[:16]}"


def _name_of(kind: type) -> str:
    """Of a class; what stands in a script is of `__main__` there, and of `__mp_main__` in workers that are spawned."""
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}.{kind.__qualname__}"


def triangular(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Buffers that may be triangles, with their names."""
    return [(name, buffer) for name, buffer in model.named_buffers() if buffer.ndim > 1 and not buffer.is_meta]


def _structure_of(model: nn.Module, assigned: Collection[str]) -> str:
    """See `Home.structure`. Attributes that hold anything but plain values are left out, and those by names that
    forward may assign: they are what ran last."""
    lines = [f"{name} {tuple(t.shape)} {t.dtype}" for name, t in model.state_dict(keep_vars=True).items()]
    lines += [f"{name} {triangle_of(buffer)!r}" for name, buffer in triangular(model)]
    lines += [f"{name} {flag.item()}" for name, flag in flags_of(model).items() if not flag.is_meta]
    for path, module in model.named_modules():
        own = {name: value for name, value in vars(module).items() if name != "training" and name not in assigned}
        plain = {name: value for name, value in own.items() if is_plain(value)}
        lines.append(f"{path} {type(module).__qualname__} {sorted(plain.items())!r}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def require_home(theirs: Home, ours: Home) -> None:
    """Raise StaleError at the first thing in which a captured instance's home is another."""
    for name, there, here in zip(Home._fields, theirs, ours, strict=True):
        if there != here:
            raise StaleError(
                f"a captured instance: expected {name} {printable(here)!r} as this net has, got {printable(there)!r}; "
                f"{REMEDY[name]}"
            )


def source_text(source: Source) -> str:
    """A source in words that say all of it."""
    look_up = None if source.ref is None else look_up_of(source.ref)
    parts = (source.kind, source.ref, look_up, source.value_class, source.draw)
    return " ".join(str(part) for part in parts if part is not None)


@dataclass(frozen=True, eq=False)
class Facts:
    """A table's types, sources and slots as arrays: what joining and checking read."""

    known: tuple[Any, int, int, int]
    kind_of_source: Longs
    class_of_source: Longs
    checked: Longs
    """What `checkloops.check` checks by."""


class Lexicon:
    """Definition (3)."""

    def __init__(self, table: TypeTable, view: ModelView, home: Callable[[], Home], learn: Callable[[], None]):
        self.table = table
        self.view = view
        self._home_of = home
        self._learn = learn
        """Records instances to learn from, definition (3)."""
        self._home: Home | None = None
        self.slots: list[Slot] = []
        self._number_of_slot: dict[Slot, int] = {}
        self.classes: dict[str, type] = {}
        """Classes of results by their names, in the order in which they were met."""
        self.exemplars: dict[tuple[int, int], Any] = {}
        """Instances in which a type, source, slot or class was met when it was captured (`join.numbers_in`)."""
        self.records_alone = False
        """True once instances that were recorded together could not be told apart."""
        self.keeps_on_instances: bool | None = None
        """Whether forward keeps tensors on instances, which then are restored; None before any was captured."""
        self.num_watched = 0
        """Instances that were captured without forward having drawn Python's or NumPy's random numbers."""
        self.draws = False
        """Whether it was seen to draw them."""
        self._arrived: Kept[Any, tuple[Vocabulary, Nest | None]] = Kept(_MOST_NESTS)
        """Nests of other vocabularies, checked, by their texts and numbers of results (`nests`)."""
        self._nests: Kept[str, Nest] = Kept(_MOST_NESTS)
        self._structures: Kept[tuple[bytes, str], int] = Kept(_MOST_NESTS)
        self._next_structure = count()
        self.joined: Kept[Any, Capture] = Kept(_MOST_JOINED)
        """Small mini-batches that look nothing up, without their constants, by the structures of their instances."""
        self._facts: Facts | None = None
        self._read: dict[int, tuple[Vocabulary, Any]] = {}
        self._lock = threading.RLock()

    @property
    def home(self) -> Home:
        """Made when it is first asked for."""
        if self._home is None:
            self._home = self._home_of()
        return self._home

    def slot_numbers(self, slots: Sequence[Slot]) -> NDArray[np.int32]:
        """Numbers of slots, new ones where they are met for the first time."""
        if slots and slots.count(slots[0]) == len(slots):
            return np.full(len(slots), self._slot_number(slots[0]), np.int32)
        return np.array([self._slot_number(slot) for slot in slots], np.int32)

    def _slot_number(self, slot: Slot) -> int:
        number = self._number_of_slot.get(slot)
        if number is None:
            with self._lock:
                number = self._number_of_slot.setdefault(slot, len(self.slots))
                if number == len(self.slots):
                    self.slots.append(slot)
        return number

    def class_number(self, kind: type) -> int:
        """Number of a class of results."""
        name = _name_of(kind)
        with self._lock:
            if self.classes.setdefault(name, kind) is not kind:
                raise InputError(f"two classes of results are named {name}; rename one to capture instances")
            return list(self.classes).index(name)

    def nest(self, text: str) -> Nest:
        """The nest with this text, of this lexicon's classes. Nobody may change it."""
        found = self._nests.get(text)
        if found is None:
            nest, assigned = nest_of(text, list(self.classes.values()))
            for path, name, _ in assigned:
                self._require_assigned(path, name)
            stacks = stacks_in([nest, *[of for _, _, of in assigned]]) if '["k"' in text else ()
            found = self._nests.add(text, Nest(nest, stacks, assigned))
        return found

    def structure(self, words: bytes, text: str) -> int:
        """A number that captured instances have in common which differ in rows and constants alone: of their other
        words and their nest's text."""
        found = self._structures.get((words, text))
        return self._structures.add((words, text), next(self._next_structure)) if found is None else found

    def _require_assigned(self, path: str, name: str) -> None:
        """What is captured may change of the model what forward itself was seen to change, and nothing else."""
        if not self.view.has_assigned(path, name):
            full = f"{path}.{name}" if path else name
            raise StaleError(
                f"a captured instance: expected attributes that forward was seen to assign to, got {full}; let this "
                "net record an instance with the same first: net.capture(instance)"
            )

    def nests(self, vocabulary: Vocabulary, texts: Sequence[str], result_ptr: Sequence[int], fewest: int) -> list[Nest]:
        """The nests of instances with these texts in another vocabulary; the results of each stand between
        `result_ptr`, at least `fewest` of them. Raises InputError for a text of none."""
        if fewest and texts.count(texts[0]) == len(texts):
            nest = self._nest_here(vocabulary, texts[0], None)
            if nest is not None:
                return [nest] * len(texts)
        counts = [stop - start for start, stop in pairwise(result_ptr)]
        pairs = zip(texts, counts, strict=True)
        return [self._nest_here(vocabulary, text, count) for text, count in pairs]  # type: ignore[misc]

    def _nest_here(self, vocabulary: Vocabulary, text: str, num_results: int | None) -> Nest | None:
        """The nest with a text of another vocabulary. Without a number of results, that of instances of any number but
        none; None where it is no such nest."""
        known = self._arrived.get((id(vocabulary), text, num_results))
        if known is None or known[0] is not vocabulary:
            nest = None
            if num_results is not None or is_of_all(text):
                checked = require_text(text, 1 if num_results is None else num_results, len(vocabulary.classes))
                nest = self.nest(self._in_classes(vocabulary, checked))
            known = self._arrived.add((id(vocabulary), text, num_results), (vocabulary, nest))
        return known[1]

    def _in_classes(self, vocabulary: Vocabulary, text: str) -> str:
        """A text of another vocabulary with the numbers that classes have here."""
        try:
            return nest_in(text, self.class_numbers(vocabulary))
        except KeyError as error:
            name = vocabulary.classes[error.args[0]]
            raise StaleError(
                f"a captured instance: expected results of classes that this net has recorded, got {name}; let it "
                "capture an instance with the same first"
            ) from None

    def class_numbers(self, vocabulary: Vocabulary) -> dict[int, int]:
        """The numbers here of a vocabulary's classes."""
        names = list(self.classes)
        return {number: names.index(name) for number, name in enumerate(vocabulary.classes) if name in names}

    # --- arrays ----------------------------------------------------------------------------------------------------

    def facts(self) -> Facts:
        """The arrays, made anew only when there is more to say."""
        facts = self._facts
        if facts is None or facts.known != self.known():
            with self._lock:
                facts = self._facts = self._new_facts()
        return facts

    def known(self) -> tuple[Any, int, int, int]:
        """What is equal as long as nothing new has been met."""
        return self.table.graph_types(), len(self.table.sources), len(self.slots), len(self.classes)

    def vocabulary(self) -> Vocabulary:
        """What it is now."""
        types = tuple(kind.signature for kind in self.table.graph_types())
        slots = tuple(slot.text for slot in self.slots)
        return Vocabulary(self.home, types, tuple(map(source_text, self.table.sources)), slots, tuple(self.classes))

    def _new_facts(self) -> Facts:
        known, types, sources = self.known(), list(self.table.types), list(self.table.sources)
        numbers: dict[tuple[int, str, bool], int] = {}
        dtypes: dict[str, int] = {}

        def number(value_class: ValueClass) -> int:
            return numbers.setdefault(value_class.row, len(numbers))

        kinds = [-1 if t is None else 2 if t.is_excerpt else int(t.variadic) + 2 * t.segmented for t in types]
        operands = [[number(c) for c in (t.operands if t is not None else ())] for t in types]
        outputs = [[number(c) for c in (t.outputs if t is not None else ())] for t in types]
        of_sources = [(number(s.value_class), KINDS.get(s.kind, -1), self._limit(s)) for s in sources]
        of_slots = [number(slot.base) for slot in self.slots]
        class_of_source = self.table.arrays().source_class
        checked = facts_of(Known(
            kinds, *_csr(operands), *_csr(outputs), [size for size, *_ in numbers],
            [dtypes.setdefault(dtype, len(dtypes)) for _, dtype, _ in numbers], of_sources, class_of_source, of_slots,
        ))  # fmt: skip
        of_kind = np.array([kind for _, kind, _ in of_sources], np.int64)
        return Facts(known, of_kind, class_of_source, checked)

    def _limit(self, source: Source) -> int:
        if source.kind == "row":
            assert source.ref is not None
            return len(self.view.shared(source.ref))
        if source.kind == "draw":  # of an instance of the mini-batch: these have numbers of 64 bits
            return int(np.iinfo(np.int64).max)
        return 1 if source.kind == "whole" else _MOST

    # --- vocabularies from elsewhere -------------------------------------------------------------------------------

    def read(self, vocabulary: Vocabulary, learn: Callable[[], object] | None = None) -> tuple[Longs, Longs, Longs]:
        """The numbers here of a vocabulary's types, sources and slots, -1 for those that the net has not recorded and
        nobody can `learn` (by default from exemplars); where there are any without `learn`, StaleError. Raises
        StaleError for another home."""
        known = self._read.get(id(vocabulary))
        if known is not None and known[0] is vocabulary:
            return known[1]
        require_home(vocabulary.home, self.home)
        numbers = self._numbers(vocabulary)
        if self._missing(vocabulary, numbers) is not None:
            (learn or self._learn)()
            numbers = self._numbers(vocabulary)
        missing = self._missing(vocabulary, numbers)
        if missing is not None and learn is None:
            raise StaleError(
                f"a captured instance: expected what this net has recorded, got {printable(missing)}; let it record an "
                "instance with the same first: net.capture(instance)"
            )
        if missing is None:
            self._read[id(vocabulary)] = vocabulary, numbers
        return numbers

    def _numbers(self, vocabulary: Vocabulary) -> tuple[Longs, Longs, Longs]:
        types = {t.signature: i for i, t in enumerate(self.table.types) if t is not None}
        sources = {source_text(s): i for i, s in enumerate(self.table.sources)}
        slots = {slot.text: self._slot_number(slot) for slot in list(self.table._slots.values())}
        return tuple(  # type: ignore[return-value]
            np.array([found.get(text, -1) for text in texts], np.int64)
            for found, texts in zip((types, sources, slots), vocabulary[1:4], strict=True)
        )

    def _missing(self, vocabulary: Vocabulary, numbers: tuple[Longs, ...]) -> str | None:
        for what, texts, found in zip(("type", "source", "slot"), vocabulary[1:4], numbers, strict=True):
            for text, number in zip(texts, found.tolist(), strict=True):
                if number < 0:
                    return f"{what} {text}"
        return next((f"class {name}" for name in vocabulary.classes if name not in self.classes), None)


def _csr(rows: Sequence[Sequence[int]]) -> tuple[Longs, Longs]:
    return np.cumsum([0, *map(len, rows)]), np.array([x for row in rows for x in row], np.int64)
