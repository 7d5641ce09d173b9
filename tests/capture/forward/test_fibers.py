"""Reading a value suspends the instance, never the batch: outputs, torch's state, errors and gradients are eager's."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import json
import math
import operator
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from greenlet import greenlet
from helpers import bound, seeded
from memory import held
from torch import nn
from torch.nn import functional as F

import edbc
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward import fibers
from edbc.capture.forward.build import capture
from edbc.capture.forward.carried import Carried, Piece
from edbc.capture.forward.fibers import _LEFT, FRAMES, Read
from edbc.capture.record.table import TypeTable
from edbc.capture.standins.standin import Value
from edbc.capture.standins.unread import Unread
from edbc.errors import DeviceError, ModelError, StaleError, UnsupportedError
from edbc.plan.plan import Plan
from edbc.run.cpu import atonce, segmentatonce
from edbc.run.cpu.cpubackend import CpuBackend
from edbc.run.session import Net, Stats
from edbc.run.weights.packing import Moves
from edbc.tools.compile.compiler import SegmentsUnplanned
from edbc.tools.explain.observe import observe
from edbc.tools.parity import Eager, Parity
from edbc.tools.replay import Replay
from edbc.tools.report.timeline import Timeline
from edbc.train.autogradfunction import Run

SIZE = 8


@edbc.cell
class Step(nn.Module):
    """One step of a state."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.x(x) + self.h(h))


@edbc.cell
class Peeking(nn.Module):
    """A cell that reads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


@edbc.cell
class Peripheral(nn.Module):
    """Something computed of a state."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(SIZE, SIZE)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.head(h))


@edbc.cell
class Length(nn.Module):
    """The square of a vector's length; no weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum()


class Reading(nn.Module):
    """`how(net, instance)` as a model; `instance` is a list of word numbers."""

    def __init__(self, how: Callable[[Any, Any], Any]):
        super().__init__()
        self.how = how
        self.embedding = nn.Embedding(50, SIZE)
        self.step = Step()
        self.peeking = Peeking()
        self.out = nn.Linear(SIZE, 50)
        self.peripheral = Peripheral()
        self.length = Length()
        self.register_buffer("zero", torch.zeros(SIZE))
        self.notes = SimpleNamespace(rows=[])

    def forward(self, instance: Any) -> Any:
        return self.how(self, instance)

    def encode(self, words: list[int]) -> torch.Tensor:
        """The last state."""
        h = self.zero
        for word in words:
            h = self.step(self.embedding.weight[word], h)
        return h

    def score(self, h: torch.Tensor) -> torch.Tensor:
        """A number, `()`."""
        return self.out(h)[0]


def greedy(net: Reading, words: list[int]) -> Any:
    h, word, states, chosen = net.encode(words), 1, [], []
    while word % 7 and len(states) < 12:
        h = net.step(net.embedding.weight[word], h)
        word = int(net.out(h).argmax())
        states.append(h)
        chosen.append(word)
    return states, chosen


def branch(net: Reading, words: list[int]) -> Any:
    h = net.encode(words)
    return h if net.score(h) > 0 else -h


def item(net: Reading, words: list[int]) -> Any:
    h = net.encode(words)
    return h * net.score(h).item()


def as_float(net: Reading, words: list[int]) -> Any:
    h = net.encode(words)
    return h * float(net.score(h)) + h


def to_list(net: Reading, words: list[int]) -> Any:
    best = net.out(net.encode(words)).topk(3).indices.tolist()
    return [net.embedding.weight[i] + net.zero for i in best]


def to_numpy(net: Reading, words: list[int]) -> Any:
    order = np.argsort(net.out(net.encode(words)).detach().numpy())
    return net.step(net.embedding.weight[int(order[-1])], net.zero)


def best_by_key(net: Reading, words: list[int]) -> Any:
    return max([net.encode(words[i:]) for i in range(len(words))], key=net.score) if words else net.zero * 1


def ordered(net: Reading, words: list[int]) -> Any:
    states = [net.encode([word]) for word in words]
    return [net.step(state, state) for state in sorted(states, key=lambda state: net.score(state).item())]


def comprehension(net: Reading, words: list[int]) -> Any:
    return [state * 2 for word in words if (state := net.encode([word])).sum() > 0]


def generator(net: Reading, words: list[int]) -> Any:
    def states() -> Iterator[torch.Tensor]:
        h = net.zero
        for word in words:
            h = net.step(net.embedding.weight[word], h)
            yield h if bool(net.score(h) > 0) else -h

    return [net.step(state, state) for state in states()]


def recursion(net: Reading, words: list[int]) -> Any:
    def reduce(states: list[torch.Tensor]) -> torch.Tensor:
        if len(states) == 1:
            return states[0]
        at = max(range(len(states) - 1), key=lambda i: net.score(states[i]).item())
        return reduce([*states[:at], net.step(states[at], states[at + 1]), *states[at + 2 :]])

    return reduce([net.encode([word]) for word in words] or [net.encode([0])])


def library(net: Reading, words: list[int]) -> Any:
    import functools

    def later(h: torch.Tensor, word: int) -> torch.Tensor:
        return net.step(net.embedding.weight[word + int(net.score(h) > 0)], h)

    return functools.reduce(later, words, net.encode([1]))


def of_parameters(net: Reading, words: list[int]) -> Any:
    return net.encode(words) if net.out.bias[0] > 0 else net.encode([*words, 3])


def functions(net: Reading, words: list[int]) -> Any:
    h, other = net.encode(words), net.encode(words[::-1])
    same = torch.equal(h, other) or torch.allclose(h, other) or torch.is_nonzero(net.score(h) * 0)
    return h if same else h - other


def in_place(net: Reading, words: list[int]) -> Any:
    h = net.encode(words) + 0
    h[0] = 1.0
    if net.score(h) > 0:
        h += 1
    return net.step(h, h)


def sums(net: Reading, words: list[int]) -> Any:
    """A partial sum that a later segment reads."""
    states = [net.encode([word, word]) for word in [*words, 1, 2]]
    partial = states[0] + states[1]
    whole = partial + sum(states)
    return partial * 2 if net.score(whole) > 0 else partial * 3


def shapes(net: Reading, words: list[int]) -> Any:
    """Shapes that depend on values, of which gradients flow to what is shown."""
    h = net.encode(words)
    positive, grid = h > 0, h.view(2, SIZE // 2)
    numbers = positive.nonzero().view(-1)
    shown = [h[positive], h.masked_select(h > 0.1), grid[grid > 0], grid[(grid > 0)[:, 0], :]]
    spread = torch.zeros(SIZE).index_add(0, numbers, shown[0])
    table = h.new_zeros(1, 2, SIZE)
    table[0:1, range(2), [0, SIZE - 1]] = h[:2]
    counts = torch.bincount(positive.long(), minlength=2)
    return [*shown, spread, table, numbers, torch.where(grid > 0)[1], torch.unique(positive.long()), counts]


def changed(net: Reading, words: list[int]) -> Any:
    """Read, changed in place, and read again; and a buffer filled between reads."""
    h = net.encode(words)
    number, states = h.argmax(), torch.zeros(4, SIZE)
    found = int(number)
    number += 1
    again = int(number)
    for i in range(4):
        states[i] = h * 0.5 if float(states.sum() + h.sum()) > 0 else h - found
        states[i] += states[: i + 1].amax(0)
    number *= again
    return states, states.mean(0) * number.item(), net.embedding.weight[again % 49]


def on_the_model(net: Reading, words: list[int]) -> Any:
    """States that forward assigns to attributes of modules, and of a plain object there, before and after reads."""
    net._h, net.seen, net.notes.rows = net.zero, 0, []
    for word in words:
        net._h = net.step(net.embedding.weight[word], net._h)
        net.notes.rows.append(net._h)
        net.peeking.last = net._h * 2
        if net.score(net._h) > 0:
            net._h = net.peeking.last
            net.seen += 1
    return net._h * net.seen, torch.stack(net.notes.rows).sum(0)


def made_in_forward(net: Reading, words: list[int]) -> Any:
    """A module that forward makes and keeps, whose attributes are states."""
    net.notebook = nn.Module()
    net.notebook.h = net.zero
    for word in words:
        net.notebook.h = net.step(net.embedding.weight[word], net.notebook.h)
        if net.score(net.notebook.h) > 0:
            net.notebook.h = net.notebook.h * 2
    return net.notebook.h


def of_masks(net: Reading, words: list[int]) -> Any:
    """A value for each place that a mask shows, as many as there are columns too, and none."""
    h = net.encode(words)
    rows = torch.stack([h, h * 2, h * 3])
    places = rows == rows.max(1, keepdim=True)[0]
    rows[places] = rows[places] * 5 + torch.arange(3)
    least = h == h.min()
    h[least] = h[least] - 1
    h[h > h.max() + 1] *= 2.0  # none
    square = rows[:, :3] * 2
    square[square == square.max(0)[0]] = rows[0, :3]
    return h, rows, square


def of_bytes(net: Reading, words: list[int]) -> Any:
    """A mask from before there were booleans."""
    h = net.encode(words)
    return h[(h > h.mean()).byte().data].sum()


PROGRAMS = [
    on_the_model, made_in_forward, of_masks,
    changed, shapes, greedy, branch, item, as_float, to_list, to_numpy, best_by_key, ordered, comprehension, generator,
    recursion, library, of_parameters, functions, in_place, sums,
]  # fmt: skip


def some(count: int, seed: int = 0, least: int = 1) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(49) for _ in range(rng.randint(least, 9))] for _ in range(count)]


def model_of(how: Callable[[Any, Any], Any]) -> Reading:
    return seeded(Reading, how).eval()


def require_parity(net: Net, instances: list[Any], sizes: tuple[int, ...] = (1, 5, 12)) -> None:
    """Outputs and decisions are eager's."""
    eager = Eager(net.model)
    with torch.no_grad():
        for size in sizes:
            parity = Parity()
            for start in range(0, min(len(instances), 2 * size), size):
                batch = instances[start : start + size]
                results, prepared = net.run(batch)
                parity.add_all(results, prepared.capture.reads, eager, batch)
            parity.require()


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Of a model that reads, but knows of no line that does: a stranger's first mini-batch."""
    return replace(bound(model_of(branch), [[1, 2]]).plan, reads=())


@pytest.fixture(autouse=True)
def no_fiber_is_left() -> Iterator[None]:
    """Of what the test made; what it leaves is not looked at again after the next one."""
    yield
    gc.collect()
    assert not [g for g in gc.get_objects() if type(g) is greenlet and g.parent is not None and not g.dead]
    gc.freeze()
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("how", [*PROGRAMS, of_bytes], ids=lambda how: how.__name__)
def test_equals_eager(how: Callable[[Any, Any], Any]) -> None:
    """At any depth, in mini-batches of several sizes."""
    model, instances = model_of(how), some(12)
    require_parity(bound(model, instances), instances)


def sorted_by_scores(net: Reading, words: list[int]) -> Any:
    items = [(torch.tanh(net.out(net.embedding.weight[word])[:1]), net.embedding.weight[word]) for word in words]
    if 7 in words:
        items[-1] = items[-1][0] * math.nan, items[-1][1]
    ordered = sorted(items, key=lambda item: item[0], reverse=True)
    best, worst = max(items, key=lambda item: item[0]), min(ordered, key=lambda item: item[0])
    signs = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
    same = [sum(bool(sign(a[0], b[0])) for a in items for b in ordered) for sign in signs]
    return torch.stack([h for _, h in ordered]), best[1] - worst[1], same, best[0] > worst[0]


def elements_compared(net: Reading, words: list[int]) -> Any:
    scores, table = net.out(net.encode(words)), net.out(torch.stack([net.embedding.weight[word] for word in words]))
    at, total = 0, 0.0
    for i in range(1, 9):
        at = i if scores[i] > scores[at] else at
        total += scores[i].item() + table[0, i].item() + table[-1][i].item() + int(10 * scores[-i].item())
    return scores[at], at, total


def elements_computed(net: Reading, words: list[int]) -> Any:
    scores, total = net.out(net.encode(words)), 0.0
    for i in range(1, 4):
        total += scores[i : i + 1].double().item() + bool(scores[i] > 0.25) + int(scores.view(torch.int32)[i] > 0)
        total += (-scores)[i].item() + bool(scores[i].double() > scores[0])
    return total


@pytest.mark.parametrize(("how", "most"), [(elements_compared, 8), (elements_computed, 24)], ids=["there", "computed"])
def test_elements_of_what_exists_are_read_without_a_segment(how: Callable[[Any, Any], Any], most: int) -> None:
    """Numbers of a vector and of a matrix that were read before are there; what is computed of them is not."""
    model, instances = model_of(how), some(24)
    net, stats = bound(model, instances), Stats()
    require_parity(net, instances)
    net.run(instances, stats)
    assert stats.segments <= most
    for ours, theirs in zip(net(instances), map(model, instances), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_zeros_keep_their_signs() -> None:
    """Numbers that compare equal are told apart."""

    def signs(net: Reading, words: list[int]) -> Any:
        zeros = net.out(net.encode(words)) * torch.tensor([0.0, -0.0] * 25)
        found = [zeros[i] > zeros[i + 1] for i in range(6)]
        return [bool(of) for of in found], [math.copysign(1.0, zeros[i].item()) for i in range(8)]

    model, instances = model_of(signs), some(12)
    assert bound(model, instances)(instances) == list(map(model, instances))


def test_numbers_that_exist_are_compared_without_a_segment() -> None:
    """Sorting waits once, for all scores; its answers are eager's, of numbers that are none, too."""
    model, instances = model_of(sorted_by_scores), some(40)
    net, stats = bound(model, instances), Stats()
    require_parity(net, instances)
    net.run(instances, stats)
    assert stats.segments <= 3

    net = bound(model_of(sorted_by_scores).double(), instances)
    results = net(instances)
    for ours, theirs in zip(results, map(net.model, instances), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("how", [greedy, recursion, sums], ids=lambda how: how.__name__)
def test_in_float64_no_decision_differs(how: Callable[[Any, Any], Any]) -> None:
    model, instances = model_of(how).double(), some(16)
    net = bound(model, instances)
    parity = Parity()
    with torch.no_grad():
        results, prepared = net.run(instances)
        parity.add_all(results, prepared.capture.reads, Eager(model), instances)

    parity.require()
    assert parity.decisions.different == 0


@pytest.mark.parametrize("how", [greedy, recursion, sums], ids=lambda how: how.__name__)
def test_bits_do_not_depend_on_company(how: Callable[[Any, Any], Any]) -> None:
    model, instances = model_of(how), some(16, seed=3)
    net = bound(model, instances)
    with torch.no_grad():
        together, alone = net(instances), [net([one])[0] for one in instances]

    assert [repr(tensors_of(a)) for a in together] == [repr(tensors_of(a)) for a in alone]


@pytest.mark.parametrize("how", [greedy, comprehension, recursion, ordered, changed], ids=lambda how: how.__name__)
def test_known_segments_give_the_same_bits(how: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs a segment of a structure that is placed gives what all passes give, of other instances too."""
    model, runs = model_of(how), []
    run_at_once = segmentatonce.run_at_once
    monkeypatch.setattr(segmentatonce, "run_at_once", lambda *args: (runs.append(1), run_at_once(*args))[1])
    others = [some(16, seed=seed) for seed in (3, 4)]
    net = bound(model, others[0])
    with torch.no_grad():
        for _ in range(2):
            found = [repr(tensors_of(net(instances))) for instances in others]
        num_runs = len(runs)
        monkeypatch.setattr(CpuBackend, "at_once", lambda *_: None)
        by_passes = bound(model, others[0])
        expected = [repr(tensors_of(by_passes(instances))) for instances in others]

    assert found == expected
    assert len(runs) == num_runs > 0


def third_of_a_sum(net: Reading, words: list[int]) -> Any:
    """Elements of what earlier segments have computed, in a segment of their own."""
    states = [net.encode(words[:1])]
    for word in words:
        states.append(net.step(net.embedding.weight[word], states[-1]))
        if states[-1][0].item() > 5:
            break
        both = states[-1] + states[0]
        states.append(both * (1 + int(both[2:6].argmax())))
    return states[-1]


def test_known_segments_of_elements_take_values_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do where gradients are wanted of some: offsets are the indices themselves then, too."""
    model, instances = model_of(third_of_a_sum), some(6, seed=3)
    net = bound(model, instances)
    with torch.no_grad():
        for _ in range(3):
            expected = net(instances)
        add, made = Carried.add, list[str]()

        def as_a_list(pool: Carried, table: Any) -> None:
            add(pool, list(table.tensor() if isinstance(table, Piece) else table))

        parameter = atonce.AtOnce._parameter
        monkeypatch.setattr(Carried, "add", as_a_list)
        monkeypatch.setattr(
            atonce.AtOnce,
            "_parameter",
            lambda own, of, k, *a: made.append(of.sources[k].kind) or parameter(own, of, k, *a),
        )
        found = net(instances)
    assert [repr(tensors_of(a)) for a in found] == [repr(tensors_of(a)) for a in expected]
    assert "offset" in made


def lists(net: Reading, words: list[int]) -> Any:
    """Vectors as lists, which are forward's own to change, of several dtypes; one of them twice, one of one element."""
    h, found = net.encode(words), []
    for word in words:
        h = net.step(net.embedding.weight[word], h)
        read = [h.tolist(), h.tolist(), (h > 0).tolist(), h.argsort().tolist(), net.score(h).tolist(), h[:3].tolist()]
        read[0].sort()
        found.append(read)
        h = h * read[1].index(read[0][-1])
    return h, found


def test_lists_are_those_of_eager() -> None:
    model, instances = model_of(lists).double(), some(12)
    net = bound(model, instances)
    with torch.no_grad():
        for _ in range(3):
            found, expected = net(instances), [model(one) for one in instances]

    torch.testing.assert_close(found, expected)


def tensors_of(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.tolist()
    return [tensors_of(part) for part in result] if isinstance(result, list | tuple) else result


class WritingDown(nn.Module):
    """Writes rows of what it has read into a matrix, until a number is large."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.match = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noted, h = torch.zeros(6, 6), self.step(x)
        for i in range(4):
            scores = self.match(h)
            noted[i, : scores.size(0)] += scores.data
            if h.sum() > 1.0:
                break
            h = torch.tanh(self.step(h))
        return h, noted[: i + 1, :5]


def test_rows_that_were_recorded_before_a_read_are_no_part_of_a_segment() -> None:
    """Rows are tried first, and given up for what changes in place, and then something is read."""
    torch.manual_seed(0)
    model = WritingDown()
    instances = [torch.randn(SIZE) for _ in range(32)]
    net = edbc.compile(model.eval(), instances, force=True)
    for ours, theirs in zip(net(instances), [model(x) for x in instances], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_reads_are_batched() -> None:
    """A segment per read of the instance that reads most, and no batch of one instance's own."""
    model, instances = model_of(greedy), some(32)
    net, stats = bound(model, instances), Stats()
    with torch.no_grad():
        results, _ = net.run(instances, stats)
    most = max(len(chosen) for _, chosen in results)

    assert stats.segments == most + 1
    assert sum(stats.reads.values()) == sum(len(chosen) for _, chosen in results)
    assert stats.batches <= 9 + 3 * most
    assert stats.instances == 32
    assert stats.mini_batches == 1


def with_a_head(net: Reading, words: list[int]) -> Any:
    """Greedy decoding with something else computed of every state, that nobody reads."""
    states, _ = greedy(net, words)
    return [net.peripheral(state) for state in states]


def heads_on_the_way(net: Reading, words: list[int]) -> Any:
    h, word, heads = net.encode(words), 1, []
    while word % 7 and len(heads) < 12:
        h = net.step(net.embedding.weight[word], h)
        heads.append(net.peripheral(h))
        word = int(net.out(h).argmax())
    return heads


def heads_without_gradients(net: Reading, words: list[int]) -> Any:
    heads = heads_on_the_way(net, words)
    with torch.no_grad():
        return [*heads, net.peripheral(heads[-1]) * net.score(heads[-1]).item()]


def test_what_no_waiting_value_needs_waits_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of states are one batch, as if they were computed at the end; not one per segment. Where few instances are
    left, they are not waited for."""
    assert heads_in_batches() <= 3
    monkeypatch.setattr("edbc.capture.forward.cutting.PER_INSTANCE", 100)
    assert heads_in_batches() == 1


def heads_in_batches() -> int:
    """How many batches the heads are that no instance waits for."""
    model, instances = model_of(heads_on_the_way), some(10)
    net, segments = bound(model, instances), []
    with torch.no_grad():
        prepared = net.prepare(instances, on_segment=segments.append)
    kind = next(k for k, t in enumerate(prepared.capture.graph.types) if t.op == "cell peripheral")
    batches = [int((each.schedule.batch_type == kind).sum()) for each in [*segments, prepared]]

    assert len(segments) > 6
    return sum(batches)


@pytest.mark.parametrize("how", [with_a_head, heads_on_the_way, heads_without_gradients], ids=lambda how: how.__name__)
def test_what_waits_is_computed_as_in_eager(how: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where more waits than may."""
    require_parity(bound(model_of(how), some(12)), some(12))
    monkeypatch.setattr("edbc.capture.forward.cutting.MOST_WAITING", 40)
    require_parity(bound(model_of(how), some(12)), some(12))


def test_values_that_are_read_one_after_the_other_exist_together() -> None:
    """A segment for each when nobody knows yet, one for both from then on."""

    def both(net: Reading, words: list[int]) -> Any:
        h = net.encode(words)
        one, other = net.score(h), net.peripheral(h).sum()
        return h * one.item() + h * other.item()

    net, counts = bound(model_of(both), some(8)), []
    for _ in range(2):
        stats = Stats()
        net.run(some(8), stats)
        counts.append(stats.segments)

    assert counts == [3, 2]


def test_results_of_earlier_segments_are_nobody_elses() -> None:
    """What instances return may be changed in place: neither later mini-batches nor other results see it."""
    model, instances = model_of(greedy), some(6)
    net = bound(model, instances)
    with torch.no_grad():
        expected, ours = [model(one)[0] for one in instances], net(instances)
        ours[0][0][0].fill_(7.0)
        again = net(instances)

    assert [repr(tensors_of(states)) for states, _ in ours[1:]] == [repr(tensors_of(s)) for s, _ in again[1:]]
    torch.testing.assert_close([states for states, _ in again], expected)


def mixed(net: Reading, instance: Any) -> Any:
    words, reads = instance
    h = net.encode(words)
    for _ in range(reads):
        h = net.step(h, h) if net.score(h) > 0 else net.step(net.zero, h)
    return h


@pytest.mark.parametrize(
    "reads", [[0], [0, 0], [3], [0, 1, 300, 2, 0], [0, 1000], [1] * 256], ids=lambda reads: str(len(reads))
)
def test_mixed_mini_batches(reads: list[int]) -> None:
    """Some never read, some finish early, one reads very often."""
    model = model_of(mixed)
    instances = list(zip(some(len(reads)), reads, strict=True))
    net = bound(model, [([1, 2], 2)])

    require_parity(net, instances, (len(reads),))


def test_a_mini_batch_of_nobody() -> None:
    """Gives nothing, also where the plan knows that instances read."""
    net = bound(model_of(greedy), some(4))

    assert net([]) == []
    assert len(net(some(2))) == 2
    assert net([]) == []


def test_a_model_that_does_not_read_has_no_fibers() -> None:
    model = model_of(lambda net, words: net.encode(words))
    with torch.no_grad():
        _, prepared = bound(model, some(4)).run(some(4))

    assert prepared.capture.reads is None


def test_what_forward_leaves_on_objects_is_there() -> None:
    def keep(net: Reading, instance: Any) -> Any:
        instance.first = net.encode(instance.words)
        instance.last = net.step(instance.first, net.zero) if net.score(instance.first) > 0 else instance.first * 2
        return instance.last + 1

    model = model_of(keep)
    ours, theirs = ([SimpleNamespace(words=words) for words in some(5)] for _ in range(2))
    with torch.no_grad():
        bound(model, [SimpleNamespace(words=[1])])(ours)
        for each in theirs:
            model(each)

    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close((a.first, a.last), (b.first, b.last))


def test_the_model_has_what_the_last_instance_left() -> None:
    """However instances interleave; and what forward does not assign is as it was."""
    model, instances = model_of(on_the_model), some(8)
    net = bound(model, instances)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        net(instances)
        for instance in instances:
            twin(instance)

    assert torch.allclose(model._h, twin._h, atol=1e-6)
    assert torch.allclose(model.peeking.last, twin.peeking.last, atol=1e-6)
    assert "last" not in vars(model.step)


def test_a_stream_gives_what_calls_give() -> None:
    model, instances = model_of(greedy), some(20)
    net = bound(model, instances)
    with torch.no_grad():
        streamed, called = list(net.stream(iter(instances), batch_size=7)), net(instances)

    assert [repr(tensors_of(a)) for a in streamed] == [repr(tensors_of(a)) for a in called]


def test_a_stream_goes_on_with_the_others() -> None:
    """Where one that reads raises behind its reads, the others of its mini-batch get their results."""
    net = bound(model_of(failing([], ValueError)), [[1, 2], [3]])
    instances = [[1], [1, 2, 3], [7, 7], [4, 5, 6, 7], [7, 7], [2]]
    with torch.no_grad():
        results = list(net.stream(instances, batch_size=4, on_error="record"))
        expected = [None if words == [7, 7] else net([words])[0] for words in instances]

    assert [isinstance(result, ValueError) for result in results] == [words == [7, 7] for words in instances]
    assert "instance 2" in "".join(results[2].__notes__)
    assert "instance 4" in "".join(results[4].__notes__)
    for ours, alone in zip(results, expected, strict=True):
        assert alone is None or torch.equal(ours, alone)


def test_nothing_is_left_of_many_mini_batches() -> None:
    """No stand-in, and no tensor of any segment."""
    net = bound(model_of(greedy), some(8))

    def alive() -> int:
        gc.collect()
        return sum(type(x) is Value or type(x) is torch.Tensor for x in gc.get_objects())

    with torch.no_grad():
        net(some(8))
        before = alive()
        for seed in range(30):
            net(some(8, seed=seed))

    assert alive() <= before


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_memory_is_flat_over_many_mini_batches(count: int) -> None:
    """Neither malloc's nor Python's grows, and no fiber is left alive."""
    net, batches = bound(model_of(heads_on_the_way), some(8)), [some(8, seed=seed) for seed in range(8)]
    with torch.no_grad():
        for batch in batches * 3:
            net(batch)
        before = held()
        for number in range(count):
            net(batches[number % len(batches)])
        grown = held() - before

    assert grown.malloced < 256 << 10
    assert grown.blocks < 2000
    assert not [g for g in gc.get_objects() if type(g) is greenlet and g.parent is not None]


def test_what_waiting_instances_would_take_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as some wait, before all do; the mini-batch ends, and the next one is clean."""
    net = bound(model_of(greedy), some(8))
    with torch.no_grad(), monkeypatch.context() as patched:
        patched.setattr("edbc.native.memory.WORTH_ASKING", 0)
        patched.setattr("edbc.native.memory.available_bytes", lambda: 300 << 10)
        with pytest.raises(DeviceError, match=r"32 instances that wait for values.*smaller --batch-size"):
            net(some(32))
    _, prepared = net.run(some(8))

    assert 8 * FRAMES < prepared.capture.reads.suspended_bytes < 1 << 20
    require_parity(net, some(8), (8,))


@pytest.mark.parametrize("how", [greedy, library, sums, best_by_key], ids=lambda how: how.__name__)
def test_the_first_mini_batch_is_cut_as_all_others(how: Callable[[Any, Any], Any]) -> None:
    """Though it is recorded twice, as nobody knows beforehand that forward reads: nothing is carried for longer."""
    view, table = ModelView(model_of(how)), TypeTable()
    shadow, recorder = recording_shadow(view, table)
    run_segment = SegmentsUnplanned(view.model, view, table)
    first, second = (
        [part.graph.text() for part in run_segment.taken(capture(shadow, recorder, some(8), run_segment))]
        for _ in range(2)
    )

    assert first == second


class Indexing(Reading):
    """Arg-max that is only used as an index; `how` says as what."""

    def forward(self, words: Any) -> Any:
        h = self.encode(words)
        for _ in range(3):
            scores = self.out(h)
            best = self.index(scores.argmax())
            h = self.step(self.embedding.weight[best], h) * scores[best] + scores[None][0, best]
        return h

    def index(self, best: torch.Tensor) -> Any:
        """As what is asked for."""
        if self.how == "item":
            return best.item()
        if self.how == "int":
            return int(best)
        if self.how == "int of item":
            return int(best.item())
        if self.how == "index":
            return operator.index(best)
        return best.tolist() if self.how == "tolist" else best


@pytest.mark.parametrize("how", ["tensor", "item", "int", "int of item", "index", "tolist"])
def test_an_index_is_no_read(how: str, plan: Plan) -> None:
    """It stays in the graph, also as a number: one segment, nobody waits."""
    net = Net(plan, seeded(Indexing, how))
    with torch.no_grad():
        _, prepared = net.run(some(6))

    assert prepared.capture.reads is None
    require_parity(net, some(6), (6,))


class Integers(Reading):
    """`int` where it is called, compared, kept, passed on, an annotation, and of anything but a recorded integer."""

    def forward(self, words: Any) -> Any:
        def same(x: int) -> int:
            return x

        h, text = self.encode(words), "12"
        best, kinds = int(self.out(h).argmax()), {int: "int", str: "str"}
        told = kinds[type(words[0])], isinstance(best, int), same.__annotations__["x"], kinds[type(best)], best == 3
        told += int(text), int("ff", 16), int(3.7), int(h[0] * 100), list(map(int, text)), int(np.int64(4))
        with contextlib.suppress(TypeError):
            operator.index(1.5)
            told = ()
        return self.embedding.weight[best] * 1, told, best


def test_int_is_itself_but_where_it_is_called(plan: Plan) -> None:
    model = seeded(Integers, None)
    with torch.no_grad():
        ours, theirs = Net(plan, model)(some(3)), [model(x) for x in some(3)]

    assert [x[1:] for x in ours] == [x[1:] for x in theirs]


KINDS: list[type] = []


class Looking(Reading):
    """Looks at the second of two integers as soon as it has it."""

    def forward(self, words: Any) -> Any:
        h, exact = self.encode(words), type
        first = int(self.out(h).argmax())
        second = int(self.out(h).argmin())
        KINDS[:] = [exact(first), exact(second)]
        return (h if second < first else -h) * second


def test_where_integers_are_looked_at_at_once_they_are_pythons_own(plan: Plan) -> None:
    """From the second mini-batch on: nothing is won by waiting."""
    net = Net(plan, seeded(Looking, None))
    with torch.no_grad():
        net(some(1))
        assert [Unread, Unread] == KINDS
        net(some(3))

    assert [Unread, int] == KINDS
    require_parity(net, some(3), (3,))


def backwards(net: Reading, words: list[int]) -> Any:
    """Numbers that are indices at once, and wanted one by one when all has been computed."""
    h, pointers, total = net.encode(words), [], torch.zeros(1)
    for _ in range(4):
        scores = net.out(h)
        best = scores.argmax().item()
        pointers.append([best, scores.argmin().item()])
        total, h = total + scores[best], net.step(h, h)
    at = 0
    for choices in reversed(pointers):
        at = choices[at % 2]
    return total, at, pointers


def test_a_number_waits_until_somebody_looks_at_it() -> None:
    """So an instance that looks at many waits once; what leaves forward are integers of Python's."""
    net = bound(model_of(backwards), some(6))
    with torch.no_grad():
        net(some(6))  # the first time nobody knows what will be looked at
        results, prepared = net.run(some(6))

    assert prepared.capture.reads.segments == 1
    assert {type(x) for _, at, pointers in results for x in (at, *pointers[0])} == {int}
    require_parity(net, some(6))


class Counting(Reading):
    """What Python does with an integer."""

    def forward(self, words: Any) -> Any:
        best = int(self.out(self.encode(words)).argmax())
        told = f"{best:03d}", isinstance(best, int), best + 1, 2 * best, -best, best in range(99), {best: 1}[int(best)]
        return self.embedding.weight[best : best + 1], told, np.array([best]).tolist(), json.dumps([best])


def test_a_number_is_an_integer_to_python(plan: Plan) -> None:
    """Arithmetic, comparisons, containers and formats ask for it, and C code that takes nothing but an int of Python's
    has the mini-batch recorded anew, with each read at its place."""
    net = Net(plan, seeded(Counting, None))
    with torch.no_grad():
        ours, theirs = net(some(6)), [net.model(x) for x in some(6)]

    assert [x[1:] for x in ours] == [x[1:] for x in theirs]
    require_parity(net, some(6), (6,))


def test_a_timeline_has_a_span_per_segment() -> None:
    """With how many instances waited for it, never more than before it where nobody starts anew."""
    net, timeline = bound(model_of(greedy), some(8)), Timeline()
    with torch.no_grad():
        results, _ = timeline.run(net, some(8), Stats())
    spans = spans_of(timeline, "segment")
    steps = [len(chosen) for _, chosen in results]

    assert [span["args"]["waiting"] for span in spans] == [
        sum(count > number for count in steps) for number in range(max(steps))
    ]
    assert all(b["ts"] >= a["ts"] + a["dur"] for a, b in pairwise(spans))


def test_a_timeline_has_all_batches_of_all_segments() -> None:
    """Each within the span of its segment, after that was built and scheduled; what the host does for a segment lies
    where it was done."""
    net, timeline, stats = bound(model_of(greedy), some(8)), Timeline(), Stats()
    with torch.no_grad():
        timeline.run(net, some(8), stats)
    segments, built, scheduled = (spans_of(timeline, name) for name in ("segment", "capture", "scheduling"))
    batches = [event for event in timeline.events if event["tid"] == 2 and event["ph"] == "X"]
    inside = [[b for b in batches if s["ts"] <= b["ts"] and ends(b) <= ends(s)] for s in segments]

    assert len(batches) == stats.batches
    assert sum(map(len, inside)) + scheduled[-1]["args"]["batches"] == len(batches)
    assert [len(found) for found in inside] == [event["args"]["batches"] for event in scheduled[:-1]]
    assert sum(event["args"]["nodes"] for event in built) == stats.nodes
    assert [event["ts"] for event in segments] == [event["ts"] for event in scheduled[:-1]]
    assert all(ends(a) == b["ts"] for a, b in zip(built, scheduled, strict=True))
    assert all(ends(a) == b["ts"] for a, b in zip(segments, built[1:], strict=True))


def spans_of(timeline: Timeline, name: str) -> list[dict[str, Any]]:
    """Events of one name."""
    return [event for event in timeline.events if event["name"] == name]


def ends(event: dict[str, Any]) -> float:
    """When it ends, in whole nanoseconds."""
    return round(event["ts"] + event["dur"], 3)


def test_explain_tells_who_waits() -> None:
    """Sites, segments, instances per segment, copies to the host, what suspended instances take."""
    net = bound(model_of(greedy), some(8))
    with torch.no_grad():
        told = "\n".join(observe(net, some(8), "here").reads)

    assert "who waits, segment by segment: 8 for " in told
    assert "test_fibers.py:" in told
    assert "nothing is copied" in told
    assert "suspended instances take " in told


# --- torch's state -------------------------------------------------------------------------------------------------


class Noting(torch.overrides.TorchFunctionMode):
    """A function mode that does nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class default_dtype:  # noqa: N801
    """The default dtype for a while."""

    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(torch.float32)


class by_hand:  # noqa: N801
    """Gradients off for a while, or inference mode, by what torch's own contexts call: nobody is told."""

    def __init__(self, infers: bool):
        self.guard: Any = None
        self.infers = infers

    def __enter__(self) -> None:
        self.before = torch.is_grad_enabled()
        if self.infers:
            self.guard = torch._C._InferenceMode(True)
            self.guard.__enter__()
        else:
            torch._C._set_grad_enabled(not self.before)

    def __exit__(self, *_: object) -> None:
        if self.infers:
            self.guard.__exit__(None, None, None)
        else:
            torch._C._set_grad_enabled(self.before)


def seen_state() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        torch._C._len_torch_function_stack(),
        torch.empty(0).device.type,
    )


CONTEXTS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "mode": Noting,
    "dtype": default_dtype,
    "device": lambda: torch.device("meta"),
    "gradients by hand": lambda: by_hand(infers=False),
    "inference by hand": lambda: by_hand(infers=True),
}


@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.parametrize("training", [False, True])
def test_torch_state_belongs_to_the_fiber(name: str, training: bool) -> None:
    """Instances that interleave in a context, some inside, some outside, some ended: each sees its own state always."""
    seen: list[tuple[Any, ...]] = []

    def inside(net: Reading, instance: Any) -> Any:
        words, enters = instance
        h = net.encode(words)
        seen.clear()
        states = [seen_state()]
        if enters:
            with CONTEXTS[name]():
                states.append(seen_state())
                for _ in range(enters):
                    chosen = int(net.out(net.encode(words)).argmax())
                    states.append(seen_state())
        else:
            chosen = int(net.out(h).argmax())
        states.append(seen_state())
        return h * (1 + chosen % 3), repr(states)

    model = model_of(inside)
    instances = list(zip(some(6), [0, 3, 1, 0, 2, 3], strict=True))
    net = bound(model, instances)
    before = seen_state()
    with torch.set_grad_enabled(training):
        results = [net(instances) for _ in range(2)]
        expected = [model(instance) for instance in instances]

    assert seen_state() == before
    for found in results:
        assert [state for _, state in found] == [state for _, state in expected]


# --- errors --------------------------------------------------------------------------------------------------------


def end_left() -> None:
    """End one that was left, where it now lets that happen."""
    fiber = _LEFT.pop()
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        if fiber.away is not None:
            fiber.away.come_back()
            fiber.away = None
        with contextlib.suppress(ModelError):
            fiber.greenlet.throw()
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(fiber.greenlet))


def failing(cleaned: list[int], error: type[BaseException]) -> Callable[[Any, Any], Any]:
    def fail(net: Reading, words: list[int]) -> Any:
        h = net.encode(words)
        try:
            for i in range(4):
                h = net.step(h, h) if net.score(h) > 0 else -h
                if i == 2 and words == [7, 7]:
                    raise error("broken")
        finally:
            cleaned.append(len(words))
        return h

    return fail


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_names_the_instance_and_cancels_the_others(error: type[BaseException]) -> None:
    cleaned: list[int] = []
    model = model_of(failing(cleaned, error))
    net = bound(model, [[1, 2], [3]])
    instances = [[1], [1, 2, 3], [7, 7], [4, 5, 6, 7]]
    cleaned.clear()

    with torch.no_grad(), pytest.raises(error, match="broken") as caught:
        net(instances)

    assert set(cleaned) == {1, 2, 3, 4}
    assert "instance 2" in "".join(caught.value.__notes__)
    assert "fail" in {entry.name for entry in caught.traceback}
    require_parity(net, [[1], [2, 3]])


def test_an_error_in_a_segment_cancels_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[int] = []
    net = bound(model_of(failing(cleaned, ValueError)), [[1, 2]])
    cleaned.clear()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(net.backend, "snapshot_of", interrupted)
    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        net([[1], [2, 3]])

    assert sorted(cleaned) == [1, 2]


def test_a_fiber_that_catches_everything_is_cancelled_all_the_same() -> None:
    def stubborn(net: Reading, words: list[int]) -> Any:
        h = net.encode(words)
        for _ in range(3):
            try:
                if net.score(h) > 0:
                    h = -h
            except BaseException:  # what nobody should write
                h = h + 0
            if words == [9]:
                raise ValueError("broken")
        return h

    net = bound(model_of(stubborn), [[1, 2]])

    with torch.no_grad(), pytest.raises(ValueError, match="broken"):
        net([[1, 2], [9], [3]])
    require_parity(net, [[1], [2, 3]])


def endless(net: Reading, words: list[int]) -> Any:
    h = net.encode(words)
    while True:
        if net.score(h) > 1e9 or (len(words) < 3 and net.score(h) < 1e9):
            return h
        h = net.step(h, h)


def test_an_endless_loop_is_stopped() -> None:
    net = bound(model_of(endless), [[1, 2]], max_reads=50)

    told = r"test_fibers\.py:\d+: .*50 values.*--max-reads.*instance 1"
    with torch.no_grad(), pytest.raises(UnsupportedError, match=told):
        net([[1], [1, 2, 3], [2]])


def test_an_endless_loop_that_catches_everything_is_left() -> None:
    ends: list[bool] = []

    def stubborn(net: Reading, words: list[int]) -> Any:
        h = net.encode(words)
        if net.score(h) > 1e9:
            return h
        while True:
            try:
                if net.score(h) > 1e9 or len(words) < 3:
                    return h
            except BaseException:  # what nobody should write
                if ends:
                    raise
                h = -h

    net = bound(model_of(stubborn), [[1, 2]], max_reads=20)

    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"20 values.*instance 1"):
        net([[1], [1, 2, 3], [2]])
    require_parity(net, [[1], [2, 3]])
    ends.append(True)
    end_left()


@pytest.mark.parametrize(
    "read", [lambda h: h.item(), lambda h: h.max().item(), lambda h: int(h.argmax())], ids=["item", "max", "argmax"]
)
def test_reads_of_an_empty_tensor_are_eagers_error(read: Callable[[Any], Any], plan: Plan) -> None:
    def empty(net: Reading, words: list[int]) -> Any:
        return net.encode(words) * read(net.encode(words)[: len(words) - 1])

    model = model_of(empty)
    with torch.no_grad():
        with pytest.raises((RuntimeError, IndexError)) as expected:
            model([2])
        with pytest.raises(expected.type) as caught:
            Net(plan, model)([[1, 2], [2]])

    assert str(caught.value) == str(expected.value)
    assert "instance 1" in "".join(caught.value.__notes__)


def test_not_a_number_is_chosen_as_in_eager() -> None:
    def choose(net: Reading, words: list[int]) -> Any:
        scores = net.out(net.encode(words)).log()
        return net.embedding.weight[int(scores.argmax())] + scores[0]

    model = model_of(choose)
    with torch.no_grad():
        ours = bound(model, some(3))(some(8))

        for a, words in zip(ours, some(8), strict=True):
            torch.testing.assert_close(a, model(words), equal_nan=True)


def test_a_cell_that_reads_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"test_fibers\.py:\d+"):
        bound(model_of(lambda net, words: net.peeking(net.encode(words))), some(2))


def test_random_numbers_are_refused() -> None:
    def draws(net: Reading, words: list[int]) -> Any:
        h = F.dropout(net.encode(words), 0.5, True)
        return h if net.score(h) > 0 else -h

    with pytest.raises(UnsupportedError, match="random"):
        bound(model_of(draws).train(), some(2))


def test_without_greenlet_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what else goes wrong is not told as its consequence."""
    net, never_reads = bound(model_of(branch), some(2)), bound(model_of(Reading.encode), some(2))
    monkeypatch.setitem(sys.modules, "greenlet", None)
    monkeypatch.setattr(fibers, "greenlet_module", fibers.greenlet_module.__wrapped__)
    with pytest.raises(TypeError) as raised:
        never_reads([None])
    assert raised.value.__context__ is None
    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"edbc\[fibers\]"):
        net(some(2))


def test_a_read_after_the_mini_batch_is_an_error() -> None:
    kept: list[Any] = []

    def keep(net: Reading, words: list[int]) -> Any:
        h = net.encode(words)
        kept.append(h)
        return h if net.score(h) > 0 else -h

    with torch.no_grad():
        bound(model_of(keep), some(2))(some(2))

    with pytest.raises(UnsupportedError, match="has ended"):
        float(kept[-1].sum())


def test_an_unplanned_read_is_refused_where_strict() -> None:
    net = bound(model_of(branch), some(4))
    net = Net(replace(net.plan, reads=("elsewhere.py:1",)), net.model, strict=True)

    with torch.no_grad(), pytest.raises(StaleError, match=r"test_fibers\.py:\d+: a value was read"):
        net(some(4))


LOCK = threading.Lock()


def with_lock(net: Reading, words: list[int], inside: Callable[[], Any]) -> Any:
    with LOCK:
        return inside()


def acquired(net: Reading, words: list[int], inside: Callable[[], Any]) -> Any:
    lock = net.how.locks[0]
    lock.acquire()
    try:
        return inside()
    finally:
        lock.release()


def with_reentrant_lock(net: Reading, words: list[int], inside: Callable[[], Any]) -> Any:
    with net.how.reentrant:
        return inside()


def with_semaphore(net: Reading, words: list[int], inside: Callable[[], Any]) -> Any:
    semaphore = net.how.semaphore
    with semaphore:
        return inside()


@pytest.mark.parametrize("take", [with_lock, acquired, with_reentrant_lock, with_semaphore], ids=lambda f: f.__name__)
def test_who_reads_with_a_lock_goes_on_before_the_others(take: Callable[..., Any], plan: Plan) -> None:
    """Nobody waits for ever, and nobody else is inside in between, though some read before, and some take none."""
    inside: list[int] = []

    def locked(net: Reading, words: list[int]) -> Any:
        h = net.encode(words)
        h = h if net.score(h) > 0 else -h

        def alone() -> Any:
            state, before = h, len(inside)
            for _ in words:
                state = net.step(state, h) if net.score(state) > 0 else -state
                inside.append(words[0])
            assert inside[before:] == [words[0]] * len(words)
            return state

        return take(net, words, alone) if len(words) > 1 else h

    locked.locks = [threading.Lock()]
    locked.reentrant, locked.semaphore = threading.RLock(), threading.Semaphore(1)

    require_parity(Net(plan, model_of(locked)), some(6), (6,))


def test_without_a_lock_held_instances_keep_company(plan: Plan) -> None:
    """Those that have given it back before they read."""

    def locked(net: Reading, words: list[int]) -> Any:
        with LOCK:
            h = net.encode(words)
        return h if net.score(h) > 0 else -h

    net, stats = Net(plan, model_of(locked)), Stats()
    with torch.no_grad():
        net.run(some(6), stats)

    assert stats.segments == 2


def test_a_read_in_a_thread_of_forwards_own_is_told_though_the_thread_keeps_it(plan: Plan) -> None:
    """What the thread did not find out must not be missing from the result."""

    def threaded(net: Reading, words: list[int]) -> Any:
        h, found = net.encode(words), []
        h = h if net.score(h) > 0 else -h

        def look() -> None:
            with contextlib.suppress(Exception):
                found.append(float(h[0]))

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return h * sum(found)

    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"test_fibers\.py:\d+: .* thread .*instance 0"):
        Net(plan, model_of(threaded))(some(2))


def test_a_first_read_that_is_tried_until_it_is_answered(plan: Plan) -> None:
    """Around which every exception is caught, in a mode of torch that is left behind: the mini-batch is recorded anew,
    and torch is as it was."""

    def stubborn(net: Reading, words: list[int]) -> Any:
        h = net.encode(words)
        while True:
            with torch.inference_mode(), Noting():
                try:
                    return h * float(net.score(h))
                except BaseException:  # what nobody should write
                    if ends:
                        raise

    ends: list[bool] = []
    model = model_of(stubborn)
    net, before = Net(plan, model), seen_state()
    with torch.no_grad():
        results = net(some(3))
        assert not torch.is_grad_enabled()
        for result, words in zip(results, some(3), strict=True):
            torch.testing.assert_close(result, model(words))

    assert seen_state() == before
    ends.append(True)
    end_left()


def test_a_recursion_that_reads_too_deep_names_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first one; those that waited are cancelled, and the next mini-batch is clean."""
    monkeypatch.setattr("edbc.capture.forward.deep.MAX_DEPTH", 3000)

    def down(net: Reading, depth: int) -> Any:
        def level(h: torch.Tensor, left: int) -> torch.Tensor:
            return h if left == 0 or net.score(h) > 1e9 else level(h, left - 1) + h

        return level(net.encode([1]), depth)

    net = bound(model_of(down), [3])

    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"recurses deeper than 3,000 .*instance 1"):
        net([2, 1 << 20, 3])
    require_parity(net, [2, 3], (2,))


def test_deep_recursion_reads() -> None:
    """5,000 levels, with reads on the way down."""

    def down(net: Reading, depth: int) -> Any:
        def level(h: torch.Tensor, left: int) -> torch.Tensor:
            if left % 1000 == 0 and net.score(h) > 1e9:
                return h
            return h if left == 0 else level(net.step(h, h), left - 1) + 1

        return level(net.encode([1]), depth)

    model = model_of(down)
    net = bound(model, [3])
    limit = sys.getrecursionlimit()

    require_parity(net, [5000, 3, 1200], (3,))
    assert sys.getrecursionlimit() == limit


# --- training ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [greedy, branch, recursion, generator, sums], ids=lambda how: how.__name__)
def test_gradients_are_eagers(how: Callable[[Any, Any], Any]) -> None:
    """Through the values of all segments, in float64."""
    model, instances = model_of(how).double(), some(6)
    net = bound(model, instances)
    gradients = []
    for run in (net, lambda batch: [model(one) for one in batch]):
        model.zero_grad()
        loss = sum(part.pow(2).sum() for result in run(instances) for part in flat(result))
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])

    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_weights_are_packed_once_for_all_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mini-batch that gradients are asked of packs them anew, whatever version counters say, and no segment of it
    does: with a large vocabulary that was most of a step, and kept gigabytes."""
    model, instances = model_of(greedy), some(6)
    net, packed, pack = bound(model, instances), list[Moves](), Moves.pack
    monkeypatch.setattr(Moves, "pack", lambda self, *rest: (packed.append(self), pack(self, *rest))[1])

    for _ in range(2):
        packed.clear()
        net(instances)
        assert packed
        assert len(packed) == len(set(map(id, packed)))


@pytest.mark.parametrize("goes_back", [True, False])
def test_segments_go_with_their_results(goes_back: bool) -> None:
    """Each held what later ones carried, its own results among it, in a circle through autograd's graph, which Python
    cannot free: all of every mini-batch stayed."""
    model, instances = model_of(greedy), some(6)
    net = bound(model, instances)

    def alive() -> int:
        gc.collect()
        return sum(type(item) is Run for item in gc.get_objects())

    after = []
    for _ in range(3):
        results = net(instances)
        if goes_back:
            sum(part.sum() for result in results for part in flat(result)).backward()
        del results
        after.append(alive())
    assert len(set(after)) == 1  # those of the last one, which the recorder has


def flat(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for part in result:
            yield from flat(part)


# --- comparing -----------------------------------------------------------------------------------------------------


def test_a_decision_that_eager_would_not_take_is_told() -> None:
    """A replay with one decision altered breaks parity; as read, it holds."""
    model, instances = model_of(greedy), some(4)
    require_told(bound(model, instances), instances, lambda taken: (taken + 1) % 50)


def require_told(net: Net, instances: list[Any], altered: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Parity holds as values were read, and not with one of them altered."""
    with torch.no_grad():
        results, prepared = net.run(instances)
        reads = prepared.capture.reads
        assert reads is not None
        parity = Parity()
        parity.add_all(results, reads, Eager(net.model), instances)
        parity.require()
        assert parity.decisions.reads == sum(map(len, reads.of_instance))
        assert 0 < parity.decisions.closest < float("inf")

        first = reads.of_instance[2][0]
        assert first.tensor is not None
        reads.of_instance[2][0] = first._replace(tensor=altered(first.tensor))
        parity = Parity()
        parity.add_all(results, reads, Eager(net.model), instances)

    assert not parity.holds
    assert "edbc read" in parity.decisions.fault


def halting(net: Reading, words: list[int]) -> Any:
    """The line that decides reads zeros that forward made before it reads what was computed."""
    h, halted = net.encode(words), torch.zeros(2)
    while (halted < 1.5).any():
        h = torch.tanh(h + net.embedding.weight[words[0]])
        halted = halted + torch.sigmoid(net.out(h)[:2])
    return h, halted


def norms_of(net: Reading, words: list[int]) -> Any:
    """Numbers, and a line that reads a tensor of the instance's before it reads what was computed."""
    x, seen = torch.tensor([float(word) for word in words[:2]]), []
    for _ in range(3):
        seen.append(float(x.norm()))
        x = net.out(torch.tanh(x.sum() + net.encode(words)))[:2]
    return x * seen[-1], seen


def halving(net: Reading, words: list[int]) -> Any:
    """A cell without weights of the instance's own: edbc computes what nothing of the model goes into."""
    x = torch.tensor([float(word) for word in words])
    halvings = 0
    while bool(net.length(x) > 5):
        x, halvings = x / 2, halvings + 1
    return net.encode(words) * halvings


def remembering(net: Reading, words: list[int]) -> Any:
    """The line that decides reads zeros as large as what is recorded, which nothing was computed for, at first."""
    h, before = net.encode(words), None
    for _ in range(3):
        gate = torch.zeros_like(h) if before is None else torch.tanh(before * h)
        for i in range(2):
            if gate[i].max() > 0:
                h = torch.tanh(h + gate)
        before = torch.sigmoid(h)
    return h


def gathering(net: Reading, words: list[int]) -> Any:
    """A list that is filled and then replaced, before anything is read: the next instance's is empty."""
    net.notes.rows.extend(net.embedding.weight[word] for word in words)
    rows, net.notes.rows = net.notes.rows, []
    h = torch.tanh(torch.stack(rows).sum(0))
    return (h, len(rows)) if h.sum() > 0 else (-h, len(rows))


def test_a_list_that_was_filled_and_replaced_is_empty_for_the_next_instance() -> None:
    """As in eager; what the instance itself goes on with is not emptied."""
    model, instances = model_of(gathering), some(6)
    with torch.no_grad():
        expected = [model(words) for words in instances]
        results = bound(model, instances)(instances)

    assert [n for _, n in results] == [len(words) for words in instances]
    torch.testing.assert_close([h for h, _ in results], [h for h, _ in expected])


@pytest.mark.parametrize("forward", [halting, norms_of, halving, remembering], ids=lambda forward: forward.__name__)
def test_reads_of_what_forward_made_are_its_own(forward: Callable[[Any, Any], Any]) -> None:
    """Though the same line reads what edbc computed the next time, and though a cell computes of nothing but these."""
    model, instances = model_of(forward), some(6)
    net = bound(model, instances)
    with torch.no_grad():
        results, prepared = net.run(instances)
        parity = Parity()
        parity.add_all(results, prepared.capture.reads, Eager(model), instances)

    parity.require()
    assert sum(map(len, prepared.capture.reads.of_instance)) > 0


def test_a_replay_gives_what_was_read() -> None:
    model = model_of(greedy)
    with torch.no_grad():
        net = bound(model, some(2))
        results, prepared = net.run([[3, 4]])
        assert prepared.capture.reads is not None
        reads = prepared.capture.reads.of_instance[0]
        changed = [read._replace(tensor=torch.tensor(5)) for read in reads[:1]] + reads[1:]
        with Replay(changed) as replay:
            _, chosen = model([3, 4])

    assert results[0][1][0] != chosen[0] == 5
    assert replay.seen[0].own == reads[0].tensor


@pytest.mark.parametrize(
    ("near", "join", "far", "margin"),
    [
        (0.25, torch.logical_and, 2.0, 0.25),  # both hold: the nearer one
        (-0.25, torch.Tensor.__and__, -2.0, 2.0),  # neither does: both would have to
        (-0.25, torch.bitwise_and, 2.0, 0.25),
        (2.0, torch.Tensor.__or__, 0.25, 2.0),
        (-0.25, torch.logical_or, 2.0, 2.0),
    ],
)
def test_the_margin_of_two_decisions(near: float, join: Any, far: float, margin: float) -> None:
    """By which eager would have decided otherwise, `assert (a <= t) & (t <= b)`."""
    read = torch.tensor(near), torch.tensor(far)
    value = bool(join(read[0] > 0, read[1] > 0))
    here = user_line() + 2
    with Replay([Read(f"test_fibers.py:{here}", torch.tensor(not value))]) as replay:
        assert bool(join(read[0] > 0, read[1] > 0)) is not value

    assert replay.seen[0].choice is not None
    assert replay.seen[0].choice.closest == pytest.approx(margin)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 1, 3)])
def test_the_margin_of_a_choice_in_a_batch_of_one(shape: tuple[int, ...]) -> None:
    """Eager was nearly undecided between the last two."""
    scores = torch.tensor([0.0, 0.75, 1.0]).view(shape)
    here = user_line() + 2
    with Replay([Read(f"test_fibers.py:{here}", torch.tensor([1]))]) as replay:
        assert torch.max(scores, -1)[1].view(1).tolist() == [1]

    assert replay.seen[0].choice is not None
    assert replay.seen[0].choice.margin(torch.tensor([1])) == 0.25


def user_line() -> int:
    """Where this was called."""
    return sys._getframe(1).f_lineno


class Doubting(nn.Module):
    """A condition that a region computes, as the number that it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = torch.tanh(self.step(x) * 2)
            total = x.sum()
            if total > 0.25:
                return x
        return -x


def test_a_condition_of_a_region_that_eager_would_not_take_is_told() -> None:
    torch.manual_seed(0)
    model, instances = Doubting().eval(), [torch.randn(SIZE) for _ in range(8)]
    net = bound(model, instances, cells="auto")
    with torch.no_grad():
        _, prepared = net.run(instances)
    assert prepared.capture.reads is not None
    assert all(read.tensor.is_floating_point() for read in prepared.capture.reads.of_instance[0])

    require_told(net, instances, lambda taken: 1 - taken)


def still_running(net: Reading, words: list[int]) -> Any:
    h, running, chosen = net.encode(words).unsqueeze(0), torch.arange(1), []
    while len(chosen) < 5 and len(running) > 0:
        h = torch.tanh(h + net.embedding(net.out(h).argmax(1)))
        word = net.out(h).argmax(1)
        chosen.append(word)
        running = running.masked_select(word % 7 != 0)
        h = h[running] if len(running) else h
    return chosen


def test_truth_values_that_are_read_are_no_integers_of_the_same_shape() -> None:
    """Of `running.masked_select(mask)` the mask is what a replay gives, not the integers that it selects from."""
    require_parity(bound(model_of(still_running), some(6)), some(12, seed=1))


def cut_where_it_says(net: Reading, words: list[int]) -> Any:
    h = net.encode(words)
    count = net.out(h).argmax() % 3 + 1
    kept = h[:count] * 2, h.unsqueeze(0)[:, 1 : 1 + count]
    return *kept, h.narrow(0, 0, net.out(h).argmin() % 2 + 1), h[:1].expand(count), h[net.out(h).argmax() % 4]


def test_sizes_that_torch_reads_are_reads_of_a_replay() -> None:
    """Bounds of slices and counts, of which Python hears nothing in eager."""
    require_parity(bound(model_of(cut_where_it_says), some(6)), some(12, seed=1))


def made_where_it_says(net: Reading, words: list[int]) -> Any:
    h = net.encode(words)
    count, limit = net.out(h).argmax() % 3 + 1, net.out(h).amax().detach().abs() + 1.5
    places = torch.arange(count), torch.arange(0, 2 * count, count), torch.arange(0.0, limit, 0.5)
    return *places, h.new_zeros(count), h.tile((count,)), F.pad(h, (0, count)), torch.linspace(h[0], h[1], 4) + h.sum()


def test_makers_read_the_numbers_that_they_are_given() -> None:
    """No gradient reaches these, and a replay reads them too."""
    model = model_of(made_where_it_says)
    net = bound(model, some(6))
    require_parity(net, some(12, seed=1))
    slopes = []
    for results in (net(some(5, seed=2)), [model(words) for words in some(5, seed=2)]):
        model.zero_grad()
        sum(item.sum() for result in results for item in result if item.requires_grad).backward()
        slopes.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(map(torch.allclose, *slopes, [1e-4] * len(slopes[0]), [1e-5] * len(slopes[0])))


class FactsOfEntities(nn.Module):
    """A table of ranges says which facts a word has; buffers are as long as a computed number says."""

    def __init__(self) -> None:
        super().__init__()
        self.facts, self.out = nn.Embedding(60, SIZE), nn.Linear(SIZE, SIZE)
        self.ranges = torch.tensor([[2 * i, 2 * i + 1 + i % 2] for i in range(29)])

    def forward(self, words: list[int]) -> Any:
        h = torch.zeros(SIZE)
        for word in words[:3]:
            facts = torch.arange(self.ranges[word % 29, 0], self.ranges[word % 29, 1])
            h = torch.tanh(self.out(h) + self.facts(facts).sum(0))
        count = h.argmax() % 3 + 1
        buffer = torch.zeros(count, 2)
        buffer[0] = h[:2]
        return buffer, torch.ones((count, 2)), torch.eye(count), torch.full((2, count), 0.5)


def test_makers_in_methods_read_once() -> None:
    """As torch does, which asks a tensor for its number; ranges of a table are told from it."""
    require_parity(bound(seeded(FactsOfEntities), some(6)), some(12, seed=1))


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(SIZE, SIZE)

    def forward(self, h: torch.Tensor, by: int, and_by: list[int]) -> torch.Tensor:
        return torch.tanh(self.step(h)).roll(by) * h + h[and_by[0] % 2]


class GivesNumbersOn(nn.Module):
    """To functions that take them as they are, and to a module, behind tensors in both."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.turned = nn.Embedding(50, SIZE), Turned()

    def forward(self, words: list[int]) -> Any:
        h = torch.tanh(self.words(torch.tensor(words)).sum(0))
        g = torch.roll(h, int(h.argmax())) + F.pad(h, (0, int(h.argmin())))[:SIZE]
        for _ in range(3):
            h = self.turned(h, int(g.argmax()), [int(h.argmax())])
            g = g.roll(shifts=int(h.argmin())) * torch.add(h, g, alpha=int(g.argmax()))
        return h, g


def test_a_number_that_is_read_while_a_call_is_described_moves_no_operands() -> None:
    """What a call's tensors stand for is asked when its numbers are known: a read is the end of a segment."""
    net = bound(seeded(GivesNumbersOn), some(6), "auto")
    require_parity(net, some(12, seed=1))
    require_parity(net, some(12, seed=1))
