"""Issuing steps: the table of some operations goes up, and launches of a step kernel run it.

What is issued is a list of *stretches*: operations that run in steps, or a call of torch, which splits them. Each
stretch of steps ends as its launcher needs it, in chains with steps without work (`edbc.run.cuda.chains`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from edbc.base.frozen import frozen
from edbc.base.kept import Kept
from edbc.run.cuda import compiled
from edbc.run.cuda.chains import KEPT, LOOPS, Chains, Launcher, Loop, WarmUp, graphs_of, stream_of
from edbc.run.cuda.library import Library
from edbc.run.cuda.table import Longs, record_ptr, write_records
from edbc.run.cuda.tritonsource import Field, step_kernel
from edbc.run.cuda.upload import Part, Upload

PER_PROCESSOR = 2
"""Programs of a step per multiprocessor: as many as the largest branch's registers let reside together."""
ON_HOST = 2
"""Programs where Triton's interpreter runs them one after the other."""
DEPENDENT_LAUNCH = (9, 0)
"""Compute capability from which a launch may be put in place before the one before it has ended."""


@frozen
class Operations:
    """What runs in one stretch, `(o,)` each: kernels' numbers, nodes, first steps within the stretch."""

    kernel: Longs
    count: Longs
    step: Longs
    steps: int
    """All of them."""

    def then(self, others: Operations, steps: int) -> Operations:
        """These in so many steps, and others behind them."""
        return Operations(np.concatenate([self.kernel, others.kernel]), np.concatenate([self.count, others.count]),
                          np.concatenate([self.step, others.step + steps]), steps + others.steps)  # fmt: skip


Stretch = Operations | Callable[[], None]


class Issuer:
    """A library, and what launches its step kernel on one device; threads may share it. `loops` are the numbers of
    steps that run in a loop."""

    def __init__(self, device: torch.device, warm_up: WarmUp, launcher: Callable[[str], Any] = compiled.function_of):
        self.device = device
        self.library = Library()
        self.loops = LOOPS
        self._launchers: Kept[Any, Launcher] = Kept(KEPT)
        self._warm_up = warm_up
        self._function = launcher
        self._graphs = graphs_of(device)
        self._is_dependent = False
        self.programs = ON_HOST
        if device.type == "cuda":
            about = torch.cuda.get_device_properties(device)
            self.programs = PER_PROCESSOR * about.multi_processor_count
            self._is_dependent = (about.major, about.minor) >= DEPENDENT_LAUNCH

    def launches(self, steps: Sequence[int]) -> int:
        """What the host issues for stretches of so many steps."""
        return sum(map(self._kind(sum(steps)).launches, steps))

    def _kind(self, steps: int) -> type[Launcher]:
        return Loop if steps in self.loops else Chains

    def issue(self, upload: Upload, stretches: Sequence[Stretch], vectors: Callable[[Longs], None],
              send: Callable[[], None], done: Callable[[int], None] | None = None) -> None:  # fmt: skip
        """Put the table into the upload, `send` that, and run the stretches; `vectors` writes those of all operations,
        (o, n), when addresses are known; `done` is told each stretch that was issued."""
        in_steps = [stretch for stretch in stretches if isinstance(stretch, Operations)]
        launcher = self.launcher(sum(stretch.steps for stretch in in_steps)) if in_steps else None
        begin = None if launcher is None else self._table(upload, in_steps, launcher, vectors)
        send()
        with nullcontext() if launcher is None else launcher.lock:
            if launcher is not None and begin is not None:
                launcher.begin(begin.tensor)
            for number, stretch in enumerate(stretches):
                if isinstance(stretch, Operations):
                    assert launcher is not None
                    launcher.run(stretch.steps)
                else:
                    stretch()
                if done is not None:
                    done(number)

    def _table(self, upload: Upload, stretches: Sequence[Operations], launcher: Launcher,
               vectors: Callable[[Longs], None]) -> Part:  # fmt: skip
        """Room for the table in the upload, and the cursor that points to it."""
        of_all, *others = stretches
        steps = launcher.whole(of_all.steps)
        for stretch in others:
            of_all = of_all.then(stretch, steps)
            steps += launcher.whole(stretch.steps)
        kernel, count, step = of_all.kernel, of_all.count, of_all.step
        tables, width = self.library.tables, self.library.width
        ptr = record_ptr(kernel, step, steps, tables.job_ptr, tables.job_stage)

        def write(out: Longs) -> None:
            of_operations = np.empty((len(kernel), tables.kinds.shape[1]), np.int64)
            vectors(of_operations)
            write_records(kernel, count, step, of_operations, ptr, tables.job_ptr, tables.job_stage,
                          tables.variant_ptr, tables.branch, tables.grid, tables.arguments, launcher.programs,
                          out)  # fmt: skip

        table = upload.late((int(ptr[-1]), width), write)

        def point(out: Longs) -> None:
            out[:] = table.address, 0

        return upload.late((2,), point)

    def launcher(self, steps: int) -> Launcher:
        """What runs so many steps; made when it is first asked for."""
        kind, precision = self._kind(steps), compiled.precision()
        key = kind, self.library.text, precision, stream_of(self.device)
        return self._launchers.of(key, lambda: self._new_launcher(kind, precision))

    def _new_launcher(self, kind: type[Launcher], precision: str) -> Launcher:
        made = self._loop(precision) if kind is Loop else self._chains(precision)
        empty = torch.zeros(2, self.library.width, dtype=torch.int64)
        empty[:, Field.LEFT], empty[:, Field.BRANCH] = 1, -1
        empty = empty.to(self.device)
        made.prepare(torch.tensor([empty.data_ptr(), 0]), self._warm_up)
        return made

    def _chains(self, precision: str) -> Chains:
        function, programs = self._function(self.library.text), self.programs
        options: dict[str, Any] = {"PROGRAMS": programs, "PRECISION": precision, "PDL": self._is_dependent}
        if self._is_dependent:
            options["launch_pdl"] = True

        def launch(cursor: torch.Tensor, parity: int) -> None:
            function[(programs,)](cursor, parity, **options)

        return Chains(launch, self._graphs, self.device, programs)

    def _loop(self, precision: str) -> Loop:
        """All of its programs are resident, or the launch is refused."""
        function = self._function(step_kernel(self.library.branches, self.library.width, in_loop=True))
        programs = self.programs if self.device.type == "cuda" else 1  # which Triton's interpreter runs one by one
        options: dict[str, Any] = {"PROGRAMS": programs, "PRECISION": precision}
        if self.device.type == "cuda":
            options["launch_cooperative_grid"] = True

        def launch(cursor: torch.Tensor, before: int, steps: int) -> None:
            function[(programs,)](cursor, before, steps, **options)

        return Loop(launch, self.device, programs)
