"""Matrix products by pointer: the vendor BLAS that torch itself uses, callable from native code without Python.

Definitions.

(1) A *candidate* is a shared library and the names under which it exports the Fortran routines for float32 and float64.
    libtorch comes first (MKL on x86-64 exports `sgemm_`), then the OpenBLAS of numpy's wheels.
(2) Integers are passed by address as 64-bit values. On a little-endian machine a routine that wants 32-bit integers
    reads their lower half, so one call serves both kinds of library.

llvmlite registers the routine's address under a name of ours. Code that refers to it by name (`numba.types.
ExternalFunction`) can be cached between processes, which code that holds a ctypes pointer cannot.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SYMBOLS = {"f32": "edbc_sgemm", "f64": "edbc_dgemm"}
"""The names that native code refers to."""


@cache
def vendor() -> str | None:
    """Register the products of the first candidate that has them and return its description; None without one."""
    if sys.byteorder != "little":
        return None
    for path, names in _candidates():
        addresses = _addresses(path, names)
        if addresses is not None:
            _register(addresses)
            return f"{names[0]} of {path.name}"
    return None


def _candidates() -> Iterator[tuple[Path, tuple[str, str]]]:
    """Definition (1)."""
    import numpy
    import torch

    for pattern in ("libtorch_cpu.*", "torch_cpu.dll"):
        yield from ((path, ("sgemm_", "dgemm_")) for path in sorted(Path(torch.__file__).parent.glob(f"lib/{pattern}")))
    root = Path(numpy.__file__).parent
    for folder in (root.parent / "numpy.libs", root / ".dylibs"):
        yield from ((path, ("scipy_sgemm_64_", "scipy_dgemm_64_")) for path in sorted(folder.glob("*openblas*")))


def _addresses(path: Path, names: tuple[str, str]) -> list[int] | None:
    try:
        library = ctypes.CDLL(str(path))
        return [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]
    except (OSError, AttributeError):
        return None


def _register(addresses: list[int]) -> None:
    import llvmlite.binding

    for symbol, address in zip(SYMBOLS.values(), addresses, strict=True):
        llvmlite.binding.add_symbol(symbol, address)
