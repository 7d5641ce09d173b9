"""Inline SVG: a schedule's row and a state machine. Sizes are those of the drawing; the page scales them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

MOST_COLUMNS = 1200
"""Columns drawn; longer schedules have several batches in a column, the largest counts."""
SPARSE, DENSE = 150, 500
"""A bar is at least this part of the picture wide, to be seen on a phone: in a row of a few bars, and of many."""


def schedule_row(batches: Sequence[tuple[int, int]], kind: int, columns: int, fill: str, name: str) -> str:
    """The batches of one type over all `columns` of the scale, heights by the logarithm of their nodes."""
    step = -(-columns // MOST_COLUMNS)
    tallest: dict[int, int] = {}
    for number, (k, size) in enumerate(batches):
        if k == kind:
            tallest[number // step] = max(size, tallest.get(number // step, 0))
    top = math.log2(1 + max((size for k, size in batches if k == kind), default=1))
    drawn = -(-columns // step)
    width = max(1.0, drawn / (SPARSE if len(tallest) <= 8 else DENSE))
    bars = "".join(_bar(x, width, math.log2(1 + size) / top, f"{name}: {size:,} nodes") for x, size in tallest.items())
    return (
        f'<svg viewBox="0 0 {drawn} 24" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(name)}" style="fill:{fill}">{bars}</svg>'
    )


def _bar(x: int, width: float, height: float, title: str) -> str:
    tall = max(2.0, 24 * height)
    place = f'x="{x}" y="{24 - tall:.1f}" width="{width:.2g}" height="{tall:.1f}"'
    return f"<rect {place}><title>{escape(title)}</title></rect>"


def machine(states: Sequence[tuple[int, str, str]], moves: Mapping[tuple[int, int], int]) -> str:
    """States as (number, colour, title) on a circle and moves between them; an arrow's width is its logarithm."""
    radius, size = 130, 340
    place = {
        number: (
            size / 2 + radius * math.sin(2 * math.pi * i / len(states)),
            size / 2 - radius * math.cos(2 * math.pi * i / len(states)),
        )
        for i, (number, _, _) in enumerate(states)
    }
    if len(states) == 1:
        place = {states[0][0]: (size / 2, size / 2)}
    arrows = "".join(
        _arrow(place[a], place[b], n, size / 2) for (a, b), n in moves.items() if a in place and b in place
    )
    nodes = "".join(_node(*place[number], number, fill, title) for number, fill, title in states)
    head = '<defs><marker id="edbc-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
    head += 'markerUnits="userSpaceOnUse" orient="auto"><path class="arrow" d="M0,0 L8,4 L0,8 z"/></marker></defs>'
    return (
        f'<svg viewBox="0 0 {size} {size}" style="width:100%;max-width:{size}px" role="img" '
        f'aria-label="state machine">{head}{arrows}{nodes}</svg>'
    )


def _node(x: float, y: float, number: int, fill: str, title: str) -> str:
    return (
        f'<g><title>{escape(title)}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="13" style="fill:{fill}"/>'
        f'<text class="number" x="{x:.1f}" y="{y + 4.5:.1f}" font-size="13" text-anchor="middle">{number}</text></g>'
    )


def _arrow(a: tuple[float, float], b: tuple[float, float], count: int, centre: float) -> str:
    width = 1 + 0.6 * math.log2(count)
    path = _loop(a, centre) if a == b else _bend(a, b)
    return (
        f'<path class="move" d="{path}" stroke-width="{width:.1f}" marker-end="url(#edbc-head)">'
        f"<title>{count:,} times</title></path>"
    )


def _loop(a: tuple[float, float], centre: float) -> str:
    """A loop on the outer side of a node."""
    angle = math.atan2(a[1] - centre, a[0] - centre)
    points = [_at(a, angle + turn, far) for turn, far in ((-0.6, 13), (-0.5, 38), (0.5, 38), (0.6, 14))]
    return "M{:.1f},{:.1f} C{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}".format(*(c for p in points for c in p))


def _bend(a: tuple[float, float], b: tuple[float, float]) -> str:
    """A curve bent to its right, so that the two directions stand apart, from rim to rim."""
    angle = math.atan2(b[1] - a[1], b[0] - a[0])
    start, end = _at(a, angle + 0.35, 13), _at(b, angle + math.pi - 0.35, 14)
    middle = _at(((a[0] + b[0]) / 2, (a[1] + b[1]) / 2), angle + math.pi / 2, 0.12 * math.dist(a, b))
    return "M{:.1f},{:.1f} Q{:.1f},{:.1f} {:.1f},{:.1f}".format(*start, *middle, *end)


def _at(point: tuple[float, float], angle: float, far: float) -> tuple[float, float]:
    return point[0] + far * math.cos(angle), point[1] + far * math.sin(angle)
