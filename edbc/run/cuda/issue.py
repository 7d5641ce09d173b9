"""Issuing steps: the table of some operations goes up, and chains of launches of a step kernel run it.

What is issued is a list of *stretches*: operations that run in steps, or a call of torch, which splits them. Each
stretch of steps ends where a chain does, with steps without work (`edbc.run.cuda.chains`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from edbc.base.kept import Kept
from edbc.run.cuda import compiled
from edbc.run.cuda.chains import KEPT, Chains, WarmUp, cut, graphs_of, stream_of
from edbc.run.cuda.library import Library
from edbc.run.cuda.table import Longs, record_ptr, write_records
from edbc.run.cuda.tritonsource import Field
from edbc.run.cuda.upload import Part, Upload

PER_PROCESSOR = 2
"""Programs of a step per multiprocessor: as many as the largest branch's registers let reside together."""
ON_HOST = 2
"""Programs where Triton's interpreter runs them one after the other."""
DEPENDENT_LAUNCH = (9, 0)
"""Compute capability from which a launch may be put in place before the one before it has ended."""


@dataclass(frozen=True, eq=False)
class Operations:
    """What runs in one stretch, `(o,)` each: kernels' numbers, nodes, first steps within the stretch."""

    kernel: Longs
    count: Longs
    step: Longs
    steps: int
    """All of them."""

    def then(self, others: Operations) -> Operations:
        """These, and others behind them."""
        return Operations(np.concatenate([self.kernel, others.kernel]), np.concatenate([self.count, others.count]),
                          np.concatenate([self.step, others.step + self.steps]), self.steps + others.steps)  # fmt: skip

    def padded(self) -> Operations:
        """With as many steps as the chains that run them have."""
        return Operations(self.kernel, self.count, self.step, sum(cut(self.steps)))


Stretch = Operations | Callable[[], None]


class Issuer:
    """A library, and the chains of its step kernel on one device; threads may share it."""

    def __init__(self, device: torch.device, warm_up: WarmUp, launcher: Callable[[str], Any] = compiled.function_of):
        self.device = device
        self.library = Library()
        self.chains: Kept[Any, Chains] = Kept(KEPT)
        self._warm_up = warm_up
        self._launcher = launcher
        self._graphs = graphs_of(device)
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
        begin = self._table(upload, [s for s in stretches if isinstance(s, Operations)], vectors)
        send()
        chains = None if begin is None else self._chains()
        with nullcontext() if chains is None else chains.lock:
            if chains is not None and begin is not None:
                chains.cursor.copy_(begin.tensor)
            for number, stretch in enumerate(stretches):
                if isinstance(stretch, Operations):
                    assert chains is not None
                    chains.run(stretch.steps)
                else:
                    stretch()
                if done is not None:
                    done(number)

    def _table(self, upload: Upload, stretches: Sequence[Operations], vectors: Callable[[Longs], None]) -> Part | None:
        """Room for the table in the upload, and the cursor that points to it; None where nothing runs in steps."""
        if not stretches:
            return None
        whole = stretches[0].padded()
        for stretch in stretches[1:]:
            whole = whole.then(stretch.padded())
        kernel, count, step = whole.kernel, whole.count, whole.step
        tables, width = self.library.tables, self.library.width
        ptr = record_ptr(kernel, step, whole.steps, tables.job_ptr, tables.job_stage)

        def write(out: Longs) -> None:
            of_operations = np.empty((len(kernel), tables.kinds.shape[1]), np.int64)
            vectors(of_operations)
            write_records(kernel, count, step, of_operations, ptr, tables.job_ptr, tables.job_stage,
                          tables.variant_ptr, tables.branch, tables.grid, tables.arguments, self.programs,
                          out)  # fmt: skip

        table = upload.late((int(ptr[-1]), width), write)

        def point(out: Longs) -> None:
            out[:] = table.address, 0

        return upload.late((2,), point)

    def _chains(self) -> Chains:
        precision = compiled.precision()
        key = self.library.text, precision, stream_of(self.device)
        return self.chains.of(key, lambda: self._new_chains(*key[:2]))

    def _new_chains(self, text: str, precision: str) -> Chains:
        function = self._launcher(text)
        options: dict[str, Any] = {"PROGRAMS": self.programs, "PRECISION": precision, "PDL": self._is_dependent}
        if self._is_dependent:
            options["launch_pdl"] = True

        def launch(cursor: torch.Tensor, parity: int) -> None:
            function[(self.programs,)](cursor, parity, **options)

        chains = Chains(launch, self._graphs, self.device)
        empty = torch.zeros(2, self.library.width, dtype=torch.int64)
        empty[:, Field.LEFT], empty[:, Field.BRANCH] = 1, -1
        empty = empty.to(self.device)
        chains.prepare(torch.tensor([empty.data_ptr(), 0]), self._warm_up)
        return chains
