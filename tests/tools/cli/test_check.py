"""`edbc check`: passes what compiling again gives, fails on any alteration."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest


def test_a_fresh_plan_passes(edbc, compiled: Path) -> None:
    """A plan as compiled passes, in a folder and alone, and the model's hash covers its own imports."""
    result = edbc("check", compiled / "plans")

    assert result.exit_code == 0, result.output
    assert "1 of 1 plan passed" in result.output


def alter(path: Path, pattern: str, replacement: str) -> None:
    """Change one place of a plan's text; a pattern that is not there is a mistake of the test."""
    text = path.read_text()
    changed, count = re.subn(pattern, replacement, text, count=1, flags=re.MULTILINE)
    assert count == 1
    path.write_text(changed)


@pytest.mark.parametrize(
    ("pattern", "replacement", "told"),
    [
        (r"^    (.*\bout\b.*): internal$", r"    \1: out", "in state '"),
        (r"layout: \[([^,\]]+), ([^,\]]+),", r"layout: [\2, \1,", "layout"),
        (r"batches: \{value: (\d+)", r"batches: {value: 1", "batches"),
        (r"  trials: (\d+)", r"  trials: 9\1", "record"),
        (r"nodes: \d+", "nodes: 1", "trained_on: compiling again gives something else; does sample give equal"),
    ],
    ids=["action", "offset", "metric", "record", "training-set"],
)
def test_every_alteration_fails(edbc, workspace: Path, pattern: str, replacement: str, told: str) -> None:
    """One altered action, order, metric or record makes the check fail with exit 1 and says what."""
    path = workspace / "plans" / "tree_lstm.yaml"
    alter(path, pattern, replacement)
    result = edbc("check", path)

    assert result.exit_code == 1, result.output
    assert told in result.output


@pytest.mark.long
def test_a_guard_that_is_looser_than_the_metric_improves(edbc, workspace: Path) -> None:
    """A metric better than its guard passes as IMPROVED and says how to record it; `--strict` fails it."""
    path = workspace / "plans" / "tree_lstm.yaml"
    alter(path, r"gathered_rows: \{value: (\d+)", r"gathered_rows: {value: 9\1")
    result = edbc("check", path)

    assert result.exit_code == 0, result.output
    assert "IMPROVED" in result.output
    assert "--update" in result.output
    assert edbc("check", path, "--strict").exit_code == 1


@pytest.mark.long
def test_update_writes_what_compiling_gives_and_refuses_to_worsen(edbc, workspace: Path) -> None:
    """`--update` renews an altered plan; a worse metric needs `--accept-regression`."""
    path = workspace / "plans" / "tree_lstm.yaml"
    good = path.read_text()
    alter(path, r"batches: \{value: (\d+)", r"batches: {value: 1")
    edbc("check", path, "--update")
    assert path.read_text() != good
    edbc("check", path, "--update", "--accept-regression")

    assert path.read_text() == good


def test_a_stale_plan_exits_4_and_a_broken_one_3(edbc, workspace: Path) -> None:
    """An edited model file is stale, a plan cut in half broken; the worst plan decides the exit code."""
    path = workspace / "plans" / "tree_lstm.yaml"
    model = workspace / "models" / "tree_lstm.py"
    model.write_text(model.read_text() + "\nEDITED = True\n")
    stale = edbc("check", path)
    path.write_text(path.read_text()[:200])
    broken = edbc("check", path)

    assert (stale.exit_code, broken.exit_code) == (4, 3)


def test_json_lists_every_plan(edbc, compiled: Path) -> None:
    """`--format json` prints one object with a schema version and the metrics of each plan."""
    report = json.loads(edbc("check", compiled / "plans", "--format", "json").stdout)

    assert report["schema"] == 1
    assert report["passed"] is True
    assert report["plans"][0]["metrics"]["batches"] == report["plans"][0]["metrics"]["lower_bound"]


def test_a_folder_without_plans_is_refused(edbc, tmp_path: Path) -> None:
    """An empty folder is exit 3, not a silent pass."""
    assert edbc("check", tmp_path).exit_code == 3
