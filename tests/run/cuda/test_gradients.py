"""Training on a device: gradients in steps are eager's, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from bound import RandomTreeModel, plan_for, random_trees
from devices import DEVICE, NINE, PoisonedBackend, needs_triton, on_device, zoo_net
from rounding import round_as_a_device
from test_triton import Chain
from torch.utils._pytree import tree_leaves

from edbc.capture.code.mark import cell
from edbc.run.session import Net
from edbc.train.backward.devicegradient import StepGradient
from edbc.train.backward.recompute import CellGradient
from edbc.train.backward.stepwise import StepReversal
from edbc.train.trainer import Trainer

pytestmark = needs_triton


@pytest.fixture(autouse=True)
def _device_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        round_as_a_device(monkeypatch)


def loss_of(results: Any) -> torch.Tensor:
    """A number that every element matters to."""
    leaves = [leaf for leaf in tree_leaves(results) if torch.is_tensor(leaf) and leaf.is_floating_point()]
    return sum((leaf.double() * torch.linspace(-1, 1, leaf.numel(), dtype=torch.float64, device=leaf.device)
                .view(leaf.shape)).sum() for leaf in leaves)  # type: ignore[return-value]  # fmt: skip


def gradients(model: torch.nn.Module, results: Any) -> dict[str, torch.Tensor]:
    """Those of a model's parameters, on the CPU."""
    model.zero_grad()
    loss_of(results).backward()
    return {name: p.grad.cpu().clone() for name, p in model.named_parameters() if p.grad is not None}


def require_gradients(net: Net, instances: Sequence[Any], bound: float) -> None:
    """Of every parameter those of float64, relative to the largest; or as near as four times eager's own are, which in
    bfloat16 adds a row at a time and forgets small ones."""
    eager = copy.deepcopy(net.model).cpu()
    exact = copy.deepcopy(eager).double()
    ours = gradients(net.model, net.trainer.run(instances))
    theirs, right = (gradients(model, [model(instance) for instance in instances]) for model in (eager, exact))

    assert ours.keys() == theirs.keys()
    for name, gradient in right.items():
        error, own = ((found[name].double() - gradient).abs().max() for found in (ours, theirs))
        assert error <= bound * (1 + gradient.abs().max()) + 4 * own, name


def kinds_of_gradients(net: Net) -> set[type]:
    """How the cells of the last mini-batch were differentiated."""
    return {type(gradient) for gradient in net.trainer._step_gradients.values()} & {StepGradient, CellGradient}


@pytest.mark.parametrize("name", ["tree_lstm", "tree_gru", "mv_rnn"])
def test_gradients_of_workloads_are_eagers(name: str) -> None:
    """Gates, products two deep, rows' own matrices; no cell is recomputed under autograd."""
    net, instances = zoo_net(name, torch.float64, count=1)
    require_gradients(net, instances, 1e-12)

    assert kinds_of_gradients(net) == {StepGradient}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-4), (torch.float64, 1e-11), (torch.bfloat16, 0.1)], ids=str
)
@pytest.mark.parametrize("name", NINE)
def test_gradients_of_the_nine_workloads(name: str, dtype: torch.dtype, bound: float) -> None:
    """In three element types."""
    net, instances = zoo_net(name, dtype, count=2)
    require_gradients(net, instances, bound)

    assert kinds_of_gradients(net) == {StepGradient}


@pytest.mark.parametrize("seed", range(2))
def test_gradients_of_random_cells_are_eagers(seed: int) -> None:
    """Slices, maxima, parameters in maps, sums of children."""
    instances = random_trees(seed, 2)
    model = RandomTreeModel(seed, 7)
    require_gradients(on_device(plan_for(model, instances), model), instances, 1e-11)


@pytest.mark.long
def test_gradients_of_functions_along_dimensions() -> None:
    """Attention, softmax, layer norm, largest elements: twice, with a graph that is kept."""
    lists = [[1], [2, 4, 5], [3, 6]]
    model = Chain().double()
    net = on_device(plan_for(model, lists), model)
    require_gradients(net, lists, 1e-12)
    assert kinds_of_gradients(net) == {StepGradient}

    results, parameters = net.trainer.run(lists), list(model.parameters())
    once, again = (torch.autograd.grad(loss_of(results), parameters, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, once, again))


def test_frozen_parameters_and_unused_outputs() -> None:
    """Only what requires a gradient gets one; an output that no loss reads counts nothing."""
    lists = [[1, 2], [3]]
    model = Chain().double()
    net = on_device(plan_for(model, lists), model)
    model.attend.query.weight.requires_grad_(False)
    eager = copy.deepcopy(model).cpu()
    ours = gradients(model, [result[0] for result in net.trainer.run(lists)])
    theirs = gradients(eager, [eager(words)[0] for words in lists])

    assert ours.keys() == theirs.keys()
    assert "attend.query.weight" not in ours
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-11, atol=1e-12)


class Pools(torch.nn.Module):
    """The largest, the smallest and the mean of rows that cells make; equal words are equal extremes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.inner = torch.nn.Parameter(torch.randn(8, size)), cell(torch.nn.Linear(size, size))

    def forward(self, words: list[int]) -> torch.Tensor:
        rows = torch.stack([torch.tanh(self.inner(self.table[word])) for word in words])
        wide = torch.stack([rows.amax(0), rows.amin(0), rows.mean(0), rows.amax(0) * 2])
        return wide.amin(0) + wide.amax(0)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.bfloat16, 0.05)], ids=str)
@pytest.mark.parametrize("size", [5, 300])
def test_gradients_of_extremes_are_eagers(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bound: float, size: int
) -> None:
    """Maxima and minima of one to five items, ties among them, wider than a tile; in steps."""
    passes, run = [], StepReversal.run
    monkeypatch.setattr(StepReversal, "run", lambda self, *given: passes.append(run(self, *given)) or passes[-1])
    lists = [[1, 2], [3, 3, 5], [4], [6, 2, 6, 2, 7]]
    model = Pools(size).to(dtype)
    require_gradients(on_device(plan_for(model, lists), model), lists, bound)

    assert len(passes) == 1


class Power(torch.nn.Module):
    """A cell of a function that the device's table does not know, and one that it does."""

    def __init__(self) -> None:
        super().__init__()
        self.start = torch.nn.Parameter(torch.full((4,), 0.5, dtype=torch.float64))

    def forward(self, times: int) -> torch.Tensor:
        x = self.start
        for _ in range(times):
            x = torch.cumsum(torch.sigmoid(x), 0) ** 1.5
        return x


def test_what_steps_do_not_know_is_recomputed() -> None:
    """Powers: by autograd, with eager's numbers."""
    model = Power()
    net = Net(plan_for(model, [2, 3]), model.to(DEVICE), backend=PoisonedBackend(DEVICE), rebind=True)
    require_gradients(net, [2, 3], 1e-12)
    assert not Trainer(net, native=False).in_steps
