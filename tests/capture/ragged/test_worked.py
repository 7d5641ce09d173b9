"""Tensors that follow from sizes alone, worked out for each instance, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from helpers import bound
from rowparity import HIDDEN, VOCAB, kept_forwards, model_of_text, of_model, require_eager
from test_pairs import TEXT, pairs
from torch import nn

from edbc.capture.ragged.kept import KeptCall
from edbc.capture.ragged.program import CannotKeep
from edbc.capture.ragged.whole.function import Apply
from edbc.capture.ragged.whole.recipes import PACKED, VECTOR, Recipe, worked_out
from edbc.capture.record.table import Hole

I = "i = torch.arange(n)\n        "  # noqa: E741
KEPT = {
    "relative positions": f"{I}r = self.words.weight[(i[None] - i[:, None]).abs()]\n"
    "        return ((h.unsqueeze(1) * r).sum(-1).softmax(-1) @ h).sum(0)",
    "relative positions, clipped": f"{I}r = self.words((i[:, None] - i[None, :]).clamp(-3, 3) + 3)\n"
    "        return (h[None] + r).tanh().sum((0, 1))",
    "scores by relative positions": f"{I}b = self.words.weight[:, 0][(i.unsqueeze(0) - i.unsqueeze(1)).abs()]\n"
    "        return ((h @ h.t() + b).softmax(-1) @ h).sum(0)",
    "one before the other": "i, j = torch.triu_indices(n, n, 1)\n"
    "        return torch.relu(self.pair(torch.cat([h[i], h[j]], -1))).sum(0)",
    "of triangles, scores": "i, j = torch.tril_indices(n, n)\n        return (h @ h.t())[i, j].tanh().sum()",
    "all with all": f"{I}a, b = i.repeat_interleave(n), i.repeat(n)\n"
    "        return self.pair(torch.cat([h[a], h[b]], -1)).view(n, n, -1).amax(1).sum(0)",
    "all with all of two": "a = torch.arange(n).repeat_interleave(m)\n        b = torch.arange(m).repeat(n)\n"
    "        return self.pair(torch.cat([h[a], g[b]], -1)).view(n, m, -1).amax(1).sum(0)",
    "grids of places": f"{I}a, b = torch.meshgrid(i, i, indexing='ij')\n"
    "        return self.pair(torch.cat([h[a.flatten()], h[b.reshape(-1)]], 1)).sum(0)",
    "grids of rows": f"{I}a, b = torch.meshgrid(i, i, indexing='ij')\n"
    "        return self.pair(torch.cat([h[a], h[b]], -1)).mean((0, 1))",
    "combinations": f"{I}c = torch.combinations(i, 2)\n        return (h[c[:, 0]] * h[c[:, 1]]).sum(0)",
    "ranges of floating numbers": "i = torch.arange(0.0, 2.5)\n"
    "        return h.sum(0) * i.sum() + (torch.arange(0.0, 2.0, 0.5) / 2).sum() + torch.arange(3.0).mean()",
    "halves": "return h[:n // 2].sum(0) - 2 * h[n // 2:].mean(0)",
    "thirds": "return h[n // 3: 2 * n // 3 + 1].sum(0)",
    "the middle": "return h[n // 2] + h[(n - 1) // 2] * g[-(m // 2)]",
    "but for a half": "return h[-(n // 2):].sum(0) + h[: n - n // 2].sum(0)",
    "as many as another": "return h[:m].amax(0) + g[m - 1]",
    "every other": f"{I}return h[i % 2 == 0].sum(0)",
    "every other by places": "x = h[torch.arange(n - 1, -1, -1)]\n"
    "        return h[torch.arange(0, n, 2)].sum(0) + x.cumsum(0).amax(0)",
    "the place before": f"{I}return (h[(i - 1).clamp(min=0)] * h).sum(0) + h[i - 1].amax(0)",
    "sent backwards": f"{I}return (torch.zeros(n, {HIDDEN}).index_add(0, n - 1 - i, h) * h).sum(0)",
    "bands": f"{I}e = (h @ h.t()).masked_fill((i[None] - i[:, None]).abs() > 2, -1e9)\n"
    "        return (e.softmax(-1) @ h).sum(0)",
    "bands as numbers": f"{I}w = 0.5 ** (i[None] - i[:, None]).abs()\n        return (w @ h).sum(0)",
    "distances": f"{I}e = h @ h.t() - 0.1 * (i[None] - i[:, None]).abs().float()\n"
    "        return (e.softmax(-1) @ h).sum(0)",
    "weights by place": f"{I}w = 1 / (i + 1.0)\n        return (h * w[:, None]).sum(0) + (w.unsqueeze(1) * h).amax(0)",
    "even steps": "return (h * torch.linspace(0, 1, n)[:, None]).sum(0)",
    "waves": f"{I}p = torch.sin(i[:, None] * torch.tensor([1.0, 0.5, 0.1, 2.0]).repeat(2))\n"
    "        return (h + p).tanh().sum(0)",
    "but for the diagonal": "e = (h @ h.t())[~torch.eye(n, dtype=torch.bool)]\n        return e.logsumexp(0)",
    "one hot": f"{I}return (F.one_hot(i.flip(0), n).float() @ h).amax(0)",
    "sizes of what is worked out": "i, j = torch.triu_indices(n, n, 1)\n"
    "        return h[i].sum(0) / len(i) + h[j].sum(0) / i.shape[0]",
    "two lengths": "d = (torch.arange(n)[:, None] - torch.arange(m)[None]).abs()\n"
    "        return (self.words.weight[d] * h[:, None] * g[None]).sum((0, 1))",
}  # fmt: skip
"""By name what forward does after its first lines; kept for all lengths."""
OTHERS = [
    "i = torch.arange(n)\n        i += 1\n        return (h * i[:, None]).sum(0)",
    "p = torch.arange(n)[:, None] / 2\n        p.add_(1)\n        return (h * p).sum(0)",
    "p = torch.arange(n)[:, None] / 2\n        q = p.view(n)\n        q.mul_(2)\n        return (h * p).sum(0)",
    "p = torch.arange(n)[:, None] * torch.ones(1, 8)\n        p.add_(h)\n        return p.sum(0)",
    "p = torch.arange(n)[:, None] * torch.ones(1, 8)\n        p[0] = h[0]\n        return p.sum(0)",
    "p = torch.arange(n)[:, None] * torch.ones(1, 8)\n        q = p + 1\n        q += h\n        return p.sum(0) + q",
    "p = torch.arange(n) / 2\n        torch.sin(p, out=p)\n        return (h * p[:, None]).sum(0)",
    "i = torch.arange(n)\n        d = (i[None] - i[:, None]).abs()\n        d[0] = 0\n"
    "        return (d.float() @ h).sum(0)",
    "i = torch.arange(n)\n        d = (i[None] - i[:, None]).float()\n        d.fill_diagonal_(3)\n"
    "        return (d @ h).sum(0)",
    "return sum(h[int(i)] * k for k, i in enumerate(torch.arange(n - 1, -1, -1)))",
    "return sum(h[i] for i in torch.arange(0, n, 2).tolist())",
    "i = torch.triu_indices(n, n, 1)\n        return h.sum(0) if i.numel() > 6 else h.amax(0)",
    "return h[:n // 2 + 1].view(1, -1).sum() + h[: n - 2].sum(0)",
    "i = torch.arange(m)\n        return h[i.clamp(max=n - 1)].sum(0) + h[i[:n]].sum(0)",
    "x = h[torch.arange(n) // 2]\n        x[0] = 1\n        return x.sum(0) + h[0]",
    "h = h * 2\n        x = h[: n // 2 + 1]\n        x += 1\n        return h.sum(0)",
    "i = torch.arange(n)\n        return h[i[:, None] * 0 + i[None]].sum((0, 1)), i, (i[None] - i[:, None])",
    "r = h[torch.arange(n).view(1, n)]\n"
    "        return r.sum((0, 1)) + self.words(torch.arange(n).unsqueeze(0)).sum((0, 1))",
    "x = self.words(torch.arange(n).expand(2, n)).sum((0, 1))\n"
    "        return x + self.words(torch.arange(n)[None].repeat(2, 1)).sum(0)[0]",
    "a = torch.arange(n, dtype=torch.float32)\n        b = torch.arange(1, n + 1) / n\n"
    "        return (h * (a * b)[:, None]).sum(0)",
    "i = torch.arange(n)\n"
    "        return torch.where((i % 2 == 0)[:, None], h, -h).sum(0) + torch.stack([i, i]).sum() + i.max()",
]  # fmt: skip


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], nn.Module]:
    """A model of a file, which is read."""
    return lambda body: model_of_text(
        TEXT.format(vocab=VOCAB, hidden=HIDDEN, body=f"        {body}"), tmp_path, monkeypatch
    )


@pytest.mark.parametrize("name", KEPT)
def test_what_follows_from_sizes(name: str, made: Callable[[str], nn.Module]) -> None:
    """Forward is one run for all lengths, results and gradients are eager's, also of lengths that were never met."""
    model = made(KEPT[name])
    net = of_model(model, pairs)
    assert {type(known) for known in kept_forwards(net)} == {KeptCall}
    num_types = len(net.table.types)
    require_eager(
        net, model, [longer(Random(k), n, m) for k, (n, m) in enumerate([(12, 11), (17, 3), (3, 19), (14, 14)])]
    )
    assert len(net.table.types) == num_types


def longer(rng: Random, n: int, m: int) -> tuple[torch.Tensor, ...]:
    words = [torch.tensor([rng.randrange(VOCAB) for _ in range(k)], dtype=torch.int64) for k in (n, m)]
    return *words, torch.zeros(n, n, 3), torch.ones(n, n, dtype=torch.bool)


@pytest.mark.parametrize("name", ["relative positions", "all with all of two", "halves", "two lengths"])
def test_no_row_and_one(name: str, made: Callable[[str], nn.Module]) -> None:
    """Beside other instances, as eager has it."""
    model = made(KEPT[name])
    net = of_model(model, pairs, rounds=1)
    rng = Random(1)
    for n, m in ((0, 2), (2, 0), (1, 1), (1, 4), (4, 1)):
        batch = [longer(rng, n, m), pairs(rng), longer(rng, n, m)]
        if name == "halves" and n < 2:
            continue  # the mean of nothing
        try:
            expected = [model(instance) for instance in batch]
        except (IndexError, RuntimeError) as error:  # the largest of none
            with pytest.raises(type(error)):
                net(batch)
        else:
            torch.testing.assert_close(net(batch), expected)


@pytest.mark.parametrize("body", OTHERS)
def test_what_follows_from_sizes_otherwise(body: str, made: Callable[[str], nn.Module]) -> None:
    """What changes in place, is read, or is none of these: kept or not, as eager has it."""
    of_model(made(body), pairs, rounds=1)


def line(rng: Random) -> str:
    """An expression of indices of rows, drawn."""
    i = rng.choice(["torch.arange(n)", "torch.arange(n - 1, -1, -1)", "torch.arange(0, n, 2)", "torch.arange(1, n)"])
    for _ in range(rng.randint(0, 3)):
        i = rng.choice([f"({i} // 2)", f"({i} + 1).clamp(max=n - 1)", f"{i}.flip(0)", f"{i}.repeat(2)",
                        f"({i} * 3 % n)", f"{i}.repeat_interleave(n)", f"{i}[: m]", f"{i}[{i} % 2 == 0]",
                        f"(n - 1 - {i})", f"torch.cat([{i}, torch.arange(n)])", f"{i}.roll(1)"])  # fmt: skip
    return i


@pytest.mark.parametrize("seed", range(16))
def test_random_indices_that_follow_from_sizes(seed: int, made: Callable[[str], nn.Module]) -> None:
    """The same of indices that are drawn: rows taken by them, looked up by them and sent by them."""
    rng = Random(seed)
    use = rng.choice([
        "(h[i] * h[j.clamp(max=n - 1)][:1]).sum(0)", "self.words(i).tanh().sum(0) + (h[i] ** 2).sum(0)",
        f"(torch.zeros(n, {HIDDEN}).index_add(0, i, h[i] * 0.5) * h).sum(0)", "(h[i] * i[:, None]).sum(0)",
        "(h[i][:, None] + h[i][None]).tanh().sum((0, 1))", "h[i].cumsum(0).sum(0) / (1 + len(i))",
    ])  # fmt: skip
    of_model(made(f"i, j = {line(rng)}, {line(rng)}\n        return {use}"), pairs, rounds=1)


BEYOND = [
    "m = torch.ones(n, n).triu(-12) * torch.ones(n, n).tril(12)\n        return (m @ h).sum(0)",
    "m = torch.ones(n, n, dtype=torch.bool).triu(12)\n"
    "        return ((h @ h.t()).masked_fill(m, -1e9).softmax(-1) @ h).sum(0)",
    "return (h * (torch.arange(n) < 14)[:, None]).sum(0)",
    "i = torch.arange(n)\n"
    "        e = (h @ h.t()).masked_fill((i[None] - i[:, None]).abs() > 12, -1e9)\n"
    "        return (e.softmax(-1) @ h).sum(0)",
    "return h.sum(0) + h[12:].sum(0)",
    "return h.sum(0) / len(torch.arange(n)[:14])",
    "return h.sum(0) / (torch.arange(n)[:, None] * torch.arange(m)[:14]).shape[1]",
    "return (h + h[torch.arange(0, n, 13)].mean(0)).amax(0)",
    "return (h @ h.t())[:, :14].sum(0)",
    "return ((h @ h.t())[:, :14].sum(0)[:, None] * h[:14]).sum(0) / (h @ h.t())[:, :14].shape[1]",
    "return ((h @ h.t())[:5].softmax(-1) @ h).sum(0)",
    "return (h @ h.t()).diagonal(12).sum() if n > 12 else h.sum()",
    "return F.pad(h @ h.t(), (0, 20))[:, :25].sum(1).amax(0)",
    "return (mask.float()[:, :14] @ h[:14]).sum(0) + h[torch.arange(n).clamp(max=12)].sum(0)",
]  # fmt: skip


@pytest.mark.parametrize("body", BEYOND)
def test_numbers_of_code_beyond_the_sizes_that_were_met(body: str, made: Callable[[str], nn.Module]) -> None:
    """What is told at two lengths (a band of 12 says the same everywhere in matrices of 7 and 11) is held against the
    code for others: such instances gave wrong numbers, or failed."""
    model = made(body).eval()
    rng = Random(0)
    net = bound(model, [pairs(rng) for _ in range(6)], cells="auto", rows=True)
    for _ in range(4):  # from some mini-batch on forward is kept
        require_eager(net, model, [pairs(rng) for _ in range(4)])
    for n in (30, 14, 13, 15, 12, 3, 40):
        require_eager(net, model, [pairs(rng), longer(rng, n, 3), pairs(rng)], 2e-5)


def test_recipes_that_do_not_fit() -> None:
    """Of other sizes than code was told, of none, and where the expression fails, there is nothing."""
    places = Apply(torch.arange, "arange", (Hole(0),), {})
    first = Apply(torch.Tensor.__getitem__, "getitem", (places, slice(None, 5)), {})
    fits = worked_out(Recipe(first, ((0, 0, 5),), (5,), VECTOR), [0])
    found, joined, sizes = fits.of_instances(3, [torch.tensor([7, 4, 5]).numpy()])
    assert [of.size for of in found] == sizes.tolist() == [5, 0, 5]
    assert joined.tolist() == [*range(5)] * 2
    (numbers,) = fits.numbers(found, joined, sizes)
    assert numbers.offset.tolist() == [0, 5, 5]  # type: ignore[attr-defined]
    with pytest.raises(CannotKeep):
        fits.alone([4])
    with pytest.raises(CannotKeep):
        worked_out(Recipe(Apply(torch.ones, "ones", (-1,), {}), ((0, 0, 5),), (None,), PACKED), [0]).alone([3])
