"""Static models through the front door: `edbc.compile` of objects and files, `edbc.load`, plans that stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import edbc
from edbc.errors import InputError, PlanError, StaleError, UnsupportedError
from edbc.plan.static import StaticPlan
from edbc.tools.compile.modelobject import ModelObject
from edbc.tools.staged.choosing import is_static_object
from edbc.tools.staged.net import StaticNet

pytestmark = pytest.mark.usefixtures("one_thread")

STAGES = edbc.Stages(gap=0.5, threads=2)


class Images(nn.Module):
    """Three convolutions of one image, one behind the other, and a linear layer."""

    def __init__(self, size: int = 4):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, size, 1), nn.Conv2d(3, size, 3, padding=1)
        self.norm = nn.BatchNorm2d(size)
        self.c = nn.Conv2d(2 * size, size, 3, padding=1)
        self.out = nn.Linear(size, 2)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([torch.relu(self.norm(self.a(x))), torch.relu(self.b(x))], 1)
        return self.out(torch.relu(self.c(both)).mean((2, 3)))


class Wider(Images):
    """Of another code."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Recurrent(nn.Module):
    """One convolution again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.a(x))
        return x


class Rows(nn.Module):
    """No convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.a(x))


class Reads(Images):
    """Control flow that reads values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


class OneChannel(nn.Module):
    """A picture without a batch dimension, of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).sum(0, keepdim=True)


class Centred(Images):
    """A mean over the batch, of one image itself."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0, keepdim=True) + 1)


def images(count: int, height: int = 6, seed: int = 0) -> list[Tensor]:
    """Random images of one shape."""
    return list(torch.randn(count, 1, 3, height, 6, generator=torch.Generator().manual_seed(seed)))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """A network as people have it, with norms that have seen data."""
    torch.manual_seed(0)
    model = Images()
    model.norm(torch.randn(8, 4, 6, 6))
    return model.eval()


@pytest.fixture(scope="module")
def net(model: nn.Module, one_thread: None) -> StaticNet:
    """Compiled once; nobody says that it is static."""
    found = edbc.compile(model, images(8))
    assert isinstance(found, StaticNet)
    return found


def assert_same_as_eager(net: Any, model: nn.Module, instances: list[Tensor]) -> None:
    with torch.no_grad():
        expected = [model(instance) for instance in instances]
    for ours, theirs in zip(net(instances), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_convolutional_network_is_compiled_in_stages(net: StaticNet, model: nn.Module) -> None:
    """It is recognised, gives eager's numbers for batches of any size, and explains itself."""
    for count in (1, 2, 5):
        assert_same_as_eager(net, model, images(count, seed=count))
    assert [len(net([])), len(list(net.stream(images(3))))] == [0, 3]
    assert "one graph" in repr(net)
    assert "blocks" in str(net.explain())
    assert "<svg" in net.explain()._repr_html_()
    assert net.explain().as_json()["static"]["batch_size"] == 1


@pytest.mark.parametrize(
    ("model", "instances"),
    [(Recurrent(), images(3)), (Rows(), [torch.randn(1, 6)] * 3), (Reads(), images(3)),
     (Images(), [*images(2), *images(2, height=7)]), (Images(), [image[0] for image in images(3)]),
     (OneChannel(), [image[0, :1] for image in images(3)]), (Centred(), images(3))],
    ids=["repeats", "no convolution", "reads values", "other shapes", "no batch dimension", "one channel",
         "over the batch"],
)  # fmt: skip
def test_other_models_are_compiled_in_batches(model: nn.Module, instances: list[Tensor]) -> None:
    """A model in which layers repeat, that has no convolution, reads values, or whose instances do not stack."""
    assert not is_static_object(ModelObject(model.eval(), instances))


def test_stages_can_be_asked_for_and_declined(tmp_path: Path) -> None:
    """`stages=True` says why not; `stages=False` compiles in batches; options of the other kind are told."""
    with pytest.raises(UnsupportedError, match="does the same operations"):
        edbc.compile(Reads(), images(2), stages=True)
    for model, instances in ((OneChannel(), [image[0, :1] for image in images(3)]), (Centred(), images(3))):
        with pytest.raises(UnsupportedError, match="the first dimension of instances to be a batch's"):
            edbc.compile(model.eval(), instances, stages=True)
    with pytest.raises(InputError, match=r"trials: .* stages=False"):
        edbc.compile(Images(), images(2), trials=20)
    dynamic = edbc.compile(Images(), images(2), stages=False, trials=20, measure_gain=False, plan=tmp_path / "p.yaml")

    assert not isinstance(dynamic.plan, StaticPlan)


def test_a_saved_plan_is_checked_and_bound(net: StaticNet, model: nn.Module, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Plan and cost table are written together; a second call measures nothing; a plan of other code is stale."""
    path = net.plan.save(tmp_path / "deep" / "net.yaml")
    assert sorted(file.name for file in path.parent.iterdir()) == ["net.costs.yaml", "net.yaml"]
    monkeypatch.setattr("edbc.tools.staged.compiling.measured_costs", None)

    again = edbc.compile(model, images(4), plan=path)
    renewed = edbc.compile(model, images(4), plan=path, renew=True, stages=edbc.Stages())  # from the table beside it

    assert renewed.plan.save(path) == path
    assert edbc.load(path).plan == again.plan
    for found in (again, renewed, edbc.load(path).bind(model)):
        assert_same_as_eager(found, model, images(3, seed=7))
    with pytest.raises(StaleError, match="class"):
        edbc.compile(Wider().eval(), images(4), plan=path)
    with pytest.raises(InputError, match="edbc new NAME --from"):
        edbc.load(path).run()


def test_a_bound_plan_is_of_its_model_alone(net: StaticNet, tmp_path: Path) -> None:
    """Other layers, and instances of other shapes, are refused."""
    path = net.plan.save(tmp_path / "net.yaml")

    with pytest.raises(StaleError, match="expected the plan's"):
        edbc.load(path).bind(Images(5).eval())(images(2))
    with pytest.raises(InputError, match="one shape of instances"):
        net(images(2, height=9))
    with pytest.raises(InputError, match="policy"):
        edbc.load(path).bind(Images().eval(), policy="agenda")
    for refused in (lambda: edbc.load(path).train(tmp_path), lambda: edbc.load(path).bench()):
        with pytest.raises(PlanError, match="plan of batches"):
            refused()


@pytest.mark.long
def test_changed_weights_are_packed_anew(model: nn.Module) -> None:
    """After a step of training, after weights are loaded, and after what no version counter tells, results are of the
    weights as they are."""
    torch.manual_seed(1)
    own = Images().eval()
    net = edbc.compile(own, images(2), stages=STAGES)
    with torch.no_grad():
        own.a.weight.mul_(2)
    assert_same_as_eager(net, own, images(2))
    own.load_state_dict(model.state_dict())
    assert_same_as_eager(net, own, images(2))
    own.b.weight.data.mul_(2)
    assert_same_as_eager(net, own, images(2))
    own.out = nn.Linear(4, 2)
    assert_same_as_eager(net, own, images(2))

    with pytest.raises(InputError, match="evaluation mode"):
        own.train() and net(images(2))


FILE = """
import torch
from test_static_object import Images, images

def build():
    return Images()

def sample(count, seed):
    return images(count, seed=seed)
"""


@pytest.mark.long
def test_files_have_the_same_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`edbc.compile` of a model file with `profile` writes a plan of stages, which loads, binds, runs, explains and
    checks."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    (tmp_path / "net.py").write_text(FILE)

    plan = edbc.compile(tmp_path / "net.py", tmp_path / "net.yaml", profile=True, stages=STAGES)

    assert isinstance(plan.plan, StaticPlan)
    assert len(plan.bind()(images(3))) == 3
    assert plan.run(limit=3, verify=True).instances == 3
    assert "blocks" in str(plan.explain())
    assert plan.check().passed
