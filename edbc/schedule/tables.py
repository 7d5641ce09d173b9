"""A policy's table as the hash arrays that the engine reads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edbc.graph import Ints
from edbc.schedule.choice import Table, find, insert, new_table


def compile_table(table: Mapping[tuple[int, ...], int]) -> tuple[Table, Ints]:
    """The states, and the action of every row."""
    compiled = new_table(len(table) + 1, max(map(len, table), default=1))
    actions = np.zeros(len(table) + 1, np.int32)
    for state, action in table.items():
        words = np.array(state, np.int32)
        _, slot = find(compiled, words, len(words))
        actions[insert(compiled, slot, words, len(words))] = action
    return compiled, actions
