"""Shell completion: commands, options, their values, and files."""

from __future__ import annotations

import re

import click
import pytest
from click.shell_completion import BashComplete

from edbc.tools.cli import main


def completed(*words: str) -> list[str]:
    """What a shell is offered for the last word; `file` and `dir` stand for names of those."""
    *before, last = words
    found = BashComplete(main, {}, "edbc", "_EDBC_COMPLETE").get_completions(before, last)
    return [item.value if item.type == "plain" else item.type for item in found]


def test_commands_options_and_values() -> None:
    """Each is offered where it may stand."""
    assert completed("ex") == ["explain"]
    assert completed("compile", "--po") == ["--policy"]
    assert completed("run", "--device", "cu") == ["cuda"]


@pytest.mark.parametrize("name", [name for name in sorted(main.commands) if name not in ("new", "doctor")])
def test_names_of_files_are_completed(name: str) -> None:
    """Every argument of a command is a file, and so is every option that names one; `doctor` has none."""
    command = main.commands[name]
    options = [p for p in command.params if isinstance(p, click.Option)]
    named = [p for p in options if re.fullmatch(r"FILE|FOLDER|\w+\.\w+", p.metavar or "")]

    assert completed(name, "plans/t") == ["file"]
    for option in named:
        assert completed(name, option.opts[-1], "x") == ["file"], option.opts
