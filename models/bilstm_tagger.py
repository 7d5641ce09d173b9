"""Bidirectional LSTM tagger of two layers: a tag for every word of a sentence.

One stack of LSTM layers reads the sentence forwards and another one backwards; layer 1 of a stack reads layer 0 of the
same stack (Huang, Xu and Yu, "Bidirectional LSTM-CRF Models for Sequence Tagging", 2015, without the CRF).

Input: one sentence per line, `Paris|I-LOC is|O big|O`; the tags are not looked at.
Output: `tags`, a row of 9 classes (WikiNER's) per word, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _sentences import read_tagged, sample_sentences
from _text import word_id
from torch import Tensor, nn

import edbc
from edbc.vertex import Vertex, VertexFunction, VertexInstance


@edbc.cell
class LSTMCell(nn.Module):
    """One step of an LSTM whose forget gate starts open."""

    def __init__(self, input_size: int, size: int):
        super().__init__()
        self.i_x = nn.Linear(input_size, size)
        self.f_x = nn.Linear(input_size, size)
        self.o_x = nn.Linear(input_size, size)
        self.g_x = nn.Linear(input_size, size)
        self.i_h = nn.Linear(size, size, bias=False)
        self.f_h = nn.Linear(size, size, bias=False)
        self.o_h = nn.Linear(size, size, bias=False)
        self.g_h = nn.Linear(size, size, bias=False)
        nn.init.ones_(self.f_x.bias)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i = torch.sigmoid(self.i_x(x) + self.i_h(h))
        f = torch.sigmoid(self.f_x(x) + self.f_h(h))
        o = torch.sigmoid(self.o_x(x) + self.o_h(h))
        g = torch.tanh(self.g_x(x) + self.g_h(h))
        c = f * c + i * g
        h = o * torch.tanh(c)
        return h, c


@edbc.cell
class Out(nn.Module):
    """Classes of a word from what precedes and what follows it."""

    def __init__(self, size: int, num_tags: int):
        super().__init__()
        self.hidden = nn.Linear(2 * size, size, bias=False)
        self.tags = nn.Linear(size, num_tags, bias=False)

    def forward(self, f: Tensor, b: Tensor) -> Tensor:
        return self.tags(torch.tanh(self.hidden(torch.cat([f, b], dim=-1))))


class BiLSTMTagger(nn.Module):
    """Runs the two stacks over a sentence and classifies each word."""

    def __init__(self, size: int, vocab_size: int, num_tags: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.forward0 = LSTMCell(size, size)
        self.forward1 = LSTMCell(size, size)
        self.backward0 = LSTMCell(size, size)
        self.backward1 = LSTMCell(size, size)
        self.out = Out(size, num_tags)
        self.register_buffer("zero", torch.zeros(size), persistent=False)

    def forward(self, words: list[int]) -> dict[str, Tensor]:
        xs = [self.embedding.weight[word] for word in words]
        fs = self.run(self.forward1, self.run(self.forward0, xs))
        bs = self.run(self.backward1, self.run(self.backward0, xs[::-1]))[::-1]
        return {"tags": torch.stack([self.out(f, b) for f, b in zip(fs, bs, strict=True)])}

    def run(self, cell: LSTMCell, xs: list[Tensor]) -> list[Tensor]:
        h = c = self.zero
        hs = []
        for x in xs:
            h, c = cell(x, h, c)
            hs.append(h)
        return hs

    def vertices(self) -> dict[str, VertexFunction]:
        return {
            "forward": lambda v: self.step(v, self.forward0, self.forward1),
            "backward": lambda v: self.step(v, self.backward0, self.backward1),
            "tag": self.tag,
        }

    def step(self, v: Vertex, layer0: LSTMCell, layer1: LSTMCell) -> None:
        h0, c0, h1, c1 = v.gather(0, default=(self.zero,) * 4)
        h0, c0 = layer0(v.pull("word", self.embedding.weight), h0, c0)
        h1, c1 = layer1(h0, h1, c1)
        v.scatter(h0, c0, h1, c1)

    def tag(self, v: Vertex) -> None:
        (_, _, f, _), (_, _, b, _) = v.gather_all()
        v.push("tags", self.out(f, b))


def build(hidden_size: int = 256, vocab_size: int = 20000, num_tags: int = 9, **config: Any) -> nn.Module:
    return BiLSTMTagger(hidden_size, vocab_size, num_tags)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[list[int]]:
    for path in paths:
        for words in read_tagged(path):
            yield [word_id(word, vocab_size) for word in words]


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[list[int]]:
    return sample_sentences(count, seed, vocab_size)


def vertex_instance(words: list[int], **config: Any) -> VertexInstance:
    """Two chains, from the first word and from the last, then a tag per word that looks at both."""
    n = len(words)
    forwards = [(0, range(max(0, at - 1), at)) for at in range(n)]
    backwards = [(1, range(max(n, at - 1), at)) for at in range(n, 2 * n)]
    tags = [(2, (at, 2 * n - 1 - at)) for at in range(n)]
    return VertexInstance.build(forwards + backwards + tags, {"word": words + words[::-1] + [0] * n})
