"""Is a layout what it claims to be, and what does an order cost? Checked from the definitions, not from any plan.

Definitions are those of `edbc.layout.problem`. Nothing here is shared with the planner: it looks at the order, works
out where the variables of an operand stand, and compares. An operand is *met* by an order in place (its variables side
by side) and *in step* with another one when going through memory visits the positions of both in the same sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edbc.errors import LayoutError
from edbc.layout.problem import DroppedOperand, LayoutBatch

_WINDOW = 8  # variables of the order that an error shows on each side


@dataclass(frozen=True)
class Copy:
    """One operand that an order makes the batch gather or scatter."""

    batch: str
    kind: str
    index: int
    elements: int


@dataclass(frozen=True)
class Copies:
    """All copies of an order."""

    copies: tuple[Copy, ...]

    @property
    def count(self) -> int:
        """Number of operands copied."""
        return len(self.copies)

    @property
    def elements(self) -> int:
        """Number of elements copied."""
        return sum(copy.elements for copy in self.copies)


def verify_layout(
    order: Sequence[str],
    batches: Sequence[LayoutBatch],
    dropped: Iterable[DroppedOperand] = (),
    variables: Iterable[str] | None = None,
) -> None:
    """Raise LayoutError unless the order does for every batch what is promised. Checks, in this order:

    1. no variable twice in the order; those of the batches are there; with `variables`, exactly these are.
    2. each dropped operand is one of a batch's, with the variables that it names, and is dropped once.
    3. each kept operand of different variables, and each kept adjacent-only set, stands side by side; an operand with
       some variables repeated is not kept.
    4. memory order runs through the positions of all kept operands of a batch in the same way.

    >>> verify_layout("bac", [LayoutBatch("B", (("a", "c"), ("b", "a")))])
    >>> verify_layout("bca", [LayoutBatch("B", (("a", "c"), ("b", "c")))])
    Traceback (most recent call last):
    edbc.errors.LayoutError: B.operand[1] (b c): expected memory order 1 0 as in B.operand[0], got 0 1; around: b c a
    """
    place = _places(order, batches, variables)
    absent = _check_dropped(batches, dropped)
    for batch in batches:
        leader: tuple[str, list[int]] | None = None
        for index, operand in enumerate(batch.operands):
            if ("operand", index) in absent.get(batch.name, ()) or len(set(operand)) == 1:
                continue
            name = f"{batch.name}.operand[{index}] ({' '.join(operand)})"
            if len(set(operand)) < len(operand):
                raise LayoutError(f"{name}: a repeated variable makes it a gather; it should be among the dropped")
            _check_adjacent(name, operand, place, order)
            steps = _steps(operand, place)
            if leader is not None and steps != leader[1]:
                raise LayoutError(
                    f"{name}: expected memory order {_words(leader[1])} as in {leader[0]}, got {_words(steps)}; "
                    f"around: {_window(operand, place, order)}"
                )
            leader = leader or (f"{batch.name}.operand[{index}]", steps)
        for index, subset in enumerate(batch.adjacent_only):
            if ("adjacent_only", index) not in absent.get(batch.name, ()):
                name = f"{batch.name}.adjacent_only[{index}] ({' '.join(subset)})"
                _check_adjacent(name, subset, place, order)


def count_copies(
    order: Sequence[str], batches: Sequence[LayoutBatch], sizes: Mapping[str, int] | None = None
) -> Copies:
    """The operands that have to be copied when memory has this order, whatever a plan says; the cheapest choice.

    Among the adjacent operands of a batch those in step with each other stay, the group with the most elements; all
    others are copied into that sequence. A variable without size counts as one element.

    >>> batches = [LayoutBatch("B", (("a", "b"), ("c", "d"), ("f", "e")))]
    >>> count_copies("abcdef", batches).copies
    (Copy(batch='B', kind='operand', index=2, elements=2),)
    """
    place = _places(order, batches, None)
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
    return Copies(tuple(copies))


def verify_offsets(
    offsets: Mapping[str, int],
    total: int,
    sizes: Mapping[str, int],
    live: Mapping[str, tuple[int, int]],
    groups: Sequence[Sequence[str]] = (),
) -> None:
    """Raise LayoutError unless a row of `total` elements holds every variable while it lives. Checks, in this order:

    1. every variable of `sizes` has an offset and no other has; each lies within 0 and `total`.
    2. each group is contiguous and in order.
    3. two variables that live at one time do not overlap. A variable without entry in `live` lives throughout.
    """
    if set(offsets) != set(sizes):
        differ = ", ".join(sorted(set(offsets) ^ set(sizes)))
        raise LayoutError(f"offsets: expected one for each variable, got a difference in {differ}")
    for variable, offset in offsets.items():
        if offset < 0 or offset + sizes[variable] > total:
            raise LayoutError(
                f"offsets: expected '{variable}' within 0..{total}, got {offset}..{offset + sizes[variable]}"
            )
    for group in groups:
        for left, right in pairwise(group):
            if offsets[right] != offsets[left] + sizes[left]:
                raise LayoutError(
                    f"offsets: expected '{right}' right after '{left}' at {offsets[left] + sizes[left]}, "
                    f"got {offsets[right]}"
                )
    by_offset = sorted((v for v in offsets if sizes[v]), key=lambda v: offsets[v])
    for i, low in enumerate(by_offset):
        for high in by_offset[i + 1 :]:
            if offsets[high] >= offsets[low] + sizes[low]:
                break
            if _live_together(low, high, live):
                raise LayoutError(
                    f"offsets: '{low}' at {offsets[low]}..{offsets[low] + sizes[low]} and '{high}' at "
                    f"{offsets[high]}..{offsets[high] + sizes[high]} overlap and live at one time"
                )


def _live_together(one: str, other: str, live: Mapping[str, tuple[int, int]]) -> bool:
    if one not in live or other not in live:
        return True
    return live[one][0] <= live[other][1] and live[other][0] <= live[one][1]


def _places(order: Sequence[str], batches: Sequence[LayoutBatch], variables: Iterable[str] | None) -> dict[str, int]:
    place = {variable: i for i, variable in enumerate(order)}
    if len(place) < len(order):
        repeated = next(v for i, v in enumerate(order) if place[v] != i)
        raise LayoutError(f"order: expected every variable once, got '{repeated}' twice")
    for batch in batches:
        for variables_ in batch.operands + batch.adjacent_only:
            for variable in variables_:
                if variable not in place:
                    raise LayoutError(f"order: '{variable}' of batch {batch.name} is missing")
    if variables is not None and set(variables) != set(place):
        differ = ", ".join(sorted(set(variables) ^ set(place)))
        raise LayoutError(f"order: expected exactly the variables of the cell, got a difference in {differ}")
    return place


def _check_dropped(
    batches: Sequence[LayoutBatch], dropped: Iterable[DroppedOperand]
) -> dict[str, set[tuple[str, int]]]:
    batch_of = {batch.name: batch for batch in batches}
    absent: dict[str, set[tuple[str, int]]] = {}
    for operand in dropped:
        batch = batch_of.get(operand.batch)
        lists = () if batch is None else batch.operands if operand.kind == "operand" else batch.adjacent_only
        name = f"dropped {operand.batch}.{operand.kind}[{operand.index}]"
        if not 0 <= operand.index < len(lists) or set(lists[operand.index]) != set(operand.variables):
            raise LayoutError(f"{name}: no batch has it with the variables {' '.join(operand.variables)}")
        seen = absent.setdefault(operand.batch, set())
        if (operand.kind, operand.index) in seen:
            raise LayoutError(f"{name}: dropped twice")
        seen.add((operand.kind, operand.index))
    return absent


def _is_adjacent(operand: Sequence[str], place: Mapping[str, int]) -> bool:
    places = {place[variable] for variable in operand}
    return max(places) - min(places) == len(places) - 1


def _check_adjacent(name: str, operand: Sequence[str], place: Mapping[str, int], order: Sequence[str]) -> None:
    if not _is_adjacent(operand, place):
        raise LayoutError(f"{name}: expected its variables side by side; around: {_window(operand, place, order)}")


def _steps(operand: Sequence[str], place: Mapping[str, int]) -> list[int]:
    """The positions of an operand in memory order."""
    return sorted(range(len(operand)), key=lambda position: place[operand[position]])


def _window(operand: Sequence[str], place: Mapping[str, int], order: Sequence[str]) -> str:
    places = [place[variable] for variable in operand]
    start, stop = max(min(places) - _WINDOW, 0), max(places) + 1 + _WINDOW
    return ("... " if start else "") + _words(order[start:stop]) + (" ..." if stop < len(order) else "")


def _words(items: Iterable[object]) -> str:
    return " ".join(map(str, items))


def _elements(operand: Sequence[str], sizes: Mapping[str, int] | None) -> int:
    return len(operand) if sizes is None else sum(sizes.get(variable, 1) for variable in operand)
