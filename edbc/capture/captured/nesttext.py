"""What an instance returns, as text: JSON in which places of tensors, tuples and objects are tagged lists.

A place of a tensor is its number among the instance's results. With what forward assigns to attributes of the model
it is `["w", [[path, name], ...], nest, nest of each, ...]`. Lists and dicts of Python, tuples, named tuples,
dataclasses, ordered dicts and deques hold places, None, numbers and strings; keys of dicts are these or tuples of them.
What holds anything else has no text.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from edbc.capture.forward.returned import Result, Run, Stacked
from edbc.capture.standins.nests import TAKE_A_LIST
from edbc.capture.standins.standin import Shared
from edbc.errors import InputError, UnsupportedError

_PLAIN = (bool, int, float, str, type(None))


Assignments = Sequence[tuple[str, str, Any]]
"""Attributes of the model that forward assigns nests to: path of a module, name, nest."""


def text_of(nest: Any, num_results: int, number_of_class: Callable[[type], int], assigned: Assignments = ()) -> str:
    """The text of a nest of so many results: one text for whatever number there is where one list or stack holds all
    of them. Raises UnsupportedError for what has none."""
    tagged = _tagged(nest, num_results, number_of_class, "returned")
    names = [[path, name] for path, name, _ in assigned]
    nests = [_tagged(of, num_results, number_of_class, "keeps on the model") for _, _, of in assigned]
    return json.dumps(["w", names, tagged, *nests] if assigned else tagged)


_WRONG = ValueError, TypeError, KeyError, IndexError, RecursionError
"""What texts of no nest raise."""
_NUMBERS = {"r": 1, "s": 2, "k": 3}
"""Behind the tags of results: where, or from where, to where (None: the last), and along which dimension."""
_MANY = 1 << 31
"""More results and classes than there are."""


def _tagged(item: Any, count: int, number: Callable[[type], int], done: str) -> Any:
    """`done` is what forward did with it, in messages."""
    kind = type(item)
    if kind is Result:
        return ["r", item.index]
    if kind is Run or kind is Stacked:
        is_of_all, at = item.start == 0 and item.stop == count, [item.at] if kind is Stacked and item.at else []
        return ["s" if kind is Run else "k", item.start, *([None] * len(at) if is_of_all else [item.stop]), *at]
    if kind is list:
        return ["l", *[_tagged(x, count, number, done) for x in item]]
    if kind is tuple:
        return ["t", *[_tagged(x, count, number, done) for x in item]]
    if kind is dict and all(map(_is_key, item)):
        keys = [_tagged(key, count, number, done) for key in item]
        return ["d", keys, [_tagged(x, count, number, done) for x in item.values()]]
    if kind in _PLAIN:
        return item
    if kind is Shared:
        raise UnsupportedError(f"forward {done} a parameter, which a captured instance does not hold")
    parts = _parts(item)
    if parts is None:
        raise UnsupportedError(
            f"forward {done} an object of class {kind.__name__}, which a captured instance does not hold; make it "
            "tensors, numbers and strings in lists, tuples, dicts, named tuples or dataclasses"
        )
    return ["o", number(kind), *[_tagged(x, count, number, done) for x in parts]]


def _is_key(item: Any) -> bool:
    """Whether it is plain, or a tuple of what is (`messages[i, j]`)."""
    return type(item) in _PLAIN or (type(item) is tuple and all(map(_is_key, item)))


def _parts(item: Any) -> list[Any] | None:
    """What makes up an object of a class that can be made anew; None for others."""
    kind = type(item)
    if isinstance(item, tuple) and (kind in TAKE_A_LIST or not getattr(item, "__dict__", None)):
        return list(item)
    if kind is deque:
        return [item.maxlen, *item]
    if kind is OrderedDict:
        return [x for pair in item.items() for x in pair]
    fields = getattr(kind, "__dataclass_fields__", None)
    if fields is not None and set(getattr(item, "__dict__", ())) <= set(fields):
        return [getattr(item, name) for name in fields]
    return None


@lru_cache(maxsize=4096)
def _json(text: str) -> Any:
    return json.loads(text)


def nest_of(text: str, classes: Sequence[type]) -> tuple[Any, Assignments]:
    """The nest with this text, and what is assigned; classes by number. Both are never changed, so they may be made
    once."""
    names, *nests = _whole(_json(text))
    made = [_nest(item, classes) for item in nests]
    return made[0], [(*pair, nest) for pair, nest in zip(names, made[1:], strict=True)]


def _whole(item: Any) -> list[Any]:
    """What is assigned to, the nest, and the nests assigned."""
    return item[1:] if type(item) is list and item[:1] == ["w"] else [[], item]


def _nest(item: Any, classes: Sequence[type]) -> Any:
    if type(item) is not list:
        return item
    tag, rest = item[0], item[1:]
    if tag in ("s", "k"):
        return (Run if tag == "s" else Stacked)(*rest, *[None] * (len(rest) == 1))
    if tag == "r":
        return Result(*rest)
    if tag == "d":
        return {_nest(key, classes): _nest(x, classes) for key, x in zip(*rest, strict=True)}
    if tag == "o":
        return _made(classes[rest[0]], [_nest(x, classes) for x in rest[1:]])
    parts = [_nest(x, classes) for x in rest]
    return parts if tag == "l" else tuple(parts)


def _made(kind: type, parts: list[Any]) -> Any:
    if kind is deque:
        return deque(parts[1:], parts[0])
    if kind is OrderedDict:
        return OrderedDict(zip(parts[::2], parts[1::2], strict=True))
    if kind in TAKE_A_LIST:
        return kind(parts)
    if issubclass(kind, tuple):
        return tuple.__new__(kind, parts)
    made = object.__new__(kind)
    for name, part in zip(kind.__dataclass_fields__, parts, strict=True):  # type: ignore[attr-defined]
        object.__setattr__(made, name, part)
    return made


def require_text(text: Any, num_results: int, num_classes: int) -> str:
    """The text, if it is that of a nest whose places there are, none of them both in a stack and elsewhere. Raises
    InputError."""
    try:
        places: list[tuple[str, int, int]] = []
        names, *nests = _whole(_json(text))
        need(len(nests) == 1 + len(names) and all(len(x) == 2 and set(map(type, x)) == {str} for x in names))
        for nest in nests:
            _check(nest, num_results, num_classes, places)
        stacked = [i for tag, start, stop in places if tag == "k" for i in range(start, stop)]
        need(len(set(stacked)) == len(stacked))
        if stacked:
            need(set(stacked).isdisjoint(i for tag, start, stop in places if tag != "k" for i in range(start, stop)))
    except _WRONG:
        raise InputError(
            f"a captured instance: expected the text of a nest of {num_results} results; capture it again"
        ) from None
    return str(text)


def is_of_all(text: str) -> bool:
    """Whether a text is that of a nest of any number of results but none."""
    places: list[tuple[str, int, int]] = []
    try:
        _check(_json(text), _MANY, _MANY, places)
    except _WRONG:
        return False
    return [place[1:] for place in places] == [(0, _MANY)]


def need(holds: bool) -> None:
    """Raise ValueError unless what somebody's bytes say holds."""
    if not holds:
        raise ValueError


def _check(item: Any, num_results: int, num_classes: int, places: list[tuple[str, int, int]]) -> None:
    if type(item) is not list:
        need(type(item) in _PLAIN)
        return
    tag, rest = item[0], item[1:]
    if tag in ("r", "s", "k"):
        need(1 <= len(rest) <= _NUMBERS[tag] and all(type(x) is int for x in (rest[0], *rest[2:])))
        stop = rest[1] if rest[1:] and rest[1] is not None else num_results
        need(type(stop) is int and min(rest[2:], default=0) >= 0)
        start, stop = rest[0], rest[0] + 1 if tag == "r" else stop
        need(0 <= start <= stop <= num_results and (tag == "s" or start < stop))
        places.append((tag, start, stop))
    elif tag == "d":
        keys, values = rest
        need(len(keys) == len(values) and all(map(_is_key, (_nest(key, ()) for key in keys))))
        for x in values:
            _check(x, num_results, num_classes, places)
    else:
        need(tag in ("l", "t", "o"))
        if tag == "o":
            need(type(rest[0]) is int and 0 <= rest[0] < num_classes)
            rest = rest[1:]
        for x in rest:
            _check(x, num_results, num_classes, places)


class Numbers(dict[Any, int]):
    """Numbers for keys in the order in which they are first asked for."""

    def __missing__(self, key: object) -> int:
        return self.setdefault(key, len(self))


def nest_in(text: str, numbers: Mapping[int, int]) -> str:
    """The text with other numbers of classes."""
    return text if '"o"' not in text else json.dumps(_renumbered(_json(text), numbers))


def _renumbered(item: Any, numbers: Mapping[int, int]) -> Any:
    if type(item) is not list:
        return item
    if item[0] == "d":
        return ["d", item[1], [_renumbered(x, numbers) for x in item[2]]]
    if item[0] == "w":
        return [*item[:2], *[_renumbered(x, numbers) for x in item[2:]]]
    if item[0] == "o":
        return ["o", numbers[item[1]], *[_renumbered(x, numbers) for x in item[2:]]]
    return [_renumbered(x, numbers) for x in item]


def stacks_in(nest: Any) -> list[tuple[int, int | None]]:
    """The ranges of all `Stacked` in a nest, in ascending order."""
    found: list[tuple[int, int | None]] = []

    def walk(item: Any) -> None:
        if type(item) is Stacked:
            found.append((item.start, item.stop))
        for x in item.values() if type(item) is dict else _parts(item) or () if type(item) is not list else item:
            walk(x)

    walk(nest)
    return sorted(found)
