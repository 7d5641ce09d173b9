"""Kinds of native functions, by who calls them and whether they make arrays."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from edbc.native.kernelcache import INNER, UNCOUNTED, njit, wrapping


def native(function: Callable[..., Any], **options: Any) -> Any:
    """Compile on the first call, or load from the cache; the plain function under NUMBA_DISABLE_JIT=1."""
    return wrapping(njit(cache=True, **options)(function))


def native_uncounted(function: Callable[..., Any]) -> Any:
    """`native` for a function that makes no array."""
    return native(function, **UNCOUNTED)


def inner_uncounted(function: Callable[..., Any]) -> Any:
    """`inner` for a function that makes no array."""
    return inner(function, **UNCOUNTED)


def inlined(function: Callable[..., Any]) -> Any:
    """`inner_uncounted` without a call: taking a Dag and a Frontier apart into a call's arguments takes as long as
    running a small batch."""
    return inner(function, forceinline=True, **UNCOUNTED)


def inner(function: Callable[..., Any], **options: Any) -> Any:
    """Compile as a part of the native functions that call it. Python cannot call it, which spares compiling what takes
    Python's arguments apart (for a function of two named tuples of arrays: most of its code)."""
    dispatcher: Any = njit(**INNER, **options)(function)
    if dispatcher is not function:  # called from Python all the same, it would crash the process
        dispatcher.__class__ = type("Inner", (type(dispatcher),), {"__call__": _refuse})
    return dispatcher


def part(function: Any, **options: Any) -> Any:
    """A `native` function with other options for native callers; with its own they take it as it is."""
    return inner(getattr(function, "py_func", function), **options)


def _refuse(dispatcher: Any, *args: Any) -> NoReturn:
    raise TypeError(f"{dispatcher.py_func.__name__} is an inner function: native code alone can call it")


@inner_uncounted
def copy(source: Any, begin: int, end: int, target: Any, at: int) -> None:
    """`target[at:]` becomes `source[begin:end]`. A slice assignment compiles numba's strings, for its message."""
    for i in range(begin, end):
        target[at + i - begin] = source[i]


def checksum(*modules: ModuleType) -> int:
    """Of the text of modules; see NOTE: [Stale caches] in `edbc.run.cpu.walk`."""
    total = 0
    for module in modules:
        total = zlib.crc32(Path(str(module.__file__)).read_bytes(), total)
    return total
