"""Measuring a plan: which rows there are and that their parts fit; no time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest
from bound import plan_for

from edbc.errors import EdbcError
from edbc.run.modelfile import import_model_file
from edbc.tools.benchmark import Row, Setting, bench_plan

MODEL = Path(__file__).resolve().parents[2] / "models" / "tree_lstm.py"


def test_rows_of_a_plan_at_other_sizes() -> None:
    """A row per policy and front end and one for eager, each with the fields that readers of the JSON rely on."""
    file = import_model_file(MODEL)
    config = file.config({"hidden_size": 8, "vocab_size": 20})
    plan = plan_for(file.build(config, 0), file.sample(4, 0, config))
    setting = Setting(batch_size=4, against=("eager", "depth", "no-share"), limit=8, rounds=1)
    rows = bench_plan(Path("tree.yaml"), plan, [], {**config, "hidden_size": 12}, setting, str(MODEL))
    assert {(row.policy, row.front_end) for row in rows} == {
        *((policy, front) for policy in ("critical", "depth", "no-share") for front in ("record", "vertex")),
        ("eager", "none"),
    }
    for row in rows:
        assert row.hidden_size == 12
        assert row.instances_per_second > 0
        assert set(row.seconds) == {"construction", "scheduling", "execution", "issuing", "total"}
        assert row.as_json()["name"] == "tree"
        if row.policy != "eager":
            assert row.gemm_floor_ratio is not None
            assert row.eager_ratio is not None
            assert row.peak_bytes > 0
            assert row.cell_output_bytes > 0
    alone = [row for row in rows if row.policy == "no-share"]
    for row, shared in zip(alone, rows, strict=False):
        assert row.peak_bytes >= row.cell_output_bytes == shared.cell_output_bytes
        assert row.peak_bytes >= shared.peak_bytes
    assert rows[0].batches <= next(row.batches for row in rows if row.policy == "depth")


def rows_of(model: str, sizes: dict[str, int], front_end: str | None = None) -> list[Row]:
    """Two mini-batches of two made-up instances, no baselines."""
    path = MODEL.with_name(f"{model}.py")
    file = import_model_file(path)
    config = file.config(sizes)
    plan = plan_for(file.build(config, 0).eval(), file.sample(4, 0, config))
    return bench_plan(Path(f"{model}.yaml"), plan, [], config, Setting(2, (), 4, 1, front_end=front_end), str(path))


def test_captured_instances_are_measured_where_asked_for() -> None:
    """A row more, of the same nodes and batches; with any other name an error."""
    record, vertex, captured = rows_of("tree_lstm", {"hidden_size": 6, "vocab_size": 20}, "captured")
    assert (record.front_end, vertex.front_end, captured.front_end) == ("record", "vertex", "captured")
    assert record.batches == captured.batches
    assert record.cell_output_bytes == captured.cell_output_bytes
    with pytest.raises(EdbcError, match="front_end"):
        Setting(front_end="other")


def test_matrices_of_a_nodes_own_count_in_the_floor() -> None:
    """MV-RNN's products of its nodes' matrices are products; without baselines there is no ratio to eager."""
    rows = rows_of("mv_rnn", {"hidden_size": 6, "vocab_size": 20, "num_matrices": 5})
    assert all(row.gemm_floor_ratio is not None and row.gemm_floor_ratio > 0 for row in rows)
    assert {row.eager_ratio for row in rows} == {None}


def test_other_functions_of_torch_have_no_floor() -> None:
    """Convolutions that torch runs are not counted, so there is no floor to compare with."""
    rows = rows_of("neural_module_network", {"side": 24})  # smaller maps are native
    assert {row.gemm_floor_ratio for row in rows} == {None}


@pytest.mark.parametrize("size", [1, 3, 50])
def test_full_mini_batches_are_measured(size: int) -> None:
    """A rest counts only when it is all there is."""
    from edbc.tools.benchmark import _batches

    assert [len(batch) for batch in _batches(list(range(7)), size)] == {1: [1] * 7, 3: [3, 3], 50: [7]}[size]


ZEROS = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.RNNCell(4, 4)

    def forward(self, length):
        h = torch.zeros(4)
        for _ in range(length):
            h = self.step(torch.ones(4), h)
        return h


def build():
    return Model()


def sample(count, seed):
    return list(range(1, count + 1))
"""


def test_all_of_measuring_has_the_dtype_of_the_weights(tmp_path: Path) -> None:
    """A forward that makes zeros makes them in float64 there, as in a run: also for the floor, after the turns."""
    path = tmp_path / "zeros.py"
    path.write_text(ZEROS)
    file = import_model_file(path)
    plan = plan_for(file.build({}, 0), file.sample(4, 0, {}))
    rows = bench_plan(tmp_path / "zeros.yaml", plan, [], {}, Setting(2, (), 4, 1, dtype="float64"), str(path))
    assert [row.gemm_floor_ratio is not None for row in rows] == [True]
