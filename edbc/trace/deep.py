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

from edbc.errors import UnsupportedError

T = TypeVar("T")

STACK_BYTES = 1 << 30
MAX_DEPTH = 120_000
"""Python frames; about 40,000 levels of a recursion through nn.Module."""


def run_deep(function: Callable[[], T]) -> T:
    """`function()`; when it exceeds the recursion limit, again from the start on a thread with a 1 GB stack.

    Raises UnsupportedError when that is not deep enough either. The common case costs nothing.
    """
    try:
        return function()
    except RecursionError:
        return run_on_large_stack(function)


def run_on_large_stack(function: Callable[[], T]) -> T:
    """`function()` on a thread of its own with a 1 GB stack."""
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["value"] = function()
        except BaseException as error:
            outcome["error"] = error

    previous_size, previous_limit = threading.stack_size(STACK_BYTES), sys.getrecursionlimit()
    sys.setrecursionlimit(MAX_DEPTH)
    try:
        thread = threading.Thread(target=work, name="edbc-deep")
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(previous_limit)
        threading.stack_size(previous_size)
    error = outcome.get("error")
    if isinstance(error, RecursionError):
        raise too_deep() from None
    if error is not None:
        raise error
    return outcome["value"]


def too_deep() -> UnsupportedError:
    """The error for recursion that the large stack does not hold either."""
    return UnsupportedError(
        f"the model recurses deeper than {MAX_DEPTH:,} Python frames on one instance; write the recursion as a loop"
    )
