"""A second process of this interpreter that works beside this one until its result, in the cache of kernels, is needed.

What a first run compiles late depends on no model: where there is a second core, another process compiles it from an
early moment on. It ends with this process at the latest.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys


class SecondProcess:
    """Runs a line of Python, once at a time."""

    def __init__(self, line: str):
        self.line = line
        self._started: subprocess.Popen[bytes] | None = None
        self._parent = 0

    @property
    def is_running(self) -> bool:
        """True between `begin`, where it started something, and `join`."""
        return self._started is not None and self._parent == os.getpid()

    def begin(self) -> None:
        """Start it, where there is a core for it and a process to be had."""
        if self.is_running or num_cores() < 2:
            return
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        silent = subprocess.DEVNULL
        try:
            self._started = subprocess.Popen(
                [sys.executable, "-c", self.line], env=environment, stdin=silent, stdout=silent, stderr=silent
            )
        except OSError:
            return
        self._parent = os.getpid()
        atexit.register(self._end)

    def join(self) -> int | None:
        """Wait until it is done; what it returned, None where nothing was started by this process."""
        if not self.is_running:
            return None
        started, self._started = self._started, None
        atexit.unregister(self._end)
        assert started is not None
        return started.wait()

    def _end(self) -> None:
        if self.is_running:
            assert self._started is not None
            self._started.kill()
            self.join()


def num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
