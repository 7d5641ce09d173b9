"""Modules: chosen by string, hooked, parametrised, wrapped, tied and copied."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from ordinary.data import FEATURES, LABELS, VOCAB, layout_tree, picture, sentence, vector
from ordinary.registry import program

ACTIVATIONS = {"relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu, "swish": lambda x: x * torch.sigmoid(x)}


def named_vector(rng):
    """A vector and the name of an activation."""
    return vector(rng), rng.choice(sorted(ACTIVATIONS))


@program(named_vector)
class ActivationByName(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.out = nn.Linear(FEATURES, size), nn.Linear(size, LABELS)

    def forward(self, item):
        x, name = item
        h = ACTIVATIONS[name](self.up(x))
        return self.out(h if name != "relu" else 2 * h)


@program(layout_tree)
class ModuleNetwork(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.transform = nn.Embedding(VOCAB, size), nn.Linear(size, size)
        self.table = {"find": self.find, "both": torch.minimum, "transform": self.move, "describe": self.find}

    def find(self, *inputs, word):
        return torch.sigmoid(self.words(torch.tensor(word)))

    def move(self, x):
        return torch.relu(self.transform(x))

    def forward(self, item):
        inputs = [self.forward(i) for i in item["inputs"]]
        if inputs:
            return self.table[item["op"]](*inputs)
        return self.table[item["op"]](word=item["word"])


@program(vector)
class ForwardHook(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, size), nn.Sequential(nn.Tanh(), nn.Linear(size, size)))
        self.body[1].register_forward_hook(lambda module, args, output: output * 2)

    def forward(self, x):
        return self.body(x)


@program(vector)
class WeightNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = parametrizations.weight_norm(nn.Linear(FEATURES, size))

    def forward(self, x):
        return torch.relu(self.up(x))


class Symmetric(nn.Module):
    """A matrix that equals its transpose."""

    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


@program(vector)
class SymmetricWeight(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.step = nn.Linear(FEATURES, FEATURES)
        parametrize.register_parametrization(self.step, "weight", Symmetric())

    def forward(self, x):
        return self.step(torch.tanh(self.step(x)))


class LowRank(nn.Module):
    """A frozen layer and a correction of low rank."""

    def __init__(self, layer, rank=2, scale=0.5):
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), scale
        self.a = nn.Parameter(torch.randn(rank, layer.in_features))
        self.b = nn.Parameter(torch.randn(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + self.scale * F.linear(F.linear(x, self.a), self.b)


@program(vector)
class LowRankAdapters(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.out = LowRank(nn.Linear(FEATURES, size)), LowRank(nn.Linear(size, LABELS))

    def forward(self, x):
        return self.out(torch.relu(self.up(x)))


@program(sentence)
class TiedWeights(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.cell = nn.Embedding(VOCAB, size), nn.GRUCell(size, size)
        self.out = nn.Linear(size, VOCAB, bias=False)
        self.out.weight = self.words.weight

    def forward(self, words):
        h = torch.zeros(1, self.words.embedding_dim)
        for word in words:
            h = self.cell(self.words(torch.tensor([word])), h)
        return self.out(h)


@program(vector)
class FunctionalCall(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.scale = nn.Linear(FEATURES, size), nn.Parameter(torch.ones(size))

    def forward(self, x):
        weights = {"weight": self.up.weight * self.scale.unsqueeze(1), "bias": self.up.bias}
        return torch.func.functional_call(self.up, weights, (x,))


@program(vector)
class CopiedLayers(nn.Module):
    def __init__(self, size):
        super().__init__()
        layer = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.LayerNorm(FEATURES), nn.SiLU())
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@program(vector)
class MixtureOfExperts(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gate, self.experts = nn.Linear(FEATURES, 3), nn.ModuleList(nn.Linear(FEATURES, size) for _ in range(3))

    def forward(self, x):
        weights = torch.softmax(self.gate(x), dim=-1)
        return (torch.stack([expert(x) for expert in self.experts]) * weights.unsqueeze(-1)).sum(dim=0)


@program(vector)
class HyperNetwork(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size, self.make = size, nn.Linear(FEATURES, FEATURES * size + size)

    def forward(self, x):
        made = self.make(x)
        weight, bias = made[: FEATURES * self.size].view(self.size, FEATURES), made[FEATURES * self.size :]
        return F.linear(x, weight, bias)


@program(vector)
class ParametersInDicts(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weights = nn.ParameterDict({k: nn.Parameter(torch.randn(FEATURES, FEATURES) / 3) for k in "abc"})

    def forward(self, x):
        for name in sorted(self.weights):
            x = torch.tanh(self.weights[name] @ x)
        return x


class Encoder(nn.Module):
    """What subclasses read out."""

    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(FEATURES, size)

    def encode(self, x):
        return F.leaky_relu(self.up(x))


@program(vector)
class Inherited(Encoder):
    def __init__(self, size):
        super().__init__(size)
        self.out = nn.Linear(size, LABELS)

    def encode(self, x):
        return super().encode(x) + 1

    def forward(self, x):
        return self.out(self.encode(x)).softmax(-1)


@program(picture)
class SpectralNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.conv = parametrizations.spectral_norm(nn.Conv2d(1, 4, 3))

    def forward(self, image):
        return F.elu(self.conv(image)).amax(dim=(1, 2))


@program(vector)
class WithoutGradients(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.teacher, self.student = nn.Linear(FEATURES, size), nn.Linear(FEATURES, size)

    def forward(self, x):
        with torch.no_grad():
            target = torch.tanh(self.teacher(x))
        return ((self.student(x) - target) ** 2).mean()


@program(vector)
class HighwayLayers(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"t": nn.Linear(8, 8), "h": nn.Linear(8, 8)}) for _ in range(3))
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        for layer in self.layers:
            t = torch.sigmoid(layer["t"](x))
            x = t * F.relu(layer["h"](self.drop(x))) + (1 - t) * x
        return x


class Gated(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class CausalBlock(nn.Module):
    """Attention of a batch by views, under a mask kept in a buffer; a feed-forward part in a lambda on self."""

    def __init__(self, size, heads=4, longest=16):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList([nn.LayerNorm(size), nn.LayerNorm(size)])
        self.mix, self.back = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.register_buffer("mask", torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest))
        parts = self.parts = nn.ModuleDict(
            {"up": nn.Linear(size, 2 * size), "act": Gated(), "down": nn.Linear(2 * size, size)}
        )
        self.feed = lambda x: parts.down(parts.act(parts["up"](x)))

    def attend(self, x):
        batch, length, size = x.size()
        q, k, v = self.mix(x).split(size, dim=2)
        q, k, v = (y.view(batch, length, self.heads, size // self.heads).transpose(1, 2) for y in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        mixed = F.softmax(scores, dim=-1) @ v
        return self.back(mixed.transpose(1, 2).contiguous().view(batch, length, size))

    def forward(self, x):
        x = x + self.attend(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


def batch_of_one(rng):
    """Word numbers, (1, n)."""
    return torch.tensor([sentence(rng)])


@program(batch_of_one, in_double=False)  # its lambda holds modules that a copy does not
class CausalLanguageModel(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, size), nn.Embedding(16, size)
        self.blocks, self.norm = nn.ModuleList([CausalBlock(size) for _ in range(2)]), nn.LayerNorm(size)
        self.head = nn.Linear(size, VOCAB, bias=False)

    def forward(self, ids):
        length = ids.size(1)
        assert length <= 16, f"a text of {length} words"
        places = torch.arange(0, length, dtype=torch.long, device=ids.device).unsqueeze(0)
        x = self.words(ids) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
