"""The caller's objects, walked: what instances reach through attributes, slots, dicts, lists, deques, sets and tuples.

Not entered are modules, classes, functions and tensors: what hangs on those is no part of an instance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from edbc.base.garbage import NoGarbageCollection
from edbc.base.kept import Once
from edbc.capture.standins.standin import Symbol


class Closed:
    """What holds nothing of a caller's, and is not entered."""

    __slots__ = ()


_CLOSED = (
    Closed, bool, int, float, complex, str, bytes, bytearray, type(None), type, range, slice, ModuleType, FunctionType,
    BuiltinFunctionType, MethodType, np.ndarray, np.generic, torch.Tensor, torch.dtype, nn.Module, Symbol,
)  # fmt: skip


class Holder:
    """What may be changed in place: one way in which an object holds others."""

    __slots__ = ("of",)

    def __init__(self, of: Any):
        self.of = of

    def items(self) -> list[tuple[Any, Any]]:
        """Keys and what stands there."""
        raise NotImplementedError

    def get(self, key: Any) -> Any:
        """What stands there, if anything does."""
        raise NotImplementedError

    def put(self, key: Any, value: Any) -> None:
        """Let something else stand there."""
        self.of[key] = value

    def restore(self, items: list[tuple[Any, Any]]) -> None:
        """Hold these items and no others."""
        raise NotImplementedError


class Entries(Holder):
    """A dict, of attributes too."""

    __slots__ = ()

    def items(self) -> list[tuple[Any, Any]]:
        return list(dict.items(self.of))

    def get(self, key: Any) -> Any:
        return dict.get(self.of, key)

    def put(self, key: Any, value: Any) -> None:
        dict.__setitem__(self.of, key, value)

    def restore(self, items: list[tuple[Any, Any]]) -> None:
        self.of.clear()
        for key, value in items:
            self.put(key, value)


class Items(Holder):
    """A list or a deque."""

    __slots__ = ()

    def items(self) -> list[tuple[Any, Any]]:
        return list(enumerate(self.of))

    def get(self, key: Any) -> Any:
        return self.of[key] if key < len(self.of) else None

    def restore(self, items: list[tuple[Any, Any]]) -> None:
        self.of.clear()
        self.of.extend(value for _, value in items)


class Members(Holder):
    """A set."""

    __slots__ = ()

    def items(self) -> list[tuple[Any, Any]]:
        return [(member, member) for member in self.of]

    def get(self, key: Any) -> Any:
        return key if key in self.of else None

    def put(self, key: Any, value: Any) -> None:
        self.of.discard(key)
        self.of.add(value)

    def restore(self, items: list[tuple[Any, Any]]) -> None:
        self.of.clear()
        self.of.update(value for _, value in items)


class Slots(Holder):
    """Attributes by `__slots__`."""

    __slots__ = ()

    def items(self) -> list[tuple[Any, Any]]:
        slots = _WAYS[type(self.of)].slots
        try:
            return [(member, member.__get__(self.of)) for member in slots]
        except AttributeError:  # some are not set
            return [(member, member.__get__(self.of)) for member in slots if _is_set(member, self.of)]

    def get(self, key: Any) -> Any:
        return key.__get__(self.of) if _is_set(key, self.of) else None

    def put(self, key: Any, value: Any) -> None:
        key.__set__(self.of, value)

    def restore(self, items: list[tuple[Any, Any]]) -> None:
        for member, _ in self.items():
            member.__delete__(self.of)
        for member, value in items:
            self.put(member, value)


def _is_set(member: Any, of: Any) -> bool:
    try:
        member.__get__(of)
    except AttributeError:
        return False
    return True


class _Way(NamedTuple):
    """Into the objects of a class: what holds its items, and which slots it has."""

    content: Callable[[Any], Holder] | None
    is_fixed: bool
    """Whether items never change: tuples and frozen sets."""
    slots: tuple[Any, ...]
    has_attributes: bool


_NO_WAY = _Way(None, False, (), False)


def _way(kind: type) -> _Way:
    if issubclass(kind, _CLOSED):
        return _NO_WAY
    makers: dict[Any, Callable[[Any], Holder]] = {dict: Entries, list: Items, deque: Items, set: Members}
    content = next((make for base, make in makers.items() if issubclass(kind, base)), None)
    slots = [m for base in kind.__mro__ if "__slots__" in vars(base) for m in vars(base).values()]
    members = tuple(m for m in slots if type(m) is MemberDescriptorType)
    return _Way(content, issubclass(kind, tuple | frozenset), members, kind.__dictoffset__ != 0)


_WAYS = Once(_way)
"""Of every class that has been met."""


Place = tuple[Holder, Any, Any]
"""A holder, the key there, and what stands there."""


class Sought(dict[type, int]):
    """Of every class that has been met, what a walk does with its objects: enter them, note their places, pass by empty
    ones (containers of Python's own: others are asked for nothing)."""

    ENTERED, NOTED, PLAIN = 1, 2, 4

    def __init__(self, notes: Callable[[type], bool]):
        self.notes = notes

    def __missing__(self, kind: type) -> int:
        enters = _WAYS[kind] is not _NO_WAY
        found = self[kind] = enters | self.notes(kind) << 1 | (kind in (dict, list, set, tuple)) << 2
        return found


def walked(roots: Iterable[Any], seen: set[int], sought: Sought, met: list[Holder] | None = None) -> list[Place]:
    """Where objects of the classes that are `sought` stand in what is reached from `roots` and was not `seen`, by the
    identities of objects, before. All holders are added to `met`. O(objects and what they hold)."""
    stack = list(roots)
    found: list[Place] = []
    while stack:
        item = stack.pop()
        way = _WAYS[type(item)]
        if way is _NO_WAY or id(item) in seen:
            continue
        seen.add(id(item))
        if way.is_fixed:
            stack.extend(item)
        for make, of, pairs in _held(item, way):
            if met is not None:
                met.append(make(of))
            for key, value in pairs:
                what = sought[type(value)]
                if what:
                    if what & Sought.NOTED:
                        found.append((make(of), key, value))
                    if what & Sought.ENTERED and (what < Sought.PLAIN or value or met is not None):
                        stack.append(value)
        if way.content is Entries:
            stack += [key for key in dict.keys(item) if sought[type(key)]]
    return found


def _held(item: Any, way: _Way) -> Iterator[tuple[Callable[[Any], Holder], Any, Iterable[tuple[Any, Any]]]]:
    """What makes each holder of an object, of what, and keys and values there."""
    if way.content is not None:
        yield way.content, item, dict.items(item) if way.content is Entries else way.content(item).items()
    if way.slots:
        yield Slots, item, Slots(item).items()
    attributes = getattr(item, "__dict__", None) if way.has_attributes else None
    if type(attributes) is dict:
        yield Entries, attributes, attributes.items()


_NOTHING = Sought(lambda kind: False)


@contextmanager
def unchanged(instances: Iterable[Any]) -> Iterator[None]:
    """A context at whose end objects hold what they held before: forward runs, and what it leaves is taken away."""
    met: list[Holder] = []
    with NoGarbageCollection():
        walked(instances, set(), _NOTHING, met)
        before = [(holder, holder.items()) for holder in met]
    try:
        yield
    finally:
        for holder, items in before:
            if not _same(holder.items(), items):
                holder.restore(items)


def _same(now: list[tuple[Any, Any]], before: list[tuple[Any, Any]]) -> bool:
    pairs = zip(now, before, strict=False)
    return len(now) == len(before) and all(k is key and v is value for (k, v), (key, value) in pairs)
