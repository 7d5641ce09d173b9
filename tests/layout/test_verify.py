"""The verifier accepts what is right and rejects every mutation of it; copies of any order by hand."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from layout_check import verify_layout
from layout_strategies import Order, examples, feasible_batches, free_batches, meets

from edbc.errors import LayoutError
from edbc.layout import Copy, DroppedOperand, LayoutBatch, count_copies, plan_layout

B1 = LayoutBatch("B1", (("x4", "x5"), ("x1", "x3"), ("x2", "x1")))
B2 = LayoutBatch("B2", (("x8", "x6", "x7"), ("x3", "x4", "x5")))
IDEAL = ("x2", "x1", "x3", "x4", "x5", "x8", "x6", "x7")


def accepts(order: Order, batches: list[LayoutBatch], dropped: tuple[DroppedOperand, ...] = ()) -> bool:
    """The verifier's verdict as a truth value."""
    try:
        verify_layout(order, batches, dropped)
    except LayoutError:
        return False
    return True


def drop(batch: str, index: int, variables: str, kind: str = "operand") -> DroppedOperand:
    """A dropped operand of cost 1."""
    return DroppedOperand(batch, kind, index, tuple(variables.split()), 1, "adjacency")  # type: ignore[arg-type]


def test_section_3_order_is_accepted() -> None:
    """The paper's ideal order and its reverse pass; label order does not."""
    verify_layout(IDEAL, [B1, B2])
    verify_layout(IDEAL[::-1], [B1, B2])
    assert not accepts(tuple(sorted(IDEAL)), [B1, B2])


def test_every_swap_in_the_ideal_order_is_rejected() -> None:
    """Exchanging any two variables of the paper's order breaks it: no two of them are interchangeable."""
    for i in range(8):
        for j in range(i):
            order = list(IDEAL)
            order[i], order[j] = order[j], order[i]
            assert not accepts(tuple(order), [B1, B2]), order


@given(free_batches(max_variables=5))
@examples(100)
def test_verdict_equals_the_definition(case: tuple[list[str], list[LayoutBatch], dict[str, int]]) -> None:
    """Over every order of up to five variables, the verifier says what a direct reading of the definition says."""
    variables, batches, sizes = case
    for order in permutations(variables):
        assert accepts(order, batches) == meets(order, batches)
        assert (not count_copies(order, batches, sizes)) == meets(order, batches)


@given(feasible_batches(max_variables=9))
@examples(150)
def test_mutated_plans_are_judged_by_the_definition(case: tuple[list[str], list[LayoutBatch], Order]) -> None:
    """Every exchange of two neighbours in a plan's order is accepted only where the definition still holds."""
    variables, batches, _ = case
    order = plan_layout(variables, batches).order
    for i in range(len(order) - 1):
        mutated = order[:i] + (order[i + 1], order[i]) + order[i + 2 :]
        assert accepts(mutated, batches) == meets(mutated, batches)


@pytest.mark.parametrize(
    ("order", "dropped", "message"),
    [
        (IDEAL[:-1], (), "'x7' of batch B2 is missing"),
        (IDEAL[:-1] + ("x2",), (), "'x2' twice"),
        (tuple(sorted(IDEAL)), (), r"B1.operand\[1\] \(x1 x3\): expected its variables side by side; around: x1 x2 x3"),
        (IDEAL[:5] + ("x6", "x8", "x7"), (), r"B2.operand\[1\].*expected memory order 1 0 2 as in B2.operand\[0\]"),
        (IDEAL, (drop("B3", 0, "x1"),), r"dropped B3.operand\[0\]: no batch has it"),
        (IDEAL, (drop("B1", 3, "x1 x3"),), r"dropped B1.operand\[3\]: no batch has it"),
        (IDEAL, (drop("B1", 1, "x1 x4"),), "with the variables x1 x4"),
        (IDEAL, (drop("B1", 0, "x4 x5", "adjacent_only"),), "no batch has it"),
        (IDEAL, (drop("B1", 1, "x1 x3"), drop("B1", 1, "x1 x3")), "dropped twice"),
    ],
)
def test_faults_are_named(order: Order, dropped: tuple[DroppedOperand, ...], message: str) -> None:
    """Each fault raises LayoutError that names the operand or variable and shows the order around it."""
    with pytest.raises(LayoutError, match=message):
        verify_layout(order, [B1, B2], dropped)


def test_variables_must_be_exactly_those() -> None:
    """With the cell's variables given, one more or one less is a fault."""
    verify_layout(IDEAL, [B1, B2], (), IDEAL)
    with pytest.raises(LayoutError, match="difference in x9"):
        verify_layout(IDEAL, [B1, B2], (), (*IDEAL, "x9"))
    with pytest.raises(LayoutError, match="difference in x9"):
        verify_layout((*IDEAL, "x9"), [B1, B2], (), IDEAL)


def test_dropping_excuses_one_operand_only() -> None:
    """With the right operands dropped label order passes, with one fewer it does not."""
    dropped = (drop("B1", 1, "x1 x3"), drop("B1", 2, "x2 x1"), drop("B2", 0, "x8 x6 x7"))
    order = tuple(sorted(IDEAL))
    assert accepts(order, [B1, B2], dropped)
    assert not any(accepts(order, [B1, B2], dropped[:i] + dropped[i + 1 :]) for i in range(3))


def test_repeats_are_not_kept() -> None:
    """A broadcast operand passes anywhere; a partial repeat passes only as dropped."""
    broadcast = LayoutBatch("B", (("a", "b"), ("c", "c")))
    verify_layout("abc", [broadcast])
    repeats = LayoutBatch("B", (("a", "b", "c"), ("d", "d", "e")))
    assert not accepts(tuple("abcde"), [repeats])
    assert accepts(tuple("abcde"), [repeats], (drop("B", 1, "d d e"),))


def test_adjacent_only_sets_are_checked() -> None:
    """Any order within the set passes, a stranger between its members does not."""
    batches = [LayoutBatch("B", (("a",),), (("b", "d", "c"),))]
    assert accepts(tuple("abcd"), batches)
    assert not accepts(tuple("bacd"), batches)
    assert count_copies("bacd", batches, {"d": 5}) == [Copy("B", "adjacent_only", 0, 7)]


def test_copies_keep_the_dearest_operands_in_step() -> None:
    """Of operands out of step, the group with the most elements stays; broadcasts are free, repeats always copied."""
    batches = [LayoutBatch("B", (("a", "b"), ("d", "c"), ("f", "e"), ("g", "g"), ("a", "e")))]
    copies = count_copies("abcdefg", batches, {"a": 10})
    assert [(copy.index, copy.elements) for copy in copies] == [(1, 2), (2, 2), (4, 11)]
    assert [copy.index for copy in count_copies("abcdefg", batches)] == [0, 4]
