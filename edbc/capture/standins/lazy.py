"""Lists of tensors that are reduced as one: `torch.stack(children).sum(0)` and its like.

Definitions.

(1) A `Stack` is `torch.stack(items, at)`, or `torch.cat(items, at)` of items whose dimension `at` is 1, for values of
    one class. It is no node until something other than its items is asked for: an item is the item itself.
(2) A *reduction* of a stack over that dimension (sum, mean, amax, amin, and the values of max and min, which have
    a gradient of the first of equal ones alone) is a node of a variadic type: one type for any number of items. Of a
    single item every reduction is that item, so it is no node. Sums of integers are none: torch's are 64 bits wide,
    whatever the items are. Sum and mean of all elements are those of that node's. (The gradient of a maximum of all
    elements has equal parts for equal ones, so it depends on how many there are in all.)

Where the number of items matters to the operation (a softmax over children, a product with the stack), the stack
becomes a node and there is a type per number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.capture.standins.standin import Lazy, Value, turned, value_of

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder
    from edbc.capture.standins.standin import Slot


def _of_items(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *items: function(torch.stack(items), 0)


REDUCTIONS = {
    **{name: _of_items(getattr(torch, name)) for name in ("sum", "mean", "amax", "amin")},
    "max": _of_items(lambda stack, dim: stack.max(dim)[0]), "min": _of_items(lambda stack, dim: stack.min(dim)[0]),
}  # fmt: skip
"""Definition (2) by the `op` of the type; as functions of the items."""
_OF_ALL = ("sum", "mean")
"""Those that all elements have, too."""


class Stack(Lazy):
    """Definition (1)."""

    slot = None
    """As that of Shared."""
    __slots__ = ("aliased", "at", "call", "cat", "held", "items", "rec")

    def __init__(self, rec: Recorder, items: list[Value], cat: bool, at: int = 0, call: tuple[Any, Any] = ((), {})):
        self.rec = rec
        self.items = items
        self.at = at
        self.call = call
        """The arguments of the call that say so, which are the node's."""
        self.held = [item.ref for item in items]
        """For its items are not alone (`record.functionalise`, definition (4))."""
        self.cat = cat
        self.whole = None
        self.aliased = False
        """Whether something else may show the same memory: an item, or which of them is the largest."""

    def rows(self) -> tuple[Sequence[int], Slot, int] | None:
        if self.whole is not None or self.rec.books is not None:
            return None
        item = self.items[0].squeeze(self.at) if self.cat else self.items[0]
        return [item.ref for item in self.items], item.slot, self.at

    def name_of_its_own(self, is_alone: Callable[[Recorder, Value], bool]) -> Value | None:
        name = None if self.aliased else self.materialise()
        return None if name is None or not is_alone(self.rec, name) else turned(self, name)

    @property
    def shape(self) -> torch.Size:  # without a tensor of that shape
        """See torch."""
        shape, at = self.items[0].slot.shape, self.at
        return torch.Size((*shape[:at], len(self.items), *shape[at + self.cat :]))

    dtype = property(lambda self: self.items[0].slot.dtype)
    ndim = property(lambda self: len(self.items[0].slot.shape) + (not self.cat))

    def _meta(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    def make(self) -> Value:
        """The stack as a node of a type per number of items."""
        rec, key = self.rec, self.key()
        known = rec.functions.get(key)
        if known is not None:
            return rec.emit(known, [item.ref for item in self.items])
        rest, named = self.call
        return rec.node(torch.cat if self.cat else torch.stack, (list(self.items), *rest), dict(named), key=key)

    def key(self) -> Any:
        """What tells stacks of one type from others."""
        return Stack, self.cat, self.at, len(self.items), self.items[0].slot

    def __getitem__(self, index: Any) -> Any:
        self.aliased = True
        if self.at:
            return super().__getitem__(index)
        if type(index) is int:
            item = self.items[index]
            item = value_of(self.rec, item.ref, item.slot) if self.rec.flows else self.rec.without_gradient(item)
            return item.squeeze(0) if self.cat else item
        if type(index) is slice and self.items[index] and self.rec.flows:
            part = Stack(self.rec, self.items[index], self.cat, 0, self.call)
            part.aliased = True
            return part
        return self[int(index)] if isinstance(index, np.integer) else super().__getitem__(index)

    def reduced(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function of this name returns for the stack, or NotImplemented when it is no reduction over items."""
        if name == "sum" and not self.items[0].slot.floats:
            return NotImplemented
        if name in _OF_ALL and not args and not kwargs and not self.rec.in_cell:
            value = self.rec.reduction(name, self.items)
            return self.rec.function(getattr(torch, name), (value,), {}) if value.slot.shape else value
        keepdim = _is_over_items(args, kwargs, self.at, self.ndim) if name in REDUCTIONS else None
        if keepdim is None:
            return NotImplemented
        value = self._restored(self.rec.reduction(name, self.items), keepdim)
        if name not in ("max", "min"):
            return value
        self.aliased = True
        return getattr(torch.return_types, name)((value, Indices(self, name, self.at, keepdim)))

    def _restored(self, value: Value, keepdim: bool) -> Any:
        """The reduction of items in the shape that the reduction of the stack has."""
        if self.cat:
            return value if keepdim else value.squeeze(self.at)
        return value.unsqueeze(self.at) if keepdim else value


def _method(name: str) -> Callable[..., Any]:
    def reduce(self: Stack, *args: Any, **kwargs: Any) -> Any:
        result = self.reduced(name, args, kwargs)
        if result is NotImplemented:
            return self.rec.function(getattr(torch.Tensor, name), (self.materialise(), *args), kwargs)
        return result

    return reduce


for _name in REDUCTIONS:
    setattr(Stack, _name, _method(_name))


class Indices(Lazy):
    """Which item is the largest: depends on the number of items, so it is a node of the whole when it is used."""

    __slots__ = ("arguments", "function", "name", "of", "rec")

    def __init__(self, of: Lazy, name: str, dim: int, keepdim: bool):
        self.rec, self.of, self.name, self.arguments = of.rec, of, name, (dim, keepdim)
        self.function = getattr(torch, f"arg{name}")
        self.whole = None

    def _meta(self) -> torch.Tensor:
        return self.function(self.of._meta(), *self.arguments)

    def make(self) -> Value:
        return self.rec.node(self.function, (self.of.materialise(), *self.arguments), {})


def _is_over_items(args: tuple[Any, ...], kwargs: dict[str, Any], at: int, ndim: int) -> bool | None:
    """`keepdim` of a reduction over one dimension only; None for any other arguments."""
    if not kwargs and args == (at,):
        return False
    known = dict(zip(("dim", "keepdim"), args, strict=False)) | kwargs
    dim = known.get("dim", known.get("axis"))
    if len(args) > 2 or known.keys() - {"dim", "axis", "keepdim", "dtype"} or known.get("dtype") is not None:
        return None
    if isinstance(dim, tuple | list):
        dim = dim[0] if len(dim) == 1 else None
    if type(dim) is not int or dim not in (at, at - ndim):
        return None
    return bool(known.get("keepdim", False))
