"""Offsets: legal by the verifier, between the peak and the sum of sizes, and short where that is possible."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_strategies import Order, examples, feasible_batches

from edbc.cells.offsets import live_peak, plan_offsets
from edbc.errors import LayoutError
from edbc.layout import (
    DroppedOperand,
    LayoutBatch,
    kept_groups,
    plan_layout,
    verify_layout,
    verify_offsets,
)


@given(feasible_batches(), st.randoms(use_true_random=False))
@examples(300)
def test_offsets_of_plans_are_legal(case: tuple[list[str], list[LayoutBatch], Order], random: Random) -> None:
    """For any sizes and lives: legal, between the peak and the sum of sizes, every operand still in place."""
    variables, batches, _ = case
    plan = plan_layout(variables, batches)
    groups = kept_groups(plan.order, batches, plan.dropped)
    sizes = {v: random.randint(0, 4) for v in variables}
    spans = {v: sorted((random.randint(0, 6), random.randint(0, 6))) for v in variables if random.random() < 0.9}
    live = {v: (first, last) for v, (first, last) in spans.items()}

    offsets, total = plan_offsets(plan.order, sizes, live, groups)

    verify_offsets(offsets, total, sizes, live, groups)
    assert live_peak(sizes, live) <= total <= sum(sizes.values())
    grouped = {v for group in groups for v in group}
    rest = [v for v in plan.order if v not in grouped]
    moved = sorted(groups, key=lambda group: offsets[group[0]])
    verify_layout([v for group in moved for v in group] + rest, batches, plan.dropped, variables)


def test_without_deaths_the_row_is_the_layout() -> None:
    """When everything lives throughout, variables stand one behind the other in the layout's order."""
    offsets, total = plan_offsets("cab", {"a": 1, "b": 2, "c": 3}, {})
    assert offsets == {"c": 0, "a": 3, "b": 4}
    assert total == 6


def test_a_chain_needs_two_buffers() -> None:
    """A chain of equal variables, each read by the next only, fits in the peak of two."""
    order = [f"v{i}" for i in range(10)]
    live = {v: (i, i + 1) for i, v in enumerate(order)}
    sizes = dict.fromkeys(order, 8)
    offsets, total = plan_offsets(order, sizes, live)
    verify_offsets(offsets, total, sizes, live)
    assert total == live_peak(sizes, live) == 16


def test_groups_move_as_one_and_share_by_member() -> None:
    """A dead member of a group is overwritten while its neighbour lives on."""
    live = {"a": (0, 1), "b": (0, 9), "c": (2, 3)}
    offsets, total = plan_offsets("abc", {"a": 4, "b": 4, "c": 4}, live, [("a", "b")])
    assert offsets == {"a": 0, "b": 4, "c": 0}
    assert total == 8
    offsets, total = plan_offsets(
        "abcd", {"a": 4, "b": 4, "c": 4, "d": 4}, {**live, "d": (2, 3)}, [("a", "b"), ("c", "d")]
    )
    verify_offsets(offsets, total, dict.fromkeys("abcd", 4), {**live, "d": (2, 3)}, [("a", "b"), ("c", "d")])
    assert total == 16  # c d fits neither before nor over b without reaching below zero or beyond


def test_kept_groups_unite_operands_that_share_variables() -> None:
    """Overlapping operands are one group, operands that only touch are two, dropped ones none."""
    batches = [LayoutBatch("B", (("a", "b"), ("c", "b"), ("d", "e")), (("g", "f"),)), LayoutBatch("C", (("h", "i"),))]
    dropped = [DroppedOperand("C", "operand", 0, ("h", "i"), "adjacency", 2)]
    assert kept_groups("abcdefghi", batches, dropped) == [("a", "b", "c"), ("d", "e"), ("f", "g")]
    nested = [LayoutBatch("B", (("a", "b", "c", "d"),), (("b", "c"), ("d", "e")))]
    assert kept_groups("abcdef", nested) == [tuple("abcde")]


def test_misuse_is_refused() -> None:
    """A variable without size, and groups that are torn, overlapping or empty, raise LayoutError."""
    sizes = dict.fromkeys("abc", 1)
    with pytest.raises(LayoutError, match="none for 'd'"):
        plan_offsets("abcd", sizes, {})
    for groups in ([("a", "c")], [("b", "a")], [("a", "b"), ("b", "c")], [()], [("c", "d")]):
        with pytest.raises(LayoutError, match="is not a stretch of the order"):
            plan_offsets("abc", sizes, {}, groups)
