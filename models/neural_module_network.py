"""Neural module networks: questions about pictures, answered by networks put together from seven kinds of module.

Andreas, Rohrbach, Darrell and Klein, "Neural Module Networks", CVPR 2016; the modules are those of Hu et al., "Learning
to Reason: End-to-End Module Networks for Visual Question Answering", ICCV 2017, simplified. A program says which
modules run and what they read; maps of where to look (1 x side x side) flow between them, and the last one answers.

Input: one question per line, `17 (exist (and (find cube) (relocate left (find ball))))`; pictures are rows of a table
of feature maps.
Output: `answer`, one tensor of 28 answers per question.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from _programs import Module, Question, read_questions, sample_questions
from torch import Tensor, nn

import edbc


@edbc.cell
class Find(nn.Module):
    """Where in the picture the word is."""

    def __init__(self, size: int):
        super().__init__()
        self.picture = nn.Conv2d(size, size, kernel_size=1)
        self.word = nn.Linear(size, size)
        self.score = nn.Conv2d(size, 1, kernel_size=1)

    def forward(self, picture: Tensor, x: Tensor) -> Tensor:
        matched = torch.relu(self.picture(picture)) * self.word(x)[:, None, None]
        return torch.sigmoid(self.score(matched))


@edbc.cell
class Filter(nn.Module):
    """The part of a map where the word holds."""

    def __init__(self, size: int):
        super().__init__()
        self.picture = nn.Conv2d(size, size, kernel_size=1)
        self.word = nn.Linear(size, size)
        self.score = nn.Conv2d(size, 1, kernel_size=1)

    def forward(self, picture: Tensor, x: Tensor, at: Tensor) -> Tensor:
        matched = torch.relu(self.picture(picture)) * self.word(x)[:, None, None]
        return at * torch.sigmoid(self.score(matched))


@edbc.cell
class Relocate(nn.Module):
    """Where one gets from a map by going the way that the word says."""

    def __init__(self, size: int):
        super().__init__()
        self.spread = nn.Conv2d(1, size, kernel_size=3, padding=1)
        self.word = nn.Linear(size, size)
        self.score = nn.Conv2d(size, 1, kernel_size=3, padding=1)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        moved = torch.relu(self.spread(at)) * self.word(x)[:, None, None]
        return torch.sigmoid(self.score(moved))


@edbc.cell
class And(nn.Module):
    """Where both maps look."""

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return torch.minimum(one, other)


@edbc.cell
class Or(nn.Module):
    """Where either map looks."""

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return torch.maximum(one, other)


@edbc.cell
class Exist(nn.Module):
    """Whether a map looks anywhere."""

    def __init__(self, side: int, num_answers: int):
        super().__init__()
        self.out = nn.Linear(side * side + 2, num_answers)

    def forward(self, at: Tensor) -> Tensor:
        flat = at.flatten()
        return self.out(torch.cat([flat, flat.amax(dim=-1, keepdim=True), flat.amin(dim=-1, keepdim=True)], dim=-1))


@edbc.cell
class Describe(nn.Module):
    """What there is where a map looks, in the respect that the word names."""

    def __init__(self, size: int, num_answers: int):
        super().__init__()
        self.word = nn.Linear(size, size)
        self.out = nn.Linear(size, num_answers)

    def forward(self, picture: Tensor, x: Tensor, at: Tensor) -> Tensor:
        seen = (picture * at).mean(dim=(-2, -1))
        return self.out(seen * self.word(x))


class NeuralModuleNetwork(nn.Module):
    """Puts the modules of a question's program together and runs them on its picture."""

    def __init__(self, size: int, side: int, vocab_size: int, num_pictures: int, num_answers: int):
        super().__init__()
        self.words = nn.Embedding(vocab_size, size)
        self.pictures = nn.Parameter(torch.randn(num_pictures, size, side, side), requires_grad=False)
        self.find = Find(size)
        self.filter = Filter(size)
        self.relocate = Relocate(size)
        self.both = And()
        self.either = Or()
        self.exist = Exist(side, num_answers)
        self.describe = Describe(size, num_answers)

    def forward(self, question: Question) -> dict[str, list[Tensor]]:
        return {"answer": [self.evaluate(question.program, self.pictures[question.picture])]}

    def evaluate(self, module: Module, picture: Tensor) -> Tensor:
        maps = [self.evaluate(read, picture) for read in module.reads]
        match module.name:
            case "find":
                return self.find(picture, self.words.weight[module.word])
            case "filter":
                return self.filter(picture, self.words.weight[module.word], *maps)
            case "relocate":
                return self.relocate(self.words.weight[module.word], *maps)
            case "and":
                return self.both(*maps)
            case "or":
                return self.either(*maps)
            case "exist":
                return self.exist(*maps)
            case _:
                return self.describe(picture, self.words.weight[module.word], *maps)


def build(
    hidden_size: int = 256,
    side: int = 7,
    vocab_size: int = 20000,
    num_pictures: int = 64,
    num_answers: int = 28,
    **config: Any,
) -> nn.Module:
    return NeuralModuleNetwork(hidden_size, side, vocab_size, num_pictures, num_answers)


def load(*paths: str, vocab_size: int = 20000, num_pictures: int = 64, **config: Any) -> Iterator[Question]:
    for path in paths:
        yield from read_questions(path, vocab_size, num_pictures)


def sample(count: int, seed: int, vocab_size: int = 20000, num_pictures: int = 64, **config: Any) -> list[Question]:
    return sample_questions(count, seed, vocab_size, num_pictures)
