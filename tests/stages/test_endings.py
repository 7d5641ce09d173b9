"""States, endings and transitions of blocks, against counts that are known and against brute force."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.stages.endings import Dag, TooWide, groups, members, set_of, transitions

INCEPTION_E = ((), (), (1,), (1,), (), (4,), (5,), (5,), (), (8,), (0, 2, 3, 6, 7, 9))
FIRE = ((), (0,), (0,), (1, 2), (), (3, 4))


def dag_of(reads: tuple[tuple[int, ...], ...]) -> Dag:
    """The block whose unit i reads `reads[i]`."""
    return Dag(tuple(set_of(read) for read in reads))


@st.composite
def dags(draw: st.DrawFn, most: int = 7) -> Dag:
    """A DAG of up to `most` units."""
    size = draw(st.integers(1, most))
    return Dag(tuple(draw(st.integers(0, (1 << unit) - 1)) for unit in range(size)))


def is_ending(dag: Dag, some: int, state: int) -> bool:
    """Whether `some` is an up-set of the state."""
    return some & ~state == 0 and not any(dag.reads[unit] & some for unit in members(state & ~some))


def by_brute_force(dag: Dag, r: int, s: int) -> tuple[set[int], set[tuple[int, int]]]:
    """States and transitions by trying every subset of every state."""
    states, pairs, waiting = {dag.everything, 0}, set(), [dag.everything]
    while waiting:
        state = waiting.pop()
        for ending in range(1, state + 1):
            if not is_ending(dag, ending, state):
                continue
            found = dag.groups_of(ending)
            if (s and len(found) > s) or (r and any(len(members(group)) > r for group in found)):
                continue
            pairs.add((state, ending))
            if state & ~ending not in states:
                states.add(state & ~ending)
                waiting.append(state & ~ending)
    return states, pairs


@pytest.mark.parametrize(
    ("reads", "limits", "expected"),
    [
        (INCEPTION_E, (0, 0), (181, 5040, 1011)),
        (INCEPTION_E, (3, 8), (181, 4631, 790)),
        (FIRE, (0, 0), (13, 60, 37)),
        (FIRE, (3, 8), (13, 51, 29)),
    ],
    ids=["inception", "inception (3, 8)", "fire", "fire (3, 8)"],
)
def test_counts(reads: tuple[tuple[int, ...], ...], limits: tuple[int, int], expected: tuple[int, int, int]) -> None:
    """Inception's last block and SqueezeNet's fire have exactly the states, transitions and stages that are known."""
    found = transitions(dag_of(reads), *limits)

    assert (len(found.states), found.count, len(found.stages)) == expected


@settings(max_examples=60, deadline=None)
@given(dags(), st.sampled_from([(0, 0), (3, 8), (2, 2), (1, 3), (2, 1)]))
def test_transitions_are_those_of_brute_force(dag: Dag, limits: tuple[int, int]) -> None:
    """On small DAGs transitions are exactly the endings that trying all subsets finds, each once."""
    found = transitions(dag, *limits)
    of_state = [(i, int(at)) for i in range(len(found.states)) for at in range(*found.pointer[i : i + 2])]
    pairs = [(int(found.states[i]), int(found.stages[found.stage[at]])) for i, at in of_state]

    states, expected = by_brute_force(dag, *limits)

    assert set(found.states.tolist()) == states
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == expected
    assert all(int(found.states[i]) & ~stage == int(found.states[found.rest[at]])
               for (i, at), (_, stage) in zip(of_state, pairs, strict=True))  # fmt: skip


def test_groups_with_two_roots_count() -> None:
    """Two branches and the sum that joins them are one group."""
    assert set_of([0, 1, 2]) in groups(dag_of(((), (), (0, 1))), 3)


def test_a_path_that_leaves_and_returns_is_no_group() -> None:
    """A unit and its reader's reader are no group without the one between them."""
    assert set_of([0, 2]) not in groups(dag_of(((), (0,), (0, 1))), 3)


def test_too_wide_is_told() -> None:
    """Blocks of more transitions, or more units, than the budget are refused, not truncated."""
    with pytest.raises(TooWide, match="transitions"):
        transitions(dag_of(((),) * 12), most=1000)
    with pytest.raises(TooWide, match="units"):
        transitions(dag_of(((),) * 64), 1, 1)
