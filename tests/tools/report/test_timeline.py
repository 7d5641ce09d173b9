"""Timelines in Chrome's trace format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def trace(edbc, started: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Events of a run over 40 instances in two mini-batches, and the run's report."""
    file = tmp_path_factory.mktemp("trace") / "out.json"
    result = edbc("run", started / "plans" / "trees.yaml", "--limit", 40, "--trace", file, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(file.read_text())["traceEvents"], json.loads(result.stdout)


def spans(trace: Any, track: int) -> list[dict[str, Any]]:
    """Complete events of one track."""
    return [event for event in trace[0] if event["ph"] == "X" and event["tid"] == track]


FIELDS = {"X": {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"}, "M": {"name", "ph", "pid", "tid", "args"}}
"""Keys of Chrome's trace event format by phase: complete events and metadata."""
METADATA = {"process_name", "thread_name"}


def faults(events: list[dict[str, Any]]) -> Iterator[str]:
    """What a reader of the format would refuse, drop or misplace."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, event in enumerate(events):
        if event.keys() != FIELDS.get(event.get("ph", ""), set()):
            yield f"event {number}: keys {sorted(event)}"
            continue
        if not isinstance(event["name"], str) or type(event["pid"]) is not int or type(event["tid"]) is not int:
            yield f"event {number}: name, process or track is of another type"
        if event["ph"] == "M" and (event["name"] not in METADATA or not isinstance(event["args"].get("name"), str)):
            yield f"event {number}: metadata of another kind"
        if event["ph"] == "X":
            start, end = round(1000 * event["ts"]), round(1000 * (event["ts"] + event["dur"]))
            if start < 0 or end < start:
                yield f"event {number}: before the start, or of negative length"
            tracks.setdefault((event["pid"], event["tid"]), []).append((start, end))
    for track, spans in tracks.items():
        spans.sort()
        yield from (f"track {track}: {a} and {b} overlap" for a, b in pairwise(spans) if b[0] < a[1])
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    yield from (f"track {track} has no name" for track in tracks.keys() - named)


def test_the_file_is_in_chromes_format(trace: Any) -> None:
    """Keys, types, names of tracks; spans of a track do not overlap by a nanosecond; JSON's own numbers only."""
    assert list(faults(trace[0])) == []
    assert json.loads(json.dumps(trace[0], allow_nan=False)) == trace[0]


@pytest.mark.parametrize(
    "broken", [{"ph": "Q"}, {"dur": -1.0}, {"ts": -2.0}, {"tid": 7}, {"pid": "1"}, {"dur": 1e9}, {"name": 3}]
)
def test_the_judge_of_the_format_sees_faults(trace: Any, broken: dict[str, Any]) -> None:
    """Each altered event is found, so that no fault means something."""
    events = [dict(event) for event in trace[0]]
    first = next(event for event in events if event["ph"] == "X" and event["tid"] == 2)
    first.update(broken)

    assert list(faults(events))


def test_batches_follow_each_other_and_are_those_of_the_run(trace: Any) -> None:
    """There is one event per batch, in order and without overlap; their sizes sum to the nodes."""
    batches = spans(trace, 2)

    assert len(batches) == trace[1]["batches"]
    assert sum(batch["args"]["size"] for batch in batches) == trace[1]["nodes"]
    for before, after in zip(batches, batches[1:], strict=False):
        assert after["ts"] >= before["ts"]


def test_capture_and_scheduling_come_before_the_batches(trace: Any) -> None:
    """Each of the two mini-batches has both on the host's track."""
    assert [event["name"] for event in spans(trace, 1)] == ["capture", "scheduling"] * 2
    assert [event["args"]["instances"] for event in spans(trace, 1)][::2] == [32, 8]


def test_bytes_are_those_of_the_shapes(trace: Any) -> None:
    """A batch of `combine` reads two and writes one vector of 8 floats per node."""
    combined = [batch["args"] for batch in spans(trace, 2) if batch["name"] == "combine"]

    assert combined
    for facts in combined:
        assert (facts["bytes_read"], facts["bytes_written"]) == (facts["size"] * 64, facts["size"] * 32)
        assert 0 <= facts["bytes_gathered"] <= facts["bytes_read"]


def test_a_timeline_that_cannot_be_written_is_one_line(edbc, started: Path, tmp_path: Path) -> None:
    """A folder that does not exist exits 3 and leaves nothing behind."""
    target = tmp_path / "missing" / "out.json"
    result = edbc("run", started / "plans" / "trees.yaml", "--limit", 2, "--trace", target)

    assert result.exit_code == 3
    assert "--trace" in result.output
    assert list(tmp_path.iterdir()) == []
