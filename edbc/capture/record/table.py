"""Types, slots and sources: what recording has learned so far. One table serves all recorders of a bound model.

Definitions.

(1) An *entry* is one way in which nodes of a type are recorded: a callable and the slots of its operands. Several
    entries may make one type (sums of two and of three operands are two entries of the type `sum`).
(2) A *source* is where externals come from: rows of a parameter, a whole parameter, constants given by the instances,
    random numbers (`record.draws`), offsets of excerpts (`record.excerpts`), or, while a cell is traced, its operands.
(3) A *template* is a nest of tuples, lists and dicts with a `Hole` where an operand goes and a `SharedRef` where a
    parameter goes. What a type does is a callable and a template, so that it can run on other values: symbols, meta
    tensors, batches.

(4) A *call site* of a type is a line of the user's code that makes nodes of it. The table keeps the first MAX_SITES of
    each type in the order in which they were met, and counts the others up to MAX_COUNTED_SITES.

Types are told apart by the text of their signature, so a plan's types and the types met at run time compare equal
when they would compute the same. Adding is guarded by a lock; reading is not, because entries never change.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.base.graph import NodeType, ValueClass
from edbc.base.kept import Kept
from edbc.capture.forward.structures import MOST
from edbc.capture.patterns.fusions import Fused, Fusions, Planned
from edbc.capture.ragged.program import Programs
from edbc.capture.semantics.autocast import without_state
from edbc.capture.semantics.sizes import meant, sizes_read, without_dtypes
from edbc.capture.standins.nests import TAKE_A_LIST, inside
from edbc.capture.standins.standin import Slot, class_of, torch_dtype
from edbc.errors import StaleError
from edbc.plan.schema import LONGEST_NAME

Ints = NDArray[np.int64]
MAX_SITES = 16
MAX_COUNTED_SITES = 1000
"""Definition (4). Only code that writes code has more."""


class Hole(NamedTuple):
    """Place of operand (or output) `index` in a template."""

    index: int  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "_"


class SharedRef(NamedTuple):
    """Place of a parameter or buffer in a template, by its dotted name, with the views taken of it."""

    name: str
    views: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        """Such that plans take it, with rows and columns behind it: of a long text the end is a digest."""
        text, most = self.name + "".join(view.text for view in self.views), LONGEST_NAME - 100
        return text if len(text) <= most else f"{text[: most - 17]}#{sha256(text.encode()).hexdigest()[:16]}"

    @property
    def names(self) -> tuple[str, ...]:
        """Dotted names of all parameters that it is made of, its own first."""
        others = [name for view in self.views for ref in shared_refs(view.template) for name in ref.names]
        return tuple(dict.fromkeys((self.name, *others)))


class View(NamedTuple):
    """One step of a chain of views: `function(template filled with the value)[index]`, or without an index.

    A step may also be a function of several parameters: `torch.cat([W1, W2])` is a step from W1 whose template has W2.
    """

    function: Callable[..., Any]
    template: Any
    index: int | None  # type: ignore[assignment]
    text: str

    def __hash__(self) -> int:  # templates may hold dicts; the text says all that they do
        return hash((self.function, self.index, self.text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and (self.function, self.index, self.text) == (
            other.function,
            other.index,
            other.text,
        )

    @property
    def detaches(self) -> bool:
        """True when it lets no gradient through."""
        return getattr(self.function, "__name__", "") == "detach"

    @property
    def of_any_order(self) -> Callable[..., Any]:
        """The function for values that torch computed: `view` wants them row by row, as what was recorded stands, where
        `einsum` and others give any order of memory."""
        if self.function is not torch.Tensor.view:
            return self.function
        args, kwargs = self.template
        is_dtype = any(isinstance(item, torch.dtype) for item in (*args, *kwargs.values()))
        return self.function if is_dtype else torch.Tensor.reshape

    def apply(self, value: Any, shared: Callable[[SharedRef], Any] | None = None,
              call: Callable[..., Any] | None = None) -> Any:  # fmt: skip
        """The view of `value`; `shared` gives the other parameters that the template names. Of a stand-in what `call`,
        given function, arguments and keywords, records."""
        args, kwargs = fill(self.template, [value], shared)
        result = self.of_any_order(*args, **kwargs) if call is None else call(self.function, args, kwargs)
        return result if self.index is None else result[self.index]


def through(views: Iterable[View], value: Any, shared: Callable[[SharedRef], Any] | None = None,
            call: Callable[..., Any] | None = None) -> Any:  # fmt: skip
    """`value` seen through a chain of views, see `View.apply`."""
    for view in views:
        value = view.apply(value, shared, call)
    return value


def is_flat(outputs: Any) -> bool:
    """Whether a template is a tuple, a plain one or one of torch's, of all its holes in order."""
    return (type(outputs) is tuple or type(outputs) in TAKE_A_LIST) and all(
        type(item) is Hole and item.index == i for i, item in enumerate(outputs)
    )


def fill(template: Any, holes: Sequence[Any], shared: Callable[[SharedRef], Any] | None = None) -> Any:
    """The template with its holes filled: `Hole(i)` by `holes[i]`, a SharedRef by `shared(ref)`. No closure: one that
    calls itself keeps what it holds until the garbage collector comes."""
    kind = type(template)
    if kind is Hole:
        return holes[template.index]
    if kind is SharedRef:
        return shared(template) if shared is not None else template
    if kind is tuple or kind is list:
        return kind([fill(x, holes, shared) for x in template])
    if kind is dict:
        return {key: fill(value, holes, shared) for key, value in template.items()}
    return inside(lambda x: fill(x, holes, shared), template)


def shared_refs(template: Any) -> list[SharedRef]:
    """The parameters that a template names, in order."""
    if type(template) is SharedRef:
        return [template]
    items = template.values() if type(template) is dict else template
    if type(template) not in (tuple, list, dict) and not hasattr(template, "_fields"):
        return []
    return [ref for item in items for ref in shared_refs(item)]


class Draw(NamedTuple):
    """A distribution: `keep` (0 with probability `first`, else `second`), `uniform` from `first` to `second`, `normal`
    of that mean and standard deviation."""

    kind: str
    first: float
    second: float


@dataclass(frozen=True)
class Source:
    """Definition (2). `kind`: `row` (an external is row `index`), `whole` (the parameter), `constant`, `carried` (what
    an earlier segment computed), `operand`, `draw`, `offset` (the index is the offset)."""

    kind: str
    ref: SharedRef | None
    value_class: ValueClass
    draw: Draw | None = None


@dataclass(frozen=True, eq=False)
class Operation:
    """What a node of a type computes: a cell (module by dotted name) or a torch function, over a template."""

    kind: str
    """`cell`, `module` (a leaf of torch.nn), `function`, `graph` (a pattern)."""
    name: str
    call: Callable[..., Any] | None
    """The torch function; None for cells and modules, which are looked up by name, and for patterns."""
    template: Any
    slots: tuple[Slot, ...]
    draws: tuple[Draw, ...] = ()
    """What a cell draws; their slots are the last ones."""
    autocast: torch.dtype | None = None
    """The state of torch.autocast that it runs in; see `semantics.autocast`."""
    members: tuple[Fused, ...] = ()
    """Of a pattern (`capture.patterns`), what it computes."""

    @property
    def is_of_module(self) -> bool:
        """Whether it is a method of a module of the model."""
        return self.call is None and not self.members

    @property
    def passed(self) -> tuple[Slot, ...]:
        """Slots of what the caller passes."""
        return self.slots[: len(self.slots) - len(self.draws)]


@dataclass(frozen=True, eq=False)
class Entry:
    """Definition (1). `outputs` fills with the new node's values to give what the user's call returns."""

    index: int
    type_index: int
    operation: Operation
    output_slots: tuple[Slot, ...]
    outputs: Any
    is_sum: bool
    """True when the node adds two or more operands of one slot: a candidate for a segment sum."""
    flat: bool
    """True when the call returns a tuple of all its outputs in order (`is_flat`)."""
    given: tuple[Slot, ...] = ()
    """The slots of its operands as they came, see `TypeTable.as_shown`."""
    demands: tuple[frozenset[int], ...] = ()
    """Of an automatic cell, for each output that no parameter has a part in: operands of which one must be recorded,
    for else eager's numbers are there at once."""

    @property
    def num_operands(self) -> int:
        """Operands of a node recorded through this entry."""
        return len(self.operation.slots)


@dataclass(frozen=True, eq=False)
class EntryArrays:
    """The entries of a table as arrays, for building graphs. e entries, s sources."""

    type_index: Ints  # (e,)
    num_operands: Ints  # (e,)
    num_outputs: Ints  # (e,)
    is_sum: NDArray[np.bool_]  # (e,)
    output_class: Ints  # (e,) class number of the first output
    class_ptr: Ints  # (e + 1,) where the outputs of each begin in `output_classes`
    output_classes: Ints  # class numbers of all outputs
    source_class: Ints  # (s,) class number of a source's values

    @cached_property
    def record(self) -> Ints:
        """That of what cutting reads (`forward.buildloops.cut`)."""
        from edbc.native.pointers import record_of

        return record_of((self.num_operands, self.num_outputs, self.class_ptr, self.output_classes))


class TypeTable:
    """See the module's docstring. Starts with the types of a plan, in the plan's order, when there is one.

    With `other_sizes` a plan serves a model of other sizes: what has no exact type takes the one that `sizes.meant`
    finds. With `other_dtypes` operands may have other dtypes than those that the plan knows (torch.autocast), and
    several types may be *variants* of one: they differ in dtypes only. With `same_sizes` a type stands for those that
    differ in dtypes only, and `other_sizes` for no more than that. `patterns` are of the plan, or of none. Calls that
    are `lifted` take their numbers as operands from the start (`record.numbers`).
    """

    def __init__(self, known: Iterable[tuple[str, str]] = (), other_sizes: bool = False, other_dtypes: bool = False,
                 same_sizes: bool = False, patterns: Iterable[Planned] = (),
                 lifted: Collection[str] = ()):  # fmt: skip
        self._other_sizes = other_sizes or other_dtypes
        self._other_dtypes = other_dtypes
        self._same_sizes = same_sizes
        self._read_class = without_dtypes if same_sizes or not other_sizes else sizes_read
        self._planned: dict[str, int] = {}
        """Types of the plan that were recorded, by their signature without dtypes."""
        self._variant_of: dict[int, int] = {}
        self._has_plans_sizes = False
        self.lifted = lifted
        self.entries: list[Entry] = []
        self.types: list[NodeType | None] = []
        self.sources: list[Source] = []
        self.operation_of_type: dict[int, Entry] = {}
        self.functions: dict[str, type] = {}
        """Classes of torch.autograd.Function by the name that types have for them."""
        self._known_names: list[str] = []
        self._names: set[str] = set()
        self._last_number: dict[str, int] = {}
        """Of those that begin with a name."""
        self._type_of_signature: dict[str, int] = {}
        self._slots: dict[Any, Slot] = {}
        self._source_of_key: dict[Any, int] = {}
        self._class_number: dict[ValueClass, int] = {}
        self._sites: dict[int, dict[str, None]] = {}
        self._arrays: EntryArrays | None = None
        self._was_read: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._graph_types: tuple[NodeType, ...] | None = None
        self.structures: Kept[Any, Any] = Kept(MOST)
        """Graphs of small mini-batches (`forward.structures`)."""
        self.programs = Programs()
        """Of calls on rows (`capture.ragged`)."""
        self.lock = threading.RLock()
        for name, signature in known:
            self._type_of_signature[signature] = len(self.types)
            self._known_names.append(name)
            self._names.add(name)
            self.types.append(None)
        self.num_known = len(self.types)
        self.fusions = Fusions(self, patterns)

    def slot(self, base: ValueClass, views: tuple[View, ...] = (), meta: torch.Tensor | None = None) -> Slot:
        """The one slot object for a base class and a chain of views whose result looks like `meta`."""
        text = str(base) + "".join(view.text for view in views)
        slot = self._slots.get(text)
        if slot is None:
            if meta is None:
                meta = torch.empty(base.shape, dtype=torch_dtype(base.dtype), device="meta")
            with self.lock:
                slot = self._slots.setdefault(text, Slot(base, views, meta.shape, meta.dtype, text))
        return slot

    def as_shown(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        """The slots of a node's operands, those of a reshaped value (`x.unsqueeze(0)`) as of a value of that shape: it
        is the same row of the same arena, so that both make nodes of one type."""
        return tuple(
            self.slot(ValueClass(tuple(slot.shape), slot.base.dtype)) if slot.views and slot.keeps_order else slot
            for slot in slots
        )

    def source(self, ref: SharedRef, tensor: torch.Tensor, kind: str = "row") -> int:
        """Number of the source that gives rows of (or the whole of) a parameter."""
        whole = class_of(tensor)
        value_class = ValueClass(whole.shape[1:], whole.dtype) if kind == "row" else whole
        return self._add_source(Source(kind, ref, value_class))

    def given_source(self, kind: str, value_class: ValueClass) -> int:
        """Number of the source of constants, or of a cell's operands, of one class."""
        return self._add_source(Source(kind, None, value_class))

    def drawn_source(self, draw: Draw, value_class: ValueClass) -> int:
        """Number of the source of random numbers of one distribution and class."""
        return self._add_source(Source("draw", None, value_class, draw))

    def _add_source(self, source: Source) -> int:
        with self.lock:
            number = self._source_of_key.setdefault(source, len(self.sources))
            if number == len(self.sources):
                self.sources.append(source)
            return number

    def add_type(self, draft: NodeType, sites: Iterable[str] = ()) -> int:
        """Index of the type with this signature, new or known, whose nodes (also) come from `sites`. Names are made
        unique by a number."""
        with self.lock:
            index = self._type_of_signature.get(draft.signature)
            if index is None and self._other_sizes:
                index = self._rebound(draft.signature)
            if index is None:
                index = self._type_of_signature[draft.signature] = len(self.types)
                self.types.append(replace(draft, name=self._unused_name(draft.name)))
                self._variant_of[index] = self._planned.get(without_dtypes(draft.signature), index)
                self._graph_types = None
            elif self.types[index] is None:
                self.types[index] = replace(draft, name=self._known_names[index])
                if self._other_dtypes:
                    self._planned[without_dtypes(draft.signature)] = index
                self._graph_types = None
            for site in sites:
                self.add_site(index, site)
            return index

    def index_of(self, signature: str) -> int | None:
        """Index of the type with a signature, None where the plan has none and nobody has recorded it."""
        return self._type_of_signature.get(signature)

    def add_planned(self, index: int, draft: NodeType, sites: Iterable[str]) -> int:
        """The plan's type of this index, known from now on, whatever its sizes."""
        with self.lock:
            self._type_of_signature[draft.signature] = index
            return self.add_type(draft, sites)

    def planned(self, index: int) -> int | None:
        """The type of the plan that a type is, or is a variant of."""
        index = self._variant_of.get(index, index)
        return index if index < self.num_known else None

    def _unused_name(self, wanted: str) -> str:
        name, number = wanted, self._last_number.get(wanted, 1)
        while name in self._names:
            number += 1
            name = f"{wanted}.{number}"
        self._names.add(name)
        self._last_number[wanted] = number
        return name

    def add_site(self, index: int, site: str) -> None:
        """One more call site of a type, definition (4); nothing happens when it is known."""
        with self.lock:
            sites, known = self._sites.setdefault(index, {}), self.types[index]
            if known is None or site in sites or len(sites) == MAX_COUNTED_SITES:
                return
            sites[site] = None
            first = tuple(itertools.islice(sites, MAX_SITES))
            self.types[index] = replace(known, sites=first, more_sites=len(sites) - len(first))
            self._graph_types = None

    def _rebound(self, signature: str) -> int | None:
        """The plan's type that this signature stands for in a model of other sizes; it stands for no other from now
        on. Raises StaleError when several types of the plan could be meant, unless one was met that differs from the
        plan's in dtypes only: sizes are the plan's then, and this is a type that the plan has not seen."""
        found = self._meant(signature)
        self._has_plans_sizes |= without_dtypes(signature) in map(without_dtypes, found)
        if len(found) > 1 and self._other_dtypes:
            found = found[:1]
        if len(found) > 1 and self._has_plans_sizes:
            return None
        if len(found) > 1:
            raise StaleError(
                f"type {signature}: expected one type of the plan that it could be at other sizes, got {found[0]} and "
                f"{found[1]}; compile again with these settings"
            )
        if not found:
            return None
        self._type_of_signature[signature] = index = self._type_of_signature.pop(found[0])
        return index

    def is_class_among(self, value_class: str, planned: Collection[str]) -> bool:
        """Whether a value class is one of those that a plan names, as the model may have other sizes or dtypes."""
        if value_class in planned or not self._other_sizes:
            return value_class in planned
        return self._read_class(value_class) in map(self._read_class, planned)

    def _meant(self, signature: str) -> list[str]:
        """Signatures of the plan's types, not recorded yet, that this one could stand for."""
        if not self._other_sizes:
            return []
        known = (text for text, i in self._type_of_signature.items() if i < self.num_known and self.types[i] is None)
        if self._same_sizes:
            wanted = without_dtypes(signature)
            return [text for text in known if without_dtypes(text) == wanted][:1]
        if not self._other_dtypes:
            return meant(signature, known)
        plain = {without_state(text): text for text in known}
        return [plain[text] for text in meant(without_state(signature), plain)]

    def add_entry(self, type_index: int, operation: Operation, output_slots: tuple[Slot, ...], outputs: Any,
                  is_sum: bool = False, demands: tuple[frozenset[int], ...] = (),
                  given: tuple[Slot, ...] = ()) -> Entry:  # fmt: skip
        """A new entry of a type."""
        with self.lock:
            flat = is_flat(outputs) and len(outputs) == len(output_slots)
            given = given or operation.slots
            entry = Entry(len(self.entries), type_index, operation, output_slots, outputs, is_sum, flat, given, demands)
            self.entries.append(entry)
            self.operation_of_type.setdefault(type_index, entry)
            return entry

    def is_planned(self, signature: str) -> bool:
        """True for the signature of a type that the plan knows, at these or at other sizes."""
        index = self._type_of_signature.get(signature)
        return bool(self._meant(signature)) if index is None else index < self.num_known

    def graph_types(self) -> tuple[NodeType, ...]:
        """All types in index order; one that the plan knows and nobody has recorded yet has an empty signature."""
        types = self._graph_types
        if types is None:
            with self.lock:
                types = self._graph_types = tuple(
                    t if t is not None else NodeType(self._known_names[i], "unused") for i, t in enumerate(self.types)
                )
        return types

    def was_read(self) -> NDArray[np.bool_]:
        """Of every entry, whether anybody has read a value of its nodes (`forward.cutting`); to be written to."""
        known = self._was_read
        if len(known) < len(self.entries):
            with self.lock:
                known = np.zeros(2 * len(self.entries), np.bool_)
                known[: len(self._was_read)] = self._was_read
                self._was_read = known
        return known

    def classes(self) -> tuple[ValueClass, ...]:
        """The value classes that `arrays` numbers."""
        return tuple(self._class_number)

    @property
    def num_classes(self) -> int:
        """How many there are."""
        return len(self._class_number)

    def arrays(self) -> EntryArrays:
        """Entries and sources as arrays; made anew only when there are new ones."""
        arrays = self._arrays
        if arrays is None or len(arrays.type_index) < len(self.entries) or len(arrays.source_class) < len(self.sources):
            with self.lock:
                arrays = self._arrays = self._new_arrays()
        return arrays

    def _new_arrays(self) -> EntryArrays:
        def number(value_class: ValueClass) -> int:
            return self._class_number.setdefault(value_class, len(self._class_number))

        known = self._arrays
        num_entries, num_sources = (0, 0) if known is None else (len(known.type_index), len(known.source_class))
        entries, slots = (
            self.entries[num_entries:],
            [slot for e in self.entries[num_entries:] for slot in e.output_slots],
        )
        new = (
            np.array([e.type_index for e in entries], np.int64),
            np.array([e.num_operands for e in entries], np.int64),
            np.array([len(e.output_slots) for e in entries], np.int64),
            np.array([e.is_sum for e in entries], np.bool_),
            np.array([number(e.output_slots[0].base) for e in entries], np.int64),
            np.cumsum([0, *[len(e.output_slots) for e in entries]]),
            np.array([number(slot.base) for slot in slots], np.int64),
            np.array([number(source.value_class) for source in self.sources[num_sources:]], np.int64),
        )
        if known is None:
            return EntryArrays(*new)
        type_index, num_operands, num_outputs, is_sum, output_class, class_ptr, output_classes, source_class = new
        return EntryArrays(
            np.concatenate([known.type_index, type_index]),
            np.concatenate([known.num_operands, num_operands]),
            np.concatenate([known.num_outputs, num_outputs]),
            np.concatenate([known.is_sum, is_sum]),
            np.concatenate([known.output_class, output_class]),
            np.concatenate([known.class_ptr, known.class_ptr[-1] + class_ptr[1:]]),
            np.concatenate([known.output_classes, output_classes]),
            np.concatenate([known.source_class, source_class]),
        )
