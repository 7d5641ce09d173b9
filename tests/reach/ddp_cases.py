"""What ranks run for `test_ranks.py`: one case after the other, a line of JSON each. `ddp_cases.py 2` starts two as
torchrun does, but as forks of one process, which has imported torch once.

An instance is (cell, words): the words folded by one of two cells, of which a rank may have no instance.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers import bound

import edbc
from edbc.reach import Module

Instance = tuple[int, tuple[int, ...]]
SIZE, WORDS = 6, 12
UNION: list[Instance] = [(0, (1, 2, 3)), (0, (4,)), (0, (2, 2)), (1, (5, 6)), (1, (7, 8, 9, 1)), (1, ())]
"""The first half is rank 0's."""


@edbc.cell
class Fold(nn.Module):
    """A step with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(2 * SIZE, SIZE)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.both(torch.cat([x, h], dim=-1)))


class Two(nn.Module):
    """Two cells, one table of words for each."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.ModuleList(nn.Embedding(WORDS, SIZE, sparse=sparse) for _ in range(2))
        self.folds = nn.ModuleList(Fold() for _ in range(2))
        self.start = nn.Parameter(torch.randn(SIZE))
        self.out = nn.Linear(SIZE, 2)

    def forward(self, instance: Instance) -> Tensor:
        cell, words = instance
        h = self.start
        for word in words:
            h = self.folds[cell](self.words[cell](torch.tensor(word)), h)
        return self.out(h)


def built(seed: int = 0, **options: Any) -> Two:
    torch.manual_seed(seed)
    return Two(**options).double()


def loss_of(outputs: list[Tensor]) -> Tensor:
    return torch.stack([output.square().sum() for output in outputs]).mean()


def mine() -> list[Instance]:
    return UNION[:3] if dist.get_rank() == 0 else UNION[3:]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Dense; nothing as zeros."""
    found = {name: p.grad for name, p in model.named_parameters()}
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    return {name: zeros[name] if g is None else g.to_dense() for name, g in found.items()}


def expected(model: Two, steps: int = 1) -> dict[str, Tensor]:
    """Eager's gradient of the union, in one process."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    for _ in range(steps):
        loss_of([alone(instance) for instance in UNION]).backward()
    return gradients(alone)


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


def parallel(model: Two, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(Module(bound(model, UNION)), **options)


def step(ddp: DistributedDataParallel) -> None:
    loss_of(ddp(mine())).backward()


def compared(steps: int = 1, sparse: bool = False, **options: Any) -> float:
    """The worst difference over some steps, each with new weights."""
    model = built(sparse=sparse)
    ddp = parallel(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worst = 0.0
    for _ in range(steps):
        theirs = expected(model)
        optimizer.zero_grad()
        step(ddp)
        worst = max(worst, difference(gradients(model), theirs))
        optimizer.step()
    return worst


def no_sync() -> float:
    """Two mini-batches without averaging, a third with it: the sum of all."""
    model = built()
    ddp = parallel(model)
    theirs = expected(model, 3)
    with ddp.no_sync():
        step(ddp)
        step(ddp)
    step(ddp)
    return difference(gradients(model), theirs)


def packed_weights() -> float:
    """Weights that differ between ranks, packed before DDP gives all rank 0's; then steps of a fused optimiser."""
    model = built(dist.get_rank())
    net = bound(model, UNION)
    net(UNION)
    ddp = DistributedDataParallel(Module(net))
    assert torch.equal(model.start, built(0).start), "not rank 0's weights"
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    worst = 0.0
    for _ in range(3):
        with torch.no_grad():
            outputs, eager = ddp(UNION), [model(instance) for instance in UNION]
        worst = max(worst, *(float((a - b).abs().max()) for a, b in zip(outputs, eager, strict=True)))
        theirs = expected(model)
        optimizer.zero_grad()
        step(ddp)
        worst = max(worst, difference(gradients(model), theirs))
        optimizer.step()
    return worst


def joined() -> float:
    """Rank 0 has three mini-batches and rank 1 one: the first gradient is the union's, later ones half of rank 0's."""
    model = built()
    ddp = parallel(model)
    worst = 0.0
    with Join([ddp]):
        for number in range(3 if dist.get_rank() == 0 else 1):
            alone = copy.deepcopy(model)
            alone.zero_grad()
            (loss_of([alone(instance) for instance in mine()]) / 2).backward()
            theirs = expected(model) if number == 0 else gradients(alone)
            model.zero_grad()
            step(ddp)
            worst = max(worst, difference(gradients(model), theirs))
    return worst


def collated(balanced: bool) -> float:
    """DataLoader workers that capture, with torch's sampler or the balanced one: the union of what ranks got."""
    from torch.utils.data import DataLoader, DistributedSampler

    from edbc.reach import NodeBalancedSampler, costs_of

    model = built()
    net = bound(model, UNION)
    how: dict[str, Any] = {"batch_size": 3, "sampler": DistributedSampler(UNION, shuffle=True, seed=1)}
    if balanced:
        how = {"batch_sampler": NodeBalancedSampler(costs_of(net, UNION), 3, seed=1)}
    loader = DataLoader(UNION, num_workers=1, collate_fn=edbc.collate(net), **how)
    ddp = DistributedDataParallel(Module(net))
    theirs = expected(model)
    for batch in loader:
        loss_of(ddp(batch)).backward()
    return difference(gradients(model), theirs)


CASES: dict[str, Callable[[], float]] = {
    "default": lambda: compared(3),
    "static_graph": lambda: compared(3, static_graph=True),
    "gradient_as_bucket_view": lambda: compared(3, gradient_as_bucket_view=True),
    "find_unused_parameters": lambda: compared(2, find_unused_parameters=True),
    "sparse": lambda: compared(3, sparse=True),
    "no_sync": no_sync,
    "packed_weights": packed_weights,
    "join": joined,
    "workers": lambda: collated(False),
    "workers_balanced": lambda: collated(True),
}


def main() -> Iterator[dict[str, Any]]:
    dist.init_process_group("gloo")
    for name, case in CASES.items():
        worst = torch.tensor([case()], dtype=torch.float64)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        yield {"case": name, "difference": worst.item()}
    dist.barrier()
    dist.destroy_process_group()


def rank_of(count: int) -> int:
    """Fork the ranks, and return the number of the one that this process is. What started them waits, and ends as they
    do; where one fails it ends the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), WORLD_SIZE=str(count))
    ranks: set[int] = set()
    for number in range(count):
        os.environ.update(RANK=str(number), LOCAL_RANK=str(number))
        if (rank := os.fork()) == 0:
            return number
        ranks.add(rank)
    while ranks:
        rank, status = os.wait()
        ranks.discard(rank)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            sys.exit(os.waitstatus_to_exitcode(status))
    sys.exit(0)


if __name__ == "__main__":
    number = rank_of(int(sys.argv[1]))
    for line in main():
        if number == 0:
            print(json.dumps(line), flush=True)
