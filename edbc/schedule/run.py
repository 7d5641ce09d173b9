"""A mini-batch's schedule under a policy, and the lower bound: what runs for every mini-batch.

Imports nothing that trains or searches, and no compiled code before the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edbc.graph import Graph, Ints
from edbc.schedule.policy import ENCODINGS, LETTERS, RULES, Policy
from edbc.schedule.schedule import Schedule

if TYPE_CHECKING:
    from edbc.schedule.analysis import Dag

CHEAP_OPS = frozenset(
    {"sum", "add", "sub", "mul", "div", "neg", "tanh", "sigmoid", "relu", "exp", "log", "cat", "stack"}
)
"""Operations without a matrix product: DyNet's agenda runs them before others of equal mean depth."""

NO_TYPES = np.zeros(0, np.int32)


def run(graph: Graph, policy: Policy, *, compare: bool = True, cost: Sequence[float] | None = None) -> Schedule:
    """The policy's schedule for one mini-batch. Deterministic; O(T (n + m)) and O(T^2) per batch for T types.

    A table over one of edbc's own encodings never loses to the rule that it departs from: where its schedule is above
    the lower bound, the fallback rule is simulated too and the shorter of the two is taken, unless `compare` is false.
    With `cost`, what a batch of each type costs (1 past its end), the cheaper: pass what the table was trained with.
    """
    from edbc.schedule.walk import depth_walk, walk

    if policy.kind == "depth":
        return Schedule(graph, *depth_walk(*arrays_of(graph), graph.num_types))
    dag, rule = analysed(graph, policy), RULES.index(policy.rule)
    cheap = cheap_types(graph) if policy.rule == "agenda" else NO_TYPES
    encoding, (table, actions) = encoding_code(policy), policy.compiled
    batch_type, batch_ptr, nodes, rows, bound = walk(dag, encoding, table, actions, rule, cheap)
    if compare and policy.encoding in LETTERS and len(rows) > bound:
        by_rule, rule_ptr, rule_nodes, _, _ = walk(dag, -1, table, actions, rule, cheap)
        if total_cost(by_rule, cost) < total_cost(batch_type, cost):
            return Schedule(graph, by_rule, rule_ptr, rule_nodes, by_rule=True)
    table_steps = int(np.count_nonzero(rows >= 0))
    unseen = len(rows) - table_steps if encoding >= 0 else 0
    return Schedule(graph, batch_type, batch_ptr, nodes, table_steps, unseen)


def total_cost(batch_type: Ints, cost: Sequence[float] | None) -> float:
    """What a schedule's batches cost beside their rows; their number where costs are not given."""
    if cost is None:
        return float(len(batch_type))
    weights = np.ones(max(len(cost), int(batch_type.max(initial=-1)) + 1))
    weights[: len(cost)] = cost
    return float(weights[batch_type].sum())


def encoding_code(policy: Policy) -> int:
    """The encoding's code in choice.py, -1 for a policy without a table."""
    return ENCODINGS.index(policy.encoding) if policy.kind == "fsm" and policy.encoding else -1


def analysed(graph: Graph, policy: Policy) -> Dag:
    """The graph with what this policy reads, and no more: every array costs time."""
    from edbc.schedule.analysis import analyse

    needs = {policy.rule, policy.encoding if policy.kind == "fsm" else None}
    return analyse(
        *arrays_of(graph),
        graph.num_types,
        policy.rule == "agenda",
        bool(needs & {"chains", "critical", "rank"}),
        policy.rule in ("sufficient", "critical") or "rank" in needs,
    )


def arrays_of(graph: Graph) -> tuple[Ints, Ints, Ints]:
    """Node types, operand bounds and operands, read-only views: numba compiles a kernel anew for writable ones."""
    views = graph.node_type.view(), graph.operand_ptr.view(), graph.operands.view()
    for view in views:
        view.setflags(write=False)
    return views


def cheap_types(graph: Graph) -> Ints:
    """1 for every type of CHEAP_OPS, `(T,)`."""
    return np.array([type_.op.removeprefix("torch.") in CHEAP_OPS for type_ in graph.types], np.int32)


def lower_bound(graph: Graph) -> int:
    """ED-Batch Eq. 2: the sum over types of the most nodes of that type on any path. O(T (n + m))."""
    from edbc.schedule.analysis import analyse

    below = analyse(*arrays_of(graph), graph.num_types, False, True, False).below
    return int(below.max(axis=0, initial=0).sum())
