"""Bidirectional LSTM tagger of two layers that reads rare words letter by letter.

The tagger of `bilstm_tagger.py`; a rare word's embedding is the last state of an LSTM over its characters forwards and
of another one backwards, half of it each (Lample et al., "Neural Architectures for Named Entity Recognition", NAACL
2016, section 4.1, where every word has both). Which words are rare: see `_rare.py`.

Input: one sentence per line, `Paris|I-LOC is|O big|O`, or CoNLL-U in a file named `*.conllu`; tags are not looked at.
Output: `tags`, a row of 17 classes (Universal Dependencies has the most) per word, in order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from _conllu import read_conllu
from _rare import rare_word_test
from _samples import sample_sizes, size_at
from _sentences import WIKINER_WORDS, read_tagged
from _text import word_id
from torch import Tensor, nn

import edbc
from edbc.errors import ModelError
from edbc.vertex import Vertex, VertexFunction, VertexInstance

RARE_SHARE = 0.31
RARE_LETTERS = (1, 7, 11, 26)
"""Share of rare words among WikiNER's, and their lengths."""

Word = int | tuple[int, ...]
"""A row of the word table, or the characters of a rare word."""


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


class BiLSTMCharTagger(nn.Module):
    """Embeds each word by look-up or by spelling, runs the two stacks over the sentence and classifies each word."""

    def __init__(self, size: int, vocab_size: int, num_characters: int, num_tags: int):
        super().__init__()
        half = size // 2
        self.embedding = nn.Embedding(vocab_size, size)
        self.characters = nn.Embedding(num_characters, half)
        self.spell_forward = LSTMCell(half, half)
        self.spell_backward = LSTMCell(half, half)
        self.forward0 = LSTMCell(size, size)
        self.forward1 = LSTMCell(size, size)
        self.backward0 = LSTMCell(size, size)
        self.backward1 = LSTMCell(size, size)
        self.out = Out(size, num_tags)
        self.register_buffer("zero", torch.zeros(size), persistent=False)
        self.register_buffer("zero_half", torch.zeros(half), persistent=False)

    def forward(self, words: list[Word]) -> dict[str, Tensor]:
        xs = [self.embed(word) for word in words]
        fs = self.run(self.forward1, self.run(self.forward0, xs, self.zero), self.zero)
        bs = self.run(self.backward1, self.run(self.backward0, xs[::-1], self.zero), self.zero)[::-1]
        return {"tags": torch.stack([self.out(f, b) for f, b in zip(fs, bs, strict=True)])}

    def embed(self, word: Word) -> Tensor:
        if isinstance(word, int):
            return self.embedding.weight[word]
        letters = [self.characters.weight[letter] for letter in word]
        f = self.run(self.spell_forward, letters, self.zero_half)[-1]
        b = self.run(self.spell_backward, letters[::-1], self.zero_half)[-1]
        return torch.cat([f, b], dim=-1)

    def run(self, cell: LSTMCell, xs: list[Tensor], zero: Tensor) -> list[Tensor]:
        h = c = zero
        hs = []
        for x in xs:
            h, c = cell(x, h, c)
            hs.append(h)
        return hs

    def vertices(self) -> dict[str, VertexFunction]:
        return {
            "word": lambda v: v.scatter(v.pull("id", self.embedding.weight)),
            "letter_forward": lambda v: self.letter(v, self.spell_forward),
            "letter_backward": lambda v: self.letter(v, self.spell_backward),
            "spelled": self.spelled,
            "forward": lambda v: self.step(v, self.forward0, self.forward1),
            "backward": lambda v: self.step(v, self.backward0, self.backward1),
            "tag": self.tag,
        }

    def letter(self, v: Vertex, cell: LSTMCell) -> None:
        h, c = v.gather(0, default=(self.zero_half, self.zero_half))
        v.scatter(*cell(v.pull("id", self.characters.weight), h, c))

    def spelled(self, v: Vertex) -> None:
        (f, _), (b, _) = v.gather_all()
        v.scatter(torch.cat([f, b], dim=-1))

    def step(self, v: Vertex, layer0: LSTMCell, layer1: LSTMCell) -> None:
        h0, c0, h1, c1 = v.gather(1, default=(self.zero,) * 4)
        h0, c0 = layer0(v.gather(0), h0, c0)
        h1, c1 = layer1(h0, h1, c1)
        v.scatter(h0, c0, h1, c1)

    def tag(self, v: Vertex) -> None:
        (_, _, f, _), (_, _, b, _) = v.gather_all()
        v.push("tags", self.out(f, b))


def build(
    hidden_size: int = 256, vocab_size: int = 20000, num_characters: int = 256, num_tags: int = 17, **config: Any
) -> nn.Module:
    if hidden_size % 2:
        raise ModelError(f"hidden_size: expected an even number, got {hidden_size}; spelling gives half of it each way")
    return BiLSTMCharTagger(hidden_size, vocab_size, num_characters, num_tags)


def load(
    *paths: str, vocab_size: int = 20000, num_characters: int = 256, counts: str = "", **config: Any
) -> Iterator[list[Word]]:
    is_rare = rare_word_test(counts)
    for path in paths:
        for words in read_words(path):
            yield [spell(word, num_characters) if is_rare(word) else word_id(word, vocab_size) for word in words]


def spell(word: str, num_characters: int) -> Word:
    return tuple(word_id(letter, num_characters) for letter in word)


def read_words(path: str) -> Iterator[list[str]]:
    """Words of each sentence, in the format that the file's name tells."""
    if path.endswith(".conllu"):
        return ([word.form for word in sentence] for sentence in read_conllu(path))
    return read_tagged(path)


def sample(
    count: int, seed: int, vocab_size: int = 20000, num_characters: int = 256, **config: Any
) -> list[list[Word]]:
    rng = random.Random(seed)

    def make_word() -> Word:
        if rng.random() >= RARE_SHARE:
            return rng.randrange(vocab_size)
        return tuple(rng.randrange(num_characters) for _ in range(size_at(rng.random(), RARE_LETTERS)))

    return [[make_word() for _ in range(length)] for length in sample_sizes(count, WIKINER_WORDS, rng)]


def vertex_instance(words: list[Word], **config: Any) -> VertexInstance:
    """A vertex per word, behind the two chains over its letters where it is rare; then as in `bilstm_tagger.py`."""
    vertices: list[tuple[int, Sequence[int]]] = []
    ids: list[int] = []
    embedded: list[int] = []
    for word in words:
        if isinstance(word, int):
            vertices.append((0, ()))
            ids.append(word)
        else:
            ends = []
            for kind, letters in ((1, word), (2, word[::-1])):
                first = len(vertices)
                vertices += [(kind, range(max(first, at - 1), at)) for at in range(first, first + len(letters))]
                ids += letters
                ends.append(len(vertices) - 1)
            vertices.append((3, ends))
            ids.append(0)
        embedded.append(len(vertices) - 1)
    n, first = len(words), len(vertices)
    vertices += [(4, (x, *range(max(first, at - 1), at))) for at, x in enumerate(embedded, first)]
    vertices += [(5, (x, *range(max(first + n, at - 1), at))) for at, x in enumerate(embedded[::-1], first + n)]
    vertices += [(6, (first + at, first + 2 * n - 1 - at)) for at in range(n)]
    return VertexInstance.build(vertices, {"id": ids + [0] * 3 * n})
