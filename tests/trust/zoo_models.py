"""Committed plans bound to small models, with made-up instances and what eager gives for them; each made once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from zoo_names import short_instances

from edbc.plan.plan import Plan
from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net
from edbc.tools.parity import Eager, Parity

PLANS = Path(__file__).resolve().parents[2] / "plans"
ZOO = sorted(path.stem for path in PLANS.glob("*.yaml"))
HEAVY = ("dag_gru", "tree_fc", "neural_module_network")
SMALL = {"hidden_size": 12, "vocab_size": 64, "num_matrices": 8}


@dataclass(frozen=True, eq=False)
class ZooModel:
    """A model of the zoo at a small size."""

    plan: Plan
    model: Any
    instances: list[Any]
    eager: list[Any]
    exact: list[Any]

    def bind(self, plan: Plan | None = None, **options: Any) -> Net:
        """This or another plan bound to the model."""
        return Net(plan or self.plan, self.model, rebind=True, **options)

    def require_parity(self, results: list[Any], which: range | None = None) -> None:
        """The project's parity rule, for results of the instances in `which` (all)."""
        parity = Parity()
        for result, i in zip(results, which or range(len(self.instances)), strict=True):
            parity.add(result, self.eager[i], self.exact[i])
        parity.require()
        assert not parity.unstable


@cache
def zoo_model(name: str) -> ZooModel:
    """The zoo's model `name`."""
    plan = read_plan(PLANS / f"{name}.yaml")
    file = import_model_file(PLANS / plan.model.path)
    small = {key: value for key, value in SMALL.items() if key in plan.model.config}
    config = file.config({**plan.model.config, **small})
    model = file.build(config, 0)
    instances = short_instances(file, 2 if name in HEAVY else 6, 5, config)
    eager = Eager(model)
    return ZooModel(plan, model, instances, eager.run(instances), eager.reference(instances))
