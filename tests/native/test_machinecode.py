"""Machine code from LLVM's text: kept on disk by what it was made of, and made again where the file cannot be used."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import llvmlite.binding
import pytest

from edbc.native import machinecode
from edbc.native.machinecode import address_of, addresses_of

pytestmark = pytest.mark.compiled
TEXT = "define i64 @answer(i64 %x) {{\n%y = add i64 %x, {}\nret i64 %y\n}}"
SCRIPT = """
import ctypes, sys
from edbc.native import machinecode
if "compiles" not in sys.argv:
    machinecode._compiled = None  # a call would raise
    machinecode._object_code.__globals__["_compiled"] = None
address = machinecode.address_of("answer", sys.argv[1])
print(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(1))
"""


def answer(folder: Path, text: str, *options: str) -> int:
    """What the function gives in a process of its own that keeps machine code in `folder`."""
    command = [sys.executable, "-c", SCRIPT, text, *options]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def files(folder: Path) -> list[Path]:
    """Those of machine code."""
    return list(folder.rglob("machinecode.answer.*"))


def test_another_process_reads_what_one_has_compiled(tmp_path: Path) -> None:
    """The second process compiles nothing; another text is compiled anew, and takes the place of the first."""
    assert answer(tmp_path, TEXT.format(1), "compiles") == 2
    assert answer(tmp_path, TEXT.format(1)) == 2
    assert len(files(tmp_path)) == 1
    assert answer(tmp_path, TEXT.format(5), "compiles") == 6


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], int]:
    """What the function gives where nothing is loaded yet and machine code is kept in a folder."""

    def answer(folder: Path, text: str) -> int:
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(machinecode, "_LOADED", {})
        monkeypatch.setattr(machinecode, "kernel_folder", lambda _: str(folder))
        return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address_of("answer", text))(1))

    return answer


@pytest.mark.parametrize("damage", ["empty", "half", "other"])
def test_files_that_are_not_whole_are_made_again(
    tmp_path: Path, damage: str, anew: Callable[[Path, str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that ends early, and one that holds the code of another text under this one's name."""
    assert anew(tmp_path, TEXT.format(1)) == 2
    (first,) = files(tmp_path)
    whole = first.read_bytes()
    if damage == "other":
        assert anew(tmp_path / "other", TEXT.format(5)) == 6
        whole = files(tmp_path / "other")[0].read_bytes()
    first.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "other": whole}[damage])

    assert anew(tmp_path, TEXT.format(1)) == 2
    monkeypatch.setattr(machinecode, "_compiled", None)
    assert anew(tmp_path, TEXT.format(1)) == 2  # from the file that was made again


def test_the_last_files_of_passes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so many more as a process writes before it looks again; others are left alone."""
    monkeypatch.setattr(machinecode, "kernel_folder", lambda _: str(tmp_path))
    monkeypatch.setattr(machinecode, "_compiled", lambda text: text.encode())
    monkeypatch.setattr(machinecode, "MOST_FILES", 3)
    monkeypatch.setattr(machinecode, "FORGETS", 2)
    monkeypatch.setattr(machinecode, "_WRITTEN", itertools.count())
    machinecode._object_code("answer", "another")
    for number in range(8):
        machinecode._object_code(f"passes.{number}", str(number))
        for kept in tmp_path.glob(f"machinecode.passes.{number}.*"):
            os.utime(kept, (number, number))

    assert len(files(tmp_path)) == 1
    kept = {int(file.name.split(".")[2]) for file in tmp_path.glob("machinecode.passes.*")}
    assert kept == {4, 5, 6, 7}


def test_two_texts_of_one_name_are_two_functions() -> None:
    """Engines do not share symbols."""
    found = [
        ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address_of("answer", TEXT.format(i)))(0) for i in range(3)
    ]

    assert found == [0, 1, 2]


def test_what_is_loaded_is_told_without_llvm() -> None:
    """Its one lock may be taken for ever: by a thread that was interrupted as it took it."""
    texts = {"taken": TEXT.replace("@answer", "@taken").format(1)}
    before = addresses_of(texts), address_of("answer", TEXT.format(1))
    with ThreadPoolExecutor(1) as pool:
        with llvmlite.binding.ffi.lib._lock:
            asked = pool.submit(lambda: (addresses_of(texts), address_of("answer", TEXT.format(1))))
            found = wait([asked], timeout=10).done
        assert found
    assert asked.result() == before


def test_the_processor_is_part_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for one processor is not read on another."""
    asked: list[object] = []
    monkeypatch.setattr(machinecode.KernelFiles, "load", lambda self, key: asked.append(key))
    monkeypatch.setattr(machinecode.KernelFiles, "save", lambda self, key, data: None)
    for features in ("+a", "+b"):
        monkeypatch.setattr(machinecode, "processor", lambda f=features: ("generic", f))
        monkeypatch.setattr(machinecode, "_compiled", lambda text: b"")
        machinecode._object_code("answer", TEXT.format(1))

    assert len(set(asked)) == 2


def test_a_long_text_is_compiled_without_a_pass_which_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option is the process's: it is taken back, also where LLVM refuses the text."""
    said: list[str] = []
    set_option = machinecode.llvm.set_option
    monkeypatch.setattr(machinecode.llvm, "set_option", lambda name, text: (said.append(text), set_option(name, text)))
    machinecode._compiled(TEXT.format(1))
    assert not said

    monkeypatch.setattr(machinecode, "LONG", 0)
    assert machinecode._compiled(TEXT.format(1))
    with pytest.raises(RuntimeError):
        machinecode._compiled("no text of LLVM's")
    assert said == ["-disable-lsr=true", "-disable-lsr=false"] * 2
