"""`native`: numba's compiler with a cache on disk that notices every edit.

numba checks a cached kernel against the file that holds it, not against the kernels of other files that it calls and
that were compiled into it: after an edit of engine.py alone, walk.py's cached code would go on running the old engine.
So the folder of cached kernels is stamped with the sizes and times of all files of this package, and emptied when the
stamp differs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from edbc.kernelcache import njit, wrapping

PACKAGE = Path(__file__).resolve().parent
INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of functions that only native code calls."""
UNCOUNTED: dict[str, Any] = {"_nrt": False}
"""Options of functions that make no array: numba counts no references in them. It would count those of every array that
is taken out of a named tuple, atomically (measured: more than half of the time of a walk over small batches)."""
U: Any = np.uint64
"""What loops over nodes index with. numba wraps signed indices around as Python does, wherever it does not see that
they are at least 0: half of the time of such a loop. A sum of signed and unsigned integers is a float to numba."""


def native(function: Callable[..., Any], **options: Any) -> Any:
    """Compile on the first call, or load from the cache; the plain function under NUMBA_DISABLE_JIT=1."""
    dispatcher = njit(cache=True, **options)(function)
    if dispatcher is function:
        return wrapping(function)
    drop_stale(Path(str(dispatcher.stats.cache_path)))
    return dispatcher


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
    """A `native` function as `inner`, for native callers: with them the code for Python's callers would be compiled."""
    return inner(getattr(function, "py_func", function), **options)


def _refuse(dispatcher: Any, *args: Any) -> NoReturn:
    raise TypeError(f"{dispatcher.py_func.__name__} is an inner function: native code alone can call it")


def checksum(*modules: ModuleType) -> int:
    """Of the text of modules; see NOTE: [Stale caches] in `runtime.walk`."""
    total = 0
    for module in modules:
        total = zlib.crc32(Path(str(module.__file__)).read_bytes(), total)
    return total


@cache
def drop_stale(folder: Path, package: Path = PACKAGE) -> bool:
    """Remove the kernels cached in `folder` when a file of `package` has changed since; True when it had.

    A folder that cannot be written holds nothing that this process could have cached; it is left as it is.
    """
    files = sorted(package.glob("*.py"))
    stamp = "\n".join(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
    written = folder / "kernels.stamp"
    if written.exists() and written.read_text() == stamp:
        return False
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for kernel in folder.glob("*.nbc"):
            kernel.unlink(missing_ok=True)
        written.write_text(stamp)
    return True
