"""Whole schedules in one native call."""

from __future__ import annotations

import numpy as np

from edbc.graph import Ints
from edbc.schedule.analysis import Dag, copy, depths
from edbc.schedule.choice import CHAINS, CRITICAL, Floats, choose, describe, encode, new_scratch
from edbc.schedule.engine import execute, new_frontier, restart
from edbc.schedule.native import native
from edbc.schedule.tables import Table, find


@native
def walk(
    dag: Dag, encoding: int, table: Table, actions: Ints, rule: int, cheap: Ints, cost: Floats
) -> tuple[Ints, Ints, Ints, Ints, int]:
    """Batch types, batch bounds, nodes, per batch the table's row or -1, and the lower bound, of a policy's schedule.

    The bound counts batches, whatever they cost, and is 0 where the encoding does not need it.

    `encoding` < 0: the rule chooses every batch. Else the table does, and the rule where it has no such state (or one
    whose action is not ready, which no table that policy.py has checked contains).
    """
    n = len(dag.node_type)
    frontier, scratch = new_frontier(dag), new_scratch(cost)
    restart(dag, frontier)
    batch_type, batch_ptr, nodes = np.empty(n, np.int32), np.zeros(n + 1, np.int32), np.empty(n, np.int32)
    rows = np.full(n, -1, np.int32)
    done, count, bound = 0, 0, 0
    while done < n:
        if encoding >= CRITICAL:
            describe(frontier, scratch)
            if done == 0:
                bound = scratch.top.sum()
        action = -1
        if encoding >= 0:
            size = encode(dag, frontier, scratch, encoding, done)
            row, _ = find(table, scratch.words, size)
            if row >= 0 and frontier.head[actions[row]] < frontier.tail[actions[row]]:
                action, rows[count] = actions[row], row
        if action < 0:
            if rule >= CHAINS and encoding < CRITICAL:
                describe(frontier, scratch)
            action = choose(dag, frontier, scratch, rule, cheap)
        low, high = frontier.head[action], frontier.tail[action]
        copy(frontier.ready, low, high, nodes, done)
        done += high - low
        batch_type[count] = action
        count += 1
        batch_ptr[count] = done
        execute(dag, frontier, action)
    return batch_type[:count].copy(), batch_ptr[: count + 1].copy(), nodes, rows[:count], bound


@native
def follow(dag: Dag, sequence: Ints) -> tuple[Ints, Ints, Ints]:
    """The schedule of a given batching sequence; types that are not ready at their turn are left out."""
    n = len(dag.node_type)
    frontier = new_frontier(dag)
    restart(dag, frontier)
    batch_type, batch_ptr, nodes = np.empty(n, np.int32), np.zeros(n + 1, np.int32), np.empty(n, np.int32)
    done, count = 0, 0
    for action in sequence:
        low, high = frontier.head[action], frontier.tail[action]
        if low == high:
            continue
        copy(frontier.ready, low, high, nodes, done)
        done += high - low
        batch_type[count] = action
        count += 1
        batch_ptr[count] = done
        execute(dag, frontier, action)
    return batch_type[:count].copy(), batch_ptr[: count + 1].copy(), nodes[:done]


@native
def depth_walk(node_type: Ints, operand_ptr: Ints, operands: Ints, num_types: int) -> tuple[Ints, Ints, Ints]:
    """TensorFlow Fold's schedule (Looks et al., ICLR 2017): a batch per depth and type, by depth, then type."""
    n = len(node_type)
    depth = depths(operand_ptr, operands)
    num_cells = (depth.max() + 1 if n else 0) * num_types
    ptr = np.zeros(num_cells + 1, np.int32)
    for v in range(n):
        ptr[depth[v] * num_types + node_type[v] + 1] += 1
    batch_type, batch_ptr = np.empty(n, np.int32), np.zeros(n + 1, np.int32)
    count = 0
    for cell in range(num_cells):
        if ptr[cell + 1]:
            batch_type[count] = cell % num_types
            count += 1
            batch_ptr[count] = batch_ptr[count - 1] + ptr[cell + 1]
        ptr[cell + 1] += ptr[cell]
    nodes = np.empty(n, np.int32)
    for v in range(n):
        cell = depth[v] * num_types + node_type[v]
        nodes[ptr[cell]] = v
        ptr[cell] += 1
    return batch_type[:count].copy(), batch_ptr[: count + 1].copy(), nodes
