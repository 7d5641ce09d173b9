"""Jobs on engines: `edbc run --engine processes` and `--engine ray`, every row once, and broken ones by name."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines import Ended, ran, started
from safetensors import safe_open
from safetensors.torch import load_file

import edbc
from edbc.errors import DeviceError, EdbcError, InputError, ModelError, StaleError
from edbc.reach import Predictor
from edbc.reach.jobs import Job, Parts, Summary, expanded, prepared
from edbc.reach.processes import run_processes

BOTH = ("processes", pytest.param("ray", marks=pytest.mark.reach))
ENGINES = (pytest.param("processes", marks=pytest.mark.reach), BOTH[1])
"""The same; a pool of processes starts anywhere, but takes some seconds each time."""
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray and of what it imports
MISBEHAVING = '''

import os, signal, time
from pathlib import Path
plain = parse

def parse(line: str, vocab_size: int = 1000) -> Tree:
    """As before, but for words that say what to do; once, where a file of that name stands in FLAGS."""
    if "BROKEN" in line:
        raise ValueError("a broken row")
    if "SLOW" in line:
        time.sleep(0.05)
    for word in ("KILL", "BEGUN"):
        flag = Path(os.environ.get("FLAGS", "/nowhere")) / word
        if word in line and flag.parent.is_dir() and not flag.exists():
            flag.touch()
            if word == "KILL":
                os.kill(os.getpid(), signal.SIGKILL)
    return plain(line, vocab_size)
'''


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of the model file that `edbc new` writes, whose `parse` misbehaves when a line says so."""
    from edbc.tools.cli.new import run_new

    folder = tmp_path_factory.mktemp("jobs")
    model = folder / "trees.py"
    run_new(str(model))
    model.write_text(model.read_text() + MISBEHAVING)
    edbc.compile(model, folder / "plan.yaml", config={"hidden_size": 8}, policy="critical")
    return folder


def text(number: int) -> str:
    """A sentence of 1 to 5 words."""
    return " ".join(f"w{number}-{i}" for i in range(1 + number % 5))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty files of 0 to 9 sentences in two folders, blank lines between, and a hidden one."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "b").mkdir()
    (folder / ".hidden").write_text("not to be read\n")
    for number in range(50):
        lines = "\n\n".join(text(100 * number + i) for i in range(number % 10))
        (folder / ("b" if number % 2 else "") / f"f{number:02}.txt").write_text(lines)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Ray, started once: three CPUs, whatever there are."""
    ray = pytest.importorskip("ray", reason="reach: Ray is not installed; run make test-reach")
    ray.init(
        "local",
        num_cpus=3,
        object_store_memory=1 << 28,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield ray
    finally:
        ray.shutdown()


@pytest.fixture
def run_job(request: pytest.FixtureRequest) -> Any:
    """Run a job on an engine in this process and give its index."""

    def run(engine: str, job: Job, workers: int | None = 1, **changes: Any) -> dict[str, Any]:
        from dataclasses import replace

        job = replace(prepared(job, lambda text: None), **changes)
        if engine == "ray":
            request.getfixturevalue("cluster")
            from edbc.reach.ray_engine import run_ray

            parts = run_ray(job, workers, None)
        else:
            parts = run_processes(job, workers)
        summary = Summary()
        summary.add(parts)
        summary.finish(job)
        return json.loads((Path(job.output) / "index.json").read_text())

    return run


def rows(output: Path) -> list[tuple[str, int, torch.Tensor]]:
    """File, line and output of every row, in the order of the index."""
    index = json.loads((output / "index.json").read_text())
    assert sorted(p.name for p in output.glob("*.safetensors")) == sorted(part["part"] for part in index["parts"])
    found = []
    for part in index["parts"]:
        tensors = load_file(output / part["part"])
        with safe_open(output / part["part"], "pt") as file:
            names = json.loads(file.metadata()["edbc_files"])
        offsets = tensors["output.offsets"].tolist()
        sources = zip(tensors["source.file"].tolist(), tensors["source.line"].tolist(), strict=True)
        for (file_number, line), begin, end in zip(sources, offsets[:-1], offsets[1:], strict=True):
            found.append((names[str(file_number)], line, tensors["output"][begin:end]))
        assert len(offsets) == part["rows"] + 1
    return found


def expected(home: Path, files: list[Path]) -> dict[tuple[str, int], torch.Tensor]:
    """What the net gives for every line of files that is not blank and not broken."""
    net = edbc.load(home / "plan.yaml").bind()
    parse = sys.modules[type(net.model).__module__].plain
    lines = {(str(file), n): line for file in files for n, line in enumerate(file.read_bytes().split(b"\n"), 1)}
    good = {
        place: line.decode()
        for place, line in lines.items()
        if line.strip() and b"BROKEN" not in line and b"\xff" not in line
    }
    with torch.no_grad():
        return dict(zip(good, net([parse(line) for line in good.values()]), strict=True))


def require_every_row_once(output: Path, home: Path, inputs: list[Path]) -> None:
    """Each row of the input once, with its own output."""
    found, wanted = rows(output), expected(home, inputs)
    assert sorted((file, line) for file, line, _ in found) == sorted(wanted)
    assert all(torch.equal(value.reshape(-1), wanted[file, line].reshape(-1)) for file, line, value in found)


def inputs_of(folder: Path) -> list[Path]:
    return [Path(name) for name in expanded([str(folder)])]


@pytest.mark.parametrize("engine", BOTH)
def test_every_row_of_many_files_once_and_in_order(
    engine: str, run_job: Any, home: Path, files: Path, tmp_path: Path
) -> None:
    """Fifty files, empty ones among them: outputs are the net's, joined to file and line, in order when asked for."""
    index = run_job(engine, Job(str(home / "plan.yaml"), [str(files)], str(tmp_path / "out"), 32, keep_order=True))

    require_every_row_once(tmp_path / "out", home, inputs_of(files))
    assert [(file, line) for file, line, _ in rows(tmp_path / "out")] == list(expected(home, inputs_of(files)))
    assert index["rows"] == 225
    assert len(index["parts"]) == 8 or engine == "ray"  # which joins rows as it has them
    assert index["errors"] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_but_empty_files(engine: str, run_job: Any, home: Path, tmp_path: Path) -> None:
    """No row, no part, an index that says so."""
    for name in "ab":
        (tmp_path / name).write_text("\n\n" if name == "a" else "")
    index = run_job(engine, Job(str(home / "plan.yaml"), [str(tmp_path / n) for n in "ab"], str(tmp_path / "out")))

    assert (index["rows"], index["parts"], index["errors"]) == (0, [], [])


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Thirty rows; the 4th is refused by `parse`, the 20th is no text."""
    lines = [text(i).encode() for i in range(30)]
    lines[3], lines[19] = b"one BROKEN row", b"\xff\xfe no text"
    (tmp_path / "rows.txt").write_bytes(b"\n".join(lines))
    return tmp_path / "rows.txt"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_broken_row_ends_a_job_by_name(engine: str, run_job: Any, home: Path, broken: Path, tmp_path: Path) -> None:
    """With `fail`: one error that names file and line."""
    with pytest.raises(InputError, match=r"rows\.txt:4: trees\.py: parse raised ValueError: a broken row"):
        run_job(engine, Job(str(home / "plan.yaml"), [str(broken)], str(tmp_path / "out"), 8))


@pytest.mark.parametrize("on_error", ["skip", "record"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_others_of_a_broken_row_are_unharmed(
    engine: str, on_error: str, run_job: Any, home: Path, broken: Path, tmp_path: Path
) -> None:
    """All 28 others have their outputs; `record` says which were broken, and why."""
    index = run_job(engine, Job(str(home / "plan.yaml"), [str(broken)], str(tmp_path / "out"), 8, on_error=on_error))

    require_every_row_once(tmp_path / "out", home, [broken])
    assert (index["rows"], index["broken"]) == (28, 2)
    assert [(error["file"], error["line"]) for error in index["errors"]] == (
        [(str(broken), 4), (str(broken), 20)] if on_error == "record" else []
    )
    assert all("raised" in error["message"] or "codec" in error["message"] for error in index["errors"])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_giant_among_small_ones(engine: str, run_job: Any, home: Path, tmp_path: Path) -> None:
    """An instance of 100,000 nodes between twenty of a few."""
    lines = [text(i) for i in range(20)]
    lines[10] = " ".join(f"w{i % 97}" for i in range(100_000))
    (tmp_path / "rows.txt").write_text("\n".join(lines))
    run_job(engine, Job(str(home / "plan.yaml"), [str(tmp_path / "rows.txt")], str(tmp_path / "out"), 8))

    require_every_row_once(tmp_path / "out", home, [tmp_path / "rows.txt"])


@pytest.mark.parametrize("engine", ENGINES)
def test_more_workers_than_there_is_room_for(
    engine: str, run_job: Any, home: Path, files: Path, tmp_path: Path
) -> None:
    """Refused before anything starts, with the arithmetic."""
    message = (
        "9 workers of 1 CPU and 1 CPU for reading are 10, and the cluster has 3" if engine == "ray" else "9 workers on"
    )
    with pytest.raises(EdbcError, match=message):
        run_job(engine, Job(str(home / "plan.yaml"), [str(files)], str(tmp_path / "out")), workers=9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["edbc", "torch", "plan", "model", "weights"])
def test_a_worker_with_other_versions_or_files_is_refused(
    engine: str, name: str, run_job: Any, home: Path, files: Path, tmp_path: Path
) -> None:
    """Where the job was started, versions and hashes are others than a worker finds: exit code 4, and which."""
    weights = home / "w.safetensors"
    if not weights.exists():
        from safetensors.torch import save_file

        save_file(edbc.load(home / "plan.yaml").bind().model.state_dict(), weights)
    job = Job(str(home / "plan.yaml"), [str(files)], str(tmp_path / "out"), weights=str(weights))
    facts = prepared(job, lambda text: None).facts
    assert facts is not None
    with pytest.raises(StaleError, match=f"worker: {name}: expected another"):
        run_job(engine, job, facts=facts._replace(**{name: "another"}))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_file_without_parse_reads_whole_files(
    engine: str, run_job: Any, repository: Path, tmp_path: Path
) -> None:
    """`load` runs in the workers; places are numbers of instances, and what is behind a broken one is not read."""
    edbc.compile(repository / "models" / "tree_lstm.py", tmp_path / "plan.yaml", policy="critical",
                 config={"hidden_size": 8, "vocab_size": 64})  # fmt: skip
    for name, trees in (("a", ["(3 (2 good) (3 fun))"] * 5), ("b", ["(1 bad)", "(1 bad", "(2 fine)"]), ("c", [])):
        (tmp_path / f"{name}.txt").write_text("\n".join(trees))
    inputs = [str(tmp_path / f"{name}.txt") for name in "abc"]
    index = run_job(engine, Job(str(tmp_path / "plan.yaml"), inputs, str(tmp_path / "out"), 2, on_error="record"))

    assert index["rows"] == 6
    assert [part["rows"] for part in index["parts"]] == [2, 2, 1, 1]
    [error] = index["errors"]
    assert (Path(error["file"]).name, error["line"]) == ("b.txt", 2)
    assert "b.txt, instance 1: " in error["message"]  # as others number instances, from 0 on


def command(home: Path, inputs: Path, output: Path, engine: str, *options: object) -> list[object]:
    return [sys.executable, "-m", "edbc", "run", home / "plan.yaml", "--input", inputs, "--output", output,
            "--engine", engine, "--batch-size", 8, "--quiet", *options]  # fmt: skip


@pytest.fixture
def dangerous(tmp_path: Path) -> Path:
    """Twenty files of twenty rows, of which one kills the process that parses it for the first time."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(20):
        lines = [text(100 * number + i) + " SLOW" * (i % 4 == 0) for i in range(20)]
        lines[5] += " KILL" * (number == 9)
        (folder / f"f{number:02}.txt").write_text("\n".join(lines))
    return folder


@pytest.mark.reach
def test_a_killed_worker_of_ray_loses_no_row(home: Path, dangerous: Path, tmp_path: Path) -> None:
    """SIGKILL to an actor in the middle of a batch: Ray starts another one, and every row is there once."""
    pytest.importorskip("ray", reason="reach: Ray is not installed; run make test-reach")
    ended = ran(*command(home, dangerous, tmp_path / "out", "ray"), env={"FLAGS": str(tmp_path)})

    assert ended.code == 0, ended.output
    assert (tmp_path / "KILL").exists()
    require_every_row_once(tmp_path / "out", home, inputs_of(dangerous))


@pytest.mark.reach
def test_a_killed_worker_of_a_pool_ends_the_job(home: Path, dangerous: Path, tmp_path: Path) -> None:
    """SIGKILL to a process of the pool: one line, exit code 4, nothing left."""
    ended = ran(*command(home, dangerous, tmp_path / "out", "processes"), env={"FLAGS": str(tmp_path)})

    assert ended.code == DeviceError.exit_code, ended.output
    assert "expected workers that live, got one that ended" in ended.output
    assert "Traceback" not in ended.output


def interrupted(arguments: list[object], flags: Path) -> Ended:
    """A command that gets Ctrl-C once a row says that it has begun."""
    with started(*arguments, env={"FLAGS": str(flags)}) as process:
        until = time.monotonic() + 120
        while not (flags / "BEGUN").exists() and time.monotonic() < until and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    return Ended(process.returncode, output)


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_ends_a_job(engine: str, home: Path, tmp_path: Path) -> None:
    """In the middle of a long job: exit code 130 within a minute, and no process is left."""
    if engine == "ray":
        pytest.importorskip("ray", reason="reach: Ray is not installed; run make test-reach")
    (tmp_path / "rows.txt").write_text("\n".join(["one BEGUN row", *(text(i) + " SLOW" for i in range(20_000))]))
    ended = interrupted(command(home, tmp_path / "rows.txt", tmp_path / "out", engine), tmp_path)

    assert ended.code == 130, ended.output
    assert "Traceback" not in ended.output


NODES = """
import json, os, signal, sys, threading, time
from contextlib import suppress
from pathlib import Path
from ray.cluster_utils import Cluster
from engines import LINGERING, TOKEN, processes
from edbc.tools.cli import main

def kill(numbers):
    for number in numbers:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)

def workers():
    return [name for name in processes(os.environ[TOKEN]).values() if name.startswith("ray::MapWorker")]

flags, *arguments = sys.argv[1:]
soon = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
head = {"num_cpus": 2, "object_store_memory": 1 << 28, "include_dashboard": False, "_system_config": soon}
cluster = Cluster(initialize_head=True, head_node_args=head)
second = cluster.add_node(num_cpus=2, object_store_memory=1 << 28)

def take():
    while not (Path(flags) / "BEGUN").exists():
        time.sleep(0.05)
    raylet = second.all_processes["raylet"][0].process.pid
    started = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    cluster.remove_node(second, allow_graceful=False)
    kill(map(int, started))  # a node that is gone takes all of its processes along
    (Path(flags) / "TAKEN").touch()

threading.Thread(target=take, daemon=True).start()
try:
    main([*arguments, "--address", cluster.address])
finally:
    until = time.monotonic() + LINGERING
    while workers() and time.monotonic() < until:
        time.sleep(0.2)
    print("workers left in the cluster:", workers())
    cluster.shutdown()
    kill(set(processes(os.environ[TOKEN])) - {os.getpid()})  # the rest of the cluster, which is this script's
"""


@pytest.mark.reach
def test_a_node_that_is_taken_away(home: Path, tmp_path: Path) -> None:
    """One of two nodes of a local cluster, in the middle of a job: every row once, or a reason; no hanging."""
    pytest.importorskip("ray", reason="reach: Ray is not installed; run make test-reach")
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(40):
        lines = [text(100 * number + i) + " SLOW" * (i % 2) + " BEGUN" * (number == 5) for i in range(20)]
        (folder / f"f{number:02}.txt").write_text("\n".join(lines))
    (tmp_path / "nodes.py").write_text(NODES)
    arguments = command(home, folder, tmp_path / "out", "ray", "--workers", 3)[3:]
    here = Path(__file__).parent
    path = f"{here}:{here.parent}:{os.environ.get('PYTHONPATH', '')}"
    environment = {"FLAGS": str(tmp_path), "PYTHONPATH": path}
    ended = ran(sys.executable, tmp_path / "nodes.py", tmp_path, *arguments, env=environment)

    assert "workers left in the cluster: []" in ended.output
    assert (tmp_path / "TAKEN").exists(), ended.output
    if ended.code == 0:
        require_every_row_once(tmp_path / "out", home, inputs_of(folder))
    else:
        assert "Error: ray: " in ended.output


def test_a_job_that_lost_its_room_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts come through in order; when none comes and the cluster has lost the room, the job ends with the reason, and
    what made parts is closed; while there is room, it is waited for."""
    from edbc.reach import ray_engine

    monkeypatch.setattr(ray_engine, "PATIENCE", 0.05)
    second, third, closed, asked = threading.Event(), threading.Event(), threading.Event(), []

    def parts() -> Parts:
        try:
            yield {"part": 1}
            second.wait(60)
            yield {"part": 2}
            third.wait(60)
            yield {"part": 3}
        finally:
            closed.set()

    def lost() -> str:
        asked.append(len(found))
        if len(asked) == 3:
            second.set()
        return "no room" if len(found) == 2 else ""

    found: list[int] = []
    with pytest.raises(DeviceError, match="no room"):
        found.extend(part["part"] for part in ray_engine.watched(parts(), lost))
    assert found == [1, 2]
    assert asked[:3] == [1, 1, 1], "waited for while there is room"
    third.set()
    assert closed.wait(10)


def test_what_makes_parts_may_raise() -> None:
    """Its error is the job's."""
    from edbc.reach.ray_engine import watched

    with pytest.raises(ZeroDivisionError):
        list(watched((1 // 0 for _ in "a"), lambda: ""))


@pytest.mark.reach
def test_predictors_in_a_pipeline_of_ray_data(cluster: Any, home: Path) -> None:
    """`ds.map_batches(Predictor, ...)`: other columns stay, outputs are arrays of any length, broken rows stay."""
    texts = [text(i) for i in range(40)]
    texts[7] = "BROKEN"
    rows_in = [{"text": t, "file": "here", "line": i} for i, t in enumerate(texts)]
    data = cluster.data.from_items(rows_in, override_num_blocks=2)
    found = data.map_batches(
        Predictor, fn_constructor_kwargs={"plan": str(home / "plan.yaml"), "on_error": "record"}, batch_size=16,
        compute=cluster.data.ActorPoolStrategy(size=1),
    ).take_all()  # fmt: skip

    by_line = {int(row["line"]): row for row in found}
    assert sorted(by_line) == list(range(40))
    assert by_line[7]["error"].startswith("here:7: ")
    net = edbc.load(home / "plan.yaml").bind()
    parse = sys.modules[type(net.model).__module__].plain
    with torch.no_grad():
        wanted = net([parse(t) for i, t in enumerate(texts) if i != 7])
    assert all(
        np.array_equal(by_line[i]["output"], w.numpy())
        for i, w in zip((i for i in range(40) if i != 7), wanted, strict=True)
    )


def test_a_predictor_is_a_function_of_columns(home: Path) -> None:
    """In plain Python: texts in, arrays out; `skip` leaves a broken row out of every column."""
    predict = Predictor(home / "plan.yaml", on_error="skip")
    found = predict({"text": ["a b", "BROKEN", "c"], "id": [1, 2, 3]})

    assert found["id"] == [1, 3]
    assert [value.shape for value in found["output"]] == [(2,), (2,)]
    with pytest.raises(InputError, match="row 1 of its batch: "):
        Predictor(home / "plan.yaml")({"text": ["a", "BROKEN"]})


def test_weights_of_another_hash_are_refused(home: Path, tmp_path: Path) -> None:
    """Weights are named by path and sha256."""
    from safetensors.torch import save_file

    save_file(edbc.load(home / "plan.yaml").bind().model.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(StaleError, match="expected the weights of sha256 0000"):
        Predictor(home / "plan.yaml", tmp_path / "w.safetensors", weights_sha256="0" * 64)


def test_a_model_without_parse_cannot_predict_rows(repository: Path, tmp_path: Path) -> None:
    """What to define is said."""
    edbc.compile(
        repository / "models" / "tree_lstm.py", tmp_path / "plan.yaml", policy="critical", config={"hidden_size": 4}
    )
    with pytest.raises(ModelError, match="expected a function 'parse'"):
        Predictor(tmp_path / "plan.yaml")({"text": ["(1 a)"]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", 2), "--workers: expected --engine beside it"),
        (("--engine", "processes", "--address", "a", "--output", "o"), "--address: expected --engine ray"),
        (("--engine", "processes"), "--engine: expected --output FOLDER"),
        (("--engine", "processes", "--output", "o", "--verify"), "--verify: expected to run without --engine"),
    ],
)
def test_options_that_do_not_go_together(options: tuple[object, ...], message: str, home: Path) -> None:
    """One line, exit code 3."""
    from click.testing import CliRunner

    from edbc.tools.cli import main

    result = CliRunner().invoke(main, ["run", str(home / "plan.yaml"), *map(str, options)])
    assert result.exit_code == 3
    assert message in result.output


def test_an_output_folder_in_use_is_refused(home: Path, files: Path, tmp_path: Path) -> None:
    """Parts of two jobs never mix."""
    (tmp_path / "part.safetensors").touch()
    with pytest.raises(EdbcError, match="expected an empty folder"):
        prepared(Job(str(home / "plan.yaml"), [str(files)], str(tmp_path)), lambda text: None)
