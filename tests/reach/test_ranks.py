"""Ranks: gradients under DistributedDataParallel, `edbc train` under torchrun, and what happens when one fails."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from budget import HANGS
from ddp_cases import CASES
from engines import Ended, ran, started, torchrun
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
MISBEHAVING = """

import os, signal, sys
calls = 0
plain = loss

def loss(outputs, tree):
    global calls
    calls += 1
    fault = os.environ.get("FAULT")
    if fault and os.environ.get("RANK") == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and calls == 20:
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        raise ValueError("a loss that raises")
    return plain(outputs, tree)
"""
TREES = ["(3 (2 good) (3 fun))", "(1 bad)", "(2 (2 (2 not) (1 bad)) (2 at_all))", "(4 (3 very) (3 good))",
         "(0 (1 not) (3 good))", "(3 fun)", "(2 (1 bad) (2 (3 fun) (2 not)))"]  # fmt: skip


@pytest.mark.long
def test_gradients_of_ranks_are_those_of_one_process() -> None:
    """With ranks that reach no node of a cell, DDP's options, sparse tables, Join and DataLoader workers: 1e-12."""
    ended = ran(sys.executable, HERE / "ddp_cases.py", 2, env={"OMP_NUM_THREADS": "1"})

    assert ended.code == 0, ended.output
    found = {line["case"]: line["difference"] for line in map(json.loads, _objects(ended.output))}
    assert set(found) == set(CASES)
    assert {name: worst for name, worst in found.items() if worst > 1e-12} == {}


def _objects(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def folder(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of a model whose loss misbehaves on rank 1 when FAULT says how, and files to train on."""
    import shutil

    folder = tmp_path_factory.mktemp("ranks")
    shutil.copytree(repository / "models", folder / "models", ignore=shutil.ignore_patterns("__pycache__"))
    model = folder / "models" / "tree_lstm.py"
    model.write_text(model.read_text() + MISBEHAVING)
    (folder / "train.txt").write_text("\n".join(TREES * 4) + "\n")
    (folder / "dev.txt").write_text("\n".join(TREES[2:5]) + "\n")
    made = ran(sys.executable, "-m", "edbc", "compile", model, "-o", folder / "plan.yaml", "--set", "hidden_size=16",
               "--set", "vocab_size=64", "--policy", "critical", "--no-measure-gain", "--quiet")  # fmt: skip
    assert made.code == 0, made.output
    return folder


def trained(folder: Path, ranks: int, output: Path, *options: object, plan: str = "plan.yaml", restarts: int = 0,
            runs: tuple[object, ...] = ("-m", "edbc"), **env: str) -> Ended:  # fmt: skip
    """`edbc train` under torchrun: two epochs of four steps, in float64."""
    return torchrun(ranks, *runs, "train", folder / "models" / "tree_lstm.py", folder / plan, "--input",
                    folder / "train.txt", "--dev", folder / "dev.txt", "--batch-size", 8, "--dtype", "float64",
                    "--output", output, *(options or ("--epochs", 2)), env=env, restarts=restarts)  # fmt: skip


def difference(one: Path, other: Path) -> float:
    """Between the weights of two trainings."""
    a, b = (load_file(folder / "weights.safetensors") for folder in (one, other))
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def curve(folder: Path) -> list[float]:
    """Losses of training and dev by epoch."""
    epochs = map(json.loads, (folder / "curve.jsonl").read_text().splitlines())
    return [loss for epoch in epochs for loss in (epoch["train"]["loss"], epoch["dev"]["loss"])]


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training in one process, without a stop."""
    output = tmp_path_factory.mktemp("whole") / "out"
    ended = trained(folder, 1, output)
    assert ended.code == 0, ended.output
    return output


@pytest.mark.reach
def test_any_number_of_ranks_trains_the_same(folder: Path, whole: Path, tmp_path: Path) -> None:
    """Three ranks, whose shares of mini-batches of 8 and 4 are unequal: weights and figures of one to 1e-12."""
    ended = trained(folder, 3, tmp_path / "out")

    assert ended.code == 0, ended.output
    assert difference(whole, tmp_path / "out") < 1e-12
    assert curve(tmp_path / "out") == pytest.approx(curve(whole), rel=1e-12)
    assert ended.output.count("epoch 1 ") == 1, "one rank reports"


@pytest.mark.reach
def test_another_number_of_ranks_resumes(folder: Path, whole: Path, tmp_path: Path) -> None:
    """An epoch in two ranks and the second in one: as one process in one go."""
    first = trained(folder, 2, tmp_path / "out", "--epochs", 1)
    second = trained(folder, 1, tmp_path / "out", "--epochs", 2, "--resume")

    assert (first.code, second.code) == (0, 0), first.output + second.output
    assert difference(whole, tmp_path / "out") < 1e-12


@pytest.mark.reach
def test_a_killed_rank_is_started_again_from_the_checkpoint(folder: Path, whole: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle of a step of the second epoch: torchrun starts both ranks again, and nothing is lost."""
    # Ranks that are started again have been seen to wait for each other in gloo's set-up, on a busy machine: they give
    # up after EDBC_RANK_TIMEOUT, and torchrun starts them once more.
    ended = trained(folder, 2, tmp_path / "out", restarts=3, FAULT="kill", EDBC_RANK_TIMEOUT="40")

    assert ended.code == 0, ended.output
    assert "after 1 epoch" in ended.output, "did not resume from the checkpoint"
    assert difference(whole, tmp_path / "out") < 1e-12


@pytest.mark.reach
@pytest.mark.parametrize(("fault", "message"), [("kill", "Signal 9"), ("raise", "a loss that raises")])
def test_a_rank_that_fails_ends_all(folder: Path, tmp_path: Path, fault: str, message: str) -> None:
    """Without restarts the other rank ends too, and what was wrong is said."""
    ended = trained(folder, 2, tmp_path / "out", FAULT=fault)

    assert ended.code != 0
    assert message in ended.output


@pytest.mark.reach
def test_a_rank_that_hangs_ends_all(folder: Path, tmp_path: Path) -> None:
    """A stopped rank: the other one waits as long as EDBC_RANK_TIMEOUT says, and no longer."""
    ended = trained(folder, 2, tmp_path / "out", FAULT="stop", EDBC_RANK_TIMEOUT="10")

    assert ended.code != 0
    assert "imed out" in ended.output


@pytest.mark.reach
def test_ctrl_c_leaves_one_checkpoint(folder: Path, tmp_path: Path) -> None:
    """Ctrl-C to torchrun: ranks stop behind the same step, the first writes a checkpoint, and nothing is left."""
    run = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "-m", "edbc", "train")
    command = (*run, folder / "models" / "tree_lstm.py", folder / "plan.yaml", "--input", folder / "train.txt",
               "--epochs", 100_000, "--batch-size", 8, "--output", tmp_path / "out")  # fmt: skip
    with started(*command) as process:
        until = time.monotonic() + HANGS / 2
        while not (tmp_path / "out" / "curve.jsonl").exists() and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)

    assert output.count("checkpoint.safetensors: written; go on with --resume") == 1, output
    assert output.count("interrupted") == 2


# What rank 1 does before it runs the command; every rank leaves its exit code in a file.
WRAPPER = """
import os, sys
from pathlib import Path
from edbc.tools.cli import main
if os.environ["RANK"] == "1":
    {fault}
try:
    main(sys.argv[2:])
except SystemExit as error:
    Path(sys.argv[1], "code" + os.environ["RANK"]).write_text(str(error.code))
    raise
"""
FAULTS = {
    "another plan": ("sys.argv = [a.replace('plan.yaml', 'other.yaml') for a in sys.argv]", "expected one plan on all"),
    "another model file": ("sys.argv = [a.replace('/models/', '/others/') for a in sys.argv]", "one model file on all"),
    "another edbc": ("import edbc.reach.ranks; edbc.reach.ranks.__version__ = '0.0.1'", "one edbc on all"),
    "another torch": ("import torch; torch.__version__ = '2.7.0'", "one torch on all"),
    "no plan": ("sys.argv = [a.replace('plan.yaml', 'none.yaml') for a in sys.argv]", "rank 1: "),
}


@pytest.mark.reach
@pytest.mark.parametrize("fault", FAULTS)
def test_ranks_that_differ_end_with_one_exit_code(folder: Path, tmp_path: Path, fault: str) -> None:
    """Another plan, model file or version on rank 1: every rank says so and exits 4, before the model file runs."""
    import shutil

    statement, message = FAULTS[fault]
    (tmp_path / "wrapper.py").write_text(WRAPPER.format(fault=statement))
    (folder / "other.yaml").write_text((folder / "plan.yaml").read_text().replace("seed: 0", "seed: 1"))
    shutil.copytree(folder / "models", folder / "others", dirs_exist_ok=True)
    (folder / "others" / "tree_lstm.py").write_text((folder / "models" / "tree_lstm.py").read_text() + "\n")
    ended = trained(folder, 2, tmp_path / "out", runs=(tmp_path / "wrapper.py", tmp_path))

    assert ended.code != 0
    assert ended.output.count(message) == 2, ended.output
    codes = {(tmp_path / f"code{rank}").read_text() for rank in range(2)}
    assert codes == {"3" if fault == "no plan" else "4"}
    assert not (tmp_path / "out").exists()


@pytest.mark.reach
def test_a_stale_plan_is_exit_4_on_every_rank(folder: Path, tmp_path: Path) -> None:
    """The model file changed since compiling, for all ranks alike."""
    import shutil

    work = Path(shutil.copytree(folder, tmp_path / "work"))
    with (work / "models" / "tree_lstm.py").open("a") as file:
        file.write("\n# changed\n")
    (tmp_path / "wrapper.py").write_text(WRAPPER.format(fault="pass"))
    ended = trained(work, 2, tmp_path / "out", runs=(tmp_path / "wrapper.py", tmp_path))

    assert ended.output.count("expected the model file") == 2, ended.output
    assert {(tmp_path / f"code{rank}").read_text() for rank in range(2)} == {"4"}


def test_what_ranks_gather_is_text() -> None:
    """Facts travel as bytes of JSON: a text of any length and script arrives as it was."""
    import torch.distributed as dist

    from edbc.reach.ranks import gathered

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert gathered("ä" * 1000) == ["ä" * 1000]
        assert gathered("") == [""]
    finally:
        dist.destroy_process_group()
    assert not torch.distributed.is_initialized()
