"""benchmarks/reach.py: what it refuses, and the parts of it that can be wrong without anybody noticing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from helpers import imported


@pytest.fixture(scope="module")
def benchmark(repository: Path) -> ModuleType:
    """The script, imported."""
    return imported(repository / "benchmarks" / "reach.py", "reach_benchmark")


@pytest.mark.parametrize("what", ["ranks", "ray", "batcher"])
def test_no_scaling_figure_on_busy_cores(benchmark: ModuleType, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one and a half free cores it measures nothing and says why."""
    monkeypatch.setattr(benchmark, "free_cores", lambda: 1.5)
    monkeypatch.setattr(sys, "argv", ["reach.py", what])

    with pytest.raises(SystemExit, match="expected two free cores"):
        benchmark.main()


def test_simulated_servers_answer_everybody(benchmark: ModuleType) -> None:
    """One request alone takes the start and all of its steps; of two at once, at cells the shorter one leaves first."""
    assert benchmark.by_mini_batch([1.0], [5], 0.25, 0.125, 0.5) == [0.5 + 5 * 0.375]
    assert benchmark.by_cell([1.0], [5], 0.25, 0.125, 0.0, 0.5) == [0.5 + 5 * 0.375]
    assert benchmark.by_mini_batch([0.0, 0.0], [1, 2], 0.25, 0.125, 0.0) == [0.875, 0.875]
    assert benchmark.by_cell([0.0, 0.0], [1, 2], 0.25, 0.125, 0.0, 0.0) == [0.5, 0.875]
