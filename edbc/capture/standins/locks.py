"""Whether an instance holds a lock where it reads a value.

The instances of a mini-batch run in one thread: one that waited for a lock that a suspended one holds would keep that
from ever giving it back. So whoever reads while it holds a lock goes on before any other does (`forward.fibers`).

No lock tells who holds it. The code of the functions that wait does: what they name in `with lock:` or
`lock.acquire()`, `lock` being names and attributes, and what is taken now. That somebody else may have taken it costs
company and no more. What a context manager made of a generator holds is not seen.
"""

from __future__ import annotations

import dis
from types import CodeType, FrameType
from typing import Any

from edbc.base.kept import Kept

_SILENT = frozenset(("CACHE", "EXTENDED_ARG", "PUSH_NULL", "NOP", "COPY", "PRECALL"))
_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))
_Path = tuple[str, bool, tuple[str, ...]]
"""A name, whether it is a global one, and attributes."""

_known: Kept[int, tuple[CodeType, tuple[_Path, ...]]] = Kept(4096)
"""By the identity of the code, which the entry holds."""


def takes_locks(frame: FrameType | None, until: CodeType | None) -> bool:
    """Whether any function from a frame out to one of the code `until` takes what may be a lock. Linear in frames."""
    while frame is not None and frame.f_code is not until:
        known = _known.get(id(frame.f_code))
        if known[1] if known is not None else _taken(frame.f_code):
            return True
        frame = frame.f_back
    return False


def holds_lock(frame: FrameType | None, until: CodeType | None) -> bool:
    """Whether what such a function takes is held now."""
    while frame is not None and frame.f_code is not until:
        if any(_is_held(_found(path, frame)) for path in _taken(frame.f_code)):
            return True
        frame = frame.f_back
    return False


def _taken(code: CodeType) -> tuple[_Path, ...]:
    known = _known.get(id(code))
    return (known or _known.add(id(code), (code, tuple(_paths(code)))))[1]


def _paths(code: CodeType) -> list[_Path]:
    """What a code names to take it."""
    paths: list[_Path] = []
    loads: list[tuple[str, bool] | str] = []  # the straight line of loads that ends here
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        enters = name in ("BEFORE_WITH", "LOAD_SPECIAL")
        if enters or (name in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval == "acquire"):
            if loads and isinstance(loads[0], tuple):
                paths.append((*loads[0], tuple(map(str, loads[1:]))))
            loads = []
        elif name in _GLOBALS or name.startswith(("LOAD_FAST", "LOAD_DEREF")):
            loads = [(instruction.argval, name in _GLOBALS)]
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            loads = [*loads, instruction.argval] if loads else []
        elif name not in _SILENT:
            loads = []
    return paths


def _found(path: _Path, frame: FrameType) -> Any:
    name, is_global, attributes = path
    found = (frame.f_globals if is_global else frame.f_locals).get(name)
    for attribute in attributes:
        found = getattr(found, attribute, None)
    return found


def _is_held(item: Any) -> bool:
    """Of locks, reentrant ones, conditions and semaphores; one that does not tell may be."""
    if not hasattr(type(item), "acquire") or not hasattr(type(item), "release"):
        return False
    for name in ("locked", "_is_owned"):
        if hasattr(item, name):
            return bool(getattr(item, name)())
    return getattr(item, "_value", 0) == 0
