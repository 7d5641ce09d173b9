"""Nests: what user code puts tensors into and gets tensors in, taken apart and built again of the same classes."""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

TAKE_A_LIST = frozenset((torch.Size, *torch.return_types.all_return_types))
"""Classes of torch that are tuples in C, with a form of their own."""


def rebuilt(nest: Any, parts: Iterable[Any]) -> Any:
    """A tuple, list, deque, or one of a class derived from these, with other parts: of the same class, and with the
    same attributes."""
    kind = type(nest)
    if kind is tuple or kind is list or kind in TAKE_A_LIST:
        return kind(list(parts))
    if hasattr(kind, "of_parts"):
        return kind.of_parts(list(parts))
    if isinstance(nest, list | deque):
        result = copy.copy(nest)
        result.clear()
        result.extend(parts)
        return result
    result = tuple.__new__(kind, parts)
    if hasattr(nest, "__dict__"):
        result.__dict__.update(nest.__dict__)
    return result


def remade(nest: dict[Any, Any], parts: Iterable[Any]) -> Any:
    """A dict, or one of a class derived from it, with other values."""
    values = dict(zip(nest, parts, strict=True))
    if type(nest) is dict:
        return values
    result = copy.copy(nest)
    for key, value in values.items():
        result[key] = value
    return result


def mapped(function: Callable[[Any], Any], nest: Any) -> Any:
    """A nest of tuples, lists and dicts, of no derived classes, with what a function gives for each thing in it."""
    kind = type(nest)
    if kind is tuple or kind is list:
        return kind([mapped(function, item) for item in nest])
    return {key: mapped(function, item) for key, item in nest.items()} if kind is dict else function(nest)


def inside(function: Callable[[Any], Any], nest: Any) -> Any:
    """A tuple, list, deque or dict, or one of a class derived from these, with what a function gives for each thing in
    it; anything else as it is. The function may go on inside of those."""
    if isinstance(nest, tuple | list | deque):
        return rebuilt(nest, [function(item) for item in nest])
    return remade(nest, [function(item) for item in nest.values()]) if isinstance(nest, dict) else nest


def is_plain(item: Any) -> bool:
    """Whether something is a number, a text, None, or lists and tuples of such."""
    if isinstance(item, list | tuple):
        return all(map(is_plain, item))
    return isinstance(item, int | float | str | None)


@functools.cache
def is_named(kind: Any) -> bool:
    """Whether tuples of a class have names for their items, and nothing else that code could ask them for."""
    fields = getattr(kind, "_fields", None)
    public = {name for name in vars(kind) if not name.startswith("_")}
    return kind.__mro__ == (kind, tuple, object) and fields is not None and public == set(fields)


def is_of_texts(key: Any) -> bool:
    """Whether what names an entry of a dict is a text, or some in a tuple, as kinds of edges between kinds of nodes."""
    return type(key) is str or (type(key) is tuple and all(type(part) is str for part in key))


def places_once(addresses: Sequence[Any]) -> tuple[int, ...]:
    """Which of several things each is, in the order in which they come first; nothing where none comes twice."""
    once = dict.fromkeys(addresses)
    if len(once) == len(addresses):
        return ()
    places = {one: place for place, one in enumerate(once)}
    return tuple([places[one] for one in addresses])
