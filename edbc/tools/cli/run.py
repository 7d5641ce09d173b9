"""`edbc run`."""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edbc.errors import EdbcError
from edbc.stages import SPIN
from edbc.tools.console import ProgressLine, fold, print_json, warn, warn_unstable
from edbc.tools.report.figures import count

ENGINE_OPTIONS = {"workers": None, "address": None, "on_error": "fail", "keep_order": False}
"""What they are where nothing is asked of an engine."""
BINDING = ("device", "dtype", "model", "trust_changed_model", "force", "strict", "backend", "policy", "layout", "split",
           "share", "max_reads")  # fmt: skip
"""Options of a run that say how a plan is bound, in workers too."""


def run_run(plan: str, output_format: str, quiet: bool, inputs: tuple[str, ...], settings: dict[str, str],
            **options: Any) -> None:  # fmt: skip
    """Load, bind, execute, report; unless `quiet`, what a mini-batch takes in memory is told first."""
    engine = {name: options.pop(name) for name in ENGINE_OPTIONS}
    kind = options.pop("engine")
    if kind is not None:
        _run_engine(kind, plan, output_format, quiet, inputs, settings, options, engine)
        return
    for name, value in engine.items():
        if value != ENGINE_OPTIONS[name]:
            raise EdbcError(
                f"--{name.replace('_', '-')}: expected --engine beside it, got none; give --engine processes or ray"
            )
    from edbc.plan.static import StaticPlan, read_any_plan
    from edbc.tools.running import Setting, run_plan

    def tell(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    setting, found = Setting(inputs, settings, **options), read_any_plan(plan)
    if isinstance(found, StaticPlan):
        os.environ.setdefault(*SPIN)  # before torch is loaded
        from edbc.tools.staged.running import run_static

        given = click.get_current_context().get_parameter_source("batch_size") is not ParameterSource.DEFAULT
        report: Any = run_static(Path(plan), found, setting, setting.batch_size if given else None, warn, tell)
    else:
        report = run_plan(Path(plan), setting, warn, tell)
    if output_format == "json":
        print_json(report.as_json())
    else:
        for line in str(report).splitlines():
            click.echo(fold(line))
    if report.parity is not None:
        warn_unstable(report.parity)
        report.parity.require()


def _run_engine(kind: str, plan: str, output_format: str, quiet: bool, inputs: tuple[str, ...],
                settings: dict[str, str], options: dict[str, Any], engine: dict[str, Any]) -> None:  # fmt: skip
    """A job on an engine (`edbc.reach`)."""
    from edbc.reach.jobs import Job, Summary, prepared

    _require_of_engine(kind, options, engine)
    progress = ProgressLine(quiet)
    progress(kind, 0, 1, {})
    binding = {name: options[name] for name in BINDING} | {"config": settings}
    job = prepared(Job(plan, inputs, options["output"], options["batch_size"], options["weights"], engine["on_error"],
                       engine["keep_order"], binding), warn)  # fmt: skip
    started = time.perf_counter()
    if kind == "ray":
        from edbc.reach.ray_engine import run_ray

        parts = run_ray(job, engine["workers"], engine["address"])
    else:
        from edbc.reach.processes import run_processes

        parts = run_processes(job, engine["workers"])
    summary = Summary()
    with closing(parts):
        summary.add(parts)
    summary.finish(job)
    seconds = time.perf_counter() - started
    progress.finish()
    content = {"plan": plan, "engine": kind, "files": len(job.files), "instances": summary.rows,
               "parts": len(summary.parts), "broken": summary.broken, "seconds": seconds,
               "output": options["output"]}  # fmt: skip
    if output_format == "json":
        print_json(content)
        return
    click.echo(
        fold(
            f"{plan}: {count(summary.rows, 'instance')} of {count(len(job.files), 'file')} by engine {kind} in "
            f"{seconds:.1f} s"
        )
    )
    written = count(len(summary.parts), "part")
    click.echo(fold(f"{options['output']}: {written} and index.json; broken rows: {summary.broken:,}"))


def _require_of_engine(kind: str, options: dict[str, Any], engine: dict[str, Any]) -> None:
    """Raise EdbcError for what an engine cannot do."""
    from edbc.tools.running import Setting

    if kind != "ray" and engine["address"] is not None:
        raise EdbcError("--address: expected --engine ray beside it, got processes of this machine; leave it out")
    if options["output"] is None:
        raise EdbcError("--engine: expected --output FOLDER for the parts, got none; name one")
    defaults = {f.name: f.default for f in fields(Setting)}
    for name in ("verify", "trace", "limit", "epochs", "recapture", "front_end"):
        if options[name] != defaults[name]:
            raise EdbcError(f"--{name.replace('_', '-')}: expected to run without --engine, got both; leave one out")
