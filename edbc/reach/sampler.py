"""Balanced ranks: a global mini-batch is dealt to processes so that the slowest one waits for least.

Processes that average gradients go at the pace of the slowest. What an instance costs is known from its graph, so each
global mini-batch, which is drawn as ever, is dealt by cost instead of by position: gradients stay those of the union,
only who computes which part of them changes.

(1) Dealing n instances to W ranks: rank r gets n // W of them, or one more for the first n % W ranks; so all have the
    same number but for the last mini-batch. The largest sum of costs is to be small. That is multiprocessor scheduling
    with cardinality constraints, NP-hard; longest processing time first (Graham, "Bounds on Multiprocessing Timing
    Anomalies", 1969) over the ranks that have room, then exchanges between the dearest rank and others while they lower
    its sum.
(2) All ranks compute the same deal from the same costs: nothing is sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from edbc.base.arguments import require_count
from edbc.errors import EdbcError, InputError, UnsupportedError

if TYPE_CHECKING:
    from edbc.run.session import Net

Floats = NDArray[np.float64]


def deal(costs: Sequence[float] | Floats, num_ranks: int) -> list[list[int]]:
    """Positions of a mini-batch's instances for each rank, ascending; definition (1). O(n (log n + num_ranks))."""
    cost = np.asarray(costs, np.float64)
    room = [len(cost) // num_ranks + (rank < len(cost) % num_ranks) for rank in range(num_ranks)]
    hands: list[list[int]] = [[] for _ in room]
    sums = np.zeros(num_ranks)
    for position in np.argsort(-cost, kind="stable").tolist():
        rank = min((r for r in range(num_ranks) if len(hands[r]) < room[r]), key=lambda r: (sums[r], r))
        hands[rank].append(position)
        sums[rank] += cost[position]
    while _exchange(hands, sums, cost):
        pass
    return [sorted(hand) for hand in hands]


def _exchange(hands: list[list[int]], sums: Floats, cost: Floats) -> bool:
    """Exchange one instance of the dearest rank for one of another, so that the larger sum of the two falls most."""
    dearest = int(sums.argmax())
    best = (sums[dearest] * (1 - 1e-9), -1, -1, -1)
    for rank in range(len(hands)):
        if rank != dearest and hands[rank] and hands[dearest]:
            given = cost[hands[dearest]][:, None] - cost[hands[rank]][None, :]
            larger = np.maximum(sums[dearest] - given, sums[rank] + given)
            i, j = divmod(int(larger.argmin()), larger.shape[1])
            best = min(best, (float(larger[i, j]), rank, i, j))
    _, rank, i, j = best
    if rank < 0:
        return False
    given = cost[hands[dearest][i]] - cost[hands[rank][j]]
    hands[dearest][i], hands[rank][j] = hands[rank][j], hands[dearest][i]
    sums[dearest] -= given
    sums[rank] += given
    return True


class NodeBalancedSampler(Sampler[list[int]]):
    """A batch sampler for one of some ranks: `DataLoader(data, batch_sampler=NodeBalancedSampler(costs, 32))`.

    `costs[i]` is what item i costs (`costs_of`); `batch_size` is a rank's number of instances. Every epoch is drawn
    anew from `seed` and the epoch that `set_epoch` says, cut into global mini-batches, each dealt by definition (1).
    The last one is filled up with the epoch's first items, as torch's DistributedSampler does, or left out with
    `drop_last`; without `shuffle` items come in their order. Ranks default to those of torchrun.
    """

    def __init__(self, costs: Sequence[float], batch_size: int, *, num_replicas: int | None = None,
                 rank: int | None = None, seed: int = 0, shuffle: bool = True, drop_last: bool = False):  # fmt: skip
        self.costs = np.asarray(costs, np.float64)
        self.batch_size = batch_size
        self.num_replicas = int(os.environ.get("WORLD_SIZE", 1)) if num_replicas is None else num_replicas
        self.rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.epoch = self.done = 0
        require_count("batch_size", batch_size)
        require_count("num_replicas", self.num_replicas)
        require_count("rank", self.rank, 0, self.num_replicas - 1)
        if self.costs.ndim != 1 or not np.isfinite(self.costs).all() or (self.costs < 0).any():
            raise EdbcError("costs: expected one finite number from 0 on per item, got others; see edbc.reach.costs_of")

    def set_epoch(self, epoch: int, done: int = 0) -> None:
        """Which epoch comes next, and how many of its mini-batches are done: what remains is what remained then."""
        require_count("epoch", epoch, 0)
        require_count("done", done, 0, len(self))
        self.epoch, self.done = epoch, done

    def __len__(self) -> int:
        size = self.batch_size * self.num_replicas
        return len(self.costs) // size if self.drop_last else -(-len(self.costs) // size)

    def __iter__(self) -> Iterator[list[int]]:
        size = self.batch_size * self.num_replicas
        order = np.arange(len(self.costs))
        if self.shuffle:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(order)
        order = np.resize(order, len(self) * size)
        first, self.done = self.done, 0
        for begin in range(first * size, len(order), size):
            items = order[begin : begin + size]
            yield items[deal(self.costs[items], self.num_replicas)[self.rank]].tolist()


def costs_of(net: Net, instances: Sequence[Any], by: str = "nodes") -> list[float]:
    """What instances cost: nodes of their graphs, or `by="time"` the microseconds of their rows by the plan's cost
    table (`edbc compile --profile`). They are captured for it. Raises UnsupportedError for one that cannot be,
    EdbcError where the plan has no cost table."""
    from edbc.capture.captured.instance import Words, sections

    if by not in ("nodes", "time"):
        raise EdbcError(f"by: expected nodes or time, got {by!r}")
    plan, types = net.plan, net.plan.types
    if by == "time" and not plan.costs:
        raise EdbcError("by='time': expected a plan with a cost table, got one without; run 'edbc compile --profile'")
    parts = net.capture_each(instances)
    for number, part in enumerate(parts):
        if isinstance(part, UnsupportedError):
            raise UnsupportedError(f"instance {number}: {part}; give costs of your own")
    if by == "nodes":
        return [float(part.num_nodes) for part in parts]  # type: ignore[union-attr]
    if any(part.of is not net.in_mode().lexicon for part in parts):  # type: ignore[union-attr]
        raise InputError("by='time': expected instances that this net captured, got others; give them as they are")
    row = np.zeros(len(net.in_mode().table.types))
    row[: len(types)] = [plan.costs[t.name].row_us for t in types]

    def cost(words: Words) -> float:
        return float(row[sections(words)[0]].sum())

    return [cost(np.frombuffer(part.words, np.int32)) for part in parts]  # type: ignore[union-attr]
