"""Functions of `torch.autograd.Function` on recorded tensors.

`Function.apply` goes to C++ without asking `__torch_function__`, and would there take a stand-in for a tensor and
crash the process. So it has other code: with recorded arguments it records a node, whose function is `apply` itself;
otherwise it is what it was. Its code is replaced, not the method, as models keep the method by names of their own
(`quantize = Quantize.apply`), often from before edbc was imported.

Types tell such functions apart by name, so of two classes of one name (made by a function of the user's, say) the
second must do the same as the first, as far as can be told.
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

import torch

from edbc.capture.standins.standin import Symbol, refuse

_of_torch: FunctionType = torch.autograd.Function.__dict__["apply"].__func__
_apply = FunctionType(_of_torch.__code__, _of_torch.__globals__, "apply", None, _of_torch.__closure__)


def _code() -> CodeType:
    """Of a method that records. Torch's has one variable from around it, `__class__`, and so has this one."""
    __class__ = None

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        nonlocal __class__
        from edbc.capture.semantics.customfunctions import recording_apply

        return recording_apply(cls, *args, **kwargs)

    return apply.__code__


def recording_apply(cls: type, *args: Any, **kwargs: Any) -> Any:
    for argument in (*args, *kwargs.values()):
        if issubclass(type(argument), Symbol):
            name = f"{cls.__module__}.{cls.__qualname__}"
            return argument.rec.function(cls.apply, args, kwargs, name)  # type: ignore[attr-defined]
    return _apply(cls, *args, **kwargs)


def refuse_namesake(known: dict[str, type], func: Any, name: str) -> None:
    """Raise UnsupportedError for a class other than the `known` one of its name, unless it has the same code, closed
    over the same."""
    if getattr(func, "__func__", None) is not _of_torch:
        return
    kind = func.__self__
    first = known.setdefault(name, kind)
    mine, theirs = _work(first), _work(kind)
    if len(mine) != len(theirs) or not all(map(_is_same, mine, theirs)):
        refuse(
            f"two autograd functions that differ are both called {name!r}",
            "give each its own __qualname__, or pass what differs to apply() as an argument",
        )


def _work(kind: type) -> list[Any]:
    """What a class computes by: code, and what it closes over."""
    found: list[Any] = []
    for name in ("forward", "setup_context", "backward", "vmap", "jvp"):
        function = getattr(kind, name)
        found += [getattr(function, "__code__", function), *(getattr(function, "__defaults__", None) or ())]
        found += (getattr(function, "__kwdefaults__", None) or {}).values()
        found += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return found


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)


_PLAIN = (CodeType, int, float, str, bool)


_of_torch.__code__, _of_torch.__module__ = _code(), __name__
"""Functions of torch's modules have derivatives that are known; these have their own."""
