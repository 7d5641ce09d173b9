"""Checking a static plan: trace the model again, plan again from the cost table, compare; nothing is measured.

The table stands beside the plan, by the name and hash that the plan records. No device is needed that it was measured
on. Results are compared with eager PyTorch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from edbc.base.files import found_at, one_line
from edbc.errors import StaleError
from edbc.plan.plan import FileRef
from edbc.plan.reader import read_bytes
from edbc.plan.static import StaticPlan
from edbc.run.modelfile import import_model_file
from edbc.run.weights.weightsfile import model_of_plan
from edbc.stages import Stages
from edbc.stages.capture import cast
from edbc.stages.devices import machine_of
from edbc.stages.net import StaticModel
from edbc.stages.plan_graph import schedule_graph
from edbc.stages.table import Costs, CostTable, parse_table, require_table
from edbc.tools.staged.compiling import guards_of, parity_of, static_section


def table_of_plan(path: Path, plan: StaticPlan) -> CostTable:
    """The cost table that a plan names. Raises StaleError where it is missing, changed, or of something else."""
    where = path.parent / plan.static.costs.name
    found = found_at(where)
    if found != "a file":
        raise StaleError(
            f"{one_line(where)}: expected the cost table that the plan was made from, got {found}; put it back, or "
            "measure again with 'edbc compile --profile'"
        )
    data = read_bytes(where, one_line(where), "cost table")
    have = hashlib.sha256(data).hexdigest()
    if have != plan.static.costs.sha256:
        raise StaleError(
            f"{where}: expected the cost table that the plan was made from (sha256 {plan.static.costs.sha256[:16]}...),"
            f" got {have[:16]}...; run 'edbc compile' again"
        )
    table = parse_table(data, one_line(where))
    static = plan.static
    expected: dict[str, Any] = {name: getattr(static, name) for name in ("device", "threads", "dtype", "batch_size")}
    require_table(table, one_line(where), **expected)
    return table


def renew_static(path: Path, plan: StaticPlan, model_file: Path) -> StaticPlan:
    """What planning again gives; results are held against eager's on the way."""
    table = table_of_plan(path, plan)
    file = import_model_file(model_file)
    config = file.config(plan.model.config)
    model = model_of_plan(file, config, plan, path)
    dtype = getattr(torch, plan.static.dtype)
    static = StaticModel(model.to(dtype), cast(file.sample(1, plan.model.seed, config)[0], dtype), file.path.name)
    limits = Stages(plan.static.r, plan.static.s, float(plan.static.gap))
    planned = schedule_graph(static, machine_of(table.device, table.threads), Costs.of(table), limits)
    section = static_section(static.graph, planned, table, plan.static.costs.name, limits)
    renewed = replace(plan, static=replace(section, costs=FileRef(plan.static.costs.name, plan.static.costs.sha256)))
    parity_of(static, plan, file, config).require()
    return replace(renewed, guards=guards_of(renewed, plan.guards))


def differences(plan: StaticPlan, renewed: StaticPlan) -> Iterator[tuple[str, str]]:
    """What planning again gives otherwise: a name, and a sentence."""
    for name in ("r", "s", "gap", "form", "kernels", "measured", "units"):
        if getattr(plan.static, name) != getattr(renewed.static, name):
            yield name, f"{name}: planning again gives something else"
    if len(plan.static.blocks) != len(renewed.static.blocks):
        yield "blocks", f"blocks: {len(plan.static.blocks)}, planning again gives {len(renewed.static.blocks)}"
    for number, (old, new) in enumerate(zip(plan.static.blocks, renewed.static.blocks, strict=False)):
        if old != new:
            parts = [name for name in type(old).__dataclass_fields__ if getattr(old, name) != getattr(new, name)]
            yield f"blocks.{number}", f"block {number}: planning again gives other {', '.join(parts)}"
