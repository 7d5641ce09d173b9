"""The table of steps, without a device: which batch runs when, workspaces apart, every tile once."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_graph, random_lattice_graph

from edbc.base.graph import Graph
from edbc.run.cuda.table import borders_of_items, record_ptr, steps_of_batches, work_places, write_records
from edbc.run.cuda.tritonsource import FIELDS, Field
from edbc.run.passes.placement import place
from edbc.schedule.policy import Policy
from edbc.schedule.schedule import Schedule
from edbc.schedule.scheduler import run

NO_RESULTS = np.zeros(0, np.int64)
seeds = st.integers(0, 100_000)


def scheduled(seed: int) -> tuple[Graph, Schedule, Any]:
    """A graph, a schedule of some policy, its placement."""
    graph = random_graph(seed, 40, 3) if seed % 2 else random_lattice_graph(seed, 12, 3)
    schedule = run(graph, Policy(("critical", "depth", "agenda", "random")[seed % 4]))
    return graph, schedule, place(graph, schedule, NO_RESULTS)


def reads(graph: Graph, schedule: Schedule) -> nx.DiGraph:
    """Which batch reads which."""
    batch_of = np.empty(graph.num_nodes, np.int64)
    batch_of[schedule.nodes] = np.repeat(np.arange(schedule.num_batches), np.diff(schedule.batch_ptr))
    found = nx.DiGraph()
    found.add_nodes_from(range(schedule.num_batches))
    for v in range(graph.num_nodes):
        for u in graph.operands[graph.operand_ptr[v] : graph.operand_ptr[v + 1]]:
            if u >= 0:
                found.add_edge(int(batch_of[u]), int(batch_of[v]))
    return found


@settings(derandomize=True, deadline=None, max_examples=40)
@given(seed=seeds)
def test_steps_are_the_longest_path(seed: int) -> None:
    """Every batch begins where all that it reads has ended, and not later."""
    graph, schedule, placement = scheduled(seed)
    stages = 1 + np.arange(graph.num_types) % 3
    never = np.zeros(graph.num_types, np.bool_)
    first, steps = steps_of_batches(0, schedule.num_batches, schedule.batch_type, schedule.batch_ptr, schedule.nodes,
                                    graph.operand_ptr, graph.operands, placement.batch_of, stages, never)  # fmt: skip
    of_batch = stages[schedule.batch_type]
    before = reads(graph, schedule)
    for b in range(schedule.num_batches):
        assert first[b] == max((first[a] + of_batch[a] for a in before.predecessors(b)), default=0)
    assert steps == (first + of_batch).max()


@settings(derandomize=True, deadline=None, max_examples=20)
@given(seed=seeds)
def test_what_shares_memory_waits(seed: int) -> None:
    """A batch of a transient type begins behind the readers of the batch of its type before."""
    graph, schedule, placement = scheduled(seed)
    stages, transient = np.ones(graph.num_types, np.int64), np.arange(graph.num_types) == 0
    first, _ = steps_of_batches(0, schedule.num_batches, schedule.batch_type, schedule.batch_ptr, schedule.nodes,
                                graph.operand_ptr, graph.operands, placement.batch_of, stages, transient)  # fmt: skip
    after, ours = reads(graph, schedule), np.flatnonzero(schedule.batch_type == 0)
    for a, b in zip(ours, ours[1:], strict=False):
        assert first[b] > max(first[c] for c in (a, *(c for c in after.successors(a) if c < b)))


@settings(derandomize=True, deadline=None, max_examples=40)
@given(operations=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3), st.integers(0, 100)), min_size=1))
def test_workspaces_of_steps_that_overlap_are_apart(operations: list[tuple[int, int, int]]) -> None:
    """No byte belongs to two operations at a time; all of them lie inside, and begin where 16 divides."""
    first, stages, sizes = np.array(operations, np.int64).T.copy()
    place, room = work_places(first, stages, sizes, int((first + stages).max()))

    assert (place % 16 == 0).all()
    assert (place + sizes <= room).all()
    for a in range(len(first)):
        for b in range(a):
            overlap = first[a] < first[b] + stages[b] and first[b] < first[a] + stages[a]
            apart = place[a] + sizes[a] <= place[b] or place[b] + sizes[b] <= place[a]
            assert apart or not overlap


PROGRAMS = 5


def tables(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Three kernels of one to three stages, some jobs with two tile sizes."""
    stages = [1, 2, 3]
    job_stage = [0, 0, 0, 1, 0, 1, 2, 2]
    job_ptr = np.array([0, 2, 4, 8])
    sizes = rng.integers(1, 3, len(job_stage))
    variant_ptr = np.concatenate([[0], np.cumsum(sizes)])
    grid = np.stack(
        [rng.integers(1, 3, sizes.sum()), rng.integers(1, 20, sizes.sum()), rng.integers(1, 4, sizes.sum())]
    )
    arguments = rng.integers(0, 4, (sizes.sum(), 4))
    arguments[::2, 2:] = -1
    return {"stages": np.array(stages), "job_ptr": job_ptr, "job_stage": np.array(job_stage),
            "variant_ptr": variant_ptr, "branch": rng.permutation(int(sizes.sum())), "grid": grid.T.copy(),
            "arguments": arguments}  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=30)
@given(seed=seeds)
def test_every_tile_of_every_job_is_one_programs(seed: int) -> None:
    """Following the cursor from step to step, as programs do: each job once, in its step, with what its operation has;
    a step without work has a record without tiles."""
    rng = np.random.default_rng(seed)
    t, n = tables(rng), int(rng.integers(1, 12))
    kernel, count, step = rng.integers(0, 3, n), rng.integers(1, 60, n), rng.integers(0, 6, n)
    num_steps = int((step + t["stages"][kernel]).max()) + 3
    vectors = rng.integers(0, 1000, (n, 4))
    ptr = record_ptr(kernel, step, num_steps, t["job_ptr"], t["job_stage"])
    out = np.full((ptr[-1], FIELDS + 4), -7, np.int64)
    write_records(kernel, count, step, vectors, ptr, t["job_ptr"], t["job_stage"], t["variant_ptr"], t["branch"],
                  t["grid"], t["arguments"], PROGRAMS, out)  # fmt: skip
    expected = sorted(
        (int(step[o] + t["job_stage"][j]), o, j)
        for o in range(n)
        for j in range(*t["job_ptr"][kernel[o] : kernel[o] + 2])
    )
    record, found = 0, []
    for s in range(num_steps):
        left, next_program = int(out[record, Field.LEFT]), 0
        for r in range(record, record + left):
            assert out[r, Field.LEFT] == record + left - r
            total = int(out[r, Field.TILES])
            tiles = [tile for pid in range(PROGRAMS)
                     for tile in range(int(pid + out[r, Field.FIRST]) % PROGRAMS, total, PROGRAMS)]  # fmt: skip
            assert sorted(tiles) == list(range(total))
            if total:
                assert (next_program + out[r, Field.FIRST]) % PROGRAMS == 0
                next_program = (next_program + total) % PROGRAMS
                found.append((s, *_matched(out[r], t, kernel, count, vectors, s - step)))
        record += left
    assert record == len(out)
    assert sorted((s, o, j) for s, o, j in found) == expected


def _matched(record: np.ndarray, t: dict[str, np.ndarray], kernel: np.ndarray, count: np.ndarray, vectors: np.ndarray,
             stage: np.ndarray) -> tuple[int, int]:  # fmt: skip
    """The operation and the job that a record is of: the first not taken yet that it agrees with."""
    taken = t.setdefault("taken", set())  # type: ignore[arg-type]
    v = int(np.flatnonzero(t["branch"] == record[Field.BRANCH])[0])
    j = int(np.searchsorted(t["variant_ptr"], v, "right")) - 1
    for o in range(len(kernel)):
        is_ours = t["job_ptr"][kernel[o]] <= j < t["job_ptr"][kernel[o] + 1] and t["job_stage"][j] == stage[o]
        told = [vectors[o, i] for i in t["arguments"][v] if i >= 0]
        agrees = list(record[FIELDS : FIELDS + len(told)]) == told and record[Field.COUNT] == count[o]
        if is_ours and agrees and (o, j) not in taken:
            taken.add((o, j))
            _require_variant(t, v, j, int(count[o]), int(record[Field.TILES]))
            return o, j
    raise AssertionError("a record of no operation")


def _require_variant(t: dict[str, np.ndarray], v: int, j: int, count: int, tiles: int) -> None:
    """The largest tile that gives each program one, or the smallest."""

    def of(variant: int) -> int:
        per_node, height, across = t["grid"][variant].tolist()
        return -(-count * per_node // height) * across

    assert tiles == of(v)
    enough = [u for u in range(t["variant_ptr"][j], t["variant_ptr"][j + 1]) if of(u) >= PROGRAMS]
    assert v == max(enough, default=t["variant_ptr"][j])


@settings(derandomize=True, deadline=None, max_examples=20)
@given(seed=seeds)
def test_borders_of_items(seed: int) -> None:
    """Counted node by node; nodes without items have empty stretches."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, 4)
    items = [np.sort(rng.integers(0, c, rng.integers(1, 9))) for c in counts]
    segment, batch_ptr = np.concatenate(items), np.concatenate([[0], np.cumsum(counts)])
    sizes = np.array([len(i) for i in items])
    start = np.concatenate([[0], np.cumsum(sizes)])
    variadic = np.array([True, False])
    begins, out = borders_of_items(0, 4, np.array([0, 1, 0, 0]), batch_ptr, variadic, segment, start, sizes)
    for b in (0, 2, 3):
        begin = begins[b]
        expected = np.concatenate([[0], np.cumsum(np.bincount(items[b], minlength=counts[b]))])
        assert out[begin : begin + counts[b] + 1].tolist() == expected.tolist()
