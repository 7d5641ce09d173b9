"""Recordings run copies of the user's functions: the same values, and no detour through torch's argument parser."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradients import require_equal_gradients
from helpers import bound, require_parity, seeded
from torch import Tensor, nn, relu
from torch.nn import functional

from edbc.capture.code.rebind import overridable
from edbc.capture.standins import standin
from edbc.errors import UnsupportedError

SIZE = 4


def helper(x: Tensor) -> Tensor:
    return torch.tanh(x)


def with_default(x: Tensor, act: Callable[..., Tensor] = torch.sigmoid, *, scale: float = 2.0) -> Tensor:
    return act(x) * scale if act is torch.sigmoid else torch.relu(x)


def scaled(x: Tensor, power: int = 2) -> Tensor:
    return torch.sigmoid(x) * power


with warnings.catch_warnings(action="ignore"):  # it is deprecated, and stands in many a model
    scripted = torch.jit.script(scaled)


def recursive(x: Tensor, depth: int) -> Tensor:
    return x if depth == 0 else torch.tanh(recursive(x, depth - 1))


def doubled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **kwargs) + function(*args, **kwargs)

    return wrapper


@doubled
def decorated(x: Tensor, power: int) -> Tensor:
    return torch.sigmoid(x) * power


def counted(x: Tensor) -> Tensor:
    counted.calls += 1  # type: ignore[attr-defined]
    return torch.sin(x)


counted.calls = 0  # type: ignore[attr-defined]


def rows(x: Tensor) -> Iterator[Tensor]:
    for row in (x, x + x):
        yield torch.cos(row)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, SIZE)
        self.activation = torch.tanh

    def after(self, x: Tensor) -> Tensor:
        return torch.exp(-torch.abs(x))


class Net(Base):
    """A vector of a word, through one idiom."""

    def __init__(self, idiom: Callable[[Net, Tensor], Tensor]):
        super().__init__()
        self.idiom = idiom

    def forward(self, word: int) -> Tensor:
        return getattr(self, "by_" + self.idiom)(self.table.weight[word])  # type: ignore[operator]

    def by_name(self, x: Tensor) -> Tensor:
        return torch.tanh(F.relu(x) + relu(x)) + torch.nn.functional.softplus(functional.elu(x))

    def by_helper(self, x: Tensor) -> Tensor:
        return helper(x) + with_default(x) + with_default(x, torch.relu) + with_default(x, scale=0.5)

    def by_recursion(self, x: Tensor) -> Tensor:
        return recursive(x, 3)

    def by_decorator(self, x: Tensor) -> Tensor:
        return decorated(x, power=3)

    def by_script(self, x: Tensor) -> Tensor:
        return scripted(x) + scripted(helper(x), power=3)

    def by_method(self, x: Tensor) -> Tensor:
        return self.after(x) + self.shape_of(x) + self.made(x) + self.static(x)

    def after(self, x: Tensor) -> Tensor:
        return torch.sin(x) - self.table.weight[0]

    def by_super(self, x: Tensor) -> Tensor:
        return super().after(x) + self.after(x)

    @property
    def one(self) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.cos(x)

    def shape_of(self, x: Tensor) -> Tensor:
        return self.one(x)

    @classmethod
    def made(cls, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    @staticmethod
    def static(x: Tensor) -> Tensor:
        return torch.tanh(x)

    def by_lambda(self, x: Tensor) -> Tensor:
        scale = 0.5
        return sum([(lambda y: torch.tanh(y) * scale)(x), *[torch.sin(x) for _ in range(2)]], torch.cos(x))

    def by_star(self, x: Tensor) -> Tensor:
        pair = [x, helper(x)]
        return torch.maximum(*pair) + helper(*pair[:1]) + F.leaky_relu(*pair[:1], negative_slope=0.3)

    def by_generator(self, x: Tensor) -> Tensor:
        return torch.stack(list(rows(x))).sum(0) + sum(torch.cat([y, y])[:SIZE] for y in (x, x))

    def by_identity(self, x: Tensor) -> Tensor:
        assert self.activation is torch.tanh
        assert helper is HELPER
        kinds = {torch.tanh: torch.sin, torch.sigmoid: torch.cos}
        return kinds[self.activation](x) if self.activation is torch.tanh else x

    def by_type(self, x: Tensor) -> Tensor:
        y = torch.tanh(x)
        right = type(y) is torch.Tensor and type(self.table.weight) is nn.Parameter and type(self) is Net
        return y if right and int is int and type("Made", (), {}).__name__ == "Made" else x

    def by_attribute(self, x: Tensor) -> Tensor:
        return counted(x) * (counted.calls > 0)  # type: ignore[attr-defined]

    @torch.no_grad()
    def without_gradient(self, x: Tensor) -> Tensor:
        return helper(x)

    def by_context(self, x: Tensor) -> Tensor:
        return self.without_gradient(x) + x

    def by_import(self, x: Tensor) -> Tensor:
        import math

        global HELPER
        HELPER = HELPER
        return torch.clamp(x, -math.pi, math.pi)

    def by_choice(self, x: Tensor) -> Tensor:
        function = helper if x.shape[0] > 2 else torch.sin
        return (helper if x.dim() == 1 else torch.sin)(x) + function(x)

    def by_constructor(self, x: Tensor) -> Tensor:
        total, largest = x.sum(), x.max(0, keepdim=True)[0]
        of_lists = torch.tensor([[total, 2], [largest, 3.0], [1, 0.5]]) * torch.asarray([total, 1])
        as_it_is, wide = torch.as_tensor(x), torch.tensor((1, total.double()))
        assert wide.dtype is torch.float64
        assert as_it_is is x
        copies = torch.tensor(x) * x + torch.as_tensor(x, dtype=torch.float64).to(x.dtype)
        return copies + of_lists.sum() * torch.as_tensor([0, total])[1]

    def by_old_name(self, x: Tensor) -> Tensor:
        return torch.autograd.Variable(F.tanh(x)) + F.sigmoid(x) * torch.autograd.Variable(torch.ones(SIZE))

    def by_memory(self, x: Tensor) -> Tensor:
        filled = torch.autograd.Variable(torch.Tensor(2, SIZE))
        filled[0], filled[1] = x, F.sigmoid(x)
        return filled.sum(0)

    def by_nested_library(self, x: Tensor) -> Tensor:
        return functools.reduce(lambda a, b: torch.maximum(a, b), map(helper, [x, x + x]))


class Refused(Net):
    def by_leaf(self, x: Tensor) -> Tensor:
        return torch.tensor(x, requires_grad=True)

    def by_vectors(self, x: Tensor) -> Tensor:
        return torch.tensor([x, x])


HELPER = helper
IDIOMS = [name.removeprefix("by_") for name in vars(Net) if name.startswith("by_")]
SLOW = {"choice", "helper", "identity", "memory", "nested_library"}
"""Where memory changes, or a function is called that was kept in a variable: torch finds the stand-ins there."""


def model(idiom: str) -> Net:
    return seeded(Net, idiom)


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor", "ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("idiom", IDIOMS)
def test_values_and_gradients_equal_eager(idiom: str) -> None:
    """Whatever way a function is reached."""
    require_parity(model(idiom), [0, 1, 2, 3, 1])
    require_equal_gradients(bound(model(idiom).double(), [0, 1, 2]), [0, 1, 2, 1])


@pytest.mark.parametrize("idiom", sorted(set(IDIOMS) - SLOW))
def test_torch_is_not_asked(idiom: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that were seen once are recorded without torch's argument parser."""
    net = bound(model(idiom), [0, 1, 2])
    with torch.no_grad():
        net([0, 1, 2])
        asked: list[str] = []
        original = standin.Symbol.__torch_function__

        def ask(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func.__name__)
            return original(func, types, args, kwargs)

        monkeypatch.setattr(standin.Symbol, "__torch_function__", classmethod(ask))
        net([1, 2, 0])

    assert asked == []


@pytest.mark.parametrize(
    ("idiom", "said"), [("leaf", "graph of gradients of its own"), ("vectors", r"shape \(4,\) in it.*use torch.stack")]
)
def test_constructors_are_refused(idiom: str, said: str) -> None:
    """A leaf of gradients inside forward; a list of tensors of several numbers, which eager refuses too."""
    with pytest.raises(UnsupportedError, match=said):
        bound(seeded(Refused, idiom), [0])


def test_a_name_may_come_to_mean_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper or a method that is replaced between two mini-batches is what the next one runs."""
    module = model("helper")
    net = bound(module, [0, 1])
    with torch.no_grad():
        before = net([0, 1])
        monkeypatch.setitem(globals(), "helper", lambda x: torch.tanh(x) * 3)
        after = net([0, 1])
        assert torch.allclose(after[0], module(0))
        assert not torch.allclose(after[0], before[0])
        monkeypatch.setattr(Net, "by_helper", lambda self, x: torch.cos(x))
        assert torch.allclose(net([0])[0], module(0))


def test_the_users_objects_stay_as_they_are() -> None:
    """Recording changes no function, class or module of the user's."""
    before = {name: (value, getattr(value, "__code__", None)) for name, value in vars(Net).items()}
    names, code = dict(globals()), helper.__code__
    bound(model("name"), [0, 1])([0, 1])

    assert {name: (value, getattr(value, "__code__", None)) for name, value in vars(Net).items()} == before
    assert helper.__code__ is code
    assert dict(globals()) == names


def test_stacks_that_are_nodes_already() -> None:
    """A function of torch's that is Python takes a stack that was made a node before, beside another operand."""

    class Stacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(SIZE, SIZE)

        def forward(self, x: Tensor) -> Tensor:
            h = self.up(x)
            rows = torch.stack([h, h * 2])
            return torch.tanh(rows) + F.layer_norm(rows, (SIZE,), h)

    require_parity(seeded(Stacked), [torch.full((SIZE,), float(i)) for i in range(8)], sizes=(1, 8))


class Summed(nn.Module):
    """Words in a bag, added one by one or by `sum`."""

    def __init__(self, at_once: bool):
        super().__init__()
        self.at_once = at_once
        self.table, self.up = nn.Embedding(9, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, words: tuple[int, ...]) -> list[Tensor]:
        vectors = [self.up(self.table.weight[word]) for word in words]
        if self.at_once:
            total = sum(vector for vector in vectors)
        else:
            total = 0
            for vector in vectors:
                total = total + vector
        part = sum(vectors[1:], vectors[0]) + sum([*vectors, 1.0]) + sum([v[:1] for v in vectors])
        with torch.no_grad():
            weight = torch.sigmoid(sum(vectors))
        return [torch.tanh(total) * weight, part + sum([]) + sum([torch.ones(SIZE)] * 3)]


def test_a_sum_is_the_node_that_its_additions_are_fused_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same graph, numbers and gradients, and no call for each addition, also in a mini-batch of its own."""
    bags = [(1,), (2, 3), (4, 5, 6), (1, 2, 3, 4, 5, 6, 7), (8, 8, 8, 8)]
    calls, seen = [], {}
    add = standin.Value.__add__
    monkeypatch.setattr(standin.Value, "__add__", lambda self, other: (calls.append(1), add(self, other))[1])
    for at_once in (False, True):
        net = require_parity(seeded(Summed, at_once), bags, sizes=(1, 5))
        require_equal_gradients(net, bags, tolerance=1e-6)
        calls.clear()
        graph = net.prepare(bags).capture.graph
        seen[at_once] = len(calls), [graph.types[kind].op for kind in graph.node_type], graph.operands.tolist()

    assert seen[True][1:] == seen[False][1:]
    assert seen[True][0] < seen[False][0]


def test_a_name_of_torchs_that_code_gives_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """As code for old releases is mended, by which torch's own list of its functions fails: all are found but one."""
    overrides = torch.overrides
    caches = (overridable, overrides._get_overridable_functions, overrides.get_ignored_functions)
    before = set(overridable().values())
    monkeypatch.setattr(nn.init, "constant", nn.init.constant_)
    try:
        for cached in caches:
            cached.cache_clear()
        with pytest.raises(AssertionError, match="constant_"):
            overrides.get_overridable_functions()
        assert before - set(overridable().values()) == {torch.amp.autocast}
    finally:
        for cached in caches:
            cached.cache_clear()
