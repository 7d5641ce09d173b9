"""Measuring a plan: instances per second, where the time goes, and how far it is from what is possible.

Definitions.

(1) In a *round* everything that is compared takes its turn: all mini-batches, one after the other, as in use (each
    finds the caches as the one before has left them, not as eager PyTorch has). The figures are medians over
    mini-batches and rounds; `spread` is the distance between the quartiles of the total, as a part of its median.
(2) The *GEMM floor* of a mini-batch: for every batch of a type with products, in the order of the schedule, one
    `torch.mm(out=)` with all gates side by side over the longest of the products' inputs; nothing hoisted, nothing
    shared, nothing gathered, no activation. The schedule is that of the graph as captured, in which every node runs
    whole: what a plan does not compute because an equal node did, the floor computes. A product of a node's own
    matrices is a `torch.mm(out=)` of its own. *Own products* are those that the plan executes, one `torch.mm(out=)`
    each. Same process, same threads;
    execution and floor take FLOOR_TURNS turns on FLOOR_BATCHES mini-batches, and the least processor time of each
    counts (on a device the least time until it is done): a busy machine interrupts long calls more often than short
    ones.
(3) *Eager* is the unmodified model, instance by instance, without gradients; it takes its turns until it has used up
    EAGER_SECONDS (a setting), and at least one. Ratios to it are taken on the same mini-batches of the same rounds.
(4) The front end `record` runs the model's forward per instance. `vertex` joins instances that were turned into arrays
    when they were loaded, for models that can (`vertex_instance`). `captured` joins instances that were captured before
    (`edbc.capture.captured`), as in all epochs but the first; it is measured where it is asked for.
(5) `issuing` is the part of execution in which the host issues work; on a device the rest of it is waiting. `launches`
    are those of generated kernels. `device_seconds` is the device's own part: it is held up while the host issues a
    whole mini-batch, then timed by its own clock. Where its queue cannot hold all of that it is an upper bound; on a
    CPU it is None.
(6) `peak_bytes` is what the largest mini-batch takes for values and workspace, known before it executes. `peak_gflops`
    is the measured peak of one core (`runtime.peak`), `achieved_gflops` the operations of a mini-batch's products over
    the time of all of its execution, activations and everything, `peak_share` the second over the first.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edbc.base.arguments import DEVICES, DTYPES, require_count, require_name
from edbc.capture.code.shadow import dtype_of
from edbc.capture.semantics.rules import name_of
from edbc.capture.standins.objects import unchanged
from edbc.cells.program import Call, Program
from edbc.cells.values.read import values_of
from edbc.cells.values.value import in_order
from edbc.errors import InputError
from edbc.plan.plan import Plan
from edbc.run.backend import require_device, wait_for
from edbc.run.cpu.walktables import NativeKernel
from edbc.run.instances import Cast
from edbc.run.modelfile import Config, import_model_file
from edbc.run.passes.arenas import arena_bytes
from edbc.run.passes.minibatch import MiniBatch
from edbc.run.passes.placement import place
from edbc.run.session import Net, Stats
from edbc.run.weights.weightsfile import model_of_plan
from edbc.schedule.schedule import Schedule
from edbc.tools.checking import model_path
from edbc.tools.parity import Eager

WHOLE, UNSHARED = "no-split", "no-share"
"""The plan's policy with every cell run whole, and with every node run, whether it equals another one or not."""
BASELINES = ("eager", "depth", "agenda", "sufficient", "critical", WHOLE, UNSHARED)
_OWN = {"matmul", "mm", "mv", "dot"}
"""Calls that are products of a node's own matrices."""
EAGER_SECONDS = 10.0
FLOOR_BATCHES, FLOOR_TURNS = 2, 15
DEVICE_TURNS, LONGEST_HOLD = 5, 0.25
CYCLES_PER_SECOND = 2e9
"""At least what a GPU's clock does, so that a device is held up for longer than asked rather than for less."""


@dataclass(frozen=True)
class Row:
    """One measured combination; `seconds` are per mini-batch."""

    name: str
    front_end: str
    backend: str
    policy: str
    batch_size: int
    hidden_size: int | None
    threads: int
    instances_per_second: float
    spread: float
    seconds: dict[str, float]
    batches: float
    gemm_floor_ratio: float | None
    own_products_ratio: float | None
    eager_ratio: float | None
    peak_bytes: int
    cell_output_bytes: int
    device: str = "cpu"
    dtype: str = "float32"
    launches: float = 0.0
    device_seconds: float | None = None
    peak_gflops: float | None = None
    achieved_gflops: float | None = None
    peak_share: float | None = None
    """Definition (6)."""

    def as_json(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class _Sample:
    """One mini-batch of one round."""

    instances: int
    construction: float
    scheduling: float
    execution: float
    issuing: float
    batches: int
    launches: int
    eager: float | None

    @property
    def total(self) -> float:
        return self.construction + self.scheduling + self.execution


@dataclass
class _Contestant:
    """One of those that take turns."""

    net: Net
    front_end: str
    policy: str
    batches: list[list[Any]]
    samples: list[_Sample] = field(default_factory=list)
    peak_bytes: int = 0
    cell_output_bytes: int = 0


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    batch_size: int = 32
    against: tuple[str, ...] = ("eager",)
    limit: int = 256
    rounds: int = 3
    dtype: str = "float32"
    backend: str | None = None
    device: str = "cpu"
    eager_seconds: float = EAGER_SECONDS
    weights: str | None = None
    """As in `edbc.tools.running.Setting`."""
    front_end: str | None = None
    """`captured` to measure captured instances too, definition (4)."""

    def __post_init__(self) -> None:
        """Raise EdbcError for what cannot be measured."""
        for name in ("batch_size", "limit", "rounds"):
            require_count(name, getattr(self, name))
        for name in self.against:
            require_name("against", name, BASELINES)
        if self.front_end is not None:
            require_name("front_end", self.front_end, ("captured",))
        require_name("dtype", self.dtype, DTYPES)
        require_name("device", self.device, DEVICES)


def bench_plan(path: Path, plan: Plan, inputs: Sequence[str], settings: dict[str, Any], setting: Setting,
               model: str | None = None) -> list[Row]:  # fmt: skip
    """Measure a plan with one config and batch size; a row for the plan's policy, then one per baseline.

    Without inputs the model's `sample` gives the instances. Raises InputError when there are none.
    """
    require_device(setting.device)
    file = import_model_file(model_path(path, plan, model))
    config = file.config({**plan.model.config, **settings})
    built = model_of_plan(file, config, plan, path, weights=setting.weights)
    cast = Cast.between(dtype_of(built), getattr(torch, setting.dtype))
    net_model = built.to(setting.device, cast.to)
    instances = cast(file.load(inputs, config, setting.limit) if inputs else file.sample(setting.limit, 1, config))
    if not instances:
        raise InputError(f"{inputs[0] if inputs else file.path}: expected instances to measure, got none")
    rebind = cast.rebind(config != plan.model.config)
    policies = [plan.policy.kind, *(p for p in setting.against if p not in ("eager", plan.policy.kind))]
    convert = getattr(file.module, "vertex_instance", None)
    contestants = []
    for policy in policies:
        of_plan = policy in (plan.policy.kind, WHOLE, UNSHARED)
        net = Net(plan, net_model, policy=None if of_plan else policy, backend=setting.backend, rebind=rebind,
                  split=policy != WHOLE, share=policy != UNSHARED)  # fmt: skip
        if net.waves is not None and policy == plan.policy.kind:
            policy = "waves"
        contestants.append(_Contestant(net, "record", policy, _batches(instances, setting.batch_size)))
        if convert is not None:
            packed = [convert(instance, **config) for instance in instances]
            contestants.append(_Contestant(net, "vertex", policy, _batches(packed, setting.batch_size)))
        if setting.front_end is not None:
            with cast.default():
                captured = net.capture_all(instances)
            contestants.append(_Contestant(net, "captured", policy, _batches(captured, setting.batch_size)))
    eager = Eager(net_model) if "eager" in setting.against else None
    with cast.default():
        _take_turns(contestants, eager, _batches(instances, setting.batch_size), setting)
        rows = [_row(path.stem, config, contestant, setting) for contestant in contestants]
    return rows if eager is None else [*rows, _eager_row(path.stem, config, contestants[0], setting)]


def _batches(instances: Sequence[Any], size: int) -> list[list[Any]]:
    """Full mini-batches; a rest counts only when it is all there is."""
    whole = [list(instances[i : i + size]) for i in range(0, len(instances) - size + 1, size)]
    return whole or [list(instances)]


def _take_turns(contestants: Sequence[_Contestant], eager: Eager | None, batches: list[list[Any]],
                setting: Setting) -> None:  # fmt: skip
    """Definition (1)."""
    leaves = [_leaves(contestant.net, batch) for contestant in contestants for batch in contestant.batches]
    # Where nothing changes, a walk over instances would leave other caches.
    as_before: _AsBefore = unchanged if any(leaves) else nullcontext
    gc.collect()
    used = 0.0
    for turn in range(setting.rounds):
        of_eager: list[float | None] = [None] * len(batches)
        for number, batch in enumerate(batches):
            if eager is not None and (turn == number == 0 or used < setting.eager_seconds):
                with as_before(batch):
                    took = _seconds(lambda batch=batch: eager.run(batch), contestants[0].net.device)  # type: ignore[misc]
                of_eager[number] = took
                used += took
        for contestant in contestants:
            for number, seconds in enumerate(of_eager):
                _measure(contestant, number, seconds, as_before)


def _leaves(net: Net, batch: list[Any]) -> bool:
    """Run a mini-batch for the first time, and say whether forward keeps tensors on the instances."""
    with unchanged(batch):
        return bool(net.run(batch)[1].capture.left)


AS_CAPTURED = ("share", "parts")
"""Passes to leave out, so that what executes is what was captured."""


def _prepared(net: Net, batch: list[Any], **options: Any) -> MiniBatch:
    """A mini-batch to execute again and again, which changes no instance."""
    with unchanged(batch):
        return net.prepare(batch, **options)


_AsBefore = Callable[[Sequence[Any]], AbstractContextManager[Any]]


def _measure(contestant: _Contestant, number: int, eager_seconds: float | None, as_before: _AsBefore) -> None:
    net, stats = contestant.net, Stats()
    with as_before(contestant.batches[number]):
        net.run(contestant.batches[number], stats)
    spent = stats.seconds
    contestant.samples.append(
        _Sample(
            len(contestant.batches[number]), spent.construction, spent.scheduling, spent.execution, spent.issuing,
            stats.batches, stats.launches, eager_seconds,
        )
    )  # fmt: skip
    if stats.arena_bytes > contestant.peak_bytes:
        contestant.peak_bytes = stats.arena_bytes
        captured, schedule = _prepared(net, contestant.batches[number], without=AS_CAPTURED).whole
        whole = place(captured.graph, schedule, captured.result_node)
        contestant.cell_output_bytes = arena_bytes(whole, externals=False)


_Multiplication = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _products(net: Net, schedule: Schedule, together: bool) -> Iterator[_Multiplication]:
    """Operands and targets of the products of a floor, definition (2)."""
    counts = np.diff(schedule.batch_ptr).tolist()
    memory: dict[Any, torch.Tensor] = {}

    def matrix(role: Any, rows: int, columns: int) -> torch.Tensor:
        key = (role, rows, columns)
        if key not in memory:
            memory[key] = torch.rand(rows, columns, dtype=net.dtype, device=net.device)
        return memory[key]

    most = max(counts, default=0)
    for kind, count in zip(schedule.batch_type.tolist(), counts, strict=True):
        program = getattr(net.kernel(kind), "program", None)
        if program is None:
            continue
        shapes = [(p.rows, p.columns) for p in program.weights]
        if together and shapes:
            shapes = [(max(rows for rows, _ in shapes), sum(columns for _, columns in shapes))]
        for number, (rows, columns) in enumerate(shapes):
            a, c = matrix("in", most, rows)[:count], matrix("out", most, columns)[:count]
            yield a, matrix((kind, number), rows, columns), c
        for number, (m, k, n) in enumerate(_own_products(net, program)):
            left, right = matrix("left", m, k), matrix((kind, -1 - number), most * k, n)
            for i in range(count):  # what differs from node to node comes from memory, not from the cache
                yield left, right[i * k : (i + 1) * k], matrix("product", most * m, n)[:m]


def _own_products(net: Net, program: Program) -> list[tuple[int, int, int]]:
    """The sizes (m, k, n) of products of a node's own matrices."""
    values = values_of(program, lambda ref: net.view.shared(ref).shape)
    return [v.arg for v in in_order(values or ()) if v.op == "matmul"]


def _seconds(function: Callable[[], Any], device: torch.device, clock: Callable[[], float] | None = None) -> float:
    clock = clock or time.perf_counter
    with torch.no_grad():
        wait_for(device)
        started = clock()
        function()
        wait_for(device)
        return clock() - started


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _row(name: str, config: Config, contestant: _Contestant, setting: Setting) -> Row:
    samples = contestant.samples
    floor_ratio, own_ratio = _floor_ratios(contestant)
    parts = ("construction", "scheduling", "execution", "issuing", "total")
    return Row(
        name, contestant.front_end, contestant.net.backend.name, contestant.policy, setting.batch_size, _hidden(config),
        torch.get_num_threads(),
        instances_per_second=statistics.median(s.instances / s.total for s in samples),
        spread=_spread([s.total for s in samples]),
        seconds={part: statistics.median(getattr(s, part) for s in samples) for part in parts},
        batches=statistics.median(s.batches for s in samples),
        gemm_floor_ratio=floor_ratio,
        own_products_ratio=own_ratio,
        eager_ratio=_median(s.eager / s.total if s.eager is not None else None for s in samples),
        peak_bytes=contestant.peak_bytes,
        cell_output_bytes=contestant.cell_output_bytes,
        device=setting.device,
        dtype=setting.dtype,
        launches=statistics.median(s.launches for s in samples),
        **_device_seconds(contestant),
        **_speed(contestant),
    )  # fmt: skip


def _speed(contestant: _Contestant) -> dict[str, Any]:
    """Definition (6)."""
    net = contestant.net
    if net.backend.name != "cpu" or net.dtype not in (torch.float32, torch.float64):
        return {}
    batches = contestant.batches[:FLOOR_BATCHES]
    multiplications = statistics.mean(_multiplications(net, batch) for batch in batches)
    execution = statistics.median(
        sample.execution for i, sample in enumerate(contestant.samples) if i % len(contestant.batches) < len(batches)
    )
    achieved, peak = 2e-9 * multiplications / execution, _peak(net.dtype.itemsize)
    return {"peak_gflops": peak, "achieved_gflops": achieved, "peak_share": achieved / peak}


def _peak(width: int) -> float:
    from edbc.tools.peak import peak_gflops  # generates and runs code

    return peak_gflops(width)


def _multiplications(net: Net, batch: list[Any]) -> float:
    """Of all products of a mini-batch as it executes."""
    graph = _prepared(net, batch).capture.graph
    total = 0.0
    for kind, count in enumerate(graph.counts().tolist()):
        program = getattr(net.kernel(kind), "program", None) if count else None
        if program is not None:
            own = sum(map(math.prod, _own_products(net, program)))
            total += count * (own + sum(packed.rows * packed.columns for packed in program.weights))
    return total


def _device_seconds(contestant: _Contestant) -> dict[str, Any]:
    """Definition (5), of the first mini-batch."""
    net = contestant.net
    if net.backend.name != "cuda":
        return {}
    prepared = _prepared(net, contestant.batches[0])
    hold = min(2 * max(sample.issuing for sample in contestant.samples), LONGEST_HOLD)
    turns = [held_up(lambda: net.execute(prepared), hold, net.device) for _ in range(DEVICE_TURNS)]
    return {"device_seconds": statistics.median(turns)}


def held_up(function: Callable[[], Any], hold: float, device: torch.device) -> float:
    """Seconds of the device for what a function issues while the device does nothing for `hold` seconds; of the clock
    where Triton's interpreter runs it."""
    if device.type != "cuda":
        return _seconds(function, device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.no_grad(), torch.cuda.device(device):
        torch.cuda._sleep(int(CYCLES_PER_SECOND * hold))
        begin.record()
        function()
        end.record()
        wait_for(device)
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1e3


def _floor_ratios(contestant: _Contestant) -> tuple[float | None, float | None]:
    """Execution over the GEMM floor and over the plan's own products, definition (2)."""
    if not _has_floor(contestant):
        return None, None
    pairs = [_floor_of(contestant.net, batch) for batch in contestant.batches[:FLOOR_BATCHES]]
    return _median(a for a, _ in pairs), _median(b for _, b in pairs)


def _floor_of(net: Net, batch: list[Any]) -> tuple[float | None, float | None]:
    """The ratios of one mini-batch; None for products that take less than a tick of the processor's clock."""
    prepared = _prepared(net, batch)
    whole = _prepared(net, batch, without=AS_CAPTURED)
    together, own = list(_products(net, whole.schedule, True)), list(_products(net, prepared.schedule, False))
    contestants = (lambda: net.execute(prepared), lambda: _multiply(together), lambda: _multiply(own))
    clock = time.process_time if net.device.type == "cpu" else time.perf_counter
    turns = [[_seconds(call, net.device, clock) for call in contestants] for _ in range(FLOOR_TURNS)]
    execution, floor, products = (min(times) for times in zip(*turns, strict=True))
    return execution / floor if floor else None, execution / products if products else None


def _multiply(calls: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> None:
    for a, b, c in calls:
        torch.mm(a, b, out=c)


def _eager_row(name: str, config: Config, contestant: _Contestant, setting: Setting) -> Row:
    samples = [(s.instances, s.eager) for s in contestant.samples if s.eager is not None]
    seconds = [eager for _, eager in samples]
    median = statistics.median(seconds)
    return Row(
        name, "none", "eager", "eager", setting.batch_size, _hidden(config), torch.get_num_threads(),
        instances_per_second=statistics.median(n / t for n, t in samples),
        spread=_spread(seconds),
        seconds={"construction": 0.0, "scheduling": 0.0, "execution": median, "issuing": median, "total": median},
        batches=0, gemm_floor_ratio=None, own_products_ratio=None, eager_ratio=1.0, peak_bytes=0, cell_output_bytes=0,
        device=setting.device, dtype=setting.dtype,
    )  # fmt: skip


def _has_floor(contestant: _Contestant) -> bool:
    """True when there are products, and when they are all that takes torch's own functions (no convolutions). What
    native code runs beside products is as cheap as element-wise functions."""
    from edbc.run.cpu.cpubackend import CellKernel

    net = contestant.net
    prepared = _prepared(net, contestant.batches[0])
    kernels = [net.kernel(int(kind)) for kind in set(prepared.schedule.batch_type.tolist())]
    programs = [(kernel, kernel.program) for kernel in kernels if getattr(kernel, "program", None) is not None]
    has_products = any(program.weights or _own_products(net, program) for _, program in programs)
    by_torch = any(isinstance(kernel, CellKernel) for kernel in kernels)
    steps = [s for kernel, program in programs if not isinstance(kernel, NativeKernel) for s in program.steps]
    calls = {name_of(step.op.call) for step in steps if isinstance(step, Call) and step.op.call is not None}
    return has_products and not by_torch and calls <= _OWN


def _hidden(config: Config) -> int | None:
    value = config.get("hidden_size")
    return value if isinstance(value, int) else None


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle
