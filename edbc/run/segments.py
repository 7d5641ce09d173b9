"""Executing the segments of a mini-batch whose instances read values (`edbc.capture.forward.fibers`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import nn

from edbc.plan.plan import ModelRef, Plan, PlanPolicy, TrainedOn

if TYPE_CHECKING:
    from edbc.capture.code.shadow import ModelView
    from edbc.capture.forward.build import Capture
    from edbc.capture.forward.carried import Table
    from edbc.capture.record.table import TypeTable
    from edbc.run.passes.arenas import Shared
    from edbc.run.session import Net, Prepared, Stats


class SegmentsUnplanned:
    """The same while there is no plan yet: the types of a table run as they are defined. `captures` are the segments so
    far."""

    def __init__(self, model: nn.Module, view: ModelView, table: TypeTable):
        self.captures: list[Capture] = []
        self._of = model, view, table
        self._net: Net | None = None

    def __call__(self, captured: Capture) -> Sequence[Table]:
        """See `edbc.capture.forward.cutting.RunSegment`."""
        self.captures.append(captured)
        if self._net is None:
            self._net = _without_plan(*self._of)
        return self._net.execute(self._net.prepare_captured(captured))

    def taken(self, last: Capture) -> list[Capture]:
        """The segments of the mini-batch whose last one this is; the next one begins."""
        segments, self.captures = [*self.captures, last], []
        return segments


def _without_plan(model: nn.Module, view: ModelView, table: TypeTable) -> Net:
    from edbc.run.session import Net

    plan = Plan(
        edbc="",
        model=ModelRef("", "", {}, 0),
        trained_on=TrainedOn("sample", (), 0, 0, 0),
        requirements=(),
        types=(),
        policy=PlanPolicy("critical", None, "critical", {}, {}),
        cells={},
        guards={},
    )
    net = Net(plan, model, rebind=False, backend="reference")
    net.view, net.table, net._has_warned = view, table, True
    return net


class Segments:
    """What executes each segment of one mini-batch but the last, and what that took. `on_segment` is called before each
    executes; `options` are those of `Net.prepare_captured`."""

    def __init__(self, net: Net, stats: Stats | None = None, on_segment: Callable[[Prepared], None] | None = None,
                 **options: bool):  # fmt: skip
        self.net = net
        self.stats = stats
        self.on_segment = on_segment
        self.options = options
        self.shared: Shared = {}
        self.scheduling = 0.0
        self.execution = 0.0

    def __call__(self, captured: Capture) -> Sequence[Table]:
        """See `edbc.capture.forward.cutting.RunSegment`."""
        started = time.perf_counter()
        prepared = self.net.prepare_captured(captured, **self.options)
        if self.stats is not None:
            self.net.count(self.stats, prepared)
        if self.on_segment is not None:
            self.on_segment(prepared)
        executing = time.perf_counter()
        tables = self.net.execute(prepared, shared=self.shared)
        self.scheduling += executing - started
        self.execution += time.perf_counter() - executing
        return tables
