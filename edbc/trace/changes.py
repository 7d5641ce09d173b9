"""Tensors that change in place, recorded as new values: functionalisation.

Recorded values never change; names do. In eager PyTorch a tensor is a name for memory, and several may share it. So
what a change in place does is to compute the new value, and to let every name of that memory show it.

Definitions.

(1) A *name* is a stand-in in the user's hands. Names that are one Python object change together by themselves: the
    object's `ref` and `slot` become those of the new value.
(2) A *memory* is the value of a whole tensor, its content, and the names that show it, each through a chain of views.
    A change through a chain writes into a new content, at the positions that the chain shows; then all names show the
    new content through their chains.
(3) A *fresh* tensor is a real one that forward makes (`torch.zeros(n)`). What is written into it may be recorded; from
    then on a stand-in stands in its place wherever torch gets it, the tensors that eager made views of it included.

Keeping books of views costs a little at each of them, so nobody does before the first change: then the instance is
recorded again, and all later ones of the recorder keep books. Cells and vertex functions, recorded once, always do.

Refused are changes of parameters and of tensors that the caller brought or that a cell was given (others hold them),
through `.detach()`, and where gradients are switched off (eager's tensor would keep the gradient of its old value).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from edbc.trace import rules
from edbc.trace.shapes import flat, take_views
from edbc.trace.table import Hole, View
from edbc.trace.values import Lazy, Shared, Symbol, Value, refuse, value_of

if TYPE_CHECKING:
    from edbc.trace.recorder import Recorder

_HELD = 4
"""References to a name that only a memory holds: its list, the loop over it, and the asking."""


class MustKeepBooks(BaseException):
    """A tensor is changed in place, and nobody knows which names share its memory: record the instance again."""


class Memory:
    """Definition (2)."""

    def __init__(self, value: Value):
        self.content = value_of(value.rec, value.ref, value.slot)
        self.names: list[tuple[Value, tuple[View, ...]]] = [(value, ())]

    def path(self, name: Value) -> tuple[View, ...]:
        """The chain of views through which a name shows the content."""
        return next(path for known, path in self.names if known is name)

    def show(self) -> None:
        """Let all names show the content; those that nobody holds any more are forgotten."""
        self.names = [pair for pair in self.names if sys.getrefcount(pair[0]) > _HELD]
        rec, ref, slot = self.content.rec, self.content.ref, self.content.slot
        for name, path in self.names:
            name.ref = ref
            name.slot = rec.table.slot(slot.base, (*slot.views, *path), name.slot.meta()) if path else slot


class Changes:
    """The books of one recording."""

    def __init__(self, rec: Recorder):
        self.rec = rec
        self._memories: dict[int, tuple[Value, Memory]] = {}
        """By the identity of a name, which it keeps alive."""
        self._fresh: dict[int, torch.Tensor] = {}
        self._stand_ins: dict[int, tuple[torch.Tensor, Value]] = {}
        self._held_by_others: dict[int, Value] = {}

    # --- what shares memory ----------------------------------------------------------------------------------------

    def hold(self, values: Sequence[Value]) -> None:
        """Others hold these: rows of parameters, operands of a cell."""
        self._held_by_others.update((id(value), value) for value in values)

    def memory_of(self, name: Value) -> Memory:
        """The memory that a name shows."""
        known = self._memories.get(id(name))
        if known is None:
            known = self._memories[id(name)] = name, Memory(name)
        return known[1]

    def share(self, name: Value, other: Value, steps: Sequence[View]) -> None:
        """`other` is a view of `name`, by these steps."""
        memory = self.memory_of(name)
        path = (*memory.path(name), *steps)
        if not _is_seen_in_place(memory.content, path):
            return
        memory.names.append((other, path))
        self._memories[id(other)] = other, memory
        if id(name) in self._held_by_others:
            self.hold([other])

    # --- changes ---------------------------------------------------------------------------------------------------

    def assign(self, name: Any, new: Any) -> None:
        """Let what `name` shows become `new`. Raises RuntimeError as eager does for shapes and dtypes that do not fit."""
        self._refuse_held(name)
        new = self._fitting(name, new)
        memory = self.memory_of(name)
        path = memory.path(name)
        if any(view.detaches for view in path):
            refuse("a tensor was changed in place through .detach()", "change a copy (.detach().clone())")
        if path:
            new = self._written(memory.content, path, new)
        memory.content = value_of(self.rec, new.ref, new.slot)
        memory.show()

    def _refuse_held(self, name: Any) -> None:
        if type(name) is Shared:
            refuse("a parameter of the model was changed in place", "compute a new tensor from it")
        if id(name) in self._held_by_others:
            refuse(
                "a tensor that others hold was changed in place (a row of a parameter, or what a cell was given)",
                "change a copy (x = x.clone())",
            )
        if not self.rec.flows:
            refuse(
                "a recorded tensor was changed in place where gradients are switched off",
                "compute a new tensor (h = h + x)",
            )

    def _fitting(self, name: Value, new: Any) -> Value:
        if tuple(new.shape) != tuple(name.shape):
            raise RuntimeError(
                f"output with shape {list(name.shape)} doesn't match the broadcast shape {list(new.shape)}"
            )
        if new.dtype is not name.dtype:
            if not torch.can_cast(new.dtype, name.dtype):
                raise RuntimeError(f"result type {new.dtype} can't be cast to the desired output type {name.dtype}")
            new = self.rec.function(torch.Tensor.to, (new, name.dtype), {})
        return self._value(new)

    def _value(self, item: Any) -> Value:
        if isinstance(item, Lazy):
            return item.materialise()
        return item if type(item) is Value else self.rec.as_value(item)

    def _written(self, content: Value, path: tuple[View, ...], new: Value) -> Value:
        return self.rec.node(written, (content, _positions(path, tuple(content.shape)), new), {}, "written")

    # --- fresh tensors ---------------------------------------------------------------------------------------------

    def made(self, result: Any, args: Any) -> None:
        """Note what a torch function made: fresh tensors, unless they are its arguments."""
        for tensor in flat(result):
            if type(tensor) is torch.Tensor and tensor._base is None and not any(tensor is a for a in flat(args)):
                self._fresh[id(tensor)] = tensor

    def stand_in(self, tensor: Any) -> Any:
        """The stand-in for a fresh tensor into which recorded values were written, or for a view of one; any other
        object is returned as it is."""
        if not self._stand_ins or type(tensor) is not torch.Tensor:
            return tensor
        known = self._stand_ins.get(id(tensor))
        if known is not None:
            return known[1]
        base = self._stand_ins.get(id(tensor._base)) if tensor._base is not None else None
        return tensor if base is None else self._stand_for_view(tensor, base[1])

    def stands(self) -> bool:
        """Whether any real tensor has a stand-in."""
        return bool(self._stand_ins)

    def name_of(self, item: Any) -> Any:
        """The name that is changed when torch is told to change `item`."""
        if type(item) is not torch.Tensor:
            return item
        known = self.stand_in(item)
        if known is not item:
            return known
        base = item if item._base is None else item._base
        if id(base) not in self._fresh:
            refuse(
                "recorded values were written into a tensor that forward did not make",
                "write into a new one (x = x.clone(), torch.zeros(n)): the caller's must not hold what is not yet computed",
            )
        value = self.rec._new_constant(base.detach().clone())
        self._stand_ins[id(base)] = base, value
        return value if base is item else self._stand_for_view(item, value)

    def _stand_for_view(self, tensor: torch.Tensor, whole: Value) -> Value:
        template: Any = ((Hole(0), tuple(tensor.shape), tensor.stride(), tensor.storage_offset()), {})
        _, (meta,), steps = take_views(torch.as_strided, "as_strided", template, whole.slot.meta())
        slot = whole.slot
        seen = value_of(self.rec, whole.ref, self.rec.table.slot(slot.base, (*slot.views, *steps), meta))
        self.share(whole, seen, steps)
        self._stand_ins[id(tensor)] = tensor, seen
        return seen


class KeepsBooks(TorchFunctionMode):
    """Sees the torch functions that forward calls on real tensors, definition (3)."""

    def __init__(self, rec: Recorder):
        super().__init__()
        self.rec = rec

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        changes, kwargs = self.rec.changes, kwargs or {}
        if changes is None:
            return func(*args, **kwargs)
        if changes.stands():
            replaced = _mapped(changes.stand_in, (args, kwargs))
            if any(a is not b for a, b in zip(flat(replaced), flat((args, kwargs)), strict=True)):
                return self.rec.function(func, *replaced, rules.name_of(func))
        result = func(*args, **kwargs)
        changes.made(result, (args, kwargs))
        return result


def _mapped(function: Any, tree: Any) -> Any:
    if type(tree) in (tuple, list):
        return type(tree)(_mapped(function, item) for item in tree)
    return {k: _mapped(function, v) for k, v in tree.items()} if type(tree) is dict else function(tree)


def written(whole: torch.Tensor, positions: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """`whole` with the elements at some positions, counted in the order of its elements, replaced."""
    return whole.reshape(-1).scatter(0, positions.reshape(-1), new.reshape(-1)).view(whole.shape)


def _positions(path: tuple[View, ...], shape: tuple[int, ...]) -> torch.Tensor:
    elements = torch.arange(torch.Size(shape).numel()).reshape(shape)
    for view in path:
        elements = view.apply(elements)
    return elements.contiguous()


def _is_seen_in_place(content: Value, path: tuple[View, ...]) -> bool:
    """Whether a chain of views shows the content itself, where some (`reshape`, `contiguous`) may show a copy."""
    memory = torch.empty(tuple(content.shape), device="meta")
    seen = memory
    for view in path:
        seen = view.apply(seen, content.rec.shared_meta)
    return seen is memory or seen._base is memory
