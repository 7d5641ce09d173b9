"""`torch.utils.checkpoint` while recording: the function is called, no more. What is kept for the backward pass is a
matter of whole mini-batches there (`runtime.cut`).

The reentrant kind gives gradients only where one of the arguments requires one, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import checkpoint

from edbc.capture.semantics.gradmode import watcher_of_thread
from edbc.capture.standins.standin import refuse

_generator = checkpoint._checkpoint_without_reentrant_generator
_apply = checkpoint.CheckpointFunction.apply


def _keeping(function: Callable[..., Any], preserve: bool, context: Any, *rest: Any, **kwargs: Any) -> Iterator[None]:
    """What torch does before and after the function."""
    is_recorded = watcher_of_thread() is not None and context is checkpoint.noop_context_fn
    return _nothing() if is_recorded else _generator(function, preserve, context, *rest, **kwargs)


def _nothing() -> Iterator[None]:
    yield


def _reentrant(*args: Any) -> Any:
    if watcher_of_thread() is not None:
        refuse(
            "checkpoint(use_reentrant=True) gives gradients only where an argument requires one, which recording does "
            "not know",
            "pass use_reentrant=False",
        )
    return _apply(*args)


checkpoint._checkpoint_without_reentrant_generator = _keeping  # type: ignore[assignment]
checkpoint.CheckpointFunction.apply = staticmethod(_reentrant)  # type: ignore[method-assign]
