"""Cached kernels are those of this source and of this signature, whatever other processes do and wherever one ends."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from fresh import run_script
from numba import typeof, types
from numba.core import registry
from numba.core.codegen import JITCodeLibrary

from edbc.native.kernelcache import INNER, KernelFiles, compiled_in, njit

REPOSITORY = Path(__file__).resolve().parents[2]
KERNEL = "from edbc.native.kernelcache import njit\n\n\n@njit(cache=True)\ndef add(x):\n    return x + {}\n"


def printed(folder: Path, code: str) -> list[float]:
    """The numbers that a script prints which imports edbc and the modules in `folder`, and caches their kernels beside
    them. Without Python's own byte code: an edit of the same length within a second is none to it."""
    ended = run_script(f"import sys\nsys.dont_write_bytecode = True\n{code}", folder)
    assert ended.code == 0, ended.traceback
    return list(map(float, ended.printed.split()))


def added(folder: Path, ends_before_the_data: bool = False, of: str = "add") -> list[float]:
    """What the kernel in `folder` gives for 1.0 and for 1, in a process of its own."""
    ends = "caching.IndexDataCacheFile._save_data = lambda *_: os._exit(0)" if ends_before_the_data else ""
    code = f"import os\nfrom numba.core import caching\n{ends}\nimport kernel\nprint(kernel.{of}(1.0), kernel.{of}(1))"
    return printed(folder, code)


@pytest.mark.compiled
@pytest.mark.long
def test_a_process_that_ends_while_it_writes_leaves_no_older_kernel(tmp_path: Path) -> None:
    """The source is edited; the first process that compiles it ends before its machine code is on the disk."""
    source = tmp_path / "kernel.py"
    source.write_text(KERNEL.format(1))
    assert added(tmp_path) == [2.0, 2.0]
    assert len(list(tmp_path.rglob("*.nbc"))) == 2

    source.write_text(KERNEL.format(10))
    assert added(tmp_path, ends_before_the_data=True) == []

    assert added(tmp_path) == [11.0, 11.0]
    assert len(list(tmp_path.rglob("*.nbc"))) == 2, "kernels of the edited source stay for ever"


@pytest.mark.compiled
@pytest.mark.long
def test_an_edit_that_moves_no_time_is_noticed(tmp_path: Path) -> None:
    """The text of the source has changed, not its size, and its time is set back."""
    source = tmp_path / "kernel.py"
    for number in (1, 2):
        source.write_text(KERNEL.format(number))
        os.utime(source, (10**9, 10**9))
        assert added(tmp_path) == [1.0 + number, 1.0 + number]


PARTS = {
    "kernel": "import inner\nfrom edbc.native.kernelcache import njit\nfrom inner import outer\n\n\n@njit(cache=True)\n"
    "def add(x):\n    return outer(x) + inner.LATE\n",
    "inner": "from leaf import leaf\nfrom numba import njit\n\nLATE = 0\n\n\n@njit\ndef outer(x):\n"
    "    return leaf(x) + 1\n",
    "leaf": "from typing import NamedTuple\n\nfrom numba import njit\nfrom numba.extending import intrinsic\n\n"
    "NUMBERS = (0, 1)\n\n\nclass Pair(NamedTuple):\n    first: float\n    other: float\n\n\n"
    "def none_of(builder, value):\n    return value\n\n\n"
    "@intrinsic\ndef same(typing, x):\n    return x(x), lambda context, builder, signature, args: args[0]\n\n\n"
    "def made(number):\n    return njit(lambda x: same(x) + number)\n\n\nplus = made(0)\n\n\n"
    "@njit(fastmath=False)\ndef leaf(x):\n    return Pair(plus(x), 7.0).first + NUMBERS[0]\n",
}


def write(folder: Path, **edited: str) -> None:
    for name, text in (PARTS | edited).items():
        (folder / f"{name}.py").write_text(text)
        os.utime(folder / f"{name}.py", (10**9, 10**9))


@pytest.mark.compiled
@pytest.mark.long
def test_an_edit_of_another_file_is_noticed(tmp_path: Path) -> None:
    """Of a number in a file that the kernel does not import; unedited, a second process finds those kernels."""
    write(tmp_path)
    assert added(tmp_path) == [2.0, 2.0]
    kernels = set(tmp_path.rglob("*.nbc"))
    assert added(tmp_path) == [2.0, 2.0]
    assert set(tmp_path.rglob("*.nbc")) == kernels

    write(tmp_path, leaf=PARTS["leaf"].replace("(0, 1)", "(8, 1)"))
    assert added(tmp_path) == [10.0, 10.0]
    assert len(list(tmp_path.rglob("*.nbc"))) == 2
    assert not set(tmp_path.rglob("*.nbc")) & kernels, "kernels of the edited source stay for ever"


@pytest.mark.compiled
@pytest.mark.parametrize(("file", "old", "new"), [
    ("inner", "+ 1", "+ 2"), ("inner", "LATE = 0", "LATE = 5"), ("leaf", "(0, 1)", "(8, 1)"),
    ("leaf", "made(0)", "made(3)"), ("leaf", "same(x) +", "same(x) -"), ("leaf", "args[0]", "args[-1]"),
    ("leaf", "first: float\n    other: float", "other: float\n    first: float"), ("leaf", "=False", "=True"),
])  # fmt: skip
def test_what_is_compiled_in_is_seen(
    file: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte code, closures, intrinsics, numbers, fields and options of functions that are called by others; what is not
    edited is equal however often it is read."""
    edited = PARTS[file].replace(old, new)
    assert edited != PARTS[file]
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))

    def seen(**edited: str) -> list[object]:
        write(tmp_path, **edited)
        for name in PARTS:
            monkeypatch.delitem(sys.modules, name, raising=False)
        return list(compiled_in(importlib.import_module("kernel").add))

    before = seen()

    assert seen() == before
    assert seen(**{file: edited}) != before


@pytest.mark.compiled
def test_fields_of_arguments_are_part_of_the_key() -> None:
    """A kernel reads a named tuple by position; numba's type of it is its class and the types of its fields."""
    codegen = registry.cpu_target.target_context.codegen()

    def key(fields: str) -> Any:
        argument = typeof((namedtuple("pair", fields)(1.0, 2.0), 1))
        return njit(cache=True)(lambda x: x)._cache._index_key((argument,), codegen)

    assert key("a b")[-1] == key("a b")[-1] != key("b a")[-1]


CALLBACK = """
import ctypes
import numpy as np
from numba import carray, types
from edbc.native.kernelcache import callback

def write(pointer, x):
    carray(pointer, 1)[0] = x + {}
"""
CALLED = """
import kernel
from kernel import ctypes, np, types
found = np.zeros(1, np.int64)
signature = types.void(types.CPointer(types.int64), types.int64)
call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(kernel.callback(kernel.write, signature))
call(found.ctypes.data, 1)
print(found[0])
"""


@pytest.mark.compiled
@pytest.mark.long
def test_callbacks_are_cached_and_follow_edits(tmp_path: Path) -> None:
    """What is called by its address is on the disk after the first process, and is that of today's source."""
    source = tmp_path / "kernel.py"
    for number, written in ((1, 1), (1, 1), (5, 1)):
        source.write_text(CALLBACK.format(number))
        assert printed(tmp_path, CALLED) == [1 + number]
        assert len(list(tmp_path.rglob("*.nbc"))) == written


CLOSED = """from edbc.native.kernelcache import njit


def build(one):
    @njit(cache=True)
    def plus(x):
        return x + one

    @njit(cache=True)
    def add(x):
        return plus(x) + one

    return add


add, other = build({0}), build({0} + 4)
"""


@pytest.mark.compiled
def test_what_closes_over_a_compiled_function_is_kept_for_other_processes(tmp_path: Path) -> None:
    """To numba a compiled function is another one in each process; what it closes over otherwise tells two apart."""
    source = tmp_path / "kernel.py"
    source.write_text(CLOSED.format(1))
    assert added(tmp_path) == [3.0, 3.0]
    assert added(tmp_path, of="other") == [11.0, 11.0]
    kept = sorted(tmp_path.rglob("*.nbc"))
    assert added(tmp_path) == [3.0, 3.0]
    assert added(tmp_path, of="other") == [11.0, 11.0]
    assert sorted(tmp_path.rglob("*.nbc")) == kept
    source.write_text(CLOSED.format(2))
    assert added(tmp_path) == [5.0, 5.0]


def files(folder: Path, stamp: object) -> KernelFiles:
    return KernelFiles(str(folder), "kernel.add-5.py3", stamp)


def test_no_two_signatures_share_a_file(tmp_path: Path) -> None:
    """Two processes that both saw an empty cache, and each compiled a signature."""
    wide, narrow = files(tmp_path, 1), files(tmp_path, 1)
    wide.save((types.float64, "cpu"), "wide")
    narrow.save((types.float32, "cpu"), "narrow")

    for cache in (wide, narrow, files(tmp_path, 1)):
        assert cache.load((types.float64, "cpu")) == "wide"
        assert cache.load((types.float32, "cpu")) == "narrow"
        assert cache.load((types.float32, "another")) is None
    assert files(tmp_path, 2).load((types.float32, "cpu")) is None


class Odd:
    """A key that looks like any other of its kind."""

    def __repr__(self) -> str:
        return "Odd()"


def test_keys_are_compared_not_only_their_text(tmp_path: Path) -> None:
    """Two types of one name are two keys."""
    cache = files(tmp_path, 1)
    cache.save((Odd(), 1), "found")

    assert cache.load((Odd(), 1)) is None


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"no pickle"])
def test_what_cannot_be_read_is_compiled_again(tmp_path: Path, content: bytes) -> None:
    """Half a file, as a machine that lost its power leaves it."""
    cache = files(tmp_path, 1)
    cache.save((types.float64,), "code")
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)

    assert cache.load((types.float64,)) is None
    cache.save((types.float64,), "code")
    assert cache.load((types.float64,)) == "code"
    cache.flush()
    assert not list(tmp_path.iterdir())


def test_every_cached_kernel_uses_it() -> None:
    """No module takes `njit` from numba and caches."""
    caching = [path for path in (REPOSITORY / "edbc").rglob("*.py") if "cache=True" in path.read_text()]
    assert len(caching) > 10
    for path in caching:
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        assert not [node for node in imports if node.module == "numba" and "njit" in {a.name for a in node.names}], path


LOOPS = """
import numpy as np
from numba import njit


def loop_of(function):
    scalar = njit(function)

    @njit
    def loop(target, a):
        for i in range(len(a)):
            target[i] = scalar(a[i])

    return loop
"""
CALLER = """
import numpy as np
from edbc.native.kernelcache import njit
from loops import loop_of

loop = loop_of(lambda x: {})


@njit(cache=True)
def kernel(target, a, often):
    for i in range(often):
        loop(target, a)
        if i > 1:
            loop(a, target)
            loop(target, target)
"""


@pytest.mark.compiled
@pytest.mark.long
def test_kernels_of_two_processes_call_their_own_loops(tmp_path: Path) -> None:
    """Two processes that have compiled as much each cache a kernel with a `loop` in it; a third one calls both."""
    (tmp_path / "loops.py").write_text(LOOPS)
    for name, text in (("adds", "x + 1"), ("doubles", "x * 2")):
        (tmp_path / f"{name}.py").write_text(CALLER.format(text))

    def called(*names: str) -> list[float]:
        code = f"import numpy as np, {', '.join(names)}\nfor k in ({', '.join(names)},):\n"
        code += "    target = np.zeros(3); k.kernel(target, np.full(3, 5.0), 1); print(target[0])"
        return printed(tmp_path, code)

    assert called("adds") == [6.0]
    assert called("doubles") == [10.0]
    assert called("adds", "doubles") == [6.0, 10.0]
    assert called("doubles", "adds") == [10.0, 6.0]


@pytest.mark.long
def test_no_two_processes_count_alike() -> None:
    """Nor do a process and its fork: numbers of a million functions differ."""
    code = (
        "import os, edbc.native.kernelcache as k\nfrom numba.core.bytecode import FunctionIdentity as f\n"
        "print(next(f._unique_ids), flush=True)\nif not os.fork():\n    print(next(f._unique_ids), flush=True)\n"
        "else:\n    os.wait()"
    )
    run = [sys.executable, "-c", code]
    told = [subprocess.run(run, capture_output=True, check=True).stdout for _ in range(2)]
    numbers = sorted(int(number) for text in told for number in text.split())

    assert len(numbers) == 4
    assert min(b - a for a, b in zip(numbers, numbers[1:], strict=False)) >= 1 << 20


@pytest.mark.compiled
def test_no_python_runs_while_a_kernel_returns_arrays(tmp_path: Path) -> None:
    """What a Ctrl-C that arrives there would turn into an error of numba's. (numba reports the kernel.)"""
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from edbc.native.kernelcache import njit\n"
        "kernel = njit(lambda n: (np.zeros(n), np.ones((n, 2), np.int32)))\n"
        "kernel(2)\n"
        "called = []\n"
        "sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == 'call' else None)\n"
        "kernel(3)\n"
        "sys.setprofile(None)\n"
        "print(*called)\n"
    )
    assert run_script(code, tmp_path) == (0, "<lambda>\n", "")


@pytest.mark.compiled
def test_functions_of_native_code_are_machine_code_in_their_callers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code is made once for a chain of three functions, and computes what they say."""
    made: list[str] = []
    finalize = JITCodeLibrary._finalize_specific
    monkeypatch.setattr(JITCodeLibrary, "_finalize_specific", lambda self: (made.append(self.name), finalize(self)))

    @njit(**INNER)
    def twice(x):  # type: ignore[no-untyped-def]
        return x + x

    @njit(**INNER)
    def more(x):  # type: ignore[no-untyped-def]
        return twice(x) + 1

    @njit
    def called(x):  # type: ignore[no-untyped-def]
        return more(x) * twice(x)

    assert called(3) == 42
    assert [name.rpartition(".")[2] for name in made if "<locals>" in name] == ["called"]  # others are numba's own


@pytest.mark.compiled
def test_native_callers_compile_no_code_for_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a function that is kept, which Python calls too: its callers' machine code is the only one that they make."""
    made: list[str] = []
    finalize = JITCodeLibrary._finalize_specific
    monkeypatch.setattr(JITCodeLibrary, "_finalize_specific", lambda self: (made.append(self.name), finalize(self)))

    @njit(cache=True)
    def twice(x):  # type: ignore[no-untyped-def]
        return x + x

    @njit
    def called(x):  # type: ignore[no-untyped-def]
        return twice(x) + twice(x + 1)

    assert called(3) == 14
    assert [name.rpartition(".")[2] for name in made if "<locals>" in name] == ["called"]
    assert not twice.signatures
    assert twice(4) == 8
