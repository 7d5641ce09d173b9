"""`edbc run --epochs` and `edbc train` capture once, and give what they give without."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

import edbc


@pytest.fixture(scope="module")
def plan(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> edbc.LoadedPlan:
    folder = tmp_path_factory.mktemp("captured")
    shutil.copytree(repository / "models", folder / "models", ignore=shutil.ignore_patterns("__pycache__"))
    config: dict[str, Any] = {"hidden_size": 8, "vocab_size": 64}
    return edbc.compile(folder / "models/tree_lstm.py", folder / "plan.yaml", config=config, policy="critical",
                        measure_gain=False)  # fmt: skip


@pytest.mark.long
def test_training_gives_the_same_weights(plan: edbc.LoadedPlan, tmp_path: Path) -> None:
    """With and without --recapture, dev figures too: the same bits in every file, but for what a clock said."""
    for name, recapture in (("once", False), ("anew", True)):
        plan.train(tmp_path / name, limit=40, epochs=3, recapture=recapture, optimizer="sgd")

    once, anew = (list(written(tmp_path / name)) for name in ("once", "anew"))
    assert once == anew


def written(folder: Path) -> Iterator[Any]:
    """What training has written, without instances per second."""
    yield (folder / "weights.safetensors").read_bytes()
    yield (folder / "curve.svg").read_text()
    epochs = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    with safe_open(folder / "checkpoint.safetensors", "pt") as file:
        yield from (file.get_tensor(name).tolist() for name in sorted(file.keys()))
        (text,) = file.metadata().values()
    header = json.loads(text)
    for epoch in (*epochs, *header["history"]):
        assert epoch.pop("instances_per_second") > 0
    yield epochs, header


def test_epochs_give_the_same_outputs(plan: edbc.LoadedPlan, tmp_path: Path) -> None:
    """What is written is of the last epoch, and what is verified; each instance is captured once."""
    files = [tmp_path / name for name in ("one.safetensors", "three.safetensors", "plain.safetensors")]
    options: list[dict[str, Any]] = [{}, {"epochs": 3, "verify": True}, {"epochs": 2, "recapture": True}]
    reports = [plan.run(limit=40, output=str(f), **o) for f, o in zip(files, options, strict=True)]

    assert len({file.read_bytes() for file in files}) == 1
    assert [len(report.epochs) for report in reports] == [1, 3, 2]
    assert reports[0].captured is reports[2].captured is None
    assert reports[1].captured is not None
    assert reports[1].as_json()["captured"]["misses"] == 40
    assert "captured     40 instances" in str(reports[1])
    assert all(report.stats.instances == 40 for report in reports)


def test_vertex_functions_and_eager_plans_go_on_as_they_are(plan: edbc.LoadedPlan) -> None:
    """Vertices are arrays already; nothing is captured for them."""
    report = plan.run(limit=20, epochs=2, front_end="vertex")

    assert report.captured is None
