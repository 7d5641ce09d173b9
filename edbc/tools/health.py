"""How well this machine is used: processor, products beside the measured peak, kernels, caches, versions, GPU, and what
to do about each thing that is not as good as it can be. Nothing is changed, only measured."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from edbc._version import __version__

ROWS, INPUTS, COLUMNS = 50, 256, 640
"""The product that is measured."""
FEW, MANY = 4, 256
GOOD_SHARE = 0.6
"""Of the peak, below which something is wrong."""
LARGE_CACHE = 1 << 30
_GIGA = 1e9


def examine() -> dict[str, Any]:
    """All that is known, by section, as a JSON object; `advice` is a list of what is wrong and what to do."""
    found = {"versions": versions(), "processor": processor(), "products": products(), "caches": caches(), "gpu": gpu()}
    return {**found, "advice": [{"what": what, "do": do} for what, do in advice(found)]}


def versions() -> dict[str, str]:
    """Of edbc and what it stands on."""
    import llvmlite.binding as llvm

    packages = {name: _version(name) for name in ("numba", "llvmlite", "numpy", "triton")}
    of_llvm = ".".join(map(str, llvm.llvm_version_info))
    return {"edbc": __version__, "python": platform.python_version(), "torch": torch.__version__, **packages,
            "llvm": of_llvm}  # fmt: skip


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def processor() -> dict[str, Any]:
    """The processor, as the system names it and as LLVM does."""
    from edbc.cells.kernels.microkernel import lanes_of
    from edbc.native.machinecode import processor as of_llvm
    from edbc.native.threads import num_cores

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {"name": processor_name(), "llvm": of_llvm()[0], "cores": num_cores(), "threads": torch.get_num_threads(),
            "load": round(load, 2), "vector_bits": 8 * 4 * lanes_of(4)}  # fmt: skip


def processor_name() -> str:
    """As the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def products() -> dict[str, Any]:
    """What multiplies, and how fast beside the peak of one core: billions of float32 operations per second."""
    from edbc.run.backend import why_not_native
    from edbc.tools.peak import describe, library_gflops, peak_gflops, product_gflops

    why = why_not_native()
    found: dict[str, Any] = {"why_not_native": why, "tiles": describe()}
    if why is not None:
        return found
    peak = peak_gflops()
    found["peak_gflops"] = round(peak, 1)
    for name, speed in (("own", product_gflops), ("library", library_gflops)):
        found[f"{name}_gflops"] = {str(n): round(speed(n, INPUTS, COLUMNS), 1) for n in (FEW, ROWS, MANY)}
    found["peak_share"] = round(found["own_gflops"][str(ROWS)] / peak, 3)
    return found


def caches() -> dict[str, Any]:
    """Where compiled kernels are kept and how large they are."""
    from edbc.native import machinecode

    folder = machinecode.kernel_folder(machinecode.address_of)
    if folder is None:
        return {"folder": None, "files": 0, "bytes": 0, "writable": False}
    root = Path(folder)
    root = root.parent if root.name == "__pycache__" else root
    files = [file for pattern in ("*.nbc", "*.nbi") for file in root.parent.rglob(pattern)]
    sizes = [size for size in map(_size, files) if size is not None]
    return {"folder": folder, "files": len(sizes), "bytes": sum(sizes),
            "writable": os.access(folder, os.W_OK)}  # fmt: skip


def _size(file: Path) -> int | None:
    """None for a file that another process has replaced meanwhile."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None


def gpu() -> dict[str, Any]:
    """The devices that torch sees."""
    if not torch.cuda.is_available():
        return {"devices": [], "cuda": torch.version.cuda}
    count = torch.cuda.device_count()
    return {"devices": [torch.cuda.get_device_name(i) for i in range(count)], "cuda": torch.version.cuda}


def advice(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is not as good as it can be, and what to do about it."""
    yield from _about_products(found["products"])
    cache, host = found["caches"], found["processor"]
    if not cache["writable"]:
        yield "compiled kernels cannot be kept: every start compiles them again", "name a folder with NUMBA_CACHE_DIR"
    if cache["bytes"] > LARGE_CACHE:
        yield f"kernels take {cache['bytes'] / _GIGA:.1f} GB", f"delete {cache['folder']}: what is used is made again"
    if host["load"] > host["cores"]:
        yield (f"other programs keep the cores busy (load {host['load']} on {host['cores']})",
               "measure when they are idle")  # fmt: skip
    if "NUMBA_CPU_NAME" in os.environ or "NUMBA_CPU_FEATURES" in os.environ:
        yield "kernels are compiled for another processor than this one", "unset NUMBA_CPU_NAME and NUMBA_CPU_FEATURES"
    devices, has_triton = found["gpu"]["devices"], found["versions"]["triton"] != "none"
    if devices and not has_triton:
        yield "a GPU without triton: no kernels are generated for it", "install triton beside torch"
    if not devices and found["gpu"]["cuda"]:
        yield "torch was built for CUDA and sees no GPU", "look at the driver (nvidia-smi), or run with --device cpu"
    if sys.flags.optimize > 1:
        yield "python runs with -OO, which removes docstrings that torch reads", "run without it"


def _about_products(products: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if products["why_not_native"]:
        yield f"no native code: {products['why_not_native']}", "unset NUMBA_DISABLE_JIT"
        return
    if products.get("peak_share", 1.0) < GOOD_SHARE:
        yield (f"products reach {products['peak_share']:.0%} of the core's peak",
               "close other programs, or pin this one to a core of its own (taskset -c 0)")  # fmt: skip
