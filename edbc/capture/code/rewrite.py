"""Other callables at a function's call sites: the same code but for what some of its calls call.

Definitions.

(1) A *call site* is where an instruction loads what a call will call: a global name, a global module and attributes of
    it (`torch.nn.functional.relu`), or a variable of an enclosing function. The compiler tells such loads from others:
    they push the NULL that a call wants below its callable. A name that is loaded to be compared or passed on
    (`activation is torch.tanh`) is no call site. `super` of `super().method` is one without a NULL: from Python 3.12 on
    LOAD_SUPER_ATTR calls what is loaded below its two arguments.
(2) A *rewritten* code loads a constant at some call sites. Every other instruction stays, at its offset: lines,
    exceptions and whoever asks by offset (`standins.source`, `standins.asker`) see the code that the user wrote. A load
    and its inline caches take at least as many words as what replaces it; the rest is filled with NOPs.
(3) A *look-up* is what the constant was found by: a namespace, a name in it and the object found. As long as all
    look-ups of a code would find the same objects, it computes what the user's code computes.

Time is linear in the length of the code.
"""

from __future__ import annotations

import dis
import functools
import itertools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

VERSIONS = ((3, 11), (3, 14))
"""From the first of these versions of Python to before the last the instructions are known; elsewhere code stays."""
_NULL_COMES_FIRST = sys.version_info < (3, 13)
_LOADS_METHOD = "LOAD_METHOD" if sys.version_info < (3, 12) else "LOAD_ATTR"
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_EXTENDED, _CONST, _NULL, _NOP = (dis.opmap[name] for name in ("EXTENDED_ARG", "LOAD_CONST", "PUSH_NULL", "NOP"))
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_MISSING = object()


class LookUp(NamedTuple):
    """Definition (3)."""

    namespace: Mapping[str, Any]
    name: str
    found: Any

    def still_holds(self) -> bool:
        """True when the look-up would find the same object now."""
        return self.namespace.get(self.name, _MISSING) is self.found


class _CodeOf:
    """A function as a namespace: tools that reload files give functions other code in their place."""

    __slots__ = ("get",)

    def __init__(self, function: FunctionType):
        self.get = functools.partial(getattr, function)


class LookUps:
    """Look-ups that shall all hold. O(their number) per question, without Python for each."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], LookUp] = {}
        self._asked: tuple[list[Any], list[str], list[Any]] = [], [], []

    def add(self, look_up: LookUp) -> None:
        """Add one; of a namespace and name the first counts."""
        self._known.setdefault((id(look_up.namespace), look_up.name), look_up)

    def update(self, other: LookUps) -> None:
        """Add those of another."""
        self._known = other._known | self._known

    def add_code(self, function: FunctionType) -> None:
        """Add that a function's code stays."""
        namespace: Any = _CodeOf(function)  # `get` is all that is asked of one
        self._known.setdefault((id(function), "__code__"), LookUp(namespace, "__code__", function.__code__))

    def still_hold(self) -> bool:
        """True when every name still means what it meant."""
        if len(self._asked[1]) != len(self._known):
            known = list(self._known.values())
            self._asked = [x.namespace.get for x in known], [x.name for x in known], [x.found for x in known]
        getters, names, found = self._asked
        return all(map(operator.is_, map(operator.call, getters, names, itertools.repeat(_MISSING)), found))

    def first_broken(self) -> str | None:
        """What finds something else by now, for people; None where all hold."""
        broken = next((x for x in list(self._known.values()) if not x.still_holds()), None)
        if broken is None:
            return None
        if isinstance(broken.namespace, _CodeOf):
            return f"the code of {broken.namespace.get('__qualname__')}"
        return broken.name or "what a list or dict holds"


def enclosing_of(function: Any) -> Mapping[str, Any]:
    """What the variables of enclosing functions are, of those that are something."""
    if type(function) is not FunctionType or not function.__closure__:
        return {}
    cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
    return _Cells({name: cell for name, cell in cells if is_filled(cell)})


def as_python(found: Any) -> Any:
    """The function that `torch.jit.script` was given, of what it made; anything else as it is."""
    return getattr(found, "_torchdynamo_inline", found) if isinstance(found, torch.jit.ScriptFunction) else found


def is_filled(cell: Any) -> bool:
    """Whether the variable that a cell is of has a value."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


class _Cells(Mapping[str, Any]):
    """Variables of enclosing functions, by name, as they are now."""

    def __init__(self, cells: dict[str, Any]):
        self._cells = cells

    def __getitem__(self, name: str) -> Any:
        try:
            return self._cells[name].cell_contents
        except ValueError:  # emptied since
            raise KeyError(name) from None

    def __iter__(self) -> Any:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)


class Scope(NamedTuple):
    """Where names of a function are looked up: its module's globals, the built-in names, and the variables of enclosing
    functions that are known."""

    globals: Mapping[str, Any]
    builtins: Mapping[str, Any]
    enclosing: Mapping[str, Any]


class _Site(NamedTuple):
    """A call site: offsets from `start` to `end`, whether its instructions push the NULL, and the look-ups."""

    start: int
    end: int
    pushes_null: bool
    look_ups: tuple[LookUp, ...]


def rewritten(code: CodeType, scope: Scope, instead: Callable[[Any], Any]) -> tuple[CodeType, list[LookUp]]:
    """`code` with `instead(f)` called where `f` was and `instead` gives something, and the look-ups that led there; the
    same object where nothing is replaced. Functions made by the code are rewritten too."""
    if not VERSIONS[0] <= sys.version_info < VERSIONS[1]:
        return code, []
    scope, consts, words = _inside(code, scope), list(code.co_consts), bytearray(code.co_code)
    look_ups: list[LookUp] = []
    for site in _sites(code, scope):
        found = site.look_ups[-1].found
        callee = instead(found)
        if callee is not None and _put(words, site, _place_of(consts, callee)):
            look_ups += site.look_ups
    for index, inner in enumerate(code.co_consts):
        if isinstance(inner, CodeType):
            consts[index], more = rewritten(inner, scope, instead)
            look_ups += more
    if not look_ups:
        return code, []
    return code.replace(co_code=bytes(words), co_consts=tuple(consts)), look_ups


def _inside(code: CodeType, scope: Scope) -> Scope:
    """The scope of code and of the functions that it makes: its own variables are not known before it runs, also where
    a comprehension's, part of the code from Python 3.12 on, has the name of an enclosing function's."""
    own = {*code.co_varnames, *code.co_cellvars}
    return scope._replace(enclosing={k: v for k, v in scope.enclosing.items() if k not in own})


def _place_of(consts: list[Any], value: Any) -> int:
    """The index of `value` among the constants, by identity."""
    place = next((i for i, known in enumerate(consts) if known is value), len(consts))
    if place == len(consts):
        consts.append(value)
    return place


def _put(words: bytearray, site: _Site, place: int) -> bool:
    """Load the constant at a call site; False where it does not fit."""
    load = [*([_EXTENDED, place >> 8] if place > 0xFF else []), _CONST, place & 0xFF]
    null = [_NULL, 0] if site.pushes_null else []
    new = [*null, *load] if _NULL_COMES_FIRST else [*load, *null]
    room = site.end - site.start - len(new)
    if room < 0 or place > 0xFFFF:
        return False
    words[site.start : site.end] = bytes(new + [_NOP, 0] * (room // 2))
    return True


def _sites(code: CodeType, scope: Scope) -> Iterator[_Site]:
    loads = list(dis.get_instructions(code))
    prefix = 0
    for index, load in enumerate(loads):
        if load.opcode == _EXTENDED:
            continue
        if load.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            site = _site(loads, prefix, index, scope)
            if site is not None:
                yield site
        prefix = index + 1


def _site(loads: list[dis.Instruction], prefix: int, first: int, scope: Scope) -> _Site | None:
    """The call site whose first instruction is at `first`, after EXTENDED_ARGs from `prefix` on; None for no such."""
    path = [loads[first]]
    while not _is_of_method(path[-1]) and loads[first + len(path)].opname in _ATTRIBUTES:
        path.append(loads[first + len(path)])
    after, has_null = first + len(path), _is_of_method(path[-1]) or _is_with_null(path[0])
    is_called = has_null or _null_beside(loads, prefix, after) or _is_of_super(loads, after)
    if not is_called or loads[after].opcode == _EXTENDED:
        return None
    look_ups = _look_ups([load.argval for load in path], path[0].opname == "LOAD_DEREF", scope)
    if look_ups is None or any(load.is_jump_target for load in path[1:]):
        return None
    return _Site(loads[prefix].offset, loads[after].offset, has_null, look_ups)


def _is_of_method(load: dis.Instruction) -> bool:
    """True for the last load of `a.b(...)`, which pushes the NULL where `b` is no method."""
    return load.opname == "LOAD_METHOD" or (load.opname == _LOADS_METHOD and bool((load.arg or 0) & 1))


def _is_with_null(load: dis.Instruction) -> bool:
    """True for the first load of a call that pushes the NULL beside what it loads."""
    return load.opname == "LOAD_GLOBAL" and bool((load.arg or 0) & 1)


def _null_beside(loads: list[dis.Instruction], first: int, after: int) -> bool:
    """True when an instruction of its own pushes the NULL for what is loaded from `first` to before `after`."""
    beside = first - 1 if _NULL_COMES_FIRST else after
    return 0 <= beside < len(loads) and loads[beside].opname == "PUSH_NULL" and not loads[first].is_jump_target


def _is_of_super(loads: list[dis.Instruction], after: int) -> bool:
    """True when a LOAD_SUPER_ATTR calls what is loaded just before `after`: its two arguments stand above."""
    depth = 1
    for load in itertools.islice(loads, after, None):
        if load.opname == "LOAD_SUPER_ATTR" and depth == 3:
            return True
        depth += dis.stack_effect(load.opcode, load.arg, jump=False)
        if depth < 1 or load.opcode in _JUMPS:
            return False
    return False


def _look_ups(path: list[str], is_enclosed: bool, scope: Scope) -> tuple[LookUp, ...] | None:
    """The look-ups of a name and of attributes of modules; None where one of them is not known beforehand."""
    in_globals = scope.globals if path[0] in scope.globals else scope.builtins
    found = [standing(scope.enclosing if is_enclosed else in_globals, path[0])]
    for name in path[1:]:
        if not isinstance(found[-1].found, ModuleType):
            return None
        found.append(standing(vars(found[-1].found), name))
    return None if any(look_up.found is _MISSING for look_up in found) else tuple(found)


def standing(namespace: Mapping[str, Any], name: str) -> LookUp:
    """What stands there by that name now, which may be nothing: of a class's static methods not what is got by asking
    it."""
    return LookUp(namespace, name, namespace.get(name, _MISSING))
