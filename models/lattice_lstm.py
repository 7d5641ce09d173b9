"""Lattice LSTM over Chinese sentences: a tag for every position, from its characters and all words that end there.

Zhang and Yang, "Chinese NER Using Lattice LSTM", ACL 2018. Characters and words run through LSTM cells of their own;
where several arcs meet, their states are summed (the paper weighs them by normalised gates instead).

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
class LSTMCell(nn.Module):
    """One step of an LSTM along an arc."""

    def __init__(self, size: int):
        super().__init__()
        self.f_x = nn.Linear(size, size)
        self.i_x = nn.Linear(size, size)
        self.o_x = nn.Linear(size, size)
        self.g_x = nn.Linear(size, size)
        self.f_h = nn.Linear(size, size, bias=False)
        self.i_h = nn.Linear(size, size, bias=False)
        self.o_h = nn.Linear(size, size, bias=False)
        self.g_h = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        f = torch.sigmoid(self.f_x(x) + self.f_h(h))
        i = torch.sigmoid(self.i_x(x) + self.i_h(h))
        o = torch.sigmoid(self.o_x(x) + self.o_h(h))
        g = torch.tanh(self.g_x(x) + self.g_h(h))
        c = i * g + f * c
        h = o * torch.tanh(c)
        return h, c


class LatticeLSTM(nn.Module):
    """Walks the positions from left to right."""

    def __init__(self, size: int, vocab_size: int, num_tags: int):
        super().__init__()
        self.characters = nn.Embedding(vocab_size, size)
        self.words = nn.Embedding(vocab_size, size)
        self.char = LSTMCell(size)
        self.word = LSTMCell(size)
        self.h0 = nn.Parameter(torch.randn(size) * 0.1)
        self.c0 = nn.Parameter(torch.randn(size) * 0.1)
        self.out = nn.Linear(size, num_tags)

    def forward(self, lattice: Lattice) -> dict[str, Tensor]:
        h, c = [self.h0], [self.c0]
        for last, arcs in enumerate(lattice):
            states = [self.step(last, arc, h, c) for arc in arcs]
            h.append(sum(state[0] for state in states))
            c.append(sum(state[1] for state in states))
        return {"logits": torch.stack([self.out(state) for state in h])}

    def step(self, last: int, arc: tuple[int, int], h: list[Tensor], c: list[Tensor]) -> tuple[Tensor, Tensor]:
        start, id_ = arc
        if start == last:
            return self.char(self.characters.weight[id_], h[start], c[start])
        return self.word(self.words.weight[id_], h[start], c[start])

    def vertices(self) -> dict[str, VertexFunction]:
        return {"start": self.start, "char": self.char_arc, "word": self.word_arc, "position": self.position}

    def start(self, v: Vertex) -> None:
        v.push("logits", self.out(self.h0))
        v.scatter(self.h0, self.c0)

    def char_arc(self, v: Vertex) -> None:
        h, c = v.gather(0)
        v.scatter(*self.char(v.pull("id", self.characters.weight), h, c))

    def word_arc(self, v: Vertex) -> None:
        h, c = v.gather(0)
        v.scatter(*self.word(v.pull("id", self.words.weight), h, c))

    def position(self, v: Vertex) -> None:
        states = v.gather_all()
        h = sum(state[0] for state in states)
        c = sum(state[1] for state in states)
        v.push("logits", self.out(h))
        v.scatter(h, c)


def build(hidden_size: int = 256, vocab_size: int = 20000, num_tags: int = 18, **config: Any) -> nn.Module:
    return LatticeLSTM(hidden_size, vocab_size, num_tags)


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
