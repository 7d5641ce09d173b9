"""Which form of schedule a network runs by: the plainest that no other one beats, measured as a whole.

A table of stages does not hold what happens between them: caches that a stage leaves cold, threads that still look for
work, weights that come from memory. So what it promises is held against the whole network, by every form of schedule
(`edbc.plan.static.FORMS`), all taking turns. A form is chosen over plainer ones only when it takes less than they do by
more than its spread: stages that are not faster than one unit after the other do not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from edbc.plan.static import FORMS, FormCost
from edbc.stages.devices import net_of
from edbc.stages.net import BatchNet, StaticModel
from edbc.stages.plan_graph import Planned, whole_schedule
from edbc.stages.timing import turns

BOTH, OPEN = "both", "no barriers"
SECONDS = 5.0
"""Of measuring all forms."""


def chosen_form(measured: Sequence[FormCost]) -> str:
    """The form that runs, by what was measured; the cheapest stages with barriers where nothing was."""
    if not measured:
        return BOTH
    best, *others = sorted(measured, key=lambda cost: FORMS.index(cost.form))
    for other in others:
        if other.median_ns + other.spread_ns < best.median_ns:
            best = other
    return best.form


@contextmanager
def nets_of(static: StaticModel, planned: Sequence[Planned], threads: int) -> Iterator[dict[str, BatchNet[Any]]]:
    """The network by every form that all blocks have."""
    with ExitStack() as stack:
        yield {
            form: stack.enter_context(net_of(static, whole_schedule(planned, form), threads, form != OPEN))
            for form in FORMS
            if all(form in p.scheduled.forms for p in planned)
        }


def measured_forms(static: StaticModel, planned: Sequence[Planned], threads: int, batch: int) -> tuple[FormCost, ...]:
    """What a batch takes by every form."""
    with nets_of(static, planned, threads) as nets:
        found = turns({form: net.clock(static.stacked(batch)) for form, net in nets.items()}, SECONDS)
    return tuple(FormCost(form, *cost) for form, cost in found.items())
