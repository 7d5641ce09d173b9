"""`njit`: numba's compiler, with a cache on disk that several processes may use at once, and any of them may leave at
any point.

numba's own cache has an index per function that gives each signature a numbered file of machine code. The index is
written before the file, and numbers begin anew when the source has changed. So a process that is killed in between, or
one that reads at that moment, finds the machine code of the source before the edit, or of another signature, under a
number that says otherwise; two processes that compile two signatures at once may give both the same number. Then a
kernel computes wrong numbers, and nothing tells.

Here there is no index: the name of a file is a function of all that its machine code depends on as numba knows it (the
source file, the version of numba, the signature, the processor, byte code and closure), so no two of these share a
file. Of the source its text counts too, not only its time and size, which packagers set to what they like; its time
because functions of other files, which numba compiles in, come with the same installation. A file is written whole or
not at all, and holds what its name was made of, which is compared when it is read; what cannot be read is compiled
again.

Files of several processes meet in one, and so do the symbols in them. A symbol is a function's name, its arguments'
types, and a number that numba counts from 1 in every process; of two symbols of one name the linker takes the first for
both, whatever they are. So loops made by one function, `loop` of `add` and of `mul`, compiled into a kernel each by two
processes that had compiled as many functions before, became one: one kernel called the other's loop. Here every
process, and every fork, counts from a random number on (`count_apart`).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import config
from numba.core import serialize
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import FunctionCache, IndexDataCacheFile

from edbc.errors import NotNative

_UNREADABLE = (OSError, EOFError, pickle.UnpicklingError)
_APART = "symbols counted apart"
"""Part of every file's name: files in which symbols were counted from 1 are not read."""


def count_apart() -> None:
    """Count the functions that numba compiles from a random number on, a million apart from other processes'."""
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(5)) << 20)


def box_without_python() -> None:
    """Make numba look up the class of every array that a kernel returns without running Python.

    For that it calls a function of Python's, some fifty times per mini-batch, and a Ctrl-C that arrives in there comes
    out of the kernel as a SystemError. A process that ran kernels before it imported edbc keeps what it had.
    """
    serialize._numba_unpickle = cache(serialize._numba_unpickle)


count_apart()
box_without_python()
if hasattr(os, "register_at_fork"):  # not on Windows, where nobody forks
    os.register_at_fork(after_in_child=count_apart)


class KernelFiles(IndexDataCacheFile):
    """The files of one function. See the module's docstring."""

    def __init__(self, cache_path: str, filename_base: str, source_stamp: Any):
        super().__init__(cache_path, filename_base, source_stamp)
        self._base = filename_base
        self._of_source = _digest(source_stamp, self._version, _APART)

    def flush(self) -> None:
        """Remove what is cached."""
        for file in self._files("*"):
            file.unlink(missing_ok=True)

    def save(self, key: Any, data: Any) -> None:
        """Write the machine code of a signature; that of other versions of the source is removed."""
        self._save_data(self._name(key), (key, data))
        for file in set(self._files("*")) - set(self._files(f"{self._of_source}.*")):
            with suppress(OSError):
                file.unlink()

    def load(self, key: Any) -> Any:
        """The machine code of a signature, None where there is none."""
        try:
            written, data = self._load_data(self._name(key))
        except _UNREADABLE:
            return None
        return data if written == key else None

    def _name(self, key: Any) -> str:
        return f"{self._base}.{self._of_source}.{_digest(key)}.nbc"

    def _files(self, rest: str) -> list[Path]:
        return list(Path(self._cache_path).glob(f"{self._base}.{rest}.nbc"))


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class KernelCache(FunctionCache):
    """The cache of one function."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        source = Path(function.__code__.co_filename)
        stamp = self._impl.locator.get_source_stamp(), source.read_bytes() if source.is_file() else b""
        self._cache_file = KernelFiles(self._cache_path, self._impl.filename_base, stamp)


def njit(*function: Any, **options: Any) -> Any:
    """`numba.njit`, also with arguments of its own; `cache=True` is this module's cache."""
    if not function:
        return lambda f: njit(f, **options)
    cached = options.pop("cache", False)
    made: Any = numba.njit(*function, **options)
    if cached and hasattr(made, "enable_caching"):  # not under NUMBA_DISABLE_JIT=1
        try:
            made._cache = KernelCache(made.py_func)
        except RuntimeError:  # numba found no folder that it may write to
            _warn_without_folder()
    return made


def wrapping(function: Callable[..., Any]) -> Any:
    """A compiled function as it is; in plain Python its integers wrap around without a warning, as compiled ones do."""
    return np.errstate(over="ignore")(function) if config.DISABLE_JIT else function  # type: ignore[attr-defined]


@lru_cache(1)
def _warn_without_folder() -> None:
    warnings.warn(
        "no folder to keep compiled kernels in: every start compiles them again; name one with NUMBA_CACHE_DIR",
        NotNative,
        2,
    )
