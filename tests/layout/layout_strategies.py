"""Hypothesis strategies and oracles that the layout tests share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

from hypothesis import strategies as st

Order = tuple[str, ...]


def is_consecutive(order: Order, subset: Iterable[str]) -> bool:
    """True when the elements of `subset` stand side by side in `order`."""
    places = [order.index(element) for element in set(subset)]
    return max(places) - min(places) == len(places) - 1


def orders_with(elements: Sequence[str], subsets: Iterable[Iterable[str]]) -> set[Order]:
    """By enumeration: every order of `elements` in which each subset is consecutive."""
    subsets = list(subsets)
    return {o for o in permutations(elements) if all(is_consecutive(o, subset) for subset in subsets)}


@st.composite
def constraint_sets(draw: st.DrawFn, *, max_elements: int = 7) -> tuple[str, list[list[str]]]:
    """Up to seven elements and up to six subsets of them, of two or more each."""
    elements = "abcdefg"[: draw(st.integers(2, max_elements))]
    subset = st.lists(st.sampled_from(elements), min_size=2, max_size=len(elements), unique=True)
    return elements, draw(st.lists(subset, min_size=1, max_size=6))
