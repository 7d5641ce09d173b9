"""The table of the zoo and its picture: `make zoo`, and benchmarks/picture.py."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import imported
from zoo import NAMES


def benchmark(repository: Path, name: str) -> ModuleType:
    """A file of benchmarks/, imported."""
    return imported(repository / "benchmarks" / f"{name}.py", f"benchmark_{name}")


def options(data: Path) -> argparse.Namespace:
    return argparse.Namespace(data=str(data), hidden=16, limit=4, rounds=1, vocab=64)


def test_every_model_has_real_data_or_says_that_it_has_none(repository: Path) -> None:
    """Each model is named once: with its files, or as one that runs on made-up instances."""
    zoo = benchmark(repository, "zoo")

    assert sorted([*zoo.INPUTS, *zoo.MADE_UP]) == NAMES


def test_real_data_is_read(repository: Path, data_dir: Path) -> None:
    """Every file that the table names is there."""
    missing = [
        p for paths in benchmark(repository, "zoo").INPUTS.values() for p in paths if not (data_dir / p).is_file()
    ]

    assert not missing


def test_a_row_and_its_bars(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row has every column, says that its instances are made up and that numbers agree; the picture shows it."""
    zoo, picture = benchmark(repository, "zoo"), benchmark(repository, "picture")
    row: dict[str, Any] = zoo.measure(repository / "plans" / "tree_gru.yaml", options(tmp_path))
    cells = zoo.as_text(row).strip("| ").split(" | ")

    assert len(cells) == len(zoo.COLUMNS)
    assert cells[0] == "tree_gru (sample)"
    assert row["parity"]
    assert row["lower_bound"] <= row["plan"] <= row["depth"]
    assert "EDBC_DATA" in capsys.readouterr().err
    assert "tree_gru" in picture.picture([row])
    assert "DIFFERS" in zoo.as_text({**row, "parity": False})


def test_the_readme_has_a_row_and_bars_per_model(repository: Path) -> None:
    """No model of the zoo is missing from the README's table or its picture."""
    rows = [line.split("|")[1].split()[0] for line in (repository / "README.md").read_text().splitlines()
            if line.startswith("| ") and line.endswith(" x |")]  # fmt: skip

    assert sorted(rows) == NAMES
    assert all(f">{name}" in (repository / "docs" / "gain.svg").read_text() for name in NAMES)
