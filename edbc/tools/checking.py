"""Checking committed plans: compile again what is recorded, compare, and hold the result against the guards.

Per plan: load and verify, compare the hashes of the model file and of the weights file that it records, capture again
from `sample()` at the recorded seed, plan layouts again, train the recorded encoding again with the recorded seed,
costs of batches and number of mini-batches (nothing is measured, no search over encodings, no beam), recompute the
guarded metrics, and compare batched with eager outputs. A plan trained on a data file that is not here keeps its
policy, which is evaluated instead of trained again; the outcome says so.

`against` holds the same metrics against the plan at another git commit too, by the limits that stood *there*: a limit
that was loosened, turned or dropped since is itself a regression, so that no change can excuse itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edbc.base.families import family, grouped, name_of
from edbc.base.files import found_at, one_line, require_file
from edbc.errors import EdbcError, InputError, PlanError, StaleError
from edbc.plan.plan import Guard, Plan, PlanCell, PlanType
from edbc.plan.reader import read_plan
from edbc.plan.static import StaticPlan, read_any_plan
from edbc.run.modelfile import hash_model_file, hashed_files
from edbc.run.weights.weightsfile import recorded_weights

PASSED, IMPROVED, REGRESSED, CHANGED = "passed", "improved", "regressed", "changed"


@dataclass(frozen=True)
class Finding:
    """One thing that differs; `fails` says whether the check fails for it."""

    what: str
    status: str
    text: str
    fails: bool
    against: str = ""
    """The commit that it was found against, if any; then compiling again is no remedy."""


@dataclass
class Outcome:
    """The check of one plan."""

    path: Path
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    metrics: dict[str, int | float] = field(default_factory=dict)
    error: EdbcError | None = None
    renewed: Plan | StaticPlan | None = None
    """What compiling again gives."""

    @property
    def passed(self) -> bool:
        """True when nothing fails."""
        return self.error is None and not any(f.fails for f in self.findings)

    @property
    def status(self) -> str:
        """The worst status of the findings."""
        if self.error is not None:
            return self.error.kind
        found = {f.status for f in self.findings}
        return next((s for s in (REGRESSED, CHANGED, IMPROVED) if s in found), PASSED)

    @property
    def exit_code(self) -> int:
        """The command line's exit code for this plan alone."""
        return self.error.exit_code if self.error is not None else 0 if self.passed else 1


def find_plans(paths: Sequence[str | Path]) -> list[Path]:
    """Plan files, and the `*.yaml` in folders, in order. Raises PlanError for what is neither."""
    found: list[Path] = []
    for path in map(Path, paths):
        if found_at(path) == "a folder":
            inside = sorted(plan for plan in path.glob("*.yaml") if not plan.name.endswith(".costs.yaml"))
            if not inside:
                raise PlanError(f"{path}: expected plans (*.yaml) in this folder, got none")
            found += inside
        else:
            require_file(path, "a plan or a folder of plans", PlanError, "check the path")
            found.append(path)
    return found


def check_plan(
    path: Path, *, strict: bool = False, against: str | None = None, accept_regression: bool = False
) -> Outcome:
    """Check one plan; see the module's docstring. `strict` also fails on improvements.

    `against` names a git commit; regressions from it are told and do not fail when they are accepted.
    """
    outcome = Outcome(path)
    try:
        _check(outcome, strict)
        if against is not None:
            _check_against(outcome, against, accept_regression)
    except EdbcError as error:
        outcome.error = error
    return outcome


def _check(outcome: Outcome, strict: bool) -> None:
    plan = read_any_plan(outcome.path)
    model = model_path(outcome.path, plan)
    require_same_model(plan, model)
    if isinstance(plan, StaticPlan):
        _check_static(outcome, plan, model, strict)
        return
    renewed, metrics = renew(plan, model, outcome)
    outcome.renewed, outcome.metrics = renewed, metrics
    outcome.findings += _compare_guards(plan, metrics, strict)
    outcome.findings += _compare_plans(plan, renewed)


def _check_static(outcome: Outcome, plan: StaticPlan, model: Path, strict: bool) -> None:
    """A static plan, planned again from its cost table."""
    from edbc.tools.staged.checking import differences, renew_static
    from edbc.tools.staged.compiling import metrics_of

    renewed = renew_static(outcome.path, plan, model)
    outcome.renewed, outcome.metrics = renewed, metrics_of(renewed)
    outcome.findings += _compare_limits_of(plan.guards, outcome.metrics, strict)
    outcome.findings += [Finding(name, CHANGED, text, True) for name, text in differences(plan, renewed)]


def _check_against(outcome: Outcome, revision: str, accept_regression: bool) -> None:
    from edbc.tools.report.history import plan_at

    before = plan_at(revision, outcome.path)
    if before is None:
        outcome.notes.append(f"there was no such plan at {revision}")
        return
    now = read_plan(outcome.path)
    if before.model.config != now.model.config:
        outcome.notes.append(f"the config is not the one of {revision}")
    for finding in _compare_limits(before, now, outcome.metrics, revision):
        fails = finding.fails and not accept_regression
        outcome.findings.append(replace(finding, fails=fails, against=revision))


def _compare_limits(before: Plan, now: Plan, metrics: dict[str, int | float], revision: str) -> Iterator[Finding]:
    """Metrics of now against the limits of before, and those limits against the ones of now."""
    for name, old in before.guards.items():
        new = now.guards.get(name)
        if new is None:
            yield Finding(name, REGRESSED, f"{name}: no longer guarded, at {revision} it was", True)
            continue
        if new.direction != old.direction or new.tolerance > old.tolerance:
            yield Finding(name, REGRESSED, f"{name}: its limit is looser than at {revision}", True)
        value = metrics.get(name, new.value)
        worse = _worsening(old, value)
        text = f"{name}: {value:g}, at {revision} it was {old.value:g} ({old.direction} is better)"
        if worse > old.tolerance:
            yield Finding(name, REGRESSED, text, True)
        elif worse < 0:
            yield Finding(name, IMPROVED, text, False)


def _worsening(guard: Guard, value: float) -> float:
    """How far a value is on the wrong side of a guard; negative when it is better."""
    return value - guard.value if guard.direction == "lower" else guard.value - value


def model_path(plan_path: Path, plan: Plan | StaticPlan, override: str | None = None) -> Path:
    """Where the plan's model file is. Raises InputError for a plan of an object, which has none."""
    if override is None and plan.is_of_object:
        raise InputError(
            f"{plan_path}: expected the plan of a model file, got that of an object, {plan.model.path}, which only a "
            f"program has: bind it there with edbc.compile(model, instances, plan={plan_path.name!r}), or write a "
            f"model file with 'edbc new NAME --from {plan.model.path}' and compile that"
        )
    return Path(override) if override is not None else plan_path.parent / plan.model.path


def require_same_model(plan: Plan | StaticPlan, model: Path) -> None:
    """Raise StaleError, with both hashes, when the model file is not the one that the plan was compiled from."""
    require_file(model, "the plan's model file", StaleError, "name it with --model FILE")
    have = hash_model_file(model)
    if have != plan.model.sha256:
        imported = ", ".join(one_line(name) for name in list(hashed_files(model))[1:])
        raise StaleError(
            f"{model}: expected the model file that the plan was compiled from (sha256 {plan.model.sha256[:16]}..."
            f"{f', with {imported}, which it imports: any of them may have changed' if imported else ''}), "
            f"got {have[:16]}...; run 'edbc compile' again"
        )


def _mini_batches(plan: Plan) -> int:
    """How many mini-batches the plan was trained on; one where it was on data, which is not here."""
    from edbc.tools.compile import compiler

    if plan.trained_on.source == "file":
        return 1
    return min(max(1, plan.trained_on.instances // compiler.BATCH), compiler.MOST_MINI_BATCHES)


def renew(plan: Plan, model: Path, outcome: Outcome) -> tuple[Plan, dict[str, int | float]]:
    """What compiling again with the recorded encoding and seed gives, and its metrics. Checks parity."""
    from edbc.run.session import plan_costs
    from edbc.tools.compile import compiler
    from edbc.tools.compile.decisions import Decisions, patterns_in

    is_of_data = plan.trained_on.source == "file"
    if is_of_data:
        outcome.notes.append(
            f"trained on {', '.join(f.name for f in plan.trained_on.files)}, which a check does not read: the policy "
            "is evaluated on made-up instances, not trained again"
        )
    captured = compiler.capture_for_compiling(
        model, [], dict(plan.model.config), plan.model.seed, lambda *_: None, _mini_batches(plan),
        recorded_weights(outcome.path, plan), Decisions(plan.automatic, plan.ragged, patterns_in(plan)),
    )  # fmt: skip
    # A plan without any parts may be one of --no-split; it is taken at its word.
    captured = replace(captured, split=any(cell.eager for cell in plan.cells.values()))
    cells = compiler.plan_cells(captured)
    if is_of_data:
        renewed = replace(plan, cells={**plan.cells, **{n: c for n, c in cells.items() if n in plan.cells}})
    else:
        policy, waves = plan.policy, plan.waves
        if policy.kind == "fsm":
            policy = compiler.retrain(captured, policy, plan_costs(plan))
        if waves is not None:
            waves = compiler.learn_plan_waves(captured, int(waves.training["seed"]))
        types = tuple(PlanType(t.name, t.signature, t.source) for t in captured.types)
        renewed = replace(plan, types=types, policy=policy, waves=waves, cells=cells, trained_on=captured.trained_on,
                          reads=captured.reads)  # fmt: skip
    metrics = compiler.measure(renewed, captured)
    parity = compiler.check_parity(plan, captured)
    parity.require()
    outcome.notes += [f"output {name!r}: eager itself is unstable here: {how}" for name, how in parity.unstable.items()]
    renewed = replace(renewed, guards=compiler.guards_of(metrics, plan.guards))
    return renewed, metrics


def _compare_guards(plan: Plan, metrics: dict[str, int | float], strict: bool) -> Iterator[Finding]:
    """Metrics against the plan's limits; a guard without a metric, or the reverse, fails."""
    guards = plan.guards
    if plan.trained_on.source == "file":
        metrics = {k: v for k, v in metrics.items() if k in ("copies", "kernels")}
        guards = {name: guard for name, guard in guards.items() if name in metrics}
    yield from _compare_limits_of(guards, metrics, strict)


def _compare_limits_of(guards: dict[str, Guard], metrics: dict[str, int | float], strict: bool) -> Iterator[Finding]:
    """Metrics against limits."""
    for name, guard in guards.items():
        value = metrics.get(name)
        if value is None:
            yield Finding(name, REGRESSED, f"{name}: the plan guards it, but nothing measures it", True)
            continue
        worse = _worsening(guard, value)
        text = f"{name}: {value:g}, the plan says {guard.value:g} ({guard.direction} is better)"
        if worse > guard.tolerance:
            yield Finding(name, REGRESSED, text, True)
        elif worse < 0:
            yield Finding(name, IMPROVED, text + "; record it with 'edbc check --update'", strict)


def _compare_plans(plan: Plan, renewed: Plan) -> Iterator[Finding]:
    """Everything else that compiling again would write differently."""
    for name in ("types", "trained_on", "requirements", "reads", "waves"):
        if getattr(plan, name) != getattr(renewed, name):
            text = f"{name}: compiling again gives something else"
            if name == "trained_on" and plan.trained_on.source == "sample":
                text += "; does sample give equal instances for equal arguments?"
            yield Finding(name, CHANGED, text, True)
    if plan.policy != renewed.policy:
        yield Finding("policy", CHANGED, f"policy: {_policy_difference(plan, renewed)}", True)
    yield from _compare_cells(plan, renewed)


def _compare_cells(plan: Plan, renewed: Plan) -> Iterator[Finding]:
    """Cells in which the same fields differ and whose types are alike are one finding."""
    signatures = {t.name: t.signature for t in (*renewed.types, *plan.types)}
    differing = [(name, _differing(plan.cells.get(name), renewed.cells.get(name))) for name in signatures]
    changed = [(name, parts) for name, parts in differing if parts]
    for group in grouped(changed, lambda cell: (family(signatures[cell[0]]), cell[1])):
        name, parts = group[0]
        told = name_of([other for other, _ in group])
        text = f"cell {told}: compiling again gives other {', '.join(parts)}"
        yield Finding(f"cells.{name}", CHANGED, text, True)


def _differing(old: PlanCell | None, new: PlanCell | None) -> tuple[str, ...]:
    parts = ("operations", "batches", "layout", "weights", "copies", "eager")
    return tuple(part for part in parts if getattr(old, part, None) != getattr(new, part, None))


def _policy_difference(plan: Plan, renewed: Plan) -> str:
    old, new = plan.policy.table, renewed.policy.table
    for state in dict.fromkeys([*old, *new]):
        if old.get(state) != new.get(state):
            does, learns = old.get(state, "nothing"), new.get(state, "nothing")
            return f"in state '{state}' the plan does {does}, training again gives {learns}"
    return "training again gives another record"
