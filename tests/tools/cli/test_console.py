"""What every command shares: progress on terminals of any width and in logs, colours, verbosity."""

from __future__ import annotations

from pathlib import Path

import pytest

from edbc.tools import console
from edbc.tools.console import ProgressLine, is_live_terminal, paint


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns that somebody watches."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)


def train(progress: ProgressLine, steps: int = 100) -> None:
    """Report a training of `steps` checks."""
    for done in range(1, steps + 1):
        progress("train", done, steps, {"batches": 40, "lower_bound": 22})
    progress.finish()


def test_a_terminal_has_one_changing_line_with_a_bar_and_the_bound(
    terminal: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Progress stays on one line, no longer than the terminal, with a bar and the batches against the bound."""
    monkeypatch.setattr(console, "is_live_terminal", lambda: True)
    train(ProgressLine())
    shown = capsys.readouterr().err

    assert shown.count("\n") == 1
    assert all(len(part) <= 80 for part in shown.split("\r"))
    assert "[###" in shown
    assert "40 batches (lower bound 22)" in shown


@pytest.mark.parametrize("columns", [20, 30, 50])
def test_narrow_terminals_lose_the_bar_and_never_wrap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """The share of a stage is what stays when there is little room."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(console, "is_live_terminal", lambda: True)
    train(ProgressLine())
    last = capsys.readouterr().err.rstrip("\n").split("\r")[-1]

    assert len(last) <= max(20, columns)
    assert last.startswith("train    100 %")


def test_logs_have_a_line_per_ten_per_cent(capsys: pytest.CaptureFixture[str]) -> None:
    """Where stderr is no terminal there are no bars and no carriage returns, and at most eleven lines."""
    train(ProgressLine())
    shown = capsys.readouterr().err

    assert "\r" not in shown
    assert "[" not in shown
    assert len(shown.splitlines()) == 11


def test_what_took_long_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The slowest stage first, stages of next to nothing left out; nothing is said of what was quick."""
    clock = iter([0, 0, 0, 1, 1, 1, 61, 61, 61, 61.5, 62])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    progress = ProgressLine()
    for stage in ("import", "train", "parity"):
        progress(stage, 0, 1, {})
    progress.tell_seconds()

    assert capsys.readouterr().err.splitlines()[-1] == "took 62 s: train 60 s"
    quick = ProgressLine()
    quick.tell_seconds()
    assert not capsys.readouterr().err


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """`--quiet` is silent."""
    train(ProgressLine(quiet=True))

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_continuous_integration_and_dumb_terminals_are_logs(
    terminal: None, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Some CI systems give a terminal that nobody watches."""
    assert is_live_terminal()
    monkeypatch.setenv(name, value)

    assert not is_live_terminal()


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR set to anything turns colours off; empty does not."""
    monkeypatch.setenv("NO_COLOR", "")
    assert paint("ok", "green") != "ok"
    monkeypatch.setenv("NO_COLOR", "1")

    assert paint("ok", "green") == "ok"


def test_verbose_prints_every_step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--verbose` every step has a line of its own, on terminals too."""
    monkeypatch.setattr(console, "is_live_terminal", lambda: True)
    monkeypatch.setattr(console, "is_verbose", lambda: True)
    train(ProgressLine())
    shown = capsys.readouterr().err

    assert len(shown.splitlines()) == 100
    assert "\r" not in shown


def test_verbose_errors_have_tracebacks(edbc, repository: Path, tmp_path: Path) -> None:
    """With `--verbose` an error comes with its traceback, without it as one line."""
    model = repository / "models" / "tree_lstm.py"
    arguments = ["compile", model, "-o", tmp_path / "p.yaml", "--set", "hidden_size=8", "--encoding", "sort"]
    plain = edbc(*arguments, "--input", tmp_path / "nothing.txt")
    verbose = edbc(*arguments, "--input", tmp_path / "nothing.txt", "--verbose")

    assert (plain.exit_code, verbose.exit_code) == (3, 3)
    assert "Traceback" not in plain.stderr
    assert "Traceback" in verbose.stderr


@pytest.mark.parametrize("columns", [40, 80])
def test_lines_fold_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """On a terminal a line is at most as wide as it, further lines stand two columns in; in a pipe it is left alone."""
    from edbc.tools.console import fold

    line = "  other policies on the same graph: agenda 694, chains 371, critical 368, depth 916, sufficient 427"
    monkeypatch.setenv("COLUMNS", str(columns))
    assert fold(line) == line
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    first, *further = fold(line).splitlines()

    assert max(map(len, [first, *further])) <= columns
    assert first.startswith("  other")
    assert further
    assert all(part.startswith("    ") for part in further)
    assert " ".join(part.strip() for part in [first, *further]) == line.strip()
