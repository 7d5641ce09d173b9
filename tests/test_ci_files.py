"""The GitHub Action and the pre-commit hook, as files: what they run does what they say."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import command

GH = """#!/usr/bin/env bash
echo "$*" >> "$GH_LOG"
case "$*" in *--jq*) cat "$GH_OLD" 2>/dev/null || true ;; *body=@*) cp "${@: -1:1}" /dev/null 2>/dev/null || true
for word in "$@"; do case "$word" in body=@*) cp "${word#body=@}" "$GH_BODY" ;; esac; done ;; esac
"""
WHO = {"GIT_AUTHOR_NAME": "you", "GIT_AUTHOR_EMAIL": "y@example.org", "GIT_COMMITTER_NAME": "you",
       "GIT_COMMITTER_EMAIL": "y@example.org", "GIT_CONFIG_GLOBAL": "/dev/null"}  # fmt: skip


class Checkout:
    """A repository with a model and its plan committed, and programs `edbc` and `gh` on its PATH."""

    def __init__(self, folder: Path, repository: Path):
        self.folder, self.repository = folder, repository
        programs = folder / ".programs"
        programs.mkdir()
        self._program(programs / "edbc", f'#!/usr/bin/env bash\nexec {sys.executable} -m edbc "$@"\n')
        self._program(programs / "gh", GH)
        self.environment = {
            **os.environ, **WHO, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(repository),
            "GH_LOG": str(folder / ".log"), "GH_OLD": str(folder / ".old"), "GH_BODY": str(folder / ".body"),
            "GITHUB_REPOSITORY": "owner/name", "PULL": "7", "PLANS": "plans", "AGAINST": "HEAD",
        }  # fmt: skip
        self.edbc("new", "trees")
        self.compile("critical")
        self.bash("git init --quiet . && git add trees.py plans && git commit --quiet -m Trees")

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def bash(self, command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command there."""
        return subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, check=check)  # fmt: skip

    def edbc(self, *arguments: str) -> None:
        """Run a command there, in this process."""
        with contextlib.chdir(self.folder):
            done = command(*arguments)
        assert done.exit_code == 0, done.output

    def compile(self, policy: str) -> None:
        """The plan anew."""
        self.edbc("compile", "trees.py", "-o", "plans/trees.yaml", "--quiet", "--policy", policy)

    def comment(self) -> str:
        """Run the action's script; the body that was sent, or nothing."""
        body = self.folder / ".body"
        body.unlink(missing_ok=True)
        self.bash(str(self.repository / ".ci" / "comment"))
        return body.read_text() if body.exists() else ""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """One for all tests of the file."""
    if shutil.which("git") is None or shutil.which("bash") is None:
        pytest.skip("no git or no bash on PATH")
    return Checkout(tmp_path_factory.mktemp("checkout"), Path(__file__).parents[1])


@pytest.mark.compiled
def test_the_comment_follows_the_plans(checkout: Checkout) -> None:
    """None without changes; one that is written at the first, edited at the next, and says so when they are gone."""
    log, old = checkout.folder / ".log", checkout.folder / ".old"
    assert checkout.comment() == ""

    checkout.compile("depth")
    first = checkout.comment()
    assert first.startswith("<!-- edbc plan changes -->\n### `HEAD:plans/trees.yaml` → `plans/trees.yaml`: worse")
    assert "| batches | 12 | 22 | lower | **regressed** |" in first
    assert "-X PATCH" not in log.read_text()

    old.write_text("99\n")
    assert checkout.comment() == first
    assert "-X PATCH repos/owner/name/issues/comments/99" in log.read_text()

    checkout.bash("git checkout --quiet plans/trees.yaml")
    assert checkout.comment() == "<!-- edbc plan changes -->\nNo plan changes any more.\n"


@pytest.mark.slow
@pytest.mark.compiled
def test_steps_of_the_action_run(checkout: Checkout, repository: Path) -> None:
    """The action is composite, every step names its shell, its script is there, and its check passes and fails."""
    action: dict[str, Any] = yaml.safe_load((repository / "action.yml").read_text())
    steps = action["runs"]["steps"]
    assert action["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" for step in steps)
    used = {word for step in steps for word in str(step).replace("}", " ").split() if word.startswith("inputs.")}
    assert {word.removeprefix("inputs.") for word in used} <= set(action["inputs"])
    script = steps[1]["run"].replace("${{ github.action_path }}", str(repository))
    assert os.access(script, os.X_OK)

    check = steps[-1]["run"]
    assert "1 of 1 plan passed" in checkout.bash(check).stdout
    checkout.bash("sed -i 's/batches: {value: 12/batches: {value: 11/' plans/trees.yaml")
    failed = checkout.bash(check, check=False)
    checkout.bash("git checkout --quiet plans/trees.yaml")
    assert failed.returncode == 1
    assert "::error file=plans/trees.yaml" in failed.stdout


@pytest.mark.compiled
def test_the_hook_checks_the_plans_of_a_commit(checkout: Checkout, repository: Path) -> None:
    """The hook's entry takes names of plans, and its pattern finds plans and nothing else."""
    import re

    (hook,) = yaml.safe_load((repository / ".pre-commit-hooks.yaml").read_text())
    names = ["plans/trees.yaml", "a/plans/b.yaml", "plans/b.txt", "myplans/a.yaml", "models/trees.py"]

    assert [name for name in names if re.search(hook["files"], name)] == names[:2]
    assert hook["language"] == "system"
    assert "1 of 1 plan passed" in checkout.bash(f"{hook['entry']} {names[0]}").stdout
