"""A run as a timeline in Chrome's trace format, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

One process with three tracks: *host* (building each mini-batch's graph, scheduling it), *batches* (every batch with its
type, size and bytes) and *segments* (those that instances wait for, each of which is built, scheduled and run by
itself, with how many do, and copies of what they read to the host). Times are microseconds from the first event. To
time batches apart each runs alone, so a traced run is somewhat slower than others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edbc.base.files import write_text
from edbc.tools.explain.observe import moved_bytes

if TYPE_CHECKING:
    from edbc.capture.forward.fibers import Cut
    from edbc.run.passes.minibatch import MiniBatch, Observer, OnBatch
    from edbc.run.session import Net, Stats

PROCESS, HOST, BATCHES, SEGMENTS = 1, 1, 2, 3
"""The process, and its tracks."""


@dataclass
class _Segment:
    """What is executed at once: a mini-batch, or what instances wait for."""

    prepared: MiniBatch
    begin: float
    """When it was ready to run."""
    ends: list[float] = field(default_factory=list)
    """Of its batches."""

    def on_batch(self, _batch: MiniBatch, _number: int) -> None:
        """The next one has run."""
        self.ends.append(time.perf_counter())


class Timeline:
    """Collects events while mini-batches run."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = [
            named("process_name", "edbc"),
            named("thread_name", "host", HOST),
            named("thread_name", "batches", BATCHES),
            named("thread_name", "segments", SEGMENTS),
        ]
        self._origin = 0.0
        self._mini_batches = 0

    def run(self, net: Net, instances: Sequence[Any], stats: Stats,
            observer: Observer | None = None) -> tuple[list[Any], MiniBatch]:  # fmt: skip
        """What `net.run(instances, stats)` gives, recorded. `observer` is told between passes, and of segments that
        they are placed."""
        since = time.perf_counter()
        self._origin = self._origin or since
        segments: list[_Segment] = []
        captured: list[float] = []

        def on_segment(prepared: MiniBatch) -> OnBatch:
            if observer is not None:
                observer("place", prepared)
            segments.append(_Segment(prepared, time.perf_counter()))
            return segments[-1].on_batch

        def observed(name: str, batch: MiniBatch) -> None:
            if name == "capture":
                captured.append(time.perf_counter())
            if observer is not None:
                observer(name, batch)

        last = _Segment(net.prepare(instances, stats, on_segment=on_segment, observer=observed), time.perf_counter())
        results = net.execute(last.prepared, last.on_batch)
        stats.seconds.execution += time.perf_counter() - last.begin
        facts = {"mini_batch": self._mini_batches, "instances": len(instances)}
        self._mini_batches += 1
        reads = last.prepared.capture.reads
        cuts = [] if reads is None else reads.cuts
        del segments[: len(segments) - len(cuts)]  # what was recorded anew
        for number, (segment, cut) in enumerate(zip(segments, cuts, strict=True)):
            self._add_on_host(segment, since, cut.begin, {**facts, "segment": number})
            self._add_segment(number, cut)
            since = cut.copied
        self._add_on_host(last, since, captured[-1], facts)
        for segment in (*segments, last):
            self._add_batches(segment)
        return results, last.prepared

    def _add_on_host(self, segment: _Segment, begin: float, captured: float, facts: dict[str, Any]) -> None:
        graph, schedule = segment.prepared.whole
        facts = {**facts, "nodes": graph.graph.num_nodes + segment.prepared.shared_nodes}
        self._add("capture", HOST, begin, captured, facts)
        self._add("scheduling", HOST, captured, segment.begin, {**facts, "batches": schedule.num_batches})

    def _add_segment(self, number: int, cut: Cut) -> None:
        """One that was executed while instances waited, and the copy of what they read."""
        facts = {"segment": number, "waiting": cut.live, "nodes": cut.nodes}
        self._add("segment", SEGMENTS, cut.begin, cut.executed, facts)
        if cut.copied_bytes:
            self._add("to host", SEGMENTS, cut.executed, cut.copied, {"bytes": cut.copied_bytes})

    def _add_batches(self, segment: _Segment) -> None:
        prepared, begin = segment.prepared, segment.begin
        types = prepared.capture.graph.types
        for number, ((kind, nodes), end) in enumerate(zip(prepared.schedule.batches(), segment.ends, strict=True)):
            read, gathered, written = moved_bytes(prepared, number, len(nodes))
            facts = {
                "batch": number,
                "type": types[kind].name,
                "size": len(nodes),
                "bytes_read": read,
                "bytes_gathered": gathered,
                "bytes_written": written,
                "source": types[kind].source,
            }
            self._add(types[kind].name, BATCHES, begin, end, facts)
            begin = end

    def _add(self, name: str, track: int, begin: float, end: float, facts: dict[str, Any]) -> None:
        first, last = self._nanoseconds(begin), self._nanoseconds(end)
        span = {"ts": first / 1000, "dur": (last - first) / 1000}
        self.events.append(
            {"name": name, "cat": "edbc", "ph": "X", "pid": PROCESS, "tid": track, **span, "args": facts}
        )

    def _nanoseconds(self, moment: float) -> int:
        """Whole ones, so that the end of a batch is the start of the next: readers nest what overlaps by any part."""
        return round(1e9 * (moment - self._origin))

    def write(self, path: str | Path) -> None:
        """The file, whole or not at all."""
        write_events(self.events, path)


def write_events(events: Sequence[dict[str, Any]], path: str | Path) -> None:
    """A timeline's file, whole or not at all."""
    content = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    write_text(path, content, "the timeline", "name another --trace")


def named(what: str, name: str, track: int = 0) -> dict[str, Any]:
    """The event that names a process or a track."""
    return {"name": what, "ph": "M", "pid": PROCESS, "tid": track, "args": {"name": name}}
