"""A mini-batch's schedule under a policy, and the lower bound: what runs for every mini-batch.

Imports nothing that trains or searches, and no compiled code before the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edbc.graph import Graph, Ints
from edbc.schedule.policy import ENCODINGS, RULES, Policy
from edbc.schedule.schedule import Schedule

if TYPE_CHECKING:
    from edbc.schedule.analysis import Dag

Floats = NDArray[np.float64]

CHEAP_OPS = frozenset(
    {"sum", "add", "sub", "mul", "div", "neg", "tanh", "sigmoid", "relu", "exp", "log", "cat", "stack"}
)
"""Operations without a matrix product: DyNet's agenda runs them before others of equal mean depth."""

NO_TYPES = np.zeros(0, np.int32)


def run(graph: Graph, policy: Policy, *, compare: bool = True) -> Schedule:
    """The policy's schedule for one mini-batch. Deterministic; O(T (n + m)) and O(T^2) per batch for T types.

    A table that runs beside a rule never loses to it: where its schedule is above the lower bound, the rule is
    simulated too and the cheaper of the two is taken, unless `compare` is false.
    """
    from edbc.schedule.walk import depth_walk

    if policy.kind == "depth":
        return Schedule(graph, *depth_walk(*arrays_of(graph), graph.num_types))
    dag = analysed(graph, policy)
    schedule, bound = _walked(graph, dag, policy)
    if not compare or policy.rival is None or schedule.num_batches <= bound:
        return schedule
    knows = policy.beside == policy.fallback
    by_rule = _walked(graph, dag, policy.rival)[0] if knows else run(graph, policy.rival)
    is_cheaper = total_cost(by_rule.batch_type, policy.cost) < total_cost(schedule.batch_type, policy.cost)
    return replace(by_rule, by_rule=True) if is_cheaper else schedule


def _walked(graph: Graph, dag: Dag, policy: Policy) -> tuple[Schedule, int]:
    """The policy's own schedule, and the lower bound or 0."""
    from edbc.schedule.walk import walk

    cheap = cheap_types(graph) if policy.rule == "agenda" else NO_TYPES
    encoding, rule = encoding_code(policy), RULES.index(policy.rule)
    batch_type, batch_ptr, nodes, rows, bound = walk(
        dag, encoding, *policy.compiled, rule, cheap, costs_of(policy.cost, graph.num_types)
    )
    table_steps = int(np.count_nonzero(rows >= 0)) if encoding >= 0 else 0
    unseen = len(rows) - table_steps if encoding >= 0 else 0
    return Schedule(graph, batch_type, batch_ptr, nodes, table_steps, unseen), int(bound)


def costs_of(cost: Sequence[float], num_types: int) -> Floats:
    """What a batch of each of `num_types` types costs, `(num_types,)`; 1 for types past the end of `cost`."""
    costs = np.ones(num_types)
    known = cost[:num_types]
    costs[: len(known)] = known
    return costs


def total_cost(batch_type: Ints, cost: Sequence[float]) -> float:
    """What a schedule's batches cost beside their rows; their number where no costs are given."""
    return float(costs_of(cost, max(len(cost), int(batch_type.max(initial=-1)) + 1))[batch_type].sum())


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
