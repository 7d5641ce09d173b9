"""Sums in a variable that nobody else looks at are made anew; all others change what they change."""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import require_parity, seeded
from test_structures import Base

from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import capture
from edbc.capture.record.table import TypeTable
from edbc.capture.standins.accumulator import _fresh_in, changes_of
from edbc.errors import EdbcError


def in_loops(net: Any, words: list[int]) -> Any:
    total, count = 0.0, 0
    for word in words:
        total += net.table(torch.tensor(word))
        count += 1
        if word % 2:
            total -= 2.0 * net.start
    return total / count


def by_recursion(net: Any, words: list[int]) -> Any:
    total = 0
    if len(words) > 1:
        total += by_recursion(net, words[1:])
    total += net.out(net.table(torch.tensor(words[0])))
    return total


def kept_in_a_list(net: Any, words: list[int]) -> Any:
    total, found = 0.0, []
    for word in words:
        total += net.table(torch.tensor(word))
        found.append(total)
    return found


def seen_through_a_view(net: Any, words: list[int]) -> Any:
    total = 0.0
    for word in words:
        total += net.table(torch.tensor(word))
        first = total[:2]
    return first, total


def given(net: Any, words: list[int]) -> Any:
    def add(total: Any, word: int) -> Any:
        total += net.table(torch.tensor(word))
        return total

    total = net.start + 1.0
    return [add(total, word) for word in words], total


def of_two_names(net: Any, words: list[int]) -> Any:
    total = other = net.table(torch.tensor(words[0])) * 2.0
    for word in words:
        total += net.table(torch.tensor(word))
    return total, other


def of_an_enclosing_function(net: Any, words: list[int]) -> Any:
    total, found = 0.0, []

    def add(word: int) -> None:
        nonlocal total
        total += net.table(torch.tensor(word))
        found.append(total)

    for word in words:
        add(word)
    return found


def wider(net: Any, words: list[int]) -> Any:
    total = 0.0
    total += net.table(torch.tensor(words[0])).sum()
    total += net.table(torch.tensor(words[0])).double().sum()
    return total


@pytest.mark.parametrize(("forward", "count"), [
    (in_loops, 3), (by_recursion, 2), (kept_in_a_list, 0), (seen_through_a_view, 0), (given, 0), (of_two_names, 0),
    (of_an_enclosing_function, 0), (wider, 2),
])  # fmt: skip
def test_values_are_those_of_eager(forward: Callable[[Any, Any], Any], count: int) -> None:
    """What is an accumulator keeps no books, what is none does, and values are eager's either way."""
    assert len(list(changes_of(forward.__code__))) == count
    net = require_parity(seeded(Base, forward), [[1, 2, 3], [4], [5, 6]], (1, 3))

    assert [recorder.keeps_books for _, recorder in net._idle] == [not count or forward is wider]


def test_what_would_not_fit_is_refused_as_in_eager() -> None:
    """`x = x + y` would be larger than what `x += y` changes."""

    def forward(net: Any, words: list[int]) -> Any:
        total = 0.0
        total += net.out(net.start).sum()
        total += net.start
        return total

    model = seeded(Base, forward)
    with pytest.raises(RuntimeError):
        model([1])
    shadow, recorder = recording_shadow(ModelView(model), TypeTable())
    with pytest.raises((RuntimeError, EdbcError)):
        capture(shadow, recorder, [[1]])


def test_all_operators_in_place_are_told() -> None:
    """Offsets are those of instructions of this Python."""

    def function(x: Any) -> Any:
        y = 1
        y *= x
        y @= x
        y //= x
        return y

    operations = [i.offset for i in dis.get_instructions(function) if i.opname == "BINARY_OP"]
    assert sorted(changes_of(function.__code__)) == operations


FRESH = """
a = torch.zeros(3).index_add_(0, i, x)
b = torch.zeros_like(x).add_(x).mul_(2)
c = x.new_zeros(3)
c.add_(x)
c = c.mul_(3)
for e in edges:
    c.add_(e)
d = c.exp_()
"""
SHOWN = """
x.add_(1)
x.view(3).add_(x)
a = torch.zeros(3)
b = a[:2]
a.add_(x)
c = torch.zeros(3)
c.add_(c)
d = torch.ones(3)
kept.append(d)
d.add_(x)
e = torch.as_tensor(x)
e.add_(x)
if x:
    f = torch.zeros(3)
f.add_(x)
g = h = torch.zeros(3)
g.add_(x)
"""


@pytest.mark.parametrize(("text", "count"), [(FRESH, 7), (SHOWN, 0), ("def", 0)])
def test_fresh_tensors_are_those_that_nobody_else_shows(text: str, count: int) -> None:
    """Made in the expression, or in the same block for a variable that nobody looks at before the last change."""
    assert len(_fresh_in(text)[0]) == count
