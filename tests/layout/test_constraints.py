"""Broadcasting: the fixed point is isomorphic, loses no order that is wanted, and needs no second look."""

from __future__ import annotations

from itertools import pairwise, permutations

from hypothesis import given
from layout_strategies import Order, examples, feasible_batches, free_batches, meets

from edbc.layout.constraints import Broadcast, OperandTree
from edbc.layout.pqtree import PQTree
from edbc.layout.problem import LayoutBatch


def started(variables: list[str], batches: list[LayoutBatch]) -> Broadcast | None:
    """All demands in one state, not settled yet; None when adjacency alone is infeasible."""
    state = Broadcast(PQTree(variables))
    for batch in batches:
        if not all(state.align(batch.name, operand) for operand in batch.operands):
            return None
        if not all(state.require(subset) for subset in batch.adjacent_only):
            return None
    return state


def constraints_of(state: Broadcast) -> list[set[frozenset[int]]]:
    """For each batch the different constraint sets of its operands; one when they are isomorphic."""
    return [
        {frozenset(OperandTree.of(state.tree, operand).constraints()) for operand in operands}
        for operands in state.operands.values()
    ]


def test_section_3_broadcast() -> None:
    """Operand (x8 x6 x7) takes over the adjacency of x4 and x5, as in the paper's figure 4."""
    state = Broadcast(PQTree([f"x{i}" for i in range(1, 9)]))
    for batch, operand in (("1", "x4 x5"), ("1", "x1 x3"), ("1", "x2 x1"), ("2", "x8 x6 x7"), ("2", "x3 x4 x5")):
        assert state.align(batch, tuple(operand.split()))
    assert str(state.tree) == "([x2 x1 x3 (x4 x5)] (x8 x6 x7))"
    assert state.settle()
    assert str(state.tree) == "([x2 x1 x3 (x4 x5)] (x8 (x6 x7)))"


def test_run_of_a_chain_is_parsed_within_the_operand() -> None:
    """An operand that is part of a Q-node gives pairs of its own leaves only."""
    tree = PQTree.parse("[a b c d e]")
    subtree = OperandTree.of(tree, ("d", "b", "c"))
    assert [node.element for node in subtree.cover] in (["b", "c", "d"], ["d", "c", "b"])
    assert subtree.constraints() == {0b110, 0b101}


def test_constraints_of_p_and_q_nodes() -> None:
    """P-nodes give their leaves, Q-nodes each two neighbours, with all leaves below them."""
    tree = PQTree.parse("(a [b (c d) e] f)")
    subtree = OperandTree.of(tree, tuple("abcdef"))
    assert subtree.constraints() == {0b111111, 0b001110, 0b001100, 0b011100}


def test_constraints_rebuild_the_subtree() -> None:
    """Reducing a universal tree by the constraints of a tree gives its orders back, definition (2)."""
    for text in ("(a b c)", "[a b c d]", "(a [b (c d) e])", "[(a b) c (d (e f))]", "((a b c) (d e))"):
        tree = PQTree.parse(text)
        operand = tuple(tree.frontier())
        again = PQTree(operand)
        for mask in OperandTree.of(tree, operand).constraints():
            assert again.reduce([v for i, v in enumerate(operand) if mask >> i & 1])
        assert set(again.orders()) == set(tree.orders())


@given(feasible_batches())
@examples(300)
def test_settled_operands_are_isomorphic(case: tuple[list[str], list[LayoutBatch], Order]) -> None:
    """After `settle`, all operands of a batch have the same constraints and the subtrees kept are those of the tree."""
    variables, batches, hidden = case
    state = started(variables, batches)
    assert state is not None
    assert state.settle()
    assert all(len(different) == 1 for different in constraints_of(state))
    for batch, operands in state.operands.items():
        assert [tree.mask for tree in state.trees[batch]] == [OperandTree.of(state.tree, o).mask for o in operands]
    assert all(state.tree.reduce(pair) for pair in pairwise(hidden))  # the hidden order is still among the tree's


@given(free_batches())
@examples(300)
def test_no_wanted_order_is_lost(case: tuple[list[str], list[LayoutBatch], dict[str, int]]) -> None:
    """Every order that meets all demands is still represented after broadcasting, and False means there is none."""
    variables, batches, _ = case
    wanted = {order for order in permutations(variables) if meets(order, batches)}
    state = started(variables, batches)
    if state is None or not state.settle():
        assert not wanted
        return
    assert wanted <= set(state.tree.orders())


@given(feasible_batches())
@examples(100)
def test_copies_are_independent(case: tuple[list[str], list[LayoutBatch], Order]) -> None:
    """Settling a copy gives what settling the original gives, and leaves the original as it was."""
    variables, batches, _ = case
    state = started(variables, batches)
    assert state is not None
    before = str(state.tree)
    copy = state.copy()
    assert copy.settle()
    assert str(state.tree) == before
    assert state.settle()
    assert constraints_of(copy) == constraints_of(state)
    assert str(copy.tree) == str(state.tree)
