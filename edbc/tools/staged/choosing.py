"""Which models are compiled in stages, and compiling the ones that are.

(1) A model file is, where its made-up instances stack (`edbc.stages.capture`) and costs of stages are at hand, in a
    table that is named or stands beside the plan, or are to be measured (`--profile`). Others are compiled in batches.
(2) An object is, where its instances stack, forward of two as one is that of each, forward can be traced, and in the
    trace a convolution runs and no module twice. Then nothing repeats inside an instance, so batches could hold whole
    instances only, and of convolutions these gain nothing. Networks of linear layers alone stay dynamic, as their rows
    batch natively and train. The costs are those of the table beside the plan, else measured. `stages=True` asks for
    it, with the reason why not as an error, `stages=False` for batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from edbc.base.files import require_target
from edbc.errors import InputError, UnsupportedError
from edbc.plan.plan import Guard
from edbc.plan.static import write_static_plan
from edbc.run.modelfile import import_model_file
from edbc.run.weights.weightsfile import weights_for
from edbc.stages import Stages
from edbc.stages.capture import Traced, is_stackable, require_stacking, trace
from edbc.stages.table import CostTable, read_table, table_for, table_path, write_table
from edbc.tools.staged.compiling import CompiledStatic, compile_static

if TYPE_CHECKING:
    from edbc.tools.compile.modelobject import ModelObject

LOOKED_AT = 32
"""Instances of an object that must stack."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)


def compile_file_in_stages(
    model: str | Path, target: Path, *, inputs: Sequence[str | Path], settings: dict[str, Any], seed: int,
    costs: str | Path | None, profile: bool, weights: str | Path | None, guards: dict[str, Guard], stages: Stages,
    progress: Callable[..., None],
) -> CompiledStatic | None:  # fmt: skip
    """Compile a model file and write plan and table, where costs are at hand or to be measured, definition (1); None
    where its instances do not stack."""
    source = table_for(target, costs)
    file = import_model_file(model)
    if not is_stackable(file.sample(2, seed, file.config(settings))):
        if source is not None and costs is not None:
            raise UnsupportedError(
                f"{model}: expected instances that stack, to schedule by {source}, got others; leave --costs away"
            )
        return None
    if inputs:
        raise InputError(
            f"{model}: expected no --input, as a static model's plan depends on no data, got one; leave it away"
        )
    require_targets(target, [model])
    compiled = compile_static(
        file,
        settings=settings,
        seed=seed,
        plan=target,
        stages=stages,
        table=None if profile or source is None else read_table(source),
        weights=weights_for(target, weights),
        guards=guards,
        progress=progress,
    )
    write_table(compiled.table, table_path(target))
    write_static_plan(compiled.plan, target)
    return compiled


def compile_object_in_stages(
    given: ModelObject, target: Path | None, stages: Stages, *, profile: bool, guards: dict[str, Guard],
    progress: Callable[..., None], seed: int = 0,
) -> CompiledStatic:  # fmt: skip
    """Compile an object, definition (2); `target` is where its plan will stand, if anywhere."""
    table: CostTable | None = None
    if target is not None:
        require_targets(target, [])
        source = None if profile else table_for(target, None)
        table = None if source is None else read_table(source)
    some = next((p for p in given.model.parameters() if p.is_floating_point()), torch.empty(0))
    return compile_static(
        given,
        settings={},
        seed=seed,
        plan=Path(f"{given.name}.yaml") if target is None else target,
        stages=stages._replace(device=some.device.type),
        dtype=str(some.dtype).removeprefix("torch."),
        table=table,
        guards=guards,
        progress=progress,
    )


def is_static_object(given: ModelObject) -> bool:
    """Definition (2) for a model that nobody said it of."""
    instances = given.sample(LOOKED_AT, 0, {})
    if not any(isinstance(module, CONVOLUTIONS) for module in given.model.modules()) or not is_stackable(instances):
        return False
    try:
        require_stacking(given.model, instances, given.name)
        traced = trace(given.model, instances[0], given.name)
    except UnsupportedError:
        return False
    return runs_every_layer_once(traced)


def runs_every_layer_once(traced: Traced) -> bool:
    """Whether a convolution is called, and no module with weights twice."""
    calls = Counter(str(node.target) for node in traced.nodes if node.op == "call_module")
    modules = {name: traced.module.get_submodule(name) for name in calls}
    repeated = any(count > 1 and any(True for _ in modules[name].parameters()) for name, count in calls.items())
    return not repeated and any(isinstance(module, CONVOLUTIONS) for module in modules.values())


def require_targets(target: Path, read: Sequence[str | Path]) -> None:
    """Raise EdbcError unless plan and table can be written, and not over what is read."""
    target.parent.mkdir(parents=True, exist_ok=True)
    require_target(target, "the plan", "name another --output", list(read))
    require_target(table_path(target), "the cost table", "name another --output", [*read, target])
