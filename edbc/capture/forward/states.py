"""State that forward keeps on a model: what eager runs have left there, and what instances that interleave assign."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from edbc.capture.code.assigned import ANY
from edbc.capture.code.rebind import is_users
from edbc.capture.code.rewrite import enclosing_of, is_filled
from edbc.capture.standins.standin import Symbol

if TYPE_CHECKING:
    from edbc.capture.code.shadow import ModelView

_MISSING = object()
_CONTAINERS = (list, dict)
LEFT: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()
"""What mini-batches have left on the user's modules, the last of each name, since somebody asked."""
Own = dict[tuple[Any, str], Any]
"""Values of attributes, by namespace and name."""


class OwnAttributes:
    """What forward assigns to modules of a shadow, and to plain objects in attributes of these, while instances
    interleave: each has its own, as if it ran alone. Outside of instances all is as it was before.

    O(attributes) once, and per change of instances O(attributes of modules that forward has assigned, and of plain
    objects that code which forward may reach assigns): next to nothing for most models.
    """

    def __init__(self, shadow: nn.Module, tracer: ModelView):
        self._written, names = tracer.written, tracer.closed.assigned
        self.is_idle = not names and not self._written
        """Whether there is nothing to keep apart."""
        if self.is_idle:
            return
        modules = {path: module for path, module in shadow.named_modules() if not _is_torchs(module)}
        held = (x for module in modules.values() for x in vars(module).values()) if names else ()
        plain = {id(x): vars(x) for x in held if _is_plain(type(x))}  # type: ignore[arg-type]
        self._objects, self._names = frozenset(plain), None if ANY in names else names
        self._spaces: dict[Any, Any] = {path: vars(module) for path, module in modules.items()} | plain
        self._spaces |= {(path, "_modules"): module._modules for path, module in modules.items()}
        self._before = {key: dict(space) for key, space in self._spaces.items()}
        self._contents = {place: copy.copy(self._spaces[place[0]][place[1]]) for place in self._containers()}
        """Of lists and their like, which an instance may have changed before it assigned another."""

    def _containers(self) -> list[tuple[Any, str]]:
        places = [(key, name) for key, name in self._assigned() if key in self._spaces]
        return [(key, name) for key, name in places if type(self._spaces[key].get(name)) in _CONTAINERS]

    def enter(self, own: Own) -> None:
        """Let an instance find what it left."""
        for (key, name), value in own.items():
            _put(self._spaces[key], name, value)

    def leave(self) -> Own:
        """What the instance that ran has assigned; what was there before is there again."""
        own: Own = {}
        if self.is_idle:
            return own
        for key, name in self._assigned():
            space, before = self._spaces[key], self._before[key].get(name, _MISSING)
            value = space.get(name, _MISSING)
            if value is not before:
                own[key, name] = value
                _put(space, name, self._as_it_was(key, name, before))
        return own

    def _as_it_was(self, key: Any, name: str, before: Any) -> Any:
        """What was there, or what holds the same where that holds something else by now: it is the instance's then."""
        contents = self._contents.get((key, name), before)
        if contents is not before and not _holds_same(contents, before):
            before = self._before[key][name] = copy.copy(contents)
        return before

    def _assigned(self) -> Iterator[tuple[Any, str]]:
        for path, name in tuple(self._written):
            if path in self._spaces:
                yield from ((path, name), ((path, "_modules"), name))
        for key in self._objects:
            names = {*self._spaces[key], *self._before[key]} if self._names is None else self._names
            yield from [(key, name) for name in names]


def leave(module: nn.Module, name: str, value: Any) -> None:
    """Let the user's module have what forward assigned."""
    vars(module)[name] = value
    LEFT.setdefault(module, {})[name] = value


@contextmanager
def attributes_unchanged(model: nn.Module) -> Iterator[None]:
    """A context at whose end modules have the attributes that they had before, and the modules, parameters and buffers
    that torch keeps apart from these."""
    own = ((vars(m), m._modules, m._parameters, m._buffers) for m in model.modules())
    before = [(space, dict(space)) for spaces in own for space in spaces]
    try:
        yield
    finally:
        for space, was in before:
            space.clear()
            space.update(was)


def memory_of(tensor: torch.Tensor) -> int | None:
    """What tells the memory of a tensor from others; None where it has none of the usual layout."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None


def memories_of(model: nn.Module) -> set[int | None]:
    """Of its parameters and buffers."""
    return {memory_of(tensor) for tensor in (*nn.Module.parameters(model), *nn.Module.buffers(model))} - {None}


def _is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _holds_same(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return False
    if isinstance(one, dict):
        return all(other.get(key, _MISSING) is value for key, value in one.items())
    return all(map(operator.is_, one, other))


@functools.cache
def _is_plain(kind: type) -> bool:
    """Whether objects of a class hold attributes: of a class of the user's, or namespaces."""
    is_library = not is_users(kind.__module__) and kind is not SimpleNamespace
    is_other = issubclass(kind, nn.Module | torch.Tensor | Symbol | type) or any(
        "__call__" in vars(c) for c in kind.__mro__
    )
    return not is_library and not is_other and kind.__dictoffset__ != 0


def _put(space: dict[str, Any], name: str, value: Any) -> None:
    if value is _MISSING:
        space.pop(name, None)
    else:
        space[name] = value


class Memo(dict[int, Any]):
    """What `copy.deepcopy` of a model must be told (its memo), as it refuses or shares what a model may well hold:

    (1) tensors with a history, which eager execution with gradients has left there: a copy has the values;
    (2) modules of Python's (`self.backend = torch`): shared;
    (3) functions that close over modules or tensors (`self.block = lambda x: b(a(x))`): a copy closes over copies.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self._functions: dict[int, FunctionType] = {}
        seen: set[int] = set()
        stack: list[Any] = [module.__dict__ for module in model.modules()]
        while stack:
            item = stack.pop()
            if id(item) in seen:
                continue
            seen.add(id(item))
            if isinstance(item, torch.Tensor):
                if not isinstance(item, Symbol) and not item.is_leaf:
                    self[id(item)] = item.detach().clone()
            elif isinstance(item, dict):
                stack.extend(item.values())
            elif isinstance(item, list | tuple | set | frozenset):
                stack.extend(item)
            elif isinstance(item, ModuleType):
                self[id(item)] = item
            elif type(item) is FunctionType:
                if _closes_over_state(item, set()):
                    self._functions[id(item)] = item
                stack.extend(_held_by(item))
            elif not isinstance(item, type | nn.Module) and not callable(item):
                attributes = getattr(item, "__dict__", None)
                stack.extend(attributes.values() if isinstance(attributes, dict) else ())

    def get(self, key: int, default: Any = None) -> Any:
        """The copy of the object with an identity."""
        if key in self._functions and key not in self:
            self._copy(self._functions[key])
        return super().get(key, default)

    def _copy(self, function: FunctionType) -> None:
        """Definition (3). Functions may close over each other and themselves, and share cells."""
        cells = function.__closure__ or ()
        own = tuple(self.setdefault(id(cell), CellType()) for cell in cells)
        made = self[id(function)] = FunctionType(function.__code__, function.__globals__, function.__name__, None, own)
        made.__qualname__, made.__module__ = function.__qualname__, function.__module__
        made.__dict__ = function.__dict__
        for cell, copied in zip(cells, own, strict=True):
            if is_filled(cell) and not is_filled(copied):
                copied.cell_contents = self._copied(cell.cell_contents)
        made.__defaults__ = function.__defaults__ and tuple(map(self._copied, function.__defaults__))
        made.__kwdefaults__ = function.__kwdefaults__ and {
            name: self._copied(value) for name, value in function.__kwdefaults__.items()
        }

    def _copied(self, held: Any) -> Any:
        return copy.deepcopy(held, self) if _closes_over_state(held, set()) else held


def _closes_over_state(item: Any, seen: set[int]) -> bool:
    """Whether it is, or holds, a module or a tensor, as far as containers, functions and methods lead."""
    if id(item) in seen:
        return False
    seen.add(id(item))
    if isinstance(item, nn.Module | torch.Tensor):
        return not isinstance(item, Symbol)
    if isinstance(item, dict):
        held: Any = item.values()
    elif isinstance(item, list | tuple | set | frozenset):
        held = item
    elif type(item) is FunctionType:
        held = _held_by(item)
    else:
        held = (item.__self__,) if type(item) is MethodType else ()
    return any(_closes_over_state(part, seen) for part in held)


def _held_by(function: FunctionType) -> Iterator[Any]:
    """What a function closes over, and its defaults."""
    yield from enclosing_of(function).values()
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
