"""Cached kernels are dropped when any file of the package changes."""

from __future__ import annotations

from pathlib import Path

from edbc.schedule.native import drop_stale


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
