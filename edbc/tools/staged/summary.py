"""What `edbc compile` prints of a static model: units in stages, by measured cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edbc.tools.staged.compiling import CompiledStatic, metrics_of
from edbc.tools.staged.explanation import looked_at, totals, verdict


def static_json(output: str, compiled: CompiledStatic) -> dict[str, Any]:
    """As JSON's types."""
    plan = compiled.plan
    return {
        "plan": output,
        **metrics_of(plan),
        "totals_ns": totals(plan),
        "form": plan.static.form,
        "measured_ns": {cost.form: cost.median_ns for cost in plan.static.measured},
        **{name: sum(getattr(block, name) for block in plan.static.blocks) for name in ("measured", "distinct")},
        **compiled.parity.as_json(),
    }


def static_lines(output: str, compiled: CompiledStatic) -> Iterator[str]:
    """For people."""
    plan, parity, metrics = compiled.plan, compiled.parity, metrics_of(compiled.plan)
    yield (
        f"{output}: a static model, {metrics['units']} units in {metrics['blocks']} blocks, {metrics['stages']} "
        f"stages, {metrics['merged']} of them merged"
    )
    yield f"  {looked_at(plan)}; costs in {plan.static.costs.name}"
    if compiled.ended:
        yield f"  time was up before the --gap was proven: to plan from the table, ask for --gap {plan.static.gap}"
    yield "  in milliseconds: " + ", ".join(f"{name} {cost / 1e6:.2f}" for name, cost in totals(plan).items())
    yield f"  {verdict(plan)}"
    yield f"  parity with eager: {parity.errors}{parity.remark}"
