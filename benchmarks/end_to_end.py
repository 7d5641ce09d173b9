"""The whole table: every workload of the zoo on real data, batched natively against eager and the other policies.

    python benchmarks/end_to_end.py [--data DIR] [--sweep] [--against eager,depth,agenda] [--only NAME,..] [--json FILE]
                                    [--plans DIR] [--processor-time]
    python benchmarks/end_to_end.py --device cuda --sweep --json cuda.json [--seconds N]

Per workload: its plan from --plans, then `edbc.tools.benchmark` at hidden size 128, mini-batches of 32, one thread,
vocabularies of 256. With --processor-time the clock is the process's own, for machines that are busy. With --sweep also
other batch sizes and hidden sizes for trees and lattices; on a GPU batch sizes 1, 32 and 256 with hidden sizes 128, 256
and 512 for every workload, the most telling combinations first. Medians; read ratios, not absolute figures, and compare
within one run only. `benchmarks/calibrate.py --peers` puts the rows beside other systems.

On a GPU eager runs on the same GPU, `exec ms` is the time until the device is done, and the file of --json tells host
and device time apart (`issuing`, `device_seconds`) and counts launches. --warm measures
nothing: it runs every combination once, so that a later run finds compiled kernels.

Where plans are missing, the lines that make them are printed, nothing runs, and the exit code is 2. A combination that
fails prints one line and the others go on; then the exit code is 1. With --seconds none is begun after that time. The
file of --json is whole after every combination: `rows`, what `failed` and why, what was `left_out`, and the machine.
Where the data are not there the model's made-up instances are measured, and `inputs` of a row says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from edbc.base.files import found_at, replace_file
from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net
from edbc.tools.benchmark import Row, Setting, bench_plan
from edbc.tools.cli.bench import HEADER, line_of

REPOSITORY = Path(__file__).resolve().parent.parent
DATA = os.environ.get("EDBC_DATA", str(REPOSITORY.parent / "shared" / "data"))
"""The folder with the shared data sets."""


@dataclass(frozen=True)
class Workload:
    """A model and its data: files under the data folder."""

    model: str
    files: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def path(self) -> Path:
        """The model file."""
        return REPOSITORY / "models" / f"{self.model}.py"


SST, LATTICES, TAGS = "sst_trees/dev.txt", "zh_lattice_edbatch/train.txt", "wikiner_tags/first1200.txt"
PAIRS = ("iwslt15_envi/tst2012.en", "iwslt15_envi/tst2012.vi")
WORKLOADS = (
    Workload("tree_lstm", (SST,)),
    Workload("tree_gru", (SST,)),
    Workload("tree_lstm_2type", (SST,)),
    Workload("mv_rnn", (SST,)),
    Workload("lattice_lstm", (LATTICES,)),
    Workload("lattice_gru", (LATTICES,)),
    Workload("bilstm_tagger", (TAGS,)),
    Workload("bilstm_tagger_char", (TAGS,)),
    Workload("lstm_nmt", PAIRS),
)
SWEPT = ("tree_lstm", "lattice_lstm")
BATCH_SIZES, HIDDEN_SIZES = (1, 8, 64, 256), (64, 256, 512)
ON_CUDA = ((32, 128), (256, 512), (1, 128), (256, 128), (32, 512), (32, 256), (256, 256), (1, 512), (1, 256))
"""(batch size, hidden size), the most telling first."""
DRY = (1, 16)


@dataclass(frozen=True)
class Job:
    """One combination to measure."""

    workload: Workload
    batch_size: int
    hidden_size: int

    def __str__(self) -> str:
        return f"{self.workload.model}, batch {self.batch_size}, hidden {self.hidden_size}"


def jobs_of(workloads: Sequence[Workload], sweep: bool, device: str, dry: bool = False) -> Iterator[Job]:
    """In the order of measuring: workload by workload, on a GPU combination by combination."""
    if dry:
        yield from (Job(workload, *DRY) for workload in workloads)
        return
    if sweep and device == "cuda":
        yield from (Job(workload, *sizes) for sizes, workload in itertools.product(ON_CUDA, workloads))
        return
    for workload in workloads:
        yield Job(workload, 32, 128)
        if sweep and workload.model in SWEPT:
            yield from (Job(workload, size, 128) for size in BATCH_SIZES)
            yield from (Job(workload, 32, size) for size in HIDDEN_SIZES)


@dataclass
class Record:
    """What has been found so far, written to `path` after every job."""

    path: Path | None
    conditions: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def write(self) -> None:
        """See the module's docstring."""
        if self.path is not None:
            found = {"rows": self.rows, "failed": self.failed, "left_out": self.left_out}
            text = json.dumps({"conditions": self.conditions, **found}, indent=1) + "\n"
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, lambda file: file.write_text(text))


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """The machine and what runs on it."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine(),
             "dtype": options.dtype, "rounds": options.rounds, "mini_batches": options.mini_batches}  # fmt: skip
    if options.device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        found |= {"gpu": torch.cuda.get_device_name(), "capability": f"{major}.{minor}", "cuda": torch.version.cuda,
                  "triton": _version_of("triton")}  # fmt: skip
    return found


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def plan_of(workload: Workload, folder: Path) -> Path:
    """The compiled plan."""
    return folder / f"{workload.model}.yaml"


def missing(workloads: Sequence[Workload], folder: Path) -> Iterator[str]:
    """Per plan that the folder lacks, what to do."""
    for workload in workloads:
        path = plan_of(workload, folder)
        if (found := found_at(path)) != "a file":
            yield f"{path}: expected a plan, got {found}; run 'edbc compile {workload.path} -o {path}'"


def inputs_of(workload: Workload, data: Path) -> list[str]:
    """The workload's files, or none where they are not all there: then the model makes instances up."""
    files = [data / name for name in workload.files]
    return [str(file) for file in files] if all(file.is_file() for file in files) else []


def limit_of(job: Job, options: argparse.Namespace) -> int:
    """Instances to read."""
    if options.dry:
        return job.batch_size
    return max(options.mini_batches * job.batch_size, min(64, 32 * options.mini_batches))


def settings_of(job: Job) -> dict[str, Any]:
    """The model's config beside its defaults."""
    return {"vocab_size": 256, "hidden_size": job.hidden_size, **dict(job.workload.settings)}


def measure(job: Job, folder: Path, options: argparse.Namespace) -> list[Row]:
    """The rows of a job."""
    path = plan_of(job.workload, folder)
    setting = Setting(job.batch_size, tuple(options.against.split(",")), limit_of(job, options), options.rounds,
                      options.dtype, "cuda" if options.dry else None, options.device,
                      options.eager_seconds)  # fmt: skip
    inputs = inputs_of(job.workload, Path(options.data))
    return bench_plan(path, read_plan(path), inputs, settings_of(job), setting, str(job.workload.path))


def warm(job: Job, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Every mini-batch of a job once."""
    plan = read_plan(plan_of(job.workload, folder))
    file = import_model_file(job.workload.path)
    config = file.config({**plan.model.config, **settings_of(job)})
    limit, inputs = limit_of(job, options), inputs_of(job.workload, Path(options.data))
    instances = list(file.load(inputs, config, limit)) if inputs else file.sample(limit, 1, config)
    model = file.build(config, plan.model.seed).to(options.device, getattr(torch, options.dtype))
    net = Net(plan, model, rebind=True, backend="cuda" if options.dry else None)
    with torch.no_grad():
        for first in range(0, len(instances), job.batch_size):
            net.run(instances[first : first + job.batch_size])
    return []


def run(jobs: Sequence[Job], record: Record, folder: Path, options: argparse.Namespace) -> None:
    """Every job, until time is up."""
    began = time.monotonic()
    for job in jobs:
        if time.monotonic() - began > options.seconds:
            record.left_out.append(str(job))
            continue
        try:
            rows = (warm if options.warm else measure)(job, folder, options)
        except Exception as error:  # a long run without anybody beside it: say what failed, measure the rest
            record.failed.append({"job": str(job), "error": repr(error)})
            print(f"{job}: {error!r}", flush=True)
            rows = []
        source = "data" if inputs_of(job.workload, Path(options.data)) else "sample"
        record.rows += [{**row.as_json(), "inputs": source} for row in rows]
        for row in rows:
            print(line_of(row), flush=True)
        record.write()
    record.write()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=DATA, help="folder with the shared data sets")
    plans = str(REPOSITORY / "plans")
    parser.add_argument("--plans", default=plans, help="folder with plans; a missing one is an error")
    parser.add_argument("--only", default="", help="workloads, separated by commas")
    parser.add_argument("--against", default="eager")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mini-batches", type=int, default=4)
    parser.add_argument(
        "--eager-seconds", type=float, default=10.0, help="per combination, and at least one mini-batch"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no combination after this time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processor-time", action="store_true", help="other processes do not count; one thread only")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--dry", action="store_true", help="one small instance on the CPU, in Triton's interpreter")
    parser.add_argument("--warm", action="store_true", help="compile kernels, measure nothing")
    parser.add_argument("--json", default=None, help="also write the rows there")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: expected a CUDA device, got none")
    if options.dry and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("--dry: expected Triton's interpreter; set TRITON_INTERPRET=1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a combination failed, 2 when a plan is missing."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    if options.processor_time:
        time.perf_counter = time.process_time  # type: ignore[assignment]
    chosen = [w for w in WORKLOADS if not options.only or w.model in options.only.split(",")]
    lacking = list(missing(chosen, Path(options.plans)))
    if lacking:
        print(*lacking, sep="\n", file=sys.stderr)
        return 2
    record = Record(Path(options.json) if options.json else None, conditions(options))
    for workload in chosen:
        if not inputs_of(workload, Path(options.data)):
            print(f"{workload.model}: no {workload.files[0]} in {options.data}, so its sample is used", file=sys.stderr)
    print(HEADER)
    jobs = list(jobs_of(chosen, options.sweep, options.device, options.dry))
    run(jobs, record, Path(options.plans), options)
    if record.left_out:
        print(f"left out after {options.seconds:g} s: {len(record.left_out)} of {len(jobs)} combinations")
    return int(bool(record.failed))


if __name__ == "__main__":
    sys.exit(main())
