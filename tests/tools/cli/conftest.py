"""A small compiled plan beside a copy of the model files, for tests of commands."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.fixture(scope="session")
def compiled(edbc: Run, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `models/` and `plans/tree_lstm.yaml`, hidden size 16. Tests must not change it."""
    folder = tmp_path_factory.mktemp("compiled")
    shutil.copytree(repository / "models", folder / "models", ignore=shutil.ignore_patterns("__pycache__"))
    result = edbc("compile", folder / "models" / "tree_lstm.py", "-o", folder / "plans" / "tree_lstm.yaml",
                  "--set", "hidden_size=16", "--set", "vocab_size=64", "--quiet")  # fmt: skip
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def workspace(compiled: Path, tmp_path: Path) -> Path:
    """A copy of `compiled` that a test may change."""
    return Path(shutil.copytree(compiled, tmp_path / "work"))


@pytest.fixture(scope="session")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of three small trees: 1, 3 and 5 nodes wide."""
    file = tmp_path_factory.mktemp("trees") / "trees.txt"
    file.write_text("(3 (2 good) (3 fun))\n(1 bad)\n(2 (2 (2 not) (1 bad)) (2 at_all))\n")
    return file
