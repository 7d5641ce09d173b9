"""`edbc diff`: files, commits, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commands import git

GIT = shutil.which("git")
needs_git = pytest.mark.skipif(GIT is None, reason="no git on PATH")


@pytest.fixture
def repository_of_plans(workspace: Path) -> Path:
    """The workspace as a git repository with one commit."""
    git(workspace, "init", "--quiet")
    git(workspace, "add", ".")
    git(workspace, "commit", "--quiet", "-m", "plans")
    return workspace


def loosen(plan: Path) -> None:
    """Make the guarded number of batches worse by 100."""
    before = plan.read_text()
    after = before.replace("guards:\n  batches: {value: ", "guards:\n  batches: {value: 1")
    assert after != before
    plan.write_text(after)


def test_equal_plans_have_no_difference(edbc, compiled: Path) -> None:
    """A plan and itself: one line, exit 0."""
    plan = compiled / "plans" / "tree_lstm.yaml"
    result = edbc("diff", plan, plan, "--exit-code")

    assert result.exit_code == 0
    assert result.output.endswith(": no difference\n")


def test_a_worse_plan_is_told_and_exits_1_when_asked(edbc, workspace: Path) -> None:
    """A regressed metric is named with both values; the exit code is 1 with `--exit-code` only."""
    old = workspace / "plans" / "tree_lstm.yaml"
    new = workspace / "plans" / "new.yaml"
    shutil.copy(old, new)
    loosen(new)

    assert "batches" in edbc("diff", old, new).output
    assert edbc("diff", old, new).exit_code == 0
    assert edbc("diff", old, new, "--exit-code").exit_code == 1
    assert edbc("diff", new, old, "--exit-code").exit_code == 0


def test_forms_for_people_and_programs(edbc, workspace: Path) -> None:
    """Markdown is a comment, JSON one object with a schema version."""
    old = workspace / "plans" / "tree_lstm.yaml"
    new = workspace / "plans" / "new.yaml"
    shutil.copy(old, new)
    loosen(new)
    comment = edbc("diff", old, new, "--format", "markdown").output
    content = json.loads(edbc("diff", old, new, "--format", "json").stdout)

    assert "**regressed**" in comment
    assert (content["schema"], content["worse"]) == (1, True)


@needs_git
def test_the_old_plan_may_stand_at_a_commit(edbc, repository_of_plans: Path) -> None:
    """`HEAD:path` reads the committed plan, not the edited one."""
    plan = repository_of_plans / "plans" / "tree_lstm.yaml"
    loosen(plan)

    assert "regressed" in edbc("diff", f"HEAD:{plan}", plan).output


@needs_git
@pytest.mark.parametrize("old", ["nowhere:PLAN", "--help:PLAN", "HEAD:PLAN.missing"])
def test_a_commit_or_file_that_does_not_exist_is_refused(edbc, repository_of_plans: Path, old: str) -> None:
    """A revision that git cannot name, one that looks like an option, and a file that the commit lacks exit 3."""
    plan = repository_of_plans / "plans" / "tree_lstm.yaml"
    result = edbc("diff", "--", old.replace("PLAN", str(plan)), plan)

    assert result.exit_code == 3
    assert "Traceback" not in result.output
