"""`edbc bench`: measure a plan and print a row per combination."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import click

from edbc.base.arguments import require_name
from edbc.errors import EdbcError, printable
from edbc.tools.console import print_json, warn
from edbc.tools.report.figures import size_text

LARGEST_BATCH = 1_000_000
"""So many instances are made up, and stay in memory."""


def run_bench(plan: str, inputs: tuple[str, ...], settings: dict[str, str], batch_sizes: str, against: str, limit: int,
              threads: int, model: str | None, trust_changed_model: bool, output_format: str,
              **options: Any) -> None:  # fmt: skip
    """Read the plan, measure every combination of sizes, print."""
    from edbc.plan.reader import read_plan

    loaded = read_plan(Path(plan))
    from edbc.tools.checking import model_path
    from edbc.tools.running import require_model

    require_model(loaded, model_path(Path(plan), loaded, model), trust_changed_model, warn)
    import torch

    torch.set_num_threads(threads)
    from edbc.tools.benchmark import BASELINES, Setting, bench_plan

    names = tuple(name for name in against.split(",") if name)
    for name in names:
        require_name("--against", name, BASELINES)
    rows: list[dict[str, Any]] = []
    combinations = list(itertools.product(_sizes(batch_sizes), _configs(settings)))
    for batch_size, config in combinations:
        setting = Setting(batch_size, names, max(limit, batch_size), **options)
        measured = bench_plan(Path(plan), loaded, inputs, config, setting, model)
        if output_format == "text":
            told = [", ".join(f"{key}={value}" for key, value in config.items())] if config else []
            click.echo("\n".join([*([] if rows else [HEADER]), *told, *map(line_of, measured)]))
        rows += [{**row.as_json(), "set": config} for row in measured]
    if output_format == "json":
        print_json({"rows": rows})


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1 or max(sizes) > LARGEST_BATCH:
        raise EdbcError(
            f"--batch-size {printable(text) or repr(text)}: expected integers from 1 to {LARGEST_BATCH:,} separated by "
            "commas; give some"
        )
    return sizes


def _configs(settings: dict[str, str]) -> list[dict[str, str]]:
    """Every combination of values that commas separate."""
    choices = [[(key, value) for value in text.split(",")] for key, text in settings.items()]
    return [dict(chosen) for chosen in itertools.product(*choices)]


HEADER = (
    f"{'plan':20} {'policy':10} {'front':8} {'backend':9} {'batch':>5} {'hidden':>6} {'inst/s':>9} {'spread':>6} "
    f"{'constr':>8} {'sched':>8} {'exec ms':>8} {'batches':>7} {'floor':>6} {'own':>6} {'eager':>6} {'peak':>8}"
)


def line_of(row: Any) -> str:
    """One row of the table."""
    seconds = {name: 1e3 * value for name, value in row.seconds.items()}
    return (
        f"{row.name:20} {row.policy:10} {row.front_end:8} {row.backend:9} {row.batch_size:5} "
        f"{row.hidden_size or '-':>6} "
        f"{row.instances_per_second:9,.0f} {100 * row.spread:5.0f}% {seconds['construction']:8.2f} "
        f"{seconds['scheduling']:8.2f} {seconds['execution']:8.2f} {row.batches:7.0f} {_times(row.gemm_floor_ratio)} "
        f"{_times(row.own_products_ratio)} {_times(row.eager_ratio)} {size_text(row.peak_bytes):>8}"
    )


def _times(ratio: float | None) -> str:
    return f"{'-':>6}" if ratio is None else f"{ratio:5.2f}x" if ratio < 100 else f"{ratio:5.0f}x"
