"""`edbc run`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from edbc.cli.console import ProgressLine, print_json, warn_unstable
from edbc.errors import DeviceError, EdbcError, StaleError


def run_run(
    plan: str,
    inputs: tuple[str, ...],
    settings: dict[str, str],
    batch_size: int,
    limit: int | None,
    device: str,
    dtype: str,
    weights: str | None,
    output: str | None,
    verify: bool,
    policy: str | None,
    layout: str,
    model: str | None,
    trust_changed_model: bool,
    strict: bool,
    backend: str | None,
    output_format: str,
    quiet: bool,
    trace: str | None = None,
    front_end: str = "record",
) -> None:
    """Load, bind, execute, report."""
    from edbc.plan.reader import read_plan

    loaded = read_plan(Path(plan))
    from edbc.check import model_path

    model_file = model_path(Path(plan), loaded, model)
    require_model(loaded, model_file, trust_changed_model)
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("--device cuda: expected a CUDA device, got none; run with --device cpu")
    from edbc.modelfile import import_model_file
    from edbc.runtime.session import Net, Stats, check_requirements
    from edbc.trace.cache import structure_cache

    check_requirements(loaded.requirements)
    file = import_model_file(model_file)
    config = file.config({**loaded.model.config, **settings})
    net_model = file.build(config, loaded.model.seed).to(device, getattr(torch, dtype))
    if weights is not None:
        load_weights(net_model, weights)
    rebind = config != loaded.model.config or None
    net = Net(loaded, net_model, strict=strict, policy=policy, layout=layout, backend=backend, rebind=rebind)
    net.cache = structure_cache(file.module, verify)
    made_up = not inputs
    instances: Iterable[Any] = (
        file.sample(256 if limit is None else limit, 1, config) if made_up else file.load(inputs, config, limit)
    )
    stats = Stats()
    session = _Run(net, stats, verify, output, ProgressLine(quiet))
    if front_end == "vertex":
        session.as_vertices = file.vertex_instance(config)
    if trace is not None:
        from edbc.report.timeline import Timeline

        session.timeline = Timeline()
    session.run(instances, batch_size)
    if session.timeline is not None and trace is not None:
        session.timeline.write(trace)
    if output is not None:
        session.write(output)
    if output_format == "json":
        print_json(session.as_json(batch_size, device, dtype, made_up))
    else:
        session.print(plan, batch_size, device, dtype, made_up)
    if session.parity is not None:
        warn_unstable(session.parity)
        session.parity.require()


def require_model(plan: Any, model_file: Path, trust: bool) -> None:
    """Raise StaleError when the plan was compiled from another model file; warn instead when that one is trusted."""
    from edbc.check import require_same_model

    try:
        require_same_model(plan, model_file)
    except StaleError as error:
        if not trust or not model_file.is_file():
            raise StaleError(f"{error}, or run with --trust-changed-model") from None
        click.echo(f"Warning: {error}; trusted because of --trust-changed-model", err=True)


def load_weights(model: Any, path: str) -> None:
    """Load a safetensors file into the model. Raises StaleError with both sides when names or shapes differ."""
    import safetensors
    from safetensors.torch import load_file

    if not Path(path).is_file():
        raise EdbcError(f"{path}: expected a safetensors file, got nothing")
    try:
        state = load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise EdbcError(
            f"{path}: expected a safetensors file, got {error}; write one with safetensors.torch.save_file"
        ) from None
    own = model.state_dict()
    for name in [*own, *state]:
        ours = tuple(own[name].shape) if name in own else "nothing"
        theirs = tuple(state[name].shape) if name in state else "nothing"
        if ours != theirs:
            raise StaleError(
                f"{path}: weight {name!r}: expected {ours} from the model, got {theirs}; give weights of this "
                "model and config"
            )
    model.load_state_dict(state)


class _Run:
    """One run over a stream of instances."""

    def __init__(self, net: Any, stats: Any, verify: bool, output: str | None, progress: ProgressLine):
        from edbc.parity import Eager, Parity
        from edbc.runtime.outputs import OutputFile

        self.net = net
        self.stats = stats
        self.progress = progress
        self.parity = Parity() if verify else None
        self.eager = Eager(net.model) if verify else None
        self.eager_seconds = 0.0
        self.file = OutputFile() if output is not None else None
        self.warm_up_seconds = 0.0
        self.timeline: Any = None
        self.as_vertices: Callable[[Any], Any] | None = None

    def run(self, instances: Iterable[Any], batch_size: int) -> None:
        """Every mini-batch in order. The first runs once before the clock starts: it loads and compiles kernels."""
        for number, batch in enumerate(_batches(instances, batch_size)):
            given = batch if self.as_vertices is None else list(map(self.as_vertices, batch))
            if number == 0:
                started = time.perf_counter()
                self.net(given)
                self.warm_up_seconds = time.perf_counter() - started
            if self.timeline is not None:
                results = self.timeline.run(self.net, given, self.stats)
            else:
                results, _ = self.net.run(given, self.stats)
            if self.file is not None:
                for result in results:
                    self.file.add(result)
            if self.parity is not None:
                self._verify(batch, results)

    def _verify(self, batch: list[Any], results: list[Any]) -> None:
        started = time.perf_counter()
        eager = self.eager.run(batch)  # type: ignore[union-attr]
        self.eager_seconds += time.perf_counter() - started
        reference = self.eager.reference(batch)  # type: ignore[union-attr]
        for ours, theirs, exact in zip(results, eager, reference, strict=True):
            self.parity.add(ours, theirs, exact)  # type: ignore[union-attr]

    def write(self, path: str) -> None:
        """The outputs as safetensors, whole or not at all."""
        from safetensors.torch import save_file

        temporary = Path(path).with_name(f".{Path(path).name}.part")
        try:
            save_file(self.file.tensors(), temporary)  # type: ignore[union-attr]
            temporary.replace(path)
        except Exception as error:
            temporary.unlink(missing_ok=True)
            raise EdbcError(f"{path}: expected to write outputs there, got {error}; name another --output") from None

    def as_json(self, batch_size: int, device: str, dtype: str, made_up: bool) -> dict[str, Any]:
        """The report as one object."""
        s = self.stats
        content: dict[str, Any] = {
            "instances": s.instances,
            "source": "sample" if made_up else "input",
            "batch_size": batch_size,
            "nodes": s.nodes,
            "batches": s.batches,
            "lower_bound": s.lower_bound,
            "unseen_states": s.unseen_states,
            "unseen_types": len(s.unseen_types),
            "unseen_type_names": sorted(s.unseen_types),
            "seconds": {
                "construction": s.seconds.construction,
                "scheduling": s.seconds.scheduling,
                "execution": s.seconds.execution,
                "total": s.seconds.total,
            },
            "instances_per_second": _rate(s.instances, s.seconds.total),
            "gathered_rows": s.gathered_rows,
            "operand_rows": s.operand_rows,
            "arena_bytes": s.arena_bytes,
            "backend": self.net.backend.name,
            "device": device,
            "dtype": dtype,
        }
        if self.parity is not None:
            content |= {
                "max_error": self.parity.max_error,
                "eager_error": self.parity.eager_error,
                "unstable": sorted(self.parity.unstable),
                "eager_instances_per_second": _rate(s.instances, self.eager_seconds),
            }
        return content

    def print(self, plan: str, batch_size: int, device: str, dtype: str, made_up: bool) -> None:
        """The report for people."""
        s, seconds = self.stats, self.stats.seconds
        source = "made-up instances (the model's sample)" if made_up else "instances"
        click.echo(f"{plan}: {s.instances:,} {source} in mini-batches of {batch_size}, {device}, {dtype}")
        click.echo(f"  batches      {s.batches:,} for {s.nodes:,} nodes; lower bound {s.lower_bound:,}")
        if s.unseen_states or s.unseen_types:
            click.echo(
                f"  unseen       {s.unseen_states:,} states, types: {', '.join(sorted(s.unseen_types)) or 'none'}"
            )
        if self.net.cache is not None:
            cache = self.net.cache
            click.echo(
                f"  structures   {100 * cache.hit_rate:.1f} % of {cache.hits + cache.misses:,} captures were repeats; "
                f"{cache.checked:,} captured again and equal"
            )
        click.echo(f"  gathers      {s.gathered_rows:,} of {s.operand_rows:,} operand rows")
        click.echo(f"  throughput   {_rate(s.instances, seconds.total):,.0f} instances/s")
        if self.eager_seconds:
            rate = _rate(s.instances, self.eager_seconds)
            gain = self.eager_seconds / seconds.total if seconds.total else 0.0
            click.echo(f"  eager        {rate:,.0f} instances/s in the same run: edbc is {gain:.1f} times as fast")
        total = seconds.total or 1.0
        click.echo(
            "  time         "
            + ", ".join(
                f"{name} {getattr(seconds, name):.3f} s ({100 * getattr(seconds, name) / total:.0f} %)"
                for name in ("construction", "scheduling", "execution")
            )
        )
        if self.parity is not None:
            verdict = "equal to eager" if self.parity.holds else "DIFFERENT from eager"
            click.echo(
                f"  parity       {verdict}: max error {self.parity.max_error:.2e}, eager's own "
                f"{self.parity.eager_error:.2e} (both against float64)"
            )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _batches(instances: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(instances)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
