"""A checker of schedules that shares nothing with the engine that makes them.

It reads operands rather than users, counts nothing incrementally, and verifies

(1) shape: `batch_ptr` runs from 0 to n, one entry more than there are batches, and no batch is empty;
(2) coverage: every node of the graph is in exactly one batch;
(3) types: the nodes of a batch have the batch's type;
(4) order: every operand of a node is in an earlier batch than the node;
(5) life: no batch of a transient type runs between a batch of the type and a node that reads it;
(6) steps, where a device's are told: one for each batch, and a batch begins behind those that it reads.
"""

from __future__ import annotations

import numpy as np

from edbc.base.graph import Graph
from edbc.errors import ScheduleError
from edbc.schedule.schedule import Schedule


def check_schedule(graph: Graph, schedule: Schedule) -> None:
    """Verify (1) to (6). O(n + m).

    Raises ScheduleError that names the batch and the node.
    """
    _check_shape(schedule)
    sizes = np.diff(schedule.batch_ptr)
    batch_of_entry = np.repeat(np.arange(schedule.num_batches), sizes)
    _check_coverage(graph, schedule, batch_of_entry)
    batch_of_node = np.empty(graph.num_nodes, np.int64)
    batch_of_node[schedule.nodes] = batch_of_entry
    _check_types(graph, schedule, batch_of_node)
    _check_order(graph, batch_of_node)
    _check_life(graph, schedule, batch_of_node)
    _check_steps(graph, schedule, batch_of_node)


def _check_shape(schedule: Schedule) -> None:
    ptr, count = schedule.batch_ptr, schedule.num_batches
    if len(ptr) != count + 1:
        raise ScheduleError(f"schedule: expected {count + 1} batch bounds for {count} batches, got {len(ptr)}")
    if ptr[0] != 0 or ptr[-1] != len(schedule.nodes):
        raise ScheduleError(
            f"schedule: expected batch bounds from 0 to {len(schedule.nodes)}, got {ptr[0]} to {ptr[-1]}"
        )
    empty = np.flatnonzero(np.diff(ptr) <= 0)
    if len(empty):
        raise ScheduleError(f"batch {empty[0]}: expected at least one node, got none")


def _check_coverage(graph: Graph, schedule: Schedule, batch_of_entry: np.ndarray) -> None:
    n = graph.num_nodes
    outside = np.flatnonzero((schedule.nodes < 0) | (schedule.nodes >= n))
    if len(outside):
        entry = outside[0]
        raise ScheduleError(
            f"batch {batch_of_entry[entry]}: node {schedule.nodes[entry]} is not in the graph, which has {n} nodes"
        )
    times = np.bincount(schedule.nodes, minlength=n)
    if np.any(times > 1):
        node = int(np.argmax(times > 1))
        batches = batch_of_entry[schedule.nodes == node].tolist()
        raise ScheduleError(f"batch {batches[1]}: node {node} has already run in batch {batches[0]}")
    if np.any(times == 0):
        raise ScheduleError(f"node {int(np.argmin(times))}: expected in exactly one batch, got none")


def _check_types(graph: Graph, schedule: Schedule, batch_of_node: np.ndarray) -> None:
    expected = np.asarray(schedule.batch_type)[batch_of_node]
    wrong = np.flatnonzero(expected != graph.node_type)
    if len(wrong):
        node = int(wrong[0])
        names = [type_.name for type_ in graph.types]
        kind = int(expected[node])
        raise ScheduleError(
            f"batch {batch_of_node[node]}: expected nodes of type "
            f"{names[kind] if 0 <= kind < len(names) else kind}, got node {node} of type "
            f"{names[int(graph.node_type[node])]}"
        )


def _uses(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Nodes that read another node, and which they read."""
    user = np.repeat(np.arange(graph.num_nodes), np.diff(graph.operand_ptr))
    inner = graph.operands >= 0
    return user[inner], graph.operands[inner]


def _check_order(graph: Graph, batch_of_node: np.ndarray) -> None:
    user, operand = _uses(graph)
    early = np.flatnonzero(batch_of_node[operand] >= batch_of_node[user])
    if len(early):
        node, needed = int(user[early[0]]), int(operand[early[0]])
        raise ScheduleError(
            f"batch {batch_of_node[node]}: node {node} reads node {needed} before it is computed "
            f"(batch {batch_of_node[needed]})"
        )


def _check_life(graph: Graph, schedule: Schedule, batch_of_node: np.ndarray) -> None:
    user, operand = _uses(graph)
    for kind in [k for k, type_ in enumerate(graph.types) if type_.transient]:
        batches = np.flatnonzero(schedule.batch_type == kind)
        ours = graph.node_type[operand] == kind
        written = np.searchsorted(batches, batch_of_node[user[ours]]) - 1
        late = np.flatnonzero(batches[written] != batch_of_node[operand[ours]])
        if len(late):
            node, needed = int(user[ours][late[0]]), int(operand[ours][late[0]])
            raise ScheduleError(
                f"batch {batch_of_node[node]}: node {node} reads node {needed} of batch {batch_of_node[needed]}, whose "
                f"memory batch {batches[written[late[0]]]} has taken"
            )


def _check_steps(graph: Graph, schedule: Schedule, batch_of_node: np.ndarray) -> None:
    step = schedule.step
    if step is None:
        return
    if len(step) != schedule.num_batches:
        raise ScheduleError(
            f"schedule: expected a first step for each of {schedule.num_batches} batches, got {len(step)}"
        )
    user = np.repeat(np.arange(graph.num_nodes), np.diff(graph.operand_ptr))
    inner = graph.operands >= 0
    user, operand = batch_of_node[user[inner]], batch_of_node[graph.operands[inner]]
    early = np.flatnonzero(step[user] <= step[operand])
    if len(early):
        batch, needed = int(user[early[0]]), int(operand[early[0]])
        raise ScheduleError(
            f"batch {batch}: begins in step {step[batch]} and reads batch {needed}, which begins in step {step[needed]}"
        )
