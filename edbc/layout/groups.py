"""Which variables a layout keeps side by side: the groups that planning offsets must not break."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edbc.layout.problem import DroppedOperand, LayoutBatch


def kept_groups(
    order: Sequence[str], batches: Sequence[LayoutBatch], dropped: Iterable[DroppedOperand] = ()
) -> list[tuple[str, ...]]:
    """The kept operands, united where they share a variable, in the layout's order; single variables left out.

    Every kept operand lies within one group, so groups may be moved against each other without breaking adjacency.

    >>> kept_groups("xbacde", [LayoutBatch("B", (("a", "c"), ("b", "a"))), LayoutBatch("C", (("d", "e"),))])
    [('b', 'a', 'c'), ('d', 'e')]
    """
    place = {variable: i for i, variable in enumerate(order)}
    absent = {(operand.batch, operand.kind, operand.index) for operand in dropped}
    spans = []
    for batch in batches:
        for kind, lists in (("operand", batch.operands), ("adjacent_only", batch.adjacent_only)):
            for index, variables in enumerate(lists):
                if (batch.name, kind, index) not in absent and len(set(variables)) > 1:
                    places = [place[variable] for variable in variables]
                    spans.append((min(places), max(places)))
    groups: list[list[int]] = []
    for first, last in sorted(spans):
        if groups and first <= groups[-1][1]:
            groups[-1][1] = max(groups[-1][1], last)
        else:
            groups.append([first, last])
    return [tuple(order[first : last + 1]) for first, last in groups]
