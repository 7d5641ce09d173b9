"""What a plan does with one mini-batch, timed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import Halting, bound
from torch import nn

from edbc.run.session import Net
from edbc.tools.explain.observe import REPEATS, observe


class Words(nn.Module):
    """Words of which many are equal: sharing makes other batches."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 3), nn.Linear(3, 2)

    def forward(self, word: int) -> torch.Tensor:
        return self.out(torch.tanh(self.table.weight[word]))


def test_what_is_timed_has_run_before_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more run than is timed, all of one kind: equal nodes run one by one."""
    left_out, counts = [], []

    def prepare(net: Net, *arguments: Any, **options: Any) -> Any:
        left_out.append(options["without"])
        return plain(net, *arguments, **options)

    def executing(net: Net, prepared: Any, *more: Any) -> Any:
        counts.append(prepared.capture.graph.num_nodes)
        return begun(net, prepared, *more)

    plain, begun = Net.prepare, Net.executing
    monkeypatch.setattr(Net, "prepare", prepare)
    monkeypatch.setattr(Net, "executing", executing)
    observed = observe(bound(Words(), [1, 2]), [1, 1, 1, 2], "four")

    assert set(left_out) == {("share",)}
    assert counts == [observed.num_nodes] * (REPEATS + 1)
    assert observed.execution_seconds > observed.loading_seconds > 0


def test_figures_of_one_segment_say_so() -> None:
    """Of a mini-batch that reads values the largest segment is counted: the source of the figures tells it."""
    observed = observe(bound(Halting(), [1, 2]), [3, 4, 2], "three")
    assert observed.source == "the largest of 5 segments of three"
    assert any("building and scheduling are of all segments" in line for line in observed.reads)
