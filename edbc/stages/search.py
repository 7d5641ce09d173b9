"""The dynamic programme: the cheapest schedule of a block by measured costs, measuring no more stages than it needs.

Algorithm 1 of IOS: cost(S) = min over endings E of S of cost(S - E) + cost of E as a stage, over all transitions of
`stages.endings`. Here it runs bottom up, over states in increasing order.

(1) Of a stage, the strategy that is charged least counts. A stage of more than one stream is charged its spread beside
    its median: what measuring cannot tell apart never decides for more streams. Ties go to fewer streams, then to fewer
    stages.
(2) A stage that is not measured counts with a lower bound. Every unit alone is measured, in one stream and by every
    strategy. With o the overhead of a stage, a unit's own time is its time less o, and a stage takes at least o and the
    longest group's own time, and at least o and all own times over the streams that there are (the busy time of the
    device). Units that can be merged take at least what the dearest of them takes.
(3) Lazily: the best path under (2) is measured where it is not; again, until all of it is measured, which proves it
    optimal, or until it is proven that what is measured is within `gap` of the optimum: (U - L) / U, U the cheapest
    schedule of measured stages, L the cost under (2). Proven as far as (2) is one, which assumes that a group is not
    faster with company than alone. Measuring may also be told to end; then the gap is what it is by then.
(4) A block that is too wide within the limits r and s is scheduled within tighter ones, the first of LADDER that fits;
    `Scheduled.note` says so.
"""

# numba infers the types of kernels.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.errors import ModelError, StaleError
from edbc.native.kernelcache import U
from edbc.native.kinds import inner, native
from edbc.stages.endings import Dag, TooWide, Transitions, members, set_of, transitions
from edbc.stages.table import CONCURRENT, MERGE, SPLIT, STRATEGIES, Cost, Groups, Known, groups_of

LADDER = ((3, 8), (2, 4), (2, 2), (1, 2), (1, 1))
UNKNOWN = np.int64(1) << np.int64(60)
Measure = Callable[[Groups, str], Cost]
GoesOn = Callable[[], bool]
Integers = NDArray[np.int64]


class Machine(NamedTuple):
    """What a device can do at once."""

    streams: int
    splits: bool
    """Whether all threads can work on one unit (`split`)."""


@dataclass(frozen=True)
class Stage:
    """One stage of a schedule."""

    groups: Groups
    run: str
    median: int


@dataclass(frozen=True)
class Scheduled:
    """A block's schedule, and what is known of all others."""

    stages: tuple[Stage, ...]
    cost: int
    """Of its stages, in nanoseconds."""
    gap: float
    """At most this share of what is charged could be saved, by (2)."""
    states: int
    transitions: int
    distinct: int
    """Distinct stages."""
    measured: int
    limits: tuple[int, int]
    note: str
    forms: dict[str, tuple[Stage, ...]]
    """The stages by every form of schedule (`edbc.plan.static.FORMS`) that the machine has."""

    def cost_of(self, form: str) -> int:
        """What one of those costs, by the table."""
        return sum(stage.median for stage in self.forms[form])


class Problem:
    """A block on a machine: what can be a stage, and by which strategies."""

    def __init__(self, dag: Dag, machine: Machine, merges: frozenset[int], r: int, s: int):
        """`merges` are the sets of units that can be one product."""
        self.dag, self.machine, self.merges = dag, machine, merges
        self.transitions, self.limits, self.note = _within(dag, r, s)
        self._stages = self.transitions.stages.tolist()

    def index(self, groups: Groups) -> int | None:
        """The number of a stage, None where it is beyond the limits."""
        return self.index_of(set_of(itertools.chain(*groups)))

    def index_of(self, stage: int) -> int | None:
        """The same of a set of units. O(log of their number)."""
        at = bisect_left(self._stages, stage)
        return at if at < len(self._stages) and self._stages[at] == stage else None

    def strategies(self, groups: Groups) -> tuple[str, ...]:
        """How a stage can run. (A group of several units split is no other than its units as stages.)"""
        found = [CONCURRENT]
        if self.machine.splits and len(groups) == len(groups[0]) == 1:
            found.append(SPLIT)
        if set_of(itertools.chain(*groups)) in self.merges:
            found.append(MERGE)
        return tuple(found)

    def singles(self) -> list[Groups]:
        """Every unit as a stage of its own."""
        return [((unit,),) for unit in range(self.dag.size)]

    def greedy(self) -> list[Groups]:
        """Everything that is ready, again and again: the greedy schedule."""
        done = 0
        stages: list[Groups] = []
        while done != self.dag.everything:
            ready = [u for u in range(self.dag.size) if not done >> u & 1 and not self.dag.reads[u] & ~done]
            stages.append(tuple((unit,) for unit in ready))
            done |= set_of(ready)
        return stages


def _within(dag: Dag, r: int, s: int) -> tuple[Transitions, tuple[int, int], str]:
    """Definition (4)."""
    tighter = [limits for limits in LADDER if limits < (r or dag.size, s or dag.size)]
    told = f"too wide for r {r}, s {s}: "
    with suppress(TooWide):
        return transitions(dag, r, s), (r, s), ""
    try:
        last = transitions(dag, *LADDER[-1])  # has the states of all others
    except TooWide as error:
        raise ModelError(
            f"block of {dag.size} units: expected one that the search can list, got {error}; write it with fewer "
            "branches side by side"
        ) from None
    for limits in tighter[:-1]:
        with suppress(TooWide):
            return transitions(dag, *limits), limits, f"{told}r {limits[0]}, s {limits[1]} instead"
    return last, LADDER[-1], f"{told}r 1, s 1 instead"


def schedule_block(
    problem: Problem, known: dict[Groups, dict[str, Cost]], overhead: int, gap: float, measure: Measure | None,
    goes_on: GoesOn = lambda: True,
) -> Scheduled:  # fmt: skip
    """The cheapest schedule, (3). `known` are measured costs; with `measure` what is needed is added to it: units alone
    and the greedy schedule, the rest for as long as `goes_on` says.

    Raises StaleError where nothing measures and a cost is missing: of a unit alone, of the greedy schedule, of a stage
    without which the gap is not proven, or of one strategy of a stage that has others.
    """

    def need(stages: Iterable[Groups]) -> None:
        for groups in stages:
            for run in problem.strategies(groups):
                if run not in known.get(groups, {}):
                    if measure is None:
                        told = " | ".join(" ".join(map(str, group)) for group in groups)
                        raise StaleError(
                            f"cost table: expected stage '{told}' {run}, got none; measure it with 'edbc compile "
                            "--profile' and the same --gap"
                        )
                    known.setdefault(groups, {})[run] = measure(groups, run)

    need([*problem.singles(), *problem.greedy(), *known])
    programme = _Programme(problem, known, overhead)
    if measure is not None:
        for allowed in ((MERGE,), (CONCURRENT,)):
            programme.lazily(allowed, gap, need, goes_on)
    best = programme.lazily((MERGE, CONCURRENT), gap, need, goes_on)
    forms = {
        "sequential": tuple(_stage(groups, known) for groups in problem.singles()),
        "greedy": tuple(_stage(groups, known) for groups in problem.greedy()),
        "merge": programme.best((MERGE,)).stages,
        "concurrent": programme.best((CONCURRENT,)).stages,
        "both": best.stages,
        "no barriers": best.stages,
    }
    if problem.machine.splits:
        forms["one thread"] = tuple(_stage(groups, known, CONCURRENT) for groups in problem.singles())
        forms["all threads"] = tuple(_stage(groups, known, SPLIT) for groups in problem.singles())
    found = problem.transitions
    measured = sum(problem.index(groups) is not None for groups in known)
    return Scheduled(
        best.stages, best.cost, best.gap, len(found.states), found.count, len(found.stages), measured, problem.limits,
        problem.note, forms,
    )  # fmt: skip


def _stage(groups: Groups, known: dict[Groups, dict[str, Cost]], run: str = "") -> Stage:
    """A stage by a strategy, the cheapest for none."""
    run = run or min(known[groups], key=lambda run: (known[groups][run].median, STRATEGIES.index(run)))
    return Stage(groups, run, known[groups][run].median)


def _least(by_strategy: dict[str, Cost]) -> int:
    return min(cost.median for cost in by_strategy.values())


class _Best(NamedTuple):
    stages: tuple[Stage, ...]
    cost: int
    gap: float
    unknown: list[Groups]
    """Stages that are not measured and may be part of a cheaper schedule."""


class _Programme:
    """The dynamic programme over one block, as what is known grows."""

    def __init__(self, problem: Problem, known: Known, overhead: int):
        self.problem, self.known = problem, known
        found, readers = problem.transitions, problem.dag.readers()
        own = [max(known[single][CONCURRENT].median - overhead, 0) for single in problem.singles()]
        self._least = [_least(dict(known[single])) for single in problem.singles()]
        masks = (np.array(sets, np.uint64) for sets in (problem.dag.reads, readers))
        self._bound, self._many = _bounds(
            found.stages, *masks, np.array(own, np.int64), overhead, max(problem.machine.streams, 1)
        )

    def _charges(self, allowed: Sequence[str], is_bound: bool) -> tuple[Integers, Integers, dict[int, Stage]]:
        """Per stage, (1): what it is charged, its rank in ties, and how it runs where it is measured."""
        charge = np.full(len(self._bound), UNKNOWN)
        if is_bound:
            charge = np.where(self._many & (CONCURRENT not in allowed), UNKNOWN, self._bound)
        rank = np.where(self._many, 1 << 20, 1) + (np.int64(1) << 40)
        chosen = {}
        for groups, by_strategy in self.known.items():
            at = self.problem.index(groups)
            if at is None:
                continue
            offers = [o for run, cost in by_strategy.items() if (o := self._offer(groups, run, cost, allowed))]
            charge[at], rank[at] = UNKNOWN, 0
            if offers:
                charge[at], streams, _, chosen[at] = min(offers, key=lambda offer: offer[:3])
                rank[at] = (streams - 1) * (1 << 20) + 1
        if is_bound and MERGE in allowed:
            self._bound_merges(charge, chosen)
        return charge, rank, chosen

    def _bound_merges(self, charge: Integers, chosen: dict[int, Stage]) -> None:
        """Stages that can be merged and are not measured: as dear as the dearest unit, at least."""
        for stage in self.problem.merges:
            at = self.problem.index_of(stage)
            if at is not None and at not in chosen:
                charge[at] = min(charge[at], max(self._least[unit] for unit in members(stage)))

    def _offer(
        self, groups: Groups, run: str, cost: Cost, allowed: Sequence[str]
    ) -> tuple[int, int, int, Stage] | None:
        if len(groups) > 1 and run not in allowed:
            return None
        streams = min(len(groups), self.problem.machine.streams) if run == CONCURRENT else 1
        charged = cost.median + (cost.spread if streams > 1 else 0)
        return charged, streams, STRATEGIES.index(run), Stage(groups, run, cost.median)

    def _solve(self, charge: Integers, rank: Integers) -> tuple[int, list[int]]:
        """The least charge of the whole block, and the stages of the path."""
        found = self.problem.transitions
        cost, step = _cheapest(found.pointer, found.rest, found.stage, charge, rank)
        path, state = [], len(found.states) - 1
        while state > 0:
            path.append(int(found.stage[step[state]]))
            state = int(found.rest[step[state]])
        return int(cost[-1]), path[::-1]

    def lazily(self, allowed: Sequence[str], gap: float, need: Callable[[Iterable[Groups]], None],
               goes_on: GoesOn) -> _Best:  # fmt: skip
        """Definition (3): what `best` gives when its gap is small enough, or measuring ends."""
        while (best := self.best(allowed)).gap > gap and goes_on():
            need(best.unknown)
        return best

    def best(self, allowed: Sequence[str]) -> _Best:
        """The cheapest schedule of measured stages, and how far from the optimum it can be."""
        charge, rank, chosen = self._charges(allowed, False)
        upper, path = self._solve(charge, rank)
        lower, cheaper = self._solve(*self._charges(allowed, True)[:2])
        stages = tuple(chosen[at] for at in path)
        found = self.problem.transitions.stages
        unknown = [groups_of(self.problem.dag, int(found[at])) for at in cheaper if at not in chosen]
        return _Best(stages, sum(stage.median for stage in stages), max(0.0, (upper - lower) / upper), unknown)


@inner
def _lowest(some):
    """The number of the lowest unit of a set that is not empty."""
    unit = 0
    while not some >> U(unit) & U(1):
        unit += 1
    return unit


@native
def _bounds(stages, reads, readers, own, overhead, streams):
    """(2) for every stage, and whether it has more than one group."""
    bound, many = np.empty(len(stages), np.int64), np.empty(len(stages), np.bool_)
    for i in range(len(stages)):
        stage, total, longest, count = stages[i], 0, 0, 0
        left = stage
        while left != U(0):
            front = U(1) << U(_lowest(left))
            group, length = front, 0
            while front != U(0):
                unit = _lowest(front)
                front &= ~(U(1) << U(unit))
                length += own[unit]
                new = (reads[unit] | readers[unit]) & stage & ~group
                group |= new
                front |= new
            left &= ~group
            total += length
            longest = max(longest, length)
            count += 1
        bound[i] = overhead + max(longest, -(-total // streams))
        many[i] = count > 1
    return bound, many


@native
def _cheapest(pointer, rest, stage, charge, rank):
    """Per state the least charge and the transition that gives it; ties by the least sum of ranks, then the first."""
    states = len(pointer) - 1
    cost, ranks, step = np.full(states, UNKNOWN), np.zeros(states, np.int64), np.full(states, np.int64(-1))
    cost[0] = 0
    for state in range(1, states):
        for at in range(pointer[state], pointer[state + 1]):
            here = cost[rest[at]] + charge[stage[at]]
            order = ranks[rest[at]] + rank[stage[at]]
            if here < cost[state] or (here == cost[state] and order < ranks[state]):
                cost[state], ranks[state], step[state] = min(here, UNKNOWN), order, at
    return cost, step
