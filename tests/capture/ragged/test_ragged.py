"""Ragged values: rows of every length in one batch, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import bound
from hypothesis import given, settings
from hypothesis import strategies as st
from rowparity import HIDDEN, VOCAB, graph, of_model, require_eager, sentence
from torch import nn

from edbc.capture.ragged.value import varying


class Sentences(nn.Module):
    """Row-wise functions, a softmax over n, and three reductions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.norm, self.score = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 1)

    def forward(self, ids: list[int]) -> Any:
        h = self.words(torch.tensor(ids))
        h = self.norm(F.gelu(self.hidden(h)) + h) * 0.5
        weights = self.score(h).softmax(0)
        return torch.cat([h.mean(0), h.max(0).values, (weights * h).sum(0), h.softmax(-1).amin(0)])


class Messages(nn.Module):
    """Message passing by index."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.message = nn.Linear(3, HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)
        self.update = nn.GRUCell(HIDDEN, HIDDEN)

    def forward(self, graph: Any) -> Any:
        x, (source, target) = graph
        h = torch.relu(self.up(x))
        for _ in range(2):
            message = torch.tanh(self.message(torch.cat([h[source], h.index_select(0, target)], dim=-1)))
            h = self.update(torch.zeros(len(x), HIDDEN).index_add(0, target, message), h)
        return h.sum(0)


class InPlace(Messages):
    """Rows added to in place."""

    def forward(self, graph: Any) -> Any:
        x, (source, target) = graph
        h = self.up(x)
        total = torch.zeros(len(x), HIDDEN)
        total.index_add_(0, target, h[source])
        other = h.new_zeros(len(x), HIDDEN)
        other.scatter_add_(0, source.unsqueeze(-1).expand(-1, HIDDEN), h[target])
        kept = torch.zeros_like(h)
        for i in range(len(x)):
            kept[i] = h[i] * 2
        return (total + other + kept).sum(0)


def test_types_are_those_of_rows_whatever_the_lengths_are() -> None:
    """No type of a sentence model has a size of more than the row's, and other lengths make no further type."""
    net = of_model(Sentences(), sentence)
    assert f"f32[n,{HIDDEN}]" in net.plan.ragged
    types = len(net.table.types)
    net([[1] * length for length in (2, 13, 40, 41)])
    assert len(net.table.types) == types == len(net.plan.types)


class Spans(Sentences):
    """Means of spans, joined as rows of one, and scored over all."""

    def forward(self, ids: list[int]) -> Any:
        x = self.words(torch.tensor(ids))
        spans = torch.cat([x[i : i + 2].mean(0, keepdim=True) for i in range(len(ids))], dim=0)
        return (self.score(spans).softmax(0) * torch.tanh(self.hidden(spans))).sum(0)


def test_results_with_a_dimension_of_one_join_to_rows() -> None:
    """A view that puts the dimension before what was computed made the joined tensor a type per length."""
    net = of_model(Spans(), sentence)
    types = len(net.table.types)
    net([[1] * length for length in (2, 13, 40, 41)])
    assert len(net.table.types) == types


def test_messages_batch_over_graphs_of_all_sizes() -> None:
    """A graph network has as many types as it has kinds of operations."""
    types = of_model(Messages(), graph).plan.types
    assert len([t for t in types if not t.signature.startswith("graph(")]) <= 8


class OfManyRows(Sentences):
    """A call of more arguments than the first registers are for."""

    def forward(self, ids: list[int]) -> Any:
        h = self.words(torch.tensor(ids))
        return torch.stack([h * (1 + number) for number in range(90)]).amax(0).sum(0)


def test_a_call_may_have_many_arguments() -> None:
    """One run of a program of 90 arguments."""
    of_model(OfManyRows(), sentence, 1)


def test_rows_may_be_added_to_in_place() -> None:
    """`index_add_`, `scatter_add_` and writing of rows into tensors that forward has made."""
    of_model(InPlace(), graph)


def function_of(compute: Callable[..., Any]) -> nn.Module:
    """A model of a row-wise layer and a function of its result."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.up = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, 6)

        def forward(self, ids: list[int]) -> Any:
            return compute(self.up(self.words(torch.tensor(ids, dtype=torch.int64))), len(ids))

    torch.manual_seed(0)
    return Model()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "slices": lambda h, n: (h[1:].sum(0), h[:-1].sum(0), h[::2].sum(0), h[-1], h[0]),
    "columns": lambda h, n: (h[:, 0].sum(0), h[:, 1:3].mean(0), h[..., None].sum(0), h[:, [2, 0]].sum(0)),
    "rows by list": lambda h, n: h[[0, -1, 0]].sum(0),
    "rows by mask": lambda h, n: h[torch.arange(n) % 2 == 0].sum(0),
    "elements": lambda h, n: h[torch.arange(n), torch.arange(n) % 6].sum(),
    "cat": lambda h, n: (torch.cat([h, h.flip(0)]).cumsum(0)[-1], torch.cat([h, h * 2], 1).sum(0)),
    "stack": lambda h, n: (torch.stack([h, h + 1]).sum((0, 1)), torch.stack(list(h)).mean(0)),
    "shapes": lambda h, n: (h.view(n, 2, 3).transpose(1, 2).reshape(n, -1).sum(0), h.unsqueeze(0).sum(1).squeeze(0)),
    "permuted": lambda h, n: (h.t().sum(1), h.view(n, 2, 3).permute(1, 0, 2).mean(1), h.T @ h),
    "chunks": lambda h, n: [part.sum(0) for part in h.chunk(2, -1)] + [part.sum(0) for part in h.split(2)],
    "expanded": lambda h, n: (h[:, :1].expand(-1, 6) + h).sum(0),
    "over all": lambda h, n: (h.sum(), h.mean(), h.mean((0, 1)), h.max(), h.logsumexp(0)),
    "of nothing but infinity": lambda h, n: torch.cat([h, h.new_full((n, 2), float("-inf"))], 1).logsumexp(0).exp(),
    "along n": lambda h, n: (h.softmax(0).amax(0), h.log_softmax(0).amax(0), h.cumsum(0).mean(0)),
    "products": lambda h, n: (h @ torch.ones(6, 2)).sum(0) + (torch.ones(2, n) @ h).sum(),
    "repeats": lambda h, n: (h.repeat_interleave(2, 0).sum(0), h.roll(1, 0)[0], h.repeat(2, 1).mean(0)),
    "whole": lambda h, n: h,
    "kept dimension": lambda h, n: h - h.mean(0, keepdim=True) + h.sum(0),
    "shifted": lambda h, n: (h[1:] - h[:-1]).sum(0),
    "indices": lambda h, n: (h.max(0)[0], h[h.detach().sum(1).argmax()]),
    "by reduction": lambda h, n: torch.zeros(3, 6).scatter_reduce(
        0, (torch.arange(n) % 3).unsqueeze(1).expand(n, 6), h, "amax", include_self=False
    ),
    "of constants": lambda h, n: (h * torch.arange(n).float().unsqueeze(1)).sum(0) + (h + torch.ones(n, 6)).sum(0),
    "where": lambda h, n: torch.where(h > 0, h, h * 0.1).masked_fill(h > 1, 1.0).clamp(-1, 1).sum(0),
    "norms": lambda h, n: (F.normalize(h, dim=1).sum(0), h.norm(dim=-1).sum(0), F.cosine_similarity(h, h + 1).sum(0)),
    "branches": lambda h, n: h.sum(0) if h.shape[0] > 3 else h.mean(0),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_rows_give_eager_numbers_and_gradients(name: str) -> None:
    """Forward and backward, for sentences from one word on."""
    of_model(function_of(FUNCTIONS[name]), sentence, rounds=1)


def test_what_is_of_each_row_stays_rows() -> None:
    """Norms by any of their names, and what only asks."""
    model = function_of(
        lambda h, n: torch.linalg.norm(h, dim=1).sum() + torch.linalg.vector_norm(h, dim=-1).amax() * h.ndimension()
    )
    assert not any("stack" in kind.name for kind in of_model(model, sentence, rounds=1).plan.types)


@settings(max_examples=4, deadline=None)
@given(st.data())
def test_random_chains_of_ragged_functions_give_eager_numbers(data: st.DataObject) -> None:
    """Functions that keep (n, 6) or rename rows, one after the other, then a reduction."""
    steps: list[Callable[[Any, int], Any]] = [
        lambda h, n: torch.tanh(h) * h, lambda h, n: h.flip(0), lambda h, n: h - h.mean(0), lambda h, n: h.softmax(0),
        lambda h, n: torch.cat([h[1:], h[:1]]), lambda h, n: h.view(len(h), 3, 2).transpose(1, 2).flatten(1),
        lambda h, n: h[torch.arange(len(h)) // 2],
        lambda h, n: h + torch.zeros_like(h).index_add(0, torch.arange(len(h)) // 3, h),
        lambda h, n: h * h.sum(-1, keepdim=True), lambda h, n: torch.cat([h, h])[: len(h)],
    ]  # fmt: skip
    chosen = data.draw(st.lists(st.sampled_from(steps), min_size=1, max_size=5))

    def compute(h: Any, n: int) -> Any:
        for step in chosen:
            h = step(h, n)
        return h.sum(0), h.amax(0)

    of_model(function_of(compute), sentence, rounds=1)


def test_sizes_from_none_to_thousands() -> None:
    """No word, one word, and a sentence of 20,000."""
    model = function_of(lambda h, n: torch.tanh(h).sum(0))
    net = of_model(model, sentence, rounds=1)
    require_eager(net, model, [[], [3], [i % VOCAB for i in range(20_000)], []], 1e-3)
    require_eager(net, model, [[]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_ragged_values_of_other_dtypes(dtype: torch.dtype) -> None:
    """float64 to its precision, bfloat16 to its own."""
    model = Sentences().to(dtype).eval()
    rng = Random(1)
    net = bound(model, [sentence(rng) for _ in range(5)], rows=True)
    require_eager(net, model, [sentence(rng) for _ in range(5)], 1e-10 if dtype is torch.float64 else 0.1)


def test_what_no_rule_knows_is_taken_whole_and_told() -> None:
    """A function of whole matrices falls back to a type per size; the recorder tells its name and line."""
    model = function_of(lambda h, n: F.pad(h, (0, 0, 1, 1)).sum(0))
    net = of_model(model, sentence, rounds=1)
    assert len(net.plan.types) > 4


def test_a_size_that_is_the_same_everywhere_stays_a_number() -> None:
    """Four words in every instance: nothing is ragged."""
    net = bound(Sentences().eval(), [[1, 2, 3, 4], [5, 6, 7, 8]], rows=True)
    assert net.plan.ragged == ()


def test_a_class_varies_where_tensors_of_no_other_do() -> None:
    """Two sizes of one class may be of two tensors that never change: here the fourth is made by forward."""
    shapes = [(4, 1, 1), (7, 1, 1), (2, 1, 1), (4, 1, 32)]
    sizes = {(torch.float32, shape): {0, 1, 2} for shape in shapes}
    assert varying(sizes) == ("f32[n,1,1]",)
    assert varying(sizes | {(torch.float32, (4, 1, 5)): {0, 1, 2}}) == ("f32[4,1,n]", "f32[n,1,1]")
    assert varying({(torch.float32, (4, 1)): {0, 1}, (torch.float64, (3, 1)): {0, 1}}) == ()


class SentAlongEdges(nn.Module):
    """Rows of two by HIDDEN, sent along the edges of a graph, of which there may be none."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, 2 * HIDDEN)

    def forward(self, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        ids, edges = data
        h = self.words(ids).view(-1, 2, HIDDEN)
        sent = h[edges[0]]
        return torch.zeros_like(h).scatter_add(0, edges[1].view(-1, 1, 1).expand_as(sent), sent).sum(0)


def test_a_graph_without_edges_is_sent_no_rows() -> None:
    """Rows of several dimensions are sent by an index of no rows, too."""
    graphs = [(torch.arange(n), torch.tensor([[0, n - 1], [1, 0]])[:, : n % 3].contiguous()) for n in range(2, 8)]
    model = SentAlongEdges().eval()
    require_eager(bound(model, graphs, rows=True), model, graphs)
