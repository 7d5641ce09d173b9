"""Where in the user's own code a recorded operation stands."""

from __future__ import annotations

import contextlib
import dis
import os
import sys
import traceback
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from edbc.base.notebook import PROMPTS, shown_name

_FOLDERS = (Path(__file__).parents[2], Path(torch.__file__).parent)
_OWN, _OF_TORCH = (tuple(str(path) + os.sep for path in (folder, folder.resolve())) for folder in _FOLDERS)
_LIBRARIES = (*_OWN, *_OF_TORCH)


class _IsLibrary(dict[str, bool]):
    """True for files of edbc itself and of torch, what enters contexts for them, and for none at all: never what an
    author wants to read."""

    def __missing__(self, filename: str) -> bool:
        known = filename.startswith((*_LIBRARIES, contextlib.__file__, "<")) and not filename.startswith(PROMPTS)
        self[filename] = known
        return known


_IS_LIBRARY = _IsLibrary()


def is_library(filename: str) -> bool:
    """True for a file of edbc itself or of torch."""
    return _IS_LIBRARY[filename]


def user_frame(until: CodeType | None = None, start: FrameType | None = None) -> FrameType | None:
    """The innermost frame, from `start` outwards, that belongs to the user's code and was called, directly or not, by a
    function `until`."""
    frame = start or sys._getframe(1)
    while _IS_LIBRARY[frame.f_code.co_filename]:
        if frame.f_code is until or frame.f_back is None:
            return None
        frame = frame.f_back
    return frame


def location_of(frame: FrameType | None) -> str:
    """`model.py:41`, in a notebook `In [3]:41`, or `<unknown>` for no frame."""
    return "<unknown>" if frame is None else f"{shown_name(frame.f_code.co_filename)}:{frame.f_lineno}"


def user_location() -> str:
    """`model.py:41` for the innermost line of the user's code, or `<unknown>`."""
    return location_of(user_frame())


def asked_by_torch(func: Any = None) -> bool:
    """True when torch's own Python, not the user's code, called what runs now: `func`, which may be Python itself and
    then stands between, several times where modes of torch watch."""
    frame = inner = _before(sys._getframe(1), _OWN)
    code = getattr(func, "__code__", None)
    while code is not None and inner is not None and inner.f_code.co_filename.startswith(_OF_TORCH):
        following = _before(inner.f_back, _OWN)
        frame = following if inner.f_code is code else frame
        inner = following
    return frame is not None and frame.f_code.co_filename.startswith(_OF_TORCH)


def _before(frame: FrameType | None, folders: tuple[str, ...]) -> FrameType | None:
    """The innermost frame, from one outwards, that is of none of the folders."""
    while frame is not None and frame.f_code.co_filename.startswith(folders):
        frame = frame.f_back
    return frame


def raised_at(error: BaseException) -> str:
    """`model.py:41` for the innermost line of the user's code that an exception came through, or `<unknown>`."""
    lines = [
        f"{shown_name(frame.f_code.co_filename)}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not _IS_LIBRARY[frame.f_code.co_filename]
    ]
    return lines[-1] if lines else "<unknown>"


def location_of_function(function: Any) -> str:
    """The line where a function or method begins, or `<unknown>`."""
    code = getattr(function, "__code__", None)
    return _location_of_code(code) if isinstance(code, CodeType) else "<unknown>"


@lru_cache(maxsize=256)
def _location_of_code(code: CodeType) -> str:
    return f"{shown_name(code.co_filename)}:{code.co_firstlineno}"


@lru_cache(maxsize=256)
def _stores(code: CodeType) -> dict[int, str]:
    """Offsets of each call or operator whose result goes straight into a local variable, with that variable's name
    where a plan may hold it: of the instruction and of its inline caches, the last of which is where a call of a Python
    function waits. Python 3.11 has another instruction before a call, in which calls of builtins (`sum`) happen once
    they are hot."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]
    return {
        offset: str(after.argval)
        for before, call, after in zip(instructions[:1] + instructions, instructions, instructions[1:], strict=False)
        if after.opname == "STORE_FAST" and str(after.argval).isascii()
        for offset in range((before if before.opname == "PRECALL" else call).offset, after.offset, 2)
    }


def assigned_name(until: CodeType) -> str | None:
    """The local variable that the operation being recorded is assigned to (`i` in `i = torch.sigmoid(x)`), if any.

    Only for names in plans; nothing else depends on it. Only code called by the function `until` counts: whoever asked
    for the cell's trace must not give its variables names.
    """
    frame = user_frame(until)
    return None if frame is None else _stores(frame.f_code).get(frame.f_lasti)
