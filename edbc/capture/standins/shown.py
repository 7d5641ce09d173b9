"""An instance as `forward` gets it whose record is to serve others: with stand-ins in the place of what differs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from edbc.capture.ragged.program import CannotKeep
from edbc.capture.ragged.symbols import METHODS
from edbc.capture.standins.nests import rebuilt

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder


class Noted(dict[str, Any]):
    """A dict of the instance's that notes the names by which it is `read`: all of them by whoever does more than ask
    for an item by its name."""

    __slots__ = ("read",)

    def __init__(self, items: dict[str, Any]):
        super().__init__(items)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """See dict."""
        self.read.add(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:  # without it `dict(item)` and `f(**item)` would take what is there unseen
        return super().__iter__()


def _of_all(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def ask(self: Noted, *args: Any, **kwargs: Any) -> Any:
        self.read.update(dict.keys(self))
        return method(self, *args, **kwargs)

    return ask


for _name in ("values items copy pop popitem setdefault update clear __eq__ __ne__ __or__ __ror__ __ior__ __repr__ "
              "__reduce_ex__ __setitem__ __delitem__").split():  # fmt: skip
    setattr(Noted, _name, _of_all(_name))


class Unseen:
    """Stands for an item of a tuple that nobody has asked anything so far: it notes that somebody does, and raises
    CannotKeep."""

    __slots__ = ("is_seen",)


def _see(self: Unseen, *_: Any, **__: Any) -> NoReturn:
    object.__setattr__(self, "is_seen", True)
    raise CannotKeep


for _name in (*METHODS, "getattribute", "setattr", "len", "iter", "next", "contains", "getitem", "setitem", "call",
              "complex", "matmul", "rmatmul", "enter", "array"):  # fmt: skip
    setattr(Unseen, f"__{_name}__", _see)


def is_seen(item: Unseen) -> bool:
    """Whether somebody has asked it."""
    try:
        return bool(object.__getattribute__(item, "is_seen"))
    except AttributeError:
        return False


class Shown:
    """Copies of one instance's nests, in which the methods `of_...` say what stands for leaves."""

    def __init__(self, rec: Recorder):
        self.rec = rec
        self.made: list[tuple[Any, list[Any]]] = []
        """Lists and dicts, and what stands in them."""
        self.objects: dict[int, Any] = {}
        """Copies by the addresses of objects: of one that an instance has in two places there is one."""

    def of_tensor(self, item: torch.Tensor) -> Any:
        """What stands for a tensor."""
        raise NotImplementedError

    def of_array(self, item: np.ndarray) -> Any:
        """What stands for an array of NumPy's."""
        return item

    def of_numbers(self, item: list[Any]) -> Any:
        """What stands for a list; None for one that is a nest like others."""
        return None

    def of_integer(self, value: int) -> Any:
        """What stands for an integer."""
        return value

    def of_real(self, value: float) -> Any:
        """What stands for a float."""
        return value

    def of_size(self, value: int) -> Any:
        """What stands for an integer of an object."""
        return self.of_integer(value)

    def of_dict(self, item: dict[Any, Any]) -> dict[Any, Any]:
        """A copy of a dict."""
        return {key: self.of(x) for key, x in item.items()}

    def of(self, item: Any) -> Any:
        """One item of the instance."""
        kind = type(item)
        if kind is torch.Tensor:
            return self.of_tensor(item)
        if kind is np.ndarray:
            return self.of_array(item)
        if kind is int:
            return self.of_integer(item)
        if kind is float:
            return self.of_real(item)
        if kind is list and item and (numbers := self.of_numbers(item)) is not None:
            return numbers
        if kind is dict:
            found: Any = self.of_dict(item)
            self.made.append((found, [*dict.keys(found), *dict.values(found)]))
            return found
        if issubclass(kind, tuple | list):
            parts = [self.of(x) for x in item]
            if kind is list:
                self.made.append((parts, [*parts]))
            return parts if kind is list else rebuilt(item, parts)
        fields = self.rec.tracer.closed.fields(kind)
        return item if fields is None else self._of_object(item, fields)

    def _of_object(self, item: Any, fields: frozenset[str]) -> Any:
        """A copy of an object with what code may read of it."""
        copy = object.__new__(type(item)) if type(item) is not SimpleNamespace else SimpleNamespace()
        for name, value in vars(item).items():
            if name in fields:
                object.__setattr__(copy, name, self.of_size(value) if type(value) is int else self.of(value))
        return self.objects.setdefault(id(item), copy)  # also what is there already is gone through, as it is read

    def require_unchanged(self) -> None:
        """Raise CannotKeep where forward has changed a list or dict of the instance."""
        for made, items in self.made:
            now = [*dict.keys(made), *dict.values(made)] if isinstance(made, dict) else made
            if len(now) != len(items) or not all(map(operator.is_, now, items)):
                raise CannotKeep
