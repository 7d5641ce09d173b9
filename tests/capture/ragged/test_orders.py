"""What is cut, filled up or read by another instance's length does otherwise where that is the shorter: against eager
PyTorch, gradients too, whichever length is the longer."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from rowparity import HIDDEN, VOCAB, model_of_text, of_model

TEXT = """
import torch
from torch import nn


class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.up = nn.Embedding({vocab}, {hidden}), nn.Linear({hidden}, {hidden})

    def forward(self, instance):
        a, b, c = instance
        h, g, f = torch.tanh(self.up(self.words(a))), torch.sin(self.up(self.words(b))), self.words(c)
        n, m = len(h), len(g)
        return {result}
"""
RESULTS = {
    "filled up to the longest": "nn.utils.rnn.pad_sequence([h, g]).sum((0, 1))",
    "of three": "nn.utils.rnn.pad_sequence([h, g, f], batch_first=True).cumsum(1).mean((0, 1))",
    "behind the first m": "h[m:].sum(0)",
    "n of m columns": "(h @ g.t())[:, :n].sum()",
    "three of m columns": "(h @ g.t())[:, :3].sum()",
    "of pairs": "(h[:, None] * g[None])[:m, :n].sum((0, 1))",
    "diagonal": "(h @ g.t()).diagonal().sum()",
    "second diagonal": "torch.diagonal(h @ g.t(), 1).sum()",
    "distances": "torch.cdist(h + 2, g - 2)[:m, :n].sum()",
}


def lists(rng: Random) -> list[torch.Tensor]:
    """Three lists of numbers, each as long as another now and then."""
    return [torch.tensor([rng.randrange(VOCAB) for _ in range(rng.randint(1, 6))]) for _ in range(3)]


@pytest.mark.parametrize("name", RESULTS)
def test_either_length_may_be_the_longer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT.format(vocab=VOCAB, hidden=HIDDEN, result=RESULTS[name])
    of_model(model_of_text(text, tmp_path, monkeypatch).double(), lists, rounds=1)


LISTS = """
import torch
from torch import nn


class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.up = nn.Embedding({vocab}, {hidden}), nn.Linear({hidden}, {hidden})

    def forward(self, instance):
        words, lists = instance
        h, found = torch.tanh(self.up(self.words(words))), []
        for numbers in lists:
            x = h[{index}]
            x[0] = x[-1] * 2
            found.append(torch.tanh(self.up(x.mean(0))) + h[{index}].sum(0))
        return torch.stack(found).sum(0) + h.sum(0)
"""


def neighbours(rng: Random) -> tuple[torch.Tensor, list[list[int]]]:
    """Words, and lists of their numbers, some counted from the end."""
    count = rng.randint(1, 6)
    words = torch.tensor([rng.randrange(VOCAB) for _ in range(count)])
    return words, [[rng.randrange(-count, count) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 4))]


@pytest.mark.parametrize("index", ["numbers", "torch.tensor(numbers)", "words >= words[numbers[0]]"])
def test_rows_by_numbers_and_masks_are_copies(index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of_text(LISTS.format(vocab=VOCAB, hidden=HIDDEN, index=index), tmp_path, monkeypatch).double()
    net = of_model(model, neighbours)
    for numbers in ([3], [-4]):
        with pytest.raises(IndexError, match=r"out of (range|bounds)"):
            net([(torch.tensor([1, 2, 3]), [numbers])])


@pytest.mark.parametrize("bounds", ["numbers[0] :", ": len(numbers) + 1", "1 : 3"])
def test_slices_of_rows_are_views(bounds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = LISTS.format(vocab=VOCAB, hidden=HIDDEN, index=bounds).replace("x[0] = x[-1] * 2", "x *= 2")
    text = text.replace("h, found = torch.tanh(self.up(self.words(words)))", "h, found = self.up(self.words(words))")
    of_model(model_of_text(text.replace("x.mean(0)", "x.sum(0)"), tmp_path, monkeypatch).double(), neighbours)
