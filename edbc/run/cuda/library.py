"""A step kernel and the types that it knows: what grows when a mini-batch brings a type that no other had.

Types of equal text share branches. A kernel's text names every branch by its number, so it changes when a branch comes
in, and is compiled anew then; a plan's types are all met by the first few mini-batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from edbc.cells.program import Program
from edbc.run.cuda.stages import Stages
from edbc.run.cuda.table import ARENA, BORDERS, CONSTANT, FIRST_ROW, OUTPUT, ROWS, WORK, Longs, Tables
from edbc.run.cuda.tritonsource import FIELDS, Branch, Variants, step_kernel
from edbc.run.weights.packed import Pack, PackedWeights

_KINDS = {"a": ARENA, "at": ROWS, "o": OUTPUT, "row": FIRST_ROW, "w": CONSTANT, "b": CONSTANT, "p": CONSTANT,
          "work": WORK, "seg": BORDERS}  # fmt: skip


@dataclass(frozen=True, eq=False)
class TritonKernel:
    """A type's branches, stage by stage and job by job, and the weights that they read."""

    branches: tuple[tuple[Variants, ...], ...]
    dtype: str
    program: Program | None = None
    stages: Stages | None = None
    weights: PackedWeights | None = None
    names: tuple[str, ...] = field(init=False)
    """What its branches ask for."""

    def __post_init__(self) -> None:
        found = (branch.names for jobs in self.branches for variants in jobs for branch in variants)
        object.__setattr__(self, "names", tuple(dict.fromkeys(name for names in found for name in names)))

    @property
    def row_bytes(self) -> int:
        """Workspace of one node."""
        return 0 if self.stages is None else self.stages.workspace * (8 if self.dtype == "f64" else 4)

    def constants(self, pack: Pack) -> list[torch.Tensor | None]:
        """What `names` ask for that is the same for every batch, None for anything else."""
        assert self.stages is not None
        found: dict[str, torch.Tensor | None] = {f"w{i}": matrix for i, matrix in enumerate(pack.matrices)}
        found |= {f"b{i}": bias for i, bias in enumerate(pack.biases)}
        found |= {f"p{i}": pack.vectors[ref] for i, ref in enumerate(self.stages.parameters)}
        return [found.get(name) for name in self.names]


class Library:
    """Branches and kernels of one step kernel, numbered in the order in which they came in; threads may share it."""

    def __init__(self) -> None:
        self._kernels: dict[TritonKernel, int] = {}
        self._branches: dict[Branch, int] = {}
        self._packs: dict[TritonKernel, Pack] = {}
        self._lock = threading.Lock()
        self.width = _width(())
        """Of a record."""
        self.tables = self._tables()
        self.text = ""
        """Of the step kernel."""

    @property
    def branches(self) -> list[Branch]:
        """By their numbers."""
        return list(self._branches)

    def numbers(self, kernels: Sequence[TritonKernel]) -> list[int]:
        """The kernels' numbers; new ones come in, and constants of all are brought up to date."""
        with self._lock:
            new = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._kernels]
            for kernel in new:
                self._kernels[kernel] = len(self._kernels)
                for branch in (b for jobs in kernel.branches for variants in jobs for b in variants):
                    self._branches.setdefault(branch, len(self._branches))
            if new:
                self.width = _width(self._branches)
                self.tables = self._tables()
                self.text = step_kernel(list(self._branches), self.width)
            weighted = [kernel for kernel in kernels if kernel.weights is not None]
            self._refresh(weighted, [kernel.weights.pack for kernel in weighted if kernel.weights is not None])
            return [self._kernels[kernel] for kernel in kernels]

    def refresh(self, kernels: Sequence[TritonKernel], packs: Sequence[Pack]) -> None:
        """Bring constants of kernels that have numbers up to date, given the weights of each as they are now."""
        with self._lock:
            self._refresh(kernels, packs)

    def _refresh(self, kernels: Sequence[TritonKernel], packs: Sequence[Pack]) -> None:
        """The addresses of weights. Packs are held: steps read them without torch's knowledge."""
        for kernel, pack in zip(kernels, packs, strict=True):
            if self._packs.get(kernel) is not pack:
                self._packs[kernel] = pack
                addresses = [0 if tensor is None else tensor.data_ptr() for tensor in kernel.constants(pack)]
                self.tables.constants[self._kernels[kernel], : len(addresses)] = addresses

    def _tables(self) -> Tables:
        kernels = list(self._kernels)
        widest = max((len(kernel.names) for kernel in kernels), default=1)
        kinds, numbers = np.full((2, len(kernels), max(widest, 1)), -1, np.int64)
        constants = np.zeros((len(kernels), max(widest, 1)), np.int64)
        for q, kernel in enumerate(kernels):
            for i, name in enumerate(kernel.names):
                kind = name.rstrip("0123456789")
                kinds[q, i], numbers[q, i] = _KINDS[kind], int(name[len(kind) :] or 0)
        if self._packs:
            before = self.tables.constants
            constants[: len(before), : before.shape[1]] = before
        jobs = [(q, s, job) for q, k in enumerate(kernels) for s, of in enumerate(k.branches) for job in of]
        variants = [(kernels[q], branch) for q, _, job in jobs for branch in job]
        arguments = np.full((max(len(variants), 1), self.width - FIELDS if variants else 1), -1, np.int64)
        for v, (kernel, branch) in enumerate(variants):
            arguments[v, : len(branch.names)] = [kernel.names.index(name) for name in branch.names]
        return Tables(
            kinds, numbers, constants,
            _longs([len(kernel.branches) for kernel in kernels]),
            _longs([kernel.row_bytes for kernel in kernels]),
            _ends([sum(q == of for of, _, _ in jobs) for q in range(len(kernels))]),
            _longs([s for _, s, _ in jobs]),
            _ends([len(job) for _, _, job in jobs]),
            _longs([self._branches[branch] for _, branch in variants]),
            np.array([branch.grid for _, branch in variants], np.int64).reshape(-1, 3),
            arguments,
        )  # fmt: skip


def _width(branches: Iterable[Branch]) -> int:
    """A power of two, so that records begin where 16 divides addresses."""
    most = FIELDS + max((len(branch.names) for branch in branches), default=0)
    return 1 << (most - 1).bit_length()


def _longs(values: Sequence[int]) -> Longs:
    return np.array(values, np.int64)


def _ends(sizes: Sequence[int]) -> Longs:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(_longs(sizes), dtype=np.int64)])
