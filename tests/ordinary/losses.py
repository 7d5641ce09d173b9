"""Losses inside forward, of numbers and of labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ordinary.data import FEATURES, LABELS, VOCAB, classified, labelled_sentence, sentence, two_vectors, vector
from ordinary.registry import program


def network(size: int, outputs: int) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(FEATURES, size), nn.Tanh(), nn.Linear(size, outputs))


@program(classified)
class CrossEntropy(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net, self.loss = network(size, LABELS), nn.CrossEntropyLoss()

    def forward(self, item):
        return self.loss(self.net(item["x"]).unsqueeze(0), torch.tensor([item["y"]]))


@program(sentence)
class FrequentWordsFirst(nn.Module):
    """An adaptive softmax, whose module of torch's looks at the targets."""

    def __init__(self, size):
        super().__init__()
        self.words, self.loss = nn.Embedding(VOCAB, size), nn.AdaptiveLogSoftmaxWithLoss(size, VOCAB, [4, 12])

    def forward(self, words):
        words = torch.tensor([*words, 0])
        return self.loss(self.words(words[:-1]), words[1:]).loss


@program(classified)
class LossAndLogits(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net = network(size, LABELS)

    def forward(self, item):
        logits = self.net(item["x"])
        return {"logits": logits, "loss": -F.log_softmax(logits, dim=-1)[item["y"]]}


@program(classified)
class BinaryTargets(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net = network(size, LABELS)

    def forward(self, item):
        target = F.one_hot(torch.tensor(item["y"]), LABELS).to(item["x"].dtype)
        return F.binary_cross_entropy_with_logits(self.net(item["x"]), target)


@program(two_vectors)
class Contrastive(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net = network(size, size)

    def forward(self, pair):
        a, b = map(self.net, pair)
        return 1 - F.cosine_similarity(a, b, dim=0)


@program(two_vectors)
class Triplet(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net = network(size, size)

    def forward(self, pair):
        a, b = self.net(pair[0]), self.net(pair[1])
        near, far = (a - b).pow(2).sum(), (a + b).pow(2).sum()
        return F.relu(near - far + 1.0)


@program(vector)
class Autoencoder(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.encode, self.decode = nn.Linear(FEATURES, size), nn.Linear(size, FEATURES)

    def forward(self, x):
        return F.mse_loss(self.decode(F.gelu(self.encode(x))), x)


@program(two_vectors)
class Divergence(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net = network(size, LABELS)

    def forward(self, pair):
        p, q = (F.log_softmax(self.net(x), dim=-1) for x in pair)
        return F.kl_div(p, q, reduction="sum", log_target=True)


@program(classified)
class Focal(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net = network(size, LABELS)

    def forward(self, item):
        p = torch.softmax(self.net(item["x"]), dim=0)[item["y"]]
        return -((1 - p) ** 2) * torch.log(p + 1e-6)


@program(labelled_sentence)
class SummedOverWords(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words, self.out = nn.Embedding(50, size), nn.Linear(size, LABELS)

    def forward(self, item):
        losses = []
        for word, label in zip(*item, strict=True):
            logits = self.out(self.words(torch.tensor([word])))
            losses.append(F.nll_loss(F.log_softmax(logits, dim=1), torch.tensor([label])))
        return torch.stack(losses).sum()


@program(classified)
class SmoothedLabels(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net = network(size, LABELS)

    def forward(self, item):
        target = torch.full((LABELS,), 0.1 / (LABELS - 1))
        target[item["y"]] = 0.9
        return -(target * torch.log_softmax(self.net(item["x"]), 0)).sum()


@program(vector)
class GaussianLikelihood(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net = network(size, 2 * FEATURES)

    def forward(self, x):
        mean, log_variance = self.net(x).chunk(2)
        return 0.5 * (log_variance + (x - mean) ** 2 / log_variance.exp()).sum()


TAGS = {"first": 0, "inner": 1, "none": 2}


def tagged(rng):
    words = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 6))]
    return torch.tensor(words), torch.tensor([rng.randrange(len(TAGS)) for _ in words])


def log_of_sum(scores):
    top = scores[0, scores.max(1)[1].item()]
    return top + (scores - top.view(1, 1).expand_as(scores)).exp().sum().log()


@program(tagged)
class TagAfterTag(nn.Module):
    """A chain of tags that is normalised one tag after the other, shifted by the largest score, which is read."""

    def __init__(self, size):
        super().__init__()
        self.tags, self.words = dict(TAGS), nn.Embedding(VOCAB, size)
        self.states, self.out = nn.LSTM(size, size // 2, bidirectional=True), nn.Linear(size, len(TAGS))
        self.follows = nn.Parameter(torch.randn(len(TAGS), len(TAGS)))

    def all_ways(self, scores):
        seen = torch.full((1, len(self.tags)), -100.0)
        seen[0][self.tags["none"]] = 0.0
        for here in scores:
            ways = [
                log_of_sum(seen + self.follows[t].view(1, -1) + here[t].view(1, 1)).view(1) for t in range(len(here))
            ]
            seen = torch.cat(ways).view(1, -1)
        return log_of_sum(seen)

    def forward(self, sentence):
        words, tags = sentence
        scores = self.out(self.states(self.words(words).view(len(words), 1, -1))[0].view(len(words), -1))
        tags = torch.cat([torch.tensor([self.tags["none"]]), tags])
        gold = torch.zeros(1)
        for i, here in enumerate(scores):
            gold = gold + self.follows[tags[i + 1], tags[i]] + here[tags[i + 1]]
        return self.all_ways(scores) - gold
