"""Learning which types run before they must: tables of waves (`edbc.schedule.waves.wavetable`), by Q-learning.

Steps are the bound whatever a table says, so what is learned is which of these schedules needs the fewest batches. At
each decision of a trial the agent waits or lets one more ready type run; the steps that follow, up to the next
decision, cost a batch each, less what the lower bound of batches falls by: so what is productive costs nothing, and Q
is minus the batches in excess of the bound still to come (departure (3) of `edbc.schedule.learn.qlearn`, whose updates,
equation (2), and whose choice of actions these are). Values of a new state start at 0 for waiting and at -PRIOR for any
type, so the agent begins as the rule `due` and departs where that pays.

The greedy table of every CHECK trials is run on the training graphs; the best one of all SETTINGS is kept, without the
entries that no walk visits, and dropped for the rule where validation graphs need more batches with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Graph, Ints
from edbc.native.kinds import inner, native
from edbc.schedule.choice import Floats
from edbc.schedule.learn.qlearn import Generator, Memory, pick, update
from edbc.schedule.scheduler import arrays_of, lower_bound
from edbc.schedule.statetable import find, insert, new_table
from edbc.schedule.waves.waverun import least_steps, run_waves
from edbc.schedule.waves.wavetable import State, Waves
from edbc.schedule.waves.wavewalk import RUNS, Walk, begin_step, may_run, new_walk, restart_walk, run_type, state

TRIALS, CHECK = 2000, 50
SETTINGS = ((0.01, 0.2, 8, 0.25), (0.002, 0.2, 30, 0.1))
"""Exploration, rate, decisions that a return spans, and PRIOR. A trial has hundreds of decisions, so few may be
random."""
ROWS = 1 << 16
"""States that are remembered; a trial that may need more does not begin."""


def learn_waves(graphs: Sequence[Graph], validation: Sequence[Graph], seed: int) -> tuple[Waves, dict[str, Any]]:
    """A table, and the record of how it came about: steps and batches on the training graphs in sum, their bounds, and
    what the rule alone needs. Equal arguments, equal results."""
    generator, rule = np.array([seed], np.int64), Waves()
    best, batches, trials, states = rule, _batches(graphs, rule), 0, 0
    for settings in SETTINGS:
        memory, done = new_memory_of(max(graph.num_types for graph in graphs)), 0
        while done < TRIALS:
            ran = learn_round(graphs, memory, settings, generator)
            done += max(ran, 1)
            tried = _greedy(memory)
            needed = _batches(graphs, tried)
            if needed < batches:
                best, batches = tried, needed
        trials, states = trials + done, max(states, int(memory.table.used[0]))
    best = _visited(graphs, best)
    if _batches(validation, best) > _batches(validation, rule):
        best = rule
    record = {
        "seed": seed,
        "trials": trials,
        "states": states,
        "steps": sum(map(least_steps, graphs)),
        "steps_bound": sum(map(least_steps, graphs)),
        "batches": _batches(graphs, best),
        "batches_bound": sum(map(lower_bound, graphs)),
        "due": _batches(graphs, rule),
        "validation": [run_waves(graph, best)[0].num_batches for graph in validation],
        "validation_due": [run_waves(graph, rule)[0].num_batches for graph in validation],
    }
    return best, record


def new_memory_of(num_types: int) -> Memory:
    """Nothing learned; a column for waiting and one per type."""
    return Memory(new_table(ROWS, num_types + 1), np.zeros((ROWS, num_types + 1), np.float64))


def learn_round(graphs: Sequence[Graph], memory: Memory, settings: Sequence[float], generator: Generator) -> int:
    """CHECK trials, the graphs taking their share each; how many were run."""
    given, share = np.array(settings), -(-CHECK // len(graphs))
    num_types = memory.q.shape[1] - 1
    return sum(learn_walks(*arrays_of(graph), num_types, memory, given, share, generator) for graph in graphs)


def _batches(graphs: Sequence[Graph], waves: Waves) -> int:
    return sum(run_waves(graph, waves)[0].num_batches for graph in graphs)


def _greedy(memory: Memory) -> Waves:
    """What is best by Q in every state that was met."""
    used = int(memory.table.used[0])
    best = memory.q[:used].argmax(axis=1) - 1
    return Waves({state_of(memory, row): int(best[row]) for row in np.flatnonzero(best >= 0).tolist()})


def state_of(memory: Memory, row: int) -> State:
    """The state that a row is of."""
    return tuple(memory.table.words[row, : memory.table.num_words[row]].tolist())


def _visited(graphs: Sequence[Graph], waves: Waves) -> Waves:
    """The table without entries that no walk over the graphs uses."""
    from edbc.schedule.waves.wavewalk import wave_walk

    states, used = list(waves.table), set[int]()
    for graph in graphs:
        used.update(wave_walk(*arrays_of(graph), graph.num_types, *waves.compiled)[4].tolist())
    return Waves({state: waves.table[state] for row, state in enumerate(states) if row in used})


# --- native --------------------------------------------------------------------------------------------------------


@native
def learn_walks(
    node_type: Ints, operand_ptr: Ints, operands: Ints, num_types: int, memory: Memory, settings: Floats, trials: int,
    generator: Generator,
) -> int:  # fmt: skip
    """Up to `trials` trials on one graph, with `settings` as in SETTINGS; stops before one for which `memory` may
    lack room, and returns how many were run. Column 0 of Q is waiting, column a + 1 letting type a run."""
    exploration, rate, n, prior = settings[0], settings[1], int(settings[2]), settings[3]
    walk = new_walk(node_type, operand_ptr, operands, num_types)
    bound = walk.height.max() if len(node_type) else 0
    own = own_heights(walk, num_types)
    most = 2 * len(node_type) + 2
    rows, chosen, total = np.empty(most, np.int32), np.empty(most, np.int32), np.zeros(most + 1, np.float64)
    for trial in range(trials):
        if memory.table.used[0] + most > len(memory.q):
            return trial
        restart_walk(walk)
        waiting, top = levels(walk, own, num_types)
        t = 0
        total[0] = 0.0
        for step in range(bound):
            begin_step(walk, bound - step)
            while True:
                size = state(walk)
                if size == 0:
                    break
                row = _row(walk, memory, size, prior)
                if t >= n:
                    update(memory, rate, rows, chosen, total, t - n, t, memory.q[row].max())
                column = pick(memory.q[row], exploration, generator)
                rows[t], chosen[t] = row, column
                t += 1
                total[t] = total[t - 1]
                if column == 0:
                    break
                walk.mark[column - 1] = RUNS
            for a in range(num_types):
                if walk.mark[a] == RUNS and walk.end[a] > walk.head[a]:
                    before = top[a]
                    for i in range(walk.head[a], walk.end[a]):
                        waiting[a, own[walk.ready[i]]] -= 1
                    while top[a] > 0 and waiting[a, top[a]] == 0:
                        top[a] -= 1
                    total[t] += before - top[a] - 1.0
                    run_type(walk, a)
        for start in range(max(0, t - n), t):
            update(memory, rate, rows, chosen, total, start, t, 0.0)
    return trials


@inner
def _row(walk: Walk, memory: Memory, size: int, prior: float) -> int:
    """The row of the state, made when it is new."""
    row, slot = find(memory.table, walk.words, size)
    if row >= 0:
        return row
    row = insert(memory.table, slot, walk.words, size)
    memory.q[row, 0] = 0.0
    for a in range(len(walk.head)):
        memory.q[row, a + 1] = -prior if may_run(walk, a) else -np.inf
    return row


@inner
def own_heights(walk: Walk, num_types: int) -> Ints:
    """Nodes of its own type on the longest path that starts at a node, counting these alone, `(n,)`: a type has as many
    batches left as the largest of its nodes that have not run. O(T (n + m))."""
    n = len(walk.height)
    own, most = np.zeros(n, np.int32), np.zeros(n, np.int32)
    for a in range(num_types):
        for v in range(n - 1, -1, -1):
            most[v] = 0
            for k in range(walk.dag.user_ptr[v], walk.dag.user_ptr[v + 1]):
                most[v] = max(most[v], most[walk.dag.users[k]])
            if walk.dag.node_type[v] == a:
                most[v] += 1
                own[v] = most[v]
    return own


@inner
def levels(walk: Walk, own: Ints, num_types: int) -> tuple[NDArray[np.int32], Ints]:
    """Nodes that have not run by type and own height, and the largest own height of each type."""
    waiting = np.zeros((num_types, own.max() + 1 if len(own) else 1), np.int32)
    top = np.zeros(num_types, np.int32)
    for v in range(len(own)):
        a = walk.dag.node_type[v]
        waiting[a, own[v]] += 1
        top[a] = max(top[a], own[v])
    return waiting, top
