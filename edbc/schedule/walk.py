"""Whole schedules in one native call."""

from __future__ import annotations

import numpy as np

from edbc.graph import Ints
from edbc.schedule import analysis, choice, engine, ordering
from edbc.schedule.analysis import Dag, copy, depths
from edbc.schedule.choice import (
    AGENDA,
    CHAINS,
    CRITICAL,
    CRITICAL_PATH,
    RANK,
    SUFFICIENT,
    Floats,
    choose,
    encode,
)
from edbc.schedule.native import UNCOUNTED, inner, native, part
from edbc.schedule.tables import Table, find

NONE = -1
"""No encoding, or no rule."""

# the first mini-batch on a machine waits for all that `scheduled` calls: without code for Python's callers
analyse, ordered = part(analysis.analyse), part(ordering.ordered)
new_frontier, new_scratch = part(engine.new_frontier), part(choice.new_scratch)
restart, execute = part(engine.restart, **UNCOUNTED), part(engine.execute, **UNCOUNTED)
describe = part(choice.describe, **UNCOUNTED)


@native
def scheduled(
    node_type: Ints, operand_ptr: Ints, operands: Ints, encoding: int, table: Table, actions: Ints, rule: int,
    rival: int, cheap: Ints, cost: Floats, in_order: bool,
) -> tuple[Ints, Ints, Ints, int, int, bool]:  # fmt: skip
    """Batch types, batch bounds, nodes, batches that the table chose, those that it had no state for, and whether the
    schedule is the rival's: the rule's beside the table, which runs where the table's is above the lower bound.

    `in_order` asks for the nodes in the order of `edbc.schedule.order`. Types are counted up to the last one that has a
    node, whatever `cost` has room for.
    """
    num_types, none = (
        np.int64(0),
        np.int64(NONE),
    )  # a number in the code would make a version of its own of what it goes to
    for a in node_type:
        num_types = max(num_types, a + 1)
    cost, cheap = cost[:num_types], cheap[:num_types]
    by_rival = False
    if rival == NONE and NONE < encoding < CRITICAL:
        # the rule is asked for unseen states only: what it alone needs is worked out when there is one
        dag = analyse(node_type, operand_ptr, operands, num_types, False, False, False)
        kinds, ptr, nodes, rows, bound = _walk(dag, encoding, table, actions, none, cheap, cost)
        is_whole = len(nodes) == ptr[-1]
    else:
        is_whole = False
    if not is_whole:
        dag = _analyse_for(node_type, operand_ptr, operands, num_types, encoding, rule, rival)
        kinds, ptr, nodes, rows, bound = _walk(dag, encoding, table, actions, rule, cheap, cost)
        if rival != NONE and len(kinds) > bound:
            kinds_, ptr_, nodes_, _, _ = _walk(dag, none, table, actions, rival, cheap, cost)
            by_rival = total(kinds_, cost) < total(kinds, cost)
            if by_rival:
                kinds, ptr, nodes, rows = kinds_, ptr_, nodes_, rows[:0]
    if in_order:
        nodes = ordered(operand_ptr, operands, ptr, nodes)
    seen = 0
    for row in rows:
        seen += row >= 0
    unseen = len(rows) - seen if encoding != NONE else 0
    return kinds, ptr, nodes, seen, unseen, by_rival


@native
def analyse_for(
    node_type: Ints, operand_ptr: Ints, operands: Ints, num_types: int, encoding: int, rule: int, rival: int
) -> Dag:
    """What an encoding and two rules read of a graph, and no more: every array costs time."""
    with_depth = rule == AGENDA or rival == AGENDA
    with_same = encoding == RANK or rule in (SUFFICIENT, CRITICAL_PATH) or rival in (SUFFICIENT, CRITICAL_PATH)
    with_below = encoding >= CRITICAL or rule >= CHAINS or rival >= CHAINS
    return analyse(node_type, operand_ptr, operands, num_types, with_depth, with_below, with_same)


@inner
def total(kinds: Ints, cost: Floats) -> float:
    """`edbc.schedule.run.total_cost`, to the last bit."""
    counts = np.zeros(len(cost), np.int64)
    for a in kinds:
        counts[a] += 1
    result = 0.0
    for a in range(len(cost)):
        result += counts[a] * cost[a]
    return result


@native
def walk(
    dag: Dag, encoding: int, table: Table, actions: Ints, rule: int, cheap: Ints, cost: Floats
) -> tuple[Ints, Ints, Ints, Ints, int]:
    """Batch types, batch bounds, nodes, per batch the table's row or -1, and the lower bound, of a policy's schedule.

    The bound counts batches, whatever they cost, and is 0 where the encoding does not need it.

    `encoding` < 0: the rule chooses every batch. Else the table does, and the rule where it has no such state (or one
    whose action is not ready, which no table that policy.py has checked contains); with the rule NONE the walk ends
    there, and the bounds end below n.
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
            if rule == NONE:
                break
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


_analyse_for, _walk = part(analyse_for), part(walk)


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
