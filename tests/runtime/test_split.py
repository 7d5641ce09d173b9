"""Mini-batches whose cells run in parts: the same numbers, the graph and the schedule that execute, and when."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from bound import plan_for, poison
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cells import RandomCell
from torch import nn

from edbc.cells.split import CORE, EAGER, LAZY, SplitCell
from edbc.errors import GraphError
from edbc.modelfile import import_model_file
from edbc.parity import Eager, Parity
from edbc.plan.reader import read_plan
from edbc.runtime import chunks, splitting
from edbc.runtime.session import Net, Stats
from edbc.runtime.split import find_usage
from edbc.schedule.check import check_schedule
from edbc.trace.mark import cell

Node = tuple[int, tuple[int, ...]]
"""A word, and the earlier nodes that are read."""


class RandomDagModel(nn.Module):
    """A random cell at every node of a DAG, over its word and two states, the same one twice where a node reads one;
    further outputs are results that no node reads, and so is a random cell over every last state."""

    def __init__(self, seed: int, size: int):
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Parameter(torch.randn(20, size, dtype=torch.float64))
        self.start = nn.Parameter(torch.randn(size, dtype=torch.float64))
        self.step = cell(RandomCell(seed, 3, 12, size))

    def forward(self, nodes: list[Node]) -> dict[str, Any]:
        states, rest = [], []
        for word, below in nodes:
            read = [states[i] for i in below] or [self.start]
            x = self.words[word] if word >= 0 else read[0]
            first, *others = self.step(x, read[0], read[-1])
            states.append(torch.tanh(first))
            rest += others
        return {"states": states, "rest": rest}


def random_dag(rng: random.Random) -> list[Node]:
    """Up to a dozen nodes."""
    return [
        (rng.randrange(20), tuple(rng.sample(range(i), min(i, rng.randrange(3))))) for i in range(rng.randrange(1, 12))
    ]


def dags(seed: int, count: int = 6) -> list[list[Node]]:
    """Instances."""
    rng = random.Random(seed)
    return [random_dag(rng) for _ in range(count)]


def assert_equal_to_eager(net: Net, instances: list[Any], results: list[Any] | None = None) -> None:
    """The project's parity rule, without gradients: in training cells run whole."""
    eager, parity = Eager(net.model), Parity()
    results = net.run(instances)[0] if results is None else results
    for ours, theirs, exact in zip(results, eager.run(instances), eager.reference(instances), strict=True):
        parity.add(ours, theirs, exact)
    parity.require()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split wherever it is possible, whether it pays or not and whatever it takes in memory."""
    monkeypatch.setattr(SplitCell, "pays", lambda *_: True)
    monkeypatch.setattr(chunks, "SHARE", 1e6)


@pytest.fixture
def chunked(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with room for the largest batches and no more."""
    monkeypatch.setattr("edbc.runtime.split.find_room", lambda needs, _: {need.kind: need.least for need in needs})


def bound(model: nn.Module, instances: list[Any], backend: str | None = None, **options: Any) -> Net:
    """The model bound to a plan that splits what can be split."""
    return Net(plan_for(model, instances, split=everything), model.eval(), backend=backend, **options)


def bound_eager(model: nn.Module, instances: list[Any], backend: str | None = None) -> Net:
    """The same without lazy parts, which would have all hand-overs kept."""
    plan = plan_for(model, instances, split=lambda *cell: (everything(*cell)[0], ()))
    return Net(plan, model.eval(), backend=backend)


def everything(cell, batches, order, external: list[bool], read: list[bool]) -> tuple:
    """Split off all that the definitions allow, products or not."""
    awaited = {name for name, is_read in zip(cell.outputs, read, strict=False) if is_read}
    eager = tuple(name for (name, _), is_external in zip(cell.operands, external, strict=False) if is_external)
    return eager, tuple(name for name in dict.fromkeys(cell.outputs) if name not in awaited)


def parts_in(net: Net, instances: list[Any]) -> set[str]:
    """Which parts execute."""
    graph = net.prepare(instances).capture.graph
    counts = graph.counts()
    return {t.name.rsplit(".", 1)[-1] for k, t in enumerate(graph.types) if counts[k]} & {EAGER, CORE, LAZY}


@pytest.mark.usefixtures("always")
@settings(derandomize=True, deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1, 4, 19]), backend=st.sampled_from(["cpu", "reference"]))
def test_random_cells_in_parts_equal_eager(seed: int, size: int, backend: str) -> None:
    """Whatever a cell computes, split or not, on either back end, in memory that holds no numbers: eager's outputs."""
    instances = dags(seed)
    net = bound(RandomDagModel(seed, size), instances, backend)
    assert_equal_to_eager(net, instances)
    if backend == "cpu":
        poison(net)
        assert_equal_to_eager(net, instances)


@pytest.mark.usefixtures("chunked")
@settings(derandomize=True, deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), backend=st.sampled_from(["cpu", "reference"]))
def test_random_cells_in_chunks_equal_eager(seed: int, backend: str) -> None:
    """The same when eager parts run chunk by chunk, each over the memory of the one before."""
    instances = dags(seed)
    net = bound_eager(RandomDagModel(seed, 4), instances, backend)
    assert_equal_to_eager(net, instances)
    if backend == "cpu":
        poison(net)
        assert_equal_to_eager(net, instances)


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("seed", [27, 30, 59])
def test_outputs_that_eager_parts_compute_are_kept(seed: int, backend: str) -> None:
    """An output of a cell that depends on look-ups alone is a result: no later chunk overwrites it."""
    instances = dags(seed)
    net = bound_eager(RandomDagModel(seed, 4), instances, backend)
    prepared = net.prepare(instances)
    of_results = prepared.capture.graph.node_type[prepared.capture.result_node]

    assert any(prepared.capture.graph.types[kind].name.endswith(EAGER) for kind in set(of_results.tolist()))
    assert_equal_to_eager(net, instances)


@pytest.mark.usefixtures("chunked")
def test_random_cells_do_run_in_chunks() -> None:
    """Many of the seeds above have a type with several chunks."""
    several = 0
    for seed in range(20):
        instances = dags(seed)
        prepared = bound_eager(RandomDagModel(seed, 4), instances).prepare(instances)
        batches = np.bincount(prepared.schedule.batch_type)
        types = prepared.capture.graph.types
        several += any(types[kind].transient and count > 2 for kind, count in enumerate(batches.tolist()))

    assert several >= 5


@pytest.mark.usefixtures("always")
def test_random_cells_do_run_in_parts() -> None:
    """The seeds above split cells into every combination of parts."""
    seen = set()
    for seed in range(40):
        instances = dags(seed)
        seen.add(frozenset(parts_in(bound(RandomDagModel(seed, 4), instances), instances)))

    assert seen >= {frozenset(p) for p in ({EAGER, CORE}, {CORE, LAZY}, {EAGER, CORE, LAZY}, set())}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("seed", range(4))
def test_float32_parts_equal_eager(seed: int) -> None:
    """The same in float32, with an odd size."""
    instances = dags(seed)
    assert_equal_to_eager(bound(RandomDagModel(seed, 33).float(), instances), instances)


@pytest.mark.parametrize("memory", ["always", "chunked"])
@pytest.mark.parametrize("seed", range(8))
def test_the_executed_graph_and_schedule_are_legal(seed: int, memory: str, request: pytest.FixtureRequest) -> None:
    """The split graph keeps every invariant, its schedule passes the checker, and the whole ones are what they were."""
    request.getfixturevalue(memory)
    instances = dags(seed)
    model = RandomDagModel(seed, 4)
    prepared = (bound if memory == "always" else bound_eager)(model, instances).prepare(instances)
    prepared.capture.graph.lint()
    check_schedule(prepared.capture.graph, prepared.schedule)
    unsplit = bound(model, instances, split=False).prepare(instances)
    whole, schedule = prepared.whole
    assert unsplit.split is None
    assert whole.graph.same_as(unsplit.capture.graph) or whole.graph.num_types > unsplit.capture.graph.num_types
    assert np.array_equal(schedule.nodes, unsplit.schedule.nodes)


def reference_parts(graph, schedule, has_part, part_type, home, origins, room):
    """`number_parts`, `part_batches` and `split_nodes` one node after the other: nodes as (type, operands), batches as
    lists of nodes, and which of them the given batches are."""
    by_part = {
        part: [[int(v) for v in schedule.nodes if has_part[part, t] and graph.node_type[v] == t]
               for t in range(graph.num_types)] for part in (0, 2)
    }  # fmt: skip
    number = {}
    for part in (0, 1, 2):
        for v in [x for nodes in by_part[part] for x in nodes] if part != 1 else range(graph.num_nodes):
            number[part, v] = len(number)

    def operand(u, j):
        part, index = home[graph.node_type[u], j]
        return (number[part, u], index) if u >= 0 else (u, 0)

    nodes = {}
    for part, v in number:
        t = int(graph.node_type[v])
        whole = graph.operands_of(v)
        wanted = origins.get((part, t), [(-1, k) for k in range(len(whole))])
        read = [operand(*whole[k]) if p < 0 else (number[p, v], k) for p, k in wanted]
        nodes[number[part, v]] = (part_type[part, t], read)
    batches, executed, chunk_of = [], [], {}
    for t, batch in schedule.batches():
        if has_part[0, t]:
            if len(chunk_of.get(t, [])) + len(batch) > room[t] or t not in chunk_of:
                chunk_of[t] = []
                batches.append(chunk_of[t])
            chunk_of[t] += [number[0, int(v)] for v in batch]
        executed.append(len(batches))
        batches.append([number[1, int(v)] for v in batch])
    batches += [[number[2, v] for v in batch] for batch in by_part[2] if batch]
    return nodes, batches, executed


@pytest.mark.parametrize(
    ("memory", "seed"), [*(("always", seed) for seed in (1, 2, 6, 22, 25)), *(("chunked", seed) for seed in (1, 5, 30))]
)
def test_native_splitting_equals_the_reference(memory: str, seed: int, request: pytest.FixtureRequest) -> None:
    """The loops over arrays give the nodes, operands and batches that the definitions give one by one."""
    request.getfixturevalue(memory)
    instances = dags(seed)
    net = (bound if memory == "always" else bound_eager)(RandomDagModel(seed, 4), instances)
    prepared = net.prepare(instances)
    whole, schedule = prepared.whole
    tables = net._splitter._tables_of(whole.graph, prepared.split.variants)
    origins = {
        (part, t): list(map(tuple, tables.origin[slice(*tables.origin_ptr[part, t : t + 2])].tolist()))
        for part in range(3)
        for t in prepared.split.variants
    }
    room = net._splitter.choose(whole.graph, schedule)[1]
    nodes, batches, executed = reference_parts(
        whole.graph, schedule, tables.has_part, tables.part_type, tables.home, origins, room
    )
    graph = prepared.capture.graph
    assert {v: (int(graph.node_type[v]), graph.operands_of(v)) for v in range(graph.num_nodes)} == nodes
    assert [batch.tolist() for _, batch in prepared.schedule.batches()] == batches
    assert prepared.split.executed.tolist() == executed
    _assert_counts(schedule, room, prepared)


def _assert_counts(schedule, room, prepared) -> None:
    """`batch_sizes` and `count_chunks` say what the schedules show."""
    sizes = splitting.batch_sizes(schedule.batch_type, schedule.batch_ptr, len(room))
    chunked = splitting.count_chunks(schedule.batch_type, schedule.batch_ptr, room)
    for t in range(len(room)):
        own = [len(nodes) for kind, nodes in schedule.batches() if kind == t]
        assert sizes[:, t].tolist() == [sum(own), len(own), max(own, default=0)]
        variant = prepared.split.variants.get(t)
        if variant is not None and EAGER in variant.type_of_part:
            made = [kind for kind, _ in prepared.schedule.batches() if kind == variant.type_of_part[EAGER]]
            assert chunked[t] == len(made)


def test_usage_is_what_the_graph_says() -> None:
    """An operand is external when no node has a computed one there; an output is read when some operand names it."""
    graph = bound(RandomDagModel(3, 4), dags(3)).capture(dags(3)).graph
    external, read = find_usage(graph)
    for t, kind in enumerate(graph.types):
        nodes = [v for v in range(graph.num_nodes) if graph.node_type[v] == t]
        for k in range(len(kind.operands)):
            assert external[t, k] == all(graph.operands_of(v)[k][0] < 0 for v in nodes)
        for j in range(len(kind.outputs)):
            operands = [o for v in range(graph.num_nodes) for o in graph.operands_of(v)]
            assert read[t, j] == any(u >= 0 and graph.node_type[u] == t and o == j for u, o in operands)


@pytest.mark.usefixtures("always")
def test_an_operand_that_is_computed_somewhere_is_not_eager() -> None:
    """One node whose word is another node's state keeps the whole mini-batch from splitting x off, and the next one
    splits it again."""
    instances = dags(1)
    net = bound(RandomDagModel(2, 4), instances)
    assert EAGER in parts_in(net, instances)
    mixed = [*instances, [(3, ()), (-1, (0,)), (2, (1,))]]
    assert EAGER not in parts_in(net, mixed)
    assert_equal_to_eager(net, mixed)
    assert EAGER in parts_in(net, instances)
    assert_equal_to_eager(net, instances)


@pytest.mark.usefixtures("always")
def test_changed_weights_reach_every_part() -> None:
    """Halves and cores pack the same parameters apart, and both see a change."""
    instances = dags(1)
    model = RandomDagModel(2, 4)
    net = bound(model, instances)
    before = net.run(instances)[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    assert not torch.equal(net.run(instances)[0][0]["states"][-1], before[0]["states"][-1])
    assert_equal_to_eager(net, instances)


ZOO = ("lattice_lstm", "lattice_gru", "bilstm_tagger", "lstm_nmt")


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", ZOO)
def test_words_of_the_zoo_run_first(name: str, backend: str, repository) -> None:
    """The recurrent cells of the workloads run W x for all words at once, through both front ends, and equal eager;
    batches and nodes are counted as without."""
    plan = read_plan(repository / "plans" / f"{name}.yaml")
    file = import_model_file(repository / "models" / f"{name}.py")
    config = file.config({**plan.model.config, "hidden_size": 32, "vocab_size": 50})
    model = file.build(config, 0)
    instances = file.sample(3, 5, config)
    net, unsplit = (Net(plan, model, backend=backend, rebind=True, split=split) for split in (True, False))
    assert EAGER in parts_in(net, instances)
    assert not parts_in(unsplit, instances)
    assert_equal_to_eager(net, instances)
    counts = []
    for each in (net, unsplit):
        each.run(instances, stats := Stats())
        counts.append((stats.nodes, stats.batches, stats.lower_bound, stats.unseen_types))
    assert counts[0] == counts[1]
    as_vertices = file.vertex_instance(config)
    vertex, unsplit_vertex = (each.run([as_vertices(i) for i in instances])[0] for each in (net, unsplit))
    for ours, theirs in zip(vertex, unsplit_vertex, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_large_batches_run_whole(repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed costs apart: with more rows per batch than half of the hidden size, nothing is split off; with fewer, it
    is."""
    monkeypatch.setattr("edbc.cells.split.MULTIPLICATIONS_PER_TYPE", 0)
    monkeypatch.setattr("edbc.cells.split.MULTIPLICATIONS_PER_NODE", 0)
    plan = read_plan(repository / "plans" / "lstm_nmt.yaml")
    file = import_model_file(repository / "models" / "lstm_nmt.py")
    config = file.config({**plan.model.config, "hidden_size": 32, "vocab_size": 50})
    net = Net(plan, file.build(config, 0), rebind=True)

    assert EAGER in parts_in(net, file.sample(2, 5, config))
    assert not parts_in(net, file.sample(256, 5, config))


@pytest.mark.usefixtures("always")
def test_unsplit_programs_stay_available() -> None:
    """`program` gives the whole cell's program while the net runs its parts."""
    instances = dags(1)
    net = bound(RandomDagModel(2, 4), instances)
    net.run(instances)
    kind = next(iter(net.prepare(instances).split.variants))

    assert len(net.program(kind).loads) == 3
    assert all(step.addend is None for step in net.program(kind).steps if hasattr(step, "addend"))


@pytest.mark.usefixtures("chunked")
def test_what_chunks_overwrite_cannot_be_kept() -> None:
    """A hand-over can be looked at until the next chunk has run; later, and for the keep-set, it is refused."""
    instances = dags(1)
    net = bound_eager(RandomDagModel(2, 4), instances)
    prepared = net.prepare(instances)
    types, kinds = prepared.capture.graph.types, prepared.schedule.batch_type.tolist()
    (first, second, *_) = [b for b, kind in enumerate(kinds) if types[kind].transient]
    value = (int(prepared.schedule.nodes[prepared.schedule.batch_ptr[first]]), 0)
    with net.executing(prepared) as execution:
        execution.run(until=second)
        assert torch.isfinite(execution.values([value])[0]).all()
        execution.run(until=second + 1)
        with pytest.raises(GraphError, match="whose next batch has run; look earlier"):
            execution.values([value])
        execution.run()
    with pytest.raises(GraphError, match="expected one that is kept"):
        net.executing(prepared, keep=[value])


def test_parts_have_numbers() -> None:
    """The native loops and the definitions number the parts alike."""
    assert (splitting.EAGER, splitting.CORE, splitting.LAZY) == (0, 1, 2)
