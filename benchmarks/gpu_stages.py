"""Static networks in stages on a GPU: every form of schedule beside eager PyTorch, in one command.

    python benchmarks/gpu_stages.py --out build/gpu_stages [--seconds 150] [--batches 1 32] [--precision default]
        [--profile-seconds 45] [--gap 0.01] [--tables DIR] [--compile] [--dry] [NETWORK ...]

Per network and batch size, the first of `--batches` for all networks before the second: our kernels one after the other
in one CUDA graph, in both layouts of images and with relu in the convolution or not, of which the fastest runs on;
profiling, as `edbc compile --profile --device cuda` does; every form of schedule, taking turns, each compared with
eager by the usual rule; eager with and without a CUDA graph; and the longest path by the table, which no schedule of
these units can beat.

What fails is told with its traceback and costs nothing else; nothing begins after `--seconds`. In `--out` stand
`stages.json`, whole after every step, and the cost tables. `--precision tf32` or `ieee` sets both of torch's settings
for float32 products, `default` neither. `--compile` also times `torch.compile(mode="max-autotune")`, which takes
minutes. `--dry` runs small networks on the CPU: figures mean nothing then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from inter_operator import head_of, opened, totals_of

from edbc.stages import Stages
from edbc.stages.cuda.kernels import HOW, How
from edbc.stages.cuda.measure import DeviceMeasurement
from edbc.stages.cuda.net import DeviceNet
from edbc.stages.cuda.streams import streams_of
from edbc.stages.devices import CUDA, STREAMS, convolution_precision, gpu_name, machine_of
from edbc.stages.endings import members
from edbc.stages.graph import block_dag
from edbc.stages.net import StaticModel
from edbc.stages.plan_graph import Planned, schedule_graph, whole_schedule
from edbc.stages.search import Scheduled
from edbc.stages.table import CONCURRENT, SUFFIX, Cost, Costs, CostTable, read_table, require_table, write_table
from edbc.stages.timing import Clock, turns
from edbc.tools.parity import Eager, Parity
from edbc.tools.staged.running import Lanes

STARTED = time.monotonic()
FORMS = ("sequential", "greedy", "merge", "concurrent", "both", "no barriers")
HOWS = {
    f"{name}, {'relu fused' if fused else 'relu apart'}": How(images, fused)
    for name, images in (("channels last", torch.channels_last), ("channels first", torch.contiguous_format))
    for fused in (True, False)
}
SMALL = {"inception_v3": {"width": 2, "image_size": 75}, "squeezenet": {"width": 2, "image_size": 63}}
COMPARED = 4
"""Instances of a batch that are compared."""
TURNS = 3.0
"""Seconds in which all forms take turns."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=("squeezenet", "inception_v3"))
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--profile-seconds", type=float, default=45)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--gap", type=float, default=0.01)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--precision", choices=("default", "tf32", "ieee"), default="default")
    parser.add_argument("--tables", help="folder of cost tables of an earlier call, to which more is added")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--compile-kernels", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.compile_kernels:
        compile_kernels()
        return
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    warming = subprocess.Popen([sys.executable, __file__, "--out", options.out, "--compile-kernels"])
    set_precision(options.precision)
    if options.dry:
        torch.set_num_threads(1)
    record, done = Record(out / "stages.json", options), list[Network]()
    for batch in options.batches:
        for name in options.networks:
            if record.left > 20:
                done.append(Network(record, name, batch, options, warming))
                done[-1].all()
    for network in done:
        network.specialised([other for other in done if other.name == network.name])
    warming.wait()
    print(f"done at {time.monotonic() - STARTED:.0f} s; failed: {record.failed or 'nothing'}")


def set_precision(precision: str) -> None:
    """torch's two settings for float32 products on a GPU, by their old names alone: it refuses a mix."""
    if precision != "default":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def compile_kernels() -> None:
    """Compile the search's kernels to numba's cache, which takes a while where it is empty, beside the GPU's start."""
    static, _ = opened("squeezenet", 1, settings=SMALL["squeezenet"])
    options = argparse.Namespace(threads=2, batch=1)
    schedule_graph(static, machine_of(CUDA, 8), Costs(head_of(options, 10)), Stages(), lambda *_: Cost(1_000, 1))


class Record:
    """What was measured, in a file that is whole after every step."""

    def __init__(self, path: Path, options: argparse.Namespace):
        self.path, self.seconds, self.failed = path, options.seconds, list[str]()
        is_cuda = torch.cuda.is_available() and not options.dry
        self.found: dict[str, Any] = {
            "device": gpu_name() if is_cuda else "cpu", "torch": torch.__version__, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(), "convolutions": convolution_precision(), "networks": {},
        }  # fmt: skip
        print(json.dumps(self.found))

    @property
    def left(self) -> float:
        """Seconds."""
        return self.seconds - (time.monotonic() - STARTED)

    @contextmanager
    def step(self, where: dict[str, Any], name: str) -> Iterator[None]:
        """A step that may fail; the file is written behind it."""
        began = time.monotonic()
        try:
            yield
        except Exception as error:
            self.failed.append(name)
            where.setdefault("failed", {})[name] = f"{type(error).__name__}: {error}"
            print(f"FAILED {name}")
            traceback.print_exc(file=sys.stdout)
        where.setdefault("seconds", {})[name] = round(time.monotonic() - began, 2)
        self.path.write_text(json.dumps(self.found, indent=1))
        sys.stdout.flush()


class Network:
    """One network at one batch size."""

    def __init__(self, record: Record, name: str, batch: int, options: argparse.Namespace, warming: Any):
        self.record, self.name, self.size, self.options, self.warming = record, name, batch, options, warming
        self.found: dict[str, Any] = {}
        record.found["networks"][f"{name} {batch}"] = self.found
        self.planned: list[Planned] = []
        self.how = HOW

    def all(self) -> None:
        """Every step in turn."""
        print(f"\n{self.name}, batches of {self.size}, {self.record.left:.0f} s left")
        steps: tuple[tuple[str, Callable[[], None]], ...] = (
            ("open", self.open), ("kernels", self.kernels), ("profile", self.profile), ("forms", self.forms),
            ("bounds", self.bounds), ("timeline", self.timeline), ("eager", self.eager), ("compile", self.compile),
        )  # fmt: skip
        for name, step in steps:
            if self.record.left < 0:
                return
            with self.record.step(self.found, name), torch.no_grad():
                step()
            if "open" in self.found.get("failed", {}):
                return
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def open(self) -> None:
        """The model on the device, and what eager gives for a few instances."""
        device = "cpu" if self.options.dry else "cuda"
        settings = SMALL.get(self.name) if self.options.dry else None
        self.static, self.batch = opened(self.name, self.size, device, settings)
        images, eager = list(self.batch[:COMPARED].split(1)), Eager(self.static.model)
        self.expected = list(zip(eager.run(images), eager.reference(images), strict=True))

    def kernels(self) -> None:
        """One unit after the other, by every choice of kernels."""
        schedule = [(((unit,),), CONCURRENT) for unit in range(len(self.static.graph.units))]
        nets = {name: DeviceNet(self.static, schedule, 1, how=how) for name, how in HOWS.items()}
        self.timed("kernels_ms", nets)
        best = min(self.found["kernels_ms"], key=self.found["kernels_ms"].__getitem__)
        self.how, self.found["kernels"] = HOWS[best], best

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
            print(f"  {name:<28}{ms:>9.4f} ms   {least / ms:>5.2f} x")
        for net in nets.values():
            net.close()

    def require_parity(self, name: str, net: DeviceNet) -> None:
        """Results are eager's, by the rule."""
        results, parity = net.batch(self.batch), Parity()
        for ours, (theirs, exact) in zip(results[:COMPARED].split(1), self.expected, strict=True):
            parity.add(ours, theirs, exact)
        self.found.setdefault("max_error", {})[name] = parity.max_error
        self.found["eager_error"] = parity.eager_error
        parity.require()

    def profile(self) -> None:
        """The cost table, measured as far as time allows, and the schedule."""
        self.warming.wait()
        measurement = DeviceMeasurement(self.static, self.size, self.options.streams, self.how)
        head = CostTable(device=self.record.found["device"], threads=self.options.streams, dtype="float32",
                         batch_size=self.size, overhead_ns=measurement.overhead())  # fmt: skip
        costs = Costs(head) if self.table is None else Costs.of(self.table)
        seconds = min(self.options.profile_seconds, max(5.0, self.record.left - 25))
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
        self.found |= {"measured": measured, "distinct": distinct, "gap": largest, "profile_seconds": taken,
                       "overhead_ns": head.overhead_ns, "table_ms": by_table}  # fmt: skip
        write_table(costs.table(), self.record.path.parent / f"{self.name}.{self.size}{SUFFIX}")
        last = self.planned[-2 if len(self.planned) > 1 else -1]
        self.found["last_block"] = [
            {"us": stage.median / 1e3, "run": stage.run,
             "groups": [[self.static.graph.units[last.block.units[u]].name for u in g] for g in stage.groups]}
            for stage in last.scheduled.stages
        ]  # fmt: skip

    @property
    def table(self) -> CostTable | None:
        """Of an earlier call on the same device, to which more is added."""
        path = Path(self.options.tables or ".") / f"{self.name}.{self.size}{SUFFIX}"
        if self.options.tables is None or not path.exists():
            return None
        table = read_table(path)
        asked = {"device": self.record.found["device"], "threads": self.options.streams, "batch_size": self.size}
        require_table(table, str(path), **asked)
        return table

    def specialised(self, others: list[Network]) -> None:
        """Schedules that were measured for other batch sizes, on this one's."""
        if len(others) > 1 and all(other.planned for other in others) and self.record.left > 5:
            print(f"\n{self.name}, batches of {self.size}, by schedules for")
            with self.record.step(self.found, "specialised"), torch.no_grad():
                nets = {
                    str(other.size): DeviceNet(self.static, whole_schedule(other.planned), self.options.streams,
                                               how=self.how)
                    for other in others
                }  # fmt: skip
                self.timed("specialised_ms", nets)

    def timeline(self) -> None:
        """What runs when, in the cheapest stages and without barriers; how much of the time several streams run."""
        for form in FORMS[-2:]:
            schedule = whole_schedule(self.planned, form)
            with DeviceNet(self.static, schedule, self.options.streams, form != FORMS[-1], how=self.how) as net:
                spans = net.spans(self.batch)
            Lanes(self.static).write(self.record.path.parent / f"{self.name}.{self.size}.{form}.json", spans)
            busy, end = sum(s.end - s.start for s in spans), max(s.end for s in spans)
            self.found[f"timeline {form}"] = {
                "us": end / 1e3,
                "in operations": busy / 1e3,
                "streams": net.program.streams,
            }
            print(f"  timeline of '{form}': {end / 1e3:.1f} us, in operations {busy / 1e3:.1f} us")

    def forms(self) -> None:
        """Every form of schedule."""
        nets = {
            form: DeviceNet(self.static, whole_schedule(self.planned, form), self.options.streams, form != FORMS[-1],
                            how=self.how)
            for form in FORMS
        }  # fmt: skip
        self.timed("forms_ms", nets)

    def bounds(self) -> None:
        """What no schedule of these units can beat by the table: the longest path, and how long one unit after the
        other takes, which is all work where each unit fills the device."""
        path = sum(longest_path(self.static, p) for p in self.planned) / 1e6
        self.found["critical_path_ms"] = path
        print(f"  critical path {path:.4f} ms by the table: {self.found['table_ms']}")

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
            found[f"eager in a graph{name}"] = (
                turns({"": lambda r=replay: min(host.nanoseconds(r, 5))}, 1.0)[""][0] / 1e6
            )
        self.found["eager_ms"] = found
        for name, ms in found.items():
            print(f"  {name:<34}{ms:>9.4f} ms")

    def compile(self) -> None:
        """`torch.compile`, where asked for."""
        if not self.options.compile:
            return
        compiled = torch.compile(self.static.model.to(memory_format=torch.contiguous_format), mode="max-autotune")
        for _ in range(4):
            compiled(self.batch)
        ms = wall(lambda: _nothing(compiled(self.batch)), self.static.device)
        self.found["torch_compile_ms"] = ms
        print(f"  {'torch.compile, max-autotune':<28}{ms:>9.4f} ms")


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
