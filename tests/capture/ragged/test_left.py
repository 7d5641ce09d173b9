"""Attributes that closed forwards leave on modules: forward is kept, and the model has them as eager execution leaves
them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from helpers import bound
from rowparity import HIDDEN, VOCAB, kept_forwards, require_eager
from torch import nn

from edbc.capture.code.closed import Closed
from edbc.capture.ragged.kept import KeptCall


class Attention(nn.Module):
    """Keeps its weights, a value of two dimensions that differ, and rows."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.ModuleList([nn.Linear(HIDDEN, HIDDEN) for _ in range(3)])
        self.weights = None
        self.rows = None

    def forward(self, x):
        query, key, value = [of(x) for of in self.maps]
        self.weights = (query @ key.transpose(-2, -1) / HIDDEN**0.5).softmax(-1)
        del query, key
        self.rows = value
        return self.weights_of(value, x)

    def weights_of(self, value, x):
        query, key = self.maps[0](x), self.maps[1](x)
        return (query @ key.transpose(-2, -1) / HIDDEN**0.5).softmax(-1) @ value


class Encoder(nn.Module):
    """Of a sentence, whose length decides what else it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, 4)
        self.layers = nn.ModuleList([Attention() for _ in range(2)])
        self.long = self.kind = self.average = None

    def forward(self, ids):
        h = self.words(torch.tensor(ids))
        for layer in self.layers:
            h = h + layer(h)
        self.average, self.kind = h.mean(0), "short"
        if len(ids) > 6:
            self.long, self.kind = (h.sum(0), [len(ids)]), "long"
        return self.out(h.mean(0))


class Heads(Attention):
    def forward(self, x):
        query, key, value = [of(x).view(1, -1, 2, HIDDEN // 2).transpose(1, 2) for of in self.maps]
        self.weights = (query @ key.transpose(-2, -1)).softmax(-1)
        return (self.weights @ value).transpose(1, 2).contiguous().view(1, -1, HIDDEN)


class OfOne(Encoder):
    """A batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Heads() for _ in range(2)])

    def forward(self, ids):
        h = self.words(torch.tensor(ids))[None]
        for layer in self.layers:
            h = h + layer(h)
        self.average = h.mean(1)
        return self.out(h)


def left_on(model: nn.Module) -> list[Any]:
    names = ("weights", "rows", "average", "long")
    return [(path, name, vars(of)[name]) for path, of in model.named_modules() for name in names if name in vars(of)]


def require_equal(now: Any, eager: Any) -> None:
    if isinstance(eager, torch.Tensor):
        torch.testing.assert_close(now, eager, rtol=1e-4, atol=1e-5)
    elif isinstance(eager, list | tuple):
        assert len(now) == len(eager)
        for pair in zip(now, eager, strict=True):
            require_equal(*pair)
    else:
        assert now == eager


def sentences(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    rng = Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("kind", [Encoder, OfOne])
@pytest.mark.parametrize("grad", [False, True])
def test_the_model_has_what_the_last_instances_left(kind: type[Encoder], grad: bool) -> None:
    """Lengths on both sides of a branch, a sentence of one word, for which nothing is kept, and mini-batches of one."""
    torch.manual_seed(0)
    model, eager = kind().eval(), kind().eval()
    eager.load_state_dict(model.state_dict())
    net = bound(model, sentences(1, range(2, 12)), cells="auto", rows=True)
    with torch.set_grad_enabled(grad):
        for i, lengths in enumerate(
            [(3, 4, 5, 9, 8), (9, 4, 5), (4, 8, 1), (1, 4, 8), (5,), (7,), (3, 9, 7, 8, 4, 5, 2)]
        ):
            batch = sentences(i, lengths)
            outputs, others = net(batch), [eager(x) for x in batch]
            require_equal(outputs, others)
            require_equal(left_on(model), left_on(eager))


class Indices(nn.Module):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, HIDDEN)

    def forward(self, ids):
        self.ids, self._own = ids, ids
        return self.words(ids).mean(0)


def test_indices_of_the_instance_are_left() -> None:
    """No program can tell them, so that such a forward is not kept; eager execution between mini-batches, which leaves
    others of another length, by names that are private too, is no change of the model."""
    torch.manual_seed(0)
    model, batch = Indices().eval(), [torch.tensor(ids) for ids in sentences(1, range(2, 8))]
    model(batch[0])
    net = bound(model, batch, cells="auto", rows=True)
    model(batch[1])
    with torch.no_grad():
        require_equal(net(batch), [model.words(ids).mean(0) for ids in batch])
    assert model.ids is model._own is batch[-1]


@pytest.mark.parametrize("kind", [Encoder, OfOne])
def test_captured_instances_bring_what_they_left(kind: type[Encoder]) -> None:
    """Alone, and beside others that are recorded."""
    torch.manual_seed(0)
    model, eager = kind().eval(), kind().eval()
    eager.load_state_dict(model.state_dict())
    net = bound(model, sentences(1, range(2, 12)), cells="auto", rows=True)
    batch = sentences(2, (3, 9, 5, 8, 4))
    with torch.no_grad():
        net(sentences(3, (3, 4, 9)))
        captured = net.capture_all(batch)
        for chosen in (captured, captured[:1], captured[:2] + batch[2:], batch[:2] + captured[2:]):
            require_equal(net(chosen), [eager(x) for x in batch[: len(chosen)]])
            require_equal(left_on(model), left_on(eager))


def test_forwards_that_leave_attributes_are_one_entry() -> None:
    model = OfOne()
    net = bound(model, sentences(1, range(2, 12)), cells="auto", rows=True)
    net(sentences(2, range(3, 9)))
    kept = [call for key, call in net._idle[0][1].functions.items() if key[:2] == (KeptCall, "")]
    assert [type(call.left) for call in kept] == [KeptCall]


class ReadsWhatItLeft(Encoder):
    def forward(self, ids):
        h = super().forward(ids)
        return h + self.average.sum()


class Counts(Encoder):
    def forward(self, ids):
        self.long = super().forward(ids)
        self.kind = None
        self.calls += 1
        return self.long


@pytest.mark.parametrize("kind", [ReadsWhatItLeft, Counts])
def test_forwards_that_read_what_they_assign_are_open(kind: type[Encoder]) -> None:
    model = kind()
    model.calls = 0
    assert Closed(model).left_by_forward is None
    assert Closed(Encoder()).left_by_forward == {"weights", "rows", "average", "long", "kind"}


class Rotary(nn.Module):
    """Keeps what it has made for the last length."""

    def __init__(self) -> None:
        super().__init__()
        self.length = self.turned = None
        self.register_buffer("speeds", torch.rand(HIDDEN // 2))

    def forward(self, x):
        if len(x) != self.length:
            self.length = len(x)
            angles = torch.arange(len(x)).unsqueeze(1) * self.speeds.unsqueeze(0)
            self.turned = torch.cat([angles.cos(), angles.sin()], 1)
        return x * self.turned


class Causal(nn.Module):
    """Keeps the mask of the last length."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = None
        self.layer = nn.TransformerEncoderLayer(HIDDEN, 2, 32, batch_first=True)

    def forward(self, x):
        if self.mask is None or self.mask.size(0) != len(x):
            self.grow(len(x))
        return self.layer(x.unsqueeze(0), self.mask).squeeze(0)

    def grow(self, n):
        self.mask = torch.triu(torch.full((n, n), float("-inf")), diagonal=1)


class Longest(Rotary):
    """Keeps it for the longest, and takes of it what it needs."""

    def forward(self, x):
        if self.length is None or len(x) > self.length:
            self.length = len(x)
            self.turned = torch.cos(torch.arange(self.length)[:, None] * torch.cat([self.speeds, self.speeds])[None])
        return x * self.turned[: len(x)]


class Returns(Rotary):
    """Grows two of them, unless there is enough of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.cosines = self.sines = None

    def grow(self, x):
        if self.cosines is not None and len(x) <= self.cosines.shape[0]:
            return
        angles = torch.arange(len(x))[:, None] * torch.cat([self.speeds, self.speeds])[None]
        self.cosines = angles.cos()
        self.sines = angles.sin()

    def forward(self, x):
        self.grow(x)
        return x * self.cosines[: len(x)] + x.flip(1) * self.sines[: len(x)]


class WithCache(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.words, self.out, self.inner = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, 4), kind()

    def forward(self, ids):
        return self.out(self.inner(torch.tanh(self.words(torch.tensor(ids)))))


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("kind", [Rotary, Causal, Longest, Returns])
def test_caches_are_as_the_model_was_bound(kind: type[nn.Module], rows: bool) -> None:
    """Empty, or filled by eager execution, which fills them again while the net is there; captured, and in training."""
    torch.manual_seed(0)
    model = WithCache(kind).eval()
    for _ in range(2):
        net = bound(model, sentences(1, range(2, 12)), cells="auto", rows=rows)
        for i, lengths in enumerate([(3, 4, 9, 4), (9, 9, 3), (5,), (12, 3, 4, 8, 5, 7, 2), (1, 4, 6)]):
            batch = sentences(i, lengths)
            with torch.no_grad():
                require_equal(net(batch), [model(x) for x in batch])
                require_equal(net(net.capture_all(batch)), [model(x) for x in batch])
            wanted = torch.autograd.grad(sum(model(x).square().sum() for x in batch), [*model.parameters()])
            found = torch.autograd.grad(sum(y.square().sum() for y in net(batch)), [*model.parameters()])
            require_equal(found, wanted)


@pytest.mark.parametrize("kind", [Causal, Rotary])
def test_forwards_with_caches_are_kept(kind: type[nn.Module]) -> None:
    """For all sizes: what a size is compared with is nothing, or itself, and places are rows. Eager execution has a
    model of its own: what it leaves on this one is found there."""
    torch.manual_seed(0)
    model = WithCache(kind).eval()
    eager = copy.deepcopy(model)
    net = bound(model, sentences(1, range(2, 12)), cells="auto", rows=True)
    for seed in (2, 3):
        batch = sentences(seed, (3, 9, 4, 5, 7, 6, 8, 3))
        with torch.no_grad():
            require_equal(net(batch), [eager(x) for x in batch])
    assert [*map(type, kept_forwards(net))] == [KeptCall]


class Placed(nn.Module):
    """Sinusoids of places, which stand as a column, a line, and numbers that are looked up."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.words, self.out, self.how = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, 4), how
        self.register_buffer("speeds", torch.rand(HIDDEN))

    def forward(self, ids):
        h, places = self.words(torch.tensor(ids)), torch.arange(len(ids))
        if self.how == "column":
            angles = places[:, None] * self.speeds[None]
        elif self.how == "outer":
            angles = torch.einsum("i,j->ij", places.type_as(self.speeds), self.speeds)
        else:
            angles = (places.float() + 1).unsqueeze(-1).log() * self.speeds
        return self.out(torch.tanh(h + angles.sin()))


@pytest.mark.parametrize("how", ["column", "outer", "logarithm"])
def test_code_computes_with_places(how: str) -> None:
    torch.manual_seed(0)
    model = Placed(how).eval()
    net = bound(model, sentences(1, range(2, 12)), cells="auto", rows=True)
    for seed, lengths in enumerate([(3, 9, 4, 5, 7, 6, 8, 3), (5, 2), (12, 1)]):
        require_eager(net, model, sentences(seed, lengths))
    assert [*map(type, kept_forwards(net))] == [KeptCall]
