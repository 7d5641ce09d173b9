"""The catalogue of refusals: every raise site has a code, every example is refused by its code."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import edbc
from edbc import errors
from edbc.errors import EdbcError, StaleError
from edbc.refusals import Refusal, find_refusal, refusal_of, table
from edbc.tools.cli import main

PACKAGE = Path(edbc.__file__).parent
KINDS = {name for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, EdbcError)}
IDS = [entry.code for entry in table()]
PASSED_ON = {"{}: {}", "{}", "{}; {}", "{}, item {}: {}", "{}: {}; {}", "instance {}: {}",
             "{}: expected {}, got {}; {}",
             "{}: expected {}, got {}", "{}: {}, or name another file",
             "{} (the model caught this, where eager PyTorch has nothing to catch)"}  # fmt: skip
"""Messages without words of their own: they pass on those of somebody else, or the place, or who caught them, is all
they add."""


def page() -> str:
    """The catalogue as one Markdown page."""
    head = (
        "# Errors\n\nEvery refusal has a code. `edbc explain E0505` shows an entry, `error.code` has it in Python, and "
        '`"code"` in JSON. Exit codes are in [ci.md](ci.md).\n\n'
        "<!-- made by tests/refusals/test_catalogue.py with EDBC_UPDATE_DOCS=1 -->\n\n"
    )
    return head + "\n".join(entry.markdown() for entry in table())


def words_of(node: ast.expr) -> str:
    """A message with `{}` where values go; `...` is added where it is not written out."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return "{}"


@cache
def sites() -> list[tuple[str, str, str]]:
    """Place, class and message of everything in the package that makes one of its errors."""
    return [site for path in sorted(PACKAGE.rglob("*.py")) for site in sites_of(path)]


def sites_of(path: Path) -> Iterator[tuple[str, str, str]]:
    """Those of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        place, name = f"{path.relative_to(PACKAGE.parent)}:{node.lineno}", node.func.id
        if name in KINDS:
            yield place, name, words_of(node.args[0])
        if name in ("refuse", "_refuse"):
            remedy = words_of(node.args[1]) if len(node.args) > 1 else "{}"
            yield place, "UnsupportedError", f"{words_of(node.args[0])}; {remedy}"


def fits(entry: Refusal, kind: str, text: str) -> bool:
    """Whether an entry is one for a message."""
    return entry.kind == kind and any(words in text for words in entry.says)


def test_every_raise_site_has_a_code() -> None:
    """Whatever is raised with words of its own is in the catalogue; a new refusal needs an entry, or words of one."""
    general = {entry.kind for entry in table() if not entry.says and entry.code[1:3] in ("03", "09")}
    missing = [
        f"{place} {kind}: {text}"
        for place, kind, text in sites()
        if kind not in general and text not in PASSED_ON and not any(fits(entry, kind, text) for entry in table())
    ]

    assert not missing, "\n".join(["no entry of edbc/refusals fits:", *missing])


def test_no_entry_is_without_a_site() -> None:
    """Words of an entry are those of some message, so that none is left behind."""
    dead = [
        (entry.code, words)
        for entry in table()
        for words in entry.says
        if not any(kind == entry.kind and words in text for _, kind, text in sites())
        and not any(words in path.read_text() for path in PACKAGE.rglob("*.py") if path.parent.name != "refusals")
    ]

    assert not dead


def test_codes_are_unique_and_in_order() -> None:
    """A code has one meaning; classes of errors end with an entry that fits all of theirs."""
    assert len(set(IDS)) == len(IDS)
    for kind in KINDS - {"CheckFailed"}:
        assert [entry for entry in table() if entry.kind == kind][-1].says == (), kind
    assert all(entry.title and entry.why.endswith((".", "`.")) and entry.remedy.endswith(".") for entry in table())


class Model(nn.Module):
    """What the examples' forwards have."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8)


@pytest.mark.parametrize("entry", [e for e in table() if e.example.startswith("def")], ids=lambda e: e.code)
def test_a_forward_is_refused_by_its_code(entry: Refusal) -> None:
    """The forward that an entry shows is refused, in memory, and the code is the entry's."""
    scope: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(compile(entry.example, "example.py", "exec"), scope)
    kind = type("Example", (Model,), {"forward": scope["forward"]})

    with pytest.raises(EdbcError) as caught:
        edbc.compile(kind(), [[1, 2], [3]] * 2, trials=1)

    assert caught.value.code == entry.code, caught.value


@pytest.mark.parametrize("entry", [e for e in table() if e.example.startswith("$")], ids=lambda e: e.code)
def test_commands_are_refused_by_their_code(entry: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last command that an entry shows is refused, beside the model file of `edbc new trees`."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    assert runner.invoke(main, ["new", "trees"]).exit_code == 0
    *before, last = [line.removeprefix("$ ") for line in entry.example.splitlines()]
    for line in before:
        if line.startswith("edbc "):
            assert runner.invoke(main, [*line.split()[1:], *QUICK]).exit_code == 0
        else:
            subprocess.run(["bash", "-c", line], check=True)

    result = runner.invoke(main, last.split()[1:])

    assert result.stderr.rstrip().endswith(f"[{entry.code}]"), result.stderr
    assert result.exit_code in (1, 3, 4, 5)


QUICK = ["--policy", "critical"]


def test_explain_shows_an_entry() -> None:
    """`edbc explain E0401` prints it, in lower case too; an unknown code is told with those that are."""
    runner = CliRunner()
    shown = runner.invoke(main, ["explain", "e0401"])

    assert shown.exit_code == 0
    assert shown.output.startswith("E0401: The model is not the one that the plan was compiled from\n")
    assert "What to do: Compile again" in shown.output
    assert "[E0801]" in runner.invoke(main, ["explain", "E9999"]).stderr
    assert '"title"' in runner.invoke(main, ["explain", "E0401", "--format", "json"]).output


def test_errors_know_their_code() -> None:
    """`error.code` is found by the message's words, and by the class where none fits."""
    assert StaleError("x: bind the model again").code == "E0404"
    assert StaleError("something new").code == "E0499"
    assert EdbcError("something new").code == "E0899"
    assert find_refusal("E0499") is refusal_of(StaleError("something new"))
    assert find_refusal("E0000") is None


def test_the_page_is_the_table(repository: Path) -> None:
    """docs/errors.md is made from the table (EDBC_UPDATE_DOCS=1 writes it)."""
    path = repository / "docs" / "errors.md"
    if os.environ.get("EDBC_UPDATE_DOCS"):
        path.write_text(page())

    assert path.read_text() == page()
    assert len(re.findall(r"^## E\d{4}: ", page(), re.MULTILINE)) == len(table())
