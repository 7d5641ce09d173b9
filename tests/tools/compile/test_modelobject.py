"""Models in memory: compiled, saved, checked and bound without a model file."""

from __future__ import annotations

import random
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import edbc
from edbc.errors import CheckFailed, InputError, ModelError, PlanError, StaleError
from edbc.plan.reader import parse_plan
from edbc.plan.writer import plan_text
from edbc.tools.compile.modelobject import hash_code, items_of, reference_of

QUICK = {"trials": 20, "measure_gain": False}
Nest = int | tuple[Any, Any]


class Net(nn.Module):
    """A tree encoder that nobody marked."""

    def __init__(self, size: int = 8):
        super().__init__()
        self.words = nn.Embedding(50, size)
        self.merge = nn.Linear(2 * size, size)
        self.drop = nn.Dropout(0.5)

    def forward(self, tree: Nest) -> Tensor:
        if isinstance(tree, int):
            return self.words.weight[tree]
        left, right = map(self.forward, tree)
        return self.drop(torch.tanh(self.merge(torch.cat([left, right]))))


def trees(count: int, seed: int = 0) -> list[Nest]:
    """Random nests of pairs of words."""
    generator = random.Random(seed)

    def grown(words: int) -> Nest:
        if words == 1:
            return generator.randrange(50)
        left = generator.randint(1, words - 1)
        return grown(left), grown(words - left)

    return [grown(generator.randint(1, 9)) for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> Net:
    """One model for all tests, in training mode as people have it."""
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def net(model: Net) -> Any:
    """Compiled once."""
    return edbc.compile(model, trees(40), **QUICK)


def assert_same_as_eager(net: Any, model: nn.Module, instances: list[Any]) -> None:
    """Outputs of new instances are the model's own."""
    flags = model.training
    model.eval()
    with torch.no_grad():
        for ours, theirs in zip(net(instances), [model(instance) for instance in instances], strict=True):
            torch.testing.assert_close(ours, theirs)
    model.train(flags)


def test_compiling_an_object_gives_a_callable_net(net: Any, model: Net) -> None:
    """A net of an object and a list gives eager's numbers on unseen trees, and the model keeps its mode."""
    assert model.training
    assert_same_as_eager(net, model, trees(20, seed=5))


def test_a_net_trains_in_training_mode(net: Any, model: Net) -> None:
    """Called in training mode its outputs have gradients, and dropout draws."""
    outputs = torch.stack(net(trees(10)))
    outputs.sum().backward()

    assert model.merge.weight.grad is not None
    assert not torch.equal(outputs, torch.stack(net(trees(10))))


def test_a_saved_plan_is_bound(net: Any, model: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the plan stands nothing is learned, and the net gives the same numbers."""
    net.plan.save(tmp_path / "deep" / "net.yaml")
    monkeypatch.setattr("edbc.tools.compile.compiler.learn", None)

    again = edbc.compile(model, trees(40), plan=tmp_path / "deep" / "net.yaml")

    assert again.plan == net.plan
    assert_same_as_eager(again, model, trees(20, seed=6))


def test_a_plan_that_does_not_stand_is_written(model: Net, tmp_path: Path) -> None:
    """The first call with a plan's name compiles and writes it."""
    net = edbc.compile(model, trees(8), plan=tmp_path / "net.yaml", **QUICK)

    assert edbc.load(tmp_path / "net.yaml").plan == net.plan
    assert edbc.load(tmp_path / "net.yaml").bind(model).plan == net.plan


class Größe(nn.Module):
    """Letters of other scripts wherever Python allows them."""

    def __init__(self) -> None:
        super().__init__()
        self.β = nn.Linear(4, 4)
        self.add_module("<é>", nn.Linear(4, 4))

    def mischung(self, ŵ: Tensor, γ: Tensor) -> Tensor:
        """A cell that is found."""
        δ = torch.tanh(self.β(ŵ))
        return δ * torch.sigmoid(γ) + ŵ

    def größer(self, ŵ: Tensor, γ: Tensor) -> Tensor:
        """Another."""
        return torch.tanh(self.β(ŵ) * γ)

    def forward(self, tree: Nest) -> Tensor:
        if isinstance(tree, int):
            return torch.full((4,), tree / 50)
        left, right = map(self.forward, tree)
        return self.mischung(left, right) + self.größer(right, self.get_submodule("<é>")(left))


def test_names_in_any_script_are_saved(tmp_path: Path) -> None:
    """Of methods, arguments, variables and parameters; the plan that is read is the plan that was written."""
    net = edbc.compile(Größe(), trees(8), plan=tmp_path / "net.yaml", **QUICK)

    assert {"größer", "mischung"} <= net.plan.automatic.keys()
    assert any("β.weight" in cell.weights for cell in net.plan.cells.values())
    assert edbc.load(tmp_path / "net.yaml").plan == net.plan


def test_a_mistyped_option_is_told(model: Net) -> None:
    """With the option that was meant."""
    with pytest.raises(TypeError, match=r"edbc\.compile: unknown option 'trails'; did you mean 'trials'\?"):
        edbc.compile(model, trees(8), trails=20)


def test_a_terminal_shows_a_bar(
    model: Net, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where stderr is a terminal a changing line tells what compiling does; elsewhere, and with `progress`, nothing."""
    edbc.compile(model, trees(8), **QUICK)
    assert capsys.readouterr().err == ""
    for module in ("edbc.tools.console", "edbc.tools.compile.modelobject"):
        monkeypatch.setattr(f"{module}.is_live_terminal", lambda: True)
    edbc.compile(model, trees(8), **QUICK)
    assert "\rcapture" in capsys.readouterr().err
    edbc.compile(model, trees(8), progress=lambda *_: None, **QUICK)
    assert capsys.readouterr().err == ""


def test_explain_names_the_model_and_its_instances(net: Any) -> None:
    """`net.explain()` runs the instances that the net was compiled on, or those it is given."""
    assert "32 instances that it was compiled on" in str(net.explain())
    assert "3 instances given" in str(net.explain(trees(3)))
    assert reference_of(Net) in repr(net)


class Wider(Net):
    """Other code under another name."""

    def forward(self, tree: Nest) -> Tensor:
        return super().forward(tree) * 2


def test_a_plan_of_other_code_is_stale_until_renewed(net: Any, tmp_path: Path) -> None:
    """Another class, and other code under the same name, are refused with the remedy; `renew` compiles anew."""
    path = net.plan.save(tmp_path / "net.yaml")
    with pytest.raises(StaleError, match=r"class .*:Net, got one of .*:Wider; pass renew=True"):
        edbc.compile(Wider(), trees(4), plan=path)
    changed = replace(net.plan, model=replace(net.plan.model, sha256="0" * 64))
    changed.save(path)
    with pytest.raises(StaleError, match="the code of its classes changed"):
        edbc.compile(Net(), trees(4), plan=path)

    renewed = edbc.compile(Wider(), trees(4), plan=path, renew=True, **QUICK)

    assert edbc.load(path).plan == renewed.plan


def test_a_plan_of_a_model_file_binds_an_object_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command line compiled is bound to an object of the file's class, until the file changes."""
    from edbc.tools.cli.new import run_new

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    run_new("groves")
    plan = edbc.compile("groves.py", "groves.yaml", config={"hidden_size": 8}, **QUICK)
    import groves  # type: ignore[import-not-found]

    net = edbc.compile(groves.build(hidden_size=8), groves.sample(5, seed=1), plan="groves.yaml")

    assert net.plan == plan.plan
    Path("groves.py").write_text(Path("groves.py").read_text() + "\n# changed\n")
    with pytest.raises(StaleError, match=r"the model file groves\.py changed"):
        edbc.compile(groves.build(hidden_size=8), groves.sample(5, seed=1), plan="groves.yaml")


class Pairs(Dataset[Any]):
    """Trees with labels."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, item: int) -> tuple[Nest, int]:
        return trees(12)[item], item


def test_instances_come_of_data_sets_and_loaders(model: Net) -> None:
    """A DataLoader gives its data set's items in order; `instance` says where in an item the instance is."""
    loader = DataLoader(Pairs(), batch_size=4, shuffle=True, collate_fn=list)

    assert list(items_of(loader, 0)) == trees(12)
    assert list(items_of([{"tree": 3}], "tree")) == [3]
    assert next(items_of(iter([7]))) == 7
    net = edbc.compile(model, loader, instance=0, **QUICK)
    assert net.plan.trained_on.instances == 12


@pytest.mark.parametrize(
    ("model", "instances", "error", "message"),
    [
        (Net, [1], ModelError, "the class Net; build the model"),
        (7, [1], ModelError, "got 7; build the model"),
        (Net(), [], InputError, "expected instances to compile on, got none"),
        (Net(), "tree", InputError, "got str; put instances in a list"),
        (Net(), 5, InputError, "got int; put instances in a list"),
    ],
    ids=["class", "number", "no instances", "text", "no list"],
)
def test_mistakes_are_told(model: Any, instances: Any, error: type[Exception], message: str) -> None:
    """What is no model and what are no instances is said in one line, with what to do."""
    with pytest.raises(error, match=message):
        edbc.compile(model, instances)


def test_an_item_without_the_instance_is_told() -> None:
    """Items that have nothing at `instance` are named by their class."""
    with pytest.raises(InputError, match="items with an instance at 3, got tuple"):
        list(items_of([(1, 2)], 3))


def test_a_check_finds_other_numbers(net: Any, model: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call compares numbers: batched outputs that are not eager's fail it."""
    path = net.plan.save(tmp_path / "net.yaml")
    run = edbc.tools.compile.modelobject.CompiledNet.run
    monkeypatch.setattr(
        edbc.tools.compile.modelobject.CompiledNet, "run",
        lambda self, batch: ([x + 1 for x in run(self, batch)[0]], run(self, batch)[1]),
    )  # fmt: skip

    with pytest.raises(CheckFailed, match="batched execution differs from eager"):
        edbc.compile(model, trees(40), plan=path)


def module_of(text: str, path: Path) -> ModuleType:
    """A module of this text in a file."""
    path.write_text(textwrap.dedent(text))
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    return module


SOURCE = """
    from torch import nn
    FACTOR = 2
    def scaled(x):
        return FACTOR * x
    class Model(nn.Module):
        def forward(self, x):
            return scaled(x)
    def unrelated():
        return 3
"""


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("FACTOR = 2", "FACTOR = 3", True),
        ("FACTOR * x", "FACTOR + x", True),
        ("scaled(x)\n    def", "x\n    def", True),
        ("return 3", "return 4", False),
        ("FACTOR = 2", "FACTOR = 2\n    OTHER = 1", False),
    ],
    ids=["a value", "a function", "the class", "another function", "another value"],
)
def test_the_hash_covers_the_code_that_a_model_names(tmp_path: Path, old: str, new: str, differs: bool) -> None:
    """Functions and plain values that methods name are hashed; the rest of the script is not."""
    before = hash_code(module_of(SOURCE, tmp_path / "a.py").Model())
    after = hash_code(module_of(SOURCE.replace(old, new), tmp_path / "b.py").Model())

    assert (before != after) == differs


def test_a_plan_in_memory_names_its_class(net: Any) -> None:
    """`module:Class` stands in the plan exactly when it was compiled in memory, and it reads back."""
    assert parse_plan(plan_text(net.plan), "net.yaml") == net.plan
    as_file = replace(net.plan, model=replace(net.plan.model, path="net.py"))
    with pytest.raises(PlanError, match="module:Class"):
        parse_plan(plan_text(as_file), "net.yaml")
    sampled = replace(net.plan, trained_on=replace(net.plan.trained_on, source="sample"))
    with pytest.raises(PlanError, match="a relative path to a Python file"):
        parse_plan(plan_text(sampled), "net.yaml")


def test_the_command_line_says_what_to_do_with_a_plan_of_an_object(net: Any, tmp_path: Path) -> None:
    """`edbc run` has no object: it says how to bind the plan, and how to get a model file; `explain` shows the plan."""
    plan = edbc.load(net.plan.save(tmp_path / "net.yaml"))

    with pytest.raises(InputError, match=r"edbc.compile\(model, instances, plan='net.yaml'\).*'edbc new NAME --from"):
        plan.run()
    assert "the model was not run" in str(plan.explain())
    assert isinstance(plan.check().error, InputError)
