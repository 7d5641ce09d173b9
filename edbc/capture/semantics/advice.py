"""What to do where a part of torch that forward called cannot take stand-ins: by the part of torch.

Transforms, compilers and checkpoints of torch handle tensors below the level at which calls are recorded. What they
do for one instance's tensors, edbc does for all, or it is refused.
"""

from __future__ import annotations

import re
import traceback
from types import FrameType

from edbc.capture.semantics.rules import name_of
from edbc.capture.semantics.shapes import run_on_meta
from edbc.capture.standins.source import is_library

_WRITE_OUT = "write what it computes with other torch functions"
_MADE_UP = (
    "it was given ones and zeros for its operands, to find the shape of its result, and refuses such values: pass what "
    "it checks (lengths, sizes) as Python numbers, not as tensors"
)
_ADVICE = {
    "torch._functorch": ("torch.func.{}", f"{_WRITE_OUT}: instances are batched without it, and gradients inside "
                         "forward are not recorded"),
    "torch._dynamo": ("torch.compile", "leave it out: edbc compiles the whole"),
    "torch.utils.checkpoint": ("torch.utils.checkpoint.{}", "call the function itself; recompute= saves memory"),
    "torch.autograd": ("torch.autograd.{}", f"{_WRITE_OUT}: gradients inside forward are not recorded"),
    "torch.jit": ("torch.jit.{}", "call the Python function itself"),
    "torch._higher_order_ops": ("torch.{}", "write it in Python where the instance decides, else as torch.where"),
}  # fmt: skip
"""By the prefix of a module's name: what the user called, and what to do."""
_UNCOMPILED = "DisableContext."
"""Frames of torch's compiler around functions that it leaves alone."""
_SCRIPTED = re.compile(r"(\w+)\(\) Expected a value of type .* for argument")
"""torch.jit's own parser, which has no frame."""


def advice_for(error: BaseException) -> tuple[str, str]:
    """What of torch was called, by the name that the user knows it by, and what to do."""
    scripted = _SCRIPTED.match(str(error))
    if scripted:
        return f"'{scripted[1]}' of torch.jit", "call the Python function that was scripted or traced"
    frames = _called_frames(error)
    for frame in frames:
        module = frame.f_globals.get("__name__", "")
        for part, (name, remedy) in _ADVICE.items():
            if f"{module}.".startswith(f"{part}."):
                return f"'{name.format(frame.f_code.co_qualname.partition('.')[0])}'", remedy
    tried = next((frame for frame in frames if frame.f_code is run_on_meta.__code__), None)
    if tried is not None:
        return f"'{name_of(tried.f_locals['func'])}'", _MADE_UP
    return "what is called here", _WRITE_OUT


def _called_frames(error: BaseException) -> list[FrameType]:
    """The frames that the innermost line of the user's code called."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    first = max((i for i, frame in enumerate(frames) if not is_library(frame.f_code.co_filename)), default=-1)
    return [frame for frame in frames[first + 1 :] if not frame.f_code.co_qualname.startswith(_UNCOMPILED)]
