"""What the user's code handles while it is recorded: stand-ins for tensors.

Definitions.

(1) A *slot* is how an operand enters a signature: the class of the value it is taken from, the views on the way, and
    the shape and dtype that result. Equal slots are one object, so that signatures compare by identity.
(2) A `Value` stands for a tensor that differs from node to node: output of a node (`ref >= 0`: numbers of outputs in
    order of recording) or an external (`ref < 0`: external `-1 - ref`).
(3) A `Shared` stands for a parameter or buffer of the model: the same for all nodes.
(4) `Rows` stands for several rows of a table, looked up in one call and not yet used.

Views make new stand-ins and no nodes; rows, slices and elements are nodes of few types (`record.excerpts`). Asking for
a tensor's VALUE (`if`, `.item()`, `int(t)`) suspends the instance until it is computed (`forward.fibers`); where
nothing is executed (a cell's inside, a captured instance) it raises UnsupportedError with the user's file and line.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from edbc.base.graph import ValueClass
from edbc.capture.semantics import autocast
from edbc.capture.semantics.gradmode import watcher_of_thread
from edbc.capture.semantics.rules import MASKS
from edbc.capture.standins.asker import asks_for_class
from edbc.capture.standins.fresh import changed_item_of
from edbc.capture.standins.source import asked_by_torch, is_library, user_location
from edbc.capture.standins.unread import (
    INTEGERS,
    LIST,
    Site,
    Unread,
    UnreadArray,
    UnreadFloat,
    UnreadList,
    later,
    looked_at,
    presumed,
    unread,
)
from edbc.errors import UnsupportedError

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder
    from edbc.capture.record.table import SharedRef

_NAME_OF_DTYPE = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8",
    torch.bool: "bool", torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip
_DTYPE_OF_NAME = {name: dtype for dtype, name in _NAME_OF_DTYPE.items()}


def class_of(tensor: torch.Tensor) -> ValueClass:
    """The value class of a tensor."""
    return ValueClass(tuple(tensor.shape), _NAME_OF_DTYPE[tensor.dtype])


def dtype_name(dtype: torch.dtype) -> str:
    """`f32` and its like."""
    return _NAME_OF_DTYPE[dtype]


def torch_dtype(name: str) -> torch.dtype:
    """The dtype that `f32` and its like name."""
    return _DTYPE_OF_NAME[name]


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements in their order, `(bytes,)` of uint8, in its memory where that has them so."""
    flat = tensor.detach().reshape(-1)
    if flat.stride(0) != 1:  # one element, whose stride may be any and still counts as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


class Slot:
    """Definition (1). `views` is a chain of `(function, template, output index)`, applied to a value of `base`."""

    __slots__ = ("_keeps_order", "_repeated", "base", "dtype", "floats", "shape", "text", "views")

    def __init__(self, base: ValueClass, views: tuple[Any, ...], shape: torch.Size, dtype: torch.dtype, text: str):
        self.base = base
        self.views = views
        self.shape = shape
        self.dtype = dtype
        self.floats = dtype.is_floating_point
        self.text = text
        self._keeps_order: bool | None = None
        self._repeated: dict[int, bool] = {}

    @property
    def is_detached(self) -> bool:
        """Whether no gradient passes."""
        return not self.floats or any(view.detaches for view in self.views)

    @property
    def keeps_order(self) -> bool:
        """Whether the views show all elements in their order, with gradients: they are one reshape then."""
        if self._keeps_order is None:
            self._keeps_order = not self.is_detached and self._shows_in_order()
        return self._keeps_order

    def _shows_in_order(self) -> bool:
        if self.base.size != self.shape.numel():
            return False
        shown = self._shown()
        return shown is not None and torch.equal(shown[1].reshape(-1), shown[0].reshape(-1))

    def is_repeated(self, dim: int) -> bool:
        """Whether the views show the value as it is, with gradients, again and again along a dimension."""
        found = self._repeated.get(dim)
        if found is None:
            is_possible = not self.is_detached and self.base.shape == self.shape[:dim] + self.shape[dim + 1 :]
            shown = self._shown() if is_possible else None
            found = shown is not None and torch.equal(shown[1], shown[0].unsqueeze(dim).expand(self.shape))
            self._repeated[dim] = found
        return found

    def _shown(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """A value whose elements differ, and what the views show of it; None where no numbers are so many."""
        if self.dtype not in _EXACT or self.base.size > _MOST_EXACT:
            return None
        shown = value = torch.arange(self.base.size, dtype=self.dtype).view(self.base.shape)
        for view in self.views:
            shown = view.apply(shown)
        return (value, shown) if shown.dtype is self.dtype else None

    def meta(self) -> torch.Tensor:
        """A tensor of this shape and dtype that holds no data."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


_EXACT = frozenset((torch.float32, torch.float64))
_MOST_EXACT = 1 << 24
"""Integers up to here are numbers of these types."""


class AsksForValue(UnsupportedError):
    """A value was asked for that nobody has: while a module is traced also of what its caller has (a mask)."""


def refuse(what: str, remedy: str, error: type[UnsupportedError] = UnsupportedError) -> NoReturn:
    """Raise UnsupportedError at the user's line."""
    raised, recorder = error(f"{user_location()}: {what}; {remedy}"), watcher_of_thread()
    if recorder is not None:
        recorder.refused.append(raised)
    try:
        raise raised
    finally:  # no circle with this frame, which would keep what the user's frames have until it is collected
        del raised, recorder


def require_none_caught(refused: list[UnsupportedError]) -> None:
    """Raise what was refused and the user's own code has caught (`except Exception:`): it went on as eager execution,
    which is refused nothing, would not have gone on. An exception that was caught ends where that was."""
    for error in refused:
        ended = error.__traceback__
        if ended is not None and not is_library(ended.tb_frame.f_code.co_filename):
            raise UnsupportedError(f"{error} (the model caught this, where eager PyTorch has nothing to catch)")
    refused.clear()


def refuse_ended() -> NoReturn:
    """Raise UnsupportedError for a stand-in that is used when its recording has ended."""
    refuse(
        "this tensor stood for a value of a recording that has ended: its mini-batch has not run, or it is kept where "
        "edbc does not look (a global variable, a closure)",
        "return it from forward, or keep it on the instance: in attributes, lists, dicts, sets or tuples",
    )


MOST_OPERANDS = 64
"""Rows of a table that one node stacks."""
_LOOK = "the value of a tensor was asked for while recording"
PLAIN = frozenset(
    (int, bool, str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout, torch.memory_format)
)
"""Classes whose equal objects are the same in a call."""
LOOK_REMEDY = (
    "what is recorded here must not depend on values; compute with the tensor (torch.where, gather), take the decision "
    "from the instance, or read the value in forward, outside of cells"
)


def short_key(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The key of a call of a recorded value and at most one other or some constants, what most calls are; None for
    others. Of three parts where there are two values."""
    count = len(args)
    if type(args[0]) is not Value:
        return _short_key_of_constant(func, *args) if count == 2 and not kwargs else None
    slot = args[0].slot
    if kwargs:
        if count != 1 or len(kwargs) != 1:
            return None
        ((name, item),) = kwargs.items()
        return (func, slot, name, type(item), item) if type(item) in PLAIN else None
    if count == 1:
        return func, slot
    item = args[1]
    kind = type(item)
    if kind is Value:
        return (func, slot, item.slot) if count == 2 else None
    if kind is Shared:
        if count == 3 and type(args[2]) is Shared:
            return func, slot, kind, item.key, args[2].key
        return (func, slot, kind, item.key) if count == 2 else None
    if kind not in PLAIN and not (kind is float and item):
        return None
    if count == 2:
        return func, slot, kind, item
    last = args[2]
    return (func, slot, kind, item, type(last), last) if count == 3 and type(last) in PLAIN else None


def key_with_any_number(func: Any, left: Any, right: Any) -> Any:
    """The key of a call of a value and a number, whatever number; None of others."""
    if type(left) is Value:
        return (func, left.slot, type(right)) if type(right) is float or type(right) is int else None
    is_number = type(left) is float or type(left) is int
    return (func, type(left), right.slot) if is_number and type(right) is Value else None


def _short_key_of_constant(func: Any, number: Any, value: Any) -> Any:
    """Of a call of a number, or a parameter, and a value."""
    if type(number) is Shared:
        return (func, number.key, value.slot) if type(value) is Value else None
    is_number = type(number) is int or (type(number) is float and number)
    return (func, type(number), number, value.slot) if is_number and type(value) is Value else None


def key_of_items(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The key of a call of up to four recorded values in a list and a dimension (`torch.cat([x, h], 1)`), None of
    others. A list of as many may be a stack, which is none of `plain`: the recorder knows which calls are nodes."""
    items = args[0] if args else ()
    if type(items) not in (list, tuple) or not 0 < len(items) <= 4 or len(args) + len(kwargs) > 2:
        return None
    slots = [item.slot for item in items if type(item) is Value]
    dim = kwargs.get("dim") if kwargs else args[1] if len(args) == 2 else 0
    is_told = len(slots) == len(items) and type(dim) is int
    return (func, type(items), bool(kwargs), len(args), dim, *slots) if is_told else None


def record_function(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Record a torch function of arguments among which there is a stand-in."""
    kwargs = kwargs or {}
    first: Any = args[0] if args else None
    kind = type(first)
    if kind is Value:
        rec = first.rec
        key = short_key(func, args, kwargs) if kwargs or len(args) > 1 else (func, first.slot)
        known = None if key is None else rec.plain.get(key)
        if known is not None:
            if known.__class__ is not Slot:
                return rec.again(known, (first.ref,) if len(key) != 3 else (first.ref, args[1].ref))
            if rec.flows:
                return value_of(rec, first.ref, known)
    elif (kind is list or kind is tuple) and first and type(first[0]) is Value:
        rec = first[0].rec
        key = key_of_items(func, args, kwargs)
        known = None if key is None else rec.plain.get(key)
        if known is not None and not rec.ragged:
            return rec.again(known, [item.ref for item in first])
    elif len(args) > 1 and type(args[1]) is Value:
        rec = args[1].rec
        key = short_key(func, args, kwargs) if kind is Shared else None
        known = None if key is None else rec.plain.get(key)
        if known is not None:
            return rec.again(known, (args[1].ref,))
    else:
        rec = find_recorder((args, kwargs))
    return rec.function(func, args, kwargs)


def _reading(name: str) -> Callable[..., Any]:
    """A method of tensors that looks at values."""
    method = getattr(torch.Tensor, name)

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = self._read()
        return method(tensor, *[item._read() if issubclass(type(item), Symbol) else item for item in args], **kwargs)

    return read


def _reading_number(name: str, convert: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
    """A method of tensors that looks at one number: that of a tensor, or what `convert` makes of a number that is there
    without one, which is next to nothing."""
    method = getattr(torch.Tensor, name)

    def read(self: Any) -> Any:
        rec = self.rec
        reading, known = rec.reading, self._known()
        if reading is None or known is not None:
            return method(self._read())
        found = reading(self, True)
        if type(found) is not bool and issubclass(type(found), torch.Tensor):
            return method(found)
        return found if convert is None else convert(found)

    return read


def _of_meta(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of tensors that tells of shape and dtype."""
    return lambda self, *args, **kwargs: method(self._meta(), *args, **kwargs)


class Symbol:
    """What Value, Shared and Lazy have in common: they answer every torch function and tensor method by recording."""

    __slots__ = ()
    __array_priority__ = torch.Tensor.__array_priority__
    """Numbers of NumPy leave `number * tensor` to the tensor."""
    rec: Recorder
    is_at_once = False
    """Whether eager code has the tensor at once, of the instance alone."""
    is_own = False
    """Whether it is memory of its own in eager, which no other object shows, as far as that is known without books."""
    of: Any = None
    """What was memory of its own before this one showed all of it, and changes with it."""
    taken: list[int] | None = None
    """Refs of the rows by which others show it, where it is memory of its own but for these."""

    def __init_subclass__(cls) -> None:
        cls.__name__ = "Tensor"  # Python's own messages have it: 'Tensor' object has no attribute 'hidden'

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # users write isinstance(x, torch.Tensor)
        return torch.Tensor if asks_for_class(sys._getframe(1)) else type(self)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return record_function(func, args, kwargs)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # what `answer_all_of_torch` adds

    def _meta(self) -> torch.Tensor:
        raise NotImplementedError

    shape = property(lambda self: self._meta().shape)
    dtype = property(lambda self: self._meta().dtype)
    ndim = property(lambda self: self._meta().ndim)
    device = property(lambda self: self.rec.device)
    requires_grad = property(lambda self: self._requires_grad())
    is_sparse = property(lambda self: False)
    is_nested = property(lambda self: False)
    is_quantized = property(lambda self: False)
    is_cuda = property(lambda self: self.rec.device.type == "cuda")
    layout = property(lambda self: torch.strided)

    def _requires_grad(self) -> bool:
        if asked_by_torch() or not self.dtype.is_floating_point:
            return False
        ask = getattr(torch.Tensor, "requires_grad").__get__  # noqa: B009
        return self.rec.function(ask, (self,), {}, name="requires_grad")

    def dim(self) -> int:
        """Number of dimensions."""
        return self.ndim

    ndimension = dim

    def size(self, dim: int | None = None) -> Any:
        """Shape, or one dimension of it."""
        return self.shape if dim is None else self.shape[dim]

    def is_floating_point(self) -> bool:
        """True for floating dtypes."""
        return self.dtype.is_floating_point

    numel, is_complex, __len__ = _of_meta(torch.Tensor.numel), _of_meta(torch.Tensor.is_complex), _of_meta(len)
    nelement = numel

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])

    def __getitem__(self, index: Any) -> Any:
        index, of = as_python_has_it(index), self
        kinds = set(map(type, index)) if type(index) is tuple else ()
        parts = _in_two(index) if int in kinds and not _SEEN.issuperset(kinds) else None
        if parts is not None:
            seen, index = parts
            of = self.rec.function(torch.Tensor.__getitem__, (self, seen), {})
        return self.rec.function(torch.Tensor.__getitem__, (of, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        self.rec.function(torch.Tensor.__setitem__, (self, as_python_has_it(index), value), {})

    def _read(self, place: int = -1) -> torch.Tensor:
        """The tensor itself, for which the instance waits (`forward.fibers`), read at a place that was noted."""
        if self.rec.has_ended:
            refuse_ended()
        known = self._known()
        if known is not None:
            return known
        if self.rec.reading is None:
            refuse(_LOOK, LOOK_REMEDY, AsksForValue)
        return self.rec.reading(self) if place < 0 else self.rec.reading(self, False, place)

    def _known(self) -> torch.Tensor | None:
        """What is read without waiting."""
        return None

    def __dlpack__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self.__dlpack_device__()

    def __dlpack_device__(self) -> NoReturn:
        """Asked by `torch.tensor` and its like where their name was not found in the user's code (`code.rebind`)."""
        refuse("torch.tensor, or what else copies memory, was given a recorded tensor, which has none",
               "use x.detach().clone(), or torch.stack of several")  # fmt: skip

    __bool__, __int__ = _reading_number("__bool__", bool), _reading_number("__int__", int)
    __float__ = _reading_number("__float__", float)
    __index__, __complex__, __array__ = _reading("__index__"), _reading("__complex__"), _reading("__array__")
    is_nonzero = _reading("is_nonzero")
    __contains__, equal, allclose = _reading("__contains__"), _reading("equal"), _reading("allclose")

    def _waits(self) -> bool:
        """Whether what is read of it may be looked at later: its numbers are not there yet."""
        return not self.is_at_once

    def _is_detached(self) -> bool:
        """Whether no gradient passes, as far as is known."""
        return not self.rec.flows

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        """The array, at which nobody may look (`standins.unread`)."""
        may_wait = not args and not kwargs and self._waits() and self._is_detached()
        found = later(UnreadArray, self.rec, self) if may_wait else None
        return found if type(found) is UnreadArray else _numpy(self, *args, **kwargs)

    def tolist(self) -> Any:
        """Nested lists, at which nobody may look, or the number itself."""
        if not self.ndim:
            return self.item()
        found = later(UnreadList, self.rec, self) if self._waits() else None
        return found if type(found) is UnreadList else _tolist(self)

    def item(self) -> Any:
        """The number; an integer waits until somebody looks at it (`standins.unread`)."""
        return _item(self)

    def read_integer(self, place: int) -> int:
        """The number, read as the instance's read of this place."""
        if self.rec.reading is None:
            self._read(place)
        found = self.rec.reading(self, True, place)  # type: ignore[misc]
        return int(found.item()) if issubclass(type(found), torch.Tensor) else found

    def __repr__(self) -> str:
        meta = self._meta()
        what = f"{str(meta.dtype).removeprefix('torch.')} tensor of shape {tuple(meta.shape)}"
        return f"<{what} of a recording that has ended>" if self.rec.has_ended else f"<recorded {what}>"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """As eager's: memory of its own, and a leaf."""
        return refuse_ended() if self.rec.has_ended else self.detach().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.rec.has_ended:
            refuse_ended()
        refuse("a recorded tensor was pickled: it has no data yet", "pickle what the call returns; copy with x.clone()")

    def __copy__(self) -> Any:
        """As eager's: the same memory, and a leaf, from which no gradient comes back."""
        return refuse_ended() if self.rec.has_ended else self.detach()

    def __add__(self, other: Any) -> Any:
        if type(other) is np.ndarray or type(other) is UnreadArray:
            return self.rec.add(*_as_numpy_promotes(self, looked_at(other), torch.add))
        return self.rec.add(self, other)

    def __radd__(self, other: Any) -> Any:
        return self.rec.add(other, self)


_item, _numpy, _tolist = _reading_number("item"), _reading("numpy"), _reading("tolist")
_UNNAMED = 3
"""References to a stand-in that is in an expression alone: there, in the method that asks, and in its question."""


def as_python_has_it(index: Any) -> Any:
    """An index with NumPy's integers, and those in tensors of the instance, as Python's, which torch takes them for,
    arrays and lists of truth values as tensors, and ranges as lists; bytes of the instance are truth values. What
    nobody has read stays so."""
    kind = type(index)
    if kind is int:
        return index
    if kind is Unread:
        return index.index
    if kind is tuple:
        return tuple(map(as_python_has_it, index))
    if kind is torch.Tensor and index.dtype is torch.uint8:
        return index.bool()
    if kind is torch.Tensor and not index.ndim and index.dtype in INTEGERS:
        return index.item()
    if kind is slice:
        return slice(*map(_as_bound, (index.start, index.stop, index.step)))
    if kind is list and index and all(type(item) is bool for item in index):
        index, kind = np.array(index), np.ndarray
    if kind is np.ndarray and index.dtype.kind in "biu":
        return as_python_has_it(torch.from_numpy(index.copy()))
    if kind is range:
        return list(index)
    if hasattr(kind, "as_index"):  # a list that stands for those of all instances
        return index.as_index
    return int(index) if issubclass(kind, np.integer) else index


def _lists_as_operands(index: Any) -> Any:
    """An index with lists of integers as tensors (`x[[0, 2]]`, `x[:, columns]`): constants make a type per list."""
    if type(index) is list:
        return torch.tensor(index) if {*map(type, index)} == {int} else index
    if type(index) is tuple and list in map(type, index):
        return tuple([_lists_as_operands(item) if type(item) is list else item for item in index])
    return index


def _in_two(index: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """A view by the numbers and slices of an index, and the look-up of its tensors in that: torch does one after the
    other, and so a number is no constant of the look-up. None where there is nothing to part."""
    seen: list[Any] = []
    rest: list[Any] = []
    num_tensors = 0
    for item in index:
        kind = type(item)
        if kind is int or kind is slice or item is None or item is ...:
            seen.append(item)
            if kind is not int:
                rest.append(item if item is ... else _ALL)
        elif isinstance(item, torch.Tensor) and (item.dtype not in MASKS or item.ndim == 1):
            num_tensors += 1
            seen.append(_ALL)
            rest.append(item)
        else:
            return None
    return (tuple(seen), tuple(rest)) if num_tensors else None


_ALL = slice(None)
_SEEN = frozenset((int, slice, type(None), type(...)))


def _as_bound(item: Any) -> Any:
    """A bound of a slice: what a tensor says is read, as Python's own slices do, for it makes a shape."""
    kind = type(item)
    if kind is int or item is None:
        return item
    return operator.index(item) if kind is Unread or issubclass(kind, np.integer | torch.Tensor | Symbol) else item


def _operator(function: Any) -> Callable[[Any, Any], Any]:
    def record(self: Any, other: Any) -> Any:
        kind = type(other)
        if type(self) is Value:
            if kind is Value:
                known = self.rec.plain.get((function, self.slot, other.slot))
                if known is not None:
                    return self.rec.again(known, (self.ref, other.ref))
            elif kind is float or kind is int or kind is Shared:
                plain = self.rec.plain
                known = plain.get((function, self.slot, kind, other.key if kind is Shared else other))
                if known is not None:
                    return self.rec.again(known, (self.ref,))
                lifted = plain.get((function, self.slot, kind))
                if lifted is not None:
                    return self.rec.again(lifted.entry, (self.ref, self.rec.number(other, lifted.dtype).ref))
        elif kind is Value and type(self) is Shared:
            known = other.rec.plain.get((function, self.key, other.slot))
            if known is not None:
                return other.rec.again(known, (other.ref,))
        if kind is np.ndarray or kind is UnreadArray:
            self, other = _as_numpy_promotes(self, looked_at(other), function)
        return self.rec.function(function, (self, other), {})

    return record


def _as_numpy_promotes(value: Any, array: np.ndarray, function: Any) -> tuple[Any, torch.Tensor]:
    """A stand-in and an array in the dtype that NumPy computes in, which is who runs `tensor * array` in eager."""
    other = torch.from_numpy(array)
    name = np.result_type(torch.empty(0, dtype=value.dtype).numpy(), array)
    promoted = torch.from_numpy(np.empty(0, name)).dtype
    if function is torch.true_divide and not (promoted.is_floating_point or promoted.is_complex):
        promoted = torch.float64
    return value.to(promoted), other.to(promoted)


def _reflected(function: Any) -> Callable[[Any, Any], Any]:
    def record(self: Any, other: Any) -> Any:
        kind = type(other)
        if type(self) is Value and (kind is float or kind is int):
            plain = self.rec.plain
            known = plain.get((function, kind, other, self.slot))
            if known is not None:
                return self.rec.again(known, (self.ref,))
            lifted = plain.get((function, kind, self.slot))
            if lifted is not None:
                return self.rec.again(lifted.entry, (self.rec.number(other, lifted.dtype).ref, self.ref))
        return self.rec.function(function, (other, self), {})

    return record


for _name, _function in {
    "sub": torch.sub, "mul": torch.mul, "truediv": torch.true_divide, "matmul": torch.matmul,
    "pow": torch.pow, "floordiv": torch.floor_divide, "mod": torch.remainder,
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    "lshift": torch.bitwise_left_shift, "rshift": torch.bitwise_right_shift,
}.items():  # fmt: skip
    setattr(Symbol, f"__{_name}__", _operator(_function))
    setattr(Symbol, f"__r{_name}__", _reflected(_function))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Symbol, f"__{_name}__", _operator(getattr(torch, _name)))


def _comparison(function: Any, if_none: bool) -> Callable[[Any, Any], Any]:
    def record(self: Any, other: Any) -> Any:
        return if_none if other is None else self.rec.function(function, (self, other), {})

    return record


setattr(Symbol, "__eq__", _comparison(torch.eq, if_none=False))  # noqa: B010
setattr(Symbol, "__ne__", _comparison(torch.ne, if_none=True))  # noqa: B010
for _name, _function in {
    "neg": torch.neg, "abs": torch.abs, "invert": torch.bitwise_not, "pos": torch.positive,
}.items():  # fmt: skip
    setattr(Symbol, f"__{_name}__", lambda self, _f=_function: self.rec.function(_f, (self,), {}))


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    function, anew = getattr(torch.Tensor, f"__i{name}__"), getattr(torch.Tensor, f"__{name}__")

    def change(self: Any, other: Any) -> Any:
        is_part = sys.getrefcount(self) <= _UNNAMED and type(self) is not Shared and self.rec.books is None
        if is_part and issubclass(type(changed_item_of(sys._getframe(1))), Symbol):
            is_value = type(self) is Value
            new = self.rec.function(anew, (self, other), {}) if is_value else self.row_by_row(anew, other)
            if new is not None and new.shape == self.shape and new.dtype is self.dtype:
                return new
        return self.rec.function(function, (self, other), {})

    return change


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(Symbol, f"__i{_name}__", _in_place(_name))
Symbol.__hash__ = lambda self: id(self)  # type: ignore[method-assign]


def _method(name: str) -> Callable[..., Any]:
    def record(self: Symbol, *args: Any, **kwargs: Any) -> Any:
        function = getattr(torch.Tensor, name)
        if type(self) is Value:
            return record_function(function, (self, *args), kwargs)
        return self.rec.function(function, (self, *args), kwargs)

    return record


def _property(name: str) -> property:
    def record(self: Symbol) -> Any:
        return self.rec.function(getattr(torch.Tensor, name).__get__, (self,), {}, name=name)

    return property(record)


def _user_defined(name: str) -> property:
    """What somebody gave to torch.Tensor: a function or property in Python, which runs on the stand-in."""
    return property(lambda self: getattr(torch.Tensor, name).__get__(self, torch.Tensor))


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refusing(self: Symbol, *value: Any) -> NoReturn:
        if self.rec.has_ended:
            refuse_ended()
        refuse(f"'.{name}' of a tensor was used while recording", "use the tensor itself")

    return refusing


_DATA = property(lambda self: self.detach(), _refusing("data"))
"""Of what is read only, `x.data` is `x.detach()`, through which changes in place are refused."""


def _new_empty(self: Symbol, *size: Any, **options: Any) -> torch.Tensor:
    """A tensor whose elements nobody has written yet."""
    return torch.empty(*size, **{"dtype": self.dtype, **options})


_OWN = frozenset(vars(Symbol))
_answered: tuple[int, str] = (0, "")
"""How many attributes torch.Tensor had, and which was the last, when Symbol answered all of them."""


ANSWERS = {"data": _DATA, "grad": property(_refusing("grad"), _refusing("grad")), "new_empty": _new_empty}


def answer_all_of_torch() -> None:
    """Give Symbol every method and property of torch.Tensor that it has none of its own for, also of those that
    somebody adds to torch.Tensor.

    A `__getattr__` would do, but CPython makes every read of an attribute of a class that has one slow, of the slots of
    Value too (27 instead of 11 ns in 3.11, a sixth of recording).
    """
    global _answered
    attributes = vars(torch.Tensor)
    now = len(attributes), next(reversed(attributes))
    if now == _answered:
        return
    for name in dir(torch.Tensor):
        if not name.startswith("__") and name not in _OWN:
            setattr(Symbol, name, _answer(name, getattr(torch.Tensor, name)))
    _answered = now


def _answer(name: str, found: Any) -> Any:
    if name in ANSWERS:
        return ANSWERS[name]
    defined = found.fget if isinstance(found, property) else found
    if isinstance(defined, FunctionType) and not f"{defined.__module__}.".startswith("torch."):
        return _user_defined(name)
    return _method(name) if callable(found) else _property(name)


class Value(Symbol):
    """Definition (2). Made by `value_of`, or in place where it is made per node: without `__init__` that costs half."""

    __slots__ = ("rec", "ref", "slot")
    rec: Recorder
    ref: int
    slot: Slot

    def _meta(self) -> torch.Tensor:
        return self.slot.meta()

    shape = property(lambda self: self.slot.shape)
    dtype = property(lambda self: self.slot.dtype)
    ndim = property(lambda self: len(self.slot.shape))

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int:
            known = self.rec.rows.get((self.slot, index))
        elif type(index) is slice:
            known = self.rec.rows.get((self.slot, index.start, index.stop, index.step))
        elif index is None:
            return record_function(torch.Tensor.unsqueeze, (self, 0), {})
        else:
            known = None
            if not self.rec.in_cell:
                index = _lists_as_operands(index)
        return self.rec.take(self, known) if known is not None else super().__getitem__(index)

    def __add__(self, other: Any) -> Any:
        rec, slot = self.rec, self.slot
        if type(other) is not Value:
            kind = type(other)
            known = None
            if kind is Shared or ((kind is float or kind is int) and other):
                known = rec.plain.get((torch.add, slot, kind, other.key if kind is Shared else other))
                if known is None and (lifted := rec.plain.get((torch.add, slot, kind))) is not None:
                    return rec.again(lifted.entry, (self.ref, rec.number(other, lifted.dtype).ref))
            return Symbol.__add__(self, other) if known is None else rec.again(known, (self.ref,))
        if slot is not rec.added or other.slot is not slot:
            known = rec.plain.get((torch.add, slot, other.slot))
            if known is None:
                return rec.add(self, other)
            if other.slot is not slot:
                return rec.again(known, (self.ref, other.ref))
            rec.added, rec.addition, rec.sum = slot, known.index, known.output_slots[0]
        if rec.looks:  # from here on `again` without its call: sum(list) of many
            rec.note_site(rec.addition, sys._getframe(1), rec.sites[rec.addition])
        rec.entries.append(rec.addition)
        rec.refs.extend((self.ref, other.ref))
        value = Value()
        value.rec = rec
        value.ref = number = rec.next_value
        value.slot = rec.sum
        rec.next_value = number + 1
        if rec.made is not None:
            rec.made.append(value)
        return value

    def __bool__(self) -> bool:
        rec, frame = self.rec, sys._getframe(1)
        site = rec.read_sites.get((id(frame.f_code), frame.f_lasti))
        if site is None or not site.branches:
            holds = presumed(rec, self, frame, site)
            if holds is not None:
                return holds
        if rec.reading is None:
            return Symbol.__bool__(self)
        found = rec.reading(self, True, -1, site)
        return found if type(found) is bool else bool(found)

    def __radd__(self, other: Any) -> Any:
        if type(other) is int and other == 0 and self.slot.floats and self.rec.flows and self.rec.books is None:
            return self.rec.copied(self)  # sum(list) starts with 0
        return self.rec.add(other, self)

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self.slot.shape)

    def size(self, dim: int | None = None) -> Any:
        """Shape, or one dimension of it."""
        return self.slot.shape if dim is None else self.slot.shape[dim]

    def is_floating_point(self) -> bool:
        """True for floating dtypes."""
        return self.slot.floats

    def _is_detached(self) -> bool:
        return not self.rec.flows or self.slot.is_detached or self.rec.requires_none(self)

    def item(self) -> Any:
        """As of Symbol."""
        rec, slot = self.rec, self.slot
        is_one = slot.floats and slot.shape.numel() == 1
        waits = unread(rec, self) if not slot.floats else later(UnreadFloat, rec, self) if is_one else None
        if waits is not None and type(waits) is not Site:
            return waits
        return self._read().item() if rec.reading is None else self.number_at(waits)

    def number_at(self, site: Site | None) -> Any:
        """The number, read now where forward stands."""
        found = self.rec.reading(self, True, -1, site)  # type: ignore[misc]
        return found if type(found) is float or not issubclass(type(found), torch.Tensor) else found.item()

    def tolist(self) -> Any:
        """Nested lists, or the number itself."""
        rec, num_dims = self.rec, len(self.slot.shape)
        if not num_dims:
            return self.item()
        reading = rec.reading
        if num_dims > 1 or reading is None:
            return Symbol.tolist(self)
        waits = later(UnreadList, rec, self)
        if type(waits) is UnreadList:
            return waits
        found = reading(self, LIST, -1, waits)
        return found if type(found) is list else found.tolist()


class Copied(int):
    """The ref of a name that has a value's elements in memory of its own."""

    __slots__ = ()


def value_of(rec: Recorder, ref: int, slot: Slot) -> Value:
    """A Value."""
    value = Value()
    value.rec = rec
    value.ref = ref
    value.slot = slot
    if rec.made is not None:
        rec.made.append(value)
    return value


class Shared(Symbol):
    """Definition (3). `ref` names it, with the views and functions taken of it; `tensor` has them applied.

    The tensor of a parameter itself shares memory with the model's; that of a derived one holds no data.
    """

    __slots__ = (
        "__weakref__",
        "_derived",
        "_flat",
        "alone",
        "key",
        "rec",
        "ref",
        "row_slot",
        "rows",
        "source",
        "tensor",
    )
    _serial = itertools.count()
    row_slot: Slot

    def __init__(self, rec: Recorder, ref: SharedRef, tensor: torch.Tensor):
        self.rec = rec
        self.ref = ref
        self.tensor = tensor
        self.key = ("shared", next(Shared._serial))
        self._derived: dict[Any, Any] = {}
        self._flat: dict[int, Shared] = {}
        """With so many first dimensions as one."""
        self.source = -1
        self.rows = 0
        """Rows that `lookup` may take; 0 until it has looked."""
        self.alone: Slot | None = None
        """That of a row seen as a matrix of one."""
        rec.shares(self)

    def derived(self, key: Any, derive: Callable[[], tuple[Any, list[Shared]]]) -> tuple[Any, list[Shared]]:
        """Template and stand-ins of a function of parameters whose first one is this, remembered under `key`."""
        known = self._derived.get(key)
        if known is None:
            known = self._derived[key] = derive()
        return known

    def _meta(self) -> torch.Tensor:
        return self.tensor.to("meta")

    shape = property(lambda self: self.tensor.shape)
    dtype = property(lambda self: self.tensor.dtype)

    def _known(self) -> torch.Tensor | None:
        """Flags of the model's; a cell is traced once."""
        return None if self.rec.in_cell else self.rec.tracer.flag(self.ref)

    def _requires_grad(self) -> bool:
        return super()._requires_grad() if self.ref.views else self.rec.tracer.shared(self.ref).requires_grad

    _is_param = property(lambda self: isinstance(self.rec.tracer.shared(self.ref), torch.nn.Parameter))
    """How nn.Parameter tells its instances."""
    is_matrix = property(lambda self: self.tensor.ndim == 2 and min(self.tensor.shape) > 1)
    """Whether it may be what a product is made with; one row is not, nor are the maps that states begin with."""
    slot = None
    """No slot of any Value: how an unrolled call (`record.calls`) tells one from the other."""

    def __getitem__(self, index: Any) -> Any:
        rec = self.rec
        if (
            type(index) is int and 0 <= index < self.rows and rec.flows and rec.books is None and not rec.keeping
        ):  # per look-up: `row` without its call
            rec.external_source.append(self.source)
            rec.external_index.append(index)
            value = Value()
            value.rec = rec
            value.ref = rec.last_external = rec.last_external - 1
            value.slot = self.row_slot
            return value
        index = as_python_has_it(index)
        if not rec.in_cell:
            if not rec.flows:
                seen = rec.without_gradient(self)
                if seen is not self:
                    return seen[index]
            found = self._rows(index)
            if found is not None:
                return found
        return rec.function(torch.Tensor.__getitem__, (self, index), {})

    def row(self, index: int) -> Value:
        """Row `index`, from 0 to `rows` - 1, as an external."""
        return self.rec.external(self.source, index, self.row_slot)

    def _rows(self, index: Any) -> Any:
        """Look-ups by an integer, or by one dimension of integers; None for any other way of indexing."""
        if self.rec.shows is not None:
            told = self.rec.shows.look_up(self, index)
            if told is not None:
                return told
        if type(index) is int or isinstance(index, np.integer):
            return self.lookup(int(index))
        if isinstance(index, Lazy) and hasattr(index, "rows_of"):  # of indices that stand for an instance's
            return index.rows_of(self)
        if type(index) is tuple:
            found = self.rec.corner(self, index) if self.rec.ragged else None
            found = self._first_rows(index) if found is None else found
            return self._element(index) if found is None else found
        if type(index) is slice and self.tensor.ndim and (self.rec.ragged or self.rec.sizes is not None):
            return self.rec.rows_between(self, index)
        if type(index) is list or isinstance(index, np.ndarray):
            index = np.asarray(index)
            return self._many(index.tolist()) if index.ndim == 1 and index.dtype.kind in "iu" else None
        numbers = index.tolist() if type(index) is torch.Tensor else None  # one question: each may have a watcher
        if type(numbers) is int:
            return self.lookup(numbers)
        if type(numbers) is not list or not (type(numbers[0]) is int if numbers else _is_of_no_rows(index)):
            return None
        return self._many(numbers)

    def _first_rows(self, index: tuple[Any, ...]) -> Any:
        """`table[:, :n]` of a table in a batch of one: rows of it in a batch of one; None of any other way."""
        at = next((d for d, which in enumerate(index) if not _is_all(which)), 0)
        is_one = at > 0 and type(index[at]) is slice and all(map(_is_all, index[at + 1 :]))
        if not is_one or self.tensor.shape[:at].numel() != 1 or not (self.rec.ragged or self.rec.sizes is not None):
            return None
        found = self._with_first(at + 1)._rows(index[at])
        for _ in range(at if found is not None else 0):
            found = found.unsqueeze(0)
        return found

    def _with_first(self, count: int) -> Shared:
        """With so many first dimensions as one."""
        flat: Shared | None = self._flat.get(count)
        if flat is None:
            flat = self._flat[count] = self.rec.function(torch.Tensor.flatten, (self, 0, count - 1), {})
        return flat

    def _element(self, index: tuple[Any, ...]) -> Any:
        """`table[i, j]`, a look-up in the table with its first dimensions as one; None where there are no integers
        alone."""
        count, shape = len(index), self.tensor.shape
        if not 1 < count <= len(shape) or not all(type(i) is int or isinstance(i, np.integer) for i in index):
            return None
        place = 0
        for dim, (i, size) in enumerate(zip(index, shape, strict=False)):
            if not -size <= i < size:
                raise IndexError(f"index {i} is out of bounds for dimension {dim} with size {size}")
            place = place * size + int(i) % size
        return self._with_first(count).lookup(place)

    def _many(self, indices: list[int]) -> Any:
        rec = self.rec
        if rec.ragged or rec.sizes is not None:
            found = rec.rows_of_table(self, indices)
            if found is not None:
                return found
        rows = Rows(self, indices)
        return rows if self.rec.books is None else rows.materialise()

    def lookup(self, index: int) -> Value:
        """Row `index` as an external. Raises IndexError as a tensor would."""
        if self.rec.shows is not None and (told := self.rec.shows.look_up(self, index)) is not None:
            return told
        rows = self.look()
        if not -rows <= index < rows:
            raise IndexError(f"index {index} is out of bounds for {self.ref!r} with {rows} rows")
        row = self.row(index if index >= 0 else index + rows)
        if self.rec.keeping:
            self.rec.keep_row(self, index % rows, row)
        if self.rec.books is not None:
            self.rec.books.hold([row])
        return row

    def look(self) -> int:
        """The number of rows, which `lookup` may take from now on."""
        if not self.rows:
            tensor = self.tensor
            self.source = self.rec.table.source(self.ref, tensor)
            self.row_slot = self.rec.table.slot(ValueClass(tuple(tensor.shape[1:]), _NAME_OF_DTYPE[tensor.dtype]))
            self.rows = len(tensor)
        return self.rows


def _is_all(which: Any) -> bool:
    """Whether it is `:`; sizes that are symbols are not asked."""
    return type(which) is slice and which.start is None and which.stop is None and which.step is None


def is_matrix(item: Any) -> bool:
    """True for a matrix of parameters, which is no operand of a cell."""
    return type(item) is Shared and item.is_matrix


def _is_of_no_rows(index: torch.Tensor) -> bool:
    return index.ndim == 1 and not index.is_floating_point() and index.dtype is not torch.bool


class Lazy(Symbol):
    """Definition (4)."""

    __slots__ = ("whole",)
    whole: Value | None

    def is_as(self, other: Any) -> bool:
        """Whether another one has its shape and dtype, and may stand in its place."""
        return False

    def make(self) -> Value:
        """The tensor as a node."""
        raise NotImplementedError

    def rows(self) -> tuple[Sequence[int], Slot, int] | None:
        """The values that are its rows, their slot, and the dimension that they stand along, where it is no node:
        returned by forward it leaves as rows do. None where it has none."""
        return None

    def row_by_row(self, function: Any, other: Any) -> Any:
        """An element-wise function of it and another operand, as rows that are no tensor yet; None for none."""
        return None

    def returned(self) -> Any:
        """What leaves in its place: itself as a node, or what is read of several values (`unread.Returned`)."""
        return self.materialise()

    def name_of_its_own(self, is_alone: Callable[[Recorder, Value], bool]) -> Value | None:
        """A name that nobody else has, which this one shows from now on: it is about to change. None where others may
        see its memory."""
        return None

    def materialise(self) -> Value:
        """The tensor as a node, made once. Gradients pass, as it may be first asked for where they are off and then
        where they are on; what was made where they are off is seen such that none passes."""
        if self.whole is None:
            make = self.make if self.rec.flows else partial(self.rec.flowing, self.make)
            if autocast.state() == self.rec.autocast:
                self.whole = make()
            else:  # somebody asks after the recording
                with autocast.entered(self.rec.autocast):
                    self.whole = make()
            if self.rec.keeping:
                self.rec.kept_wholes.append(self)
        return self.whole


class Changed(Lazy):
    """What has changed in place, and shows a name: the class that other lazy ones turn into, which comes first among
    the bases of a class of theirs without slots. What they answer by themselves, it asks the name."""

    __slots__ = ()
    rec = property(lambda self: self.whole.rec, lambda self, rec: None)
    slot = None

    def name_of_its_own(self, is_alone: Callable[[Recorder, Value], bool]) -> Value | None:
        name: Any = self.whole
        if type(name) is not Value:
            return name.name_of_its_own(is_alone)
        return name if is_alone(self.rec, name) else None

    def rows(self) -> tuple[Sequence[int], Slot, int] | None:
        return None if type(self.whole) is Value else self.whole.rows()  # type: ignore[union-attr]

    def materialise(self) -> Value:
        return self.whole if type(self.whole) is Value else self.whole.materialise()  # type: ignore[union-attr]

    def _meta(self) -> torch.Tensor:
        return self.whole._meta()  # type: ignore[union-attr]

    def __getitem__(self, index: Any) -> Any:
        return self.whole[index]  # type: ignore[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.whole[index] = value  # type: ignore[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.whole)  # type: ignore[arg-type]


def turned(lazy: Lazy, name: Any) -> Any:
    """The name, which a lazy tensor shows from now on, or the buffer (`standins.made`)."""
    kind = type(lazy)
    known = _CHANGED.get(kind)
    if known is None:
        of_kind = {name for base in kind.__mro__[: kind.__mro__.index(Lazy)] for name in vars(base)}
        asked = {name: vars(Symbol)[name] for name in of_kind & vars(Symbol).keys() - vars(Changed).keys()}
        known = _CHANGED[kind] = type(kind.__name__, (Changed, kind), {**asked, "__slots__": ()})
    set_class(lazy, known)
    lazy.whole = name
    return name


_CHANGED: dict[type, type] = {}
set_class = object.__dict__["__class__"].__set__


def _has_all(index: Any, size: int) -> bool:
    """Whether a slice is all of a dimension."""
    is_slice = type(index) is slice and index.step is None and index.start in (None, 0)
    return is_slice and (index.stop is None or (type(index.stop) is int and index.stop >= size))


class Rows(Lazy):
    """Rows of a table, looked up in one call, each seen in a `shape`. Taking rows makes externals; any other use
    stacks them, as native code does, or records an embedding of many. Of slices of it that are used so, all but the
    first are seen in the whole of it: each row is looked up once then, however many slices have it (`h[: k + 1]` in a
    loop)."""

    __slots__ = ("indices", "is_sliced", "part", "rec", "seen_as", "slot_of_row", "table")

    def __init__(self, table: Shared, indices: list[int], seen_as: torch.Size | None = None):
        self.rec = table.rec
        self.table = table
        self.indices = indices
        self.seen_as = table.shape[1:] if seen_as is None else seen_as
        self.slot_of_row: Slot | None = None
        """Of rows seen in another shape."""
        self.part: tuple[Rows, int] | None = None
        """What it is a slice of, and its first row there."""
        self.is_sliced = False
        """Whether a slice of it has become a node."""
        self.whole = None

    shape = property(lambda self: torch.Size((len(self.indices), *self.seen_as)))
    dtype = property(lambda self: self.table.dtype)
    ndim = property(lambda self: 1 + len(self.seen_as))

    def _meta(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int:
            return self._own(self.indices[index])
        if type(index) is slice:
            return self.some(index, self.seen_as)
        if type(index) is list and not self.rec.in_cell:
            if {*map(type, index)} == {int} and self.rec.flows and self.rec.books is None:
                with suppress(IndexError):  # which torch raises
                    return Rows(self.table, [self.indices[i] for i in index], self.seen_as)
            index = _lists_as_operands(index)
        if type(index) is tuple and index and self.rec.flows and self.rec.books is None and not self.rec.in_cell:
            first, rest = index[0], index[1:]
            if type(first) is slice and len(rest) <= len(self.seen_as) and all(map(_has_all, rest, self.seen_as)):
                return self[first]
            if set(map(type, index)) <= {int, slice}:
                if type(first) is int:
                    return self[first][rest] if rest else self[first]
                return self.materialise()[index]  # a node of the whole, found by what it is of
        return self[int(index)] if isinstance(index, np.integer) else super().__getitem__(index)

    def _own(self, number: int) -> Value:
        """One row of the table, seen as all of these are."""
        if self.slot_of_row is not None and self.rec.flows:
            return value_of(self.rec, self.table.lookup(number).ref, self.slot_of_row)
        row: Value = self.row(number, self.seen_as)
        if self.rec.flows:
            self.slot_of_row = row.slot
        return row

    def row(self, number: int, shape: torch.Size) -> Any:
        """One row of the table, seen in a shape."""
        table = self.table if self.rec.flows else self.rec.without_gradient(self.table)
        row = table.lookup(number)
        return row if shape == row.shape else row.view(tuple(shape))

    def some(self, which: slice, shape: torch.Size) -> Rows:
        """Some rows of the table, each in a shape."""
        table = self.table if self.rec.flows else self.rec.without_gradient(self.table)
        found = Rows(table, self.indices[which], shape)
        if shape == self.seen_as and which.step is None and table is self.table:
            of, before = self.part or (self, 0)
            found.part = of, before + which.indices(len(self.indices))[0]
        return found

    def unbind(self, dim: int = 0) -> Any:
        """The rows one by one."""
        if dim == 0:
            return tuple(self)
        return self.rec.function(torch.unbind, (self, dim), {})

    def make(self) -> Value:
        """The node that any use but taking a row needs; `(k, *row)`. One row alone is that row, seen so."""
        if len(self.indices) == 1:
            return self._alone()
        if self.part is not None and self.rec.books is None:
            of, first = self.part
            if type(of) is Rows and of.is_sliced and self.indices:
                return of.materialise()[first : first + len(self.indices)]
            of.is_sliced = True
        from edbc.capture.record.lookup import look_up_of  # only now: asking for a module takes as long as a slice

        look_up = look_up_of(self.table.ref)
        if look_up is None and self.rec.books is None and 0 < len(self.indices) <= MOST_OPERANDS:
            items = [self.table.lookup(i) for i in self.indices]
            whole = self.rec.as_value(self.rec.function(torch.stack, (items,), {}))
            return whole if self.seen_as == self.table.shape[1:] else whole.view(self.shape)
        shows = self.rec.shows
        indices = None if shows is None else shows.constant_of(self.indices)
        if indices is None:
            indices = self.rec.constant(torch.tensor(self.indices, dtype=torch.int64))
        options = {} if look_up is None or look_up.padding_index is None else {"padding_idx": look_up.padding_index}
        if len(self.table.shape) == 2:
            whole = self.rec.function(torch.nn.functional.embedding, (indices, self.table), options)
        else:
            whole = self.rec.function(torch.index_select, (self.table, 0, indices), {})
        return whole if self.seen_as == self.table.shape[1:] else whole.view(self.shape)

    def _alone(self) -> Value:
        """The only row, as a matrix of one."""
        table, (number,) = self.table, self.indices
        is_whole = self.seen_as == table.shape[1:] and self.rec.flows and self.rec.books is None
        if is_whole and table.alone is not None:
            return value_of(self.rec, table.lookup(number).ref, table.alone)
        alone: Value = self.rec.copied(self.row(number, self.seen_as).unsqueeze(0))
        if is_whole:
            table.alone = alone.slot
        return alone


def find_recorder(tree: Any) -> Recorder:
    """The recorder of the first stand-in among (nested) arguments."""
    stack = [tree]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is Value or issubclass(kind, Symbol):
            return item.rec
        if isinstance(item, (tuple, list)):  # a union takes twice as long
            stack.extend(reversed(item))
        elif kind is dict:
            stack.extend(reversed(item.values()))
    raise UnsupportedError(
        f"{user_location()}: a torch function got recorded tensors in a container that is not a "
        "list, tuple or dict; pass them in one of those"
    )
