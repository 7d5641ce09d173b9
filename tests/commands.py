"""Commands of edbc, in the process of the tests."""

from __future__ import annotations

from click.testing import CliRunner, Result

from edbc.tools.cli import main


def command(*arguments: object) -> Result:
    """What a command does: `command("run", path, "--limit", 3)`."""
    return CliRunner().invoke(main, [str(a) for a in arguments])
