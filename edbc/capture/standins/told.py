"""Numbers that an instance brings, as forward gets them whose record is to serve other instances.

Python may hand them around, put them into tensors, multiply tensors by them, and look rows of parameters up by
integers. Whoever wants to know one (`if word == END`, `range(count)`) gives the attempt up, and is noted: instances are
told apart by that number then.

A tensor that forward makes of numbers and writes such integers into, or by such integers (`adjacency[i, j] = 1`), is
*filled*: a constant, made anew for each instance by the same writes. Once it was looked at it does not change any more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch

from edbc.capture.ragged.program import CannotKeep
from edbc.capture.ragged.symbols import METHODS, Index
from edbc.capture.semantics.shapes import flat
from edbc.capture.standins.made import NEW, Made, described
from edbc.capture.standins.standin import Lazy, Shared, Symbol, Value, set_class

if TYPE_CHECKING:
    from edbc.capture.alike.alike import Shows
    from edbc.capture.record.recorder import Recorder


class Number:
    """An integer, number `place` of its instance's."""

    __slots__ = ("place", "rec", "value", "watch")

    def __init__(self, rec: Recorder, watch: Shows, place: int, value: Any):
        self.rec, self.watch, self.place, self.value = rec, watch, place, value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def row_of(self, table: Shared) -> Value:
        """The row of a parameter."""
        return self.watch.row_of(table, self.place)

    def as_operand(self, dtype: torch.dtype) -> Value:
        """The constant `()` that it is to a function of tensors."""
        constant = self.rec.constant(torch.tensor(self.value, dtype=dtype))
        self.watch.note(constant, torch.tensor(self.place))
        return constant


class Real(Number):
    """A float, number `place` of its instance's."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float


NUMBERS = frozenset((Number, Real))


def _asked(name: str) -> Callable[..., Any]:
    def ask(self: Number, *others: Any) -> Any:
        if others and issubclass(type(others[0]), Symbol):
            return NotImplemented  # tensors know what to do with a number
        return self.watch.ask([self.place])

    return ask


for _name in (*METHODS, *"matmul rmatmul rdivmod complex rlshift rrshift reduce_ex".split()):
    setattr(Number, f"__{_name}__", _asked(f"__{_name}__"))


def _compared(compare: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Of a float, which hardly comes again, only what a comparison gives is told."""

    ask = _asked(f"__{compare.__name__}__")

    def answer(self: Real, other: Any) -> Any:
        found = self.watch.steps[-1].compared(compare, self, other) if type(other) in _COMPARED else None
        return ask(self, other) if found is None else found

    return answer


_COMPARED = frozenset((int, float, Real))
for _compare in (operator.lt, operator.le, operator.gt, operator.ge):
    setattr(Real, f"__{_compare.__name__}__", _compared(_compare))


class Told(Index):
    """A tensor of integers, those of `places`."""

    __slots__ = ("places", "watch")

    def __init__(self, rec: Recorder, watch: Shows, tensor: torch.Tensor, places: torch.Tensor):
        super().__init__(rec, tensor, (), -1)
        self.watch, self.places = watch, places

    def _seen(self, see: Callable[[torch.Tensor], torch.Tensor]) -> Told:
        return Told(self.rec, self.watch, see(self.tensor), see(self.places))

    def _shape(self) -> tuple[Any, ...]:
        return self.tensor.shape

    __len__, __iter__ = Symbol.__len__, Symbol.__iter__

    def __getitem__(self, index: Any) -> Any:
        parts = index if type(index) is tuple else (index,)
        if not all(type(i) in (int, slice, type(None), type(Ellipsis)) for i in parts):
            return self.rec.function(torch.Tensor.__getitem__, (self, index), {}, "getitem")
        return self._seen(lambda tensor: tensor[index])

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """See torch."""
        return tuple([self.select(dim, i) for i in range(self.tensor.shape[dim])])

    def item(self) -> Any:
        """The number itself."""
        if self.tensor.numel() != 1:
            raise CannotKeep
        return self._numbers(self.tensor.reshape(()), self.places.reshape(()))

    def tolist(self) -> Any:
        """The numbers themselves."""
        return self._numbers(self.tensor, self.places)

    def _numbers(self, tensor: torch.Tensor, places: torch.Tensor) -> Any:
        if tensor.ndim:
            return [self._numbers(*pair) for pair in zip(tensor, places, strict=True)]
        return Number(self.rec, self.watch, int(places), int(tensor))

    def rows_of(self, table: Shared) -> Any:
        """Rows of a parameter by these numbers."""
        from edbc.capture.record.lookup import look_up_of

        if not self.rec.flows or not self.tensor.numel():
            raise CannotKeep
        if not self.tensor.ndim:
            return self.rec.copied(self.item().row_of(table))
        if self.tensor.ndim == 1:
            return table._many(self.tolist())
        row = getattr(look_up_of(table.ref), "padding_index", None)
        options = {} if row is None else {"padding_idx": row}
        return self.rec.function(torch.nn.functional.embedding, (self.materialise(), table), options, "embedding")

    def make(self) -> Value:  # type: ignore[override]
        """The constant that holds them."""
        constant = self.rec.constant(self.tensor.clone())
        self.watch.note(constant, self.places)
        return constant

    def _meta(self) -> torch.Tensor:  # type: ignore[override]
        return torch.empty_like(self.tensor, device="meta")

    def _read(self, place: int = -1) -> NoReturn:
        self.watch.ask(self.places.flatten().tolist())


class Leaf(Lazy):
    """A floating tensor of the instance's, or what torch has computed of such and of numbers alone, at once: value
    `number` of the instance (`alike.steps`). It is a constant where anything else takes it."""

    __slots__ = ("number", "rec", "tensor", "watch")
    is_at_once = True

    def __init__(self, rec: Recorder, watch: Shows, number: int, tensor: torch.Tensor):
        self.rec, self.watch, self.number, self.tensor = rec, watch, number, tensor
        self.whole = None

    shape = property(lambda self: self.tensor.shape)
    dtype = property(lambda self: self.tensor.dtype)
    ndim = property(lambda self: self.tensor.ndim)

    def rows_of(self, table: Shared) -> Any:
        """Rows of a parameter by the integers that it has."""
        return self.watch.steps[-1].integers(self).rows_of(table)

    def materialise(self) -> Value:
        """See Lazy."""
        if self.whole is None:
            self.whole = self.rec.constant(self.tensor)
            self.watch.note_leaf(self.whole, self.number)
        return self.whole

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind())

    def _requires_grad(self) -> bool:
        return False

    def _meta(self) -> torch.Tensor:
        return torch.empty_like(self.tensor, device="meta")

    def _read(self, place: int = -1) -> torch.Tensor:
        return self.watch.steps[-1].read(self)

    def numpy(self, *_: Any, **__: Any) -> NoReturn:
        """Its memory, which code may change."""
        raise CannotKeep

    __array__ = numpy


def _both(name: str) -> Callable[..., Any]:
    """A method that takes of numbers and of places the same."""
    method = getattr(torch.Tensor, name)

    def both(self: Told, *args: Any, **kwargs: Any) -> Told:
        return self._seen(lambda tensor: method(tensor, *args, **kwargs))

    return both


def _of_steps(name: str) -> Callable[..., Any]:
    """A method that torch computes at once."""
    method = getattr(torch.Tensor, name)
    return lambda self, *args: self.rec.function(method, (self, *args), {})


for _name in "__eq__ __ne__ eq ne not_equal".split():
    setattr(Told, _name, _of_steps(_name))
for _name in "unsqueeze squeeze view reshape flatten t expand permute transpose select narrow flip".split():
    setattr(Told, _name, _both(_name))
Told.T = property(lambda self: self.t())


def _new(method: Any, maker: Any) -> Callable[..., Any]:
    """A method that asks a leaf for its dtype alone."""

    def new(self: Leaf, *args: Any, **kwargs: Any) -> Any:
        made = described(maker, args, {**kwargs, "dtype": kwargs.get("dtype") or self.dtype})
        return self.rec.function(method, (self, *args), kwargs) if made is None else made

    return new


for _method, _maker in NEW.items():
    setattr(Leaf, _method.__name__, _new(_method, _maker))


def told(data: Any) -> Number | None:
    """The first such number in lists of any depth. Linear in their items."""
    kind = type(data)
    if kind in NUMBERS:
        return data
    if kind is not list and kind is not tuple:
        return None
    return next((found for found in map(told, data) if found is not None), None)


@dataclass(frozen=True)
class Known:
    """A number among an instance's that is the same for all: `[BEGIN, *words, END]`."""

    value: Any


def tensor_of(first: Number, data: Any, dtype: torch.dtype | None = None) -> Told | Leaf:
    """`torch.tensor(data)`. Raises CannotKeep where numbers of another kind are in it, tensors, or anything else."""
    kind = type(first)
    values, places = _each(data, kind, lambda number: number.value, _itself), _each(data, kind, _place_of, Known)
    listed = [*flat([places])]
    if kind is Number and set(map(type, listed)) == {int}:
        return Told(first.rec, first.watch, torch.tensor(values), torch.tensor(places))
    return first.watch.tensor_of(listed, torch.tensor(values, dtype=dtype))


def _itself(number: Any) -> Any:
    return number


def _place_of(number: Number) -> int:
    return number.place


def _each(data: Any, kind: type, told: Callable[[Any], Any], known: Callable[[Any], Any]) -> Any:
    """The nest with what functions give for the instance's numbers, which are of a kind, and for others."""
    if type(data) is kind:
        return told(data)
    if type(data) is int or (type(data) is float and kind is Real):
        return known(data)
    if type(data) is not list and type(data) is not tuple:
        raise CannotKeep
    return [_each(item, kind, told, known) for item in data]


def as_operand(number: Any, other: Any) -> Any:
    """What a number is to an element-wise function of it and another operand: itself where it has to be asked."""
    if type(other) is not Value or not other.dtype.is_floating_point:
        return number
    return number.as_operand(torch.float32 if other.dtype.itemsize < 4 else other.dtype)


class Array:
    """An array of NumPy's, of which code may take shape and dtype, and make a tensor."""

    __slots__ = ("array", "tensor")

    def __init__(self, array: np.ndarray, tensor: Leaf | Told):
        self.array, self.tensor = array, tensor

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return np.ndarray

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)
    ndim = property(lambda self: self.array.ndim)
    size = property(lambda self: self.array.size)

    def __len__(self) -> int:
        return len(self.array)

    def __getattr__(self, name: str) -> NoReturn:
        raise CannotKeep

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise CannotKeep


def tensor_of_array(array: Any) -> Any:
    """`torch.from_numpy`, also of a stand-in."""
    return array.tensor if type(array) is Array else torch.from_numpy(array)


# --- filled tensors --------------------------------------------------------------------------------------------------


class Write(NamedTuple):
    """Elements that become a value: a number, or the instance's integers at as many places."""

    at: np.ndarray
    """A row per element, an integer per dimension: an index, or -1 - the place of the integer that is one."""
    value: Any


class Fill:
    """What a filled tensor is, for any instance: numbers, and writes that come one after the other."""

    __slots__ = ("base", "places", "plan", "told", "writes")

    def __init__(self, base: np.ndarray, writes: Sequence[Write]):
        self.base, self.writes = base, writes
        self.told = [self._told(*write) for write in writes]
        """Of each write its elements, and which of their indices are integers: where, which, and below what."""
        self.plan: tuple[np.ndarray, ...] | None = None
        """Of a single write of a number by integers: where its elements are in memory as far as that is known, and by
        integer that an index has, which element that is, what the integer is multiplied by, and how many there are.
        Those of many fills are written together, which other writes alone are as fast without."""
        self.places: list[int] = []
        if len(writes) == 1 and type(writes[0].value) is not np.ndarray and self.told[0][2]:
            at, shape = writes[0].at, np.array(base.shape, np.int64)
            strides = np.append(np.cumprod(shape[:0:-1])[::-1], 1).astype(np.int64)
            rows, dims = np.nonzero(at < 0)
            self.plan = np.where(at < 0, 0, at) @ strides, rows, strides[dims], shape[dims]
            self.places = (-1 - at[rows, dims]).tolist()

    def _told(self, at: np.ndarray, value: Any) -> tuple[Any, ...]:
        rows, dims = np.nonzero(at < 0)
        places, sizes = (-1 - at[rows, dims]).tolist(), np.array(self.base.shape)[dims]
        return tuple(at.T), (dims, rows), places, sizes, value.tolist() if type(value) is np.ndarray else value

    def of(self, numbers: Sequence[Any]) -> np.ndarray:
        """The elements for an instance with these numbers. Raises IndexError where there is no such element. Linear in
        them and those written."""
        found = self.base.copy()
        for index, where, places, sizes, value in self.told:
            if places:
                index = np.array(index)
                index[where] = _within([numbers[place] for place in places], sizes)
                index = tuple(index)
            is_told = type(value) is list
            found[index] = np.array([numbers[place] for place in value], np.int64) if is_told else value
        return found


def _within(indices: list[Any], sizes: np.ndarray) -> np.ndarray:
    """Indices from 0 on. Raises IndexError where one is none."""
    found = np.array(indices, np.int64)
    found += (found < 0) * sizes
    if ((found < 0) | (found >= sizes)).any():
        raise IndexError
    return found


class Fills:
    """Filled tensors of one shape and dtype, of one instance: those that have a plan have one together."""

    __slots__ = ("base", "others", "places", "plan")

    def __init__(self, fills: Sequence[Fill]):
        self.base = np.stack([fill.base for fill in fills])
        size, first, plans = fills[0].base.size, 0, list[Any]()
        self.others = [(k * size, (k + 1) * size, fill) for k, fill in enumerate(fills) if fill.plan is None]
        """Without a plan, and where they stand."""
        self.places: list[int] = []
        for k, fill in enumerate(fills):
            if fill.plan is not None:
                at, rows, strides, sizes = fill.plan
                values = np.full(len(at), fill.writes[0].value, self.base.dtype)
                plans.append((at + k * size, values, rows + first, strides, sizes))
                self.places += fill.places
                first += len(at)
        self.plan = tuple(map(np.concatenate, zip(*plans, strict=True))) if plans else None
        """As a Fill's, and what is written."""


def filled(runs: Sequence[tuple[Fills, Sequence[Any]]]) -> np.ndarray:
    """The elements of filled tensors of one dtype, one run behind the other, each for an instance with such numbers.
    Raises IndexError where there is no such element. Linear in them, with some microseconds of Python a run."""
    memory = np.concatenate([fills.base.reshape(-1) for fills, _ in runs])
    plans, numbers, begin, first = list[Any](), list[Any](), 0, 0
    for fills, of_instance in runs:
        for start, stop, fill in fills.others:
            memory[begin + start : begin + stop] = fill.of(of_instance).reshape(-1)
        if fills.plan is not None:
            at, values, rows, strides, sizes = fills.plan
            plans.append((at + begin, values, rows + first, strides, sizes))
            numbers += [of_instance[place] for place in fills.places]
            first += len(at)
        begin += fills.base.size
    if plans:
        at, values, rows, strides, sizes = map(np.concatenate, zip(*plans, strict=True))
        np.add.at(at, rows, strides * _within(numbers, sizes))
        memory[at] = values
    return memory


class Filled(Made):
    """See the module's docstring. Its `items` are the writes so far."""

    __slots__ = ()
    rec = property(lambda self: self.blank.rec, lambda self, rec: setattr(self.blank, "rec", rec))
    whole: Value | None

    def materialise(self) -> Value:
        """The constant; of which the tensor shows no other from now on."""
        if self.whole is None:
            self.whole = self.blank.constant_filled(Fill(self.tensor.numpy(), self.items))  # type: ignore[union-attr]
        return self.whole

    def fill(self) -> Fill:
        """How it is filled, which does not change from now on."""
        self.materialise()
        return Fill(self.tensor.numpy(), self.items)  # type: ignore[union-attr]

    def name_of_its_own(self, is_alone: Callable[[Any, Value], bool]) -> Value | None:
        """See Lazy."""
        return None

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.whole is not None:
            raise CannotKeep
        at, dtype = _elements(index, self.described.shape), self.described.dtype
        is_told = type(value) is Told or type(value) is Number
        if is_told:
            places = value.places if type(value) is Told else torch.tensor(value.place)
            value, ndim = places.flatten().numpy(), places.ndim
            is_range = ndim < 2 and len(value) == len(at) and (len(at) == 1 or _is_rising(at))
        if not (is_range if is_told else type(value) in _WRITTEN[dtype.is_floating_point]):
            raise CannotKeep
        last = self.items[-1] if self.items else None
        if last is not None and not is_told and repr(value) == repr(last.value):  # zeros have signs
            self.items[-1] = Write(np.concatenate([last.at, at]), value)
        else:
            self.items.append(Write(at, value))

    def __getitem__(self, index: Any) -> Any:
        if self.whole is None and (type(index) is int or type(index) is Number):
            return Part(self, (index,))
        return Symbol.__getitem__(self, index)

    def real(self) -> torch.Tensor:
        """Nobody is to have it who does not know the integers."""
        raise CannotKeep


class Part:
    """`x[i]` of a filled tensor, in which elements are written."""

    __slots__ = ("index", "of")

    def __init__(self, of: Filled, index: tuple[Any, ...]):
        self.of, self.index = of, index

    def __setitem__(self, index: Any, value: Any) -> None:
        self.of[(*self.index, *(index if type(index) is tuple else (index,)))] = value

    def __getattr__(self, name: str) -> NoReturn:
        raise CannotKeep


_WRITTEN = {True: frozenset((int, bool, float)), False: frozenset((int, bool))}
"""Kinds of numbers that are written into floating tensors and others."""
_SCALARS = frozenset((int, Number))
"""What lists of indices may hold: those of lists or tensors mean other elements."""
_FILLED = frozenset((torch.float32, torch.float64, torch.int64, torch.bool))


def fill(watch: Shows, made: Made, index: Any, value: Any) -> bool:
    """Let a tensor that forward made become a filled one, where its index or what is written are an instance's numbers.
    Raises CannotKeep where others may have seen its memory."""
    if told(list(index) if type(index) is tuple else index) is None and type(value) is not Told:
        parts = index if type(index) is tuple else (index,)
        if type(value) is not Number and all(type(part) is not Told for part in parts):
            return False
    if made.described.dtype not in _FILLED or not made.is_unseen():
        raise CannotKeep
    tensor: Any = made
    tensor.tensor = made.real().clone()
    tensor.items, tensor.blank, tensor.whole = [], watch, None
    watch.rec.has_buffers = True  # which nobody is asked for once forward has run
    set_class(made, Filled)
    return True


def _elements(index: Any, shape: Sequence[int]) -> np.ndarray:
    """The elements that an index names, as `Write.at`. Raises CannotKeep for indices that are no integers, lists or
    vectors of them, or slices."""
    parts = list(index) if type(index) is tuple else [index]
    if len(parts) > len(shape):
        raise CannotKeep
    parts += [slice(None)] * (len(shape) - len(parts))
    ranges = [dim for dim, part in enumerate(parts) if type(part) is slice]
    found = [_indices(part, size) for part, size in zip(parts, shape, strict=True)]
    for number, dim in enumerate(ranges):  # each slice is a dimension of its own, behind that of the lists
        found[dim] = found[dim].reshape(-1, *[1] * (len(ranges) - 1 - number))
    lists = [dim for dim in range(len(parts)) if dim not in ranges]
    for dim in lists:
        found[dim] = found[dim].reshape(-1, *[1] * len(ranges))
    try:
        return np.stack(np.broadcast_arrays(*found), -1).reshape(-1, len(shape))
    except ValueError:
        raise CannotKeep from None


def _indices(part: Any, size: int) -> np.ndarray:
    kind = type(part)
    if kind is slice:
        if told([part.start, part.stop, part.step]) is not None:
            raise CannotKeep
        return np.arange(size)[part]
    if kind is Told and part.dim() < 2:
        return -1 - part.places.reshape(-1).numpy()
    if kind is list and _SCALARS.issuperset(map(type, part)):
        return np.concatenate([_indices(item, size) for item in part]) if part else np.zeros(0, np.int64)
    if kind is Number:
        return np.array([-1 - part.place])
    if kind is not int or not -size <= part < size:
        raise CannotKeep
    return np.array([part % size])


def _is_rising(at: np.ndarray) -> bool:
    """Whether elements are known, and none comes twice."""
    return at.shape[1] == 1 and bool((at >= 0).all() and (np.diff(at[:, 0]) > 0).all())
