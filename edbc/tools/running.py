"""Running a plan over a stream of instances: what `edbc run` and `LoadedPlan.run` do, and the report of it.

(1) The plan is bound to its model file, which is imported after its hash was compared with the plan's, built with the
    plan's config and weights: the file that the plan records, else seeded ones (or those that the setting names).
(2) Instances come from files, or the model's `sample` makes up 256 (or `limit`) with seed 1; they run in mini-batches,
    in order. The first mini-batch runs once before the clock starts: it loads and compiles kernels, and its captures do
    not count as repeats. What it takes in memory is told before it executes, and again before a later one that takes
    MUCH_MORE times what was told.
(3) With `verify` every output is compared with eager PyTorch; see `edbc.tools.parity`.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from edbc.base.arguments import DEVICES, DTYPES, FRONT_ENDS, require_count, require_name
from edbc.base.families import fold_names
from edbc.base.files import found_at, require_target, write_tensors
from edbc.errors import InputError, ModelError, StaleError
from edbc.plan.plan import Plan
from edbc.plan.reader import read_plan
from edbc.plan.static import StaticPlan
from edbc.run.weights.weightsfile import SEEDED, model_of_plan
from edbc.tools.checking import model_path, require_same_model

if TYPE_CHECKING:
    from edbc.capture.forward.fibers import Reads
    from edbc.run.dataset import CapturedDataset
    from edbc.run.instances import Cast
    from edbc.run.modelfile import Config, ModelFile
    from edbc.run.outputs import OutputFile
    from edbc.run.passes.minibatch import MiniBatch, Observer
    from edbc.run.session import Net, Stats
    from edbc.schedule.policy import Policy
    from edbc.tools.parity import Parity
    from edbc.tools.report.timeline import Timeline

Warn = Callable[[str], None]
Tell = Callable[[str], None]
MUCH_MORE = 1.25
SETTLED = 4
"""Mini-batches from which on their median is told beside the mean, where it is MUCH_MORE."""
SAMPLED = 256
"""Instances made up where neither files nor a limit are given."""
MOST_NAMES = 8
"""Of unseen types in a report for people."""


@dataclass(frozen=True)
class Setting:
    """How a plan is bound and run: the options of `edbc run`."""

    inputs: Sequence[str | Path] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the model's `build` that differ from the plan's."""
    batch_size: int = 32
    limit: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    weights: str | None = None
    """A safetensors file in place of the plan's weights, or `none` for seeded ones."""
    seed: int | None = None
    """Seed of weights in place of the plan's weights."""
    output: str | None = None
    verify: bool = False
    trace: str | None = None
    policy: str | None = None
    layout: str = "plan"
    split: bool = True
    share: bool = True
    model: str | None = None
    trust_changed_model: bool = False
    force: bool = False
    """Run batched what the plan says to run eagerly."""
    strict: bool = False
    backend: str | None = None
    front_end: str = "record"
    max_reads: int | None = None
    """Values that one instance may read; None for edbc's own limit."""
    recompute: int | str | None = None
    """See `edbc.run.passes.cut`; it matters when gradients are asked for."""
    epochs: int = 1
    """How often all instances run; what is written, verified and reported is of the last time."""
    recapture: bool = False
    """Run forward in every epoch, in place of capturing each instance once (`edbc.capture.captured`)."""

    @property
    def asks_for_batches(self) -> list[str]:
        """The options that ask for what only batched execution has."""
        wishes = {"force": self.force, "verify": self.verify, "trace": self.trace, "policy": self.policy,
                  "backend": self.backend, "strict": self.strict, "front-end": self.front_end != "record"}  # fmt: skip
        return [f"--{name}" for name, wish in wishes.items() if wish]

    def __post_init__(self) -> None:
        """Raise EdbcError for what no run can do."""
        require_count("batch_size", self.batch_size)
        require_count("epochs", self.epochs)
        if self.max_reads is not None:
            require_count("max_reads", self.max_reads)
        if self.limit is not None:
            require_count("limit", self.limit, 0)
        require_name("device", self.device, DEVICES)
        require_name("dtype", self.dtype, DTYPES)
        require_name("front_end", self.front_end, FRONT_ENDS)


class Bound(NamedTuple):
    """A plan bound to its own model file, definition (1)."""

    file: ModelFile
    config: Config
    net: Net
    cast: Cast
    """What instances bring in the dtype in which the model was built comes in the one that it runs in."""


def bind_plan(path: Path, plan: Plan, setting: Setting, warn: Warn) -> Bound:
    """Import and build the plan's model and bind the plan to it.

    Raises StaleError for a changed model file or weights of another shape, DeviceError without the device.
    """
    model_file = model_path(path, plan, setting.model)
    require_model(plan, model_file, setting.trust_changed_model, warn)
    import torch

    from edbc.capture.captured.structurecache import structure_cache
    from edbc.capture.code.shadow import dtype_of
    from edbc.run.backend import require_device
    from edbc.run.instances import Cast
    from edbc.run.modelfile import import_model_file
    from edbc.run.session import Net, check_requirements

    require_device(setting.device)
    check_requirements(plan.requirements)
    file = import_model_file(model_file)
    config = file.config({**_known_config(file, plan), **setting.config})
    with torch.inference_mode(False):
        model = model_of_plan(file, config, plan, path, setting.seed, setting.weights)
        cast = Cast.between(dtype_of(model), getattr(torch, setting.dtype))
        model = model.to(setting.device, cast.to)
    rebind = cast.rebind(config != plan.model.config)
    reads: dict[str, Any] = {} if setting.max_reads is None else {"max_reads": setting.max_reads}
    net = Net(plan, model, force=setting.force, strict=setting.strict, policy=setting.policy, layout=setting.layout,
              backend=setting.backend, rebind=rebind, split=setting.split, share=setting.share,
              recompute=setting.recompute, **reads)  # fmt: skip
    net.cache = structure_cache(file.module, setting.verify)
    net.exemplars = lambda: cast(file.sample(plan.trained_on.instances, plan.trained_on.seed, config))
    return Bound(file, config, net, cast)


def require_model(plan: Plan | StaticPlan, model_file: Path, trust: bool, warn: Warn) -> None:
    """Raise StaleError when the plan was compiled from another model file; warn instead when that one is trusted."""
    try:
        require_same_model(plan, model_file)
    except StaleError as error:
        if found_at(model_file) != "a file":
            raise
        if not trust:
            raise StaleError(f"{error}, or run with --trust-changed-model") from None
        warn(f"{error}; trusted because of --trust-changed-model")


def _known_config(file: ModelFile, plan: Plan) -> Config:
    """The plan's config. Raises StaleError when the model's build does not take it (any more)."""
    try:
        return file.config(plan.model.config)
    except ModelError as error:
        raise StaleError(
            f"{error}; the plan has config that the model does not take; run 'edbc compile' again"
        ) from None


@dataclass(frozen=True)
class Report:
    """What a run did; `str()` is for people."""

    plan: str
    setting: Setting
    net: Net
    stats: Stats
    parity: Parity | None
    spent: Sequence[float]
    """Seconds of each mini-batch."""
    eager_spent: Sequence[float]
    """The same of eager, where it was run to compare."""
    ran_eagerly: bool = False
    """Whether instances ran one after the other, as the plan says."""
    epochs: Sequence[float] = ()
    """Instances per second of each epoch."""
    captured: CapturedDataset | None = None
    """The instances, where they were captured once."""

    @property
    def is_made_up(self) -> bool:
        """True when the model's `sample` gave the instances."""
        return not self.setting.inputs

    @property
    def median_rate(self) -> float:
        """Instances per second in the median mini-batch: the first ones record and compile what is new."""
        return _rate(self.setting.batch_size, statistics.median(self.spent)) if len(self.spent) >= SETTLED else 0.0

    @property
    def starts_slowly(self) -> bool:
        """Whether the first mini-batches took so long that the mean says little of later ones."""
        return self.median_rate > MUCH_MORE * _rate(self.stats.instances, self.stats.seconds.total)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON's types."""
        s = self.stats
        seconds = {part: getattr(s.seconds, part) for part in ("construction", "scheduling", "execution", "total")}
        content: dict[str, Any] = {
            "instances": s.instances,
            "source": "sample" if self.is_made_up else "input",
            "batch_size": self.setting.batch_size,
            "ran": "eager" if self.ran_eagerly else "batched",
            "nodes": s.nodes,
            "shared_nodes": s.shared_nodes,
            "shared_parts": s.shared_parts,
            "batches": s.batches,
            "lower_bound": s.lower_bound,
            "steps": {
                "table": s.table_steps,
                "fallback": s.unseen_states,
                "rule": s.steps - s.table_steps - s.unseen_states,
            },
            "mini_batches": s.mini_batches,
            "mini_batches_by_rule": s.by_rule,
            "unseen_states": s.unseen_states,
            "unseen_types": len(s.unseen_types),
            "unseen_type_names": sorted(s.unseen_types),
            "reads": dict(s.reads),
            "segments": s.segments,
            "unseen_reads": sorted(s.unseen_reads),
            "seconds": seconds,
            "instances_per_second": _rate(s.instances, s.seconds.total),
            "median_instances_per_second": self.median_rate or _rate(s.instances, s.seconds.total),
            "gathered_rows": s.gathered_rows,
            "operand_rows": s.operand_rows,
            "arena_bytes": s.arena_bytes,
            "backend": self.net.backend.name,
            "paths": {name: asdict(path) for name, path in sorted(s.paths.items())},
            "launches": s.launches,
            "device_steps": s.device_steps,
            "issuing_seconds": s.seconds.issuing,
            "epochs": list(self.epochs),
            "device": self.setting.device,
            "dtype": self.setting.dtype,
        }
        if self.captured is not None:
            content["captured"] = self.captured.as_json()
        if self.net.cache is not None:
            content["structures"] = self.net.cache.as_json()
        if self.parity is not None:
            eager = _rate(s.instances, sum(self.eager_spent))
            content |= {**self.parity.as_json(), "eager_instances_per_second": eager}
        return content

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        from edbc.tools.parity import NOTHING
        from edbc.tools.report.figures import count

        s, how = self.stats, self.setting
        found = count(s.instances, "made-up instance" if self.is_made_up else "instance")
        source = f"{found} (the model's sample)" if self.is_made_up else found
        yield f"{self.plan}: {source} in mini-batches of {how.batch_size}, {how.device}, {how.dtype}"
        if not s.instances:
            yield "  nothing ran" + ", so nothing was compared" * (self.parity is not None)
            return
        if self.ran_eagerly:
            run = self.net.plan.run
            why = "one instance alone is sooner so" if run is None else run.eager
            yield f"  ran eagerly, as the plan says: {why}; --force batches"
            yield f"  throughput   {_rate(s.instances, s.seconds.total):,.0f} instances/s"
            return
        if self.net.plan.run is not None and how.asks_for_batches:
            yield f"  batched for {', '.join(how.asks_for_batches)}, though the plan says run: eager"
        yield f"  batches      {s.batches:,} for {count(s.nodes, 'node')}; lower bound {s.lower_bound:,}"
        if s.shared_nodes or s.shared_parts:
            of_parts = f", and the eager parts of {s.shared_parts:,} more," if s.shared_parts else ""
            yield f"  shared       {count(s.shared_nodes, 'node')}{of_parts} equal others and ran once with them"
        waves = "waves of the plan's table" if self.net.plan.waves else "waves by the rule"
        yield f"  policy       {waves if self.net.waves else policy_text(self.net.policy, s)}"
        yield from self._unseen_lines()
        yield from self._read_lines()
        yield from self._cache_lines()
        yield f"  gathers      {s.gathered_rows:,} of {s.operand_rows:,} operand rows"
        later = f"; {self.median_rate:,.0f} in the median mini-batch: the first meet what is new" * self.starts_slowly
        yield f"  throughput   {_rate(s.instances, s.seconds.total):,.0f} instances/s{later}"
        yield from self._epoch_lines()
        yield from self._eager_lines()
        yield from self._path_lines()
        total = s.seconds.total or 1.0
        parts = {part: getattr(s.seconds, part) for part in ("construction", "scheduling", "execution")}
        yield "  time         " + ", ".join(f"{k} {v:.3f} s ({100 * v / total:.0f} %)" for k, v in parts.items())
        if how.device != "cpu":
            yield f"  issued in    {s.seconds.issuing:.3f} s of the execution, the rest is the device's"
        if self.parity is not None:
            verdict = "equal to eager" if self.parity.holds else "DIFFERENT from eager"
            errors = f"max error {self.parity.max_error:.2e}, eager's own {self.parity.eager_error:.2e}"
            told = f"{verdict}: {errors} (both against float64{self.parity.remark})"
            yield f"  parity       {NOTHING if self.parity.says_nothing else told}"
            if self.parity.decisions.reads:
                yield f"  decisions    {self.parity.decisions}"

    def _unseen_lines(self) -> Iterator[str]:
        """What the plan did not foresee; of many types the first names."""
        from edbc.tools.report.figures import count

        s, names = self.stats, sorted(self.stats.unseen_types)
        if s.unseen_states or names:
            told = fold_names(names)
            more = f" and {len(told) - MOST_NAMES:,} more" * (len(told) > MOST_NAMES)
            states = f"{s.unseen_states:,} states ({_share(s.unseen_states, s.steps)} of the batches)"
            yield f"  unseen       {states}, types: {', '.join(told[:MOST_NAMES]) or 'none'}{more}"
        if names:
            yield f"  not planned  {count(len(names), 'type')} ran generically; compile again on instances like these"

    def _read_lines(self) -> Iterator[str]:
        """Values that instances waited for."""
        s = self.stats
        if s.reads:
            sites = ", ".join(f"{site} ({number:,})" for site, number in list(s.reads.items())[:MOST_NAMES])
            yield f"  reads        {sum(s.reads.values()):,} in {s.segments:,} segments: {sites}"
        if s.unseen_reads:
            yield f"  not planned  reads at {', '.join(sorted(s.unseen_reads))}; compile again on instances like these"

    def _epoch_lines(self) -> Iterator[str]:
        from edbc.tools.report.figures import count, size_text

        if len(self.epochs) > 1:
            yield "  epochs       " + ", ".join(f"{rate:,.0f}" for rate in self.epochs) + " instances/s"
        data = self.captured
        if data is not None:
            size = f"{size_text(data.nbytes)}{f', {data.plain:,} as they are' if data.plain else ''}"
            yield f"  captured     {count(data.misses, 'instance')}, {size}; {data.checked:,} captured again and equal"

    def _cache_lines(self) -> Iterator[str]:
        cache = self.net.cache
        if cache is not None:
            repeats = f"{100 * cache.hit_rate:.1f} % of {cache.hits + cache.misses:,} captures were repeats"
            yield f"  structures   {repeats}; {cache.checked:,} captured again and equal"

    def _path_lines(self) -> Iterator[str]:
        """What ran in which way, unless all of it is native code; steps per batch in brackets."""
        by_path: dict[str, list[str]] = {}
        for name, path in sorted(self.stats.paths.items()):
            by_path.setdefault(path.name, []).append(name if path.steps is None else f"{name} ({path.steps})")
        if set(by_path) - {"native"}:
            told = (f"{path}: {', '.join(fold_names(names))}" for path, names in by_path.items())
            yield "  ran by       " + "; ".join(told)
        if self.stats.launches:
            s, warm_up = self.stats, getattr(self.net.backend, "warm_up", "")
            yield f"  launches     {s.launches:,} for {s.device_steps:,} steps; warm-up: {warm_up}"
        why_not = getattr(self.net.backend, "why_not", None)
        if why_not is not None:
            yield f"  no Triton    {why_not}"

    def _eager_lines(self) -> Iterator[str]:
        total, eager = self.stats.seconds.total, sum(self.eager_spent)
        if eager and total:
            later = f", {_times(self.spent, self.eager_spent)} in the median mini-batch" * self.starts_slowly
            yield (
                f"  eager        {_rate(self.stats.instances, eager):,.0f} instances/s in the same run: edbc is "
                f"{_times([total], [eager])} times as fast{later}"
            )


def policy_text(policy: Policy, stats: Stats) -> str:
    """What chose the batches, and how many of them."""
    if policy.kind != "fsm":
        return f"the fixed rule {policy.kind} chose every batch"
    text = f"a table over {policy.encoding} chose {_share(stats.table_steps, stats.steps)} of the batches"
    if policy.beside is None:
        return text
    return f"{text}; {policy.beside}, beside it, scheduled {stats.by_rule:,} of {stats.mini_batches:,} mini-batches"


def _times(spent: Sequence[float], eager: Sequence[float]) -> str:
    """How many times as fast as eager by the medians."""
    gain = statistics.median(eager) / statistics.median(spent)
    return f"{gain:.1f}" if gain >= 1 else f"{gain:.2g}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 0:.1f} %"


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def run_plan(path: Path, setting: Setting, warn: Warn, tell: Tell = lambda text: None) -> Report:
    """Bind and run. Outputs and timeline are written as the setting says; whether numbers agree is in the report."""
    plan = read_plan(path)
    require_targets(path, plan, setting)
    running = _Running(bind_plan(path, plan, setting, warn), setting)
    report = running.run(str(path), tell)
    if setting.output is not None and report.stats.instances and not running.file.parts:
        warn(f"{setting.output}: results hold no tensors, so nothing is in it")
    if setting.inputs and setting.limit != 0 and not report.stats.instances:
        warn(f"{', '.join(map(str, setting.inputs))}: the model file's load gave no instances, so nothing ran")
    return report


def require_targets(path: Path, plan: Plan | StaticPlan, setting: Setting, beside: Sequence[Path] = ()) -> None:
    """What is asked for can be written, before anything runs for it, and not over what is read, `beside` with it."""
    kept: list[str | Path] = [path, model_path(path, plan, setting.model), *beside, *setting.inputs]
    kept += [name for name in (setting.weights,) if name not in (None, SEEDED)]
    kept += [] if plan.model.weights is None else [path.parent / plan.model.weights.name]
    for target, what, option in ((setting.output, "outputs", "--output"), (setting.trace, "the timeline", "--trace")):
        if target is not None:
            require_target(target, what, f"name another {option}", kept)
            kept.append(target)


class _Running:
    """One run over a stream of instances."""

    def __init__(self, bound: Bound, setting: Setting):
        from edbc.run.outputs import OutputFile
        from edbc.run.session import Stats
        from edbc.tools.parity import Eager, Parity

        self.bound = bound
        self.setting = setting
        self.net = bound.net
        self.stats = Stats()
        self.parity = Parity()
        self.eager = Eager(self.net.model) if setting.verify else None
        self.spent: list[float] = []
        self.eager_spent: list[float] = []
        self.file = OutputFile()
        self.timeline = _timeline() if setting.trace is not None else None
        is_vertex = setting.front_end == "vertex"
        self.as_vertices = bound.file.vertex_instance(bound.config) if is_vertex else None
        self.told_bytes = 0.0
        captures = setting.epochs > 1 and not setting.recapture and self.net.captures
        runs_eagerly = self.net.runs_eagerly or (setting.batch_size == 1 and self.net.runs_eagerly_alone)
        self.is_eager = runs_eagerly and not (setting.asks_for_batches or captures)
        self.one_by_one = Eager(self.net.model) if self.is_eager else None
        self.captured: CapturedDataset | None = None
        self.is_last = True
        self.reads: Reads | None = None
        """Of the mini-batch that has run last."""

    def run(self, name: str, tell: Tell) -> Report:
        """Every mini-batch in order, definition (2), once per epoch."""
        from edbc.run.session import Stats

        rates: list[float] = []
        cast = self.bound.cast.each if self.setting.inputs else self.bound.cast
        instances: Iterable[Any] = cast(instances_of(self.bound.file, self.bound.config, self.setting, SAMPLED))
        if self.setting.epochs > 1:
            instances = list(instances)
            if not (self.setting.recapture or self.is_eager or self.as_vertices):
                from edbc.run.dataset import CapturedDataset

                self.captured = CapturedDataset(instances, self.net)
        for epoch in range(self.setting.epochs):
            self.stats, self.spent, self.is_last = Stats(), [], epoch == self.setting.epochs - 1
            for number, batch in enumerate(batches_of(instances, self.setting.batch_size)):
                self._run_batch(number, batch, epoch == number == 0, tell)
            rates.append(_rate(self.stats.instances, self.stats.seconds.total))
        self._write()
        parity = self.parity if self.eager is not None else None
        return Report(name, self.setting, self.net, self.stats, parity, self.spent, self.eager_spent, self.is_eager,
                      rates, self.captured)  # fmt: skip

    def _run_batch(self, number: int, batch: list[Any], is_first: bool, tell: Tell) -> None:
        before = self.stats.seconds.total
        with self.bound.cast.default():
            started = time.perf_counter()
            given = self._given(number, batch)
            if self.captured is not None:
                self.stats.seconds.construction += time.perf_counter() - started
            if is_first and not self.is_eager:
                self._warm_up(given, tell)
            verified = self.is_last and self.eager is not None
            with _unchanged(given if verified else ()):
                results = self._results(given, tell)
        self.spent.append(self.stats.seconds.total - before)
        if self.setting.output is not None and self.is_last:
            for result in results:
                self.file.add(result)
        if self.eager is not None and self.is_last:
            self._verify(self.eager, batch, results)

    def _given(self, number: int, batch: list[Any]) -> list[Any]:
        """What stands for the instances of a mini-batch."""
        if self.captured is not None:
            first = number * self.setting.batch_size
            return self.captured.__getitems__(range(first, first + len(batch)))
        return batch if self.as_vertices is None else list(map(self.as_vertices, batch))

    def _warm_up(self, given: list[Any], tell: Tell) -> None:
        told = self._telling_demand(len(given), tell)
        with _unchanged(given):
            self.net.run(given, observer=told, on_segment=partial(told, "place"))
        if self.net.cache is not None:
            self.net.cache.forget()

    def _telling_demand(self, count: int, tell: Tell) -> Observer:
        """Definition (2), told when a mini-batch, or a segment of one, has been placed."""
        return lambda name, batch: self._tell_demand(batch, count, tell) if name == "place" else None

    def _tell_demand(self, prepared: MiniBatch, count: int, tell: Tell) -> None:
        from edbc.tools.report.figures import size_text

        demand = prepared.demand
        if demand.total > MUCH_MORE * self.told_bytes:
            self.told_bytes = demand.total
            total, values = size_text(demand.total), size_text(demand.values)
            tell(f"memory: {total} for a mini-batch of {count}, {values} of it for values")

    def _results(self, given: list[Any], tell: Tell) -> list[Any]:
        if self.is_eager:
            return self._eager_results(given)

        told = self._telling_demand(len(given), tell)
        if self.timeline is None:
            results, prepared = self.net.run(given, self.stats, observer=told, on_segment=partial(told, "place"))
        else:
            results, prepared = self.timeline.run(self.net, given, self.stats, told)
        self.reads = prepared.capture.reads
        return results

    def _eager_results(self, given: list[Any]) -> list[Any]:
        import torch

        assert self.one_by_one is not None
        with self.one_by_one.at_its_best(given), torch.no_grad():
            started = time.perf_counter()
            results = self.net.run_eagerly(given)
        self.stats.instances += len(given)
        self.stats.seconds.execution += time.perf_counter() - started
        return results

    def _verify(self, eager: Any, batch: list[Any], results: list[Any]) -> None:
        from edbc.capture.captured.instance import Captured

        if Captured in set(map(type, batch)):
            raise InputError(
                "verify: expected instances that forward takes, got a Captured among them, which eager PyTorch cannot "
                "run; verify with the instances that were captured"
            )
        with eager.at_its_best(batch):
            with _unchanged(batch):
                started = time.perf_counter()
                eager.run(batch)
                self.eager_spent.append(time.perf_counter() - started)
            self.parity.add_all(results, self.reads, eager, batch)

    def _write(self) -> None:
        if self.timeline is not None and self.setting.trace is not None:
            self.timeline.write(self.setting.trace)
        if self.setting.output is not None:
            write_outputs(self.file, self.setting.output)


def _unchanged(instances: Iterable[Any]) -> AbstractContextManager[None]:
    """What runs over the same instances next must not find what forward keeps on them."""
    from edbc.capture.standins.objects import unchanged

    return unchanged(instances)


def _timeline() -> Timeline:
    from edbc.tools.report.timeline import Timeline

    return Timeline()


def write_outputs(outputs: OutputFile, path: str) -> None:
    """The file of `--output`."""
    write_tensors(outputs.tensors(), path, "outputs", "name another --output")


def instances_of(file: ModelFile, config: Config, setting: Setting, sampled: int) -> Iterable[Any]:
    """Of files, or made up: `sampled` where there is no limit."""
    if setting.inputs:
        return file.load(setting.inputs, config, setting.limit)
    return file.sample(sampled if setting.limit is None else setting.limit, 1, config)


def batches_of(instances: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """As many at a time; fewer in the last."""
    iterator = iter(instances)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
