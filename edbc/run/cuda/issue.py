"""Issuing steps: the table of some operations goes up, and launches of a step kernel run it.

What is issued is a list of *stretches*: operations that run in steps, or a call of torch, which splits them. Each
stretch of steps ends with steps without work, as its chains need them (`edbc.run.cuda.chains`).
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
from edbc.run.cuda.chains import KEPT, LENGTHS, Chains, WarmUp, captured, cut
from edbc.run.cuda.library import Library
from edbc.run.cuda.streams import number_of_stream
from edbc.run.cuda.table import Longs, record_ptr, write_records
from edbc.run.cuda.tritonsource import Field
from edbc.run.cuda.upload import Part, Upload
from edbc.run.precision import product_precision

PER_PROCESSOR = 1
"""Programs of a step per multiprocessor. Two would fit; on an H200 they took 1.2 times as long, whatever the size."""
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
    """A library, and what launches its step kernel on one device; threads may share it."""

    def __init__(self, device: torch.device, warm_up: WarmUp):
        self.device = device
        self.library = Library()
        self._chains: Kept[Any, Chains] = Kept(KEPT)
        self._warm_up = warm_up
        self._function, self._capture = compiled.function_of, captured
        self._is_dependent = False
        self.programs = ON_HOST
        if device.type == "cuda":
            about = torch.cuda.get_device_properties(device)
            self.programs = PER_PROCESSOR * about.multi_processor_count
            self._is_dependent = (about.major, about.minor) >= DEPENDENT_LAUNCH

    def issue(self, upload: Upload, stretches: Sequence[Stretch], vectors: Callable[[Longs], None],
              send: Callable[[], None], done: Callable[[int], None] | None = None) -> None:  # fmt: skip
        """Put the table into the upload, `send` that, and run the stretches; `vectors` writes those of all operations,
        (o, n), when addresses are known; `done` is told each stretch that was issued."""
        in_steps = [stretch for stretch in stretches if isinstance(stretch, Operations)]
        chains = self.chains() if in_steps else None
        begin = None if chains is None else self._table(upload, in_steps, chains.programs, vectors)
        send()
        with nullcontext() if chains is None else chains.lock:
            if chains is not None and begin is not None:
                chains.begin(begin.tensor)
            for number, stretch in enumerate(stretches):
                if isinstance(stretch, Operations):
                    assert chains is not None
                    chains.run(stretch.steps)
                else:
                    stretch()
                if done is not None:
                    done(number)

    def _table(self, upload: Upload, stretches: Sequence[Operations], programs: int,
               vectors: Callable[[Longs], None]) -> Part:  # fmt: skip
        """Room for the table in the upload, and the cursor that points to it."""
        of_all, *others = stretches
        steps = sum(cut(of_all.steps))
        for stretch in others:
            of_all = of_all.then(stretch, steps)
            steps += sum(cut(stretch.steps))
        kernel, count, step = of_all.kernel, of_all.count, of_all.step
        tables, width = self.library.tables, self.library.width
        ptr = record_ptr(kernel, step, steps, tables.job_ptr, tables.job_stage)

        def write(out: Longs) -> None:
            of_operations = np.empty((len(kernel), tables.kinds.shape[1]), np.int64)
            vectors(of_operations)
            write_records(kernel, count, step, of_operations, ptr, tables.job_ptr, tables.job_stage,
                          tables.variant_ptr, tables.branch, tables.grid, tables.arguments, programs, out)  # fmt: skip

        table = upload.late((int(ptr[-1]), width), write)

        def start(out: Longs) -> None:
            out[:] = table.address + 8 * width * ptr[:-1]

        starts = upload.late((steps,), start)

        def point(out: Longs) -> None:
            out[:] = starts.address, 0

        return upload.late((2,), point)

    def chains(self) -> Chains:
        """What runs steps on the current stream; made when it is first asked for."""
        precision = product_precision()
        key = self.library.text, precision, number_of_stream(self.device)
        return self._chains.of(key, lambda: self._new_chains(precision))

    def _new_chains(self, precision: str) -> Chains:
        function, programs = self._function(self.library.text), self.programs
        options: dict[str, Any] = {"PROGRAMS": programs, "PRECISION": precision, "PDL": self._is_dependent}
        if self._is_dependent:
            options["launch_pdl"] = True

        def launch(cursor: torch.Tensor, number: int, ahead: int) -> None:
            function[(programs,)](cursor, number, ahead, **options)

        made = Chains(launch, self.device, programs, self._capture)
        empty = torch.zeros(self.library.width, dtype=torch.int64)
        empty[Field.LEFT], empty[Field.BRANCH] = 1, -1
        empty = empty.to(self.device)
        starts = torch.full((LENGTHS[-1],), empty.data_ptr(), device=self.device)
        made.prepare(torch.tensor([starts.data_ptr(), 0]), self._warm_up)
        return made
