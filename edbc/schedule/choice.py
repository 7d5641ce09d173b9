"""How the next type is chosen: state encodings, fixed rules and the table; native.

Encodings give a state as a short sequence of integers, *words* (policy.py has their text form). Definitions (1) to (5)
are those of engine.py. Types are in index order unless said.

=========== ========================================================================================
E_base      the ready types (ED-Batch 2.3)
E_max       the ready types, then the one with the largest Frontier_a(G)
E_sort      the ready types by ascending |Frontier_a(G)|, ties by index
phase       the ready types, after the eighth of the graph's nodes that has run (Appendix A.4)
critical    per ready type its index and two bits: productive (3), gates another (4)
sufficient  the same with a third bit: sufficient (5)
=========== ========================================================================================
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from edbc.graph import Ints
from edbc.schedule.analysis import Dag
from edbc.schedule.engine import Frontier

BASE, MAX, SORT, PHASE, CRITICAL, SUFFICIENT = range(6)
PRODUCTIVE, GATES, ALL_READY = 1, 2, 4
BITS = 8
"""A word of a bit encoding is `type * BITS + bits`."""
PHASES = 8
MOST, AGENDA, LEAST_PENDING, CRITICAL_PATH = range(4)
CRITICAL_SCORE = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.float64)


class Table(NamedTuple):
    """States in an open-addressing hash, at most half full so that probing is short and ends."""

    keys: NDArray[np.int64]  # (slots,), a power of two
    row_of_slot: Ints  # (slots,) -1 where free
    words: Ints  # (rows, most words of a state)
    num_words: Ints  # (rows,)
    used: Ints  # (1,) rows in use


def new_table(rows: int, width: int) -> Table:
    """An empty table with room for `rows` states of up to `width` words."""
    slots = 2
    while slots < 2 * rows:
        slots *= 2
    return Table(
        np.zeros(slots, np.int64),
        np.full(slots, -1, np.int32),
        np.zeros((rows, width), np.int32),
        np.zeros(rows, np.int32),
        np.zeros(1, np.int32),
    )


@njit(cache=True)
def describe(frontier: Frontier, top: Ints, reaching: Ints, bits: Ints, with_same: bool) -> None:
    """Fill `bits[a]` for every ready type; `top` and `reaching` are scratch, `(T,)` each."""
    num_types = len(top)
    top[:] = 0
    for a in range(num_types):
        if frontier.head[a] < frontier.tail[a]:
            for b in range(num_types):
                top[b] = max(top[b], frontier.reach[a, b])
    reaching[:] = 0
    for a in range(num_types):
        if frontier.head[a] < frontier.tail[a]:
            for b in range(num_types):
                reaching[b] += frontier.reach[a, b] == top[b]
    for a in range(num_types):
        count = frontier.tail[a] - frontier.head[a]
        if count == 0:
            continue
        flags = 0
        if frontier.reach[a, a] == top[a] and reaching[a] == 1:
            flags |= PRODUCTIVE
        for b in range(num_types):
            if b != a and top[b] > 0 and frontier.reach[a, b] == top[b]:
                flags |= GATES
                break
        if with_same and count == frontier.same_size[a]:
            flags |= ALL_READY
        bits[a] = flags


@njit(cache=True)
def encode(dag: Dag, frontier: Frontier, encoding: int, executed: int, bits: Ints, words: Ints) -> int:
    """Write the state's words, `(T + 1,)` at most, and return how many there are. O(T), E_sort O(T^2)."""
    num_types = len(frontier.head)
    size = 0
    if encoding == PHASE:
        words[0] = executed * PHASES // len(dag.node_type)
        size = 1
    most, most_count = -1, 0
    for a in range(num_types):
        count = frontier.tail[a] - frontier.head[a]
        if count == 0:
            continue
        if encoding == SUFFICIENT:
            words[size] = a * BITS + bits[a]
        elif encoding == CRITICAL:
            words[size] = a * BITS + (bits[a] & (PRODUCTIVE | GATES))
        else:
            words[size] = a
        size += 1
        if count > most_count:
            most, most_count = a, count
    if encoding == MAX:
        words[size] = most
        size += 1
    elif encoding == SORT:
        sort_words(frontier, words, size)
    return size


@njit(cache=True)
def sort_words(frontier: Frontier, words: Ints, size: int) -> None:
    """Insertion sort of the first `size` words, which are types, by ready nodes; stable."""
    for i in range(1, size):
        a = words[i]
        count = frontier.tail[a] - frontier.head[a]
        j = i
        while j > 0 and frontier.tail[words[j - 1]] - frontier.head[words[j - 1]] > count:
            words[j] = words[j - 1]
            j -= 1
        words[j] = a


@njit(cache=True)
def hash_words(words: Ints, size: int) -> int:
    """A 64-bit hash of the first `size` words."""
    value = np.int64(size)
    for i in range(size):
        value = value * np.int64(-7046029254386353131) + np.int64(words[i]) + np.int64(1)
        value ^= value >> np.int64(29)
    return value


@njit(cache=True)
def find(table: Table, words: Ints, size: int) -> tuple[int, int]:
    """Row of a state, or -1, and the slot where it is or belongs. Exact: equal hashes are told apart by their words."""
    mask = len(table.keys) - 1
    key = hash_words(words, size)
    slot = key & mask
    while True:
        row = table.row_of_slot[slot]
        if row < 0:
            return -1, slot
        if table.keys[slot] == key and table.num_words[row] == size:
            same = True
            for i in range(size):
                same &= table.words[row, i] == words[i]
            if same:
                return row, slot
        slot = (slot + 1) & mask


@njit(cache=True)
def insert(table: Table, slot: int, words: Ints, size: int) -> int:
    """A new row for a state that `find` did not find, at the slot that it gave."""
    row = table.used[0]
    table.used[0] += 1
    table.keys[slot] = hash_words(words, size)
    table.row_of_slot[slot] = row
    table.words[row, :size] = words[:size]
    table.num_words[row] = size
    return row


@njit(cache=True)
def choose_by_rule(dag: Dag, frontier: Frontier, rule: int, cheap: Ints, bits: Ints) -> int:
    """The type that a fixed rule takes, the lowest index on a tie; some type must be ready. O(T)."""
    best, best_score = -1, -np.inf
    for a in range(len(frontier.head)):
        count = frontier.tail[a] - frontier.head[a]
        if count == 0:
            continue
        if rule == AGENDA:
            # Means that are equal are equal after rounding too: both are the quotient of two small integers.
            score = -frontier.depth_sum[a] / (dag.type_ptr[a + 1] - frontier.head[a])
            if score == best_score and cheap[a] > cheap[best]:
                best = a
        elif rule == LEAST_PENDING:
            score = count / frontier.same_size[a]
        elif rule == MOST:
            score = float(count)
        else:
            score = float(CRITICAL_SCORE[bits[a]])
        if score > best_score:
            best, best_score = a, score
    return best
