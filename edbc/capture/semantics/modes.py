"""Modes of torch: edbc's tensors on the host, and what sees operators, below torch's functions.

(1) edbc's own tensors are made on the host, whatever default device the caller has set. `torch.set_default_device` and
    `with torch.device(...)` move every tensor that is made without a device, edbc's buffers and tables too, of which
    native code takes the addresses: with a default device that is not the CPU it would read memory that is not there. A
    default device is a torch function mode, so where no mode is active nothing has to be done.
(2) Operators on tensors without data ("meta") run without torch's compiler, whose import takes seconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

F = TypeVar("F", bound=Callable[..., Any])
_num_modes = torch._C._len_torch_function_stack


def on_host(function: F) -> F:
    """A function in which tensors are made on the CPU unless it names a device."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not _num_modes():
            return function(*args, **kwargs)
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


class DispatchMode(TorchDispatchMode):
    """One of torch's that leaves torch's compiler alone: a subclass otherwise imports it, in three seconds, when it
    sees its first operator. Nobody compiles what runs in one of ours."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator. Where there are no data torch has many in Python, and imports its compiler for the
    first; so the commonest ones are asked what dtype no elements, or one, give, and their shapes are told here. What is
    wrong is torch's to say."""
    shape_of = _element_wise if torch.Tag.pointwise in func.tags else _SHAPES.get(func)
    if shape_of is None or "out" in kwargs:
        return func(*args, **kwargs)
    tensors: list[torch.Tensor] = []

    def small(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return type(x)(map(small, x))
        if not isinstance(x, torch.Tensor):
            return x
        tensors.append(x)
        return torch.ones((0,) * x.ndim, dtype=x.dtype) if x.is_meta else x

    given, named = [small(x) for x in args], {key: small(x) for key, x in kwargs.items()}
    if not tensors or not all(x.is_meta for x in tensors):
        return func(*args, **kwargs)
    try:
        shape = shape_of(tensors, args, kwargs)
        if not func._schema.is_mutable:
            return torch.empty(shape, dtype=func(*given, **named).dtype, device="meta")
        if shape == args[0].shape:
            return args[0]
    except (RuntimeError, IndexError):
        pass
    return func(*args, **kwargs)


def _element_wise(tensors: Sequence[torch.Tensor], args: Any, kwargs: Any) -> Sequence[int]:
    return functools.reduce(torch._C._infer_size, [x.shape for x in tensors])


def _addmm(tensors: Sequence[torch.Tensor], args: Any, kwargs: Any) -> Sequence[int]:
    bias, a, b = (x.shape for x in tensors)
    shape = torch.Size((a[0], b[1]))
    if a[1] != b[0] or torch._C._infer_size(bias, shape) != shape:
        raise RuntimeError
    return shape


def _cat(tensors: Sequence[torch.Tensor], args: Any, kwargs: Any) -> Sequence[int]:
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    shapes = [list(x.shape) for x in tensors]
    length = sum(shape.pop(dim) for shape in shapes)
    if any(shape != shapes[0] for shape in shapes):
        raise RuntimeError
    at = dim if dim >= 0 else dim + tensors[0].ndim
    return *shapes[0][:at], length, *shapes[0][at:]


def _stack(tensors: Sequence[torch.Tensor], args: Any, kwargs: Any) -> Sequence[int]:
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return _cat([x.unsqueeze(dim) for x in tensors], args, kwargs)


_SHAPES = {torch.ops.aten.addmm.default: _addmm, torch.ops.aten.cat.default: _cat, torch.ops.aten.stack.default: _stack}
