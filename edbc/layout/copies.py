"""What does an order cost? Told from the definitions of `edbc.layout.problem`, not from any plan.

Nothing here is shared with the planner: it looks at the order, works out where the variables of an operand stand, and
compares. An operand is *met* by an order in place (its variables side by side) and *in step* with another one when
going through memory visits the positions of both in the same sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edbc.layout.problem import LayoutBatch


@dataclass(frozen=True)
class Copy:
    """One operand that an order makes the batch gather or scatter."""

    batch: str
    kind: str
    index: int
    elements: int


def count_copies(
    order: Sequence[str], batches: Sequence[LayoutBatch], sizes: Mapping[str, int] | None = None
) -> list[Copy]:
    """The operands that have to be copied when memory has this order, whatever a plan says; the cheapest choice.

    Among the adjacent operands of a batch those in step with each other stay, the group with the most elements; all
    others are copied into that sequence. A variable without size counts as one element.

    >>> batches = [LayoutBatch("B", (("a", "b"), ("c", "d"), ("f", "e")))]
    >>> count_copies("abcdef", batches)
    [Copy(batch='B', kind='operand', index=2, elements=2)]
    """
    place = {variable: i for i, variable in enumerate(order)}
    copies: list[Copy] = []
    for batch in batches:
        elements = [_elements(operand, sizes) for operand in batch.operands]
        free = {index for index, operand in enumerate(batch.operands) if len(set(operand)) == 1}
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, operand in enumerate(batch.operands):
            if index not in free and len(set(operand)) == len(operand) and _is_adjacent(operand, place):
                groups.setdefault(tuple(_steps(operand, place)), []).append(index)
        kept = free.union(max(groups.values(), key=lambda group: sum(elements[i] for i in group), default=()))
        copies += [Copy(batch.name, "operand", i, n) for i, n in enumerate(elements) if i not in kept]
        copies += [
            Copy(batch.name, "adjacent_only", index, _elements(tuple(set(subset)), sizes))
            for index, subset in enumerate(batch.adjacent_only)
            if not _is_adjacent(subset, place)
        ]
    return copies


def _is_adjacent(operand: Sequence[str], place: Mapping[str, int]) -> bool:
    places = {place[variable] for variable in operand}
    return max(places) - min(places) == len(places) - 1


def _steps(operand: Sequence[str], place: Mapping[str, int]) -> list[int]:
    """The positions of an operand in memory order."""
    return sorted(range(len(operand)), key=lambda position: place[operand[position]])


def _elements(operand: Sequence[str], sizes: Mapping[str, int] | None) -> int:
    return len(operand) if sizes is None else sum(sizes.get(variable, 1) for variable in operand)
