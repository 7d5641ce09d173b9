"""Functions of changed syntax trees, in the place of those that they were made from.

A definition that is compiled in its function's file, class and surroundings gives that function's code, to the last
instruction; so a changed one gives what the user could have written there. Names of enclosing functions stay theirs,
private names get the class's, and lines and columns are the file's.

Time is linear in the length of the code, and of the file once.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any

SAYS = "says something"
"""The variable that copies call where a branch begins that says something; no name that users' functions could have."""
_SPEAKS = {"logging": r"debug|info|warn|warning|error|critical|exception|log", "warnings": "warn", "pdb": "set_trace",
           "ipdb": "set_trace", "writer": "add_.*|flush", "wandb": "log", "plt": ".*", "stdout": "write|flush",
           "stderr": "write|flush"}  # fmt: skip
_SPEAKS |= dict.fromkeys(("logger", "log"), _SPEAKS["logging"])
_FUTURE = 0xFFF0000
"""Flags of a code that tell of `from __future__ import ...`."""


def compiled_like(function: FunctionType, definition: ast.FunctionDef, given: Iterable[str] = ()) -> CodeType | None:
    """The code of a definition that stands where a function's does: in its file, its class, and the functions around,
    which have the `given` variables too; None where it does not compile there."""
    code = function.__code__
    class_name = code.co_qualname.split(".")[-2] if "." in code.co_qualname else "C"
    if not class_name.isidentifier():
        return None
    outer_names = {*code.co_freevars, *given}
    around = [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in sorted(outer_names)]
    inside = ast.ClassDef(class_name, bases=[], keywords=[], body=[definition], decorator_list=[])
    outer = ast.FunctionDef("around", ast.arguments([], [], None, [], [], None, []), [*around, inside], [])
    imports = [ast.Import([ast.alias(name)]) for name in _imported(code.co_filename)]
    tree = ast.fix_missing_locations(ast.Module([*imports, outer], []))
    try:
        made = compile(tree, code.co_filename, "exec", code.co_flags & _FUTURE, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    found = _code_named(made, ("around", class_name, definition.name))
    if found is None or not outer_names.issuperset(found.co_freevars):
        return None
    return found.replace(co_qualname=code.co_qualname)


def speaks(block: Sequence[ast.AST]) -> bool:
    """Whether a block says something to people, as far as names tell: prints, warns, logs, draws a picture; or imports
    what may."""
    return any(
        isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _speaks(node.value.func))
        for node in block
    )


def _speaks(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute):
        return isinstance(function, ast.Name) and function.id in ("print", "breakpoint")
    of = function.value
    name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
    methods = _SPEAKS.get(name.strip("_").lower())
    return methods is not None and re.fullmatch(methods, function.attr) is not None


def note_speaking(definition: ast.FunctionDef) -> bool:
    """Let a definition call SAYS where a branch begins that `speaks`; False where there is none."""
    branches = [
        branch for node in ast.walk(definition) if isinstance(node, ast.If) for branch in (node.body, node.orelse)
    ]
    speaking = [branch for branch in branches if speaks(branch)]
    for branch in speaking:
        call = ast.Expr(ast.Call(ast.Name(SAYS, ast.Load()), [], []))
        branch.insert(0, ast.fix_missing_locations(ast.copy_location(call, branch[0])))
    return bool(speaking)


def copied(node: Any) -> Any:
    """A syntax tree, or a list of them, of nodes of its own; `copy.deepcopy` looks for what it has met before."""
    if isinstance(node, list):
        return [copied(item) for item in node]
    if not isinstance(node, ast.AST):
        return node
    made = ast.AST.__new__(type(node))
    fields = vars(made)
    for name, item in vars(node).items():
        fields[name] = copied(item) if isinstance(item, ast.AST | list) else item
    return made


@lru_cache(maxsize=256)
def _imported(filename: str) -> tuple[str, ...]:
    """The names that a file imports: the compiler calls attributes of these in another way."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return ()
    found = [n for n in _of_module(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    return tuple({(a.asname or a.name).partition(".")[0]: None for n in found for a in n.names if a.name != "*"})


def _of_module(node: ast.AST) -> Iterator[ast.AST]:
    """What of a file is not in a function or class."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield child
            yield from _of_module(child)


def _code_named(code: CodeType, path: Sequence[str]) -> CodeType | None:
    for name in path:
        inner = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name]
        if not inner:
            return None
        code = inner[0]
    return code


def is_same(one: CodeType, other: CodeType) -> bool:
    """Whether two codes do the same: their instructions, names and constants, those of inner functions too."""
    if (one.co_code, one.co_names, one.co_varnames) != (other.co_code, other.co_names, other.co_varnames):
        return False
    pairs = list(zip(one.co_consts, other.co_consts, strict=False))
    return len(one.co_consts) == len(other.co_consts) and all(
        is_same(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else repr(a) == repr(b) for a, b in pairs
    )


def function_of(function: FunctionType, code: CodeType, given: Mapping[str, Any]) -> FunctionType:
    """A function of other code in a function's place, with what variables are that are `given`."""
    cells = {name: CellType(item) for name, item in given.items()}
    cells |= zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__,
                        tuple(cells[name] for name in code.co_freevars))  # fmt: skip
    made.__kwdefaults__, made.__qualname__, made.__module__ = (
        function.__kwdefaults__, function.__qualname__, function.__module__)  # fmt: skip
    made.__dict__ = function.__dict__
    return made
