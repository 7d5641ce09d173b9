"""Patterns as values, and the loop that makes each one node, held against plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.base.graph import Graph, NodeType, ValueClass
from edbc.base.pattern import OPERAND, Member, Pattern, grown, parse_pattern, single
from edbc.capture.patterns import fuseloops
from edbc.capture.patterns.fusions import Fusions, Planned
from edbc.capture.record.table import Hole, Operation, TypeTable

SCALAR = ValueClass(())
KINDS = {"a": 1, "b": 2, "c": 1}
"""Types of the graphs of these tests, and how many operands each has."""
Match = dict[int, int]
"""The node of each member."""


def table_of(patterns: Sequence[Pattern]) -> TypeTable:
    """A table in which the three types have been recorded."""
    table = TypeTable()
    for name, count in KINDS.items():
        kind = table.add_type(NodeType(name, name, (SCALAR,) * count, (SCALAR, SCALAR)))
        slots = (table.slot(SCALAR),) * count
        operation = Operation("function", name, len, (tuple(map(Hole, range(count))), {}), slots)
        table.add_entry(kind, operation, (table.slot(SCALAR),) * 2, (Hole(0), Hole(1)))
    signatures = {t.name: t.signature for t in table.graph_types()}
    table.fusions = Fusions(table, [Planned(pattern.named(signatures.__getitem__)) for pattern in patterns])
    return table


def random_graph(rng: Random, count: int) -> tuple[Graph, list[int], list[bool]]:
    """A graph of these types, nodes that are results, and which are without gradients."""
    nodes = []
    for v in range(count):
        kind = rng.choice(list(KINDS))
        reads = [rng.randrange(max(0, v - 3), v) if v and rng.random() < 0.8 else -1 for _ in range(KINDS[kind])]
        nodes.append((kind, [(u, rng.randrange(2)) if u >= 0 else -1 - rng.randrange(2) for u in reads]))
    types = [NodeType(name, name, (SCALAR,) * n, (SCALAR, SCALAR)) for name, n in KINDS.items()]
    graph = Graph.build(types, nodes, externals=[SCALAR, SCALAR]).lint()
    return graph, rng.sample(range(count), count // 6), [rng.random() < 0.1 for _ in range(count)]


def random_pattern(rng: Random) -> Pattern:
    """A pattern that pairs have grown to."""
    pattern = single(kind := rng.choice(list(KINDS)), KINDS[kind])
    for _ in range(rng.randrange(1, 4)):
        below = single(kind := rng.choice(list(KINDS)), KINDS[kind])
        count = pattern.num_operands
        place = rng.randrange(count)
        outputs = [rng.randrange(2) if i == place else None for i in range(count)]
        same = [i if rng.random() < 0.8 else rng.randrange(i + 1) for i in range(count + below.num_operands)]
        same = [
            rng.choice([j for j in range(i + 1) if j != place]) if x == place and i else x for i, x in enumerate(same)
        ]
        pattern = grown(pattern, below, outputs, same)
    return pattern


def match(graph: Graph, pattern: Pattern, node: int, taken: set[int]) -> Match | None:
    """Definition (2), by following what each member reads; None where a node is no exit of the pattern."""
    found, given = {len(pattern.members) - 1: node}, {}
    for i in reversed(range(len(pattern.members))):
        member, v = pattern.members[i], found[i]
        if v in taken or graph.types[graph.node_type[v]].name != member.kind:
            return None
        for (which, number), (u, output) in zip(member.reads, graph.operands_of(v), strict=True):
            if which == OPERAND:
                if given.setdefault(number, (u, output)) != (u, output):
                    return None
            elif u < 0 or output != number or found.setdefault(which, u) != u:
                return None
    nodes = set(found.values())
    return found if len(nodes) == len(found) and nodes.isdisjoint(u for u, _ in given.values()) else None


def reference(graph: Graph, patterns: Sequence[Pattern], results: set[int], detached: Sequence[bool]) -> set[int]:
    """The nodes that are inside of some pattern, by the definitions of the loop."""
    readers: dict[int, set[int]] = {v: set() for v in range(graph.num_nodes)}
    for v in range(graph.num_nodes):
        for u, _ in graph.operands_of(v):
            if u >= 0:
                readers[u].add(v)
    inside: set[int] = set()
    for v in reversed(range(graph.num_nodes)):
        for pattern in sorted(patterns, key=lambda p: -len(p.members)):
            found = None if v in inside else match(graph, pattern, v, inside)
            nodes = set() if found is None else set(found.values())
            inner = nodes - {v}
            closed = all(readers[u] <= nodes and u not in results and detached[u] == detached[v] for u in inner)
            if found is not None and closed:
                inside |= inner
                break
    return inside


@given(st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_the_loop_finds_what_the_definitions_say(seed: int) -> None:
    """Which nodes remain; and the graph is well formed, with operands and results that are the same values."""
    rng = Random(seed)
    patterns = list(dict.fromkeys(random_pattern(rng) for _ in range(rng.randrange(1, 4))))
    graph, results, detached = random_graph(rng, rng.randrange(1, 40))
    table = table_of(patterns)
    matchers = table.fusions.matchers()
    assert matchers is not None
    kept, *nodes, result_node = fuseloops.fuse(
        *graph.arrays, np.array(results, np.int64), np.array(detached, np.bool_), matchers
    )
    inside = reference(graph, patterns, set(results), detached)
    if not inside:
        assert len(kept) == graph.num_nodes
        return
    assert kept.tolist() == sorted(set(range(graph.num_nodes)) - inside)
    fused = Graph(table.graph_types(), *nodes, graph.external_class, graph.classes).lint()
    assert [kept[r] for r in result_node] == results
    for v in range(fused.num_nodes):
        before = graph.operands_of(int(kept[v]))
        now = [(int(kept[u]) if u >= 0 else u, output) for u, output in fused.operands_of(v)]
        if fused.types[fused.node_type[v]].op != "graph":
            assert now == before
        else:
            assert not inside.intersection(u for u, _ in now)


@given(st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_a_pattern_reads_back_as_itself(seed: int) -> None:
    """From its lines; grown patterns have no fault."""
    pattern = random_pattern(Random(seed))
    assert parse_pattern(pattern.lines()) == pattern


def test_growing_joins_operands_that_are_the_same() -> None:
    """x * sigmoid(x) has one operand."""
    reads = single("mul", 2)
    found = grown(reads, single("sigmoid", 1), [None, 0], [0, 1, 0])
    assert found.lines() == ("v0 = sigmoid(x0)", "v1 = mul(x0, v0)")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("v0 = a(x0)",), "has 1 members"),
        (("v0 = a(x0)", "v1 = a(v1)"), "reads v1"),
        (("v0 = a(x1)", "v1 = a(v0)"), "x0 is the next"),
        (("v0 = a(x0)", "v1 = a(x1)"), "nothing reads v0"),
        (("v0 = a(x0)", "v2 = a(v0)"), "expected 'v1 = type"),
        (("v0 = a(x0)", "v1 = a(v00)"), "not written as a plan writes it"),
        (("v0 = a(x0)", "v1 = a(__import__)"), "expected an operand"),
        (("v0 = a(x0)", "v1 = a(v0" + "9" * 30 + ")"), "expected an operand"),
        (tuple(f"v{i} = a({f'v{i - 1}' if i else 'x0'})" for i in range(65)), "has 65 members"),
        (("v0 = a(" + ", ".join(f"x{i}" for i in range(33)) + ")", "v1 = a(v0)"), "33 operands"),
    ],
)
def test_what_is_no_pattern_is_refused(lines: tuple[str, ...], reason: str) -> None:
    """With the reason."""
    with pytest.raises(ValueError, match=reason.replace("(", r"\(")):
        parse_pattern(lines)


def test_a_member_reads_what_was_made_before_it() -> None:
    """`Pattern.fault` of values that no text made."""
    assert Pattern((Member("a", ((1, 0),)), Member("a", ((0, 0),)))).fault() is not None
