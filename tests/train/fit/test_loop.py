"""Epochs, steps and states of the training loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import bound
from small import OBJECTIVE, eager, figures, fresh, loop_of, loss, sequences

from edbc.errors import EdbcError, ModelError
from edbc.train.fit.checkpoint import read_checkpoint, restore, write_checkpoint
from edbc.train.fit.loop import Epoch, Loop, Step
from edbc.train.fit.objective import Objective


def stopped(make: Callable[[], Loop], epochs: int, after: int, path: Path) -> Loop:
    """A loop that is stopped after some events, written, read into a fresh one, and trained to the end."""
    first = make()
    events = first.run(epochs)
    for _ in range(after):
        next(events)
    write_checkpoint(first, {}, path)
    second = make()
    torch.manual_seed(99)
    restore(second, read_checkpoint(path))
    list(second.run(epochs))
    return second


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adagrad", "sgd"])
def test_a_stop_anywhere_changes_no_bit(tmp_path: Path, optimizer: str) -> None:
    """Stopped after any step, of dev instances too, and resumed: the same figures and the same weights, bit by bit."""

    def make() -> Loop:
        return loop_of(fresh(dropout=0.5), optimizer)

    whole = make()
    events = list(whole.run(2))
    for after in range(1, len(events) + 1):
        again = stopped(make, 2, after, tmp_path / "checkpoint.safetensors")

        assert figures(again.state.history) == figures(whole.state.history), f"stopped after {after} events"
        for name, value in whole.model.state_dict().items():
            assert torch.equal(again.model.state_dict()[name], value), name


def test_more_epochs_go_on_where_fewer_ended(tmp_path: Path) -> None:
    """One epoch, then a resumption to three: as three at once."""
    whole = loop_of(fresh())
    list(whole.run(3))
    first = loop_of(fresh())
    list(first.run(1))
    write_checkpoint(first, {}, tmp_path / "c")
    second = loop_of(fresh())
    restore(second, read_checkpoint(tmp_path / "c"))
    list(second.run(3))

    assert figures(second.state.history) == figures(whole.state.history)


def test_a_batched_net_trains_like_eager() -> None:
    """In float64 the figures of a net bound to a plan are eager's to 1e-9, and it learns."""
    ours, theirs = fresh().double(), fresh().double()
    net = bound(ours, sequences(10))
    batched, plain = (loop_of(model, net=run) for model, run in ((ours, net), (theirs, eager(theirs))))
    list(batched.run(4))
    list(plain.run(4))

    for here, there in zip(figures(batched.state.history), figures(plain.state.history), strict=True):
        for mine, other in zip(here, there, strict=True):
            assert mine == pytest.approx(other, rel=1e-9)
    assert batched.state.history[-1].dev["loss"] < batched.state.history[0].dev["loss"]


def test_every_epoch_visits_every_instance_once_in_an_order_of_its_own() -> None:
    """The mini-batches of an epoch are a permutation; epochs and seeds differ, equal ones agree."""
    loop, other = loop_of(fresh()), loop_of(fresh())
    other.seed = 4
    orders = [[i for batch in loop.batches(epoch) for i in batch] for epoch in range(3)]

    assert all(sorted(order) == sorted(sequences(10)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert loop.batches(1) == loop_of(fresh()).batches(1) != other.batches(1)
    assert [len(batch) for batch in loop.batches(0)] == [4, 4, 2]


def test_figures_are_means_over_instances() -> None:
    """The epoch's loss weighs mini-batches by their instances: with a rate of almost nothing it is the mean loss."""
    model = fresh()
    loop = loop_of(model, rate=1e-30)
    (epoch,) = [event for event in loop.run(1) if isinstance(event, Epoch)]
    with torch.no_grad():
        losses = [float(loss(model(s), s)) for s in sequences(10)]

    assert epoch.train["loss"] == pytest.approx(sum(losses) / 10, rel=1e-6)
    assert epoch.train["accuracy"] in {k / 10 for k in range(11)}


def test_events_count_up() -> None:
    """Three training steps, two dev steps and the epoch, each event with how much of its stage is done."""
    events = list(loop_of(fresh()).run(1))

    assert [(e.stage, e.done, e.total) for e in events if isinstance(e, Step)] == [
        ("train", 1, 3), ("train", 2, 3), ("train", 3, 3), ("dev", 1, 2), ("dev", 2, 2),
    ]  # fmt: skip
    assert isinstance(events[-1], Epoch)


def test_modules_are_in_training_mode_while_training_only() -> None:
    """Training steps run in training mode with gradients, dev steps in eval mode without."""
    model, seen = fresh(), []

    def net(batch: Any) -> list[Any]:
        seen.append((model.training, torch.is_grad_enabled()))
        return eager(model)(batch)

    list(loop_of(model, net=net).run(1))

    assert seen == [(True, True)] * 3 + [(False, False)] * 2


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_training_before_the_weights_change(value: float) -> None:
    """The message names epoch and step; the weights are those before the step."""
    model = fresh()
    before = model.out.weight.clone()
    loop = loop_of(model, objective=Objective(lambda outputs, _: outputs.sum() * value))

    with pytest.raises(EdbcError, match=r"epoch 1, step 1: expected a finite loss, got (nan|-?inf)"):
        list(loop.run(1))
    assert torch.equal(model.out.weight, before)


def test_a_loss_without_parameters_is_refused() -> None:
    """A constant loss would train nothing, in silence."""
    loop = loop_of(fresh(), objective=Objective(lambda outputs, _: torch.ones(()), where="m.py"))

    with pytest.raises(ModelError, match=r"m\.py: loss: expected a loss that depends on a parameter"):
        list(loop.run(1))


def test_sparse_gradients_are_refused_by_optimisers_that_need_dense_ones() -> None:
    """Adam says what to use instead; plain gradient descent trains."""

    class Sparse(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(16, 3, sparse=True)

        def forward(self, sequence: Any) -> Any:
            return self.table(torch.tensor(sequence[0])).sum(0)

    with pytest.raises(ModelError, match=r"expected dense gradients.*--optimizer adagrad or sgd"):
        list(loop_of(Sparse(), "adam", objective=OBJECTIVE).run(1))
    list(loop_of(Sparse(), "sgd", objective=OBJECTIVE).run(1))


def test_frozen_parameters_stay(tmp_path: Path) -> None:
    """A frozen parameter has no state and does not change; with all frozen there is nothing to train."""
    model = fresh()
    model.embedding.requires_grad_(False)
    before = model.embedding.weight.clone()
    loop = loop_of(model)
    list(loop.run(1))
    write_checkpoint(loop, {}, tmp_path / "c")
    state = read_checkpoint(tmp_path / "c").part("optimizer.")

    assert torch.equal(model.embedding.weight, before)
    assert "exp_avg.step.both.weight" in state
    assert not [name for name in state if "embedding" in name or "unused" in name]
    with pytest.raises(ModelError, match="expected a parameter that requires a gradient"):
        loop_of(model.requires_grad_(False))
