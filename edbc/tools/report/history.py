"""Plans at other git commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

from edbc.errors import PlanError
from edbc.plan.plan import Plan
from edbc.plan.reader import parse_plan


def plan_at(revision: str, path: Path) -> Plan | None:
    """The plan that stood at `path` at a commit; None when the commit has no such file.

    Raises PlanError when git cannot name the commit, or the file was no plan then. Reads the repository only: unlike
    `git show`, `cat-file` runs no filter that the repository's settings name.
    """
    commit = _commit(revision, path)
    name = f"{commit}:./{path.name}"
    if _git(path.parent, "cat-file", "-e", name).returncode != 0:
        return None
    return parse_plan(_git(path.parent, "cat-file", "blob", name).stdout, f"{path} at {revision}")


def _commit(revision: str, path: Path) -> str:
    """The commit's hash, so that a branch that moves meanwhile does not matter."""
    found = _git(path.parent, "rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}")
    if found.returncode != 0:
        reason = found.stderr.decode(errors="replace").strip().splitlines()
        raise PlanError(
            f"{path}: expected a git commit to compare with, got {revision!r}"
            + (f" ({reason[0]})" if reason else "")
            + "; in CI fetch it first (fetch-depth: 0)"
        )
    return found.stdout.decode().strip()


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False)
    except OSError as error:
        raise PlanError(
            f"git: expected to run it, got: {error.strerror}; install git, or leave out the commit"
        ) from None
