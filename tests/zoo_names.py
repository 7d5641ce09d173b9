"""The names of the model zoo: models whose instances differ, and static ones, whose instances all have one graph."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODELS = Path(__file__).resolve().parents[1] / "models"
STATIC = ("inception_v3", "nasnet_a", "randwire", "squeezenet")
RAGGED = ("molecule_gnn", "pointer_network", "sentence_encoder", "set_encoder")
"""Those with rows of every length (`edbc.capture.ragged`)."""
DYNAMIC = sorted({path.stem for path in MODELS.glob("[!_]*.py")} - {*STATIC})


def short_instances(file: Any, count: int, seed: int, config: dict[str, Any]) -> list[Any]:
    """Made-up instances of a model file: of three times as many the shortest."""
    return shortest(list(file.sample(3 * count, seed, config)), count)


def shortest(made: list[Any], count: int) -> list[Any]:
    """The shortest of some instances, in their order. Eager execution of the longest takes most of the time of a test,
    and a hundred gates show what a thousand show."""
    chosen = sorted(range(len(made)), key=lambda i: len(repr(made[i])))[:count]
    return [made[i] for i in sorted(chosen)]


def without_marks(folder: Path) -> Iterator[Path]:
    """A fixture's body: a folder with the zoo's files, every mark of a cell removed; what they define goes with it."""
    for path in MODELS.glob("*.py"):
        (folder / path.name).write_text(re.sub(r"^@edbc\.cell\n", "", path.read_text(), flags=re.MULTILINE))
    yield folder
    shutil.rmtree(folder)
    for name in list(sys.modules):
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
