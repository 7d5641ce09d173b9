"""The native loops of waves: heights, the walk from step to step, and the states that it meets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edbc.base.graph import Ints
from edbc.native.kinds import copy, inner, inner_uncounted, native
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


class Walk(NamedTuple):
    """A graph on its way from step to step. T types; ready nodes of type a that have not run are
    `ready[head[a] : tail[a]]`, and those of them that were ready when the step began end at `end[a]`."""

    dag: Dag
    height: Ints  # (n,)
    left: Ints  # (n,) operands that have not run
    ready: Ints  # (n,)
    head: Ints  # (T,)
    tail: Ints  # (T,)
    end: Ints  # (T,)
    mark: Ints  # (T,)
    tallest: Ints  # (T,) of the nodes that are ready
    pushed: Ints  # (T,) of those that became so in the step before
    words: Ints  # (T + 1,) the state


@inner
def new_walk(node_type: Ints, operand_ptr: Ints, operands: Ints, num_types: int) -> Walk:
    """Not begun yet."""
    n = len(node_type)
    dag: Dag = analyse(node_type, operand_ptr, operands, num_types, False, False, False)
    numbers = np.zeros((6, num_types), np.int32)
    height = heights(node_type, operand_ptr, operands)
    return Walk(dag, height, np.empty(n, np.int32), np.empty(n, np.int32), numbers[0], numbers[1], numbers[2],
                numbers[3], numbers[4], numbers[5], np.empty(num_types + 1, np.int32))  # fmt: skip


@inner_uncounted
def restart_walk(walk: Walk) -> None:
    """To where nothing has run."""
    for a in range(len(walk.head)):
        walk.head[a], walk.tail[a] = walk.dag.type_ptr[a], walk.dag.type_ptr[a]
        walk.tallest[a], walk.pushed[a] = 0, 0
    for v in range(len(walk.left)):
        walk.left[v] = walk.dag.num_operands[v]
        if walk.left[v] == 0:
            _push(walk, v)


@inner_uncounted
def _push(walk: Walk, v: int) -> None:
    """A node that has become ready."""
    a = walk.dag.node_type[v]
    walk.ready[walk.tail[a]] = v
    walk.tail[a] += 1
    walk.pushed[a] = max(walk.pushed[a], walk.height[v])


@inner_uncounted
def begin_step(walk: Walk, left: int) -> None:
    """Marks of a step, with which so many steps are left; definitions (2) and (4)."""
    for a in range(len(walk.head)):
        walk.end[a] = walk.tail[a]
        walk.mark[a] = COMPLETE if walk.end[a] == walk.dag.type_ptr[a + 1] else 0
        walk.tallest[a], walk.pushed[a] = max(walk.tallest[a], walk.pushed[a]), 0
        if walk.tallest[a] >= left:
            walk.mark[a] = RUNS
        elif walk.mark[a] == 0 and walk.tallest[a] >= left - SOON_STEPS:
            walk.mark[a] = SOON


@inner_uncounted
def state(walk: Walk) -> int:
    """Write the state to `walk.words`; its size, 0 where there is nothing to decide."""
    size, waiting = 0, 0
    for a in range(len(walk.head)):
        if walk.end[a] > walk.head[a]:
            walk.words[size] = 4 * a + walk.mark[a]
            size += 1
            waiting += walk.mark[a] != RUNS
    return size if waiting else 0


@inner_uncounted
def may_run(walk: Walk, a: int) -> bool:
    """True for a ready type that does not run in this step yet."""
    return a >= 0 and walk.end[a] > walk.head[a] and walk.mark[a] != RUNS


@inner_uncounted
def run_type(walk: Walk, a: int) -> None:
    """Its nodes that were ready when the step began. All types that run in the step do before the next begins."""
    low, high = walk.head[a], walk.end[a]
    walk.head[a], walk.tallest[a] = high, 0
    for i in range(low, high):
        v = walk.ready[i]
        for k in range(walk.dag.user_ptr[v], walk.dag.user_ptr[v + 1]):
            u = walk.dag.users[k]
            walk.left[u] -= 1
            if walk.left[u] == 0:
                _push(walk, u)


@native
def wave_walk(
    node_type: Ints, operand_ptr: Ints, operands: Ints, num_types: int, table: Table, actions: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Batch types, batch bounds, nodes, the step of every batch, and per decision the table's row or -1."""
    walk = new_walk(node_type, operand_ptr, operands, num_types)
    restart_walk(walk)
    n, bound = len(node_type), walk.height.max() if len(node_type) else 0
    kinds, nodes, steps = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    ptr, rows = np.zeros(n + 1, np.int32), np.empty(2 * n + 2, np.int32)
    count, done, decisions = 0, 0, 0
    for step in range(bound):
        begin_step(walk, bound - step)
        while True:
            size = state(walk)
            if size == 0:
                break
            row, _ = find(table, walk.words, size)
            if decisions < len(rows):  # a step has no more decisions than types that begin to run, and one
                rows[decisions] = row
                decisions += 1
            action = actions[row] if row >= 0 else -1
            if not may_run(walk, action):
                break
            walk.mark[action] = RUNS
        for a in range(num_types):
            if walk.mark[a] == RUNS and walk.end[a] > walk.head[a]:
                size = walk.end[a] - walk.head[a]
                copy(walk.ready, walk.head[a], walk.end[a], nodes, done)
                kinds[count], steps[count] = a, step
                run_type(walk, a)
                done += size
                count += 1
                ptr[count] = done
    return kinds[:count], ptr[: count + 1], nodes, steps[:count], rows[:decisions]
