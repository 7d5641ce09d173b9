"""What is read of a recorded tensor, and nobody has looked at yet: the integer of `.item()`, `int(x)` or
`operator.index(x)`, where the user's code calls these by name (`code.rebind`), the float of `.item()`, the array of
`.numpy()`, the list of `.tolist()`.

`scores[scores.argmax().item()]` needs no value: as an index, such an integer is the tensor that it is of, and the look-
up stays in the graph. And what is only returned (`return self.out(h), weights.detach().numpy()`) needs none either: it
is read of the result when the mini-batch has run (`Returned`). Whatever else is done with it asks for the value, for
which the instance waits then (`forward.fibers`). So a read whose only use is an index suspends nobody, and one whose
number is wanted later (back pointers of a Viterbi decoder) waits when that is. A place in the code whose values are
looked at before anything else is recorded (`while word != END`) reads at once from then on, as nothing is won: Python's
own integers are quicker.

To Python it is an `int`, a `float`, a `list` or an array: `isinstance`, arithmetic, comparisons, indices, keys. C code
that accepts nothing but Python's own objects raises TypeError or RuntimeError; the mini-batch is recorded again then,
and reads at once (`Recorder.reads_at_once`), as it is where forward keeps such an object on the model or an instance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from sys import getrefcount
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from edbc.capture.standins.nests import inside

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder
    from edbc.capture.standins.standin import Value

INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
LIST = "list"
"""What a reader is asked for by `tolist` of a vector."""
_OWN_REFERENCES = 3
"""To what nobody else has while it is looked at: a list's, a variable's and an argument's."""


@dataclass(slots=True, eq=False)
class Site:
    """A place in the user's code that reads."""

    where: str
    """File and line."""
    code: CodeType | None
    """Kept, as its identity is what the place is found by."""
    at_once: bool = False
    """Whether it reads where it stands."""


class Returned(tuple[Any]):
    """Of what an instance returns: what is read of the one tensor in it."""

    __slots__ = ()

    def read(self) -> Any:
        """The array, list or number. A tensor of a device is copied from there."""
        raise NotImplementedError


class Later:
    """What the method `how` of `tensor`, a stand-in, gives. `place` is that of the read among its instance's, which was
    made at a `site`; -1 and None where those are not noted."""

    __slots__ = ("known", "made_at", "place", "site", "tensor")
    kind: ClassVar[type]
    """What it is to Python."""
    how: ClassVar[str]
    returned: ClassVar[type[Returned]]

    def __init__(self, tensor: Any, place: int = -1, site: Site | None = None):
        self.tensor: Any = tensor
        """None once it is known."""
        self.place = place
        self.site = site
        self.made_at = tensor.rec.next_value
        self.known: Any = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.kind

    @property
    def now(self) -> Any:
        """The value. Suspends the instance until it is computed."""
        if self.tensor is not None:
            is_to_come = getattr(self.tensor, "ref", 0) >= 0
            if self.site is not None and self.tensor.rec.next_value == self.made_at and is_to_come:
                self.site.at_once = True
            self.known = self._look()
            self.tensor = None
        return self.known

    def _look(self) -> Any:
        return getattr(self.tensor._read(self.place).detach(), self.how)()

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        return np.asarray(self.now, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.now.__reduce_ex__(protocol)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


_OF_OBJECTS = frozenset(
    "__new__ __getattribute__ __setattr__ __delattr__ __init_subclass__ __subclasshook__ __reduce__ __getstate__ "
    "__getnewargs__ __dir__ __sizeof__ __array_ufunc__ __array_function__ __array_finalize__ __array_wrap__ "
    "__class_getitem__".split()
)
"""What is asked of the object that somebody has, or would take NumPy in a circle."""


def _of(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def ask(self: Later, *args: Any) -> Any:
        return method(self.now, *[x.now if issubclass(type(x), Later) else x for x in args])

    return ask


def _stands_for(kind: type, how: str) -> Callable[[type[Later]], type[Later]]:
    """A class of what the method `how` of tensors gives, which answers as one of this kind."""

    def made(later: type[Later]) -> type[Later]:
        own = {*vars(Later), *vars(later)} - {"__hash__", "__doc__", "__module__"}
        for name in dir(kind):
            found = getattr(kind, name)
            if name.startswith("__") and name not in own and name not in _OF_OBJECTS and callable(found):
                setattr(later, name, _of(name, found))
        if kind.__hash__ is None:
            later.__hash__ = None

        def read(self: Returned) -> Any:
            tensor = self[0].detach()
            return getattr(tensor.cpu() if how == "numpy" else tensor, how)()

        later.kind, later.how = kind, how
        later.returned = type(f"Returned{kind.__name__.title()}", (Returned,), {"__slots__": (), "read": read})
        return later

    return made


@_stands_for(int, "item")
class Unread(Later):
    """The integer in `tensor`, which is of one element."""

    __slots__ = ()

    def _look(self) -> int:
        found: int = self.tensor.read_integer(self.place)
        return found

    @property
    def index(self) -> Value | int | None:
        """What stands for it in an index."""
        tensor = self.tensor
        return self.known if tensor is None else tensor.reshape(()) if tensor.slot.shape else tensor


@_stands_for(float, "item")
class UnreadFloat(Later):
    """The float in `tensor`, which is of one element."""

    __slots__ = ()


@_stands_for(list, "tolist")
class UnreadList(Later):
    """The lists in lists that `tensor` is."""

    __slots__ = ()


@_stands_for(np.ndarray, "numpy")
class UnreadArray(Later):
    """The array that shows the memory of `tensor`."""

    __slots__ = ()


def later(kind: type[Later], rec: Recorder, tensor: Any) -> Any:
    """What is read of a stand-in as what is looked at later; None, or the Site, where it must be read now."""
    if rec.has_ended or rec.reads_at_once or (kind is not Unread and (rec.in_cell or rec.in_fragment)):
        return None
    if rec.note_unread is None:
        found = kind(tensor)
    else:
        place, site = rec.note_unread()
        if place < 0:
            return site
        found = kind(tensor, place, site)
    rec.unread.append(found)
    return found


def unread(rec: Recorder, value: Value) -> Any:
    """The integer in a value as one that is read later; None, or the Site, where it must be read now: where it is none,
    or may change, too."""
    slot = value.slot
    if slot.floats or rec.books is not None or slot.dtype not in INTEGERS or slot.shape.numel() != 1:
        return None
    if value.ref < 0 and not rec.in_cell:
        return None
    return later(Unread, rec, value)


def looked_at(item: Any) -> Any:
    """An argument of torch as Python's own object; an integer stays, which may be an index."""
    return item.now if issubclass(type(item), Later) and type(item) is not Unread else item


def in_a_tensor(item: Any) -> Any:
    """What somebody makes a tensor of: an integer at which nobody has looked is the tensor that it is of."""
    if type(item) is Unread and item.tensor is not None:
        return item.tensor.reshape(())
    return item.now if issubclass(type(item), Later) else item


def settle(made: list[Later], results: list[Any]) -> None:
    """What forward returned, the one item of a list, with a place for each read in its nests at which nobody has
    looked. Raises TypeError where forward keeps some elsewhere, which are to be Python's own objects."""
    results.append(_with_places(results.pop()))
    if any(getrefcount(item) > _OWN_REFERENCES for item in made):
        raise TypeError("forward keeps what it has read")
    made.clear()


def _with_places(item: Any) -> Any:
    if issubclass(type(item), Later):
        return item.known if item.tensor is None else item.returned((item.tensor,))
    return inside(_with_places, item)
