"""Copies of the user's functions in which a call of a torch function is a call of what records it.

A torch function finds out that an argument is a stand-in by way of its argument parser and `__torch_function__`: one
microsecond, as much as eager execution's whole operation. A Python function in its place needs a seventh of that. So
shadows run copies of the user's methods and of the functions that these call by name; see `code.rewrite` for how a
copy differs: at call sites only, so that names which are compared, kept or passed on are the user's.

What a copy calls instead:

(1) of a torch function that others may override: its *recording* function, which records where an argument is a
    stand-in and else calls torch's;
(2) of a function of the user's, or one around it (a decorator's): a copy of that;
(3) of `type`: what answers for a stand-in, and for a module of a shadow, as eager execution's would;
(4) of `torch.tensor` and its like, which no override reaches: what makes new values of stand-ins among the data;
(5) of `torch.zeros` and its like, and of `torch.tensor` of numbers: what describes it (`capture.standins.made`);
(6) of `torch.autograd.Variable`, which takes torch's own tensors alone: of a stand-in what it makes of a tensor; and of
    `nn.Parameter`: a tensor that requires a gradient, as the model knows no other parameter;
(7) of `int` and `operator.index`: what does not wait for a recorded integer (`standins.unread`);
(8) of `len`, `torch.arange`, `pack_padded_sequence`, `math.sqrt` and `math.log`, where sizes are symbols: what leaves
    the size of rows one (`ragged.symbols`);
(9) of `torch.Tensor(n, m)`, `torch.LongTensor(h.size())` and their like, which no override reaches, and of
    `torch.empty`: zeros, as what memory holds by chance is no graph that comes twice;
(10) of `torch.sparse.FloatTensor`, `torch.sparse_coo_tensor` and their like: of descriptions their tensors;
(11) of `super`: one whose methods are copies;
(12) of `torch.LongTensor(numbers)`: what (4) makes;
(13) of `F.dropout` and its like, of a tensor that is not recorded: what records it, as nodes draw when they run;
(14) of what `torch.jit.script` made of a function: a copy of that function;
(15) of `torch.rand` and `torch.randn`, in training mode: a draw of the instance's;
(16) of `sum`: one node of many values, which their additions would be fused to;
(17) where a branch begins that prints, warns or logs: what gives up keeping what is recorded.

Code that is reached in another way (methods of other objects, functions kept in variables, libraries) runs as it is,
and torch finds the stand-ins. Values are the same on both ways; a test takes both.
"""

from __future__ import annotations

import builtins
import math
import operator
import os
import sys
import threading
from array import array
from collections.abc import Callable
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode

from edbc.capture.code.closed import definition_in_place
from edbc.capture.code.recompiled import SAYS, compiled_like, copied, function_of, note_speaking
from edbc.capture.code.rewrite import LookUp, LookUps, Scope, as_python, enclosing_of, rewritten
from edbc.capture.ragged.masks import of_sizes
from edbc.capture.ragged.symbols import Amount, Index, Listed, Mask, Range, Shape, Size, amount
from edbc.capture.ragged.value import Ragged
from edbc.capture.ragged.whole.worked import Worked
from edbc.capture.record.draws import ANYWHERE, drawn_anywhere, made_of_sizes
from edbc.capture.record.keys import quick_key
from edbc.capture.record.lookup import ROWS
from edbc.capture.record.special import CONSTRUCTORS, constructed
from edbc.capture.record.table import Entry
from edbc.capture.semantics import rules
from edbc.capture.semantics.gradmode import watcher_of_thread
from edbc.capture.semantics.stateless import user_class
from edbc.capture.semantics.torchstate import num_modes
from edbc.capture.standins.lazy import REDUCTIONS, Stack
from edbc.capture.standins.made import (
    LIKE,
    MAKERS,
    NEW,
    PLAIN_NUMBERS,
    Made,
    described,
    described_numbers,
    sized,
    with_tensors,
)
from edbc.capture.standins.nests import mapped
from edbc.capture.standins.source import is_library
from edbc.capture.standins.standin import Lazy, Shared, Symbol, Value, record_function, refuse, short_key
from edbc.capture.standins.told import Array, tensor_of, tensor_of_array, told
from edbc.capture.standins.unread import Later, Site, Unread, in_a_tensor, unread

LOOK_UP, LOOK_UP_ONE = "look up", "look up one"
"""The variables that copies call in place of a look-up by numbers, and by `[number]`; no names that a user's function
could have."""
_LIBRARIES = frozenset((*sys.stdlib_module_names, "torch", "numpy", "edbc")) - {"__main__"}
_OF_CLASSES = frozenset(
    "__new__ __init__ __init_subclass__ __getattr__ __getattribute__ __setattr__ __delattr__ __del__".split()
)
"""Methods that make and keep an object rather than compute."""
SPARSE = (torch.sparse_coo_tensor, torch.sparse_csr_tensor, torch.sparse_csc_tensor, torch.sparse_compressed_tensor)
_AROUND = (torch.nn.functional.sigmoid, torch.nn.functional.tanh, torch.nn.functional.hardsigmoid,
           torch.nn.functional.hardswish)  # fmt: skip


class Copies:
    """The copies of one model's functions. `look_ups` are what they depend on. `outlined` gives a method of a class, or
    a function, as it is to be copied, and `regions` a class's methods that these call then, by name (`code.regions`).
    Some sizes may be `symbolic`."""

    def __init__(self, outlined: Callable[[type | None, FunctionType], FunctionType] = lambda _, function: function,
                 regions: Callable[[type], dict[str, Any]] = lambda _: {}, symbolic: bool = False):  # fmt: skip
        self._outlined, self._regions, self._symbolic = outlined, regions, symbolic
        self._functions: dict[int, tuple[Any, Any]] = {}
        self._methods: dict[type, dict[str, Any]] = {}
        self.look_ups = LookUps()
        self._lock = threading.RLock()
        """Threads make shadows of one model at once."""

    def methods(self, kind: type) -> dict[str, Any]:
        """Copies of the methods that a class of the user's has, by name, without those that are as they were."""
        with self._lock:
            known = self._methods.get(kind)
            return self._new_methods(kind) if known is None else known

    def _new_methods(self, kind: type) -> dict[str, Any]:
        known = self._methods[kind] = {}
        for owner in kind.__mro__:
            for name, attribute in list(vars(owner).items()) if is_users(owner.__module__) else ():
                if name in _OF_CLASSES or any(name in vars(c) for c in kind.__mro__[: kind.__mro__.index(owner)]):
                    continue
                is_method = type(attribute) is FunctionType
                copy = self._of_attribute(self._outlined(kind, attribute) if is_method else attribute)
                if copy is not attribute:
                    known[name] = copy
                    self.look_ups.add(LookUp(vars(owner), name, attribute))
                    if is_method:
                        self.look_ups.add_code(attribute)
        known |= {name: self.copy(region) for name, region in self._regions(kind).items()}
        return known

    def _of_attribute(self, attribute: Any) -> Any:
        if isinstance(attribute, staticmethod | classmethod):
            inner = self.copy(attribute.__func__)
            return attribute if inner is attribute.__func__ else type(attribute)(inner)
        if type(attribute) is property and attribute.fget is not None:
            inner = self.copy(attribute.fget)
            return attribute if inner is attribute.fget else property(inner, attribute.fset, attribute.fdel)
        return self.copy(attribute)

    def copy(self, function: Any) -> Any:
        """A copy of a function of the user's, or of one around it; anything else as it is."""
        known = self._functions.get(id(function))
        if known is not None:
            return known[1]
        is_own = type(function) is FunctionType and is_users(function.__globals__.get("__name__"))
        made = self._outlined(None, function) if is_own else function
        made = saying(made) if is_own and made is function else made
        enclosing = enclosing_of(made)
        if not is_own and not any(map(self._is_around_users, enclosing.values())):
            return function
        copy = FunctionType(made.__code__, function.__globals__, function.__name__, function.__defaults__,
                            made.__closure__)  # fmt: skip
        copy.__kwdefaults__, copy.__qualname__, copy.__module__ = (
            function.__kwdefaults__, function.__qualname__, function.__module__)  # fmt: skip
        copy.__dict__ = function.__dict__  # the same: what a function keeps in its attributes
        self._functions[id(function)] = function, copy  # before its code is read: functions call themselves
        scope = Scope(function.__globals__, vars(builtins), enclosing) if is_own else Scope({}, {}, enclosing)
        copy.__code__, look_ups = rewritten(made.__code__, scope, self._instead)
        for look_up in look_ups:
            self.look_ups.add(look_up)
        if look_ups or made is not function:
            self.look_ups.add_code(function)
        else:
            self._functions[id(function)] = function, function
        return self._functions[id(function)][1]

    def _super(self, *given: Any) -> Any:
        """(11): the arguments of a call without any stand in the frame of the method that calls."""
        frame = sys._getframe(1)
        return _Super(self, given or (frame.f_locals["__class__"], frame.f_locals[frame.f_code.co_varnames[0]]))

    def of_method(self, method: Any) -> Any:
        """A bound method of a copy; anything else as it is."""
        function = getattr(method, "__func__", None)
        if type(method) is not MethodType or type(function) is not FunctionType or function.__name__ in _OF_CLASSES:
            return method
        with self._lock:
            return MethodType(self.copy(function), method.__self__)

    def _is_around_users(self, item: Any) -> bool:
        return type(item) is FunctionType and self.copy(item) is not item

    def _instead(self, found: Any) -> Any:
        python = as_python(found)
        if python is not found:
            return self.copy(python)
        known = _INSTEAD.get(id(found)) or (_OF_SYMBOLS.get(id(found)) if self._symbolic else None)
        if known is not None:
            return known
        if isinstance(found, type(torch.FloatTensor)) and (found.is_sparse or not found.is_cuda):
            return _of_sparse(found) if found.is_sparse else _of_sizes(found, found.dtype)
        if any(found is maker for maker in SPARSE):
            return _of_sparse(found)
        if found is super:
            return self._super
        if type(found) is FunctionType or type(found) is BuiltinFunctionType:
            if found.__name__ in rules.DROPOUTS and id(found) in overridable():
                return _of_dropout(found)
            if id(found) in overridable():
                return _of_builtin(found) if type(found) is BuiltinFunctionType else _of_function(found)
            copy = self.copy(found)
            return None if copy is found else copy
        return None


class _Super:
    """(11)."""

    __slots__ = ("_copies", "_found")

    def __init__(self, copies: Copies, given: tuple[Any, ...]):
        self._copies, self._found = copies, super(*given)

    def __getattr__(self, name: str) -> Any:
        return self._copies.of_method(getattr(self._found, name))


def is_users(module: Any) -> bool:
    """Whether a module of that name is the user's."""
    return isinstance(module, str) and module.partition(".")[0] not in _LIBRARIES


@cache
def overridable() -> dict[int, Any]:
    """The torch functions that may be overridden, or are Python around one that may, by identity."""
    try:
        found = [f for functions in torch.overrides.get_overridable_functions().values() for f in functions]
    except AssertionError:  # torch's, of one that has another name too: nn.init.constant = nn.init.constant_
        found = [*torch.overrides.get_testing_overrides().keys() - torch.overrides.get_ignored_functions()]
    return {id(f): f for f in (*found, *_AROUND)}


def type_of(item: Any, *rest: Any) -> Any:
    """`type` as eager execution sees it: of a stand-in a tensor's, of a module of a shadow the user's class."""
    kind = type(item, *rest)
    if issubclass(kind, Symbol):
        return nn.Parameter if kind is Shared and item._is_param else torch.Tensor
    if issubclass(kind, Later | Listed):
        return item.kind
    return user_class(item) if isinstance(item, nn.Module) else kind


def _recorder_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The recorder of the first stand-in among arguments and the items of their lists; None where there is none, or
    only deeper."""
    for item in (*args, *kwargs.values()) if kwargs else args:
        kind = type(item)
        if issubclass(kind, Symbol) and kind is not Made:
            return item.rec
        if kind is list or kind is tuple:
            for inner in item:
                if issubclass(type(inner), Symbol) and type(inner) is not Made:
                    return inner.rec
    return None


_REDUCING = frozenset(getattr(torch, name) for name in REDUCTIONS)


@cache
def _of_builtin(func: Callable[..., Any]) -> Callable[..., Any]:
    """(1), for a function of torch's that is C++: records it with the arguments as they are, as its parser would."""

    of_stack = getattr(Stack, func.__name__, None) if func in _REDUCING else None

    def record(*args: Any, **kwargs: Any) -> Any:
        kind = type(args[0]) if args else None
        if kind is Value or (len(args) == 2 and type(args[1]) is Value):
            return record_function(func, args, kwargs)
        if (kind is list or kind is tuple) and args[0] and type(args[0][0]) is Value:
            return record_function(func, args, kwargs)
        if kind is Stack and of_stack is not None:
            return of_stack(*args, **kwargs)
        rec = args[0].rec if kind is Ragged else _recorder_among(args, kwargs)
        return func(*args, **kwargs) if rec is None else rec.function(func, args, kwargs)

    return record


@cache
def _of_maker(func: Callable[..., Any]) -> Callable[..., Any]:
    """(5): a description, where it may be one."""
    maker, call = LIKE.get(func), _of_builtin(func)

    def make(*args: Any, **kwargs: Any) -> Any:
        given = (args, kwargs) if maker is None else sized(args, kwargs)
        made = None if given is None else described(maker or func, *given)
        if made is not None:
            return made
        real = call(*args, **kwargs)
        return real.zero_() if func is torch.empty else real

    return make


class Everywhere(TorchFunctionMode):
    """Makers that code calls which is no copy (a solver's, a stack's), and `x.new_zeros(n)`, are (5), too; in training
    mode what draws is (15), torch's distributions among it."""

    def __init__(self, rec: Any):
        super().__init__()
        self.rec = rec

    def __enter__(self) -> Any:
        self.rec.modes += 1
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.rec.modes -= 1
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ANYWHERE:
            drawn = drawn_anywhere(watcher_of_thread(), func, args, kwargs)
            return func(*args, **kwargs) if drawn is NotImplemented else drawn
        if func not in _MADE_ANYWHERE or self._is_left(sys._getframe(1).f_code.co_filename):
            return func(*args, **kwargs)
        if func in NEW:
            func, args, kwargs = NEW[func], args[1:], {**kwargs, "dtype": kwargs.get("dtype") or args[0].dtype}
        return _of_maker(func)(*args, **kwargs)

    def _is_left(self, filename: str) -> bool:
        """Whether what a file makes is a real tensor: it is a library's, which fills it by chance maybe."""
        return is_library(filename) and not (self.rec.tracer.may_draw and filename.startswith(_FILLING))


_FILLING = (os.path.dirname(torch.distributions.__file__) + os.sep, sys.modules[Symbol.__module__].__file__ or "")
"""Code of torch, and for stand-ins (`x.new(n)`), that makes tensors which are filled by chance."""
_MADE_ANYWHERE = frozenset((*MAKERS, *LIKE, *NEW))


def _variable(data: Any = None, requires_grad: bool = False, *rest: Any, **kwargs: Any) -> Any:
    """(6): its memory, apart from what it was computed of. What forward has just made is itself, so that changes of
    either show in both."""
    rec = watcher_of_thread()
    is_fresh = type(data) is Made or (rec is not None and rec.books is not None and rec.books.is_fresh(data))
    if not is_fresh and not issubclass(type(data), Symbol):
        return torch.autograd.Variable(data, requires_grad, *rest, **kwargs)
    made = data if is_fresh else data.detach()
    return made.requires_grad_() if requires_grad else made


def _parameter(data: Any = None, requires_grad: bool = True) -> Any:
    """(6), of a parameter."""
    if data is None or watcher_of_thread() is None:
        return nn.Parameter(data, requires_grad)
    return _variable(data.detach(), requires_grad)


def _of_integer(func: Callable[..., Any]) -> Callable[..., Any]:
    """(7): an `int` of one is that one."""

    def integer(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            item = args[0]
            if type(item) is Unread:
                return item
            if type(item) is Value:
                found = unread(item.rec, item)
                if found is not None:
                    return item.number_at(found) if type(found) is Site else found
        return func(*args, **kwargs)

    return integer


def _sum(*args: Any, **kwargs: Any) -> Any:
    """(16). In cells and vertex functions additions stand between the items, as plans have them."""
    watcher = watcher_of_thread()
    if len(args) != 1 or kwargs or watcher is None or watcher.in_cell or watcher.in_fragment:
        return sum(*args, **kwargs)
    items = list(args[0])
    found = items[0].rec.sum_of(items) if len(items) > 2 and type(items[0]) is Value else None
    return sum(items) if found is None else found


def says() -> None:
    """(17): what would be kept of this call says nothing when it comes again."""
    watcher = watcher_of_thread()
    if watcher is not None:
        watcher.says()


def saying(function: FunctionType) -> FunctionType:
    """A function with calls of (17); as it is where it has no such branch, or its source is not what runs."""
    definition = definition_in_place(function, function.__code__)
    if definition is None or not note_speaking(definition := copied(definition)):
        return function
    code = compiled_like(function, definition, (SAYS,))
    assert code is not None
    return function_of(function, code, {SAYS: says})


def _packed(sequence: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> Any:
    """`pack_padded_sequence`, whose code makes a tensor of lengths in a list, and sorts lengths: one is sorted."""
    lengths = _of_size(lengths)
    is_one = type(lengths) is Mask and len(lengths) == 1
    packed = pack_padded_sequence(sequence, lengths, batch_first, enforce_sorted or is_one)
    first = torch.zeros(1, dtype=torch.int64)
    return packed if enforce_sorted or not is_one else PackedSequence(*packed[:2], first, first)


def _of_size(data: Any) -> Any:
    """A list of one size as the tensor of it; anything else as it is."""
    size = data[0] if type(data) is list and len(data) == 1 else None
    return Mask(size.rec, (1,), (0, size, size), torch.int64) if type(size) is Size and size.rec.symbolic else data


def _unpacked(sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: Any = None) -> Any:
    """`pad_packed_sequence`; to be as long as it is adds nothing to a sequence."""
    if type(total_length) is Size and sequence.batch_sizes.shape[0] == total_length:
        total_length = None
    return pad_packed_sequence(sequence, batch_first, padding_value, total_length)


def _length(item: Any) -> Any:
    """(8)."""
    kind = type(item)
    if kind is Listed:
        item, kind = item.as_index, Index
    return item.shape[0] if (kind is Ragged or issubclass(kind, Index | Worked)) and item.rec.symbolic else len(item)


def _range(*args: Any, dtype: torch.dtype | None = None, device: Any = None, **rest: Any) -> Any:
    """(8), from 0 on."""
    count = args[-1] if args else None
    is_plain = args[:-1] in ((), (0,)) and dtype in (None, torch.int64) and not rest
    if (
        type(count) is Size
        and count.rec.symbolic
        and is_plain
        and (device is None or torch.device(device).type == "cpu")
    ):
        return Range(count)
    if any(type(arg) in (Size, Amount) for arg in args) and (device is None or torch.device(device).type == "cpu"):
        return _made_of_sizes(torch.arange, *args, dtype=dtype, **rest)
    return torch.arange(*args, dtype=dtype, device=device, **rest)


def _made_of_sizes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function of numbers gives, worked out where some are sizes."""
    of = next((x.rec for x in (*args, *kwargs.values()) if type(x) in (Size, Amount) and x.rec.symbolic), None)
    found = None if of is None else of_sizes(of, function, args, kwargs)
    return function(*args, **kwargs) if found is None else found


@cache
def _of_sizes(kind: Any, dtype: torch.dtype | None) -> Callable[..., Any]:
    """(9), and (12)."""
    zeros, constructor = _of_maker(torch.zeros), construct

    def make(*args: Any, **kwargs: Any) -> Any:
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size | Shape) else args
        if args and not kwargs and all(isinstance(size, int | np.integer) for size in sizes):
            return zeros(tuple(sizes), dtype=dtype)
        is_of_numbers = (
            len(args) == 1 and not kwargs and (type(args[0]) in (list, Listed) or isinstance(args[0], Symbol))
        )
        return constructor(args[0], dtype=dtype) if dtype is torch.int64 and is_of_numbers else kind(*args, **kwargs)

    return make


@cache
def _of_dropout(func: Callable[..., Any]) -> Callable[..., Any]:
    """(13)."""
    name, record = func.__name__, _of_function(func) if type(func) is FunctionType else _of_builtin(func)

    def drop(*args: Any, **kwargs: Any) -> Any:
        is_off = bool(args) and rules.is_off(name, args, kwargs)
        if is_off and isinstance(args[0], Symbol):
            return args[0]
        watcher = watcher_of_thread()
        if watcher is not None and args and not is_off:
            first = with_tensors(args[:1])[0]
            args = (watcher.as_value(first) if type(first) is torch.Tensor else first), *args[1:]
        return record(*args, **kwargs)

    return drop


def _of_drawing(func: Callable[..., Any]) -> Callable[..., Any]:
    """(15)."""
    name = func.__name__

    def draw(*size: Any, **options: Any) -> Any:
        watcher = watcher_of_thread()
        if watcher is None or not watcher.tracer.may_draw:
            return func(*size, **options)
        return made_of_sizes(watcher, name, *size, **options)

    return draw


@cache
def _of_sparse(kind: Any) -> Callable[..., Any]:
    """(10). Of what is recorded there is none."""

    def make(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = with_tensors(args), with_tensors(kwargs)
        if _recorder_in([*args, *kwargs.values()]) is not None:
            refuse(f"'{kind.__name__}' of recorded values returns a tensor that is not strided",
                   "compute with strided tensors: of rows, columns and values it multiplies h as "
                   "torch.zeros(n, h.shape[1]).index_add(0, rows, values[:, None] * h[columns])")  # fmt: skip
        return kind(*args, **kwargs)

    return make


def _of_constructor(func: Callable[..., Any]) -> Callable[..., Any]:
    """(4): a copy of what stands for tensors, as numbers that gradients do not reach; a description (5) of numbers."""

    def make(data: Any, **kwargs: Any) -> Any:
        watcher = watcher_of_thread()
        if type(data) is int and not kwargs and watcher is not None and num_modes() <= watcher.modes:
            try:
                return torch.scalar_tensor(data, dtype=torch.int64)  # half of the time
            except RuntimeError:  # as the function itself is to say
                pass
        if type(data) is list and watcher is not None and watcher.shows is None:
            made = _of_integers(watcher, data, **kwargs)
            if made is not None:
                return made
        if type(data) is Array:
            data = data.tensor
        if type(data) is list and len(data) == 1 and type(data[0]) is Listed:
            data = data[0].as_index.unsqueeze(0)
        if type(data) is Listed:
            data = data.as_index
        if kwargs.get("dtype") in (None, torch.int64):
            data = _of_size(data)
        if watcher is not None and watcher.shows is not None and (first := told(data)) is not None:
            return constructed(watcher, func, tensor_of(first, data, kwargs.get("dtype")), **kwargs)
        if watcher is not None and watcher.unread:
            data = mapped(in_a_tensor, data)
        if type(data) is list or type(data) is tuple or type(data) is float:
            made = described_numbers(data, **kwargs)
            if made is not None:
                return made
        rec = _recorder_in(data)
        return func(data, **kwargs) if rec is None else constructed(rec, func, data, **kwargs)

    return make


def _of_integers(rec: Any, data: list[Any], dtype: torch.dtype | None = None, **rest: Any) -> torch.Tensor | None:
    """The tensor of plain integers, in half of the time that `torch.tensor` takes; None of anything else."""
    if rest or (dtype is not None and dtype is not torch.int64) or {*map(type, data)} != {int}:
        return None
    if num_modes() > rec.modes:
        return None
    try:
        numbers = array("q", data)
    except OverflowError:
        return None
    return torch.full((1,), data[0]) if len(data) == 1 else torch.frombuffer(numbers, dtype=torch.int64).clone()


construct = _of_constructor(torch.tensor)
"""What recording has in its place."""


def look_up(words: Any, numbers: Any, make: Any = None) -> Any:
    """`words(torch.tensor(numbers))`, or what else makes a tensor: `torch.LongTensor`, to which a number is a size."""
    if make is not None and type(numbers) is not list:
        return words(make(numbers))
    if type(numbers) is Array:
        numbers = numbers.tensor
    elif type(numbers) is Listed:
        numbers = numbers.as_index
    rows = words.__dict__.get(ROWS) if isinstance(words, nn.Module) else None
    found = None if rows is None else rows(numbers)
    if found is not None:
        return found
    if make is not None:
        return words(make(numbers))
    if isinstance(numbers, Lazy):
        return words(numbers)
    is_empty = type(numbers) is list and not numbers
    return words(torch.tensor(numbers, dtype=torch.int64) if is_empty else construct(numbers))


def look_up_one(words: Any, number: Any, make: Any = None) -> Any:
    """`words(torch.tensor([number]))`, which is a row seen as `(1, ...)`, or of what else makes the tensor."""
    rows = words.__dict__.get(ROWS) if isinstance(words, nn.Module) else None
    if make is None and type(number) is Listed:
        number = number.as_index
    if make is None and isinstance(number, Lazy):
        return words(number.unsqueeze(0))
    found = None if rows is None or not isinstance(number, int) else rows(number, True)
    if found is not None:
        return found
    return words(construct([number]) if make is None else make(number))


def _recorder_in(data: Any) -> Any:
    """The recorder of the first stand-in in lists of any depth; linear in their items."""
    if isinstance(data, list | tuple):
        if PLAIN_NUMBERS.issuperset(map(type, data)):
            return None
        return next((rec for rec in map(_recorder_in, data) if rec is not None), None)
    return data.rec if issubclass(type(data), Symbol) else None


@cache
def _of_function(func: Callable[..., Any]) -> Callable[..., Any]:
    """(1), for a function of torch's that is Python: it runs, and where it comes to one node of its operands in their
    order, that node is what its next call of this kind records."""

    def record(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is Value:
            rec = args[0].rec
            short = short_key(record, args, kwargs)
            known = None if short is None else rec.plain.get(short)
            if known is not None:
                return rec.again(known, (args[0].ref,) if len(short) != 3 else (args[0].ref, args[1].ref))
        else:
            rec = _recorder_among(args, kwargs)
        runs = rec is None or rec.books is not None or not rec.flows or rec.shows is not None
        if runs or rec.ragged:  # a key takes ragged values whole
            return func(*args, **kwargs)
        operands: list[Any] = []
        parts: list[Any] = [record, len(args)]
        if not quick_key(args, parts, operands, rec, False) or (
            kwargs and not quick_key(kwargs.items(), parts, operands, rec, False)
        ):
            return func(*args, **kwargs)
        key = tuple(parts)
        known = rec.functions.get(key)
        if known is not None:
            return rec.emit(known, operands)
        before = len(rec.entries), len(rec.refs)
        result = func(*args, **kwargs)
        entry = _only_node(rec, before, operands, result)
        if entry is not None:
            rec.functions[key] = entry
            rec.remember(entry, record, args, kwargs)
        return result

    return record


def _only_node(rec: Any, before: tuple[int, int], operands: list[Any], result: Any) -> Entry | None:
    """The entry of the one node that was made of the operands, and whose output was returned. Stacks are none yet."""
    if any(type(operand) is not int for operand in operands):
        return None
    if len(rec.entries) != before[0] + 1 or rec.refs[before[1] :] != operands or type(result) is not Value:
        return None
    entry: Entry = rec.table.entries[rec.entries[-1]]
    is_result = len(entry.output_slots) == 1 and result.ref == rec.next_value - 1
    return entry if is_result and not entry.operation.draws and result.slot is entry.output_slots[0] else None


_INSTEAD: dict[int, Any] = {id(found): called for found, called in (
    (type, type_of), (sum, _sum), (torch.from_numpy, tensor_of_array),
    (torch.autograd.Variable, _variable), (nn.Parameter, _parameter),
    (torch.Tensor, _of_sizes(torch.Tensor, None)), *((f, _of_integer(f)) for f in (int, operator.index)),
    *((f, _of_maker(f)) for f in (*MAKERS, *LIKE)), *((f, _of_drawing(f)) for f in (torch.rand, torch.randn)),
    *((f, _of_constructor(f)) for f in CONSTRUCTORS),
)}  # fmt: skip
_OF_SYMBOLS = {**{id(function): partial(_made_of_sizes, function)
                  for function in (torch.triu_indices, torch.tril_indices, torch.linspace)},
               id(len): _length, id(torch.arange): _range, id(pack_padded_sequence): _packed,
               id(pad_packed_sequence): _unpacked, id(math.sqrt): amount(math.sqrt),
               id(math.log): amount(math.log)}  # fmt: skip
"""What is called instead, by identity; the second where some sizes are symbols."""
