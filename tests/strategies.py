"""Inputs that property tests share: seeded random graphs, and the same as hypothesis strategies.

Every generator takes a seed and gives the same graph for it on every machine. Type names are `a`, `b`, ... or the
workload's own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from edbc.base.graph import Graph

Nodes = list[tuple[str, list[int]]]


def random_graph(seed: int, num_nodes: int = 20, num_types: int = 3, max_operands: int = 3) -> Graph:
    """A DAG with types at random; operands repeat now and then."""
    rng = random.Random(seed)
    names = [chr(ord("a") + i) for i in range(num_types)]
    nodes: Nodes = []
    for v in range(num_nodes):
        count = rng.randrange(max_operands + 1) if v else 0
        nodes.append((rng.choice(names), [rng.randrange(max(0, v - 8), v) for _ in range(count)]))
    return Graph.build(names, nodes)


def random_tree_graph(seed: int, num_leaves: int = 8, num_trees: int = 2, inner_types: Sequence[str] = ("i",)) -> Graph:
    """Binary trees with an output at every node, inner nodes of random type."""
    rng = random.Random(seed)
    nodes: Nodes = []

    def grow(leaves: int) -> int:
        if leaves == 1:
            nodes.append(("leaf", []))
        else:
            left = rng.randrange(1, leaves)
            children = [grow(left), grow(leaves - left)]
            nodes.append((rng.choice(list(inner_types)), children))
        node = len(nodes) - 1
        nodes.append(("out", [node]))
        return node

    for _ in range(num_trees):
        grow(rng.randrange(1, num_leaves + 1))
    return Graph.build(["leaf", *inner_types, "out"], nodes)


def random_lattice_graph(seed: int, length: int = 10, num_lattices: int = 2, arcs: float = 0.4) -> Graph:
    """Character and word arcs between positions, a sum where several meet, an output per position."""
    rng = random.Random(seed)
    nodes: Nodes = []
    for _ in range(num_lattices):
        state: list[list[int]] = [[]]
        for position in range(1, rng.randrange(2, length + 1)):
            starts = [position - 1, *(s for s in range(max(0, position - 4), position - 1) if rng.random() < arcs)]
            merged = []
            for start in starts:
                merged.append(len(nodes))
                nodes.append(("char" if start == position - 1 else "word", state[start]))
            if len(merged) > 1:
                nodes.append(("sum", merged))
                merged = [len(nodes) - 1]
            state.append(merged)
            nodes.append(("out", merged))
    return Graph.build(["char", "word", "sum", "out"], nodes)


def chain_graph(strings: Sequence[str]) -> Graph:
    """One chain per string, a node per letter: a schedule is a common supersequence (ED-Batch, Appendix A.1)."""
    nodes: Nodes = []
    for string in strings:
        for position, letter in enumerate(string):
            nodes.append((letter, [len(nodes) - 1] if position else []))
    return Graph.build(sorted(set("".join(strings))), nodes)


def swapped_trees_graph(depth: int = 3) -> Graph:
    """Appendix A.4: a comb-shaped tree, then one with inner and output types swapped that starts from its last output.

    In the first half `i` nodes form the chain and every one has an `o`; in the second half it is the other way round.
    """
    nodes: Nodes = [("leaf", [])]
    before = 0
    for chain, output in (("i", "o"), ("o", "i")):
        outputs = []
        for _ in range(depth):
            nodes.append((chain, [before]))
            before = len(nodes) - 1
            nodes.append((output, [before]))
            outputs.append(len(nodes) - 1)
        nodes.append(("join", outputs))
        before = len(nodes) - 1
    return Graph.build(["leaf", "i", "o", "join"], nodes)


def graphs(max_nodes: int = 24) -> st.SearchStrategy[Graph]:
    """Graphs of every family here, small enough for the plain-Python reference."""
    seeds = st.integers(0, 10**6)
    return st.one_of(
        st.builds(random_graph, seeds, st.integers(1, max_nodes), st.integers(1, 5)),
        st.builds(random_tree_graph, seeds, st.integers(1, max_nodes // 4), st.just(2), st.just(("i", "k"))),
        st.builds(random_lattice_graph, seeds, st.integers(2, max_nodes // 4)),
        st.builds(chain_graph, st.lists(st.text("abc", min_size=1, max_size=max_nodes // 4), min_size=1, max_size=4)),
    )
