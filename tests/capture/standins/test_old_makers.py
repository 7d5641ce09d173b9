"""Code from before torch.empty: `.data` to read a parameter by, `x.new(sizes)` for a state that is then filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gradients import require_equal_gradients
from helpers import bound, captured, require_parity, seeded
from torch import nn

from edbc.errors import UnsupportedError

SIZE = 6


class OldRNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(9, SIZE), nn.GRUCell(SIZE, SIZE)

    def start(self) -> torch.Tensor:
        weight = next(self.parameters()).data
        return weight.new(1, SIZE).zero_()

    def forward(self, words: list[int]) -> Any:
        h = self.start()
        for word in words:
            h = self.cell(self.words(torch.tensor([word])), h)
        halves = h.new_empty(SIZE).fill_(0.5)
        return h * halves + h.data.sum(), h.new([1.0, 2.0]) * h[0, 0], h.new(torch.Size([2])).fill_(3.0) + h[0, :2]


class OldBuffers(nn.Module):
    """Filled row by row, of sizes as torch and NumPy say them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.up = nn.Embedding(9, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, words: torch.Tensor) -> Any:
        h, count = self.up(self.words(words)), np.array([len(words)])
        turned, whole = torch.FloatTensor(h.size()).zero_(), torch.zeros(len(count), max(count), SIZE)
        batch = torch.Tensor(len(count), count[0], h.size()[1]).zero_()
        turned[0] = h[-1]
        whole[0, : count[0]] = h
        batch[0, -1] = h[0]
        return (turned + h).sum(0), whole.amax(1), torch.tanh(batch)


class OldSum(OldBuffers):
    """Where words are rows, all of it is kept."""

    def forward(self, words: torch.Tensor) -> Any:
        h = self.up(self.words(words))
        return (torch.tanh(h) + torch.Tensor(h.size()).zero_() + torch.Tensor(len(words), SIZE).zero_()).sum(0)


class Assigned(nn.Module):
    def __init__(self, use: Any) -> None:
        super().__init__()
        self.linear, self.use = nn.Linear(SIZE, SIZE), use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self.linear(x))


def assigns(h: torch.Tensor) -> torch.Tensor:
    h.data = h * 2
    return h


def changes(h: torch.Tensor) -> torch.Tensor:
    h.data.mul_(2)
    return h


WORDS = [[i % 9] * (1 + i % 3) for i in range(32)]


def test_states_made_as_they_used_to_be() -> None:
    """Values and gradients as in eager: none passes through `.data`."""
    model = seeded(OldRNN)
    require_parity(model, WORDS)
    model = model.double()
    require_equal_gradients(bound(model, WORDS), WORDS, tolerance=1e-12)


def test_buffers_made_as_they_used_to_be() -> None:
    """Values as in eager, nothing refused, and no books."""
    net = require_parity(seeded(OldBuffers), [torch.tensor(words) for words in WORDS if words])

    assert not any(recorder.keeps_books for _, recorder in net._idle)


def test_zeros_that_are_zeroed_are_rows() -> None:
    """And forward is kept: it runs for few of many lengths."""
    model, instances = seeded(OldSum), [torch.arange(n) % 9 for n in (2, 5, 3, 4, 6, 7, 8)]
    net = bound(model, instances, "auto", rows=True)
    with torch.no_grad():
        for found, x in zip(net(instances), instances, strict=True):
            torch.testing.assert_close(found, model(x))
    assert max(recorder.kept_forwards for _, recorder in net._idle) == 1


@pytest.mark.parametrize(("use", "what"), [(assigns, "'.data' of a tensor was used"), (changes, ".detach()")])
def test_data_is_for_reading(use: Any, what: str) -> None:
    """What autograd would not see is refused, with the line."""
    with pytest.raises(UnsupportedError, match=r"test_old_makers.py:\d+") as error:
        bound(seeded(lambda: Assigned(use)), [torch.ones(SIZE)])
    assert what in str(error.value)


class Empty(nn.Module):
    """Elements of what was never filled, and that torch gives back as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, 1)

    def forward(self, x: torch.Tensor) -> Any:
        del [torch.full((1, 3), float(k)) for k in range(100)][:]  # memory that holds something
        scores = torch.empty(1, 3).float()
        before = scores.tolist()
        for k in range(3):
            scores[0, k] = self.linear(x * k)
        return torch.softmax(scores, 1), before


def test_what_memory_holds_by_chance_is_in_no_graph() -> None:
    """Recorded again, a tensor that was never filled is the same: zeros; with books of what shares memory too."""
    model, rows = seeded(Empty), [torch.full((SIZE,), float(i)) for i in range(4)]
    net = bound(model, rows)

    assert net.capture(rows[1]) == net.capture(rows[1])
    results = net(rows)
    assert all(before == [[0.0, 0.0, 0.0]] for _, before in results)
    for (ours, _), x in zip(results, rows, strict=True):  # what eager's memory held by chance is no number of anybody's
        torch.testing.assert_close(ours, model(x)[0])


class Sparse(nn.Module):
    """Adjacency and pooling of ones, in classes of sparse tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)

    def forward(self, edges: torch.Tensor) -> torch.Tensor:
        n = int(edges.max()) + 1
        near = torch.sparse.FloatTensor(edges, torch.ones(edges.shape[1]), torch.Size([n, n]))
        pool = torch.sparse.FloatTensor(torch.stack([torch.zeros(n).long(), torch.arange(n)]), torch.ones(n), (1, n))
        return torch.spmm(pool, torch.spmm(near, self.linear(torch.arange(n * SIZE).reshape(n, SIZE) / 9))).squeeze(0)


@pytest.mark.filterwarnings("ignore:torch.sparse.SparseTensor")
def test_classes_of_sparse_tensors_take_what_forward_makes() -> None:
    """They are no functions that record: ones and zeros are tensors there. Values and gradients."""
    edges = [torch.tensor([[i % 3, 1, 2 + i % 2], [0, 1, i % 3]]) for i in range(8)]
    model = seeded(Sparse)
    net = require_parity(model, edges, sizes=(1, 8))
    require_equal_gradients(net, edges, tolerance=1e-5)


class SparseByFunction(nn.Module):
    """The same by the function, where forward is recorded with books of who shares memory."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)

    def forward(self, edges: torch.Tensor) -> torch.Tensor:
        n = int(edges.max()) + 1
        near = torch.sparse_coo_tensor(indices=edges, values=torch.ones(edges.shape[1]), size=(n, n))
        h = self.linear(torch.arange(n * SIZE).reshape(n, SIZE) / 9)
        shown = h[:, 0]
        h[:, 0] += 1
        dense = torch.ones(2, n)
        dense[0] = 0
        return torch.cat([torch.sparse.mm(near, h), torch.sparse.mm(dense.to_sparse(), h), shown[None, :1] * h[:1]])


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_functions_of_sparse_tensors_take_what_forward_makes() -> None:
    """They take no stand-ins, and their results have no memory that views show. Values and gradients."""
    edges = [torch.tensor([[i % 3, 1, 2 + i % 2], [0, 1, i % 3]]) for i in range(8)]
    model = seeded(SparseByFunction)
    net = require_parity(model, edges, sizes=(1, 8))
    require_equal_gradients(net, edges, tolerance=1e-5)


class SparseOfRecorded(nn.Module):
    """Weights of edges that forward computes, in a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        edges = torch.arange(2).expand(2, 2)
        return torch.sparse.mm(torch.sparse_coo_tensor(edges, h[0, :2], (2, 2)), h)


def test_sparse_tensors_of_recorded_values_are_refused_with_what_to_write() -> None:
    """The message told of torch.tensor, which nobody had called."""
    with pytest.raises(UnsupportedError, match=r"'sparse_coo_tensor' of recorded values.*index_add"):
        captured(seeded(SparseOfRecorded), [torch.ones(2, SIZE)])
