"""`edbc doctor`: what is here, and advice for each thing that is not as good as it can be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from commands import command

from edbc.tools import health
from edbc.tools.health import advice

GOOD: dict[str, Any] = {
    "versions": {"triton": "3.0"}, "processor": {"llvm": "znver5", "cores": 8, "threads": 1, "load": 0.1},
    "products": {"why_not_native": None, "peak_share": 0.9},
    "caches": {"folder": "/there", "writable": True, "bytes": 1}, "gpu": {"devices": [], "cuda": None},
}  # fmt: skip


@pytest.mark.compiled
def test_it_prints_every_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """As text and as JSON, with the measured peak above zero where there is a kernel."""
    monkeypatch.setattr("edbc.tools.peak.RUNS", 1)
    result = command("doctor", "--format", "json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)

    assert found["schema"] == 1
    assert {"versions", "processor", "products", "caches", "gpu", "advice"} <= found.keys()
    if found["products"]["why_not_native"] is None:
        assert found["products"]["peak_gflops"] > 0
        assert all(speed > 0 for by in ("own", "library") for speed in found["products"][f"{by}_gflops"].values())
    text = command("doctor")
    assert text.exit_code == 0
    assert "peak gflops" in text.stdout or found["products"]["why_not_native"]


@pytest.mark.parametrize(
    ("section", "field", "value", "word"),
    [
        ("products", "why_not_native", "numba is off", "no native code"),
        ("products", "peak_share", 0.2, "20%"),
        ("processor", "load", 9.0, "busy"),
        ("caches", "writable", False, "NUMBA_CACHE_DIR"),
        ("caches", "bytes", 3 << 30, "delete"),
        ("gpu", "cuda", "12.8", "no GPU"),
    ],
)
def test_each_thing_that_is_not_good_has_advice(section: str, field: str, value: Any, word: str) -> None:
    """Nothing to say of a good machine; one line of each fault, with what to do."""
    assert list(advice(GOOD)) == []
    found = list(advice({**GOOD, section: {**GOOD[section], field: value}}))

    assert len(found) == 1
    assert word in " ".join(found[0])


def test_a_processor_has_a_name() -> None:
    """Whatever the system."""
    assert health.processor_name()
