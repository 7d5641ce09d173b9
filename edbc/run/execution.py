"""Executing a mini-batch, in steps too: the host may stop behind any batch and go on, which changes no number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from edbc.capture.code.shadow import ModelView
from edbc.errors import GraphError
from edbc.run.backend import Backend, KernelOfType
from edbc.run.passes.arenas import Arenas, Shared
from edbc.run.passes.boundary import Wanted, collect, load_externals

if TYPE_CHECKING:
    from edbc.run.passes.minibatch import MiniBatch


class WithoutGradients:
    """`torch.no_grad()` in a third of its time (by hand; a tenth when warm), which counts where no cache is warm:
    before and after a walk."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        if self._before:
            torch._C._set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self._before)


def run_whole(backend: Backend, prepared: MiniBatch, kernel: KernelOfType, view: ModelView,
              shared: Shared | None = None) -> list[Any]:  # fmt: skip
    """What each instance returns of a prepared mini-batch that runs without a stop; segments of one mini-batch give
    what they have in common."""
    with WithoutGradients():
        if prepared.has("at_once") and prepared.at_once is not None:
            found: list[Any] = prepared.at_once.run(prepared.capture, {} if shared is None else shared, view)
            return found
        arenas = _loaded(backend, prepared, view, shared)
        try:
            backend.execute(prepared.segment, arenas, kernel)
            return collect(prepared.capture, prepared.segment.placement, arenas, prepared.boundary.wants)
        finally:
            arenas.release()


def _loaded(backend: Backend, prepared: MiniBatch, view: ModelView, shared: Shared | None) -> Arenas:
    """Arenas with externals in them, which know what will be asked of them."""
    arenas = backend.arenas(prepared.segment, prepared.demand)
    try:
        if shared is not None:
            arenas.shared = shared
        load_externals(prepared.capture, prepared.boundary.lookups, arenas, view)
        for want in prepared.boundary.wants if backend.issues else ():
            if isinstance(want, Wanted):
                arenas.expect(want.class_index, want.rows)
    except BaseException:
        arenas.release()
        raise
    return arenas


class Execution:
    """One mini-batch while it executes; a context, at whose end its memory goes back to the pool."""

    def __init__(self, backend: Backend, prepared: MiniBatch, kernel: KernelOfType, view: ModelView,
                 shared: Shared | None = None):  # fmt: skip
        self._backend, self._capture, self._kernel = backend, prepared.capture, kernel
        self._segment = prepared.segment
        self.done = 0
        """Batches that have run."""
        with WithoutGradients():
            self._arenas = _loaded(backend, prepared, view, shared)
        self._wants = prepared.boundary.wants

    def run(self, until: int | None = None, on_batch: Callable[[int], None] | None = None) -> None:
        """The next batches, up to `until`, all that are left without it. `on_batch` is called after each."""
        stop = self._segment.stop if until is None else until
        if not self.done <= stop <= self._segment.stop:
            raise GraphError(f"expected to stop behind batch {self.done} to {self._segment.stop}, got {stop}")
        with WithoutGradients():
            whole = self._segment
            part = whole if until is None and self.done == 0 else whole.part(self.done, stop)
            self._backend.execute(part, self._arenas, self._kernel, on_batch)
        self.done = stop

    def results(self) -> list[Any]:
        """What each instance returns. Raises GraphError before the last batch has run."""
        if self.done < self._segment.stop:
            raise GraphError(f"results: expected all {self._segment.stop} batches to have run, got {self.done}")
        with WithoutGradients():
            return collect(self._capture, self._segment.placement, self._arenas, self._wants)

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *_: object) -> None:
        self._arenas.release()
