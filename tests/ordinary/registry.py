"""The corpus: programs as people write them, for one instance and without a mark, which tests and a benchmark read.

A program is an nn.Module made with a hidden size, and a function that makes one instance from a random generator.
Numbers of instances are made in the default dtype, so that the float64 reference gets the same ones in float64.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn

SIZE = 16
"""Hidden size unless another one is asked for."""


@dataclass(frozen=True)
class Program:
    """One program of the corpus."""

    name: str
    field: str
    make_model: Callable[[int], nn.Module]
    make_instance: Callable[[Random], Any]
    in_double: bool
    """False where the program itself pins a dtype, so that it has no float64 form."""

    def build(self, size: int = SIZE) -> nn.Module:
        """The model in eval mode, with seeded parameters."""
        torch.manual_seed(0)
        return self.make_model(size).eval()

    def instances(self, seed: int, count: int) -> list[Any]:
        """So many instances, new objects at every call."""
        return [self.make_instance(Random(1000 * seed + number)) for number in range(count)]


PROGRAMS: dict[str, Program] = {}


def program(make_instance: Callable[[Random], Any], in_double: bool = True) -> Callable[[Any], Any]:
    """Put a class of modules into the corpus."""

    def register(kind: Any) -> Any:
        field = kind.__module__.rpartition(".")[2]
        known = PROGRAMS.setdefault(kind.__name__, Program(kind.__name__, field, kind, make_instance, in_double))
        assert known.field == field, f"two programs are called {kind.__name__}"  # pytest imports a file twice
        return kind

    return register


def load_all() -> dict[str, Program]:
    """All programs, those of every file beside this one."""
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if file.stem not in ("registry", "data") and not file.stem.startswith("test_"):
            importlib.import_module(f"ordinary.{file.stem}")
    return PROGRAMS


def in_order(instances: list[Any], order: str, seed: int) -> list[Any]:
    """Instances as they are, `shuffled`, or with the first one `twice`."""
    if order == "shuffled":
        instances = copy.copy(instances)
        Random(seed).shuffle(instances)
    return [*instances, instances[0]] if order == "twice" else instances
