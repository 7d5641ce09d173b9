"""Types, slots and sources: what recording has learned so far. One table serves all recorders of a bound model.

Definitions.

(1) An *entry* is one way in which nodes of a type are recorded: a callable and the slots of its operands. Several
    entries may make one type (sums of two and of three operands are two entries of the type `sum`).
(2) A *source* is where externals come from: rows of a parameter, a whole parameter, or constants given by the
    instances.
(3) A *template* is a nest of tuples, lists and dicts with a `Hole` where an operand goes and a `SharedRef` where a
    parameter goes. What a type does is a callable and a template, so that it can run on other values: symbols, meta
    tensors, batches.

Types are told apart by the text of their signature, so a plan's types and the types met at run time compare equal
when they would compute the same. Adding is guarded by a lock; reading is not, because entries never change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from edbc.errors import StaleError
from edbc.graph import NodeType, ValueClass
from edbc.trace.values import Slot, torch_dtype


class Hole(NamedTuple):
    """Place of operand (or output) `index` in a template."""

    index: int

    def __repr__(self) -> str:
        return "_"


class SharedRef(NamedTuple):
    """Place of a parameter or buffer in a template, by its dotted name, with the views taken of it."""

    name: str
    views: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return self.name + "".join(view.text for view in self.views)


class View(NamedTuple):
    """One step of a chain of views: `function(template filled with the value)[index]`, or without an index."""

    function: Callable[..., Any]
    template: Any
    index: int | None
    text: str

    def apply(self, value: Any) -> Any:
        """The view of `value`."""
        args, kwargs = fill(self.template, [value])
        result = self.function(*args, **kwargs)
        return result if self.index is None else result[self.index]


def fill(template: Any, holes: Iterable[Any], shared: Callable[[SharedRef], Any] | None = None) -> Any:
    """The template with its holes filled: `Hole(i)` by `holes[i]`, a SharedRef by `shared(ref)`."""
    values = holes if isinstance(holes, list | tuple) else list(holes)

    def walk(item: Any) -> Any:
        kind = type(item)
        if kind is Hole:
            return values[item.index]
        if kind is SharedRef:
            return shared(item) if shared is not None else item
        if kind is tuple or kind is list:
            return kind(map(walk, item))
        if kind is dict:
            return {key: walk(value) for key, value in item.items()}
        if isinstance(item, tuple) and hasattr(item, "_fields"):
            return type(item)(*map(walk, item))
        return item

    return walk(template)


@dataclass(frozen=True)
class Source:
    """Definition (2). `kind`: `row` (an external is row `index`), `whole` (the parameter) or `constant`."""

    kind: str
    ref: SharedRef | None
    value_class: ValueClass


@dataclass(frozen=True, eq=False)
class Operation:
    """What a node of a type computes: a cell (module by dotted name) or a torch function, over a template."""

    kind: str
    """`cell`, `module` (a leaf of torch.nn), `function`."""
    name: str
    call: Callable[..., Any] | None
    """The torch function; None for cells and modules, which are looked up by name."""
    template: Any
    slots: tuple[Slot, ...]


@dataclass(frozen=True, eq=False)
class Entry:
    """Definition (1). `outputs` fills with the new node's values to give what the user's call returns."""

    index: int
    type_index: int
    operation: Operation
    output_slots: tuple[Slot, ...]
    outputs: Any
    is_sum: bool
    """True when the node adds operands of one slot: a candidate for a segment sum."""
    flat: bool
    """True when the call returns a plain tuple of all its outputs in order."""

    @property
    def num_operands(self) -> int:
        """Operands of a node recorded through this entry."""
        return len(self.operation.slots)


class TypeTable:
    """See the module's docstring. Starts with the types of a plan, in the plan's order, when there is one.

    `matches(plan's signature, signature)` lets a plan serve a model of other sizes: what has no exact type takes the one
    that matches.
    """

    def __init__(self, known: Iterable[tuple[str, str]] = (), matches: Callable[[str, str], bool] | None = None):
        self._matches = matches
        self.entries: list[Entry] = []
        self.types: list[NodeType | None] = []
        self.sources: list[Source] = []
        self.operation_of_type: dict[int, Entry] = {}
        self._known_names: list[str] = []
        self._type_of_signature: dict[str, int] = {}
        self._slots: dict[Any, Slot] = {}
        self._source_of_key: dict[Any, int] = {}
        self._lock = threading.RLock()
        for name, signature in known:
            self._type_of_signature[signature] = len(self.types)
            self._known_names.append(name)
            self.types.append(None)
        self.num_known = len(self.types)

    def slot(self, base: ValueClass, views: tuple[View, ...] = (), meta: torch.Tensor | None = None) -> Slot:
        """The one slot object for a base class and a chain of views whose result looks like `meta`."""
        text = str(base) + "".join(view.text for view in views)
        slot = self._slots.get(text)
        if slot is None:
            if meta is None:
                meta = torch.empty(base.shape, dtype=torch_dtype(base.dtype), device="meta")
            with self._lock:
                slot = self._slots.setdefault(text, Slot(base, views, meta.shape, meta.dtype, text))
        return slot

    def source(self, ref: SharedRef, tensor: torch.Tensor, kind: str = "row") -> int:
        """Number of the source that gives rows of (or the whole of) a parameter."""
        from edbc.trace.values import class_of

        whole = class_of(tensor)
        value_class = ValueClass(whole.shape[1:], whole.dtype) if kind == "row" else whole
        return self._add_source(Source(kind, ref, value_class))

    def constant_source(self, value_class: ValueClass) -> int:
        """Number of the source of constants of one class."""
        return self._add_source(Source("constant", None, value_class))

    def _add_source(self, source: Source) -> int:
        with self._lock:
            number = self._source_of_key.setdefault(source, len(self.sources))
            if number == len(self.sources):
                self.sources.append(source)
            return number

    def add_type(self, base_name: str, op: str, operands: tuple[ValueClass, ...], outputs: tuple[ValueClass, ...],
                 constants: str = "", variadic: bool = False, source: str = "") -> int:  # fmt: skip
        """Index of the type with this signature, new or known. Names are made unique by a number."""
        draft = NodeType(base_name, op, operands, outputs, constants, variadic, source)
        with self._lock:
            index = self._type_of_signature.get(draft.signature)
            if index is None and self._matches is not None:
                index = self._rebound(draft.signature)
            if index is not None and self.types[index] is not None:
                return index
            if index is not None:
                name = self._known_names[index]
                self.types[index] = NodeType(name, op, operands, outputs, constants, variadic, source)
                return index
            taken = {*self._known_names, *(t.name for t in self.types if t is not None)}
            name, number = base_name, 1
            while name in taken:
                number += 1
                name = f"{base_name}.{number}"
            self._type_of_signature[draft.signature] = len(self.types)
            self.types.append(NodeType(name, op, operands, outputs, constants, variadic, source))
            return len(self.types) - 1

    def _rebound(self, signature: str) -> int | None:
        """The plan's type that this signature stands for in a model of other sizes, by `matches`; it stands for no other
        from now on. Raises StaleError when several types of the plan could be meant."""
        assert self._matches is not None
        known = {text: i for text, i in self._type_of_signature.items() if i < self.num_known and self.types[i] is None}
        found = [text for text in known if self._matches(text, signature)]
        if len(found) > 1:
            raise StaleError(
                f"type {signature}: expected one type of the plan that it could be at other sizes, got {found[0]} and "
                f"{found[1]}; compile again with these settings"
            )
        if not found:
            return None
        self._type_of_signature[signature] = self._type_of_signature.pop(found[0])
        return known[found[0]]

    def add_entry(self, type_index: int, operation: Operation, output_slots: tuple[Slot, ...], outputs: Any,
                  is_sum: bool = False) -> Entry:  # fmt: skip
        """A new entry of a type."""
        with self._lock:
            flat = outputs == tuple(Hole(i) for i in range(len(output_slots)))
            entry = Entry(len(self.entries), type_index, operation, output_slots, outputs, is_sum, flat)
            self.entries.append(entry)
            self.operation_of_type.setdefault(type_index, entry)
            return entry

    def graph_types(self, names: Iterable[str] = ()) -> tuple[NodeType, ...]:
        """All types in index order; one that the plan knows and nobody has recorded yet has an empty signature."""
        return tuple(t if t is not None else NodeType(self._known_names[i], "unused") for i, t in enumerate(self.types))
