"""The Python interface gives what the command line gives."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from commands import command

import edbc
from edbc.api import compile_file
from edbc.errors import CheckFailed, StaleError
from edbc.run.modelfile import import_model_file
from edbc.tools.cli import main


def run(*arguments: object) -> str:
    """What a command prints on stdout; it must exit 0."""
    result = command(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> edbc.LoadedPlan:
    """A small plan, compiled from Python, with its page. Tests must not change it."""
    folder = tmp_path_factory.mktemp("api")
    run("new", folder / "trees.py")
    return edbc.compile(folder / "trees.py", folder / "plans" / "trees.yaml", config={"hidden_size": 8}, trials=50,
                        encoding="sort", report=folder / "page.html")  # fmt: skip


def test_what_is_shown_of_a_plan_is_a_line(loaded: edbc.LoadedPlan) -> None:
    """Not all of its tables, in a notebook or a log: which plan, of what, and its counts."""
    told = r"\.\./trees\.py: 2 types, policy fsm; 310 nodes in 12 batches, lower bound 12>"
    assert re.fullmatch(rf"<edbc plan .*trees\.yaml of {told}", repr(loaded))
    assert re.fullmatch(rf"<edbc net of {told}", repr(loaded.bind()))


def test_another_model_file_is_bound_by_its_name(loaded: edbc.LoadedPlan, tmp_path: Path) -> None:
    """As `--model` does; its hash is compared."""
    model = loaded.path.parent.parent / "trees.py"
    other = tmp_path / "other.py"
    other.write_text(model.read_text() + "\n# changed\n")
    for name in (model, str(model)):
        assert len(loaded.bind(name)([])) == 0
    with pytest.raises(StaleError, match=r"other\.py: expected the model file that the plan was compiled from"):
        loaded.bind(other)
    with pytest.warns(UserWarning, match="trusted because of") as told:
        assert loaded.bind(other, trust_changed_model=True)([]) == []
    assert told[0].filename == __file__


def test_what_the_caller_draws_goes_on(loaded: edbc.LoadedPlan, tmp_path: Path) -> None:
    """Weights and made-up instances are seeded on their own: the process's generator is where it was, and a `sample`
    that draws from it makes the same instances every time."""
    torch.manual_seed(5)
    state = torch.get_rng_state()
    loaded.bind()
    loaded.check()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.initial_seed() == 5
    path = tmp_path / "draws.py"
    path.write_text(
        "import torch\nbuild = torch.nn.Identity\n\n\ndef sample(count, seed):\n    return [torch.rand(3)] * count\n"
    )
    file = import_model_file(path)
    one, again, other = (file.sample(2, seed, {})[1] for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_compiling_writes_the_page_too(loaded: edbc.LoadedPlan) -> None:
    """`report` is `--report`."""
    assert "<h1>trees.yaml</h1>" in (loaded.path.parent.parent / "page.html").read_text()


def test_a_run_counts_as_the_command_does(loaded: edbc.LoadedPlan, tmp_path: Path) -> None:
    """Same instances, same counts, same files; only times differ."""
    options = {"limit": 40, "batch_size": 16, "dtype": "float64", "policy": "depth", "config": {"hidden_size": 16}}
    report = loaded.run(verify=True, output=str(tmp_path / "a"), trace=str(tmp_path / "t.json"), **options)
    told = json.loads(run("run", loaded.path, "--limit", 40, "--batch-size", 16, "--dtype", "float64", "--policy",
                          "depth", "--set", "hidden_size=16", "--verify", "--output", tmp_path / "b", "--format",
                          "json"))  # fmt: skip
    same = ("instances", "nodes", "batches", "lower_bound", "gathered_rows", "backend", "dtype", "max_error")

    assert {key: report.as_json()[key] for key in same} == {key: told[key] for key in same}
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert f"{report.stats.batches:,} for {report.stats.nodes:,} nodes" in str(report)


def test_training_gives_the_figures_of_the_command(loaded: edbc.LoadedPlan, tmp_path: Path) -> None:
    """The same losses, epoch by epoch, as `edbc train`, in the files too; every step is watched."""
    model = tmp_path / "trees.py"
    source = (loaded.path.parent.parent / "trees.py").read_text()
    model.write_text(source + "\n\ndef loss(outputs, tree):\n    return outputs.square().sum()\n")
    events: list = []
    setting = {"limit": 5, "epochs": 2, "batch_size": 4, "trust_changed_model": True}
    with pytest.warns(UserWarning, match="trusted"):
        epochs = loaded.train(tmp_path / "ours", model=str(model), watch=events.append, **setting)
    report = json.loads(run("train", model, loaded.path, "--output", tmp_path / "theirs", "--limit", 5, "--epochs", 2,
                            "--batch-size", 4, "--trust-changed-model", "--format", "json"))  # fmt: skip

    assert len(events) == 2 * (2 + 1)
    assert [e.train for e in epochs] == [e["train"] for e in report["epochs"]]
    assert (tmp_path / "ours" / "curve.jsonl").read_text().count("\n") == 2


def test_a_run_that_differs_from_eager_raises(loaded: edbc.LoadedPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `verify`, wrong numbers are an exception and not a field that nobody reads."""
    from edbc.run import execution
    from edbc.run.cpu import atonce

    collect = execution.collect
    for road in (execution, atonce):
        monkeypatch.setattr(road, "collect", lambda *given: [result + 1 for result in collect(*given)])
    with pytest.raises(CheckFailed):
        loaded.run(limit=3, verify=True)


def test_binding_builds_the_models_own_weights_or_takes_a_model(loaded: edbc.LoadedPlan) -> None:
    """Without a model the plan's file is built, in the dtype and config asked for; with one, that is used."""
    import torch

    own = loaded.bind(dtype="float64", config={"hidden_size": 16}, backend="reference")
    given = loaded.bind(own.model, backend="reference", policy="agenda")

    assert own.dtype is torch.float64
    assert given.model is own.model
    assert given.policy.kind == "agenda"


def test_a_changed_model_is_refused_or_trusted_aloud(loaded: edbc.LoadedPlan, tmp_path: Path) -> None:
    """StaleError; with `trust_changed_model` a warning that says what is trusted."""
    other = tmp_path / "trees.py"
    other.write_text((loaded.path.parent.parent / "trees.py").read_text() + "# changed\n")
    with pytest.raises(StaleError, match="sha256"):
        edbc.load(loaded.path).run(limit=1, model=str(other))
    with pytest.warns(UserWarning, match="trusted because"):
        edbc.load(loaded.path).run(limit=1, model=str(other), trust_changed_model=True)


def test_checking_diffing_measuring_and_explaining(loaded: edbc.LoadedPlan) -> None:
    """One call each, with what the commands print in it."""
    outcome = loaded.check(strict=True)
    row, eager = loaded.bench(limit=8, rounds=1, batch_size=8)
    explanation = loaded.explain(config={"hidden_size": 4})

    assert (outcome.status, outcome.exit_code) == ("passed", 0)
    assert loaded.diff(loaded).is_empty
    assert (row.policy, eager.policy) == (loaded.plan.policy.kind, "eager")
    assert "run with hidden_size=4" in str(explanation)
    assert "<svg" in explanation._repr_html_()


SAME = {"plan", "plans", "output_format", "quiet", "verbose", "version", "help"}
"""What only a command line needs: names of files that are objects here, and how to print."""
RENAMED = {"settings": "config", "batch_sizes": "batch_size"}
STAGES, JOBS = "fields of edbc.Stages", "edbc.reach.Predictor in a pipeline of an engine"
ELSEWHERE = {
    "compile": dict.fromkeys(("ios_r", "ios_s", "gap", "ios_batch", "ios_threads", "device"), STAGES),
    "run": dict.fromkeys(("engine", "workers", "address", "on_error", "keep_order"), JOBS),
    "explain": {"static": "run", "html": "Explanation.html", "dot": "edbc.tools.explain.dots.write_dots"},
    "check": {"update": "write_plan(outcome.renewed, path)"},
    "bench": {"threads": "torch.set_num_threads", "trust_changed_model": "bench measures the model that is named"},
    "diff": {"exit_code": "PlanDiff.is_worse", "old": "the plan itself"},
}


def parameters_of(command: str) -> set[str]:
    """Names that the Python counterpart of a command takes."""
    from edbc.tools import benchmark, running, training

    function = {"compile": compile_file}.get(command) or getattr(edbc.LoadedPlan, command)
    names = set(inspect.signature(function).parameters)
    settings = {"run": running.Setting, "bench": benchmark.Setting, "train": training.Setting}.get(command)
    return names | ({field.name for field in fields(settings)} if settings else set())


@pytest.mark.parametrize("command", ["compile", "run", "train", "check", "explain", "diff", "bench"])
def test_every_option_has_a_counterpart(command: str, repository: Path) -> None:
    """An option of a command is a parameter of the same name in Python, or this table and docs/python.md say where."""
    page = (repository / "docs" / "python.md").read_text()
    options = {p.name for p in main.commands[command].params if p.name} - SAME
    known = parameters_of(command)
    missing = {name for name in options if RENAMED.get(name, name) not in known} - ELSEWHERE.get(command, {}).keys()

    assert not missing
    for name in ELSEWHERE.get(command, {}).keys() - {"old"}:
        assert f"--{name.replace('_', '-')}" in page


def test_users_get_types(repository: Path) -> None:
    """py.typed is there and named in the package's data, so that checkers read the annotations."""
    assert (repository / "edbc" / "py.typed").is_file()
    data = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["edbc"]
    assert "py.typed" in data
