"""A mini-batch's schedule under a policy, and the lower bound: what runs for every mini-batch.

Imports nothing that trains or searches, and no compiled code before the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Graph, Ints, ints
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
    simulated too and the cheaper of the two is taken, unless `compare` is false. Where there are more types than could
    have nodes, as in a net that has met many sizes, T counts those that have.
    """
    if graph.num_types > policy.num_types + graph.num_nodes:
        few, number = of_few_types(graph, policy.num_types)
        found = run(few, policy, compare=compare)
        return replace(found, graph=graph, batch_type=number[found.batch_type])
    asked = policy.asked.get(compare) or _asked(policy, compare)
    if asked.by_depth:
        return _by_depth(graph, policy)
    batch_type, batch_ptr, nodes, table_steps, unseen_states, by_rule = _scheduled()(
        *arrays_of(graph), *asked.arguments, cheap_types(graph) if asked.by_agenda else NO_TYPES,
        policy.costs_of(graph.num_types),
    )  # fmt: skip
    return Schedule(graph, batch_type, batch_ptr, nodes, int(table_steps), int(unseen_states), bool(by_rule))


def of_few_types(graph: Graph, num_known: int = 0) -> tuple[Graph, Ints]:
    """The graph without types that have no node, but for the first ones, and the numbers that its types had, in their
    order."""
    kinds = np.unique(graph.node_type)
    number = np.concatenate([np.arange(num_known, dtype=np.int32), kinds[kinds >= num_known]])
    types = tuple([graph.types[kind] for kind in number])
    return replace(graph, types=types, node_type=ints(np.searchsorted(number, graph.node_type))), number


def with_nodes(graph: Graph, schedule: Schedule, step: NDArray[np.int64], step_ptr: NDArray[np.int64]) -> Schedule:
    """The schedule of a graph whose nodes are those of steps, as many as there are of each: its nodes from `step_ptr`
    on, in the place of the step that node v of the smaller graph stands for, which is `step[v]`. O(nodes)."""
    from edbc.schedule.schedulewalk import nodes_of_steps

    batch_type, batch_ptr, nodes = nodes_of_steps(*schedule.arrays, step, step_ptr)
    told = schedule.table_steps, schedule.unseen_states, schedule.by_rule
    return Schedule(graph, batch_type, batch_ptr, nodes, *told)


class Asked(NamedTuple):
    """What a policy asks of the engine, worked out once: between two mini-batches, every step in Python is slow."""

    by_depth: bool
    by_agenda: bool
    arguments: tuple[Any, ...]  # of `scheduled`, between the graph's and the types'


def _asked(policy: Policy, compare: bool) -> Asked:
    from edbc.schedule.schedulewalk import NONE

    rival = policy.beside if compare else None
    by_depth, by_agenda = "depth" in (policy.kind, rival), "agenda" in (policy.rule, rival)
    table, actions = policy.compiled
    rule = NONE if by_depth else RULES.index(policy.rule)
    rival_code = NONE if by_depth or rival is None else RULES.index(rival)
    arguments = (encoding_code(policy), *table, actions, rule, rival_code)
    policy.asked[compare] = Asked(by_depth, by_agenda, arguments)
    return policy.asked[compare]


@cache
def _scheduled() -> Any:
    from edbc.schedule.schedulewalk import scheduled

    return scheduled


def _by_depth(graph: Graph, policy: Policy) -> Schedule:
    """The schedule by depth, or a table's beside which it runs where that is cheaper."""
    from edbc.schedule.schedulewalk import depth_walk

    by_depth = Schedule(graph, *depth_walk(*arrays_of(graph), graph.num_types))
    if policy.kind == "depth":
        return by_depth
    schedule = run(graph, policy, compare=False)
    is_cheaper = total_cost(by_depth.batch_type, policy.cost) < total_cost(schedule.batch_type, policy.cost)
    return replace(by_depth, by_rule=True) if is_cheaper else schedule


def costs_of(cost: Sequence[float], num_types: int) -> Floats:
    """What a batch of each of `num_types` types costs, `(num_types,)`; 1 for types past the end of `cost`."""
    costs = np.ones(num_types)
    known = cost[:num_types]
    costs[: len(known)] = known
    return costs


def total_cost(batch_type: Ints, cost: Sequence[float]) -> float:
    """What a schedule's batches cost beside their rows; their number where no costs are given. Schedules of the same
    batches cost the same, whatever their order."""
    counts = np.bincount(batch_type).tolist()
    return float(sum(count * c for count, c in zip(counts, costs_of(cost, len(counts)).tolist(), strict=True)))


def encoding_code(policy: Policy) -> int:
    """The encoding's code in choice.py, -1 for a policy without a table."""
    return ENCODINGS.index(policy.encoding) if policy.kind == "fsm" and policy.encoding else -1


def analysed(graph: Graph, policy: Policy) -> Dag:
    """The graph with what this policy reads, and no more."""
    from edbc.schedule.schedulewalk import NONE, analyse_for

    return analyse_for(*arrays_of(graph), graph.num_types, encoding_code(policy), RULES.index(policy.rule), NONE)


def arrays_of(graph: Graph) -> tuple[Ints, Ints, Ints]:
    """Node types, operand bounds and operands, read-only: numba compiles a kernel anew for arrays that are not."""
    return _frozen(graph.node_type), _frozen(graph.operand_ptr), _frozen(graph.operands)


def _frozen(array: Ints) -> Ints:
    """The array, or a read-only view of it."""
    if array.flags.writeable:
        array = array.view()
        array.setflags(write=False)
    return array


def cheap_types(graph: Graph) -> Ints:
    """1 for every type of CHEAP_OPS, `(T,)`."""
    return np.array([type_.op.removeprefix("torch.") in CHEAP_OPS for type_ in graph.types], np.int32)


def work_of(graph: Graph) -> int:
    """Numbers that one walk over the graph looks at, about: a row of T per node, T of them per batch."""
    return graph.num_types * (graph.num_nodes + graph.num_types * lower_bound(graph))


def lower_bound(graph: Graph) -> int:
    """ED-Batch Eq. 2: the sum over types that have nodes of the most nodes of that type on any path. O(T (n + m))."""
    from edbc.schedule.analysis import analyse, terms

    graph, _ = of_few_types(graph)
    return int(terms(analyse(*arrays_of(graph), graph.num_types, False, True, False)).sum())
