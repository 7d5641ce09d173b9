"""Layouts against enumeration, on the cells of the papers by hand, and what is dropped when not everything fits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from layout_check import verify_layout
from layout_strategies import Order, examples, feasible_batches, free_batches, meets

from edbc.errors import LayoutError
from edbc.layout import DroppedOperand, LayoutBatch, LayoutPlan, count_copies, plan_layout

Cell = tuple[list[str], list[LayoutBatch]]


def words(text: str) -> tuple[str, ...]:
    """A tuple of variables from a text."""
    return tuple(text.split())


def batch(name: str, *operands: str, adjacent_only: tuple[str, ...] = ()) -> LayoutBatch:
    """A batch with operands written as texts."""
    return LayoutBatch(name, tuple(map(words, operands)), tuple(map(words, adjacent_only)))


def cell(*batches: LayoutBatch) -> Cell:
    """The variables of batches in order of appearance, with the batches."""
    variables = dict.fromkeys(v for b in batches for operand in b.operands + b.adjacent_only for v in operand)
    return list(variables), list(batches)


def kept_batches(batches: list[LayoutBatch], dropped: tuple[DroppedOperand, ...]) -> list[LayoutBatch]:
    """The batches without what was dropped."""
    absent = {(d.batch, d.kind, d.index) for d in dropped}
    return [
        LayoutBatch(
            b.name,
            tuple(o for i, o in enumerate(b.operands) if (b.name, "operand", i) not in absent),
            tuple(s for i, s in enumerate(b.adjacent_only) if (b.name, "adjacent_only", i) not in absent),
        )
        for b in batches
    ]


def check(variables: list[str], batches: list[LayoutBatch], plan: LayoutPlan) -> None:
    """The plan is legal, and its order needs no more copies than it says."""
    verify_layout(plan.order, batches, plan.dropped, variables)


def copied(order: Sequence[str], batches: list[LayoutBatch], sizes: dict[str, int] | None = None) -> int:
    """Elements that an order makes batches copy."""
    return sum(copy.elements for copy in count_copies(order, batches, sizes))


SECTION_3 = cell(batch("B1", "x4 x5", "x1 x3", "x2 x1"), batch("B2", "x8 x6 x7", "x3 x4 x5"))

LSTM = cell(
    batch("x", "ai af ao ag", "Wi Wf Wo Wg", "x x x x"),
    batch("h", "bi bf bo bg", "Ui Uf Uo Ug", "h h h h"),
    batch("add", "si sf so sg", "ai af ao ag", "bi bf bo bg"),
    batch("bias", "ti tf to tg", "si sf so sg", "ki kf ko kg"),
    batch("sigmoid", "i f o", "ti tf to"),
    batch("tanh", "g", "tg"),
    batch("mul", "ig fc", "i f", "g c"),
    batch("cell", "c'", "ig", "fc"),
    batch("squash", "q", "c'"),
    batch("out", "h'", "o", "q"),
)

GRU = cell(
    batch("x", "ar az an", "Wr Wz Wn", "x x x"),
    batch("h", "br bz", "Ur Uz", "h h"),
    batch("add", "sr sz", "ar az", "br bz"),
    batch("sigmoid", "r z", "sr sz"),
    batch("reset", "rh", "r", "h"),
    batch("u", "bn", "Un", "rh"),
    batch("new", "sn", "an", "bn"),
    batch("tanh", "n", "sn"),
    batch("minus", "y", "z"),
    batch("mix", "p q", "y z", "n h"),
    batch("out", "h'", "p", "q"),
)

TREE_LSTM = cell(
    batch("left", "ai al ar ao au", "Wi Wl Wr Wo Wu", "hl hl hl hl hl"),
    batch("right", "bi bl br bo bu", "Ui Ul Ur Uo Uu", "hr hr hr hr hr"),
    batch("add", "si sl sr so su", "ai al ar ao au", "bi bl br bo bu"),
    batch("bias", "ti tl tr to tu", "si sl sr so su", "ki kl kr ko ku"),
    batch("sigmoid", "i l r o", "ti tl tr to"),
    batch("tanh", "u", "tu"),
    batch("mul", "iu lc rc", "i l r", "u cl cr"),
    batch("sum", "s", "iu", "lc"),
    batch("cell", "c'", "s", "rc"),
    batch("squash", "q", "c'"),
    batch("out", "h'", "o", "q"),
)

# One product over x and over h at once reads each of them several times: that gather no layout avoids.
LSTM_MERGED = cell(
    batch(
        "xh",
        "ai af ao ag bi bf bo bg",
        "Wi Wf Wo Wg Ui Uf Uo Ug",
        "x x x x h h h h",
    ),
    batch("add", "si sf so sg", "ai af ao ag", "bi bf bo bg"),
    batch("sigmoid", "i f o", "si sf so"),
    batch("mul", "ig fc", "i f", "g c"),
)


def test_section_3_example_needs_no_copies() -> None:
    """The paper's example is laid out with nothing dropped, in the paper's order, where label order copies three."""
    variables, batches = SECTION_3
    plan = plan_layout(sorted(variables), batches)
    check(variables, batches, plan)
    assert not plan.dropped
    assert plan.order in (words("x2 x1 x3 x4 x5 x8 x6 x7"), words("x7 x6 x8 x5 x4 x3 x1 x2"))
    assert plan.adjacency_tree == "([x2 x1 x3 (x4 x5)] (x8 x6 x7))"
    assert plan.tree == "([x2 x1 x3 (x4 x5)] (x8 (x6 x7)))"
    by_label = count_copies(sorted(variables), batches)  # x1 x3 apart, x2 x1 and one of B2's operands out of step
    assert [copy.batch for copy in by_label] == ["B1", "B1", "B2"]
    assert copied(sorted(variables), batches) == 2 + 2 + 3


@pytest.mark.parametrize(("variables", "batches"), [LSTM, GRU, TREE_LSTM], ids=["lstm", "gru", "tree_lstm"])
def test_cells_by_hand_need_no_copies(variables: list[str], batches: list[LayoutBatch]) -> None:
    """LSTM, GRU and TreeLSTM cells run without a copy; broadcast inputs cost nothing; appearance order costs some."""
    plan = plan_layout(variables, batches)
    check(variables, batches, plan)
    assert not plan.dropped
    assert not count_copies(plan.order, batches)
    assert count_copies(variables, batches)


def test_partial_repeats_are_the_only_copy_of_a_merged_product() -> None:
    """The operand (x x x x h h h h) is dropped as `repeats`, and the batch's other operands stay aligned."""
    variables, batches = LSTM_MERGED
    plan = plan_layout(variables, batches, dict.fromkeys("xh", 64))
    check(variables, batches, plan)
    assert [(d.batch, d.index, d.reason, d.cost) for d in plan.dropped] == [("xh", 2, "repeats", 8 * 64)]
    assert "occurs at several positions" in str(plan)


@given(feasible_batches())
@examples(400)
def test_batches_of_a_hidden_order_drop_nothing(case: tuple[list[str], list[LayoutBatch], Order]) -> None:
    """When a hidden order meets all batches, so does the plan's, up to fourteen variables."""
    variables, batches, hidden = case
    verify_layout(hidden, batches)
    plan = plan_layout(variables, batches)
    check(variables, batches, plan)
    assert not plan.dropped
    assert meets(plan.order, batches)


@given(free_batches(max_variables=7))
@examples(250)
def test_plans_against_every_order(case: tuple[list[str], list[LayoutBatch], dict[str, int]]) -> None:
    """The plan drops something exactly when no order meets all batches, and no dropped operand could stay."""
    variables, batches, sizes = case
    plan = plan_layout(variables, batches, sizes)
    check(variables, batches, plan)
    orders = list(permutations(variables))
    assert bool(plan.dropped) == (not any(meets(order, batches) for order in orders))
    assert meets(plan.order, kept_batches(batches, plan.dropped))
    assert copied(plan.order, batches, sizes) <= sum(operand.cost for operand in plan.dropped)
    for spared in plan.dropped:
        others = tuple(d for d in plan.dropped if d is not spared)
        more = kept_batches(batches, others)
        assert not any(meets(order, more) for order in orders)


@given(free_batches(max_variables=6))
@examples(80)
def test_drops_are_near_the_cheapest(case: tuple[list[str], list[LayoutBatch], dict[str, int]]) -> None:
    """A single problem never copies more than three times what the best order of all copies; zero stays zero."""
    variables, batches, sizes = case
    plan = plan_layout(variables, batches, sizes)
    best = min(copied(order, batches, sizes) for order in permutations(variables))
    assert best <= sum(operand.cost for operand in plan.dropped) <= 3 * best


def test_the_cheapest_of_three_pairs_is_dropped() -> None:
    """{a b}, {b c}, {a c} exclude each other; the one that sizes make cheap is dropped, and named."""
    batches = [batch("ab", "a b"), batch("bc", "b c"), batch("ac", "a c")]
    for cheap, sizes in (("ab", {"c": 9}), ("bc", {"a": 9}), ("ac", {"b": 9})):
        plan = plan_layout("abc", batches, sizes)
        check(list("abc"), batches, plan)
        assert [(d.batch, d.kind, d.index, d.reason, d.cost) for d in plan.dropped] == [
            (cheap, "operand", 0, "adjacency", 2)
        ]
    assert [d.batch for d in plan_layout("abc", batches).dropped] == ["ac"]


def test_a_rotated_operand_is_dropped_for_alignment() -> None:
    """(b c a) cannot run in step with (a b c); it alone is dropped, the batch keeps its two others."""
    batches = [batch("B", "a b c", "d e f", "b c a")]
    plan = plan_layout("abcdef", batches)
    check(list("abcdef"), batches, plan)
    assert [(d.index, d.reason) for d in plan.dropped] == [(2, "alignment")]


def test_an_operand_is_dropped_for_a_broadcast_structure() -> None:
    """Where a b c and d f e are forced, (d e f) is adjacent but cannot take over the structure of (a b c)."""
    forced = [batch("p", "p a"), batch("pp", "p a b"), batch("q", "q d"), batch("qq", "q d f")]
    batches = [*forced, batch("B", "a b c", "d e f")]
    variables = list("pabcqdef")
    plan = plan_layout(variables, batches, {"p": 9, "q": 9})
    check(variables, batches, plan)
    assert [(d.batch, d.index, d.reason, d.cost) for d in plan.dropped] == [("B", 1, "broadcast", 3)]


@given(free_batches(max_variables=7))
@examples(100)
def test_a_refused_demand_leaves_no_trace(case: tuple[list[str], list[LayoutBatch], dict[str, int]]) -> None:
    """Order and trees are those of the problem without the dropped operands."""
    variables, batches, sizes = case
    plan = plan_layout(variables, batches, sizes)
    alone = plan_layout(variables, kept_batches(batches, plan.dropped), sizes)
    assert not alone.dropped
    assert (plan.order, plan.adjacency_tree, plan.tree) == (alone.order, alone.adjacency_tree, alone.tree)


def test_a_refused_demand_goes_first_when_that_is_cheaper() -> None:
    """(x1 x0) and (x0 x3) can be in step, (x0 x1) with neither: one drop, though the list starts with (x0 x1)."""
    batches = [batch("B", "x0 x1", "x1 x0", "x0 x3")]
    plan = plan_layout(words("x0 x1 x2 x3"), batches)
    check(list(words("x0 x1 x2 x3")), batches, plan)
    assert [d.index for d in plan.dropped] == [0]


def test_adjacent_only_sets_are_not_aligned() -> None:
    """A set that must only be adjacent may lie in any order, and is dropped under its own kind."""
    plan = plan_layout("abcd", [batch("B", "a b", adjacent_only=("c b a", "d d"))])
    assert not plan.dropped
    batches = [batch("B", "a b", "c d", adjacent_only=("b c", "a c"))]
    plan = plan_layout("abcd", batches)
    check(list("abcd"), batches, plan)
    assert [(d.kind, d.variables) for d in plan.dropped] == [("adjacent_only", words("a c"))]


def test_a_batch_of_nothing_but_repeats_binds_nothing() -> None:
    """Broadcast operands demand nothing; (a a b) is always copied; one operation is always aligned."""
    plan = plan_layout("abc", [batch("B", "a a a", "a a b"), batch("one", "c", "a")])
    assert plan.tree == "(a b c)"
    assert [(d.index, d.reason) for d in plan.dropped] == [(1, "repeats")]


def test_plans_are_deterministic_and_print() -> None:
    """The same problem gives the same plan, and its text names order, trees and drops."""
    variables, batches = SECTION_3
    assert plan_layout(variables, batches) == plan_layout(variables, batches)
    plan = plan_layout("abc", [batch("ab", "a b"), batch("bc", "b c"), batch("ac", "a c")])
    assert str(plan).splitlines() == [
        "order      a b c",
        "adjacency  [a b c]",
        "aligned    [a b c]",
        "dropped    ac.operand[0] (a c): copies 2; no order that keeps the others has it adjacent",
    ]


def test_empty_problems() -> None:
    """No batches leave the variables as they were; no variables are laid out as nothing."""
    assert plan_layout("abc", []).order == tuple("abc")
    assert plan_layout("", []).order == ()


def test_misuse_is_refused() -> None:
    """Repeated or unknown names and operands of different lengths raise LayoutError with the culprit."""
    with pytest.raises(LayoutError, match="'a' twice"):
        plan_layout("aba", [])
    with pytest.raises(LayoutError, match="'B' twice"):
        plan_layout("ab", [batch("B", "a b"), batch("B", "b a")])
    with pytest.raises(LayoutError, match=r"B\.operand\[0\] \(a z\).*got 'z'"):
        plan_layout("ab", [batch("B", "a z")])
    with pytest.raises(LayoutError, match=r"got lengths \[1, 2\]"):
        batch("B", "a b", "c")
    with pytest.raises(LayoutError, match="an empty one"):
        batch("B", "a b", adjacent_only=("",))
