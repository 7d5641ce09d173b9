"""Commands of edbc, in the process of the tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

from click.testing import CliRunner, Result

from edbc.tools.cli import main


def command(*arguments: object) -> Result:
    """What a command does: `command("run", path, "--limit", 3)`."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder, as nobody in particular."""
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)
