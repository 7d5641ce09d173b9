"""Recorded rows that are assigned, `h = linear(x); h[i] = y`: a buffer from then on, where nobody else shows them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from helpers import bound
from rowparity import HIDDEN, of_model
from torch import nn

Forward = Callable[[Any, torch.Tensor], Any]


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.cell = (
            nn.Linear(HIDDEN, HIDDEN),
            nn.Linear(HIDDEN, HIDDEN),
            nn.GRUCell(HIDDEN, HIDDEN),
        )


def one_after_the_other(net: Any, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    new = h.clone()
    for i in range(1, len(x)):
        new[i] = torch.tanh(net.second(h[i]) + new[i - 1])
    return new.sum(0), h.mean(0)


def by_messages(net: Any, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    for _ in range(2):
        new = h.clone()
        for i in range(len(x)):
            new[i] = new[i] + torch.relu(net.second(h[i // 2]))
        h = new
    return h.mean(0)


def what_is_added_to(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x)
    for i in range(1, len(x)):
        h[i // 2] += torch.sigmoid(net.second(x[i]))
    return h


def states_of_a_loop(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x)
    out, state = h.clone(), torch.zeros_like(x[0])
    for i in range(len(x)):
        state = net.cell(h[i][None], state[None])[0]
        out[i] = state
    return out, h


def some_by_a_list(net: Any, x: torch.Tensor) -> Any:
    h = torch.tanh(net.first(x))
    new, even = h.clone(), list(range(0, len(x), 2))
    new[even] = net.second(h[even])
    new[-2:] = 0.5
    new[:1] = h[-1:]
    return new


def in_rounds_by_vectors(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x)
    for start in range(1, len(x)):
        later = torch.arange(start, len(x), 2)
        sums = torch.zeros_like(h).index_add(0, later, net.second(h[later - 1]))
        h[later] = net.cell(sums[later], h[later])
    return h.mean(0)


def in_rounds_by_masks(net: Any, x: torch.Tensor) -> Any:
    first, h = net.first(x), torch.zeros(len(x), HIDDEN)
    level = torch.arange(len(x)) // 2
    for number in range(len(x)):
        mask = level == number
        h[mask] = net.cell(net.second(h[mask]), first[mask])
    first[level >= 0] = h
    return h.mean(0), first


def while_it_is_read_as_a_whole(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x).clone()
    for i in (0, 0, -1):
        h[i] = net.second(h.mean(0))
    return h.amax(0)


def changed_as_a_whole(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x)
    new = h.clone()
    new[0] = 0.5
    new *= 2
    new[-1] = h[0]
    new += h
    return new


def all_of_it(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x)
    for i in range(len(x)):
        h[i] = net.second(x[i])
    return h


def without_gradients(net: Any, x: torch.Tensor) -> Any:
    h = torch.relu(net.first(x))
    with torch.no_grad():
        mean = h.mean(0)
    h = h.clone()
    h[0] = mean
    return h.cumsum(0)


def of_two_names(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x)
    named = {"h": h}
    h[0] = torch.tanh(net.second(x[-1]))
    return named["h"] @ h.t()


ALONE = (
    one_after_the_other, by_messages, what_is_added_to, states_of_a_loop, some_by_a_list, in_rounds_by_vectors,
    in_rounds_by_masks,
    while_it_is_read_as_a_whole, all_of_it, without_gradients, of_two_names,
)  # fmt: skip


def while_a_row_is_there(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x).clone()
    row = h[0]
    h[0] = 1.0
    return h.sum(0), row


def while_a_row_changes(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x).clone()
    row = h[0]
    row += 1
    h[-1] = 2.0
    return h.sum(0), row


def while_a_part_of_a_row_is_there(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x).clone()
    part = h[0][2:]
    h[0] = 1.0
    return h.sum(0), part


def while_a_view_is_there(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x).clone()
    h[0] = 2.0
    view = h.view(len(x), 2, -1)
    h[0] = 3.0
    return view.sum(0), h


def while_a_slice_is_there(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x).clone()
    rest = h[1:]
    h[-1] = 3.0
    return h.sum(0), rest.sum(0)


def while_it_stands_the_other_way(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x)
    turned = h.t()
    h[0] = 1.0
    return turned.sum(1)


def while_rows_have_names(net: Any, x: torch.Tensor) -> Any:
    out = net.first(x).clone()
    for i in range(len(x)):
        one, other = out[i], out[i - 1]
        out[i] = one * 0.5 + other
        one = one * 2
        out[i] += other
    return out


def elements_of_matrices_as_wide_as_rows(net: Any, x: torch.Tensor) -> Any:
    shown = torch.ones(len(x), len(x)).triu() > 0
    start = nn.functional.embedding(shown.long(), net.first.bias[:2, None]).squeeze(-1)
    start[~shown] = 0
    bias = torch.zeros(len(x), len(x), device=net.first.weight.device)
    bias[shown] = net.first(x[shown.nonzero()[:, 0]]).sum(1)
    return (start + bias) @ net.second(x)


def rows_that_are_named_twice(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x)
    new, twice = h.clone(), torch.tensor([0, -1, 0])
    h[[0, 0]] = net.second(x[[0, -1]])
    new[twice] = net.second(torch.sigmoid(x[twice]))
    copied = torch.tanh(x).index_copy(0, torch.tensor([0, 0]), net.second(h[[0, -1]]))
    filled = torch.zeros(len(x), HIDDEN)
    filled[twice] = net.first(x[0])
    return h, new, copied, filled


SHARED = (
    rows_that_are_named_twice, elements_of_matrices_as_wide_as_rows,
    while_a_row_is_there, while_a_row_changes, while_a_part_of_a_row_is_there, while_a_view_is_there,
    while_a_slice_is_there, while_it_stands_the_other_way, while_rows_have_names, changed_as_a_whole,
)  # fmt: skip


def rows(rng: Random) -> torch.Tensor:
    return torch.tensor([rng.gauss(0, 1) for _ in range(rng.randint(1, 8) * HIDDEN)]).view(-1, HIDDEN)


@pytest.mark.parametrize("forward", [*ALONE, *SHARED], ids=lambda forward: forward.__name__)
def test_values_and_gradients_are_those_of_eager(forward: Forward) -> None:
    """They stay rows where nobody else shows them; values are eager's either way."""
    net = of_model(type("Net", (Base,), {"forward": forward})(), rows)
    assert forward in SHARED or net._idle[0][1].ragged
    assert forward is not in_rounds_by_vectors or not net._idle[0][1].keeps_books


def all_by_a_mask(net: Any, x: torch.Tensor) -> Any:
    h = net.first(x)
    h[torch.arange(len(x)) >= 0] = net.second(x)
    return h


@pytest.mark.parametrize("forward", [all_of_it, all_by_a_mask])
def test_what_is_overwritten_has_a_gradient(forward: Forward) -> None:
    """Zeros, as in eager PyTorch, where an optimiser's decay tells them from none."""
    model = type("Net", (Base,), {"forward": forward})()
    net = bound(model, [rows(Random(i)) for i in range(6)], cells="auto", rows=True)
    torch.stack([h.sum() for h in net([rows(Random(i)) for i in range(3)])]).sum().backward()
    assert net._idle[0][1].ragged
    assert model.first.weight.grad is not None
    assert not model.first.weight.grad.any()
