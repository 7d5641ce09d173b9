"""`njit`: numba's compiler, with a cache on disk that several processes may use at once, and any of them may leave at
any point.

numba's own cache has an index per function that gives each signature a numbered file of machine code. The index is
written before the file, and numbers begin anew when the source has changed. So a process that is killed in between, or
one that reads at that moment, finds the machine code of the source before the edit, or of another signature, under a
number that says otherwise; two processes that compile two signatures at once may give both the same number. Then a
kernel computes wrong numbers, and nothing tells.

Here there is no index: the name of a file is a function of all that its machine code depends on as numba knows it (the
source file's text, the version of numba, the signature, the processor, byte code and closure), so no two of these share
a file. Times of files do not count, which packagers set to what they like. A file is written whole or not at all, and
holds what its name was made of, which is compared when it is read; what cannot be read is compiled again. What neither
the cache nor the files that come with edbc (`edbc.native.shipped`) hold is compiled by one process at a time: others
wait for it, so that processes that start together share the work.

numba looks at the file of the function that is cached alone. The functions that it calls are compiled into it, and so
are the numbers that it names, whatever files they are from, and those of the functions that it calls; here their byte
code and values are part of the name, as this process has them: files may have been edited since. Not seen is what
`numba.extending.overload` puts in the place of a function, see NOTE: [Stale caches] in `edbc.run.cpu.walk`.

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
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba import config
from numba.core import serialize
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.targetconfig import TargetConfig
from numba.core.types import Dispatcher

from edbc.errors import NotNative
from edbc.native import shipped

if sys.platform != "win32":
    import fcntl


class _Linked(JITCodeLibrary):
    """What is linked into its callers and never called by address: of it alone no machine code is made, and it is
    optimised where it is linked in."""

    def _optimize_final_module(self) -> None:
        """Nothing: each function of it was looked at before, and callers look at all of it."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """None; callers find it by its name."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        """What makes code."""
        return _WithoutEnvironments(self._codegen)


class _WithoutEnvironments:
    """Environments stand in machine code, which there is none of; functions without Python's objects read none."""

    def __init__(self, codegen: Any):
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Nowhere."""


class _LinkedOnly(Compiler):
    """numba's compiler, for functions that only native code calls."""

    def define_pipelines(self) -> Any:
        """The usual ones, with another library."""
        codegen = self.state.targetctx.codegen()
        self.state.library = _Linked(codegen, self.state.func_id.func_qualname)
        return super().define_pipelines()


INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": _LinkedOnly}
"""Options of functions that only native code calls. They are compiled into their callers; numba would optimise each
alone too, and make machine code of it, which took a sixth of the time of a first start."""
UNCOUNTED: dict[str, Any] = {"_nrt": False}
"""Options of functions that make no array: numba counts no references in them. It would count those of every array that
is taken out of a named tuple, atomically (measured: more than half of the time of a walk over small batches)."""
U: Any = np.uint64
"""What loops over nodes index with. numba wraps signed indices around as Python does, wherever it does not see that
they are at least 0: half of the time of such a loop. A sum of signed and unsigned integers is a float to numba."""
WHILE_WAITING: list[Callable[[], bool]] = []
"""What a process does that waits for another's machine code; False when there is nothing left."""
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


def look_up_flags_at_once() -> None:
    """Make numba take a set of compiler flags from one dict of defaults and one of what is set.

    It looks for what it compiled an overload to by flags, tens of thousands of times per kernel, and asked a property
    for each of thirty flags, and another one for its default: a seventh of the time of compiling.
    """
    defaults = cache(lambda kind: {name: option.default for name, option in kind.options.items()})
    TargetConfig.values = lambda self: {**defaults(type(self)), **self._values}  # type: ignore[method-assign]


count_apart()
box_without_python()
look_up_flags_at_once()
if hasattr(os, "register_at_fork"):  # not on Windows, where nobody forks
    os.register_at_fork(after_in_child=count_apart)


class KernelFiles(IndexDataCacheFile):
    """The files of one function. See the module's docstring."""

    def __init__(
        self, cache_path: str, filename_base: str, source_stamp: Any, function: Callable[..., Any] | None = None
    ):
        super().__init__(cache_path, filename_base, source_stamp)
        self._base = filename_base
        self._function = function

    @cached_property
    def _of_source(self) -> str:
        """Not before the first call: a function may call those that stand below it."""
        others = () if self._function is None else tuple(compiled_in(self._function))
        return _digest(self._source_stamp, self._version, _APART, others)

    def flush(self) -> None:
        """Remove what is cached."""
        for file in self._files():
            file.unlink(missing_ok=True)

    def save(self, key: Any, data: Any) -> None:
        """Write the machine code of a signature; that of other versions of the source is removed."""
        self.write(key, data)
        for file in self._files():
            if not file.name.startswith(f"{self._base}.{self._of_source}."):
                with suppress(OSError):
                    file.unlink()

    def write(self, key: Any, data: Any) -> None:
        """Write the machine code of a signature."""
        self._save_data(self._name(key), (key, data))

    def load(self, key: Any) -> Any:
        """The machine code of a signature, None where there is none."""
        for file, name in self._places(key):
            with suppress(*_UNREADABLE):
                written, data = pickle.loads(file.read_bytes())
                if written == name:
                    return data
        return None

    def find(self, key: Any) -> Path | None:
        """The file of a signature, where there is one; whether it can be read shows when it is."""
        return next((file for file, _ in self._places(key) if file.is_file()), None)

    def lock(self, key: Any, wait: bool = True) -> int | None:
        """Until it is closed this process alone makes the machine code of a signature; None where another one does,
        unless that is waited for, and where nothing can be locked. What a process held is free when it ends."""
        with suppress(OSError, NameError):  # no `fcntl` on Windows
            held = os.open(Path(self._cache_path) / f"{self._name(key)}.lock", os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError:
                os.close(held)
                raise
            return held
        return None

    def turn(self, key: Any) -> int | None:
        """`lock` as soon as no other process has it, with other work until then."""
        while (held := self.lock(key, wait=False)) is None and any(help() for help in WHILE_WAITING):
            pass
        return self.lock(key) if held is None else held

    def unlock(self, key: Any, held: int) -> None:
        """Let go of what `lock` gave, in children that were forked meanwhile too."""
        with suppress(OSError):
            (Path(self._cache_path) / f"{self._name(key)}.lock").unlink()
        fcntl.flock(held, fcntl.LOCK_UN)
        os.close(held)

    def _places(self, key: Any) -> Iterator[tuple[Path, Any]]:
        """Files that may hold a signature, and what they must say that they hold."""
        yield Path(self._cache_path) / self._name(key), key
        if self._function is None:
            return
        signature, processor, *rest = key
        if (target := shipped.target(processor)) is not None:
            key = (signature, target, *rest)
            yield shipped.FOLDER / self._name(key), key

    def _name(self, key: Any) -> str:
        return f"{self._base}.{self._of_source}.{_digest(key)}.nbc"

    def _files(self) -> list[Path]:
        """Of all versions of the source. Names alone are compared: a folder may hold thousands."""
        names = os.listdir(self._cache_path)
        return [Path(self._cache_path, n) for n in names if n.startswith(f"{self._base}.") and n.endswith(".nbc")]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class KernelCache(FunctionCache):
    """The cache of one function."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        source = Path(function.__code__.co_filename)
        stamp = source.read_bytes() if source.is_file() else self._impl.locator.get_source_stamp()
        self._cache_file: KernelFiles = KernelFiles(self._cache_path, self._impl.filename_base, stamp, function)
        self._locks: dict[Any, int | None] = {}

    def find(self, sig: Any, codegen: Any) -> Path | None:
        """The file for the types of some arguments, where there is one."""
        return self._cache_file.find(self._index_key(sig, codegen))

    def is_in_work(self, sig: Any, codegen: Any) -> bool:
        """True while a process makes the machine code for the types of some arguments."""
        key = self._index_key(sig, codegen)
        held = self._cache_file.lock(key, wait=False)
        if held is not None:
            self._cache_file.unlock(key, held)
        return held is None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What there is; where that is nothing, what a process makes at this time. After None it is this one's turn,
        until `save_overload`."""
        found = super().load_overload(sig, target_context)
        if found is not None or not self._enabled or sig in self._locks:
            return found
        self._impl.locator.ensure_cache_path()
        self._locks[sig] = self._cache_file.turn(self._index_key(sig, target_context.codegen()))
        found = super().load_overload(sig, target_context)
        if found is not None:
            self._unlock(sig, target_context.codegen())
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep it, and let those go on that wait for it."""
        super().save_overload(sig, data)
        self._unlock(sig, data.codegen)

    def _unlock(self, sig: Any, codegen: Any) -> None:
        held = self._locks.pop(sig, None)
        if held is not None:
            self._cache_file.unlock(self._index_key(sig, codegen), held)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """A named tuple's type is its class and the types of its fields to numba, in whatever order they stand. What a
        function closes over is pickled by numba, compiled functions with an identity that each process draws anew: what
        these are made of is in the files' names (`compiled_in`). `sig` is the types of the arguments, of a callback a
        signature."""
        types, target, (code, _) = super()._index_key(sig, codegen)
        cells = [cell.cell_contents for cell in self._py_func.__closure__ or ()]
        closed_over = hashlib.sha256(serialize.dumps([x for x in cells if not hasattr(x, "py_func")])).hexdigest()
        return types, target, (code, closed_over), tuple(_fields(getattr(sig, "args", sig)))


def _fields(kinds: Iterable[Any]) -> Iterator[tuple[str, ...]]:
    for kind in kinds:
        yield tuple(getattr(kind, "fields", ()))
        yield from _fields(getattr(kind, "types", ()))


def compiled_in(function: Any) -> Iterator[Any]:
    """What numba compiles into a kernel beside the file that it stands in, as comparable values of equal text in every
    process: see the module's docstring."""
    seen: set[Any] = set()
    package = str(function.__module__).split(".")[0]
    open_ends: list[tuple[str, Any]] = [("", function)]
    while open_ends:
        name, value = open_ends.pop()
        made_of = getattr(value, "py_func", getattr(value, "_defn", value))
        if isinstance(made_of, FunctionType):
            if made_of is value and str(value.__module__).split(".")[0] != package:
                continue  # one of numpy's or Python's, which numba puts its own in the place of
            yield name, sorted(map(str, getattr(value, "targetoptions", {}).items()))
            if made_of not in seen:
                seen.add(made_of)
                yield _text(made_of.__code__)
                open_ends += _named(made_of)
        elif isinstance(value, tuple):
            open_ends += ((f"{name}[{i}]", item) for i, item in enumerate(value))
        elif isinstance(value, type) and hasattr(value, "_fields"):
            yield name, value._fields
        elif isinstance(value, np.ndarray):
            yield name, value.dtype.str, value.shape, value.tobytes()
        elif isinstance(value, bool | int | float | complex | str | bytes | np.generic | None):
            yield name, repr(value)


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The global values and those of enclosing functions that a function names."""
    open_ends = [function.__code__]
    while open_ends:
        code = open_ends.pop()
        found = [(name, function.__globals__[name]) for name in code.co_names if name in function.__globals__]
        yield from found
        for module in (value for _, value in found if isinstance(value, ModuleType)):
            yield from ((name, getattr(module, name)) for name in code.co_names if hasattr(module, name))
        open_ends += (constant for constant in code.co_consts if isinstance(constant, CodeType))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, cell.cell_contents) for name, cell in cells)
    yield from ((name, value) for name, value in (function.__kwdefaults__ or {}).items())
    yield "defaults", function.__defaults__


def _text(code: CodeType) -> Any:
    constants = [_text(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars


def njit(*function: Any, **options: Any) -> Any:
    """`numba.njit`, also with arguments of its own; `cache=True` is this module's cache."""
    if not function:
        return lambda f: njit(f, **options)
    cached = options.pop("cache", False)
    made: Any = numba.njit(*function, **options)
    if cached and hasattr(made, "enable_caching"):  # not under NUMBA_DISABLE_JIT=1
        made.__class__ = _kept_kind(made.__class__)
        made._options = options
        try:
            made._cache = KernelCache(made.py_func)
        except RuntimeError:  # numba found no folder that it may write to
            _warn_without_folder()
    return made


@cache
def _kept_kind(kind: type) -> type:
    """Dispatchers of functions that are kept on disk. Native callers compile one in as an `INNER` function: for them
    the code for Python's callers and machine code of its own would be made for nothing."""
    return type("Kept", (kind,), {"_numba_type_": property(lambda kept: Dispatcher(_part(kept)))})


@cache
def _part(kept: Any) -> Any:
    return numba.njit(kept.py_func, **{**kept._options, **INNER})


def kernel_folder(beside: Callable[..., Any]) -> str | None:
    """Where the machine code of functions beside this one is kept; None, with a warning, where there is no folder."""
    try:
        return str(KernelCache(beside)._cache_path)
    except RuntimeError:
        _warn_without_folder()
        return None


_CALLBACKS: list[Any] = []
"""Kept for ever: machine code holds their addresses."""


def callback(function: Callable[..., Any], signature: Any) -> int:
    """The address of a function compiled for native callers, which is in the cache too."""
    made: Any = CFunc(function, (signature.args, signature.return_type), {}, {"nogil": True, "error_model": "numpy"})
    try:
        made._cache = KernelCache(function)
    except RuntimeError:
        _warn_without_folder()
    made.compile()
    _CALLBACKS.append(made)
    return int(made.address)


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
