"""The zoo's own folder on the import path, as when a model file runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[2] / "models"
sys.path.insert(0, str(MODELS))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """A function that writes text or bytes to a new file and returns its name."""

    def write_file(content: str | bytes, name: str = "input.txt") -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write_file
