"""edbc's own tensors are made on the host, whatever default device the caller has set.

`torch.set_default_device` and `with torch.device(...)` move every tensor that is made without a device, edbc's buffers
and tables too, of which native code takes the addresses: with a default device that is not the CPU it would read memory
that is not there. A default device is a torch function mode, so where no mode is active nothing has to be done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

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
