"""Draw the README's picture of the gain from the zoo's table.

python benchmarks/zoo.py --json build/zoo.json && python benchmarks/picture.py build/zoo.json docs/gain.svg
"""

from __future__ import annotations

import json
import math
import sys
from html import escape
from pathlib import Path
from typing import Any

LEFT, WIDTH, BAR, GAP = 224, 720, 11, 12
COLOURS = {"eager": "#9aa5b1", "edbc": "#d9480f"}


def main() -> None:
    """Read the table, write the picture."""
    rows = json.loads(Path(sys.argv[1]).read_text())["rows"]
    Path(sys.argv[2]).write_text(picture(rows))


def picture(rows: list[dict[str, Any]]) -> str:
    """Per model two bars on a logarithmic axis: instances per second, eager and edbc."""
    top = max(r["instances_per_second"] for r in rows)
    low = min(r["eager_instances_per_second"] for r in rows)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(top))
    height = 70 + len(rows) * (2 * BAR + GAP)

    def x(value: float) -> float:
        return LEFT + (math.log10(value) - first) / (last - first) * (WIDTH - LEFT - 90)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<text x="10" y="20" font-size="14" font-weight="bold">Instances per second, mini-batches of 32, CPU</text>',
    ]
    for i, (name, colour) in enumerate(COLOURS.items()):
        parts.append(f'<rect x="{430 + 130 * i}" y="11" width="11" height="11" fill="{colour}"/>')
        label = "eager PyTorch" if name == "eager" else "edbc"
        parts.append(f'<text x="{446 + 130 * i}" y="21">{label}</text>')
    for power in range(first, last + 1):
        at = x(10**power)
        parts.append(f'<line x1="{at:.1f}" y1="34" x2="{at:.1f}" y2="{height - 24}" stroke="#e4e7eb"/>')
        parts.append(f'<text x="{at:.1f}" y="{height - 8}" text-anchor="middle" fill="#616e7c">{10**power:,}</text>')
    for i, row in enumerate(rows):
        y = 42 + i * (2 * BAR + GAP)
        parts.append(f'<text x="{LEFT - 8}" y="{y + BAR + 4}" text-anchor="end">{escape(row["name"])}</text>')
        for k, key in enumerate(("eager_instances_per_second", "instances_per_second")):
            colour = COLOURS["eager" if k == 0 else "edbc"]
            width = max(x(row[key]) - LEFT, 1)
            parts.append(f'<rect x="{LEFT}" y="{y + k * BAR}" width="{width:.1f}" height="{BAR - 1}" fill="{colour}"/>')
        gain = row["instances_per_second"] / row["eager_instances_per_second"]
        end = x(max(row["instances_per_second"], row["eager_instances_per_second"]))
        parts.append(f'<text x="{end + 6:.1f}" y="{y + 2 * BAR - 2}" fill="#d9480f">{gain:.1f} times</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
