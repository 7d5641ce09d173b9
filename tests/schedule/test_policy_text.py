"""Policies as data, and their text form in a plan."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from strategies import graphs, random_graph

from edbc.base.graph import Graph
from edbc.errors import PlanError
from edbc.schedule.learn.train import cover
from edbc.schedule.policy import ENCODINGS, Policy

NAMES = ["leaf", "internal", "out"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(graph=graphs())
def test_text_and_back_is_the_identity(encoding: str, graph: Graph) -> None:
    """Over every encoding, with names that need quoting, `from_text` gives the same policy back."""
    names = [f"{'x<y>' * i}! %^ {i}" for i in range(graph.num_types)]
    policy = cover(Policy("fsm", encoding, "critical"), [graph])
    text = policy.states_to_text(names)

    assert len(text) == len(policy.table)
    assert Policy.from_text(encoding, "critical", text, names) == policy


@pytest.mark.parametrize(
    ("encoding", "state", "text"),
    [
        ("base", (0, 2), "leaf out"),
        ("max", (1, 2, 2), "internal out^"),
        ("sort", (2, 1), "out<internal"),
        ("phase", (3, 1, 2), "3/8 internal out"),
        ("critical", (0, 1 * 8 + 3, 2 * 8 + 4), "leaf internal!pg out!b"),
        ("rank", (1 * 8 + 1, 2 * 8), "internal!p>out"),
    ],
)
def test_states_read_well(encoding: str, state: tuple[int, ...], text: str) -> None:
    """Each encoding's documented text."""
    policy = Policy("fsm", encoding, "chains", {state: 2 if encoding != "base" else 0})

    assert list(policy.states_to_text(NAMES)) == [text]


def test_states_come_in_a_fixed_order() -> None:
    """The lines do not depend on the order in which states were learned."""
    table = {(0,): 0, (1,): 1, (0, 1): 1}
    shuffled = dict(reversed(table.items()))
    lines = [list(Policy("fsm", "base", "chains", t).states_to_text(NAMES).items()) for t in (table, shuffled)]

    assert lines[0] == lines[1] == [("leaf", "leaf"), ("leaf internal", "internal"), ("internal", "internal")]


@pytest.mark.parametrize(
    ("encoding", "mapping", "message"),
    [
        ("base", {"leaf cell": "leaf"}, "state 'leaf cell': unknown type 'cell'"),
        ("base", {"leaf": "cell"}, "state 'leaf': unknown type 'cell'"),
        ("base", {"leaf": "out"}, "state 'leaf': expected an action that is ready in it, got 'out'"),
        ("base", {"out leaf": "leaf"}, "state 'out leaf': expected each ready type once, in the plan's order"),
        ("base", {"leaf leaf": "leaf"}, "state 'leaf leaf': expected each ready type once"),
        ("base", {"": "leaf"}, "state '': unknown type ''"),
        ("base", {"leaf  out": "leaf"}, "state 'leaf  out': unknown type ''"),
        ("sort", {"leaf<leaf": "leaf"}, "expected each ready type once"),
        ("sort", {"leaf out": "leaf"}, "unknown type 'leaf out'"),
        ("max", {"leaf out": "leaf"}, "expected '\\^' after one type, got it after 0"),
        ("max", {"leaf^ out^": "leaf"}, "got it after 2"),
        ("phase", {"8/8 leaf": "leaf"}, "expected a phase from 0/8 to 7/8"),
        ("phase", {"1/8": "leaf"}, "expected a phase from 0/8 to 7/8, then ready types"),
        ("critical", {"leaf!gp": "leaf"}, "expected '!' and letters of 'pgb' in order, got '!gp'"),
        ("critical", {"leaf!": "leaf"}, "got '!'"),
        ("critical", {"leaf!px": "leaf"}, "got '!px'"),
        ("rank", {"leaf>out>internal": "leaf"}, "expected one or two types, got 3"),
        ("rank", {"leaf>leaf!p": "leaf"}, "expected each ready type once"),
    ],
)
def test_malformed_states_are_refused_by_name(encoding: str, mapping: dict[str, str], message: str) -> None:
    """Unknown types, actions that are not ready and malformed states raise PlanError that names the state."""
    with pytest.raises(PlanError, match=message):
        Policy.from_text(encoding, "chains", mapping, NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fastest",), "expected a kind of fsm, depth"),
        (("fsm", "random"), "expected an encoding of base, max"),
        (("fsm", None), "expected an encoding of base, max"),
        (("fsm", "base", "luck"), "expected a fallback of most, agenda"),
    ],
)
def test_unknown_names_are_refused(arguments: tuple[str, ...], message: str) -> None:
    """A policy names a kind, an encoding and a fallback of the fixed lists."""
    with pytest.raises(PlanError, match=message):
        Policy(*arguments)


def test_a_covered_graph_has_no_unseen_state() -> None:
    """`cover` puts every state that the policy meets into its table, and keeps its choices."""
    from edbc.schedule.scheduler import run

    graph = random_graph(5, 40, 4)
    bare = Policy("fsm", "sort", "chains")
    covered = cover(bare, [graph])

    assert run(graph, covered).unseen_states == 0
    assert run(graph, covered).batch_type.tolist() == run(graph, bare).batch_type.tolist()
