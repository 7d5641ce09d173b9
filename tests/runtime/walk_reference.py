"""`walk` in plain Python: the same tables, the same memory by address, one numpy operation where native code has a
loop."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from edbc.runtime.microkernel import shape_of
from edbc.runtime.phases import FIRST_OPERAND, PRODUCT, SCRATCH, SHARED, WORKSPACE
from edbc.runtime.reduction import OPS
from edbc.runtime.walk import CODES, EXCERPT, REDUCTION, Batches, Memory, Tables

FUNCTIONS = {
    "copy": lambda a, b, c: a, "add3": lambda a, b, c: a + b + c, "div": lambda a, b, c: a / b,
    "gelu": lambda a, b, c: torch.nn.functional.gelu(a), "silu": lambda a, b, c: torch.nn.functional.silu(a),
    "softplus": lambda a, b, c: torch.nn.functional.softplus(a),
}  # fmt: skip
ALONG: dict[str, Callable[[torch.Tensor, int, float], torch.Tensor]] = {
    "softmax": lambda x, n, e: x.softmax(1), "log_softmax": lambda x, n, e: x.log_softmax(1),
    "logsumexp": lambda x, n, e: x.logsumexp(1), "total": lambda x, n, e: x.sum(1),
    "average": lambda x, n, e: x.mean(1), "largest": lambda x, n, e: x.amax(1), "smallest": lambda x, n, e: x.amin(1),
    "spread": lambda x, n, e: x.expand(-1, n, -1),
    "normalise": lambda x, n, e: torch.nn.functional.layer_norm(x.squeeze(2), (n,), eps=e),
}  # fmt: skip
"""By name, what a function makes of (outer, n, inner) elements, n and an epsilon."""
TWO = ("add", "sub", "mul", "maximum", "minimum", "pow")


def elements(address: int, count: int, like: Any) -> np.ndarray:
    """So many elements of `like`'s type at an address, as a view."""
    size = count * np.dtype(like.dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), like.dtype) if size else np.zeros(0)


def walk_reference(begin: int, end: int, block: int, workspace: int, scratch: int, width: int, batches: Batches,
                   memory: Memory, tables: Tables, like: Any) -> None:  # fmt: skip
    """What `walk` is held to."""
    for b in range(begin, end):
        batch = _Batch(b, batches, memory, tables, workspace, scratch, width, like)
        if tables.code[batch.kind] >= REDUCTION:
            batch.reduce(OPS[tables.code[batch.kind] - REDUCTION])
            continue
        count = int(batches.batch_ptr[b + 1] - batches.batch_ptr[b])
        if tables.code[batch.kind] == EXCERPT:
            batch.excerpts(count)
            continue
        for first in range(0, count, block):
            batch.program(first, min(first + block, count))


class _Batch:
    """One batch: where its operands and outputs are, and what its type does with them."""

    def __init__(self, b: int, batches: Batches, memory: Memory, tables: Tables, workspace: int, scratch: int,
                 width: int, like: Any):  # fmt: skip
        self.b, self.batches, self.memory, self.tables = b, batches, memory, tables
        self.workspace, self.scratch, self.width, self.like = workspace, scratch, width, like
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

    def slot(self, number: int, r: int, first: int) -> int:
        """Address that a slot's offsets count from, for row r of a block that starts at row `first`."""
        if number == WORKSPACE:
            return self.workspace + (r - first) * int(self.tables.stride[self.kind])
        if number in (SCRATCH, SHARED):
            return self.scratch if number == SCRATCH else 0
        number -= FIRST_OPERAND
        return self.operand(number, r) if number < self.num_operands else self.output(number - self.num_operands, r)

    def program(self, first: int, last: int) -> None:
        """All phases for a block of rows."""
        for p in range(self.tables.phase_ptr[self.kind], self.tables.phase_ptr[self.kind + 1]):
            phase = self.tables.phases[p].tolist()
            if phase[0] == PRODUCT:
                self.multiply(phase, first, last)
            else:
                for r in range(first, last):
                    for i in range(phase[1], phase[2]):
                        self.instruction(self.tables.instructions[i].tolist(), r, first)

    def multiply(self, phase: list[int], first: int, last: int) -> None:
        """One product, row after row, with a weight in panels where there is a kernel of our own."""
        slot, offset, rows, columns, weight, bias, addend, inside, begin, end = phase[2:12]
        shape = shape_of(self.width)
        if shape is None:
            matrix = elements(weight, rows * columns, self.like).reshape(rows, columns)
        else:
            panels = torch.tensor(elements(weight, rows * shape.padded(columns), self.like))
            matrix = shape.unpack(panels, rows, columns).numpy()
        for r in range(first, last):
            pieces = [self.tables.instructions[i].tolist()[:3] for i in range(begin, end)]
            parts = [elements(self.slot(s, r, first) + at, size, self.like) for s, at, size in pieces]
            source = np.concatenate([*parts, np.zeros(0, self.like.dtype)])
            added = elements(bias, columns, self.like) if bias else 0
            if addend >= 0:
                added = added + elements(self.slot(addend, r, first) + inside, columns, self.like)
            elements(self.slot(slot, r, first) + offset, columns, self.like)[:] = source @ matrix + added

    def instruction(self, code: list[int], r: int, first: int) -> None:
        """One element-wise instruction, or a product of a row's own matrices."""
        op, size = CODES[code[0]], code[1]
        target, a, b = (self.slot(code[i], r, first) + code[i + 1] for i in (2, 4, 6))
        if op in ("matmul", "matmul_add"):
            m, k, stride = code[8:11]
            width = np.dtype(self.like.dtype).itemsize
            left = np.array([elements(a + i * stride * width, k, self.like) for i in range(m)]).reshape(m, k)
            product = left @ elements(b, k * size, self.like).reshape(k, size)
            result = elements(target, m * size, self.like)
            result[:] = product.ravel() + (result if op == "matmul_add" else 0)
            return
        if op in ALONG:
            outer, n, inner = code[8:11]
            middle = 1 if op == "spread" else n
            source = torch.tensor(elements(a, outer * middle * inner, self.like)).reshape(outer, middle, inner)
            epsilon = float(elements(b, 1, self.like)[0]) if op == "normalise" else 0.0
            elements(target, size, self.like)[:] = ALONG[op](source, n, epsilon).reshape(-1).numpy()
            return
        c = self.slot(code[8], r, first) + code[9]
        needed = 3 if op == "add3" else 2 if op in (*TWO, "div") else 1
        sources = [elements(x, size, self.like) if i < needed else None for i, x in enumerate((a, b, c))]
        elements(target, size, self.like)[:] = _applied(op, *sources)

    def excerpts(self, count: int) -> None:
        """Each node's elements, from where its offset says."""
        size = int(self.memory.stride[self.memory.output_class[self.kind, 0]]) // self.width
        begin = int(self.batches.start[self.b])
        for r in range(count):
            whole = self.address(int(self.batches.origin[begin + r]), int(self.batches.rows[begin + r]))
            offset = int(elements(self.operand(1, r), 1, np.int64(0))[0])
            elements(self.output(0, r), size, self.like)[:] = elements(whole + offset * self.width, size, self.like)

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


def _applied(op: str, *sources: np.ndarray | None) -> np.ndarray:
    a, b, c = (None if x is None else torch.from_numpy(x.copy()) for x in sources)
    if op in FUNCTIONS:
        return FUNCTIONS[op](a, b, c).numpy()
    return getattr(torch, op)(*((a, b) if op in TWO else (a,))).numpy()


def _reduced(op: str, items: list[np.ndarray]) -> np.ndarray:
    total = items[0]
    for item in items[1:]:
        total = np.maximum(total, item) if op == "max" else np.minimum(total, item) if op == "min" else total + item
    return total / len(items) if op == "mean" else total
