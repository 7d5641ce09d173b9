"""Rows, slices and elements: operands with an offset, of no type's business."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from gradients import gradients, random_loss, require_equal, require_equal_gradients
from helpers import bound, counts, graph_of, require_parity, same_graph
from torch import nn

import edbc
from edbc.capture.captured.structurecache import StructureCache
from edbc.run.backend import NAMES
from edbc.run.cuda.cudabackend import CudaBackend
from edbc.train.trainer import Trainer

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
        sizes = [1, 2, 9, 40, *Random(number).sample(range(1, 41), 1)]
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
@pytest.mark.parametrize("backend", ["reference", "cpu", "a device's torch path"])
def test_mixed_programs_on_every_back_end(backend: str, seed: int) -> None:
    """Values and gradients where ways of taking rows are mixed, with segments computed again and without."""
    model = model_of(SOURCES[seed], takes_of(seed)).double()
    given = instances_of([1, 4, 9, 17, 40], seed, torch.float64)
    taken: Any = backend if backend in NAMES else CudaBackend(torch.device("cpu"), use_triton=False)
    for recompute in (None, 3):
        net = bound(model, given, backend=taken, recompute=recompute)
        require_equal_gradients(net, given)


class Written(nn.Module):
    """Rows that change in place, and rows taken before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        matrix = self.linear(rows)
        first, last = matrix[0], matrix[-1]
        before = first * 2
        matrix[0] += last
        matrix[len(rows) // 2, 1:3] *= 3
        return torch.cat([before, first, last, matrix[len(rows) // 2]])


class Detached(nn.Module):
    """Rows that gradients do not pass, in three ways, beside one that they do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        matrix = torch.tanh(self.linear(rows))
        with torch.no_grad():
            without = matrix[0] + self.linear(rows)[-1]
        return without * matrix.detach()[-1] * matrix[0].detach() + matrix[len(rows) // 2]


class LookedUpWithout(nn.Module):
    """Rows of a table, seen in another shape, first without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        words = self.words(torch.arange(len(rows)) % 8).unsqueeze(1)
        with torch.no_grad():
            first = words[0] * rows[:1]
        flat = words[-1] + words[len(rows) // 2] * first
        return torch.cat([flat, words.detach()[0] * words[0], words.squeeze(1)[0:2].view(-1, 1, WIDTH)[-1]])


class Returned(nn.Module):
    """Excerpts as results: floats, elements, integers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> dict[str, Any]:
        matrix = torch.tanh(self.linear(rows))
        order = matrix.argsort(1)
        return {
            "row": matrix[-1], "element": matrix[0, 2], "some": matrix[:2], "all": list(matrix), "order": order[-1],
            "best": matrix[-1].max(0), "half": matrix.to(torch.bfloat16)[-1], "is": (matrix > 0)[0, 1:4],
        }  # fmt: skip


class Gates(nn.Module):
    """A cell's gates in a function: slices of one vector, sizes said in code."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(WIDTH, dtype=rows.dtype)
        for row in rows:
            gates = self.linear(row + h)
            z, r = torch.sigmoid(gates[:WIDTH]), torch.sigmoid(gates[WIDTH : 2 * WIDTH])
            h = z * h + (1 - z) * torch.tanh(gates[2 * WIDTH :] * r)
        return h


class OneRow(nn.Module):
    """A look-up of one row, by a tensor, seen in another shape before anything is computed of it; and as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.linear = nn.Embedding(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> Any:
        word = torch.tensor([rows.shape[0] % WIDTH]).add(0)
        heads = torch.tanh(self.linear(self.words(word).view(1, 4, WIDTH)) + rows[0])
        written_out = self.words(torch.tensor([rows.shape[0] % WIDTH])).view(1, 4, WIDTH)
        return heads, torch.relu(written_out), self.words(word) * 2, torch.relu(self.words(word)).view(4, WIDTH)


def rows_of(sizes: list[int], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Matrices of so many rows."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(n, WIDTH, generator=generator, dtype=dtype) for n in sizes]


@pytest.mark.parametrize("build", [Written, Detached, LookedUpWithout, Returned, Gates, OneRow])
def test_what_else_programs_do_with_rows(build: Callable[[], nn.Module]) -> None:
    """Changes in place, rows without gradients, rows as results, gates by slices: values and gradients as in eager,
    by native code and by torch's alone."""
    torch.manual_seed(0)
    model = build()
    require_parity(model, rows_of([1, 2, 3, 8, 9, 40]), (3, 6))
    model, given = model.double(), rows_of([1, 2, 3, 8, 9, 40], torch.float64)
    net = bound(model, given)
    ours = require_equal_gradients(net, given, tolerance=1e-2 if build is Returned else 1e-12)
    in_torch = gradients(model, random_loss(Trainer(net, native=False).run(given)))
    require_equal(ours, in_torch, 1e-2 if build is Returned else 1e-12)


def test_gradients_reach_the_matrices_of_instances() -> None:
    """The gradient of a tensor of the caller's, of which rows are taken."""

    class Sums(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            seen = rows * 1.0
            return seen[0] * 2 + seen[-1] * seen[len(rows) // 2, 3]

    model, ours, theirs = Sums(), rows_of([1, 4, 9]), rows_of([1, 4, 9])
    for tensor in (*ours, *theirs):
        tensor.requires_grad_()
    sum(r.sum() for r in bound(model, ours)(ours)).backward()  # type: ignore[union-attr]
    sum(model(t).sum() for t in theirs).backward()  # type: ignore[union-attr]
    for mine, eager in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        assert eager.grad is not None
        torch.testing.assert_close(mine.grad, eager.grad)


class Transitions(nn.Module):
    """A score of a path: elements of parameters by position."""

    def __init__(self) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.randn(5, 5))
        self.cube = nn.Parameter(torch.randn(3, 4, WIDTH))

    def forward(self, path: list[int]) -> torch.Tensor:
        score = torch.zeros((), dtype=self.cube.dtype)
        for a, b in itertools.pairwise(path):
            score = score + self.transitions[a, b] * self.cube[a % 3, b % 4 - 4].sum() + self.cube[0, -1, b]
        return score


def test_elements_of_parameters_are_looked_up() -> None:
    """`transitions[a, b]` is an operand: one type whatever the positions, gradients as in eager, torch's error."""
    torch.manual_seed(0)
    model, random = Transitions().double(), Random(0)
    paths = [[random.randrange(5) for _ in range(random.randint(2, 9))] for _ in range(20)]
    require_parity(model, paths, (5, 20))
    require_equal_gradients(bound(model, paths), paths)
    assert not any("[" in t.constants for t in graph_of(model, paths).types)
    with pytest.raises(IndexError, match="out of bounds for dimension 1 with size 5"):
        graph_of(model, [[1, 2, 5]])


def test_rows_out_of_bounds_raise_as_in_eager() -> None:
    """Also those of a length that other matrices have."""

    class Third(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return (rows * 2)[2] + 1

    for sizes in ([2], [3, 2], [9, 1]):
        with pytest.raises(IndexError, match=r"out of (bounds|range)"):
            graph_of(Third(), rows_of(sizes))


class Slots(nn.Module):
    """Slots that are looked up by lists of the instance's, each of its own."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.up, self.cell = way, nn.Linear(4, 6 * WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.words = nn.Embedding(6, WIDTH)

    def forward(self, instance: tuple[torch.Tensor, list[list[int]]]) -> torch.Tensor:
        slots = torch.tanh(self.up(instance[0])).view(6, WIDTH)
        h = slots[0]
        for places in instance[1]:
            if self.way == "pairs":
                taken = slots[places, places[::-1]].sum() * h
            elif self.way == "columns":
                taken = slots[:, places].mean(1)[:WIDTH] + slots[places, 1].sum()
            elif self.way == "words":
                taken = self.words(torch.tensor([5, 4, 3, 2, 1, 0]))[places].mean(0)
            else:
                taken = slots[places].mean(0)
            h = self.cell(taken[None], h[None])[0]
        return h


@pytest.mark.parametrize("way", ["rows", "pairs", "columns", "words"])
def test_lists_of_places_are_operands(way: str) -> None:
    """As constants each was a type, and more than 512 of them were refused."""
    torch.manual_seed(0)
    model, rng = Slots(way).double(), Random(0)
    instances = [
        (
            torch.randn(4).double(),
            [[rng.randint(-6, 5) for _ in range(rng.randint(1, 5))] for _ in range(rng.randint(1, 40))],
        )
        for _ in range(40)
    ]
    require_parity(model, instances, (1, 40))
    require_equal_gradients(bound(model, instances[:9]), instances[:9])
    assert len(graph_of(model, instances).types) < 40
    with pytest.raises(IndexError, match="out of bounds"):
        bound(model, instances[:2])([(instances[0][0], [[1, 6]])])


def test_views_inside_cells_stay_views() -> None:
    """A cell has no excerpt: its sizes are the model's, and slices of its variables cost nothing."""
    cell = edbc.cell(nn.GRUCell(WIDTH, WIDTH))

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            h = torch.zeros(1, WIDTH)
            for row in rows:
                h = self.cell(row.unsqueeze(0), h)
            return h

    assert not any(t.is_excerpt for t in graph_of(Chain().eval(), rows_of([2, 3])).types)


def test_structures_that_repeat_know_their_offsets() -> None:
    """A cached structure has its offsets in it; what instances bring beside it is asked for as before. The plan knows
    one size of matrices, so they are no ragged values, of whose rows nothing is an excerpt."""
    model = model_of("linear", ("x[i]",))
    given = instances_of([4, 4, 7], 5)
    given = [(words, rows, [1, 0, 3]) for words, rows, _ in given]
    cache = StructureCache(lambda instance: len(instance[0]), None, verify=True)
    net = bound(model, given[:1])
    net.cache = cache
    one, other = (net.mini_batch([given[0], given[2]]).graph for _ in range(2))
    assert same_graph(one, other)
    assert counts(one)["excerpt"] == 6
    assert cache.hits == cache.checked == 2


MASKED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "two dimensions": lambda h, m: h[m].sum(0),
    "all dimensions": lambda h, m: h[m.unsqueeze(-1).expand(h.shape)].square().sum(),
    "the second": lambda h, m: h[:, m[0]].sum(1),
    "masked_select": lambda h, m: torch.masked_select(h, m.unsqueeze(-1)).square().sum(),
    "a larger mask": lambda h, m: torch.masked_select(h, m.expand(3, -1).unsqueeze(-1)).square().sum(),
    "numbers of it": lambda h, m: h[0][m[0].nonzero().flatten()].sum(0),
    "of none in some": lambda h, m: h[m & (m.sum() > 2)].sum(0),
    "bytes": lambda h, m: h[0][m[0].byte()].sum(0),
    "bytes of the second": lambda h, m: h[:, m[0].byte()].sum(1),
    "bytes of two dimensions": lambda h, m: h[m.byte()].sum(0),
    "an array": lambda h, m: h[m.numpy()].sum(0),
    "a list": lambda h, m: h[0][m[0].tolist()].sum(0),
}


class Masks(nn.Module):
    """What an instance's mask shows of recorded numbers."""

    def __init__(self, taken: str) -> None:
        super().__init__()
        self.words, self.taken = nn.Embedding(9, 4), MASKED[taken]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.taken(torch.tanh(self.words(ids)), ids > 2)


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("taken", MASKED)
def test_masks_of_the_instance_are_not_read(taken: str, rows: bool) -> None:
    """Of any dimensions they are numbers: nobody waits for a value."""
    torch.manual_seed(0)
    model, rng = Masks(taken).eval(), Random(0)
    batch = lambda: [torch.tensor([[rng.randrange(9) for _ in range(rng.randint(2, 6))]]) for _ in range(5)]  # noqa: E731
    net = bound(model, batch(), rows=rows)
    for _ in range(3):
        instances, found = batch(), []
        for run in (net, lambda ids: [model(x) for x in ids]):
            results = run(instances)
            model.zero_grad()
            torch.stack([x.square().sum() for x in results]).sum().backward()
            found.append((results, model.words.weight.grad.clone()))  # type: ignore[union-attr]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


COUNTS: dict[str, Callable[[Any, Any], Any]] = {
    "x[:n]": lambda x, n: x[:n],
    "x[:n, :]": lambda x, n: x[:n, :],
    "x[n - 1:]": lambda x, n: x[n - 1 :],
    "x[n - 1:n + 1]": lambda x, n: x[n - 1 : n + 1],
    "x[::n]": lambda x, n: x[::n],
    "columns": lambda x, n: x[:, :n].sum(1, keepdim=True),
    "one number": lambda x, n: x[: n.view(1)],
    "assigned": lambda x, n: _cut(x, n),
    "range": lambda x, n: x[range(n)],
    "recorded": lambda x, n: x[: x.sum(1).argmax() + n],
    "new_zeros": lambda x, n: torch.cat([x, x.new_zeros(n, WIDTH)]).mean(0),
    "new_full": lambda x, n: x.new_full([n, WIDTH], 2.0).sum(0) + x,
    "full_like": lambda x, n: torch.full_like(x, n) + x,
}


def _cut(x: Any, n: Any) -> Any:
    x = x.clone()
    x[n:] = 0.0
    return x


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_in_a_tensor_is_the_instances_own(name: str) -> None:
    """A bound of a slice, or how many rows are new: two instances of one class have others."""

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, WIDTH)

        def forward(self, ids: torch.Tensor) -> Any:
            return COUNTS[name](torch.tanh(self.words(ids)), (ids != 0).sum()).sum(0)

    sentences = [torch.tensor([*range(1, 1 + n), *[0] * (5 - n)]) for n in (4, 1, 2, 5, 3, 1)]
    torch.manual_seed(0)
    require_parity(Counted(), sentences, (1, 3, 6))
