"""Union-find with permutations against enumeration, and the pairs of corresponding nodes."""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest

from edbc.layout.constraints import OperandTree
from edbc.layout.orders import NodeOrders, compose, decide_orders, equivalent_orders, invert, leaf_order
from edbc.layout.pqnode import PQNode
from edbc.layout.pqtree import PQTree


def p_node(children: int) -> PQNode:
    """A P-node over so many leaves."""
    root = PQTree(range(children)).root
    assert root is not None
    return root


def subtrees(tree: PQTree, *operands: str) -> list[OperandTree]:
    """The subtrees of operands written as words."""
    return [OperandTree.of(tree, tuple(operand)) for operand in operands]


def test_compose_applies_the_right_factor_first() -> None:
    """(f g)[s] is f[g[s]], and a permutation composed with its inverse does nothing."""
    f, g = (1, 2, 0), (0, 2, 1)
    assert compose(f, g) == (1, 0, 2)
    assert compose(g, f) == (2, 1, 0)
    assert compose(f, invert(f)) == compose(invert(f), f) == (0, 1, 2)


@pytest.mark.parametrize("seed", range(5))
def test_union_is_consistent_with_enumeration(seed: int) -> None:
    """Over four nodes of three children, unions succeed exactly as long as some assignment of orders satisfies them."""
    rng = random.Random(seed)
    group = list(permutations(range(3)))
    refused = 0
    for _ in range(30):
        nodes = [p_node(3) for _ in range(4)]
        assignments = list(product(group, repeat=4))
        orders = NodeOrders()
        for _ in range(7):
            i, j, b = rng.randrange(4), rng.randrange(4), rng.choice(group)
            left = [t for t in assignments if t[j] == compose(b, t[i])]
            assert orders.union(nodes[i], nodes[j], b) == bool(left)
            refused += not left
            assignments = left or assignments
            assert tuple(orders.order(node) for node in nodes) in assignments
    assert refused


def test_find_composes_along_the_path() -> None:
    """With orders that do not commute, the order of a chain's end is the product in the right sequence."""
    first, second, third = p_node(3), p_node(3), p_node(3)
    turn, swap = (1, 2, 0), (1, 0, 2)
    orders = NodeOrders()
    assert orders.union(first, second, turn)
    assert orders.union(second, third, swap)
    assert orders.order(third) == compose(compose(swap, turn), orders.order(first))
    assert compose(swap, turn) != compose(turn, swap)
    assert orders.union(first, third, compose(swap, turn))
    assert not orders.union(first, third, compose(turn, swap))


def test_a_chain_may_not_equal_its_reverse() -> None:
    """A Q-node that corresponds to itself reversed is incompatible, to itself as it is, compatible."""
    tree = PQTree.parse("[a b c]")
    assert decide_orders(tree, {"B": subtrees(tree, "abc", "cba")}) is None
    assert decide_orders(tree, {"B": subtrees(tree, "abc", "abc")}) is not None


def test_a_rotation_is_incompatible() -> None:
    """(a b c) and (b c a) over one P-node cannot be in step in any order."""
    tree = PQTree("abc")
    assert decide_orders(tree, {"B": subtrees(tree, "abc", "bca")}) is None


@pytest.mark.parametrize(("right", "b"), [("(e (f g))", (0, 1)), ("((f g) e)", (1, 0))])
def test_pairs_of_nodes_in_all_depths(right: str, b: tuple[int, int]) -> None:
    """Corresponding nodes are paired at every depth; a run stands for its Q-node, also opposite a P-node of two."""
    tree = PQTree.parse(f"([a b (c d)] {right})")
    chain, other = tree.root.children if tree.root else []
    deep = tree.parent(tree.leaf("c")), tree.parent(tree.leaf("f"))

    pairs = list(equivalent_orders(tree, subtrees(tree, "bcd", "efg")))

    assert set(pairs) == {(chain, other, b), (*deep, (0, 1))}


def test_leaf_order_follows_the_orders() -> None:
    """A P-node of three takes the order of the one it is tied to, a Q-node the direction."""
    tree = PQTree.parse("((a b c) (d e f) [g h i] [j k l])")
    operands = {"B": ("abc", "efd"), "C": ("ghi", "lkj")}
    orders = decide_orders(tree, {batch: subtrees(tree, *words) for batch, words in operands.items()})
    assert orders is not None
    order = "".join(leaf_order(tree, orders))
    places = {v: order.index(v) for v in order}
    for batch in operands.values():
        steps = {tuple(sorted(range(3), key=lambda i, operand=operand: places[operand[i]])) for operand in batch}
        assert len(steps) == 1
