"""Cached kernels are dropped when any file of the package changes; inner functions are for native code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numba import config, njit

from edbc.schedule.native import drop_stale, inner


def test_an_edited_file_empties_the_cache(tmp_path: Path) -> None:
    """An index written before the edit is removed, one written after it stays."""
    package, folder = tmp_path / "package", tmp_path / "cache"
    package.mkdir()
    folder.mkdir()
    source, index = package / "engine.py", folder / "walk.walk-1.nbi"
    source.write_text("x = 1\n")
    index.write_text("old")

    assert drop_stale.__wrapped__(folder, package)
    assert not index.exists()

    index.write_text("new")

    assert not drop_stale.__wrapped__(folder, package)
    assert index.exists()

    source.write_text("x = 22\n")

    assert drop_stale.__wrapped__(folder, package)
    assert not index.exists()


@inner
def twice(numbers: np.ndarray) -> float:
    return 2 * numbers[0]


def test_inner_functions_serve_native_code_alone() -> None:
    """Compiled into its caller it runs; a call from Python, which would crash the process, is refused."""
    assert njit(lambda numbers: twice(numbers))(np.arange(3) + 4) == 8
    if not config.DISABLE_JIT:
        with pytest.raises(TypeError, match="twice is an inner function"):
            twice(np.arange(3))
