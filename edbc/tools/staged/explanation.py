"""A static plan explained: its blocks, their stages with costs, what was merged, and what other schedules cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from edbc.plan.static import PlanBlock, PlanStage, StaticPlan

BASELINES = ("sequential", "greedy", "merge", "concurrent")


def stages_text(plan: StaticPlan) -> str:
    """The explanation as text."""
    return "\n".join([*_head(plan), *_table(plan), *_blocks(plan), ""])


def stages_json(plan: StaticPlan) -> dict[str, Any]:
    """The same as JSON's types."""
    return {"model": plan.model.path, "totals_ns": totals(plan), "static": asdict(plan.static)}


def totals(plan: StaticPlan) -> dict[str, int]:
    """The whole network by every kind of schedule, in nanoseconds; `both` is the plan's."""
    blocks = plan.static.blocks
    found = {name: sum(getattr(block, f"{name}_ns") for block in blocks) for name in BASELINES}
    return {**found, "both": sum(_cost(block) for block in blocks)}


def _cost(block: PlanBlock) -> int:
    return sum(stage.cost_ns for stage in block.stages)


def _head(plan: StaticPlan) -> Iterator[str]:
    static = plan.static
    stages = sum(len(block.stages) for block in static.blocks)
    counts = f"{len(static.units)} units in {len(static.blocks)} blocks, {stages} stages"
    yield f"{plan.model.path}: a static model, {counts}"
    yield f"  measured on {static.device}, {static.threads} threads, batches of {static.batch_size}, {static.dtype}"
    forms = {"between stages": "all threads wait between stages", "none": "units wait for what they read, no more"}
    yield f"  stages of at most {static.s} groups of {static.r} units; {forms[static.barriers]}"
    measured, distinct = (sum(getattr(b, name) for b in static.blocks) for name in ("measured", "distinct"))
    gap = sum(block.gap * _cost(block) for block in static.blocks) / max(1, sum(map(_cost, static.blocks)))
    yield f"  {measured:,} of {distinct:,} stages measured; at most {100 * gap:.1f} % from the optimum by their bounds"


def _table(plan: StaticPlan) -> Iterator[str]:
    found = totals(plan)
    yield ""
    yield "  schedule      ms    sequential takes"
    for name, cost in found.items():
        yield f"  {name:<10}{cost / 1e6:>8.2f}   {found['sequential'] / max(cost, 1):.2f} times as long"


def _blocks(plan: StaticPlan) -> Iterator[str]:
    for number, block in enumerate(plan.static.blocks):
        yield ""
        yield (
            f"  block {number}: {_cost(block) / 1e3:,.1f} us, one by one {block.sequential_ns / 1e3:,.1f}; "
            f"{block.states:,} states, {block.transitions:,} transitions, {block.measured:,} of {block.distinct:,} "
            "stages measured"
        )
        if block.note:
            yield f"    note: {block.note}"
        yield from (f"    {line}" for stage in block.stages for line in stage_lines(stage))


def stage_lines(stage: PlanStage) -> list[str]:
    """A stage in words: its cost, and a line per group."""
    groups = [" then ".join(group) for group in stage.groups]
    if stage.run == "merge":
        return [f"{stage.cost_ns / 1e3:>9,.1f} us  merged into one product: {', '.join(groups)}"]
    if stage.run == "split":
        return [f"{stage.cost_ns / 1e3:>9,.1f} us  {groups[0]}, all threads"]
    return [f"{stage.cost_ns / 1e3:>9,.1f} us  {groups[0]}", *(f"{'beside':>12}  {group}" for group in groups[1:])]
