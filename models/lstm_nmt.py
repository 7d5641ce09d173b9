"""LSTM sequence-to-sequence translation, scored on given translations (teacher forcing).

An encoder LSTM reads the source; the decoder LSTM starts from its last state and reads the target word by word
(Sutskever, Vinyals and Le, "Sequence to Sequence Learning with Neural Networks", NIPS 2014). The step that reads a
target word scores which word follows it.

Input: two files of equally many lines, source and target: `--input train.en --input train.vi`.
Output: `words`, a row over the target vocabulary per target word, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _sentences import Pair, read_pairs, sample_pairs
from torch import Tensor, nn

import edbc
from edbc.errors import InputError
from edbc.vertex import Vertex, VertexFunction, VertexInstance


@edbc.cell
class LSTMCell(nn.Module):
    """One step of an LSTM."""

    def __init__(self, size: int):
        super().__init__()
        self.i_x = nn.Linear(size, size)
        self.f_x = nn.Linear(size, size)
        self.o_x = nn.Linear(size, size)
        self.g_x = nn.Linear(size, size)
        self.i_h = nn.Linear(size, size, bias=False)
        self.f_h = nn.Linear(size, size, bias=False)
        self.o_h = nn.Linear(size, size, bias=False)
        self.g_h = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i = torch.sigmoid(self.i_x(x) + self.i_h(h))
        f = torch.sigmoid(self.f_x(x) + self.f_h(h))
        o = torch.sigmoid(self.o_x(x) + self.o_h(h))
        g = torch.tanh(self.g_x(x) + self.g_h(h))
        c = f * c + i * g
        h = o * torch.tanh(c)
        return h, c


class LSTMTranslator(nn.Module):
    """Encoder, decoder and the projection to the vocabulary."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        self.source_embedding = nn.Embedding(vocab_size, size)
        self.target_embedding = nn.Embedding(vocab_size, size)
        self.encoder = LSTMCell(size)
        self.decoder = LSTMCell(size)
        self.out = nn.Linear(size, vocab_size)
        self.register_buffer("zero", torch.zeros(size), persistent=False)

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        h = c = self.zero
        for word in pair.source:
            h, c = self.encoder(self.source_embedding.weight[word], h, c)
        scores = []
        for word in pair.target:
            h, c = self.decoder(self.target_embedding.weight[word], h, c)
            scores.append(self.out(h))
        return {"words": torch.stack(scores)}

    def vertices(self) -> dict[str, VertexFunction]:
        return {"source": self.source_vertex, "target": self.target_vertex}

    def source_vertex(self, v: Vertex) -> None:
        h, c = v.gather(0, default=(self.zero, self.zero))
        v.scatter(*self.encoder(v.pull("source", self.source_embedding.weight), h, c))

    def target_vertex(self, v: Vertex) -> None:
        h, c = v.gather(0, default=(self.zero, self.zero))
        h, c = self.decoder(v.pull("target", self.target_embedding.weight), h, c)
        v.push("words", self.out(h))
        v.scatter(h, c)


def build(hidden_size: int = 256, vocab_size: int = 20000, **config: Any) -> nn.Module:
    return LSTMTranslator(hidden_size, vocab_size)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[Pair]:
    if len(paths) != 2:
        raise InputError(f"lstm_nmt: expected two files, source and target, got {len(paths)}; give --input twice")
    return read_pairs(*paths, vocab_size=vocab_size)


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[Pair]:
    return sample_pairs(count, seed, vocab_size)


def vertex_instance(pair: Pair, **config: Any) -> VertexInstance:
    """One chain: the words of the source, then those of the target."""
    types = [0] * len(pair.source) + [1] * len(pair.target)
    chain = [(kind, range(max(0, at - 1), at)) for at, kind in enumerate(types)]
    source = [*pair.source, *[0] * len(pair.target)]
    target = [*[0] * len(pair.source), *pair.target]
    return VertexInstance.build(chain, {"source": source, "target": target})
