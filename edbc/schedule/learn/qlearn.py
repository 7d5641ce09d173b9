"""Tabular Q-learning with n-step bootstrapping on one graph; native.

One *trial* batches the graph once. At step t, in state S_t with ready types R_t, the agent takes a_t: with probability
`exploration` any ready type, else the best by Q. Its reward is Eq. 1's (Chen et al., ICML 2023, section 2.3)

(1) r_t = -cost(a_t) + alpha |Frontier_a(G_t)| / |Frontier(G_t^a)|, cost 1 unless costs of batches are given,

Updates are those of n-step Q-learning (Watkins and Dayan 1992; Sutton and Barto 2018, chapter 7):

(2) Q(S_t, a_t) += rate x (r_t + ... + r_{t+n-1} + max over a in R_{t+n} of Q(S_{t+n}, a) - Q(S_t, a_t)),

without the maximum after the last batch. It is over ready types and starts at minus infinity: all values are negative,
and a maximum that starts at zero never bootstraps.

Departures from the paper, each measured in docs/policies.md:

(3) A potential is added to the reward, the cost-weighted lower bound before minus after the batch, so that a productive
    batch costs nothing and Q is minus the cost in excess of the bound still to come. Such a term changes no optimal
    policy (Ng, Harada and Russell 1999). Without it Q is dominated by how far the trial has come, which the state does
    not tell. With it alpha does little: Eq. 1's second term and the potential reward nearly the same batches.
(4) A new state's values start from the critical score (8) of choice.py, relative to the best ready type's: `prior`
    times the difference, so the agent begins as the fixed rule and departs where that pays.

Random numbers come from a linear congruential generator on integers, and sums are float64 in a fixed order, so equal
arguments give equal tables on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Ints
from edbc.native.kinds import native
from edbc.schedule.analysis import Dag
from edbc.schedule.choice import (
    BITS,
    RANK,
    Floats,
    Scratch,
    choose,
    critical_score,
    describe,
    encode,
    new_scratch,
    remaining,
)
from edbc.schedule.engine import Frontier, execute, new_frontier, restart
from edbc.schedule.statetable import Table, find, insert, new_table

Generator = NDArray[np.int64]


class Memory(NamedTuple):
    """What has been learned: a row of Q per state."""

    table: Table
    q: Floats  # (rows, T), minus infinity where a type is not ready


class Settings(NamedTuple):
    """Hyper-parameters of one call."""

    encoding: int
    exploration: float
    rate: float
    n: int
    alpha: float
    prior: float
    potential: float  # 1.0 with departure (3), 0.0 without


def new_memory(num_types: int, rows: int) -> Memory:
    """Nothing learned; room for `rows` states."""
    return Memory(new_table(rows, num_types + 1), np.zeros((rows, num_types), np.float64))


@native
def copy_memory(old: Memory, new: Memory) -> None:
    """Fill an empty, larger memory with an older one's rows, in order."""
    for row in range(old.table.used[0]):
        words, size = old.table.words[row], old.table.num_words[row]
        _, slot = find(new.table, words, size)
        to = insert(new.table, slot, words, size)
        for a in range(new.q.shape[1]):
            new.q[to, a] = old.q[row, a]


@native
def random_unit(generator: Generator) -> float:
    """The next number in [0, 1): the upper 31 bits of a linear congruential generator with Knuth's multiplier."""
    generator[0] = generator[0] * np.int64(6364136223846793005) + np.int64(1442695040888963407)
    return float((generator[0] >> np.int64(32)) & np.int64(0x7FFFFFFF)) / 2147483648.0


@native
def is_named(scratch: Scratch, encoding: int, size: int, a: int) -> bool:
    """True when the state in `scratch.words` names the ready type a; all encodings but `rank` name all ready types."""
    return encoding != RANK or a == scratch.words[0] // BITS or (size == 2 and a == scratch.words[1] // BITS)


@native
def row_of_state(frontier: Frontier, scratch: Scratch, memory: Memory, encoding: int, size: int, prior: float) -> int:
    """The row of the state in `scratch.words`, made when it is new: departure (4)."""
    row, slot = find(memory.table, scratch.words, size)
    if row >= 0:
        return row
    row = insert(memory.table, slot, scratch.words, size)
    values = memory.q[row]
    values[:] = -np.inf
    best = -np.inf
    for a in range(len(values)):
        if frontier.head[a] < frontier.tail[a] and is_named(scratch, encoding, size, a):
            values[a] = critical_score(frontier, scratch, a)
            best = max(best, values[a])
    for a in range(len(values)):
        if values[a] > -np.inf:
            values[a] = prior * (values[a] - best)
    return row


@native
def pick(values: Floats, exploration: float, generator: Generator) -> int:
    """A type with a finite value: any with probability `exploration`, else the best, the lowest index on a tie."""
    if random_unit(generator) >= exploration:
        return int(np.argmax(values))
    finite = 0
    for a in range(len(values)):
        finite += values[a] > -np.inf
    skip = int(random_unit(generator) * finite)
    for a in range(len(values)):
        if values[a] > -np.inf:
            if skip == 0:
                break
            skip -= 1
    return a


@native
def learn(
    dag: Dag,
    frontier: Frontier,
    memory: Memory,
    settings: Settings,
    cost: Floats,
    trials: int,
    generator: Generator,
) -> int:
    """Up to `trials` trials; stops before one for which `memory` may lack room, and returns how many were run."""
    nodes = len(dag.node_type)
    scratch = new_scratch(cost)
    rows, actions, total = np.empty(nodes, np.int32), np.empty(nodes, np.int32), np.zeros(nodes + 1, np.float64)
    for trial in range(trials):
        if memory.table.used[0] + nodes > len(memory.q):
            return trial
        restart(dag, frontier)
        done, t, bound = 0, 0, 0.0
        while done < nodes:
            describe(frontier, scratch)
            before, bound = bound, settings.potential * remaining(scratch)
            if t > 0:
                total[t] += before - bound
            size = encode(dag, frontier, scratch, settings.encoding, done)
            row = row_of_state(frontier, scratch, memory, settings.encoding, size, settings.prior)
            if t >= settings.n:
                update(memory, settings.rate, rows, actions, total, t - settings.n, t, memory.q[row].max())
            a = pick(memory.q[row], settings.exploration, generator)
            count = frontier.tail[a] - frontier.head[a]
            rows[t], actions[t] = row, a
            total[t + 1] = total[t] - cost[a] + settings.alpha * count / frontier.same_size[a]
            done += count
            execute(dag, frontier, a)
            t += 1
        total[t] += bound
        for start in range(max(0, t - settings.n), t):
            update(memory, settings.rate, rows, actions, total, start, t, 0.0)
    return trials


@native
def update(
    memory: Memory, rate: float, rows: Ints, actions: Ints, total: Floats, start: int, end: int, rest: float
) -> None:
    """(2): move Q(S_start, a_start) towards the rewards of start..end-1 plus `rest`."""
    row, a = rows[start], actions[start]
    memory.q[row, a] += rate * (total[end] - total[start] + rest - memory.q[row, a])


@native
def adopt(dag: Dag, encoding: int, table: Table, actions: Ints, rule: int, cheap: Ints, cost: Floats) -> None:
    """Walk the graph and give every state that the table lacks a row, with the rule's action.

    A state of encoding `rank` names two types only; where the rule takes a third, the action is the better of the two,
    so that it is ready whenever the state is met. The table must have room for as many states as the graph has nodes.
    """
    frontier, scratch = new_frontier(dag), new_scratch(cost)
    restart(dag, frontier)
    done = 0
    while done < len(dag.node_type):
        describe(frontier, scratch)
        size = encode(dag, frontier, scratch, encoding, done)
        row, slot = find(table, scratch.words, size)
        if row < 0:
            row = insert(table, slot, scratch.words, size)
            a = choose(dag, frontier, scratch, rule, cheap)
            actions[row] = a if is_named(scratch, encoding, size, a) else scratch.words[0] // BITS
        a = actions[row]
        done += frontier.tail[a] - frontier.head[a]
        execute(dag, frontier, a)
