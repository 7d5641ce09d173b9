"""Rows, slices and elements: operands with an offset, of no type's business."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from helpers import bound, counts, graph_of, require_parity
from torch import nn
from training.gradients import require_equal_gradients

from edbc.runtime.session import Net
from edbc.trace.values import Shared

WIDTH = 6
Take = Callable[[Any, int], Any]
"""Something of shape (WIDTH,) out of a matrix with rows of WIDTH, by a number from 0 to its rows - 1."""


def by_slices(x: Any, i: int) -> Any:
    """The end of a flat tensor's piece, by arithmetic on positions."""
    return x.reshape(-1)[WIDTH * i : WIDTH * (i + 1)]


def by_elements(x: Any, i: int) -> Any:
    """Every element by itself."""
    return torch.stack([x[i, j] for j in range(WIDTH)])


TAKES: dict[str, Take] = {
    "x[i]": lambda x, i: x[i],
    "x[-i]": lambda x, i: x[i - len(x)],
    "x[i:i+1]": lambda x, i: x[i : i + 1].squeeze(0),
    "x[i:i+2]": lambda x, i: (x[i : i + 2] if i + 1 < len(x) else torch.cat([x[i:], x[:1]])).sum(0),
    "flat": by_slices,
    "elements": by_elements,
    "x[i, j]": lambda x, i: x[i] * x[i, i % WIDTH],
    "x[i, a:b]": lambda x, i: torch.cat([x[i, :4], x[i, 4:]]),
    "select": lambda x, i: x.select(0, i),
    "narrow": lambda x, i: x.narrow(0, i, 1).view(-1),
    "unbind": lambda x, i: x.unbind()[i],
    "torch.unbind": lambda x, i: torch.unbind(x, 0)[i],
    "iterated": lambda x, i: list(x)[i],
    "unsqueezed": lambda x, i: x.unsqueeze(1)[i].squeeze(0),
    "viewed": lambda x, i: x.view(len(x), 1, WIDTH)[i, 0],
    "row of a row": lambda x, i: x.view(-1, 2, 3)[i].view(-1),
    "twice": lambda x, i: x[i:][0][:WIDTH],
    "by NumPy": lambda x, i: x[np.int64(i)],
    "batch of one": lambda x, i: x[i].view(1, -1).unsqueeze(0)[0, 0],
}
SOURCES = ("look-up", "embedding", "instance", "linear", "cell")


class Takes(nn.Module):
    """Takes what instances ask for of a matrix with as many rows as they have words."""

    def __init__(self, source: str, takes: tuple[str, ...]):
        super().__init__()
        self.words = nn.Embedding(12, WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.source, self.takes = source, takes

    def matrix(self, words: list[int], rows: torch.Tensor) -> Any:
        """The matrix, `(len(words), WIDTH)`."""
        if self.source == "instance":
            return torch.tanh(rows)
        looked_up = self.words(torch.tensor(words))
        if self.source == "look-up":
            return looked_up
        return self.linear(looked_up) if self.source == "linear" else torch.sigmoid(looked_up)

    def forward(self, instance: tuple[list[int], torch.Tensor, list[int]]) -> torch.Tensor:
        """A chain over the rows that are asked for."""
        words, rows, asked = instance
        matrix = self.matrix(words, rows)
        h = torch.zeros(WIDTH)
        for step, i in enumerate(asked):
            h = torch.tanh(self.linear(TAKES[self.takes[step % len(self.takes)]](matrix, i) + h))
        return h


def instances_of(sizes: list[int], seed: int, dtype: torch.dtype = torch.float32) -> list[Any]:
    """Matrices of these many rows, and which rows are asked for."""
    random, generator = Random(seed), torch.Generator().manual_seed(seed)
    return [
        ([random.randrange(12) for _ in range(n)], torch.randn(n, WIDTH, generator=generator, dtype=dtype),
         [random.randrange(n) for _ in range(random.randint(1, 5))])
        for n in sizes
    ]  # fmt: skip


def model_of(source: str, takes: tuple[str, ...]) -> Takes:
    """Seeded."""
    torch.manual_seed(3)
    return Takes(source, takes)


@pytest.mark.parametrize("name", TAKES)
def test_whatever_takes_rows_equals_eager(name: str) -> None:
    """Values and gradients of every way of taking rows, of matrices of 1 to 40 rows from wherever they come."""
    for number, source in enumerate(SOURCES[:4]):
        sizes = [1, 2, 3, 8, 9, 40, *Random(number).sample(range(1, 41), 3)]
        require_parity(model_of(source, (name,)), instances_of(sizes, number), (4, 9))
        model = model_of(source, (name,)).double()
        given = instances_of(sizes, number, torch.float64)
        require_equal_gradients(bound(model, given), given)


def takes_of(seed: int) -> tuple[str, ...]:
    """Several ways of taking rows, in one program."""
    return tuple(Random(seed).sample(sorted(TAKES), 4))


def consumers(model: nn.Module, instances: list[Any]) -> set[str]:
    """Signatures but of what makes a matrix as a whole."""
    graph = graph_of(model, instances)
    present = {t.signature for t, count in zip(graph.types, graph.counts().tolist(), strict=True) if count}
    return {s for s in present if s.startswith("excerpt") or not re.search(rf"-> f32\[\d+,{WIDTH}\]$", s)}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("seed", range(3))
def test_types_do_not_know_sizes_and_positions(source: str, seed: int) -> None:
    """Programs that take rows of matrices of 1 to 40 rows have the types of those that take some of 5 and 6."""
    takes = tuple(t for t in takes_of(seed) if t not in ("x[i:i+2]", "twice"))
    model = model_of(source, takes)
    few = consumers(model, instances_of([5, 6] * 8, seed))
    assert consumers(model, instances_of([*range(1, 41)] * 2, seed)) == few
    assert len(few) < 16


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_mixed_programs_on_every_back_end(backend: str, seed: int) -> None:
    """Values and gradients where ways of taking rows are mixed, with segments computed again and without."""
    model, given = model_of(SOURCES[seed], takes_of(seed)).double(), instances_of([1, 4, 9, 17, 40], seed, torch.float64)
    for recompute in (None, 3):
        net = bound(model, given, backend=backend, recompute=recompute)
        require_equal_gradients(net, given)
