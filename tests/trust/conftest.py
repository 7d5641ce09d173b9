"""A compiled chain model, and commands run in this process or in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from chains import write_model

import edbc as package

FORKS = """
import json, os, sys, tempfile
import edbc.run.session
from edbc.tools.cli import main
told = []
for command in json.loads(sys.argv[1]):
    files = [tempfile.TemporaryFile() for _ in range(2)]
    child = os.fork()
    if not child:
        for number, file in enumerate(files, 1):
            os.dup2(file.fileno(), number)
        main(command)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    told.append([code, *(os.pread(file.fileno(), 1 << 20, 0).decode() for file in files)])
print(json.dumps(told))
"""
HEARS_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


@pytest.fixture(scope="session")
def start_edbc(repository: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a command in a process of its own, its stderr readable while it runs; it hears SIGINT, which children of a
    shell's background jobs are told to ignore."""
    environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}

    def start(*arguments: object, prelude: str = "") -> subprocess.Popen[str]:
        code = f"{HEARS_SIGINT}\n{prelude}\nimport sys\nfrom edbc.tools.cli import main\nmain(sys.argv[1:])"
        command = [sys.executable, "-c", code, *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    return start


@pytest.fixture(scope="session")
def run_in_forks(repository: Path) -> Callable[..., list[tuple[int, str, str]]]:
    """Run commands one after the other, each in a fork of one process that has imported edbc after some lines of
    Python: exit code, stdout and stderr of each."""
    environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}

    def run(prelude: str, *commands: tuple[object, ...]) -> list[tuple[int, str, str]]:
        given = json.dumps([[*map(str, command)] for command in commands])
        done = subprocess.run([sys.executable, "-c", f"{prelude}\n{FORKS}", given], capture_output=True, text=True,
                              check=True, env=environment)  # fmt: skip
        return [tuple(each) for each in json.loads(done.stdout)]

    return run


@pytest.fixture(scope="session")
def chain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `chain.py` and its plan `chain.yaml`. Tests must not change it."""
    folder = tmp_path_factory.mktemp("chain")
    package.compile(write_model(folder), folder / "chain.yaml", policy="critical")
    return folder


@pytest.fixture
def chain(chain_folder: Path, tmp_path: Path) -> Path:
    """The plan in a folder of its own that a test may change."""
    for path in chain_folder.glob("chain.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path / "chain.yaml"
