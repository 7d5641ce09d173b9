"""PQ trees against enumeration, template by template, and what happens when a set is infeasible."""

from __future__ import annotations

import random
import sys
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from layout_strategies import constraint_sets, examples, is_consecutive, orders_with, orders_with_adjacent

from edbc.errors import LayoutError
from edbc.layout.pqnode import PQNode
from edbc.layout.pqtree import Change, PQTree

TEMPLATES = {"L1", "P1", "P2", "P3", "P4", "P5", "P6", "Q1", "Q2", "Q3"}

# (tree, subset, result, templates that match besides L1)
EXAMPLES = {
    "P1-all-full": ("((a b) c d)", "ab", "((a b) c d)", {"P1"}),
    "P2-groups-full": ("(a b c d)", "ab", "(c d (a b))", {"P2"}),
    "P3-splits": ("((a b c) (d e f) g)", "abd", "(g [c (a b) d (e f)])", {"P3", "P6"}),
    "P4-extends-partial": ("((a b) c d)", "bc", "(d [a b c])", {"P3", "P4"}),
    "P4-dissolves-root": ("((a b) c)", "bc", "[a b c]", {"P3", "P4"}),
    "P5-full-and-empty": ("(((a b) c d) e)", "bce", "[d a b c e]", {"P3", "P5", "P4"}),
    "P5-full-only": ("(((a b) c) e)", "bce", "[a b c e]", {"P3", "P5", "P4"}),
    "P5-empty-only": ("(((a b) c d) e)", "be", "[(c d) a b e]", {"P3", "P5", "P4"}),
    "P6-merges-partials": ("((a b) (c d) e)", "bce", "[a b e c d]", {"P3", "P6"}),
    "P6-keeps-empty": ("((a b) (c d) e)", "bc", "(e [a b c d])", {"P3", "P6"}),
    "Q1-all-full": ("([a b c] d)", "abc", "([a b c] d)", {"Q1"}),
    "Q2-one-side": ("([a b c] d)", "cd", "[a b c d]", {"Q2", "P4"}),
    "Q2-turned": ("([a b c] d)", "ad", "[c b a d]", {"Q2", "P4"}),
    "Q2-splices-partial": ("([a (b c) d] e)", "bde", "[a c b d e]", {"P3", "Q2", "P4"}),
    "Q2-partial-at-the-end": ("([a b (c d)] e)", "de", "[a b c d e]", {"P3", "Q2", "P4"}),
    "Q2-root": ("[a b (c d) e]", "ec", "[a b d c e]", {"P3", "Q2"}),
    "Q3-inside": ("[a b c d]", "bc", "[a b c d]", {"Q3"}),
    "Q3-both-sides": ("[a (b c) d (e f) g]", "cde", "[a b c d e f g]", {"P3", "Q3"}),
    "Q3-partials-meet": ("[a (b c) (d e) f]", "cd", "[a b c d e f]", {"P3", "Q3"}),
    "Q3-partials-at-ends": ("[(a b) c (d e)]", "bcd", "[a b c d e]", {"P3", "Q3"}),
}

INFEASIBLE = {
    "hole-in-Q": ("[a b c]", "ac"),
    "hole-in-Q-below": ("([a b c d] e)", "bde"),
    "inside-of-Q-and-outside": ("([a b c] d)", "bd"),
    "two-blocks": ("[a b c d e]", "bd"),
    "three-partials": ("((a b) (c d) (e f))", "ace"),
    "two-partials-below-root": ("(((a b) (c d)) e)", "ace"),
    "partial-amid-full": ("[a (b c) d]", "abd"),
    "partial-turned-away-in-Q": ("([a (b c) d] e)", "abde"),
}


def texts_of_orders(tree: PQTree) -> set[str]:
    """The represented orders as words."""
    return {"".join(order) for order in tree.orders()}


def check_links(tree: PQTree) -> None:
    """Parents, siblings, kinds and the leaves' table all tell the same story."""
    for node in tree.nodes():
        children = node.children
        assert len(children) >= {"leaf": 0, "P": 2, "Q": 3}[node.kind]
        for place, child in enumerate(children):
            assert tree.parent(child) is node
            inner = node.kind == "Q" and 0 < place < len(children) - 1
            assert child.parent is (None if inner else node)
            beside = children[max(place - 1, 0) : place] + children[place + 1 : place + 2]
            assert set(child.siblings) == (set(beside) if node.kind == "Q" else set())
            assert len(child.siblings) == (len(beside) if node.kind == "Q" else 0)
    assert tree.root is None or tree.parent(tree.root) is None
    leaves = [node for node in tree.nodes() if node.kind == "leaf"]
    assert len(leaves) == len(tree)
    assert all(tree.leaf(leaf.element) is leaf for leaf in leaves)


@given(constraint_sets())
@examples(1500)
@pytest.mark.long
def test_orders_equal_enumeration(case: tuple[str, list[list[str]]]) -> None:
    """After each reduction the tree represents exactly the orders of brute force, or stays as it was when none is."""
    elements, subsets = case
    tree, expected = PQTree(elements), set(permutations(elements))
    for subset in subsets:
        remaining = orders_with_adjacent(expected, subset)
        before, nodes = str(tree), list(tree.nodes())
        assert tree.reduce(subset) == bool(remaining)
        check_links(tree)
        if not remaining:
            assert str(tree) == before
            assert list(tree.nodes()) == nodes
            continue
        expected = remaining
        orders = list(tree.orders())
        assert set(orders) == expected
        assert len(orders) == len(expected) == tree.count_orders()
        assert tuple(tree.frontier()) in expected


def test_every_pair_of_subsets_of_five() -> None:
    """From [b c d] beside a and e, all 26 * 26 pairs of subsets give the orders of brute force, infeasible ones too."""
    subsets = [s for size in (2, 3, 4, 5) for s in combinations("abcde", size)]
    outcomes = set()
    for first in subsets:
        for second in subsets:
            tree = PQTree.parse("(a e [b c d])")
            kept = ["bc", "cd"] + [subset for subset in (first, second) if tree.reduce(subset)]
            assert set(tree.orders()) == orders_with("abcde", kept)
            outcomes.add(len(kept))
    assert outcomes == {2, 3, 4}


@pytest.mark.parametrize(("before", "subset", "after", "templates"), EXAMPLES.values(), ids=EXAMPLES)
def test_template(before: str, subset: str, after: str, templates: set[str]) -> None:
    """Each template turns its pattern into its replacement, and the orders are those that brute force keeps."""
    tree = PQTree.parse(before)
    expected = orders_with_adjacent(tree.orders(), subset)

    change = tree.reduce_and_get_changed(subset)

    assert change.feasible
    assert set(change.templates) - {"L1"} == templates
    assert str(tree) == after
    assert set(tree.orders()) == expected
    check_links(tree)


def test_examples_show_every_template() -> None:
    """The examples above leave out no template of the paper."""
    assert {"L1"}.union(*(templates for *_, templates in EXAMPLES.values())) == TEMPLATES


@pytest.mark.parametrize(("text", "subset"), INFEASIBLE.values(), ids=INFEASIBLE)
def test_infeasible_set_changes_nothing(text: str, subset: str) -> None:
    """When no represented order has the set consecutive, reduce says False and not one link differs."""
    tree = PQTree.parse(text)
    assert not any(is_consecutive(order, subset) for order in tree.orders())
    nodes = list(tree.nodes())
    links = [(node.parent, list(node.siblings), list(node.ends), list(node.members)) for node in nodes]

    change = tree.reduce_and_get_changed(subset)

    assert change == Change(feasible=False, templates=change.templates)
    assert str(tree) == text
    assert [(n.parent, list(n.siblings), list(n.ends), list(n.members)) for n in tree.nodes()] == links
    assert tree.cover(subset) is None


@given(constraint_sets())
@examples(500)
def test_change_names_every_node_that_differs(case: tuple[str, list[list[str]]]) -> None:
    """Created, deleted and changed are what a comparison of the whole tree before and after finds."""
    elements, subsets = case
    tree = PQTree(elements)
    for subset in subsets:
        before = {node: set(node.children) for node in tree.nodes()}
        change = tree.reduce_and_get_changed(subset)
        after = {node: set(node.children) for node in tree.nodes()}

        assert set(change.created) == after.keys() - before.keys()
        assert set(change.deleted) == before.keys() - after.keys()
        gone = before.keys() - after.keys()
        differ = {node for node in before.keys() & after.keys() if before[node] != after[node]}
        assert set(change.changed) <= differ
        for node in differ - set(change.changed):  # a child has another node in its place, or several
            assert before[node] & (gone | set(change.changed))
        assert bool(change.created or change.deleted or change.changed) == (before != after)


@given(constraint_sets())
@examples(500)
@pytest.mark.long
def test_cover_holds_exactly_the_subset(case: tuple[str, list[list[str]]]) -> None:
    """`cover` is a node or run over the subset exactly when every represented order has it consecutive."""
    elements, subsets = case
    tree = PQTree(elements)
    for subset in subsets:
        cover = tree.cover(subset)
        assert (cover is not None) == all(is_consecutive(order, subset) for order in tree.orders())
        if cover is None:
            tree.reduce(subset)
            continue
        leaves = [node.element for top in cover for node in tree.nodes(top) if node.kind == "leaf"]
        assert sorted(leaves) == sorted(subset)
        assert is_consecutive(tuple(tree.frontier()), leaves)
        assert all(right in left.siblings for left, right in pairwise(cover))


@given(constraint_sets())
@examples(300)
def test_text_and_copy_round_trip(case: tuple[str, list[list[str]]]) -> None:
    """A parsed text and a copy represent the orders of the original and share no node with it."""
    elements, subsets = case
    tree = PQTree(elements)
    for subset in subsets:
        tree.reduce(subset)
    twin, parsed = tree.copy(), PQTree.parse(str(tree))
    assert str(twin) == str(parsed) == str(tree)
    assert not set(twin.nodes()) & set(tree.nodes())
    check_links(twin)
    assert set(parsed.orders()) == set(tree.orders())


def test_hidden_permutation_of_many_leaves_is_found() -> None:
    """All pairs of neighbours of a hidden order of 2,000 leaves leave that order and its reverse."""
    rng = random.Random(7)
    hidden = list(range(2000))
    rng.shuffle(hidden)
    pairs = list(pairwise(hidden))
    rng.shuffle(pairs)
    tree = PQTree(range(2000))
    assert all(tree.reduce(pair) for pair in pairs)
    assert tree.count_orders() == 2
    assert tree.frontier() in (hidden, hidden[::-1])


def test_reduction_never_touches_the_rest_of_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reducing by three elements of a Q-node of 10,000 looks at a handful of nodes, inside the chain too."""
    tree = PQTree(range(10_000))
    for left in range(9_999):
        tree.reduce((left, left + 1))
    steps = 0
    beyond = PQNode.beyond

    def counted(node: PQNode, neighbour: PQNode | None) -> PQNode:
        nonlocal steps
        steps += 1
        return beyond(node, neighbour)

    monkeypatch.setattr(PQNode, "beyond", counted)
    change = tree.reduce_and_get_changed((5000, 5001, 5002))
    assert change == Change(feasible=True, templates=("L1", "L1", "L1", "Q3"))
    assert steps <= 4


@pytest.mark.parametrize("leaves", [500, 4000])
def test_work_grows_with_leaves_and_subsets(leaves: int) -> None:
    """Reductions by intervals of a hidden order match at most two templates per leaf and element, at either size."""
    rng = random.Random(leaves)
    hidden = rng.sample(range(leaves), leaves)
    tree, size, matched = PQTree(range(leaves)), 0, 0
    for _ in range(leaves // 2):
        start = rng.randrange(leaves - 12)
        subset = hidden[start : start + rng.randint(2, 12)]
        size += len(subset)
        change = tree.reduce_and_get_changed(subset)
        assert change.feasible
        matched += len(change.templates)
    assert matched <= 2 * (leaves + size)


def test_frontier_has_every_element_once() -> None:
    """Any hashables may be elements, and the frontier holds each of them once."""
    elements = [("x", 1), 2, "three", None, frozenset({4})]
    tree = PQTree(elements)
    assert tree.reduce([2, None])
    assert sorted(map(str, tree.frontier())) == sorted(map(str, elements))


@pytest.mark.parametrize("elements", ["", "a"])
def test_trees_without_a_choice(elements: str) -> None:
    """Trees of no and of one element have one order and accept trivial sets."""
    tree = PQTree(elements)
    assert tree.reduce(elements)
    assert list(tree.orders()) == [tuple(elements)]
    assert tree.frontier() == list(elements)
    assert str(tree) == elements
    assert tree.count_orders() == 1
    assert len(tree.copy()) == len(elements)
    assert tree.reduce_and_get_changed(()).feasible
    assert tree.cover(()) is None


def test_misuse_is_refused() -> None:
    """Repeated elements, unknown elements and texts that are no tree raise LayoutError with the culprit."""
    with pytest.raises(LayoutError, match="'a' twice"):
        PQTree("aba")
    with pytest.raises(LayoutError, match="got 'z'"):
        PQTree("ab").reduce("az")
    for text in ("(a b", "a b", "(a)", "[a b]", "(a b))", ""):
        with pytest.raises(LayoutError, match="PQ tree"):
            PQTree.parse(text)


def test_contains_and_len() -> None:
    """The tree knows its elements; repeats in a subset are ignored."""
    tree = PQTree("abc")
    assert "a" in tree
    assert "z" not in tree
    assert len(tree) == 3
    assert tree.reduce("aab")
    assert texts_of_orders(tree) == {"abc", "bac", "cab", "cba"}
    assert repr(tree) == "<PQTree (c (a b))>"


def test_steps_per_element_do_not_grow() -> None:
    """Python calls per leaf and element are the same, within two per cent, for trees of 500 and of 8,000 leaves."""
    per_element = []
    for leaves in (500, 8000):
        hidden = random.Random(leaves).sample(range(leaves), leaves)
        pairs = [list(pair) for pair in pairwise(hidden)]
        random.Random(leaves).shuffle(pairs)
        calls = 0

        def on_event(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(on_event)
        try:
            tree = PQTree(range(leaves))
            feasible = [tree.reduce(pair) for pair in pairs]
        finally:
            sys.setprofile(before)
        assert all(feasible)
        per_element.append(calls / (3 * leaves))

    assert per_element[1] == pytest.approx(per_element[0], rel=0.02)
