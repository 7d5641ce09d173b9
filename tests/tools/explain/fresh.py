"""A process that has imported what scripts import, and a fork of it for each: seconds less than a new process.

A script finds what it would find as a file of its own: the folder and the environment given, itself as `__main__`, and
nothing that another script has left.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["edbc.api", "edbc.run.session", "edbc.tools.compile.compiler"])
START = multiprocessing.get_start_method()
"""How processes of a script start theirs."""


def run_script(code: str, folder: Path) -> tuple[int, str]:
    """Exit code of a script and its traceback, if any."""
    told, tell = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_run, args=(code, folder, dict(os.environ), START, tell))
    process.start()
    tell.close()
    process.join()
    with suppress(EOFError):
        return int(process.exitcode or 0), told.recv() if told.poll() else ""
    return int(process.exitcode or 0), ""


def _run(code: str, folder: Path, environment: dict[str, str], start: str, tell: Connection) -> None:
    multiprocessing.set_start_method(start, force=True)  # and not the one that started this
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = ModuleType("__main__")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        exec(compile(code, "<string>", "exec"), main.__dict__)
    except Exception:
        tell.send(traceback.format_exc()[-20_000:])
        sys.exit(1)
