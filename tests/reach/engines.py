"""Starting engines in tests: with a time limit, and a look afterwards for processes that they left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from budget import HANGS

TOKEN = "EDBC_TEST_TOKEN"
LINGERING = 30.0
"""Seconds that processes may take to end after the one that was started."""


@dataclass(frozen=True)
class Ended:
    """What a command did."""

    code: int
    output: str
    """stdout and stderr together."""


def processes(token: str) -> dict[int, str]:
    """Running processes that were started with a token: their numbers and commands."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (
                token.encode() in (entry / "environ").read_bytes()
                and "Z" not in (entry / "stat").read_text().split()[2]
            ):
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")[:200]
        except OSError:
            continue
    return found


@contextmanager
def started(
    *command: object, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A command that runs; at the end nothing that it started may be left, and is killed if it is."""
    token = uuid.uuid4().hex
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd,
        env={**os.environ, TOKEN: token, **(env or {})}, start_new_session=True,
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        left = _waited_for(token)
        while still := processes(token):  # what is killed may have started others
            for number in still:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.2)
    assert not left, f"left behind: {left}"


def _waited_for(token: str) -> dict[int, str]:
    """What is left of the processes of a token, after a while."""
    until = time.monotonic() + LINGERING
    while (left := processes(token)) and time.monotonic() < until:
        time.sleep(0.2)
    return left


def ran(*command: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ended:
    """Run a command to its end."""
    with started(*command, env=env, cwd=cwd) as process:
        output, _ = process.communicate(timeout=HANGS)
    return Ended(process.returncode, output)


def torchrun(ranks: int, *command: object, env: Mapping[str, str] | None = None, restarts: int = 0) -> Ended:
    """Run a script, or `-m module`, in several ranks."""
    run = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks)
    return ran(*run, "--max-restarts", restarts, *command, env=env)
