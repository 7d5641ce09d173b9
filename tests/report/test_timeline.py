"""Timelines in Chrome's trace format."""

from __future__ import annotations

import json
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


def test_every_event_has_what_the_format_asks(trace: Any) -> None:
    """Complete events have a name, process, thread, start and length; other events name the threads."""
    for event in trace[0]:
        needed = {"name", "ph", "pid", "tid"} | ({"ts", "dur"} if event["ph"] == "X" else {"args"})
        assert needed <= event.keys()
        assert event["ph"] in "XM"
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def test_batches_follow_each_other_and_are_those_of_the_run(trace: Any) -> None:
    """There is one event per batch, in order and without overlap; their sizes sum to the nodes."""
    batches = spans(trace, 2)

    assert len(batches) == trace[1]["batches"]
    assert sum(batch["args"]["size"] for batch in batches) == trace[1]["nodes"]
    for before, after in zip(batches, batches[1:], strict=False):
        assert after["ts"] >= before["ts"] + before["dur"] - 0.01


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
