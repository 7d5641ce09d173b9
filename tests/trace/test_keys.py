"""Calls that repeat an earlier one on other values are found by their key, and are told from those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import bound, require_parity, seeded
from torch import Tensor, nn

from edbc.trace.recorder import Recorder

SIZE = 4
INFINITE = float("inf")


class Model(nn.Module):
    """One call on the row of a word."""

    def __init__(self, call: Callable[..., Any]):
        super().__init__()
        self.table, self.out = nn.Embedding(6, SIZE), nn.Linear(SIZE, SIZE)
        self.call = call

    def forward(self, word: int) -> Tensor:
        return self.call(self, torch.tanh(self.table.weight[word]), word)


CALLS: dict[str, Callable[..., Any]] = {
    "a number of many": lambda m, h, w: h * (0.1 + w) + h * 2.5,
    "zeros": lambda m, h, w: torch.where(h > 0.0, h, -0.0) + h * 0.0,
    "signs of zero": lambda m, h, w: torch.copysign(h, torch.where(h > 5, h, 0.0 if w % 2 else -0.0)),
    "infinity": lambda m, h, w: torch.softmax(h.masked_fill(torch.tensor([True, False, False, w > 2]), -INFINITE), 0),
    "indices given": lambda m, h, w: h[torch.tensor([w % 4, 0])] + h.index_select(0, torch.tensor([1, w % 3])),
    "one index": lambda m, h, w: m.out(m.table(torch.tensor([w]))) + h,
    "rows": lambda m, h, w: m.out(m.table(torch.tensor([w, 0]))).sum(0) + m.table(torch.tensor([w, 1])).mean(0) * h,
    "targets": lambda m, h, w: F.cross_entropy(h.unsqueeze(0), torch.tensor([w % SIZE])) + h,
    "added at indices": lambda m, h, w: torch.zeros(3).index_add(0, torch.tensor([0, w % 3]), h[:2]),
}


@pytest.mark.parametrize("name", CALLS)
def test_values_equal_eager(name: str) -> None:
    """Whatever is part of a key and what is an operand."""
    require_parity(seeded(Model, CALLS[name]), list(range(6)) * 3)


@pytest.mark.parametrize("name", CALLS)
def test_what_was_seen_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of a third mini-batch is described anew."""
    net = bound(seeded(Model, CALLS[name]), list(range(6)))
    described: list[str] = []
    describe = Recorder.describe

    def noted(self: Recorder, tree: Any, *rest: Any, **options: Any) -> Any:
        described.append(str(tree)[:80])
        return describe(self, tree, *rest, **options)

    with torch.no_grad():
        for _ in range(2):
            net(list(range(6)))
        monkeypatch.setattr(Recorder, "describe", noted)
        net(list(range(6)))

    assert described == []
