"""The pre-commit hook and the workflow that docs/ci.md shows ask for what the command line has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml


def test_the_hook_checks_plans_and_nothing_else(edbc, repository: Path) -> None:
    """The hook runs `edbc check` on YAML files in folders called plans."""
    (hook,) = yaml.safe_load((repository / ".pre-commit-hooks.yaml").read_text())
    files = re.compile(hook["files"])

    assert hook["entry"] == "edbc check"
    assert edbc("check", "--help").exit_code == 0
    assert files.search("plans/tree.yaml")
    assert files.search("team/plans/tree.yaml")
    assert not files.search("plans/notes.txt")
    assert not files.search("explans/tree.yaml")


def test_the_workflow_of_the_page_uses_options_that_exist(edbc, repository: Path) -> None:
    """The GitHub Actions snippet is YAML, and its check runs: in a folder without plans it says so, exit 3."""
    page = (repository / "docs" / "ci.md").read_text()
    snippet = next(block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "runs-on" in block)
    steps = yaml.safe_load(snippet)["jobs"]["check"]["steps"]
    command = next(step["run"] for step in steps if step.get("run", "").startswith("edbc "))
    words = shlex.split(command.replace("${{ github.base_ref }}", "main"))

    assert edbc(*[word.replace("plans/", "no-such-folder") for word in words[1:]]).exit_code == 3
