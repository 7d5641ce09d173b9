"""Is a layout what it claims to be? Checked from the definitions of `edbc.layout.problem`, not from any plan.

Nothing here is shared with the planner: it looks at the order, works out where the variables of an operand stand, and
compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from edbc.errors import LayoutError
from edbc.layout import DroppedOperand, LayoutBatch

_WINDOW = 8  # variables of the order that an error shows on each side


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
