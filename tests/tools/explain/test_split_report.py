"""What people see of eager parts: in explanations, in timelines, and with the flags that switch them off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import command

from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net, Stats
from edbc.tools.explain.explanation import explain_plan
from edbc.tools.explain.observe import observe
from edbc.tools.report.timeline import Timeline


@pytest.fixture(autouse=True)
def no_fixed_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small cells have parts too."""
    monkeypatch.setattr("edbc.cells.parts.MULTIPLICATIONS_PER_TYPE", 0)
    monkeypatch.setattr("edbc.cells.parts.ON_CPU.chunk", 0)
    monkeypatch.setattr("edbc.cells.parts.MULTIPLICATIONS_PER_NODE", 0)


def lattice(repository: Path, count: int = 3, **options):
    """The lattice LSTM's plan bound to a small model, and instances of it."""
    plan = read_plan(repository / "plans" / "lattice_lstm.yaml")
    file = import_model_file(repository / "models" / "lattice_lstm.py")
    config = file.config({**plan.model.config, "hidden_size": 64, "vocab_size": 50})
    return plan, Net(plan, file.build(config, 0), rebind=True, **options), file.sample(count, 5, config)


def test_explain_shows_parts_in_every_form(repository: Path) -> None:
    """Text, JSON and HTML say what the plan may split off and what ran as a part in this mini-batch; batches are
    counted as the policy makes them."""
    plan, net, instances = lattice(repository)
    explained = explain_plan("lattice", plan, observe(net, instances, "three"))
    text, page, data = " ".join(explained.text().split()), explained.html(), explained.as_json()

    for told in (text, page):
        assert "what depends on x alone runs for many nodes at once, ahead of them" in told
        assert "eager part of char" in told
    parts = data["observed"]["parts"]
    assert {(part["type"], part["part"]) for part in parts} == {("char", "eager"), ("word", "eager")}
    assert data["layouts"][0]["eager"] == ["x"]
    assert data["observed"]["batches"] == net.prepare(instances).whole[1].num_batches
    counts = {t["name"]: t["nodes"] for t in data["types"]}
    rows = {part["type"]: part["rows"] for part in parts}
    assert all(0 < rows[name] < counts[name] for name in ("char", "word"))
    _, unshared, instances = lattice(repository, share=False)
    assert [part.rows for part in observe(unshared, instances, "three").parts] == [counts["char"], counts["word"]]


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("edbc.cells.parts.ON_CPU.element", 100, "gain nothing from parts"),
        ("edbc.run.passes.chunks.SHARE", 0.0, "takes too much memory"),
    ],
)
def test_explain_says_why_cells_run_whole(
    setting: str, value: float, reason: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too many rows per batch, with too little memory, or switched off, there is a line with the reason."""
    monkeypatch.setattr(setting, value)
    plan, net, instances = lattice(repository)
    many = explain_plan("lattice", plan, observe(net, instances, "many"))
    assert "word ran whole:" in " ".join(many.text().split())
    assert reason in many.html()
    plan, net, instances = lattice(repository, split=False)
    assert "cells were not split" in explain_plan("lattice", plan, observe(net, instances, "three")).text()


def test_a_timeline_shows_parts_as_batches_of_their_own(repository: Path) -> None:
    """Parts have events with their rows; the mini-batch's counts are those of the whole graph."""
    _, net, instances = lattice(repository)
    timeline, stats = Timeline(), Stats()
    timeline.run(net, instances, stats)
    names = [event["name"] for event in timeline.events]

    prepared = net.prepare(instances)
    for kind, node_type in enumerate(prepared.capture.graph.types):
        assert names.count(node_type.name) == (prepared.schedule.batch_type == kind).sum()
    assert {"char.eager", "char.shared.core"} <= set(names)
    facts = next(event["args"] for event in timeline.events if event["name"] == "scheduling")
    assert (facts["nodes"], facts["batches"]) == (stats.nodes, stats.batches)


def run_json(*arguments: str) -> dict:
    """What a command prints as JSON."""
    result = command(*arguments, "--format", "json", "--quiet")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("flags", [[], ["--no-split"]])
def test_compiling_and_checking_with_and_without_parts(flags: list[str], repository: Path, tmp_path: Path) -> None:
    """`compile --no-split` names no parts, and `check` holds either plan against the same way of compiling."""
    plan = str(tmp_path / "lm.yaml")
    model = str(repository / "models" / "lstm_lm.py")
    run_json("compile", model, "-o", plan, "--policy", "critical", "--set", "hidden_size=8", *flags)

    assert any(cell.eager for cell in read_plan(Path(plan)).cells.values()) is not bool(flags)
    assert command("check", plan, "--quiet").exit_code == 0


def test_running_without_parts_gives_the_same_report(repository: Path) -> None:
    """`run --no-split` equals eager too, and counts the same nodes and batches."""
    plan = str(repository / "plans" / "lattice_gru.yaml")
    options = ("--limit", "3", "--set", "hidden_size=16", "--set", "vocab_size=50", "--verify")
    reports = [run_json("run", plan, *options, *flags) for flags in ([], ["--no-split"])]

    assert reports[0]["nodes"] == reports[1]["nodes"]
    assert reports[0]["batches"] == reports[1]["batches"]
    assert reports[0]["arena_bytes"] > reports[1]["arena_bytes"]
