"""The names of the model zoo: models whose instances differ, and static ones, whose instances all have one graph."""

from __future__ import annotations

from pathlib import Path

MODELS = Path(__file__).resolve().parents[1] / "models"
STATIC = ("inception_v3", "nasnet_a", "randwire", "squeezenet")
RAGGED = ("molecule_gnn", "sentence_encoder")
"""Those with rows of every length (`edbc.capture.ragged`)."""
DYNAMIC = sorted({path.stem for path in MODELS.glob("[!_]*.py")} - {*STATIC})
