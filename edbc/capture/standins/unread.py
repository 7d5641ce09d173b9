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

A *check* is a condition one value of which raises at once: `assert (h > 0).all()`, `if h.isnan().any(): raise`, what
torch's distributions ask of their arguments. Forward goes on as if it held (`presumed`), and what was asked leaves with
what the instance returns (`Checked`), to be looked at when the mini-batch has run. Where one does not hold, the
mini-batch is recorded anew, and checks are read where they stand from then on (`ModelView.presumes`).
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getrefcount
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from edbc.base.kept import Kept
from edbc.capture.standins.nests import inside
from edbc.capture.standins.source import user_location
from edbc.errors import UnsupportedError

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder
    from edbc.capture.standins.standin import Value

INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
LIST = "list"
"""What a reader is asked for by `tolist` of a vector."""
MOST_CHECKS = 1_000
"""Of an instance that are presumed to hold: what leaves a loop by raising would never leave it."""
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
    branches: bool = False
    """Whether it is known to be a condition, and no check."""


class DoesNotHold(UnsupportedError):
    """A check of a mini-batch that has run does not hold."""


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


class Check(Later):
    """A condition that is presumed to be `holds`. Nobody has it."""

    __slots__ = ("holds", "where")
    holds: bool
    where: str


class Checked(Returned):
    """What an instance returns, the conditions that are to be true, those that are to be false, and their lines."""

    __slots__ = ()

    def read(self) -> Any:
        """What the instance returns. Raises DoesNotHold."""
        nest, true, false, lines = self  # type: ignore[misc]
        if all(map(bool, true)) and not any(map(bool, false)):
            return nest
        raise DoesNotHold(
            f"{', '.join(lines)}: forward was recorded as if what it checks there held, which it does not in this "
            "mini-batch; run the instances as they are, so that forward raises what it raises"
        )


def presumed(rec: Recorder, value: Value, frame: FrameType, site: Site | None) -> bool | None:
    """What a condition that a frame asks for, at a site that may be known, must be; None where it is no check, or is to
    be read."""
    if value.ref < 0 or rec.has_ended or rec.in_cell or rec.in_fragment or not rec.tracer.presumes:
        return None
    holds = _way_on(frame.f_code, frame.f_lasti)
    if site is not None:
        site.branches = holds is None
    if holds is None or len(rec.unread) > MOST_CHECKS:
        return None
    check = later(Check, rec, value if rec.books is None else rec.copied(value))  # which may change
    if type(check) is not Check:
        return None
    check.holds, check.where = holds, user_location()
    return holds


def _way_on(code: CodeType, offset: int) -> bool | None:
    """The value of a condition with which code goes on, where it raises at once with the other."""
    known = _WAYS.get((id(code), offset))
    if known is None:
        known = _WAYS.add((id(code), offset), (code, _found_way_on(code, offset)))
    return known[1]


_WAYS: Kept[tuple[int, int], tuple[CodeType, bool | None]] = Kept(4096)
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def _found_way_on(code: CodeType, offset: int) -> bool | None:
    instructions = list(dis.get_instructions(code))
    at = {instruction.offset: place for place, instruction in enumerate(instructions)}
    place = at[offset] + (instructions[at[offset]].opname == "TO_BOOL")
    jump = instructions[place]
    if jump.opcode not in _JUMPS or not jump.opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    jumping, going_on = (_raises(instructions[first:]) for first in (at[jump.argval], place + 1))
    return None if jumping == going_on else jump.opname.endswith("IF_TRUE") == going_on


def _raises(instructions: Sequence[dis.Instruction]) -> bool:
    """Whether a straight line of instructions ends where something is raised."""
    ends = (i.opname for i in instructions if i.opcode in _JUMPS or i.opname.startswith(("RAISE", "RETURN", "YIELD")))
    return next(ends, "") == "RAISE_VARARGS"


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


def read_now(item: Any) -> Any:
    """An argument of what is described next: a number that is read while others are has moved what these stand for."""
    return item.now if issubclass(type(item), Later) else item


def in_a_tensor(item: Any) -> Any:
    """What somebody makes a tensor of: an integer at which nobody has looked is the tensor that it is of."""
    if type(item) is Unread and item.tensor is not None:
        return item.tensor.reshape(())
    return item.now if issubclass(type(item), Later) else item


def comes_of_reading(error: BaseException, made: Sequence[Later]) -> bool:
    """Whether what forward raises may come of what was not read where it stands: C code got no number of Python's own,
    or a check in front of it does not hold."""
    is_of_c = isinstance(error, TypeError | RuntimeError)
    return bool(made) and (is_of_c or (isinstance(error, Exception) and Check in map(type, made)))


def settle(made: list[Later], results: list[Any]) -> None:
    """What forward returned, the one item of a list, with a place for each read in its nests at which nobody has
    looked. Raises TypeError where forward keeps some elsewhere, which are to be Python's own objects."""
    nest, checks = _with_places(results.pop()), [(x.tensor, x.holds, x.where) for x in made if type(x) is Check]
    if checks:
        true, false = ([tensor for tensor, holds, _ in checks if holds is way] for way in (True, False))
        nest = Checked([nest, true, false, tuple(dict.fromkeys(where for *_, where in checks))])
    results.append(nest)
    if any(getrefcount(item) > _OWN_REFERENCES for item in made):
        raise TypeError("forward keeps what it has read")
    made.clear()


def _with_places(item: Any) -> Any:
    if issubclass(type(item), Later):
        return item.known if item.tensor is None else item.returned((item.tensor,))
    return inside(_with_places, item)
