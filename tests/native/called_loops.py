"""Records the graph loops that first runs call, with the types of their arguments: `edbc.native.ahead`'s list.

`python tests/native/called_loops.py COMMAND ...` runs commands of edbc in this process (each one word:
"run plans/tree.yaml"), and prints a line for each native function of edbc that was called from Python and the types
that it was called with: what an earlier command calls first, an empty line between commands, and of one what takes
longest to compile, by the size of its machine code.
Of kernels that were kept from an earlier run, that is: one that is compiled now also brings those that it calls, which
need no line, as they are compiled with it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from typing import Any

from numba import types


def type_text(kind: Any) -> str:
    """A type of an argument in a line of the list; ValueError for those that it has no words for."""
    if isinstance(kind, types.Array) and kind.layout == "C":
        return f"{'' if kind.mutable else 'const '}{kind.dtype}[{kind.ndim}]"
    if isinstance(kind, types.BaseNamedTuple):
        of: Any = kind
        module = of.instance_class.__module__.removeprefix("edbc.")
        return f"{module}:{of.instance_class.__qualname__}({', '.join(map(type_text, of.types))})"
    if isinstance(kind, types.Integer | types.Float | types.Boolean) and not isinstance(kind, types.Literal):
        return str(kind)
    raise ValueError(f"{kind}: expected a number, an array in C's order or a named tuple of them")


def called() -> Iterator[tuple[int, str]]:
    """Lines of the list, of what this process has called so far, with the bytes of machine code."""
    found = {id(v): (module, name, v) for module, name, v in _functions()}
    for module, name, function in found.values():
        for arguments in function.signatures:
            with suppress(ValueError):  # numbers that are known: native code alone calls with such
                line = f"{module} {name} {', '.join(map(type_text, arguments))}"
                file = function._cache.find(arguments, function.targetctx.codegen())
                yield 0 if file is None else file.stat().st_size, line


def _functions() -> Iterator[tuple[str, str, Any]]:
    """Native functions where they are defined."""
    for module in [m for name, m in sys.modules.items() if name.startswith("edbc.")]:
        for name, value in list(vars(module).items()):
            is_cached = hasattr(getattr(value, "_cache", None), "is_in_work")
            if is_cached and value.py_func.__module__ == module.__name__:
                yield module.__name__.removeprefix("edbc."), name, value


if __name__ == "__main__":
    from edbc.tools.cli import main

    printed: set[str] = set()
    for command in sys.argv[1:]:
        with redirect_stdout(sys.stderr):
            main(shlex.split(command), standalone_mode=False)
        lines = [line for _, line in sorted(called(), reverse=True) if line not in printed]
        printed.update(lines)
        if lines:
            print(*(["", *lines] if printed != set(lines) else lines), sep="\n")
