"""Values of two ragged dimensions as rows by pairs, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from rowparity import HIDDEN, VOCAB, kept_forwards, model_of_text, of_model, require_eager
from torch import nn

from edbc.capture.ragged.kept import KeptCall
from edbc.capture.ragged.program import Times, arguments_of, count_of, size_of
from edbc.cells.arrays.sizes import Fit, with_products
from edbc.run.session import Net

TEXT = """
import torch
import torch.nn.functional as F
from torch import nn


class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.up = nn.Embedding({vocab}, {hidden}), nn.Linear({hidden}, {hidden})
        self.pair, self.near = nn.Linear(2 * {hidden}, {hidden}), nn.Linear(2 * {hidden} + 1, {hidden})
        self.one, self.few, self.norm = nn.Linear({hidden}, 1), nn.Linear({hidden}, 6), nn.LayerNorm({hidden})
        self.of_edge, self.start = nn.Linear(3, {hidden}), nn.Parameter(torch.randn(2, {hidden}))
        self.mlp = nn.Sequential(nn.Linear(2 * {hidden}, {hidden}), nn.ReLU(), nn.Linear({hidden}, {hidden}))

    def forward(self, instance):
        ids, others, edges, mask = instance
        h, g = torch.tanh(self.up(self.words(ids))), self.words(others)
        n, m = len(ids), len(others)
{body}
"""
EXPANDED = "torch.cat([h.unsqueeze(0).expand(n, n, -1), h.unsqueeze(1).expand(n, n, -1)], -1)"
KEPT = {
    "summed over all": f"return torch.relu(self.pair({EXPANDED})).sum((0, 1))",
    "mean over rows": f"return torch.relu(self.pair({EXPANDED})).mean(1).sum(0)",
    "largest of columns": f"return self.mlp({EXPANDED}).amax(0).sum(0)",
    "norms": "return self.norm(h[None] * h[:, None]).mean((0, 1))",
    "two lengths": "x = torch.cat([h[:, None].expand(n, m, -1), g[None].expand(n, m, -1)], -1)\n"
    "        return torch.relu(self.pair(x)).amax(1).sum(0)",
    "repeated": "return self.pair(torch.cat([h.repeat(n, 1), h.repeat_interleave(n, 0)], -1)).tanh().sum(0)",
    "repeated side by side": "x = torch.cat([h.repeat(1, n).view(n * n, -1), h.repeat(n, 1)], dim=1)\n"
    "        x = x.view(n, -1, 2 * {hidden})\n"
    "        e = self.one(torch.relu(self.pair(x))).squeeze(2)\n"
    "        return (torch.where(mask, e, -9e15 * torch.ones_like(e)).softmax(1) @ h).sum(0)",
    "repeated scores": "e = self.one(torch.tanh(h.repeat(n, 1) + h.repeat_interleave(n, dim=0))).view(n, n)\n"
    "        return (e.softmax(1) @ h).sum(0)",
    "scores of heads": "e = self.few(torch.tanh(h.repeat(n, 1) - h.repeat_interleave(n, dim=0))).view(n, -1, 6)\n"
    "        return (e.softmax(1) * h[None, :, :6]).sum((0, 1))",
    "of two, repeated": "x = torch.cat([h.repeat_interleave(m, 0), g.repeat(n, 1)], 1)\n"
    "        return self.mlp(x).view(n, m, {hidden}).softmax(1).amax(0).sum(0)",
    "flat again": f"return self.pair(torch.relu({EXPANDED}).view(n * n, -1)).amax(0)",
    "flat with -1": f"return torch.relu(self.pair({EXPANDED})).reshape(-1, {HIDDEN}).sum(0)",
    "flattened": f"return torch.relu(self.pair({EXPANDED})).flatten(0, 1).mean(0)",
    "seen as heads": f"return torch.relu(self.pair({EXPANDED})).view(n, n, 2, -1).sum(-1).softmax(0).mean(1).sum(0)",
    "squeezed": f"e = self.one(torch.relu(self.pair({EXPANDED}))).squeeze(-1)\n"
    "        return (e.masked_fill(mask == 0, -1e9).softmax(-1) @ h).sum(0)",
    "messages and coordinates": "x = h[:, :3]\n"
    "        rel = x[:, None] - x[None]\n"
    "        near = (rel ** 2).sum(-1, keepdim=True)\n"
    "        i, j = h[:, None].expand(n, n, -1), h[None].expand(n, n, -1)\n"
    "        message = F.silu(self.near(torch.cat([i, j, near], -1)))\n"
    "        moved = x + (rel * self.one(message)).mean(1)\n"
    "        return message.sum(1).sum(0), moved.sum(0)",
    "two layers": f"e = torch.relu(self.pair({EXPANDED}))\n"
    "        return (self.up(e) + e).tanh().sum(1).amax(0)",
    "of what is softmaxed": "return self.up((h[None] * h[:, None]).softmax(0)).sum((0, 1))",
    "edges": "return (F.relu(self.of_edge(edges)) * h[None]).sum(1).amax(0)",
    "edges and ends": "e = self.of_edge(edges)\n"
    "        return torch.relu(self.pair(torch.cat([e, h[None].expand(n, n, -1)], -1))).sum(0).amax(0)",
    "edges that are masked": "e = self.of_edge(edges).masked_fill(mask.unsqueeze(-1) == 0, -1e9)\n"
    "        return e.logsumexp(1).sum(0)",
    "in a batch of one": "x = h.unsqueeze(0)\n"
    "        x = torch.cat([x.unsqueeze(1).expand(1, n, n, -1), x.unsqueeze(2).expand(1, n, n, -1)], -1)\n"
    "        return torch.relu(self.pair(x)).sum(2).sum(1)",
    "what a function leaves of some numbers": "x = torch.relu(h.unsqueeze(0).expand(n, n, -1))\n"
    "        return self.up(x.round() + h.unsqueeze(1).expand(n, n, -1).abs()).sum((0, 1))",
    "seen without a gradient": "x = (h.unsqueeze(0) * 2).expand(n, n, -1).detach()\n"
    "        return self.up(torch.cat([x, h[:, None].expand(n, n, -1)], -1)[..., 4:12]).sum((0, 1))",
    "of a vector that all rows get": "x = torch.cat([self.one(h), self.start[:1].repeat(n, 1)[:, 1:]], 1)\n"
    "        x = torch.cat([x.unsqueeze(1).repeat(1, n, 1), h.unsqueeze(0).repeat(n, 1, 1)], 2).view(n * n, -1)\n"
    "        return self.mlp(x).sum(0)",
    "distances in waves": "x = h[:, :2]\n"
    "        d = (x[:, None] - x[None]).norm(dim=-1)\n"
    "        e = self.few(torch.cos(d).unsqueeze(-1) - self.start[0])\n"
    "        return (e * torch.sin(d).unsqueeze(-1)).sum(1).amax(0)",
    "identity": "return ((mask.float() + torch.eye(n)) @ h).sum(0)",
    "but for the diagonal": "e = (h @ h.t()).masked_fill(torch.eye(n, dtype=torch.bool), -1e9)\n"
    "        return e.softmax(-1).amax(0).sum()",
    "a row of a parameter": "return (torch.cat([self.start, h]) * torch.cat([h, self.start])).sum(0) + self.start[1]",
    "places": "return (h + self.words.weight[torch.arange(n)]).amax(0)",
}  # fmt: skip
"""By name what forward does after its first lines; kept for all lengths."""
RUNS = {"of what is softmaxed", "seen without a gradient"}
"""Of these, those whose rows by pairs are what a node gives."""


def pairs(rng: Random) -> Any:
    """Words, other words, numbers of every two words, and a mask."""
    n, m = rng.randint(2, 9), rng.randint(2, 9)
    made = torch.Generator().manual_seed(rng.randrange(1 << 30))
    words = [torch.tensor([rng.randrange(VOCAB) for _ in range(k)]) for k in (n, m)]
    return *words, torch.randn(n, n, 3, generator=made), torch.rand(n, n, generator=made) < 0.6


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], nn.Module]:
    """A model of a file, which is read."""

    def make(body: str) -> nn.Module:
        text = TEXT.format(vocab=VOCAB, hidden=HIDDEN, body=f"        {body.replace('{hidden}', str(HIDDEN))}")
        return model_of_text(text, tmp_path, monkeypatch)

    return make


def types_of(net: Net) -> list[str]:
    return [t.signature for t in net.table.types if t is not None]


@pytest.mark.parametrize("name", KEPT)
def test_every_two_rows(name: str, made: Callable[[str], nn.Module]) -> None:
    """Forward is one run for all lengths, results and gradients are eager's, and no type is of a length."""
    net = of_model(made(KEPT[name]), pairs)
    assert {type(known) for known in kept_forwards(net)} == {KeptCall}
    assert any(signature.startswith("run flatten") for signature in types_of(net)) == (name in RUNS)


@pytest.mark.parametrize("name", ["repeated", "two lengths", "edges and ends", "squeezed"])
def test_one_row_and_none(name: str, made: Callable[[str], nn.Module]) -> None:
    """Instances of one row, whose matrices have as many rows as anything else, are of the same run; none too."""
    model = made(KEPT[name]).eval()
    rng = Random(0)
    net = of_model(model, pairs, rounds=1)
    known = len(kept_forwards(net))
    for n, m in ((1, 1), (1, 3), (3, 1)):
        require_eager(net, model, [sized(n, m), pairs(rng), sized(n, m)])
    assert len(kept_forwards(net)) == known
    for instance in (sized(0, 2), sized(2, 0)):
        try:
            expected = model(instance)
        except (IndexError, RuntimeError) as error:  # the largest of none
            with pytest.raises(type(error)):
                net([pairs(rng), instance])
        else:
            torch.testing.assert_close(net([pairs(rng), instance])[1], expected)


def sized(n: int, m: int) -> Any:
    words = [torch.arange(k) % VOCAB for k in (n, m)]
    return *words, torch.arange(3.0 * n * n).view(n, n, 3) / 9, torch.ones(n, n, dtype=torch.bool)


def body(rng: Random) -> str:
    """A random function of every two rows."""
    of_pair = ["h[:, None]", "h[None]", "g[None, :1]", "(h * 0.5)[None]", "h.unsqueeze(1)"]
    x = f"{rng.choice(of_pair[:1])} {rng.choice('+-*')} {rng.choice(of_pair[1:])}"
    lines = [f"x = {x} + h[None]"]
    for _ in range(rng.randint(1, 4)):
        lines.append(rng.choice([
            "x = self.up(x)", "x = torch.tanh(x)", "x = self.norm(x)", "x = x * 0.5 + 1", "x = x.softmax(-1)",
            "x = x.masked_fill(mask.unsqueeze(-1), 0.5)", "x = x + h[None]", "x = x * h[:, None]",
            "x = torch.relu(x) + x",
            "x = self.pair(torch.cat([x, h[None].expand(n, n, -1)], -1))", "x = x.softmax(1)",
            "x = x.view(n, n, 2, -1).amax(2).repeat(1, 1, 2)", "x = x.view(n * n, -1).view(n, n, -1)",
        ]))  # fmt: skip
    last = rng.choice(["x.sum((0, 1))", "x.mean(1).amax(0)", "x.amax(0).sum(0)", "(x.sum(-1).softmax(1) @ h).sum(0)"])
    return "\n        ".join([*lines, f"return {last}"])


@pytest.mark.parametrize("seed", range(12))
def test_random_functions_of_every_two_rows(seed: int, made: Callable[[str], nn.Module]) -> None:
    """The same of lines that are drawn, kept or not."""
    of_model(made(body(Random(seed))), pairs, rounds=1)


def test_sizes_that_are_products() -> None:
    """Of numbers and of arrays of them, of counts of counts; what they follow from."""
    count = Times((0, Times((1, None))))
    assert size_of(count, [3, 4]) == 12
    assert (size_of(count, [np.array([2, 3]), np.array([5, 1])]) == [10, 3]).all()
    assert size_of(count_of(Times((0, 1)), [Times((0, 0)), None]), [5]) == 25
    assert arguments_of(count) == {0, 1}


def test_polynomials_of_lengths_of_which_one_is_a_product() -> None:
    """They are told without it, so one polynomial is right, and equal lengths are told apart from products."""
    fit = Fit(3, [(2, 0, 1)])
    assert all(n * m == both for n, m, both in fit.lengths)
    assert with_products((3, 4, 9), [(2, 0, 1)]) == (3, 4, 12)
    found = fit.of([2 * both + n for n, _, both in fit.lengths])
    assert found is not None
    assert found.at([5, 7, 35]) == 75


CHANGED = [
    "x = h.repeat(1, n)\n        return x.sum(), x[:, 3], x.view(-1).sum(), x.view(n, -1).amax(1)",
    "x = self.up(h[None] * h[:, None])\n        x.view(n * n, -1).relu_()\n        return x.sum((0, 1))",
    "x = self.up(h[None] * h[:, None])\n        y = x.view(n * n, -1)\n        x.mul_(2)\n        return y.sum(0)",
    "x = self.up(h[None] * h[:, None])\n        y = x.view(n, n, 2, -1)\n        y += 1\n        return x.sum((0, 1))",
    "x = self.up(h.repeat(n, 1))\n        x.view(n, n, -1).relu_()\n        return x.amax(0)",
    "x = self.up(h[None] * h[:, None])\n        x += x.sum(1, True)\n        return x.flatten(0, 1).relu_().sum(0)",
    "x = self.up(torch.cat([h, h]))\n        x.view(2, n, -1).mul_(2)\n        return x.sum(0)",
    "x = self.up(torch.cat([h, h]))\n        x.view(2, n, -1)[0] = 0\n        return x.sum(0)",
    "x = self.up(torch.cat([h, h]))\n        x.view(2, n, -1)[0].relu_()\n        return x.sum(0)",
    "x = self.up(torch.cat([h, h])).view(2, n, -1)\n        y = F.relu(x, True)\n        return x.sum((0, 1)), y",
]


@pytest.mark.parametrize("changed", CHANGED)
def test_pairs_that_change_in_place(changed: str, made: Callable[[str], nn.Module]) -> None:
    """What shows their memory changes too."""
    of_model(made(changed), pairs, rounds=1)


class NearSize(nn.Module):
    """With a vector as long as some instance has rows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0, 2, 6))
        self.up = nn.Linear(6, HIDDEN)

    def forward(self, x):
        d = (x[:, None] - x[None]).norm(dim=-1)
        return self.up(torch.exp(-((d.unsqueeze(-1) - self.centres) ** 2))).sum((0, 1))


def test_a_buffer_that_is_as_long_as_there_are_rows() -> None:
    """By chance, in the first instance: it is a buffer in all."""
    torch.manual_seed(0)
    model = NearSize()
    first, rng = [6], Random(0)
    made = torch.Generator().manual_seed(0)

    def make(_: Random) -> torch.Tensor:
        return torch.randn(first.pop() if first else rng.randint(2, 9), 3, generator=made)

    net = of_model(model, make)
    assert {type(known) for known in kept_forwards(net)} == {KeptCall}
