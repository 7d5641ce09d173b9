"""Learning which types run before they must: tables of waves (`edbc.schedule.waves.wavetable`).

From the rule, the action of one visited state at a time is changed, and kept where no more batches are needed on the
training graphs in sum. Q-learning, which chooses among the ready types when batches are counted
(`edbc.schedule.learn.qlearn`), has little to bootstrap from here: what an action is worth shows many steps later, as a
batch that is not needed, and exact simulation takes microseconds. What does not pay on validation graphs is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edbc.base.graph import Graph
from edbc.schedule.learn.qlearn import random_unit
from edbc.schedule.scheduler import arrays_of, lower_bound
from edbc.schedule.waves.waverun import least_steps, run_waves
from edbc.schedule.waves.wavetable import WAIT, State, Waves
from edbc.schedule.waves.wavewalk import states_of

TRIES = 1000
"""Of the local search."""


def learn_waves(graphs: Sequence[Graph], validation: Sequence[Graph], seed: int) -> tuple[Waves, dict[str, Any]]:
    """A table, and the record of how it came about: steps and batches on the training graphs in sum, their bounds, and
    what the rule alone needs. Equal arguments, equal results."""
    generator = np.array([seed], np.int64)
    rule = Waves()
    best, batches = rule, _batches(graphs, rule)
    tries = 0
    visited = _visited(graphs, best)
    while tries < TRIES and visited:
        tries += 1
        state = visited[int(random_unit(generator) * len(visited))]
        choices = [WAIT, *(word // 4 for word in state if word % 4 != 1)]
        action = choices[int(random_unit(generator) * len(choices))]
        if action == best.table.get(state, WAIT):
            continue
        tried = Waves({**best.table, state: action})
        needed = _batches(graphs, tried)
        if needed <= batches:
            best, batches = tried, needed
            visited = _visited(graphs, best)
    reached = set(_visited(graphs, best))
    best = Waves({state: a for state, a in sorted(best.table.items()) if state in reached and a != WAIT})
    if _batches(validation, best) > _batches(validation, rule):
        best = rule
    record = {
        "seed": seed,
        "tries": tries,
        "steps": sum(map(least_steps, graphs)),
        "steps_bound": sum(map(least_steps, graphs)),
        "batches": _batches(graphs, best),
        "batches_bound": sum(map(lower_bound, graphs)),
        "due": _batches(graphs, rule),
        "validation": [run_waves(graph, best)[0].num_batches for graph in validation],
        "validation_due": [run_waves(graph, rule)[0].num_batches for graph in validation],
    }
    return best, record


def _batches(graphs: Sequence[Graph], waves: Waves) -> int:
    return sum(run_waves(graph, waves)[0].num_batches for graph in graphs)


def _visited(graphs: Sequence[Graph], waves: Waves) -> list[State]:
    """The states of decisions on graphs, in the order of their words."""
    found: set[State] = set()
    for graph in graphs:
        words, ends = states_of(*arrays_of(graph), graph.num_types, *waves.compiled)
        found.update(tuple(part.tolist()) for part in np.split(words, ends[:-1]) if len(part))
    return sorted(found)
