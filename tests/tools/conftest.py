"""A compiled plan beside its model, and the command line, for tests of reports."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.fixture(scope="session")
def started(edbc: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the file of `edbc new` and its plan, `plans/trees.yaml`. Tests must not change it."""
    folder = tmp_path_factory.mktemp("started")
    assert edbc("new", folder / "trees.py").exit_code == 0
    result = edbc("compile", folder / "trees.py", "-o", folder / "plans" / "trees.yaml", "--quiet",
                  "--set", "hidden_size=8", "--encoding", "sort")  # fmt: skip
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def workspace(started: Path, tmp_path: Path) -> Path:
    """A copy of `started` that a test may change."""
    return Path(shutil.copytree(started, tmp_path / "work"))
