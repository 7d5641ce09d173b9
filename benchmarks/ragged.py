"""Ragged values beside eager and beside what people batch by hand: padding with masks, concatenation, jagged tensors.

    python benchmarks/ragged.py [--hidden 64] [--batch 32] [--rounds 9] [--data FOLDER]

Sentences and trees are those of UD English-EWT, molecules those of ESOL, from the shared data. A row: types;
milliseconds of processor time of a mini-batch by eager, by the fastest of the ways by hand, which is named, and by edbc
(recording included), forward without gradients, medians of rounds that alternate in one process with one thread;
eager's and the hand's time over edbc's; and the milliseconds that recording takes. Outputs by hand are compared with
eager's first.
"""

from __future__ import annotations

import argparse
import os
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
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "models")]

from _conllu import read_conllu  # noqa: E402
from _text import word_id  # noqa: E402
from helpers import bound  # noqa: E402
from molecule_gnn import AtomGraph, MoleculeGNN, load  # noqa: E402
from pointer_network import PointerNetwork  # noqa: E402
from sentence_encoder import SentenceEncoder  # noqa: E402
from set_encoder import SetEncoder  # noqa: E402
from tree_attention import Tree, TreeAttention  # noqa: E402

from edbc.capture.record.recorder import LOOKS  # noqa: E402
from edbc.run.session import Stats  # noqa: E402
from edbc.tools.health import processor_name  # noqa: E402

VOCAB = 1000


def padded(batch: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and a mask, (instances, longest)."""
    longest = max(map(len, batch))
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids in batch])
    return ids, torch.arange(longest)[None] < torch.tensor([len(ids) for ids in batch])[:, None]


def jagged(batch: list[list[int]]) -> torch.Tensor:
    """Ids as one tensor of torch.nested."""
    lengths = torch.tensor([len(ids) for ids in batch])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return torch.nested.nested_tensor_from_jagged(torch.tensor([i for ids in batch for i in ids]), offsets)


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

    def by_padding(self, batch: list[list[int]]) -> torch.Tensor:
        ids, mask = padded(batch)
        h = self.words(ids)
        h = self.norm(F.gelu(self.hidden(h)) + h)
        weights = self.score(h).squeeze(-1).masked_fill(~mask, float("-inf")).softmax(1)
        mean = (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return self.out(torch.cat([mean, (weights.unsqueeze(-1) * h).sum(1)], -1))

    def by_jagged(self, batch: list[list[int]]) -> torch.Tensor:
        h = self.words(jagged(batch))
        h = self.norm(F.gelu(self.hidden(h)) + h)
        weights = torch.softmax(self.score(h), 1)
        return self.out(torch.cat([h.mean(1), (weights * h).sum(1)], -1))


class Encoder(SentenceEncoder):
    """The zoo's transformer encoder."""

    def __init__(self, size: int):
        super().__init__(size, VOCAB)

    def by_padding(self, batch: list[list[int]]) -> torch.Tensor:
        ids, mask = padded(batch)
        h = self.layers(self.embedding(ids) + self.positions[: ids.shape[1]], src_key_padding_mask=~mask)
        return self.out((h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))

    def by_jagged(self, batch: list[list[int]]) -> torch.Tensor:
        ids = jagged(batch)
        places = torch.cat([torch.arange(len(words)) for words in batch])
        h = torch.nested.nested_tensor_from_jagged(self.embedding(ids.values()) + self.positions[places], ids.offsets())
        for layer in self.layers.layers:
            own = layer.self_attn
            normed, parts = layer.norm1(h), zip(own.in_proj_weight.chunk(3), own.in_proj_bias.chunk(3), strict=True)
            q, k, v = (F.linear(normed, w, b).unflatten(-1, (own.num_heads, -1)).transpose(1, 2) for w, b in parts)
            h = h + own.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            h = h + layer.linear2(torch.relu(layer.linear1(layer.norm2(h))))
        return self.out(h.mean(1))


class Pointer(PointerNetwork):
    """The zoo's pointer network."""

    def __init__(self, size: int):
        super().__init__(size, VOCAB)

    def by_padding(self, batch: list[list[int]]) -> torch.Tensor:
        ids, mask = padded(batch)
        h = self.words(ids)
        keys, state = self.keys(h), (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        for _ in range(3):
            scores = self.score(torch.tanh(keys + self.query(state).unsqueeze(1)))
            weights = scores.masked_fill(~mask.unsqueeze(-1), float("-inf")).softmax(1)
            state = self.cell((weights * h).sum(1), state)
        return self.out(state)


class Children(TreeAttention):
    """The zoo's tree encoder."""

    def __init__(self, size: int):
        super().__init__(size, VOCAB)

    def by_levels(self, batch: list[Tree]) -> torch.Tensor:
        """All nodes of one height at a time, their children padded."""
        order: list[list[tuple[Tree, list[int]]]] = []
        place: list[tuple[int, int]] = []

        def put(tree: Tree) -> tuple[int, int]:
            below = [put(child) for child in tree[1]]
            height = 1 + max((h for h, _ in below), default=-1)
            while len(order) <= height:
                order.append([])
            order[height].append((tree, below))  # type: ignore[arg-type]
            return height, len(order[height]) - 1

        place = [put(tree) for tree in batch]
        first, states = [0], torch.zeros(0)
        for number, level in enumerate(order):
            words = self.words(torch.tensor([tree[0] for tree, _ in level]))
            joined = words
            if number:
                most = max(len(below) for _, below in level)
                rows = [[first[h] + k for h, k in below] + [0] * (most - len(below)) for _, below in level]  # type: ignore
                mask = torch.arange(most)[None] < torch.tensor([len(below) for _, below in level])[:, None]
                children = states[torch.tensor(rows)]
                scores = (children @ self.query(words).unsqueeze(-1)).squeeze(-1)
                weights = scores.masked_fill(~mask, float("-inf")).softmax(1)
                joined = (weights.unsqueeze(1) @ children).squeeze(1)
            made = torch.tanh(self.join(torch.cat([words, joined], -1)))
            states = torch.cat([states, made]) if number else made
            first.append(len(states))
        return self.out(states[torch.tensor([first[h] + k for h, k in place])])


class Sets(SetEncoder):
    """The zoo's set encoder."""

    def by_concatenation(self, batch: list[list[int]]) -> torch.Tensor:
        lengths = torch.tensor(list(map(len, batch)))
        h = self.one(self.elements(torch.tensor([atom for atoms in batch for atom in atoms])))
        owner = torch.repeat_interleave(torch.arange(len(batch)), lengths)
        mean = torch.zeros(len(batch), h.shape[1]).index_add(0, owner, h) / lengths[:, None]
        return self.all(torch.cat([mean, torch.segment_reduce(h, "max", lengths=lengths)], -1))

    def by_padding(self, batch: list[list[int]]) -> torch.Tensor:
        ids, mask = padded(batch)
        h, mask = self.one(self.elements(ids)), mask.unsqueeze(-1)
        mean = (h * mask).sum(1) / mask.sum(1)
        return self.all(torch.cat([mean, h.masked_fill(~mask, float("-inf")).amax(1)], -1))


class Graphs(MoleculeGNN):
    """The zoo's graph network."""

    def by_concatenation(self, batch: list[AtomGraph]) -> torch.Tensor:
        """With shifted indices."""
        counts = torch.tensor([len(graph.atoms) for graph in batch])
        shifts = (counts.cumsum(0) - counts).tolist()
        atoms = torch.tensor([atom for graph in batch for atom in graph.atoms])
        pairs = list(zip(batch, shifts, strict=True))
        source = torch.tensor([i + shift for graph, shift in pairs for i in graph.sources])
        target = torch.tensor([i + shift for graph, shift in pairs for i in graph.targets])
        h = self.states(self.elements(atoms), source, target)
        owner = torch.repeat_interleave(torch.arange(len(batch)), counts)
        return self.out(torch.zeros(len(batch), h.shape[1]).index_add(0, owner, h))


def sentences_and_trees(folder: Path) -> tuple[list[list[int]], list[Tree]]:
    """Word ids of each sentence, and its dependency tree."""
    sentences, trees = [], []
    for words in read_conllu(str(folder / "ud_ewt" / "en_ewt-ud-dev-every2nd.conllu")):
        ids = [word_id(word.form, VOCAB) for word in words]
        below: list[list[int]] = [[] for _ in range(len(words) + 1)]
        for number, word in enumerate(words, 1):
            below[word.head].append(number)

        def tree(number: int, ids: list[int] = ids, below: list[list[int]] = below) -> Tree:
            return ids[number - 1], [tree(child, ids, below) for child in below[number]]

        sentences.append(ids)
        trees.append(tree(below[0][0]))
    return sentences, trees


def only(result: Any) -> torch.Tensor:
    """The one tensor that a model returns."""
    return next(iter(result.values()))[0] if isinstance(result, dict) else result


def timed(run: Callable[[], Any]) -> float:
    """Milliseconds of processor time."""
    start = time.process_time()
    run()
    return 1e3 * (time.process_time() - start)


@torch.no_grad()
def measure(model: Any, instances: list[Any], options: argparse.Namespace) -> str:
    """One row of the table."""
    rng = Random(0)
    batch_of = lambda: rng.sample(instances, options.batch)  # noqa: E731
    net = bound(model.eval(), batch_of(), cells="auto", rows=True)
    for _ in range(LOOKS + 1):
        net(batch_of())
    ways = {name.removeprefix("by_"): getattr(model, name) for name in dir(model) if name.startswith("by_")}
    times: dict[str, list[float]] = {name: [] for name in ("eager", "edbc", "recording", *ways)}
    for _ in range(options.rounds):
        batch, stats = batch_of(), Stats()
        wanted = torch.stack([only(model(x)) for x in batch])
        for name, way in ways.items():
            torch.testing.assert_close(way(batch), wanted, rtol=1e-3, atol=1e-4)
            times[name].append(timed(lambda batch=batch, way=way: way(batch)))
        times["eager"].append(timed(lambda batch=batch: [model(x) for x in batch]))
        times["edbc"].append(timed(lambda batch=batch: net(batch)))
        net.run(batch, stats)
        times["recording"].append(1e3 * stats.seconds.construction)
    found = {name: statistics.median(of) for name, of in times.items()}
    best = min(ways, key=found.__getitem__)
    eager, ours = found["eager"], found["edbc"]
    hand = f"{found[best]:.2f} ({best}) | {ours:.2f} | {eager / ours:.2f} x | {found[best] / ours:.2f} x"
    types, name = len(net.plan.types), type(model).__name__
    return f"| {name} | {options.hidden} | {types} | {eager:.2f} | {hand} | {found['recording']:.2f} |"


def main() -> None:
    """Print the table."""
    data = os.environ.get("EDBC_DATA", str(ROOT.parent / "shared" / "data"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--data", default=data, help="folder with the shared data sets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sentences, trees = sentences_and_trees(Path(options.data))
    graphs = [g for g in load(str(Path(options.data) / "molecules" / "esol-first900.csv")) if g.sources]
    print(f"{processor_name()}, mini-batches of {options.batch}")
    print("| model | hidden | types | eager ms | by hand ms | edbc ms | of eager | of by hand | recording ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model, instances in (
        (Sentences, sentences), (Encoder, sentences), (Pointer, sentences), (Children, trees), (Graphs, graphs),
        (Sets, [graph.atoms for graph in graphs]),
    ):  # fmt: skip
        print(measure(model(options.hidden), instances, options), flush=True)


if __name__ == "__main__":
    main()
