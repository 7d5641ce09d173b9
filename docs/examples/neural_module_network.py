"""A neural module network (Andreas, Rohrbach, Darrell and Klein, CVPR 2016): a program of modules per question."""

import random

import torch
from torch import nn
from torch.nn import functional as F

import edbc


@edbc.cell
class Find(nn.Module):
    """Where in the picture a word applies."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)
        self.attend = nn.Conv2d(channels, 1, 1)

    def forward(self, picture, word):
        return torch.sigmoid(self.attend(self.conv(picture) * word[:, None, None]))


@edbc.cell
class Filter(nn.Module):
    """A narrower attention by a word."""

    def __init__(self, channels):
        super().__init__()
        self.find = Find(channels)

    def forward(self, picture, word, attention):
        return attention * self.find(picture, word)


@edbc.cell
class Relate(nn.Module):
    """An attention moved by a word."""

    def __init__(self, channels):
        super().__init__()
        self.move = nn.Conv2d(1, channels, 3, padding=1)
        self.attend = nn.Conv2d(channels, 1, 3, padding=1)

    def forward(self, picture, word, attention):
        return torch.sigmoid(self.attend(F.relu(self.move(attention)) * word[:, None, None]))


@edbc.cell
class Describe(nn.Module):
    """An answer from what is attended to."""

    def __init__(self, channels):
        super().__init__()
        self.out = nn.Linear(channels, 10)

    def forward(self, picture, word, attention):
        return self.out((picture * attention).mean(dim=(1, 2)) * word)


class NeuralModuleNetwork(nn.Module):
    """Runs a question's program on its picture."""

    def __init__(self, channels=8, vocab_size=50):
        super().__init__()
        self.words = nn.Embedding(vocab_size, channels)
        self.find = Find(channels)
        self.filter = Filter(channels)
        self.relate = Relate(channels)
        self.describe = Describe(channels)

    def forward(self, question):
        self.picture = question["picture"].to(self.words.weight.dtype)
        return self.run(question["program"])

    def run(self, step):
        name, *operands = step
        if name == "and":
            return torch.minimum(self.run(operands[0]), self.run(operands[1]))
        if name == "or":
            return torch.maximum(self.run(operands[0]), self.run(operands[1]))
        if name == "not":
            return 1 - self.run(operands[0])
        word = self.words(torch.tensor(operands[0]))
        attentions = [self.run(operand) for operand in operands[1:]]
        return getattr(self, name)(self.picture, word, *attentions)


def build(channels=8, **config):
    return NeuralModuleNetwork(channels)


def load(*paths, **config):
    raise ValueError("questions are made up in this example; leave --input out")


def sample(count, seed, channels=8, **config):
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)

    def attention(size):
        if size <= 1:
            return ("find", rng.randrange(50))
        kind = rng.choice(["filter", "relate", "not", "and", "or"] if size > 2 else ["filter", "relate", "not"])
        if kind in ("and", "or"):
            left = rng.randrange(1, size - 1)
            return (kind, attention(left), attention(size - 1 - left))
        return (kind, attention(size - 1)) if kind == "not" else (kind, rng.randrange(50), attention(size - 1))

    return [
        {
            "picture": torch.randn(channels, 7, 7, generator=generator),
            "program": ("describe", rng.randrange(50), attention(rng.randrange(2, 20))),
        }
        for _ in range(count)
    ]
