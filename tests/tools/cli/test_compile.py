"""`edbc compile`: what it writes, what it says, how it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from edbc.api import load
from edbc.capture.code.shadow import ModelView
from edbc.capture.forward.repeat import ASKED
from edbc.errors import CheckFailed
from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.session import Stats
from edbc.tools.compile.compiler import compile_model
from edbc.tools.parity import Eager
from edbc.tools.report.figures import size_text


def test_the_plan_reaches_the_lower_bound_and_leaves_no_copies(compiled: Path) -> None:
    """Made-up trees need exactly the lower bound, and the layout leaves no copy in any cell."""
    plan = read_plan(compiled / "plans" / "tree_lstm.yaml")

    assert plan.policy.training["batches"] == plan.policy.training["lower_bound"]
    assert {cell.copies for cell in plan.cells.values()} == {0}
    assert [t.name for t in plan.types] == ["leaf", "out", "internal"]


@pytest.mark.long
def test_compiling_twice_gives_the_same_bytes(edbc, workspace: Path) -> None:
    """Equal model, config and seed give equal plans, byte for byte."""
    first = workspace / "plans" / "tree_lstm.yaml"
    second = workspace / "plans" / "again.yaml"
    result = edbc("compile", workspace / "models" / "tree_lstm.py", "-o", second, "--set", "hidden_size=16",
                  "--set", "vocab_size=64")  # fmt: skip

    assert result.exit_code == 0
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.long
def test_guards_survive_recompiling(edbc, workspace: Path) -> None:
    """A tolerance that a person wrote into the plan is still there after compiling over it."""
    path = workspace / "plans" / "tree_lstm.yaml"
    path.write_text(path.read_text().replace("tolerance: 0", "tolerance: 2", 1))
    edbc("compile", workspace / "models" / "tree_lstm.py", "-o", path, "--set", "hidden_size=16")

    assert [g.tolerance for g in read_plan(path).guards.values()].count(2) == 1


@pytest.mark.long
def test_first_real_trees_have_the_known_graph(edbc, data_dir: Path, repository: Path, tmp_path: Path) -> None:
    """The first 32 trees of the treebank give 2,396 nodes and lower bound 19, and the plan reaches it."""
    target = tmp_path / "plan.yaml"
    result = edbc("compile", repository / "models" / "tree_lstm.py", "-o", target, "--set", "hidden_size=8",
                  "--input", data_dir / "sst_trees" / "train-first4000.txt")  # fmt: skip
    assert result.exit_code == 0, result.output
    plan = read_plan(target)

    assert plan.trained_on.nodes == 2396
    assert plan.policy.training["lower_bound"] == plan.policy.training["batches"] == 19
    assert plan.trained_on.files[0].name == "train-first4000.txt"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["nothing.py"], 3, "expected a model file"),
        (["MODEL", "--set", "hiden_size=3"], 3, "did you mean 'hidden_size'?"),
        (["MODEL", "--set", "hidden_size=abc"], 3, "expected int, got 'abc'"),
        (["MODEL", "--set", "hidden_size"], 2, "expected KEY=VALUE"),
        (["MODEL", "--input", "nothing.txt"], 3, "nothing.txt: expected an input file"),
        (["MODEL", "--seed", "-1"], 2, "-1 is not in the range"),
    ],
    ids=["no-model", "typo", "not-a-number", "no-value", "no-input", "negative-seed"],
)
def test_bad_input_is_one_line_and_writes_nothing(
    edbc, repository: Path, tmp_path: Path, arguments: list[str], exit_code: int, message: str
) -> None:
    """What cannot be compiled exits with the documented code, names the fault, and leaves no file behind."""
    target = tmp_path / "plan.yaml"
    model = str(repository / "models" / "tree_lstm.py")
    result = edbc("compile", *[model if a == "MODEL" else a for a in arguments], "-o", target, "--quiet")

    assert result.exit_code == exit_code
    assert message in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_plan_wants_a_place(edbc, repository: Path) -> None:
    """Without `-o` the command says so and how to call it, whatever click takes for a default."""
    result = edbc("compile", repository / "models" / "tree_lstm.py")

    assert result.exit_code == 2
    assert "Missing option '-o'" in result.output


def test_a_broken_line_is_named(edbc, repository: Path, tmp_path: Path) -> None:
    """A broken tree is refused with the file and the line that it stands on."""
    broken = tmp_path / "trees.txt"
    broken.write_text("(3 (2 good) (3 fun))\n(3 (2 good\n")
    result = edbc("compile", repository / "models" / "tree_lstm.py", "-o", tmp_path / "p.yaml", "--input", broken)

    assert result.exit_code == 3
    assert f"{broken}:2: " in result.output


VALUE_DEPENDENT = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, instance):
        h = self.linear(instance)
        if h.sum() > 0:
            h = self.linear(h)
        return h


def build():
    return Model()


def load(*paths):
    return iter(())


def sample(count, seed):
    return [torch.ones(4) for _ in range(count)]
"""


def test_value_dependent_structure_is_batched_and_its_lines_are_in_the_plan(edbc, tmp_path: Path) -> None:
    """`if h.sum() > 0:` compiles, the plan says where, and a run compares decisions and outputs with eager's."""
    model = tmp_path / "peek.py"
    model.write_text(VALUE_DEPENDENT.replace("torch.ones(4)", "torch.randn(4)"))
    result = edbc("compile", model, "-o", tmp_path / "plan.yaml")
    assert result.exit_code == 0, result.output
    assert 'reads: ["peek.py:13"]\n' in (tmp_path / "plan.yaml").read_text()

    told = edbc("run", tmp_path / "plan.yaml", "--verify", "--strict", "--limit", "40")
    assert told.exit_code == 0, told.output
    assert "reads        40 in 4 segments: peek.py:13 (40)" in told.output
    assert "decisions    40, 0 of them not eager's own" in told.output
    options = "--verify", "--limit", "40", "--trace", tmp_path / "trace.json", "--format", "json"
    traced = edbc("run", tmp_path / "plan.yaml", *options)
    report = json.loads(traced.stdout)
    for ran in (told, traced):
        assert f"memory: {size_text(report['arena_bytes'])} for a mini-batch of 32, " in ran.stderr
    assert (report["reads"], report["segments"], report["unseen_reads"]) == ({"peek.py:13": 40}, 4, [])
    assert (report["decisions"]["reads"], report["decisions"]["different"]) == (40, 0)
    assert edbc("run", tmp_path / "plan.yaml", "--max-reads", "1", "--force").exit_code == 0


def test_what_is_recorded_anew_is_counted_once(edbc, tmp_path: Path) -> None:
    """A look-up by a number that was read (`self.words(torch.tensor([best]))`) has the first mini-batch recorded anew
    after its first segment: compiling, and the first run of a net, count what came of it, as every later run does."""
    model, plan = tmp_path / "next.py", tmp_path / "plan.yaml"
    text = VALUE_DEPENDENT.replace("torch.ones(4)", "torch.randn(4)")
    text = text.replace("if h.sum() > 0:", "best = h.argmax().item()\n        if best % 7 < 6:")
    text = text.replace("= nn.Linear(4, 4)", "= nn.Linear(4, 4)\n        self.words = nn.Embedding(4, 4)")
    model.write_text(text.replace("h = self.linear(h)", "h = self.words(torch.tensor([best]))"))
    compiled = json.loads(edbc("compile", model, "-o", plan, "--format", "json").stdout)
    net, runs = load(plan).bind(), [Stats(), Stats()]
    for stats in runs:
        net.run(import_model_file(model).sample(32, 0, {}), stats)

    assert [(run.nodes, run.batches, run.segments) for run in runs] == [(compiled["nodes"], compiled["batches"], 2)] * 2


def test_value_dependent_shapes_are_refused_with_file_and_line(edbc, tmp_path: Path) -> None:
    """`h.unique()`, which would lose h's gradient, exits 5 and names the user's line."""
    model = tmp_path / "peek.py"
    model.write_text(VALUE_DEPENDENT.replace("if h.sum() > 0:", "if h.unique().numel():"))
    result = edbc("compile", model, "-o", tmp_path / "plan.yaml")

    assert result.exit_code == 5
    assert "peek.py:13: " in result.output


def test_an_exception_of_the_model_keeps_its_traceback(edbc, tmp_path: Path) -> None:
    """An error in the user's own code shows their traceback and which instance it was."""
    model = tmp_path / "broken.py"
    model.write_text(VALUE_DEPENDENT.replace("if h.sum() > 0:", "if instance.no_such_thing:"))
    result = edbc("compile", model, "-o", tmp_path / "plan.yaml")

    assert result.exit_code == 3
    assert "no_such_thing" in result.output
    assert "instance 0" in result.output
    assert "Traceback" in result.output


@pytest.mark.parametrize("named", ["def forward(self, instance", "def sample(count"])
def test_a_function_of_other_arguments_is_told_in_one_line(edbc, tmp_path: Path, named: str) -> None:
    """None of the user's code ran, and a traceback of edbc's would say nothing of it."""
    model = tmp_path / "other.py"
    model.write_text(VALUE_DEPENDENT.replace(named, f"{named}, further"))
    result = edbc("compile", model, "-o", tmp_path / "plan.yaml", "--quiet")

    assert result.exit_code == 3
    assert "missing 1 required positional argument" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device is here")
def test_an_exception_that_eager_alone_meets_is_the_models(edbc, tmp_path: Path) -> None:
    """What recording does not raise, as for a device that is not there, is told as what it does."""
    model = tmp_path / "picky.py"
    model.write_text(VALUE_DEPENDENT.replace("if h.sum() > 0:", "if h.cuda() is None:"))
    result = edbc("compile", model, "-o", tmp_path / "plan.yaml")

    assert result.exit_code == 3
    assert "picky.py:13: the model raised " in result.stderr
    assert "(while eager PyTorch runs instance 0) [E0106]" in result.stderr


@pytest.fixture(scope="module")
def profiled(edbc, compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `compiled` with a plan whose batches were measured."""
    folder = Path(shutil.copytree(compiled, tmp_path_factory.mktemp("profiled") / "work"))
    result = edbc("compile", folder / "models" / "tree_lstm.py", "-o", folder / "plans" / "tree_lstm.yaml",
                  *SMALL, "--profile")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "batches weighed by what they cost, measured now, in microseconds" in result.output
    return folder


SMALL = ("--set", "hidden_size=16", "--set", "vocab_size=64", "--encoding", "rank", "--trials", "50", "--quiet")


@pytest.mark.long
def test_profiling_measures_every_type_and_check_uses_what_it_measured(edbc, profiled: Path) -> None:
    """A measured plan has a cost per type and guards its cost on fresh instances; checking measures nothing."""
    path = profiled / "plans" / "tree_lstm.yaml"
    plan = read_plan(path)
    result = edbc("check", path)

    assert list(plan.costs) == [kind.name for kind in plan.types]
    assert "fresh_cost" in plan.guards
    assert result.exit_code == 0, result.output


def test_costs_stay_when_compiling_again_and_the_plan_is_the_same(edbc, profiled: Path, tmp_path: Path) -> None:
    """Given its table compiling is deterministic: over the plan itself, and elsewhere from it with `--costs`."""
    path = profiled / "plans" / "tree_lstm.yaml"
    first, other = path.read_text(), profiled / "plans" / "other.yaml"
    again = edbc("compile", profiled / "models" / "tree_lstm.py", "-o", path, *SMALL)
    edbc("compile", profiled / "models" / "tree_lstm.py", "-o", other, *SMALL, "--costs", path)

    assert f"from the plan that stood at {path}" in again.output
    assert path.read_text() == first
    assert other.read_text() == first


def test_costs_can_be_dropped(edbc, profiled: Path, compiled: Path) -> None:
    """`--costs none` counts batches again: no cost table, and no guard on costs."""
    target = Path(shutil.copy(profiled / "plans" / "tree_lstm.yaml", profiled / "plans" / "counted.yaml"))
    result = edbc("compile", profiled / "models" / "tree_lstm.py", "-o", target, *SMALL, "--costs", "none")
    plan = read_plan(target)

    assert "weighed" not in result.output
    assert plan.costs == {}
    assert "fresh_cost" not in plan.guards


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["--profile", "--costs", "none"], 2, "give one of the two"),
        (["--costs", "nothing.yaml"], 3, "nothing.yaml: expected a readable plan"),
        (["--costs", "UNPROFILED"], 3, "expected a plan with a cost table, got one without"),
        (["--costs", "OTHER"], 3, "expected a cost for every type of the model, got none for"),
        (["--mini-batches", "0"], 2, "0 is not in the range"),
    ],
    ids=["both", "no-plan", "no-costs", "other-model", "no-mini-batch"],
)
def test_bad_costs_are_one_line(
    edbc, compiled: Path, profiled: Path, tmp_path: Path, arguments: list[str], exit_code: int, message: str
) -> None:
    """A cost table that cannot be had is told in one line, and no plan is written."""
    places = {"UNPROFILED": compiled / "plans" / "tree_lstm.yaml", "OTHER": profiled / "plans" / "tree_lstm.yaml"}
    model = "lattice_gru.py" if "OTHER" in arguments else "tree_lstm.py"
    result = edbc("compile", compiled / "models" / model, "-o", tmp_path / "plan.yaml", "--quiet",
                  *[places.get(a, a) for a in arguments])  # fmt: skip

    assert result.exit_code == exit_code, result.output
    assert message in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "plan.yaml").exists()


@pytest.mark.long
def test_several_mini_batches_are_trained_on_and_checked(edbc, compiled: Path, tmp_path: Path) -> None:
    """`--mini-batches 3` learns from 96 instances, all different, and a check trains on the same again."""
    shutil.copytree(compiled / "models", tmp_path / "models")
    path = tmp_path / "plans" / "tree_lstm.yaml"
    result = edbc("compile", tmp_path / "models" / "tree_lstm.py", "-o", path, *SMALL, "--mini-batches", "3")
    plan = read_plan(path)

    assert result.exit_code == 0, result.output
    assert plan.trained_on.instances == 96
    assert f"on the same 3 graphs, where this one needs {plan.policy.training['batches']}: agenda " in result.stdout
    assert plan.trained_on.nodes > 2 * read_plan(compiled / "plans" / "tree_lstm.yaml").trained_on.nodes
    assert edbc("check", path).exit_code == 0


MANY = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(50))

    def forward(self, words):
        h = self.layers[0].bias
        for word in words:
            h = torch.tanh(self.layers[word](h))
        return h


def build():
    return Model()


def load(*paths):
    return iter(())


def sample(count, seed):
    return [[(seed + i + j) % 50 for j in range(1 + i % 4)] for i in range(count)]
"""


def test_every_type_of_many_is_traced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While ragged classes are looked for, while compiling (instances that are recorded again do it again), and in the
    nets whose results are compared."""
    (tmp_path / "many.py").write_text(MANY)
    traced: dict[ModelView, list[str]] = {}
    trace = ModelView._trace

    def counting(view: ModelView, operation: Any, *rest: Any) -> Any:
        traced.setdefault(view, []).append(operation.name)
        return trace(view, operation, *rest)

    monkeypatch.setattr(ModelView, "_trace", counting)
    compiled = compile_model(tmp_path / "many.py", policy="critical")

    views = list(traced.values())
    (compiling,) = [names for names in views if len(names) > len(set(names))] or [views[0]]
    others = [names for names in views if names is not compiling]
    assert len(set(compiling)) == len(compiled.plan.types) == 51
    assert len(compiling) <= 51 + ASKED * 4
    assert others
    assert all(len(names) == len(set(names)) for names in others)


def test_a_model_that_is_wrong_is_told_before_anything_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One instance's parity comes before the policy."""
    (tmp_path / "many.py").write_text(MANY)
    monkeypatch.setattr("edbc.tools.compile.compiler.learn", lambda *_: pytest.fail("learned"))
    for way in ("run", "reference"):
        monkeypatch.setattr(Eager, way, lambda _, instances, *modes: [torch.ones(4)] * len(instances))
    with pytest.raises(CheckFailed, match="batched execution differs from eager"):
        compile_model(tmp_path / "many.py")
