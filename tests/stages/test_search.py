"""The dynamic programme against brute force over all schedules, and what lazy measuring may skip."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_endings import INCEPTION_E, dag_of, dags, is_ending

from edbc.errors import StaleError
from edbc.stages.endings import Dag, members
from edbc.stages.search import Machine, Problem, Scheduled, schedule_block
from edbc.stages.table import CONCURRENT, MERGE, SPLIT, Cost, Groups, groups_of

MACHINE = Machine(streams=2, splits=True)


def problem_of(dag: Dag, merges: frozenset[int] = frozenset(), limits: tuple[int, int] = (0, 0)) -> Problem:
    """A block in which all threads can work on any unit."""
    return Problem(dag, MACHINE, merges, *limits)


def random_costs(seed: int, most_spread: int = 50) -> Callable[[Groups, str], Cost]:
    """Costs at random that keep to the bounds: a stage takes as long as its longest group and its busy time."""
    alone: dict[int, int] = {}

    def of(unit: int) -> int:
        return alone.setdefault(unit, 100 + random.Random(f"{seed} {unit}").randrange(900))

    def measure(groups: Groups, run: str) -> Cost:
        rng = random.Random(f"{seed} {groups} {run}")
        length = [sum(of(unit) for unit in group) for group in groups]
        least = max(*length, -(-sum(length) // MACHINE.streams)) if len(length) > 1 else length[0]
        if run == SPLIT:
            return Cost(length[0] * rng.randrange(50, 110) // 100 + 1, rng.randrange(most_spread))
        least = max(length) if run == MERGE else least
        slower = rng.randrange(400) if len(groups) > 1 else 0
        return Cost(least + slower, rng.randrange(most_spread))

    return measure


def cheapest(dag: Dag, problem: Problem, measure: Callable[[Groups, str], Cost]) -> int:
    """The least charge over all schedules, each tried."""
    best: dict[int, int] = {0: 0}

    def charge(groups: Groups) -> int:
        offers = []
        for run in problem.strategies(groups):
            cost = measure(groups, run)
            offers.append(cost.median + (cost.spread if len(groups) > 1 and run == CONCURRENT else 0))
        return min(offers)

    def all_of(state: int) -> int:
        if state not in best:
            costs = []
            for ending in range(1, state + 1):
                if is_ending(dag, ending, state):
                    groups = groups_of(dag, ending)
                    costs.append(charge(groups) + all_of(state & ~ending))
            best[state] = min(costs)
        return best[state]

    return all_of(dag.everything)


def charged(scheduled: Scheduled, measure: Callable[[Groups, str], Cost]) -> int:
    """What a schedule is charged."""
    costs = [(stage, measure(stage.groups, stage.run)) for stage in scheduled.stages]
    return sum(c.median + (c.spread if len(s.groups) > 1 and s.run == CONCURRENT else 0) for s, c in costs)


def merges_of(dag: Dag) -> frozenset[int]:
    """Every two units that read nothing, as an example of what can be merged."""
    roots = [unit for unit, reads in enumerate(dag.reads) if not reads]
    return frozenset(1 << a | 1 << b for a in roots for b in roots if a < b)


@settings(max_examples=40, deadline=None)
@given(dags(), st.integers(0, 1000))
def test_the_schedule_is_the_cheapest_of_all(dag: Dag, seed: int) -> None:
    """On random DAGs with random costs no schedule is charged less, though stages were measured lazily."""
    measure = random_costs(seed)
    problem = problem_of(dag, merges_of(dag))

    scheduled = schedule_block(problem, {}, 0, 0.0, measure)

    assert charged(scheduled, measure) == cheapest(dag, problem, measure)
    assert scheduled.gap == 0
    done = 0
    for stage in scheduled.stages:
        units = [unit for group in stage.groups for unit in group]
        for unit in units:
            assert not done >> unit & 1
            done |= 1 << unit
        assert all(dag.reads[unit] & ~done == 0 for unit in units)
    assert done == dag.everything


@settings(max_examples=20, deadline=None)
@given(dags(), st.integers(0, 1000))
def test_the_gap_is_proven(dag: Dag, seed: int) -> None:
    """Measuring that stops early is within the gap that it tells, of the optimum and of what was allowed."""
    measure = random_costs(seed)
    problem = problem_of(dag)

    scheduled = schedule_block(problem, {}, 0, 0.2, measure)

    assert scheduled.gap <= 0.2
    assert charged(scheduled, measure) * (1 - scheduled.gap) <= cheapest(dag, problem, measure) + 1


def test_measuring_is_lazy() -> None:
    """Inception's last block needs a part of its 790 stages, and none twice."""
    seen: list[tuple[Groups, str]] = []
    costs = random_costs(3)

    def measure(groups: Groups, run: str) -> Cost:
        seen.append((groups, run))
        return costs(groups, run)

    scheduled = schedule_block(problem_of(dag_of(INCEPTION_E), limits=(3, 8)), {}, 0, 0.0, measure)

    assert len(seen) == len(set(seen))
    assert scheduled.measured < scheduled.distinct == 790


def test_planning_again_needs_no_device() -> None:
    """With what was measured, and nothing that measures, the schedule is the same."""
    known: dict[Groups, dict[str, Cost]] = {}
    problem = problem_of(dag_of(INCEPTION_E), limits=(3, 8))
    first = schedule_block(problem, known, 0, 0.01, random_costs(5))

    assert schedule_block(problem, known, 0, 0.01, None) == first


def test_a_missing_stage_is_told() -> None:
    """Without a cost of a unit alone, of a stage of the path, or of a strategy that stands beside another one, there is
    no schedule, and the error says what is missing."""
    costs: dict[Groups, dict[str, Cost]] = {}
    problem = problem_of(dag_of(INCEPTION_E), merges_of(dag_of(INCEPTION_E)), (3, 8))
    scheduled = schedule_block(problem, costs, 0, 0.0, random_costs(5))
    needed = next(stage for stage in scheduled.stages if len(stage.groups) > 1 and stage.groups not in problem.greedy())
    merged = next(groups for groups, by in costs.items() if len(by) > 1 and MERGE in by)

    for groups, run in ((((4,),), CONCURRENT), (needed.groups, needed.run), (merged, MERGE)):
        known = {g: dict(by) for g, by in costs.items()}
        del known[groups][run]
        known = {g: by for g, by in known.items() if by}
        told = " | ".join(" ".join(map(str, group)) for group in groups)
        with pytest.raises(StaleError, match=re.escape(f"expected stage '{told}' {run}, got none")):
            schedule_block(problem, known, 0, 0.0, None)


def test_a_block_beyond_the_budget_is_scheduled_within_tighter_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where groups are too many the first tighter limits that fit are taken, and the schedule tells them."""
    monkeypatch.setattr("edbc.stages.endings.MOST_GROUPS", len(INCEPTION_E))  # a unit each

    scheduled = schedule_block(problem_of(dag_of(INCEPTION_E), limits=(3, 8)), {}, 0, 0.0, random_costs(3))

    assert scheduled.limits == (1, 2)
    assert scheduled.note == "too wide for r 3, s 8: r 1, s 2 instead"
    assert all(len(group) == 1 for stage in scheduled.stages for group in stage.groups)
    assert max(len(stage.groups) for stage in scheduled.stages) <= 2


def test_the_spread_never_decides() -> None:
    """Two streams that gain less than their spread are not used; one that gains more is."""
    dag = dag_of(((), ()))

    def measure_with(gain: int) -> Callable[[Groups, str], Cost]:
        return lambda groups, run: Cost(1000 if len(groups) == 1 else 2000 - gain, 30)

    def streams(gain: int) -> list[int]:
        problem = Problem(dag, Machine(2, False), frozenset(), 0, 0)
        return [len(stage.groups) for stage in schedule_block(problem, {}, 0, 0.0, measure_with(gain)).stages]

    assert streams(29) == [1, 1]
    assert streams(30) == [1, 1]
    assert streams(31) == [2]


def test_baselines_stand_beside_the_schedule() -> None:
    """Sequential is the sum of the units alone, and no baseline within the limits is cheaper than both strategies."""
    measure = random_costs(1, 1)
    dag = dag_of(INCEPTION_E)
    scheduled = schedule_block(problem_of(dag, merges_of(dag), (3, 8)), {}, 0, 0.0, measure)

    alone = [min(measure(((u,),), run).median for run in (CONCURRENT, SPLIT)) for u in range(dag.size)]
    assert scheduled.cost_of("sequential") == sum(alone)
    assert all(scheduled.cost <= scheduled.cost_of(name) for name in ("sequential", "merge", "concurrent"))
    assert sorted(members(dag.everything)) == sorted(
        u for stage in scheduled.stages for group in stage.groups for u in group
    )
