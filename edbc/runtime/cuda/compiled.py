"""Kernels from text: Triton compiles them when they first run, and a bounded number is kept.

Triton reads a function's source through `linecache`, so the text needs no file. It keeps machine code on disk by
the text itself; what is bounded here are the functions in memory: KEPT texts, the least recently used one goes first.
"""

from __future__ import annotations

import hashlib
import linecache
import threading
from collections import OrderedDict
from functools import cache
from typing import Any

import torch

KEPT = 512
"""Texts; the zoo has about forty at one hidden size."""


@cache
def missing(device_type: str) -> str | None:
    """Why Triton cannot run on such a device, or None when it can."""
    try:
        from triton import knobs
    except ImportError:
        return "triton is not installed; install edbc[cuda]"
    if device_type == "cuda" or knobs.runtime.interpret:
        return None
    return f"triton has no {device_type} device; set TRITON_INTERPRET=1 for its interpreter"


def is_interpreted() -> bool:
    """True when Triton interprets kernels in Python instead of compiling them."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


class Functions:
    """Text to function. Threads may share it."""

    def __init__(self, kept: int = KEPT):
        self.kept = kept
        self._known: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, text: str) -> Any:
        """The function `launch` that the text defines."""
        with self._lock:
            if text not in self._known:
                self._known[text] = _function(text)
                if len(self._known) > self.kept:
                    linecache.cache.pop(_file_of(self._known.popitem(last=False)[0]), None)
            self._known.move_to_end(text)
            return self._known[text]


FUNCTIONS = Functions()


def _file_of(text: str) -> str:
    return f"<edbc-{hashlib.sha256(text.encode()).hexdigest()[:16]}>"


def _function(text: str) -> Any:
    file = _file_of(text)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": file}
    exec(compile(text, file, "exec"), names)
    return names["launch"]


def multiply_type(dtype: str) -> Any:
    """The constant `D` of `edbc.runtime.cuda.source`."""
    import triton.language as tl

    if is_interpreted() and dtype in ("bf16", "f16"):
        return tl.float32
    return {"f32": tl.float32, "f64": tl.float64, "bf16": tl.bfloat16, "f16": tl.float16}[dtype]


def precision() -> str:
    """The constant `PRECISION`: torch's own setting for float32 products on the device."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
