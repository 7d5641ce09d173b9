"""Epochs of training over instances in memory, one step at a time.

(1) An epoch is one pass over the training instances in a drawn order, in mini-batches; then the dev instances, if any,
    run without gradients and in eval mode, in mini-batches in file order. An epoch's training figures are taken while
    it trains, each mini-batch with the weights of its time; its dev figures with the weights at its end.
(2) The order of epoch e depends on the seed and e, on nothing that ran before.
(3) A `State` is where training stands between two steps: e epochs done and s steps of the next, the sums of those
    steps, and the figures of the epochs done. With it, the weights, the optimiser's state and torch's generators
    (edbc.train.fit.checkpoint) the rest of training is the same as without a stop.
(4) A step that gives no finite loss ends training: no later step can repair it.

The loop knows a net only as a function from instances to outputs, so eager PyTorch trains in the same loop
(benchmarks/training_curve.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from edbc.errors import EdbcError, ModelError
from edbc.train.fit.objective import Objective, Tally

if TYPE_CHECKING:
    from edbc.run.session import Net

Run = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Epoch:
    """Figures of an epoch: `loss` and the metrics by name."""

    epoch: int
    train: dict[str, float]
    dev: dict[str, float] | None
    instances_per_second: float
    """Training instances over the time of their steps; reading data, metrics and dev are not in it."""

    def as_json(self) -> dict[str, Any]:
        """The figures as JSON's types."""
        return asdict(self)


@dataclass(frozen=True)
class Step:
    """One mini-batch done: `done` of `total` of a stage, `train` or `dev`."""

    stage: str
    epoch: int
    done: int
    total: int
    loss: float


@dataclass
class State:
    """Where training stands between two steps, definition (3)."""

    epoch: int = 0
    step: int = 0
    tally: Tally = field(default_factory=Tally)
    history: list[Epoch] = field(default_factory=list)


@dataclass(frozen=True)
class Data:
    """Training and dev instances."""

    train: Sequence[Any]
    dev: Sequence[Any] = ()


class Alone:
    """Training in one process. Where there are more, each is a rank that trains on its part of every mini-batch: see
    `edbc.reach.ranks`, which answers for them."""

    rank = 0

    def wrapped(self, net: Net) -> Run:
        """The net, with gradients that are of whole mini-batches."""
        return net

    def weigh(self, instances: Sequence[Any], nodes: Callable[[Sequence[int]], Sequence[int]]) -> None:
        """Be told instances, and how to count the nodes of some by their numbers."""

    def part(self, batch: Sequence[Any], epoch: int, step: int) -> tuple[Sequence[Any], float]:
        """The part of a mini-batch that this process runs, never empty, and the factor of its loss; 0 where it is not
        to count."""
        return batch, 1.0

    def total(self, tally: Tally) -> Tally:
        """The sums of all parts."""
        return tally

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return flag


class Loop:
    """Training of one model; iterate over `run(epochs)`, stop whenever, and `state` says where it stands."""

    def __init__(self, net: Run, model: nn.Module, optimizer: torch.optim.Optimizer, objective: Objective, data: Data,
                 batch_size: int = 32, seed: int = 0, clock: Callable[[], float] = time.perf_counter,
                 ranks: Alone | None = None):  # fmt: skip
        self.net = net
        self.model = model
        self.optimizer = optimizer
        self.objective = objective
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self.clock = clock
        self.ranks = ranks or Alone()
        self.state = State()

    def run(self, epochs: int) -> Iterator[Step | Epoch]:
        """Every step and every epoch from where `state` stands until `epochs` are done, as they are done."""
        while self.state.epoch < epochs:
            yield from self._train()
            dev = Tally()
            yield from self._evaluate(dev)
            yield self._close(dev)

    def _train(self) -> Iterator[Step]:
        self.model.train()
        state = self.state
        batches = self.batches(state.epoch)
        for batch in batches[state.step :]:
            loss = self._step(batch)
            yield Step("train", state.epoch, state.step, len(batches), loss)

    def batches(self, epoch: int) -> list[list[Any]]:
        """The mini-batches of an epoch, definition (2)."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.data.train), generator=generator).tolist()
        return _cut([self.data.train[i] for i in order], self.batch_size)

    def _step(self, batch: list[Any]) -> float:
        started = self.clock()
        own, weight = self.ranks.part(batch, self.state.epoch, self.state.step)
        self.optimizer.zero_grad(set_to_none=True)
        outputs = self.net(own)
        loss = self.objective.loss_of(outputs, own)
        number = self._finite(loss)
        (loss if weight == 1 else loss * weight).backward()
        self._update()
        self.state.tally.seconds += self.clock() - started
        if weight:
            self.state.tally.add(self.objective, number, outputs, own)
        self.state.step += 1
        return number

    def _finite(self, loss: torch.Tensor) -> float:
        """Definition (4), before anything is changed."""
        where = f"epoch {self.state.epoch + 1}, step {self.state.step + 1}"
        number = float(loss.detach())
        if not math.isfinite(number):
            raise EdbcError(f"{where}: expected a finite loss, got {number}; train with a smaller --lr")
        if not loss.requires_grad:
            raise ModelError(
                f"{self.objective.where}: loss: expected a loss that depends on a parameter, got one that does not"
            )
        return number

    def _update(self) -> None:
        try:
            self.optimizer.step()
        except RuntimeError as error:
            if "sparse" not in str(error):
                raise
            kind = type(self.optimizer).__name__
            raise ModelError(
                f"{kind}: expected dense gradients, got sparse ones ({error}); use --optimizer adagrad or sgd"
            ) from None

    def _evaluate(self, tally: Tally) -> Iterator[Step]:
        self.model.eval()
        batches = _cut(self.data.dev, self.batch_size)
        for done, batch in enumerate(batches, 1):
            own, weight = self.ranks.part(batch, self.state.epoch, -done)
            with torch.no_grad():
                outputs = self.net(own)
                loss = float(self.objective.loss_of(outputs, own))
            if weight:
                tally.add(self.objective, loss, outputs, own)
            yield Step("dev", self.state.epoch, done, len(batches), loss)

    def _close(self, dev: Tally) -> Epoch:
        tally, dev = self.ranks.total(self.state.tally), self.ranks.total(dev)
        rate = tally.instances / tally.seconds if tally.seconds else 0.0
        done = Epoch(self.state.epoch + 1, tally.means(), dev.means() if self.data.dev else None, rate)
        self.state = State(self.state.epoch + 1, history=[*self.state.history, done])
        return done


def _cut(instances: Sequence[Any], size: int) -> list[list[Any]]:
    return [list(instances[i : i + size]) for i in range(0, len(instances), size)]
