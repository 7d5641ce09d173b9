"""What instances return, taken apart: the values in it, and nests with a place for each."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.base.kept import Kept
from edbc.capture.semantics.shapes import flat
from edbc.capture.standins.made import Made, with_tensors
from edbc.capture.standins.nests import inside
from edbc.capture.standins.standin import Lazy, Shared, Slot, Symbol, Value
from edbc.capture.standins.unread import Later, Returned
from edbc.errors import UnsupportedError

if TYPE_CHECKING:
    from edbc.capture.forward.left import Left

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Result:
    """Place of output tensor `index` in what an instance returns."""

    index: int


@dataclass(frozen=True)
class Run:
    """Place of a list of output tensors, `start` to `stop`, or to the instance's last one: what most models return, one
    object for all of them."""

    start: int
    stop: int | None


@dataclass(slots=True)
class Stacked:
    """Place of one tensor whose rows are outputs `start` to `stop`, or to the instance's last one: a stack of them,
    which stand along dimension `at`."""

    start: int
    stop: int | None
    at: int = 0


def along(stack: torch.Tensor, at: int) -> torch.Tensor:
    """A stack with its rows along another dimension, the last one where there are no so many."""
    return stack.movedim(0, min(at, stack.ndim - 1)).contiguous()


def as_longs(numbers: Sequence[int] | Ints) -> Ints:
    """Python's integers as an array: an eighth faster than np.asarray, which asks each for its type first."""
    is_array = isinstance(numbers, np.ndarray)
    return np.asarray(numbers, np.int64) if is_array else np.fromiter(numbers, np.int64, len(numbers))


class Collected(NamedTuple):
    """Values in what instances returned: refs, slots, and the nests with a Result in each value's place, which counts
    from the instance's first one."""

    refs: Ints
    slots: list[Slot]
    nests: list[Any]
    result_ptr: list[int]
    """Where the values of each nest begin, and the end."""
    left: Left | None = None
    """What forward left on other objects: results that no nest has."""
    stacks: Sequence[tuple[int, int]] = ()
    """The ranges of all `Stacked`."""
    is_on_instances: bool = False
    """Whether it left something on instances that are captured."""


def collect_results(nests: Sequence[Any], in_stacks: bool = False) -> Collected:
    """Values in what the instances returned, in order, and the nests with a place for each. Stacks that are no nodes
    yet need not become any where results may stand `in_stacks`."""
    refs: list[int] = []
    slots: list[Slot] = []
    stacks: list[tuple[int, int]] = []
    result_ptr = [0]

    def run(values: list[Value]) -> Run:
        begin = len(refs) - result_ptr[-1]
        refs.extend([value.ref for value in values])
        slots.extend([value.slot for value in values])
        return Run(begin, begin + len(values))

    def stack(rows: Sequence[int], slot: Slot, at: int) -> Stacked:
        begin = len(refs) - result_ptr[-1]
        refs.extend(rows)
        slots.extend([slot] * len(rows))
        stacks.append((len(refs) - len(rows), len(refs)))
        return Stacked(begin, begin + len(rows), at)

    def walk(item: Any) -> Any:
        kind = type(item)
        if kind is Value:
            refs.append(item.ref)
            slots.append(item.slot)
            return Result(len(refs) - 1 - result_ptr[-1])
        if kind is list:
            return run(item) if item and [type(x) for x in item].count(Value) == len(item) else [walk(x) for x in item]
        if kind is tuple:
            return tuple([walk(x) for x in item])
        if kind is dict:
            return {key: walk(value) for key, value in item.items()}
        if kind is Shared:
            return walk(item.rec.whole(item))
        if kind is Made:
            return item.real()
        if issubclass(kind, Lazy):
            rows = item.rows() if in_stacks else None
            return walk(item.returned()) if rows is None else stack(*rows)
        return _walk_other(item, walk)

    results: list[Any] = []
    try:
        for item in nests:
            results.append(walk(item))
            result_ptr.append(len(refs))
    except RecursionError:
        raise UnsupportedError(
            "forward returned lists in lists deeper than Python's limit, or in a circle; return fewer levels"
        ) from None
    return Collected(as_longs(refs), slots, results, result_ptr, stacks=stacks)


def settled(item: Any, as_value: Callable[[Any], Any] | None) -> Any:
    """What an instance returned, with a value where something stands that must become a node; and where tensors stand,
    if they are to be values (`as_value`)."""
    kind = type(item)
    if as_value is not None and (kind is Made or kind is torch.Tensor):
        item = as_value(item)
        kind = type(item)
    if kind is Value or kind is Shared or kind is Made:
        return item
    if kind is list or kind is tuple:
        is_plain = [type(x) for x in item].count(Value) == len(item)
        return item if is_plain else kind([settled(x, as_value) for x in item])
    if kind is dict:
        return {key: settled(value, as_value) for key, value in item.items()}
    if issubclass(kind, Lazy):
        return item.returned() if item.rows() is None else item
    return _walk_other(item, partial(settled, as_value=as_value))


def filled(item: Any, tensors: Sequence[torch.Tensor], start: int, stop: int | None) -> Any:
    """A nest with tensors in its places, which count from `start`, the instance's last one before `stop`. The nest
    stays as it is."""
    kind = type(item)
    if kind is Result:
        return tensors[start + item.index]
    if kind is Run:
        return tensors[start + item.start : stop if item.stop is None else start + item.stop]
    if kind is Stacked:
        stack = tensors[start + item.start]
        return along(stack, item.at) if item.at else stack
    if kind is list:
        return [filled(x, tensors, start, stop) for x in item]
    if kind is tuple:
        return tuple([filled(x, tensors, start, stop) for x in item])
    if kind is dict:
        return {key: filled(value, tensors, start, stop) for key, value in item.items()}
    if isinstance(item, tuple | list | deque | dict):
        made = inside(lambda x: filled(x, tensors, start, stop), item)
        return made.read() if isinstance(made, Returned) else made
    if hasattr(item, "__dataclass_fields__") and not isinstance(item, type):
        item = copy.copy(item)
        for name in item.__dataclass_fields__:
            object.__setattr__(item, name, filled(getattr(item, name), tensors, start, stop))
    return item


def filler_of(nest: Any) -> Callable[[Sequence[Any], Iterable[tuple[int, int]]], list[Any]] | None:
    """`filled` of one nest between each pair of bounds, as code, which takes a fifth of the time; None for a nest that
    has more than plain lists, tuples and dicts of results."""
    known = _FILLERS.get(id(nest))
    if known is None:
        text = _text_of(nest, 0)
        fill = text and eval(f"lambda t, bounds: [{text} for i, j in bounds]", {"along": along})
        known = _FILLERS.add(id(nest), (nest, fill))
    return known[1]


_FILLERS: Kept[int, tuple[Any, Any]] = Kept(64)
_DEEPEST = 8
"""Levels of a nest that is filled by code."""


def _text_of(item: Any, depth: int) -> str | None:
    kind = type(item)
    if kind is Run:
        return f"t[i + {item.start} : {'j' if item.stop is None else f'i + {item.stop}'}]"
    if kind is Result:
        return f"t[i + {item.index}]"
    if kind is Stacked:
        stack = f"t[i + {item.start}]"
        return f"along({stack}, {item.at})" if item.at else stack
    if kind not in (list, tuple, dict) or depth == _DEEPEST:
        return None
    parts = [_text_of(part, depth + 1) for part in (item.values() if kind is dict else item)]
    if None in parts or (kind is dict and {*map(type, item)} - {str}):
        return None
    if kind is dict:
        return f"{{{', '.join(f'{key!r}: {part}' for key, part in zip(item, parts, strict=True))}}}"
    inside = "".join(f"{part}, " for part in parts)
    return f"[{inside}]" if kind is list else f"({inside})"


def _walk_other(item: Any, walk: Callable[[Any], Any]) -> Any:
    """Results that are neither tensors nor plain lists, tuples and dicts."""
    if isinstance(item, torch.Tensor):
        return item
    if issubclass(type(item), Later):
        return item.now
    if isinstance(item, tuple | list | deque | dict):
        return inside(walk, item)
    if isinstance(item, Mapping):
        return {key: walk(value) for key, value in item.items()}
    if isinstance(item, Iterator) or (isinstance(item, set | frozenset) and any(isinstance(x, Symbol) for x in item)):
        raise UnsupportedError(
            f"forward returned a {type(item).__name__}, whose tensors have no place of their own; return them in "
            "lists, tuples, dicts, named tuples or dataclasses"
        )
    if hasattr(item, "__dataclass_fields__") and not isinstance(item, type):
        result = copy.copy(item)
        for name in item.__dataclass_fields__:
            object.__setattr__(result, name, walk(getattr(item, name)))
        return result
    held = [x for x in flat(getattr(item, "__dict__", {})) if isinstance(x, Symbol)]
    if held and all(type(x) is Made for x in held):
        item.__dict__.update(with_tensors(item.__dict__))
    elif held:
        raise UnsupportedError(
            f"forward returned an object of class {type(item).__name__} that holds recorded tensors; return the "
            "tensors in lists, tuples, dicts, named tuples or dataclasses"
        )
    return item
