"""Executing the segments of a mini-batch whose instances read values (`edbc.capture.forward.fibers`)."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edbc.capture.forward.build import Capture
    from edbc.capture.forward.carried import Table
    from edbc.capture.forward.cutting import Segment
    from edbc.run.passes.arenas import Shared
    from edbc.run.passes.minibatch import MiniBatch, OnSegment
    from edbc.run.session import Net, Stats


class Segments:
    """What executes each segment of one mini-batch but the last, and what that took. `on_segment` is called before each
    executes, and what it returns after each of its batches; passes named in `without` are left out."""

    def __init__(self, net: Net, stats: Stats | None = None, on_segment: OnSegment | None = None,
                 without: Collection[str] = ()):  # fmt: skip
        self.net = net
        self.stats = stats
        self.on_segment = on_segment
        self.without = without
        self.shared: Shared = {}
        self.scheduling = 0.0
        self.execution = 0.0
        self.prepared: list[MiniBatch] = []
        """To be counted; the last ones, where the mini-batch was recorded anew."""

    def again(self, segment: Segment) -> Sequence[Table] | None:
        """See `edbc.capture.forward.cutting.RunSegment`."""
        is_told = self.stats is not None or self.on_segment is not None or self.without
        return None if is_told else self.net.run_segment(segment, self.shared)

    def __call__(self, captured: Capture) -> Sequence[Table]:
        """The same."""
        started = time.perf_counter()
        prepared = self.net.prepare_captured(captured, self.without)
        if self.stats is not None:
            self.prepared.append(prepared)
        on_batch = None if self.on_segment is None else self.on_segment(prepared)
        executing = time.perf_counter()
        tables = self.net.execute(prepared, on_batch, self.shared)
        self.scheduling += executing - started
        self.execution += time.perf_counter() - executing
        return tables
