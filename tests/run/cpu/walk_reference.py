"""`walk` in plain Python: the same tables, the same memory by address; what a cell computes is its values in torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from random_values import evaluate

from edbc.cells.rows.choice import COMPARISONS
from edbc.cells.rows.reduction import OPS
from edbc.native.pointers import WORDS
from edbc.run.cpu.walk import (
    COMPARISON,
    EXCERPT,
    IN_MEMORY,
    LARGEST,
    REDUCTION,
    SMALLEST,
    Batches,
    Memory,
    Tables,
)
from edbc.run.cpu.walktables import NativeKernel


def elements(address: int, count: int, like: Any) -> np.ndarray:
    """So many elements of `like`'s type at an address, as a view."""
    size = count * np.dtype(like.dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), like.dtype) if size else np.zeros(0)


def _vectors(record: np.ndarray, count: int, types: dict[int, type] | None = None) -> list[np.ndarray]:
    """The arrays that a record tells of, of int64 where `types` does not say otherwise."""
    found = []
    for i in range(count):
        address, rows, columns = record[WORDS * i : WORDS * (i + 1)].tolist()
        like = (types or {}).get(i, np.int64)(0)
        found.append(elements(address, rows * (columns or 1), like).reshape((rows, columns) if columns else rows))
    return found


def _memory(record: np.ndarray) -> Memory:
    known = _vectors(record, IN_MEMORY)
    base = WORDS * IN_MEMORY
    return Memory(*known, record[base : base + len(known[0])], record[base + len(known[0]) :])


def walk_reference(kernel_of_type: Callable[[int], Any]) -> Callable[..., None]:
    """What `walk` is held to, for a net's kernels."""

    def walk(begin: int, end: int, block: int, workspace: int, scratch: int, width: int, of_batches: np.ndarray,
             of_memory: np.ndarray, of_tables: np.ndarray, like: Any, team: int) -> None:  # fmt: skip
        batches = Batches(*_vectors(of_batches, len(Batches._fields), {0: np.int32, 1: np.int32}))
        memory, tables = _memory(of_memory), Tables(*_vectors(of_tables, len(Tables._fields), {7: np.float64}))
        for b in range(begin, end):
            batch = _Batch(b, batches, memory, tables, width, like)
            count = int(batches.batch_ptr[b + 1] - batches.batch_ptr[b])
            if tables.code[batch.kind] >= REDUCTION:
                batch.reduce(OPS[tables.code[batch.kind] - REDUCTION])
            elif tables.code[batch.kind] >= COMPARISON:
                batch.compare(count, getattr(torch, COMPARISONS[tables.code[batch.kind] - COMPARISON]))
            elif tables.code[batch.kind] == EXCERPT:
                batch.excerpts(count)
            elif tables.code[batch.kind] in (LARGEST, SMALLEST):
                batch.choices(count, torch.argmax if tables.code[batch.kind] == LARGEST else torch.argmin)
            else:
                batch.program(kernel_of_type(batch.kind), count)

    return walk


class _Batch:
    """One batch: where its operands and outputs are, and what its type does with them."""

    def __init__(self, b: int, batches: Batches, memory: Memory, tables: Tables, width: int, like: Any):
        self.b, self.batches, self.memory, self.tables = b, batches, memory, tables
        self.width, self.like = width, like
        self.kind = int(batches.batch_type[b])

    @property
    def num_operands(self) -> int:
        """Operands of its type."""
        return int(self.tables.num_operands[self.kind])

    def operand(self, k: int, r: int) -> int:
        """Address of row r of operand k."""
        c = int(self.memory.operand_class[self.kind, k])
        row = int(self.batches.rows[self.batches.start[self.b] + k * self.batches.items[self.b] + r])
        return self.address(c, row)

    def address(self, c: int, row: int) -> int:
        """Address of a row of a class."""
        if row < self.memory.externals[c]:
            return int(self.memory.external_address[self.memory.external_start[c] + row])
        return int(self.memory.base[c] + row * self.memory.stride[c])

    def output(self, j: int, r: int) -> int:
        """Address of row r of output j."""
        c = int(self.memory.output_class[self.kind, j])
        return int(self.memory.base[c] + (self.batches.output_row[self.b, j] + r) * self.memory.stride[c])

    def program(self, kernel: NativeKernel, count: int) -> None:
        """A type's values, for all rows at once."""
        rows = [self.rows(self.operand, k, self.memory.operand_class, count) for k in range(self.num_operands)]
        pack, shape = kernel.weights.pack, kernel.shape
        weights = []
        for matrix, bias, packed in zip(pack.matrices, pack.biases, kernel.program.weights, strict=True):
            whole = matrix if shape is None else shape.unpack(matrix, packed.rows, packed.columns)
            weights.append((whole, None if bias is None else bias[: packed.columns]))
        for j, found in enumerate(evaluate(kernel.values, rows, kernel.weights.view.shared, weights)):
            for r in range(count):
                elements(self.output(j, r), found.shape[1], self.like)[:] = found[r].numpy()

    def rows(self, address: Callable[[int, int], int], k: int, classes: np.ndarray, count: int) -> torch.Tensor:
        """Copies of rows of a slot."""
        size = int(self.memory.stride[classes[self.kind, k]]) // self.width
        found = [elements(address(k, r), size, self.like) for r in range(count)]
        return torch.tensor(np.array(found)).reshape(count, size)

    def excerpts(self, count: int) -> None:
        """Each node's elements, from where its offset says."""
        size = int(self.memory.stride[self.memory.output_class[self.kind, 0]]) // self.width
        begin = int(self.batches.start[self.b])
        for r in range(count):
            whole = self.address(int(self.batches.origin[begin + r]), int(self.batches.rows[begin + r]))
            offset = int(elements(self.operand(1, r), 1, np.int64(0))[0])
            elements(self.output(0, r), size, self.like)[:] = elements(whole + offset * self.width, size, self.like)

    def choices(self, count: int, choose: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """The number of the element that each node chooses."""
        for r, row in enumerate(self.rows(self.operand, 0, self.memory.operand_class, count)):
            elements(self.output(0, r), 1, np.int64(0))[:] = int(choose(row))

    def compare(self, count: int, holds: Callable[..., torch.Tensor]) -> None:
        """What torch says of every node's operands."""
        left, *right = [self.rows(self.operand, k, self.memory.operand_class, count) for k in range(self.num_operands)]
        number = torch.tensor(self.tables.number[self.kind], dtype=left.dtype)
        for r, row in enumerate(holds(left, *(right or [number]))):
            elements(self.output(0, r), len(row), np.bool_(False))[:] = row.numpy()

    def reduce(self, op: str) -> None:
        """A reduction over the items of each node, in order."""
        items = range(int(self.batches.items[self.b]))
        begin = int(self.batches.start[self.b])
        for k in range(self.num_operands):
            size = int(self.memory.stride[self.memory.operand_class[self.kind, k]]) // self.width
            nodes: dict[int, list[np.ndarray]] = {}
            for i in items:
                item = elements(self.operand(k, i), size, self.like).copy()
                nodes.setdefault(int(self.batches.segment[begin + i]), []).append(item)
            for node, group in nodes.items():
                elements(self.output(k, node), size, self.like)[:] = _reduced(op, group)


def _reduced(op: str, items: list[np.ndarray]) -> np.ndarray:
    total = items[0]
    for item in items[1:]:
        total = (
            np.maximum(total, item)
            if op.endswith("max")
            else np.minimum(total, item)
            if op.endswith("min")
            else total + item
        )
    return total / len(items) if op == "mean" else total
