"""Kernels from text: Triton compiles them when they first run, and a bounded number is kept.

Triton reads a function's source through `linecache`, so the text needs no file. It keeps machine code on disk by
the text itself; what is bounded here are the functions in memory: KEPT texts, the least recently used one goes first.
"""

from __future__ import annotations

import hashlib
import linecache
from functools import cache
from typing import Any

from edbc.base.kept import Kept

KEPT = 64
"""Texts; a plan has one for the forward and one for the backward pass, and as many more as it met types later."""


@cache
def missing(device_type: str) -> str | None:
    """Why Triton cannot run on such a device, or None when it can."""
    try:
        from triton import knobs
    except ImportError:
        return "triton 3.4 or newer is not installed; install edbc[cuda]"
    if knobs.runtime.interpret:
        return None
    if device_type != "cuda":
        return f"triton has no {device_type} device; set TRITON_INTERPRET=1 for its interpreter"
    return _cannot_start()


def _cannot_start() -> str | None:
    """Triton builds its driver with the machine's C compiler when it is first asked for a device."""
    from triton.runtime import driver

    try:
        driver.active.get_current_target()
    except Exception as error:  # whatever it is, torch runs instead, and the report says why
        return f"triton does not start here: {(str(error) or repr(error)).splitlines()[0]}"
    return None


FUNCTIONS: Kept[str, Any] = Kept(KEPT, lambda text: linecache.cache.pop(_file_of(text), None))
"""By their text."""


def function_of(text: str) -> Any:
    """The function `step` that the text defines."""
    return FUNCTIONS.of(text, lambda: _function(text))


def _file_of(text: str) -> str:
    return f"<edbc-{hashlib.sha256(text.encode()).hexdigest()[:16]}>"


def _function(text: str) -> Any:
    file = _file_of(text)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": file}
    exec(compile(text, file, "exec"), names)
    return names["step"]
