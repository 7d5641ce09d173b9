"""Manual pages and the schema for editors, as files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from manual import pages

from edbc.tools.cli import main
from edbc.tools.schema import json_schema_text


def test_committed_pages_are_up_to_date(repository: Path) -> None:
    """man/ holds a page for edbc and for each command, as `make man` (EDBC_UPDATE_DOCS=1) writes them."""
    for name, text in pages().items() if os.environ.get("EDBC_UPDATE_DOCS") else ():
        (repository / "man" / name).write_text(text, encoding="utf-8")
    committed = {path.name: path.read_text() for path in (repository / "man").glob("*.1")}

    assert committed == pages()
    assert set(committed) == {"edbc.1", *(f"edbc-{name}.1" for name in main.commands)}


def test_pages_are_roff(repository: Path) -> None:
    """`man` itself shows every page without a complaint, options and all."""
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("no groff on PATH")
    for path in sorted((repository / "man").glob("*.1")):
        shown = subprocess.run([groff, "-man", "-Tutf8", "-ww", str(path)], capture_output=True, text=True, check=True)

        assert shown.stderr == "", path.name
    assert "--input FILE" in (repository / "man" / "edbc-run.1").read_text().replace("\\-", "-")


def test_schema_stands_beside_plans(edbc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`edbc schema` writes it, and the line into plans, now and whenever they are written; plans stay what they are."""
    monkeypatch.chdir(tmp_path)
    assert edbc("new", "trees").exit_code == 0
    compile_it = ("compile", "trees.py", "-o", "plans/trees.yaml", "--quiet", "--policy", "critical")
    assert edbc(*compile_it).exit_code == 0
    before = yaml.safe_load(Path("plans/trees.yaml").read_text())
    line = "# yaml-language-server: $schema=./plan.schema.json\n"

    assert edbc("schema", "plans").exit_code == 0
    marked = Path("plans/trees.yaml").read_text()
    assert marked.startswith(line + "format_version")
    assert yaml.safe_load(marked) == before
    assert Path("plans/plan.schema.json").read_text() == json_schema_text()
    assert edbc(*compile_it).exit_code == 0
    assert Path("plans/trees.yaml").read_text() == marked
    assert "[E0209]" in edbc("schema", "missing").output
