"""Back ends: what turns a segment's batches into numbers. One plan serves all of them.

A mini-batch is a sequence of segments over arenas (today one segment, unless somebody stops on the way: see
`edbc.run.execution`). Every value of a segment stays readable until its arenas are released: `execute` again on
further batches, or on a new graph whose externals are bound to rows of an earlier one's arenas.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from edbc.base.frozen import frozen
from edbc.base.graph import Graph, NodeType
from edbc.capture.code.shadow import ModelView
from edbc.cells.program import Program
from edbc.errors import DeviceError, NotNative
from edbc.run.passes.arenas import Arenas
from edbc.run.passes.placement import Placement
from edbc.schedule.schedule import Schedule

NAMES = ("reference", "cpu", "cuda")


@frozen
class Segment:
    """A part of a mini-batch that runs without the host looking at values: batches `begin` to `end` of its schedule."""

    graph: Graph
    schedule: Schedule
    placement: Placement
    begin: int = 0
    end: int | None = None

    @property
    def stop(self) -> int:
        """The batch after the last one."""
        return self.schedule.num_batches if self.end is None else self.end

    def part(self, begin: int, stop: int) -> Segment:
        """Some of its batches."""
        return Segment(self.graph, self.schedule, self.placement, begin, stop)

    def segments(self) -> list[Segment]:
        """Those that its placement cuts the whole schedule into, see `edbc.run.passes.cut`; one where it is not cut."""
        return list(itertools.starmap(self.part, itertools.pairwise(self.placement.borders.tolist())))


KernelOfType = Callable[[int], Any]


@frozen
class Demand:
    """Bytes for values, for the workspace of the widest batch (or block of one), and for its scratch row."""

    values: int
    workspace: int
    scratch: int = 0
    steps: int = 0
    """In which a device will run all batches."""
    launches: int = 0
    """Of these steps, as the host issues them: chains of them count one."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.values + self.workspace + self.scratch


@dataclass(frozen=True)
class Path:
    """What runs a type: `native`, `triton` or `torch`, and how many of a device's steps a batch takes where it runs in
    steps."""

    name: str
    steps: int | None = None

    def __str__(self) -> str:
        return self.name if self.steps is None else f"{self.name}, {self.steps} step{'s' * (self.steps != 1)} per batch"


class Backend(Protocol):
    """The interface. `kernel_of_type` gives, for a type, what `program_kernel` made of its program, or a
    ReductionKernel."""

    name: str
    mixes: bool
    """True when its arenas give rows of several classes at once, which spares a call of torch for each."""
    issues: bool
    """True when executing is Python that issues what a device does later."""

    def program_kernel(self, program: Program, view: ModelView, dtype: torch.dtype, device: torch.device) -> Any:
        """What runs a lowered cell here."""

    def runs_natively(self, node_type: NodeType, kernel: Any) -> bool:
        """True when a type runs without torch."""

    def path(self, node_type: NodeType, kernel: Any) -> Path:
        """What runs a type here."""

    def demand(self, segment: Segment, kernel_of_type: KernelOfType) -> Demand:
        """What a segment will take, known before it executes."""

    def arenas(self, segment: Segment, demand: Demand) -> Arenas:
        """Memory for the values of a segment. Raises DeviceError when there is not enough."""

    def execute(self, segment: Segment, arenas: Any, kernel_of_type: KernelOfType,
                on_batch: Callable[[int], None] | None = None) -> None:  # fmt: skip
        """Run the segment's batches; all its externals are bound and earlier batches have run."""


def require_device(name: str) -> None:
    """Raise DeviceError when a device of that name is not here."""
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("--device cuda: expected a CUDA device, got none; run with --device cpu")


def wait_for(device: torch.device) -> None:
    """Return when the device has done everything that was issued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def backend_of(name: str | None, device: torch.device) -> Backend:
    """The back end `name`; by default the device's own, or `reference` with a NotNative warning where the CPU's cannot
    run. Raises DeviceError when a back end that was asked for cannot; `cuda` runs anywhere with TRITON_INTERPRET=1."""
    if name is None:
        name = device.type if device.type in NAMES else "reference"
        if name == "cpu" and (why := why_not_native()) is not None:
            warnings.warn(f"{why}: no native code, batches run call by call (--backend reference)", NotNative, 2)
            name = "reference"
    if name == "reference":
        from edbc.run.reference import ReferenceBackend

        return ReferenceBackend(device)
    if name == "cpu" and device.type == "cpu":
        return _cpu_backend()
    if name == "cuda" and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"):
        from edbc.run.cuda.cudabackend import CudaBackend

        return CudaBackend(device)
    here = ["reference", *(n for n in NAMES if n == device.type)]
    raise DeviceError(
        f"--backend {name}: expected one that runs on {device} ({' or '.join(here)}), got {name!r}; use another "
        "--device, or leave --backend out"
    )


def why_not_native() -> str | None:
    """Why native code cannot run on this CPU; None where it can."""
    from numba import config

    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return "numba's compiler is switched off (NUMBA_DISABLE_JIT)"
    return None if sys.byteorder == "little" else "numbers of this processor begin with their highest byte"


def _cpu_backend() -> Backend:
    from edbc.run.cpu.cpubackend import CpuBackend

    if (why := why_not_native()) is not None:
        raise DeviceError(f"--backend cpu: expected native code to run here, but {why}; use --backend reference")
    return CpuBackend()
