"""Inter-operator scheduling: static graphs in stages, chosen by measured cost.

Batching helps where many nodes share a type. A convolutional network on one image has the opposite shape: few
operators, all different, each too small for the device. Ding, Zhu, Jia, Pekhimenko and Han, "IOS: Inter-Operator
Scheduler for CNN Acceleration" (MLSys 2021), run operators side by side in *stages*, found by a dynamic programme over
measured costs. This package is that, for models whose instances all have one graph; docs/stages.md tells its use.

(1) *unit*: what is scheduled, one or more operators that always run together (`stages.fusion`).
(2) *block*: units that are scheduled together, from one cut of the graph to the next (`stages.blocks`).
(3) *state*: a down-set of a block, the units that a schedule has run after some stage. *ending* of a state: an up-set
    of it, what its last stage may be. *group*: a connected component of an ending; groups of a stage run side by side,
    the units of a group one after the other.
(4) *strategy* of a stage: `concurrent`, every group in a stream of its own; `split`, every unit over all threads, where
    a device has threads rather than streams; `merge`, all units as one product (`stages.units.products`).
(5) *schedule*: a list of stages. Its cost is the sum of theirs, as a cost table has them (`stages.table`).

Data flows: `capture` -> `fusion` -> `blocks` -> `endings` -> `search`, which asks a table or what measures
(`devices`) -> plan -> tasks of `units` -> `cpu.lifetimes`, `cpu.kernels`, `cpu.execute`; on a GPU `cuda.program`,
`cuda.kernels`, `cuda.streams`.
"""

from typing import NamedTuple

SPIN = ("GOMP_SPINCOUNT", "5000")
"""A variable of the environment, and its value: how long torch's threads look for work before they sleep, some
microseconds. See `edbc.stages.cpu.execute`."""


class Stages(NamedTuple):
    """The options that only static models have."""

    r: int = 3
    """Units of a group, at most; 0 for no limit."""
    s: int = 8
    """Groups of a stage, at most; 0 for no limit."""
    gap: float = 0.01
    """How close to the optimum is close enough, as a share of the cost."""
    batch: int = 1
    """Instances of a batch for which stages are measured."""
    threads: int | None = None
    """None for as many as the process may use; on a GPU streams, eight of them."""
    device: str = "cpu"
    """Where stages are measured: `cpu` or `cuda`."""
