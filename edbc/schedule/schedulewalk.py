"""Whole schedules in one native call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Ints
from edbc.native.kernelcache import UNCOUNTED
from edbc.native.kinds import copy, inner, inner_uncounted, native, part
from edbc.schedule import choice, engine
from edbc.schedule.analysis import Dag, analyse, depths
from edbc.schedule.choice import (
    AGENDA,
    CHAINS,
    CRITICAL,
    CRITICAL_PATH,
    RANK,
    SUFFICIENT,
    Floats,
    Scratch,
    choose,
    encode,
    new_scratch,
    remaining,
)
from edbc.schedule.engine import Frontier, new_frontier, restart
from edbc.schedule.statetable import Table, find

NONE = -1
"""No encoding, or no rule."""

execute = part(engine.execute, forceinline=True, **UNCOUNTED)
describe = part(choice.describe, forceinline=True, **UNCOUNTED)


@native
def scheduled(
    node_type: Ints, operand_ptr: Ints, operands: Ints, encoding: int, keys: NDArray[np.int64], row_of_slot: Ints,
    words: Ints, num_words: Ints, used: Ints, actions: Ints, rule: int, rival: int, cheap: Ints, cost: Floats,
) -> tuple[Ints, Ints, Ints, int, int, bool]:  # fmt: skip
    """Batch types, batch bounds, nodes, batches that the table chose, those that it had no state for, and whether the
    schedule is the rival's: the rule's beside the table, which runs where the table's is above the lower bound.

    Types are counted up to the last one that has a node, whatever `cost` has room for. The five arrays are a Table: a
    named tuple is slow to pass.
    """
    table = Table(keys, row_of_slot, words, num_words, used)
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
        kinds, ptr, nodes, rows, bound = walk_below(dag, encoding, table, actions, none, cheap, cost, np.inf)
        is_whole = len(nodes) == ptr[-1]
    else:
        is_whole = False
    if not is_whole:
        dag = analyse_for(node_type, operand_ptr, operands, num_types, encoding, rule, rival)
        kinds, ptr, nodes, rows, bound = walk_below(dag, encoding, table, actions, rule, cheap, cost, np.inf)
        if rival != NONE and len(kinds) > bound:
            ours = total(kinds, cost)
            kinds_, ptr_, nodes_, rows_, _ = walk_below(
                dag, none, table, actions, rival, cheap, cost, ours + unsure(ours, cost)
            )
            by_rival = ptr_[-1] == len(nodes) and total(kinds_, cost) < ours
            if by_rival:
                kinds, ptr, nodes, rows = kinds_, ptr_, nodes_, rows_[:0]
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
    """`edbc.schedule.scheduler.total_cost`, to the last bit."""
    counts = np.zeros(len(cost), np.int64)
    for a in kinds:
        counts[a] += 1
    result = 0.0
    for a in range(len(cost)):
        result += counts[a] * cost[a]
    return result


@inner
def unsure(cost_of_walk: float, cost: Floats) -> float:
    """How far off a walk's cost may be when it is added up in another order: where every batch costs 1, not at all."""
    for a in range(len(cost)):
        if cost[a] != 1:
            return 1e-6 * cost_of_walk
    return 0.0


@native
def walk(
    dag: Dag, encoding: int, table: Table, actions: Ints, rule: int, cheap: Ints, cost: Floats
) -> tuple[Ints, Ints, Ints, Ints, int]:
    """Batch types, batch bounds, nodes, per batch the table's row or -1, and the lower bound, of a policy's schedule.

    The bound counts batches, whatever they cost, and is 0 where neither the encoding nor a rule alone needs it.

    `encoding` < 0: the rule chooses every batch. Else the table does, and the rule where it has no such state (or one
    whose action is not ready, which no table that policy.py has checked contains); with the rule NONE the walk ends
    there, and the bounds end below n.
    """
    return walk_below(dag, encoding, table, actions, rule, cheap, cost, np.inf)


@inner
def walk_below(
    dag: Dag, encoding: int, table: Table, actions: Ints, rule: int, cheap: Ints, cost: Floats, most: float
) -> tuple[Ints, Ints, Ints, Ints, int]:
    """`walk`, which also ends where the schedule cannot come to cost less than `most`, so that the bounds end below n.
    Without a rule or an encoding that looks at chains it does not notice.
    """
    n = len(dag.node_type)
    batch_type, batch_ptr, nodes = np.empty(n, np.int32), np.empty(n + 1, np.int32), np.empty(n, np.int32)
    rows = np.empty(n, np.int32)
    count, bound = walk_into(
        dag, new_frontier(dag), new_scratch(cost), encoding, table, actions, rule, cheap, most, batch_type, batch_ptr,
        nodes, rows,
    )  # fmt: skip
    return batch_type[:count], batch_ptr[: count + 1], nodes, rows[:count], bound


@inner_uncounted
def walk_into(
    dag: Dag, frontier: Frontier, scratch: Scratch, encoding: int, table: Table, actions: Ints, rule: int,
    cheap: Ints, most: float, batch_type: Ints, batch_ptr: Ints, nodes: Ints, rows: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Write a walk's batches, and return their number and the lower bound."""
    n = len(nodes)
    restart(dag, frontier)
    batch_ptr[0] = 0
    done, count, bound, spent = 0, 0, 0, 0.0
    while done < n:
        if encoding >= CRITICAL or (rule >= CHAINS and encoding < 0):
            describe(frontier, scratch)
            if done == 0:
                for term in scratch.top:
                    bound += term
            if spent + remaining(scratch) >= most:
                break
        action, row = -1, -1
        if encoding >= 0:
            size = encode(dag, frontier, scratch, encoding, done)
            row, _ = find(table, scratch.words, size)
            if row >= 0 and frontier.head[actions[row]] < frontier.tail[actions[row]]:
                action = actions[row]
            else:
                row = -1
        if action < 0:
            if rule == NONE:
                break
            if rule >= CHAINS and 0 <= encoding < CRITICAL:
                describe(frontier, scratch)
            action = choose(dag, frontier, scratch, rule, cheap)
        low, high = frontier.head[action], frontier.tail[action]
        copy(frontier.ready, low, high, nodes, done)
        done += high - low
        batch_type[count], rows[count] = action, row
        spent += scratch.cost[action]
        count += 1
        batch_ptr[count] = done
        execute(dag, frontier, action)
    return count, bound


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


@native
def nodes_of_steps(batch_type, batch_ptr, steps, step, step_ptr):  # type: ignore[no-untyped-def]
    """Batches of steps as batches of their nodes, those without any left out; see `schedule.scheduler.with_nodes`."""
    kinds, ptr = np.empty(len(batch_type), np.int32), np.zeros(len(batch_type) + 1, np.int32)
    nodes = np.empty(step_ptr[-1], np.int32)
    at = count = 0
    for b in range(len(batch_type)):
        for i in range(batch_ptr[b], batch_ptr[b + 1]):
            number = step[steps[i]]
            for v in range(step_ptr[number], step_ptr[number + 1]):
                nodes[at] = v
                at += 1
        if at > ptr[count]:
            kinds[count] = batch_type[b]
            count += 1
            ptr[count] = at
    return kinds[:count], ptr[: count + 1], nodes[:at]
