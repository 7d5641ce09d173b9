"""What compiling takes from its surroundings: torch's setting for float32 products, and a Triton that may not start."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from devices import DEVICE

from edbc.errors import DeviceError
from edbc.native.memory import MemoryErrors
from edbc.run.cuda import compiled
from edbc.run.precision import product_precision

NAMES = [name for name in ("allow_tf32", "fp32_precision") if hasattr(torch.backends.cuda.matmul, name)]


@pytest.mark.parametrize("name", NAMES)
def test_precision_follows_either_of_torchs_settings(name: str) -> None:
    """TF32 when the user allows it, by the older name or the newer; torch raises when the wrong one is read."""
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, name)
    setattr(matmul, name, True if name == "allow_tf32" else "tf32")
    try:
        assert product_precision() == "tf32"
    finally:
        setattr(matmul, name, before)

    assert product_precision() == "ieee"


class Package(ModuleType):
    """A stand-in for Triton whose driver does what it is told."""

    def __init__(self, start: Any) -> None:
        super().__init__("triton")
        self.__path__: list[str] = []
        runtime, knobs = ModuleType("triton.runtime"), ModuleType("triton.knobs")
        runtime.driver = self  # type: ignore[attr-defined]
        knobs.runtime = ModuleType("runtime")  # type: ignore[attr-defined]
        knobs.runtime.interpret = False  # type: ignore[attr-defined]
        self.active, self.get_current_target, self.knobs, self.runtime = self, start, knobs, runtime

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, module in (("", self), (".runtime", self.runtime), (".knobs", self.knobs)):
            monkeypatch.setitem(sys.modules, f"triton{name}", module)


def fails() -> None:
    raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nmore")


@pytest.mark.parametrize(
    ("start", "reason"),
    [(lambda: None, None), (fails, "triton does not start here: Failed to find C compiler. Please specify via CC")],
)
def test_a_triton_that_cannot_start_is_a_reason(
    start: Any, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver is built with the machine's C compiler; without one torch runs every type, and the report says why."""
    Package(start).install(monkeypatch)
    missing = compiled.missing.__wrapped__("cuda")

    assert missing is None if reason is None else str(missing).startswith(reason)
    assert "\n" not in str(missing)


def test_without_triton_the_reason_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not installed, or too old to have what is used here."""
    monkeypatch.setitem(sys.modules, "triton", None)

    assert "install edbc[cuda]" in str(compiled.missing.__wrapped__(DEVICE.type))


def test_a_full_device_is_told_in_its_own_figures() -> None:
    """Memory that a GPU lacks is not compared with the host's."""
    message = (
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 512.00 MiB "
        "is free. Including non-PyTorch memory, this process has 7.00 GiB memory in use."
    )
    expected = r"for the values: expected 20.00 GiB more on GPU 0, got 512.00 MiB available; use a smaller --batch-size"
    with pytest.raises(DeviceError, match=expected), MemoryErrors("the values"):
        raise torch.OutOfMemoryError(message)
    with pytest.raises(DeviceError, match="expected more memory, got"), MemoryErrors("the values"):
        raise torch.OutOfMemoryError("no figures")
