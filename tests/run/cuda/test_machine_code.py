"""Machine code of the kernels, made where there is no GPU: it exists, fits every card and keeps values in registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from devices import NINE, needs_triton

pytestmark = needs_triton
SHARED_MEMORY = 99 << 10
"""Bytes that a block may have on the smallest cards since 2020 (compute capability 8.6 and 8.9); 8.0 has 163 KB, 9.0
227."""

STACK = 192
"""Bytes of a thread that need not be in registers: a step kernel holds all branches of a plan, and what stands over all
of them, or what a library's function keeps, goes through the first-level cache."""


def machine_code(dtype: str, hidden: int, *models: str) -> list[dict[str, Any]]:
    """A row per kernel, row tile and compute capability; in a process of its own, since here Triton interprets."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    script = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu_code.py"
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, str(script), *models, "--dtype", dtype, "--hidden", str(hidden), "--json", file.name]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr[-2000:]
        found: list[dict[str, Any]] = json.loads(Path(file.name).read_text())
    return found


def require_fit(rows: list[dict[str, Any]]) -> None:
    """Both capabilities, shared memory of any card, values in registers."""
    assert {row["capability"] for row in rows} == {80, 90}
    assert [row for row in rows if row["shared"] > SHARED_MEMORY] == []
    assert [row for row in rows if row["stack"] > STACK] == []


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [128, 256, 512])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_every_kernel_of_the_nine_workloads(dtype: str, hidden: int) -> None:
    """At the sizes that are measured, forward and backward, compute capability 8.0 and 9.0."""
    rows = machine_code(dtype, hidden, *NINE)

    assert len(rows) == 2 * 2 * len(NINE)
    require_fit(rows)


@pytest.mark.slow
def test_a_small_cell() -> None:
    """The way there: one model at a small size, products, gates and projections."""
    rows = machine_code("f32", 16, "tree_lstm")

    assert {row["kernel"] for row in rows} == {"forward", "backward"}
    require_fit(rows)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_every_operation_and_every_reduction(dtype: str) -> None:
    """Those of the table, whether a workload has them or not; and every kind of value wherever one may be read."""
    rows = machine_code(dtype, 100, "TABLE")

    assert {row["kernel"] for row in rows} == {"maps", "others", "values", "reductions"}
    require_fit(rows)
