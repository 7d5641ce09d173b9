"""Commands on odd files, names and numbers: one line that says what is there and what to do, the right exit code, no
traceback, nothing lost, and no work done first."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from chains import write_lengths
from click.testing import Result

LINES = b"1\n2\n3\n"


def one_line_error(result: Result, code: int, *words: str) -> None:
    """Exit `code` and one line on stderr with these words; nothing of Python's."""
    last = result.stderr.splitlines()[-1]
    assert result.exit_code == code, (result.exit_code, result.output, result.exception)
    assert last.startswith("Error: ")
    assert "Traceback" not in result.stderr
    assert last.isprintable()
    assert len(last) < 2_500
    assert [word for word in words if word not in last] == []


def a_folder(path: Path) -> None:
    path.mkdir()


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_loop(path: Path) -> None:
    path.symlink_to(path.name)


def a_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def nothing(path: Path) -> None:
    pass


KINDS = {
    a_folder: "got a folder",
    a_pipe: "got a pipe",
    a_loop: "too many levels of symbolic links",
    a_dangling_link: "got a link that leads nowhere",
    nothing: "got nothing",
}
READERS = {
    "input": (("run", "{plan}", "--input", "{odd}"), 3),
    "training data": (("train", "{model}", "{plan}", "--dev", "{odd}"), 3),
    "data to compile on": (("compile", "{model}", "-o", "{new}", "--input", "{odd}"), 3),
    "weights": (("run", "{plan}", "--weights", "{odd}"), 3),
    "model": (("compile", "{odd}", "-o", "{new}"), 3),
    "model of a plan": (("run", "{plan}", "--model", "{odd}"), 4),
    "model to train": (("train", "{odd}", "{plan}"), 3),
    "plan to check": (("check", "{odd}"), 3),
}


def filled(command: tuple[str, ...], chain: Path, odd: str | Path) -> list[str]:
    names = {"plan": chain, "model": chain.with_suffix(".py"), "new": chain.with_name("new.yaml"), "odd": odd}
    return [part.format(**names) for part in command]


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_named(reader: str, make: Callable[[Path], None], edbc, chain: Path, tmp_path: Path) -> None:
    """A folder, a pipe (which is not waited for), a link that leads nowhere or to itself: said as what it is."""
    command, code = READERS[reader]
    odd = tmp_path / "odd.py"
    make(odd)
    if reader == "plan to check" and make is a_folder:
        return  # a folder of plans

    one_line_error(edbc(*filled(command, chain, odd)), code, "odd.py: expected ", KINDS[make])
    assert not chain.with_name("new.yaml").exists()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("name", "words"), [("a" * 5_000, "file name too long"), ("a\nb\x1b[31m", "a\\nb\\x1b[31m: expected ")],
    ids=["long", "control characters"],
)  # fmt: skip
def test_odd_names_stay_on_one_line(reader: str, name: str, words: str, edbc, chain: Path) -> None:
    """Names that no disk holds are shortened, control characters are escaped."""
    command, code = READERS[reader]
    one_line_error(edbc(*filled(command, chain, name)), code, words)


@pytest.mark.parametrize("command", [
    ("run", ""), ("check", ""), ("compile", "", "-o", "x.yaml"), ("compile", "{model}", "-o", ""), ("new", ""),
    ("run", "{plan}", "--input", ""), ("run", "{plan}", "--output", ""), ("diff", "", "{plan}"), ("models", ""),
    ("compile", "{model}", "-o", "x.yaml", "--costs", ""), ("compile", "{model}", "-o", "x.yaml", "--weights", ""),
])  # fmt: skip
def test_an_empty_name_is_a_mistake_of_usage(command: tuple[str, ...], edbc, chain: Path) -> None:
    """A variable that a script left unset does not mean the current folder."""
    one_line_error(edbc(*filled(command, chain, "")), 2, "expected a name, got an empty one")


def test_a_file_that_may_not_be_read_is_invalid_input(edbc, chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 3 as for every input that cannot be read, not click's 2."""
    path = write_lengths(chain.parent, 1)
    monkeypatch.setattr(os, "access", lambda name, mode: Path(name) != path)
    one_line_error(
        edbc("run", chain, "--input", path), 3, "lengths.txt: expected an input file, got a file that may not"
    )


@pytest.mark.parametrize("content", [gzip.compress(LINES), LINES.decode().encode("utf-16"), LINES + b"\0\n", b"\n" * 3,
                                     LINES + b"\xff\n", b"7" * 1_000_000], ids=[
    "gzip", "utf-16", "null", "blank", "not utf-8", "one long line"])  # fmt: skip
def test_what_load_cannot_read_is_told_with_file_and_instance(content: bytes, edbc, chain: Path) -> None:
    """What the model's own reader raises has its traceback, and ends in one line of bounded length."""
    path = chain.with_name("odd.txt")
    path.write_bytes(content)
    result = edbc("run", chain, "--input", path)
    last = result.stderr.splitlines()[-1]

    assert result.exit_code == 3
    assert last.startswith("Error: chain.py: load raised ")
    assert " of odd.txt)" in last
    assert len(last) < 2_500


@pytest.mark.parametrize("content", [b"", LINES.replace(b"\n", b"\r\n"), LINES.rstrip()])
def test_empty_files_and_foreign_line_ends_run(content: bytes, edbc, chain: Path) -> None:
    """No instance is no error where nothing is learned from it."""
    path = chain.with_name("odd.txt")
    path.write_bytes(content)
    assert edbc("run", chain, "--input", path).exit_code == 0
    assert edbc("explain", chain, "--input", path).exit_code == 0


NUMBERS = [
    ("run", "{plan}", "--batch-size", str(10**21)), ("run", "{plan}", "--limit", str(10**12)),
    ("run", "{plan}", "--batch-size", "1.5"), ("train", "{model}", "{plan}", "--batch-size", str(10**21)),
    ("train", "{model}", "{plan}", "--epochs", str(10**12)), ("compile", "{model}", "-o", "x.yaml", "--seed", "-1"),
    ("run", "{plan}", "--set", "hidden_size=8", "--set", "hidden_size=16"),
]  # fmt: skip


@pytest.mark.parametrize("command", NUMBERS, ids=lambda command: " ".join(command[-2:]))
def test_numbers_that_overflow_are_mistakes_of_usage(command: tuple[str, ...], edbc, chain: Path) -> None:
    """And so is a key that is set twice."""
    one_line_error(edbc(*filled(command, chain, "")), 2)


VALUES = [
    (("bench", "{plan}", "--batch-size", str(10**9)), "--batch-size 1000000000: expected integers from 1 to 1,000,000"),
    (("bench", "{plan}", "--batch-size", ""), "--batch-size '': expected integers"),
    (("bench", "{plan}", "--against", "dept"), "did you mean 'depth'?"),
    (("compile", "{model}", "-o", "x.yaml", "--encoding", "sorted"), "encoding: expected one of base, max, sort,"),
    (("train", "{model}", "{plan}", "--lr", "nan"), "lr: expected a positive number, got nan"),
    (("train", "{model}", "{plan}", "--lr", "inf"), "lr: expected a positive number, got inf"),
    (("run", "{plan}", "--set", f"hidden_size={'9' * 5_000}"), "--set hidden_size: expected int, got '999"),
]


@pytest.mark.parametrize(("command", "words"), VALUES, ids=lambda value: " ".join(value[-2:])[:40])
def test_values_that_nothing_can_be_done_with(command: tuple[str, ...], words: str, edbc, chain: Path) -> None:
    """Exit 3 before anything is compiled, made up or trained."""
    one_line_error(edbc(*filled(command, chain, "")), 3, words)


def test_a_build_that_fails_names_its_config(edbc, chain: Path) -> None:
    """`--set` is looked at first when building fails."""
    result = edbc("run", chain, "--set", "hidden_size=-1")
    assert result.exit_code == 3
    assert "chain.py: build(hidden_size=-1) raised RuntimeError: " in result.stderr


def test_a_table_begins_with_its_first_row(edbc, chain: Path) -> None:
    """What cannot be measured prints no head of a table, and several sizes print one."""
    refused = edbc("bench", chain, "--set", "hidden=3")
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert "unknown config key 'hidden'" in refused.stderr
    measured = edbc("bench", chain, "--limit", 2, "--rounds", 1, "--batch-size", "1,2", "--against", "")
    assert [line.split()[0] for line in measured.stdout.splitlines()] == ["plan", "chain", "chain"]


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_sizes_of_nought_run(edbc, chain: Path) -> None:
    """Tensors without elements in every vector of a cell."""
    assert edbc("run", chain, "--set", "hidden_size=0", "--verify", "--limit", 4).exit_code == 0


OVERWRITES = [
    ("run", "{plan}", "--limit", "2", "--output", "{odd}"), ("run", "{plan}", "--limit", "2", "--trace", "{odd}"),
    ("compile", "{model}", "-o", "{odd}"), ("compile", "{model}", "-o", "{new}", "--report", "{odd}"),
    ("explain", "{plan}", "--html", "{odd}"),
]  # fmt: skip


@pytest.mark.parametrize("command", OVERWRITES, ids=lambda command: f"{command[0]} {command[-2]}")
@pytest.mark.parametrize("victim", ["model", "plan", "input", "link", "hard link"])
def test_no_output_replaces_what_the_command_reads(command: tuple[str, ...], victim: str, edbc, chain: Path) -> None:
    """Not under another name of the same file either; and it is said before any work."""
    data = write_lengths(chain.parent, 1, 2)
    link, hard = chain.with_name("link"), chain.with_name("hard")
    link.symlink_to(data)
    hard.hardlink_to(data)
    odd = {"model": chain.with_suffix(".py"), "plan": chain, "input": data, "link": link, "hard link": hard}[victim]
    if victim == "plan" and command[0] == "compile":
        return  # compiling replaces a plan
    before = odd.read_bytes()

    one_line_error(
        edbc(*filled(command, chain, odd), "--input", data), 3, "got the name of another file of this command"
    )
    assert odd.read_bytes() == before


def test_two_outputs_have_two_names(edbc, chain: Path, tmp_path: Path) -> None:
    """The second would replace the first."""
    result = edbc("run", chain, "--output", tmp_path / "x", "--trace", tmp_path / "x")
    one_line_error(result, 3, "x: expected to write the timeline there, got the name of another file")


@pytest.mark.parametrize("command", OVERWRITES, ids=lambda command: f"{command[0]} {command[-2]}")
@pytest.mark.parametrize(("name", "words"), [(".", "got a folder"), ("no/x", "got nothing in place of its folder"),
                                             ("fifo", "got a pipe"), ("/dev/null", "got a device")])  # fmt: skip
def test_places_that_take_no_file_are_told_first(
    command: tuple[str, ...], name: str, words: str, edbc, chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before hours of work, not after them: the model is not even imported."""
    monkeypatch.chdir(chain.parent)
    os.mkfifo(chain.with_name("fifo"))
    if (command[:2], name) == (("compile", "{model}"), "no/x") and command[2:] == ("-o", "{odd}"):
        return  # the plan's folder is made
    result = edbc(*filled(command, chain, name))
    one_line_error(result, 3, f"{name}: expected to write ", words)
    assert not chain.with_name("new.yaml").exists()


def test_weights_beside_a_checkpoint_are_refused(edbc, chain: Path, tmp_path: Path) -> None:
    """`--resume` takes the checkpoint's; a file that is named beside it was ignored once."""
    result = edbc("train", chain.with_suffix(".py"), chain, "-o", tmp_path, "--resume", "--weights", "w.safetensors")
    one_line_error(result, 3, "weights: expected none with resume, got 'w.safetensors'", "leave one of the two out")


def test_other_errors_of_the_system_are_one_line(edbc, chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no command foresees: a file that goes away meanwhile, memory that ends."""
    for error, code, words in (
        (PermissionError(13, "Permission denied", "some/file"), 3, "some/file: expected to read or write there, got: "),
        (MemoryError(), 4, "out of memory"),
    ):

        def fail(*_: object, _error: Exception = error, **__: object) -> None:
            raise _error

        monkeypatch.setattr("edbc.tools.cli.run.run_run", fail)
        one_line_error(edbc("run", chain), code, words)
