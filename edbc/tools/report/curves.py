"""Curves of training as one SVG picture: a panel per figure, lines over a common axis.

The picture stands alone or inside a page and loads nothing. A line that lies on another one shows beneath it: draw the
one that is to lie below first, and wider.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

PANEL_WIDTH, PANEL_HEIGHT = 340, 220
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 40, 40
TRAIN, DEV = "#9aa5b1", "#d9480f"


@dataclass(frozen=True)
class Line:
    """A named line through points (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    width: float = 2.0


@dataclass(frozen=True)
class Panel:
    """Lines over one pair of axes."""

    title: str
    lines: Sequence[Line]
    x_title: str = "epoch"

    def points(self) -> list[tuple[float, float]]:
        """The points of all lines."""
        return [point for line in self.lines for point in line.points]


def epochs_picture(epochs: Sequence[tuple[Mapping[str, float], Mapping[str, float] | None]]) -> str:
    """The figures of epochs, (train, dev) each: a panel per figure, with the line of train and, if any, of dev."""
    names = list(dict.fromkeys(name for train, _ in epochs for name in train))
    return picture([Panel(name, [*_lines(name, epochs)]) for name in names])


def _lines(name: str, epochs: Sequence[tuple[Mapping[str, float], Mapping[str, float] | None]]) -> Iterator[Line]:
    for place, label, colour in ((0, "train", TRAIN), (1, "dev", DEV)):
        points = [(float(e), figures[place][name]) for e, figures in enumerate(epochs, 1)  # type: ignore[index]
                  if name in (figures[place] or {})]  # fmt: skip
        if points:
            yield Line(label, points, colour)


def picture(panels: Sequence[Panel]) -> str:
    """Panels side by side."""
    width, height = PANEL_WIDTH * len(panels), PANEL_HEIGHT
    drawn = "\n".join(
        f'<g transform="translate({PANEL_WIDTH * i},0)">\n{_panel(panel)}\n</g>' for i, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11" role="img" aria-label="training curves">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n{drawn}\n</svg>\n'
    )


def _panel(panel: Panel) -> str:
    xs, ys = zip(*panel.points(), strict=True) if panel.points() else ((0.0,), (0.0,))
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    scale = _Scale(min(xs[0], *xs), max(xs), min(y_ticks[0], *ys), max(y_ticks[-1], *ys))
    parts = [f'<text x="{LEFT}" y="16" font-size="13" font-weight="bold">{escape(panel.title)}</text>']
    parts += [_label(i, line) for i, line in enumerate(panel.lines)]
    parts += [_y_tick(scale.y(tick), tick) for tick in y_ticks]
    parts += [_x_tick(scale.x(tick), tick) for tick in x_ticks if min(xs) <= tick <= max(xs) and tick == int(tick)]
    parts.append(f'<text x="{PANEL_WIDTH - RIGHT}" y="{PANEL_HEIGHT - 6}" text-anchor="end" fill="#616e7c">'
                 f"{escape(panel.x_title)}</text>")  # fmt: skip
    parts += [_line(line, scale) for line in panel.lines]
    return "\n".join(parts)


@dataclass(frozen=True)
class _Scale:
    """From figures to places in a panel."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Left to right."""
        return LEFT + (PANEL_WIDTH - LEFT - RIGHT) * _share(value, self.x_low, self.x_high)

    def y(self, value: float) -> float:
        """Bottom to top."""
        return PANEL_HEIGHT - BOTTOM - (PANEL_HEIGHT - TOP - BOTTOM) * _share(value, self.y_low, self.y_high)


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from at most `low` to at least `high`.

    >>> ticks(0.13, 0.58)
    [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    >>> ticks(1, 1)
    [1]
    """
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    return [round(k * step, 12) for k in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _label(number: int, line: Line) -> str:
    x = LEFT + 110 * number
    return (
        f'<line x1="{x}" y1="27" x2="{x + 16}" y2="27" stroke="{line.colour}" stroke-width="{line.width:g}"/>'
        f'<text x="{x + 20}" y="31">{escape(line.name)}</text>'
    )


def _y_tick(y: float, value: float) -> str:
    return (
        f'<line x1="{LEFT}" y1="{y:.1f}" x2="{PANEL_WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e4e7eb"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#616e7c">{value:g}</text>'
    )


def _x_tick(x: float, value: float) -> str:
    y = PANEL_HEIGHT - BOTTOM
    return f'<text x="{x:.1f}" y="{y + 16}" text-anchor="middle" fill="#616e7c">{value:g}</text>'


def _line(line: Line, scale: _Scale) -> str:
    """A line with a dot per point while there are few."""
    places = [(scale.x(x), scale.y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    drawn = f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="{line.width:g}"/>'
    if len(places) > 30:
        return drawn
    return drawn + "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{1 + line.width:g}" fill="{line.colour}"/>' for x, y in places
    )
