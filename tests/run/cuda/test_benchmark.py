"""What `make gpu` runs, without a GPU: its scripts' own way, with the device's part replaced by what notes it."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from devices import NINE, needs_triton

from edbc.run.cuda import compiled
from edbc.tools import benchmark

HOST = ("--rounds", "1", "--mini-batches", "1", "--eager-seconds", "0", "--data", "/nowhere")


@pytest.fixture
def scripts(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """benchmarks/end_to_end.py and benchmarks/gpu.py."""
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import end_to_end
    import gpu

    yield end_to_end, gpu
    for name in (
        "end_to_end",
        "gpu",
        "gpu_model",
        "gpu_gaps",
        "gpu_code",
        "gpu_training",
        "gpu_stream",
        "training",
        "zoo",
    ):
        sys.modules.pop(name, None)


@pytest.fixture
def a_gpu(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark where torch says that there is a GPU, and a mini-batch runs on the host instead."""
    end_to_end, _ = scripts
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    measure = end_to_end.bench_plan
    rows: list[benchmark.Row] = []

    def on_host(path: Any, plan: Any, inputs: Any, settings: Any, setting: Any, model: Any) -> list[Any]:
        assert setting.device == "cuda"
        if settings["hidden_size"] == 512:
            raise RuntimeError("out of luck")
        host = replace(setting, device="cpu", backend="reference", batch_size=2, limit=2)
        if not rows:
            rows.extend(measure(path, plan, inputs, {**settings, "hidden_size": 8}, host, model))
        return rows

    monkeypatch.setattr(end_to_end, "bench_plan", on_host)
    return end_to_end  # type: ignore[no-any-return]


def test_every_size_of_every_workload_most_telling_first(scripts: Any) -> None:
    """Batch 1, 32 and 256 at hidden 128, 256 and 512, nine workloads each, the table's own sizes before the others."""
    end_to_end, _ = scripts
    jobs = list(end_to_end.jobs_of(end_to_end.WORKLOADS, True, "cuda"))

    assert len(set(jobs)) == len(jobs) == 9 * 9
    assert {(job.batch_size, job.hidden_size) for job in jobs} == {
        (b, h) for b in (1, 32, 256) for h in (128, 256, 512)
    }
    assert {job.workload.model for job in jobs[:9]} == set(NINE)
    assert {(job.batch_size, job.hidden_size) for job in jobs[:9]} == {(32, 128)}


@pytest.mark.long
def test_a_combination_that_fails_costs_no_other(a_gpu: ModuleType, repository: Path, tmp_path: Path) -> None:
    """Rows of the others are in the file, with what failed and on what machine; made-up instances where data lack."""
    found = tmp_path / "rows.json"
    plans = str(repository / "plans")
    code = a_gpu.main(
        ["--device", "cuda", "--sweep", "--only", "tree_lstm", "--plans", plans, "--json", str(found), *HOST]
    )
    record = json.loads(found.read_text())

    assert code == 1
    assert [failure["job"] for failure in record["failed"]] == [
        f"tree_lstm, batch {size}, hidden 512" for size in (256, 32, 1)
    ]
    assert "out of luck" in record["failed"][0]["error"]
    assert {(row["policy"], row["front_end"]) for row in record["rows"]} >= {("fsm", "record"), ("eager", "none")}
    assert len(record["rows"]) == 6 * 3
    assert {row["inputs"] for row in record["rows"]} == {"sample"}
    assert record["conditions"]["gpu"] == "none"
    assert record["left_out"] == []


def test_what_time_does_not_allow_is_named(a_gpu: ModuleType, repository: Path, tmp_path: Path) -> None:
    """Nothing is begun after the time is up, and that is no failure."""
    found = tmp_path / "new" / "rows.json"
    plans = str(repository / "plans")
    code = a_gpu.main(["--device", "cuda", "--sweep", "--plans", plans, "--seconds", "-1", "--json", str(found), *HOST])
    record = json.loads(found.read_text())

    assert code == 0
    assert record["rows"] == []
    assert len(record["left_out"]) == 81


def test_a_missing_plan_is_named_with_its_remedy_and_not_compiled(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured: a line per plan, exit 2, and nothing in the folder of plans or of --json."""
    end_to_end, _ = scripts
    plans, found = tmp_path / "plans", tmp_path / "rows.json"
    plans.mkdir()
    code = end_to_end.main(["--only", "tree_gru,tree_lstm", "--plans", str(plans), "--json", str(found), *HOST])
    told = capsys.readouterr()

    assert code == 2
    assert told.out == ""
    assert [line.split(";")[0] for line in told.err.splitlines()] == [
        f"{plans / name}.yaml: expected a plan, got nothing" for name in ("tree_lstm", "tree_gru")
    ]
    assert told.err.splitlines()[1].endswith(f"tree_gru.py -o {plans / 'tree_gru.yaml'}'")
    assert list(tmp_path.rglob("*")) == [plans]


def test_warming_runs_every_mini_batch(scripts: Any, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, rests too, and nothing is measured."""
    end_to_end, _ = scripts
    ran: list[int] = []
    monkeypatch.setattr(end_to_end.Net, "run", lambda self, instances: ran.append(len(instances)))
    options = end_to_end.parse(["--warm", "--plans", str(repository / "plans"), *HOST])
    rows = end_to_end.warm(end_to_end.Job(end_to_end.WORKLOADS[0], 5, 8), repository / "plans", options)

    assert rows == []
    assert ran == [5] * 6 + [2]


def test_the_device_is_held_up_while_the_host_issues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asleep first, then between two events what was asked for; the events' milliseconds are seconds in the row."""
    did: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            did.append("event")

        def elapsed_time(self, end: Any) -> float:
            return 250.0

    class Guard:
        def __init__(self, device: torch.device) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: did.append(f"sleep {cycles:.0f}"), raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: did.append("wait"))
    seconds = benchmark.held_up(lambda: did.append("run"), 0.5, torch.device("cuda"))

    assert seconds == 0.25
    assert did == [f"sleep {0.5 * benchmark.CYCLES_PER_SECOND:.0f}", "event", "run", "event", "wait"]


@pytest.fixture
def children(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What each child of `make gpu` was started with; in its place runs a line of Python."""
    _, gpu = scripts
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    begun: dict[str, list[str]] = {}
    real = gpu.start
    lines = {
        "tests": "print('FAILED one::test\\n1 failed, 8 passed in 2s'); raise SystemExit(1)",
        "mv_rnn": "import time; time.sleep(600)",
        "lstm_nmt": "raise ValueError('here')",
    }
    wait = gpu.Child.wait
    monkeypatch.setattr(gpu.Child, "wait", lambda self, until: wait(self, 0.0 if self.name == "mv_rnn" else until))

    def start(name: str, arguments: list[str], folder: Path) -> Any:
        begun[name] = list(arguments)
        return real(name, ["-c", lines.get(name, "print('done')")], folder)

    monkeypatch.setattr(gpu, "start", start)
    return begun


def test_one_command_survives_what_fails(
    scripts: Any, children: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failed tests, a warming that hangs and one that crashes: the benchmark still runs, and all of it is told."""
    _, gpu = scripts
    code = gpu.main(["--json", str(tmp_path / "new" / "gpu.json"), "--seconds", "600"])
    told = json.loads((tmp_path / "new" / "gpu.tests.json").read_text())
    printed = capsys.readouterr().out

    assert code == 1
    assert set(children) == {"tests", "benchmark", "gpu_model", "gaps", "stream", "training", *NINE}
    assert told["outcomes"]["tests"] == told["outcomes"]["lstm_nmt"] == "failed"
    assert told["outcomes"]["mv_rnn"] == "cut off"
    assert told["outcomes"]["tree_lstm"] == "passed"
    assert told["failures"] == ["FAILED one::test"]
    assert "tests failed: 1 failed, 8 passed in 2s" in printed
    assert "ValueError: here" in printed
    assert "benchmark passed" in printed
    assert "1 failed" in (tmp_path / "new" / "gpu.tests.log").read_text()


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="triton is installed")
@pytest.mark.parametrize("script", ["gpu", "gpu_gaps", "gpu_code"])
def test_without_triton_nothing_is_measured_as_if_it_were_there(
    script: str, scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What only Triton's kernels can tell is refused, with the command that installs it."""
    monkeypatch.setitem(os.environ, "TRITON_INTERPRET", "0")
    arguments = {"gpu": ["--dry"], "gpu_gaps": ["--device", "cpu"], "gpu_code": []}[script]
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(script).main(arguments)
    assert ended.value.code == 2
    assert "triton" in (told := capsys.readouterr().err)
    assert "'make triton'" in told


def test_children_are_started_with_arguments_that_exist(
    scripts: Any, children: dict[str, list[str]], tmp_path: Path
) -> None:
    """Every argument of every child is one that the benchmark's own parser takes; the tests' folder is there."""
    end_to_end, gpu = scripts
    options_of_gpu = gpu.parse(["--json", str(tmp_path / "gpu.json"), "--data", "/d"])
    gpu.second_phase(options_of_gpu, tmp_path, 1e9)
    options = end_to_end.parse(children["benchmark"][1:])

    assert children["benchmark"][0] == "benchmarks/end_to_end.py"
    assert (options.device, options.sweep, options.data, options.warm) == ("cuda", True, "/d", False)
    assert (end_to_end.REPOSITORY / gpu.arguments_of_tests(options_of_gpu)[2]).is_dir()
    gpu.first_phase(gpu.parse(["--json", str(tmp_path / "gpu.json"), "--data", "/d"]), tmp_path, 1e9)
    import gpu_model

    modelled = gpu_model.parse(children["gpu_model"][1:])
    assert (modelled.data, modelled.json) == ("/d", str(tmp_path / "gpu.model.json"))


@pytest.mark.long
def test_a_model_is_told_beside_what_was_measured(scripts: Any) -> None:
    """Combinations that both have; more work takes no less time; nothing is faster than a gap per step."""
    import gpu_gaps
    import gpu_model

    options = gpu_model.parse(["--repeat", "1", "--data", "/nowhere"])
    workload = gpu_model.WORKLOADS[0]
    small, large = (gpu_model.row(workload, size, 16, options) for size in (2, 8))
    assert large.device >= small.device >= small.steps * gpu_model.NODE
    assert large.floor > small.floor > 0
    assert small.device > small.floor
    assert small.batches >= small.steps > 0
    assert {"join", "schedule", "prepare", "issue", "total"} == set(small.host)
    model = {"rows": [{"model": "tree_lstm", "batch_size": 2, "hidden_size": 16, "device": small.device,
                       "floor": small.floor, "steps": small.steps}]}  # fmt: skip
    measured = {"rows": [
        {"name": "plans/tree_lstm.yaml", "batch_size": 2, "hidden_size": 16, "device_seconds": 2e-6 * small.device},
        {"name": "plans/tree_lstm.yaml", "batch_size": 4, "hidden_size": 16, "device_seconds": 1.0},
    ]}  # fmt: skip
    (found,) = gpu_gaps.beside(measured, model)
    assert found["ratio"] == pytest.approx(2)
    assert found["of_floor"] == pytest.approx(small.floor / small.device / 2)


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU needs no interpreter")
def test_gaps_run_in_the_interpreter(scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Chains, stretches, the LSTM on packed sequences and texts, the file: the way that a GPU's figures take."""
    import gpu_gaps

    monkeypatch.setattr(gpu_gaps, "STEPS", 16)
    monkeypatch.setattr(gpu_gaps, "LENGTHS", (16,))
    monkeypatch.setattr(gpu_gaps, "SIZES", (4, 16))
    monkeypatch.setattr(gpu_gaps, "FIXED", replace(gpu_gaps.FIXED, settings=(("length", 2),)))
    found = tmp_path / "gaps.json"
    assert gpu_gaps.main(["--device", "cpu", "--json", str(found), "--measured", "/nowhere"]) == 0
    record = json.loads(found.read_text())

    assert set(record) == {"gap_us", "steps_us", "cudnn_us", "fixed_us"}
    assert set(record["gap_us"]) == {"16"}
    assert set(record["steps_us"]) == {"4", "16"}
    assert all(took > 0 for name in ("gap_us", "steps_us", "cudnn_us") for took in record[name].values())
    assert "us by steps without work: 4: " in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_training_steps_are_measured_three_ways(scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured, recorded and eager, one round each, as torch runs what Triton would."""
    import gpu_training

    monkeypatch.setattr(compiled, "missing", lambda device: "not here")
    monkeypatch.setattr(gpu_training, "ROUNDS", 1)
    monkeypatch.setattr(gpu_training, "EAGER_ROUNDS", 1)
    found = tmp_path / "steps.json"
    small = ["--device", "cpu", "--only", "tree_lstm,bilstm_tagger", "--batch-size", "2", "--hidden", "8"]
    assert gpu_training.main([*small, "--json", str(found), "--data", "/nowhere"]) == 0
    rows = json.loads(found.read_text())

    assert [row["model"] for row in rows] == ["tree_lstm", "bilstm_tagger"]
    assert all(row[way] > 0 for row in rows for way in ("captured", "recorded", "eager"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_nothing_is_begun(scripts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and the exit code of wrong usage, before the tests take their minutes."""
    _, gpu = scripts
    with pytest.raises(SystemExit) as stopped:
        gpu.main([])

    assert stopped.value.code == 2
    assert "expected a CUDA device, got none" in capsys.readouterr().err
