"""Graph loops compiled before they are called: the list is what runs call, and whoever is first compiles for all."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from called_loops import type_text
from numba import types

from edbc.native import ahead, kernelcache, shipped
from edbc.native.ahead import LISTED, listed, num_cores, read_types
from edbc.native.kernelcache import KernelFiles

KERNEL = """
from edbc.native.kernelcache import njit

@njit(cache=True)
def add(x):
    return x + 1
"""


def test_every_line_names_a_function_and_its_types() -> None:
    """What is listed is there, and types are read back as they were written; `make loops` writes the list."""
    lines = [line for line in LISTED.read_text().splitlines() if line]
    assert len(lines) == len(set(lines))
    for line, (function, arguments) in zip(lines, listed(), strict=True):
        assert line.split(" ", 2)[2] == ", ".join(map(type_text, arguments))
        assert len(arguments) == len(inspect.signature(getattr(function, "py_func", function)).parameters), line


def test_a_list_of_another_day_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is gone, and one that takes other arguments: what is listed is compiled ahead or not at all."""
    old = tmp_path / "loops.txt"
    old.write_text("native.pointers gone int64[1]\ncapture.ragged.expandloops extent int64[2], int64\n")
    monkeypatch.setattr(ahead, "LISTED", old)
    monkeypatch.setattr(ahead, "_is_free", lambda function, arguments: True)

    assert list(ahead._compile_rest(())) == [True]


@pytest.mark.parametrize("kind", [types.float64[:], types.literal(3), types.unicode_type, types.Tuple([types.int64])])
def test_types_that_the_list_has_no_words_for_are_refused(kind: Any) -> None:
    """Strided arrays, known numbers and the rest."""
    with pytest.raises(ValueError, match="expected a number, an array in C's order or a named tuple"):
        type_text(kind)


def test_rooms_are_left_out_unless_asked_for() -> None:
    """A run waits for no function of learning."""

    def modules(*rooms: str) -> set[str]:
        return {function.__module__ for function, _ in listed(rooms)}

    learning = {name for name in modules(ahead.LEARNING) if ahead.LEARNING in name}
    assert learning
    assert not learning & modules()
    assert modules(ahead.GRADIENTS) > modules()
    assert read_types("int64") == (types.int64,)


@pytest.mark.compiled
def test_types_are_those_of_a_mini_batch() -> None:
    """Running a float32 mini-batch adds no signature to what is listed."""
    import torch
    from helpers import bound
    from torch import nn

    for function, arguments in listed(()):
        function.compile(arguments)
    before = [set(function.signatures) for function, _ in listed(())]
    net = bound(nn.Linear(3, 2), [torch.ones(3), torch.zeros(3)])
    net([torch.ones(3)])

    assert [set(function.signatures) for function, _ in listed(())] == before


@pytest.mark.compiled
@pytest.mark.long
def test_no_loop_brings_in_numbas_strings() -> None:
    """For the message of a slice assignment whose lengths differ, numba compiles them for seconds: neither what is
    listed has them, nor what else has been compiled on this machine."""
    for function, arguments in listed():
        function.compile(arguments)
        assert function._cache.find(arguments, function.targetctx.codegen()) is not None
    modules = [module for name, module in sys.modules.items() if name.startswith("edbc.")]
    caches = {id(v._cache): v._cache for m in modules for v in vars(m).values() if hasattr(v, "_cache")}
    files = [c._cache_file for c in caches.values() if isinstance(c, kernelcache.KernelCache)]
    kept = [file for f in files for file in f._files() if f".{f._of_source}." in file.name]

    assert len(kept) > len(list(listed())) // 2
    assert not [file.name for file in kept if b"unicode" in file.read_bytes()]


def test_one_process_at_a_time_makes_a_file(tmp_path: Path) -> None:
    """Who comes second gets nothing unless it waits; what is let go of can be taken."""
    pytest.importorskip("fcntl", reason="locks files: needs fcntl")
    key = (types.float64, "cpu")
    first, second = (KernelFiles(str(tmp_path), "kernel.add-5.py3", 1) for _ in range(2))
    held = first.lock(key)
    assert held is not None
    assert second.lock(key, wait=False) is None
    assert second.lock((types.float32, "cpu"), wait=False) is not None
    first.unlock(key, held)
    assert second.lock(key, wait=False) is not None


@pytest.mark.compiled
@pytest.mark.long
def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    """Of three, one compiles and two load what it made."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    code = "import kernel; kernel.add(1); print(sum(kernel.add.stats.cache_misses.values()))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    running = [subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
               for _ in range(3)]  # fmt: skip

    assert sorted(process.communicate()[0].strip() for process in running) == ["0", "0", "1"]


def test_who_waits_does_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another makes what is wanted, a process does other work, until there is none, or the other is done."""
    pytest.importorskip("fcntl", reason="locks files: needs fcntl")
    other = KernelFiles(str(tmp_path), "kernel.add-5.py3", 1)
    key = (types.float64, "cpu")
    held, done = other.lock(key), []

    def help() -> bool:
        done.append(len(done))
        if len(done) == 3:
            other.unlock(key, held)
        return True

    monkeypatch.setattr(kernelcache, "WHILE_WAITING", [help])
    taken = KernelFiles(str(tmp_path), "kernel.add-5.py3", 1).turn(key)
    assert taken is not None
    assert done == [0, 1, 2]


def test_a_processor_without_the_level_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shipped files are for a level; a processor that lacks one of its features takes none."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    monkeypatch.setattr(shipped.platform, "machine", lambda: "x86_64")
    full = ",".join(f"+{name}" for name in shipped.TARGETS["x86_64"][1].split())

    assert shipped.target(("triple", "znver5", full)) == ("triple", "x86-64-v3", "")
    assert shipped.target(("triple", "old", full.replace("+avx2", "-avx2"))) is None
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "none")
    assert shipped.target(("triple", "znver5", full)) is None


def test_processes_start_only_where_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With kernels kept, on one core, or once started, none starts; there are never more than cores."""
    started: list[str] = []
    monkeypatch.setattr(ahead, "_start", lambda line: (started.append(line), ahead._STARTED.append(None)))
    monkeypatch.setattr(ahead.atexit, "register", lambda *_: None)
    monkeypatch.setattr(ahead.config, "DISABLE_JIT", False)
    monkeypatch.setattr(ahead, "_STARTED", [])
    for missing, cores, expected in ((False, 2, 0), (True, 1, 0), (True, 3, 2), (True, 3, 2)):
        monkeypatch.setattr(ahead, "_is_missing", lambda _, missing=missing: missing)
        monkeypatch.setattr(ahead, "num_cores", lambda cores=cores: cores)
        ahead.begin(ahead.LEARNING)
        assert len(started) == expected
    assert "schedule.learn" in started[0]


def test_a_wait_for_loops_of_training_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """After runs, which do not call them: training waits for a compiler, and whoever asks is told so."""
    monkeypatch.setattr(ahead.config, "DISABLE_JIT", False)
    monkeypatch.setattr(ahead, "_STARTED", [])
    free = {"walk_back": True}
    monkeypatch.setattr(ahead, "_is_free", lambda function, _: free.get(function.__name__, False))
    assert [ahead.begin(*rooms) for rooms in ((), (ahead.LEARNING,), (ahead.GRADIENTS,))] == [False, False, True]
    assert not ahead._STARTED


@pytest.mark.skipif(num_cores() < 2, reason="one core: nothing is compiled beside")
@pytest.mark.slow
@pytest.mark.compiled
def test_the_first_process_starts_one(tmp_path: Path) -> None:
    """With an empty cache processes compile what a run calls, and fill it: the next one starts nothing."""
    code = "from edbc.native import ahead; print(ahead.begin()); [process.wait() for process in ahead._STARTED]"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for expected in ("True\n", "False\n"):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == expected
