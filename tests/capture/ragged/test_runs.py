"""Functions of whole runs: one type whatever n is, forward and backward, against eager PyTorch."""

from __future__ import annotations

import resource
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import bound
from rowparity import HIDDEN, VOCAB, of_model, require_eager, sentence
from torch import nn

from edbc.base.graph import Graph, NodeType, ValueClass
from edbc.base.kept import Kept
from edbc.capture.semantics.shapes import of_rows
from edbc.cells.rows import segmented
from edbc.errors import GraphError
from edbc.run.passes.placement import place
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import run

ROW = ValueClass((4,))


class OfRows(nn.Module):
    """A layer and a function of (n, 6); forward of the classes below is closed code, kept for all sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.up = nn.Embedding(VOCAB, 6), nn.Linear(6, 6)

    def rows(self, ids: list[int]) -> Any:
        return self.up(self.words(torch.tensor(ids)))


class Deviations(OfRows):
    """Of words, and of each row of a number of features."""

    def forward(self, ids: list[int]) -> Any:
        x = self.words(torch.tensor(ids))
        return x.std(0, correction=0), x[:, :1].expand(-1, 6).std(1)


@pytest.mark.parametrize("rows", [True, None])
def test_deviations_of_equal_numbers_have_no_slope(rows: bool | None) -> None:
    """They are exactly 0, as eager's: what rounding leaves of them would have one of any size."""
    torch.manual_seed(0)
    model = Deviations().eval()
    instances = [[word] * n for word, n in enumerate((2, 3, 5, 6, 7, 9, 13))]
    net = bound(model, instances, cells="auto", rows=rows)
    require_eager(net, model, instances)
    require_eager(net, model, [[word] * n for word, n in enumerate((13, 11, 5))])


class Cumulative(OfRows):
    def forward(self, ids: list[int]) -> Any:
        h = self.rows(ids)
        return (h.cumsum(0).flip(0) * 0.1).cumprod(0).sum(0), h.t().cumsum(1).sum(1), h.logcumsumexp(0).mean(0)


class Viewed(OfRows):
    def forward(self, ids: list[int]) -> Any:
        h = self.rows(ids).t().contiguous()
        return h.view(-1, 6).sort(1, descending=True)[0].cumsum(0), h.sort(1)[0].view(3, -1).sum(1)


class Sorted(OfRows):
    def forward(self, ids: list[int]) -> Any:
        values, indices = self.rows(ids).sort(0)
        return (values * torch.sigmoid(values.cumsum(0))).sum(0), indices.sum(0)


class Spread(OfRows):
    def forward(self, ids: list[int]) -> Any:
        h = self.rows(ids)
        return h.std(0, correction=0), h.norm(), h.quantile(0.3, 0), h.prod(0), F.adaptive_avg_pool1d(h.t(), 2)


class Attention(OfRows):
    def forward(self, ids: list[int]) -> Any:
        h = self.rows(ids)
        heads = [x.view(-1, 2, 3).transpose(0, 1) for x in (h, torch.tanh(h), h * 2)]
        plain = F.scaled_dot_product_attention(*heads).transpose(0, 1).flatten(1)
        causal = F.scaled_dot_product_attention(h[None], plain[None], h[None], is_causal=True)[0]
        return self.up(causal).sum(0) + plain.cumsum(0).mean(0)


@pytest.mark.parametrize("kind", [Cumulative, Sorted, Spread, Attention])
def test_runs_give_eager_numbers_and_gradients(kind: type[nn.Module]) -> None:
    """Forward and backward, in closed code that runs once for all sizes; no type has a length in it."""
    torch.manual_seed(0)
    net = of_model(kind(), sentence)
    before = len(net.table.types)
    require_eager(net, net.model, [[1] * length for length in (1, 17, 40)], 1e-4)
    assert len(net.table.types) == before
    assert not net.taken_whole()


@pytest.mark.parametrize("kind", [Cumulative, Attention])
def test_passes_find_nothing_wrong_with_runs(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """What must hold after each pass does: every value has a row of its own."""
    monkeypatch.setenv("EDBC_DEBUG", "1")
    rng = Random(2)
    net = bound(kind().eval(), [sentence(rng) for _ in range(5)], rows=True)
    require_eager(net, net.model, [sentence(rng) for _ in range(9)], 1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_runs_of_other_dtypes(dtype: torch.dtype) -> None:
    """float64 to its precision, bfloat16 to its own."""
    model, rng = Attention().to(dtype).eval(), Random(1)
    net = bound(model, [sentence(rng) for _ in range(5)], rows=True)
    require_eager(net, model, [sentence(rng) for _ in range(5)], 1e-10 if dtype is torch.float64 else 0.1)


def test_gradients_of_runs_where_the_schedule_is_cut() -> None:
    """Segments computed again have the same rows."""
    torch.manual_seed(0)
    model, rng = Cumulative().eval(), Random(3)
    net = bound(model, [sentence(rng) for _ in range(5)], rows=True, recompute=3)
    require_eager(net, model, [sentence(rng) for _ in range(7)], 1e-4)


def test_a_view_of_what_lies_otherwise_in_memory_is_a_copy() -> None:
    """Rows that eager has put side by side (`contiguous`) stand where they stood: `view` ended in torch's error."""
    of_model(Viewed(), sentence)


class CumulativeHeads(OfRows):
    def forward(self, ids: list[int]) -> Any:
        return self.rows(ids).view(-1, 2, 3).transpose(1, 2).logcumsumexp(0).sum(0)


def test_views_of_rows_are_taken_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of its nodes."""
    rng = Random(0)
    instances = [sentence(rng) for _ in range(12)]
    net = bound(CumulativeHeads(), instances, rows=True)
    calls: list[Any] = []
    require_eager(net, net.model, instances)
    monkeypatch.setattr(segmented, "of_rows", lambda view, rows: calls.append(view) or of_rows(view, rows))
    with torch.no_grad():
        net(instances)
    assert 0 < len(calls) < len(instances)


def test_a_function_is_loops_once_for_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one has compiled another one finds, forward and backward."""
    rng = Random(0)
    instances = [sentence(rng) for _ in range(5)]
    monkeypatch.setattr(segmented, "_LOOPS", Kept(10))
    made: list[Any] = []
    for name in ("forward_loops", "gradient_loops"):
        make = getattr(segmented, name)
        monkeypatch.setattr(segmented, name, lambda *args, name=name, make=make: made.append(name) or make(*args))
    for _ in range(2):
        model = CumulativeHeads()
        require_eager(bound(model, instances, rows=True), model, instances)
        assert made == ["forward_loops", "gradient_loops"]


def test_what_the_loss_does_not_use_of_a_run_has_no_part_in_gradients() -> None:
    """One row of a result is used, in one of several instances."""
    torch.manual_seed(0)
    model, rng = Cumulative().eval(), Random(4)
    net = bound(model, [sentence(rng) for _ in range(5)], rows=True)
    batch = [sentence(rng) for _ in range(4)]
    for number in range(3):
        wanted = torch.autograd.grad(model(batch[2])[number].sum(), list(model.parameters()))
        found = torch.autograd.grad(net(batch)[2][number].sum(), list(model.parameters()))
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def run_type(name: str = "run scan") -> NodeType:
    return NodeType(name.removeprefix("run "), name, (ROW,), (ROW,), variadic=True, segmented=True)


def test_items_of_a_segmented_type_have_rows_one_after_the_other() -> None:
    """Row `position + k` for output k, in the order of the nodes of a batch."""
    leaf = NodeType("leaf", "leaf", (ROW,), (ROW,))
    nodes: list[tuple[int, list[Any]]] = [(0, [-1 - e]) for e in range(5)]
    nodes += [(1, [0, 1, 2]), (1, [3, 4]), (0, [(5, 2)]), (1, [(6, 1), (5, 0)])]
    graph = Graph.build([leaf, run_type()], nodes, externals=[ROW] * 5).lint()
    assert graph.num_outputs().tolist() == [1, 1, 1, 1, 1, 3, 2, 1, 2]
    schedule = run(graph, Policy("critical"))
    placement = place(graph, schedule, np.zeros(0, np.int64))
    owner = np.repeat(np.arange(graph.num_nodes), graph.num_outputs())
    output = np.array([k for count in graph.num_outputs().tolist() for k in range(count)])
    rows = placement.value_rows(owner, output)
    assert len(set(rows.tolist())) == len(rows)
    assert rows.min() >= 5
    assert rows.max() < placement.class_rows[0]
    for v in (5, 6, 8):
        of_node = rows[owner == v]
        assert (np.diff(of_node) == 1).all()
    last = int(placement.batch_of[8])
    at = int(placement.start[last])
    wanted = placement.value_rows(np.array([6, 5]), np.array([1, 0]))
    assert placement.rows[at : at + 2].tolist() == wanted.tolist()


def test_an_output_beyond_a_nodes_items_is_refused() -> None:
    """A node of two items has two outputs."""
    with pytest.raises(GraphError, match="output 2 of node 0, which has 2"):
        Graph.build([run_type()], [(0, [-1, -2]), (0, [(0, 2)])], externals=[ROW] * 2).lint()


class Padded(OfRows):
    """Rows of two sentences, and windows that are as much longer than a sentence as the lengths are apart by which
    torch tells shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.near = nn.Embedding(20, 6), nn.Conv1d(6, 6, 7, groups=6)

    def forward(self, pair: tuple[list[int], list[int]]) -> Any:
        h, others = map(self.rows, pair)
        near = self.near(F.pad(h.T[None], (3, 3)))
        scores = F.pad(h @ others.T, (0, 0, 3, 3))
        return near.sum(2), scores.exp().sum(1).log().sum(0), scores.sum(0)


class OfAnothersDtype(Padded):
    """Rows of rows, and rows, cast as heads are."""

    def forward(self, pair: tuple[list[int], list[int]]) -> Any:
        h, others = map(self.rows, pair)
        heads = h.view(1, -1, 2, 3).transpose(1, 2)
        steps = torch.arange(len(h))
        apart = self.places(steps[:, None] - steps[None] + 9).to(heads)
        return heads.mean(2), apart.sum(0).mean(0), others.type_as(heads).sum(0)


@pytest.mark.parametrize("kind", [Padded, OfAnothersDtype])
def test_sizes_are_not_taken_for_others(kind: type[nn.Module]) -> None:
    """What is as long as some rows and 6 more is no other rows, and whose dtype counts is nothing to be as long as."""

    def pair(rng: Random) -> tuple[list[int], list[int]]:
        return sentence(rng), sentence(rng)

    torch.manual_seed(0)
    net = of_model(kind(), pair)
    require_eager(net, net.model, [pair(Random(seed)) for seed in range(20)])


class Large(nn.Module):
    """Whose shapes are asked at 10,007 rows, where pairs of them are 800 million numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, HIDDEN)

    def forward(self, words: list[int]) -> torch.Tensor:
        h = self.words(torch.tensor(words))
        return ((h[:, None] - h[None]) / 2).tanh().sum(1)[:, :5].sum() + torch.cdist(h, h).sum() / 3


def test_nothing_is_computed_of_sizes_that_no_instance_has() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    of_model(Large(), sentence, rounds=1)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 20)  # kilobytes
