"""A static plan bound to a model, as people call it: a list of instances in, a list of results out.

(1) Instances are stacked to one batch, which runs by the plan's schedule whatever its size. Results have no gradients,
    so a model in training mode is refused.
(2) Kernels hold weights packed; when a parameter or a buffer has changed (`run.weights.touched`), they are packed anew,
    and layers may have been exchanged, so that the units are compared again.
(3) Which shapes an instance has no plan says: a plan that is bound to a model without an instance is held against the
    model by the first one.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from edbc.errors import DeviceError, InputError
from edbc.plan.static import StaticPlan, write_static_plan
from edbc.run.session import check_requirements
from edbc.run.weights.touched import Seen
from edbc.stages.net import BatchNet, StaticModel
from edbc.stages.table import CostTable, table_path, write_table
from edbc.tools.staged.explanation import StagesExplanation

if TYPE_CHECKING:
    from edbc.tools.compile.modelobject import ModelObject


@dataclass(frozen=True, kw_only=True)
class MeasuredPlan(StaticPlan):
    """A static plan with the cost table that it was made from, which is written beside it."""

    table: CostTable

    @classmethod
    def of(cls, plan: StaticPlan, table: CostTable) -> MeasuredPlan:
        """A plan with its table."""
        return cls(**_fields(plan), table=table)

    def save(self, path: str | Path) -> Path:
        """Write both; the plan names the table as it is called there."""
        from edbc.tools.staged.choosing import require_targets

        target = Path(path)
        require_targets(target, [])
        write_table(self.table, table_path(target))
        plain = StaticPlan(**_fields(self))
        costs = replace(plain.static.costs, name=table_path(target).name)
        write_static_plan(replace(plain, static=replace(plain.static, costs=costs)), target)
        return target


def _fields(plan: StaticPlan) -> dict[str, Any]:
    return {f.name: getattr(plan, f.name) for f in fields(StaticPlan)}


class StaticNet:
    """What `edbc.compile` gives for a static model: a net, callable on lists of instances, that can explain itself."""

    def __init__(self, plan: StaticPlan, model: nn.Module, example: Any = None):
        self.plan, self.model = plan, model
        self._bound: BatchNet[Any] | None = None
        self._ending: weakref.finalize[Any, StaticNet] | None = None
        self._seen: Seen | None = None
        if example is not None:
            self._ready(example)

    def __repr__(self) -> str:
        static = self.plan.static
        counts = f"{len(static.units)} units in {sum(len(block.stages) for block in static.blocks)} stages"
        how = f"run: {static.form}, measured for batches of {static.batch_size} in {static.workers}"
        return f"<edbc net of {self.plan.model.path}: one graph, {counts}; {how}>"

    def __call__(self, instances: Sequence[Any]) -> list[Any]:
        """The results of each instance, without gradients. Raises InputError for instances of other shapes than the
        first, and for a model in training mode."""
        if self.model.training:
            raise InputError(
                "model: expected one in evaluation mode, as stages have no gradients, got one in training mode; call "
                "model.eval(), train the model itself, or compile with stages=False"
            )
        return self._ready(instances[0])(instances) if instances else []

    def stream(self, instances: Iterable[Any], batch_size: int | None = None) -> Iterator[Any]:
        """A result per instance, in order; in batches of the plan's size unless told otherwise."""
        given = iter(instances)
        while batch := list(itertools.islice(given, batch_size or self.plan.static.batch_size)):
            yield from self(batch)

    def explain(self) -> StagesExplanation:
        """The blocks, their stages with costs, what was merged, and what other schedules cost."""
        return StagesExplanation(self.plan)

    def _ready(self, example: Any) -> BatchNet[Any]:
        """The schedule with the weights as they are now, definition (2)."""
        from edbc.tools.staged.compiling import bound_net

        named = dict(itertools.chain(self.model.named_parameters(), self.model.named_buffers()))
        if self._seen is None:
            _require_device(self.model)
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        seen = Seen.now([*named.values()], [*named], device, self._seen)
        if self._bound is None or seen is not self._seen:
            if self._ending is not None:
                self._ending()
            self._bound = bound_net(StaticModel(self.model, example, self.plan.model.path), self.plan)
            self._seen = seen
            self._ending = weakref.finalize(self, self._bound.close)
        return self._bound


def _require_device(model: nn.Module) -> None:
    device = next((p.device for p in model.parameters() if p.device.type not in ("cpu", "cuda")), None)
    if device is not None:
        raise DeviceError(f"device {device}: expected cpu or cuda, where static plans run so far; move the model there")


def checked_net(plan: StaticPlan, path: Path, given: ModelObject) -> StaticNet:
    """A plan that stands, bound to an object of its code: units are the model's, and results eager's."""
    from edbc.tools.staged.compiling import device_name, parity_of, require_kind_of_device

    here = device_name(next(given.model.parameters()).device.type)
    require_kind_of_device(plan, path, here, lambda told: warnings.warn(told, stacklevel=5))
    example = given.sample(1, 0, {})[0]
    net = StaticNet(plan, given.model, example)
    parity_of(StaticModel(given.model, example, given.name), plan, given, {}).require()
    return net


def bind_static(path: Path, plan: StaticPlan, model: nn.Module | None, options: dict[str, Any]) -> StaticNet:
    """What `LoadedPlan.bind` gives for a plan of stages."""
    check_requirements(plan.requirements)
    if model is None:
        from edbc.tools.running import Setting
        from edbc.tools.staged.running import model_and_example

        _file, _config, built, example = model_and_example(path, plan, Setting(**options), warnings.warn)
        return StaticNet(plan, built, example)
    wrong = next(iter(options), None)
    if wrong is not None:
        raise InputError(f"{wrong}: expected a plan of batches, got one of stages, which has none; leave it away")
    return StaticNet(plan, model)
