"""Lattice GRU over Chinese sentences: a tag for every position, from its characters and all words that end there.

The lattice of Zhang and Yang, "Chinese NER Using Lattice LSTM", ACL 2018, with gated recurrent units in place of LSTM
cells: one state instead of two, and a candidate that must wait for the reset gate.

Input: lattices as integers (see `_lattices.py`), or with `--set lexicon=dict.txt` sentences: in columns, or with
`--set text=plain` one per line.
Output: `logits`, a row of 18 tags per position, position 0 first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _lattices import Lattice, build_lattice, lattice_vertices, read_lattices, read_sentences, sample_lattices
from _lexicon import read_lexicon
from torch import Tensor, nn

import edbc
from edbc.vertex import Vertex, VertexFunction, VertexInstance


@edbc.cell
class GRUCell(nn.Module):
    """One step of a gated recurrent unit along an arc.

    The update gate starts nearly closed: half open, states that are summed at every position would grow without end.
    """

    def __init__(self, size: int):
        super().__init__()
        self.r_x = nn.Linear(size, size)
        self.z_x = nn.Linear(size, size)
        self.c_x = nn.Linear(size, size)
        self.r_h = nn.Linear(size, size, bias=False)
        self.z_h = nn.Linear(size, size, bias=False)
        self.c_h = nn.Linear(size, size, bias=False)
        nn.init.constant_(self.z_x.bias, -2.0)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        r = torch.sigmoid(self.r_h(h) + self.r_x(x))
        z = torch.sigmoid(self.z_h(h) + self.z_x(x))
        c = torch.tanh(self.c_h(r * h) + self.c_x(x))
        return z * h + (1 - z) * c


class LatticeGRU(nn.Module):
    """Walks the positions from left to right."""

    def __init__(self, size: int, vocab_size: int, num_tags: int):
        super().__init__()
        self.characters = nn.Embedding(vocab_size, size)
        self.words = nn.Embedding(vocab_size, size)
        self.char = GRUCell(size)
        self.word = GRUCell(size)
        self.h0 = nn.Parameter(torch.randn(size) * 0.1)
        self.out = nn.Linear(size, num_tags)

    def forward(self, lattice: Lattice) -> dict[str, Tensor]:
        h = [self.h0]
        for last, arcs in enumerate(lattice):
            h.append(sum(self.step(last, arc, h) for arc in arcs))
        return {"logits": torch.stack([self.out(state) for state in h])}

    def step(self, last: int, arc: tuple[int, int], h: list[Tensor]) -> Tensor:
        start, id_ = arc
        if start == last:
            return self.char(self.characters.weight[id_], h[start])
        return self.word(self.words.weight[id_], h[start])

    def vertices(self) -> dict[str, VertexFunction]:
        return {"start": self.start, "char": self.char_arc, "word": self.word_arc, "position": self.position}

    def start(self, v: Vertex) -> None:
        v.push("logits", self.out(self.h0))
        v.scatter(self.h0)

    def char_arc(self, v: Vertex) -> None:
        v.scatter(self.char(v.pull("id", self.characters.weight), v.gather(0)))

    def word_arc(self, v: Vertex) -> None:
        v.scatter(self.word(v.pull("id", self.words.weight), v.gather(0)))

    def position(self, v: Vertex) -> None:
        h = sum(v.gather_all())
        v.push("logits", self.out(h))
        v.scatter(h)


def build(hidden_size: int = 256, vocab_size: int = 20000, num_tags: int = 18, **config: Any) -> nn.Module:
    return LatticeGRU(hidden_size, vocab_size, num_tags)


def load(
    *paths: str, vocab_size: int = 20000, lexicon: str = "", text: str = "columns", **config: Any
) -> Iterator[Lattice]:
    words = read_lexicon(lexicon) if lexicon else None
    for path in paths:
        if words is None:
            yield from read_lattices(path, vocab_size)
        else:
            yield from (build_lattice(sentence, words, vocab_size) for sentence in read_sentences(path, text))


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[Lattice]:
    return sample_lattices(count, seed, vocab_size)


def vertex_instance(lattice: Lattice, **config: Any) -> VertexInstance:
    return lattice_vertices(lattice)
