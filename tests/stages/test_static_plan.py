"""Static plans and cost tables from the command line, and every way in which they can be broken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import command as edbc

import edbc.tools.staged.compiling as compiling
from edbc.errors import DeviceError, EdbcError, PlanError, StaleError
from edbc.plan.reader import read_plan
from edbc.plan.static import (
    FORMS,
    KERNELS,
    FormCost,
    KernelCost,
    StaticPlan,
    parse_static_plan,
    read_any_plan,
    static_plan_text,
    verify_static_plan,
    write_static_plan,
)
from edbc.run.modelfile import import_model_file
from edbc.stages.capture import is_stackable
from edbc.stages.cuda.kernels import HOWS
from edbc.stages.cuda.measure import DeviceMeasurement
from edbc.stages.cuda.net import DeviceNet
from edbc.stages.devices import net_of
from edbc.stages.forms import chosen_form, chosen_kernels
from edbc.stages.net import StaticModel
from edbc.stages.table import Cost, CostTable, Entry, parse_table, read_table, require_table, table_text, write_table
from edbc.tools.staged.running import Verifier

pytestmark = pytest.mark.usefixtures("one_thread")
MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, size, 1), nn.Conv2d(3, size, 3, padding=1), nn.Conv2d(3, size, 1)
        self.d = nn.Conv2d(size, size, 3, padding=1)
        self.e = nn.Linear(3 * size, 2)

    def forward(self, x):
        d = torch.relu(self.d(torch.relu(self.c(x))))
        y = torch.cat([torch.relu(self.a(x)), torch.relu(self.b(x)), d], 1)
        return self.e(y.mean((2, 3)))

def build(size: int = 4):
    return Net(size)

def sample(count, seed):
    return [torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(seed + i)) for i in range(count)]
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A static plan of a small model in a folder, measured."""
    folder = tmp_path_factory.mktemp("static")
    (folder / "net.py").write_text(MODEL)
    result = edbc("compile", folder / "net.py", "-o", folder / "net.yaml", "--profile", "--ios-threads", "2", "-q")
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def plans(compiled: Path, tmp_path: Path) -> Path:
    """A copy of the folder, to break."""
    for file in compiled.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def static_plan(folder: Path) -> StaticPlan:
    plan = read_any_plan(folder / "net.yaml")
    assert isinstance(plan, StaticPlan)
    return plan


def test_a_static_plan_runs_checks_and_explains(plans: Path) -> None:
    """Compile, run with parity, timeline and outputs, check, explain: each does what it says."""
    ran = edbc("run", plans / "net.yaml", "--limit", "3", "--verify", "--format", "json", "--trace", plans / "t.json",
               "--output", plans / "out.safetensors")  # fmt: skip
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert report["ran"] == "stages"
    assert report["instances"] == 3
    assert report["parity"]
    events = json.loads((plans / "t.json").read_text())["traceEvents"]
    ran_units = {name for event in events if event["ph"] == "X" for name in event["name"].split(" + ")}
    assert ran_units >= {"a", "b", "c", "d"}  # measuring decides which of them are merged
    assert (plans / "out.safetensors").exists()

    assert edbc("check", plans).exit_code == 0
    explained = edbc("explain", plans / "net.yaml")
    assert explained.exit_code == 0
    assert re.search(r"sequential .* both", explained.output, re.DOTALL)
    assert edbc("explain", plans / "net.yaml", "--html", plans / "net.html").exit_code == 0
    page = (plans / "net.html").read_text()
    stages = [stage for block in static_plan(plans).static.blocks for stage in block.stages]
    assert page.count("<rect") >= len(stages)
    assert all(group[-1] in page for stage in stages for group in stage.groups)
    assert all(form in page for form in FORMS)
    assert json.loads(edbc("explain", plans / "net.yaml", "--format", "json").stdout)["static"]["batch_size"] == 1


def test_in_tf32_a_second_net_is_compared(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch may multiply in tf32, every batch runs again in IEEE float32, and the report has both."""
    monkeypatch.setattr("edbc.tools.parity.multiplies_in_tf32", lambda device: True)
    ran = edbc("run", plans / "net.yaml", "--limit", "2", "--verify")

    assert ran.exit_code == 0, ran.output
    assert "torch multiplies in tf32 here, in IEEE float32 max error" in ran.output

    monkeypatch.setattr(Verifier, "_again", lambda self, batch: [torch.zeros(1, 2)] * len(batch))
    assert edbc("run", plans / "net.yaml", "--limit", "2", "--verify").exit_code == 1


def test_other_batch_sizes_run_aloud(plans: Path) -> None:
    """Another batch size runs by the same schedule, with eager's numbers, and it is said."""
    result = edbc("run", plans / "net.yaml", "--limit", "5", "--batch-size", "2", "--verify")

    assert result.exit_code == 0, result.output
    assert "scheduled for batches of 1, run on batches of 2" in result.output


def test_compiling_is_deterministic_given_the_table(plans: Path) -> None:
    """From the table alone, without measuring, the same bytes come out, plan and table."""
    before = {name: (plans / name).read_bytes() for name in ("net.yaml", "net.costs.yaml")}

    result = edbc("compile", plans / "net.py", "-o", plans / "net.yaml", "--ios-threads", "2", "-q")

    assert result.exit_code == 0, result.output
    assert {name: (plans / name).read_bytes() for name in before} == before


def test_measuring_ends_in_time(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time left each unit is measured alone, and the greedy schedule; it is said, and the plan has the gap that
    this proves, by which the table gives it again."""
    monkeypatch.setattr("edbc.tools.staged.compiling.MOST_SECONDS", 0.0)
    monkeypatch.setattr("edbc.stages.cpu.measure.timed", lambda run: Cost(1_000, 0))
    options = ("-o", plans / "net.yaml", "--ios-threads", "2", "-q")
    result = edbc("compile", plans / "net.py", *options, "--profile", "--gap", "0")
    plan = static_plan(plans)

    assert result.exit_code == 0, result.output
    assert plan.static.gap > 0
    assert (
        f"time was up before the --gap was proven: to plan from the table, ask for --gap {plan.static.gap}"
        in result.output
    )
    again = edbc("compile", plans / "net.py", *options, "--gap", str(plan.static.gap))
    assert again.exit_code == 0, again.output
    assert static_plan(plans) == plan
    assert edbc("check", plans / "net.yaml").exit_code == 0


@pytest.mark.parametrize("fastest", FORMS)
def test_the_form_that_is_measured_faster_runs(plans: Path, fastest: str) -> None:
    """Whatever form of schedule the whole network is fastest by, the plan has its stages, says so, checks and gives
    eager's numbers; the plainest does where all are alike."""
    table = read_table(plans / "net.costs.yaml")
    forms = tuple(replace(cost, median_ns=500 if cost.form == fastest else 1000, spread_ns=10) for cost in table.forms)
    write_table(replace(table, forms=forms), plans / "net.costs.yaml")

    made = edbc("compile", plans / "net.py", "-o", plans / "net.yaml", "--ios-threads", "2", "-q")

    plan = static_plan(plans)
    stages = [stage for block in plan.static.blocks for stage in block.stages]
    assert plan.static.form == fastest
    assert f"runs '{fastest}'" in made.output
    if fastest in FORMS[:3]:
        assert all(len(stage.groups) == len(stage.groups[0]) == 1 for stage in stages)
        assert "stages are not faster by more than the spread" in made.output
    if fastest in FORMS[:2]:
        assert {stage.run for stage in stages} == {{"one thread": "concurrent", "all threads": "split"}[fastest]}
    assert edbc("run", plans / "net.yaml", "--limit", "2", "--verify").exit_code == 0
    assert edbc("check", plans / "net.yaml").exit_code == 0


def test_a_plainer_form_runs_unless_it_is_slower_by_more_than_the_spread() -> None:
    """Of forms that measuring cannot tell apart the plainest runs; with nothing measured, the cheapest by the table."""
    both, one = FormCost("both", 900, 99), FormCost("one thread", 1000, 0)

    assert chosen_form((both, one)) == "both"
    assert chosen_form((replace(both, spread_ns=100), one)) == "one thread"
    assert chosen_form(()) == "both"
    first, last = (KernelCost(kernels, 1000, 0) for kernels in (KERNELS[0], KERNELS[3]))
    assert chosen_kernels((last, first)) == KERNELS[0]
    assert chosen_kernels((replace(last, median_ns=900, spread_ns=99), first)) == KERNELS[3]
    assert chosen_kernels(()) is None


def test_a_graph_too_wide_is_refused(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More branches side by side than any limits can list: exit 3, one sentence, with the remedy."""
    many = "self.many = nn.ModuleList(nn.Conv2d(3, size, 1) for _ in range(40))"
    text = MODEL.replace("self.e = nn", f"{many}\n        self.e = nn")
    text = text.replace("torch.relu(self.b(x)), d]", "sum(m(x) for m in self.many), d]")
    (plans / "net.py").write_text(text)
    monkeypatch.setattr("edbc.stages.endings.MOST_STATES", 10_000)  # as many as there are take seconds

    result = edbc("compile", plans / "net.py", "-o", plans / "wide.yaml", "--profile", "-q")

    assert result.exit_code == 3, result.output
    assert "write it with fewer branches side by side" in result.output
    assert result.output.count("\n") == 1


def test_plans_and_tables_round_trip(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written reads back equal, in one pass over the text: where a fault stands is looked for when there is
    one."""
    plan, table = static_plan(compiled), read_table(compiled / "net.costs.yaml")
    monkeypatch.setattr("edbc.plan.reader.locate", None)

    assert parse_static_plan(static_plan_text(plan), "plan") == plan
    assert parse_table(table_text(table), "table") == table


def test_commands_for_batches_say_what_a_static_plan_is(plans: Path) -> None:
    """What only plans of batches have is refused in one sentence; nothing falls back in silence."""
    with pytest.raises(PlanError, match="got one of stages"):
        read_plan(plans / "net.yaml")
    for options in (["--policy", "agenda"], ["--device", "cuda"], ["--backend", "cpu"], ["--epochs", "2"]):
        result = edbc("run", plans / "net.yaml", *options)
        assert result.exit_code in (3, 4)
        assert result.output.count("\n") == 1, result.output
    assert edbc("bench", plans / "net.yaml").exit_code == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_device_that_is_not_here_is_refused(plans: Path) -> None:
    """Measuring on a GPU without one, and a device for what no stages are measured of: one sentence with the remedy."""
    for options in (["--profile"], []):
        (plans / "net.costs.yaml").unlink(missing_ok=not options)
        result = edbc("compile", plans / "net.py", "-o", plans / "new.yaml", "--device", "cuda", "-q", *options)
        assert result.exit_code in (2, 3, 4)
        assert result.output.count("\n") == 1, result.output
        assert ("CUDA device" if options else "--profile") in result.output


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling and running as on a GPU, whose streams are the host's."""

    @contextmanager
    def measuring(static: StaticModel, batch: int, threads: int, kernels: str) -> Iterator[DeviceMeasurement]:
        yield DeviceMeasurement(static, batch, threads, HOWS[kernels])

    for name in ("edbc.tools.staged.compiling.net_of", "edbc.stages.forms.net_of"):
        monkeypatch.setattr(name, lambda *given: DeviceNet(*given[:4], how=HOWS[given[4]]))
    monkeypatch.setattr("edbc.stages.forms.kernels_on", lambda static: KERNELS[:4])
    monkeypatch.setattr("edbc.tools.staged.compiling.measuring", measuring)
    for name in ("compiling", "running"):
        monkeypatch.setattr(f"edbc.tools.staged.{name}.device_name", lambda kind="cpu": "cuda: a GPU (tf32)")


def test_plans_of_a_gpu(plans: Path, as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled on a GPU has streams and no stages that all threads share; it runs there, plans again from its
    table without one, and is refused under another setting of it."""
    options = ("compile", plans / "net.py", "-o", plans / "gpu.yaml", "--gap", "50%", "--ios-threads", "4", "-q")
    result = edbc(*options, "--profile")
    assert result.exit_code == 0, result.output
    table, plan = read_table(plans / "gpu.costs.yaml"), read_any_plan(plans / "gpu.yaml")
    assert isinstance(plan, StaticPlan)
    runs = {entry.run for block in table.blocks for entry in block.stages}
    assert runs == {"concurrent", "merge"}
    assert {cost.form for cost in plan.static.measured} == {*FORMS} - {"one thread", "all threads"}
    assert [cost.kernels for cost in table.kernels] == list(KERNELS[:4])
    assert plan.static.kernels == chosen_kernels(table.kernels)
    explained = edbc("explain", plans / "gpu.yaml").output
    assert f"kernels: {plan.static.kernels}" in explained
    assert "4 streams" in explained
    result = edbc("run", plans / "gpu.yaml", "--limit", "3", "--verify", "--trace", plans / "trace.json")
    assert result.exit_code == 0, result.output
    events = json.loads((plans / "trace.json").read_text())["traceEvents"]
    ran = [name for event in events if event["ph"] == "X" for name in event["name"].split(" + ")]
    assert sorted(ran) == sorted(unit.name for unit in plan.static.units)

    monkeypatch.undo()
    assert edbc("check", plans / "gpu.yaml").exit_code == 0
    result = edbc("run", plans / "gpu.yaml", "--limit", "1")
    assert result.exit_code == 4
    assert "expected stages that were measured on a CPU" in result.output
    assert result.output.count("\n") == 1, result.output
    other = next(kernels for kernels in KERNELS if kernels != plan.static.kernels)
    write_static_plan(replace(plan, static=replace(plan.static, kernels=other)), plans / "gpu.yaml")
    assert "kernels: planning again gives something else" in edbc("check", plans / "gpu.yaml").output
    monkeypatch.setattr(compiling, "device_name", lambda kind="cpu": "cuda: a GPU (ieee)")
    result = edbc(*options)
    assert result.exit_code == 4
    assert "measure again" in result.output


def test_stages_that_threads_share_are_refused_on_a_gpu(compiled: Path) -> None:
    """A plan that was measured on a CPU does not run on a GPU, where no unit runs in several streams."""
    model = import_model_file(compiled / "net.py").build({}, 0).to("meta")
    static = StaticModel(model, torch.empty(1, 3, 6, 6, device="meta"), "net")
    with pytest.raises(StaleError, match="measured on a GPU"):
        net_of(static, [(((0,),), "split")], 2)


def test_kernels_that_need_triton_say_so(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan with pools of edbc's own is not run with others where there is no Triton."""
    model = import_model_file(compiled / "net.py").build({}, 0).to("meta")
    static = StaticModel(model, torch.empty(1, 3, 6, 6, device="meta"), "net")
    monkeypatch.setattr("edbc.stages.devices.missing", lambda device: "not installed")
    with pytest.raises(DeviceError, match=r"expected Triton, .* measure again"):
        net_of(static, [(((0,),), "concurrent")], 2, True, KERNELS[-1])


def changed(plans: Path, name: str, old: str, new: str) -> None:
    text = (plans / name).read_text()
    assert old in text
    (plans / name).write_text(text.replace(old, new, 1))


def rehash(plans: Path) -> None:
    """Make the plan name the table as it is now."""
    import hashlib

    text = (plans / "net.yaml").read_text()
    have = hashlib.sha256((plans / "net.costs.yaml").read_bytes()).hexdigest()
    (plans / "net.yaml").write_text(re.sub(r"(costs: \{name: [^,]*, sha256: )[^}]*", rf'\1"{have}"', text))


def test_check_finds_what_is_missing_or_changed(plans: Path) -> None:
    """No table, a changed table, a changed model, and a table without a stage that is needed: exit 4; a stage of
    another cost: exit 1."""
    table = (plans / "net.costs.yaml").read_text()
    (plans / "net.costs.yaml").unlink()
    result = edbc("check", plans / "net.yaml")
    assert result.exit_code == 4
    assert "expected the cost table that the plan was made from, got nothing" in result.output
    (plans / "net.costs.yaml").write_text(table.replace("overhead_ns: ", "overhead_ns: 1", 1))
    assert "sha256" in edbc("check", plans / "net.yaml").output

    lines = table.split("\n")
    single = next(i for i, line in enumerate(lines) if "groups: [[0]], run: concurrent" in line)
    (plans / "net.costs.yaml").write_text("\n".join(lines[:single] + lines[single + 1 :]))
    rehash(plans)
    result = edbc("check", plans / "net.yaml")
    assert result.exit_code == 4
    assert "expected stage '0' concurrent, got none" in result.output

    (plans / "net.costs.yaml").write_text(table)
    rehash(plans)
    assert edbc("check", plans / "net.yaml").exit_code == 0
    text = (plans / "net.yaml").read_text()
    (plans / "net.yaml").write_text(re.sub(r"cost_ns: ([0-9]+)", r"cost_ns: 1\1", text, count=1))
    assert edbc("check", plans / "net.yaml").exit_code == 1
    (plans / "net.yaml").write_text(text)
    changed(plans, "net.py", "size: int = 4", "size: int = 5")
    assert edbc("check", plans / "net.yaml").exit_code == 4


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("median_ns: ", "median_ns: -", 3),
        ("median_ns: ", "median_ns: .nan # ", 3),
        ("median_ns: ", "median_ns: 9999999999999", 3),
        ("median_ns: ", "median_ns: 0 # ", 3),
        ("spread_ns: ", "spread_ns: -", 3),
        ("form: greedy", "form: one thread", 3),
        ("form: greedy", "form: quick", 3),
        ("dtype: float32", "dtype: float64", 4),
        ("batch_size: 1", "batch_size: 2", 4),
        ("threads: 2", "threads: 3", 4),
        ("device: ", "device: Other ", 4),
        ("run: split", "run: fast", 3),
        ("groups: [[0]]", "groups: [[0, 0]]", 3),
        ("groups: [[0]]", "groups: [[63]]", 3),
        ("groups: [[0]]", "groups: []", 3),
        ("- units:\n", "- unit:\n", 3),
        ("u0 = ", "u1 = ", 3),
        ("format_version: 1", "format_version: 9", 4),
        ("...", "", 3),
    ],
)
def test_broken_tables_are_refused(plans: Path, old: str, new: str, code: int) -> None:
    """NaN, negative and absurd costs, another device, element type, batch size or number of threads, and whatever else
    is not a table: exit 3 or 4 and one sentence."""
    text = (plans / "net.costs.yaml").read_text()
    assert old in text
    (plans / "net.costs.yaml").write_text(text.replace(old, new, 1))

    result = edbc("compile", plans / "net.py", "-o", plans / "net.yaml", "--ios-threads", "2", "-q")

    assert result.exit_code == code, result.output
    assert result.output.count("\n") == 1, result.output


def test_tables_of_another_edbc_are_refused(compiled: Path) -> None:
    """Another version's figures say nothing about this one's kernels."""
    table = replace(read_table(compiled / "net.costs.yaml"), edbc="0.0.1")
    with pytest.raises(StaleError, match="expected costs of edbc"):
        require_table(table, "t")


Change = Callable[[StaticPlan], StaticPlan]


def with_stages(change: Callable[[list[Any]], list[Any]]) -> Change:
    """A plan whose block with the most stages has others."""

    def changed_plan(plan: StaticPlan) -> StaticPlan:
        blocks = list(plan.static.blocks)
        at = max(range(len(blocks)), key=lambda i: len(blocks[i].stages))
        blocks[at] = replace(blocks[at], stages=tuple(change(list(blocks[at].stages))))
        return replace(plan, static=replace(plan.static, blocks=tuple(blocks)))

    return changed_plan


def repeated(stages: list[Any]) -> list[Any]:
    return [*stages, stages[0]]


def run_as(run: str) -> Callable[[list[Any]], list[Any]]:
    return lambda stages: [replace(stages[0], run=run, groups=(("c", "d"), ("a",))), *stages[1:]]


def with_nobody(stages: list[Any]) -> list[Any]:
    """One of the units to merge is unknown."""
    return [replace(stages[0], run="merge", groups=(("a",), ("nobody",))), *stages[1:]]


def side_by_side(stages: list[Any]) -> list[Any]:
    """All units of the block in one stage, each a group."""
    groups = tuple((unit,) for stage in stages for group in stage.groups for unit in group)
    return [replace(stages[0], run="concurrent", groups=groups)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_stages(lambda stages: stages[1:]), "expected a stage for|expected .* in an earlier stage"),
        (with_stages(repeated), "each unit in one stage"),
        (with_stages(lambda stages: stages[::-1]), "in an earlier stage"),
        (with_stages(side_by_side), "in an earlier stage"),
        (with_stages(run_as("merge")), "at least two units to merge"),
        (with_stages(run_as("split")), "one unit that all threads"),
        (with_stages(lambda s: [replace(s[0], groups=(("nobody",),)), *s[1:]]), "units of the plan"),
        (with_stages(with_nobody), "units of the plan"),
        (lambda p: replace(p, static=replace(p.static, units=p.static.units[::-1])), "before it"),
        (lambda p: replace(p, static=replace(p.static, units=(*p.static.units, p.static.units[0]))), "each unit once"),
        (lambda p: replace(p, static=replace(p.static, costs=replace(p.static.costs, name="../x.costs.yaml"))),
         "a file name without a folder"),
        (lambda p: replace(p, model=replace(p.model, path="/abs/net.py")), "a relative path"),
    ],
)  # fmt: skip
def test_broken_schedules_are_refused(compiled: Path, change: Change, message: str) -> None:
    """Stages that do not cover, repeat a unit, break an edge, or merge what cannot merge are refused before anything
    runs."""
    plan = static_plan(compiled)
    verify_static_plan(plan)

    with pytest.raises(PlanError, match=message):
        verify_static_plan(change(plan))


def a_and_b_merged(plan: StaticPlan) -> StaticPlan:
    """The same units, these two merged in the first stage and the others one after the other."""
    stage = plan.static.blocks[0].stages[0]
    others = [unit.name for unit in plan.static.units if unit.name not in ("a", "b")]
    stages = (
        replace(stage, run="merge", groups=(("a",), ("b",))),
        *(replace(stage, run="concurrent", groups=((name,),)) for name in others),
    )
    block = replace(plan.static.blocks[0], stages=stages)
    return verify_static_plan(replace(plan, static=replace(plan.static, blocks=(block,))))


def test_a_timeline_names_all_that_is_merged(plans: Path) -> None:
    """What runs as one product is one event with the names of its units."""
    write_static_plan(a_and_b_merged(static_plan(plans)), plans / "net.yaml")
    result = edbc("run", plans / "net.yaml", "--limit", "1", "--verify", "--trace", plans / "t.json")
    assert result.exit_code == 0, result.output
    names = {event["name"] for event in json.loads((plans / "t.json").read_text())["traceEvents"]}

    assert names >= {"a + b", "c", "d"}
    assert not names & {"a", "b"}


@pytest.mark.long
def test_merging_what_has_no_common_kernel_is_refused_when_bound(plans: Path) -> None:
    """A plan may say that two products of one input merge; that their kernels allow it, the model says."""
    text = MODEL.replace("nn.Conv2d(3, size, 3, padding=1), nn.Conv2d", "nn.Conv2d(3, size, 3, 1, 2, 2), nn.Conv2d")
    (plans / "net.py").write_text(text)
    made = edbc("compile", plans / "net.py", "-o", plans / "net.yaml", "--profile", "--ios-threads", "2", "-q")
    assert made.exit_code == 0, made.output
    plan = static_plan(plans)
    broken = a_and_b_merged(plan)

    from edbc.run.modelfile import import_model_file
    from edbc.stages.net import StaticModel

    file = import_model_file(plans / "net.py")
    static = StaticModel(file.build({"size": 4}, 0), file.sample(1, 0, {})[0], "net")
    with pytest.raises(StaleError, match="products that can be one"):
        compiling.bound_net(static, broken)


def test_mutated_plans_are_refused_or_right(compiled: Path) -> None:
    """Any line of a plan dropped or doubled: an error of edbc's own, or a plan that reads back as itself."""
    lines = (compiled / "net.yaml").read_text().split("\n")
    for i in range(len(lines) - 1):
        for text in ("\n".join(lines[:i] + lines[i + 1 :]), "\n".join(lines[: i + 1] + lines[i:])):
            with suppress(EdbcError):
                plan = verify_static_plan(parse_static_plan(text, "plan"))
                assert parse_static_plan(static_plan_text(plan), "plan") == plan


def test_dynamic_models_are_profiled_as_before(tmp_path: Path) -> None:
    """Instances that do not stack are no static model, whatever --profile says."""
    path = tmp_path / "net.py"
    path.write_text(MODEL.replace("torch.randn(1, 3, 6, 6,", "torch.randn(1, 3, 6 + i, 6,"))

    assert not is_stackable(import_model_file(path).sample(2, 0, {}))


def test_values_that_forward_reads_are_told(tmp_path: Path) -> None:
    """A model of stackable instances whose control flow reads values: exit 5, with the remedy."""
    (tmp_path / "net.py").write_text(MODEL.replace("d = torch", "assert x.sum() < 1e9\n        d = torch"))

    result = edbc("compile", tmp_path / "net.py", "-o", tmp_path / "net.yaml", "--profile", "-q")

    assert result.exit_code == 5, result.output
    assert "compile without --profile" in result.output


def test_entries_are_canonical() -> None:
    """A stage whose groups are not its connected components is refused."""
    units = ("u0 = relu(x0[3]) -> [3] of x0", "u1 = relu(x0[3]) -> [3] of u0")
    head = CostTable(device="d", threads=1, dtype="float32", batch_size=1, overhead_ns=0)
    for groups, holds in (((((0, 1),)), True), (((0,), (1,)), False), (((1, 0),), False)):
        from edbc.stages.table import BlockCosts

        cost = Cost(5, 0)
        table = replace(head, blocks=(BlockCosts(units, (Entry(groups, "concurrent", *cost),)),))
        if holds:
            parse_table(table_text(table), "t")
        else:
            with pytest.raises(PlanError, match="connected groups"):
                parse_table(table_text(table), "t")
