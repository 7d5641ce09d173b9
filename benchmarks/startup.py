"""From process start to the first result: `edbc run` on 32 made-up trees, warm and with nothing compiled yet.

    python benchmarks/startup.py [PLAN] [--cold-only]

Processor seconds of whole processes. The cold one compiles into an empty folder and says which module's code took how
long; the warm one runs in that folder afterwards, the median of three.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

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


def seconds_of(command: list[str], cache: str) -> tuple[float, str]:
    """Processor seconds of a process with its compiled code in `cache`, and what it wrote to stderr."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, env={**os.environ, "NUMBA_CACHE_DIR": cache}, check=True, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stderr


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", nargs="?", default=str(PLAN))
    parser.add_argument("--cold-only", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        cold, modules = seconds_of([sys.executable, "-c", RUN, options.plan], cache)
        print(f"cold {cold:6.2f} s, of which compiling")
        print("\n".join(line for line in modules.splitlines() if line.startswith("    ")))
        if not options.cold_only:
            command = [sys.executable, "-m", "edbc", "run", options.plan, "--limit", "32"]
            print(f"warm {statistics.median(seconds_of(command, cache)[0] for _ in range(3)):6.2f} s")


if __name__ == "__main__":
    main()
