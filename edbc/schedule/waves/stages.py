"""Stages of a dynamic graph on a CPU: batches of different types side by side, where per-type costs say that it pays.

(1) Neighbouring batches of a schedule of which none reads another are a *stage*: threads take its batches one by one,
    and meet once behind it. A batch that is more than a thread's share of its stage is cut into rows, a *task* each.
    (Cavs, Xu et al., USENIX ATC 2018, section 3.4, runs such batches in streams.)
(2) Policies run one type for as long as they can, so few neighbours of their schedules are independent. Waves
    (`wavetable`) put everything that is ready into one step: the directions of a BiLSTM, cells of words and characters.
(3) A batch of type a with k rows costs fixed(a) + k row(a), as the plan has it. With p threads a step of waves takes
    the larger of its batches' sum over p and its largest batch, and MEETING; a batch of the policy's schedule its fixed
    cost, a p-th of its rows and MEETING, or its cost alone. Waves run where their sum is less than GAIN of the other.
Their order is the slower one where no helper comes after all (measured: 12 %), for types change from batch to batch.

Deciding takes some 20 ns per node, scheduling by waves with it, and once per structure.
"""

# numba infers the types of kernels.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Graph, NodeType
from edbc.native.kinds import native
from edbc.schedule.schedule import Schedule
from edbc.schedule.waves.tasks import AFTER, BATCH, FIRST, LANE, LAST
from edbc.schedule.waves.waverun import run_due

MEETING = 2.0
"""Microseconds for threads to meet."""
GAIN, LEAST = 0.85, 500.0
"""The model promises more than there is: 0.88 on lattices, where stages then lost 17 %. Below LEAST microseconds no
helper is called."""
FEWEST = 8
"""Rows of a task, at least."""
Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Beside:
    """Chooses between a policy's schedule and stages, (3)."""

    costs: Mapping[str, tuple[float, float]]
    """Fixed and per row, in microseconds, by the names of types."""

    def chosen(self, graph: Graph, schedule: Schedule, threads: int) -> Schedule:
        """The policy's schedule, or that of waves, `staged`. O(n + m)."""
        fixed, row = self.arrays(graph.types)
        batches = np.arange(schedule.num_batches, dtype=np.int64)
        plain = microseconds(schedule.batch_type, schedule.batch_ptr, batches, fixed, row, threads)
        if plain <= LEAST:
            return schedule
        waves = run_due(graph, np.ones(graph.num_types, np.int64))
        assert waves is not None
        staged = microseconds(waves.batch_type, waves.batch_ptr, waves.step, fixed, row, threads)
        return replace(waves, staged=True) if staged < GAIN * plain else schedule

    def arrays(self, types: tuple[NodeType, ...]) -> tuple[Floats, Floats]:
        """Fixed costs and costs per row of types; of one that is unknown, the dearest."""
        dearest = max(self.costs.values())
        found = np.array([self.costs.get(kind.name, dearest) for kind in types], np.float64).reshape(-1, 2)
        return found[:, 0].copy(), found[:, 1].copy()


@native
def microseconds(batch_type, batch_ptr, step, fixed, row, threads):
    """Definition (3), for batches in steps."""
    total, at = 0.0, 0
    while at < len(batch_type):
        first, alone, largest = step[at], 0.0, 0.0
        while at < len(batch_type) and step[at] == first:
            rows, kind = batch_ptr[at + 1] - batch_ptr[at], batch_type[at]
            alone += fixed[kind] + row[kind] * rows
            parts = threads if rows >= threads * FEWEST else 1
            largest = max(largest, fixed[kind] + row[kind] * rows / parts)
            at += 1
        total += min(alone, max(alone / threads, largest) + MEETING)
    return total


def tasks_of(schedule: Schedule, threads: int, cuts: NDArray[np.bool_]) -> Longs:
    """The tasks of all stages in order, `(tasks, 5)`, definition (1); `cuts` says of which types rows may run apart.
    O(n + m)."""
    graph = schedule.graph
    return _tasks(schedule.batch_type, schedule.batch_ptr, schedule.nodes, graph.operand_ptr, graph.operands, threads,
                  cuts)  # fmt: skip


@native
def _tasks(batch_type, batch_ptr, nodes, operand_ptr, operands, threads, cuts):
    count, found = len(batch_type), 0
    tasks = np.empty((count * threads, 5), np.int64)
    batch_of = np.zeros(len(operand_ptr) - 1, np.int32)
    begin = 0
    while begin < count:
        end = begin
        while end < count:
            independent = True
            for p in range(batch_ptr[end], batch_ptr[end + 1]):
                for i in range(operand_ptr[nodes[p]], operand_ptr[nodes[p] + 1]):
                    independent &= operands[i] < 0 or batch_of[operands[i]] < begin
            if not independent and end > begin:
                break
            for p in range(batch_ptr[end], batch_ptr[end + 1]):
                batch_of[nodes[p]] = end
            end += 1
        after, whole = found, batch_ptr[end] - batch_ptr[begin]
        for b in range(begin, end):
            rows = batch_ptr[b + 1] - batch_ptr[b]
            is_cut = cuts[batch_type[b]] and rows * threads > whole and rows >= threads * FEWEST
            parts, rank = threads if is_cut else 1, 0
            for other in range(begin, end):
                rank += batch_type[other] < batch_type[b]
            for part in range(parts):
                tasks[found, BATCH], tasks[found, AFTER], tasks[found, LANE] = b, after, (rank + part) % threads
                tasks[found, FIRST], tasks[found, LAST] = rows * part // parts, rows * (part + 1) // parts
                found += 1
        begin = end
    return tasks[:found].copy()
