"""Mini-batches whose cells run in parts: the same numbers, the graph and the schedule that execute, and when."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from bound import plan_for, poison
from helpers import require_eager, same_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cells import RandomCell
from torch import nn
from zoo_names import short_instances

from edbc.capture.code.mark import cell
from edbc.cells.parts import CORE, EAGER, PARTS, SplitCell
from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.passes import chunks, splitloops
from edbc.run.passes.eagerparts import external_operands
from edbc.run.session import Net, Stats
from edbc.schedule.checker import check_schedule

WORDS = 40
Node = tuple[int, tuple[int, ...]]
"""A word, and the earlier nodes that are read."""


class RandomDagModel(nn.Module):
    """A random cell at every node of a DAG, over its word and two states, the same one twice where a node reads one;
    further outputs are results that no node reads, and so is a random cell over every last state."""

    def __init__(self, seed: int, size: int):
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Parameter(torch.randn(WORDS, size, dtype=torch.float64))
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
    size = rng.randrange(1, 12)
    return [(rng.randrange(WORDS), tuple(rng.sample(range(i), min(i, rng.randrange(3))))) for i in range(size)]


def dags(seed: int, count: int = 6) -> list[list[Node]]:
    """Instances."""
    rng = random.Random(seed)
    return [random_dag(rng) for _ in range(count)]


def assert_equal_to_eager(net: Net, instances: list[Any]) -> None:
    """The project's parity rule, without gradients: in training cells run whole."""
    require_eager(net, instances, net.run(instances)[0])


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split and share wherever it is possible, whether it pays or not and whatever it takes in memory."""
    monkeypatch.setattr(SplitCell, "gain", lambda self, *_: 1 + self.shares)
    monkeypatch.setattr(chunks, "SHARE", 1e6)


@pytest.fixture
def chunked(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with room for the largest batches and no more."""
    monkeypatch.setattr(
        "edbc.run.passes.eagerparts.find_room", lambda needs, _: {need.kind: need.least for need in needs}
    )


def bound(model: nn.Module, instances: list[Any], backend: str | None = None, **options: Any) -> Net:
    """The model bound to a plan that splits what can be split."""
    return Net(plan_for(model, instances, split=everything), model.eval(), backend=backend, **options)


def everything(cell, batches, order, external: list[bool]) -> tuple[str, ...]:
    """Split off all that the definitions allow, products or not."""
    return tuple(name for (name, _), is_external in zip(cell.operands, external, strict=False) if is_external)


def parts_in(net: Net, instances: list[Any]) -> set[str]:
    """Which parts execute."""
    graph = net.prepare(instances).capture.graph
    counts = graph.counts()
    return {t.name.rsplit(".", 1)[-1] for k, t in enumerate(graph.types) if counts[k]} & {EAGER, CORE}


@pytest.mark.compiled
@pytest.mark.usefixtures("always")
@settings(derandomize=True, deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1, 4, 19]), backend=st.sampled_from(["cpu", "reference"]))
@pytest.mark.long
def test_random_cells_in_parts_equal_eager(seed: int, size: int, backend: str) -> None:
    """Whatever a cell computes, split or not, on either back end, in memory that holds no numbers: eager's outputs."""
    instances = dags(seed)
    net = bound(RandomDagModel(seed, size), instances, backend)
    assert_equal_to_eager(net, instances)
    if backend == "cpu":
        poison(net)
        assert_equal_to_eager(net, instances)


@pytest.mark.compiled
@pytest.mark.usefixtures("chunked")
@settings(derandomize=True, deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), backend=st.sampled_from(["cpu", "reference"]))
@pytest.mark.long
def test_random_cells_in_chunks_equal_eager(seed: int, backend: str) -> None:
    """The same when eager parts run chunk by chunk, each over the memory of the one before."""
    instances = dags(seed)
    net = bound(RandomDagModel(seed, 4), instances, backend)
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
    net = bound(RandomDagModel(seed, 4), instances, backend)
    prepared = net.prepare(instances)
    of_results = prepared.capture.graph.node_type[prepared.capture.result_node]

    assert any(prepared.capture.graph.types[kind].name.endswith(EAGER) for kind in set(of_results.tolist()))
    assert_equal_to_eager(net, instances)


@pytest.mark.usefixtures("chunked")
@pytest.mark.long
def test_random_cells_do_run_in_chunks() -> None:
    """Many of the seeds above have a type with several chunks."""
    several, shared = 0, 0
    for seed in range(20):
        instances = dags(seed)
        prepared = bound(RandomDagModel(seed, 4), instances).prepare(instances)
        batches = np.bincount(prepared.schedule.batch_type)
        types = prepared.capture.graph.types
        several += any(types[kind].transient and count > 1 for kind, count in enumerate(batches.tolist()))
        shared += prepared.split is not None and any(v.cell.shares for v in prepared.split.variants.values())
        if several >= 5 and shared >= 5:
            return

    raise AssertionError(f"{several} have several chunks, {shared} share")


@pytest.mark.usefixtures("always")
@pytest.mark.long
def test_random_cells_do_run_in_parts() -> None:
    """Some of the seeds above split cells, and some do not."""
    seen = set()
    for seed in range(12):
        instances = dags(seed)
        seen.add(frozenset(parts_in(bound(RandomDagModel(seed, 4), instances), instances)))

    assert seen == {frozenset(p) for p in ({EAGER, CORE}, set())}


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
    prepared = bound(model, instances).prepare(instances)
    prepared.capture.graph.lint()
    check_schedule(prepared.capture.graph, prepared.schedule)
    unsplit = bound(model, instances, split=False).prepare(instances)
    whole, schedule = prepared.whole
    assert unsplit.split is None
    assert same_graph(whole.graph, unsplit.capture.graph) or whole.graph.num_types > unsplit.capture.graph.num_types
    assert np.array_equal(schedule.nodes, unsplit.schedule.nodes)


def looked_up(capture, v: int, operands: list[int]) -> tuple:
    """What a node reads there: the rows of sources, and whose output else."""
    read = [capture.graph.operands_of(v)[k] for k in operands]
    return tuple(
        (int(capture.external_source[-1 - u]), int(capture.external_index[-1 - u]), "row") if u < 0 else (u, j)
        for u, j in read
    )


def reference_parts(capture, schedule, tables, variants, room):
    """`find_chunks`, `number_parts`, `part_batches` and `split_nodes` one node after the other: nodes as (type,
    operands), batches as lists of nodes, and which of them the given batches are."""
    graph = capture.graph
    row, chunk_of_batch = {}, {}
    eager: dict[int, list[int]] = {t: [] for t in variants}
    for b, (t, batch) in enumerate(schedule.batches()):
        variant = variants.get(t)
        if variant is None:
            continue
        asked = [o.index for o in variant.cell.parts[EAGER].operands]
        keys = [looked_up(capture, v, asked) if variant.cell.shares else v for v in batch.tolist()]
        chunks_so_far = [chunk for c, chunk in chunk_of_batch.items() if schedule.batch_type[c] == t]
        chunk = chunks_so_far[-1] if chunks_so_far else None
        if chunk is None or len({*chunk, *keys}) > room[t]:
            chunk = chunk_of_batch[b] = {}
        for v, key in zip(batch.tolist(), keys, strict=True):
            if key not in chunk:
                chunk[key] = len(eager[t])
                eager[t].append(v)
            row[v] = chunk[key]
    number, count = {}, 0
    for t in sorted(variants):
        number |= {(0, v): count + row[v] for v in range(graph.num_nodes) if graph.node_type[v] == t}
        count += len(eager[t])
    number |= {(1, v): count + v for v in range(graph.num_nodes)}

    def operand(u, j):
        part, index = tables.home[graph.node_type[u], j] if u >= 0 else (0, 0)
        return (number[part, u], index) if u >= 0 else (u, 0)

    nodes = {}
    for (part, v), made in number.items():
        t = int(graph.node_type[v])
        whole = graph.operands_of(v)
        wanted = [(-1, k) for k in range(len(whole))]
        if t in variants:
            wanted = tables.origin[slice(*tables.origin_ptr[part, t : t + 2])].tolist()
        read = [operand(*whole[k]) if p < 0 else (number[p, v], k) for p, k in wanted]
        nodes.setdefault(made, (tables.part_type[part, t], read))
    batches, executed = [], []
    for b, (t, batch) in enumerate(schedule.batches()):
        if b in chunk_of_batch:
            batches.append([number[0, eager[t][r]] for r in chunk_of_batch[b].values()])
        executed.append(len(batches))
        batches.append([number[1, int(v)] for v in batch])
    return nodes, batches, executed


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(
    ("memory", "seed"), [*(("always", seed) for seed in (1, 2, 5, 22, 25)), *(("chunked", seed) for seed in (1, 5, 30))]
)
def test_native_splitting_equals_the_reference(
    memory: str, seed: int, share: bool, request: pytest.FixtureRequest
) -> None:
    """The loops over arrays give the nodes, operands and batches that the definitions give one by one."""
    request.getfixturevalue(memory)
    instances = dags(seed)
    net = bound(RandomDagModel(seed, 4), instances, share=share)
    prepared = net.prepare(instances)
    whole, schedule = prepared.whole
    chosen = net._splitter.choose(whole, schedule)
    tables = net._splitter._tables_of(whole.graph, chosen.variants)
    nodes, batches, executed = reference_parts(whole, schedule, tables, chosen.variants, chosen.room)
    graph = prepared.capture.graph
    assert {v: (int(graph.node_type[v]), graph.operands_of(v)) for v in range(graph.num_nodes)} == nodes
    assert [batch.tolist() for _, batch in prepared.schedule.batches()] == batches
    assert prepared.split.executed.tolist() == executed
    _assert_counts(schedule, chosen, prepared)


@pytest.mark.usefixtures("always")
def test_the_seeds_above_have_cores_in_place_and_others() -> None:
    """Both ways of writing the operands of cores are compared."""
    seen = set()
    for seed in (1, 5):
        instances = dags(seed)
        net = bound(RandomDagModel(seed, 4), instances)
        split = net.prepare(instances).split
        seen.add(net._splitter._tables_of(split.whole[0].graph, split.variants).in_place)

    assert seen == {True, False}


@pytest.mark.usefixtures("always")
def test_what_is_known_of_sets_of_types_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """One set is remembered here, and two take turns: all types, and none."""
    monkeypatch.setattr("edbc.run.passes.eagerparts.MOST_KNOWN", 1)
    instances = dags(1)
    net = bound(RandomDagModel(1, 4), instances)
    for batch in (instances, [[]], instances):
        assert_equal_to_eager(net, batch)
    assert len(net._splitter._present) == 1


def _assert_counts(schedule, chosen, prepared) -> None:
    """`batch_sizes` and `find_chunks` count what the schedules show."""
    sizes = splitloops.batch_sizes(schedule.batch_type, schedule.batch_ptr, len(chosen.room))
    for t in range(len(chosen.room)):
        own = [len(nodes) for kind, nodes in schedule.batches() if kind == t]
        assert sizes[:, t].tolist() == [sum(own), len(own), max(own, default=0)]
        variant = chosen.variants.get(t)
        if variant is not None:
            made = [len(nodes) for kind, nodes in prepared.schedule.batches() if kind == variant.type_of_part[EAGER]]
            assert chosen.counts[:, t].tolist() == [len(made), sum(made)]
            assert max(made) <= chosen.room[t]


@pytest.mark.parametrize("memory", ["always", "chunked"])
def test_equal_look_ups_are_one_row(memory: str, request: pytest.FixtureRequest) -> None:
    """Nodes that read the same rows read one node of the eager part, in memory for everything; two instances that are
    the same one need nothing more than one, and their results are tensors of their own."""
    request.getfixturevalue(memory)
    instances = [dags(1)[0]] * 2
    net = bound(RandomDagModel(2, 4), instances)
    prepared = net.prepare(instances)
    graph = prepared.capture.graph
    rows = {
        tuple(graph.operands_of(v)): v for v in range(graph.num_nodes)
        if graph.types[graph.node_type[v]].name.endswith(EAGER)
    }  # fmt: skip
    words = {word for word, _ in instances[0]}
    assert len(rows) == len(words) if memory == "always" else len(words) <= len(rows) < 2 * len(instances[0])
    first, second = net.run(instances)[0]
    for ours, other in zip(first["states"] + first["rest"], second["states"] + second["rest"], strict=True):
        assert torch.equal(ours, other)
        before = other.clone()
        ours.fill_(torch.nan)
        assert torch.equal(other, before)


def test_external_operands_are_what_the_graph_says() -> None:
    """An operand is external when no node has a computed one there."""
    graph = bound(RandomDagModel(3, 4), dags(3)).mini_batch(dags(3)).graph
    external = external_operands(graph)
    for t, kind in enumerate(graph.types):
        nodes = [v for v in range(graph.num_nodes) if graph.node_type[v] == t]
        for k in range(len(kind.operands)):
            assert external[t, k] == all(graph.operands_of(v)[k][0] < 0 for v in nodes)


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
    instances = short_instances(file, 3, 5, config)
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
    """Fixed costs apart: with more rows per batch than a seventh of the hidden size, nothing is split off, unless words
    repeat and their parts are shared; with fewer, it is."""
    monkeypatch.setattr("edbc.cells.parts.MULTIPLICATIONS_PER_TYPE", 0)
    monkeypatch.setattr("edbc.cells.parts.ON_CPU.chunk", 0)
    monkeypatch.setattr("edbc.cells.parts.MULTIPLICATIONS_PER_NODE", 0)
    plan = read_plan(repository / "plans" / "lstm_nmt.yaml")
    file = import_model_file(repository / "models" / "lstm_nmt.py")
    config = file.config({**plan.model.config, "hidden_size": 64, "vocab_size": 50})
    shared, alone = (Net(plan, file.build(config, 0), rebind=True, share=share) for share in (True, False))

    assert EAGER in parts_in(alone, file.sample(2, 5, config))
    assert not parts_in(alone, file.sample(256, 5, config))
    assert EAGER in parts_in(shared, file.sample(256, 5, config))


@pytest.mark.usefixtures("always")
def test_unsplit_programs_stay_available() -> None:
    """`program` gives the whole cell's program while the net runs its parts."""
    instances = dags(1)
    net = bound(RandomDagModel(2, 4), instances)
    net.run(instances)
    kind = next(iter(net.prepare(instances).split.variants))

    assert len(net.program(kind).loads) == 3
    assert all(step.addend is None for step in net.program(kind).steps if hasattr(step, "addend"))


def test_parts_have_numbers() -> None:
    """The native loops and the definitions number the parts alike."""
    assert tuple(map(PARTS.index, (EAGER, CORE))) == (splitloops.EAGER, splitloops.CORE)
