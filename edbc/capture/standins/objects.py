"""The caller's objects, walked: what instances reach through attributes, slots, dicts, lists, deques, sets and tuples.

Not entered are modules, classes, functions and tensors: what hangs on those is no part of an instance.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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


Pairs = list[tuple[Any, Any]]


class Holding(NamedTuple):
    """One way in which objects hold others, and may be changed in place: functions of such an object."""

    pairs: Callable[[Any], Iterable[tuple[Any, Any]]]
    """Keys and what stands there."""
    get: Callable[[Any, Any], Any]
    """What stands there, if anything does."""
    put: Callable[[Any, Any, Any], None]
    """Let something else stand there."""
    restore: Callable[[Any, Pairs], None]
    """Hold these and no others."""


def _restore_entries(of: Any, pairs: Pairs) -> None:
    of.clear()
    for key, value in pairs:
        dict.__setitem__(of, key, value)


def _restore_members(of: Any, pairs: Pairs) -> None:
    of.clear()
    of.update(value for _, value in pairs)


def _restore_items(of: Any, pairs: Pairs) -> None:
    of.clear()
    of.extend(value for _, value in pairs)


def _put_member(of: Any, key: Any, value: Any) -> None:
    of.discard(key)
    of.add(value)


ENTRIES = Holding(dict.items, dict.get, dict.__setitem__, _restore_entries)
"""A dict, of attributes too."""
ITEMS = Holding(enumerate, lambda of, key: of[key] if key < len(of) else None, operator.setitem, _restore_items)
"""A list or a deque."""
MEMBERS = Holding(
    lambda of: [(member, member) for member in of], lambda of, key: key if key in of else None, _put_member,
    _restore_members,
)  # fmt: skip
"""A set."""


def _slots(members: Sequence[Any]) -> Holding:
    """Attributes by `__slots__`."""

    def pairs(of: Any) -> Pairs:
        try:
            return [(member, member.__get__(of)) for member in members]
        except AttributeError:  # some are not set
            return [(member, member.__get__(of)) for member in members if _is_set(member, of)]

    def restore(of: Any, before: Pairs) -> None:
        for member, _ in pairs(of):
            member.__delete__(of)
        for member, value in before:
            member.__set__(of, value)

    return Holding(
        pairs, lambda of, key: key.__get__(of) if _is_set(key, of) else None,
        lambda of, key, value: key.__set__(of, value), restore,
    )  # fmt: skip


def _is_set(member: Any, of: Any) -> bool:
    try:
        member.__get__(of)
    except AttributeError:
        return False
    return True


class _Way(NamedTuple):
    """Into the objects of a class."""

    holdings: tuple[Holding, ...]
    """Of an object itself."""
    is_fixed: bool
    """Whether items never change: tuples and frozen sets."""
    has_attributes: bool
    """Whether objects have a dict of those."""


_NO_WAY = _Way((), False, False)


def _way(kind: type) -> _Way:
    if issubclass(kind, _CLOSED):
        return _NO_WAY
    contents = {dict: ENTRIES, list: ITEMS, deque: ITEMS, set: MEMBERS}
    holdings = [holding for base, holding in contents.items() if issubclass(kind, base)][:1]
    slots = [m for base in kind.__mro__ if "__slots__" in vars(base) for m in vars(base).values()]
    members = [m for m in slots if type(m) is MemberDescriptorType]
    holdings += [_slots(members)] if members else []
    return _Way(tuple(holdings), issubclass(kind, tuple | frozenset), kind.__dictoffset__ != 0)


_WAYS = Once(_way)
"""Of every class that has been met."""


Place = tuple[Holding, Any, Any, Any]
"""How something is held, by what, the key there, and what stands there."""


_ENTERED, _NOTED, _PLAIN = 1, 2, 4


class Sought(dict[type, int]):
    """Of every class that has been met, what a walk does with its objects: enter them, note their places, pass by empty
    ones (containers of Python's own: others are asked for nothing)."""

    def __init__(self, notes: Callable[[type], bool]):
        self.notes = notes

    def __missing__(self, kind: type) -> int:
        enters = _WAYS[kind] is not _NO_WAY
        found = self[kind] = enters | self.notes(kind) << 1 | (kind in (dict, list, set, tuple)) << 2
        return found


def walked(
    roots: Iterable[Any], seen: set[int], sought: Sought, met: list[tuple[Holding, Any]] | None = None
) -> list[Place]:
    """Where objects of the classes that are `sought` stand in what is reached from `roots` and was not `seen`, by the
    identities of objects, before. All that hold something are added to `met`. O(objects and what they hold)."""
    stack = list(roots)
    found: list[Place] = []
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        holdings, is_fixed, has_attributes = _WAYS[type(item)]
        if is_fixed:
            stack.extend(item)
        held: Any = [(holding, item) for holding in holdings] if holdings else ()
        if has_attributes and type(attributes := getattr(item, "__dict__", None)) is dict:
            held = (*held, (ENTRIES, attributes))
        for holding, of in held:
            if met is not None:
                met.append((holding, of))
            for key, value in holding.pairs(of):
                if what := sought[type(value)]:
                    if what & _NOTED:
                        found.append((holding, of, key, value))
                    if what & _ENTERED and (what < _PLAIN or value or met is not None):
                        stack.append(value)
            if holding is ENTRIES and of is item:
                stack += [key for key in dict.keys(item) if sought[type(key)]]
    return found


_NOTHING = Sought(lambda kind: False)


@contextmanager
def unchanged(instances: Iterable[Any]) -> Iterator[None]:
    """A context at whose end objects hold what they held before: forward runs, and what it leaves is taken away."""
    met: list[tuple[Holding, Any]] = []
    with NoGarbageCollection():
        walked(instances, set(), _NOTHING, met)
        before = [(holding, of, list(holding.pairs(of))) for holding, of in met]
    try:
        yield
    finally:
        for holding, of, pairs in before:
            if not _same(list(holding.pairs(of)), pairs):
                holding.restore(of, pairs)


def _same(now: Pairs, before: Pairs) -> bool:
    together = zip(now, before, strict=False)
    return len(now) == len(before) and all(k is key and v is value for (k, v), (key, value) in together)
