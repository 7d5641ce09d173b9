"""Objects that forward makes (stacks, solvers, hypotheses): what their methods assign is nobody else's."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest
import torch
from gradients import require_equal_gradients
from helpers import bound, require_eager, seeded
from torch import Tensor, nn

from edbc.capture.code.closed import Closed

SIZE = 4
SEEN: list[int] = []


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.on = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)


class Stack:
    """With special methods, a property, and attributes that other methods assign."""

    def __init__(self, *items: Tensor) -> None:
        self.items, self.pushed = [*items], 0

    def push(self, x: Tensor) -> Stack:
        self.items.append(x)
        self.pushed += 1
        return self

    @property
    def top(self) -> Tensor:
        return self.items[-1]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Tensor:
        return self.items[number]


class Damped(Stack):
    def __init__(self, first: Tensor, factor: float) -> None:
        super().__init__(first)
        self.factor = factor

    def push(self, x: Tensor) -> Stack:
        return super().push(x * self.factor)


class OfStacks(Base):
    def forward(self, x: Tensor) -> Tensor:
        stack, other = Damped(x[0], 0.5), Stack(x[-1])
        for i in range(len(x)):
            stack.push(torch.tanh(self.up(x[i]) + stack.top))
        other.push(stack.top)
        return stack.top + stack[0] * len(stack) + other.top * stack.pushed


class Solver:
    def __init__(self, field: Any, step: float) -> None:
        self.field, self.size = field, step
        self.calls = 0

    def __call__(self, y: Tensor, t: float) -> Tensor:
        self.calls += 1
        half = self.field(y + self.field(y, t) * (self.size / 2), t + self.size / 2)
        return y + self.size * half


class OfSolvers(Base):
    def field(self, y: Tensor, t: float) -> Tensor:
        return torch.tanh(self.on(torch.tanh(self.up(y) + t)))

    def forward(self, x: Tensor) -> Tensor:
        solve = Solver(self.field, 0.5)
        for step in range(3):
            x = solve(x, step * 0.5)
        return x.sum(0) * solve.calls


@dataclasses.dataclass
class Hypothesis:
    h: Tensor
    score: float = 0.0
    words: list[int] = dataclasses.field(default_factory=list)
    before: Any = None

    def then(self, h: Tensor, word: int) -> Hypothesis:
        return Hypothesis(h, self.score + 0.5, [*self.words, word])


class OfHypotheses(Base):
    """Which forward itself assigns attributes of."""

    def forward(self, x: Tensor) -> tuple[Tensor, list[int]]:
        best = Hypothesis(self.on(x).sum(0))
        for i in range(len(x)):
            step = Hypothesis(torch.tanh(self.up(x[i]) + best.h), best.score + 0.5, [*best.words, i])
            step.before = best
            step.score += 1.0
            best = step
        return best.h * best.score + best.before.h, best.words


class Node:
    def __init__(self, h: Tensor, parts: tuple[Node, ...] = ()) -> None:
        self.h, self.parts = h, parts

    def total(self) -> Tensor:
        return self.h + sum(part.total() for part in self.parts)


class OfTrees(Base):
    def build(self, x: Tensor, low: int, high: int) -> Node:
        if high - low == 1:
            return Node(torch.tanh(self.up(x[low])))
        parts = self.build(x, low, (low + high) // 2), self.build(x, (low + high) // 2, high)
        return Node(torch.tanh(self.on(parts[0].h + parts[1].h)), parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.build(x, 0, len(x)).total()


class Buffer:
    def __init__(self, rows: int) -> None:
        self.rows = torch.zeros(rows, SIZE)

    def write(self, row: int, h: Tensor) -> None:
        self.rows[row % 3] += h


class OfBuffers(Base):
    """What an object has changes in place."""

    def forward(self, x: Tensor) -> Tensor:
        buffer = Buffer(3)
        for i in range(len(x)):
            buffer.write(i, torch.tanh(self.up(x[i])))
        return self.on(buffer.rows).sum(0)


TOLD = [OfStacks, OfSolvers, OfHypotheses, OfTrees, OfBuffers]


def matrices(seed: int, count: int) -> list[Tensor]:
    generator, rng = torch.Generator().manual_seed(seed), Random(seed)
    return [torch.randn(rng.randint(2, 6), SIZE, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("kind", TOLD)
def test_objects_that_forward_makes_are_its_own(kind: type[nn.Module]) -> None:
    """Values and gradients are eager's, and instances that are alike are not recorded."""
    model = seeded(kind)
    assert Closed(model).is_forward_told

    net = bound(model, matrices(0, 8), cells="auto")
    for seed, count in ((1, 1), (2, 7), (3, 32), (4, 32)):
        require_eager(net, matrices(seed, count))
    require_equal_gradients(net, matrices(5, 7), tolerance=1e-5)
    assert any(mould is not None for mould in net.alike._moulds.values())


class OfAModel(Base):
    """Has an object of such a class from one instance to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack(torch.ones(SIZE))

    def forward(self, x: Tensor) -> Tensor:
        stack = Stack(self.up(x).sum(0))
        self.stack.push(torch.ones(SIZE))
        return stack.push(self.on(stack.top)).top


class OfInstances(Base):
    def forward(self, item: tuple[Tensor, Stack]) -> Tensor:
        x, stack = item
        own = Stack(self.up(x).sum(0))
        stack.push(own.top)
        return stack.top * 2


class OfEither(Base):
    """A variable that is an object of the instance's for some."""

    def forward(self, item: tuple[Tensor, Stack]) -> Tensor:
        stack = Stack()
        if len(item[0]) > 3:
            stack = item[1]
        stack.pushed = 5
        return self.up(item[0]).sum(0) * stack.pushed


class Counted:
    made = 0

    def __init__(self, h: Tensor) -> None:
        Counted.made += 1
        self.h = h * Counted.made


class Listed:
    items: list[Tensor] = []  # noqa: RUF012

    def push(self, x: Tensor) -> None:
        self.items.append(x)


class Setter:
    def __init__(self, h: Tensor) -> None:
        self.h = h

    @property
    def h(self) -> Tensor:
        return self._h

    @h.setter
    def h(self, h: Tensor) -> None:
        self._h = h
        SEEN.append(1)


class Registered:
    def __init__(self, h: Tensor) -> None:
        self.h = h
        SEEN.append(len(SEEN))


class Caught:
    def __init__(self, h: Tensor) -> None:
        self.h = h

    def __getattr__(self, name: str) -> Any:
        return SEEN


class Rebound:
    """A method whose `self` is another object by then."""

    def __init__(self, h: Tensor, other: Any = None) -> None:
        self = other or self
        self.h = h


class Dependent:
    def __init__(self, h: Tensor, *rest: Any, kept: list[Any] = []) -> None:  # noqa: B006
        kept.append(h)
        self.h = h


class MakesCounted(Base):
    def forward(self, x: Tensor) -> Any:
        return Counted(self.up(x).sum(0)).h


class MakesListed(Base):
    def forward(self, x: Tensor) -> Any:
        listed = Listed()
        listed.push(self.up(x).sum(0))
        return listed.items[-1]


class MakesSetter(Base):
    def forward(self, x: Tensor) -> Any:
        return Setter(self.up(x).sum(0))._h


class MakesRegistered(Base):
    def forward(self, x: Tensor) -> Any:
        return Registered(self.up(x).sum(0)).h


class MakesCaught(Base):
    def forward(self, x: Tensor) -> Any:
        return Caught(self.up(x).sum(0)).h


class MakesRebound(Base):
    def forward(self, item: tuple[Tensor, Any]) -> Any:
        return Rebound(self.up(item[0]).sum(0), item[1]).h


class MakesDependent(Base):
    def forward(self, x: Tensor) -> Any:
        return Dependent(self.up(x).sum(0)).h


class LeavesOne(Base):
    """On the model, which is to have tensors from its last instance."""

    def forward(self, x: Tensor) -> Any:
        self.last = Node(self.up(x).sum(0))
        return self.last.h


@pytest.mark.parametrize(
    "kind",
    [OfAModel, OfInstances, OfEither, MakesCounted, MakesListed, MakesSetter, MakesRegistered, MakesCaught,
     MakesRebound, MakesDependent, LeavesOne],
)  # fmt: skip
def test_other_objects_leave_forward_open(kind: type[nn.Module]) -> None:
    """What others may have, or what does more when it is made, read or assigned."""
    model = seeded(kind)
    told = Closed(model).is_forward_told
    of_objects = Closed(model, for_instances=True).fields(Stack)

    assert not told or (kind is OfInstances and of_objects is None)


def test_methods_of_objects_that_are_made_are_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Closed(seeded(OfStacks), for_instances=True)
    assert closed.obstacle(closed.model, "forward") is None
    assert closed.look_ups.still_hold()
    monkeypatch.setattr(Stack, "push", lambda self, x: self)

    assert not closed.look_ups.still_hold()
