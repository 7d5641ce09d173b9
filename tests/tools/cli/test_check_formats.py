"""`edbc check`: forms, comparison with a commit, and exit codes of good, better, worse, stale and broken plans."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from commands import git

from edbc.plan.reader import read_plan
from edbc.tools.checking import Outcome, check_plan


def set_guard(plan: Path, name: str, change: int) -> None:
    """Move the value of a guard, which makes what is measured better or worse than it."""
    value = read_plan(plan).guards[name].value
    text = plan.read_text()
    changed = text.replace(f"  {name}: {{value: {value},", f"  {name}: {{value: {value + change},")
    assert changed != text
    plan.write_text(changed)


@pytest.fixture(scope="module")
def plans(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with five plans: good, improved, regressed, broken, and stale (of another model file)."""
    folder = Path(shutil.copytree(compiled, tmp_path_factory.mktemp("five") / "work")) / "plans"
    good = folder / "tree_lstm.yaml"
    for name in ("b_improved", "c_regressed", "d_broken", "e_stale"):
        shutil.copy(good, folder / f"{name}.yaml")
    good.rename(folder / "a_good.yaml")
    set_guard(folder / "b_improved.yaml", "gathered_rows", 5)
    set_guard(folder / "c_regressed.yaml", "batches", -1)
    (folder / "d_broken.yaml").write_text("format_version: 1\n")
    stale = folder / "e_stale.yaml"
    stale.write_text(stale.read_text().replace("models/tree_lstm.py", "models/tree_gru.py"))
    return folder


@pytest.fixture(scope="module")
def outcomes(plans: Path) -> dict[Path, Outcome]:
    """Each plan, checked."""
    return {path: check_plan(path) for path in sorted(plans.glob("*.yaml"))}


EXITS = {"a_good": 0, "b_improved": 0, "c_regressed": 1, "d_broken": 3, "e_stale": 4}


@pytest.mark.long
def test_every_status_has_its_exit_code(edbc, plans: Path, outcomes: dict[Path, Outcome]) -> None:
    """Alone each plan has the documented code, together they have the worst."""
    together = edbc("check", plans)

    assert {path.stem: outcome.exit_code for path, outcome in outcomes.items()} == EXITS
    assert together.exit_code == 4
    assert "2 of 5 plans passed; 1 regressed, 1 invalid, 1 stale" in together.output


@pytest.mark.long
def test_machine_forms_have_the_same_exit_code_and_nothing_else_on_stdout(
    edbc, plans: Path, outcomes: dict[Path, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JUnit's and GitHub's forms of the five plans parse, and the process still exits with the worst code."""
    monkeypatch.setattr("edbc.tools.cli.check.check_plan", lambda path, **_: outcomes[path])
    junit = edbc("check", plans, "--format", "junit")
    github = edbc("check", plans, "--format", "github")
    suite = ElementTree.fromstring(junit.stdout)

    assert (junit.exit_code, github.exit_code) == (4, 4)
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "1", "2")
    assert all(line.startswith("::") for line in github.stdout.splitlines())
    assert github.stdout.startswith("::notice title=edbc check::2 of 5 plans passed")


@pytest.mark.long
def test_an_update_that_is_refused_fails(edbc, workspace: Path) -> None:
    """`--update` on a plan that got worse exits 1 and writes nothing; accepted, it exits 0."""
    path = workspace / "plans" / "tree_lstm.yaml"
    good = path.read_text()
    set_guard(path, "batches", -1)
    worse = path.read_text()

    assert edbc("check", path, "--update").exit_code == 1
    assert path.read_text() == worse
    assert edbc("check", path, "--update", "--accept-regression").exit_code == 0
    assert path.read_text() == good


@pytest.fixture
def committed(workspace: Path) -> Path:
    """A plan in a git repository with one commit."""
    if shutil.which("git") is None:
        pytest.skip("no git on PATH")
    git(workspace, "init", "--quiet")
    git(workspace, "add", ".")
    git(workspace, "commit", "--quiet", "-m", "plans")
    return workspace / "plans" / "tree_lstm.yaml"


def commit_with_guard(plan: Path, name: str, change: int) -> None:
    """Commit another value of a guard, then put the plan back as it was."""
    text = plan.read_text()
    set_guard(plan, name, change)
    git(plan.parent, "commit", "--quiet", "-am", "other")
    plan.write_text(text)


def test_against_the_same_plan_passes(edbc, committed: Path) -> None:
    """Nothing changed since the commit: exit 0, no finding."""
    result = edbc("check", committed, "--against", "HEAD")

    assert result.exit_code == 0, result.output
    assert "REGRESSED" not in result.output


@pytest.mark.long
def test_against_a_better_commit_fails_unless_accepted(edbc, committed: Path) -> None:
    """A plan that is consistent in itself but needs more batches than at the commit regressed."""
    commit_with_guard(committed, "batches", -1)
    refused = edbc("check", committed, "--against", "HEAD")
    accepted = edbc("check", committed, "--against", "HEAD", "--accept-regression")

    assert (refused.exit_code, accepted.exit_code) == (1, 0)
    assert "at HEAD it was" in refused.output
    assert "REGRESSED" in accepted.output


def test_against_a_worse_commit_improves(edbc, committed: Path) -> None:
    """Fewer gathered rows than at the commit is an improvement and passes."""
    commit_with_guard(committed, "gathered_rows", 7)
    result = edbc("check", committed, "--against", "HEAD")

    assert result.exit_code == 0
    assert "IMPROVED" in result.output


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [("tolerance: 0", "tolerance: 50"), ("  kernels: ", "  copies2: ")],
    ids=["loosened", "dropped"],
)
def test_a_limit_that_was_loosened_or_dropped_is_a_regression(
    edbc, committed: Path, pattern: str, replacement: str
) -> None:
    """Against a commit, a larger tolerance and a guard that is gone both fail."""
    text = committed.read_text()
    if pattern.startswith("  kernels"):
        text = "\n".join(line for line in text.splitlines() if not line.startswith(pattern)) + "\n"
    committed.write_text(text.replace(pattern, replacement, 1))
    result = edbc("check", committed, "--against", "HEAD")

    assert result.exit_code == 1
    assert "looser than at HEAD" in result.output or "no longer guarded" in result.output


@pytest.mark.long
def test_a_new_plan_has_nothing_to_compare_with(edbc, committed: Path) -> None:
    """A plan that the commit lacks passes with a note; a commit that git cannot name exits 3."""
    new = committed.with_name("new.yaml")
    shutil.copy(committed, new)
    result = edbc("check", new, "--against", "HEAD")

    assert result.exit_code == 0
    assert "there was no such plan at HEAD" in result.output
    assert edbc("check", new, "--against", "nowhere").exit_code == 3
