"""`edbc compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edbc.api import existing_guards
from edbc.cli.console import ProgressLine, print_json, warn_unstable


def run_compile(
    model: str,
    output: str,
    inputs: tuple[str, ...],
    settings: dict[str, str],
    seed: int,
    policy: str,
    encoding: str | None,
    trials: int,
    split: bool,
    output_format: str,
    quiet: bool,
    report: str | None = None,
) -> None:
    """Compile, write, summarise."""
    target = Path(output)
    guards = existing_guards(target)
    progress = ProgressLine(quiet)
    progress("import", 0, 1, {})
    from edbc.compiler import compile_model
    from edbc.plan.writer import write_plan

    target.parent.mkdir(parents=True, exist_ok=True)
    compiled = compile_model(
        model,
        inputs=inputs,
        settings=dict(settings),
        seed=seed,
        plan_folder=target.parent,
        encoding=encoding,
        policy=policy,
        trials=trials,
        split=split,
        guards=guards,
        progress=progress,
    )
    write_plan(compiled.plan, target)
    progress.finish()
    if report is not None:
        from edbc.report.explain import explain_compiled
        from edbc.report.page import write_page

        write_page(report, explain_compiled(target.name, compiled).html())
    from edbc.compiler import measure

    metrics = measure(compiled.plan, compiled.captured)
    warn_unstable(compiled.parity)
    if output_format == "json":
        parity = compiled.parity
        print_json(
            {
                "plan": output,
                **metrics,
                "states": len(compiled.plan.policy.table),
                "max_error": parity.max_error,
                "eager_error": parity.eager_error,
                "unstable": sorted(parity.unstable),
            }
        )
        return
    _print_summary(output, compiled, metrics)


def _print_summary(output: str, compiled: Any, metrics: dict[str, int | float]) -> None:
    plan, parity = compiled.plan, compiled.parity
    nodes, batches, bound = metrics["nodes"], metrics["batches"], metrics["lower_bound"]
    click.echo(
        f"{output}: {len(plan.types)} types, policy {plan.policy.kind}"
        + (f" ({plan.policy.encoding}, {len(plan.policy.table)} states)" if plan.policy.encoding else "")
    )
    click.echo(
        f"  {len(compiled.captured.instances)} instances: {nodes:,} nodes -> {batches} batches, lower bound {bound}"
    )
    baselines = plan.policy.training.get("baselines", {})
    if baselines:
        click.echo("  other policies on the same graph: " + ", ".join(f"{k} {v}" for k, v in baselines.items()))
    for name, cell in plan.cells.items():
        operations = sum(not _is_source(line) for line in cell.operations)
        click.echo(f"  {name}: {operations} operations in {len(cell.batches)} batches, {cell.copies} copies left")
    click.echo(f"  parity with eager: max error {parity.max_error:.2e} (eager's own {parity.eager_error:.2e})")


def _is_source(line: str) -> bool:
    return " = input(" in line or " = parameter(" in line
