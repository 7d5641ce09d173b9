"""Integers that nobody has looked at yet: what `.item()`, `int(x)`, `operator.index(x)` and `.tolist()` of a recorded
integer give, where the user's code calls them by name (`code.rebind`).

`scores[scores.argmax().item()]` needs no value: as an index, such an integer is the tensor that it is of, and the look-
up stays in the graph. Whatever else is done with it asks for the number, for which the instance waits then
(`forward.fibers`). So a read whose only use is an index suspends nobody, and one whose number is wanted later (back
pointers of a Viterbi decoder) waits when that is. A place in the code whose integers are looked at before anything else
is recorded (`while word != END`) reads at once from then on, as nothing is won: Python's own integers are quicker.

To Python it is an `int`: `isinstance`, arithmetic, comparisons, indices of lists, keys, formats. C code that accepts
nothing but Python's own integers raises TypeError; the mini-batch is recorded again then, and reads at once
(`Recorder.reads_at_once`).
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder
    from edbc.capture.standins.standin import Value

INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
LIST = "list"
"""What a reader is asked for by `tolist` of a vector."""
_OWN_REFERENCES = 3
"""To an integer that nobody else has while it is looked at: a list's, a variable's and an argument's."""


class Site:
    """A place in the user's code that reads."""

    __slots__ = ("at_once", "code", "where")

    def __init__(self, where: str, code: CodeType | None):
        self.where = where
        """File and line."""
        self.code = code
        """Kept, as its identity is what the place is found by."""
        self.at_once = False
        """Whether integers are read where they stand."""


class Unread:
    """The integer in `tensor`, which is of one element. `place` is that of the read among its instance's, which was
    made at a `site`; -1 and None where those are not noted."""

    __slots__ = ("known", "made_at", "place", "site", "tensor")

    def __init__(self, tensor: Value, place: int = -1, site: Site | None = None):
        self.tensor: Value | None = tensor
        """None once it is known."""
        self.place = place
        self.site = site
        self.made_at = tensor.rec.next_value
        self.known: int | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    @property
    def number(self) -> int:
        """The integer. Suspends the instance until it is computed."""
        if self.tensor is not None:
            if self.site is not None and self.tensor.rec.next_value == self.made_at:
                self.site.at_once = True
            self.known = self.tensor.read_integer(self.place)
            self.tensor = None
        assert self.known is not None
        return self.known

    @property
    def index(self) -> Value | int | None:
        """What stands for it in an index."""
        tensor = self.tensor
        return self.known if tensor is None else tensor.reshape(()) if tensor.slot.shape else tensor

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        return np.asarray(self.number, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (self.number,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.number, name)


def _of_int(name: str) -> Callable[..., Any]:
    method = getattr(int, name)

    def ask(self: Unread, *args: Any) -> Any:
        return method(self.number, *[x.number if type(x) is Unread else x for x in args])

    return ask


_OF_OBJECTS = frozenset(
    "__new__ __getattribute__ __setattr__ __delattr__ __init_subclass__ __subclasshook__ __reduce__ __getstate__ "
    "__getnewargs__ __dir__ __sizeof__".split()
)
for _name in dir(int):
    if _name not in _OF_OBJECTS and (_name not in vars(Unread) or _name == "__hash__"):
        _found = getattr(int, _name)
        if _name.startswith("__") and callable(_found):
            setattr(Unread, _name, _of_int(_name))


def unread(rec: Recorder, value: Value) -> Unread | int | None:
    """The integer in a value as one that is read later, or as it is; None where it is there already, is none, or may
    change."""
    slot = value.slot
    if slot.floats or rec.books is not None or rec.reads_at_once or slot.dtype not in INTEGERS:
        return None
    if rec.has_ended or slot.shape.numel() != 1 or (value.ref < 0 and not rec.in_cell):
        return None
    found: Unread | int = Unread(value) if rec.read_integer is None else rec.read_integer(value)
    if type(found) is Unread:
        rec.unread.append(found)
    return found


def read_survivors(made: list[Unread]) -> None:
    """What forward returned or keeps of integers that nobody has read is read now: it has run."""
    for item in made:
        if item.tensor is not None and getrefcount(item) > _OWN_REFERENCES:
            item.number  # noqa: B018
    made.clear()
