"""What forward returns comes back in the classes that it returned."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
import torch
from helpers import bound, seeded
from torch import nn

import edbc

Pair = namedtuple("Pair", "h c")


class Named(list[Any]):
    """A list with an attribute."""

    name = "none"


class Triple(tuple[Any, ...]):
    """A tuple of another class."""


def named(h: Any) -> Named:
    result = Named([h, h + 1])
    result.name = "states"
    return result


NESTS = [
    lambda h: torch.max(torch.stack([h, -h]), 0),
    lambda h: torch.stack([h, -h]).min(0, keepdim=True),
    lambda h: torch.max(h.unsqueeze(0) * 2, 1),
    lambda h: torch.sort(h),
    lambda h: torch.linalg.slogdet(h.unsqueeze(0).T @ h.unsqueeze(0) + torch.eye(3)),
    lambda h: (h, h.shape),
    lambda h: deque([h, h + 1], maxlen=2),
    named,
    lambda h: Triple((h, 2)),
    lambda h: Pair(h, [Triple((h,))]),
    lambda h: OrderedDict(a=h, b=deque([h])),
    lambda h: defaultdict(list, {3: h}),
]


class Returns(nn.Module):
    """Makes a nest of a recorded vector, inside a cell or between cells."""

    def __init__(self, make: Any):
        super().__init__()
        self.table = nn.Embedding(4, 3)
        self.make = make

    def forward(self, word: int) -> Any:
        return self.make(torch.tanh(self.table.weight[word]))


class Makes(nn.Module):
    """A cell that makes a nest."""

    def __init__(self, make: Any):
        super().__init__()
        self.make = make

    def forward(self, h: Any) -> Any:
        return self.make(h)


def require_same(got: Any, expected: Any) -> None:
    """Same classes, attributes and numbers, all the way down."""
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected)
        return
    assert getattr(got, "__dict__", None) == getattr(expected, "__dict__", None)
    assert getattr(got, "maxlen", None) == getattr(expected, "maxlen", None)
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        got, expected = list(got.values()), list(expected.values())
    if isinstance(expected, tuple | list | deque):
        assert len(got) == len(expected)
        for pair in zip(got, expected, strict=True):
            require_same(*pair)


@pytest.mark.parametrize("make", NESTS)
@pytest.mark.parametrize("in_cell", [False, True], ids=["between", "inside"])
def test_nests_come_back_in_their_own_classes(make: Any, in_cell: bool) -> None:
    """Named results of torch, sizes, deques, and classes derived from list, tuple and dict are returned as such."""
    model = seeded(Returns, edbc.cell(Makes)(make) if in_cell else make)
    got = bound(model, [1, 2])([2, 1, 1])
    for result, word in zip(got, [2, 1, 1], strict=True):
        require_same(result, model(word))
