"""Ragged dimensions that are not the first one: batches of one, channels first, heads."""

from __future__ import annotations

import math
import pickle
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import counts
from rowparity import HIDDEN, VOCAB, of_model, require_eager, sentence
from torch import nn

HEADS = 2


def points(rng: Random) -> torch.Tensor:
    """A batch of one set."""
    count = rng.randint(1, 9)
    return torch.tensor([rng.gauss(0, 1) for _ in range(3 * count)]).view(1, count, 3)


def statistics(norm: nn.BatchNorm1d) -> nn.BatchNorm1d:
    """As training leaves them."""
    nn.init.uniform_(norm.running_mean)  # type: ignore[arg-type]
    nn.init.uniform_(norm.running_var, 0.5, 2)  # type: ignore[arg-type]
    return norm


class SetAttention(nn.Module):
    """Attention of heads that were cut out by `split` and put side by side by `cat` (Lee et al., "Set Transformer",
    2019), of a set to itself, of learned points to it and of it to them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, HIDDEN), nn.Linear(HIDDEN, 2)
        self.query, self.key, self.value = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.inducing = nn.Parameter(torch.randn(1, 3, HIDDEN))

    def attend(self, of: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        parts = self.query(of), self.key(to), self.value(to)
        query, key, value = (torch.cat(x.split(HIDDEN // HEADS, 2), 0) for x in parts)
        weights = torch.softmax(query.bmm(key.transpose(1, 2)) / math.sqrt(HIDDEN), 2)
        return torch.cat((query + weights.bmm(value)).split(of.size(0), 0), 2)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.up(x)
        few = self.attend(self.inducing.repeat(x.size(0), 1, 1), x)
        return self.down(self.attend(self.attend(x, few), x)).sum(1)


class Heads(nn.Module):
    """Weights of each head as one parameter, scores scaled from the left, and batch norm of all rows (Kool et al.,
    "Attention, Learn to Solve Routing Problems!", 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(3, HIDDEN), statistics(nn.BatchNorm1d(HIDDEN))
        self.weights = nn.ParameterList([torch.randn(HEADS, HIDDEN, HIDDEN // HEADS) / 3 for _ in range(3)])
        self.out = nn.Parameter(torch.randn(HEADS, HIDDEN // HEADS, HIDDEN) / 3)

    def forward(self, x: torch.Tensor) -> Any:
        count = x.size(1)
        h = self.up(x.view(-1, 3)).view(1, count, -1)
        flat = h.contiguous().view(-1, HIDDEN)
        query, key, value = (torch.matmul(flat, w).view(HEADS, 1, count, -1) for w in self.weights)
        heads = torch.matmul(torch.softmax(0.5 * torch.matmul(query, key.transpose(2, 3)), dim=-1), value)
        mixed = torch.mm(heads.permute(1, 2, 0, 3).contiguous().view(-1, HIDDEN), self.out.view(-1, HIDDEN))
        h = h + mixed.view(1, count, HIDDEN)
        h = self.norm(h.view(-1, HIDDEN)).view(*h.size())
        return h, h.mean(dim=1)


class Channels(nn.Module):
    """Channels before positions."""

    def __init__(self) -> None:
        super().__init__()
        self.window, self.norm = nn.Conv1d(3, HIDDEN, 3, padding=1), statistics(nn.BatchNorm1d(HIDDEN))

    def forward(self, x: torch.Tensor) -> Any:
        h = self.window(x.transpose(1, 2))
        rows = self.norm(h.transpose(1, 2).squeeze(0))
        return torch.relu(rows).amax(0), torch.max(self.norm(h), 2, keepdim=True)[0].view(-1, HIDDEN)


class FirstOfTwo(nn.Module):
    """Rows of what is no batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, HIDDEN)

    def forward(self, x: torch.Tensor) -> Any:
        return self.up(torch.cat([x, x]).view(2, -1, 3)[0]).tanh().mean(0), self.up(x.view(-1, 3)).sum(0)


@pytest.mark.parametrize("model", [SetAttention, Heads, Channels, FirstOfTwo])
def test_they_are_rows_as_the_first_one_is(model: type[nn.Module]) -> None:
    """A batch of one has as few types as the rows alone, whatever their number."""
    torch.manual_seed(0)
    net = of_model(model(), points)
    assert "f32[1,n,3]" in net.plan.ragged
    before = len(net.table.types)
    net([torch.randn(1, count, 3) for count in (12, 13, 17)])
    assert all(new.op == "torch.stack" for new in net.table.types[before:])  # results


class Queries(nn.Module):
    """One query of rows and of batches of them, and functions with their defaults and by position."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.query = nn.Linear(3, HIDDEN), nn.Parameter(torch.randn(HIDDEN))
        self.norm = statistics(nn.BatchNorm1d(HIDDEN))

    def forward(self, x: torch.Tensor) -> Any:
        h = self.up(x[0])
        scores, batched = self.query @ h.T, torch.matmul(self.query, h[None].transpose(1, 2))
        rows = F.batch_norm(h, self.norm.running_mean, self.norm.running_var)
        mean, variance = self.norm.running_mean, self.norm.running_var
        rows = rows + torch.batch_norm(h, self.query, None, mean, variance, False, 0.1, 1e-5, False)
        weights = torch.softmax(h @ h.T, 1, torch.float64)
        return scores.softmax(0) @ rows, batched.softmax(-1).amax(-1), (weights @ h.double()).sum(0)


def test_a_query_alone_and_functions_with_their_defaults() -> None:
    """Of a vector and columns there are numbers."""
    torch.manual_seed(0)
    of_model(Queries(), points)


def test_channels_may_come_first() -> None:
    """`f32[3,n]`."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.window = nn.Conv1d(3, HIDDEN, 3, padding=1)

        def forward(self, x: torch.Tensor) -> Any:
            return F.relu(self.window(x)).mean(-1)

    assert of_model(Model(), lambda rng: points(rng)[0].T.contiguous()).plan.ragged == ("f32[3,n]",)


class Matrices(nn.Module):
    """Products with the model's matrices, on either side, of rows and columns, with batches of one and of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, HIDDEN)
        self.flat, self.one = nn.Parameter(torch.randn(5, HIDDEN)), nn.Parameter(torch.randn(1, 6, HIDDEN))
        self.heads = nn.Parameter(torch.randn(HEADS, 4, HIDDEN))

    def forward(self, x: torch.Tensor) -> Any:
        rows = self.up(x)
        columns, alone = rows.permute(0, 2, 1), rows[0].T
        one = self.one.repeat(x.size(0), 1, 1)
        products = [
            torch.bmm(one, columns), torch.matmul(self.flat, columns), self.flat @ alone, torch.matmul(self.one, alone),
            torch.matmul(self.heads, alone), torch.bmm(rows, one.transpose(1, 2)), rows[0] @ self.one.transpose(1, 2),
            self.heads @ columns,
        ]  # fmt: skip
        return [product.sum((-2, -1)) for product in products], torch.tanh(products[0]).sum(2)


def test_the_models_matrices_are_of_every_row() -> None:
    """A product of each row, that those of all rows are one of; torch runs those of heads with batches of their own."""
    torch.manual_seed(0)
    net = of_model(Matrices(), points)

    whole = [t.signature for t in net.plan.types if t.signature.startswith("torch.matmul(f32[1,8,1])")]
    assert len(whole) == 1
    assert "heads" in whole[0]


class Returned(nn.Module):
    """What a batch of one leaves as: states of all places, and their channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.out = nn.Linear(3, HIDDEN), nn.Linear(HIDDEN, 2)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(self.up(x))
        return self.out(h), {"channels": h.transpose(1, 2), "places": h[0]}


def test_rows_along_any_dimension_leave_as_rows() -> None:
    """No node stacks them; they are tensors as eager's, which can be viewed, captured too, and what is captured is
    bytes that say so."""
    model = Returned().eval()
    net = of_model(model, points)
    rng = Random(4)
    instances = [points(rng) for _ in range(5)]
    captured = [pickle.loads(pickle.dumps(item)) for item in net.capture_all(instances)]
    with torch.no_grad():
        results, batch = net.run(instances)
        assert not [name for name in counts(batch.whole[0].graph) if "stack" in name]
        for found in (results, net(captured), net([instances[0], *captured[1:]])):
            for ours, x in zip(found, instances, strict=True):
                torch.testing.assert_close(ours, model(x))
                assert ours[0].view(-1).shape == (2 * x.shape[1],)


class ForgetGates(nn.Module):
    """A recurrence over the parts that a sequence is split into, each a batch of one step."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gates, self.out = nn.Embedding(VOCAB, 6), nn.Linear(6, 12), nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        z, f = self.gates(self.words(ids).unsqueeze(1)).chunk(2, dim=2)
        f, states = torch.sigmoid(f), []
        for part, keep in zip((f * z).split(1, dim=0), f.split(1), strict=True):
            h = part if not states else part + (1 - keep) * states[-1]
            states.append(h.view(h.size()[1:]))
        return self.out(torch.stack(states))


def test_parts_of_one_row_are_values() -> None:
    """Of one type whatever the length."""
    net = of_model(ForgetGates(), lambda rng: torch.tensor(sentence(rng)))
    before = len(net.table.types)
    require_eager(net, net.model, [torch.tensor([1] * length) for length in (17, 18)])
    new = [t.op for t in net.table.graph_types()[before:]]
    assert len(new) <= 2, new  # what puts them together, for each length
