"""What differs between devices, by the name that plans and cost tables have of one.

A GPU's name begins with `cuda: ` and says how torch multiplies float32 there, as figures of one setting say nothing of
another. Its `threads` are streams, and no unit runs over several of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import torch

from edbc.errors import DeviceError, StaleError
from edbc.plan.static import CUDA, KERNELS
from edbc.run.cuda.compiled import missing
from edbc.run.precision import convolution_precision, product_precision
from edbc.stages.cpu.execute import Team, Wrap
from edbc.stages.cpu.measure import Measurement
from edbc.stages.cpu.net import StagedNet
from edbc.stages.cuda.kernels import HOWS
from edbc.stages.cuda.measure import DeviceMeasurement
from edbc.stages.cuda.net import DeviceNet
from edbc.stages.net import BatchNet, StaticModel
from edbc.stages.search import Machine
from edbc.stages.table import SPLIT, Schedule

STREAMS = 8
"""Where nothing else is asked for."""


def gpu_name() -> str:
    """The current GPU and its setting: `cuda: NVIDIA H200 (convolutions tf32, other products ieee)`."""
    told = f"convolutions {convolution_precision()}, other products {product_precision()}"
    return f"{CUDA}{torch.cuda.get_device_name()} ({told})"


def machine_of(device: str, threads: int) -> Machine:
    """What a device can do at once."""
    return Machine(threads, threads > 1 and not device.startswith(CUDA))


def kernels_on(static: StaticModel) -> Sequence[str]:
    """The choices of kernels that there are where a model's weights are."""
    if static.device.type == "cpu":
        return ()
    return KERNELS if missing(static.device.type) is None else [name for name in KERNELS if not HOWS[name].pools]


def net_of(static: StaticModel, schedule: Schedule, threads: int, barriers: bool = True, kernels: str | None = None,
           wrap: Wrap | None = None) -> BatchNet[Any]:  # fmt: skip
    """A model bound to a schedule, where its weights are; `kernels` are for a GPU, `wrap` is for threads. Raises
    StaleError for stages that a GPU has not."""
    if static.device.type == "cpu":
        return StagedNet(static, schedule, threads, barriers, wrap or (lambda units, task: task))
    if any(run == SPLIT for _, run in schedule):
        raise StaleError(
            "plan: expected stages that were measured on a GPU, got some that all threads of a CPU share; measure "
            "again with 'edbc compile --profile --device cuda'"
        )
    how = HOWS[kernels or KERNELS[0]]
    if how.pools and (reason := missing(static.device.type)) is not None:
        raise DeviceError(
            f"plan: expected Triton, which its kernels '{kernels}' need, got none: {reason}; install it, or measure "
            "again with 'edbc compile --profile --device cuda'"
        )
    return DeviceNet(static, schedule, threads, barriers, how=how)


@contextmanager
def measuring(static: StaticModel, batch: int, threads: int,
              kernels: str | None = None) -> Iterator[Measurement | DeviceMeasurement]:  # fmt: skip
    """What measures stages where a model's weights are, on batches of one size."""
    if static.device.type != "cpu":
        yield DeviceMeasurement(static, batch, threads, HOWS[kernels or KERNELS[0]])
        return
    with closing(Team(threads)) as team:
        yield Measurement(static, batch, team)
