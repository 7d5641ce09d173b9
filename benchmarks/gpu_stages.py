"""Static networks in stages on a GPU: every form of schedule beside eager PyTorch, in one command.

    python benchmarks/gpu_stages.py --out build/gpu_stages [--seconds 150] [--batches 1 32] [--others 8 16 64 128]
        [--steps kernels profile forms bounds eager] [--precision default] [--profile-seconds 25] [--gap 0.01]
        [--tables FOLDER_OR_TAR] [--compile 60] [--lock FILE] [--dry] [NETWORK ...]

Steps per network and batch size, the first of `--batches` for all networks before the second:

- kernels: one unit after the other in one CUDA graph, in both layouts of images and with relu in the convolution or
  not, of which the fastest runs on;
- profile: as `edbc compile --profile --device cuda` does;
- forms: every form of schedule, taking turns, each compared with eager by the usual rule;
- bounds: what no schedule of these units can beat: the longest path by the table, and busy time: of COPIES nets, one
  unit after the other each, that run side by side, divided by COPIES;
- eager: with and without a CUDA graph.

Then every size of `--others` (of `--batches` where there is none) by the schedules that were made for `--batches`.
`--compile` gives `torch.compile(mode="max-autotune")` of the first of `--batches` a process per network, which compile
side by side, before anything is measured, for so many seconds; then what is compiled is timed, one after the other.

What fails is told with its traceback and costs nothing else; nothing begins after `--seconds`. In `--out` stand
`stages.json` and `tables.tar.gz`, the cost tables, both whole after every step; `--tables` takes such a file, or a
folder of tables, of the same device. `--precision tf32` or `ieee` sets both of torch's settings for float32 products,
`default` neither. `--dry` runs small networks on the CPU: figures mean nothing then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from inter_operator import head_of, opened, totals_of

from edbc.errors import StaleError
from edbc.plan.static import CUDA, KERNELS
from edbc.run.precision import convolution_precision
from edbc.stages import Stages
from edbc.stages.cuda.kernels import HOWS
from edbc.stages.cuda.measure import DeviceMeasurement
from edbc.stages.cuda.net import DeviceNet
from edbc.stages.cuda.streams import streams_of
from edbc.stages.devices import STREAMS, gpu_name, kernels_on, machine_of
from edbc.stages.endings import members
from edbc.stages.graph import block_dag
from edbc.stages.net import StaticModel
from edbc.stages.plan_graph import Planned, schedule_graph, whole_schedule
from edbc.stages.search import Scheduled
from edbc.stages.table import CONCURRENT, SUFFIX, Cost, Costs, CostTable, parse_table, require_table, table_text
from edbc.stages.timing import Clock, turns
from edbc.tools.parity import Eager, parity_on

STARTED = time.monotonic()
FORMS = ("sequential", "greedy", "merge", "concurrent", "both", "no barriers")
STEPS = ("kernels", "profile", "forms", "bounds", "eager")
SMALL = {
    "inception_v3": {"width": 2, "image_size": 75},
    "squeezenet": {"width": 2, "image_size": 63},
    "nasnet_a": {"filters": 8, "repeats": 1, "image_size": 33},
    "randwire": {"channels": 4, "nodes": 8, "features": 6, "image_size": 32},
}
COMPARED = 4
"""Instances of a batch that are compared."""
TURNS = 1.0
"""Seconds in which all nets take turns."""
COPIES = 6
"""Nets side by side that keep a device busy."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=("squeezenet", "inception_v3"))
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--profile-seconds", type=float, default=25)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--others", type=int, nargs="*", default=[])
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=STEPS)
    parser.add_argument("--gap", type=float, default=0.01)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--precision", choices=("default", "tf32", "ieee"), default="default")
    parser.add_argument("--tables", help="cost tables of an earlier call, to which more is added")
    parser.add_argument("--compile", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--alone", choices=("kernels", "compiled"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.alone == "kernels":
        compile_kernels()
        return
    set_precision(options.precision)
    if options.alone == "compiled":
        print_compiled(options)
        return
    Path(options.out).mkdir(parents=True, exist_ok=True)
    warming = subprocess.Popen([sys.executable, __file__, "--out", options.out, "--alone", "kernels"])
    if options.dry:
        torch.set_num_threads(1)
    run_all(Record(options), warming)


def run_all(record: Record, warming: Any) -> None:
    """All networks, and what is said at the end."""
    options, done = record.options, list[Network]()
    if options.compile:
        record.compiled()
    for batch in options.batches:
        for name in options.networks:
            if record.left > 10:
                done.append(Network(record, name, batch))
                done[-1].all(warming)
    for name in options.networks:
        made = [network for network in done if network.name == name and network.planned]
        for batch in options.others or (options.batches if len(made) > 1 else []):
            if made and record.left > 3:
                Network(record, name, batch, made[0].static).specialised(made)
    warming.wait()
    print(f"done at {time.monotonic() - STARTED:.0f} s; failed: {record.failed or 'nothing'}", flush=True)


def set_precision(precision: str) -> None:
    """torch's two settings for float32 products on a GPU, by their old names alone: it refuses a mix."""
    if precision != "default":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def compile_kernels() -> None:
    """Compile the search's kernels to numba's cache, which takes a while where it is empty, beside the GPU's start."""
    static, _ = opened("squeezenet", 1, settings=SMALL["squeezenet"])
    options = argparse.Namespace(threads=2, batch=1)
    schedule_graph(static, machine_of(CUDA, 8), Costs(head_of(options, 10)), Stages(), lambda *_: Cost(1_000, 1))


def print_compiled(options: argparse.Namespace) -> None:
    """What `torch.compile(mode="max-autotune")` takes, in milliseconds, when a line is read: see Compiled."""
    static, batch = opened(options.networks[0], options.batches[0], "cuda")
    with torch.no_grad():
        compiled = torch.compile(static.model, mode="max-autotune")
        for _ in range(4):
            compiled(batch)
        print("compiled", flush=True)
        sys.stdin.readline()
        torch.cuda._sleep(2 * 10**8)  # so that the host is ahead
        taken = streams_of(static.device, 1).nanoseconds(lambda: _nothing(compiled(batch)), 50)
        by_host = wall(lambda: compiled(batch), batch.device)
    print(json.dumps({"by the device": sorted(taken)[25] / 1e6, "by the host": by_host}))


class Record:
    """What was measured, in files that are whole after every step."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.folder, self.failed = options, Path(options.out), list[str]()
        self.tables: dict[str, str] = {}
        is_cuda = torch.cuda.is_available() and not options.dry
        self.device = torch.device("cuda" if is_cuda else "cpu")
        self.found: dict[str, Any] = {
            "device": gpu_name() if is_cuda else "cpu", "torch": torch.__version__, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(), "convolutions": convolution_precision(), "networks": {},
        }  # fmt: skip
        print(json.dumps(self.found), flush=True)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.options.seconds - (time.monotonic() - STARTED)

    @contextmanager
    def step(self, where: dict[str, Any], name: str) -> Iterator[None]:
        """A step that may fail; the files are written behind it."""
        began = time.monotonic()
        try:
            yield
        except Exception as error:
            self.failed.append(name)
            where.setdefault("failed", {})[name] = f"{type(error).__name__}: {error}"
            print(f"FAILED {name}")
            traceback.print_exc(file=sys.stdout)
        where.setdefault("seconds", {})[name] = round(time.monotonic() - began, 2)
        (self.folder / "stages.json").write_text(json.dumps(self.found))
        sys.stdout.flush()

    def add_table(self, name: str, table: CostTable) -> None:
        """Keep a cost table."""
        self.tables[name] = table_text(table)
        with tarfile.open(self.folder / "tables.tar.gz", "w:gz") as tar:
            for file, text in self.tables.items():
                member = tarfile.TarInfo(file)
                member.size = len(text)
                tar.addfile(member, BytesIO(text.encode()))

    def table(self, name: str, size: int) -> CostTable | None:
        """Of an earlier call, if it is of this device."""
        text = _text_in(self.options.tables, name) if self.options.tables else None
        if text is None:
            return None
        table = parse_table(text, name)
        try:
            require_table(table, name, device=self.found["device"], threads=self.options.streams, batch_size=size)
        except StaleError as error:
            print(f"  {error}")
            return None
        return table

    def compiled(self) -> None:
        """`torch.compile` of all networks; nothing is timed while one compiles."""
        until = time.monotonic() + self.options.compile
        ready = list[Compiled]()
        for compiled in [Compiled(self, name) for name in self.options.networks]:
            with self.step(self._of(compiled.name), f"compile {compiled.name}"):
                compiled.wait(until)
                ready.append(compiled)
        for compiled in ready:
            where = self._of(compiled.name)
            with self.step(where, f"run compiled {compiled.name}"):
                where["torch_compile_ms"] = compiled.measured()
                print(f"{compiled.name}: torch.compile, max-autotune, ms {where['torch_compile_ms']}")

    def _of(self, name: str) -> dict[str, Any]:
        """Where figures of the first batch size go."""
        found: dict[str, Any] = self.found["networks"].setdefault(f"{name} {self.options.batches[0]}", {})
        return found


class Compiled:
    """A network's `torch.compile`, in a process of its own: it says when it has compiled, and measures when it is told
    to."""

    def __init__(self, record: Record, name: str):
        self.name = name
        options = ["--out", record.options.out, "--precision", record.options.precision, "--alone", "compiled"]
        batch = ["--batches", str(record.options.batches[0])]
        line = [sys.executable, __file__, name, *batch, *options]
        with open(record.folder / f"compile.{name}.log", "w") as log:
            self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                            start_new_session=True)  # fmt: skip

    def wait(self, until: float) -> None:
        """Until it has compiled. Raises TimeoutError where it has not in time."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            self._end()
            raise TimeoutError("not compiled in time")

    def measured(self) -> Any:
        """What it took."""
        try:
            output, _ = self.process.communicate("\n", timeout=20)
        finally:
            self._end()
        return json.loads(output.splitlines()[-1])

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
        self.process.wait()


def _text_in(path: str, name: str) -> str | None:
    """A file's text, of a folder or a tar file."""
    if Path(path).is_dir():
        file = Path(path) / name
        return file.read_text() if file.exists() else None
    with tarfile.open(path) as tar:
        member = tar.extractfile(name) if name in tar.getnames() else None
        return None if member is None else member.read().decode()


class Network:
    """One network at one batch size."""

    def __init__(self, record: Record, name: str, batch: int, static: StaticModel | None = None):
        self.record, self.name, self.size, self.options = record, name, batch, record.options
        self.found: dict[str, Any] = record.found["networks"].setdefault(f"{name} {batch}", {})
        self.planned: list[Planned] = []
        self.kernels_chosen = KERNELS[0]
        self._static = static

    def all(self, warming: Any) -> None:
        """Every step in turn."""
        print(f"\n{self.name}, batches of {self.size}, {self.record.left:.0f} s left")
        with self.record.step(self.found, "open"), torch.no_grad():
            self.open()
            warming.wait()
        if "open" in self.found.get("failed", {}):
            return
        for name in self.options.steps:
            if self.record.left > 0:
                with self.record.step(self.found, name), torch.no_grad():
                    step: Callable[[], None] = getattr(self, name)
                    step()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def open(self) -> None:
        """The model on the device, and what eager gives for a few instances."""
        settings = SMALL.get(self.name) if self.options.dry else None
        if self._static is None:
            self.static, self.batch = opened(self.name, self.size, str(self.record.device), settings)
        else:
            self.static, generator = self._static, torch.Generator(self.record.device).manual_seed(0)
            shape = (self.size, *self.static.example.shape[1:])
            self.batch = torch.randn(shape, generator=generator, device=self.record.device)
        images, eager = list(self.batch[:COMPARED].split(1)), Eager(self.static.model)
        self.expected = list(zip(eager.run(images), eager.reference(images), strict=True))

    def net(self, form: str, planned: Sequence[Planned]) -> DeviceNet:
        """A form of schedule."""
        schedule, count = whole_schedule(planned, form), self.options.streams
        return DeviceNet(self.static, schedule, count, form != FORMS[-1], how=HOWS[self.kernels_chosen])

    def kernels(self) -> None:
        """One unit after the other, by every choice of kernels."""
        schedule = [(((unit,),), CONCURRENT) for unit in range(len(self.static.graph.units))]
        names = kernels_on(self.static) or KERNELS[:4]
        self.timed("kernels_ms", {name: DeviceNet(self.static, schedule, 1, how=HOWS[name]) for name in names})
        self.kernels_chosen = min(self.found["kernels_ms"], key=self.found["kernels_ms"].__getitem__)

    def timed(self, key: str, nets: dict[str, DeviceNet]) -> None:
        """What nets take, in turns, in milliseconds, and how far they are from eager. One that fails costs no other;
        one whose numbers are not eager's is told, and timed."""
        clocks: dict[str, Clock] = {}
        for name, net in nets.items():
            with self.record.step(self.found, f"{key} {name}"):
                clocks[name] = net.clock(self.batch)
                self.require_parity(name, net)
        costs = turns(clocks, TURNS)
        self.found[key] = {name: cost.median / 1e6 for name, cost in costs.items()}
        self.found[f"{key}_spread"] = {name: cost.spread / 1e6 for name, cost in costs.items()}
        least = next(iter(self.found[key].values()), 0.0)
        for name, ms in self.found[key].items():
            spread = self.found[f"{key}_spread"][name]
            print(f"  {name:<32}{ms:>9.4f} ms  +- {spread:.4f}   {least / ms:>5.2f} x")
        for net in nets.values():
            net.close()

    def require_parity(self, name: str, net: DeviceNet) -> None:
        """Results are eager's, by the rule."""
        results, parity = net.batch(self.batch), parity_on(self.static.device)
        for ours, (theirs, exact) in zip(results[:COMPARED].split(1), self.expected, strict=True):
            parity.add(ours, theirs, exact)
        self.found.setdefault("max_error", {})[name] = parity.max_error
        self.found["eager_error"] = parity.eager_error
        parity.require()

    def profile(self) -> None:
        """The cost table, measured as far as time allows, and the schedule."""
        how, file = HOWS[self.kernels_chosen], f"{self.name}.{self.size}{SUFFIX}"
        measurement = DeviceMeasurement(self.static, self.size, self.options.streams, how)
        head = CostTable(device=self.record.found["device"], threads=self.options.streams, dtype="float32",
                         batch_size=self.size, overhead_ns=measurement.overhead())  # fmt: skip
        table = self.record.table(file, self.size)
        costs = Costs(head) if table is None else Costs.of(table)
        seconds = min(self.options.profile_seconds, max(5.0, self.record.left - 15))
        began = time.monotonic()

        def report(done: int, total: int, scheduled: Scheduled | None) -> None:
            if scheduled is not None:
                each = f"{scheduled.measured:,} of {scheduled.distinct:,} stages, gap {scheduled.gap:.1%}"
                print(f"  block {done} of {total}: {each}, {time.monotonic() - began:.1f} s", flush=True)

        machine = machine_of(CUDA, self.options.streams)
        limits = Stages(gap=self.options.gap)
        self.planned = schedule_graph(self.static, machine, costs, limits, measurement.stage, report, seconds)
        measured, distinct = totals_of(self.planned)
        largest = max(p.scheduled.gap for p in self.planned)
        taken = time.monotonic() - began
        print(f"  profiled {measured:,} of {distinct:,} stages in {taken:.1f} s, overhead {head.overhead_ns} ns")
        by_table = {form: sum(p.scheduled.cost_of(form) for p in self.planned) / 1e6 for form in FORMS}
        print(f"  by the table, ms: {by_table}")
        self.found |= {"measured": measured, "distinct": distinct, "gap": largest, "profile_seconds": taken,
                       "overhead_ns": head.overhead_ns, "table_ms": by_table}  # fmt: skip
        self.record.add_table(file, costs.table())
        last = self.planned[-2 if len(self.planned) > 1 else -1]
        self.found["last_block"] = [
            {"us": stage.median / 1e3, "run": stage.run,
             "groups": [[self.static.graph.units[last.block.units[u]].name for u in g] for g in stage.groups]}
            for stage in last.scheduled.stages
        ]  # fmt: skip
        for stage in self.found["last_block"]:
            groups = " | ".join(" ".join(group) for group in stage["groups"])
            print(f"    {stage['us']:>8.1f} us {stage['run']}: {groups}")

    def specialised(self, made: Sequence[Network]) -> None:
        """Schedules that were measured for some sizes, on this one."""
        print(f"\n{self.name}, batches of {self.size}, by schedules for others, {self.record.left:.0f} s left")
        with self.record.step(self.found, "specialised"), torch.no_grad():
            self.open()
            nets = {FORMS[0]: self.net(FORMS[0], made[0].planned)}
            for other in made:
                nets |= {f"{form}, for {other.size}": self.net(form, other.planned) for form in FORMS[-2:]}
            self.timed("specialised_ms", nets)

    def forms(self) -> None:
        """Every form of schedule."""
        self.timed("forms_ms", {form: self.net(form, self.planned) for form in FORMS})

    def bounds(self) -> None:
        """What no schedule of these units can beat: the longest path by the table, and busy time."""
        path = sum(longest_path(self.static, p) for p in self.planned) / 1e6
        busy = self.busy()
        self.found |= {"critical_path_ms": path, "busy_ms": busy}
        print(f"  critical path {path:.4f} ms by the table, busy {busy:.4f} ms")

    def busy(self) -> float:
        """Milliseconds of a batch where COPIES of them keep the device busy."""
        device = self.static.device
        nets = [self.net(FORMS[0], self.planned) for _ in range(COPIES)]
        ready, host = [net.prepare(self.batch) for net in nets], streams_of(device, COPIES)

        def side_by_side() -> None:
            begin = host.record(0)
            for number, each in enumerate(ready):
                host.wait(number, begin)
                host.on(number, each.replay)
                host.wait(0, host.record(number))

        def least() -> float:
            return min(host.nanoseconds(partial(host.run, side_by_side), 5))

        taken = turns({"": least}, TURNS / 2)[""].median
        for net in nets:
            net.close()
        return taken / 1e6 / COPIES

    def eager(self) -> None:
        """PyTorch's own, call by call and in a CUDA graph."""
        static, batch, found = self.static, self.batch, dict[str, float]()
        host = streams_of(static.device, 1)
        for name, images in (("", torch.contiguous_format), (", channels last", torch.channels_last)):
            model = static.model.to(memory_format=images)
            given = batch.contiguous(memory_format=images)

            def run(model: torch.nn.Module = model, given: torch.Tensor = given) -> None:
                host.on(0, lambda: _nothing(model(given)))

            for _ in range(3):
                host.run(run)
            found[f"eager{name}"] = wall(lambda run=run: host.run(run), static.device)
            replay = host.capture(run)
            clock = {"": lambda r=replay: min(host.nanoseconds(r, 5))}
            found[f"eager in a graph{name}"] = turns(clock, 0.5)[""].median / 1e6
        self.found["eager_ms"] = found
        for name, ms in found.items():
            print(f"  {name:<34}{ms:>9.4f} ms")


def _nothing(_: object) -> None:
    return None


def wall(run: Callable[[], object], device: torch.device, times: int = 20) -> float:
    """Milliseconds of a call by the host's clock, among as many behind each other."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1e3 * (time.perf_counter() - began) / times


def longest_path(static: StaticModel, planned: Planned) -> int:
    """Of a block, by what its units take alone."""
    own, dag = [stage.median for stage in planned.scheduled.forms["sequential"]], block_dag(static.graph, planned.block)
    path: list[int] = []
    for unit, cost in enumerate(own):
        path.append(cost + max((path[u] for u in members(dag.reads[unit])), default=0))
    return max(path)


if __name__ == "__main__":
    main()
