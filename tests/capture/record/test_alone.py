"""Names that nobody shares memory with change without books; whoever shares it sees the change, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import require_parity, seeded
from test_structures import Base

from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import capture
from edbc.capture.record.table import TypeTable
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


def of_a_result(net: Any, words: list[int]) -> Any:
    h = net.out(net.table(torch.tensor(words[0])))
    same = h
    h += 1.0
    h.mul_(2.0).relu_()
    same[0] = 3.0
    return h, same, h.clone().add_(1.0), h


def while_a_view_is_there(net: Any, words: list[int]) -> Any:
    h = net.out(net.table(torch.tensor(words[0])))
    view = h.view(-1)
    h += 1.0
    return view, h


def when_the_view_is_gone(net: Any, words: list[int]) -> Any:
    h = net.out(net.table(torch.tensor(words[0])))
    total = h.view(3, 1).sum() + h.t().sum()
    h += 1.0
    return total, h


def of_a_row(net: Any, words: list[int]) -> Any:
    rows = net.table(torch.tensor(words)) * 2.0
    row = rows[0]
    row += 1.0
    return rows.sum(0), row


def whose_row_is_there(net: Any, words: list[int]) -> Any:
    rows = torch.outer(net.table(torch.tensor(words[0])), net.start)
    row = rows[1]
    rows *= 2.0
    return row, rows


def stacked(net: Any, words: list[int]) -> Any:
    h, g = net.table(torch.tensor(words[0])) * net.start, net.table(torch.tensor(words[-1])) * 2.0
    rows = torch.stack([h, g])
    h += 1.0
    return rows.sum(0), h, rows[0]


def of_a_stack(net: Any, words: list[int]) -> Any:
    h, g = net.table(torch.tensor(words[0])) * net.start, net.table(torch.tensor(words[-1])) * 2.0
    rows = torch.stack([h, h * g])
    rows += 1.0
    return rows, rows.sum(0), rows[1], h


def of_a_stack_s_item(net: Any, words: list[int]) -> Any:
    h, g = net.table(torch.tensor(words[0])) * net.start, net.table(torch.tensor(words[-1])) * 2.0
    rows = torch.stack([h, h * g])
    row = rows[0]
    row += 1.0
    return rows.sum(0), h, row


def of_an_item_alone(net: Any, words: list[int]) -> Any:
    h = net.out(net.table(torch.tensor(words[0])))
    row = torch.stack([h, h])[0]
    row += 1.0
    return h, row


def of_a_largest(net: Any, words: list[int]) -> Any:
    h, g = net.table(torch.tensor(words[0])) * net.start, net.table(torch.tensor(words[-1])) * 2.0
    rows = torch.stack([h, h * g])
    values, numbers = rows.max(0)
    rows += values
    return numbers, rows


def of_a_sum_of_none(net: Any, words: list[int]) -> Any:
    h = net.out(net.table(torch.tensor(words[0])))
    total = sum([h])
    total += 1.0
    return h, total


def of_its_parts(net: Any, words: list[int]) -> Any:
    h = torch.outer(net.table(torch.tensor(words[0])), net.start)
    h[:, :2] *= 2.0
    h[..., 0] = 0.0
    h[2, 1] = 0.5
    return h, h.sum(0)


class Holder:
    def __init__(self, item: Any) -> None:
        self.item = item


def of_an_attribute_s_part(net: Any, words: list[int]) -> Any:
    holder = Holder(torch.outer(net.table(torch.tensor(words[0])), net.start))
    holder.item[:, :2] *= 2.0
    return holder.item


def of_a_list_s_item(net: Any, words: list[int]) -> Any:
    rows = torch.outer(net.table(torch.tensor(words[0])), net.start)
    parts = [rows[:, :2], rows[:, 2:].clone()]
    for i in range(2):
        parts[i] *= 2.0
    return rows, parts


def of_its_rows(net: Any, words: list[int]) -> Any:
    h = torch.outer(net.table(torch.tensor(words[0])), net.start)
    h[1:3] += net.table(torch.tensor(words[-1]))
    h[-1] -= 1.0
    return h, h.sum(0)


def whose_part_is_there(net: Any, words: list[int]) -> Any:
    h = torch.outer(net.table(torch.tensor(words[0])), net.start)
    part = h[:, :2]
    part *= 3.0
    h[:, :2] *= 2.0
    return h, part


def of_a_view_whose_base_is_gone(net: Any, words: list[int]) -> Any:
    h = torch.outer(net.table(torch.tensor(words[0])), net.start).reshape(1, -1, len(net.start))[0]
    other = (h * 2.0).t().unsqueeze(0)
    other.masked_fill_(h.t() > 0.1, 0.5)
    h += other[0]
    h[:, :1] *= 2.0
    return h, other


def of_views_of_one(net: Any, words: list[int]) -> Any:
    h = torch.outer(net.table(torch.tensor(words[0])), net.start)
    one, other = h[..., 0], h.view(-1)
    del h
    one += 1.0
    return one, other


def seen_before_another_value_was_read(net: Any, words: list[int]) -> Any:
    total = net.out(net.start)
    view = total.view(1, -1)
    if net.table(torch.tensor(words[0])).sum() > 0:
        total += 1.0
    total += 2.0
    return total, view


ALONE = (
    in_loops, by_recursion, kept_in_a_list, of_two_names, of_an_enclosing_function, wider, of_a_result,
    when_the_view_is_gone, of_a_stack, of_a_sum_of_none, of_its_parts, of_an_attribute_s_part,
    of_a_view_whose_base_is_gone,
)  # fmt: skip
SHARED = (
    seen_through_a_view, given, while_a_view_is_there, of_a_row, whose_row_is_there, stacked, of_a_stack_s_item,
    of_an_item_alone, of_a_largest, of_a_list_s_item, of_its_rows,
    whose_part_is_there, of_views_of_one, seen_before_another_value_was_read,
)  # fmt: skip


@pytest.mark.parametrize("forward", [*ALONE, *SHARED])
def test_values_are_those_of_eager(forward: Callable[[Any, Any], Any]) -> None:
    """Books are kept where a name is not alone, and values are eager's either way."""
    net = require_parity(seeded(Base, forward), [[1, 2, 3], [4], [5, 6]], (1, 3))

    assert [recorder.keeps_books for _, recorder in net._idle] == [forward in SHARED]


class OfZeros(Base):
    """What forward has just made, and nobody has seen."""

    def forward(self, words: list[int]) -> Any:
        rows = torch.zeros(2, len(self.start))
        same = rows
        rows[0] = self.table(torch.tensor(words[0])) * self.start
        rows[1] = 1.0
        state = torch.empty(len(self.start)).fill_(1.5).zero_()
        for word in words:
            state += self.table(torch.tensor(word))
        return rows, same.sum(0), state


def test_what_forward_makes() -> None:
    """As `test_values_are_those_of_eager`."""
    net = require_parity(seeded(OfZeros), [[1, 2, 3], [4], [5, 6]], (1, 3))

    assert [recorder.keeps_books for _, recorder in net._idle] == [False]


def beyond_its_shape(net: Any, words: list[int]) -> Any:
    total = 0.0
    total += net.out(net.start).sum()
    total += net.start
    return total


def of_one_element_in_several_places(net: Any, words: list[int]) -> Any:
    total = (net.table(torch.tensor(words[0])) * 2.0).unsqueeze(0).expand(2, -1)
    total += 1.0
    return total


@pytest.mark.parametrize("forward", [beyond_its_shape, of_one_element_in_several_places])
def test_what_eager_does_not_change_is_refused(forward: Callable[[Any, Any], Any]) -> None:
    """`x = x + y` would be larger than what `x += y` changes, or differ where elements are one."""
    model = seeded(Base, forward)
    with pytest.raises(RuntimeError):
        model([1])
    shadow, recorder = recording_shadow(ModelView(model), TypeTable())
    with pytest.raises((RuntimeError, EdbcError)):
        capture(shadow, recorder, [[1]])
