"""Ragged values beside eager and beside what people batch by hand: padding with masks, concatenated graphs.

    python benchmarks/ragged.py [--hidden 64] [--batch 32] [--rounds 9]

A row: types, nodes; milliseconds of processor time of a mini-batch by eager, by hand and by edbc (recording included),
forward without gradients, medians of rounds that alternate in one process with one thread; eager's and the hand's time
over edbc's; and the milliseconds that recording takes. Outputs by hand are compared with eager's first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers import bound  # noqa: E402

from edbc.capture.record.recorder import LOOKS  # noqa: E402
from edbc.run.session import Stats  # noqa: E402
from edbc.tools.health import processor_name  # noqa: E402

VOCAB, FEATURES = 200, 5


class Sentences(nn.Module):
    """A word-wise layer, and pooling with weights."""

    def __init__(self, size: int):
        super().__init__()
        self.words, self.hidden, self.norm = nn.Embedding(VOCAB, size), nn.Linear(size, size), nn.LayerNorm(size)
        self.score, self.out = nn.Linear(size, 1), nn.Linear(2 * size, 4)

    def forward(self, ids: list[int]) -> torch.Tensor:
        h = self.words(torch.tensor(ids))
        h = self.norm(F.gelu(self.hidden(h)) + h)
        weights = self.score(h).softmax(0)
        return self.out(torch.cat([h.mean(0), (weights * h).sum(0)]))

    def by_hand(self, batch: list[list[int]]) -> torch.Tensor:
        """Padded, with a mask."""
        longest = max(map(len, batch))
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids in batch])
        mask = torch.arange(longest)[None] < torch.tensor([len(ids) for ids in batch])[:, None]
        h = self.words(ids)
        h = self.norm(F.gelu(self.hidden(h)) + h)
        weights = self.score(h).squeeze(-1).masked_fill(~mask, float("-inf")).softmax(1)
        mean = (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return self.out(torch.cat([mean, (weights.unsqueeze(-1) * h).sum(1)], -1))


class Encoder(nn.Module):
    """A transformer encoder of two layers, and a class for the sentence."""

    def __init__(self, size: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(size, 4, 2 * size, batch_first=True, norm_first=True)
        self.words, self.out = nn.Embedding(VOCAB, size), nn.Linear(size, 4)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: list[int]) -> torch.Tensor:
        return self.out(self.layers(self.words(torch.tensor(ids))[None])[0].mean(0))

    def by_hand(self, batch: list[list[int]]) -> torch.Tensor:
        """Padded, with a mask."""
        longest, counts = max(map(len, batch)), torch.tensor([len(ids) for ids in batch])
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids in batch])
        mask = torch.arange(longest)[None] < counts[:, None]
        h = self.layers(self.words(ids), src_key_padding_mask=~mask)
        return self.out((h * mask.unsqueeze(-1)).sum(1) / counts[:, None])


class Graphs(nn.Module):
    """Two rounds of messages by index."""

    def __init__(self, size: int):
        super().__init__()
        self.up, self.message = nn.Linear(FEATURES, size), nn.Linear(2 * size, size)
        self.update, self.out = nn.GRUCell(size, size), nn.Linear(size, 2)

    def nodes(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """States of nodes."""
        h = torch.relu(self.up(x))
        for _ in range(2):
            message = torch.relu(self.message(torch.cat([h[source], h[target]], -1)))
            h = self.update(torch.zeros(x.shape[0], h.shape[1]).index_add(0, target, message), h)
        return h

    def forward(self, graph: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.out(self.nodes(graph[0], graph[1][0], graph[1][1]).sum(0))

    def by_hand(self, batch: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Concatenated, with shifted indices."""
        counts = torch.tensor([len(x) for x, _ in batch])
        shifts = (counts.cumsum(0) - counts).tolist()
        edges = torch.cat([e + shift for (_, e), shift in zip(batch, shifts, strict=True)], 1)
        h = self.nodes(torch.cat([x for x, _ in batch]), edges[0], edges[1])
        owner = torch.repeat_interleave(torch.arange(len(batch)), counts)
        return self.out(torch.zeros(len(batch), h.shape[1]).index_add(0, owner, h))


def sentence(rng: Random) -> list[int]:
    """5 to 35 words."""
    return [rng.randrange(VOCAB) for _ in range(rng.randint(5, 35))]


def graph(rng: Random) -> tuple[torch.Tensor, torch.Tensor]:
    """8 to 30 nodes, twice as many edges: the sizes of small molecules."""
    nodes = rng.randint(8, 30)
    features = torch.tensor([rng.gauss(0, 1) for _ in range(nodes * FEATURES)]).view(nodes, FEATURES)
    return features, torch.tensor([[rng.randrange(nodes) for _ in range(2 * nodes)] for _ in range(2)])


def timed(run: Callable[[], Any]) -> float:
    """Milliseconds of processor time."""
    start = time.process_time()
    run()
    return 1e3 * (time.process_time() - start)


@torch.no_grad()
def measure(model: Any, make: Callable[[Random], Any], options: argparse.Namespace) -> str:
    """One row of the table."""
    rng = Random(0)
    net = bound(model.eval(), [make(rng) for _ in range(options.batch)], cells="auto", rows=True)
    for _ in range(LOOKS + 1):
        net([make(rng) for _ in range(options.batch)])
    times: dict[str, list[float]] = {"eager": [], "hand": [], "edbc": [], "recording": []}
    for _ in range(options.rounds):
        batch = [make(rng) for _ in range(options.batch)]
        torch.testing.assert_close(model.by_hand(batch), torch.stack([model(x) for x in batch]), rtol=1e-3, atol=1e-4)
        stats = Stats()
        times["eager"].append(timed(lambda batch=batch: [model(x) for x in batch]))
        times["hand"].append(timed(lambda batch=batch: model.by_hand(batch)))
        times["edbc"].append(timed(lambda batch=batch, stats=stats: net.run(batch, stats)))
        times["recording"].append(1e3 * stats.seconds.construction)
    eager, hand, ours, recording = (statistics.median(times[k]) for k in ("eager", "hand", "edbc", "recording"))
    return (f"| {type(model).__name__} | {len(net.plan.types)} | {eager:.2f} | {hand:.2f} | {ours:.2f} | "
            f"{eager / ours:.2f} x | {hand / ours:.2f} x | {recording:.2f} |")  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{processor_name()}, hidden size {options.hidden}, mini-batches of {options.batch}")
    print("| model | types | eager ms | by hand ms | edbc ms | of eager | of by hand | recording ms |")
    print("|---|---|---|---|---|---|---|---|")
    for model, make in (
        (Sentences(options.hidden), sentence),
        (Encoder(options.hidden), sentence),
        (Graphs(options.hidden), graph),
    ):
        print(measure(model, make, options), flush=True)


if __name__ == "__main__":
    main()
