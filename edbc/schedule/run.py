"""A mini-batch's schedule under a policy, and the lower bound: what runs for every mini-batch.

Imports nothing that trains or searches, and no compiled code before the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edbc.graph import Graph, Ints
from edbc.schedule.policy import ENCODINGS, FALLBACKS, Policy
from edbc.schedule.schedule import Schedule

if TYPE_CHECKING:
    from edbc.schedule.analysis import Dag

CHEAP_OPS = frozenset({"sum", "add", "mul", "sub", "tanh", "sigmoid", "relu", "cat", "stack"})
"""Operations without a matrix product, which DyNet's agenda runs before others of equal depth."""


def run(graph: Graph, policy: Policy) -> Schedule:
    """The policy's schedule for one mini-batch. Deterministic."""
    from edbc.schedule.walk import depth_walk, walk

    if policy.kind == "depth":
        return Schedule(graph, *depth_walk(graph.node_type, graph.operand_ptr, graph.operands, graph.num_types))
    rule = policy.fallback if policy.kind == "fsm" else policy.kind
    encoding = ENCODINGS.index(policy.encoding) if policy.kind == "fsm" and policy.encoding else -1
    table, actions = policy.compiled
    batch_type, batch_ptr, nodes, unseen = walk(
        analysed(graph, policy), encoding, table, actions, FALLBACKS.index(rule), cheap_types(graph)
    )
    table_steps = len(batch_type) - unseen if encoding >= 0 else 0
    return Schedule(graph, batch_type, batch_ptr, nodes, table_steps, unseen)


def analysed(graph: Graph, policy: Policy) -> Dag:
    """The graph with what this policy reads."""
    from edbc.schedule.analysis import analyse

    rule = policy.fallback if policy.kind == "fsm" else policy.kind
    names = {rule, policy.encoding if policy.kind == "fsm" else None}
    return analyse(
        graph.node_type,
        graph.operand_ptr,
        graph.operands,
        graph.num_types,
        "agenda" in names,
        "critical" in names,
        "sufficient" in names,
    )


def cheap_types(graph: Graph) -> Ints:
    """1 for every type of CHEAP_OPS, `(T,)`."""
    return np.array([type_.op.removeprefix("torch.") in CHEAP_OPS for type_ in graph.types], np.int32)


def lower_bound(graph: Graph) -> int:
    """ED-Batch Eq. 2: the sum over types of the most nodes of that type on any path. O(T (n + m))."""
    from edbc.schedule.analysis import analyse

    below = analyse(graph.node_type, graph.operand_ptr, graph.operands, graph.num_types, False, True, False).below
    return int(below.max(axis=0, initial=0).sum())
