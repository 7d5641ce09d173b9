"""A run as a timeline in Chrome's trace format, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

One process with three tracks: *host* (building each mini-batch's graph, scheduling it), *batches* (every batch with
its type, size and bytes) and *segments* (those that instances wait for, with how many do, and copies of what they read
to the host). Times are microseconds from the first event. To time batches apart each runs alone, so a
traced run is somewhat slower than others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edbc.base.files import write_text
from edbc.tools.explain.observe import moved_bytes

if TYPE_CHECKING:
    from edbc.capture.forward.fibers import Reads
    from edbc.run.passes.minibatch import MiniBatch, Observer
    from edbc.run.session import Net, Stats

PROCESS, HOST, BATCHES, SEGMENTS = 1, 1, 2, 3
"""The process, and its tracks."""


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
            observer: Observer | None = None) -> list[Any]:  # fmt: skip
        """What `net(instances)` gives, recorded. `observer` is told between passes."""
        before = (stats.seconds.construction, stats.seconds.scheduling)
        started = time.perf_counter()
        self._origin = self._origin or started
        prepared = net.prepare(instances, stats, observer=observer)
        if prepared.capture.reads is not None:
            self._add_segments(prepared.capture.reads)
        capture_seconds = stats.seconds.construction - before[0]
        scheduling_seconds = stats.seconds.scheduling - before[1]
        captured, schedule = prepared.whole
        nodes = captured.graph.num_nodes + prepared.shared_nodes
        facts = {"mini_batch": self._mini_batches, "instances": len(instances), "nodes": nodes}
        self._mini_batches += 1
        self._add("capture", HOST, started, capture_seconds, facts)
        batches = {**facts, "batches": schedule.num_batches}
        self._add("scheduling", HOST, started + capture_seconds, scheduling_seconds, batches)
        executing = time.perf_counter()
        ends: list[float] = []
        results = net.execute(prepared, lambda _, __: ends.append(time.perf_counter()))
        stats.seconds.execution += time.perf_counter() - executing
        self._add_batches(prepared, executing, ends)
        return results

    def _add_segments(self, reads: Reads) -> None:
        """Segments that were executed while instances waited, and copies of what they read."""
        for number, cut in enumerate(reads.cuts):
            facts = {"segment": number, "waiting": cut.live, "nodes": cut.nodes}
            self._add("segment", SEGMENTS, cut.begin, cut.executed - cut.begin, facts)
            if cut.copied_bytes:
                self._add("to host", SEGMENTS, cut.executed, cut.copied - cut.executed, {"bytes": cut.copied_bytes})

    def _add_batches(self, prepared: MiniBatch, begin: float, ends: Sequence[float]) -> None:
        types = prepared.capture.graph.types
        for number, ((kind, nodes), end) in enumerate(zip(prepared.schedule.batches(), ends, strict=True)):
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
            self._add(types[kind].name, BATCHES, begin, end - begin, facts)
            begin = end

    def _add(self, name: str, track: int, begin: float, seconds: float, facts: dict[str, Any]) -> None:
        start, end = self._nanoseconds(begin), self._nanoseconds(begin + seconds)
        span = {"ts": start / 1000, "dur": (end - start) / 1000}
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
