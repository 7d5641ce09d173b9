"""Documentation that runs: the commands of a page, and the outputs that it shows.

A page is Markdown. Definitions:

(1) A block of language `console` holds commands, lines that begin with `$ `, each followed by what it prints on stdout.
    `edbc` runs in this process, everything else in bash. `$ echo $?` gives the exit code of the command before.
(2) A block of language `python` runs as a file in the same folder; its output is not shown. One that begins with
    `# NAME.py` is that file, for what comes after it.
(3) In an output a line `...` stands for any lines. Times, rates, shares of time and errors are figures of a machine:
    VOLATILE says which, and they match any figure of their kind.
(4) All blocks of a page run in order in one folder that is empty at the start; `$EDBC` is this checkout.
(5) Outside of such blocks a page shows no command in a block of its own but `make TARGET` and
    `python benchmarks/NAME.py`, which need the checkout or data.

With EDBC_UPDATE_DOCS set, outputs in the page are written anew, cut where the page had a line `...`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from fresh import run_script

from edbc.tools.cli import main

ROOT = Path(__file__).parents[3]
PAGES = [page.relative_to(ROOT).as_posix() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VOLATILE = [
    (r"-?\d[\d.,]*(?:e[+-]?\d+)? (?:ms|us|s)\b(?: *<?\d+ %)?(?: \(<?\d+ %\))?", "TIME"),
    (r"\d[\d,.]* (?:instances/s|times as fast)", "RATE"),
    (r"\d\.\d+e[+-]\d+", "ERROR"),
    (r"\bsha256 [0-9a-f]+|\b[0-9a-f]{16,64}\b", "HASH"),
    (r"<?\b\d+ %", "SHARE"),
    (r"(?<=\S)  +", "  "),
]


@dataclass(frozen=True)
class Command:
    """A line `$ ...` and the output that the page shows."""

    text: str
    shown: str


def commands(block: str) -> Iterator[Command]:
    """The commands of a console block, definition (1)."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        text, _, shown = part.partition("\n")
        yield Command(text, shown)


class Session:
    """One page in one folder, definition (4)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exit_code = 0

    def run(self, command: Command) -> str:
        """What a command prints."""
        if command.text == "echo $?":
            return f"{self.exit_code}\n"
        if command.text.startswith("edbc "):
            result = CliRunner().invoke(main, shlex.split(command.text)[1:], prog_name="edbc")
            self.exit_code = result.exit_code
            return result.stdout + (result.stderr if result.exit_code > 1 else "")
        done = subprocess.run(
            ["bash", "-c", command.text], cwd=self.folder, capture_output=True, text=True, check=False
        )
        self.exit_code = done.returncode
        return done.stdout

    def python(self, code: str) -> str:
        """Run a block of Python as a file, or keep it, definition (2); gives its traceback, if any."""
        named = re.match(r"# (\w+\.py)\n", code)
        if named is not None:
            (self.folder / named[1]).write_text(code, encoding="utf-8")
            return ""
        self.exit_code, _, trace = run_script(code, self.folder)
        return trace or (f"exit code {self.exit_code}" if self.exit_code else "")


def matches(shown: str, printed: str) -> bool:
    """Definition (3)."""
    lines = settled(shown).splitlines()
    pattern = "".join("(?:.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in lines)
    return re.fullmatch(pattern, settled(printed)) is not None


def settled(text: str) -> str:
    """Text with figures of a machine replaced by their kind, and without trailing spaces."""
    for pattern, kind in VOLATILE:
        text = re.sub(pattern, kind, text)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def run_page(page: Path, folder: Path) -> list[str]:
    """Run every block; a message for each output that is not as shown."""
    text = page.read_text(encoding="utf-8")
    session, faults = Session(folder), []
    parts, end = [], 0
    for block in BLOCK.finditer(text):
        parts.append(text[end : block.start(2)])
        end = block.end(2)
        if block[1] == "python":
            trace = session.python(block[2])
            faults += [f"{block[2]}\n{trace}"] if trace else []
            parts.append(block[2])
            continue
        for command in commands(block[2]):
            printed = session.run(command)
            if not matches(command.shown, printed):
                faults.append(f"$ {command.text}\nexpected:\n{command.shown}\ngot:\n{printed}")
            parts.append(f"$ {command.text}\n{renewed(command.shown, printed)}")
    if os.environ.get("EDBC_UPDATE_DOCS") and faults:
        page.write_text("".join([*parts, text[end:]]), encoding="utf-8")
        return []
    return faults


def renewed(shown: str, printed: str) -> str:
    """The output for the page: as it was where it matches, else anew, with as many lines before a `...` as it had."""
    if matches(shown, printed):
        return shown
    head, dots, tail = shown.partition("...\n")
    lines, last = printed.splitlines(keepends=True), len(tail.splitlines())
    text = "".join([*lines[: len(head.splitlines())], dots, *(lines[-last:] if last else [])]) if dots else printed
    assert "\n```" not in text, f"an output with a fence of its own would end the block; cut it with '...':\n{text}"
    return text


RUN = [pytest.param(name, marks=pytest.mark.reach) if name == "docs/reach.md" else name for name in PAGES]
"""Pages to run; one starts engines."""


@pytest.mark.compiled
@pytest.mark.parametrize("name", RUN)
@pytest.mark.long
def test_a_page_runs_from_an_empty_folder(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Every command of a page gives the output that the page shows, in an empty folder at 80 columns. Pages show what
    compiling with its defaults gives, which plain Python takes minutes a plan for."""
    if shutil.which("git") is None or shutil.which("bash") is None:
        pytest.skip("no git or no bash on PATH")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("EDBC", str(repository))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path.parent / "no-such-file"))
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "you")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "you@example.org")
    faults = run_page(repository / name, tmp_path)

    assert not faults, "\n\n".join(faults)


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_lead_somewhere(repository: Path, name: str) -> None:
    """Files that a page links to are there; code is no link."""
    page = repository / name
    targets = re.findall(r"\]\(([^)#:]+)\)", FENCED.sub("", page.read_text(encoding="utf-8")))

    assert not [target for target in targets if not (page.parent / target).exists()]


def test_the_readme_links_every_page(repository: Path) -> None:
    """Nothing in docs/ is left to be found by chance: the README or a page that it links names it."""
    pages = {page: (repository / page).read_text(encoding="utf-8") for page in PAGES}
    linked = {Path(target).name for text in pages.values() for target in re.findall(r"\]\(([^)#:]+\.md)\)", text)}

    assert {Path(page).name for page in PAGES} - linked <= {"README.md"}


@pytest.mark.parametrize("name", PAGES)
def test_no_command_of_a_page_escapes(repository: Path, name: str) -> None:
    """Definition (5): indented commands are targets of the Makefile, or benchmarks with options that they have."""
    page = (repository / name).read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    for line in re.findall(r"^    ((?:edbc|python|make|pip|git) .*)", BLOCK.sub("", page), re.MULTILINE):
        tool, what, *options = line.partition("#")[0].split()
        if tool == "make":
            assert what in targets, line
            continue
        assert tool == "python", line
        script = (repository / what).read_text()
        assert all(option in script for option in options if option.startswith("--")), line


@pytest.mark.parametrize(
    ("shown", "printed", "equal"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("a\n...\n", "a\nb\nc\n", True),
        ("a\n...\nc\n", "a\nb\nd\n", False),
        ("took 3.2 ms\n", "took 17 s\n", True),
        ("3 batches\n", "4 batches\n", False),
        ("", "text\n", False),
    ],
)
def test_outputs_are_compared_but_for_figures_of_the_machine(shown: str, printed: str, equal: bool) -> None:
    """Counts and words must be equal; times may differ; dots stand for lines."""
    assert matches(shown, printed) is equal
