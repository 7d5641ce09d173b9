"""One command for a machine with a GPU: the tests that need one, then the nine workloads against eager on it.

    python benchmarks/gpu.py [--json build/gpu.json] [--seconds 530] [--data DIR] [--dry]

Three phases, which together end within --seconds:

(1) At once, within SHARE of the time: the tests of the CUDA back end, on several processes where pytest-xdist is
    installed; and a process per workload that runs every combination once (`end_to_end.py --warm`), so that the second
    phase finds compiled kernels in Triton's cache.
(2) Alone on the machine: `end_to_end.py --device cuda --sweep`, batch 1, 32 and 256 at hidden size 128, 256 and 512,
    the most telling combinations first, for the time that is left.

(3) `gpu_model.py`, on the host, in the first phase; and in the last LAST_SECONDS `gpu_gaps.py`: gaps between graph
    nodes, cuDNN's LSTM, and the model beside what phase (2) measured; `gpu_stream.py`: mini-batch after mini-batch;
    then `gpu_training.py`: training steps.

What fails or is cut off costs nothing else. The benchmark's record is the file of --json, whole after every
combination; how the tests and the warming ended is in NAME.tests.json beside it, the tests' output in NAME.tests.log.
The exit code is 1 when anything failed.

With --dry all three phases run where there is no GPU, in Triton's interpreter, on one small instance per workload and a
few tests: figures mean nothing then, but nothing runs for the first time where a GPU is at hand.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from end_to_end import REPOSITORY, WORKLOADS

from edbc.run.cuda.compiled import missing

SECONDS = 530.0
"""For everything; nothing waits for a GPU with --dry, which has three times that."""
SHARE = 0.45
"""Of the time, for the first phase."""
GRACE = 15.0
"""Seconds that the second phase's last combination may take after it has begun."""
LAST_SECONDS = 90.0
"""For the third phase."""
PROCESSES = max(4, (os.cpu_count() or 1) // 2)
"""For the tests."""
TESTS = ("tests/run/cuda", "tests/stages/test_cuda.py", "tests/capture/captured/test_workers.py")
"""Folders and files with tests that need a GPU."""
BRIEF = ("--rounds", "2", "--mini-batches", "2", "--eager-seconds", "2")
"""What makes 81 combinations fit."""
BRIEFEST = ("--rounds", "1", "--mini-batches", "1", "--eager-seconds", "1")
"""The same with --dry: the interpreter takes seconds for a mini-batch."""
DRY = ("tree_lstm", "lattice_lstm")
"""Workloads of --dry."""


@dataclass
class Child:
    """A process of this script's own, its output in a file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self, until: float) -> str:
        """`passed`, `failed` or `cut off` when it has not ended by then."""
        try:
            code = self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            return "cut off"
        return "failed" if code else "passed"


def start(name: str, arguments: Sequence[str], folder: Path) -> Child:
    """Begin `python ARGUMENTS` in the repository, with this checkout first among the modules."""
    log = folder / f"{name}.log"
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, *arguments], cwd=REPOSITORY, env=environment, stdout=output,
                                   stderr=subprocess.STDOUT)  # fmt: skip
    return Child(name, process, log)


def arguments_of_tests(options: argparse.Namespace) -> list[str]:
    """Warnings of other versions than those that the project is tested with do not fail a test here."""
    some = ["-k", "chain"] if options.dry else []
    workers = ["-n", str(PROCESSES)] if importlib.util.find_spec("xdist") else []
    return ["-m", "pytest", *TESTS, "-q", "-W", "default", "-p", "no:cacheprovider", *workers, *some]


def arguments_of_benchmark(options: argparse.Namespace, *more: str) -> list[str]:
    """The benchmark on this GPU with the committed plans."""
    data = ["--data", options.data] if options.data else []
    where = ["--dry", "--only", ",".join(DRY)] if options.dry else ["--device", "cuda", "--sweep"]
    brief = BRIEFEST if options.dry else BRIEF
    return ["benchmarks/end_to_end.py", *where, "--plans", "plans", *data, *more, *brief]


def first_phase(options: argparse.Namespace, folder: Path, until: float) -> bool:
    """Definition (1); True when all went well."""
    tests = start("tests", arguments_of_tests(options), folder)
    names = DRY if options.dry else [workload.model for workload in WORKLOADS]
    warming = [start(name, arguments_of_benchmark(options, "--warm", "--only", name), folder) for name in names]
    model = ["benchmarks/gpu_model.py", "--json", str(beside(options, "json", "model").resolve())]
    model += ["--sizes", "1", "--repeat", "2"] if options.dry else []
    warming.append(start("gpu_model", [*model, *(["--data", options.data] if options.data else [])], folder))
    outcomes = {child.name: child.wait(until) for child in [*warming, tests]}
    text = tests.log.read_text(errors="replace")
    found = {"outcomes": outcomes, "summary": summary_of(text), "failures": failures_of(text)}
    beside(options, "log").write_text(text)
    beside(options, "json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"tests {outcomes['tests']}: {found['summary']}", *failures_of(text), sep="\n", flush=True)
    for child in warming:
        if outcomes[child.name] != "passed":
            print(f"{child.name}, run once: {outcomes[child.name]}", *ends_of(child), sep="\n", flush=True)
    return set(outcomes.values()) == {"passed"}


def beside(options: argparse.Namespace, ending: str, what: str = "tests") -> Path:
    """A file of the tests, or of something else, beside that of --json."""
    return Path(options.json).with_suffix(f".{what}.{ending}")


def summary_of(text: str) -> str:
    """pytest's last line of counts."""
    found: list[str] = re.findall(r"^.*\d+ (?:passed|failed|skipped|error).*$", text, re.MULTILINE)
    return found[-1].strip("= ") if found else "no summary"


def failures_of(text: str) -> list[str]:
    """The lines that name failed tests."""
    return re.findall(r"^(?:FAILED|ERROR) .*$", text, re.MULTILINE)


def ends_of(child: Child) -> list[str]:
    """The last lines of what it printed."""
    return child.log.read_text(errors="replace").splitlines()[-5:]


def second_phase(options: argparse.Namespace, folder: Path, until: float) -> bool:
    """Definition (2); True when all went well."""
    left = max(0.0, until - time.monotonic() - GRACE)
    path = str(Path(options.json).resolve())
    child = start("benchmark", arguments_of_benchmark(options, "--seconds", f"{left:.0f}", "--json", path), folder)
    outcome = child.wait(until)
    print(child.log.read_text(errors="replace"), f"benchmark {outcome}", flush=True)
    return outcome == "passed"


def third_phase(options: argparse.Namespace, folder: Path, until: float) -> bool:
    """Definition (3); True when all went well."""
    files = ["--measured", options.json, "--model", str(beside(options, "json", "model"))]
    device = ["--device", "cpu"] if options.dry else []
    small = ["--only", DRY[0], "--batch-size", "1", "--hidden", "16"] if options.dry else []
    data = ["--data", options.data] if options.data else []
    outcomes = []
    brief = ["--sizes", "tree_lstm:1:16", "--workers", "1", "--turn", "0"] if options.dry else []
    for name, more in (("gaps", files), ("stream", [*brief, *data]), ("training", [*small, *data])):
        json_file = ["--json", str(beside(options, "json", name).resolve())]
        child = start(name, [f"benchmarks/gpu_{name}.py", *device, *json_file, *more], folder)
        outcomes.append(child.wait(until))
        print(child.log.read_text(errors="replace"), f"{name} {outcomes[-1]}", flush=True)
    return set(outcomes) == {"passed"}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", default="build/gpu.json", help="where the benchmark's record goes")
    parser.add_argument("--seconds", type=float, default=None, help="for everything; 530, with --dry 1590")
    parser.add_argument("--data", default=None, help="folder with the shared data sets")
    parser.add_argument("--dry", action="store_true", help="in Triton's interpreter, without a GPU: see above")
    options = parser.parse_args(arguments)
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"
        if (why := missing("cpu")) is not None:
            parser.error(f"--dry: {why} ('make triton')")
        options.seconds = options.seconds or 3 * SECONDS
    elif not torch.cuda.is_available():
        parser.error("expected a CUDA device, got none")
    options.seconds = options.seconds or SECONDS
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Both phases; 1 when anything failed."""
    options, began = parse(arguments), time.monotonic()
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        outcomes = [first_phase(options, folder, began + SHARE * options.seconds),
                    second_phase(options, folder, began + options.seconds - LAST_SECONDS),
                    third_phase(options, folder, began + options.seconds)]  # fmt: skip
    return int(not all(outcomes))


if __name__ == "__main__":
    sys.exit(main())
