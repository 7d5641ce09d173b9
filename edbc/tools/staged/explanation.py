"""A static plan explained: its blocks, their stages with costs, what was merged, and what other schedules cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from edbc.plan.static import FORMS, PlanBlock, PlanStage, StaticPlan

BY_TABLE = ("sequential", "greedy", "merge", "concurrent", "both")
FORMS_SAY = {
    "one thread": "one unit after the other, in one thread",
    "all threads": "one unit after the other, all threads on each",
    "sequential": "one unit after the other, each in one thread or all",
    "merge": "groups of units one after the other, products of one input merged where that is cheaper",
    "greedy": "everything that is ready at once",
    "concurrent": "the cheapest stages without merges",
    "both": "the cheapest stages, merged and side by side",
    "no barriers": "the same, units wait for what they read alone",
}
PLAIN = FORMS[:3]
"""Forms that run nothing side by side."""


@dataclass(frozen=True)
class StagesExplanation:
    """A plan of stages explained; `str()` is text, notebooks show the page."""

    plan: StaticPlan

    def text(self, _: int = 80) -> str:
        """For terminals of any width."""
        first, *lines = head_lines(self.plan)
        return "\n".join([first, *(f"  {line}" for line in lines), *_table(self.plan), *_blocks(self.plan), ""])

    def html(self) -> str:
        """One page that needs nothing from the network."""
        from edbc.tools.staged.page import stages_page

        return stages_page(self.plan)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from edbc.tools.staged.page import stages_fragment

        return stages_fragment(self.plan)

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON's types."""
        return {"model": self.plan.model.path, "totals_ns": totals(self.plan), "static": asdict(self.plan.static)}


def totals(plan: StaticPlan) -> dict[str, int]:
    """The whole network by the forms of schedule of which the table knows the costs, in nanoseconds."""
    return {name: sum(getattr(block, f"{name}_ns") for block in plan.static.blocks) for name in BY_TABLE}


def verdict(plan: StaticPlan) -> str:
    """Which form runs, and whether stages were worth it."""
    form, measured = plan.static.form, {cost.form: cost.median_ns for cost in plan.static.measured}
    runs = f"runs '{form}': {FORMS_SAY[form]}"
    plain = min((cost for name, cost in measured.items() if name in PLAIN), default=0)
    if not plain:
        return f"{runs}; the whole network was not measured"
    if form in PLAIN:
        staged = min((cost for name, cost in measured.items() if name not in PLAIN), default=plain)
        both = f"{staged / 1e6:.2f} ms against {measured[form] / 1e6:.2f}"
        return f"{runs}; stages are not faster by more than the spread, {both}"
    return f"{runs}; {plain / measured[form]:.2f} times as fast as one unit after the other at its best"


def _cost(block: PlanBlock) -> int:
    return sum(stage.cost_ns for stage in block.stages)


def head_lines(plan: StaticPlan) -> Iterator[str]:
    """What the plan is of, how it was measured, and which form of schedule runs."""
    static = plan.static
    stages = sum(len(block.stages) for block in static.blocks)
    counts = f"{len(static.units)} units in {len(static.blocks)} blocks, {stages} stages"
    yield f"{plan.model.path}: a static model, {counts}"
    yield f"measured on {static.device}, {static.workers}, batches of {static.batch_size}, {static.dtype}"
    yield f"stages of at most {static.s} groups of {static.r} units"
    if static.kernels is not None:
        yield f"kernels: {static.kernels}, the fastest that were measured, one unit after the other"
    yield verdict(plan)
    yield looked_at(plan)


def looked_at(plan: StaticPlan) -> str:
    """How much was measured, and what that proves."""
    static = plan.static
    measured, distinct = (sum(getattr(b, name) for b in static.blocks) for name in ("measured", "distinct"))
    gap = sum(block.gap * _cost(block) for block in static.blocks) / max(1, sum(map(_cost, static.blocks)))
    return f"{measured:,} of {distinct:,} stages measured; at most {100 * gap:.1f} % from the optimum by their bounds"


def _table(plan: StaticPlan) -> Iterator[str]:
    yield ""
    yield "  schedule     ms by the table   ms measured   spread"
    yield from (f"  {name:<11}  {'  '.join(row)}" for name, *row in forms_table(plan))


def forms_table(plan: StaticPlan) -> list[tuple[str, ...]]:
    """Per form of schedule: its name, milliseconds by the table, measured, and their spread; a dash where unknown."""
    found, measured = totals(plan), {cost.form: cost for cost in plan.static.measured}
    rows: list[tuple[str, ...]] = []
    for form in FORMS:
        by_table = f"{found[form] / 1e6:.2f}" if form in found else "-"
        cost = measured.get(form)
        whole = (f"{cost.median_ns / 1e6:.2f}", f"{cost.spread_ns / 1e6:.2f}") if cost is not None else ("-", "-")
        if by_table != "-" or cost is not None:
            rows.append((form, f"{by_table:>15}", f"{whole[0]:>12}", f"{whole[1]:>7}"))
    return rows


def _blocks(plan: StaticPlan) -> Iterator[str]:
    for number, block in enumerate(plan.static.blocks):
        yield ""
        yield f"  block {number}: {block_text(block)}"
        if block.note:
            yield f"    note: {block.note}"
        yield from (f"    {line}" for stage in block.stages for line in stage_lines(stage))


def block_text(block: PlanBlock) -> str:
    """What a block costs, and how much was looked at."""
    return (
        f"{_cost(block) / 1e3:,.1f} us, one by one {block.sequential_ns / 1e3:,.1f}; {block.states:,} states, "
        f"{block.transitions:,} transitions, {block.measured:,} of {block.distinct:,} stages measured"
    )


def stage_lines(stage: PlanStage) -> list[str]:
    """A stage in words: its cost, and a line per group."""
    groups = [" then ".join(group) for group in stage.groups]
    if stage.run == "merge":
        return [f"{stage.cost_ns / 1e3:>9,.1f} us  merged into one product: {', '.join(groups)}"]
    if stage.run == "split":
        return [f"{stage.cost_ns / 1e3:>9,.1f} us  {groups[0]}, all threads"]
    return [f"{stage.cost_ns / 1e3:>9,.1f} us  {groups[0]}", *(f"{'beside':>12}  {group}" for group in groups[1:])]
