"""What closed code is given in the place of sizes and indices while what it records is being kept.

Code that is kept runs once for all instances, so whatever it learns of this one must be known. A `Size` is an integer
that tells when it is looked at; compared with a number it tells between which bounds the answer is the same, and what
is recorded serves sizes within these (`assert n <= 512`). What arithmetic makes of it is an `Amount`. An `Index` stands
for indices of the instance's, of which code can do no more than take rows by them, look them up, send rows by them, and
compare all with a number that none of them is (`ids != pad`), which gives a `Mask`. A list of them is `Listed`.
Anything else gives the attempt up (`CannotKeep`): the call is recorded as it is written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from edbc.capture.ragged.program import CannotKeep, Numbers, Triple, triple
from edbc.capture.standins.nests import inside
from edbc.capture.standins.standin import Lazy, Shared

if TYPE_CHECKING:
    from edbc.capture.ragged.value import Ragged
    from edbc.capture.record.recorder import Recorder


MOST = 1 << 62
"""Above all sizes."""


_BINARY = ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "divmod")
_MIRRORED = {
    f"__{one}__": f"__{other}__" for name in _BINARY for one, other in ((name, f"r{name}"), (f"r{name}", name))
}
_MIRRORED |= {"__lt__": "__gt__", "__gt__": "__lt__", "__le__": "__ge__", "__ge__": "__le__", "__eq__": "__eq__",
              "__ne__": "__ne__"}  # fmt: skip


class Size:
    """A size that differs between instances, that of the register `like`. As an integer it tells that it was asked."""

    __slots__ = ("like", "rec", "value")

    def __init__(self, rec: Recorder, value: int, like: Triple):
        self.rec, self.value, self.like = rec, value, like

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def counts(self, refs: range) -> bool:
        """Whether there are so many rows, as there must be in other instances then."""
        own = triple(refs)
        if self.value != own[2]:
            return False
        if own != self.like:
            self.rec.equal_sizes.append((self.like, own))
        return True

    def item(self) -> Size:
        """Of what is a tensor in eager execution: the longest of the lengths of a batch of one, say."""
        return self


class Shape(tuple[Any, ...]):
    """A shape with sizes in it, which stay such where a `torch.Size` is added: that makes integers of them."""

    __slots__ = ()

    @classmethod
    def of_parts(cls, parts: list[Any]) -> Any:
        """What it is with others in their places (`standins.nests`): the class that users know, of integers alone."""
        return torch.Size(parts) if {*map(type, parts)} <= {int} else cls(parts)

    def __add__(self, other: Any) -> Any:
        return Shape((*self, *other)) if isinstance(other, tuple) else NotImplemented

    def __getitem__(self, which: Any) -> Any:
        found = tuple.__getitem__(self, which)
        return Shape(found) if type(which) is slice else found


def _asking(name: str) -> Callable[..., Any]:
    mirrored = _MIRRORED.get(name, "")

    def ask(self: Any, *others: Any) -> Any:
        self.rec.asked_size = True
        self.rec.sizes_asked.append(self)
        method = getattr(type(self.value), name, None)
        if method is None:  # an index, of a number that is none
            raise TypeError(f"'{type(self.value).__name__}' object cannot be interpreted as an integer")
        found = method(self.value, *[x.value if type(x) in _AMOUNTS else x for x in others])
        if found is NotImplemented and isinstance(others[0], Number):  # integers leave the sum with a float to that
            return getattr(others[0], mirrored)(self.value)
        return found

    return ask


def _comparing(name: str, least: int, most: int) -> Callable[..., Any]:
    """A comparison that is true from `least` to `most` above the number that it is given; below and above that it is
    not, and the size is on one side."""
    method, ask = getattr(int, name), _asking(name)

    def compare(self: Size, *number: Any) -> Any:
        other = number[0] if number else 0
        if other is None:
            return method(self.value, None)
        if type(other) is Size and (other.like == self.like or other.value == self.value):
            if other.like != self.like:  # told for as long as they are equal
                self.rec.equal_sizes.append((self.like, other.like))
            return method(self.value, self.value)
        if type(other) is not int:
            return ask(self, *number)
        given = number[0] if number else 0
        low, high = max(0, given + least), min(MOST, given + most)
        if not low <= self.value <= high:
            low, high = (0, low - 1) if self.value < low else (high + 1, MOST)
        self.rec.within.append((self.like, low, high))
        return method(self.value, *number)

    return compare


METHODS = (
    "add sub mul floordiv truediv mod pow divmod radd rsub rmul rfloordiv rtruediv rmod rpow neg pos abs eq ne lt le "
    "gt ge hash index int float bool repr str format and or xor lshift rshift rand ror rxor round trunc floor ceil "
    "invert"
).split()
"""Of integers, by which code learns what they are."""


class Amount:
    """A number that follows from sizes by arithmetic (`n - 1`, `h.sum(0) / n`, `n ** -0.5`): `call` of `operands`. With
    tensors it is computed of each instance's sizes, and some are places of rows (`ragged.whole.amounts`); as a Python
    number it tells that it was asked."""

    __slots__ = ("call", "operands", "rec", "value")

    def __init__(self, rec: Recorder, call: Callable[..., Any], operands: tuple[Any, ...]):
        self.rec, self.call, self.operands = rec, call, operands
        self.value: int | float = call(*[x.value if type(x) in _AMOUNTS else x for x in operands])
        rec.num_amounts += 1

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.value)

    @property
    def offset(self) -> tuple[Size, int] | None:
        """A size and how much more than that it is; None for what is no such sum."""
        if self.call not in (operator.add, operator.sub):
            return None
        one, other = self.operands
        if self.call is operator.add and type(one) is int:
            one, other = other, one
        found = offset_of(one)
        if found is None or type(other) is not int:
            return None
        return found[0], found[1] + (other if self.call is operator.add else -other)

    @property
    def factors(self) -> tuple[Size, Size] | None:
        """The two sizes that it is the product of; None for what is none."""
        one, other = self.operands if self.call is operator.mul else (None, None)
        return (one, other) if type(one) is type(other) is Size else None


_AMOUNTS = (Size, Amount)


def offset_of(item: Any) -> tuple[Size, int] | None:
    """See `Amount.offset`."""
    return (item, 0) if type(item) is Size else item.offset if type(item) is Amount else None


def asked(item: Any) -> Any:
    """A nest with the numbers themselves in the places of amounts."""
    if type(item) is slice:
        return slice(asked(item.start), asked(item.stop), asked(item.step))
    if type(item) is not Amount:
        return inside(asked, item)
    item.rec.asked_size = True
    return item.value


def amount(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of a number, such as `math.sqrt`, which of sizes makes an amount."""

    def of_size(item: Any) -> Any:
        return Amount(item.rec, call, (item,)) if type(item) in _AMOUNTS and item.rec.tells_amounts else call(item)

    return of_size


def _deriving(name: str, call: Callable[..., Any], is_mirrored: bool) -> Callable[..., Any]:
    ask = _asking(name)

    def derive(self: Any, *others: Any) -> Any:
        if not isinstance(others[0], Number):  # a tensor, which knows what to do with sizes
            return NotImplemented
        same = _same(self, others[0], call, is_mirrored)
        if same is not None:
            return same
        if not self.rec.tells_amounts or type(others[0]) not in (int, float, *_AMOUNTS):
            return ask(self, *others)
        return Amount(self.rec, call, (*others, self) if is_mirrored else (self, *others))

    return derive


def _same(one: Any, other: Any, call: Callable[..., Any], is_mirrored: bool) -> Any:
    """The number that `n + 0`, `n - 0` and `n * 1` are, and the 0 that is the difference of equal sizes, told for as
    long as they are; None for others."""
    if type(other) is int:
        neutral = {operator.add: 0, operator.sub: None if is_mirrored else 0, operator.mul: 1}.get(call)
        return one if other == neutral else None
    if call is operator.sub and type(one) is type(other) is Size and one.value == other.value and one == other:
        return 0
    return None


def _negated(self: Any) -> Any:
    return Amount(self.rec, operator.sub, (0, self)) if self.rec.tells_amounts else _asking("__neg__")(self)


def _comparing_sums(name: str) -> Callable[..., Any]:
    """A comparison of what is a size and so much more: one of the size."""
    ask = _asking(name)

    def compare(self: Amount, *number: Any) -> Any:
        of = self.offset
        if of is None or type(number[0] if number else 0) is not int:
            return ask(self, *number)
        compared = getattr(of[0], "__ne__" if name == "__bool__" else name)
        return compared((number[0] if number else 0) - of[1])

    return compare


for _name in METHODS:
    for _kind in _AMOUNTS:
        setattr(_kind, f"__{_name}__", _negated if _name == "neg" else _asking(f"__{_name}__"))
for _name, _call in (("add", operator.add), ("sub", operator.sub), ("mul", operator.mul), ("truediv", operator.truediv),
                     ("pow", operator.pow), ("floordiv", operator.floordiv), ("mod", operator.mod)):  # fmt: skip
    for _kind in _AMOUNTS:
        setattr(_kind, f"__{_name}__", _deriving(f"__{_name}__", _call, False))
        setattr(_kind, f"__r{_name}__", _deriving(f"__r{_name}__", _call, True))
for _name, _least, _most in (("lt", -MOST, -1), ("le", -MOST, 0), ("gt", 1, MOST), ("ge", 0, MOST), ("eq", 0, 0),
                             ("ne", 0, 0), ("bool", 1, MOST)):  # fmt: skip
    setattr(Size, f"__{_name}__", _comparing(f"__{_name}__", _least, _most))
    setattr(Amount, f"__{_name}__", _comparing_sums(f"__{_name}__"))


def untold(self: Any, *_: Any, **__: Any) -> NoReturn:
    """What code asks that no program can tell."""
    raise CannotKeep


def _sizes_of(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of `view` and its like, which may be one tuple."""
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape


class Index(Lazy):
    """Indices of the instance's: a vector, or a matrix of few rows or columns, each a vector."""

    __slots__ = ("along", "rec", "tensor", "vectors")

    def __init__(self, rec: Recorder, tensor: torch.Tensor, vectors: tuple[Numbers, ...], along: int):
        self.rec, self.tensor, self.vectors, self.along = rec, tensor, vectors, along
        """`vectors` lie along dimension 1 - `along` of a matrix; a vector has one, and `along` is -1."""
        self.whole = None

    as_index = property(lambda self: self)
    """As of `Listed`."""
    shape = property(lambda self: self._shape())
    ndim = property(lambda self: self.tensor.ndim)
    dtype = property(lambda self: self.tensor.dtype)

    def _own_size(self) -> Size:
        """How long its vectors are."""
        return Size(self.rec, self.vectors[0].size, self.vectors[0].triple)

    def _shape(self) -> tuple[Any, ...]:
        size = self._own_size()
        return tuple(len(self.vectors) if dim == self.along else size for dim in range(self.tensor.ndim))

    def __len__(self) -> int:
        self.rec.asked_size |= self.along != 0
        return len(self.tensor)

    def __iter__(self) -> Iterator[Any]:
        if self.along != 0:
            raise CannotKeep
        return iter([self[i] for i in range(len(self.vectors))])

    def __getitem__(self, index: Any) -> Any:
        wanted = index if type(index) is tuple else (index,)
        if self.along < 0 and len(wanted) == 2 and wanted[1] is None and wanted[0] == slice(None):
            return Spread(self)
        is_all = [type(i) is slice and i == slice(None) for i in wanted]
        if self.along < 0 and _is_line(wanted):
            return Line(self)
        if all(is_all):
            return self
        if self.along < 0 and len(wanted) == 1 and type(wanted[0]) is slice:
            return self if self._is_whole(wanted[0]) else Cut(self, wanted[0])
        own = wanted[self.along] if 0 <= self.along < len(wanted) else None
        if type(own) is int and sum(is_all) == len(wanted) - 1:
            return self.vector(own)
        raise CannotKeep

    def _is_whole(self, which: slice) -> bool:
        """Whether a slice of a vector ends where that does, for as long as these are equal."""
        is_from_first = which.start is None or (type(which.start) is int and which.start == 0)
        is_near = is_from_first and which.step is None and type(which.stop) is Size
        return is_near and which.stop.value == len(self.tensor) and which.stop == self._own_size()

    def vector(self, number: int) -> Index:
        """One of a matrix's vectors."""
        numbers = self.vectors[number]
        tensor = self.tensor.select(self.along, number)
        self.rec.know_numbers(tensor, numbers)
        return Index(self.rec, tensor, (numbers,), -1)

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """All vectors."""
        if self.along != dim:
            raise CannotKeep
        return tuple(self.vector(i) for i in range(len(self.vectors)))

    def t(self) -> Index:
        """The matrix with its dimensions in the other order."""
        return Index(self.rec, self.tensor.t(), self.vectors, 1 - self.along) if self.tensor.ndim == 2 else self

    def unsqueeze(self, dim: int) -> Spread | Line:
        """A vector as a column, or as a line."""
        if self.along >= 0 or dim not in (0, 1, -1, -2):
            raise CannotKeep
        return Line(self) if dim in (0, -2) else Spread(self)

    def view(self, *shape: Any) -> Any:
        """The same."""
        sizes = _sizes_of(shape)
        if self.along >= 0 and self._has_shape(sizes):
            return self
        if self.along >= 0 or sizes not in ((-1,), (-1, 1), (1, -1)):
            raise CannotKeep
        return self if len(sizes) == 1 else self.unsqueeze(sizes.index(1))

    def _has_shape(self, sizes: tuple[Any, ...]) -> bool:
        """Whether a view by such sizes, one of which may be -1, is the same: `ids.view(-1, ids.shape[-1])`."""
        own = self._shape()
        given = [pair for pair in zip(sizes, own, strict=False) if type(pair[0]) is Size or pair[0] != -1]
        return len(sizes) == len(own) <= len(given) + 1 and all(
            type(one) is type(other) and (one.like == other.like if type(one) is Size else one == other)
            for one, other in given
        )

    def integers(self) -> Any:
        """As rows of integers: of a matrix, those of its vectors side by side."""
        if self.along < 0:
            return self.rec.rows_of_numbers(self.vectors[0])
        return self._side_by_side([self.vector(i).integers() for i in range(len(self.vectors))])

    def _side_by_side(self, rows: list[Any]) -> Any:
        return rows[0].unsqueeze(self.along) if len(rows) == 1 else torch.stack(rows, self.along)

    def rows_of(self, table: Shared) -> Any:
        """Rows of a parameter by these numbers: of a matrix, those of its vectors side by side."""
        if not self.rec.flows:
            raise CannotKeep
        if self.along < 0:
            return self.rec.looked_up(table, self.vectors[0])
        return self._side_by_side([self.vector(i).rows_of(table) for i in range(len(self.vectors))])

    reshape = view
    T = property(lambda self: self.t())
    is_cuda = property(lambda self: False)
    device = property(lambda self: self.tensor.device)
    requires_grad = property(lambda self: False)

    def _same(self, *_: Any, **__: Any) -> Index:
        return self

    long = contiguous = clone = detach = cpu = _same
    data = property(lambda self: self)

    def to(self, where: Any, *rest: Any, **options: Any) -> Index:
        """The same where nothing is to change: indices stand on the host."""
        if rest or options or not (where is torch.int64 or (not isinstance(where, torch.dtype) and _is_host(where))):
            raise CannotKeep
        return self

    def _compared(self, number: Any, compare: Callable[[Any, Any], Any]) -> Any:
        """What comparing all with a number gives: a mask that is told where bounds say that none is that number, and
        may be; else rows."""
        is_told = type(number) is int and self.rec.tells_apart and self.along < 0 and self._is_of_one_vector()
        numbers = self.vectors[0]
        if not is_told or numbers.lowest <= number <= numbers.highest:
            return compare(self.integers(), number)
        self.rec.apart.append((numbers.triple, number))
        told = compare(number, number + 1)
        return Mask(self.rec, self._shape(), (0, told, told), torch.bool)

    def _is_of_one_vector(self) -> bool:
        """Whether its first vector bounds all that it has."""
        return True

    def __eq__(self, other: object) -> Any:
        return self._compared(other, operator.eq)

    def __ne__(self, other: object) -> Any:
        return self._compared(other, operator.ne)

    __hash__ = Lazy.__hash__
    eq, ne, not_equal = __eq__, __ne__, __ne__

    make = _meta = _read = untold


def _is_line(wanted: tuple[Any, ...]) -> bool:
    """Whether an index gives a vector as a matrix of one row."""
    return wanted[0] is None and all(type(i) is slice and i == slice(None) for i in wanted[1:]) and len(wanted) < 3


class Cut(Index):
    """Those of a vector from one place to another, which are looked up with the others."""

    __slots__ = ("known", "of", "which")

    def __init__(self, of: Index, which: slice):
        which = slice(*[x if x is None else operator.index(x) for x in (which.start, which.stop, which.step)])
        super().__init__(of.rec, of.tensor[which], of.vectors, -1)
        self.of, self.which = of, which
        self.known: Any = None

    def integers(self) -> Ragged:
        """As rows of integers."""
        if self.known is None:
            all_rows = self.of.integers()
            self.known = all_rows.take(self.which)
            self.rec.made_of[self.known.refs.start] = [all_rows]
        return self.known

    def rows_of(self, table: Shared) -> Any:
        """Rows of a parameter by these numbers."""
        return self.of.rows_of(table).take(self.which)

    def _own_size(self) -> Size:
        return Size(self.rec, len(self.tensor), triple(self.integers().refs))

    def _is_of_one_vector(self) -> bool:
        return self.of._is_of_one_vector()

    def unsqueeze(self, dim: int) -> Line:
        """As a line."""
        if dim not in (0, -2):
            raise CannotKeep
        return Line(self)

    vector = unbind = untold


class Joined(Cut):
    """Vectors and integers that code has written, one after the other (`[BEGIN] + words`): rows of each, joined."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Index | list[int]]):
        indices = [part for part in parts if isinstance(part, Index)]
        tensors = [part.tensor if isinstance(part, Index) else torch.tensor(part) for part in parts]
        vectors = tuple(vector for index in indices for vector in index.vectors)
        Index.__init__(self, indices[0].rec, torch.cat(tensors), vectors, -1)
        self.parts, self.known = parts, None

    def integers(self) -> Ragged:
        """As rows of integers."""
        if self.known is None:
            parts = [part.integers() if isinstance(part, Index) else part for part in self.parts]
            rows = [self.rec.constant(torch.tensor(part)) if type(part) is list else part for part in parts]
            self.known = self.rec.function(torch.cat, (rows,), {})
            self.rec.made_of[self.known.refs.start] = parts
        return self.known

    def rows_of(self, table: Shared) -> Any:
        """Rows of a parameter by these numbers."""
        rows = [
            part.rows_of(table) if isinstance(part, Index) else torch.stack([table[number] for number in part])
            for part in self.parts
        ]
        return torch.cat(rows)

    def _is_of_one_vector(self) -> bool:
        return False


class _Matrix(Index):
    """A vector of indices seen with a dimension more."""

    __slots__ = ()
    ndim = property(lambda self: 2)


class Spread(_Matrix):
    """A vector of indices as a column, or as so many equal columns: where all that stands in a row is sent."""

    __slots__ = ("width",)

    def __init__(self, index: Index, width: int = 1):
        super().__init__(index.rec, index.tensor, index.vectors, -1)
        self.width = width

    def _shape(self) -> tuple[Any, ...]:
        return *super()._shape(), self.width

    def vector_of(self, width: int) -> Index | None:
        """The one index of each row of so many items."""
        return Index(self.rec, self.tensor, self.vectors, -1) if width == self.width else None

    def expand(self, *sizes: Any) -> Spread:
        """So many columns."""
        rows, width = _sizes_of(sizes)
        if self.width != 1 or not self._is_own(rows) or type(width) is not int:
            raise CannotKeep
        return Spread(self, self.width if width == -1 else width)

    def expand_as(self, other: Any) -> Spread:
        """As many columns as another has."""
        return self.expand(*other.shape)

    def repeat(self, *sizes: Any) -> Spread:
        """So many columns."""
        rows, width = _sizes_of(sizes)
        if type(rows) is not int or rows != 1 or type(width) is not int:
            raise CannotKeep
        return Spread(self, self.width * width)

    def _is_own(self, size: Any) -> bool:
        """Whether a size is that of the vector; so it has to be in other instances."""
        if type(size) is Size and size.value == self.vectors[0].size:
            self.rec.equal_sizes.append((size.like, self.vectors[0].triple))
            return True
        return type(size) is int and size == -1

    def rows_of(self, table: Shared) -> Any:
        """Rows of a parameter, each in a batch of one."""
        index = self.vector_of(1)
        if index is None:
            raise CannotKeep
        return index.rows_of(table).unsqueeze(1)

    def integers(self) -> Any:
        """As rows of integers, one each."""
        index = self.vector_of(1)
        if index is None:
            raise CannotKeep
        return index.integers().unsqueeze(1)

    __getitem__ = __iter__ = unsqueeze = view = reshape = t = unbind = untold


class Range(Index):
    """`torch.arange` of a size that differs between instances."""

    __slots__ = ("count",)

    def __init__(self, count: Size):
        super().__init__(count.rec, torch.arange(count.value), (), -1)
        self.count = count

    def _own_size(self) -> Size:
        return self.count

    def _shape(self) -> tuple[Any, ...]:
        return (self.count,)

    def __len__(self) -> int:
        self.rec.asked_size = True
        return self.count.value

    def rows_of(self, table: Shared) -> Any:
        """The first rows of a parameter."""
        found = self.rec.rows_between(table, slice(None, self.count)) if self.rec.flows else None
        if found is None:
            raise CannotKeep
        return found

    def integers(self) -> Ragged:
        """As rows of integers."""
        return self.rec.rows_of_places(self.count)

    def unsqueeze(self, dim: int) -> Any:
        """As a line, or worked out."""
        return Line(self) if dim in (0, -2) else self.rec.function(torch.unsqueeze, (self, dim), {})

    def __getitem__(self, index: Any) -> Any:
        is_line = _is_line(index if type(index) is tuple else (index,))
        return Line(self) if is_line else self.rec.function(torch.Tensor.__getitem__, (self, index), {})

    def _compared(self, number: Any, compare: Callable[[Any, Any], Any]) -> Any:
        function = torch.eq if compare is operator.eq else torch.ne
        return self.rec.function(function, (self, number), {})

    def view(self, *shape: Any) -> Any:
        """In another shape."""
        return self.rec.function(torch.reshape, (self, _sizes_of(shape)), {})

    def to(self, *args: Any, **options: Any) -> Any:
        """As another dtype."""
        return self.rec.function(torch.Tensor.to, (self, *args), options)

    reshape = view
    __iter__ = t = unbind = vector = untold


class Line(_Matrix):
    """A vector of indices as a matrix of one row: a batch of one."""

    __slots__ = ("index",)

    def __init__(self, index: Index):
        super().__init__(index.rec, index.tensor, index.vectors, -1)
        self.index = index

    def _shape(self) -> tuple[Any, ...]:
        return 1, *self.index.shape

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        return iter([self[0]])

    def __getitem__(self, index: Any) -> Index:
        if type(index) is tuple and len(index) == 2 and index[0] == slice(None) and type(index[1]) is slice:
            own = index[1]
            if own.start is own.step is None and type(own.stop) is Size and own.stop == self.index._own_size():
                return self
            return Line(self.index[own])
        if type(index) is tuple and len(index) == 2 and type(index[0]) is int:
            return self[index[0]][index[1]]
        if type(index) is not int or index not in (0, -1):
            raise CannotKeep
        return self.index

    def squeeze(self, dim: int = 0) -> Index:
        """The vector."""
        return self[dim]

    def integers(self) -> Any:
        """As rows of integers, in a batch of one."""
        return self.index.integers().unsqueeze(0)

    def rows_of(self, table: Shared) -> Any:
        """Rows of a parameter, in a batch of one."""
        return self.index.rows_of(table).unsqueeze(0)

    def view(self, *shape: Any) -> Any:
        """The vector, the same, or rows of integers."""
        sizes = _sizes_of(shape)
        if len(sizes) > 2:
            return self.integers().view(*sizes)
        return self if self._has_shape(sizes) else self.index.view(*shape)

    def repeat(self, *sizes: Any) -> Line:
        """A batch of one."""
        if _sizes_of(sizes) != (1, 1):
            raise CannotKeep
        return self

    def expand(self, *sizes: Any) -> Line:
        """The same, told how long it is."""
        batch, own = _sizes_of(sizes)
        if type(batch) is not int or batch not in (1, -1):
            raise CannotKeep
        if not (type(own) is int and own == -1):
            if type(own) is not Size or own.value != self.index._own_size().value:
                raise CannotKeep
            self.rec.equal_sizes.append((own.like, self.index._own_size().like))
        return self

    def expand_as(self, other: Any) -> Line:
        """The same, as long as another."""
        return self.expand(*other.shape)

    def unsqueeze(self, dim: int) -> Any:
        """Integers with one more dimension."""
        return self.integers().unsqueeze(dim)

    reshape = view
    t = unbind = untold


class Mask(Lazy):
    """A tensor whose every element is told by sizes alone: `told` are a diagonal of its last two dimensions, the number
    up to it and the number above. Of its dimensions some are symbols. See `ragged.masks`."""

    __slots__ = ("dims", "dtype_", "rec", "told")

    def __init__(self, rec: Recorder, dims: Sequence[Any], told: tuple[int, Any, Any], dtype: torch.dtype):
        self.rec, self.dims, self.told, self.dtype_ = rec, tuple(dims), told, dtype
        self.whole = None

    shape = property(lambda self: self.dims)
    ndim = property(lambda self: len(self.dims))
    dtype = property(lambda self: self.dtype_)
    requires_grad = property(lambda self: False)
    device = property(lambda self: torch.device("cpu"))

    @property
    def number(self) -> Any:
        """What all elements are, which may be a size; None where they differ."""
        return self.told[1] if self.told[1] is self.told[2] or self.told[1] == self.told[2] else None

    make = _meta = _read = untold

    def __len__(self) -> int:
        if not self.dims or type(self.dims[0]) is Size:
            raise CannotKeep
        return int(self.dims[0])

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])

    def item(self) -> Any:
        """The only number."""
        if self.number is None or any(type(size) is Size or size != 1 for size in self.dims):
            raise CannotKeep
        return self.number

    def tolist(self) -> Any:
        """The numbers of a batch of one."""
        return [self.item()] if self.ndim == 1 else self.item() if not self.ndim else untold(self)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def rows_of(self, table: Shared) -> Any:
        """A row of a parameter, whose number all elements of one dimension are."""
        sizes = [size for size in self.dims if type(size) is Size]
        number = self.number if self.dtype is torch.int64 and len(sizes) == 1 else None
        others = [size for size in self.dims if type(size) is not Size]
        if type(number) is not int or not 0 <= number < table.shape[0] or others != [1] * len(others):
            raise CannotKeep
        rows = self.rec.row_repeated(table, number, sizes[0])
        for place, size in enumerate(self.dims):
            rows = rows if type(size) is Size else rows.unsqueeze(place)
        return rows

    def tensor_of(self, lengths: Mapping[Triple, int]) -> torch.Tensor:
        """The tensor where symbols are so long. Raises CannotKeep for other symbols."""
        number = self.number
        if any(type(d) is Size and d.like not in lengths for d in (*self.dims, number)):
            raise CannotKeep
        sizes = [lengths[d.like] if type(d) is Size else d for d in self.dims]
        told = (0, lengths[number.like], lengths[number.like]) if type(number) is Size else self.told
        return mask_of(sizes, told, self.dtype_)


def mask_of(sizes: Sequence[int], told: tuple[int, Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """The tensor of a mask that is `told` so."""
    diagonal, inside, outside = told
    if inside == outside:
        return torch.full(sizes, inside, dtype=dtype)
    below = torch.ones(sizes[-2:], dtype=torch.bool).tril(diagonal)
    return torch.where(below, inside, outside).to(dtype).view(sizes)


class Listed:
    """A list or tuple of integers of the instance's, or of tuples of them: indices as Python has them. Code can make a
    tensor of it, take rows by it, slice it, and ask how long it is; what else lists can do tells of their numbers."""

    __slots__ = ("as_index", "kind")

    def __init__(self, index: Index, kind: type = list):
        self.as_index, self.kind = index, kind

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.kind

    def __len__(self) -> int:
        return len(self.as_index)

    def __bool__(self) -> bool:
        return bool(self.as_index._own_size())

    def __getitem__(self, index: Any) -> Listed:
        if type(index) is not slice or self.as_index.along >= 0:
            raise CannotKeep
        return Listed(self.as_index[index], self.kind)

    def __add__(self, other: Any) -> Listed:
        return self._joined(self, other)

    def __radd__(self, other: Any) -> Listed:
        return self._joined(other, self)

    def _joined(self, *items: Any) -> Listed:
        """Two lists or tuples, one after the other."""
        parts: list[Any] = [item.as_index if type(item) is Listed else list(item) for item in items]
        of_vectors = all(
            part.along < 0 if isinstance(part, Index) else {int}.issuperset(map(type, part)) for part in parts
        )
        if any(not isinstance(item, self.kind) for item in items) or not of_vectors:
            raise CannotKeep
        parts = [part for part in parts if isinstance(part, Index) or part]
        return Listed(Joined(parts), self.kind) if len(parts) > 1 else self

    __getattr__ = untold


for _name in (*METHODS, *"iter contains iadd imul reversed setitem delitem".split()):
    if _name not in ("bool", "add", "radd"):
        setattr(Listed, f"__{_name}__", untold)


COLUMN, COLUMNS = "column of", "columns of"
"""The variables that copies of code call in place of a list of one element of each item, and of `zip(*items)`; no names
that a user's function could have."""


def column(items: Any, element: Callable[[Any], Any], every: Callable[[Any], Any]) -> Any:
    """The list `every(items)`, which has `element(item)` of each: of pairs that stand for all instances' one of their
    vectors."""
    return element(_Item(items)) if type(items) is Listed else every(items)


def columns(items: Any, every: Callable[[Any], Any]) -> Any:
    """`every(items)`, which is `zip(*items)`: of pairs that stand for all instances' their vectors."""
    return iter(_vectors(items, tuple)) if type(items) is Listed else every(items)


def _vectors(items: Listed, kind: type) -> list[Listed]:
    index = items.as_index
    if index.along != 1:
        raise CannotKeep
    return [Listed(index.vector(i), kind) for i in range(len(index.vectors))]


class _Item:
    """One tuple of a list, which stands for all of them."""

    __slots__ = ("items",)

    def __init__(self, items: Listed):
        self.items = items

    def __getitem__(self, index: Any) -> Listed:
        """By number; or by the width that a tuple is taken apart by, and the number."""
        vectors = _vectors(self.items, list)
        expected, number = index if type(index) is tuple else (len(vectors), index)
        if expected != len(vectors) or type(number) is not int or not -expected <= number < expected:
            raise CannotKeep
        return vectors[number]


def _is_host(where: Any) -> bool:
    return isinstance(where, str | torch.device) and torch.device(where).type == "cpu"


MOST_VECTORS = 4
"""Of a matrix of indices: edges have two."""


COLUMNS_MET, ENDS_MET = ("columns",), ("ends",)
"""Of `Recorder.met`: columns of more than two indices, and two vectors of more than one."""


def along_of(rec: Recorder, shape: Sequence[int]) -> int:
    """The dimension that vectors of indices are numbered along: two ends of edges, else the smaller one; -1 of a
    vector. Of (1, 2) it is that of a batch of one, not that of one edge, which is one row of each of two vectors; (2,
    1) are two ends of one edge, but where instances bring columns and no edges."""
    if len(shape) == 1:
        return -1
    rows, columns = shape
    is_column = columns == 1 and COLUMNS_MET in rec.told_by and ENDS_MET not in rec.told_by
    return int(is_column or (rows > 2 and (columns == 2 or columns < rows)))


def vectors_of(rec: Recorder, tensor: torch.Tensor) -> tuple[tuple[Numbers, ...], int] | None:
    """The vectors of a tensor of indices, and the dimension that they are numbered along; None for anything else."""
    if tensor.dtype is not torch.int64 or not 1 <= tensor.ndim <= 2:
        return None
    if tensor.ndim == 1:
        return (rec.numbers_of(tensor),), -1
    along = along_of(rec, tensor.shape)
    if not 0 < tensor.shape[along] <= MOST_VECTORS:
        return None
    rows = tensor.numpy() if along == 0 else tensor.numpy().T
    return tuple(rec.hold(np.array(row), False) for row in rows), along
