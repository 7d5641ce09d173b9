"""Running code that recurses deeper than Python's default limit: a chain-shaped tree of thousands of nodes.

Recursion through `nn.Module.__call__` uses about 1.7 kB of C stack a level and kills the process when an 8 MB stack
runs out, so merely raising Python's limit is not safe; a thread with a large stack is. Its memory is only reserved,
and used as far as the recursion goes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from edbc.capture.semantics.autocast import entered, state
from edbc.errors import DeviceError, UnsupportedError

T = TypeVar("T")

STACK_BYTES = 1 << 30
MAX_DEPTH = 120_000
"""Python frames; about 40,000 levels of a recursion through nn.Module, where Python does not count those that go
through C apart: 3.12.1 allows some 210, in eager execution too, and no setting changes that."""


def run_deep(function: Callable[[], T]) -> T:
    """`function()`; when it exceeds the recursion limit, again from the start on a thread with a 1 GB stack.

    Raises UnsupportedError when that is not deep enough either. The common case costs nothing.
    """
    try:
        return function()
    except RecursionError:
        return run_on_large_stack(function)


def run_on_large_stack(function: Callable[[], T]) -> T:
    """`function()` on a thread of its own with a 1 GB stack, in this thread's state of torch.autocast."""
    outcome: dict[str, Any] = {}
    of_caller = state()

    def work() -> None:
        try:
            with entered(of_caller):
                outcome["value"] = function()
        except BaseException as error:
            outcome["error"] = error

    with _DEEP:
        thread = _start(work)
        thread.join()
    error = outcome.get("error")
    if isinstance(error, RecursionError):
        raise too_deep() from None
    if error is not None:
        raise error
    return outcome["value"]


class _DeepLimit:
    """Raises the process's recursion limit while any thread needs it: the limit is one for all threads, so the last to
    leave restores it."""

    def __init__(self) -> None:
        self.inside = 0
        self.previous = 0
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.previous = sys.getrecursionlimit()
                sys.setrecursionlimit(max(MAX_DEPTH, self.previous))
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                sys.setrecursionlimit(self.previous)


_DEEP = _DeepLimit()
_STARTING = threading.Lock()


def _start(work: Callable[[], None]) -> threading.Thread:
    """A running thread with a large stack; a daemon, so that Ctrl-C does not wait for it."""
    with _STARTING:  # the size of stacks, too, is one for all threads
        previous = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=work, name="edbc-deep", daemon=True)
            thread.start()
        except RuntimeError:
            raise DeviceError(
                f"out of memory: recursion this deep takes a stack of {STACK_BYTES:,} bytes, which this process may "
                "not reserve; raise its limit of address space (ulimit -v), or write the recursion as a loop"
            ) from None
        finally:
            threading.stack_size(previous)
    return thread


def too_deep() -> UnsupportedError:
    """The error for recursion that the large stack does not hold either."""
    return UnsupportedError(
        f"the model recurses deeper than {MAX_DEPTH:,} Python frames on one instance, or calls more modules inside "
        "each other than this Python allows (3.12.1: some 210); write the recursion as a loop, or as Python functions"
    )
