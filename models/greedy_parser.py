"""Transition-based dependency parser that follows its own scores.

The network of `transition_parser` (Kiperwasser and Goldberg, "Simple and Accurate Dependency Parsing Using
Bidirectional LSTM Feature Representations", TACL 2016) without a given tree: of the transitions that a configuration
allows, the one that scores highest is taken. Where it allows one alone nothing is read, and its scores wait for
company.

Input: text, one sentence per line.
Output: `transitions`, one tensor of SHIFT, LEFT and RIGHT per transition, in order: two for each word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _sentences import read_words, sample_sentences
from _text import word_id
from _transitions import LEFT, RIGHT, SHIFT
from torch import Tensor, nn

import edbc

UD_WORDS = (1, 14, 38, 104)
"""Words per sentence of the training part of UD English EWT: minimum, median, 95th percentile, maximum."""


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


@edbc.cell
class Word(nn.Module):
    """A word from what precedes and what follows it."""

    def __init__(self, size: int):
        super().__init__()
        self.both = nn.Linear(2 * size, size)

    def forward(self, f: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(self.both(torch.cat([f, b], dim=-1)))


@edbc.cell
class Score(nn.Module):
    """Scores of the transitions from three words of the stack and one of the buffer."""

    def __init__(self, size: int):
        super().__init__()
        self.hidden = nn.Linear(4 * size, size)
        self.out = nn.Linear(size, 3)

    def forward(self, third: Tensor, second: Tensor, first: Tensor, following: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(torch.cat([third, second, first, following], dim=-1))))


class GreedyParser(nn.Module):
    """Reads a sentence, then takes transitions until the root alone is left."""

    def __init__(self, size: int, vocab_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        self.ahead = LSTMCell(size)
        self.back = LSTMCell(size)
        self.word = Word(size)
        self.score = Score(size)
        self.root = nn.Parameter(torch.randn(size))
        self.nothing = nn.Parameter(torch.randn(size))
        self.register_buffer("zero", torch.zeros(size), persistent=False)

    def forward(self, words: list[int]) -> dict[str, list[Tensor]]:
        states = [self.root, *self.read(words)]
        stack, following, scores = [0], 1, []
        while following < len(states) or len(stack) > 1:
            third, second, first = [self.nothing] * (3 - len(stack)) + [states[number] for number in stack[-3:]]
            ahead = states[following] if following < len(states) else self.nothing
            scores.append(self.score(third, second, first, ahead))
            transition = self.choose(scores[-1], len(stack), following < len(states))
            if transition == SHIFT:
                stack.append(following)
                following += 1
            else:
                stack.pop(-2 if transition == LEFT else -1)
        return {"transitions": scores}

    def choose(self, scores: Tensor, height: int, may_shift: bool) -> int:
        """The allowed transition that scores highest. The root takes its only dependent last."""
        first = SHIFT if may_shift else LEFT if height > 2 else RIGHT
        last = RIGHT if height > 2 or not may_shift else SHIFT
        return first + int(scores[first : last + 1].argmax()) if first < last else first

    def read(self, words: list[int]) -> list[Tensor]:
        xs = [self.embedding.weight[word] for word in words]
        fs = self.run(self.ahead, xs)
        bs = self.run(self.back, xs[::-1])[::-1]
        return [self.word(f, b) for f, b in zip(fs, bs, strict=True)]

    def run(self, cell: LSTMCell, xs: list[Tensor]) -> list[Tensor]:
        h = c = self.zero
        hs = []
        for x in xs:
            h, c = cell(x, h, c)
            hs.append(h)
        return hs


def build(hidden_size: int = 256, vocab_size: int = 20000, **config: Any) -> nn.Module:
    return GreedyParser(hidden_size, vocab_size)


def load(*paths: str, vocab_size: int = 20000, **config: Any) -> Iterator[list[int]]:
    for path in paths:
        for words in read_words(path):
            yield [word_id(word, vocab_size) for word in words]


def sample(count: int, seed: int, vocab_size: int = 20000, **config: Any) -> list[list[int]]:
    return sample_sentences(count, seed, vocab_size, UD_WORDS)
