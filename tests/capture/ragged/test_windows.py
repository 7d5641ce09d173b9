"""Convolution and pooling along a ragged dimension, and recurrent layers, against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rowparity import HIDDEN, VOCAB, of_model, sentence
from torch import nn


class Windows(nn.Module):
    """Borders, strides and dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, HIDDEN)
        self.first = nn.Conv1d(HIDDEN, 6, 3, padding=1)
        self.second = nn.Conv1d(6, 4, 2, stride=2, dilation=2, padding=2)

    def forward(self, ids: list[int]) -> Any:
        x = torch.relu(self.first(self.words(torch.tensor(ids)).t()[None]))
        y = self.second(x[0])
        return F.max_pool1d(x, 2, 1, 1)[0].sum(1), F.avg_pool1d(y, 3, 2, 1).sum(1), y.mean(-1)


class Steps(nn.Module):
    """A recurrent layer in one direction, of a sequence without a batch."""

    def __init__(self, layer: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(VOCAB, HIDDEN), layer(HIDDEN, 6, **options)

    def forward(self, ids: list[int]) -> Any:
        states, last = self.layer(self.words(torch.tensor(ids)))
        return states.mean(0), last[0].sum(0)


class Layers(Steps):
    """Two layers in both directions, whose first states are given."""

    def __init__(self, layer: type[nn.Module], **options: Any) -> None:
        super().__init__(layer, num_layers=2, bidirectional=True, **options)
        self.first = nn.Parameter(torch.randn(4, 1, 6))

    def forward(self, ids: list[int]) -> Any:
        first, batch = self.first, self.layer.batch_first
        given = (first, torch.zeros_like(first)) if type(self.layer) is nn.LSTM else first
        states, last = self.layer(self.words(torch.tensor(ids)).unsqueeze(0 if batch else 1), given)
        return states.squeeze(0 if batch else 1), last[0], last[-1]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    "make",
    [
        Windows,
        *(lambda kind=kind: Steps(kind) for kind in (nn.LSTM, nn.GRU, nn.RNN)),
        lambda: Steps(nn.LSTM, proj_size=2),
        lambda: Layers(nn.LSTM, batch_first=True),
        lambda: Layers(nn.GRU, bias=False),
    ],
)
def test_windows_and_steps_give_eager_numbers_and_gradients(make: Any) -> None:
    """Forward and backward, from one word on; no function takes rows whole."""
    torch.manual_seed(0)
    assert not of_model(make(), sentence, rounds=1).taken_whole()
