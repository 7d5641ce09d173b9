"""All states of a block and all stages that can end them: what the dynamic programme runs over, counted exactly.

A block is a DAG of n <= 63 units, numbered in a topological order; a set of units is an integer, unit i its bit i.

(1) *group*: a connected set K of at most r units that is convex: no path leaves it and comes back. The paper grows an
    ending from one root per group; here a group may have any number of roots (units without a predecessor in K), so
    that two branches and the sum that joins them are a group too.
(2) K can stand in an ending of the state S when K is in S and no unit of S outside K reads a unit of K.
(3) *ending* of S: at most s groups that can stand in it, no two overlapping or joined by an edge. Groups are taken in
    increasing order, so every ending is met once. With r = s = 0 (no limit) these are all up-sets of S.
(4) *transition*: a state and one of its endings; the rest is a state again. States are those that transitions reach
    from the whole block; the empty one counts.

Time and memory are those of the transitions, O((n / d + 1)^2d) for a block of width d (the paper's section 4.2). Blocks
that have more than a budget of them are reported as too wide; `stages.search` prunes or cuts them.
"""

# numba infers the types of kernels.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edbc.native.kernelcache import U
from edbc.native.kinds import inner, native

MOST_UNITS = 63
MOST_GROUPS = 100_000
MOST_STATES = 1_000_000
MOST_TRANSITIONS = 20_000_000
"""Eight bytes each."""

Masks = NDArray[np.uint64]
Indices = NDArray[np.int32]


class TooWide(Exception):
    """More groups, states or transitions than the budget."""


@dataclass(frozen=True, eq=False)
class Dag:
    """The edges of a block as sets: `reads[i]` are the units that unit i reads."""

    reads: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of units."""
        return len(self.reads)

    @property
    def everything(self) -> int:
        """The set of all units."""
        return (1 << self.size) - 1

    def readers(self) -> list[int]:
        """For every unit the set of those that read it."""
        found = [0] * self.size
        for unit, reads in enumerate(self.reads):
            for other in members(reads):
                found[other] |= 1 << unit
        return found

    def closures(self) -> tuple[list[int], list[int]]:
        """For every unit all that are before it, and all that are after it."""
        before, after = [0] * self.size, [0] * self.size
        for unit, reads in enumerate(self.reads):
            before[unit] = reads
            for other in members(reads):
                before[unit] |= before[other]
        for unit, earlier in enumerate(before):
            for other in members(earlier):
                after[other] |= 1 << unit
        return before, after

    def groups_of(self, some: int) -> list[int]:
        """The connected components of a set, by their first units."""
        readers, found = self.readers(), []
        while some:
            group = front = some & -some
            while front:
                unit = front.bit_length() - 1
                front &= ~(1 << unit)
                new = (self.reads[unit] | readers[unit]) & some & ~group
                group, front = group | new, front | new
            found.append(group)
            some &= ~group
        return found


def members(some: int) -> list[int]:
    """The units of a set, in order.

    >>> members(0b1101)
    [0, 2, 3]
    """
    return [unit for unit in range(some.bit_length()) if some >> unit & 1]


def set_of(units: Iterable[int]) -> int:
    """The set of some units."""
    return sum(1 << unit for unit in units)


@dataclass(frozen=True, eq=False)
class Transitions:
    """All of (4). State 0 is empty, the last is the whole block; a state stands before all that contain it."""

    states: Masks
    stages: Masks
    """Distinct endings."""
    pointer: NDArray[np.int64]
    """Transitions of state i stand at `pointer[i]:pointer[i + 1]`."""
    rest: Indices
    """State that is left, per transition."""
    stage: Indices
    """Its ending."""

    @property
    def count(self) -> int:
        """The number of transitions."""
        return len(self.rest)


def transitions(dag: Dag, r: int = 0, s: int = 0, most: int = MOST_TRANSITIONS) -> Transitions:
    """All states, endings and transitions of a block within the limits, 0 for none.

    Raises TooWide beyond MOST_UNITS, MOST_GROUPS, MOST_STATES or `most` transitions.
    """
    if dag.size > MOST_UNITS:
        raise TooWide(f"{dag.size} units, {MOST_UNITS} at most")
    found = groups(dag, r or dag.size)
    readers = dag.readers()
    outside = [set_union(readers, group) & ~group for group in found]
    near = [set_union(readers, group) | set_union(dag.reads, group) | group for group in found]
    of_group = [np.array(masks, np.uint64) for masks in (found, outside, near)]
    result = _explore(*of_group, U(dag.everything), s or dag.size, MOST_STATES, most)
    if not len(result[0]):
        raise TooWide(f"more than {MOST_STATES:,} states or {most:,} transitions")
    return _sorted(*result)


def set_union(sets: Sequence[int], some: int) -> int:
    """The union of the sets that belong to some units."""
    union = 0
    for unit in members(some):
        union |= sets[unit]
    return union


def groups(dag: Dag, r: int) -> list[int]:
    """All groups of at most r units, (1), in increasing order.

    Every group of more than one unit has a source or a sink without which it is a group still (a source or sink, other
    than the cut vertex, of a leaf of its block-cut tree), so growing groups by one unit finds them all.
    """
    readers = dag.readers()
    before, after = dag.closures()
    found = level = {1 << unit for unit in range(dag.size)}
    for _ in range(r - 1):
        grown = set()
        for group in level:
            adjacent = (set_union(readers, group) | set_union(dag.reads, group)) & ~group
            for unit in members(adjacent):
                larger = group | 1 << unit
                if not set_union(before, larger) & set_union(after, larger) & ~larger:
                    grown.add(larger)
        level = grown - found
        found = found | level
        if len(found) > MOST_GROUPS:
            raise TooWide(f"more than {MOST_GROUPS:,} groups")
        if not level:
            break
    return sorted(found)


def _sorted(states: Masks, stages: Masks, pointer: NDArray[np.int64], rest: Indices, stage: Indices) -> Transitions:
    """States in increasing order: a subset is the smaller integer. Stages in increasing order too."""
    order, stage_order = np.argsort(states), np.argsort(stages)
    new_state, new_stage = np.empty(len(order), np.int32), np.empty(len(stage_order), np.int32)
    new_state[order], new_stage[stage_order] = np.arange(len(order)), np.arange(len(stage_order))
    lengths = np.diff(pointer)[order]
    new_pointer = np.append(0, np.cumsum(lengths))
    take = np.repeat(pointer[:-1][order] - new_pointer[:-1], lengths) + np.arange(len(rest))
    return Transitions(states[order], stages[stage_order], new_pointer, new_state[rest[take]], new_stage[stage[take]])


@inner
def _slot(table, keys, key):
    """The slot of a key in an open hash table of indices into `keys`, or the free one where it would go."""
    mask = U(len(table) - 1)
    at = (key * U(0x9E3779B97F4A7C15)) >> U(20) & mask
    while table[at] >= 0 and keys[table[at]] != key:
        at = (at + U(1)) & mask
    return at


@inner
def _rehashed(keys, count):
    slots = 1024
    while slots < 4 * count:
        slots *= 2
    table = np.full(slots, np.int32(-1))
    for i in range(count):
        table[_slot(table, keys, keys[i])] = i
    return table


@inner
def _longer(array):
    grown = np.empty(2 * len(array), array.dtype)
    for i in range(len(array)):
        grown[i] = array[i]
    return grown


@native
def _explore(group, outside, near, everything, s, most_states, most_transitions):
    """Breadth first from the whole block; per state, depth first over the groups that can stand in its endings.

    Returns states, stages, pointer, rest, stage; empty arrays beyond the budget.
    """
    states, stages = np.empty(1024, np.uint64), np.empty(1024, np.uint64)
    pointer, rest, stage = np.zeros(1025, np.int64), np.empty(4096, np.int32), np.empty(4096, np.int32)
    states[0] = everything
    num_states, num_stages, count, done = 1, 0, 0, 0
    state_table, stage_table = _rehashed(states, 1), _rehashed(stages, 0)
    fits = np.empty(len(group), np.int64)
    taken, union = np.empty(s + 1, np.int64), np.zeros(s + 1, np.uint64)
    while done < num_states:
        state = states[done]
        num_fits = 0
        for k in range(len(group)):
            if group[k] & ~state == U(0) and outside[k] & state == U(0):
                fits[num_fits] = k
                num_fits += 1
        depth, following = 0, 0
        while True:
            if following == num_fits or depth == s:
                if depth == 0:
                    break
                depth -= 1
                following = taken[depth] + 1
                continue
            k = fits[following]
            if near[k] & union[depth] != U(0):
                following += 1
                continue
            taken[depth] = following
            ending = union[depth] | group[k]
            depth += 1
            union[depth] = ending
            following += 1
            at = _slot(stage_table, stages, ending)
            if stage_table[at] < 0:
                if num_stages == len(stages):
                    stages = _longer(stages)
                stages[num_stages] = ending
                stage_table[at] = num_stages
                num_stages += 1
                if 2 * num_stages > len(stage_table):
                    stage_table = _rehashed(stages, num_stages)
                    at = _slot(stage_table, stages, ending)
            left = _slot(state_table, states, state & ~ending)
            if state_table[left] < 0:
                if num_states == len(states):
                    states = _longer(states)
                states[num_states] = state & ~ending
                state_table[left] = num_states
                num_states += 1
                if 2 * num_states > len(state_table):
                    state_table = _rehashed(states, num_states)
                    left = _slot(state_table, states, state & ~ending)
            if count == len(rest):
                rest, stage = _longer(rest), _longer(stage)
            rest[count], stage[count] = state_table[left], stage_table[at]
            count += 1
            if count > most_transitions or num_states > most_states:
                return states[:0], stages[:0], pointer[:0], rest[:0], stage[:0]
        done += 1
        if done == len(pointer):
            pointer = _longer(pointer)
        pointer[done] = count
    return states[:num_states], stages[:num_stages], pointer[: done + 1], rest[:count], stage[:count]
