"""Runs of all instances of a kept forward: bits, graphs, schedules and patterns by steps, against those by nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from helpers import bound
from randomforwards import instance, model_of, source_of
from rowparity import HIDDEN, VOCAB, leaves, of_model, sentence
from torch import nn

from edbc.base.graph import Graph
from edbc.capture.forward import buildloops
from edbc.capture.forward.build import Capture
from edbc.capture.ragged.expandloops import distinct
from edbc.capture.ragged.kept import KeptCall
from edbc.capture.ragged.program import EACH, REDUCE
from edbc.capture.ragged.together import templates
from edbc.capture.ragged.together.forwards import Forwards
from edbc.run.session import Net
from edbc.schedule.checker import check_schedule
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import run, with_nodes


@torch.no_grad()
def captured(net: Net, instances: Sequence[Any], by_nodes: bool = False) -> Capture:
    """The mini-batch, no nodes shared; each instance as a run of its own where it is `by_nodes`."""
    with pytest.MonkeyPatch.context() as patch:
        if by_nodes:
            patch.setattr(Forwards, "at_once", lambda self: None)
        return net.prepare(instances, without=("share",)).capture


@torch.no_grad()
def require_bits(net: Net, instances: Sequence[Any]) -> bool:
    """The same bits at once, each instance as a run of its own, alone, captured, in another order and in parts; what
    passes make is verified. Whether there was a graph of steps."""
    net.passes.verifies = net._preparing.verifies = net._executing.verifies = True
    found = leaves(net(instances))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Forwards, "at_once", lambda self: None)
        in_turn = leaves(net(instances))
    others = [in_turn, leaves(net(instances[::-1])[::-1]), leaves(net([x])[0] for x in instances)]
    others.append(leaves([*net(instances[:3]), *net(instances[3:])]))
    others.append(leaves(net(net.capture_all(instances))))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(found, other, strict=True))
    shared, whole = net.prepare(instances).capture, captured(net, instances)
    if shared.of_steps is not None:
        assert shared.graph.num_nodes + shared.num_shared == whole.graph.num_nodes
    return shared.of_steps is not None


def require_random_steps(seeds: range, folder: Path) -> int:
    """Bits of random closed forwards; of how many there were graphs of steps."""
    count = 0
    for seed in seeds:
        rng = Random(seed)
        torch.manual_seed(seed)
        text, form = source_of(rng)
        model = model_of(text, folder, f"steps_{seed}").eval()
        some = lambda: instance(rng, form, rng.randint(1, 7))  # noqa: B023, E731
        net = bound(model, [some() for _ in range(6)], cells="auto", rows=True)
        with torch.no_grad():
            net([some() for _ in range(8)])
        count += require_bits(net, [some() for _ in range(24)])
    return count


def test_random_forwards_have_the_same_bits_by_steps(tmp_path: Path) -> None:
    """And about half of them have graphs of steps: others return a constant, or rows that only one size has."""
    assert require_random_steps(range(20), tmp_path) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_random_forwards_have_the_same_bits_by_steps(part: int, tmp_path: Path) -> None:
    """The same for 400 of them."""
    assert require_random_steps(range(100 + 100 * part, 200 + 100 * part), tmp_path) >= 40


class Pools(nn.Module):
    """Functions of rows, chains of additions, and one value that all rows read."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.up = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.state = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, ids):
        h = self.words(torch.tensor(ids))
        g = self.up(h)
        added = h + g + torch.tanh(g)
        state = self.state(added.sum(0)) + added[0]
        return torch.tanh((added + state + h).mean(0)), state


class Branches(Pools):
    """Another forward for each size of a list that brings no rows."""

    def forward(self, instance):
        ids, others = instance
        h = torch.tanh(self.up(self.words(torch.tensor(ids))))
        return {"mean": h.mean(0), "all": [h.sum(0)] * len(others)}


def test_a_schedule_of_steps_is_one_of_their_nodes() -> None:
    """The template's batches, whatever the sizes; and as many as by nodes."""
    net, rng = of_model(Pools(), sentence), Random(1)
    for count in (8, 40, 8):
        instances = [sentence(rng) for _ in range(count)]
        found, by_nodes = captured(net, instances), captured(net, instances, by_nodes=True)
        assert found.of_steps is not None
        assert by_nodes.of_steps is None
        schedule = net.schedule(found)
        check_schedule(found.graph, schedule)
        assert schedule.num_batches == run(found.of_steps.template.graph, net.policy).num_batches
        assert schedule.num_batches == net.schedule(by_nodes).num_batches
        assert found.graph.num_nodes == by_nodes.graph.num_nodes
        counts = [dict(zip(*np.unique(c.graph.node_type, return_counts=True), strict=True)) for c in (found, by_nodes)]
        assert counts[0] == counts[1]


def test_instances_of_several_forwards_are_one_mini_batch() -> None:
    """Each a run of its own, with steps of one type in one batch, and results in the order of the instances."""

    def make(rng: Random) -> tuple[list[int], tuple[str, ...]]:
        return sentence(rng), ("a",) * rng.randint(0, 2)

    model = Branches().eval()
    rng = Random(3)
    net = bound(model, [make(rng) for _ in range(9)], cells="auto", rows=True)
    with torch.no_grad():
        net([make(rng) for _ in range(20)])
        instances = [make(rng) for _ in range(30)]
        for ours, instance in zip(net(instances), instances, strict=True):
            theirs = model(instance)
            assert len(ours["all"]) == len(instance[1])
            torch.testing.assert_close(ours, theirs)
    found = captured(net, instances)
    assert found.of_steps is not None
    types = found.graph.types
    batches = [types[kind].name for kind, _ in net.schedule(found).batches()]
    assert len(batches) == len(set(batches))


@torch.no_grad()
def test_without_sharing_every_node_of_a_step_runs() -> None:
    """And with it those of steps are still told: equal words are one node of their step."""
    net = of_model(Pools(), sentence)
    instances = [[1, 2, 3], [3, 2, 1, 1], *[[1, 2]] * 20]
    whole, shared = net.prepare(instances, without=("share",)), net.prepare(instances)
    assert shared.shared_nodes > 20
    assert whole.capture.graph.num_nodes == shared.capture.graph.num_nodes + shared.shared_nodes
    for batch in (whole, shared):
        assert batch.capture.of_steps is not None
        assert batch.capture.of_steps.step_ptr[-1] == batch.capture.graph.num_nodes
        check_schedule(batch.capture.graph, batch.schedule)
    assert whole.schedule.num_batches == shared.schedule.num_batches


class Sends(Pools):
    """Words of both ends of an edge, sent to one of them, twice."""

    def forward(self, instance):
        ids, edges = instance
        h, (source, target) = self.words(torch.tensor(ids)), torch.tensor(edges).t()
        for _ in range(2):
            message = torch.tanh(self.up(h[source]) + self.state(h[target]))
            h = torch.relu(h + torch.zeros_like(h).index_add(0, target, message))
        return h.sum(0)


def chain(rng: Random) -> tuple[list[int], list[tuple[int, int]]]:
    """Few words, each with edges to and from the next one."""
    n = rng.randint(3, 8)
    pairs = [(i, i + 1) for i in range(n - 1)]
    return [rng.randrange(2) for _ in range(n)], pairs + [(j, i) for i, j in pairs]


@torch.no_grad()
def test_equal_rows_of_different_instances_are_computed_once() -> None:
    """Chains of words: as many nodes as there are different neighbourhoods, not as there are rows; each batch of nodes
    that rows have has no two that read the same."""

    net, rng = of_model(Sends(), chain), Random(5)
    instances = [chain(rng) for _ in range(40)]
    assert require_bits(net, instances)
    found = net.prepare(instances).capture
    graph, kinds = found.graph, found.graph.node_type
    assert 4 * graph.num_nodes < graph.num_nodes + found.num_shared
    reads = [(int(kinds[v]), tuple(graph.operands_of(v))) for v in range(graph.num_nodes)]
    final = {int(node) for node in found.result_node}
    assert len({read for v, read in enumerate(reads) if v not in final}) == graph.num_nodes - len(final)


@torch.no_grad()
def test_bits_are_those_of_the_first_time() -> None:
    """A product in a pattern begins with what is added to it, so patterns are those of the program from the first
    instance of a key on: when nothing was known, alone, captured and at once."""

    rng = Random(2)
    model, instances = Sends().eval(), [chain(rng) for _ in range(12)]
    new = [bound(model, instances, cells="auto", rows=True) for _ in range(3)]
    found = [
        new[0](instances),
        [new[1]([x])[0] for x in instances],
        new[2](new[2].capture_all(instances)),
    ]
    found += [new[0](instances), new[1](instances), new[2](instances)]
    assert all("linear_sum" in " ".join(t.name for t in each.plan.types) for each in new)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


class Fills(Pools):
    """Zeros that rows are added to, in one part of an instance; in the other, rows that are none."""

    def forward(self, instance):
        ids, target, others = instance
        h = self.words(torch.tensor(ids))
        for other in others:
            h = torch.tanh(h) * other
        base = torch.zeros_like(h) if len(others) > 1 else h.flip(0)
        return base.index_add(0, torch.tensor(target), h).sum(0)


@torch.no_grad()
def test_refs_that_are_forgotten_are_those_of_nothing() -> None:
    """What was recorded of the first instance of a key is recorded anew: zeros among it are not what others are added
    to that get their refs."""
    model, rng = Fills().eval(), Random(0)

    def make(others: tuple[float, ...]) -> Any:
        n = rng.randint(3, 6)
        return [rng.randrange(VOCAB) for _ in range(n)], [min(i, 2) for i in range(n)], others

    net = bound(model, [make((1.5, 2.5)), make((0.5,)), make(()), make((0.5,))], cells="auto", rows=True)
    for _ in range(3):
        instances = [make(others) for others in ((1.5, 2.5), (), (0.5,), (1.5, 2.5, 3.5))]
        for ours, x in zip(net(instances), instances, strict=True):
            torch.testing.assert_close(ours, model(x))
    recorder = net._idle[0][1]
    recorder.begin()
    recorder.zeros = {-9, recorder.next_value, recorder.next_value + 5}
    recorder.forget_since(0, 0, recorder.next_value + 5, 0)
    assert recorder.zeros == {-9, recorder.next_value - 5}


def test_sizes_that_are_equal_have_one_name() -> None:
    """Whatever the order in which pairs are told."""
    pairs: list[Any] = [(0, 1), (3, 4), (1, 4), (7, 8)]
    for told in (pairs, pairs[::-1]):
        sizes = templates._Sizes(told)
        assert len({sizes(k) for k in (0, 1, 3, 4)}) == 1
        assert sizes(7) == sizes(8) != sizes(0)
        assert sizes(5) == 5
        assert sizes(None) is None


def test_distinct_numbers_in_their_order() -> None:
    """And which of them each is."""
    rng = np.random.default_rng(0)
    for count in (0, 1, 5, 300):
        numbers = rng.integers(-4, 40, count)
        found, which = distinct(numbers)
        assert found.tolist() == [*dict.fromkeys(numbers.tolist())]
        assert found[which].tolist() == numbers.tolist()


def test_patterns_of_steps_are_of_the_same_rows() -> None:
    """A chain of additions is one sum up to what all rows read, which is no row; what is read twice stays."""
    net = of_model(Pools(), sentence)
    table = net.table
    (call,) = [of for key, of in net._idle[0][1].functions.items() if key[:2] == (KeptCall, "")]
    whole, made = call.program, templates.with_patterns(table, call)
    assert made is templates.with_patterns(table, call)
    assert len(made.steps) < len(whole.steps)
    assert made.counts == whole.counts
    arity = {len(step.registers) for step in made.steps if step.op == EACH and table.entries[step.parameters[0]].is_sum}
    assert max(arity) > 2
    reads = [(step, made.counts_of_steps()[k][0]) for k, step in enumerate(made.steps) if step.op == EACH]
    for step, count in reads:
        assert (count is None) == (step.parameters[2] < 0)
    assert sum(step.op == REDUCE for step in made.steps) == sum(step.op == REDUCE for step in whole.steps)


def test_steps_without_nodes_leave_out_their_batches() -> None:
    """A schedule of steps, and of which nodes each has: none for the second one."""
    small = Graph.build(["a", "b", "c"], [("a", []), ("b", [0]), ("c", [0, 1])])
    graph = Graph.build(["a", "b", "c"], [("a", []), ("a", []), ("c", [0]), ("c", [1])])
    schedule = run(small, Policy("depth"))
    found = with_nodes(graph, schedule, np.array([0, 2, 3]), np.array([0, 2, 2, 2, 4]))
    check_schedule(graph, found)
    assert [(kind, nodes.tolist()) for kind, nodes in found.batches()] == [(0, [0, 1]), (2, [2, 3])]


def test_numbered_says_where_values_are() -> None:
    """Of operands and results; and the first ref of another mini-batch is told, of each."""
    rng = np.random.default_rng(0)
    num_operands, num_outputs, kinds = np.array([0, 2, 3]), np.array([1, 2, 1]), np.array([4, 0, 2])
    for _ in range(20):
        entries, refs, values = [0], list[int](), [(0, 0)]
        for entry in rng.integers(0, 3, 12).tolist():
            refs += [int(rng.integers(-5, len(values))) for _ in range(num_operands[entry])]
            values += [(len(entries), output) for output in range(num_outputs[entry])]
            entries.append(entry)
        local, results = np.array(refs, np.int64), rng.integers(-5, len(values), 4)
        shift = lambda x: np.where(x >= 0, x + 1000, x - 50)  # noqa: E731
        told = np.array(entries, np.int64)
        args = 1000, 50, 5, kinds, num_operands, num_outputs
        (kind, ptr, *of_nodes), *of_results, foreign, foreign_result = buildloops.numbered(
            told, shift(local), shift(results), *args
        )
        assert foreign == foreign_result == -1
        assert kind.tolist() == kinds[told].tolist()
        assert np.diff(ptr).tolist() == num_operands[told].tolist()
        for found, of in ((of_nodes, local), (of_results, results)):
            assert list(zip(*map(np.ndarray.tolist, found), strict=True)) == [
                values[x] if x >= 0 else (x, 0) for x in of.tolist()
            ]
        for position, both in enumerate(((local, results), (results, local)), -2):
            if len(both[0]):
                of = shift(both[0])
                of[[0, -1]] = -60
                told_refs = (of, shift(both[1])) if position == -2 else (shift(both[1]), of)
                assert buildloops.numbered(told, *told_refs, *args)[position] == 0
