"""What is cut, filled up or read by another instance's length does otherwise where that is the shorter: against eager
PyTorch, gradients too, whichever length is the longer."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from rowparity import HIDDEN, VOCAB, model_of_text, of_model
from torch import nn

TEXT = """
import torch
from torch import nn


class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.up = nn.Embedding({vocab}, {hidden}), nn.Linear({hidden}, {hidden})

    def forward(self, instance):
{body}
"""
ORDERS = """
        a, b, c = instance
        h, g, f = torch.tanh(self.up(self.words(a))), torch.sin(self.up(self.words(b))), self.words(c)
        n, m = len(h), len(g)
        return {result}
"""
LISTS = """
        words, lists = instance
        h, found = {rows}, []
        for numbers in lists:
            x = h[{index}]
            {change}
            found.append(torch.tanh(self.up(x.sum(0))) + h[{index}].sum(0))
        return torch.stack(found).sum(0) + h.sum(0)
"""
RESULTS = {
    "filled up to the longest": "nn.utils.rnn.pad_sequence([h, g]).sum((0, 1))",
    "of three": "nn.utils.rnn.pad_sequence([h, g, f], batch_first=True).cumsum(1).mean((0, 1))",
    "behind the first m": "h[m:].sum(0)",
    "three columns of these": "h[m:, :3].sum()",
    "columns by the number of rows": "h[:, :n].sum() + torch.relu(g).t()[m:].sum()",
    "columns of the first m": "h[:m, 1:][:, :m].sum()",
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


def made(body: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    text = TEXT.format(vocab=VOCAB, hidden=HIDDEN, body=body.strip("\n"))
    return model_of_text(text, folder, monkeypatch).double()


@pytest.mark.parametrize("name", RESULTS)
def test_either_length_may_be_the_longer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_model(made(ORDERS.format(result=RESULTS[name]), tmp_path, monkeypatch), lists, rounds=1)


def neighbours(rng: Random) -> tuple[torch.Tensor, list[list[int]]]:
    """Words, and lists of their numbers, some counted from the end."""
    count = rng.randint(1, 6)
    words = torch.tensor([rng.randrange(VOCAB) for _ in range(count)])
    return words, [[rng.randrange(-count, count) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 4))]


@pytest.mark.parametrize("index", ["numbers", "torch.tensor(numbers)", "words >= words[numbers[0]]"])
def test_rows_by_numbers_and_masks_are_copies(index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = LISTS.format(rows="torch.tanh(self.up(self.words(words)))", index=index, change="x[0] = x[-1] * 2")
    net = of_model(made(body, tmp_path, monkeypatch), neighbours)
    for numbers in ([3], [-4]):
        with pytest.raises(IndexError, match=r"out of (range|bounds)"):
            net([(torch.tensor([1, 2, 3]), [numbers])])


@pytest.mark.parametrize("bounds", ["numbers[0] :", ": len(numbers) + 1", "1 : 3"])
def test_slices_of_rows_are_views(bounds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = LISTS.format(rows="self.up(self.words(words))", index=bounds, change="x *= 2")
    of_model(made(body, tmp_path, monkeypatch), neighbours)
