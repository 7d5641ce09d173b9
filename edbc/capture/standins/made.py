"""Constants that forward makes: `torch.zeros(n)` is a description until somebody needs its bytes.

A tensor of zeros takes 0.8 microseconds to make, and 1.5 to copy and to note as an external, as its maker may fill it
anew for the next node. A description has no bytes that anybody could change, so all uses of equal ones are one external
of the mini-batch.

Definitions.

(1) What is *described* is a call of one of MAKERS with plain sizes and of a floating dtype, in forward while it is
    recorded, from code of the user's (`capture.code.rebind`); not where a torch function mode is active, which may see
    the call, where gradients are switched off, or where tensors change in place (`capture.record.functionalise`).
(2) Whatever looks at a description, changes it, or computes with descriptions and real tensors alone, gets the real
    tensor, made once; from then on the description is that tensor, as it may hold anything. Among stand-ins of other
    kinds a description is an operand.
(3) It belongs to no recording: where it is used, the thread's recorder is asked. What forward leaves of descriptions on
    the caller's objects, or returns, are their real tensors.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from edbc.capture.ragged.symbols import Size
from edbc.capture.semantics.gradmode import watcher_of_thread
from edbc.capture.standins.fresh import makes_fresh
from edbc.capture.standins.standin import Lazy, Symbol, Value, refuse_ended, turned

MAKERS = (torch.zeros, torch.ones, torch.eye)
_num_modes = torch._C._len_torch_function_stack


class Description(NamedTuple):
    """What a call makes; `key` tells it from others."""

    key: Any
    make: Callable[[], torch.Tensor]
    shape: torch.Size
    dtype: torch.dtype

    def of_row(self) -> tuple[Any, Callable[[], torch.Tensor]]:
        """Key and maker of each of its rows, which are equal."""
        function, sizes = self.key[0], tuple(self.shape[1:])
        return (function, sizes, self.dtype), functools.partial(function, sizes, dtype=self.dtype, device="cpu")


class _Asked:
    """Who answers for descriptions: definition (2)."""

    has_ended, device = False, torch.device("cpu")

    def function(self, func: Any, args: Any, kwargs: Any, name: str | None = None) -> Any:
        """A torch function of descriptions, and of other tensors."""
        rec = _other_recorder((args, kwargs))
        if rec is None or rec.books is not None:
            args, kwargs = with_tensors(args), with_tensors(kwargs)
        return func(*args, **kwargs) if rec is None else rec.function(func, args, kwargs, name)

    def add(self, left: Any, right: Any) -> Any:
        """`left + right`."""
        return self.function(torch.add, (left, right), {})


_ASKED = _Asked()


def _of_tensor(name: str) -> property:
    """An attribute that may be assigned."""
    return property(lambda self: getattr(self.real(), name), lambda self, value: setattr(self.real(), name, value))


class Made(Lazy):
    """A description. Its `tensor` is what it has become, if anything."""

    __slots__ = ("described", "rows", "tensor")
    described: Description
    tensor: torch.Tensor | None
    rows: Any
    """Itself as rows, once it was asked for."""
    rec = property(lambda self: _ASKED)
    shape = property(lambda self: self.described.shape)
    dtype = property(lambda self: self.described.dtype)
    requires_grad, data, grad = _of_tensor("requires_grad"), _of_tensor("data"), _of_tensor("grad")
    slot = None
    """No slot of any Value, see `Shared.slot`."""

    def real(self) -> torch.Tensor:
        """The tensor, made once."""
        if self.tensor is None:
            self.tensor = self.described.make()
        return self.tensor

    def materialise(self) -> Value:
        """The constant of the mini-batch that is being recorded."""
        rec: Any = watcher_of_thread()
        if rec is None:
            refuse_ended()
        if self.tensor is not None:
            return rec.constant(self.tensor)
        return rec.shared_constant(self.described.key, self.described.make)

    def name_of_its_own(self, is_alone: Callable[[Any, Value], bool]) -> Value | None:
        """See Lazy."""
        if self.tensor is not None or self.rows is not None:
            return None
        constant = self.materialise()
        return turned(self, constant.rec.copied(constant))

    def __setitem__(self, index: Any, value: Any) -> None:
        is_plain = type(index) is int or (type(index) is tuple and all(type(i) is int for i in index))
        if is_plain and type(value) in _NUMBERS:
            self.real()[index] = value
        else:
            super().__setitem__(index, value)

    def _meta(self) -> torch.Tensor:
        return torch.empty(self.described.shape, dtype=self.described.dtype, device="meta")

    _read = real

    def __repr__(self) -> str:
        return repr(self.real())

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return copy.deepcopy(self.real(), memo)

    def __copy__(self) -> torch.Tensor:
        return copy.copy(self.real())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.real().__reduce_ex__(protocol)


def described(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of one of MAKERS, of a symbol's size as rows (`ragged.symbols`); None where it is not definition (1)."""
    rec: Any = watcher_of_thread()
    if rec is None or rec.in_cell or rec.in_fragment or rec.books is not None or not rec.flows or _num_modes():
        return None
    if rec.sizes is not None or (rec.ragged and func is torch.eye):
        return None
    like = None
    if rec.symbolic:
        sizes = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
        like = sizes[0].like if sizes and type(sizes[0]) is Size else None
        args = (sizes[0].value, *sizes[1:]) if like is not None else args
    key = (func, args, torch.get_default_dtype(), *kwargs.items())
    try:
        known = rec.makers.get(key)
    except TypeError:  # a list of sizes
        return None
    if known is None:
        known = _new(key, func, args, kwargs)
        if known is None:
            return None
        rec.makers[key] = known
    if like is not None or (rec.ragged and _is_of_changing_rows(rec, known)):
        return rec.rows_described(known, like)
    made = Made()
    made.described = known
    made.tensor = made.rows = None
    rec.descriptions.append(made)
    return made


def _is_of_changing_rows(rec: Any, known: Description) -> bool:
    """Whether it is rows that forward changes in place, and that nobody else shows."""
    return known.shape[:1].numel() > 0 < len(known.shape) and rec.is_ragged(known) and makes_fresh(sys._getframe(3))


def _new(key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Description | None:
    sizes = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
    if not all(type(size) is int for size in sizes) or not kwargs.keys() <= {"dtype"}:
        return None
    like = func(*args, **kwargs)
    if not like.dtype.is_floating_point or like.device.type != "cpu":
        return None
    return Description(key, functools.partial(func, *args, dtype=like.dtype, device="cpu"), like.shape, like.dtype)


def _other_recorder(tree: Any) -> Any:
    """The recorder of the first stand-in that is no description, in nests of any depth; None where there is none."""
    for item in tree.values() if isinstance(tree, dict) else tree:
        kind = type(item)
        if kind is Made or kind in _NUMBERS:
            continue
        if issubclass(kind, Symbol):
            return item.rec
        if issubclass(kind, dict | tuple | list) and item:
            rec = _other_recorder(item)
            if rec is not None:
                return rec
    return None


_NUMBERS = (int, float, bool, type(None))


def with_tensors(tree: Any) -> Any:
    """A nest with real tensors in the place of descriptions."""
    if type(tree) is Made:
        return tree.real()
    if type(tree) in (tuple, list):
        return type(tree)(map(with_tensors, tree))
    return {key: with_tensors(item) for key, item in tree.items()} if type(tree) is dict else tree
