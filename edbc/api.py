"""The Python interface: as thin as the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edbc.check import model_path, require_same_model
from edbc.errors import EdbcError
from edbc.plan.plan import Guard, Plan
from edbc.plan.reader import read_plan

if TYPE_CHECKING:
    from torch import nn

    from edbc.report.explain import Explanation
    from edbc.runtime.session import Net


@dataclass(frozen=True)
class LoadedPlan:
    """A plan that has been read and verified, and the file that it came from."""

    plan: Plan
    path: Path

    def bind(self, model: nn.Module | None = None, **options: Any) -> Net:
        """The plan bound to a model: a callable on lists of instances.

        Without `model`, the plan's model file is imported (which executes it; its hash is compared first) and built
        with the plan's config and seed. `options` are those of `edbc.runtime.session.Net`. Raises StaleError when the
        model file changed or lacks what the plan requires, PlanError when the plan's cells are not the model's.
        """
        from edbc.modelfile import import_model_file
        from edbc.runtime.session import Net, check_requirements

        check_requirements(self.plan.requirements)
        if model is None:
            file = model_path(self.path, self.plan)
            require_same_model(self.plan, file)
            model = import_model_file(file).build(dict(self.plan.model.config), self.plan.model.seed)
        return Net(self.plan, model, **options)

    def explain(self, *, inputs: Sequence[str | Path] = (), run: bool = True) -> Explanation:
        """What batches with what and why; `str()` is text, a notebook shows pictures. See `edbc explain`."""
        from edbc.report.explain import explain_file

        return explain_file(self.path, inputs=inputs, run=run)


def existing_guards(target: Path) -> dict[str, Guard]:
    """Guards survive recompiling; a file that is no plan is simply replaced."""
    try:
        return dict(read_plan(target).guards) if target.exists() else {}
    except EdbcError:
        return {}


def load(path: str | Path) -> LoadedPlan:
    """Read and verify a plan; nothing of the model runs. Raises PlanError with file and line."""
    return LoadedPlan(read_plan(Path(path)), Path(path))


def compile(
    model: str | Path,
    output: str | Path,
    *,
    inputs: Sequence[str | Path] = (),
    config: dict[str, int | float | str | bool] | None = None,
    seed: int = 0,
    policy: str = "fsm",
    encoding: str | None = None,
    trials: int = 1000,
    progress: Callable[[str, int, int, dict[str, Any]], None] | None = None,
) -> LoadedPlan:
    """Compile a model file and write the plan, whole or not at all; executes the model file.

    The same as `edbc compile MODEL -o OUTPUT` with options of these names (`config` is `--set`): guards of a plan that
    stands at `output` are kept. Raises what `edbc.compiler.compile_model` raises.
    """
    from edbc.compiler import compile_model
    from edbc.plan.writer import write_plan

    target = Path(output)
    target.parent.mkdir(parents=True, exist_ok=True)
    compiled = compile_model(
        model,
        inputs=inputs,
        settings=dict(config or {}),
        seed=seed,
        plan_folder=target.parent,
        encoding=encoding,
        policy=policy,
        trials=trials,
        guards=existing_guards(target),
        progress=progress,
    )
    write_plan(compiled.plan, target)
    return LoadedPlan(compiled.plan, target)
