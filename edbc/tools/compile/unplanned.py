"""Executing the segments of a mini-batch whose instances read values while there is no plan yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from edbc.native.threads import torch_threads
from edbc.plan.plan import ModelRef, Plan, PlanPolicy, TrainedOn
from edbc.run.session import Net

if TYPE_CHECKING:
    from edbc.capture.code.shadow import ModelView
    from edbc.capture.forward.build import Capture
    from edbc.capture.forward.carried import Table
    from edbc.capture.record.table import TypeTable


class SegmentsUnplanned:
    """What executes segments: the types of a table run as they are defined. `captures` are the segments so far.

    One thread runs them: they are calls of few rows, for each of which others would have to be waked and waited for.
    Where other processes have the cores, one call of index_add took 7.8 ms by two threads and 0.04 by one.
    """

    def __init__(self, model: nn.Module, view: ModelView, table: TypeTable):
        self.captures: list[Capture] = []
        self._of = model, view, table
        self._net: Net | None = None

    @torch_threads(1)
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
