"""Executing a mini-batch in steps: the host may stop behind any batch, look at values and go on.

Definitions.

(1) A *value* is an output of a node: a pair (node, output), numbered as in the mini-batch's graph.
(2) A *segment* is what runs without the host looking: the batches from where execution stands up to a given one.
    Cutting a mini-batch into segments changes no number.
    A value of a transient type can be looked at until the type's next batch has run.
(3) The *keep-set* are values that outlive the execution. Memory belongs to the mini-batch while it executes and to the
    next one afterwards, so kept values are copied out once, when the last segment has run.

Value-dependent control flow stops to look (2); a backward pass keeps what its derivatives need (3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.capture.code.shadow import ModelView
from edbc.errors import GraphError
from edbc.run.backend import Backend, KernelOfType
from edbc.run.passes.arenas import Arenas, Shared
from edbc.run.passes.boundary import Wanted, collect, load_externals

if TYPE_CHECKING:
    from edbc.run.passes.minibatch import MiniBatch

Value = tuple[int, int]
"""Definition (1)."""


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
    """One mini-batch while it executes; a context, at whose end its memory goes back to the pool.

    `kept` holds the keep-set once the context has ended without an exception.
    """

    def __init__(self, backend: Backend, prepared: MiniBatch, kernel: KernelOfType, view: ModelView,
                 keep: Iterable[Value] = (), shared: Shared | None = None):  # fmt: skip
        self._backend, self._capture, self._kernel = backend, prepared.capture, kernel
        self._segment = segment = prepared.segment
        self._keep = list(dict.fromkeys(keep))
        self.kept: dict[Value, torch.Tensor] = {}
        self.done = 0
        """Batches that have run."""
        self._check(self._keep, segment.stop)
        with WithoutGradients():
            self._arenas = _loaded(backend, prepared, view, shared)
        self._wants = prepared.boundary.wants

    def run(self, until: int | None = None, on_batch: Callable[[int], None] | None = None) -> None:
        """The next segment, definition (2): batches up to `until`, all that are left without it. `on_batch` is called
        after each."""
        stop = self._segment.stop if until is None else until
        if not self.done <= stop <= self._segment.stop:
            raise GraphError(f"expected to stop behind batch {self.done} to {self._segment.stop}, got {stop}")
        with WithoutGradients():
            whole = self._segment
            part = whole if until is None and self.done == 0 else whole.part(self.done, stop)
            self._backend.execute(part, self._arenas, self._kernel, on_batch)
        self.done = stop

    def values(self, of: Sequence[Value]) -> list[torch.Tensor]:
        """Copies of values. Raises GraphError for one that is not computed yet."""
        self._check(of, self.done)
        graph, placement = self._segment.graph, self._segment.placement
        nodes, outputs = np.array(of, np.int64).reshape(-1, 2).T
        rows = placement.value_rows(nodes, outputs)
        classes = placement.value_classes(graph.node_type[nodes], outputs)
        found: list[Any] = [None] * len(of)
        for c in np.unique(classes).tolist():
            which = np.flatnonzero(classes == c)
            picked = self._arenas.rows(c, rows[which]).view(len(which), *placement.classes[c].shape)
            for i, tensor in zip(which.tolist(), picked, strict=True):
                found[i] = tensor
        return found

    def _check(self, of: Sequence[Value], done: int) -> None:
        graph = self._segment.graph
        available = graph.num_outputs() if of else ()
        for node, output in of:
            if not 0 <= node < graph.num_nodes or not 0 <= output < available[node]:
                raise GraphError(f"value ({node}, {output}): expected an output of one of {graph.num_nodes} nodes")
            batch = int(self._segment.placement.batch_of[node])
            if batch >= done:
                raise GraphError(
                    f"value ({node}, {output}): expected one of the first {done} batches, got one of batch {batch}; "
                    "run further"
                )
            kind = int(graph.node_type[node])
            if graph.types[kind].transient and kind in self._segment.schedule.batch_type[batch + 1 : done]:
                raise GraphError(
                    f"value ({node}, {output}): expected one that is kept, got one of the transient type "
                    f"{graph.types[kind].name}, whose next batch has run; look earlier"
                )

    def results(self) -> list[Any]:
        """What each instance returns. Raises GraphError before the last batch has run."""
        if self.done < self._segment.stop:
            raise GraphError(f"results: expected all {self._segment.stop} batches to have run, got {self.done}")
        with WithoutGradients():
            return collect(self._capture, self._segment.placement, self._arenas, self._wants)

    def __enter__(self) -> Execution:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._keep:
                self.kept = dict(zip(self._keep, self.values(self._keep), strict=True))
        finally:
            self._arenas.release()
