"""Offsets of variables in a cell's row of memory, with the memory of dead variables used again.

Problem: a layout orders variables; give each an offset so that what has to be contiguous is, variables that live at one
time do not overlap, and the row is short.

Definitions.

(1) A variable *lives* from its first to its last step, both included: what a batch writes must not lie on what it
    reads.
(2) A *group* is a sequence of variables that stay contiguous and in order: what some step reads or writes as one span.
    Groups may be moved against each other, and over each other, without breaking adjacency or alignment.
(3) The *peak* is the largest number of elements that live at one time; no row is shorter.

Placing blocks of fixed shape with the least row is NP-hard (it contains dynamic storage allocation). `plan_offsets`
places group by group at the lowest offset that is free throughout each member's life, in several sequences of groups,
and takes the shortest row; the first sequence tried is the layout with nothing shared, so the row is never longer than
the sum of all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from edbc.errors import LayoutError

Live = Mapping[str, tuple[int, int]]


def live_peak(sizes: Mapping[str, int], live: Live) -> int:
    """The peak, definition (3). A variable without entry in `live` lives throughout.

    >>> live_peak({"a": 2, "b": 3, "w": 1}, {"a": (0, 1), "b": (2, 3)})
    4
    """
    always = sum(size for variable, size in sizes.items() if variable not in live)
    steps = {first for first, _ in live.values()}
    living = (sum(sizes[v] for v, (first, last) in live.items() if first <= step <= last) for step in steps)
    return always + max(living, default=0)


def plan_offsets(
    order: Sequence[str], sizes: Mapping[str, int], live: Live, groups: Sequence[Sequence[str]] = ()
) -> tuple[dict[str, int], int]:
    """Offsets for the variables of `order` and the length of the row, in elements.

    A variable without entry in `live` lives throughout and shares memory with none. Deterministic; O(n^2 log n).
    Raises LayoutError when a variable has no size, or the groups overlap or are not in the order.

    >>> plan_offsets("abc", {"a": 4, "b": 2, "c": 3}, {"a": (0, 1), "b": (1, 2), "c": (2, 3)})
    ({'a': 0, 'b': 4, 'c': 0}, 6)
    """
    missing = next((variable for variable in order if variable not in sizes), None)
    if missing is not None:
        raise LayoutError(f"offsets: expected a size for every variable, got none for '{missing}'")
    blocks = _blocks(order, sizes, groups)
    best = _Row(sizes, live)
    best.append(blocks)
    for key in _SEQUENCES:
        row = _Row(sizes, live)
        for block in sorted(blocks, key=lambda block: key(block, row)):
            row.place(block)
        if row.length < best.length:
            best = row
    return {variable: best.offsets[variable] for variable in order}, best.length


@dataclass(frozen=True)
class _Block:
    """A group, or a variable on its own, with the members' offsets from its start."""

    inner: tuple[tuple[str, int], ...]
    size: int


class _Row:
    """A row of memory being filled."""

    def __init__(self, sizes: Mapping[str, int], live: Live) -> None:
        self.sizes = sizes
        self.live = live
        self.offsets: dict[str, int] = {}
        self.length = 0

    def append(self, blocks: Iterable[_Block]) -> None:
        """Put blocks one behind the other, sharing nothing."""
        for block in blocks:
            self._put(block, self.length)

    def place(self, block: _Block) -> None:
        """Put a block at the lowest start at which no member meets another variable in its life. O(n log n)."""
        start = 0
        for low, high in sorted(self._forbidden(block)):
            if low >= start:
                break
            start = max(start, high)
        self._put(block, start)

    def first_step(self, block: _Block) -> int:
        """The step at which the first member starts to live; before all steps when one lives throughout."""
        return min(self.live.get(variable, (-1, 0))[0] for variable, _ in block.inner)

    def _forbidden(self, block: _Block) -> Iterable[tuple[int, int]]:
        """Open intervals of starts at which a member overlaps a variable that lives with it."""
        for variable, inner in block.inner:
            for other, offset in self.offsets.items():
                if self.sizes[variable] and self.sizes[other] and self._live_together(variable, other):
                    yield offset - inner - self.sizes[variable], offset + self.sizes[other] - inner

    def _live_together(self, one: str, other: str) -> bool:
        if one not in self.live or other not in self.live:
            return True
        (first, last), (other_first, other_last) = self.live[one], self.live[other]
        return first <= other_last and other_first <= last

    def _put(self, block: _Block, start: int) -> None:
        for variable, inner in block.inner:
            self.offsets[variable] = start + inner
        self.length = max(self.length, start + block.size)


_SEQUENCES: tuple[Callable[[_Block, _Row], int], ...] = (
    lambda block, row: 0,  # the layout's own
    lambda block, row: row.first_step(block),
    lambda block, row: -block.size,
)


def _blocks(order: Sequence[str], sizes: Mapping[str, int], groups: Sequence[Sequence[str]]) -> list[_Block]:
    """Groups and single variables in the sequence of the layout."""
    place = {variable: i for i, variable in enumerate(order)}
    group_at: dict[int, Sequence[str]] = {}
    grouped: set[str] = set()
    for group in groups:
        start = place.get(group[0], len(order)) if group else len(order)
        if not group or tuple(order[start : start + len(group)]) != tuple(group) or grouped & set(group):
            raise LayoutError(f"offsets: group ({' '.join(group)}) is not a stretch of the order apart from the others")
        group_at[start] = group
        grouped.update(group)
    blocks = []
    for i, variable in enumerate(order):
        if i in group_at or variable not in grouped:
            blocks.append(_block(group_at.get(i, (variable,)), sizes))
    return blocks


def _block(variables: Sequence[str], sizes: Mapping[str, int]) -> _Block:
    inner, size = [], 0
    for variable in variables:
        inner.append((variable, size))
        size += sizes[variable]
    return _Block(tuple(inner), size)
