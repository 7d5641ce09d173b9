"""Time and memory of reading plans: the largest honest one, and the hostile ones of tests/plan.

    python benchmarks/plan_loading.py [--states 50000] [--repeat 5]

Each row is read in processes of its own; time is the median of its processor time, memory the highest that the process
held beyond what it held with edbc.plan imported (Linux only: VmHWM). The first line is the cost of the import itself.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "plan"))
sys.path.insert(0, str(ROOT))


def large_plan(num_states: int) -> bytes:
    """The text of a plan with as many states as asked, 12 types, and some 50 characters per state."""
    from plan_examples import LEAF, small_plan

    from edbc.plan import PlanType, plan_text

    plan = small_plan()
    rng = random.Random(0)
    names = [f"type{i}" for i in range(12)]
    table: dict[str, str] = {}
    while len(table) < num_states:
        ready = rng.sample(names, 7)
        table["<".join(ready)] = rng.choice(ready)
    types = tuple(PlanType(name, plan.types[0].signature, "models/tree.py:12") for name in names)
    policy = replace(plan.policy, table=table)
    cells = dict.fromkeys(names, LEAF)
    return plan_text(replace(plan, types=types, cells=cells, costs={}, policy=policy)).encode()


def peak_memory() -> float:
    """Highest resident memory of this process so far in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def read_once(path: str) -> None:
    """Print seconds, MB beyond the import, and the outcome of one reading; runs in a process of its own."""
    from edbc.errors import EdbcError
    from edbc.plan import read_plan

    before = peak_memory()
    start = time.process_time()
    try:
        outcome = f"{len(read_plan(path).policy.table):,} states"
    except EdbcError as error:
        outcome = str(error).removeprefix(path)
    seconds = time.process_time() - start
    print(f"{seconds}\t{peak_memory() - before}\t{outcome}")


def measure(data: bytes, repeat: int) -> tuple[float, float, str]:
    """Median seconds, greatest MB and the outcome of reading `data`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.yaml"
        path.write_bytes(data)
        command = [sys.executable, __file__, "--read", str(path)]
        rows = [
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip("\n").split("\t")
            for _ in range(repeat)
        ]
    return statistics.median(float(row[0]) for row in rows), max(float(row[1]) for row in rows), rows[0][2]


def report(name: str, data: bytes, repeat: int) -> None:
    """One row of the table."""
    seconds, megabytes, outcome = measure(data, repeat)
    print(f"{name:32} {len(data) / 1e6:7.2f} {seconds * 1e3:9.1f} {megabytes:8.1f}  {outcome[:90]}", flush=True)


def import_seconds() -> float:
    """Seconds that `import edbc.plan` takes beyond starting Python."""

    def run(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
        return time.perf_counter() - start

    return statistics.median(run("import edbc.plan") - run("pass") for _ in range(5))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=50_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read_once(arguments.read)
        return
    from hostile_plans import LARGE, VALID

    print(f"import edbc.plan: {import_seconds() * 1e3:.0f} ms")
    print(f"{'plan':32} {'MB':>7} {'CPU ms':>9} {'peak MB':>8}  outcome")
    report("small", VALID.encode(), arguments.repeat)
    report(f"{arguments.states:,} states", large_plan(arguments.states), arguments.repeat)
    for name, (make, _) in LARGE.items():
        report(name, make(), arguments.repeat)


if __name__ == "__main__":
    main()
