"""torch.autocast while recording: in which dtype an operation computes, where that is not its operands' own.

Definitions.

(1) The *state* is the dtype that torch.autocast for the CPU has set, None outside of it and where it is disabled. A
    recorder has a *home* state, that of the call of the net; forward and cells may change it for a while.
(2) The *effect* of a state on a torch function and its operands is a dtype, to which all its floating operands and
    parameters are cast before it runs as it is; or None, where it runs as it would outside; or INSIDE, for functions
    that torch composes of several operations of which some cast (nn.LSTM's).
(3) Effects are observed, not listed: the function runs on zeros inside and outside of the state, under a mode that sees
    the casts that autocast adds: a dtype is the effect where casting beforehand leaves the same operations. So effects
    are those of the torch that runs.

The context is a class of Python, which is wrapped: a thread that is recording hears of every change, as of gradient
modes (`semantics.gradmode`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from edbc.base.kept import Kept
from edbc.capture.semantics import rules
from edbc.capture.semantics.gradmode import watcher_of_thread
from edbc.capture.semantics.modes import DispatchMode

State = torch.dtype | None
INSIDE = "inside"
"""Definition (2)."""


def state() -> State:
    """Definition (1), of this thread."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


@contextmanager
def entered(wanted: State) -> Iterator[None]:
    """A context in which this thread's state is `wanted`; what it was comes back. No watcher hears of it."""
    was_enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.set_autocast_enabled("cpu", wanted is not None)
    if wanted is not None:
        torch.set_autocast_dtype("cpu", wanted)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", was_enabled)
        torch.set_autocast_dtype("cpu", dtype)


_NOWHERE = nullcontext()


def left() -> AbstractContextManager[None]:
    """`entered(None)`, which takes no time where that is the state."""
    return entered(None) if torch.is_autocast_enabled("cpu") else _NOWHERE


def state_text(of: State) -> str:
    """The state as signatures tell it: `autocast bfloat16`, `autocast off`."""
    return f"autocast {'off' if of is None else str(of).removeprefix('torch.')}"


_STATE_IN_SIGNATURE = re.compile(r" \{autocast \w+\}|; autocast \w+(?=\})")


def without_state(signature: str) -> str:
    """A signature without the `state_text` that it may hold."""
    return _STATE_IN_SIGNATURE.sub("", signature)


@dataclass(frozen=True)
class Under:
    """A function that runs in a state, whatever the caller's is."""

    call: Callable[..., Any]
    state: State

    @property
    def __name__(self) -> str:
        return rules.name_of(self.call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        with entered(self.state):
            return self.call(*args, **kwargs)


_EFFECTS: Kept[Any, torch.dtype | str | None] = Kept(4096)


class _Operations(DispatchMode):
    """Notes the operations that torch runs, casts and views apart: name, and the dtypes of floating results."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[torch.dtype, ...]]] = []
        self.casts: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = result if isinstance(result, tuple | list) else [result]
        floats = [t.dtype for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()]
        if func is torch.ops.aten._to_copy.default:
            self.casts.update(floats)
        elif not getattr(func, "is_view", False):
            self.seen.append((func.name(), tuple(floats)))
        return result


def effect(call: Callable[..., Any], args: Any, kwargs: Any, of: State) -> torch.dtype | str | None:
    """Definition (2), for arguments that hold data. Raises what the function raises inside of the state."""
    if of is None or isinstance(call, Under) or rules.name_of(call) in rules.CASTS:
        return None
    return _EFFECTS.of((call, of, _form(args), _form(kwargs)), lambda: _observed(call, args, kwargs, of))


def _form(item: Any) -> Any:
    """What effects may depend on, hashable: of tensors, dtypes and shapes."""
    if isinstance(item, torch.Tensor):
        return item.dtype, item.shape
    if isinstance(item, tuple | list):
        return type(item), *map(_form, item)
    if isinstance(item, dict):
        return tuple((key, _form(value)) for key, value in item.items())
    return repr(item)


def _observed(call: Callable[..., Any], args: Any, kwargs: Any, of: torch.dtype) -> torch.dtype | str | None:
    with entered(of), _Operations() as inside:
        call(*args, **kwargs)
    for dtype in (None, *inside.casts):
        try:
            with entered(None), _Operations() as outside:
                call(*_cast(args, dtype), **_cast(kwargs, dtype))
        except RuntimeError:  # operands of several dtypes, which only autocast makes one
            continue
        if outside.seen == inside.seen:
            return dtype
    return INSIDE


def _cast(item: Any, dtype: State) -> Any:
    """Arguments with all tensors that autocast may cast in one dtype."""
    if isinstance(item, torch.Tensor):
        return item.to(dtype) if dtype is not None and is_cast(item.dtype) else item
    if isinstance(item, tuple | list) and not hasattr(item, "_fields"):
        return type(item)(_cast(x, dtype) for x in item)
    return {key: _cast(value, dtype) for key, value in item.items()} if isinstance(item, dict) else item


def is_cast(dtype: torch.dtype) -> bool:
    """True for the dtypes that autocast casts."""
    return dtype.is_floating_point and dtype is not torch.float64


def _wrap(kind: type) -> None:
    """Tell of entering and leaving the context."""
    enter, leave = kind.__enter__, kind.__exit__  # type: ignore[attr-defined]

    def entering(self: Any) -> Any:
        result = enter(self)
        _tell()
        return result

    def leaving(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        _tell()
        return result

    kind.__enter__, kind.__exit__ = entering, leaving  # type: ignore[attr-defined]


def _tell() -> None:
    watcher = watcher_of_thread()
    if watcher is not None:
        watcher.changes_state = True
        watcher.switch_autocast()


_wrap(torch.autocast)
