"""Hypothesis strategies and oracles that the layout tests share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from edbc.layout.problem import LayoutBatch

Order = tuple[str, ...]


def examples(count: int) -> settings:
    """So many examples, the same on every machine, however slow or busy."""
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def is_consecutive(order: Order, subset: Iterable[str]) -> bool:
    """True when the elements of `subset` stand side by side in `order`."""
    return bool(orders_with_adjacent((order,), subset))


def orders_with_adjacent(orders: Iterable[Order], subset: Iterable[str]) -> set[Order]:
    """Those of `orders` in which the elements of `subset` stand side by side."""
    chosen = frozenset(subset)
    result = set()
    for order in orders:
        places = [place for place, element in enumerate(order) if element in chosen]
        if places[-1] - places[0] == len(places) - 1:
            result.add(order)
    return result


def orders_with(elements: Sequence[str], subsets: Iterable[Iterable[str]]) -> set[Order]:
    """By enumeration: every order of `elements` in which each subset is consecutive."""
    orders = set(permutations(elements))
    for subset in subsets:
        orders = orders_with_adjacent(orders, subset)
    return orders


@st.composite
def constraint_sets(draw: st.DrawFn, *, max_elements: int = 7) -> tuple[str, list[list[str]]]:
    """Up to seven elements and up to six subsets of them, of two or more each."""
    elements = "abcdefg"[: draw(st.integers(2, max_elements))]
    subset = st.lists(st.sampled_from(elements), min_size=2, max_size=len(elements), unique=True)
    return elements, draw(st.lists(subset, min_size=1, max_size=6))


def meets(order: Order, batches: Iterable[LayoutBatch]) -> bool:
    """By definition: every demand of every batch holds in `order` (batches without repeats)."""
    place = {variable: i for i, variable in enumerate(order)}
    for batch in batches:
        if not all(is_consecutive(order, subset) for subset in (*batch.operands, *batch.adjacent_only)):
            return False
        relative = {tuple(place[v] - min(place[w] for w in operand) for v in operand) for operand in batch.operands}
        if len(relative) > 1:
            return False
    return True


@st.composite
def free_batches(draw: st.DrawFn, *, max_variables: int = 6) -> tuple[list[str], list[LayoutBatch], dict[str, int]]:
    """Batches over few variables without regard to whether an order meets them; sizes, some of them large."""
    variables = list("abcdefg"[: draw(st.integers(3, max_variables))])
    batches = []
    for number in range(draw(st.integers(1, 3))):
        operand = st.permutations(variables).map(tuple)
        width = draw(st.integers(2, 3))
        operands = draw(st.lists(operand.map(lambda order, width=width: order[:width]), min_size=1, max_size=3))
        subset = st.lists(st.sampled_from(variables), min_size=2, max_size=4, unique=True).map(tuple)
        batches.append(LayoutBatch(f"B{number}", tuple(operands), tuple(draw(st.lists(subset, max_size=1)))))
    sizes = {variable: draw(st.sampled_from([1, 1, 1, 10])) for variable in variables}
    return variables, batches, sizes


@st.composite
def feasible_batches(draw: st.DrawFn, *, max_variables: int = 14) -> tuple[list[str], list[LayoutBatch], Order]:
    """Batches cut out of a hidden order, so that it meets all of them; the variables come in another order."""
    hidden = draw(st.permutations("abcdefghijklmnopqrst"[: draw(st.integers(4, max_variables))]))
    batches = []
    for number in range(draw(st.integers(1, 6))):
        width = draw(st.integers(2, min(5, len(hidden))))
        positions = draw(st.permutations(range(width)))
        starts = draw(st.lists(st.integers(0, len(hidden) - width), min_size=1, max_size=4))
        operands = tuple(tuple(hidden[start + i] for i in positions) for start in starts)
        start = draw(st.integers(0, len(hidden) - width))
        adjacent = (tuple(hidden[start : start + width]),) if draw(st.booleans()) else ()
        batches.append(LayoutBatch(f"B{number}", operands, adjacent))
    return sorted(hidden), batches, tuple(hidden)
