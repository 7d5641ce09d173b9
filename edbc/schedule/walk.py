"""Whole schedules in one native call: the walk that `run` uses."""

from __future__ import annotations

import numpy as np
from numba import njit

from edbc.graph import Ints
from edbc.schedule.analysis import Dag, depths
from edbc.schedule.choice import CRITICAL, CRITICAL_PATH, Table, choose_by_rule, describe, encode, find
from edbc.schedule.engine import execute, new_frontier, restart


@njit(cache=True)
def walk(dag: Dag, encoding: int, table: Table, actions: Ints, rule: int, cheap: Ints) -> tuple[Ints, Ints, Ints, int]:
    """Batch types, batch bounds, nodes and unseen states of a policy's schedule.

    `encoding` < 0: the rule chooses every batch. Else the table does, and the rule where it has no such state (or one
    whose action is not ready).
    """
    n, num_types = len(dag.node_type), len(dag.type_ptr) - 1
    frontier = new_frontier(dag)
    restart(dag, frontier)
    batch_type, batch_ptr, nodes = np.empty(n, np.int32), np.zeros(n + 1, np.int32), np.empty(n, np.int32)
    top, reaching = np.zeros(num_types, np.int32), np.zeros(num_types, np.int32)
    bits, words = np.zeros(num_types, np.int32), np.zeros(num_types + 1, np.int32)
    with_bits = len(dag.below) > 0 and (encoding >= CRITICAL or rule == CRITICAL_PATH)
    done, count, unseen = 0, 0, 0
    while done < n:
        if with_bits:
            describe(frontier, top, reaching, bits, len(dag.same_left) > 0)
        action = -1
        if encoding >= 0:
            size = encode(dag, frontier, encoding, done, bits, words)
            row, _ = find(table, words, size)
            action = actions[row] if row >= 0 else -1
            if action >= 0 and frontier.head[action] == frontier.tail[action]:
                action = -1
            unseen += action < 0
        if action < 0:
            action = choose_by_rule(dag, frontier, rule, cheap, bits)
        low, high = frontier.head[action], frontier.tail[action]
        nodes[done : done + high - low] = frontier.ready[low:high]
        done += high - low
        batch_type[count] = action
        count += 1
        batch_ptr[count] = done
        execute(dag, frontier, action)
    return batch_type[:count].copy(), batch_ptr[: count + 1].copy(), nodes, unseen


@njit(cache=True)
def depth_walk(node_type: Ints, operand_ptr: Ints, operands: Ints, num_types: int) -> tuple[Ints, Ints, Ints]:
    """TensorFlow Fold's schedule: one batch per depth and type, by depth, then type; batch types, bounds, nodes."""
    n = len(node_type)
    depth = depths(operand_ptr, operands)
    num_depths = depth.max() + 1 if n else 0
    ptr = np.zeros(num_depths * num_types + 1, np.int32)
    for v in range(n):
        ptr[depth[v] * num_types + node_type[v] + 1] += 1
    batch_type, batch_ptr = np.empty(n, np.int32), np.zeros(n + 1, np.int32)
    count = 0
    for cell in range(num_depths * num_types):
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
