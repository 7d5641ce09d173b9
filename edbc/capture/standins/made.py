"""Constants that forward makes: `torch.zeros(n)` and `torch.tensor([0.5, 2])` are descriptions until somebody needs
their bytes.

A tensor of zeros takes 0.8 microseconds to make, and 1.5 to copy and to note as an external, as its maker may fill it
anew for the next node. A description has no bytes that anybody could change, so all uses of equal ones are one external
of the mini-batch. A tensor of numbers is made by torch in 5.4 microseconds for 16 of them, and copied in 1.7, as its
maker may fill it anew too; an array of Python's and a tensor of its memory take 1.7, and nobody else has them.

Definitions.

(1) What is *described* is a call of one of MAKERS with plain sizes and of a floating dtype (of any, where integers of
    the instance may be written into it: `standins.told`), or of `torch.tensor` and
    its like of a list of plain numbers as one, in forward while it is recorded, from code of the user's
    (`capture.code.rebind`); not where a torch function mode is active, which may see the call, where gradients are
    switched off, or where tensors change in place (`capture.record.functionalise`).
(2) Whatever looks at a description, changes it, or computes with descriptions and real tensors alone, gets the real
    tensor, made once; from then on the description is that tensor, as it may hold anything. Among stand-ins of other
    kinds a description is an operand.
(3) A *buffer* is a description of which forward has assigned or read rows, `states[i] = h`: a list of names, its rows.
    Reading a row gives that very name, a slice or a column is a buffer of the same names, and a row to whose elements
    forward assigns is a buffer itself. So whoever changes a row, all who have it see it: they have the same object. As
    a whole a buffer is `torch.stack` of its rows, made when it is asked for, and anew once a row has changed. A row
    that a whole shows is alone only where that whole is, which is forgotten then (`record.functionalise`): the recorder
    knows it also when the buffer is gone and a view of its whole is left. What tensors that are not recorded were
    assigned to, by integers, is a buffer once it is read by them; numbers written into it leave it a constant. Recorded
    rows (`capture.ragged`) that nobody else shows are one once forward assigns to them, `h = linear(x); h[i] = y`.
(4) Where gradients are off around forward, a description is a *leaf* (`torch.zeros(1, n).requires_grad_()`) in name: a
    constant as any other, and its tensor requires a gradient once somebody asks for it.
(5) A *view* of equal elements, `torch.zeros(n).view(1, -1)`, is a description too. It and what it shows have one
    memory, which is made where one of them is looked at or changed.
(6) A description belongs to no recording: where it is used, the thread's recorder is asked. What forward leaves of
    descriptions on the caller's objects, or returns, are their real tensors.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.graph import increment_version

from edbc.capture.ragged.program import CannotKeep
from edbc.capture.ragged.symbols import Size, asked
from edbc.capture.semantics.gradmode import watcher_of_thread
from edbc.capture.semantics.torchstate import default_dtype
from edbc.capture.standins.fresh import makes_fresh
from edbc.capture.standins.lazy import Stack
from edbc.capture.standins.nests import mapped
from edbc.capture.standins.standin import (
    ANSWERS,
    Copied,
    Lazy,
    Symbol,
    Value,
    as_python_has_it,
    refuse_ended,
    set_class,
    turned,
    value_of,
)

MAKERS = (torch.zeros, torch.ones, torch.full, torch.empty, torch.eye)
LIKE = dict(zip((torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like), MAKERS, strict=False))
"""Those that ask a tensor for shape and dtype."""
NEW = dict(zip((torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_full, torch.Tensor.new_empty), MAKERS,
               strict=False))  # fmt: skip
"""Those that ask it for its dtype."""
FILLS_BY_CHANCE = frozenset(getattr(torch.Tensor, name) for name in "normal_ uniform_ exponential_ bernoulli_".split())
"""Whatever a tensor held, it holds random numbers then."""
MOST_ROWS = 4096
"""Of a buffer."""
_num_modes = torch._C._len_torch_function_stack


class Description(NamedTuple):
    """What a call makes."""

    function: Callable[..., torch.Tensor]
    shape: torch.Size
    given: tuple[Any, ...]
    """What the function is given besides sizes: what fills all elements."""
    dtype: torch.dtype

    def make(self) -> torch.Tensor:
        """The tensor."""
        return self.function(self.shape, *self.given, dtype=self.dtype, device="cpu")

    def of_row(self, at: int = 0) -> Description:
        """Each of its rows along a dimension, which are equal."""
        return self._replace(shape=self.shape[:at] + self.shape[at + 1 :])


class _Asked:
    """Who answers for descriptions: definition (2)."""

    has_ended, device = False, torch.device("cpu")

    def function(self, func: Any, args: Any, kwargs: Any, name: str | None = None) -> Any:
        """A torch function of descriptions, and of other tensors."""
        rec = _other_recorder((args, kwargs))
        if rec is None and func in FILLS_BY_CHANCE and type(args[0]) is Made and args[0].is_its_own():
            rec = _describer()
            rec = rec if rec is not None and rec.tracer.may_draw else None
        elif rec is None or rec.books is not None:
            args, kwargs = with_tensors(args), with_tensors(kwargs)
        return func(*args, **kwargs) if rec is None else rec.function(func, args, kwargs, name)

    def add(self, left: Any, right: Any) -> Any:
        """`left + right`."""
        return self.function(torch.add, (left, right), {})


_ASKED = _Asked()


def _converting(name: str) -> Callable[..., Any]:
    """A method of tensors that returns the tensor itself where nothing is to change: `x.to("cpu")`, `x.float()`."""
    method = getattr(torch.Tensor, name)

    def convert(self: Made, *args: Any, **kwargs: Any) -> Any:
        nothing = torch.empty(0, dtype=self.dtype)
        given = [torch.empty(0, dtype=x.dtype, device=x.device) if issubclass(type(x), Symbol) else x for x in args]
        if method(nothing, *given, **kwargs) is nothing:
            return self
        return self.rec.function(method, (self, *args), kwargs)

    return convert


def _viewing(name: str) -> Callable[..., Any]:
    """A method that gives a view: definition (5)."""
    method = getattr(torch.Tensor, name)

    def view(self: Made, *args: Any, **kwargs: Any) -> Any:
        seen = None if kwargs else self.seen(method, args)
        return self.rec.function(method, (self, *args), kwargs) if seen is None else seen

    return view


@lru_cache(maxsize=4096)
def _shape_of_view(method: Any, shape: torch.Size, args: tuple[Any, ...]) -> torch.Size:
    if any(type(item) not in _OF_SHAPES for item in args):
        raise TypeError("another dtype, or what is recorded")
    found: torch.Tensor = method(torch.empty(shape, device="meta"), *args)
    return found.shape


_OF_SHAPES = frozenset((int, tuple, torch.Size))


class Memory:
    """What views of equal elements show, once it is made."""

    __slots__ = ("described", "tensor")

    def __init__(self, described: Description):
        self.described = described
        self.tensor: torch.Tensor | None = None

    def shown(self, steps: Sequence[tuple[Any, tuple[Any, ...]]]) -> torch.Tensor:
        """What some methods give of it, one after the other."""
        if self.tensor is None:
            self.tensor = self.described.make()
        found: torch.Tensor = self.tensor
        for method, args in steps:
            found = method(found, *args)
        return found


def _of_tensor(name: str) -> property:
    """An attribute that may be assigned."""
    return property(lambda self: getattr(self.real(), name), lambda self, value: setattr(self.real(), name, value))


class Made(Lazy):
    """A description. Its `tensor` is what it has become, if anything."""

    __slots__ = ("as_rows", "assigned", "blank", "depth", "described", "draws", "items", "memory", "showing", "steps",
                 "tensor", "wants_gradient")  # fmt: skip
    described: Description
    tensor: torch.Tensor | None
    depth: int
    """How many integers were the index of tensors that forward has assigned, which are none of a recording."""
    assigned: list[tuple[Any, Any]]
    """What stands for an instance's tensors (`standins.told`), behind the indices that it was assigned by: written at
    once where it is used as a whole."""
    draws: bool
    """Whether torch functions of it are recorded, as they may draw: `F.dropout(h.new_ones(n))`."""
    wants_gradient: bool
    """Definition (4)."""
    memory: Memory | None
    """What it shows with others, definition (5), by these `steps`."""
    steps: tuple[tuple[Any, tuple[Any, ...]], ...]
    as_rows: Any
    """Itself as rows, once it was asked for."""
    items: list[Any]
    """Of a buffer: its rows, None for those that nobody has assigned or read, which are as `blank`."""
    blank: Value
    showing: Showing | None
    """What it was last shown as."""
    rec = property(lambda self: _ASKED)
    shape = property(lambda self: self.described.shape)
    dtype = property(lambda self: self.described.dtype)
    requires_grad, data, grad = _of_tensor("requires_grad"), _of_tensor("data"), _of_tensor("grad")
    to, cpu, type_as, float = map(_converting, ("to", "cpu", "type_as", "float"))
    contiguous = _converting("contiguous")
    view, reshape, unsqueeze, squeeze, expand = map(_viewing, ("view", "reshape", "unsqueeze", "squeeze", "expand"))
    slot = None
    """No slot of any Value, see `Shared.slot`."""

    def real(self) -> torch.Tensor:
        """The tensor, made once. Raises CannotKeep where tensors of an instance are in it."""
        if self.assigned:
            raise CannotKeep
        if self.tensor is None and self.memory is not None:
            self.tensor = self.memory.shown(self.steps)
        elif self.tensor is None:
            made = self.described.make()
            self.tensor = made.clone() if self.described.function is _of_numbers else made
            if self.wants_gradient:
                self.tensor.requires_grad_()
        return self.tensor

    def is_untouched(self) -> bool:
        """Whether it is what its description says: nobody has asked for its tensor or its rows, or assigned to it, or
        has a tensor of the memory that it shows."""
        if self.tensor is not None or self.as_rows is not None or self.assigned:
            return False
        return self.memory is None or self.memory.tensor is None

    def is_its_own(self) -> bool:
        """The same, and nothing else shows its memory."""
        return self.memory is None and self.is_untouched()

    def seen(self, method: Any, args: tuple[Any, ...]) -> Made | None:
        """What a method that gives a view gives of it, definition (5); None where its tensor is to be asked."""
        rec, known = _describer(), self.described
        if rec is None or rec.ragged or rec.symbolic or rec.shows is not None or type(self) is not Made:
            return None
        if known.function not in _EQUAL or self.draws or self.wants_gradient or not self.is_untouched():
            return None
        try:
            shape = _shape_of_view(method, known.shape, args)
        except (TypeError, RuntimeError, IndexError):  # as eager code will say
            return None
        if self.memory is None:
            self.memory = Memory(known)
        view = _made(rec, known._replace(shape=shape))
        view.memory, view.steps = self.memory, (*self.steps, (method, args))
        return view

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Definition (4)."""
        rec = watcher_of_thread()
        may_be_leaf = rec is not None and not rec.captures and rec.shows is None and not torch.is_grad_enabled()
        if not requires_grad or not may_be_leaf or not self.is_its_own():
            self.real().requires_grad_(requires_grad)
        else:
            self.wants_gradient = True
        return self

    def materialise(self) -> Value:
        """The constant of the mini-batch that is being recorded."""
        rec = watcher_of_thread()
        if rec is None:
            refuse_ended()
        if self.assigned:
            return self.leaf().materialise()
        if self.tensor is not None or (self.memory is not None and self.memory.tensor is not None):
            return rec.constant(self.real())
        described = self.described
        if described.function is _of_numbers:
            (numbers,) = described.given
            return rec.written(numbers, numbers.array, described.dtype, described.shape)
        return rec.shared_constant(described, described.make)

    def __add__(self, other: Any) -> Any:
        if type(other) is Value and self.is_untouched():
            rec = other.rec
            known = rec.plain.get((torch.add, self.described, other.slot))
            if known is not None:
                return rec.again(known, (rec.constant_of(self.described, self.described.make).ref, other.ref))
        return Lazy.__add__(self, other)

    def name_of_its_own(self, is_alone: Callable[[Any, Value], bool]) -> Value | None:
        if not self.is_its_own():
            return None
        constant = self.materialise()
        return turned(self, constant.rec.copied(constant))

    def fill_(self, value: Any) -> Any:
        """Another description, of what nobody has looked at yet."""
        is_plain = type(value) in PLAIN_NUMBERS and _is_plain(value)
        if type(self) is not Made or not is_plain or not self.is_its_own():
            return Lazy.fill_(self, value)  # type: ignore[attr-defined]
        self.described = self.described._replace(function=torch.full, given=(value,))
        return self

    def zero_(self) -> Any:
        """See fill_."""
        return self.fill_(0)

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.whole is not None:
            raise CannotKeep
        index = as_python_has_it(index)
        steps = index if type(index) is tuple else (index,)
        is_plain = {*map(type, steps)} == _INTEGERS
        if type(value) in PLAIN_NUMBERS and self._writes(index, steps, value):
            return
        if is_plain and type(value) in _NUMBERS:
            self.real()[index] = value
        elif self._becomes_another(index, value):
            self[index] = value
        else:
            is_own = issubclass(type(value), Symbol) and value.is_at_once
            is_known = is_own or type(value) is torch.Tensor
            if is_known and {*map(type, steps)} <= _STEPS and self._may_be_filled():
                self.depth = len(steps) if is_plain else self.depth
                if is_own:
                    torch.broadcast_to(value._meta(), self._meta()[index].shape)
                    if not self.assigned:
                        self.assigned = []
                    self.assigned.append((index, value))
                    value.rec.has_buffers = True
                    return
            super().__setitem__(index, value)

    def _writes(self, index: Any, steps: Sequence[Any], value: Any) -> bool:
        """Let a number stand at some places, in a third of torch's time; False where torch is to do it or to refuse."""
        if self.memory is not None or not all(map(_is_place, steps)) or not _fits(value, self.described.dtype):
            return False
        tensor = self.real()
        try:
            tensor.numpy()[index] = value
        except (IndexError, RuntimeError, TypeError, ValueError):
            return False
        increment_version(tensor)
        return True

    def leaf(self) -> Any:
        """What it is, with the tensors of the instance that were assigned to it. From now on nothing is: who sees its
        memory would see that."""
        if self.whole is None:
            rec, base = self.assigned[0][1].rec, self.described.make() if self.tensor is None else self.tensor
            indices, leaves = zip(*self.assigned, strict=True)
            self.whole = rec.shows.at_once(_with_items, (base, *leaves), {"indices": indices}, "with_items")
        return self.whole

    def __getitem__(self, index: Any) -> Any:
        index = as_python_has_it(index)
        first = index[0] if type(index) is tuple and index else index
        if type(index) is not int and self._becomes_filled(index):
            return self[index]
        is_of_rows = type(first) is int or (type(first) is slice and (self.depth or first is index))
        is_filled = is_of_rows and len(self.described.shape) > 1 and self._is_filled(self.depth)
        return self[index] if is_filled else super().__getitem__(index)

    def _becomes_another(self, index: Any, value: Any) -> bool:
        """Whether it is filled, or a buffer, once what is no number is assigned."""
        if self._becomes_filled(index, value):
            return True
        is_recorded = issubclass(type(value), Symbol) and not value.is_at_once
        return is_recorded and self._is_filled(len(index) if type(index) is tuple else 1)

    def _becomes_filled(self, index: Any, value: Any = None) -> bool:
        """Whether it is written by integers of an instance from now on (`standins.told`)."""
        rec = watcher_of_thread()
        return rec is not None and rec.shows is not None and rec.shows.fill(self, index, value)

    def _is_filled(self, depth: int = 0) -> bool:
        """Whether it has become a buffer: definition (3). What numbers were written into is read as the tensor that it
        is until forward assigns, by an index of a `depth`."""
        rec, tensor = watcher_of_thread(), self.tensor
        if rec is None or not self._may_be_filled():
            return False
        if self.whole is not None:
            raise CannotKeep
        is_written = tensor is not None and tensor._version > 0
        if is_written and not depth:
            return False
        assigned, buffer = self.assigned, _buffer(rec, self.described, self)
        if tensor is not None and is_written:
            _write_numbers(rec, buffer, tensor, min(depth, tensor.ndim))
        rec.has_buffers = True
        for index, value in assigned:
            buffer[index] = value
        return True

    def _may_be_filled(self) -> bool:
        rec, known = watcher_of_thread(), self.described
        if self.as_rows is not None or known.function in (_eye, _of_numbers) or not self.is_unseen():
            return False
        if rec is None or rec.keeping or rec.symbolic or rec.books is not None or not rec.flows:
            return False
        return bool(known.shape) and 0 < known.shape[0] <= MOST_ROWS

    def is_unseen(self) -> bool:
        """Whether nobody has its tensor, if it was made at all, or a view of it."""
        if self.memory is not None:
            return False
        if self.tensor is None:
            return True
        if self.tensor.is_inference() or self.tensor.requires_grad or sys.getrefcount(self.tensor) > _UNSEEN + 1:
            return False
        return bool(torch._C._storage_Use_Count(self.tensor.untyped_storage()._cdata) <= _UNSEEN)

    def _meta(self) -> torch.Tensor:
        return torch.empty(self.described.shape, dtype=self.described.dtype, device="meta")

    def _read(self, place: int = -1) -> torch.Tensor:
        return self.real()

    def _waits(self) -> bool:
        return False

    def __repr__(self) -> str:
        return repr(self.real())

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return copy.deepcopy(self.real(), memo)

    def __copy__(self) -> torch.Tensor:
        return copy.copy(self.real())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.real().__reduce_ex__(protocol)


class Showing:
    """What a buffer shows as a whole, and the refs of the rows that it was made of, which it holds."""

    __slots__ = ("refs", "value")

    def __init__(self, value: Any, refs: list[int]):
        self.value, self.refs = value, refs

    def is_forgotten(self, is_alone: Callable[[Any, Value], bool]) -> bool:
        """Whether nobody shows it any more; False where others may see its memory."""
        shown = self.value
        if type(shown) is Stack:
            if shown.aliased:
                return False
            shown = shown.whole
        if shown is not None and (type(shown) is not Value or not is_alone(shown.rec, shown)):
            return False
        self.value, self.refs = None, []
        return True


class Buffer(Made):
    """Definition (3)."""

    __slots__ = ()
    rec = property(lambda self: self.blank.rec, lambda self, rec: setattr(self.blank, "rec", rec))
    requires_grad, data, grad = Symbol.requires_grad, ANSWERS["data"], ANSWERS["grad"]
    _read, _waits, __repr__, __reduce_ex__ = Symbol._read, Symbol._waits, Symbol.__repr__, Symbol.__reduce_ex__
    __copy__, __deepcopy__ = Symbol.__copy__, Symbol.__deepcopy__

    def shown(self) -> Any:
        """The whole, made anew where rows have changed. Linear in the rows."""
        rows = [self.row(number) for number in range(len(self.items))]
        rows = [row if type(row) is Value else row.materialise() for row in rows]
        refs, known = [row.ref for row in rows], self.showing
        if known is None or refs != known.refs:
            known = self.showing = Showing(self.rec.function(torch.stack, (rows,), {}), refs)
            for ref in refs:
                self.rec.wholes.setdefault(id(ref), []).append(known)
        return known.value

    def materialise(self) -> Value:
        """See Lazy."""
        shown = self.shown()
        return shown if type(shown) is Value else shown.materialise()

    def rows(self) -> Any:
        """See Lazy."""
        shown = self.shown()
        return None if type(shown) is Value else shown.rows()

    def name_of_its_own(self, is_alone: Callable[[Any, Value], bool]) -> Value | None:
        """See Lazy."""
        return turned(self, self.rec.copied(self.materialise())) if self.is_nobody_elses(is_alone) else None

    def row_by_row(self, function: Any, other: Any) -> Any:
        """See Lazy: of `x[i:j] += y`, whose rows are then assigned one by one."""
        count, shape = len(self.items), self.described.shape
        others = [other] * count
        if isinstance(other, torch.Tensor) and other.ndim >= len(shape):
            if tuple(other.shape) != tuple(shape):
                return None
            others = [other[number] for number in range(count)]
        rows = [self.row(number) for number in range(count)]
        if not rows or not self.rec.flows or any(type(row) is not Value for row in rows):
            return None
        made = [self.rec.function(function, (row, item), {}) for row, item in zip(rows, others, strict=True)]
        return self.rec.function(torch.stack, (made,), {})

    def is_nobody_elses(self, is_alone: Callable[[Any, Value], bool]) -> bool:
        """Whether nobody else has a row or what it shows."""
        is_shown = self.showing is not None and not self.showing.is_forgotten(is_alone)
        return not is_shown and all(_is_own(self.items, number, is_alone) for number in range(len(self.items)))

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and self.rec.flows:
            return self.row(index)
        index = as_python_has_it(index)
        numbers = listed(index) if self.rec.flows else None
        if numbers is not None:
            return self.rec.function(torch.stack, ([self.row(number) for number in numbers],), {})
        first, *rest = index if type(index) is tuple and index else (index,)
        if type(first) is int and (not rest or len(self.described.shape) > 1):
            row = self.row(first, bool(rest) and type(rest[0]) is int and self.rec.flows)
            if not self.rec.flows:
                row = self.rec.without_gradient(row)
            return row if all(type(step) is slice and step == _ALL for step in rest) else row[tuple(rest)]
        if type(first) is slice and self.rec.flows and self.items[first] and {*map(type, rest)} <= _STEPS:
            integers = tuple(itertools.takewhile(lambda step: type(step) is int, rest))
            rest = rest[len(integers) :]
            column = None if rest and not integers and first == _ALL else self.column(first, integers)
            if column is not None:
                return Lazy.__getitem__(column, (_ALL, *rest)) if rest else column
        return Lazy.__getitem__(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        index = index if type(index) is tuple else (index,)
        self.rec.assign(self, index if {*map(type, index)} == _INTEGERS else as_python_has_it(index), value)

    def row(self, number: int, is_split: bool = False) -> Any:
        """The name of a row; where nobody has assigned or read it and it `is_split`, a buffer, whose elements are
        assigned one by one. Raises IndexError, as eager."""
        if not -len(self.items) <= number < len(self.items):
            raise IndexError(f"index {number} is out of bounds for dimension 0 with size {len(self.items)}")
        row = self.items[number]
        if row is None:
            rows = self.of_rows
            if rows is not None:
                row = value_of(self.rec, Copied(rows.refs[number]), rows.row)
            else:
                row = _buffer(self.rec, self.described.of_row()) if is_split else self.rec.copied(self.blank)
            self.items[number] = row
        return row

    @property
    def of_rows(self) -> Any:
        """The rows that nobody has assigned, where they are recorded ones."""
        return None if type(self.blank) is Value else self.blank

    def is_blank(self, row: Value) -> bool:
        """Whether a row has what description says."""
        return self.of_rows is None and row.ref == self.blank.ref

    def column(self, numbers: slice, index: tuple[int, ...]) -> Buffer | None:
        """What stands at an index of each of some rows; None where one of these is no buffer."""
        rows = [self.row(number, bool(index)) for number in range(len(self.items))[numbers]]
        if not index:
            return _buffer_of(rows, self.blank, self.described)
        shape = self.described.shape[1 + len(index) :]
        if len(index) >= len(self.described.shape) or any(type(row) is not Buffer for row in rows):
            return None
        whole = self.described._replace(shape=torch.Size((len(rows), *shape)))
        return _buffer_with(self.rec, [row[index] for row in rows], whole)

    def split(self, number: int, is_alone: Callable[[Any, Value], bool]) -> Buffer | None:
        """A row as a buffer; None where it was assigned, or somebody has it."""
        row = self.items[number]
        if type(row) is Buffer:
            return row
        is_blank = (row is None and self.of_rows is None) or (type(row) is Value and self.is_blank(row))
        del row  # which is one who has it
        if not is_blank or not _is_own(self.items, number, is_alone):
            return None
        part = self.items[number] = _buffer(self.rec, self.described.of_row())
        return part


def listed(index: Any) -> list[int] | None:
    """The rows that a list or a vector of integers names, if it does."""
    if type(index) is torch.Tensor and index.dtype is torch.int64 and index.ndim == 1:
        index = index.tolist()
    return index if type(index) is list and {*map(type, index)} == _INTEGERS else None


def _buffer(rec: Any, described: Description, made: Made | None = None) -> Buffer:
    """A buffer to which nobody has assigned, which a description becomes if it is given."""
    return _buffer_with(rec, [None] * described.shape[0], described, made)


def _buffer_with(rec: Any, items: list[Any], described: Description, made: Made | None = None) -> Buffer:
    row = described.of_row()
    return _buffer_of(items, rec.shared_constant(row, row.make), described, made)


def turned_buffer(rows: Any) -> Buffer:
    """A buffer of recorded rows (`capture.ragged`), to which nobody has assigned, which these show from now on."""
    known, items = rows.another(), [None] * len(rows.refs)
    buffer = _buffer_of(items, known, Description(torch.zeros, rows._meta().shape, (), rows.dtype))
    turned(rows, buffer)
    _HOLDING.add(type(rows))
    return buffer


def _buffer_of(items: list[Any], blank: Any, described: Description, made: Made | None = None) -> Buffer:
    buffer: Any = Made() if made is None else made
    set_class(buffer, Buffer)
    buffer.described = described._replace(shape=torch.Size((len(items), *described.shape[1:])))
    buffer.tensor = buffer.as_rows = buffer.whole = None
    buffer.depth, buffer.assigned, buffer.draws, buffer.wants_gradient = 0, _NOTHING, False, False
    buffer.memory = None
    buffer.items, buffer.blank, buffer.showing = items, blank, None
    return buffer


def _write_numbers(rec: Any, buffer: Buffer, tensor: torch.Tensor, depth: int) -> None:
    """Let rows of a new buffer be those of a tensor, or their elements at this depth."""
    row = buffer.described.of_row()
    others = (tensor != row.make()).reshape(len(tensor), -1).any(1)
    for number in others.nonzero().view(-1).tolist():
        if depth > 1:
            buffer.items[number] = part = _buffer(rec, row)
            _write_numbers(rec, part, tensor[number], depth - 1)
        else:
            buffer.items[number] = rec.copied(rec.constant(tensor[number]))


def _is_own(items: list[Any], number: int, is_alone: Callable[[Any, Value], bool]) -> bool:
    """Whether nobody but the list has a row or what it shows."""
    row = items[number]
    if row is None:
        return True
    if type(row) is not Value:
        is_buffer = type(row) is Buffer and sys.getrefcount(row) <= _OWN
        return is_buffer and row.is_nobody_elses(is_alone)
    return sys.getrefcount(row) <= _OWN + (row.rec.made is not None) and is_alone(row.rec, row)


_UNSEEN = 2
"""References to a tensor, and to its storage, that a description holds, and the asking."""
_OWN = 3
"""References to a row that its list holds, its name, and the asking."""
_NOTHING: list[Any] = []
_ALL = slice(None)
_INTEGERS = {int}
_STEPS = {int, slice, type(None)}


def described(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of one of MAKERS, of a symbol's size as rows (`ragged.symbols`); None where it is not definition (1)."""
    rec = _describer()
    if rec is None:
        return None
    if not args and "size" in kwargs:
        args, kwargs = (kwargs["size"],), {name: value for name, value in kwargs.items() if name != "size"}
    written = None
    if not (rec.symbolic or rec.ragged or rec.shows is not None or func is torch.full):
        try:
            written = (func, args, default_dtype(), *kwargs.items())
            known = rec.makers.get(written)
        except TypeError:  # a list, or a tensor
            written = known = None
        if known is not None:
            return _made(rec, known)
    like, at = None, 0
    if rec.symbolic:
        args = asked(args)
        mask = rec.mask_of_sizes(func, args, kwargs)
        if mask is not None:
            return mask
    if rec.ragged and func is torch.eye:
        return None
    if rec.symbolic:
        sizes, given = (args[0], args[1:]) if args and isinstance(args[0], tuple | list) else (args, ())
        at = next((dim for dim, size in enumerate(sizes) if type(size) is Size), 0)
        like = sizes[at].like if sizes and type(sizes[at]) is Size else None
        if like is not None:
            args = ((*sizes[:at], sizes[at].value, *sizes[at + 1 :]), *given)
    args = tuple([item if type(item) is int else _as_python(item) for item in args])
    kwargs = {name: value for name, value in kwargs.items() if not _is_default(name, value)}
    fills = repr((args, kwargs)) if func is torch.full else None  # 1 and 1.0, 0.0 and -0.0 are equal
    key = (func, args, fills, default_dtype(), rec.shows is None, *kwargs.items())
    try:
        known = rec.makers.get(key)
    except TypeError:  # a tensor
        return None
    if known is None:
        known = _new(func, args, kwargs, rec.shows is not None)
        if known is None:
            return None
        rec.makers[key] = known
    if written is not None:
        rec.makers[written] = known
    if like is not None and at and rec.place_of_rows(known.shape, known.dtype) != at:
        rec.asked_size, like = True, None
    if like is not None or (rec.ragged and _is_of_changing_rows(rec, known)):
        return rec.rows_described(known, like, at)
    return _made(rec, known)


def _new_of_sizes(self: Symbol, *data: Any, **options: Any) -> Any:
    """`x.new(sizes)`, whose elements nobody has written yet, and `x.new(list)`, from before there was torch.empty."""
    if data and not options and (all(type(item) is int for item in data) or type(data[0]) is torch.Size):
        made = described(torch.empty, data, {"dtype": self.dtype})
        return torch.zeros(*data, dtype=self.dtype) if made is None else made
    return torch.tensor(*(data or [[]])).to(self.dtype, **options)


ANSWERS["new"] = _new_of_sizes


def _as_python(item: Any) -> Any:
    """A size with NumPy's integers as Python's, as torch takes them."""
    if type(item) is list or type(item) is tuple:
        return tuple([x if type(x) is int else _as_python(x) for x in item])
    return int(item) if isinstance(item, np.integer) else item


def sized(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """What the maker is called with where one of LIKE is called with a tensor that is not recorded; None otherwise."""
    like: Any = args[0] if args else None
    if not (type(like) is torch.Tensor or (issubclass(type(like), Symbol) and like.is_at_once)):
        return None
    return (tuple(like.shape), *args[1:]), {**kwargs, "dtype": kwargs.get("dtype") or like.dtype}


def described_filling(tensor: torch.Tensor) -> Description | None:
    """The description of what a function has filled; None where it is not definition (1)."""
    number = tensor.reshape(-1)[0].item() if tensor.numel() else 0.0
    if tensor.device.type != "cpu" or not tensor.dtype.is_floating_point or not _is_plain(number):
        return None
    return Description(torch.full, tensor.shape, (number,), tensor.dtype)


def made_again(rec: Any, described: Description) -> Made | None:
    """What a call of a recorded tensor describes; None where nothing is described."""
    if _describer() is not rec:
        return None
    made = _made(rec, described)
    made.draws = rec.tracer.may_draw
    return made


def _is_plain(number: Any) -> bool:
    """Whether it is equal to itself alone: equal numbers are one constant."""
    return number == number and repr(number) != "-0.0"


def described_numbers(data: Any, dtype: torch.dtype | None = None, device: Any = None, **rest: Any) -> Any:
    """`torch.tensor(data)` and its like of plain numbers, of lists of as many (`[[gap]]`), or of a float; None where it
    is not definition (1)."""
    is_one = type(data) is float
    numbers = [data] if is_one else data
    shape = torch.Size(() if is_one else (len(numbers),))
    if shape and numbers and type(numbers[0]) in _NESTS:
        width = len(numbers[0])
        if not all(type(row) in _NESTS and len(row) == width for row in data):
            return None
        numbers, shape = [number for row in data for number in row], torch.Size((len(data), width))
    rec, kinds = _describer(), frozenset(map(type, numbers))
    if rec is None or rec.ragged or rest or not kinds or not kinds <= PLAIN_NUMBERS:
        return None
    if dtype is None and float in kinds:
        dtype = default_dtype()
    if dtype not in CODES or not (device is None or device == _CPU or device == "cpu"):
        return None
    try:
        held = _Numbers(array(CODES[dtype], numbers))
    except OverflowError:
        return None
    return _made(rec, Description(_of_numbers, shape, (held,), dtype))


class _Numbers:
    """What a list held, equal to itself alone."""

    __slots__ = ("array",)

    def __init__(self, numbers: array[Any]):
        self.array = numbers


def _of_numbers(shape: torch.Size, numbers: _Numbers, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor of the array's memory, which torch cannot resize."""
    return torch.frombuffer(numbers.array, dtype=dtype).view(shape)


def _describer() -> Any:
    """Who records what is described, definition (1)."""
    rec = watcher_of_thread()
    if rec is None or rec.in_cell or rec.in_fragment or rec.books is not None or not rec.flows:
        return None
    if _num_modes() > rec.modes:
        return None
    return rec if rec.sizes is None else None


def _made(rec: Any, described: Description) -> Made:
    made = Made()
    made.described = described
    made.tensor = made.as_rows = made.whole = None
    made.depth, made.assigned, made.draws, made.wants_gradient = 0, _NOTHING, False, False
    made.memory, made.steps = None, ()
    rec.descriptions.append(made)
    return made


def _is_of_changing_rows(rec: Any, known: Description) -> bool:
    """Whether it is rows that forward changes in place, and that nobody else shows."""
    return known.shape[:1].numel() > 0 < len(known.shape) and rec.is_ragged(known) and makes_fresh(sys._getframe(3))


def _is_default(name: str, value: Any) -> bool:
    """Whether a keyword of a maker says nothing."""
    is_host = name == "device" and (value == _CPU or value == "cpu")
    return value is None or is_host or (name == "requires_grad" and value is False)


def _new(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_shown: bool) -> Description | None:
    """What a call makes; of another dtype than a floating one only where an instance's integers may be written there
    (`standins.told`)."""
    is_one = bool(args) and isinstance(args[0], tuple)
    sizes, given = (args[0], args[1:]) if is_one else (args, ())
    if "fill_value" in kwargs:
        given = (kwargs["fill_value"],)
    if not all(type(size) is int for size in sizes) or not kwargs.keys() <= {"dtype", "fill_value"}:
        return None
    if len(given) > 1 or any(type(x) not in _NUMBERS or not _is_plain(x) for x in given):
        return None
    like = func(*args, **kwargs)
    if like.device.type != "cpu" or not (like.dtype.is_floating_point or is_shown):
        return None
    function = _INSTEAD.get(func, func)
    return Description(function, like.shape, given, like.dtype)


def _eye(shape: torch.Size, **options: Any) -> torch.Tensor:
    return torch.eye(*shape, **options)


_EQUAL = (torch.zeros, torch.ones, torch.full)
_INSTEAD = {torch.eye: _eye, torch.empty: torch.zeros}
"""What makes them: of what nothing was written into, what memory holds by chance is nothing to go by."""


def _is_place(step: Any) -> bool:
    """Whether torch and NumPy take an index for the same places: an integer, integers, or a range."""
    kind = type(step)
    if kind is slice:
        return step.step is None and _BOUNDS.issuperset((type(step.start), type(step.stop)))
    return kind is int or (kind is list and {*map(type, step)} <= _INTEGERS)


def _fits(value: Any, dtype: torch.dtype) -> bool:
    """Whether torch and NumPy take a number for the same element of this dtype: rounded once."""
    if type(value) is not float:
        return dtype in CODES and abs(value) <= _EXACT
    largest = _LARGEST.get(dtype)
    return largest is not None and (not abs(value) > largest or value in _INFINITE)


def _with_items(whole: torch.Tensor, *items: torch.Tensor, indices: Sequence[Any]) -> torch.Tensor:
    """A copy of a tensor with other items."""
    found = whole.clone()
    for index, item in zip(indices, items, strict=True):
        found[index] = item
    return found


def _other_recorder(tree: Any) -> Any:
    """The recorder of the first stand-in that is no description, in nests of any depth; None where there is none."""
    for item in tree.values() if isinstance(tree, dict) else tree:
        kind = type(item)
        if kind is Made and (item.assigned or item.draws):
            return watcher_of_thread()
        if kind is Made or kind in _NUMBERS:
            continue
        if issubclass(kind, Symbol):
            return item.rec
        if issubclass(kind, dict | tuple | list) and item:
            rec = _other_recorder(item)
            if rec is not None:
                return rec
    return None


_NESTS = (list, tuple)
_NUMBERS = (int, float, bool, type(None))
_BOUNDS = frozenset((int, type(None)))
_INFINITE = (math.inf, -math.inf)
_EXACT = 1 << 53
"""Integers up to this one are floats."""
PLAIN_NUMBERS = frozenset((int, float, bool))
_CPU = torch.device("cpu")
CODES = {torch.float32: "f", torch.float64: "d"}
"""Of Python's arrays."""
_LARGEST = {dtype: torch.finfo(dtype).max for dtype in CODES}


def with_tensors(tree: Any) -> Any:
    """A nest with real tensors in the place of descriptions."""
    return mapped(lambda item: item.real() if type(item) is Made else item, tree)


def key_of_sum(rec: Any, func: Any, args: tuple[Any, ...]) -> Any:
    """The short key of `torch.zeros(n) + h`, which most sums over children begin with; None of another call."""
    if func is not torch.add or len(args) != 2 or type(args[1]) is not Value or rec.ragged or rec.shows is not None:
        return None
    described = args[0].described
    return None if described.function is _of_numbers else (func, described, args[1].slot)


def is_buffer(item: Any) -> bool:
    """Whether it is one, or shows one."""
    return type(item) is Buffer or (type(item) in _HOLDING and type(getattr(item, "whole", None)) is Buffer)


def with_wholes(tree: Any) -> Any:
    """A nest with what buffers show as wholes in their place."""
    if is_buffer(tree):
        return tree.shown() if type(tree) is Buffer else tree.whole.shown()
    if type(tree) is Made:
        return tree.leaf() if tree.assigned else tree
    if type(tree) in (tuple, list):
        return tree if _HOLDING.isdisjoint(map(type, tree)) else type(tree)(map(with_wholes, tree))
    return {key: with_wholes(item) for key, item in tree.items()} if type(tree) is dict else tree


_HOLDING: set[type] = {Buffer, Made, tuple, list, dict}
"""Classes of what `with_wholes` looks at, with those of stand-ins that became buffers."""
