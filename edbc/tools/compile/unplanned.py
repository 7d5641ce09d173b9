"""Executing the segments of a mini-batch whose instances read values while there is no plan yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    Where other processes have the cores, one call of index_add took 7.8 ms by two threads and 0.04 by one. `kernels` of
    the same model, by signature, are taken, and get those that are made.
    """

    def __init__(self, model: nn.Module, view: ModelView, table: TypeTable, kernels: dict[str, Any] | None = None):
        self.captures: list[Capture] = []
        self._of = model, view, table, {} if kernels is None else kernels
        self._net: Net | None = None

    @torch_threads(1)
    def __call__(self, captured: Capture) -> Sequence[Table]:
        """See `edbc.capture.forward.cutting.RunSegment`."""
        self.captures.append(captured)
        if self._net is None:
            self._net = _Unplanned(*self._of)
        return self._net.execute(self._net.prepare_captured(captured))

    def taken(self, last: Capture) -> list[Capture]:
        """The segments of the mini-batch whose last one this is; the next one begins. Those that were executed before
        it was recorded anew are none of it."""
        before = 0 if last.reads is None else last.reads.segments
        segments, self.captures = [*self.captures[len(self.captures) - before :], last], []
        return segments


class _Unplanned(Net):
    """One whose types run as they are defined."""

    def __init__(self, model: nn.Module, view: ModelView, table: TypeTable, kernels: dict[str, Any]):
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
        super().__init__(plan, model, rebind=False, backend="reference")
        self.view, self.table, self._has_warned, self._made = view, table, True, kernels

    def _new_kernel(self, kind: int) -> Any:
        node_type = self.table.types[kind]
        assert node_type is not None
        signature = node_type.signature
        if signature not in self._made:
            self._made[signature] = super()._new_kernel(kind)
        return self._made[signature]
