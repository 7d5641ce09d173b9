"""Is batching worth it? Measured when compiling, on the plan's own sample; where it is not, the plan says `run: eager`.

(1) Eager and batched execution of the training mini-batch take turns: forward, without gradients, in float32 on the
    CPU, in one thread, mini-batches recorded so often before that asking for lines is over. As these are the same every
    time, instances are joined from records (`capture.alike.alike`) only if half of them are alike others among them,
    and graphs of segments (`capture.forward.structures`), small ones that follow from values, are known as they are
    when `others` have run, and not from the turn before.
    The *gain* is the median of eager's time over edbc's in the same turn. A first turn that gains CLEAR ends it, and
    so does the first one after those recordings that gains less than HOPELESS. One thread, because how many others
    have, and which other programs keep them waiting, is the machine's affair and not the plan's.
(2) A plan says `run: eager` where the gain is below 1: no model runs slower than without a plan. Then the same is
    measured of instances captured beforehand (`edbc.capture.captured`), and where these gain, they run batched.
(3) One instance alone shares a batch with nobody: what the graph of one has to gain is measured with some, each by
    itself, of a plan that batches. Where eager is faster, it says `alone: eager`.
(4) A clock decides, so the decision keeps its distance: what stands in the plan that is written over moves the limit
    (KEPT), and plans whose gain is not near a limit are the same bytes from every machine. The clock is the process's
    own, which stands still while other programs hold it up. The figure is told, not kept. Checking takes the decision
    as it stands.

A model file with `structure_key` is not measured: what its mini-batches cost depends on how often structures repeat.
Training is not what was measured, and runs batched.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from edbc.capture.record.recorder import LOOKS
from edbc.capture.standins.objects import unchanged
from edbc.errors import UnsupportedError
from edbc.native.threads import torch_threads
from edbc.plan.plan import Plan
from edbc.run.session import Net
from edbc.tools.parity import Eager

CLEAR, HOPELESS = 1.5, 0.5
LIMIT = 1.0
KEPT = {True: 1.15, False: 0.85}
"""Limits where a plan stands already, by whether it says `run: eager`."""
TURNS = 5
ALONE = 8
"""Instances that run alone in a turn."""
NEW = "each instance brings"
"""How a reason of definition (4) begins."""
SECONDS = 3.0
"""For recording mini-batches before the turns, at most."""


@torch_threads(1)
@torch.no_grad()
def gain_of(net: Net, eager: Eager, instances: Sequence[Any], others: Sequence[Any] = ()) -> list[float]:
    """Eager's time over edbc's of every turn, definition (1)."""
    structures = net.table.structures
    if net.plan.reads:
        with unchanged(others):
            for first in range(0, len(others), len(instances)):
                net.run(list(others[first : first + len(instances)]))
    known = dict(structures)

    def batched() -> None:
        if net.plan.reads:
            structures.clear()
            structures.update(known)
        net.run(list(instances))

    with unchanged(instances):
        batched()
    if net.alike is not None:
        net.alike.judge()
    return _turns(lambda: eager.run(instances), batched, instances)


@torch_threads(1)
@torch.no_grad()
def unseen_gain_of(net: Net, eager: Eager, instances: Sequence[Any]) -> list[float]:
    """The same of instances that are run for the first time, definition (4)."""
    return [_seconds(lambda: eager.run(instances), instances) / _seconds(lambda: net.run(list(instances)), instances)]


@torch_threads(1)
@torch.no_grad()
def alone_gain_of(net: Net, eager: Eager, instances: Sequence[Any]) -> list[float]:
    """The same of instances that run alone, definition (3)."""
    some = [instances[i * len(instances) // ALONE] for i in range(min(ALONE, len(instances)))]
    return _turns(lambda: eager.run(some), lambda: [net([instance]) for instance in some], some)


@torch_threads(1)
@torch.no_grad()
def captured_gain_of(net: Net, eager: Eager, instances: Sequence[Any]) -> list[float]:
    """The same with instances captured beforehand; nothing where some cannot be."""
    with unchanged(instances):
        found = net.capture_each(list(instances))
    if any(isinstance(captured, UnsupportedError) for captured in found):
        return []
    return _turns(lambda: eager.run(instances), lambda: net.run(found), instances)


def _turns(one_by_one: Callable[[], object], batched: Callable[[], object], instances: Sequence[Any]) -> list[float]:
    def turn() -> float:
        return _seconds(one_by_one, instances) / _seconds(batched, instances)

    _seconds(batched, instances)
    first = turn()
    if first >= CLEAR:
        return [first]
    started = time.perf_counter()
    for _ in range(LOOKS):
        if time.perf_counter() - started < SECONDS:
            _seconds(batched, instances)
    found = turn()
    return [found] if found < HOPELESS else [found, *(turn() for _ in range(TURNS - 1))]


def _seconds(function: Callable[[], object], instances: Sequence[Any]) -> float:
    """What a run takes that leaves instances as they were."""
    with unchanged(instances):
        started = time.process_time()
        function()
        return time.process_time() - started


def is_eager_better(gains: Sequence[float], stood: bool | None = None) -> bool:
    """Definitions (2) to (5); `stood` is what the plan that is written over says, None without one."""
    return statistics.median(gains) < (LIMIT if stood is None else KEPT[stood])


def reason_of_new(instances: int, types: int) -> str:
    """Why batching does not pay where types do not run out."""
    return f"{NEW} some {types // max(instances, 1)} types of its own: sizes in it are parts of shapes"


def reason(instances: int, nodes: int, batches: int) -> str:
    """Why batching does not pay, in figures that do not depend on a clock."""
    each = f"{nodes / max(instances, 1):.0f}"
    return (
        f"recording {each} node{'s' * (each != '1')} of an instance costs more than running "
        f"{nodes / max(batches, 1):.1f} of them at a time saves"
    )


def what_would_help(plan: Plan) -> Iterator[str]:
    """What makes batching pay where it does not, a line each."""
    if plan.run is not None and plan.run.eager.startswith(NEW):
        yield "sizes of few values, as buckets have: instances of equal sizes share types"
        return
    if not any(t.signature.startswith("cell ") for t in plan.types):
        yield "move what is always computed together into a method that reads its arguments and weights alone: a cell"
    if plan.trained_on.nodes == plan.trained_on.instances:
        yield "where all instances have one graph, as of a convolutional network: stages ('edbc compile --profile')"
    yield "larger mini-batches, and vertex functions, which run no Python per node"
    yield "where forward's code is a library's, a promise that it is a function, if you know that: edbc.closed"
