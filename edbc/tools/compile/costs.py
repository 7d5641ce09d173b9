"""What batches cost: measured in place, by cutting them into parts.

A batch of k nodes of type a is taken to cost fixed(a) + k row(a) microseconds. IOS (Ding et al., MLSys 2021) chooses
schedules by measured latencies too, of whole stages; here two numbers per type are enough, because every schedule runs
the same rows, so that schedules differ by the fixed costs of their batches alone.

(1) fixed(a): take a mini-batch's schedule S, and S/a, in which every batch of type a is cut into equal parts, into
    the fewest that make CUTS more batches of them (or parts of one node). Both are legal and run the same rows, so
    the difference of their times over the number of cuts is what one more batch of type a costs in its place, its
    neighbours, caches and gathers included, by the back end's ordinary way of running, with no clock between batches.
    The schedules take turns, and the least time of each counts: other programs only ever add to it.
(2) row(a): the slope of a line through rows and time of the batches of type a, each timed alone (which is a little
    slower, but no more so for a long batch than for a short one); where all have the same number of rows, what is left
    of their time beside fixed(a), per row. It decides nothing and is there to be read.
(3) A type whose batches have one node each cannot be cut: its fixed cost is its batch's time alone, an upper bound. A
    type with no node in the mini-batch is given the dearest fixed cost that was measured.

Measured figures differ from run to run, so they are rounded and stored in the plan; compiling depends on the table
that it is given and on no clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edbc.errors import ModelError
from edbc.plan.plan import BatchCost
from edbc.schedule.schedule import Schedule

if TYPE_CHECKING:
    from edbc.run.passes.minibatch import MiniBatch
    from edbc.run.session import Net

Floats = NDArray[np.float64]

CUTS = 64
"""More batches of a type that a cut schedule has, where its nodes suffice."""
ROUNDS = 25
LEAST_ROUNDS = 5
SECONDS = 10.0
"""After LEAST_ROUNDS no round begins later than this."""
ALONE = 5
"""Times that batches are timed alone; the shortest counts."""


def measure_costs(net: Net, instances: Sequence[Any]) -> dict[str, BatchCost]:
    """The cost of a batch of every type of the net's plan, on one mini-batch of it. Runs it some hundred times.

    Cells that the net splits into parts are measured by what remains in the schedule's own batches, their cores. Equal
    nodes run one by one, so that a batch has the nodes that the policy learns on.
    """
    prepared = net.prepare(instances, without=("share",))
    schedule = prepared.schedule
    executed = {i: kind for i in range(len(net.plan.types)) if (kind := _executed(prepared, i)) is not None}
    cut = {kind: cut_batches(schedule, kind) for kind in executed.values()}
    cuts = {kind: parts.num_batches - schedule.num_batches for kind, parts in cut.items()}
    useful = [parts for kind, parts in cut.items() if cuts[kind]]
    seconds = _taking_turns(net, [prepared, *(_with_schedule(net, prepared, parts) for parts in useful)])
    extra = iter((seconds[1:] - seconds[0]).tolist())
    alone = _alone(net, prepared)
    fixed = {kind: next(extra) / cuts[kind] if cuts[kind] else _least(schedule, kind, alone) for kind in cut}
    rows = {kind: _slope(schedule, kind, alone, fixed[kind]) for kind in cut}
    dearest = max(fixed.values())
    return {
        kind.name: BatchCost(
            _microseconds(fixed[executed[i]] if i in executed else dearest),
            _microseconds(rows[executed[i]] if i in executed else 0.0),
        )
        for i, kind in enumerate(net.plan.types)
    }


def _executed(prepared: MiniBatch, kind: int) -> int | None:
    """The type whose batches run for those of a type of the plan, None where it has no node."""
    if prepared.split is not None and kind in prepared.split.variants:
        from edbc.cells.parts import CORE

        kind = prepared.split.variants[kind].type_of_part[CORE]
    return kind if np.any(prepared.schedule.batch_type == kind) else None


def _with_schedule(net: Net, prepared: MiniBatch, schedule: Schedule) -> MiniBatch:
    """The same mini-batch, to be executed in other batches."""
    from edbc.run.backend import Segment
    from edbc.run.passes.placement import place

    graph = prepared.capture.graph
    placement = place(graph, schedule, prepared.capture.result_node)
    demand = net.backend.demand(Segment(graph, schedule, placement), net.kernel)
    return prepared.changed(schedule=schedule, placement=placement, demand=demand)


def cut_batches(schedule: Schedule, kind: int) -> Schedule:
    """S/a of (1): the schedule with the batches of one type cut into equal parts, at most one node apart."""
    sizes = np.diff(schedule.batch_ptr)
    parts = np.ones(schedule.num_batches, np.int64)
    of_kind = schedule.batch_type == kind
    for number in range(2, int(sizes[of_kind].max()) + 1):
        parts[of_kind] = np.minimum(number, sizes[of_kind])
        if parts.sum() - schedule.num_batches >= CUTS:
            break
    first = np.repeat(schedule.batch_ptr[:-1], parts)
    within = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = first + within * np.repeat(sizes, parts) // np.repeat(parts, parts)
    return replace(
        schedule,
        batch_type=np.repeat(schedule.batch_type, parts),
        batch_ptr=np.append(starts, schedule.batch_ptr[-1]).astype(np.int32),
    )


def _taking_turns(net: Net, mini_batches: Sequence[MiniBatch]) -> Floats:
    """The least seconds of each, `(mini-batches,)`; a first round that loads kernels is left out."""
    rounds: list[list[float]] = []
    started = time.perf_counter()
    while len(rounds) <= ROUNDS and (len(rounds) <= LEAST_ROUNDS or time.perf_counter() - started < SECONDS):
        rounds.append([_run(net, prepared)[-1] for prepared in mini_batches])
    return np.min(rounds[1:], axis=0)


def _alone(net: Net, prepared: MiniBatch) -> Floats:
    """The least seconds of every batch timed alone, `(batches,)`."""
    return np.min([np.diff(_run(net, prepared, alone=True)) for _ in range(ALONE)], axis=0)


def _run(net: Net, prepared: MiniBatch, *, alone: bool = False) -> list[float]:
    """Execute a mini-batch: 0 and the seconds at its end, or at the end of every batch."""
    import torch

    from edbc.run.passes.boundary import load_externals

    segment, ends = prepared.segment, [0.0]
    with torch.no_grad():
        arenas = net.backend.arenas(segment, prepared.demand)
        load_externals(prepared.capture, prepared.boundary.lookups, arenas, net.view)
        started = time.perf_counter()
        on_batch = (lambda _: ends.append(time.perf_counter() - started)) if alone else None
        net.backend.execute(segment, arenas, net.kernel, on_batch)
        if not alone:
            ends.append(time.perf_counter() - started)
        arenas.release()
    return ends


def _least(schedule: Schedule, kind: int, alone: Floats) -> float:
    return float(alone[schedule.batch_type == kind].min())


def _slope(schedule: Schedule, kind: int, alone: Floats, fixed: float) -> float:
    """(2), in seconds."""
    of_kind = schedule.batch_type == kind
    rows, seconds = np.diff(schedule.batch_ptr)[of_kind].astype(np.float64), alone[of_kind]
    from_mean = rows - rows.mean()
    if not from_mean.any():
        return float((seconds.mean() - fixed) / rows.mean())
    return float(from_mean @ seconds / (from_mean @ from_mean))


def _microseconds(seconds: float) -> float:
    """Not below zero, three digits: more than measuring can tell."""
    return float(f"{max(seconds, 0.0) * 1e6:.3g}")


def require_costs(costs: Mapping[str, BatchCost], names: Sequence[str], where: str) -> dict[str, BatchCost]:
    """The entries of these types. Raises ModelError, saying where the table is from, when it lacks one."""
    missing = [name for name in names if name not in costs]
    if costs and missing:
        raise ModelError(
            f"{where}: expected a cost for every type of the model, got none for {', '.join(missing)}; measure again "
            "with --profile, or compile with --costs none"
        )
    return {name: costs[name] for name in names} if costs else {}
