"""`edbc compile` for static models: units in stages, by measured cost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import click

from edbc.base.files import found_at, require_target
from edbc.errors import EdbcError, UnsupportedError
from edbc.plan.plan import Guard
from edbc.stages import SPIN
from edbc.tools.console import ProgressLine, fold, print_json


class Stages(NamedTuple):
    """The options that only static models have."""

    r: int
    s: int
    gap: float
    batch: int
    threads: int | None


def compiled_static(
    model: str, output: str, inputs: tuple[str, ...], settings: dict[str, str], seed: int, costs: str | None,
    profile: bool, weights: str | None, ios: Stages, output_format: str, quiet: bool,
) -> bool:  # fmt: skip
    """Compile a static model, if it is one and costs of stages are at hand or to be measured; whether it was."""
    target = Path(output)
    source = _table_for(target, costs)
    if not profile and source is None:
        return False
    os.environ.setdefault(*SPIN)  # before torch is loaded
    from edbc.run.weightsfile import weights_for
    from edbc.stages.plan_graph import Limits
    from edbc.stages.table import read_table, table_path, write_table
    from edbc.tools.staged.compiling import Target, compile_static, is_static_file

    if not is_static_file(model, dict(settings), seed):
        if source is not None and costs is not None:
            raise UnsupportedError(
                f"{model}: expected instances that stack, to schedule by {source}, got others; leave --costs away"
            )
        return False
    if inputs:
        raise click.UsageError("a static model's plan depends on no data: leave --input away")
    beside = table_path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    require_target(target, "the plan", "name another --output", [model])
    require_target(beside, "the cost table", "name another --output", [model, target])
    progress = ProgressLine(quiet)
    compiled = compile_static(
        model,
        settings=dict(settings),
        seed=seed,
        plan=target,
        limits=Limits(ios.r, ios.s, ios.gap),
        target=Target(batch_size=ios.batch, threads=ios.threads or 0),
        table=None if profile or source is None else read_table(source),
        weights=weights_for(target, weights),
        guards=_guards_at(target),
        progress=progress,
    )
    from edbc.plan.static import write_static_plan

    write_table(compiled.table, beside)
    write_static_plan(compiled.plan, target)
    progress.tell_seconds()
    _print(output, compiled, output_format)
    return True


def _table_for(target: Path, costs: str | None) -> Path | None:
    """The table to compile with: the one that is named, or the one beside the plan."""
    from edbc.stages.table import SUFFIX, table_path

    if costs is not None:
        return Path(costs) if costs.endswith(SUFFIX) else None
    beside = table_path(target)
    return beside if found_at(beside) == "a file" else None


def _guards_at(target: Path) -> dict[str, Guard]:
    from edbc.plan.static import read_any_plan

    try:
        return dict(read_any_plan(target).guards) if found_at(target) == "a file" else {}
    except EdbcError:
        return {}


def _print(output: str, compiled: object, output_format: str) -> None:
    from edbc.tools.staged.compiling import CompiledStatic, metrics_of
    from edbc.tools.staged.explanation import totals, verdict

    assert isinstance(compiled, CompiledStatic)
    plan, parity = compiled.plan, compiled.parity
    found, metrics = totals(plan), metrics_of(plan)
    measured, distinct = (sum(getattr(b, name) for b in plan.static.blocks) for name in ("measured", "distinct"))
    if output_format == "json":
        print_json(
            {
                "plan": output,
                **metrics,
                "totals_ns": found,
                "form": plan.static.form,
                "measured_ns": {cost.form: cost.median_ns for cost in plan.static.measured},
                "measured": measured,
                "distinct": distinct,
                "max_error": parity.max_error,
                "eager_error": parity.eager_error,
            }
        )
        return
    for line in (
        f"{output}: a static model, {metrics['units']} units in {metrics['blocks']} blocks, {metrics['stages']} "
        f"stages, {metrics['merged']} of them merged",
        f"  {measured:,} of {distinct:,} stages measured, costs in {plan.static.costs.name}",
        "  in milliseconds: " + ", ".join(f"{name} {cost / 1e6:.2f}" for name, cost in found.items()),
        f"  {verdict(plan)}",
        f"  parity with eager: max error {parity.max_error:.2e} (eager's own {parity.eager_error:.2e}){parity.remark}",
    ):
        click.echo(fold(line))
