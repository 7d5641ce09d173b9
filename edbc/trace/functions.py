"""Functions of `torch.autograd.Function` on recorded tensors.

`Function.apply` goes to C++ without asking `__torch_function__`, and would there take a stand-in for a tensor and
crash the process. So it is wrapped: with recorded arguments it records a node, whose function is `apply` itself;
otherwise it is what it was.
"""

from __future__ import annotations

from typing import Any

import torch

from edbc.trace.values import Symbol

_apply = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]


def _recording_apply(cls: type, *args: Any, **kwargs: Any) -> Any:
    for argument in (*args, *kwargs.values()):
        if issubclass(type(argument), Symbol):
            name = f"{cls.__module__}.{cls.__qualname__}"
            return argument.rec.function(cls.apply, args, kwargs, name)  # type: ignore[attr-defined]
    return _apply(cls, *args, **kwargs)


torch.autograd.Function.apply = classmethod(_recording_apply)  # type: ignore[method-assign,assignment]
