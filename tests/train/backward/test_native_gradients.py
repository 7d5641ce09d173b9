"""Native gradients against recomputation under autograd: every operation of the table, both widths, random cells."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bound import RandomTreeModel, net_for, poison, random_trees
from gradients import gradients, random_loss, require_equal, tensors
from helpers import bound
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import edbc
from edbc.base.operations import OPERATIONS as TABLE
from edbc.cells.values.evaluate import MAPS
from edbc.run.session import Net
from edbc.tools.parity import Parity
from edbc.train.backward import nativebackward as native
from edbc.train.backward.backtables import REDUCTIONS
from edbc.train.backward.backwalk import walk_back
from edbc.train.backward.typeadjoint import Adjoint
from edbc.train.trainer import Trainer

pytestmark = pytest.mark.compiled


def both_ways(net: Net, instances: list[Any], tolerance: float = 1e-12) -> None:
    """Gradients in native code and by recomputation agree, whatever stood in memory before."""
    native = gradients(net.model, random_loss(net.trainer.run(instances)))
    pool: Any = net.trainer.pool
    for buffer in pool._idle:
        buffer[: len(buffer) // 8 * 8].view(torch.float64)[:] = math.nan
    poison(net)
    again = gradients(net.model, random_loss(net.trainer.run(instances)))
    in_torch = gradients(net.model, random_loss(Trainer(net, native=False).run(instances)))

    require_equal(native, in_torch, tolerance)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(native.values(), again.values(), strict=True))


@settings(derandomize=True, deadline=None, max_examples=8)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1, 4, 19]))
def test_random_cells(seed: int, size: int) -> None:
    """Whatever a cell's memory order, products of products, peepholes and repeated outputs."""
    instances = random_trees(seed, 5)
    net = net_for(RandomTreeModel(seed, size), instances)
    both_ways(net, instances, 1e-11)

    assert any(isinstance(net.trainer.adjoint(kind), Adjoint) for kind in range(net.table.num_known))


def _within(name: str) -> Callable[..., Tensor]:
    """torch's function where it has a slope: of numbers above 0.5 where others have no result."""
    function = MAPS[name]
    above = {"log": (0,), "log1p": (0,), "sqrt": (0,), "reciprocal": (0,), "div": (1,), "pow": (0,)}.get(name, ())
    scale = 12 if name == "softplus" else 1
    return lambda *xs: function(*(x * x + 0.5 if k in above else scale * x for k, x in enumerate(xs)))


OPERATIONS = {name: (_within(name), operation.operands) for name, operation in TABLE.items()}
WORDS = [[1, 2, 3], [4, 4, 0, 8], [5]]


@edbc.cell
class Cell(nn.Module):
    """One operation between two products, with numbers and a parameter among the operands."""

    def __init__(self, operation: Callable[..., Tensor], operands: int):
        super().__init__()
        self.operation = operation
        self.operands = operands
        self.first = nn.ModuleList(nn.Linear(7, 7) for _ in range(operands))
        self.last = nn.Linear(7, 7)
        self.scale = nn.Parameter(torch.randn(7))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values = [linear(x) for linear in self.first]
        y = self.operation(*values)
        z = self.operation(*(2 * v + self.scale for v in values)) * self.scale
        same = self.operation(*([x] * self.operands))
        return self.last(y + 0.5 - z), same


class OneCell(nn.Module):
    def __init__(self, operation: Callable[..., Tensor], operands: int):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(9, 7)
        self.cell = Cell(operation, operands)

    def forward(self, words: list[int]) -> list[Tensor]:
        states = [self.cell(self.table.weight[word]) for word in words]
        return [sum(h for h, _ in states), *(s for _, s in states)]  # type: ignore[list-item]


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    """Each operation's gradient is torch's in float64, ties and kinks included, and by the parity rule in float32."""
    model = OneCell(*OPERATIONS[name])  # type: ignore[arg-type]
    with torch.no_grad():
        model.table.weight[0] = 0.0
    net = bound(model.double(), WORDS)
    both_ways(net, WORDS)
    assert net.trainer.adjoint(0) is not None
    wide = copy.deepcopy(model.float()).double()
    ours = gradients(model, random_loss(bound(model, WORDS)(WORDS)))
    theirs = gradients(model, random_loss([model(words) for words in WORDS]))
    exact = gradients(wide, random_loss([wide(words) for words in WORDS]))
    for parameter, reference in exact.items():
        assert reference is not None
        error, eager = ((g[parameter] - reference).abs().max() for g in (ours, theirs))  # type: ignore[operator]
        assert error <= 4 * eager + 2e-6 * reference.abs().max(), parameter


class Matrices(nn.Module):
    """Products of a node's own matrices and vectors: with a vector, of two, of a concatenation, of a parameter, of a
    product, and one matrix used on both sides."""

    def __init__(self, size: int):
        super().__init__()
        torch.manual_seed(1)
        self.vectors, self.matrices = nn.Embedding(9, size), nn.Parameter(torch.randn(9, size, size))
        self.merge = edbc.cell(Merge(size))

    def forward(self, words: list[int]) -> list[Tensor]:
        pairs = [(self.vectors.weight[w], self.matrices[w]) for w in words]
        while len(pairs) > 1:
            pairs[:2] = [self.merge(*pairs[0], *pairs[1])]
        return list(pairs[0])


class Merge(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.w = nn.Linear(2 * size, size)
        self.m = nn.Parameter(torch.randn(size, 2 * size) / size)

    def forward(self, a: Tensor, ma: Tensor, b: Tensor, mb: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.tanh(self.w(torch.cat([ma @ b, mb @ a])))
        m = self.m @ torch.cat([ma, mb])
        return x, torch.tanh(m @ (ma @ mb) + m + mb @ mb)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_matrices_of_nodes(size: int) -> None:
    """Products of two recorded values, as MV-RNN has them, are differentiated natively and equal eager's."""
    model = Matrices(size).double()
    net = bound(model, WORDS)
    both_ways(net, WORDS)
    kinds = [kind for kind in range(net.table.num_known) if "cell" in net.table.types[kind].signature]  # type: ignore[union-attr]
    assert kinds
    assert all(net.trainer.adjoint(kind) is not None for kind in kinds)
    eager = gradients(model, random_loss([model(words) for words in WORDS]))
    require_equal(gradients(model, random_loss(net(WORDS))), eager)


class Extremes(nn.Module):
    """Reductions over the items of a node, of two fields, with equal items."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.table = nn.Embedding(9, 5)
        self.last = nn.Linear(5, 5)
        with torch.no_grad():
            self.table.weight[5:8] = self.table.weight[2:5]

    def forward(self, words: list[int]) -> list[Tensor]:
        rows = torch.stack([self.last(self.table.weight[word]) for word in words])
        return [self.last(rows.amax(0)), rows.amin(0), rows.mean(0), rows.sum(0), rows.max(0)[0], rows.min(0).values]


def test_reductions() -> None:
    """Maxima, minima, means and sums over any number of items, equal ones sharing the gradient as in torch.amax, or
    the first of them having it alone, as in torch.max along a dimension; natively, and by torch."""
    model, words = Extremes().double(), [[1, 2, 3], [4, 4, 0, 8], [5], [7, 7], [7, 4, 1, 4], [3, 6, 2, 5, 5], [6, 3]]
    net = bound(model, words)
    both_ways(net, words)
    assert {t.op for t in net.table.types if t is not None and t.variadic} == set(REDUCTIONS)
    eager = gradients(model, random_loss([model(x) for x in words]))
    require_equal(gradients(model, random_loss(net(words))), eager)


def test_a_kept_graph_keeps_what_was_saved() -> None:
    """Deltas overwrite what the forward pass saved only when the graph is not kept."""
    instances = random_trees(3, 4)
    net = net_for(RandomTreeModel(3, 5), instances)
    loss = random_loss(net(instances))
    parameters = list(net.model.parameters())
    runs = [torch.autograd.grad(loss, parameters, retain_graph=n < 2, allow_unused=True) for n in range(3)]

    for other in runs[1:]:
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


def test_one_call_walks_the_reverse_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of batches: sums and cells of one element type are one native call."""
    instances = random_trees(2, 6)
    net = net_for(RandomTreeModel(2, 5), instances)
    calls: list[int] = []
    monkeypatch.setattr(native, "walk_back", lambda *args: (calls.append(args[1]), walk_back(*args)))
    prepared = net.prepare(instances)
    random_loss(net(instances)).backward()

    assert prepared.schedule.num_batches > 4
    assert calls == [prepared.schedule.num_batches]


def test_gates_are_overwritten() -> None:
    """A backward pass that does not keep the graph takes less memory, by what the forward pass saved."""
    taken: list[int] = []
    for keeps in (False, True):
        net = bound(Sequence().double(), WORDS)
        random_loss(net(WORDS)).backward(retain_graph=keeps)
        (buffer,) = net.trainer.pool._idle
        taken.append(buffer.numel())
    gates = sum(map(len, WORDS)) * 4 * 16 * 8

    assert taken[1] - taken[0] == gates


class Sequence(nn.Module):
    """The last state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(9, 16)
        self.cell = edbc.cell(nn.LSTMCell(16, 16))
        self.register_buffer("zero", torch.zeros(16))

    def forward(self, words: list[int]) -> Tensor:
        h = c = self.zero
        for word in words:
            h, c = self.cell(self.table.weight[word], (h, c))
        return h


def test_an_lstm_saves_its_gates_alone() -> None:
    """Four gates a node; tanh(c), operands and outputs are read where they stand or computed again."""
    net = bound(Sequence(), WORDS)
    random_loss(net(WORDS)).backward()
    adjoints = [a for kind in range(net.table.num_known) if (a := net.trainer.adjoint(kind)) is not None]

    assert [(a.saved, a.kept) for a in adjoints] == [(4 * 16, 0)]


class Mixed(nn.Module):
    """Products and sums in float32, then in a short dtype, of recorded values, tables, parameters and data."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.low_table = nn.Embedding(9, 8), nn.Embedding(9, 8, padding_idx=1)
        self.wide, self.low, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.h0 = nn.Parameter(torch.randn(8))

    def shortened(self, dtype: torch.dtype) -> Mixed:
        for module in (self.low, self.low_table):
            module.to(dtype)
        self.h0.data = self.h0.data.to(dtype)
        return self

    def forward(self, instance: tuple[list[int], Tensor]) -> list[Tensor]:
        words, feature = instance
        dtype = self.h0.dtype
        h, found = self.h0, []
        for word in words:
            x = torch.tanh(self.wide(self.table.weight[word]))
            h = torch.tanh(self.low(x.to(dtype) + h) + self.low_table(torch.tensor(word)) * feature.to(dtype))
            found.append(self.last(h.to(self.last.weight.dtype)))
        return [sum(found), torch.stack(found).amax(0), h]  # type: ignore[list-item]


@pytest.mark.parametrize("recompute", [None, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_short_values_among_others(dtype: torch.dtype, recompute: int | None) -> None:
    """A model of two dtypes: float32 natively, the short one in torch, gradients by the parity rule; data too."""
    model = Mixed().shortened(dtype)
    twin = copy.deepcopy(model).double()
    kinds = dtype, dtype, torch.float64
    features = [[torch.full((8,), 0.5, dtype=d).requires_grad_() for _ in WORDS] for d in kinds]
    net = bound(model, list(zip(WORDS, features[0], strict=True)), recompute=recompute)
    parity, found = Parity(), []
    for run, data in zip((net, model, twin), features, strict=True):
        instances = list(zip(WORDS, data, strict=True))
        results = run(instances) if run is net else [run(instance) for instance in instances]
        loss = random_loss([{"all": [t.double() for t in tensors(results)]}])
        of_model = gradients(twin if run is twin else model, loss)
        found.append(of_model | {f"data {i}": x.grad for i, x in enumerate(data)})
    for name, (ours, eager, exact) in {n: [f[n] for f in found] for n in found[0]}.items():
        assert ours is not None
        parity.add({name: ours}, {name: eager}, {name: exact})
    parity.require()

    assert any(net.trainer.adjoint(kind) is not None for kind in range(net.table.num_known))


class OfSizes(nn.Module):
    """A type for each number of rows, all with the same weights, and a vector that a map reads."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.scale = nn.Linear(4, 3), nn.Parameter(torch.randn(3))

    def forward(self, rows: Tensor) -> Tensor:
        return F.layer_norm(self.up(rows) * self.scale, rows.shape[:1] + (3,)).square()


def test_types_with_the_same_weights_add_up_in_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each parameter, however many sizes there are."""
    made: list[native.NativeReversal] = []
    original = native.NativeReversal.run
    monkeypatch.setattr(native.NativeReversal, "run", lambda of, results: (made.append(of), original(of, results))[1])
    torch.manual_seed(0)
    model = OfSizes().double()
    instances = [torch.randn(n, 4, dtype=torch.double) for n in (2, 3, 5, 3, 4)]
    net = bound(model, instances, rows=None)
    found = gradients(model, random_loss(net(instances)))
    require_equal(found, gradients(model, random_loss([model(rows) for rows in instances])))
    (reversal,) = made
    parts = reversal.tables.parts
    assert sum(map(bool, parts.values())) >= 4
    added = [(part.ref, part.of_rows) for kind in reversal._weight_gradients for part in parts[kind]]
    assert len(added) == len({*added}) > 1


class Biased(torch.nn.Module):
    """A bias for many rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.up(x)).sum(0)


def test_sums_of_many_rows_round_as_little_as_torchs() -> None:
    """Of values and of a bias's gradient: one after the other they are off by 1e-6."""
    torch.manual_seed(0)
    model = Biased()
    rows = [torch.rand(n, 4) for n in (5, 9, 4000)]
    net = bound(model, rows[:2], "auto", rows=True)
    with torch.enable_grad():
        results = net(rows)
        results[2].sum().backward()
    exact, bias = copy.deepcopy(model).double(), model.up.bias.grad
    exact.zero_grad()
    wanted = exact(rows[2].double())
    wanted.sum().backward()
    torch.testing.assert_close(results[2].double(), wanted, rtol=7e-7, atol=0)
    torch.testing.assert_close(bias.double(), exact.up.bias.grad, rtol=7e-7, atol=0)
