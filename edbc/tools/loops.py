"""Records the graph loops that first runs call, with the types of their arguments: `edbc.native.ahead`'s list.

`python -m edbc.tools.loops COMMAND ...` runs commands of edbc in this process (each one word: "run plans/tree.yaml"),
and prints a line for each native function of edbc that was called from Python and the types that it was called with,
rooms in the order in which data goes through them. Of kernels that were kept from an earlier run, that is: one that is
compiled now also brings those that it calls, which need no line, as they are compiled with it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from typing import Any

from edbc.native.ahead import GRADIENTS, LEARNING, type_text

ROOMS = ("capture", "schedule", LEARNING, "run.passes", "run.weights", "run.cpu", GRADIENTS)


def called() -> Iterator[str]:
    """Lines of the list, of what this process has called so far."""
    found = {id(v): (module, name, v) for module, name, v in _functions()}
    for module, name, function in sorted(found.values(), key=lambda entry: (_place(entry[0]), *entry[:2])):
        for arguments in function.signatures:
            with suppress(ValueError):  # numbers that are known: native code alone calls with such
                yield f"{module} {name} {', '.join(map(type_text, arguments))}"


def _functions() -> Iterator[tuple[str, str, Any]]:
    """Native functions where they are defined."""
    for module in [m for name, m in sys.modules.items() if name.startswith("edbc.")]:
        for name, value in list(vars(module).items()):
            is_cached = hasattr(getattr(value, "_cache", None), "holds")
            if is_cached and value.py_func.__module__ == module.__name__:
                yield module.__name__.removeprefix("edbc."), name, value


def _place(module: str) -> int:
    fits = [i for i, room in enumerate(ROOMS) if module.startswith(room)]
    return max(fits, key=lambda i: len(ROOMS[i]), default=len(ROOMS))


if __name__ == "__main__":
    from edbc.tools.cli import main

    for command in sys.argv[1:]:
        with redirect_stdout(sys.stderr):
            main(shlex.split(command), standalone_mode=False)
    for line in called():
        print(line)
