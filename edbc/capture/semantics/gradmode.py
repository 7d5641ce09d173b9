"""Where forward switches gradients off: `torch.no_grad()` and its like, seen while recording.

What eager PyTorch computes inside of them requires no gradient, so nothing that is recorded there may pass one on:

(1) A node that was recorded there is *detached*: training takes none of its outputs to require a gradient
    (`training.reach`). Its type is what it would be elsewhere, so that it runs in the same batches. Sums that are
    detached are not fused with others.
(2) A view, a look-up, or anything else that is no node, and every operation inside a cell, gives what `.detach()` of it
    gives: another operand for what reads it.

The contexts are classes of Python, which are wrapped: a thread that is recording hears of every change. Asking for the
mode at every node would cost a tenth of recording.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

_of_thread = threading.local()


class watched_by:  # noqa: N801
    """A context in which this thread tells `watcher`, or nobody."""

    __slots__ = ("_before", "watcher")

    def __init__(self, watcher: Recorder | None):
        self.watcher = watcher

    def __enter__(self) -> None:
        self._before = getattr(_of_thread, "watcher", None)
        _of_thread.watcher = self.watcher

    def __exit__(self, *_: object) -> None:
        _of_thread.watcher = self._before


def watcher_of_thread() -> Recorder | None:
    """Who records in this thread."""
    return getattr(_of_thread, "watcher", None)


def _tell(flows: bool) -> None:
    watcher = watcher_of_thread()
    if watcher is not None:
        watcher.changes_state = True
        if watcher.flows != flows:
            watcher.switch_gradients(flows)


def _flows() -> bool:
    watcher = watcher_of_thread()
    return watcher is None or watcher.flows


def _wrap(kind: Any, flows_inside: Callable[[Any], bool], is_function: bool = False) -> None:
    """Tell of entering and leaving a context, which restores what held before: as the recording sees it, where a
    mini-batch without gradients is no change. One that `is_function` too changes the mode when it is made."""
    begin, enter, leave = kind.__init__, kind.__enter__, kind.__exit__

    def made(self: Any, mode: bool) -> None:
        self._edbc_flowed = _flows()
        _tell(mode)
        begin(self, mode)

    def entered(self: Any) -> Any:
        if not is_function:
            self._edbc_flowed = _flows()
        _tell(flows_inside(self))  # first: what refuses must leave the mode as it was
        return enter(self)

    def left(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        _tell(self._edbc_flowed)
        return result

    kind.__enter__, kind.__exit__ = entered, left
    if is_function:
        kind.__init__ = made


_wrap(torch.no_grad, lambda _: False)
_wrap(torch.enable_grad, lambda _: True)
_wrap(torch.inference_mode, lambda context: not context.mode)
_wrap(torch.set_grad_enabled, lambda context: context.mode, is_function=True)
