"""Cached walks are keyed by all that is compiled into them; inner functions are for native code."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numba import config, njit

from edbc.native.kinds import checksum, inner
from edbc.run.cpu import teamwork
from edbc.run.cpu import walk as forward
from edbc.train.backward import backwalk as backward


@inner
def twice(numbers: np.ndarray) -> float:
    return 2 * numbers[0]


def test_inner_functions_serve_native_code_alone() -> None:
    """Compiled into its caller it runs; a call from Python, which would crash the process, is refused."""
    assert njit(lambda numbers: twice(numbers))(np.arange(3) + 4) == 8
    if not config.DISABLE_JIT:
        with pytest.raises(TypeError, match="twice is an inner function"):
            twice(np.arange(3))


def imported(module: ModuleType) -> Iterator[ModuleType]:
    """Modules of edbc that a module imports when it is imported itself, for more than decorators."""
    for node in ast.parse(Path(str(module.__file__)).read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("edbc"):
            inner_names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in [n for n in inner_names if importlib.util.find_spec(n)] if is_package(node.module) else []:
                yield importlib.import_module(name)
            if not is_package(node.module) and node.module not in ("edbc.native.kernelcache", "edbc.native.kinds"):
                yield importlib.import_module(node.module)


def is_package(name: str) -> bool:
    return hasattr(importlib.import_module(name), "__path__")


def holds_native_code(module: ModuleType) -> bool:
    """True when a module imports numba: then what it imports may be compiled in as well."""
    text = Path(str(module.__file__)).read_text()
    return "numba" in text or "njit" in text


@pytest.mark.parametrize("walk", [forward, backward, teamwork], ids=["forward", "backward", "team"])
def test_the_key_of_a_walk_covers_what_is_compiled_into_it(walk: ModuleType) -> None:
    """Functions and numbers alike: the code of an operation that an edit moves must not meet an older walk."""
    covered, open_ends = {walk}, [walk]
    while open_ends:
        for module in imported(open_ends.pop()):
            assert module in walk.COMPILED_IN, f"{module.__name__} is missing from COMPILED_IN of {walk.__name__}"
            if module not in covered and holds_native_code(module):
                open_ends.append(module)
            covered.add(module)

    assert covered - {walk} == set(walk.COMPILED_IN)


def test_an_edit_changes_the_checksum(tmp_path: Path) -> None:
    """Of any of the modules."""
    modules = [ModuleType(name) for name in "ab"]
    for module in modules:
        module.__file__ = str(tmp_path / module.__name__)
        Path(module.__file__).write_text("x = 1")
    before = checksum(*modules)
    for module in modules:
        Path(str(module.__file__)).write_text("x = 2")
        assert checksum(*modules) != before
        before = checksum(*modules)
