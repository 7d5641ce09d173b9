"""A process that has imported what scripts import, and a fork of it for each: seconds less than a new process.

A script finds what it would find as a file of its own: the folder and the environment given, itself as `__main__`, and
nothing that another script has left.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from contextlib import redirect_stdout, suppress
from io import StringIO
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["edbc.api", "edbc.run.session", "edbc.tools.compile.compiler"])
START = multiprocessing.get_start_method()
"""How processes of a script start theirs."""


class Ended(NamedTuple):
    """What became of a script."""

    code: int
    printed: str
    """Where it came to its end, or to an exception."""
    traceback: str


def run_script(code: str, folder: Path, **environment: str) -> Ended:
    """Run a script to its end."""
    told, tell = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_run, args=(code, folder, {**os.environ, **environment}, START, tell))
    process.start()
    tell.close()
    process.join()
    with suppress(EOFError):
        return Ended(int(process.exitcode or 0), *(told.recv() if told.poll() else ("", "")))
    return Ended(int(process.exitcode or 0), "", "")


def _run(code: str, folder: Path, environment: dict[str, str], start: str, tell: Connection) -> None:
    multiprocessing.set_start_method(start, force=True)  # and not the one that started this
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = ModuleType("__main__")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    trace = ""
    with redirect_stdout(StringIO()) as printed:
        try:
            exec(compile(code, "<string>", "exec"), main.__dict__)
        except Exception:
            trace = traceback.format_exc()[-20_000:]
    tell.send((printed.getvalue(), trace))
    sys.exit(1 if trace else 0)
