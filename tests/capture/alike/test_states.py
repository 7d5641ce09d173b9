"""Attributes of modules that forward assigns and reads: states, which instances that are alike have of their own."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from gradients import require_equal_gradients
from helpers import bound, require_eager, seeded
from torch import nn

SIZE = 4


def vector(rng: Random, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (SIZE,)), generator=torch.Generator().manual_seed(rng.randrange(10**9)))


def drawn(make: Any, seed: int, count: int) -> list[Any]:
    rng = Random(seed)
    return [make(rng) for _ in range(count)]


class Memory(nn.Module):
    """A part with states of its own, and a list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.write = nn.Linear(SIZE, SIZE)
        self.starts = [torch.full((SIZE,), 0.5), torch.ones(SIZE)]
        self.rows, self.count = None, 0

    def reset(self) -> None:
        self.rows, self.count = [torch.zeros(SIZE)], 0

    def forward(self, h: Any) -> Any:
        self.before = self.rows[-1] + self.starts[0]
        self.rows.append(torch.tanh(self.write(h) + self.before) * self.starts[1])
        self.count += 1
        return self.rows[-1] * self.count * self.gain


class Stateful(nn.Module):
    """Steps that keep their state on modules, from one method to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.memory, self.hidden = nn.Linear(SIZE, SIZE), Memory(), None

    def step(self, x: Any) -> None:
        self.hidden = torch.tanh(self.up(x) + self.hidden)
        self.read = self.memory(self.hidden)

    def forward(self, steps: Any) -> Any:
        self.hidden = torch.zeros(SIZE)
        self.memory.reset()
        self.memory.gain = torch.full((SIZE,), 1.5)
        for x in steps:
            self.step(x)
        return self.read + self.memory.before


def steps_of(rng: Random) -> Any:
    return vector(rng, rng.randint(1, 4), SIZE)


def test_states_on_modules_are_variables_of_forward() -> None:
    """No Python runs for states that each instance assigns first; the model has the last one's, as in eager."""
    net = bound(seeded(Stateful), drawn(steps_of, 0, 12), rows=None)
    for seed in range(1, 4):
        require_eager(net, drawn(steps_of, seed, 12))
    require_equal_gradients(net, drawn(steps_of, 4, 12), tolerance=1e-5)
    assert len(net.alike._moulds) == 4
    assert None not in net.alike._moulds.values()

    instances = drawn(steps_of, 5, 9)
    runs = []
    for run in (net, lambda of: [net.model(x) for x in of]):
        with torch.no_grad():
            run(instances)
        memory = net.model.memory
        runs.append([net.model.hidden, net.model.read, memory.before, memory.gain, *memory.rows])
    assert len(runs[0]) == len(runs[1])
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one, other)


class Asks(nn.Module):
    """Looks for what an earlier instance may have left."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(SIZE, SIZE)

    def forward(self, x: Any) -> Any:
        if not hasattr(self, "known"):
            self.known = torch.ones(SIZE)
        return self.up(x) * self.known


def test_states_that_are_read_before_they_are_assigned() -> None:
    """What an earlier instance has left is part of no record."""
    net = bound(seeded(Asks), drawn(vector, 0, 12), rows=None)
    for seed in range(1, 4):
        require_eager(net, drawn(vector, seed, 12))

    assert set(net.alike._moulds.values()) == {None}


class Prepares(nn.Module):
    """Makes what it needs when it is asked first, in code that is open."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.known, self.count = nn.Linear(SIZE, SIZE), None, 0

    def forward(self, x: Any) -> Any:
        try:
            count = len(x)
        except TypeError:
            count = 0
        if self.known is None or self.count != count:
            self.known, self.count = torch.ones(SIZE), count
            self.known += 1
        return self.up(x) * self.known


def test_what_eager_execution_has_left_before_the_first_call() -> None:
    """It is the model's, not a change of what was bound."""
    net = bound(seeded(Prepares), drawn(vector, 0, 4), rows=None)
    net.model(drawn(vector, 1, 1)[0])

    assert net.model.known is not None
    require_eager(net, drawn(vector, 2, 4))


class Prepared(nn.Module):
    """A tensor that is made when it is asked first, a number beside it, and a mode that forward leaves once."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.scale, self.length, self.mode = nn.Linear(SIZE, SIZE), None, 0, "plain"

    def forward(self, x: Any) -> Any:
        if self.scale is None or self.length != len(x):
            self.scale, self.length = torch.arange(1.0, 1 + len(x)), len(x)
        if self.mode == "once":
            self.mode = "plain"
        h = self.up(x * self.scale)
        return h * 2 if self.mode == "twice" else h


def test_what_somebody_sets_between_mini_batches_is_found() -> None:
    """By hand, again and again, as by eager execution: that of a state which forward may find set."""
    net = bound(seeded(Prepared), drawn(vector, 0, 4), rows=None)
    changes = [("scale", torch.full((SIZE,), 3.0)), ("mode", "twice"), ("scale", None), ("mode", "once"),
               ("mode", "twice"), ("mode", "plain"), ("length", 0), ("scale", torch.ones(SIZE))]  # fmt: skip
    require_eager(net, drawn(vector, 1, 4))
    for seed, (name, value) in enumerate(changes):
        for _ in range(2):
            setattr(net.model, name, value)
            with torch.no_grad():
                results = net(drawn(vector, seed, 4))
            setattr(net.model, name, value)
            require_eager(net, drawn(vector, seed, 4), results)


class Turns(nn.Module):
    """Keeps what it has computed for the last length."""

    def __init__(self) -> None:
        super().__init__()
        self.length, self.turned = None, None
        self.register_buffer("speed", torch.tensor(0.5))

    def forward(self, x: Any) -> Any:
        if len(x) != self.length:
            self.length, self.turned = len(x), torch.cos(torch.arange(len(x)) * self.speed)
        return x * self.turned


def of_some_length(rng: Random) -> torch.Tensor:
    return vector(rng, rng.randint(2, 5))


def test_what_mini_batches_leave_costs_no_shadow() -> None:
    """They leave what forward assigned on the model: it is none that somebody has set, as eager execution has."""
    net = bound(seeded(Turns), drawn(of_some_length, 0, 6), rows=None)
    net(drawn(of_some_length, 0, 4))
    [shadow] = net._idle
    for seed in range(1, 4):
        net(drawn(of_some_length, seed, 4))
    assert net.model.length is not None
    assert net._idle == [shadow]

    net.model(torch.ones(6))
    require_eager(net, drawn(of_some_length, 4, 4))
    assert net._idle != [shadow]


def test_what_is_set_anew_is_another_where_numbers_or_dtypes_differ() -> None:
    """A tensor that is equal in both is none, though it is another object."""
    net = bound(seeded(Prepared), drawn(vector, 0, 4), rows=None)
    threes = torch.full((SIZE,), 3.0)
    for scale, is_another in ((threes, True), (threes.clone(), False), (threes.long(), True), (None, True)):
        net.model.scale = scale
        assert net.view.follow_caches() is is_another
