"""`run: eager`: when a plan says so, what then runs, and what insists on batches. No clock decides a test."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from commands import command
from helpers import Halting, bound

import edbc
from edbc.capture.captured.instance import Captured
from edbc.errors import RunsEagerly, UnsupportedError
from edbc.plan.difference import diff_plans
from edbc.plan.plan import RunAs
from edbc.plan.reader import read_plan
from edbc.plan.writer import plan_text
from edbc.run.session import Net
from edbc.tools.compile import compiler, decisions
from edbc.tools.compile.worth import (
    ALONE,
    CLEAR,
    HOPELESS,
    TURNS,
    alone_gain_of,
    captured_gain_of,
    gain_of,
    is_eager_better,
)
from edbc.tools.parity import Eager

MODEL = '''"""Chains of an unmarked module."""

import torch
from torch import nn


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.state = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, h):
        return torch.sigmoid(self.gate(h)) * torch.tanh(self.state(h))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.step, self.start = Step(), nn.Parameter(torch.ones(4))
        self.calls = 0

    def forward(self, length):
        h = self.start
        for _ in range(length):
            h = self.step(h)
        return h


def build():
    return Model()


def sample(count, seed):
    return [1 + (seed + i) % 5 for i in range(count)]
'''


def compiled(folder: Path, gains: list[float], *options: object, captured: tuple[float, ...] = (),
             alone: float = 2.0) -> Result:  # fmt: skip
    """Compile MODEL where batching gains so much, batching captured instances that, and running one alone that."""
    (folder / "chains.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "gain_of", lambda *_: gains)
        patch.setattr(compiler, "captured_gain_of", lambda *_: list(captured))
        patch.setattr(compiler, "alone_gain_of", lambda *_: [alone] * TURNS)
        result = command("compile", folder / "chains.py", "-o", folder / "chains.yaml", "--policy", "critical",
                         "--cells", "marked",
                         "--measure-gain", *options)  # fmt: skip
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan that says `run: eager`."""
    folder = tmp_path_factory.mktemp("chains")
    compiled(folder, [0.5] * TURNS)
    return folder / "chains.yaml"


@pytest.mark.parametrize(
    ("gains", "stood", "eager"),
    [
        ([0.5, 0.6, 0.7], None, True),
        ([0.5, 0.79, 0.99], None, True),
        ([0.5, 0.6, 3.0], None, True),
        ([0.9, 0.97, 1.01, 1.01, 0.8], None, True),
        ([0.9, 1.0, 1.2], None, False),
        ([1.6], None, False),
        ([0.9, 0.9, 0.9], False, False),
        ([0.8, 0.8, 0.8], False, True),
        ([0.9, 1.1, 1.2], True, True),
        ([0.9, 1.15, 1.2], True, False),
    ],
)
def test_eager_is_for_what_loses(gains: list[float], stood: bool | None, eager: bool) -> None:
    """By the median; what stands in a plan stays while the figure is near its limit."""
    assert is_eager_better(gains, stood) == eager


def test_turns_are_taken_until_it_is_clear(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One turn where batching gains or loses much; else as many as are asked for, whatever happens to the instances."""
    net = edbc.load(plan).bind(force=True)
    eager = Eager(net.model)
    for slow, turns in ((CLEAR + 0.1, 1), (0.9, TURNS), (HOPELESS - 0.1, 1)):
        clock = iter([moment for i in range(200) for moment in (10.0 * i, 10.0 * i + (1, slow)[i % 2])])
        monkeypatch.setattr("edbc.tools.compile.worth._seconds", lambda *_, c=clock: -next(c) + next(c))
        monkeypatch.setattr("edbc.tools.compile.worth.LOOKS", 2)
        assert len(gain_of(net, eager, [1, 2, 3])) == turns


def test_compiling_says_so_and_what_would_help(plan: Path, tmp_path: Path) -> None:
    """The decision with its reason is in the plan, the figure only on the terminal: other figures, the same bytes."""
    result = compiled(tmp_path, [0.4, 0.5, 0.6])
    content = json.loads(compiled(tmp_path, [0.9] * TURNS, "--format", "json").stdout)

    assert "run: eager, because recording 15 nodes of an instance costs more than running" in result.stdout
    assert "batched it takes 2.0 times as long here" in result.stdout
    assert "what would help: move what is always computed together into a method" in result.stdout
    assert (content["gain"], content["run"]) == (0.9, "eager")
    assert (tmp_path / "chains.yaml").read_bytes() == plan.read_bytes()
    compiled(tmp_path, [1.3] * TURNS)
    assert read_plan(tmp_path / "chains.yaml") == replace(read_plan(plan), run=None)


def test_explaining_says_so(plan: Path) -> None:
    """Also of the plan alone."""
    for options in ((), ("--static",)):
        text = " ".join(command("explain", plan, *options).stdout.split())
        assert "note: run: eager, because recording 15 nodes of an instance" in text
        assert "note: what would help: move what is always computed together into a method" in text


def test_checking_takes_it_as_it_stands(plan: Path) -> None:
    """No clock fails a check; a diff tells the decision."""
    assert command("check", plan).exit_code == 0
    batched = replace(read_plan(plan), run=None)
    [change] = diff_plans(batched, read_plan(plan)).policy
    assert (change.name, change.old) == ("run", "batched")
    assert plan_text(batched) != plan_text(read_plan(plan))


def test_run_goes_one_by_one_unless_batches_are_asked_for(plan: Path) -> None:
    """The report says how it ran; --force, and what only batches have, batch."""
    result = command("run", plan, "--limit", 40)
    assert "ran eagerly, as the plan says: recording 15 nodes" in result.stdout
    assert "instances/s" in result.stdout
    assert "Warning" not in result.stderr
    how = {}
    for options in ((), ("--force",), ("--verify",), ("--policy", "agenda"), ("--backend", "reference")):
        how[options] = json.loads(command("run", plan, "--limit", 40, "--format", "json", *options).stdout)
    assert [report["ran"] for report in how.values()] == ["eager", *["batched"] * 4]
    assert {report["instances"] for report in how.values()} == {40}
    assert how[()]["nodes"] == 0 < how["--force",]["nodes"]
    told = command("run", plan, "--limit", 40, "--verify", "--policy", "agenda").stdout.splitlines()
    assert told[1] == "  batched for --verify, --policy, though the plan says run: eager"


def test_outputs_are_the_same_either_way(plan: Path, tmp_path: Path) -> None:
    """Files of outputs too."""
    from safetensors.torch import load_file

    for name, options in (("eager", ()), ("batched", ("--force",))):
        assert command("run", plan, "--limit", 9, "--output", tmp_path / name, *options).exit_code == 0
    ours, theirs = (load_file(tmp_path / name) for name in ("batched", "eager"))
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name]) for name in ours)


def test_captured_instances_are_measured_apart(plan: Path, tmp_path: Path) -> None:
    """Where they gain, the plan says so, data sets capture, and epochs after the first one batch; explaining tells."""
    assert edbc.CapturedDataset([1, 2], edbc.load(plan).bind())[0] == 1
    result = compiled(tmp_path, [0.5] * TURNS, captured=(8.0,))
    target = tmp_path / "chains.yaml"

    assert "captured instances run batched: 8.0 x eager" in " ".join(result.stdout.split())
    assert read_plan(target).run == replace(read_plan(plan).run, captured="batched")
    assert "captured instances run batched" in " ".join(command("explain", target).stdout.split())
    net = edbc.load(target).bind()
    data = edbc.CapturedDataset([3, 1], net)
    assert [type(item) for item in data] == [Captured, Captured]
    with torch.no_grad():
        assert all(map(torch.allclose, net(list(data)), [net.model(3), net.model(1)]))
    for epochs, ran in ((1, "eager"), (2, "batched")):
        found = command("run", target, "--limit", 20, "--epochs", epochs, "--format", "json").stdout
        assert json.loads(found)["ran"] == ran
    compiled(tmp_path, [0.5] * TURNS, captured=(0.9,))
    assert read_plan(target).run.captured == "batched"  # near its limit it stays
    compiled(tmp_path, [0.5] * TURNS, captured=(0.8,))
    assert read_plan(target).run.captured is None


def test_gains_of_captured_instances(plan: Path) -> None:
    """Measured where all can be captured, and nothing where one cannot."""
    net = edbc.load(plan).bind(force=True)
    eager = Eager(net.model)
    assert all(gain > 0 for gain in captured_gain_of(net, eager, [1, 2, 3]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Net, "capture_each", lambda self, given: [UnsupportedError("no")] * len(given))
        assert captured_gain_of(net, eager, [1]) == []


def test_one_instance_alone_is_measured_apart(plan: Path, tmp_path: Path) -> None:
    """Where mini-batches gain and one instance does not, calls with one run the model itself: not those in training
    mode, with what is captured, or with force."""
    target = tmp_path / "chains.yaml"
    result = compiled(tmp_path, [1.3] * TURNS, alone=0.5)

    assert "one instance alone: eager, which takes 0.50 of the time" in result.stdout
    assert read_plan(target) == replace(read_plan(plan), run=None, alone="eager")
    assert "note: one instance alone: eager" in " ".join(command("explain", target, "--static").stdout.split())
    [change] = diff_plans(replace(read_plan(target), alone=None), read_plan(target)).policy
    assert (change.name, change.old, change.new) == ("one instance alone", "as all", "eager")
    assert command("check", target).exit_code == 0
    net = edbc.load(target).bind()
    captured = net.capture(2)
    calls = [lambda: net([3]), lambda: net([3, 1]), lambda: net([captured]), lambda: net.model.train() and net([3])]
    assert list(recorded(calls)) == [False, True, True, True]
    assert list(recorded([lambda: edbc.load(target).bind(force=True)([3])])) == [True]
    for size, ran in ((1, "eager"), (2, "batched")):
        found = command("run", target, "--limit", 20, "--batch-size", size, "--format", "json").stdout
        assert json.loads(found)["ran"] == ran
    compiled(tmp_path, [1.3] * TURNS, alone=1.1)
    assert read_plan(target).alone == "eager"  # near its limit it stays
    content = json.loads(compiled(tmp_path, [1.3] * TURNS, "--format", "json", alone=1.2).stdout)
    assert (content["alone"], content["alone_gain"]) == ("as all", 1.2)


def test_gains_of_instances_alone(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them, one after the other."""
    net = edbc.load(plan).bind(force=True)
    sizes: list[int] = []
    call = Net.__call__
    monkeypatch.setattr(Net, "__call__", lambda self, given: (sizes.append(len(given)), call(self, given))[1])

    assert all(gain > 0 for gain in alone_gain_of(net, Eager(net.model), list(range(1, 41))))
    assert set(sizes) == {1}
    assert len(sizes) % ALONE == 0


@pytest.fixture
def net(plan: Path) -> Net:
    """Bound as a user does."""
    return edbc.load(plan).bind()


def in_all_ways(net: Net) -> list[Callable[[], Any]]:
    """Calls, streams and calls in training mode."""
    return [lambda: net([1, 2]), lambda: list(net.stream([1, 2, 3])), lambda: net.model.train() and net([1])]


def recorded(calls: Sequence[Callable[[], Any]]) -> Iterator[bool]:
    """Whether calls make mini-batches, in order."""
    seen: list[int] = []
    mini_batch = Net.mini_batch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Net, "mini_batch", lambda self, *args, **kw: (seen.append(1), mini_batch(self, *args, **kw))[1])
        for call in calls:
            before = len(seen)
            call()
            yield len(seen) > before


def test_a_bound_net_runs_the_model_itself_and_says_so_once(net: Net, plan: Path) -> None:
    """Calls and streams; training was not what was measured. With force all of them batch. The warning is at the line
    of the caller."""
    with pytest.warns(RunsEagerly) as told:
        assert list(recorded(in_all_ways(net))) == [False, False, True]
    with pytest.warns(RunsEagerly) as of_stream:
        list(edbc.load(plan).bind().stream([1, 2]))
    assert [one.filename for one in (*told, *of_stream)] == [__file__] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunsEagerly)
        assert list(recorded(in_all_ways(edbc.load(plan).bind(force=True)))) == [True, True, True]


def test_eager_calls_have_gradients_and_eager_results(net: Net) -> None:
    """The same API: a list of what forward returns, connected to autograd, in order."""
    with pytest.warns(RunsEagerly):
        results = net((3, 1))
    exact = [net.model(3), net.model(1)]
    assert all(map(torch.equal, results, exact))
    sum(result.sum() for result in results).backward()
    assert net.model.start.grad.abs().sum() > 0


def test_a_structure_key_or_another_dtype_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What repeats is known to the author, and float64 is not what runs."""
    monkeypatch.setattr(compiler, "gain_of", lambda *_: pytest.fail("measured"))
    for number, more in enumerate(("\n\ndef structure_key(length):\n    return length\n", "")):
        text = (MODEL + more).replace("return Model()", "return Model()" if more else "return Model().double()")
        (tmp_path / f"m{number}.py").write_text(text)
        found = compiler.compile_model(tmp_path / f"m{number}.py", policy="critical", measure_gain=True)
        assert found.gain is None
        assert found.plan.run is None


def test_the_reason_survives_the_plan(plan: Path) -> None:
    """Read and written as any other field."""
    assert read_plan(plan).run == RunAs(
        "recording 15 nodes of an instance costs more than running 18.6 of them at a time saves"
    )


SIZES = '''"""Images of every size through convolutions."""

import random

import torch
from torch import nn


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(1, 1, 3, padding=1) for _ in range(4))

    def forward(self, image):
        for layer in self.layers:
            image = layer(image)
        return image.amax((2, 3))


def build():
    return Images().eval()


def sample(count, seed):
    draw = random.Random(seed)
    return [torch.ones(1, 1, draw.randint(3, MOST), draw.randint(3, MOST)) for _ in range(count)]
'''


def test_types_without_end_are_few_in_the_plan_and_measured_on_new_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each image has a size of its own: a plan of some, that says `run: eager` with the reason and what would help, and
    is checked as it is compiled. Where sizes are few the whole sample serves."""
    for module in (compiler, decisions):
        monkeypatch.setattr(module, "FEW", 2)
    (tmp_path / "images.py").write_text(SIZES.replace("MOST", "40"))
    compiled = command("compile", tmp_path / "images.py", "-o", tmp_path / "images.yaml", "--measure-gain",
                       "--policy", "critical")  # fmt: skip
    plan = read_plan(tmp_path / "images.yaml")

    assert plan.trained_on.instances == 2
    assert plan.run is not None
    assert plan.run.eager.startswith("each instance brings some ")
    assert "batched it takes the first time " in compiled.stdout
    assert "what would help: sizes of few values, as buckets have" in compiled.stdout
    assert command("check", tmp_path / "images.yaml").exit_code == 0

    (tmp_path / "images.py").write_text(SIZES.replace("MOST", "4"))
    few = compiler.compile_model(tmp_path / "images.py", policy="critical", measure_gain=False)
    assert few.plan.trained_on.instances == compiler.BATCH
    assert not few.captured.unseen


def test_segments_are_none_that_the_turn_before_has_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances that come anew read other values: what is kept of the same mini-batch would be measured. What others
    have left is known."""
    net = bound(Halting(), [1, 2])
    known: list[int] = []
    run = Net.run
    monkeypatch.setattr(Net, "run", lambda self, *a: (known.append(len(self.table.structures)), run(self, *a))[1])
    monkeypatch.setattr("edbc.tools.compile.worth.LOOKS", 2)
    gain_of(net, Eager(net.model), [1, 2, 3], [4, 4, 4, 5])

    of_others, *of_turns = known[1:]
    assert 0 < of_others <= of_turns[0] < len(net.table.structures)
    assert set(of_turns) == {of_turns[0]}
