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


class WindowsOfWords(nn.Module):
    """Kernels as wide as a word, and pooling over all that there is."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.words, self.channels = nn.Embedding(VOCAB, HIDDEN), channels
        self.first = nn.Conv2d(channels, 5, (3, HIDDEN), padding=(2, 0))
        self.second = nn.Conv2d(channels, 4, (2, HIDDEN), stride=(2, 1), padding=(3, 0), dilation=(2, 1), bias=False)
        self.one = nn.Conv2d(channels, 3, (1, HIDDEN))
        self.out = nn.Linear(12, 2)

    def forward(self, ids: list[int]) -> Any:
        h = self.words(torch.tensor(ids)).unsqueeze(0).unsqueeze(1)
        h = h.expand(-1, self.channels, -1, -1)
        x, y, z = [torch.tanh(layer(h)).squeeze(3) for layer in (self.first, self.second, self.one)]
        found = [F.max_pool1d(x, x.size(2)).squeeze(2), F.max_pool1d(y, kernel_size=y.shape[2]).squeeze(-1)]
        return self.out(torch.cat([*found, F.avg_pool1d(z, z.size(-1)).view(1, -1)], 1))


@pytest.mark.parametrize("channels", [1, 2])
def test_kernels_as_wide_as_words_are_functions_of_windows(channels: int) -> None:
    """Each forward is one run whatever its length, one that is shorter than another's windows too."""
    net = of_model(WindowsOfWords(channels), sentence)
    recorder = net._idle[0][1]
    assert recorder.ragged
    before = recorder.found_forwards
    net([[1, 2, 3], [4, 5, 6, 7, 8], [9] * 4])
    assert recorder.found_forwards == before + 3


def test_pooling_of_less_than_all_is_of_windows() -> None:
    """A number that is the length of one sentence is not that of another."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(VOCAB, HIDDEN)

        def forward(self, ids: list[int]) -> Any:
            h = self.words(torch.tensor(ids)).t().unsqueeze(0)
            return F.max_pool1d(h, 3, padding=1).sum(2), F.max_pool1d(h, h.size(2), 1).squeeze(2)

    of_model(Pooled(), sentence)


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
