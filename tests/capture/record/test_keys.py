"""Calls that repeat an earlier one on other values are found by their key, and are told from those that do not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from helpers import bound, require_parity, seeded
from torch import Tensor, nn

from edbc.capture.ragged.symbols import Size
from edbc.capture.record.recorder import Recorder
from edbc.capture.semantics.shapes import KNOWN, key_by_shape
from edbc.run.session import Net

SIZE = 4
INFINITE = float("inf")


class Model(nn.Module):
    """One call on the row of a word."""

    def __init__(self, call: Callable[..., Any]):
        super().__init__()
        self.table, self.out = nn.Embedding(6, SIZE), nn.Linear(SIZE, SIZE)
        self.join = nn.LSTMCell(SIZE, SIZE)
        self.call = call

    def forward(self, word: int) -> Tensor:
        return self.call(self, torch.tanh(self.table.weight[word]), word)


CALLS: dict[str, Callable[..., Any]] = {
    "a number of many": lambda m, h, w: h * (0.1 + w) + h * 2.5,
    "zeros": lambda m, h, w: torch.where(h > 0.0, h, -0.0) + h * 0.0,
    "signs of zero": lambda m, h, w: torch.copysign(h, torch.where(h > 5, h, 0.0 if w % 2 else -0.0)),
    "infinity": lambda m, h, w: torch.softmax(h.masked_fill(torch.tensor([True, False, False, w > 2]), -INFINITE), 0),
    "indices given": lambda m, h, w: h[torch.tensor([w % 4, 0])] + h.index_select(0, torch.tensor([1, w % 3])),
    "one index": lambda m, h, w: m.out(m.table(torch.tensor([w]))) + h,
    "rows": lambda m, h, w: m.out(m.table(torch.tensor([w, 0]))).sum(0) + m.table(torch.tensor([w, 1])).mean(0) * h,
    "the index of one": lambda m, h, w: h[None][h[None].argmax(1) // SIZE if w % 2 else torch.tensor([0])][0] * 2.0,
    "targets": lambda m, h, w: F.cross_entropy(h.unsqueeze(0), torch.tensor([w % SIZE])) + h,
    "added at indices": lambda m, h, w: torch.zeros(3).index_add(0, torch.tensor([0, w % 3]), h[:2]),
}


@pytest.mark.parametrize("name", CALLS)
def test_values_equal_eager(name: str) -> None:
    """Whatever is part of a key and what is an operand."""
    require_parity(seeded(Model, CALLS[name]), list(range(6)) * 3)


@pytest.mark.parametrize("name", CALLS)
def test_what_was_seen_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of a third mini-batch is described anew."""
    net = bound(seeded(Model, CALLS[name]), list(range(6)))
    described: list[str] = []
    describe = Recorder.describe

    def noted(self: Recorder, tree: Any, *rest: Any, **options: Any) -> Any:
        described.append(str(tree)[:80])
        return describe(self, tree, *rest, **options)

    with torch.no_grad():
        for _ in range(2):
            net(list(range(6)))
        monkeypatch.setattr(Recorder, "describe", noted)
        net(list(range(6)))

    assert described == []


SHORT: dict[str, Callable[..., Any]] = {
    "a function": lambda m, h, w: torch.tanh(h) + F.relu(h) + h.sigmoid(),
    "two values": lambda m, h, w: torch.mul(h, h) + h.maximum(h) - h * h / h @ h,
    "numbers": lambda m, h, w: 2 * h * 0.5 - 1 + h + 1.5 + (1.0 - h) + torch.add(h, 1),
    "constants": lambda m, h, w: torch.softmax(h, 0) + h.softmax(dim=-1) + h.clamp(0, 1) + h.sum(0) + h.cumsum(dim=0),
    "views": lambda m, h, w: (
        h.view(2, 2).t().reshape(4) + h.unsqueeze(0).squeeze(0) + h.view(2, 2).transpose(0, 1).sum()
    ),
    "parts": lambda m, h, w: torch.cat([h[2:], h[:2]]) + h[1] + h[-1] + h[:] + h[1::1].sum(),
    "a parameter first": lambda m, h, w: m.out.weight @ h + (m.out.bias - h) * 2.0,
}
MADE: dict[str, Callable[..., Any]] = {
    "like": lambda m, h, w: torch.zeros_like(h) + torch.ones_like(h, device=h.device) * h + torch.full_like(h, 2.0) * h,
    "new": lambda m, h, w: h.new_zeros(4) + h.new_ones((4,)) * h + torch.cat([h[:2], h.new_full([2], 3.0)]),
    "a key of many": lambda m, h, w: (
        torch.where(h > 0, h, 2 * h) + torch.lerp(h, h.tanh(), 0.5) + F.linear(h, m.out.weight)
    ),
}


class State(NamedTuple):
    """What an LSTM hands on."""

    h: Any
    c: Any


DESCRIBED: dict[str, Callable[..., Any]] = {
    "parameters alone": lambda m, h, w: h * m.out.weight[0].tanh() + m.out.weight.t() @ h + h * (1.0 + m.out.bias[:4]),
    "rows seen": lambda m, h, w: (
        m.table(torch.tensor([w, 0])).unsqueeze(1).sum((0, 1)) + m.table(torch.tensor([0, w])).t().sum(1) + h
    ),
    "named arguments": lambda m, h, w: m.join(h, State(h, h))[0] + m.join(h, State(*m.join(h, State(c=h, h=h))))[1],
    "rows of rows": lambda m, h, w: m.table(torch.tensor([w, 0, 1]))[1:].view(2, 2, 2)[0].reshape(-1) + h,
}


def calls_of(net: Net, owner: Any, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a third mini-batch calls of some methods."""
    called: list[str] = []

    def note(name: str) -> None:
        method = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: (called.append(name), method(*args, **kwargs))[1])

    with torch.no_grad():
        for _ in range(2):
            net(list(range(6)))
        for name in names:
            note(name)
        net(list(range(6)))
    return called


@pytest.mark.parametrize("name", SHORT)
def test_short_calls_are_found_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of a value with another, or with constants, do not reach what makes keys of all arguments, but for parts
    that are the whole and lists; and they equal eager."""
    net = require_parity(seeded(Model, SHORT[name]), list(range(6)) * 3)
    called = calls_of(net, Recorder, ("_recorded", "_function"), monkeypatch)
    assert called.count("_function") == 0
    assert called.count("_recorded") <= (6 * 2 if name == "parts" else 0)


@pytest.mark.parametrize("name", MADE)
def test_calls_are_found_by_their_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants that a value lends its shape, and calls of many arguments, are described once."""
    net = require_parity(seeded(Model, MADE[name]), list(range(6)) * 3)
    assert calls_of(net, Recorder, ("_function", "describe"), monkeypatch) == []


@pytest.mark.parametrize("name", DESCRIBED)
def test_calls_are_described_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of parameters, views of rows of tables, and named tuples as arguments."""
    net = require_parity(seeded(Model, DESCRIBED[name]), list(range(6)) * 3)
    assert calls_of(net, Recorder, ("describe", "node", "_new_call"), monkeypatch) == []


def test_several_results_are_of_eagers_classes() -> None:
    """Tuples, torch's own named ones, and lists, when a call is made first and when it is known."""
    seen: list[Any] = []

    def forward(model: nn.Module, h: Tensor, word: int) -> Any:
        made = h.max(0), h.view(2, 2).max(1), h.sort(), h.chunk(2), h.view(2, 2).unbind(), torch.split(h, [1, 3])
        seen.append([type(item) for item in made])
        return [made[0].values, made[1].indices, *made[2], *made[3], *made[4], *made[5]]

    net = require_parity(seeded(Model, forward), list(range(6)))
    with torch.no_grad():
        net.model(0)
    assert all(kinds == seen[-1] for kinds in seen)


def test_short_keys_tell_numbers_apart() -> None:
    """Equal numbers of different classes, and zeros of either sign, are different constants."""
    words = torch.arange(6)

    def forward(model: nn.Module, h: Tensor, word: int) -> Any:
        counts = words[word : word + 1] + (h > 5).sum()
        return (
            counts * 1,
            counts * 1.0,
            counts * True,
            h * 0.0,
            h * -0.0,
            2 * counts,
            2.0 * counts,
        )

    model = seeded(Model, forward)
    net = bound(model, list(range(6)))
    with torch.no_grad():
        for _ in range(3):
            for found, right in zip(net(list(range(6))), map(model, range(6)), strict=True):
                assert [x.dtype for x in found] == [x.dtype for x in right]
                assert all(torch.equal(x, y) and torch.equal(torch.signbit(x), torch.signbit(y))
                           for x, y in zip(found, right, strict=True))  # fmt: skip


def test_numbers_that_are_operands_keep_their_signs() -> None:
    """Zeros of either sign are two, once there are so many numbers that these are no constants."""
    numbers = [0.0, -0.0, 0.25, 0.5, 0.75, 1.25]

    def forward(model: nn.Module, h: Tensor, word: int) -> Tensor:
        return torch.copysign(h.exp(), h.abs() * numbers[word]) * (numbers[word] + 3)

    model, words = seeded(Model, forward), list(range(6))
    net = bound(model, words)
    with torch.inference_mode():
        for _ in range(2):
            for ours, right in zip(net(words), map(model, words), strict=True):
                assert torch.equal(torch.signbit(ours), torch.signbit(right))


OPEN: dict[str, int] = {}
"""What forward asks for an instance at a time."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_nobody_has_met_are_found_at_once(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there are so many that they are operands: on either side of a value, by operators, methods and functions.
    Zeros of either sign, and what a float32 cannot hold, are eager's."""
    random, edges = Random(0), [0.0, -0.0, 1e300, -3, 7, 1 << 60, float("inf")]

    def instances() -> list[tuple[int, Any]]:
        return [(random.randrange(6), random.uniform(-2, 2)) for _ in range(12)] + [
            (i % 6, x) for i, x in enumerate(edges)
        ]

    def forward(model: nn.Module, h: Tensor, given: Any) -> Any:
        OPEN["calls"] = len(OPEN)
        above, w = h.abs() + 1, given
        by_functions = torch.mul(h, w), h.sub(w), torch.add(h, w)
        return (h * w, w * h, h - w, w - h, w + h, h / (w or 1.0), w / above, *by_functions), (
            torch.copysign(above, h * 0.0 * w), h[:2] * w, torch.div(above, w or 2.0), 2 * h,
        )  # fmt: skip

    class Weighing(Model):
        def forward(self, given: tuple[int, Any]) -> Any:
            return self.call(self, torch.tanh(self.table.weight[given[0]]), given[1])

    model = seeded(Weighing, forward).to(dtype)
    net, called = bound(model, instances()), list[str]()
    with torch.no_grad():
        for _ in range(3):
            net(instances())
        method = Recorder._function
        monkeypatch.setattr(Recorder, "_function", lambda *args: (called.append(args[4]), method(*args))[1])
        given = instances()
        ours, theirs = net(given), [model(x) for x in given]
    assert not called
    for one, other in zip(ours, theirs, strict=True):
        for found, right in zip((*one[0], *one[1]), (*other[0], *other[1]), strict=True):
            torch.testing.assert_close(found, right, equal_nan=True, rtol=1e-6, atol=1e-7)
            assert torch.equal(torch.signbit(found), torch.signbit(right))


def test_what_torch_says_of_shapes_is_kept_by_what_arguments_are() -> None:
    """Numbers of other classes and signs are other calls; a size that is a symbol, which is written as its number, and
    functions that are not torch's are asked anew."""

    def key(*args: Any, func: Callable[..., Any] = torch.true_divide) -> Any:
        return key_by_shape(func, (args, {}), [], pytest.fail)

    assert len({key(1), key(1.0), key(True), key("1"), key(0.0), key(-0.0), key((1,)), key([1])}) == 8
    assert key(2) == key(2) is not None
    assert key(Size(None, 2, (0, 0, 0))) is key(object()) is key(2, func=abs) is key(2, func=pytest.fail) is None  # type: ignore[arg-type]


def test_what_is_kept_of_shapes_has_no_data() -> None:
    """Under autocast functions run on numbers, which are not kept for ever."""

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(5, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return torch.tanh(self.up(x)).float().cumsum(0)

    bound(Cast(), [torch.randn(5)])

    assert all(known.is_meta for known in KNOWN.values())
