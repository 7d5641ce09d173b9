"""Batches that torch runs, recorded by autograd in the forward pass: gradients are eager's, whatever is recorded."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from bound import plan_for
from gradients import gradients, random_loss, require_equal, require_equal_gradients
from torch import nn

import edbc
from edbc.cells.rows import evaluation
from edbc.run.session import Net
from edbc.train import tape
from edbc.train.backward.recompute import CellGradient

Tensor = torch.Tensor
INSTANCES = [(0, [1, 2, 3]), (1, [2]), (0, [4, 1]), (2, [3, 3, 3])]


@edbc.cell
class Look(nn.Module):
    """Convolutions, of which no native code knows the transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = nn.Conv2d(2, 4, kernel_size=1)
        self.near = nn.ConvTranspose2d(4, 1, kernel_size=3, padding=1)
        self.word = nn.Linear(3, 4)

    def forward(self, picture: Tensor, word: Tensor, at: Tensor) -> Tensor:
        matched = torch.relu(self.picture(picture)) * self.word(word)[:, None, None]
        return at + torch.sigmoid(self.near(matched))


class Looks(nn.Module):
    """Looks at a picture for one word after the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.pictures = nn.Parameter(torch.randn(3, 2, 4, 4), requires_grad=False)
        self.words = nn.Parameter(torch.randn(5, 3))
        self.start = nn.Parameter(torch.randn(1, 4, 4))
        self.look = Look()

    def forward(self, instance: tuple[int, list[int]]) -> dict[str, list[Tensor]]:
        picture, words = instance
        at = [self.start]
        for word in words:
            at.append(self.look(self.pictures[picture], self.words[word], at[-1]))
        return {"at": at[1:]}


@pytest.fixture
def net() -> Net:
    """A bound net in float64."""
    model = Looks().double()
    return Net(plan_for(model, INSTANCES), model)


@pytest.fixture(params=[0.0, 0.5, 1.0])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """How much is recorded, in blocks of two rows."""
    monkeypatch.setattr(tape, "KEPT", request.param)
    monkeypatch.setattr(evaluation, "BLOCK_BYTES", 4000)
    return request.param


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every block that autograd records."""
    found: list[int] = []
    record = CellGradient.record
    monkeypatch.setattr(CellGradient, "record", lambda self, block, *rest: (
        found.append(len(block.positions)) or record(self, block, *rest)))  # fmt: skip
    return found


def test_gradients_equal_eager(net: Net, kept: float) -> None:
    """Of all results, and of those of some instances, which leave out nodes of batches."""
    require_equal_gradients(net, INSTANCES)
    require_equal_gradients(net, INSTANCES, lambda results: random_loss(results[:1]) + random_loss(results[3:]))
    require_equal_gradients(net, INSTANCES, lambda results: results[3]["at"][1].square().sum())


@pytest.mark.compiled
def test_every_block_is_recorded_once(net: Net, kept: float, records: list[int]) -> None:
    """In the forward pass as far as the share says, the first blocks to run last of all; in the backward pass the
    rest."""
    loss = random_loss(net(INSTANCES))
    forward = list(records)
    loss.backward()

    num_nodes = sum(len(words) for _, words in INSTANCES)
    assert sum(records) == num_nodes
    assert 0 <= kept * num_nodes - sum(forward) < 2


def test_nodes_that_a_loss_does_not_reach_are_not_differentiated(net: Net, records: list[int]) -> None:
    """Not a number in what the loss leaves out stays there."""
    with torch.no_grad():
        net.model.words[2] = torch.nan

    def loss(results: list[Any]) -> Tensor:
        return random_loss(results[2:])

    ours = gradients(net.model, loss(net(INSTANCES)))
    require_equal(ours, gradients(net.model, loss([net.model(x) for x in INSTANCES])))
    assert all(g is None or g.isfinite().all() for g in ours.values())


def test_a_kept_graph_runs_again(net: Net, kept: float) -> None:
    """retain_graph=True: the second backward pass gives the same bits; without it, it is an error as in eager."""
    loss = random_loss(net(INSTANCES))
    parameters = [p for p in net.model.parameters() if p.requires_grad]
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    second = torch.autograd.grad(loss, parameters)

    assert all(map(torch.equal, first, second))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_two_mini_batches_before_one_backward(net: Net, kept: float) -> None:
    """Each has recordings of its own."""

    def loss(run: Any) -> Tensor:
        return random_loss(run(INSTANCES[:2])) + random_loss(run(INSTANCES[1:]))

    ours = gradients(net.model, loss(net))
    require_equal(ours, gradients(net.model, loss(lambda instances: [net.model(x) for x in instances])))


def test_segments_record_nothing(net: Net, records: list[int]) -> None:
    """Where schedules are cut, what autograd saves is memory for one segment at a time."""
    cut = Net(net.plan, net.model, recompute=3)
    loss = random_loss(cut(INSTANCES))
    assert not records
    require_equal(gradients(net.model, loss), gradients(net.model, random_loss([net.model(x) for x in INSTANCES])))


@pytest.mark.compiled
def test_recordings_go_with_the_mini_batch(net: Net, records: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """When results are dropped without a backward pass, and after one; no garbage collector is needed."""
    outputs: list[weakref.ref[Any]] = []
    run = tape._RecordingKernel.run

    def watched(self: Any, *args: Any) -> None:
        run(self, *args)
        outputs.extend(weakref.ref(recorded) for _, recorded in self.batches[-1] if recorded is not None)

    monkeypatch.setattr(tape._RecordingKernel, "run", watched)
    loss = random_loss(net(INSTANCES))
    assert records
    assert all(output() is not None for output in outputs)
    del loss
    assert not any(output() is not None for output in outputs)
    random_loss(net(INSTANCES)).backward()
    assert not any(output() is not None for output in outputs)
