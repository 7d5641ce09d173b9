"""What torch keeps per OS thread that a function may change: fibers share a thread, so each has its own by turns.

Grad mode, inference mode, torch.autocast, function modes, default dtype and default device. (`torch.no_grad()` left by
one fiber while another one is inside of its own would otherwise leave the process without gradients.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _device

num_modes = torch._C._len_torch_function_stack
default_dtype = torch.get_default_dtype
infers = torch.is_inference_mode_enabled


class TorchState(NamedTuple):
    """See the module's docstring."""

    gradients: bool
    inference: bool
    dtype: torch.dtype
    autocast: tuple[bool, torch.dtype, bool, torch.dtype, bool]
    """On the CPU and on CUDA, whether and in which dtype; and whether casts of weights are kept."""
    modes: tuple[Any, ...]
    device: Any
    """What `with torch.device(...)` has set beside its mode."""


def torch_state() -> TorchState:
    """This thread's."""
    return TorchState(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        _autocast(),
        tuple(_get_current_function_mode_stack()) if num_modes() else (),
        _device.CURRENT_DEVICE,
    )


def _autocast() -> tuple[bool, torch.dtype, bool, torch.dtype, bool]:
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
    )


def give(state: TorchState) -> None:
    """Let this thread's state be another one; inference mode, which only a guard can change (`leave`), apart."""
    torch._C._set_grad_enabled(state.gradients)
    torch.set_default_dtype(state.dtype)
    on_cpu, dtype_on_cpu, on_cuda, dtype_on_cuda, caches = state.autocast
    torch.set_autocast_enabled("cpu", on_cpu)
    torch.set_autocast_dtype("cpu", dtype_on_cpu)
    torch.set_autocast_enabled("cuda", on_cuda)
    torch.set_autocast_dtype("cuda", dtype_on_cuda)
    torch.set_autocast_cache_enabled(caches)
    while num_modes():
        _pop_mode()
    for mode in state.modes:
        _push_mode(mode)
    _device.CURRENT_DEVICE = state.device


class Away:
    """A state that was left for another one, to come back to. `guard` is what holds inference mode as it was."""

    __slots__ = ("guard", "state")

    def __init__(self, state: TorchState, home: TorchState):
        self.state = state
        self.guard: Any = None
        if state.inference != home.inference:
            self.guard = torch._C._InferenceMode(home.inference)
            self.guard.__enter__()
        give(home)

    def come_back(self) -> None:
        """Let the state that was left be this thread's again."""
        if self.guard is not None:
            self.guard.__exit__(None, None, None)
        give(self.state)


def kept_as(home: TorchState) -> Callable[[], bool]:
    """What asks whether this thread's state is `home` for sure, as nearly always."""
    gradients, inference, dtype, (_, on_cpu, _, on_cuda, caches), _, device = home
    is_plain = not home.modes and not home.autocast[0] and not home.autocast[2]
    has_cuda = torch.backends.cuda.is_built()

    def is_home() -> bool:
        return (
            is_plain
            and torch.is_grad_enabled() is gradients
            and infers() is inference
            and default_dtype() is dtype
            and not num_modes()
            and not torch._C._is_any_autocast_enabled()
            and _device.CURRENT_DEVICE is device
            and torch.get_autocast_dtype("cpu") is on_cpu
            and torch.is_autocast_cache_enabled() is caches
            and (not has_cuda or torch.get_autocast_dtype("cuda") is on_cuda)
        )

    return is_home


def leave(home: TorchState) -> Away | None:
    """Let this thread's state be `home`; None where it is."""
    state = torch_state()
    return None if state == home else Away(state, home)
