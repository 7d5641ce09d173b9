"""`edbc train`: its report, its files, Ctrl-C and resumption, and how it refuses."""

from __future__ import annotations

import json
import re
import signal
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edbc.run.modelfile import import_model_file
from edbc.tools.cli.main import main
from edbc.tools.cli.train import interrupts
from edbc.tools.training import objective_of
from edbc.train.fit.loop import Data, Loop
from edbc.train.fit.optimizers import KINDS, optimizer_of

EPOCHS = 2
INTERRUPTING = """

import os, signal
calls = 0
plain = metrics

def metrics(outputs, tree):
    global calls
    calls += "INTERRUPT_AT" in os.environ
    if str(calls) == os.environ.get("INTERRUPT_AT"):
        os.kill(os.getpid(), signal.SIGINT)
    return plain(outputs, tree)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of seven training trees and three dev trees."""
    lines = ["(3 (2 good) (3 fun))", "(1 bad)", "(2 (2 (2 not) (1 bad)) (2 at_all))", "(4 (3 very) (3 good))",
             "(0 (1 not) (3 good))", "(3 fun)", "(2 (1 bad) (2 (3 fun) (2 not)))"]  # fmt: skip
    folder = tmp_path_factory.mktemp("labelled")
    for name, part in (("train", lines), ("dev", lines[2:5])):
        (folder / f"{name}.txt").write_text("\n".join(part) + "\n")
    return {name: folder / f"{name}.txt" for name in ("train", "dev")}


@pytest.fixture
def train(edbc, workspace: Path, data: dict[str, Path], tmp_path: Path):
    """Train the workspace's model in mini-batches of 2; further options as given."""

    def run(*options: object, folder: str = "out", epochs: int = EPOCHS, files: bool = True):
        inputs = ("--input", data["train"], "--dev", data["dev"]) if files else ()
        return edbc("train", workspace / "models" / "tree_lstm.py", workspace / "plans" / "tree_lstm.yaml", *inputs,
                    "--epochs", epochs, "--batch-size", 2, "--output", tmp_path / folder, *options)  # fmt: skip

    return run


def curve(folder: Path) -> list[dict]:
    """The epochs of a curve file, without times."""
    epochs = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    return [{key: value for key, value in epoch.items() if key != "instances_per_second"} for epoch in epochs]


def test_training_equals_eager_training(train, workspace: Path, data: dict[str, Path], tmp_path: Path) -> None:
    """In float64 every figure of every epoch is that of the same loop over the unmodified model, to 1e-9."""
    result = train("--dtype", "float64", "--seed", 5, "--format", "json")
    assert result.exit_code == 0, result.output
    file = import_model_file(workspace / "models" / "tree_lstm.py")
    config = file.config({"hidden_size": 16, "vocab_size": 64})
    model = file.build(config, 5).double()
    instances = Data(*(list(file.load([data[name]], config)) for name in ("train", "dev")))
    eager = Loop(lambda batch: [model(tree) for tree in batch], model, optimizer_of(model, "adam", 1e-3),
                 objective_of(file), instances, 2, 5)  # fmt: skip
    list(eager.run(EPOCHS))

    for ours, theirs in zip(curve(tmp_path / "out"), eager.state.history, strict=True):
        assert ours["train"] == pytest.approx(theirs.train, rel=1e-9)
        assert ours["dev"] == pytest.approx(theirs.dev, rel=1e-9)


def test_report_and_files_say_the_same(train, edbc, workspace: Path, data: dict[str, Path], tmp_path: Path) -> None:
    """One JSON object on stdout holds the lines of curve.jsonl; weights run; the picture stands alone."""
    result = train("--format", "json", "--quiet", epochs=3)
    report, folder = json.loads(result.stdout), tmp_path / "out"
    lines = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    picture = (folder / "curve.svg").read_text()
    run = edbc("run", workspace / "plans" / "tree_lstm.yaml", "--input", data["dev"], "--weights",
               folder / "weights.safetensors", "--verify")  # fmt: skip

    assert result.stderr == ""
    assert (report["schema"], report["instances"], len(report["epochs"])) == (1, 7, 3)
    assert report["epochs"] == lines
    assert set(lines[0]) == {"epoch", "train", "dev", "instances_per_second"}
    assert set(lines[0]["dev"]) == {"loss", "accuracy", "root accuracy"}
    assert lines[2]["train"]["loss"] < lines[0]["train"]["loss"]
    assert picture.startswith("<svg") and picture.count("<polyline") == 6 and "http" not in picture.partition(">")[2]  # noqa: PT018
    assert run.exit_code == 0, run.output
    assert sorted(p.name for p in folder.iterdir()) == [
        "checkpoint.safetensors", "curve.jsonl", "curve.svg", "weights.safetensors",
    ]  # fmt: skip


def test_text_has_a_line_per_epoch_and_progress_on_stderr(train) -> None:
    """Stdout: what is trained, an epoch per line, where files are. Stderr: a stage per epoch, with the loss."""
    result = train()
    heading, first, second, files = result.stdout.splitlines()

    assert "7 instances in mini-batches of 2, 3 dev instances; adam lr 0.001, seed 0, cpu, float32" in heading
    assert re.fullmatch(r"  epoch 1 .*train loss [\d.]+, accuracy [\d.]+, root .*; dev loss .*instances/s", first)
    assert second.startswith("  epoch 2")
    assert files.endswith("weights, checkpoint, curve.jsonl and curve.svg")
    assert re.search(r"train 2 +50 %  loss [\d.]+\n", result.stderr)
    assert "dev 2    100 %" in result.stderr


@pytest.mark.parametrize("at", [1, 5, 7, 9, 17])
@pytest.mark.long
def test_interrupted_and_resumed_is_as_never_interrupted(
    train, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Ctrl-C within a step, after an epoch's last step or among dev instances: exit 130, a checkpoint, and with
    --resume the same curve and the same weights, bit by bit."""
    with (workspace / "models" / "tree_lstm.py").open("a") as file:
        file.write(INTERRUPTING)
    whole = train("--trust-changed-model", folder="whole")
    monkeypatch.setenv("INTERRUPT_AT", str(at))
    first = train("--trust-changed-model")
    monkeypatch.delenv("INTERRUPT_AT")
    second = train("--trust-changed-model", "--resume")

    assert (whole.exit_code, first.exit_code, second.exit_code) == (0, 130, 0), first.output + second.output
    assert "checkpoint.safetensors: written; go on with --resume" in first.stderr
    assert first.stderr.endswith("interrupted\n")
    assert curve(tmp_path / "out") == curve(tmp_path / "whole")
    ours, theirs = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("out", "whole"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_first_ctrl_c_is_remembered_and_the_second_interrupts() -> None:
    """Inside, one SIGINT is told to who asks, two raise; afterwards signals go where they went before."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts() as is_interrupted:  # noqa: PT012
        assert not is_interrupted()
        signal.raise_signal(signal.SIGINT)
        assert is_interrupted()
        signal.raise_signal(signal.SIGINT)

    assert signal.getsignal(signal.SIGINT) is before


def test_optimisers_of_the_command_are_those_of_the_loop() -> None:
    """The command names them without importing torch: the same names, and the default rates in the help."""
    options = {option.name: option for option in main.commands["train"].params}
    rates = {name: f"{kind.rate:g} for" for name, kind in KINDS.items()}

    assert list(options["optimizer"].type.choices) == list(KINDS)
    assert all(rate in options["lr"].help and name in options["lr"].help for name, rate in rates.items())


def test_training_in_another_thread_leaves_signals_alone() -> None:
    """Only the main thread may handle signals; elsewhere nothing is remembered and nothing fails."""
    seen: list[bool] = []

    def inside() -> None:
        with interrupts() as is_interrupted:
            seen.append(is_interrupted())

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()

    assert seen == [False]


def test_the_weights_kept_are_the_best_on_dev(train, workspace: Path, data: dict[str, Path], tmp_path: Path) -> None:
    """After steps that are too long the last epoch is not the best; the weights' dev loss is the least of the curve."""
    result = train("--optimizer", "sgd", "--lr", 0.4, "--dtype", "float64", epochs=5)
    losses = [epoch["dev"]["loss"] for epoch in curve(tmp_path / "out")]
    file = import_model_file(workspace / "models" / "tree_lstm.py")
    config = file.config({"hidden_size": 16, "vocab_size": 64})
    model = file.build(config, 0).double()
    model.load_state_dict(load_file(tmp_path / "out" / "weights.safetensors"))
    dev = list(file.load([data["dev"]], config))
    with torch.no_grad():
        kept = float(objective_of(file).loss_of([model(tree) for tree in dev], dev))

    assert result.exit_code == 0, result.output
    assert min(losses) < losses[-1]
    assert kept == pytest.approx(min(losses), rel=1e-9)


@pytest.mark.long
def test_vertex_functions_train_the_same(train, tmp_path: Path) -> None:
    """With --front-end vertex the curve is that of recording, to 1e-9 in float64."""
    train("--dtype", "float64")
    result = train("--dtype", "float64", "--front-end", "vertex", folder="vertex")

    assert result.exit_code == 0, result.output
    for ours, theirs in zip(curve(tmp_path / "vertex"), curve(tmp_path / "out"), strict=True):
        assert ours["train"] == pytest.approx(theirs["train"], rel=1e-9)
        assert ours["dev"] == pytest.approx(theirs["dev"], rel=1e-9)


@pytest.mark.long
def test_recomputation_trains_the_same(train, tmp_path: Path) -> None:
    """`--recompute` changes what training takes, not what it gives; other words are usage errors."""
    assert train("--recompute", "auto", folder="auto").exit_code == 0
    assert train("--recompute", 3, folder="cut").exit_code == 0
    assert train(folder="whole").exit_code == 0
    auto, cut, whole = (load_file(tmp_path / folder / "weights.safetensors") for folder in ("auto", "cut", "whole"))
    for name, expected in whole.items():
        assert torch.equal(auto[name], expected), name
        assert torch.equal(cut[name], expected), name
    refused = train("--recompute", 0, folder="none")
    assert refused.exit_code == 2
    assert "number of segments from 1 on, or auto, got '0'" in refused.output


def test_without_files_instances_are_made_up_and_there_is_no_dev(train, tmp_path: Path) -> None:
    """As in 'edbc run', and it says so; the weights kept are then the last."""
    result = train("--limit", 3, files=False, epochs=1)
    weights, state = (load_file(tmp_path / "out" / f"{name}.safetensors") for name in ("weights", "checkpoint"))

    assert "3 made-up instances" in result.stdout
    assert curve(tmp_path / "out")[0]["dev"] is None
    assert all(torch.equal(weights[name], state[f"model.{name}"]) for name in weights)


def test_a_model_without_loss_is_refused(train, workspace: Path) -> None:
    """Exit 3, with the function that is expected and where to read of it; nothing is written."""
    model = workspace / "models" / "tree_lstm.py"
    model.write_text(model.read_text().replace("def loss(", "def other("))
    result = train("--trust-changed-model")

    assert result.exit_code == 3
    assert "expected a function 'loss' to train with, got none; define loss(outputs, instance)" in result.stderr
    assert not (workspace.parent / "out").exists()


def test_a_loss_that_raises_is_the_models_error(train, workspace: Path) -> None:
    """Exit 3 with the file's name and the user's own traceback."""
    model = workspace / "models" / "tree_lstm.py"
    model.write_text(model.read_text().replace('cross_entropy(outputs["logits"]', 'cross_entropy(outputs["nothing"]'))
    result = train("--trust-changed-model")

    assert result.exit_code == 3
    assert "Error: tree_lstm.py: loss raised KeyError: 'nothing'" in result.stderr


def test_a_folder_with_a_checkpoint_is_not_trained_into_anew(train, tmp_path: Path) -> None:
    """Without --resume: exit 3, and the checkpoint is as it was. A file instead of a folder is refused too."""
    train(epochs=1)
    before = (tmp_path / "out" / "checkpoint.safetensors").read_bytes()
    result = train()
    (tmp_path / "file").write_text("")

    assert result.exit_code == 3
    assert "expected a folder without a checkpoint, got one; give --resume" in result.stderr
    assert (tmp_path / "out" / "checkpoint.safetensors").read_bytes() == before
    assert "expected a folder to write to, got a file" in train(folder="file").stderr


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--batch-size", 3), 4, "batch-size: expected 2 as in the checkpoint, got 3"),
        (("--lr", 0.1), 4, "lr: expected 0.001 as in the checkpoint, got 0.1"),
        (("--limit", 3), 4, "limit: expected None as in the checkpoint, got 3"),
        (("--set", "hidden_size=8"), 4, "config: expected"),
    ],
)
def test_resuming_with_something_else_is_refused(train, options: tuple, code: int, message: str) -> None:
    """What would make the rest another training is exit 4, by name and with both sides."""
    train(epochs=1)
    result = train(*options, "--resume")

    assert result.exit_code == code
    assert message in result.stderr


def test_resuming_nothing_is_refused(train) -> None:
    """--resume without a checkpoint does not quietly start anew."""
    result = train("--resume")

    assert result.exit_code == 3
    assert "expected a checkpoint, got nothing; train without --resume first" in result.stderr


def test_a_changed_model_is_stale(train, workspace: Path) -> None:
    """As in 'edbc run': exit 4 with the remedy."""
    with (workspace / "models" / "tree_lstm.py").open("a") as file:
        file.write("\n# changed\n")

    assert train().exit_code == 4


def test_no_instances_are_refused(train, data: dict[str, Path], tmp_path: Path) -> None:
    """An empty training file names itself."""
    (tmp_path / "empty.txt").write_text("")
    result = train("--input", tmp_path / "empty.txt", files=False)

    assert result.exit_code == 3
    assert "empty.txt: expected instances to train on, got none" in result.stderr


def test_names_that_lead_nowhere_are_one_line(edbc, train, workspace: Path, tmp_path: Path) -> None:
    """A model file, a data file and a place for the folder that do not exist: exit 3 with what was expected."""
    (tmp_path / "file").write_text("")
    other = edbc("train", tmp_path / "none.py", workspace / "plans" / "tree_lstm.yaml")

    assert other.exit_code == 3
    assert "none.py: expected a model file, got nothing" in other.stderr
    for options, message in (
        (
            {"folder": "file/inside"},
            "inside: expected a folder to write to, got a path through a file; name ",
        ),
        ({"files": False}, "none.txt: expected an input file, got nothing"),
    ):
        result = train("--input", tmp_path / "none.txt", **options) if "files" in options else train(**options)
        assert result.exit_code == 3
        assert message in result.stderr


def test_a_disk_that_takes_nothing_is_one_line(train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that cannot be written ends training with the file, the reason and a remedy."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    result = train()

    assert result.exit_code == 3
    assert "weights.safetensors: expected to write the weights there, got" in result.stderr
