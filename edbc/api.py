"""The Python interface: as thin as the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from edbc.base.files import found_at, require_target, write_text
from edbc.errors import EdbcError, InputError, PlanError, warn_caller
from edbc.plan.plan import BatchCost, Guard, Plan
from edbc.plan.reader import read_plan
from edbc.plan.static import StaticPlan, read_any_plan
from edbc.stages import Stages

if TYPE_CHECKING:
    from torch import nn

    from edbc.plan.difference import PlanDiff
    from edbc.run.session import Net
    from edbc.tools.benchmark import Row
    from edbc.tools.checking import Outcome
    from edbc.tools.compile.compiler import Compiled
    from edbc.tools.compile.modelobject import CompiledNet
    from edbc.tools.explain.explanation import Explanation
    from edbc.tools.running import Report
    from edbc.tools.staged.compiling import CompiledStatic
    from edbc.tools.staged.explanation import StagesExplanation
    from edbc.tools.staged.net import StaticNet
    from edbc.tools.staged.running import StaticReport
    from edbc.train.fit.loop import Epoch, Step


@dataclass(frozen=True)
class LoadedPlan:
    """A plan that has been read and verified, and the file that it came from."""

    plan: Plan | StaticPlan
    path: Path

    def __repr__(self) -> str:
        return f"<edbc plan {self.path} of {self.plan if isinstance(self.plan, Plan) else self.plan.model.path}>"

    def _of_batches(self, doing: str) -> Plan:
        """The plan, for what only plans of batches can do. Raises PlanError for one of stages."""
        if isinstance(self.plan, StaticPlan):
            raise PlanError(
                f"{self.path}: expected a plan of batches for {doing}, got one of stages, of a static model; bind, "
                "run, explain and check take it"
            )
        return self.plan

    def bind(
        self,
        model: nn.Module | str | Path | None = None,
        *,
        force: bool = False,
        strict: bool = False,
        policy: str | None = None,
        layout: str = "plan",
        backend: str | None = None,
        recompute: int | str | None = None,
        **building: Any,
    ) -> Net | StaticNet:
        """The plan bound to a model: a callable on lists of instances.

        With `recompute` training takes less memory and more time: a mini-batch's schedule is cut into so many segments,
        or with "auto" into as many as the square root of its number of batches, and the backward pass computes each
        again from what crosses their borders. Gradients are the same; see docs/training.md.

        Where the plan says `run: eager` a call runs the model on one instance after the other, unless the model is in
        training mode, or `force` is given; where it says `alone: eager`, a call with one instance does.

        Without `model`, the plan's model file, or with the name of another that one, is imported (which executes it;
        its hash is compared first) and built. `building` then says how: `config`, `device`, `dtype`, `weights` and
        `trust_changed_model` of `edbc.tools.running.Setting`. Raises StaleError when the model file changed, when
        the plan requires what is not here, and when its cells are not the model's. Repeated structures are captured
        once when the file of the model's class has a `structure_key`.

        A plan of stages gives a `StaticNet`, and takes of these options those of `building`; bound to a `model`, its
        first instance says whether the model is the plan's.
        """
        from edbc.capture.captured.structurecache import structure_cache
        from edbc.run.modelfile import exemplars_of
        from edbc.run.session import Net, check_requirements

        options: dict[str, Any] = {"force": force, "strict": strict, "policy": policy, "layout": layout,
                                   "backend": backend, "recompute": recompute}  # fmt: skip
        if isinstance(model, str | Path):
            building["model"], model = str(model), None
        if isinstance(self.plan, StaticPlan):
            from edbc.tools.staged.net import bind_static

            wishes = {k: v for k, v in options.items() if v not in (None, False, "plan")}
            return bind_static(self.path, self.plan, model, {**wishes, **building})
        if model is not None:
            check_requirements(self.plan.requirements)
            net = Net(self.plan, model, **options, **building)
            module = sys.modules.get(type(model).__module__)
            net.cache, net.exemplars = structure_cache(module), exemplars_of(module, self.plan)
            return net
        from edbc.tools.running import Setting, bind_plan

        return bind_plan(self.path, self.plan, Setting(**options, **building), warn_caller).net

    def run(self, inputs: Sequence[str | Path] = (), **options: Any) -> Report | StaticReport:
        """Run instances and report, as `edbc run` does; `options` are the fields of `edbc.tools.running.Setting`.

        Raises CheckFailed when `verify` is asked for and the numbers are not eager's.
        """
        from edbc.tools.running import Setting, run_plan

        setting = Setting(inputs, **options)
        report: Report | StaticReport
        if isinstance(self.plan, StaticPlan):
            from edbc.tools.staged.running import run_static

            report = run_static(self.path, self.plan, setting, options.get("batch_size"), warn_caller)
        else:
            report = run_plan(self.path, setting, warn_caller)
        if report.parity is not None:
            report.parity.require()
        return report

    def explain(
        self,
        *,
        inputs: Sequence[str | Path] = (),
        config: dict[str, Any] | None = None,
        model: str | None = None,
        run: bool = True,
    ) -> Explanation | StagesExplanation:
        """What batches with what and why; `str()` is text, a notebook shows pictures. See `edbc explain`."""
        if isinstance(self.plan, StaticPlan):
            from edbc.tools.staged.explanation import StagesExplanation

            return StagesExplanation(self.plan)
        from edbc.tools.explain.explanation import explain_file

        return explain_file(self.path, model=model, inputs=inputs, config=config, run=run)

    def check(self, *, strict: bool = False, against: str | None = None, accept_regression: bool = False) -> Outcome:
        """What `edbc check` finds; nothing is written (`write_plan(outcome.renewed, path)` is its `--update`)."""
        from edbc.tools.checking import check_plan

        return check_plan(self.path, strict=strict, against=against, accept_regression=accept_regression)

    def diff(self, new: LoadedPlan) -> PlanDiff:
        """What changed from this plan to `new`; `text()` and `is_worse` as in `edbc diff`."""
        from edbc.plan.difference import diff_plans

        return diff_plans(self._of_batches("diff"), new._of_batches("diff"))

    def train(
        self,
        output: str | Path,
        *,
        inputs: Sequence[str | Path] = (),
        dev: Sequence[str | Path] = (),
        model: str | None = None,
        watch: Callable[[Step | Epoch], None] = lambda event: None,
        **setting: Any,
    ) -> list[Epoch]:
        """Train as `edbc train` does, with files in the folder `output`; gives the figures of every epoch.

        `setting` are the fields of `edbc.tools.training.Setting`. `watch` is called after every step and every epoch;
        what it raises ends training, and the last epoch's checkpoint remains.
        """
        from edbc.tools.training import Setting, Training

        self._of_batches("training")
        training = Training(self.path, model, Setting(output, inputs, dev, **setting), warn_caller)
        for event in training.run():
            watch(event)
        return training.history

    def bench(
        self,
        inputs: Sequence[str] = (),
        *,
        config: dict[str, Any] | None = None,
        model: str | None = None,
        **setting: Any,
    ) -> list[Row]:
        """Measure as `edbc bench` does; `setting` are the fields of `edbc.tools.benchmark.Setting`."""
        from edbc.tools.benchmark import Setting, bench_plan

        return bench_plan(self.path, self._of_batches("bench"), inputs, config or {}, Setting(**setting), model)


def what_stands(target: Path | None) -> tuple[dict[str, Guard], Plan | None]:
    """Of the plan at `target` the guards, which survive recompiling, and the plan where it is one of batches. A file
    that is no plan is simply replaced."""
    try:
        plan = read_any_plan(target) if target is not None and found_at(target) != "nothing" else None
    except EdbcError:
        plan = None
    return {} if plan is None else dict(plan.guards), plan if isinstance(plan, Plan) else None


def require_targets(target: Path, model: str | Path, inputs: Sequence[str | Path], weights: str | Path | None,
                    report: str | Path | None) -> None:  # fmt: skip
    """Raise EdbcError unless plan and report can be written, before anything is compiled for them, and not over what
    is read."""
    read: list[str | Path] = [model, *inputs, *(name for name in (weights,) if name is not None)]
    require_target(target, "the plan", "name another --output", read)
    if report is not None:
        require_target(report, "the page", "name another --report", [target, *read])


def costs_for(stood: Plan | None, source: str | Path | None) -> dict[str, BatchCost]:
    """The cost table to compile with: of the plan `source`, none for `none`, else of the plan that stands.

    Raises PlanError when `source` is no plan or has no cost table.
    """
    if source == "none":
        return {}
    if source is not None:
        costs = read_plan(Path(source)).costs
        if not costs:
            raise PlanError(f"{source}: expected a plan with a cost table, got one without; measure one with --profile")
        return dict(costs)
    return {} if stood is None else dict(stood.costs)


def load(path: str | Path) -> LoadedPlan:
    """Read and verify a plan; nothing of the model runs. Raises PlanError with file and line."""
    return LoadedPlan(read_any_plan(Path(path)), Path(path))


@overload
def compile(model: str | Path, output: str | Path, **options: Any) -> LoadedPlan: ...


@overload
def compile(model: nn.Module, instances: Any, **options: Any) -> CompiledNet | StaticNet: ...


def compile(model: Any, *where: Any, **options: Any) -> Any:
    """Compile a model: an object in memory to a net, or a model file to a plan.

        net = edbc.compile(model, instances)                    # an nn.Module; a list, data set or DataLoader
        net = edbc.compile(model, instances, plan="plan.yaml")  # check and bind the plan that stands there, or write it
        plan = edbc.compile("model.py", "plan.yaml")            # as `edbc compile`; executes the file

    An object. Learns a policy from the first 32 instances, compares batched with eager outputs, and returns a net that
    is called on lists of instances and has `net.plan.save(path)` and `net.explain()`. Where items of the data hold more
    than an instance, `instance` says at which position or key it is. Where `plan` stands already nothing is learned:
    its code, cells and numbers are checked; `renew` compiles anew. `force`, `strict` and `recompute` are those of
    `LoadedPlan.bind`. Raises StaleError for the plan of another model.

    A convolutional network, all of whose instances have one graph, is compiled in stages (docs/stages.md), for which it
    is measured, and gives a `StaticNet`, for inference; `stages=False` compiles it as others are, and a value of
    `edbc.Stages` says how wide stages may be and for which batch. See `edbc.tools.staged.choosing`.

    A file. The options are those of `compile_file`. A static model's is compiled in stages with `profile`.

    Options for both: `seed`, `policy`, `encoding`, `trials`, `time_limit`, `split`, `mini_batches`, `profile`,
    `measure_gain`, `cells`, `progress`; see `compile_file`. Of an object a bar on stderr tells progress, where that is
    a terminal, unless `progress` is given. Raises ModelError, InputError, UnsupportedError, and CheckFailed when
    batched outputs differ from eager.
    """
    if isinstance(model, str | Path):
        compiled = compile_file(model, *where, **options)
        return LoadedPlan(compiled.plan, Path(where[0] if where else options["output"]))
    from edbc.tools.compile.modelobject import compile_object

    return compile_object(model, *where, **options)


def compile_file(
    model: str | Path,
    output: str | Path,
    *,
    inputs: Sequence[str | Path] = (),
    config: dict[str, int | float | str | bool] | None = None,
    seed: int = 0,
    policy: str = "fsm",
    encoding: str | None = None,
    objective: str = "batches",
    trials: int = 1000,
    time_limit: float = 30.0,
    split: bool = True,
    report: str | Path | None = None,
    mini_batches: int = 1,
    costs: str | Path | None = None,
    profile: bool = False,
    weights: str | Path | None = None,
    measure_gain: bool = True,
    cells: str = "auto",
    stages: Stages | None = None,
    progress: Callable[[str, int, int, dict[str, Any]], None] | None = None,
) -> Compiled | CompiledStatic:
    """Compile a model file and write the plan, whole or not at all; executes the model file.

    A static model with `profile`, or with costs of stages at hand, is compiled in `stages` (docs/stages.md).

    The same as `edbc compile MODEL -o OUTPUT` with options of these names (`config` is `--set`): guards of a plan that
    stands at `output` are kept, and its cost table and its record of a weights file too, unless `costs`, `profile` or
    `weights` say otherwise. Raises what `edbc.tools.compile.compiler.compile_model` raises, PlanError when `costs`
    names no plan with a cost table, and what `edbc.run.weights.weightsfile.weights_for` raises.
    """
    from edbc.plan.writer import write_plan
    from edbc.run.weights.weightsfile import weights_for
    from edbc.stages.table import table_for
    from edbc.tools.compile.compiler import compile_model

    target = Path(output)
    target.parent.mkdir(parents=True, exist_ok=True)
    require_targets(target, model, inputs, weights, report)
    guards, stood = what_stands(target)
    if profile or table_for(target, costs) is not None:
        from edbc.tools.staged.choosing import compile_file_in_stages

        static = compile_file_in_stages(
            model, target, inputs=inputs, settings=dict(config or {}), seed=seed, costs=costs, profile=profile,
            weights=weights, guards=guards, stages=stages or Stages(),
            progress=progress or (lambda *_: None),
        )  # fmt: skip
        if static is not None:
            return static
    if stages is not None and stages.device != "cpu":
        raise InputError(
            f"--device {stages.device}: expected --profile, or costs of stages, and a model whose instances stack, got "
            "none of them; leave it out"
        )
    compiled = compile_model(
        model,
        inputs=inputs,
        settings=dict(config or {}),
        seed=seed,
        plan_folder=target.parent,
        encoding=encoding,
        policy=policy,
        objective=objective,
        trials=trials,
        time_limit=time_limit,
        split=split,
        mini_batches=mini_batches,
        costs={} if profile else costs_for(stood, costs),
        profile=profile,
        weights=weights_for(target, weights),
        guards=guards,
        measure_gain=measure_gain,
        stood=stood,
        cells=cells,
        progress=progress,
    )
    write_plan(compiled.plan, target)
    if report is not None:
        from edbc.tools.explain.explanation import explain_compiled

        write_text(report, explain_compiled(target.name, compiled).html(), "the page", "name another file")
    return compiled
