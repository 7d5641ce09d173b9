"""`edbc compile`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from edbc.api import compile_file
from edbc.base.families import family, grouped, name_of
from edbc.plan.plan import Plan
from edbc.stages import SPIN
from edbc.stages.table import table_for
from edbc.tools.console import ProgressLine, fold, print_json, warn_unstable
from edbc.tools.explain.layouts import CellLayout, cell_layout
from edbc.tools.report.figures import count


def run_compile(model: str, output: str, settings: dict[str, Any], output_format: str, quiet: bool,
                **options: Any) -> None:  # fmt: skip
    """Compile, write, summarise; `options` are those of `edbc.api.compile_file`."""
    costs, profile = options["costs"], options["profile"]
    if profile and costs is not None:
        raise click.UsageError("--profile measures costs, --costs takes them from somewhere else: give one of the two")
    if profile or table_for(output, costs) is not None:
        os.environ.setdefault(*SPIN)  # before torch is loaded
    progress = ProgressLine(quiet)
    progress("import", 0, 1, {})
    compiled = compile_file(model, output, config=settings, progress=progress, **options)
    progress.tell_seconds()
    if not isinstance(compiled.plan, Plan):
        _print_static(output, compiled, output_format)
        return
    from edbc.tools.compile.compiler import measure

    metrics = measure(compiled.plan, compiled.captured)
    warn_unstable(compiled.parity)
    if output_format == "json":
        print_json(
            {
                "plan": output,
                **metrics,
                "states": len(compiled.plan.policy.table),
                **compiled.parity.as_json(),
                "gain": compiled.gain,
                "captured_gain": compiled.captured_gain,
                "run": "batched" if compiled.plan.run is None else "eager",
                "alone_gain": compiled.alone_gain,
                "alone": compiled.plan.alone or "as all",
            }
        )
        return
    source = "measured now" if profile else f"from {costs or f'the plan that stood at {output}'}"
    for line in (
        *_summary(output, compiled, metrics),
        *_eager(compiled),
        *_limits(compiled.plan.policy.training, options["trials"]),
        *_costs(compiled.plan, source),
    ):
        click.echo(fold(line))


def _print_static(output: str, compiled: Any, output_format: str) -> None:
    from edbc.tools.staged.summary import static_json, static_lines

    if output_format == "json":
        print_json(static_json(output, compiled))
        return
    for line in static_lines(output, compiled):
        click.echo(fold(line))


def _summary(output: str, compiled: Any, metrics: dict[str, int | float]) -> Iterator[str]:
    """What compiling gave: batches, what others need, operands that the layouts put in place, parity."""
    from edbc.tools.explain.foundcells import cells_text, fused_families

    plan, parity = compiled.plan, compiled.parity
    nodes, batches, bound = metrics["nodes"], metrics["batches"], metrics["lower_bound"]
    states = f" ({plan.policy.encoding}, {count(len(plan.policy.table), 'state')})" if plan.policy.encoding else ""
    yield f"{output}: {count(len(plan.types), 'type')}, policy {plan.policy.kind}{states}"
    instances = count(len(compiled.captured.instances), "instance")
    found = f"{count(int(nodes), 'node')} -> {count(int(batches), 'batch', 'batches')}"
    yield f"  {instances}: {found}, lower bound {bound:,}"
    yield f"  gained: {nodes / max(batches, 1):.1f} nodes per batch, where eager PyTorch runs one after the other"
    if plan.waves is not None:
        told = plan.waves.training
        rule = f"the rule alone {told['due']}"
        yield f"  waves: {told['steps']} steps, the longest path, in {told['batches']} batches ({rule})"
    if plan.automatic:
        yield f"  cells that nobody marked: {cells_text(plan.automatic)}"
    if plan.fused:
        yield f"  mined from the graph: {', '.join(map(name_of, fused_families(plan)))}"
    training = plan.policy.training
    others = {**training.get("baselines", {}), **({"beam": training["beam"]} if "beam" in training else {})}
    if others:
        graphs = len(compiled.captured.training)
        where = "graph" if graphs == 1 else f"{graphs} graphs, where this one needs {training['batches']:,}"
        yield f"  other policies on the same {where}: " + ", ".join(f"{k} {v}" for k, v in others.items())
    if plan.policy.beside is not None and plan.policy.beside != plan.policy.fallback:
        yield f"  the table alone loses to {plan.policy.beside}: both are simulated, and the cheaper schedule runs"
    layouts = [(t, cell_layout(t.name, plan.cells[t.name])) for t in plan.types]
    for group in grouped(layouts, lambda of: (family(of[0].signature), _memory(of[1]))):
        yield f"  {name_of([t.name for t, _ in group])}: {_memory(group[0][1])}"
    yield f"  parity with eager: {parity.errors}{parity.remark}"


def _eager(compiled: Any) -> Iterator[str]:
    """That batching does not pay, by how much, and what would help."""
    from edbc.tools.compile.worth import what_would_help

    if compiled.plan.alone is not None:
        yield f"  one instance alone: eager, which takes {compiled.alone_gain:.2f} of the time"
    if compiled.plan.run is None:
        return
    yield f"  run: eager, because {compiled.plan.run.eager}"
    first = "the first time " if compiled.captured.unseen else ""
    times = f"{1 / compiled.gain:.1f} times"
    yield f"    batched it takes {first}{times} as long here; 'edbc run --force' does it all the same"
    if compiled.captured_gain is not None:
        yield f"    captured instances run {'batched' if compiled.plan.run.captured else 'so too'}: \
{compiled.captured_gain:.1f} x eager"
    yield from (f"    what would help: {line}" for line in what_would_help(compiled.plan))


def _limits(training: Mapping[str, Any], trials: int) -> Iterator[str]:
    """What kept learning from all the trials that were asked for."""
    most = training.get("max_trials", trials)
    if most < trials:
        tables = f"{most:,} trials per table" if most else "no table was learned, fixed rules alone were compared"
        yield f"  types, nodes and batches are many, a trial of learning takes long: {tables}"
    if "time_limit" in training:
        tables = sum(c["kind"] == "fsm" for c in training["compared"])
        yield f"  learning stopped after {training['time_limit']:g} s: {tables} of 12 tables were ready"
        yield "  (--time-limit; another machine may choose another policy, this plan is checked as it stands)"


def _costs(plan: Plan, source: str) -> Iterator[str]:
    if plan.costs:
        yield f"  batches weighed by what they cost, {source}, in microseconds:"
    for group in grouped(plan.types if plan.costs else (), lambda t: family(t.signature)):
        costs = [plan.costs[t.name] for t in group]
        fixed, row = _range([cost.fixed_us for cost in costs]), _range([cost.row_us for cost in costs])
        yield f"    {name_of([t.name for t in group])}: {fixed} + {row} per row"


def _range(numbers: Sequence[float]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def _memory(layout: CellLayout) -> str:
    batches = count(len(layout.batches), "batch", "batches")
    return f"{count(layout.num_operations, 'operation')} in {batches}{_in_place(layout)}"


def _in_place(layout: CellLayout) -> str:
    before, after = layout.misplaced_before, layout.misplaced_after
    moved = f", operands out of place {before} -> {after}" if before else ""
    return f"{moved}, {count(layout.copies, 'copy', 'copies')} left"
