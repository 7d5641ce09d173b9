"""The names of the model zoo: models whose instances differ, and static ones, whose instances all have one graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MODELS = Path(__file__).resolve().parents[1] / "models"
STATIC = ("inception_v3", "nasnet_a", "randwire", "squeezenet")
RAGGED = ("molecule_gnn", "pointer_network", "sentence_encoder", "set_encoder")
"""Those with rows of every length (`edbc.capture.ragged`)."""
DYNAMIC = sorted({path.stem for path in MODELS.glob("[!_]*.py")} - {*STATIC})


def short_instances(file: Any, count: int, seed: int, config: dict[str, Any]) -> list[Any]:
    """Made-up instances of a model file: of three times as many the shortest, in their order. Eager execution of the
    longest takes most of the time of a test, and a hundred gates show what a thousand show."""
    made = list(file.sample(3 * count, seed, config))
    shortest = sorted(range(len(made)), key=lambda i: len(repr(made[i])))[:count]
    return [made[i] for i in sorted(shortest)]
