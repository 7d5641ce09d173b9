"""Parameters: functions of them, ties, attributes, parametrizations, and changes between mini-batches."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import bound, counts, graph_of, require_eager, require_parity, seeded
from test_structures import SIZE, Base, words
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import edbc
from edbc.errors import UnsupportedError


@edbc.cell
class Tied(nn.Module):
    """A cell with a parameter that belongs to another module too, a plain tensor, a buffer and a weight norm."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.shared = other
        self.normed = parametrizations.weight_norm(nn.Linear(SIZE, SIZE))
        self.plain = torch.randn(SIZE)
        self.register_buffer("kept", torch.randn(SIZE))
        self.table = nn.Parameter(torch.randn(3, SIZE, SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.shared.weight[:2], self.table[1][2:]])
        return torch.tanh(self.shared(x)) + self.normed(x) * self.plain + F.linear(x, both, self.kept.tanh())


class Model(Base):
    """Uses parameters between cells in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.tied = Tied(self.first)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.normed = parametrizations.weight_norm(nn.Linear(SIZE, 2))

    def forward(self, ids: list[int]) -> Any:
        joined = torch.cat([self.first.weight, self.tied.table.select(0, 0)])
        start = self.start.tanh() * self.scale
        h = self.tied(self.join(start, self.table.weight[ids[0]]))
        turned = F.linear(h, joined) * self.scale
        row = torch.stack([self.start, self.tied.plain])[ids[0] % 2]
        return [turned, h @ self.first.weight.t(), self.first.weight.T @ h + start, start, self.normed(h), row + h]


def test_parameters_in_every_role_equal_eager() -> None:
    """BUGS 1: derived, tied, viewed and parametrized parameters, plain tensors and buffers give eager's numbers."""
    require_parity(seeded(Model), words(32))


class Shown(Base):
    """Rows of a table that masks of the instance's show, in every way to write one, a mask of no dimensions too."""

    def forward(self, ids: list[int]) -> Any:
        shown = torch.zeros(len(self.table.weight), dtype=torch.bool)
        shown[ids] = True
        ways = [shown, shown.byte(), shown.numpy(), shown.byte().numpy(), shown.tolist()]
        return [self.table.weight[way].sum(0) for way in ways], self.start[shown[0].byte()].sum(0)


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_rows_that_a_mask_shows() -> None:
    """A mask of bytes is one of truth values."""
    require_parity(seeded(Shown), words(12))


class OfMatrices(Base):
    """A matrix and a number for each of none, few and many words."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices, self.numbers = nn.Parameter(torch.randn(3, SIZE, 2)), nn.Parameter(torch.randn(3))

    def forward(self, ids: list[int]) -> Any:
        kinds = torch.tensor([i % 3 for i in ids for _ in range(i % 3 * 40)], dtype=torch.int64)
        return self.matrices[kinds].mean((1, 2)).sum(), self.numbers[kinds].sum(), self.start.sum()


def test_tables_of_matrices_and_of_numbers() -> None:
    """Rows of what is no matrix are no embedding, which takes matrices alone."""
    require_parity(seeded(OfMatrices), [[0], [3, 6], [1], [2, 2, 1], [5, 4]])


def test_functions_of_parameters_are_no_nodes() -> None:
    """`torch.cat([W1, W2])` and `start.tanh()` are parameters by another name."""
    graph = graph_of(seeded(Model), words(3))

    assert not {"cat", "tanh", "stack"} & counts(graph).keys()


class Evolving(Base):
    """A matrix that is computed of others, one step after the other, as weights of a graph network over time."""

    def forward(self, ids: list[int]) -> Any:
        weight, h = self.join.left.weight, self.table.weight[ids[0]]
        for _ in range(3 + ids[0] % 2):
            update = torch.sigmoid(self.join.right.weight.matmul(weight) + self.start)
            weight = (1 - update) * weight + update * torch.tanh(weight)
            h = torch.tanh(weight @ h)
        return h


def test_plans_hold_what_is_computed_of_parameters_in_many_steps(tmp_path: Path) -> None:
    """The text of it would be longer than a name may be; two of one beginning are two."""
    model: Any = seeded(Evolving)
    edbc.compile(model, words(8), force=True).plan.save(tmp_path / "plan.yaml")
    net = edbc.compile(model, words(8), plan=tmp_path / "plan.yaml", force=True)
    require_eager(net, words(12))


CHANGES = {
    "optimiser step": lambda m: torch.optim.SGD(m.parameters(), lr=0.5).step(),
    "load_state_dict": lambda m: m.load_state_dict({k: v * 1.5 for k, v in m.state_dict().items()}),
    "data": lambda m: setattr(m.first.weight, "data", m.first.weight.data * 3),
    "in place": lambda m: [p.detach().mul_(1.5) for p in m.parameters()],
    "one of several that are joined": lambda m: m.tied.table.detach().mul_(2),
    "buffer": lambda m: m.tied.kept.add_(1),
    "plain tensor": lambda m: setattr(m.tied, "plain", m.tied.plain + 1),
    "replaced": lambda m: setattr(m, "scale", nn.Parameter(torch.tensor(2.0))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_between_mini_batches_are_seen(change: str) -> None:
    """After any change of a parameter's values the next mini-batch computes with them."""
    model: Any = seeded(Model)
    net = bound(model, words(8))
    before = net(words(8))
    if change == "optimiser step":
        sum(t.sum() for t in model(words(1)[0])).backward()

    CHANGES[change](model)

    after = net(words(8))
    for ids, ours, old in zip(words(8), after, before, strict=True):
        for a, b in zip(ours, model(ids), strict=True):
            torch.testing.assert_close(a, b.detach())
        assert any(not torch.equal(a, b) for a, b in zip(ours, old, strict=True))


def older_weight_norm(layer: nn.Module) -> nn.Module:
    """A hook makes the weight anew whenever the layer is called."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


class OfHooks(Base):
    def __init__(self) -> None:
        super().__init__()
        self.normed = older_weight_norm(nn.Linear(SIZE, SIZE))

    def forward(self, ids: list[int]) -> Any:
        h = self.start
        for i in ids:
            h = torch.tanh(self.normed(self.table.weight[i]) + h)
        return h


def test_weights_that_hooks_compute() -> None:
    """The older weight norm: a function of two parameters, with gradients, which may change between mini-batches."""
    require_parity(seeded(OfHooks), words(8), sizes=(1, 7))
    model: Any = seeded(OfHooks)
    net = bound(model, words(8))
    for ids, ours in zip(words(4), net(words(4)), strict=True):
        torch.testing.assert_close(ours, model(ids))
    sum(x.sum() for x in net(words(4))).backward()
    ours = [model.normed.weight_g.grad.clone(), model.normed.weight_v.grad.clone()]
    model.zero_grad()
    sum(model(ids).sum() for ids in words(4)).backward()
    for mine, theirs in zip(ours, [model.normed.weight_g.grad, model.normed.weight_v.grad], strict=True):
        torch.testing.assert_close(mine, theirs)
    model.normed.weight_g.data.mul_(3)
    torch.testing.assert_close(net(words(1))[0], model(words(1)[0]))


def test_hooks_that_compute_a_weight_inside_of_a_marked_cell_are_refused() -> None:
    """With what to use in their place."""
    model = seeded(Model)
    model.tied.normed = older_weight_norm(nn.Linear(SIZE, SIZE))
    with pytest.raises(UnsupportedError, match=r"'tied\.normed' has a hook.*parametrizations"):
        bound(model, words(8))


def test_an_unused_parameter_is_left_alone() -> None:
    """BUGS 5: a parameter that no output reaches disturbs nothing."""

    def forward(net: Any, ids: list[int]) -> Any:
        net.out(net.start)
        return net.join(net.start, net.table.weight[ids[0]])

    require_parity(seeded(Base, forward), words(8), sizes=(1, 7))


def test_shared_operands_from_inside_a_batch() -> None:
    """BUGS 1: one value computed in a batch and read by all nodes of a later one is read from its own row."""

    def forward(net: Any, ids: list[int]) -> Any:
        rows = [net.join(net.start, net.table.weight[i]) for i in range(6)]
        return [net.join(rows[ids[0] % 6], row) for row in rows]

    require_parity(seeded(Base, forward), words(14), sizes=(1, 7))


@pytest.mark.parametrize("numbers", [torch.tensor([]), torch.tensor([1.0, 2.0])])
def test_looking_up_what_are_no_integers(numbers: torch.Tensor) -> None:
    """Torch's error, as eager execution gives it: it was what comes of None in the next function."""
    model = seeded(lambda: nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2)))
    net = bound(model, [torch.tensor([1, 2]), torch.tensor([3])], cells="auto")
    with pytest.raises(RuntimeError, match="scalar types: Long, Int"):
        model(numbers)
    with pytest.raises(RuntimeError, match="scalar types: Long, Int"):
        net([numbers])


class CopiesItself(nn.Module):
    """Modules that forward copies: their parameters are no parameters of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE))
        self.table, self.out = nn.Embedding(5, SIZE), nn.Linear(SIZE, 2)

    def forward(self, ids: list[int]) -> torch.Tensor:
        inner, table = copy.deepcopy(self.inner), copy.deepcopy(self.table)
        h = sum(table(torch.tensor(i)) for i in ids) * self.table(torch.tensor(ids[0]))
        return self.out(inner(h) + next(inner.parameters()).sum() + self.inner[0](h))


def test_gradients_of_modules_that_forward_copies_stay_there() -> None:
    """As in eager execution; the model's layer had them, as its copy's calls were nodes of it."""
    model, batch = seeded(CopiesItself).double(), [[1, 2], [3], [4, 0, 1], [2, 2]]
    net = bound(model, batch, cells="auto")
    found = []
    for run in (lambda: [model(ids) for ids in batch], lambda: net(batch), lambda: net(batch)):
        model.zero_grad()
        results = torch.stack(run())
        results.square().sum().backward()
        found.append([results.detach(), *[p.grad for p in model.parameters()]])
    assert found[0][3] is None  # the second layer is read by copies alone
    for ours in found[1:]:
        torch.testing.assert_close(ours, found[0])
