"""Which form of schedule a network runs by: the plainest that no other one beats, measured as a whole.

A table of stages does not hold what happens between them: caches that a stage leaves cold, threads that still look for
work, weights that come from memory. So what it promises is held against the whole network, by every form of schedule
(`edbc.plan.static.FORMS`), all taking turns. A form is chosen over plainer ones only when it takes less than they do by
more than its spread: stages that are not faster than one unit after the other do not run. Of a GPU's kernels
(`edbc.plan.static.KERNELS`) likewise, before stages are measured with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from edbc.plan.static import FORMS, KERNELS, FormCost, KernelCost
from edbc.stages.devices import kernels_on, net_of
from edbc.stages.net import BatchNet, StaticModel
from edbc.stages.plan_graph import Planned, whole_schedule
from edbc.stages.table import CONCURRENT, CostTable
from edbc.stages.timing import turns

BOTH, OPEN = "both", "no barriers"
SECONDS, SECONDS_OF_KERNELS = 5.0, 1.0
"""Of measuring all forms, and all choices of kernels."""


def chosen_form(measured: Sequence[FormCost]) -> str:
    """The form that runs, by what was measured; the cheapest stages with barriers where nothing was."""
    return plainest({cost.form: (cost.median_ns, cost.spread_ns) for cost in measured}, FORMS) or BOTH


def chosen_kernels(measured: Sequence[KernelCost]) -> str | None:
    """The kernels that run, by what was measured; None where nothing was."""
    return plainest({cost.kernels: (cost.median_ns, cost.spread_ns) for cost in measured}, KERNELS)


def plainest(costs: Mapping[str, tuple[int, int]], order: Sequence[str]) -> str | None:
    """Of what is there in this order, the first that no later one beats by more than its spread; None of nothing."""
    best: str | None = None
    for name in sorted(costs, key=order.index):
        if best is None or sum(costs[name]) < costs[best][0]:
            best = name
    return best


@contextmanager
def nets_of(static: StaticModel, planned: Sequence[Planned], threads: int,
            kernels: str | None = None) -> Iterator[dict[str, BatchNet[Any]]]:  # fmt: skip
    """The network by every form that all blocks have."""
    with ExitStack() as stack:
        yield {
            form: stack.enter_context(net_of(static, whole_schedule(planned, form), threads, form != OPEN, kernels))
            for form in FORMS
            if all(form in p.scheduled.forms for p in planned)
        }


def measured_forms(static: StaticModel, planned: Sequence[Planned], head: CostTable) -> tuple[FormCost, ...]:
    """What a batch takes by every form, as a table's head says."""
    with nets_of(static, planned, head.threads, chosen_kernels(head.kernels)) as nets:
        found = turns({form: net.clock(static.stacked(head.batch_size)) for form, net in nets.items()}, SECONDS)
    return tuple(FormCost(form, *cost) for form, cost in found.items())


def measured_kernels(static: StaticModel, batch: int) -> tuple[KernelCost, ...]:
    """What a batch takes by every choice of kernels that there is where the weights are, one unit after the other."""
    schedule = [(((unit,),), CONCURRENT) for unit in range(len(static.graph.units))]
    nets = {kernels: net_of(static, schedule, 1, True, kernels) for kernels in kernels_on(static)}
    with ExitStack() as stack:
        clocks = {kernels: stack.enter_context(net).clock(static.stacked(batch)) for kernels, net in nets.items()}
        found = turns(clocks, SECONDS_OF_KERNELS)
    return tuple(KernelCost(kernels, *cost) for kernels, cost in found.items())
