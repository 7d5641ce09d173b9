"""A static plan explained as one page: every form of schedule, stages as lanes over time, blocks stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from edbc.plan.static import PlanStage, StaticPlan
from edbc.tools.explain.page import cards, colour, lane, page_of, styled, table_html
from edbc.tools.staged.compiling import metrics_of
from edbc.tools.staged.explanation import block_text, forms_table, head_lines

COLOURS = {"concurrent": 0, "split": 1, "merge": 2}
MOST_LANES = 16


def stages_page(plan: StaticPlan) -> str:
    """The whole page."""
    return page_of(f"{plan.model.path}: how it is staged", _body(plan))


def stages_fragment(plan: StaticPlan) -> str:
    """The page without its head, for notebooks."""
    return styled(_body(plan))


def _body(plan: StaticPlan) -> str:
    return "\n".join("".join(section(plan)) for section in (_head, _forms, _timeline, _blocks))


def _head(plan: StaticPlan) -> Iterator[str]:
    first, *lines = head_lines(plan)
    yield f"<h1>{escape(plan.model.path)}</h1><p class=soft>{escape(first)}</p>"
    metrics = metrics_of(plan)
    told = {"units": "units", "blocks": "blocks", "stages": "stages", "merged": "stages of merged products"}
    yield cards([(f"{metrics[name]:,}", text) for name, text in told.items()])
    yield from (f"<p>{escape(line)}</p>" for line in lines)


def _forms(plan: StaticPlan) -> Iterator[str]:
    yield "<h2>Forms of schedule</h2><p>The whole network, in milliseconds: the sum of its stages by the cost table,"
    yield " and as it was measured, all forms taking turns.</p>"
    rows = [[escape(cell) for cell in row] for row in forms_table(plan)]
    yield table_html(["schedule", "by the table", "measured", "spread"], rows, text=(0,))


def _timeline(plan: StaticPlan) -> Iterator[str]:
    """A lane per group; what all threads work on fills all lanes."""
    stages = [stage for block in plan.static.blocks for stage in block.stages]
    total = sum(stage.cost_ns for stage in stages)
    lanes = min(MOST_LANES, max(len(s.groups) if s.run == "concurrent" else 1 for s in stages))
    yield "<h2>The schedule</h2><p>Time runs to the right, by the cost table; a lane per group of a stage. Hover for"
    yield " names.</p><p>"
    for name, kind in COLOURS.items():
        yield f'<span class="role"><i class="dot" style="background:{colour(kind)}"></i>{name}</span> '
    yield "</p>"
    for number in range(lanes):
        yield lane(f"stream {number}", _bars(stages, number, total), 1000)


def _bars(stages: Sequence[PlanStage], number: int, total: int) -> Iterator[tuple[float, float, str, str]]:
    """Of one lane: where a bar begins and how wide it is, of 1,000; its colour; its title."""
    at = 0
    for stage in stages:
        together = stage.run != "concurrent"
        if together or number < len(stage.groups):
            groups = stage.groups if together else (stage.groups[number],)
            names = " + ".join(" then ".join(group) for group in groups)
            title = f"{names}: {stage.cost_ns / 1000:,.1f} us"
            yield 1000 * at / total, 1000 * stage.cost_ns / total, colour(COLOURS[stage.run]), title
        at += stage.cost_ns


def _blocks(plan: StaticPlan) -> Iterator[str]:
    yield "<h2>Blocks</h2>"
    for number, block in enumerate(plan.static.blocks):
        yield f"<h3>block {number}</h3><p class=soft>{escape(block_text(block))}</p>"
        if block.note:
            yield f"<p><b>Note:</b> {escape(block.note)}</p>"
        rows = [
            [f"{stage.cost_ns / 1000:,.1f} us", stage.run, "<br>".join(escape(" then ".join(g)) for g in stage.groups)]
            for stage in block.stages
        ]
        yield table_html(["cost", "strategy", "groups"], rows, text=(1, 2))
