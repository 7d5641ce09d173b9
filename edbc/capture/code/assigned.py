"""Names of the attributes that code which forward may run assigns: what a method reads by any other name stays.

Definitions.

(1) A *unit* is a function or method with all that stands in it; what a file does when it is imported is one too.
(2) A unit *mentions* names: of variables other than arguments, of attributes, and texts that are names.
(3) Units that *make* the model are those of MAKES, what files do, and all that these mention. What they assign stands
    before anything is recorded. A function that they mention without calling it may be kept for forward to call.
    Names of variables that they declare `global` are assigned too, as GLOBAL says, and what names lists and dicts that
    they change, as ITEMS says: by an attribute, by a variable that was given one, or by no variable of
    their own. A list that is passed on and changed there is not seen.
(4) *Reached* are `forward`, methods that Python or a library's class calls by their names, functions that a decorator
    of the user's has, or one that registers them, those that (3) keeps, and all that reached units mention, or look
    up by names that they make (`getattr(self, "layer%d" % i)`).

(5) *Caches* are attributes that a reached method assigns of its own object, and reads where it may not have done so
    (`if n != self.size: self.size, self.mask = n, ...`), and those that it may not assign beside such ones; what an
    `if` of another method asks of is a cache, too, with all that is assigned beside it (`if n > self.size: grow(n)`).

Whoever calls what is not reached does so between mini-batches, where `ModelView.require_unchanged` sees what it did.
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from edbc.base.notebook import cell_texts

MAKES = ("__init__", "__post_init__", "build")
"""Functions that make a model."""
ANY = "*"
ANYTHING = ".*"
GLOBAL, ITEMS = "global ", "items of "
"""In front of names of variables, and of attributes and variables whose items change."""
CHANGING = frozenset(
    "append appendleft extend extendleft insert pop popleft popitem remove discard clear sort reverse rotate update "
    "add setdefault __setitem__ __delitem__ __iadd__ __next__ send".split()
)
"""Methods of lists, dicts, sets and queues that change them; those of tensors with these names do not."""
_ASSIGN = frozenset("setattr delattr __setattr__ __delattr__ vars exec eval".split())
_LOOK_UP = frozenset("getattr eval exec globals locals vars methodcaller attrgetter __getattribute__".split())
"""Functions that find what a text names."""
_LIBRARIES = ("torch", "nn", "F", "np", "math")
"""Names of modules in which nothing of the user's is found."""
_OF_DICTS = frozenset("get keys values items copy".split())
_TEXT = (ast.Name, ast.Attribute)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LATER = (ast.Lambda, ast.GeneratorExp)
"""What of a file's own statements may run when it has been imported."""


class _Unit(NamedTuple):
    """Definition (1)."""

    name: str
    mentions: frozenset[str]
    kept: frozenset[str]
    """What it mentions without calling it, or in a function of its own."""
    assigned: frozenset[str]
    looks_up: frozenset[str]
    """Patterns of the names that it makes and looks up."""
    decorators: frozenset[str]
    own: _Own
    is_method: bool


class _Own(NamedTuple):
    """Attributes of a method's own object, for definition (5)."""

    stored: frozenset[str] = frozenset()
    caches: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()
    """What tests of its `if`s read."""
    alone: frozenset[str] = frozenset()
    """What it stores of no other object."""


def assigned_in(modules: Iterable[ModuleType]) -> frozenset[str]:
    """What reached units of these files assign; ANY among it where one assigns by names that are made."""
    found = _reached_in(modules)
    return frozenset({ANY}) if found is None else frozenset[str]().union(*(unit.assigned for unit in found))


def assigned_to_others_in(modules: Iterable[ModuleType]) -> frozenset[str]:
    """What such units assign other than of the object that they are a method of."""
    found = _reached_in(modules) or ()
    return frozenset[str]().union(
        *(unit.assigned - unit.own.alone if unit.is_method else unit.assigned for unit in found)
    )


def caches_in(modules: Iterable[ModuleType]) -> frozenset[str]:
    """Definition (5), of all files."""
    of_own = [unit.own for unit in _reached_in(modules) or ()]
    asked = Counter(itertools.chain.from_iterable(own.asked for own in of_own))
    others = (own.stored for own in of_own
              if not own.caches and any(asked[name] > (name in own.asked) for name in own.stored))  # fmt: skip
    return frozenset[str]().union(*(own.caches for own in of_own), *others)


def mentioned_in(modules: Iterable[ModuleType]) -> frozenset[str]:
    """The names that reached units of these files mention; none where their text is not to be had."""
    return frozenset[str]().union(*(unit.mentions for unit in _reached_in(modules) or ()))


def _reached_in(modules: Iterable[ModuleType]) -> tuple[_Unit, ...] | None:
    """The reached units of files; None where the text of one is not to be had."""
    modules = sorted(modules, key=operator.attrgetter("__name__"))
    if not all(map(_has_text, modules)):
        return None
    own = {module.__name__ for module in modules}
    texts = tuple(text for module in modules for text in _texts_of(module))
    return _reached(texts, frozenset[str]().union(*(_of_libraries(module, own) for module in modules)))


def _has_text(module: ModuleType) -> bool:
    return not is_prompt(module) or cell_texts() is not None


def _texts_of(module: ModuleType) -> list[str]:
    if is_prompt(module):
        return cell_texts() or []
    return [_text_of_file(str(module.__file__))]


@functools.cache
def _text_of_file(name: str) -> str:
    try:
        return Path(name).read_text(errors="replace")
    except OSError:
        return ""


def is_prompt(module: Any) -> bool:
    """True for the module of a notebook or of Python's prompt."""
    return getattr(module, "__name__", None) == "__main__" and getattr(module, "__file__", None) is None


def _of_libraries(module: ModuleType, files: Collection[str]) -> frozenset[str]:
    """Names of methods in a file's classes that their base classes have, which call them: those in none of the
    files, all of whose code is read."""
    own = [item for item in vars(module).values() if isinstance(item, type) and item.__module__ == module.__name__]
    bases = {base for kind in own for base in kind.__mro__ if base.__module__ not in files}
    names = frozenset(name for kind in own for name in vars(kind))
    return frozenset(name for base in bases for name in vars(base)) & names


@functools.lru_cache(maxsize=64)  # a model's files are asked by four questions, of each of its readers
def _reached(texts: tuple[str, ...], of_libraries: frozenset[str]) -> tuple[_Unit, ...]:
    """Definition (4), of files with these texts. Linear in their units and mentions."""
    units = [unit for text in texts for unit in _units(text)]
    by_name: dict[str, list[_Unit]] = {}
    for unit in units:
        by_name.setdefault(unit.name, []).append(unit)

    def closure(found: list[_Unit]) -> list[_Unit]:
        seen = {*map(id, found)}
        for unit in found:
            made = (filter(re.compile(pattern).fullmatch, by_name) for pattern in unit.looks_up)
            for name in (unit.mentions & by_name.keys()).union(*made):
                new = [other for other in by_name[name] if id(other) not in seen]
                seen |= {*map(id, new)}
                found += new
        return found

    making = closure([unit for unit in units if unit.name in MAKES or not unit.name])
    kept = frozenset[str]().union(*(unit.kept for unit in making))
    roots = [unit for unit in units if any(name in by_name or "register" in name for name in unit.decorators)
             or _is_called_by_name(unit.name) or unit.name in kept or unit.name in of_libraries]  # fmt: skip
    files = [unit for unit in units if not unit.name]  # lambdas of theirs may run
    return (*closure([unit for unit in roots if unit.name and unit.name not in MAKES]), *files)


def _is_called_by_name(name: str) -> bool:
    return name == "forward" or (name.startswith("__") and name.endswith("__"))


@functools.lru_cache(maxsize=4096)  # a model that imports a library beside it, of some 400 files, reads them ten times
def _units(text: str) -> tuple[_Unit, ...]:
    tree = _parsed(text)
    functions: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, bool]] = []
    rest: list[ast.AST] = []
    _divide(tree, functions, rest)
    own = ast.Module([ast.Expr(node) for node in rest if isinstance(node, ast.expr)], [])
    own.body += [node for node in rest if isinstance(node, ast.stmt)]
    return _unit("", own), *[_unit(of.name, of, of.decorator_list, is_method) for of, is_method in functions]


def _parsed(text: str) -> ast.Module:
    """The tree of a file, or of what is executed; of none where it has no syntax."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _divide(node: ast.AST, functions: list[Any], rest: list[ast.AST]) -> None:
    """Functions of a file and of its classes, and what else the file does."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "__name__" in map(_named, ast.walk(child.test)):
            continue  # what a file does when it is a script
        if isinstance(child, _FUNCTIONS[:2]):
            functions.append((child, isinstance(node, ast.ClassDef)))
        elif any(isinstance(inner, _FUNCTIONS[:2]) for inner in ast.walk(child)):
            _divide(child, functions, rest)
        else:
            rest.append(child)


def _unit(name: str, node: ast.AST, decorators: Sequence[ast.expr] = (), is_method: bool = False) -> _Unit:
    inside = {id(x) for inner in ast.walk(node) if inner is not node and isinstance(inner, _FUNCTIONS)
              for x in ast.walk(inner)}  # fmt: skip
    calls = [x for x in ast.walk(node) if isinstance(x, ast.Call) and id(x) not in inside]
    called = {id(x.func) for x in calls} | {id(arg) for x in calls if _called(x.func) == "hasattr" for arg in x.args}
    local = {inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)}
    local |= _variables(node, inside) if name else set()
    mentions = [(_named(inner), id(inner)) for inner in ast.walk(node)
                if not (isinstance(inner, ast.Name) and inner.id in local)]  # fmt: skip
    kept = frozenset(text for text, place in mentions if text and place not in called)
    looks_up = frozenset(_looked_up(inner) for inner in ast.walk(node) if isinstance(inner, ast.Call)) - {""}
    later = [] if name in MAKES else [node] if name else [x for x in ast.walk(node) if isinstance(x, _LATER)]
    changes = _changes(node) if name and name not in MAKES else ()
    assigned = frozenset({*itertools.chain(*map(_assignments, later)), *changes})
    by = frozenset(_called(x.func if isinstance(x, ast.Call) else x) for x in decorators)
    of_own = own_attributes(node) if isinstance(node, ast.FunctionDef) and name not in MAKES else _Own()
    return _Unit(name, frozenset(text for text, _ in mentions if text), kept, assigned, looks_up, by, of_own,
                 is_method and not decorators)  # fmt: skip


def _variables(node: ast.AST, inside: Collection[int]) -> set[str]:
    """Those of a function, which mean no function of their name. What functions, classes and comprehensions in it
    assign is theirs."""
    walked = [x for x in ast.walk(node) if id(x) not in inside]
    inner = [x.target if isinstance(x, ast.comprehension) else x for x in walked
             if isinstance(x, ast.comprehension | ast.ClassDef)]  # fmt: skip
    theirs = {id(x) for part in inner for x in ast.walk(part)}
    shared = {name for x in walked if isinstance(x, ast.Global | ast.Nonlocal) for name in x.names}
    names = [x for x in walked if isinstance(x, ast.Name) and not isinstance(x.ctx, ast.Load) and id(x) not in theirs]
    return {x.id for x in names} - shared


def own_attributes(node: ast.FunctionDef) -> _Own:
    """What a statement of a method's own block has assigned is told from what one inside of others may have, or one
    behind a return that may come first."""
    own = node.args.args[0].arg if node.args.args else ""
    of_own = [x for x in ast.walk(node) if isinstance(x, ast.Attribute)
              and isinstance(x.value, ast.Name) and x.value.id == own]  # fmt: skip
    stored = {x.attr for x in of_own if isinstance(x.ctx, ast.Store)}
    ends: dict[str, tuple[int, int]] = {}
    first = min((_begin(x) for x in ast.walk(node) if isinstance(x, ast.Return)), default=_end(node))
    for statement in node.body:
        is_sure = isinstance(statement, ast.Assign) and _begin(statement) <= first
        for target in statement.targets if is_sure else ():  # type: ignore[attr-defined]
            for x in ast.walk(target):
                if isinstance(x, ast.Attribute) and x in of_own and isinstance(x.ctx, ast.Store):
                    ends.setdefault(x.attr, _end(statement))
    read = [(x.attr, _begin(x)) for x in of_own if isinstance(x.ctx, ast.Load)]
    read += [(str(x.args[1].value), _begin(x)) for x in ast.walk(node) if isinstance(x, ast.Call)
             and _called(x.func) in ("getattr", "hasattr") and len(x.args) > 1 and _called(x.args[0]) == own
             and isinstance(x.args[1], ast.Constant)]  # fmt: skip
    read += [(x.target.attr, _begin(x)) for x in ast.walk(node) if isinstance(x, ast.AugAssign)
             and isinstance(x.target, ast.Attribute) and x.target in of_own]  # fmt: skip
    found = {name for name, place in read if name in stored and place <= ends.get(name, place)}
    tests = [x for inner in ast.walk(node) if isinstance(inner, ast.If) for x in ast.walk(inner.test)]
    asked = {x.attr for x in tests if isinstance(x, ast.Attribute) and x in of_own}
    others = {x.attr for x in ast.walk(node) if isinstance(x, ast.Attribute) and not isinstance(x.ctx, ast.Load)
              and x not in of_own}  # fmt: skip
    is_given = all(isinstance(x.ctx, ast.Load) for x in ast.walk(node) if isinstance(x, ast.Name) and x.id == own)
    alone = stored - others if is_given else set()
    caches = found | (stored - ends.keys() if found else set())
    return _Own(*map(frozenset, (stored, caches, asked, alone)))


def _begin(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _end(node: ast.AST) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]


def _named(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and node.value.isidentifier() else ""
    return _called(node) if isinstance(node, _TEXT) else ""


def _called(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _looked_up(call: ast.Call) -> str:
    """A pattern of the names by which a call finds something, where their text is not written."""
    if _called(call.func) not in _LOOK_UP:
        return ""
    if _called(call.func) != "getattr" or len(call.args) < 2:
        return ANYTHING
    is_library = isinstance(call.args[0], ast.Name) and call.args[0].id in _LIBRARIES
    return "" if isinstance(call.args[1], ast.Constant) or is_library else written_as(call.args[1])


def written_as(node: ast.expr) -> str:
    """A pattern of the names that an expression gives: `f"layer{i}"`, `"layer" + str(i)`, `"layer%d" % i`,
    `"layer{}".format(i)`. What no name has in it, as a hole of another form, may be anything."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(written_as, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return written_as(node.left) + written_as(node.right)
    of, holes = None, ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        of, holes = node.left, r"%[a-z0-9]+"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        of, holes = node.func.value, r"\{[^}]*\}"
    if not isinstance(of, ast.Constant) or not isinstance(of.value, str):
        return ANYTHING
    parts = re.split(holes, of.value)
    return ANYTHING.join(map(re.escape, parts)) if "".join(parts).replace(".", "_").isidentifier() else ANYTHING


def _assignments(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and child.name in MAKES:
            continue
        if isinstance(child, ast.Attribute) and not isinstance(child.ctx, ast.Load):
            yield child.attr
        if isinstance(child, ast.Call) and _function(child.func) in _ASSIGN:
            yield from _assigned_by(child)
        if isinstance(child, ast.Attribute) and child.attr in _OF_DICTS and _is_dict_of(child.value):
            child = child.value  # which is read
        elif _is_dict_of(child) and not _only_reads(node):
            yield ANY
        yield from _assignments(child)


def _changes(node: ast.AST) -> Iterator[str]:
    """What of lists and dicts a unit changes, and which variables outside of it."""
    given: dict[str, set[str]] = {}
    own = {inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Global):
            yield from [GLOBAL + name for name in inner.names]
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
            own.add(inner.id)
        if isinstance(inner, ast.Assign | ast.NamedExpr | ast.AnnAssign) and isinstance(inner.value, _TEXT):
            for target in inner.targets if isinstance(inner, ast.Assign) else [inner.target]:
                given.setdefault(_called(target), set()).add(_called(inner.value))
    for inner in ast.walk(node):
        changed = _changed(inner)
        if isinstance(changed, ast.Attribute) and not _is_dict_of(changed):
            yield ITEMS + changed.attr
        elif isinstance(changed, ast.Name):
            names = given.get(changed.id, set()) if changed.id in own else {changed.id}
            yield from [ITEMS + name for name in names]


def _changed(node: ast.AST) -> ast.AST | None:
    """What a node may change the items of."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return node.value
    if isinstance(node, ast.AugAssign):
        return node.target
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING
    return node.func.value if is_call else None  # type: ignore[attr-defined]


def _only_reads(node: ast.AST) -> bool:
    """Whether what stands in a node is compared, copied (`"{a}".format(**self.__dict__)`), or asked for an item."""
    is_copy = isinstance(node, ast.Call) and _called(node.func) in ("dict", "copy", "deepcopy", "len", "repr")
    is_spread = isinstance(node, ast.keyword) and node.arg is None
    is_item = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    return is_copy or is_spread or is_item or isinstance(node, ast.Compare)


def _is_dict_of(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def _assigned_by(call: ast.Call) -> Iterator[str]:
    """What a call of a function of _ASSIGN may assign, which a text among its arguments may tell."""
    text = next((a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)), None)
    if text is None or _function(call.func) == "vars":
        yield ANY
    elif _function(call.func) in ("exec", "eval"):
        yield from _assignments(_parsed(text))
    else:
        yield text


def _function(node: ast.expr) -> str:
    """The name of a function; of methods (`model.eval()`) that of Python's own alone (`object.__setattr__`)."""
    if isinstance(node, ast.Attribute):
        is_builtin = isinstance(node.value, ast.Name) and node.value.id == "builtins"
        return node.attr if node.attr.startswith("__") or is_builtin else ""
    return node.id if isinstance(node, ast.Name) else ""
