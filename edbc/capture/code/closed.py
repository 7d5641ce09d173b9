"""Which methods of a model are functions of their arguments: read from their code, so that it holds for every call.

A method can be a cell only if a call of it computes nothing but its result, and that from its arguments and from what
stays as it is. Recordings of samples can make that likely. The code can prove it.

Definitions.

(1) A method or function is *closed* when all that its code reads is
    (a) its arguments, and what it makes itself;
    (b) of the module that it is a method of: parameters, buffers, other modules whose calls are closed, closed methods,
        and attributes that are absent, or plain (numbers, texts, torch functions, tuples, lists and dicts of them and
        of modules whose calls are closed) and that no code which forward may reach assigns, or changes the items of
        (`code.assigned`);
        attributes of those in the same way (`self.config.size`), and closed methods of objects of plain classes;
    (c) global names, and variables of functions around it, of torch, of `math`, of built-in functions that only
        compute, of plain values, of closed functions, of modules, and of classes whose objects hold what they are given
        (`deque`, `nn.Sigmoid`, torch's distributions), which may be made, as exceptions may;
    (d) defaults of its arguments that nobody can change, and lists and dicts of what (b) calls plain that it only
        reads, and passes to methods of its own that change none (`info={}`);
    and when it assigns to local variables only. `getattr` and `hasattr` with a name that is written read that
    attribute, which may be absent; `super().forward(x)` calls what it finds, `super(Base, self)` too;
    `next(self.parameters())` is a parameter. What is not known to be so (`try`,
    `yield`, a name that is made, a list of tensors kept on the module) makes it *open*, with the line and the reason:
    an `Obstacle`.
(2) What a closed function reads of names and of attributes outside of modules, and of lists and dicts, are `LookUp`s,
    and so is its code: while they find the same, it computes the same. A function *rests on* its own and on those of
    what it calls. What it reads of modules is held by `ModelView.require_unchanged`, but for what their classes have.

(3) A model's `forward` may also be closed *for instances*: it, or what it calls, calls itself, or reads attributes of
    what no module has, which code elsewhere assigns (`node.children = ...` where trees are made), or calls modules
    whose hooks are closed functions. What it computes is still told by its instance and by what stays, where all of the
    instance is looked at. No cell is made of that.
(4) A model's `forward` may be closed *but for what it leaves*: it, or what it calls, assigns attributes of its own
    module, which closed code reads in the same function behind that line alone. Whoever calls it gives them to the
    model. What it reads before (`code.assigned`, definition (5)) each instance finds as the model was bound, and the
    model keeps it.
(5) A model's `forward` may also be closed *but for states*: it, or what it calls, assigns attributes of its own module,
    or of one inside it, and reads them anywhere (`self.h = zeros; ...; self.h = self.cell(x, self.h)`). Whoever calls
    it takes such attributes off the modules before, so that what would read an earlier instance's is seen
    (`alike.alike`).
(6) A closed function may *make* objects of a class of the user's (a stack, a solver, a hypothesis), whose methods are
    closed but for attributes of their own object that they assign: nobody else has it before. So may the function that
    made it. An object of such a class that the model holds, or an instance, is another matter: methods that assign
    its attributes are open there.
(7) A branch that prints, warns or logs (`code.recompiled.speaks`) is not read: copies of code that is recorded say when
    they take it (`code.rebind`, (17)), and nothing of that call is kept. So functions that have one are closed where
    copies of them run, in methods of modules and where they are called by name. What a logger is told below its level
    is a look-up of the levels.
(8) The `forward` of a module that somebody promised to be closed (`edbc.closed`) is, and so are calls of the module.

Closed is not all that a cell must be. That tensors are changed in place, read as numbers, or handed back as they came
is seen when the method is traced (`code.automatic`).

Time is linear in the length of the code, once per method.
"""

from __future__ import annotations

import ast
import builtins
import collections
import dataclasses
import dis
import functools
import inspect
import itertools
import linecache
import logging
import math
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import nn

from edbc.base.notebook import shown_name
from edbc.capture.code.assigned import (
    ANY,
    ANYTHING,
    CHANGING,
    GLOBAL,
    ITEMS,
    MAKES,
    assigned_in,
    assigned_to_others_in,
    caches_in,
    is_prompt,
    mentioned_in,
    own_attributes,
    written_as,
)
from edbc.capture.code.hooks import hooks_of_forward, num_hooks
from edbc.capture.code.mark import is_cell, is_closed
from edbc.capture.code.recompiled import compiled_like, is_same, speaks
from edbc.capture.code.rewrite import VERSIONS, LookUp, LookUps, as_python, enclosing_of, standing
from edbc.capture.standins.source import is_library

_BUILTINS = frozenset(
    "abs all any bool dict divmod enumerate float int isinstance iter len list map max min next range reversed round "
    "slice sorted str sum tuple zip Ellipsis __debug__".split()
)
"""Built-in functions that only compute; iterators are no arguments of a cell, so they are code's own."""
_OF_MODULES = frozenset("children named_children modules named_modules parameters named_parameters".split())
"""Methods of nn.Module that give what (b) allows."""
_ALLOWED: tuple[type[ast.AST], ...] = (
    ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.For, ast.While, ast.Expr, ast.Assert, ast.Pass,
    ast.FunctionDef, ast.Delete, ast.Raise, ast.With, ast.withitem, ast.Break, ast.Continue, ast.BoolOp, ast.BinOp,
    ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.keyword, ast.Constant, ast.JoinedStr, ast.FormattedValue,
    ast.Name, ast.Attribute, ast.Subscript,
    ast.Slice, ast.Starred, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp,
    ast.GeneratorExp, ast.comprehension, ast.Lambda, ast.arguments, ast.arg, ast.expr_context, ast.operator,
    ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_GENERATES = (ast.Yield, ast.YieldFrom)
"""Of a generator, which is no cell: what it gives comes while others run."""
_DECORATORS = frozenset(("property", "staticmethod", "torch.jit.script"))
_CLASSES = (
    torch.no_grad, torch.enable_grad, torch.autocast, torch.autograd.Variable, nn.Parameter, torch.Tensor,
    torch.FloatTensor, torch.LongTensor, torch.sparse.FloatTensor, torch.Size,  # type: ignore[attr-defined]
    collections.OrderedDict, collections.defaultdict, collections.deque, torch.finfo, torch.iinfo, torch.device,
    functools.partial, itertools.accumulate, itertools.chain, itertools.combinations, itertools.islice,
    itertools.permutations, itertools.product, itertools.repeat, itertools.starmap, itertools.zip_longest,
)  # fmt: skip
"""Of torch, and of those that hold what they are given, that may be made."""
_PLAIN = (int, float, complex, str, bool, type(None), torch.dtype, torch.device, torch.Size)
_UNKNOWN = object()
_OF_DICTS = frozenset(("get", "keys", "values", "items"))
MOST_ITEMS = 64
"""Of a dict or list that a look-up compares with what it held."""
_CLASS = "__class__"
"""The variable that `super()` without arguments reads."""
_STATE = re.compile(r"is_.*enabled|is_inference.*|get_.*|set_.*|.*seed.*|.*rng.*|.*available|save|load|compile")
"""Functions of torch that read or change what is no argument of theirs."""


_LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error", "critical")}


class Obstacle(NamedTuple):
    """Why a function is open: the line, and what stands there."""

    location: str
    reason: str


class _Content:
    """What stands in a list or dict, as a namespace of a `LookUp`: the same object while it is equal, in its order."""

    __slots__ = ("holder", "kinds", "known")

    def __init__(self, holder: Any):
        self.holder = holder
        self.known = _items(holder)
        self.kinds = [*map(type, self.known)]

    def get(self, name: str, default: Any = None) -> Any:
        """What stood there, or the default where something else does."""
        now = _items(self.holder)
        return self.known if now == self.known and [*map(type, now)] == self.kinds else default


def _items(holder: Any) -> list[Any]:
    return [*holder, *holder.values()] if type(holder) is dict else [*holder]


class _Open(Exception):
    """Raised with an Obstacle."""


class Closed:
    """What is known of one model's methods, definition (1). `look_ups` are those of (2)."""

    def __init__(self, model: nn.Module, for_instances: bool = False, leaves: bool = False, states: bool = False):
        self.model, self.for_instances, self.leaves, self.states = model, for_instances, leaves, states
        self.left: set[str] = set()
        """Names of attributes that definition (4) is about."""
        self.kept: set[tuple[int, str]] = set()
        """By the identity of a module, those that definition (5) is about."""
        self.look_ups = LookUps()
        self._rests_on: dict[tuple[int, Any], tuple[LookUps, set[tuple[int, Any]]]] = {}
        """Of each function that was read: its own look-ups, and what it calls, definition (2)."""
        self._verdicts: dict[tuple[int, Any], Obstacle | None] = {}
        self._kept: list[Any] = []
        self._changing: set[tuple[int, Any]] = set()
        """Closed functions that may change a nest they are given, or call one that may."""
        self._speaking: set[tuple[int, Any]] = set()
        """Those of definition (7), and what calls one."""
        self._being_read: list[tuple[int, Any]] = []
        self._takes_for_closed = for_instances
        """Whether functions that are being read were taken for closed."""
        self._named: set[str] = set()
        """Names of attributes that closed code reads of what it does not know."""
        self._fields: dict[type, frozenset[str] | None] = {}
        self._made: set[type] = set()
        """Definition (6)."""
        self.asks_types = False
        """Whether closed code asks what something is by `type`, of which a copy of another class would not be."""
        self.states_of_forward: frozenset[tuple[str, str]] = frozenset()
        """Definition (5), by path and name, once it was asked whether `forward` is told."""

    @functools.cached_property
    def assigned(self) -> frozenset[str]:
        """Names of the attributes that code which forward may reach assigns (`code.assigned`)."""
        return assigned_in(self._files)

    @functools.cached_property
    def mentioned(self) -> frozenset[str]:
        """All names that such code mentions."""
        return mentioned_in(self._files)

    @functools.cached_property
    def _assigned_to_others(self) -> frozenset[str]:
        """What such code assigns of objects other than its own."""
        return assigned_to_others_in(self._files)

    def may_assign(self, module: nn.Module, name: str) -> bool:
        """Whether such code may assign an attribute of a module: of any object, or in a method of the module."""
        if name not in self.assigned or name in self._assigned_to_others:
            return name in self.assigned
        functions = [item for owner in _classes_of(module) for item in vars(owner).values()]
        return not all(_leaves_alone(function, name) for function in functions)

    @functools.cached_property
    def caches(self) -> frozenset[str]:
        """Names of the attributes that such code assigns and may have read before."""
        return caches_in(self._files)

    @functools.cached_property
    def _files(self) -> frozenset[ModuleType]:
        """The files of the model's classes, and what these import of the user's."""
        found: set[ModuleType] = set()
        kinds = {kind.__module__ for module in self.model.modules() for kind in type(module).__mro__}
        new = {module for module in map(sys.modules.get, kinds) if _is_users(module)}
        while new:
            found |= new
            new = {module for file in new for module in _imported(file)} - found
        return frozenset(found)

    @functools.cached_property
    def _methods(self) -> dict[str, list[nn.Module]]:
        """Modules that have a method of the user's, by its name."""
        found: dict[str, list[nn.Module]] = {}
        for module in _outside_of_promises(self.model):
            for name in methods_of(module):
                found.setdefault(name, []).append(module)
        return found

    def note(self, look_up: LookUp) -> None:
        """Add a look-up; the function that is being read rests on it."""
        self.look_ups.add(look_up)
        if self._being_read:
            self._rests_on[self._being_read[-1]][0].add(look_up)

    def note_found(self, kind: type, name: str) -> None:
        """Add what a class has by a name: no class in front of the one that defines it has that name."""
        for owner in kind.__mro__:
            self.note(standing(vars(owner), name))
            if name in vars(owner):
                return

    def first_broken(self, function: Any, module: nn.Module | None) -> str | None:
        """Of what a function, or a method of a module, rests on, what finds something else by now, for people; None
        where all holds. Linear in the look-ups of what it calls."""
        waiting, seen = [(id(module), function)], set[tuple[int, Any]]()
        while waiting:
            key = waiting.pop()
            look_ups, called = self._rests_on[key]
            if not look_ups.still_hold():
                return look_ups.first_broken()
            seen.add(key)
            waiting += called - seen
        return None

    def obstacle(self, module: nn.Module, name: str) -> Obstacle | None:
        """Why a method is open; None for a closed one."""
        self.note_found(type(module), name)
        return self.function_obstacle(methods_of(module)[name], module)

    @functools.cached_property
    def is_forward_closed(self) -> bool:
        """Whether the model's `forward` is the user's, and closed."""
        return "forward" in methods_of(self.model) and self.obstacle(self.model, "forward") is None

    @functools.cached_property
    def is_forward_told(self) -> bool:
        """Whether it is closed, for instances and but for states at least: definitions (3) and (5)."""
        if self.is_forward_closed or self._is_forward_closed_to(self._otherwise(for_instances=True)):
            return True
        other = self._otherwise(for_instances=True, states=True)
        paths = {id(module): path for path, module in self.model.named_modules()}
        if not self._is_forward_closed_to(other) or not all(module in paths for module, _ in other.kept):
            return False
        self.states_of_forward = frozenset((paths[module], name) for module, name in other.kept)
        return True

    @functools.cached_property
    def left_by_forward(self) -> frozenset[str] | None:
        """Names of the attributes that it leaves, definition (4); None where it is open all the same."""
        other = self._otherwise(leaves=True)
        return frozenset(other.left) if self.is_forward_closed or self._is_forward_closed_to(other) else None

    def _otherwise(self, **definitions: bool) -> Closed:
        """Another reader of the model, whose files are the same."""
        other = Closed(self.model, **definitions)
        vars(other)["_files"] = self._files
        return other

    def _is_forward_closed_to(self, other: Closed) -> bool:
        """Whether another reader finds it closed, whose look-ups are these then too."""
        if "forward" not in methods_of(self.model) or other.obstacle(self.model, "forward") is not None:
            return False
        self.look_ups.update(other.look_ups)
        self._named |= other._named
        self._fields.clear()
        return True

    def is_instances(self, name: str) -> bool:
        """Definition (3): whether code elsewhere assigns an attribute that no module has by its name, which is a
        look-up. An object that is none of the instance's cannot be had: see `_Reading._require_plain`."""
        if not self.for_instances or name not in self.assigned:
            return False
        modules = [*self.model.modules()]
        spaces = [space for module in modules for space in _spaces(module)]
        of_classes = [vars(owner) for module in modules for owner in _classes_of(module)]
        if any(name in space for space in (*spaces, *of_classes)):
            return False
        for space in spaces:
            self.note(standing(space, name))
        return True

    def function_obstacle(self, function: Any, module: nn.Module | type | None) -> Obstacle | None:
        """Why a function, or a method of a module or of a class whose objects are made, is open; None for a closed
        one."""
        key = id(module), function
        if self._being_read:
            self._rests_on[self._being_read[-1]][1].add(key)
        if key not in self._verdicts and _is_promised(function, module):
            self._verdicts[key], self._rests_on[key] = None, (LookUps(), set())
            self._kept.append(module)
        if key not in self._verdicts:
            itself = Obstacle(_first_line(function), f"{function.__name__} calls itself")
            self._verdicts[key], before = None if self.for_instances else itself, len(self._verdicts)
            self._kept.append(module)
            self._rests_on[key] = LookUps(), set()
            self._being_read.append(key)
            try:
                reading = _Reading(self, function, module)
                reading.check()
                self._verdicts[key] = None
                for code in (self.look_ups, self._rests_on[key][0]):
                    code.add_code(function)
                if reading.may_change_nests():
                    self._changing.add(key)
                if reading.speaks:
                    self._speaking.add(key)
            except _Open as found:
                for other in [*self._verdicts][before:] if self._takes_for_closed else ():  # they may call this one
                    del self._verdicts[other]
                self._verdicts[key] = found.args[0]
            finally:
                self._being_read.pop()
        for some in (self._changing, self._speaking):
            if key in some and self._being_read:
                some.add(self._being_read[-1])
        return self._verdicts[key]

    def require_function(self, function: Any, module: nn.Module | type | None, is_copied: bool = True) -> None:
        """Raise _Open for an open function; also for one of definition (7) where no copy of it runs."""
        obstacle = self.function_obstacle(function, module)
        if obstacle is None and not is_copied and (id(module), function) in self._speaking:
            obstacle = Obstacle(_first_line(function), f"{function.__name__} prints, warns or logs")
        if obstacle is not None:
            raise _Open(obstacle)

    def require_method(self, module: nn.Module, name: str) -> None:
        """Raise _Open for an open method."""
        obstacle = self.obstacle(module, name)
        if obstacle is not None:
            raise _Open(obstacle)

    def require_module(self, module: nn.Module) -> None:
        """Raise _Open where calls of a module, or of a module inside it, are open."""
        for part in _outside_of_promises(module):
            if is_cell(part):
                continue
            has_call = not _is_torchs(_owner(type(part), "__call__").__module__)
            if has_call or (num_hooks(part) and not (self.for_instances and self._require_hooks(part))):
                what = f"a {type(part).__name__} has hooks, or a __call__ of its own"
                raise _Open(Obstacle(_file_of(type(part)), what))
            if "forward" in methods_of(part) and not type(part).__module__.startswith("einops.layers."):
                self.require_method(part, "forward")

    def _require_hooks(self, module: nn.Module) -> bool:
        """Raise _Open where a hook of a module's forward is open; False where it has others, or is no function."""
        hooks = hooks_of_forward(module)
        if len(hooks) < num_hooks(module) or not all(_is_users_function(hook) for _, _, hook in hooks):
            return False
        for namespace, number, hook in hooks:
            self.note(LookUp(namespace, number, hook))
            self.require_function(hook, None, False)
        return True

    def only_computes(self, function: Any, module: nn.Module | None) -> bool:
        """Whether a function, or a method of a module, is closed and leaves the nests that it is given as they are."""
        return self.function_obstacle(function, module) is None and (id(module), function) not in self._changing

    def module_only_computes(self, module: nn.Module) -> bool:
        """Whether calls of a module do."""
        try:
            self.require_module(module)
        except _Open:
            return False
        forwards = ((id(part), methods_of(part).get("forward")) for part in module.modules())
        return self._changing.isdisjoint(forwards)

    def fields(self, kind: type) -> frozenset[str] | None:
        """The attributes that closed code may read of objects of a class of the user's, where a copy with these alone
        does as the object: it is a plain class, whose methods and properties of such names are closed. None for any
        other class. Asked once all code is read that reads such objects."""
        if kind not in self._fields:
            self._fields[kind] = None
            try:
                if _is_plain_class(kind):
                    self._require_members(kind)
                    self._fields[kind] = frozenset(self._named)
            except _Open:
                pass
        return self._fields[kind]

    def _require_members(self, kind: type) -> None:
        """Raise _Open unless all that a class has by the names that closed code reads only computes."""
        known: set[str] = set()
        while known != self._named:  # members read others
            new, known = self._named - known, set(self._named)
            for name in new:
                self._require_member(kind, name, None)

    def require_named(self, name: str) -> None:
        """Raise _Open unless a method of that name, called of something unknown, is closed in every module, and in
        every class whose objects are made."""
        self._named.add(name)
        for module in self._methods.get(name, ()):
            key = id(module), methods_of(module)[name]
            if key in self._being_read:  # `row.expand(n)` in a module's own `expand`: closed where the rest of it is
                self._rests_on[self._being_read[-1]][1].add(key)
                self._takes_for_closed = True
            else:
                self.require_method(module, name)
        for kind in [*self._made]:
            self.require_member(kind, name)

    def makes(self, kind: type) -> bool:
        """Whether closed code may make objects of a class where its methods are closed. What forward leaves on modules
        is to be tensors."""
        return not self.leaves and not self.states and _may_be_made(kind)

    def require_made(self, kind: type) -> None:
        """Raise _Open unless objects of a class may be made, definition (6)."""
        if kind in self._made:
            return
        self._made.add(kind)  # before its methods are read, which may make others
        for owner in kind.__mro__[:-1]:
            for name in vars(owner):
                if _is_special(name) and name not in _TOLD:
                    self.require_member(kind, name)
        for name in [*self._named]:
            self.require_member(kind, name)

    def require_member(self, kind: type, name: str) -> None:
        """Raise _Open unless what a class whose objects are made has by a name only computes."""
        self._require_member(kind, name, kind)

    def _require_member(self, kind: type, name: str, made: type | None) -> None:
        """The same of any class, whose objects are made or are an instance's, which its methods leave as they are."""
        owner = next((c for c in kind.__mro__ if name in vars(c)), None)
        if owner is None:
            return
        item = vars(owner)[name]
        self.note(LookUp(vars(owner), name, item))
        function = item.fget if type(item) is property else item
        if type(item) is staticmethod and made is not None:
            self.require_function(item.__func__, None, False)
        elif type(function) is FunctionType:
            if not _is_of_dataclass(owner, function):
                self.require_function(function, made, False)
        elif not isinstance(item, _PLAIN) and (made is None or type(item) is not MemberDescriptorType):
            raise _Open(Obstacle(_file_of(kind), f"{kind.__name__}.{name} is no method"))


_OF_PLAIN = frozenset(
    "__init__ __post_init__ __module__ __qualname__ __doc__ __dict__ __weakref__ __annotations__ __repr__ __str__ "
    "__dataclass_fields__ __dataclass_params__ __match_args__ __replace__ __static_attributes__ __firstlineno__ "
    "__slotnames__".split()
)
"""What a plain class may define of the names that Python knows; the last is there once an object was copied."""
_TOLD = _OF_PLAIN - {"__init__", "__post_init__"} | {"__slots__"}
"""What tells nothing of classes whose objects are made."""
_RUNS = frozenset(
    "__new__ __getattr__ __getattribute__ __setattr__ __delattr__ __del__ __init_subclass__ __set_name__ __get__ "
    "__set__ __delete__ __class_getitem__ __instancecheck__".split()
)
"""What no class has whose objects are made in closed code."""
_OF_DATACLASS = frozenset("__eq__ __hash__ __setattr__ __delattr__ __lt__ __le__ __gt__ __ge__".split())


def _is_plain_class(kind: type) -> bool:
    """Whether objects are what stands in their `__dict__`, and nothing runs when attributes are read."""
    if kind is SimpleNamespace:
        return True
    if type(kind) is not type or kind.__dictoffset__ == 0:
        return False
    for owner in kind.__mro__[:-1]:
        module = sys.modules.get(owner.__module__)
        special = set(filter(_is_special, vars(owner)))
        allowed = _OF_PLAIN | _OF_DATACLASS if "__dataclass_params__" in vars(owner) else _OF_PLAIN
        if not (_is_users(module) and special <= allowed):
            return False
    return True


def _outside_of_promises(module: nn.Module) -> Iterator[nn.Module]:
    """A module and those in it, without any that is promised to be closed, and what is inside of that."""
    inside: set[int] = set()
    for part in module.modules():
        if id(part) not in inside and is_closed(part):
            inside |= set(map(id, part.modules()))
    return (part for part in module.modules() if id(part) not in inside)


def _is_promised(function: Any, module: Any) -> bool:
    """Whether it is the forward of a module that is promised to be closed."""
    return isinstance(module, nn.Module) and is_closed(module) and methods_of(module).get("forward") is function


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _may_be_made(kind: type) -> bool:
    """Whether objects of a class are what its methods make of them: nothing else runs when they are made, or when their
    attributes are read and assigned."""
    owners = kind.__mro__[:-1]
    if type(kind) is not type or not all(_is_users(sys.modules.get(owner.__module__)) for owner in owners):
        return False
    of_dataclasses = [owner for owner in owners if "__dataclass_params__" in vars(owner)]
    fields = dataclasses.fields(kind) if of_dataclasses else ()
    makers = (dataclasses.MISSING, list, dict, set, collections.deque)
    return all(field.default_factory in makers for field in fields) and not any(
        (name in _RUNS and owner not in of_dataclasses) or (type(item) is property and item.fset is not None)
        for owner in owners
        for name, item in vars(owner).items()
    )


def _is_of_dataclass(owner: type, function: FunctionType) -> bool:
    """Whether it is a method that `dataclass` wrote."""
    return (
        "__dataclass_params__" in vars(owner)
        and function.__name__ in (_OF_DATACLASS | {"__init__"})
        and (definition_of(function) is None)
    )


def methods_of(module: nn.Module) -> dict[str, Any]:
    """Methods of the classes that the user wrote of a module, by name, as they are found; not those of torch."""
    found: dict[str, Any] = {}
    for owner in _classes_of(module):
        for name, item in vars(owner).items():
            if type(item) is FunctionType and not (name.startswith("__") and name.endswith("__")):
                found.setdefault(name, item)
    return found


def _leaves_alone(item: Any, name: str) -> bool:
    """Whether what a class holds assigns no attribute of that name to its own object."""
    if type(item) is property:
        return all(_leaves_alone(function, name) for function in (item.fget, item.fset) if function is not None)
    if type(item) is not FunctionType or item.__name__ in MAKES:
        return True
    definition = definition_of(item)
    return definition is not None and name not in own_attributes(definition).stored


def _owner(kind: type, name: str) -> type:
    """The class that defines what a class has by a name."""
    return next(owner for owner in kind.__mro__ if name in vars(owner))


def _classes_of(module: nn.Module) -> Iterator[type]:
    """The classes of a module that the user wrote, in the order in which methods are looked up."""
    return itertools.takewhile(lambda owner: not _is_torchs(owner.__module__), type(module).__mro__)


def _spaces(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """Where a module holds attributes."""
    return module._parameters, module._buffers, module._modules, vars(module)


def _is_torchs(name: str) -> bool:
    return name.partition(".")[0] == "torch"


def _is_users(module: Any) -> TypeGuard[ModuleType]:
    name = getattr(module, "__file__", None)
    return is_prompt(module) if name is None else not is_library(name)


_STANDARD = sys.stdlib_module_names - {"__main__"}


def _imported(module: ModuleType) -> Iterator[ModuleType]:
    """The user's own modules, installed packages apart, that names of a module come from."""
    for item in list(vars(module).values()):
        found = item if isinstance(item, ModuleType) else sys.modules.get(getattr(item, "__module__", None) or "")
        is_installed = "site-packages" in str(getattr(found, "__file__", ""))
        is_standard = getattr(found, "__name__", "").partition(".")[0] in _STANDARD
        if _is_users(found) and not is_installed and not is_standard:
            yield found


def _file_of(kind: type) -> str:
    try:
        return Path(inspect.getfile(kind)).name
    except (OSError, TypeError):  # defined at a prompt
        return kind.__module__


def _first_line(function: Any) -> str:
    return f"{shown_name(function.__code__.co_filename)}:{function.__code__.co_firstlineno}"


class _Reading:
    """One function's code, read once."""

    def __init__(self, closed: Closed, function: Any, module: Any):
        self.closed, self.function, self.module = closed, function, module
        self.definition = _required_definition(function)
        arguments = self.definition.args
        named = [*arguments.posonlyargs, *arguments.args]
        self.made = module if isinstance(module, type) else None
        """The class, of a method of objects that are made."""
        self.self_name = named[0].arg if module is not None and self.made is None and named else None
        self.local = {
            *(a.arg for a in nodes_of(self.definition) if isinstance(a, ast.arg)),
            *(n.id for n in nodes_of(self.definition) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)),
            *(n.name for n in nodes_of(self.definition) if isinstance(n, ast.FunctionDef) and n is not self.definition),
        } - {self.self_name}
        self.speaks = False
        """Whether it has branches of definition (7)."""
        self._callees: set[int] = set()
        """What is called in what was visited, by identity."""
        self.bound: list[str] = []
        """Variables of the comprehensions and lambdas around what is visited."""

    @functools.cached_property
    def made_name(self) -> str | None:
        """What a method of objects that are made calls its own, where it calls nothing else so."""
        named = [*self.definition.args.posonlyargs, *self.definition.args.args]
        name = named[0].arg if self.made is not None and named else None
        bound = [n for n in nodes_of(self.definition) if (isinstance(n, ast.arg) and n.arg == name)
                 or (isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load))]  # fmt: skip
        return name if len(bound) == 1 else None

    @functools.cached_property
    def _is_in_place(self) -> bool:
        """Whether other code may stand in its place."""
        return definition_in_place(self.function, self.function.__code__) is not None

    def _is_made(self, node: ast.expr) -> bool:
        """Whether it is the object of such a method."""
        return self.made_name is not None and _is_named(node, self.made_name)

    def _is_new(self, node: ast.expr) -> bool:
        """Whether it is a variable of objects that the function makes, and of nothing else."""
        nodes = nodes_of(self.definition)
        if not isinstance(node, ast.Name) or any(isinstance(n, ast.arg) and n.arg == node.id for n in nodes):
            return False
        bound = [n for n in nodes if isinstance(n, ast.Name) and n.id == node.id and not isinstance(n.ctx, ast.Load)]
        assigned = {id(n.targets[0]): n.value for n in nodes if isinstance(n, ast.Assign) and len(n.targets) == 1}
        return bool(bound) and all(self._makes(assigned.get(id(name))) for name in bound)

    def _makes(self, node: ast.expr | None) -> bool:
        """Whether it is a call of a class whose objects are made, definition (6)."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id in self.local:
            return False
        found = self.function.__globals__.get(node.func.id)
        return isinstance(found, type) and self.closed.makes(found)

    def refuse(self, node: ast.AST, reason: str) -> None:
        """Raise _Open at a node's line."""
        code = self.function.__code__
        line = getattr(node, "lineno", code.co_firstlineno)
        raise _Open(Obstacle(f"{shown_name(code.co_filename)}:{line}", reason))

    def check(self) -> None:
        """Raise _Open for the first obstacle."""
        self.around = enclosing_of(self.function)
        if not all(_stays(found) for name, found in self.around.items() if name != _CLASS):
            self.refuse(self.definition, f"{self.definition.name} reads variables of a function around it")
        named = [a.arg for a in (*self.definition.args.posonlyargs, *self.definition.args.args)]
        defaults = self.function.__defaults__ or ()
        behind = [*zip(named[len(named) - len(defaults) :], defaults, strict=True)]
        for name, default in (*behind, *(self.function.__kwdefaults__ or {}).items()):
            if type(default) in (dict, list) and _is_of_plain(default) and self._only_reads(name):
                self._require_plain(self.definition, name, default)
            elif not _is_fixed(default):
                self.refuse(self.definition, f"an argument's default is a {type(default).__name__}, which may change")
        for statement in self._going_on(self.definition.body):
            self.visit(statement)

    def _only_reads(self, name: str) -> bool:
        """Whether code reads the items of an argument and nothing else, and so do its own methods that get it."""
        nodes = nodes_of(self.definition)
        around = {id(child): node for node in nodes for child in ast.iter_child_nodes(node)}
        return all(self._only_reads_at(n, around) for n in nodes if isinstance(n, ast.Name) and n.id == name)

    def _only_reads_at(self, node: ast.Name, around: dict[int, ast.AST]) -> bool:
        parent = around[id(node)]
        call = around[id(parent)] if isinstance(parent, ast.keyword) else parent
        if isinstance(call, ast.Call) and node is not call.func:
            called = call.func
            if isinstance(called, ast.Name):
                return called.id in _BUILTINS - self.local
            if not isinstance(called, ast.Attribute) or not self._is_self(called.value):
                return False
            method = methods_of(self.module).get(called.attr)
            return method is not None and self.closed.only_computes(method, self.module)
        if isinstance(parent, ast.Subscript) or (isinstance(parent, ast.Attribute) and parent.attr in _OF_DICTS):
            return isinstance(parent.ctx, ast.Load)
        if isinstance(parent, ast.If | ast.IfExp | ast.While):
            return node is parent.test
        return isinstance(parent, ast.Compare | ast.UnaryOp | ast.For | ast.comprehension)

    def may_change_nests(self) -> bool:
        """Whether its own code assigns to items, or calls what changes lists, dicts, sets and tensors."""
        return any(
            (isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load))
            or isinstance(node, ast.AugAssign)
            or (isinstance(node, ast.Attribute) and (node.attr in CHANGING or is_in_place(node.attr)))
            or (isinstance(node, ast.keyword) and node.arg in ("inplace", "out"))
            for node in nodes_of(self.definition)
        )

    def visit(self, node: ast.AST) -> None:
        """A statement or an expression."""
        if isinstance(node, ast.Nonlocal) and {*node.names} <= {*self.function.__code__.co_cellvars}:
            return
        if not isinstance(node, _ALLOWED) and not (self.closed.for_instances and isinstance(node, _GENERATES)):
            self.refuse(node, f"{type(node).__name__} is more than a function of arguments needs")
        if isinstance(node, ast.Call):
            self._callees.add(id(node.func))
        if isinstance(node, ast.Name):
            self._name(node)
        elif isinstance(node, ast.Attribute):
            self._attribute(node)
        elif isinstance(node, ast.Call) and _is_named(node.func, "isinstance"):
            self.visit(node.args[0])  # the classes only tell
        elif isinstance(node, ast.Call) and _is_named(node.func, "type") and len(node.args) == 1:
            self.closed.asks_types = True
            self.visit(node.args[0])
        elif isinstance(node, ast.Call) and self._gets_attribute(node):
            self._got(node)
        elif isinstance(node, ast.Call) and self._takes_first(node):
            self.visit(node.args[0])
        elif isinstance(node, ast.Call) and self._is_given(node):
            for part in (*node.args, *node.keywords):
                if not self._is_self(part):
                    self.visit(part)
        elif isinstance(node, ast.Compare) and not all(map(_is_told, node.ops, node.comparators)):
            self.refuse(node, f"{ast.unparse(node)}: which objects arguments are is no part of a cell")
        elif isinstance(node, ast.If | ast.IfExp):
            told = self._told(node.test)
            parts: list[ast.AST] = [node.test]
            for branch, of in ((node.body, True), (node.orelse, False)):
                if isinstance(branch, list) and speaks(branch) and told in (None, of) and self._is_in_place:
                    self.speaks = True
                elif told in (None, of):
                    parts += self._going_on(branch) if isinstance(branch, list) else [branch]
            for part in parts:
                self.visit(part)
        elif isinstance(node, ast.Lambda):
            self.visit(node.args)
            self._visit_bound([arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)], [node.body])
        elif isinstance(node, _COMPREHENSIONS):
            self._comprehension(node)
        elif isinstance(node, ast.FunctionDef):
            if node.decorator_list or any(x.arg == self.self_name for x in ast.walk(node) if isinstance(x, ast.arg)):
                self.refuse(node, f"{node.name} is decorated, or has an argument {self.self_name}")
            for part in (node.args, *node.body):
                self.visit(part)
        elif (isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute) and not self.closed.states
              and not self._is_made(node.target.value) and not self._is_new(node.target.value)):  # fmt: skip
            self.refuse(node, f"{ast.unparse(node.target)} is assigned")
        elif isinstance(node, ast.AnnAssign):
            for part in filter(None, (node.target, node.value)):
                self.visit(part)
        elif not isinstance(node, ast.arg):
            for child in ast.iter_child_nodes(node):
                self.visit(child)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        first, *_ = node.generators
        self.visit(first.iter)  # outside of what is bound
        parts: list[ast.expr] = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        names = []
        for of in node.generators:
            names += [part.id for part in ast.walk(of.target) if isinstance(part, ast.Name)]
            parts += [of.target, *of.ifs, *([] if of is first else [of.iter])]
        self._visit_bound(names, parts)

    def _visit_bound(self, names: list[str], parts: Sequence[ast.AST]) -> None:
        """Parts of an expression in which names are variables, whatever else is called so."""
        self.bound += names
        for part in parts:
            self.visit(part)
        del self.bound[len(self.bound) - len(names) :]

    def _told(self, test: ast.expr) -> bool | None:
        """What a test gives while its module stays in its mode, and keeps its plain values; None where more decides."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            told = self._told(test.operand)
            return None if told is None else not told
        if isinstance(test, ast.BoolOp):
            decides = isinstance(test.op, ast.Or)
            return decides if decides in map(self._told, test.values) else None
        if isinstance(test, ast.Compare):
            is_of_none = len(test.ops) == 1 and _is_none(test.comparators[0])
            value = self._plain(test.left) if is_of_none and isinstance(test.ops[0], ast.Is | ast.IsNot) else _UNKNOWN
            return None if value is _UNKNOWN else (value is None) == isinstance(test.ops[0], ast.Is)
        value = self._plain(test)
        return None if value is _UNKNOWN else bool(value)

    def _plain(self, node: ast.expr) -> Any:
        """The plain value that an attribute of the module has and keeps; _UNKNOWN of anything else."""
        if not (isinstance(node, ast.Attribute) and self._is_self(node.value) and isinstance(self.module, nn.Module)):
            return _UNKNOWN
        value = vars(self.module).get(node.attr, _UNKNOWN)
        stays = node.attr == "training" or not (
            self.closed.may_assign(self.module, node.attr) or self._has_assigned(node.attr, node.lineno)
        )
        return value if stays and isinstance(value, _PLAIN) else _UNKNOWN

    def _is_self(self, node: ast.AST) -> bool:
        return self.self_name is not None and _is_named(node, self.self_name)

    def _going_on(self, block: list[ast.stmt]) -> list[ast.stmt]:
        """The statements of a block that may run: none behind `if not self.training: return x` of a module that does
        not train; of a block that ends the program (`print(...)`, then `exit()`) what else it does."""
        for number, part in enumerate(block):
            if isinstance(part, ast.If) and (told := self._told(part.test)) is not None:
                taken = part.body if told else part.orelse
                if taken and isinstance(taken[-1], ast.Return):
                    return block[: number + 1]
        if not block or not self._is_call_of(block[-1], "exit", "quit"):
            return block
        return [part for part in block if not self._is_call_of(part, "print", "exit", "quit")]

    def _is_call_of(self, node: ast.stmt, *names: str) -> bool:
        """Whether a statement calls one of Python's own functions of these names."""
        called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        return called is not None and any(self._is_builtin(called, name) for name in names)

    def _name(self, node: ast.Name) -> None:
        if node.id == self.self_name:
            self.refuse(node, f"{node.id} itself is passed on, or assigned")
        code = self.function.__code__
        is_variable = node.id in (*self.bound, *code.co_varnames, *code.co_cellvars)
        if node.id not in self.local or not (is_variable or node.id not in self.function.__globals__):
            self._chain(node, node.id, ())

    def _attribute(self, node: ast.Attribute) -> None:
        base, names = _chain_of(node)
        if self._is_made(base) and (isinstance(node.ctx, ast.Load) or len(names) == 1):
            if isinstance(node.ctx, ast.Load):
                assert self.made is not None
                self.closed.require_member(self.made, names[0])
                self._of_unknown(node, names[1:])
            return
        if not isinstance(node.ctx, ast.Load):
            if len(names) == 1 and self._is_new(base):
                return
            owner = self._assigned_to(base, names) if isinstance(node.ctx, ast.Store) else None
            if owner is None:
                self.refuse(node, f"{ast.unparse(node)} is assigned")
            self.closed.left |= {node.attr} - self.closed.caches
            self.closed.kept.add((id(owner), node.attr))
            return
        if self._is_self(base):
            assert self.module is not None
            if self._has_assigned(names[0], node.lineno):
                self._of_unknown(node, names[1:])
            else:
                self._walk(node, ast.unparse(node), self.module, names)
        elif isinstance(base, ast.Name) and base.id not in self.local:
            self._chain(node, base.id, names)
        elif isinstance(base, ast.Call) and self.module is not None and len(names) == 1 and self._is_super(base):
            self._of_super(node, base, names[0])
        else:  # of a tensor, a nest, or a module that came out of one
            self._of_unknown(node, names)
            self.visit(base)

    def _of_unknown(self, node: ast.AST, names: Sequence[str]) -> None:
        """Attributes of what nobody knows."""
        for name in names:
            if not self.closed.is_instances(name):
                self._unassigned(node, name)
            self.closed.require_named(name)

    def _has_assigned(self, name: str, line: int) -> bool:
        """Whether a statement of the function's own block in front of a line assigns an attribute of its module."""
        before = [x for x in self.definition.body if isinstance(x, ast.Assign) and (x.end_lineno or line) < line]
        targets = [part for statement in before for target in statement.targets for part in ast.walk(target)]
        return self.closed.leaves and any(
            isinstance(x, ast.Attribute) and not isinstance(x.ctx, ast.Load) and x.attr == name
            and self._leaves(x.value, (name,)) for x in targets
        )  # fmt: skip

    def _is_cache(self, module: nn.Module, name: str) -> bool:
        """Whether it is one that each instance finds as it was, which is what stays."""
        held = vars(module).get(name)
        is_own = not any(name in space for space in _spaces(module)[:3]) and not hasattr(type(module), name)
        return (
            self.closed.leaves and is_own and name in self.closed.caches and isinstance(held, (torch.Tensor, *_PLAIN))
        )

    def _holds_tensors(self, found: Any, name: str) -> bool:
        """Whether a module's attribute is a list or dict of tensors in which no code that forward may reach changes
        anything: what it holds is watched (`ModelView.require_unchanged`)."""
        if not self.closed.states or type(found) not in (list, dict) or not 0 < len(found) <= MOST_ITEMS:
            return False
        items = found.values() if type(found) is dict else found
        is_steady = self.closed.assigned.isdisjoint((name, ITEMS + name, ANY))
        return is_steady and all(isinstance(item, torch.Tensor) for item in items)

    def _is_state(self, module: nn.Module, name: str) -> bool:
        """Whether it is one of definition (5)."""
        is_own = not any(name in space for space in _spaces(module)[:3]) and not hasattr(type(module), name)
        return self.closed.states and is_own and self.closed.may_assign(module, name)

    def _assigned_to(self, base: ast.expr, names: tuple[str, ...]) -> nn.Module | None:
        """The module to which it may be assigned: the function's own, or by (5) one inside it."""
        if self._leaves(base, names):
            return self.module
        is_own = self._is_self(base) and isinstance(self.module, nn.Module)  # or an object with a method
        owner = self.module if is_own else None
        for name in names[:-1]:
            owner = None if owner is None else owner._modules.get(name)
        is_state = owner is not None and self._is_state(owner, names[-1])
        return owner if is_state and type(owner).__setattr__ is nn.Module.__setattr__ else None

    def _leaves(self, base: ast.expr, names: tuple[str, ...]) -> bool:
        """Whether to assign it is what definition (4) or (5) allows."""
        kind, own = type(self.module), self.self_name
        return (
            (self.closed.leaves or self.closed.states) and own is not None and _is_named(base, own) and len(names) == 1
            and names[0] in self.closed.assigned and not hasattr(kind, names[0])
            and kind.__setattr__ is nn.Module.__setattr__
        )  # fmt: skip

    def _gets_attribute(self, node: ast.Call) -> bool:
        """Whether it is `getattr` or `hasattr` of a name that is written, or `getattr` of one of its module's that is
        written in part."""
        is_getting = self._is_builtin(node.func, "getattr")
        if node.keywords or len(node.args) not in (2, 3) or not (is_getting or self._is_builtin(node.func, "hasattr")):
            return False
        if isinstance(node.args[1], ast.Constant):
            return True
        is_own = self._is_self(node.args[0]) and isinstance(self.module, nn.Module) and len(node.args) == 2
        return is_getting and is_own and bool(written_as(node.args[1]).replace(ANYTHING, ""))

    def _is_builtin(self, node: ast.AST, name: str) -> bool:
        """Whether it is Python's own function of a name."""
        return _is_named(node, name) and name not in self.local and name not in self.function.__globals__

    def _is_given(self, node: ast.Call) -> bool:
        """Whether it calls the function's own module, or gives it to a function of the user's as its first argument,
        which reads it as a method would. Raises _Open for an open one."""
        if not isinstance(self.module, nn.Module) or not isinstance(node.func, ast.Name):
            return False
        if self._is_self(node.func):
            self.closed.require_module(self.module)
            return True
        found = self.function.__globals__.get(node.func.id)
        is_users = _is_users_function(found) and node.func.id not in (*self.local, *self.around, *self.bound)
        if not is_users or not node.args or not self._is_self(node.args[0]):
            return False
        self._note_global(node, node.func.id, found)
        self.closed.require_function(found, self.module)
        return True

    def _takes_first(self, node: ast.Call) -> bool:
        """Whether it is `next(self.parameters())` or its like."""
        of = node.args[0] if len(node.args) == 1 and not node.keywords else None
        is_new = isinstance(of, ast.Call) and isinstance(of.func, ast.Attribute) and of.func.attr in _OF_MODULES
        return is_new and self._is_builtin(node.func, "next")

    def _is_super(self, node: ast.Call) -> bool:
        """Whether it is `super()`, or `super(Base, self)`."""
        given = node.args
        is_own = not given or (len(given) == 2 and isinstance(given[0], ast.Name)
                               and self.self_name is not None and _is_named(given[1], self.self_name))  # fmt: skip
        return is_own and self._is_builtin(node.func, "super")

    def _got(self, node: ast.Call) -> None:
        """Such a call: the attribute and the default; of a name that is written in part, all that it may be."""
        _, written, *defaults = node.args
        for default in defaults:
            self.visit(default)
        names = [str(written.value)] if isinstance(written, ast.Constant) else self._names_like(written)
        for name in names:
            attribute = ast.copy_location(ast.Attribute(node.args[0], name, ast.Load()), node)
            self._attribute(attribute)

    def _names_like(self, node: ast.expr) -> list[str]:
        """The attributes of its module that may have a name which is written in part."""
        self.visit(node)
        held = {name for space in _spaces(self.module) for name in space} | {*dir(type(self.module))}
        found = sorted(filter(re.compile(written_as(node)).fullmatch, held))
        if not found:
            self.refuse(node, f"{ast.unparse(node)}: no attribute has such a name when the model is bound")
        return found

    def _of_super(self, node: ast.AST, call: ast.Call, name: str) -> None:
        """`super().forward`: what the class after this one, or after the one that is named, has by the name."""
        code, module = self.function.__code__, self.module
        order = type(module).__mro__ if self.made is None else self.made.__mro__
        if call.args:
            base = call.args[0].id  # type: ignore[attr-defined]
            owner = self.function.__globals__.get(base)
            self.closed.note(LookUp(self.function.__globals__, base, owner))
            if base in self.local or GLOBAL + base in self.closed.assigned or owner not in order:
                self.refuse(node, f"{ast.unparse(call)} is not known to compute")
        else:
            owner = self.function.__closure__[code.co_freevars.index(_CLASS)].cell_contents
        classes = itertools.dropwhile(lambda kind: kind is not owner, order)
        kind = next((kind for kind in itertools.islice(classes, 1, None) if name in vars(kind)), object)
        item = vars(kind).get(name)
        if type(item) is FunctionType and not _is_torchs(kind.__module__):
            self.closed.note(LookUp(vars(kind), name, item))
            self.closed.require_function(item, module, self.made is None)
        elif self.made is not None and kind is object:
            return
        elif name != "forward" or kind in (nn.Module, object):
            self.refuse(node, f"super().{name} is not known to compute")
        else:  # of a layer of torch's
            for part in module.children():
                self.closed.require_module(part)

    def _unassigned(self, node: ast.AST, name: str) -> None:
        if name in self.closed.assigned:
            self.refuse(node, f"{ast.unparse(node)}: an attribute {name!r} is assigned in code that forward may reach")

    def _require_kept(self, node: ast.AST, value: Any) -> None:
        """Raise _Open for what may be assigned by a name that is made, unless it is a module or a tensor."""
        if ANY in self.closed.assigned and not isinstance(value, nn.Module | torch.Tensor):
            self.refuse(node, f"{ast.unparse(node)}: attributes are assigned by setattr, vars or __dict__")

    def _chain(self, node: ast.AST, name: str, names: tuple[str, ...]) -> None:
        """A name that is not local, and attributes of it."""
        namespace: Any = self.function.__globals__
        if name in self.around:
            namespace = self.around
        elif name not in namespace:
            found = vars(builtins).get(name)
            if name not in _BUILTINS and not (isinstance(found, type) and issubclass(found, Exception)):
                self.refuse(node, f"{name} does more than compute")
            return
        found = namespace.get(name)
        self._note_global(node, name, found, namespace)
        self._walk(node, ".".join((name, *names)), found, names)

    def _note_global(self, node: ast.AST, name: str, found: Any, namespace: Any = None) -> None:
        """Rest on what a name that is not local means. Raises _Open where code assigns it."""
        if GLOBAL + name in self.closed.assigned:
            self.refuse(node, f"{name} is assigned in code that forward may reach")
        self.closed.note(LookUp(self.function.__globals__ if namespace is None else namespace, name, found))

    def _walk(self, node: ast.AST, text: str, found: Any, names: tuple[str, ...]) -> None:
        """Follow attributes from an object as far as they are known to stay, (b) and (c)."""
        for number, name in enumerate(names, 1):
            if isinstance(found, (torch.Tensor, *_PLAIN)):  # attributes of what stays
                return
            if isinstance(found, nn.Module):
                if self._is_cache(found, name):
                    self._of_unknown(node, names[number:])
                    return
                if self._is_state(found, name):
                    self.closed.kept.add((id(found), name))
                    self._of_unknown(node, names[number:])
                    return
                is_tensor = name in found._parameters or name in found._buffers  # assigning to those is refused
                if not is_tensor and self.closed.may_assign(found, name):
                    self._unassigned(node, name)
                found, is_known = self._of_module(node, found, name)
                if is_known or (number == len(names) and self._holds_tensors(found, name)):
                    return
            elif isinstance(found, logging.Logger) and self._is_silent(found, name):
                return
            elif type(found) is dict and name in _OF_DICTS:
                text = text.removesuffix(f".{name}")
                break
            elif isinstance(found, ModuleType) or name in getattr(found, "__dict__", ()):
                if not isinstance(found, ModuleType):
                    self._unassigned(node, name)
                    self._require_kept(node, None)
                if not hasattr(found, name):
                    self.refuse(node, f"{text} is not defined when the model is bound")
                self.closed.note(standing(vars(found), name))
                found = getattr(found, name)
            elif self._is_method(found, name) or (_is_function_class(found) and name == "apply"):  # which is a node
                return
            else:
                self.refuse(node, f"{text}: {type(found).__name__!r} objects may change unseen")
        self._require_plain(node, text, found)

    def _is_silent(self, logger: logging.Logger, name: str) -> bool:
        """Whether a method of a logger's says nothing at the levels that it and those above have, and rest on these."""
        own = type(logger)
        if name not in _LEVELS or any(
            getattr(own, x) is not getattr(logging.Logger, x) for x in (name, "isEnabledFor")
        ):
            return False
        above: logging.Logger | None = logger
        while above is not None:
            for what in ("level", "parent", "disabled"):
                self.closed.note(standing(vars(above), what))
            above = above.parent
        self.closed.note(standing(vars(logger.manager), "_disable"))
        return not logger.isEnabledFor(_LEVELS[name])

    def _is_method(self, found: Any, name: str) -> bool:
        """Whether it is a method or property of an object of a plain class. Raises _Open for an open one."""
        kind = type(found)
        item = next((vars(owner)[name] for owner in kind.__mro__ if name in vars(owner)), None)
        function = item.fget if type(item) is property else item
        if type(function) is not FunctionType or not _is_plain_class(kind):
            return False
        self.closed.note_found(kind, name)
        self.closed.require_function(function, found, False)
        return True

    def _of_module(self, node: ast.AST, module: nn.Module, name: str) -> tuple[Any, bool]:
        """An attribute of a module; True where nothing more need be known of it."""
        for held in _spaces(module):
            if name in held:
                self._require_kept(node, held[name])
                return held[name], False
        of_dicts = _OF_DICTS if isinstance(module, nn.ModuleDict | nn.ParameterDict) else ()
        if (name in _OF_MODULES or name in of_dicts) and name not in methods_of(module):
            if not name.endswith("parameters"):
                self.closed.require_module(module)
            return None, True
        self.closed.note_found(type(module), name)
        for kind in type(module).__mro__:
            if name not in vars(kind):
                continue
            item = vars(kind)[name]
            if type(item) is property and type(item.fget) is FunctionType:
                self.closed.require_function(item.fget, module)
                return None, True
            if type(item) is staticmethod:
                return item.__func__, False
            if type(item) is FunctionType and not _is_torchs(kind.__module__):
                self.closed.require_function(item, module)
                return None, True
            if item is nn.RNNBase.flatten_parameters:  # which weights stand in one piece is nothing that code sees
                return None, True
            if isinstance(item, _PLAIN):
                return item, False
            break
        else:
            if not hasattr(module, name):  # it is asked for, or in a branch that is not taken
                self._require_kept(node, None)
                for namespace in _spaces(module):
                    self.closed.note(standing(namespace, name))
                return None, True
        self.refuse(node, f"{ast.unparse(node)}: {name!r} is not known to stay as it is")
        return None, True

    def _require_plain(self, node: ast.AST, text: str, found: Any) -> None:
        """Raise _Open unless an object stays, and only computes when it is called."""
        found = as_python(found)
        if isinstance(found, nn.Module):
            self.closed.require_module(found)
        elif isinstance(found, (torch.Tensor, *_PLAIN)):
            return
        elif isinstance(found, tuple):
            for item in found:
                self._require_plain(node, text, item)
        elif type(found) in (dict, list) and _is_of_plain(found):
            if ITEMS + text.rpartition(".")[2] in self.closed.assigned:
                self.refuse(node, f"{text}: code that forward may reach changes what is in it")
            content = _Content(found)
            self.closed.note(LookUp(content, "", content.known))  # type: ignore[arg-type]  # `get` is all
            for item in content.known:
                if isinstance(item, nn.Module):
                    if not any(item is part for part in self.closed.model.modules()):
                        self.refuse(node, f"{text} holds a module that is none of the model's")
                    self.closed.require_module(item)
                elif _is_users_function(as_python(item)):
                    self.closed.require_function(as_python(item), None, False)
        elif isinstance(found, type):
            is_named_tuple = issubclass(found, tuple) and hasattr(found, "_fields")
            is_known = (
                found in _CLASSES
                or issubclass(found, np.generic)
                or found.__module__.startswith("torch.distributions.")
                or issubclass(found, Exception)
            )
            if is_known or is_named_tuple or _holds_nothing(found):
                return
            if self.closed.makes(found):
                self.closed.require_made(found)
            else:
                self._require_function_class(node, text, found)
        elif not only_computes(found):
            if not _is_users_function(found):
                self.refuse(node, f"{text}: {type(found).__name__!r} objects may change unseen")
            self.closed.require_function(found, None, self._is_rebound(node, found))

    def _is_rebound(self, node: ast.AST, function: FunctionType) -> bool:
        """Whether copies call a copy of a function here: it is called by its name, or as one of a file's."""
        base, names = _chain_of(node) if isinstance(node, ast.Attribute) else (node, ())
        if id(node) not in self._callees or not isinstance(base, ast.Name) or self._is_self(base):
            return False
        found: Any = self.around.get(base.id, self.function.__globals__.get(base.id))
        for name in names:
            found = vars(found).get(name) if isinstance(found, ModuleType) else None
        is_users = function.__module__.partition(".")[0] not in _STANDARD
        return as_python(found) is function and is_users and VERSIONS[0] <= sys.version_info < VERSIONS[1]

    def _require_function_class(self, node: ast.AST, text: str, kind: type) -> None:
        """Raise _Open unless a class of the user's is of modules that are functions: made of nothing, they hold plain
        values alone, and calls of them are closed."""
        is_users = issubclass(kind, nn.Module) and not _is_torchs(kind.__module__)
        made = _made_of_nothing(kind) if is_users else None
        if made is None:
            self.refuse(node, f"{text} makes objects of a class")
        else:
            self.closed.require_module(made)


@functools.cache
def _made_of_nothing(kind: type[nn.Module]) -> nn.Module | None:
    """A module of a class whose making only makes it, of ones for what it must be told (`Scaled(d)(q, k, v)`); None for
    one that holds more than plain values."""
    state, init = torch.get_rng_state(), inspect.signature(kind.__init__).parameters.values()
    told = [p for p in [*init][1:] if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    try:
        made = kind(*[1] * len(told))
    except Exception:  # whatever the user's code raises when it is told that
        return None
    if not torch.equal(state, torch.get_rng_state()):
        torch.set_rng_state(state)
        return None
    own = [value for name, value in vars(made).items() if name not in vars(nn.Module())]
    is_plain = all(isinstance(value, _PLAIN) for value in own)
    return made if not made._parameters and not made._buffers and not made._modules and is_plain else None


def _stays(found: Any) -> bool:
    """Whether a variable is what definition (1) lets a name be."""
    return isinstance(found, (nn.Module, *_PLAIN)) or only_computes(found) or _is_users_function(as_python(found))


def _is_fixed(found: Any) -> bool:
    """Whether it is what nobody can change: a plain value, a function of torch's, what stands for types, a tuple of
    them."""
    is_type = typing.get_origin(found) is not None
    is_plain = isinstance(found, _PLAIN) or only_computes(found) or is_type
    return is_plain or (type(found) is tuple and all(map(_is_fixed, found)))


def _is_of_plain(found: Any) -> bool:
    """Whether a dict or list holds what stays: plain values, modules, and functions."""
    return len(found) <= MOST_ITEMS and all(map(_stays, _items(found)))


def _is_function_class(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, torch.autograd.Function)


def _is_users_function(found: Any) -> bool:
    return type(found) is FunctionType and not _is_torchs(found.__module__ or "")


@functools.cache
def _holds_nothing(kind: type) -> bool:
    """True for torch's modules that are functions: `nn.Sigmoid()(x)` in forward makes no parameters."""
    if not issubclass(kind, nn.Module) or not _is_torchs(kind.__module__):
        return False
    for sizes in ((), (1,)):
        try:
            made = kind(*sizes)
            break
        except (TypeError, ValueError):  # it must be told sizes
            continue
    else:
        return False
    return not any((made._parameters, made._buffers, made._modules))


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def is_in_place(name: str) -> bool:
    """True for the name of a method or function of torch that changes a tensor."""
    return name.endswith("_") and not name.endswith("__")


_OF_NUMPY = frozenset("arange array asarray cumsum empty eye full linspace ones prod sum tril triu zeros".split())
"""Functions of NumPy, beside those of each element, that are told by what they are given."""


def only_computes(found: Any) -> bool:
    """True for functions of torch, of `math` and einops, and for those of NumPy that are of numbers or make arrays."""
    if isinstance(found, np.ufunc):
        return True
    module = getattr(found, "__module__", None) or ""
    if module.startswith("numpy"):
        return getattr(found, "__name__", "") in _OF_NUMPY and getattr(np, found.__name__, None) is found
    if _STATE.fullmatch(getattr(found, "__name__", "")):
        return getattr(found, "__name__", "") == "is_available" and _is_torchs(module)  # a machine stays what it is
    if type(found) is FunctionType:
        return _is_torchs(module) or module == "einops.einops"
    if found is functools.reduce:
        return True
    is_builtin = isinstance(found, BuiltinFunctionType) or type(found).__name__ == "_OpNamespace"
    return is_builtin and (_is_torchs(module) or module == "math" or module.startswith("_VariableFunctions")
                           or getattr(found, "__self__", None) in (math, torch._C._nn))  # fmt: skip


def _is_told(operator: ast.cmpop, right: ast.expr) -> bool:
    """False for a comparison of identities, but for that with None, True, False or Ellipsis: what stands for a number
    is no number's object."""
    is_same = isinstance(right, ast.Constant) and (right.value in (None, ...) or type(right.value) is bool)
    return is_same or not isinstance(operator, ast.Is | ast.IsNot)


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _chain_of(node: ast.Attribute) -> tuple[ast.expr, tuple[str, ...]]:
    """`a.b.c` as `a` and `("b", "c")`."""
    names: list[str] = []
    base: ast.expr = node
    while isinstance(base, ast.Attribute):
        names.append(base.attr)
        base = base.value
    return base, tuple(reversed(names))


def _required_definition(function: Any) -> ast.FunctionDef:
    """A function's syntax tree. Raises _Open where its source is not to be had, or is not that of its code."""
    definition = definition_of(function)
    if definition is None:
        raise _Open(Obstacle(_first_line(function), f"the source of {function.__name__} is not to be had"))
    if not all(ast.unparse(by) in _DECORATORS for by in definition.decorator_list):
        raise _Open(Obstacle(_first_line(function), f"{function.__name__} is decorated, or no function of its own"))
    if not _written(definition) <= set(names_in(function.__code__)):
        raise _Open(Obstacle(_first_line(function), f"the source of {function.__name__} is not what runs"))
    return definition


@functools.lru_cache(maxsize=4096)  # a definition is read for every model that has it, and never changed
def nodes_of(definition: ast.FunctionDef) -> list[ast.AST]:
    """All nodes of a definition that `definition_of` gives."""
    return [*ast.walk(definition)]


@functools.lru_cache(maxsize=4096)
def _written(definition: ast.FunctionDef) -> frozenset[str]:
    """The attributes that its code reads."""
    return frozenset(n.attr for part in definition.body for n in _run(part) if isinstance(n, ast.Attribute))


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """A statement's nodes but for annotations, which are in no function's code."""
    yield node
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _run(child)


def definition_of(function: Any) -> ast.FunctionDef | None:
    """A function's syntax tree, with the lines and columns of its file; None where the source is not to be had, or is
    that of another function."""
    known = function.__dict__.get("_edbc_definition")
    return _definition_of(function, function.__code__) if known is None else known


@functools.lru_cache(maxsize=4096)  # a model is looked at many times while it is compiled
def definition_in_place(function: FunctionType, code: CodeType) -> ast.FunctionDef | None:
    """The definition of a function that gives this code of it; None where there is none."""
    definition = definition_of(function)
    if definition is None or code.co_name == "<lambda>":
        return None
    same = compiled_like(function, definition)
    return definition if same is not None and is_same(same, code) else None


@functools.lru_cache(maxsize=4096)
def _definition_of(function: Any, code: CodeType) -> ast.FunctionDef | None:
    if code.co_name == "<lambda>":
        return _definition_of_lambda(function, code)
    try:
        source = inspect.getsource(function)
        is_indented = source[:1].isspace()
        tree = ast.parse("if 1:\n" + source if is_indented else source)
    except (OSError, SyntaxError, TypeError, ValueError):
        return None
    definition = tree.body[0].body[0] if isinstance(tree.body[0], ast.If) else tree.body[0]
    if not isinstance(definition, ast.FunctionDef) or definition.name != function.__code__.co_name:
        return None
    _mangle(definition, function.__qualname__.split(".")[:-1])
    return ast.increment_lineno(definition, function.__code__.co_firstlineno - 1 - is_indented)


def _mangle(definition: ast.FunctionDef, around: Sequence[str]) -> None:
    """Let names that are a class's own (`self.__size`) be what they are in its code."""
    kind = around[-1].lstrip("_") if around else ""
    for node in ast.walk(definition) if kind and not kind.startswith("<") else ():
        field = "attr" if isinstance(node, ast.Attribute) else "id"
        name = getattr(node, field, "")
        if name.startswith("__") and not name.endswith("__"):
            setattr(node, field, f"_{kind}{name}")


def _definition_of_lambda(function: Any, code: CodeType) -> ast.FunctionDef | None:
    """The one that begins in its line, as a function that returns what it gives; None where there are several."""
    lambdas = _lambdas_of("".join(linecache.getlines(code.co_filename, function.__globals__)))
    found = [node for node in lambdas if node.lineno == code.co_firstlineno]
    if len(found) != 1:
        return None
    value = ast.copy_location(ast.Return(found[0].body), found[0].body)
    return ast.copy_location(ast.FunctionDef("<lambda>", found[0].args, [value], []), found[0])


@functools.lru_cache(maxsize=64)
def _lambdas_of(text: str) -> list[ast.Lambda]:
    tree = _tree_of(text)
    return [] if tree is None else [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]


@functools.lru_cache(maxsize=64)
def _tree_of(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def names_in(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes in a function's code, and in code inside of it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_in(inner)


def names_of_cells(model: nn.Module) -> LookUps:
    """What marked cells read of global names, and the code that reads them: `forward`, and what this calls of the
    user's functions and of the cell's methods, those of base classes too. A cell is traced once; where an automatic one
    is given up, a marked one is a promise. Linear in the length of the code."""
    found = LookUps()
    for cell in filter(is_cell, model.modules()):
        methods = [methods_of(part) for part in cell.modules()]
        owners = {owner: vars(owner) for part in cell.modules() for owner in _classes_of(part)}
        _read([of_part["forward"] for of_part in methods if "forward" in of_part], [*owners.values()], found)
    return found


def _read(functions: list[FunctionType], owners: list[Mapping[str, Any]], found: LookUps) -> None:
    """Add what functions read; what they call of others, or of what classes hold by the name, is read too."""
    waiting, seen = functions, set(functions)
    while waiting:
        function = waiting.pop()
        found.add_code(function)
        called: list[Any] = []
        for load in _loads(function.__code__):
            if load.opname == "LOAD_GLOBAL" and load.argval in function.__globals__:
                value = function.__globals__[load.argval]
                found.add(LookUp(function.__globals__, load.argval, value))
                called.append(value)
            elif load.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                called += [owner[load.argval] for owner in owners if load.argval in owner]
        new = [
            f for f in called if type(f) is FunctionType and f not in seen and not is_library(f.__code__.co_filename)
        ]
        seen.update(new)
        waiting += new


def _loads(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _loads(inner)
