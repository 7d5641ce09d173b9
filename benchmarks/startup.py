"""From process start to the first result: `edbc run` on 32 made-up trees, warm and with nothing compiled yet.

    python benchmarks/startup.py [PLAN] [--cold-only | --warm-only]

Processor seconds of the cold process, which compiles into an empty folder, and of which module's code took how long.
Warm ones run in that folder afterwards, in turns with `import torch` alone: medians of the clock and of processor
seconds, and what is left beside torch. Python keeps its bytecode, as it does for all who have not forbidden it.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

PLAN = Path(__file__).resolve().parents[1] / "plans" / "tree_lstm.yaml"
RUN = """
import collections, sys, time
from numba.core import event

class Compiling(event.Listener):
    def __init__(self):
        self.seconds, self.nested = collections.Counter(), []

    def on_start(self, started):
        self.nested.append([time.process_time(), 0.0])

    def on_end(self, ended):
        since, inside = self.nested.pop()
        took = time.process_time() - since
        if self.nested:
            self.nested[-1][1] += took
        self.seconds[ended.data["dispatcher"].py_func.__module__] += took - inside

compiling = Compiling()
event.register("numba:compile", compiling)
from edbc.tools.cli.main import main
main(["run", sys.argv[1], "--limit", "32"], standalone_mode=False)
for module, seconds in compiling.seconds.most_common():
    print(f"    {seconds:6.2f} s  {module}", file=sys.stderr)
"""


class Took(NamedTuple):
    """What a process took, in seconds."""

    clock: float
    processor: float


def seconds_of(command: list[str], cache: str) -> tuple[Took, str]:
    """What a process takes with its compiled code in `cache`, and what it wrote to stderr."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"NUMBA_CACHE_DIR": cache}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=kept, check=True, capture_output=True, text=True)
    clock, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), done.stderr


def warm(run: list[str], cache: str, rounds: int) -> None:
    """Print medians of a run and of torch's own import, which take turns."""
    torch = [sys.executable, "-c", "import torch"]
    seconds_of(run, cache)
    turns = [(seconds_of(run, cache)[0], seconds_of(torch, cache)[0]) for _ in range(rounds)]
    for name in Took._fields:
        ours, theirs = (statistics.median(getattr(turn[i], name) for turn in turns) for i in (0, 1))
        beside = statistics.median(getattr(a, name) - getattr(b, name) for a, b in turns)
        print(
            f"warm, {name:<9} {ours:5.2f} s, import torch {theirs:5.2f}, beside it {beside:5.2f} (median of {rounds})"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", nargs="?", default=str(PLAN))
    parser.add_argument("--cold-only", action="store_true")
    parser.add_argument("--warm-only", action="store_true", help="with the compiled code that is there")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    run = [sys.executable, "-m", "edbc", "run", options.plan, "--limit", "32"]
    if options.warm_only:
        warm(run, os.environ.get("NUMBA_CACHE_DIR", ""), options.rounds)
        return
    with tempfile.TemporaryDirectory() as cache:
        cold, modules = seconds_of([sys.executable, "-c", RUN, options.plan], cache)
        print(f"cold {cold.processor:6.2f} s of processor time, of which compiling")
        print("\n".join(line for line in modules.splitlines() if line.startswith("    ")))
        if not options.cold_only:
            warm(run, cache, options.rounds)


if __name__ == "__main__":
    main()
