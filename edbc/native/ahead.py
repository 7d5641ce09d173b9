"""Graph loops that a first run calls, compiled before they are called.

With nothing kept a first mini-batch waits for numba, one function after the other, though the types that these
functions are called with are known before there is a mini-batch, and depend on no model: `LISTED` names them, one line
a function and its types, as `make loops` records them from runs. What is listed is compiled

- when edbc is published, for a level of processors, into the files that come with it (`edbc.native.shipped`):
  `python -m edbc.native.ahead --ship`;
- where those do not fit (another version of numba, of Python, an edited file), from the moment on at which a command
  begins, by processes beside this one on the other cores. They take the list in its order, what most runs call and
  takes longest first, and leave out what another process is at; this one takes what it calls, and where another one is
  at that, what every run calls meanwhile. They end with this process at the latest.

A line is a module and a function, and the types of its arguments: `int32[1]` is an array of one dimension in C's order,
`const` before it one that is read only, and a named tuple is its class, with its fields' types in brackets. What every
run calls stands before the first empty line.
"""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from numba import config, types
from numba.core.errors import NumbaError

from edbc.native import shipped
from edbc.native.kernelcache import WHILE_WAITING
from edbc.native.threads import num_cores

LISTED = Path(__file__).with_name("loops.txt")
MOST_PROCESSES = 3
LEARNING, GRADIENTS = "schedule.learn", "train"
"""Rooms whose functions not every command calls."""
_PROBE = "run.passes.placeloops", "place_rows"
_PROBES = {LEARNING: (f"{LEARNING}.qlearn", "learn"), GRADIENTS: (f"{GRADIENTS}.backward.backwalk", "walk_back")}
"""Of what every command calls, and of each of these rooms, a function that a process comes to last."""
_TOKEN = re.compile(r"const |[\w.:]+|[\[\](),]")
_STARTED: list[subprocess.Popen[bytes]] = []


def begin(*rooms: str) -> bool:
    """Start processes that compile what is listed, of `LEARNING` and `GRADIENTS` what is in `rooms`, where something is
    missing and there is a core. True when this process will wait for a compiler."""
    if config.DISABLE_JIT or _STARTED or not _is_missing(rooms):  # type: ignore[attr-defined]
        return False
    if rooms == (GRADIENTS,) and not _is_missing(()):  # few are left, and this process calls them one after the other
        return True
    atexit.register(_end, os.getpid())
    WHILE_WAITING.append(lambda: next(_compile_rest((), needed=True), False))
    for _ in range(min(num_cores() - 1, MOST_PROCESSES)):
        _start(f"from edbc.native.ahead import compile_listed; compile_listed({rooms})")
    return True


def _is_missing(rooms: tuple[str, ...]) -> bool:
    """Whether a function that every command calls is kept nowhere, or one of these rooms."""
    probes = [_PROBE, *map(_PROBES.__getitem__, rooms)]
    return any(_is_free(function, arguments) for function, arguments in listed(rooms, only=probes))


def compile_listed(rooms: tuple[str, ...]) -> None:
    """What processes beside this one do. Where torch is not there yet, what needs it is left out."""
    all(_compile_rest(rooms))


def _compile_rest(rooms: tuple[str, ...], needed: bool = False) -> Iterator[bool]:
    """Compile what nobody has compiled or is at, True after each."""
    for function, arguments in listed(rooms, needed=needed):
        if _is_free(function, arguments):
            with suppress(NumbaError, TypeError):  # of other arguments than it takes now: whoever calls it compiles it
                function.compile(arguments)
            yield True


def _is_free(function: Any, arguments: tuple[Any, ...]) -> bool:
    """True where there is no machine code for these arguments, and nobody who makes it, but a folder for it."""
    cache: Any = getattr(function, "_cache", None)
    code = function.targetctx.codegen() if hasattr(cache, "find") else None
    return code is not None and cache.find(arguments, code) is None and not cache.is_in_work(arguments, code)


def listed(rooms: tuple[str, ...] = (LEARNING, GRADIENTS), only: Any = None,
           needed: bool = False) -> Iterator[tuple[Any, tuple[Any, ...]]]:  # fmt: skip
    """Functions with the types of their arguments, in the order in which they are worth compiling; with `only`, those
    of these modules and names, with `needed`, those that every run calls."""
    text = LISTED.read_text()
    for line in filter(None, (text.partition("\n\n")[0] if needed else text).splitlines()):
        module, name, kinds = line.split(" ", 2)
        left_out = any(module.startswith(room) and room not in rooms for room in (LEARNING, GRADIENTS))
        if left_out or (only is not None and (module, name) not in only):
            continue
        try:
            function = getattr(import_module(f"edbc.{module}"), name, None)
        except ModuleNotFoundError as error:
            if error.name == "torch":
                continue
            raise
        if function is not None:  # a list is what earlier runs called; a test holds it against today's functions
            yield function, read_types(kinds)


def read_types(text: str) -> tuple[Any, ...]:
    """The types of a line."""
    tokens = _TOKEN.findall(f"({text})")[::-1]
    return _read_several(tokens)


def _read_several(tokens: list[str]) -> tuple[Any, ...]:
    found = []
    while tokens.pop() != ")":  # a bracket or a comma
        if tokens[-1] == ")":
            tokens.pop()
            break
        found.append(_read_one(tokens))
    return tuple(found)


def _read_one(tokens: list[str]) -> Any:
    token = tokens.pop()
    if token == "const ":
        return _read_one(tokens).copy(readonly=True)
    if ":" in token:
        module, name = token.split(":")
        return types.BaseTuple.from_types(_read_several(tokens), getattr(import_module(f"edbc.{module}"), name))
    scalar = types.boolean if token == "bool" else getattr(types, token)
    if tokens[-1] != "[":
        return scalar
    _, dimensions, _ = tokens.pop(), tokens.pop(), tokens.pop()
    return types.Array(scalar, int(dimensions), "C")


def _start(line: str, **settings: str) -> None:
    environment = {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    silent = subprocess.DEVNULL
    try:
        _STARTED.append(
            subprocess.Popen([sys.executable, "-c", line], env=environment, stdin=silent, stdout=silent, stderr=silent)
        )
    except OSError:  # none to be had: this one compiles alone
        return


def _end(parent: int) -> None:
    for process in _STARTED if os.getpid() == parent else ():  # not in children that were forked
        process.kill()
        process.wait()


def ship() -> int:
    """Make the files of `shipped.FOLDER` for this machine's level, this Python and this numba; returns how many there
    are. Those of other versions stay, those of other sources go."""
    settings = shipped.settings()
    if settings is None:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(num_cores()):
            _start(f"from edbc.native.ahead import compile_listed; compile_listed({LEARNING, GRADIENTS})",
                   NUMBA_CACHE_DIR=folder, **settings)  # fmt: skip
        codes = [process.wait() for process in _STARTED]
        if any(codes):
            raise RuntimeError("a process that compiled what is listed failed")
        shipped.FOLDER.mkdir(exist_ok=True)
        for file in Path(folder).rglob("*.nbc"):
            file.replace(shipped.FOLDER / file.name)
    return shipped.count()


if __name__ == "__main__":
    if sys.argv[1:] == ["--ship"]:
        print(f"{shipped.FOLDER}: {ship()} files")
    else:
        compile_listed((LEARNING, GRADIENTS))
