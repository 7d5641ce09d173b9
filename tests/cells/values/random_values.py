"""Random values over three operands, a parameter and two packed weights, and their steps run by address."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import torch

from edbc.base.operations import BINARY, UNARY
from edbc.capture.record.table import SharedRef
from edbc.cells.kernels.microkernel import shape_of
from edbc.cells.kernels.steps import FIRST_OPERAND, SCRATCH, SHARED, WORKSPACE, StepField, steps_of
from edbc.cells.kernels.steptables import Rendered, table_of
from edbc.cells.values.evaluate import Batch, Interpreter, Tensors, Weight
from edbc.cells.values.value import REDUCTIONS, V, Values

SIZES = (1, 3, 7, 16, 24, 40)
PARAMETER = 64
P = SharedRef("p")
TAME = sorted(UNARY - {"log", "log1p", "sqrt", "reciprocal", "exp", "expm1", "square"})
"""Operations of all numbers that keep them small."""
ALONG = {"total": lambda x: x.sum(2), "largest": lambda x: x.amax(2), "smallest": lambda x: x.amin(2)}
"""Reductions along the middle, with the batch in front."""


def evaluate(outputs: Sequence[V], rows: Tensors, parameter: Callable[[SharedRef], torch.Tensor],
             weights: Sequence[Weight]) -> list[torch.Tensor]:  # fmt: skip
    """Outputs (n, size) of operands' rows (n, size); `parameter` gives those that are read whole, `weights` packed ones
    (rows, columns) with their biases."""
    like = rows[0] if rows else weights[0][0]
    return Interpreter(outputs).run(Batch(len(rows[0]) if rows else 1, like, rows, weights, parameter))


class Case:
    """Outputs of random values, and numbers for what they read, in float64. `adds`: products may have addends."""

    def __init__(self, seed: int, most: int = 14, reductions: Sequence[str] = REDUCTIONS, adds: bool = True):
        self.rng = random.Random(seed)
        self.values = Values()
        self.reductions, self.adds = reductions, adds
        self.sizes = [self.rng.choice(SIZES) for _ in range(3)]
        self.pool = [self.values.load(k, 0, size) for k, size in enumerate(self.sizes)]
        self.shapes: list[tuple[int, int]] = []
        for _ in range(self.rng.randint(3, most)):
            v = self.draw(self.rng.choice(self.pool))
            if v is not None and 0 < v.size < 200:
                self.pool.append(v)
        self.outputs = [self.rng.choice(self.pool[3:] or self.pool) for _ in range(self.rng.randint(1, 3))]
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.rows = [normal(5, size) for size in self.sizes]
        self.parameter = normal(PARAMETER)
        self.weights = [(normal(*shape) / shape[0], normal(shape[1])) for shape in self.shapes]

    def right_matrices(self, v: V) -> list[tuple[V, int]]:
        """What a value may be multiplied with, and the inner size: other values, and a parameter transposed."""
        pairs = [(u, k) for u in self.pool for k in divisors(v.size) if u.size % k == 0]
        k = self.rng.choice(divisors(v.size))
        columns = PARAMETER // k // 2
        if columns:
            first = self.rng.randrange(PARAMETER - k * columns)
            turned = self.values.turned(self.values.parameter(P, first, k * columns), columns, k)
            pairs.append((turned, k))
        return pairs

    def draw(self, v: V) -> V | None:
        """A value of one more operation."""
        rng, values = self.rng, self.values
        match rng.randrange(10):
            case 0 | 1:
                return values.map(rng.choice(TAME), [v])
            case 2 | 3:
                others = [u for u in self.pool if u.size == v.size] + [values.number(rng.uniform(-1, 1), v.size)]
                if v.size < PARAMETER:
                    others.append(values.parameter(P, rng.randrange(PARAMETER - v.size), v.size))
                return values.map(rng.choice(sorted(BINARY - {"div", "pow"})), [v, rng.choice(others)])
            case 4:
                first = rng.randrange(v.size)
                return values.part(v, first, rng.randint(1, v.size - first))
            case 5:
                return values.cat([v, rng.choice(self.pool)])
            case 6:
                inner = rng.choice(divisors(v.size))
                n = rng.choice(divisors(v.size // inner))
                return values.reduce(rng.choice(self.reductions), v, (v.size // inner // n, n, inner))
            case 7:
                inner = rng.choice(divisors(v.size))
                return values.spread(v, (v.size // inner, rng.choice([1, 2, 3]), inner))
            case 8:  # pieces that no value stores, in a reduction
                pairs = [(a, b) for a in self.pool for b in self.pool if a.size + b.size == v.size]
                if not pairs:
                    return None
                product = values.map("mul", [v, values.cat(rng.choice(pairs))])
                return values.reduce(rng.choice(self.reductions), product, (1, *rng.choice(halves(v.size))))
        if rng.random() < 0.5 and len(self.shapes) < 2:
            columns = rng.choice(SIZES)
            self.shapes.append((v.size, columns))
            addends = [None, *(u for u in self.pool if u.size == columns and self.adds)]
            return values.product(v, len(self.shapes) - 1, columns, True, rng.choice(addends))
        right, k = rng.choice(self.right_matrices(v))
        if rng.random() < 0.2:
            v = values.turned(v, v.size // k, k)
            v = values.turned(values.map("tanh", (v,)), k, v.size // k)
        return values.matmul(v, right, v.size // k, k, right.size // k)

    def exact(self, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
        """The outputs by torch."""
        rows, weights = [row.to(dtype) for row in self.rows], [(w.to(dtype), b.to(dtype)) for w, b in self.weights]
        return evaluate(self.outputs, rows, viewed(self.parameter.to(dtype)), weights)

    def rounded(self, dtype: torch.dtype) -> Case:
        """The same with numbers that a shorter dtype has."""
        self.rows = [row.to(dtype).double() for row in self.rows]
        self.parameter = self.parameter.to(dtype).double()
        self.weights = [(w.to(dtype).double(), b.to(dtype).double()) for w, b in self.weights]
        return self

    def run(self, dtype: torch.dtype, lanes: int, which: Sequence[int] = range(5)) -> list[torch.Tensor]:
        """The outputs of some of the rows by native steps."""
        rows = [row.to(dtype)[list(which)] for row in self.rows]
        weights = [(weight.to(dtype), bias.to(dtype)) for weight, bias in self.weights]
        return run_natively(self.outputs, rows, lanes, self.parameter.to(dtype), weights)


def run_natively(outputs: Sequence[V], rows: Sequence[torch.Tensor], lanes: int, parameter: torch.Tensor | None = None,
                 weights: Sequence[tuple[torch.Tensor, torch.Tensor]] = (), adds: Sequence[int] = (),
                 late: Sequence[int] = ()) -> list[torch.Tensor]:  # fmt: skip
    """Outputs (n, size) of operands' rows (n, size), step by step, in vectors of so many elements; what is added is
    added to zeros."""
    count, dtype, width = len(rows[0]), rows[0].dtype, rows[0].itemsize
    sizes = tuple((weight.shape[0], weight.shape[1]) for weight, _ in weights)
    rendered = Rendered(steps_of(outputs, len(rows), adds, late), width, sizes, lanes)
    steps = rendered.steps
    found = [torch.full((count, v.size), torch.nan, dtype=dtype) for v in outputs]
    for number in adds:
        found[number].zero_()
    workspace = torch.full((count, max(steps.width, 1)), torch.nan, dtype=dtype)
    scratch = torch.full((max(steps.scratch, 1),), torch.nan, dtype=dtype)
    at = np.zeros((count, FIRST_OPERAND + len(rows) + len(found)), np.int64)
    for slot, tensor in ((WORKSPACE, workspace), *enumerate([*rows, *found], FIRST_OPERAND)):
        at[:, slot] = tensor.data_ptr() + np.arange(count) * tensor.stride(0) * width
    at[:, SCRATCH], at[:, SHARED] = scratch.data_ptr(), 0
    shape = shape_of(width)
    kept: list[torch.Tensor] = []
    assert shape is not None

    def weight_at(kind: int, number: int) -> tuple[int, int]:
        weight, bias = weights[number]
        padded = torch.nn.functional.pad(bias, (0, shape.padded(len(bias)) - len(bias)))
        kept.extend((shape.pack(weight), padded))
        return kept[-2].data_ptr(), padded.data_ptr()

    def parameter_at(kind: int, v: V) -> int:
        assert parameter is not None
        kept.append(viewed(parameter)(v.arg[0]).reshape(-1)[v.arg[1] :])
        return kept[-1].data_ptr()

    table, piece = table_of({0: rendered}, 1).filled(weight_at, parameter_at)
    for step in table:
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(int(step[StepField.KERNEL]))
        pieces = piece[step[StepField.BEGIN] :]
        call(at.ctypes.data, at.shape[1], count, step.ctypes.data, pieces.ctypes.data, 0, 0)
    return found


def viewed(parameter: torch.Tensor) -> Callable[[SharedRef], torch.Tensor]:
    """What references to it show of a parameter."""
    return lambda ref: reduce(lambda seen, view: view.apply(seen), ref.views, parameter)


def halves(n: int) -> list[tuple[int, int]]:
    """Pairs of sizes whose product is a size."""
    return [(d, n // d) for d in divisors(n)]


def divisors(n: int) -> list[int]:
    """Of a size, 1 and itself among them."""
    return [d for d in range(1, n + 1) if n % d == 0]
