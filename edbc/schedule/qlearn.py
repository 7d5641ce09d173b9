"""Tabular Q-learning with n-step bootstrapping on one graph; native.

One *trial* batches the graph once. At step t, in state S_t with ready types R_t, the agent takes a_t: with probability
`exploration` any ready type, else the best by Q. It receives Eq. 1's reward (Chen et al., ICML 2023, section 2.3)

    r_t = -cost_t + alpha |Frontier_a(G_t)| / |Frontier(G_t^a)|,

cost_t = 1, or fixed[a] + per_row[a] x rows where batches are weighed by what they cost. Updates are those of n-step
Q-learning (Watkins and Dayan 1992; Sutton and Barto 2018, chapter 7):

    Q(S_t, a_t) += rate x (r_t + ... + r_{t+n-1} + max over a in R_{t+n} of Q(S_{t+n}, a) - Q(S_t, a_t)),

without the maximum at the end of a trial. The maximum is over ready types only and starts at minus infinity: all values
are negative, and a maximum that starts at zero never bootstraps.

New states start from a prior: `prior_weight` times the critical rule's score where the encoding has its bits, plus the
negative of the number of batches left by the lower bound, rather than from zero.

Random numbers are a 64-bit linear congruential generator's upper bits; the arithmetic is float64 in a fixed order, so
equal seeds give equal tables on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from edbc.graph import Ints
from edbc.schedule.analysis import Dag
from edbc.schedule.choice import CRITICAL, CRITICAL_SCORE, Table, describe, encode, find, insert, new_table
from edbc.schedule.engine import Frontier, execute, restart

Floats = NDArray[np.float64]


class Memory(NamedTuple):
    """What has been learned: a row of Q per state."""

    table: Table
    q: Floats  # (rows, T), minus infinity where a type is not ready


class Settings(NamedTuple):
    """Hyper-parameters of one call."""

    encoding: int
    exploration: float
    rate: float
    horizon: int
    alpha: float
    prior_weight: float


def new_memory(num_types: int, rows: int) -> Memory:
    """Nothing learned; room for `rows` states."""
    return Memory(new_table(rows, num_types + 1), np.zeros((rows, num_types), np.float64))


@njit(cache=True)
def copy_memory(old: Memory, new: Memory) -> None:
    """Fill an empty, larger memory with an older one's rows, in order."""
    for row in range(old.table.used[0]):
        words, size = old.table.words[row], old.table.num_words[row]
        _, slot = find(new.table, words, size)
        new.q[insert(new.table, slot, words, size)] = old.q[row]


@njit(cache=True)
def random_unit(generator: NDArray[np.int64]) -> float:
    """The next number in [0, 1) of a linear congruential generator (Knuth's multiplier), its upper 31 bits."""
    generator[0] = generator[0] * np.int64(6364136223846793005) + np.int64(1442695040888963407)
    return float((generator[0] >> np.int64(32)) & np.int64(0x7FFFFFFF)) / 2147483648.0


@njit(cache=True)
def row_of_state(frontier: Frontier, memory: Memory, settings: Settings, words: Ints, size: int, bits: Ints) -> int:
    """The state's row, made when it is new."""
    row, slot = find(memory.table, words, size)
    if row >= 0:
        return row
    row = insert(memory.table, slot, words, size)
    for a in range(len(bits)):
        memory.q[row, a] = -np.inf
        if frontier.head[a] < frontier.tail[a]:
            memory.q[row, a] = settings.prior_weight * CRITICAL_SCORE[bits[a]] if settings.encoding >= CRITICAL else 0.0
    return row


@njit(cache=True)
def pick(frontier: Frontier, values: Floats, exploration: float, generator: NDArray[np.int64]) -> int:
    """A ready type: the best by `values`, the lowest index on a tie, or any with probability `exploration`."""
    num_types = len(values)
    if exploration > 0.0 and random_unit(generator) < exploration:
        num_ready = 0
        for a in range(num_types):
            num_ready += frontier.head[a] < frontier.tail[a]
        skip = int(random_unit(generator) * num_ready)
        for a in range(num_types):
            if frontier.head[a] < frontier.tail[a]:
                if skip == 0:
                    return a
                skip -= 1
    return np.argmax(values)


@njit(cache=True)
def learn(
    dag: Dag,
    frontier: Frontier,
    memory: Memory,
    settings: Settings,
    fixed: Floats,
    per_row: Floats,
    trials: int,
    generator: NDArray[np.int64],
) -> int:
    """Up to `trials` trials; stops before one for which the table may lack room, and returns how many were run."""
    n, num_types = len(dag.node_type), len(dag.type_ptr) - 1
    top, reaching = np.zeros(num_types, np.int32), np.zeros(num_types, np.int32)
    bits, words = np.zeros(num_types, np.int32), np.zeros(num_types + 1, np.int32)
    rows, actions, total = np.empty(n, np.int32), np.empty(n, np.int32), np.zeros(n + 1, np.float64)
    for trial in range(trials):
        if memory.table.used[0] + n > len(memory.q):
            return trial
        restart(dag, frontier)
        done, t = 0, 0
        while done < n:
            if settings.encoding >= CRITICAL:
                describe(frontier, top, reaching, bits, True)
            size = encode(dag, frontier, settings.encoding, done, bits, words)
            row = row_of_state(frontier, memory, settings, words, size, bits)
            rows[t] = row
            if t >= settings.horizon:
                update(memory, settings, rows, actions, total, t - settings.horizon, t, memory.q[row].max())
            a = pick(frontier, memory.q[row], settings.exploration, generator)
            count = frontier.tail[a] - frontier.head[a]
            ratio = count / frontier.same_size[a]
            actions[t] = a
            total[t + 1] = total[t] - fixed[a] - per_row[a] * count + settings.alpha * ratio
            done += count
            execute(dag, frontier, a)
            t += 1
        for start in range(max(0, t - settings.horizon), t):
            update(memory, settings, rows, actions, total, start, t, 0.0)
    return trials


@njit(cache=True)
def update(
    memory: Memory, settings: Settings, rows: Ints, actions: Ints, total: Floats, start: int, end: int, rest: float
) -> None:
    """Move Q(S_start, a_start) towards the rewards of start..end-1 plus `rest`."""
    row, a = rows[start], actions[start]
    target = total[end] - total[start] + rest
    memory.q[row, a] += settings.rate * (target - memory.q[row, a])
