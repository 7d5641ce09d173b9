"""Functions from LLVM's text: compiled for this processor, kept on disk, loaded once per process.

What is kept is an object file, under the rules of `edbc.native.kernelcache`: its name is a function of the text, of
llvmlite's version, of LLVM's, and of the processor; a file is written whole or not at all, and holds what its name was
made of. A new text takes the place of the old one of its function. Passes (`edbc.cells.kernels.loops`) are named by
their text; those of one call share a file, and of these files the last `MOST_FILES`, of some 20 KB each, are kept.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from edbc.native.kernelcache import KernelFiles, kernel_folder

_LOADED: dict[tuple[str, str], tuple[Any, int]] = {}
"""By name and text: the engine that holds the machine code, for ever, and the address. LLVM is not asked for it again:
it has one lock for all threads, which a Ctrl-C at a bad moment leaves taken."""
_PASSES: dict[str, tuple[Any, int]] = {}
"""The same by name."""
_LOCK = threading.Lock()
MOST_FILES, FORGETS = 4_000, 100
"""Files of passes that are kept; a process looks for more when it has written its first, and every so many later."""
_WRITTEN = itertools.count()


@cache
def processor() -> tuple[str, str]:
    """Name and features of the processor that numba compiles for, which need not be this one (NUMBA_CPU_NAME)."""
    from numba.core.registry import cpu_target

    _, name, features = cpu_target.target_context.codegen().magic_tuple()
    return name, features


def pointer(kind: str) -> str:
    """The type of pointers to a type, in the text of the LLVM that is here."""
    return "ptr" if llvm.llvm_version_info[0] > 15 else f"{kind}*"


def address_of(name: str, text: str) -> int:
    """The address of the function `name` in a module."""
    with _LOCK:
        loaded = _LOADED.get((name, text))
        if loaded is None:
            engine = _engine(_object_code(name, text))
            loaded = _LOADED[name, text] = engine, int(engine.get_function_address(name))
        return loaded[1]


def addresses_of(passes: Mapping[str, str]) -> dict[str, int]:
    """The addresses of functions whose names are made of their texts; what is not loaded is compiled as one module."""
    with _LOCK:
        missing = sorted(passes.keys() - _PASSES.keys())
        if missing:
            text = _module([passes[name] for name in missing])
            code = _object_code(f"{_OF_PASSES}{hashlib.sha256(text.encode()).hexdigest()[:16]}", text)
            engine = _engine(code)
            _PASSES.update({name: (engine, int(engine.get_function_address(name))) for name in missing})
        return {name: _PASSES[name][1] for name in passes}


_OF_PASSES = "passes."


def _module(texts: list[str]) -> str:
    """Functions with what they declare, each declaration once."""
    lines = [line for text in texts for line in text.splitlines()]
    declared = dict.fromkeys(line for line in lines if line.startswith("declare "))
    return "\n".join([*declared, *(line for line in lines if not line.startswith("declare "))])


def _forget_old(folder: str) -> None:
    """Remove all but the last files of passes."""
    found: list[tuple[float, str]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(f"machinecode.{_OF_PASSES}"):
                with suppress(OSError):
                    found.append((entry.stat().st_mtime, entry.path))
    for _, file in sorted(found)[:-MOST_FILES]:
        Path(file).unlink(missing_ok=True)


def _object_code(name: str, text: str) -> bytes:
    folder = kernel_folder(_object_code)
    if folder is None:
        return _compiled(text)
    key = (text, processor(), llvmlite.__version__, llvm.llvm_version_info)
    files = KernelFiles(folder, f"machinecode.{name}", text)
    found = files.load(key)
    if found is None:
        found = _compiled(text)
        if not name.startswith(_OF_PASSES):
            files.save(key, found)
        else:  # of whose names there is no other text, and thousands of files
            files.write(key, found)
            if next(_WRITTEN) % FORGETS == 0:
                _forget_old(folder)
    return bytes(found)


@cache
def _emitter() -> Any:
    """Of all texts; an engine keeps its own."""
    return _target_machine()


def _target_machine() -> Any:
    name, features = processor()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=name, features=features, opt=3, jit=True)


def _start() -> None:
    """Numba has done so where it was imported."""
    for initialize in (llvm.initialize_native_target, llvm.initialize_native_asmprinter):
        initialize()


def _compiled(text: str) -> bytes:
    """Long texts without LLVM's loop strength reduction, which is quadratic in the loops of a function: it took 19 of
    20 seconds for a convolution of 16 pictures with its gradient, and code that has it is 0.02 faster at most."""
    _start()
    is_long = len(text) > LONG and llvm.llvm_version_info[0] <= _LAST_WITH_OPTION
    if is_long:
        llvm.set_option("", "-disable-lsr=true")
    try:
        return bytes(_emitter().emit_object(llvm.parse_assembly(text)))
    finally:
        if is_long:
            llvm.set_option("", "-disable-lsr=false")  # it is the process's, numba's too


LONG = 1 << 18
_LAST_WITH_OPTION = 22
"""LLVM ends the process for an option that it does not know."""


def _engine(code: bytes) -> Any:
    _start()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
