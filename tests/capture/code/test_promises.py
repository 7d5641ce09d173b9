"""`edbc.closed`: forwards whose code cannot be read, and that somebody promises to be functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from gradients import require_equal_gradients
from helpers import bound, require_eager, seeded
from torch import Tensor, nn

import edbc
from edbc.capture.code.closed import Closed
from edbc.capture.code.mark import is_closed
from edbc.errors import EdbcError

SIZE = 4
RUNS: list[int] = []
"""What a library's code leaves behind, that nobody misses."""


def with_defaults(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as libraries have them: it fills arguments in, and asks for what may be absent."""

    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in inspect.signature(function).parameters:
            try:
                default = getattr(self, f"default_{name}")
            except AttributeError:
                continue
            kwargs.setdefault(name, default)
        return function(self, *args, **kwargs)

    return wrapper


class Layer(nn.Module):
    default_scale = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value, self.norm = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.LayerNorm(SIZE)

    def squeeze(self) -> None:
        """Of a name that code calls of tensors."""
        RUNS.append(1)

    @with_defaults
    def forward(self, h: Tensor, scale: float = 1.0) -> Tensor:
        RUNS.append(1)
        weights = torch.softmax(self.query(h) @ h.transpose(-1, -2) * scale, -1)
        return self.norm(h + weights @ self.value(h))


class Library(nn.Module):
    """Nothing here is told to edbc."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(9, SIZE), nn.ModuleList(Layer() for _ in range(2))

    @with_defaults
    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        h = self.words(ids)
        for layer in self.layers:
            h = layer(h)
        setattr(self, "last", None)  # noqa: B010
        return {"states": h, "pooled": h.mean(1)}


class Classifier(nn.Module):
    """The user's own, around a library's."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.out = edbc.closed(Library()), nn.Linear(SIZE, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.encoder(ids)["pooled"].squeeze(0))


def texts(seed: int, count: int) -> list[Tensor]:
    rng = Random(seed)
    return [torch.tensor([[rng.randrange(9) for _ in range(rng.randint(2, 7))]]) for _ in range(count)]


@pytest.mark.parametrize("make", [lambda: edbc.closed(Library()), Classifier], ids=["model", "part"])
def test_what_is_promised_is_not_read(make: Callable[[], nn.Module]) -> None:
    """No Python of it runs for texts of lengths that were met; numbers and gradients are eager's."""
    model = seeded(make)
    assert Closed(model).is_forward_told
    net = bound(model, texts(0, 12), cells="auto", rows=None)
    for seed in range(1, 4):
        require_eager(net, texts(seed, 12))
    require_equal_gradients(net, texts(4, 12), tolerance=1e-5)

    RUNS.clear()
    net(texts(5, 12))
    assert not RUNS


def test_nobody_promises_by_default() -> None:
    closed = Closed(seeded(Library))
    obstacle = closed.obstacle(closed.model, "forward")

    assert not closed.is_forward_told
    assert obstacle is not None
    assert obstacle.location.startswith("test_promises.py:")


def test_a_class_is_promised_by_a_decorator() -> None:
    @edbc.closed
    class Promised(Library):
        pass

    assert is_closed(Promised())
    assert not is_closed(Library())
    assert Closed(Promised()).is_forward_told


class Counting(Layer):
    """Scales by how often it was called."""

    calls = 0

    @with_defaults
    def forward(self, h: Tensor) -> Tensor:
        type(self).calls += 1
        return self.value(h) * type(self).calls


def test_a_promise_that_the_sample_shows_to_be_broken() -> None:
    """Compiling compares with eager execution."""
    with pytest.raises(EdbcError):
        edbc.compile(edbc.closed(seeded(Counting)), [torch.ones(1, n, SIZE) for n in (2, 3, 4) * 4], force=True)
