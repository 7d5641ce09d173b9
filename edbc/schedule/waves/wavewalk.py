"""The native loops of waves: heights, the walk from step to step, and the states that it meets."""

from __future__ import annotations

import numpy as np

from edbc.base.graph import Ints
from edbc.native.kinds import inner, native
from edbc.schedule.analysis import Dag, analyse
from edbc.schedule.statetable import Table, find

RUNS, COMPLETE, SOON = 1, 2, 3
"""Marks of a state's words."""
SOON_STEPS = 2
"""Before it is due that a type is marked so."""


@native
def heights(node_type: Ints, operand_ptr: Ints, operands: Ints) -> Ints:
    """Definition (1), `(n,)`; operands come before the nodes that read them."""
    height = np.ones(len(node_type), np.int32)
    for v in range(len(node_type) - 1, -1, -1):
        for i in range(operand_ptr[v], operand_ptr[v + 1]):
            u = operands[i]
            if u >= 0:
                height[u] = max(height[u], height[v] + 1)
    return height


@native
def earliest_steps(batch_ptr: Ints, nodes: Ints, operand_ptr: Ints, operands: Ints) -> int:
    """The number of steps when every batch runs as early as it can."""
    step = np.zeros(len(nodes), np.int32)
    most = 0
    for b in range(len(batch_ptr) - 1):
        at = 1
        for p in range(batch_ptr[b], batch_ptr[b + 1]):
            v = nodes[p]
            for i in range(operand_ptr[v], operand_ptr[v + 1]):
                u = operands[i]
                if u >= 0:
                    at = max(at, step[u] + 1)
        for p in range(batch_ptr[b], batch_ptr[b + 1]):
            step[nodes[p]] = at
        most = max(most, at)
    return most


@native
def wave_walk(
    node_type: Ints, operand_ptr: Ints, operands: Ints, num_types: int, table: Table, actions: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Batch types, batch bounds, nodes, the step of every batch, and per decision the table's row or -1."""
    return _walk(node_type, operand_ptr, operands, num_types, table, actions)[:5]


@native
def states_of(
    node_type: Ints, operand_ptr: Ints, operands: Ints, num_types: int, table: Table, actions: Ints
) -> tuple[Ints, Ints]:
    """The states of all decisions of a walk one behind the other, and where each ends."""
    found = _walk(node_type, operand_ptr, operands, num_types, table, actions)
    return found[5], found[6]


@inner
def _walk(
    node_type: Ints, operand_ptr: Ints, operands: Ints, num_types: int, table: Table, actions: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints]:
    n = len(node_type)
    dag: Dag = analyse(node_type, operand_ptr, operands, num_types, False, False, False)
    height = heights(node_type, operand_ptr, operands)
    bound = height.max() if n else 0
    left, ready = dag.num_operands.copy(), np.empty(n, np.int32)
    head, tail = dag.type_ptr[:-1].copy(), dag.type_ptr[:-1].copy()
    tallest, pushed = np.zeros(num_types, np.int32), np.zeros(num_types, np.int32)
    for v in range(n):
        if left[v] == 0:
            ready[tail[node_type[v]]] = v
            tail[node_type[v]] += 1
            pushed[node_type[v]] = max(pushed[node_type[v]], height[v])
    kinds, nodes, steps = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    ptr, words = np.zeros(n + 1, np.int32), np.empty(16 + num_types, np.int32)
    rows, ends = np.empty(2 * n + 2, np.int32), np.empty(2 * n + 2, np.int32)
    state, mark, end = np.empty(num_types + 1, np.int32), np.zeros(num_types, np.int32), np.empty(num_types, np.int32)
    count, done, decisions, filled = 0, 0, 0, 0
    for step in range(bound):
        for a in range(num_types):
            end[a] = tail[a]
            mark[a] = COMPLETE if end[a] == dag.type_ptr[a + 1] else 0
            tallest[a], pushed[a] = max(tallest[a], pushed[a]), 0
            if tallest[a] >= bound - step:
                mark[a] = RUNS
            elif mark[a] == 0 and tallest[a] >= bound - step - SOON_STEPS:
                mark[a] = SOON
        while True:
            size, waiting = 0, 0
            for a in range(num_types):
                if end[a] > head[a]:
                    state[size] = 4 * a + mark[a]
                    size += 1
                    waiting += mark[a] != RUNS
            if waiting == 0:
                break
            row, _ = find(table, state, size)
            action = actions[row] if row >= 0 else -1
            if decisions < len(rows):  # a step has no more decisions than types that begin to run, and one
                rows[decisions] = row
                if filled + size > len(words):
                    larger = np.empty(2 * (filled + size), np.int32)
                    larger[:filled] = words[:filled]
                    words = larger
                words[filled : filled + size] = state[:size]
                filled += size
                ends[decisions] = filled
                decisions += 1
            if action < 0 or end[action] == head[action] or mark[action] == RUNS:
                break
            mark[action] = RUNS
        for a in range(num_types):
            if mark[a] == RUNS:
                low, high = head[a], end[a]
                head[a] = high
                tallest[a] = 0
                kinds[count], steps[count] = a, step
                nodes[done : done + high - low] = ready[low:high]
                done += high - low
                count += 1
                ptr[count] = done
                for i in range(low, high):
                    v = ready[i]
                    for k in range(dag.user_ptr[v], dag.user_ptr[v + 1]):
                        u = dag.users[k]
                        left[u] -= 1
                        if left[u] == 0:
                            b = node_type[u]
                            ready[tail[b]] = u
                            tail[b] += 1
                            pushed[b] = max(pushed[b], height[u])
    return (kinds[:count], ptr[: count + 1], nodes, steps[:count], rows[:decisions], words[:filled],
            ends[:decisions])  # fmt: skip
