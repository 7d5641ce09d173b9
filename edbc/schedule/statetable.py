"""Tables from states to rows: the hash that the engine looks states up in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Ints
from edbc.native.kinds import inner_uncounted, native_uncounted


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


def compile_table(table: Mapping[tuple[int, ...], int], more: int = 1, width: int = 1) -> tuple[Table, Ints]:
    """A policy's states, and the action of every row; with room for `more` states of up to `width` words."""
    compiled = new_table(len(table) + more, max([width, *map(len, table)]))
    actions = np.zeros(len(table) + more, np.int32)
    for state, action in table.items():
        words = np.array(state, np.int32)
        _, slot = find(compiled, words, len(words))
        actions[insert(compiled, slot, words, len(words))] = action
    return compiled, actions


@inner_uncounted
def hash_words(words: Ints, size: int) -> np.int64:
    """A 64-bit hash of the first `size` words."""
    value = np.int64(size)
    for i in range(size):
        value = value * np.int64(-7046029254386353131) + np.int64(words[i]) + np.int64(1)
        value ^= value >> np.int64(29)
    return value


@native_uncounted
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


@native_uncounted
def insert(table: Table, slot: int, words: Ints, size: int) -> int:
    """A new row for a state that `find` did not find, at the slot that it gave."""
    row = table.used[0]
    table.used[0] += 1
    table.keys[slot] = hash_words(words, size)
    table.row_of_slot[slot] = row
    for k in range(size):
        table.words[row, k] = words[k]
    table.num_words[row] = size
    return row


@native_uncounted
def mix(value: int) -> np.int64:
    """A well mixed 64-bit number from any other."""
    mixed = (np.int64(value) + np.int64(1)) * np.int64(-7046029254386353131)
    mixed = (mixed ^ (mixed >> np.int64(31))) * np.int64(-4658895280553007687)
    return mixed ^ (mixed >> np.int64(29))
