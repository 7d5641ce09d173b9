"""Tensors that forward makes and fills row by row: values as in eager, without books where nobody shares them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import bound, require_parity, seeded
from test_structures import SIZE, Base

import edbc

WORDS = [[1, 2, 3], [4], [5, 6], [1, 2, 3], [7, 1, 9, 9, 2]]


def word_of(net: Any, word: int) -> Any:
    return torch.tanh(net.table(torch.tensor(word)) * net.start)


def of_states(net: Any, words: list[int]) -> Any:
    states = torch.zeros(len(words), SIZE)
    for i, word in enumerate(words):
        states[i] = word_of(net, word)
    return states.mean(0), states


def that_reads_what_came_before(net: Any, words: list[int]) -> Any:
    states = torch.empty(len(words) + 1, SIZE)
    states[0] = net.start
    for i, word in enumerate(words):
        states[i + 1] = torch.tanh(states[i] + word_of(net, word))
    return states[-1], states[1:].amax(0), states


class Steps:
    """An object of the user's, whose methods run as they are."""

    def __init__(self, start: Any):
        self.start = start

    def taken(self, net: Any, words: list[int]) -> Any:
        states = torch.empty(len(words) + 2, *self.start.shape, dtype=self.start.dtype)
        states[0], spare = self.start, states.new_empty(1, SIZE)
        for i, word in enumerate(words):
            states[i + 1] = torch.tanh(states[i] + word_of(net, word))
        states[-1] = spare[0] = self.start
        return states, spare


def that_another_object_fills(net: Any, words: list[int]) -> Any:
    return Steps(torch.tanh(net.start)).taken(net, words)


def that_starts_with_what_was_made(net: Any, words: list[int]) -> Any:
    states = torch.ones(len(words), SIZE)
    for i, word in enumerate(words):
        states[i] = states[i - 1] * word_of(net, word)
    return states.sum(0)


def of_rows_assigned_twice(net: Any, words: list[int]) -> Any:
    memory = torch.full((3, SIZE), 0.5)
    for word in words:
        memory[word % 3] = memory[word % 3] + word_of(net, word)
    return memory.sum(0), memory


def of_rows_added_to(net: Any, words: list[int]) -> Any:
    memory = torch.zeros(3, SIZE)
    for word in words:
        memory[word % 3] += word_of(net, word)
    return memory, memory.relu().sum()


def of_a_batch_of_one(net: Any, words: list[int]) -> Any:
    outputs = torch.zeros(1, len(words), SIZE)
    for i, word in enumerate(words):
        outputs[:, i, :] = word_of(net, word).unsqueeze(0)
    return outputs, outputs[0, 0]


def of_numbers_in_a_chart(net: Any, words: list[int]) -> Any:
    chart = torch.full((len(words), len(words)), -9.0)
    for i, one in enumerate(words):
        for j, other in enumerate(words[: i + 1]):
            chart[i, j] = word_of(net, one).dot(word_of(net, other))
    return chart.logsumexp(1), chart[-1]


def of_vectors_in_a_chart(net: Any, words: list[int]) -> Any:
    chart = torch.zeros(len(words), len(words), SIZE)
    for i, word in enumerate(words):
        chart[i, i] = word_of(net, word)
    for span in range(1, len(words)):
        for i in range(len(words) - span):
            chart[i, i + span] = torch.tanh(chart[i, i + span - 1] * chart[i + 1, i + span]).max(chart[i][i])
    return chart[0, -1], chart[0]


def of_rows_assigned_at_once(net: Any, words: list[int]) -> Any:
    states = torch.zeros(len(words) + 2, SIZE)
    states[1:-1] = net.table(torch.tensor(words)) * 2.0
    states[0] = word_of(net, words[0])
    return states.sum(0), states[:2]


def of_parts_of_rows(net: Any, words: list[int]) -> Any:
    states = torch.zeros(len(words), 2 * SIZE)
    for i, word in enumerate(words):
        states[i, :SIZE] = word_of(net, word)
        states[i, SIZE:] = net.start
    return states.sum(0)


def read_while_it_grows(net: Any, words: list[int]) -> Any:
    states, sums = torch.zeros(len(words), SIZE), []
    for i, word in enumerate(words):
        sums.append(states.sum(0))
        states[i] = word_of(net, word) + states[: i + 1].mean(0)
    return sums, states


def of_a_table_of_paths(net: Any, words: list[int]) -> Any:
    """Numbers first, elements computed of their neighbours then."""
    rows = net.table(torch.tensor(words)) * net.start
    table = torch.full((len(words) + 1, len(words) + 1), float("inf"))
    table[0, 0] = 0.0
    for i in range(1, len(words) + 1):
        table[i, 0] = float(i)
        for j in range(1, len(words) + 1):
            before = torch.stack([table[i - 1, j - 1], table[i - 1, j], table[i, j - 1]])
            table[i, j] = rows[i - 1, 0] * rows[j - 1, 1] - torch.logsumexp(-before, 0)
    return table[-1, -1], table[1:, 1:]


def of_zeros_of_either_sign(net: Any, words: list[int]) -> Any:
    signs = torch.full((2,), 0.0) + net.start[0], torch.full((2,), -0.0)
    return signs[0], torch.copysign(word_of(net, words[0])[:2], signs[1])


def read_as_numbers_first(net: Any, words: list[int]) -> Any:
    states = torch.zeros(2, SIZE)
    states[0] = 3
    found = float(states[0, 1]) + float(states[1].sum())
    states[1] = word_of(net, words[0]) * found
    return states


def overwritten(net: Any, words: list[int]) -> Any:
    """What was there before has a gradient of zeros."""
    states = torch.zeros(2, SIZE)
    states[0] = net.start * 2.0
    states[0] = word_of(net, words[0]).detach()
    states[1] = net.out(net.table(torch.tensor(words[0]))).sum()
    states[1] = 0.25
    return states


def given_to_others(net: Any, words: list[int]) -> Any:
    def fill(states: Any, i: int) -> Any:
        states[i] = word_of(net, words[i])
        return states

    states = torch.zeros(len(words), SIZE)
    rows = [fill(states, i)[i] for i in range(len(words))]
    for row in rows:
        row *= 2.0
    return rows, states


def of_two_names(net: Any, words: list[int]) -> Any:
    states = torch.zeros(3, SIZE)
    first, head = states[0], states[:2]
    states[0] = word_of(net, words[0])
    head[1] = word_of(net, words[-1])
    return first, head, states


def added_to_as_a_whole(net: Any, words: list[int]) -> Any:
    states = torch.zeros(2, SIZE)
    states[0] = word_of(net, words[0])
    states += 0.5
    states[1] = word_of(net, words[-1])
    return states


def of_spans(net: Any, words: list[int]) -> Any:
    """The chart of a parser: what an instance brings on its diagonal, read by rows and by columns."""
    own = torch.tensor([[0.1 * word] * SIZE for word in words])
    chart = torch.zeros(len(words), len(words), SIZE)
    for i in range(len(words)):
        chart[i, i] = own[i]
    for width in range(1, len(words)):
        for i in range(len(words) - width):
            j = i + width
            left, right = chart[i, i:j].clone(), chart[i + 1 : j + 1, j, None].clone()
            chart[i, j] = torch.tanh(left * net.start + right[:, 0]).sum(0)
    return chart[0, -1] * net.start, chart[:, -1], chart


def of_messages(net: Any, words: list[int]) -> Any:
    h = net.table(torch.tensor(words))
    for _ in range(2):
        sums = torch.zeros_like(h)
        for i, word in enumerate(words):
            sums[word % len(words)] += torch.tanh(h[i])
        h = sums + h * net.start
    return h


def of_what_an_instance_brings(net: Any, words: list[int]) -> Any:
    own, states = torch.tensor([[0.1 * word] * SIZE for word in words]), torch.zeros(len(words) + 1, SIZE)
    kept = torch.zeros_like(own)
    for i in range(len(words)):
        states[i] = kept[i] = own[i]
    kept *= 2.0
    return states * net.start, states[0] + net.start, states[-2:] * net.start, kept


def while_a_view_of_a_slice_is_there(net: Any, words: list[int]) -> Any:
    states = torch.zeros(3, SIZE)
    states[0] = word_of(net, words[0])
    seen = states[:2].unsqueeze(1)
    states[0] = word_of(net, words[-1])
    return seen, states


def by_numbers_in_tensors(net: Any, words: list[int]) -> Any:
    """An index of no dimension is a number, also where what it shows is read before anything is recorded."""
    states, length = torch.zeros(1, SIZE), torch.tensor([len(words)])
    for i, word in enumerate(words):
        active = torch.nonzero(length > i).squeeze()
        states[active] = torch.maximum(states[active], word_of(net, word))
    return states


def while_a_view_of_a_column_is_there(net: Any, words: list[int]) -> Any:
    states = torch.zeros(2, 2, SIZE)
    states[0, 1] = word_of(net, words[0])
    seen = states[:, 1, None]
    states[0, 1] = word_of(net, words[-1])
    return seen, states


def while_a_view_is_there(net: Any, words: list[int]) -> Any:
    states = torch.zeros(2, SIZE)
    states[0] = word_of(net, words[0])
    flipped = states.t()
    states[1] = word_of(net, words[-1])
    return flipped, states


def while_a_row_s_view_is_there(net: Any, words: list[int]) -> Any:
    states = torch.zeros(2, SIZE)
    states[0] = word_of(net, words[0])
    half = states[0][:2]
    states[0] = word_of(net, words[-1])
    return half, states


def whose_whole_row_is_there(net: Any, words: list[int]) -> Any:
    states = torch.zeros(2, 2, SIZE)
    states[0, 1] = word_of(net, words[0])
    row = states[0]
    flipped = row.t()
    states[0, 0] = word_of(net, words[-1])
    return flipped, row, states


def added_to_as_a_whole_while_a_row_is_there(net: Any, words: list[int]) -> Any:
    states = torch.zeros(2, SIZE)
    states[0] = word_of(net, words[0])
    row = states[0]
    states *= 2.0
    return row, states


def of_slices_that_change(net: Any, words: list[int]) -> Any:
    states = torch.ones(len(words) + 2, SIZE)
    for i, word in enumerate(words):
        states[i : i + 2] += word_of(net, word)
        states[i : i + 2] *= torch.stack([word_of(net, word), net.start])
        states[: i + 1] -= 0.5
        states[i:] /= states[i + 1] + 2
    return states, states[0]


def of_halves(net: Any, words: list[int]) -> Any:
    """Vectors at either end of rows, at once and one by one."""
    states, half = torch.zeros(len(words), 4 * SIZE), 2 * SIZE
    states[:, half:] = torch.stack([word_of(net, word).repeat(2) * 2 for word in words])
    for i, word in enumerate(words):
        states[i, :half] = word_of(net, word).repeat(2)
    return states


def of_halves_and_elements(net: Any, words: list[int]) -> Any:
    """Once more, and elements beside them, in front and behind."""
    states, half = of_halves(net, words), 2 * SIZE
    seen = states[0] * 1.0
    states[-1, :half] = net.start.repeat(2)
    states[0, 3], states[-1, 5] = 5.0, net.start[1]
    other = torch.ones(2, half + 1)
    other[0, 1], other[1, 1:] = net.start[0], states[0, half:]
    other[0, 1:], other[1, 2] = states[0, :half], net.start[2]
    return seen, states, other, other[:, 1].sum() + states[:, 4].sum()


def net_of(forward: Callable[[Any, Any], Any]) -> Any:
    """A model whose method it is."""
    return seeded(type("Net", (Base,), {"forward": forward}))


ALONE = (
    of_states, that_reads_what_came_before, that_starts_with_what_was_made, of_rows_assigned_twice, of_rows_added_to,
    of_a_batch_of_one, of_numbers_in_a_chart, of_vectors_in_a_chart, of_rows_assigned_at_once, of_parts_of_rows,
    read_while_it_grows, overwritten, of_a_table_of_paths, of_zeros_of_either_sign,
    read_as_numbers_first, given_to_others, of_two_names, added_to_as_a_whole, of_spans, of_messages,
    of_what_an_instance_brings, by_numbers_in_tensors, of_slices_that_change,
    of_halves, of_halves_and_elements,
)  # fmt: skip
SHARED = (
    while_a_view_is_there, while_a_row_s_view_is_there, whose_whole_row_is_there,
    added_to_as_a_whole_while_a_row_is_there, while_a_view_of_a_slice_is_there, while_a_view_of_a_column_is_there,
)  # fmt: skip


@pytest.mark.parametrize("forward", [*ALONE, *SHARED])
def test_values_are_those_of_eager(forward: Callable[[Any, Any], Any]) -> None:
    """Books are kept where others may see the memory, and values are eager's either way."""
    net = require_parity(net_of(forward), WORDS, (1, 3, 5))

    assert [recorder.keeps_books for _, recorder in net._idle] == [forward in SHARED]


def _read_by_rows(net: Any, x: torch.Tensor) -> Any:
    b = torch.zeros(3, SIZE)
    for i in range(3):
        b[i] = x[i]
    return b[1] * net.start + (b[0:2] * net.start).sum(0)


def _read_as_a_whole(net: Any, x: torch.Tensor) -> Any:
    b, c = torch.zeros(3, SIZE), torch.zeros_like(x)
    for i in range(3):
        b[i] = x[i]
    c[1:], c[0, 2:] = x[:-1], x[1, 2:]
    return b * net.start, torch.cat([c, x]) * net.start, b * 2.0, c.sum() * net.start


def _then_recorded(net: Any, x: torch.Tensor) -> Any:
    b = torch.ones(3, SIZE)
    b[1:] = x[:2]
    before = b[2] * net.start
    b[1] = net.start * x[3]
    return before, b, b[1:] * net.start


def _numbers_between(net: Any, x: torch.Tensor) -> Any:
    b = torch.zeros(3, SIZE)
    b[0], b[1, 2], b[2] = x[0], 5.0, x[1]
    b[0, 3] = (x[0] * net.start)[1]
    return b * net.start


def _added_to(net: Any, x: torch.Tensor) -> Any:
    b = torch.zeros(4, SIZE)
    for i in range(3):
        b[i] += x[i]
    b[1:3, 2] = 7.0
    b[0:2] += x[0:2] * net.start
    b[1:3, 0] = (x[2] * net.start)[:2]
    return b.sum(0), b[1:, 0].sum()


def _by_columns(net: Any, x: torch.Tensor) -> Any:
    b = torch.zeros(4, 4, SIZE)
    for i in range(4):
        b[i, i] = x[i]
    b[0, -1] = net.start * x[0]
    column = b[-4:3, -1]
    b[1:3, 2] = net.start * x[1]
    seen = b[0:3, 2]
    seen[0] = net.start * x[2]
    b[:2, 3] += x[:2]
    return column, seen.tanh(), b[:, 3], b[3:1, 0], b[[3, 0, 0], 3], b[torch.tensor([1, 2])]


def _gathered(net: Any, x: torch.Tensor) -> Any:
    """Nodes of a tree by number, children first."""
    h = torch.zeros(len(x), SIZE)
    for i in reversed(range(len(x))):
        children = [k for k in (2 * i + 1, 2 * i + 2) if k < len(x)]
        h[i] = torch.tanh(x[i] * net.start + (h[children].sum(0) if children else torch.zeros(SIZE)))
    return h[0], h


def _seen_as_a_whole(net: Any, x: torch.Tensor) -> Any:
    b, c = torch.zeros(3, SIZE), torch.zeros(3, SIZE)
    b[0] = c[0] = x[0]
    row, flat = c[0], b.view(-1)
    b[1] = c[1] = net.start * x[1]
    c[0] = net.start * x[2]
    return flat * 2.0, b, row, c


def _returned(net: Any, x: torch.Tensor) -> Any:
    b, c = torch.zeros_like(x, dtype=None), torch.zeros(2, SIZE)
    b[0], c[:1] = x[1], x[:1]
    return b, {"c": [c]}, net.start * x[1]


def _assigned_by_level(net: Any, x: torch.Tensor) -> Any:
    h = torch.zeros(len(x), SIZE)
    for level in ([2, -1], [1], [0]):
        sums = torch.zeros(len(level), SIZE)
        for place, i in enumerate(level):
            sums[place] += h[(2 * i + 1) % len(x)]
        h[torch.tensor(level)] = torch.tanh(x[level] * net.start + sums)
    h[[1, 2]] = net.start
    return h[0], h


OF_INSTANCES = (
    _returned, _seen_as_a_whole, _read_by_rows, _read_as_a_whole, _then_recorded, _numbers_between, _added_to,
    _by_columns, _gathered, _assigned_by_level,
)  # fmt: skip
SEEN = {_seen_as_a_whole, _then_recorded}
"""A view is there, or a part of rows is assigned."""


@pytest.mark.parametrize("forward", OF_INSTANCES)
def test_what_instances_bring(forward: Callable[[Any, torch.Tensor], Any]) -> None:
    """Alike ones are recorded once and no books are kept, but where numbers are written into a real tensor, or others
    see the memory."""
    instances = list(torch.randn(9, 4, SIZE, generator=torch.Generator().manual_seed(0)))
    net = require_parity(net_of(forward), instances, (1, 3, 9))

    assert any(recorder.keeps_books for _, recorder in net._idle) == (forward in SEEN)
    is_alike = net.alike is not None and any(mould is not None for mould in net.alike._moulds.values())
    assert is_alike == (forward not in (_seen_as_a_whole, _numbers_between))


def test_where_in_a_chart_is_no_part_of_a_type() -> None:
    """Spans of one width are of one type, wherever they begin and however long the sentence is."""
    sentences = [[*range(1, n + 1)] for n in (5, 6, 7)]
    graph = require_parity(net_of(of_spans), sentences, (3,)).prepare(sentences).capture.graph
    types = [graph.types[kind].signature for kind in {*graph.node_type.tolist()}]
    assert not any("written" in signature for signature in types)
    assert len(types) <= 5 * 6 + 4  # of each of six widths five, and of what is returned


def test_vectors_at_an_end_of_a_row_are_no_elements() -> None:
    """Each half that is assigned is one node."""
    net = require_parity(net_of(of_halves), WORDS, (3,))
    graph, num_words = net.prepare(WORDS).capture.graph, sum(map(len, WORDS))
    assert graph.num_nodes <= 8 * num_words + 2 * len(WORDS)


def of_any_order(net: Any, instance: tuple[int, list[int]]) -> Any:
    """What a program drawn from a seed does with a buffer and the names that it has of its parts."""
    seed, words = instance
    rng = random.Random(seed)
    made = rng.choice((
        lambda: torch.zeros(4, SIZE), lambda: torch.ones(2, 3, SIZE), lambda: torch.full((4, SIZE), 2.0),
        lambda: torch.zeros(3, 3, SIZE), lambda: torch.zeros_like(net.table(torch.tensor([*words, 1]))),
        lambda: torch.ones_like(torch.tensor([[0.5] * SIZE] * 3)),
    ))()  # fmt: skip
    names, results = [made], []
    for word in words * 3:
        name = rng.choice(names)
        value, i = word_of(net, word), rng.randrange(len(name)) if name.ndim > 1 else 0
        own, j = torch.tensor([0.25 * word] * SIZE), rng.randrange(name.shape[1]) if name.ndim == 3 else 0
        action = rng.randrange(22)
        if action <= 3 and name.ndim > 1:
            name[i] = value
        elif action == 4 and name.ndim > 1:
            name[i] += value
        elif action == 5 and name.ndim > 1:
            names.append(name[i])
        elif action == 6 and name.ndim > 1:
            names.append(name[: i + 1])
        elif action == 7:
            name *= 1.5
        elif action == 8:
            results.append(name.sum(0))
        elif action == 9 and name.ndim == 3:
            name[i, j] = value * 2.0
        elif action == 10 and name.ndim == 2:
            names.append(name[: i + 1].unsqueeze(1))
        elif action == 11 and name.ndim == 3:
            names.append(name[i:, j])
        elif action == 12 and name.ndim == 3:
            names.append(name[: i + 1, j, None])
        elif action == 13 and name.ndim > 1:
            name[i] = own
        elif action == 14 and name.ndim == 3:
            name[i, j] = own
        elif action == 15 and name.ndim > 1:
            name[[i, 0]] = value
        elif action == 16 and name.ndim > 1:
            names.append(name[torch.tensor([0, i])])
        elif action == 18 and name.ndim > 1:
            name[i:] += value
        elif action == 19 and len(name) > 1 < name.ndim:
            name[: len(name) // 2] *= name[-(len(name) // 2) :]
        elif action == 20 and name.ndim > 1:
            part = name[: i + 1]
            part -= value
        elif action == 21 and name.ndim == 3:
            name[i:, j] /= 2
        elif rng.random() < 0.2:
            names.append(name.transpose(0, -1).transpose(0, -1))
    return [*results, *names]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_changes(seed: int) -> None:
    """Rows, slices, views and wholes, assigned and read in any order by any of their names."""
    rng = random.Random(seed)
    instances = [(rng.randrange(10**6), [rng.randrange(20) for _ in range(rng.randint(1, 4))]) for _ in range(3)]
    require_parity(net_of(of_any_order), instances, (1, 3))


class Columns(Base):
    """Places of a batch of one, each assigned what a batch of one gives."""

    def forward(self, words: list[int]) -> Any:
        found = torch.zeros(1, len(words), SIZE)
        for t, word in enumerate(words):
            found[:, t, :] = torch.tanh(self.table(torch.tensor([word])))
        return found


def test_what_a_batch_of_one_gives_is_assigned_as_it_is() -> None:
    """Without a node that takes the only element."""
    instances = [[1, 2, 3], [4, 5]]
    graph = require_parity(seeded(Columns), instances, (1, 2)).prepare(instances).capture.graph
    assert "excerpt" not in {graph.types[kind].op for kind in graph.node_type.tolist()}


def test_without_gradients() -> None:
    """In `torch.inference_mode()`, where tensors keep no versions."""
    net = require_parity(net_of(of_a_table_of_paths), WORDS, (3,))
    with torch.inference_mode():
        for result, words in zip(net(WORDS), WORDS, strict=True):
            torch.testing.assert_close(result[0], net.model(words)[0])


def test_what_methods_of_other_objects_make_has_no_numbers_of_chance() -> None:
    """Such code runs as it is: what `torch.empty` finds in memory is part of no graph."""
    model = net_of(that_another_object_fills)
    net = edbc.compile(model, WORDS, force=True)

    for ours, theirs in zip(net(WORDS), map(model, WORDS), strict=True):
        torch.testing.assert_close(ours, theirs)


def through_data(buffer: torch.Tensor, at: int, value: float) -> None:
    buffer.data[0][at] = value


def through_numpy(buffer: torch.Tensor, at: int, value: float) -> None:
    buffer.numpy()[0, at] = value


def in_place(buffer: torch.Tensor, at: int, value: float) -> None:
    buffer[0, at] = value


def of_numbers(net: Any, words: list[int]) -> Any:
    buffer, h = torch.zeros(1, SIZE), net.start
    for word in words:
        net.fill(buffer, word % SIZE, float(word))
        h = net.join(h, torch.tanh(buffer[0]))
    return h


def of_indices(net: Any, words: list[int]) -> Any:
    buffer, h = torch.LongTensor([[0, 0]]), net.start
    for word in words:
        net.fill(buffer, 1, word)
        h = net.join(h, net.table(buffer)[0].sum(0))
    return h


def of_rows(net: Any, words: list[int]) -> Any:
    """The buffer is of a ragged class, and a matrix that rows are multiplied with."""
    links, h = torch.zeros(len(words), len(words)), net.table(torch.tensor(words))
    for i in range(len(words)):
        net.fill(links, i, 1.0)
        h = torch.tanh(links @ h) + h
    return h.sum(0)


@pytest.mark.parametrize("forward", [of_numbers, of_indices, of_rows], ids=lambda forward: forward.__name__)
@pytest.mark.parametrize("fill", [through_data, through_numpy, in_place], ids=lambda fill: fill.__name__)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=lambda mode: mode.__name__)
def test_each_use_of_a_buffer_has_its_own_value(forward: Any, fill: Any, mode: Any) -> None:
    """Also where the tensor's version does not tell that it was written to."""
    model = seeded(Base, forward).eval()
    model.fill = fill
    with mode():
        expected = [model(words) for words in WORDS]
        for rows in (False, True):
            results = bound(model, WORDS, "auto", rows=rows)(WORDS)
            torch.testing.assert_close(results, expected)
