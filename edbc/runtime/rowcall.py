"""Calls of torch's functions as native instructions on the values of a row: functions along dimensions, and
element-wise ones whose operands are broadcast.

Definitions.

(1) A call is known here when all that it reads are runs of variables in order (whatever shape its views give them), or
    whole parameters; then its operands stand in memory as torch sees them.
(2) Functions along dimensions (`softmax`, `sum`, `layer_norm`) see a value as (outer, n, inner) elements, the
    dimensions next to each other in the middle (`edbc.runtime.dimensions`).
(3) Of two operands of an element-wise function one may be broadcast, along dimensions next to each other: it is spread
    over the result first, which the function then overwrites.
(4) Functions that keep elements within bounds (`clamp`, `leaky_relu`) are larger and smaller ones of two.
(5) `linear` of a matrix multiplies row by row, which is for weights that stay in the first-level cache. (Of a vector it
    is a product of the cell, one for a whole batch.)

Everything else goes on as a call of torch's on whole batches (`edbc.runtime.evaluation`). What is known here has no
derivative in `edbc.training`: there torch's autograd differentiates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from edbc.cells.program import Call, Span
from edbc.cells.translate import SYNONYMS
from edbc.operations import BINARY
from edbc.runtime.rowrules import Glimpse
from edbc.trace.rules import name_of
from edbc.trace.table import Hole, SharedRef, View

RESULT = -1
MOST_PARTS = 64
"""A row of more normalised vectors than these is left to torch: there are two instructions for each."""
MOST_WEIGHTS = 1 << 13
"""Definition (5): larger weights are torch's to multiply, with all rows of a batch at once."""
_TURNED = View(torch.Tensor.t, ((Hole(0),), {}), None, ".t()")
ShapeOf = Callable[[SharedRef], Sequence[int]]


@dataclass(frozen=True)
class Part:
    """One instruction; see `edbc.runtime.phases.Instruction`. Sources are numbers of the call's sources, or RESULT, and
    offsets; or a number that is a constant."""

    op: str
    size: int
    target: int
    sources: tuple[tuple[int, int] | float, ...]
    shape: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class RowCall:
    """`result` by parts, in order, from spans and parameters that each stand in one piece."""

    sources: tuple[Span | SharedRef, ...]
    result: Span
    parts: tuple[Part, ...]


def row_call(step: Call, shape_of: ShapeOf) -> RowCall | None:
    """A call as native instructions, definition (1); None when it is not known."""
    op = step.op
    if (getattr(op.call, "__module__", None) or "torch").partition(".")[0] != "torch" or not step.result.size:
        return None
    assert op.call is not None
    name = SYNONYMS.get(name_of(op.call), name_of(op.call))
    reader = _READERS.get(name)
    if reader is None or op.output is not None:
        return None
    reading = _Reading(step, shape_of)
    parts = reader(reading, name)
    return None if parts is None else RowCall(tuple(reading.sources), step.result, tuple(parts))


class _Reading:
    """A call's operands as sources, and its other arguments by name."""

    def __init__(self, step: Call, shape_of: ShapeOf):
        self.step = step
        self.shape_of = shape_of
        self.args, self.kwargs = step.op.template
        self.sources: list[Span | SharedRef] = []

    def arguments(self, *names: str) -> dict[str, Any] | None:
        """The arguments by these names; None when there are others, or a dtype is asked for."""
        if len(self.args) > len(names):
            return None
        given = dict(zip(names, self.args, strict=False)) | {_SAME.get(k, k): v for k, v in self.kwargs.items()}
        return None if set(given) - set(names) or given.get("dtype") is not None else given

    def source(self, arg: Any) -> tuple[int, tuple[int, ...]] | None:
        """The number of an operand among the sources, and its shape; None when it is no run of elements."""
        found: Span | SharedRef
        if type(arg) is SharedRef:
            found, shape = arg, tuple(self.shape_of(arg))
        elif type(arg) is Hole:
            span, value_class = self.step.sources[arg.index]
            variables = [source for source in self.step.op.sources if source.variable is not None]
            seen = Glimpse.through(variables[arg.index].views, value_class.shape)
            if seen is None or seen.order is not None:
                return None
            found, shape = Span(span.offset + seen.first, seen.stop - seen.first), seen.shape
        else:
            return None
        return self.add(found), shape

    def add(self, found: Span | SharedRef) -> int:
        """The number of a source."""
        if found not in self.sources:
            self.sources.append(found)
        return self.sources.index(found)


_SAME = {"self": "input", "axis": "dim", "min_val": "min", "max_val": "max"}
"""Other names of arguments."""


def _softmax(reading: _Reading, name: str) -> list[Part] | None:
    given = reading.arguments("input", "dim", "_stacklevel", "dtype")
    if given is None or type(given.get("dim")) is not int or type(given.get("_stacklevel", 0)) is not int:
        return None  # torch.softmax's third argument is a dtype
    operand = reading.source(given.get("input"))
    sizes = None if operand is None else _sizes(operand[1], given["dim"])
    if operand is None or sizes is None:
        return None
    return [Part(name, math.prod(sizes), 0, ((operand[0], 0),), sizes)]


def _reduced(reading: _Reading, name: str) -> list[Part] | None:
    given = reading.arguments("input", "dim", "keepdim", "dtype")
    operand = None if given is None else reading.source(given.get("input"))
    sizes = None if given is None or operand is None else _sizes(operand[1], given.get("dim"))
    if operand is None or sizes is None:
        return None
    outer, _, inner = sizes
    return [Part(_OF_REDUCTION[name], outer * inner, 0, ((operand[0], 0),), sizes)]


_OF_REDUCTION = {"sum": "total", "mean": "average", "amax": "largest", "amin": "smallest", "logsumexp": "logsumexp"}


def _layer_norm(reading: _Reading, name: str) -> list[Part] | None:
    given = reading.arguments("input", "normalized_shape", "weight", "bias", "eps", "cudnn_enable")
    operand = None if given is None else reading.source(given.get("input"))
    if given is None or operand is None:
        return None
    shape = tuple(given["normalized_shape"])
    n = math.prod(shape)
    outer = math.prod(operand[1]) // n if n else 0
    if operand[1][len(operand[1]) - len(shape) :] != shape or not 0 < outer <= MOST_PARTS:
        return None
    parts = [Part("normalise", outer * n, 0, ((operand[0], 0), float(given.get("eps", 1e-5))), (outer, n, 1))]
    for op, arg in (("mul", given.get("weight")), ("add", given.get("bias"))):
        if arg is None:
            continue
        found = reading.source(arg)
        if found is None or math.prod(found[1]) != n:
            return None
        parts += [Part(op, n, row * n, ((RESULT, row * n), (found[0], 0))) for row in range(outer)]
    return parts


def _broadcast(reading: _Reading, name: str) -> list[Part] | None:
    """Definition (3)."""
    if len(reading.args) != 2 or reading.kwargs:
        return None
    operands = [reading.source(arg) for arg in reading.args]
    shape, size = reading.step.op.result.shape, reading.step.result.size
    sources: list[tuple[int, int]] = []
    spread: list[Part] = []
    for operand in operands:
        if operand is None:
            return None
        number, seen = operand
        if math.prod(seen) == size:
            sources.append((number, 0))
            continue
        sizes = _spread_sizes(seen, shape)
        if sizes is None:
            return None
        sources.append((RESULT, 0))
        spread.append(Part("spread", size, 0, ((number, 0),), sizes))
    return [*spread, Part(name, size, 0, tuple(sources))] if len(spread) == 1 else None


def _bounded(reading: _Reading, name: str) -> list[Part] | None:
    """Definition (4)."""
    names, defaults = _BOUNDS[name]
    given = reading.arguments("input", *names)
    operand = None if given is None else reading.source(given.get("input"))
    if given is None or operand is None:
        return None
    low, high = ({**defaults, **given}.get(key) for key in ("min", "max"))
    if any(type(bound) not in (int, float, type(None)) for bound in (low, high)):
        return None
    size, source = reading.step.result.size, (operand[0], 0)
    parts: list[Part] = []
    for op, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            parts.append(Part(op, size, 0, ((RESULT, 0) if parts else source, float(bound))))
    return parts or None


def _leaky_relu(reading: _Reading, name: str) -> list[Part] | None:
    """Definition (4), of x and slope times x."""
    given = reading.arguments("input", "negative_slope", "inplace")
    operand = None if given is None else reading.source(given.get("input"))
    slope: Any = None if given is None else given.get("negative_slope", 0.01)
    if operand is None or type(slope) not in (int, float) or not 0 <= slope <= 1:
        return None
    size, source = reading.step.result.size, (operand[0], 0)
    return [Part("mul", size, 0, (source, float(slope))), Part("maximum", size, 0, (source, (RESULT, 0)))]


_BOUNDS: dict[str, tuple[tuple[str, ...], dict[str, float]]] = {
    "clamp": (("min", "max"), {}),
    "clip": (("min", "max"), {}),
    "clamp_min": (("min",), {}),
    "clamp_max": (("max",), {}),
    "hardtanh": (("min", "max", "inplace"), {"min": -1.0, "max": 1.0}),
    "relu6": (("inplace",), {"min": 0.0, "max": 6.0}),
}
"""Functions' other arguments in order, and bounds that hold when none are given."""


def _linear(reading: _Reading, name: str) -> list[Part] | None:
    """Definition (5)."""
    given = reading.arguments("input", "weight", "bias")
    operand = None if given is None else reading.source(given.get("input"))
    if given is None or operand is None or type(given.get("weight")) is not SharedRef:
        return None
    weight = given["weight"]
    (n, k), size = reading.shape_of(weight), reading.step.result.size
    if n * k > MOST_WEIGHTS:
        return None
    product = ((operand[0], 0), (reading.add(weight._replace(views=(*weight.views, _TURNED))), 0))
    if given.get("bias") is None:
        return [Part("matmul", n, 0, product, (size // n, k, k))]
    bias = reading.source(given["bias"])
    if bias is None:
        return None
    spread = Part("spread", size, 0, ((bias[0], 0),), (1, size // n, n))
    return [spread, Part("matmul_add", n, 0, product, (size // n, k, k))]


def _sizes(shape: Sequence[int], dim: Any) -> tuple[int, int, int] | None:
    """Definition (2): of one dimension, several next to each other, or (None and none) all."""
    rank = len(shape)
    dims = range(rank) if dim in (None, (), []) else (dim,) if type(dim) is int else dim
    if any(type(d) is not int or not -rank <= d < rank for d in dims):
        return None
    chosen = sorted({d % rank for d in dims})
    if not chosen:
        return 1, 1, 1
    first, last = chosen[0], chosen[-1]
    if math.prod(shape) == 0 or any(d not in chosen and shape[d] != 1 for d in range(first, last)):
        return None
    return math.prod(shape[:first]), math.prod(shape[first : last + 1]), math.prod(shape[last + 1 :])


def _spread_sizes(seen: Sequence[int], shape: Sequence[int]) -> tuple[int, int, int] | None:
    """(outer, n, inner) where elements of shape `seen`, (outer, inner) of them, stand n times in `shape`."""
    full = (*[1] * (len(shape) - len(seen)), *seen)
    wide = [d for d in range(len(shape)) if full[d] != shape[d]]
    first, last = wide[0], wide[-1]
    if any(full[d] != 1 for d in range(first, last + 1)):
        return None
    return math.prod(shape[:first]), math.prod(shape[first : last + 1]), math.prod(shape[last + 1 :])


_READERS: dict[str, Callable[[_Reading, str], list[Part] | None]] = {
    "softmax": _softmax,
    "log_softmax": _softmax,
    **dict.fromkeys(_OF_REDUCTION, _reduced),
    "layer_norm": _layer_norm,
    **dict.fromkeys(BINARY, _broadcast),
    **dict.fromkeys(_BOUNDS, _bounded),
    "leaky_relu": _leaky_relu,
    "linear": _linear,
}
