"""Equal nodes run once in training too: gradients add up, and what differs for autograd or by chance stays apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bound import RandomTreeModel, net_for, random_trees
from gradients import gradients, random_loss, require_equal, require_equal_gradients, tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import edbc
from edbc.run.passes import share as rule
from edbc.run.session import Net

SIZE = 4


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "FEWEST", 1)
    monkeypatch.setattr(rule, "WORTHWHILE", 0)


def repeated(seed: int, words: int) -> list[Any]:
    """Trees of few words, two of them twice."""

    def renamed(tree: Any) -> Any:
        return tree % words if isinstance(tree, int) else tuple(map(renamed, tree))

    trees = list(map(renamed, random_trees(seed, 4)))
    return [*trees, trees[0], trees[1]]


@settings(derandomize=True, max_examples=8)
@given(seed=st.integers(0, 10_000), words=st.integers(1, 5), backend=st.sampled_from(["cpu", "reference"]))
def test_gradients_equal_eager(seed: int, words: int, backend: str) -> None:
    """Every parameter, None included, in float64, natively and by recomputation; twice the same bits."""
    trees = repeated(seed, words)
    net = net_for(RandomTreeModel(seed % 50, SIZE), trees, backend)
    assert net.shared(net.mini_batch(trees)).graph.num_nodes < net.mini_batch(trees).graph.num_nodes
    first = require_equal_gradients(net, trees)
    again = gradients(net.model, random_loss(net(trees)))
    require_equal(again, first, tolerance=0.0)


def test_a_loss_of_some_results_reaches_what_eager_reaches() -> None:
    """Of two equal instances one is in the loss; of another tree nothing is."""
    trees = [((1, 2), 1), (3, (1, 2)), ((1, 2), 1)]
    net = net_for(RandomTreeModel(5, SIZE), trees)

    def some(results: list[Any]) -> torch.Tensor:
        return random_loss(results[2:]) + results[0]["root"].sum() * 3

    require_equal_gradients(net, trees, some)


def test_results_of_equal_instances_change_apart() -> None:
    """In-place changes of one result leave the other and both gradients what they are in eager."""
    trees = [((1, 2), 1)] * 2
    net = net_for(RandomTreeModel(5, SIZE), trees)

    def changed(results: list[Any]) -> torch.Tensor:
        results[0]["logits"][0].mul_(2)
        assert not torch.equal(results[0]["logits"][0], results[1]["logits"][0])
        return random_loss(results)

    require_equal_gradients(net, trees, changed)


@edbc.cell
class Cell(nn.Module):
    """A linear layer with dropout."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)
        self.dropout = nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dropout(self.linear(x)))


class Words(nn.Module):
    """A cell at every word; those at even places without gradients."""

    def __init__(self, p: float = 0.0, detaches: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(9, SIZE)
        self.cell = Cell(p)
        self.detaches = detaches
        self.double()

    def forward(self, words: list[int]) -> list[torch.Tensor]:
        found = []
        for place, word in enumerate(words):
            with torch.set_grad_enabled(place % 2 == 1 or not self.detaches):
                found.append(self.cell(self.table.weight[word]))
        return found


SENTENCES = [[1, 1, 2, 1], [1, 2, 1, 1]]


def test_what_passes_no_gradient_is_equal_to_none_that_does() -> None:
    """Two words at two kinds of places are four nodes."""
    net = net_for(Words(detaches=True), SENTENCES)
    shared = net.shared(net.mini_batch(SENTENCES))

    assert shared.graph.num_nodes == 4
    assert shared.detached is not None
    assert shared.detached.tolist() == [True, False, True, False]
    require_equal_gradients(net, SENTENCES)


def test_random_numbers_are_never_equal() -> None:
    """With dropout every word draws a mask of its own; without, two words are two nodes."""
    for p, count in ((0.5, 8), (0.0, 2)):
        net = net_for(Words(p), SENTENCES)
        net.model.train(p > 0)
        in_mode: Net = net.in_mode()
        assert in_mode.shared(in_mode.mini_batch(SENTENCES)).graph.num_nodes == count
    masks = {tuple(row.tolist()) for row in tensors([net_for(Words(0.5), [[1] * 12]).model.train()([1] * 12)])}
    assert len(masks) > 2
