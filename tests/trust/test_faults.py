"""Faults from outside: memory, disk, signals, broken input. Each ends in one line with a remedy."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from budget import HANGS
from chains import write_lengths
from helpers import bound
from safetensors.torch import load_file, save_file
from torch import nn

from edbc.base.files import replace_file
from edbc.capture.code.mark import cell
from edbc.capture.forward.deep import run_on_large_stack
from edbc.errors import DeviceError
from edbc.native import memory
from edbc.plan.reader import read_plan


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != "__pycache__"}


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [pytest.param("cpu", marks=pytest.mark.compiled), "reference"])
def test_short_memory_is_known_before_execution(
    backend: str, edbc, chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUGS 14: what a mini-batch needs is held against what is left, before anything executes: exit 4, both sizes."""
    monkeypatch.setattr(memory, "WORTH_ASKING", 1)
    monkeypatch.setattr(memory, "available_bytes", lambda: 12_345)
    monkeypatch.setattr("edbc.run.reference.ReferenceBackend.execute", None)
    monkeypatch.setattr("edbc.run.cpu.cpubackend.CpuBackend.execute", None)
    lengths = write_lengths(chain.parent, *[1000] * 8)
    result = edbc("run", chain, "--input", lengths, "--backend", backend)

    assert result.exit_code == 4
    assert "out of memory for the values of this mini-batch: expected " in result.stderr
    assert "bytes, got 12,345 available; use a smaller --batch-size" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.slow
@pytest.mark.parametrize("limit", [4_000_000_000, 1_100_000_000, 900_000_000])
def test_a_million_nodes_under_a_memory_limit(limit: int, start_edbc, chain: Path) -> None:
    """BUGS 14: 10^6 nodes that need 4 GB under a limit of address space: one line, exit 4, wherever memory ends."""
    prelude = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))"
    lengths = write_lengths(chain.parent, 1_000_000)
    process = start_edbc("run", chain, "--set", "hidden_size=1024", "--input", lengths, prelude=prelude)
    _, err = process.communicate()

    assert process.returncode == 4, err
    assert err.splitlines()[-1].startswith("Error: out of memory for ")
    assert "Traceback" not in err


def test_available_memory_counts_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The least of the machine's, the control group's and the process's own limit; a small buffer asks nobody."""
    (tmp_path / "memory.max").write_text("3000000")
    (tmp_path / "memory.current").write_text("1000000")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)

    assert memory.available_bytes() == 2_000_000
    memory.require_memory(memory.WORTH_ASKING - 1, "a small buffer")
    with pytest.raises(DeviceError, match=r"for a large buffer: expected 268,435,456 bytes, got 2,000,000 available"):
        memory.require_memory(memory.WORTH_ASKING, "a large buffer")
    (tmp_path / "memory.max").write_text("max")
    assert memory.available_bytes() > 2_000_000


def test_failed_allocations_of_python_and_torch_are_told_alike() -> None:
    """MemoryError and torch's RuntimeError become one DeviceError; other errors pass."""
    with (
        pytest.raises(DeviceError, match="out of memory for lists: expected more memory"),
        memory.MemoryErrors("lists"),
    ):
        raise MemoryError
    with pytest.raises(DeviceError, match="expected 9,223,372,036,854,775,680 more bytes"), memory.MemoryErrors("x"):
        torch.empty(2**63 - 128, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="mine"), memory.MemoryErrors("x"):
        raise RuntimeError("mine")


# --- disk ----------------------------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing more than `size` bytes into a file fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "command",
    [
        ("compile", "chain.py", "--policy", "critical", "--no-measure-gain", "--quiet", "-o"),
        ("run", "chain.yaml", "--output"),
        ("run", "chain.yaml", "--trace"),
        ("explain", "chain.yaml", "--html"),
    ],
    ids=lambda command: command[0] + command[-1],
)
def test_a_full_disk_leaves_what_was_there(command: tuple[str, ...], edbc, chain: Path) -> None:
    """Plan, outputs, timeline and page: one line that names the file, exit 3, the old content, no temporary file."""
    target = chain.parent / "target"
    target.write_text("before")
    before = files_in(chain.parent)
    arguments = [chain.parent / a if a.startswith("chain.") else a for a in command]
    edbc(*arguments, chain.parent / "warm")
    (chain.parent / "warm").unlink()
    with files_of_at_most(1000):
        result = edbc(*arguments, target)

    assert result.exit_code == 3, result.output
    assert f"{target}: expected to write" in result.stderr
    assert target.read_text() == "before"
    assert files_in(chain.parent) == before


@pytest.mark.long
def test_a_full_standard_output_is_one_line(chain: Path, start_edbc) -> None:
    """The report does not fit: exit 4 and the reason, no traceback, also when the interpreter ends."""
    prelude = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    process = start_edbc("run", chain, "--limit", 3, prelude=prelude)
    _, err = process.communicate()

    assert process.returncode == 4
    last = err.splitlines()[-1]
    assert last.startswith("Error: standard output: expected to write there, got: No space left on device; ")
    assert "Traceback" not in err


def test_devices_and_folders_are_not_replaced(edbc, chain: Path) -> None:
    """Renaming over `/dev/null` would take it from everybody: what is no regular file is refused."""
    pipe = chain.parent / "pipe"
    os.mkfifo(pipe)
    for target in (pipe, chain.parent):
        result = edbc("run", chain, "--limit", 2, "--output", target)
        assert result.exit_code == 3
        assert pipe.is_fifo()


def test_a_link_is_followed_and_keeps_its_target_s_permissions(tmp_path: Path) -> None:
    """The link stays a link; the file behind it has the new content and its old mode."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    replace_file(link, lambda temporary: temporary.write_text("new"))

    assert link.is_symlink()
    assert (real.read_text(), real.stat().st_mode & 0o777) == ("new", 0o640)


# --- signals and processes -----------------------------------------------------------------------------------------


DIES = """
import os, signal, sys
from edbc.base.files import replace_file
def write(path):
    path.write_text("half")
    path.with_name("another").write_text("of a library's own")
    os.kill(os.getpid(), signal.SIGKILL)
replace_file(sys.argv[1], write)
"""


def test_a_killed_writer_leaves_the_old_file_and_the_next_one_tidies_up(tmp_path: Path, repository: Path) -> None:
    """SIGKILL in the middle of writing: the plan that stood there stands there, and no other `*.yaml`; who writes the
    plan next removes what the dead process left, and nothing of other files."""
    target, other = tmp_path / "plan.yaml", tmp_path / "plan"
    target.write_text("old")
    for path in (other, target):
        killed = subprocess.run([sys.executable, "-c", DIES, str(path)], cwd=repository)
        assert killed.returncode == -signal.SIGKILL
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.glob("*.yaml")] == ["plan.yaml"]
    (left,) = tmp_path.glob(".plan.yaml.*.tmp/plan.yaml")

    replace_file(other, lambda temporary: temporary.write_text("other"))
    assert files_in(tmp_path) == {"plan", "plan.yaml", left.parent.name}
    replace_file(target, lambda temporary: temporary.write_text("new"))
    assert target.read_text() == "new"
    assert files_in(tmp_path) == {"plan", "plan.yaml"}


def test_a_living_writer_keeps_its_temporary_files(tmp_path: Path) -> None:
    """A second writer of the same file, in between, takes nothing from the first, whatever makes its files anew."""
    target = tmp_path / "out.safetensors"

    def write(temporary: Path) -> None:
        save_file({"x": torch.ones(2)}, temporary)
        replace_file(target, lambda inner: save_file({"x": torch.zeros(2)}, inner))
        assert load_file(target)["x"].tolist() == [0, 0]

    replace_file(target, write)
    assert load_file(target)["x"].tolist() == [1, 1]
    assert files_in(tmp_path) == {"out.safetensors"}


def test_files_are_written_whole_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a filesystem or a system has no locks, files are written as ever; what dead processes left stays."""
    left = tmp_path / ".plan.yaml.abcdefgh.tmp"
    left.mkdir()

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    for missing in (SimpleNamespace(flock=no_locks, LOCK_EX=2, LOCK_NB=4), None):
        monkeypatch.setattr("edbc.base.files.fcntl", missing)
        replace_file(tmp_path / "plan.yaml", lambda temporary: temporary.write_text("new"))
        assert files_in(tmp_path) == {"plan.yaml", left.name}


@pytest.mark.long
def test_control_c_while_training_exits_130(start_edbc, repository: Path, tmp_path: Path) -> None:
    """Interrupted in native code: one word, exit 130, no plan, no temporary file."""
    model = repository / "models" / "lattice_lstm.py"
    process = start_edbc("compile", model, "--set", "hidden_size=8", "-o", tmp_path / "plan.yaml", "--trials", 100_000)
    for line in process.stderr:
        if line.startswith("train"):
            break
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=HANGS)
    finally:
        process.kill()

    assert process.returncode == 130
    assert err.endswith("interrupted\n")
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_an_interrupt_that_native_code_reports_is_one(edbc, chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numba turns Ctrl-C into a SystemError with the interrupt as its cause; any other SystemError stays one."""
    for cause, code in ((KeyboardInterrupt(), 130), (ValueError(), 1)):

        def interrupted(*_: object, cause: BaseException = cause, **__: object) -> None:
            raise SystemError("returned a result with an exception set") from cause

        monkeypatch.setattr("edbc.run.session.run", interrupted)
        result = edbc("run", chain)
        assert result.exit_code == code
        assert result.stderr.endswith("interrupted\n") == (code == 130)


@pytest.mark.long
def test_two_processes_compile_to_one_file(chain: Path, start_edbc) -> None:
    """Both exit 0, and the file is the plan of one of them, whole."""
    target = chain.parent / "shared.yaml"
    options = ("--policy", "critical", "--no-measure-gain", "--quiet")
    arguments = ("compile", chain.with_suffix(".py"), "-o", target, *options)
    processes = [start_edbc(*arguments) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    for process in processes:
        process.communicate()

    assert read_plan(target) == read_plan(chain)
    assert {"shared.yaml"} == files_in(chain.parent) - {"chain.py", "chain.yaml"}


def test_deep_recursion_on_many_threads_keeps_its_limit() -> None:
    """The recursion limit is one for all threads: one that ends first does not take it from the others."""
    before = sys.getrecursionlimit()
    first_is_done = threading.Event()

    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + depth(n - 1)

    def second() -> int:
        first_is_done.wait(10)
        return depth(20_000)

    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(run_on_large_stack(second)))
    thread.start()
    assert run_on_large_stack(lambda: depth(20_000)) == 20_000
    first_is_done.set()
    thread.join()
    assert results == [20_000]
    assert sys.getrecursionlimit() == before


# --- input ---------------------------------------------------------------------------------------------------------


def test_an_exception_in_the_model_names_the_instance(edbc, chain: Path) -> None:
    """The user's traceback with their line and nothing of ours, our instance number, exit 3, and one object of JSON."""
    options = ("run", chain, "--input", write_lengths(chain.parent, 5, 3, -1))
    result, verbose = edbc(*options, "--format", "json"), edbc(*options, "--verbose")

    assert result.exit_code == verbose.exit_code == 3
    assert 'raise ValueError(f"no chain has {length} links")' in result.stderr
    message = json.loads(result.stdout)["error"]["message"]
    assert re.fullmatch(
        r"chain\.py:\d+: the model raised ValueError: no chain has -1 links \(while recording instance 2\)", message
    )
    assert f"Error: {message} [E0106]" in result.stderr
    assert [line.split('"')[1] for line in result.stderr.splitlines() if '  File "' in line] == [
        str(chain.with_suffix(".py"))
    ]
    assert "console.py" in verbose.stderr


def test_an_empty_input_and_instances_without_outputs(edbc, chain: Path, tmp_path: Path) -> None:
    """BUGS 6: nothing to run is no error when running, and one with a remedy when compiling; instances without outputs
    keep their place between others."""
    empty = write_lengths(tmp_path)
    for front_end in (["--verify"], ["--output", tmp_path / "none.safetensors"]):
        assert edbc("run", chain, "--input", empty, *front_end).exit_code == 0
    refused = edbc("compile", chain.with_suffix(".py"), "-o", tmp_path / "x.yaml", "--input", empty)
    assert refused.exit_code == 3
    assert "expected instances to compile on, got none" in refused.stderr
    mixed = write_lengths(tmp_path, 0, 2, 0, 0, 1)
    outputs = tmp_path / "mixed.safetensors"
    result = edbc("run", chain, "--input", mixed, "--verify", "--output", outputs, "--batch-size", 3)
    assert result.exit_code == 0, result.output
    assert load_file(outputs)["h.offsets"].tolist() == [0, 0, 1, 1, 1, 2]


def test_weights_that_are_not_a_number_stay_so(edbc, chain: Path, tmp_path: Path) -> None:
    """NaN and infinities in weights: batched outputs are not-a-number exactly where eager's are, and no sooner."""
    from edbc.run.modelfile import import_model_file

    state = import_model_file(chain.with_suffix(".py")).build({}, 0).state_dict()
    state["table.weight"][3] = math.nan
    state["step.weight.weight"][0, 0] = math.inf
    save_file(state, tmp_path / "nan.safetensors")
    outputs = tmp_path / "out.safetensors"
    result = edbc("run", chain, "--weights", tmp_path / "nan.safetensors", "--verify", "--output", outputs)

    assert result.exit_code == 0, result.output
    assert load_file(outputs)["h"].isnan().any()


@cell
class Count(nn.Module):
    """Adds one."""

    def forward(self, total: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        return total + one


class Counter(nn.Module):
    """Counts to its instance, one node a step."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.count = Count()

    def forward(self, steps: int) -> torch.Tensor:
        total = self.one
        for _ in range(steps):
            total = self.count(total, self.one)
        return total


def test_one_node_and_200_000_nodes_in_one_mini_batch() -> None:
    """BUGS 6: instances of 200,000 nodes, of one and of none, executed together, count exactly; twice, so that memory
    of the first mini-batch is used again."""
    net = bound(Counter(), [1])
    for lengths in ([1, 200_000, 0, 3], [200_000, 1]):
        assert [total.item() for total in net(lengths)] == [1.0 + n for n in lengths]
