"""The site: every page has a place, and it builds with search, gallery, notebooks and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from edbc.refusals import table


def names(nav: Any) -> Iterator[str]:
    """Files that a navigation lists."""
    if isinstance(nav, str):
        yield nav
    for item in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from names(item)


def test_every_page_has_a_place(repository: Path) -> None:
    """Pages and notebooks of docs/ stand in the navigation, each once; the catalogue's pages are made."""
    listed = list(names(yaml.safe_load((repository / "docs" / "site" / "mkdocs.yml").read_text())["nav"]))
    pages = {path.name for path in (repository / "docs").glob("*.md")} - {"errors.md"}
    notebooks = {f"notebooks/{path.name}" for path in (repository / "docs" / "notebooks").glob("*.ipynb")}

    assert sorted(listed) == sorted({"index.md", *pages, *notebooks})
    assert len(notebooks) == 3


def test_notebooks_are_committed_without_outputs(repository: Path) -> None:
    """They run when the site is built; outputs of some machine are no source."""
    for path in (repository / "docs" / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]

        assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells), path.name


@pytest.mark.slow
def test_the_site_builds(repository: Path) -> None:
    """Strictly: a broken link or a notebook that raises fails it. Search finds a page, each code has one."""
    for name in ("material", "mkdocs_jupyter"):
        pytest.importorskip(name, reason="builds the site: needs edbc[docs]")
    subprocess.run([sys.executable, "docs/site/build.py", "--quick"], cwd=repository, check=True, capture_output=True)
    site = repository / "build" / "site"
    found = json.loads((site / "search" / "search_index.json").read_text())

    assert any("tutorial" in entry["location"] for entry in found["docs"])
    assert {path.stem for path in (site / "errors").glob("E*.html")} == {entry.code for entry in table()}
    assert "largest difference from eager" in (site / "notebooks" / "trees.html").read_text()
    assert "tree_lstm.html" in (site / "zoo" / "index.html").read_text()
