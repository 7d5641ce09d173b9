"""Calls of torch's functions as values: functions along dimensions, and element-wise ones with broadcast operands.

Definitions.

(1) A call is known here when all that it reads are runs of variables in order (whatever shape its views give them), or
    whole parameters; then its operands are values as torch sees them.
(2) Functions along dimensions (`softmax`, `sum`, `layer_norm`) see a value as (outer, n, inner) elements, the
    dimensions next to each other in the middle, and are made of reductions along it, of spreads and of element-wise
    operations.
(3) An operand of an element-wise function may be broadcast, along dimensions next to each other: it is spread.
(4) Functions that keep elements within bounds (`clamp`, `leaky_relu`) are larger and smaller ones of two.
(5) `linear` of a matrix and `matmul` multiply row by row, which is for weights that stay in the first-level cache. (Of
    a vector and a parameter it is a product of the cell, one for a whole batch.)

(6) A tensor that a cell makes of numbers is runs of equal ones (`torch.zeros` is one run), MOST_RUNS of them at most.

Everything else goes on as a call of torch's on whole batches (`edbc.cells.rows.evaluation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from edbc.base.operations import BINARY
from edbc.capture.record.table import Hole, SharedRef
from edbc.capture.semantics.rules import name_of
from edbc.cells.opgraph import CellOp
from edbc.cells.program import Call, Span
from edbc.cells.rows.rowrules import Glimpse
from edbc.cells.translate import SYNONYMS
from edbc.cells.values.value import V, Values

MOST_WEIGHTS = 1 << 13
"""Definition (5): larger weights are torch's to multiply, with all rows of a batch at once."""
MOST_RUNS = 64
ShapeOf = Callable[[SharedRef], Sequence[int]]
_Seen = tuple[V, tuple[int, ...]]
"""An operand and the shape that the call sees it in."""


def value_of_call(step: Call, values: Values, read: Callable[[Span], V], shape_of: ShapeOf) -> V | None:
    """What a call computes, definition (1); None when it is not known."""
    op = step.op
    if not op.sources or op.attributes == "whole":
        return _constant(op, values, shape_of)
    if (getattr(op.call, "__module__", None) or "torch").partition(".")[0] != "torch" or not step.result.size:
        return None
    assert op.call is not None
    name = SYNONYMS.get(name_of(op.call), name_of(op.call))
    reader = _READERS.get(name)
    return None if reader is None or op.output is not None else reader(_Reading(step, values, read, shape_of), name)


def _constant(op: CellOp, values: Values, shape_of: ShapeOf) -> V | None:
    """A tensor that the cell makes of numbers, or a parameter used whole, definition (6)."""
    if op.sources:
        return values.parameter(op.template[0][0], 0, op.result.size)
    tensor = op.call() if op.call is not None and op.attributes.startswith("constant ") else None
    if tensor is None or not tensor.is_floating_point() or (tensor.isnan() | tensor.signbit() & (tensor == 0)).any():
        return None
    runs, lengths = tensor.reshape(-1).double().unique_consecutive(return_counts=True)
    if len(runs) > MOST_RUNS:
        return None
    return values.cat(values.number(x, n) for x, n in zip(runs.tolist(), lengths.tolist(), strict=True))


class _Reading:
    """A call's operands as values, and its other arguments by name."""

    def __init__(self, step: Call, values: Values, read: Callable[[Span], V], shape_of: ShapeOf):
        self.step, self.values, self.read, self.shape_of = step, values, read, shape_of
        self.args, self.kwargs = step.op.template

    def arguments(self, *names: str) -> dict[str, Any] | None:
        """The arguments by these names; None when there are others, or a dtype is asked for."""
        if len(self.args) > len(names):
            return None
        given = dict(zip(names, self.args, strict=False)) | {_SAME.get(k, k): v for k, v in self.kwargs.items()}
        return None if set(given) - set(names) or given.get("dtype") is not None else given

    def operand(self, arg: Any, may_be_turned: bool = False) -> _Seen | None:
        """An operand; None when it is no run of elements, expanded perhaps, or a matrix transposed where it may be."""
        if type(arg) is SharedRef:
            shape = tuple(self.shape_of(arg))
            return self.values.parameter(arg, 0, math.prod(shape)), shape
        if type(arg) is not Hole:
            return None
        span, value_class = self.step.sources[arg.index]
        variables = [source for source in self.step.op.sources if source.variable is not None]
        seen = Glimpse.through(variables[arg.index].views, value_class.shape)
        if seen is None or not (seen.order is None or (may_be_turned and seen.order == (1, 0) and seen.wide is None)):
            return None
        v = self.values.part(self.read(span), seen.first, seen.stop - seen.first)
        v = self.map("held", v) if seen.is_detached else v
        if seen.order is not None:
            v = self.values.turned(v, *seen.shape)
        if seen.wide is not None:
            sizes = _spread_sizes(seen.shape, seen.wide)
            return None if sizes is None else (self.values.spread(v, sizes), seen.wide)
        return v, seen.shown

    def first(self, given: dict[str, Any] | None) -> _Seen | None:
        """The operand called `input`."""
        return None if given is None else self.operand(given.get("input"))

    def map(self, op: str, *sources: V | float) -> V:
        """An element-wise operation, also with numbers."""
        size = next(v.size for v in sources if isinstance(v, V))
        return self.values.map(op, [v if isinstance(v, V) else self.values.number(v, size) for v in sources])


_SAME = {"self": "input", "axis": "dim", "min_val": "min", "max_val": "max"}
"""Other names of arguments."""


def _softmax(reading: _Reading, name: str) -> V | None:
    given = reading.arguments("input", "dim", "_stacklevel", "dtype")
    if given is None or type(given.get("dim")) is not int or type(given.get("_stacklevel", 0)) is not int:
        return None  # torch.softmax's third argument is a dtype
    operand = reading.first(given)
    sizes = None if operand is None else _sizes(operand[1], given["dim"])
    if operand is None or sizes is None:
        return None
    v, spread = operand[0], reading.values.spread
    largest = reading.map("held", reading.values.reduce("largest", v, sizes))
    less = reading.map("sub", v, spread(largest, sizes))
    raised = reading.map("exp", less)
    total = reading.values.reduce("total", raised, sizes)
    if name == "softmax":
        return reading.map("div", raised, spread(total, sizes))
    return reading.map("sub", less, spread(reading.map("log", total), sizes))


def _logsumexp(reading: _Reading, v: V, sizes: tuple[int, int, int]) -> V:
    largest = reading.values.reduce("largest", v, sizes)
    finite = reading.map("finite", largest)
    less = reading.map("sub", v, reading.values.spread(finite, sizes))
    total = reading.values.reduce("total", reading.map("exp", less), sizes)
    return reading.map("add", reading.map("log", total), finite)


def _reduced(reading: _Reading, name: str) -> V | None:
    given = reading.arguments("input", "dim", "keepdim", "dtype")
    operand = reading.first(given)
    sizes = None if given is None or operand is None else _sizes(operand[1], given.get("dim"))
    if operand is None or sizes is None:
        return None
    if name == "logsumexp":
        return _logsumexp(reading, operand[0], sizes)
    found = reading.values.reduce(_OF_REDUCTION[name], operand[0], sizes)
    return reading.map("div", found, sizes[1]) if name == "mean" else found


_OF_REDUCTION = {"sum": "total", "mean": "total", "amax": "largest", "amin": "smallest", "logsumexp": ""}


def _layer_norm(reading: _Reading, name: str) -> V | None:
    given = reading.arguments("input", "normalized_shape", "weight", "bias", "eps", "cudnn_enable")
    operand = reading.first(given)
    if given is None or operand is None:
        return None
    shape = tuple(given["normalized_shape"])
    n = math.prod(shape)
    outer = math.prod(operand[1]) // n if n else 0
    if operand[1][len(operand[1]) - len(shape) :] != shape or not outer:
        return None
    sizes, values = (outer, n, 1), reading.values
    mean = reading.map("div", values.reduce("total", operand[0], sizes), n)
    distance = reading.map("sub", operand[0], values.spread(mean, sizes))
    variance = reading.map("div", values.reduce("total", reading.map("square", distance), sizes), n)
    scale = reading.map("reciprocal", reading.map("sqrt", reading.map("add", variance, float(given.get("eps", 1e-5)))))
    found = reading.map("mul", distance, values.spread(scale, sizes))
    for op, arg in (("mul", given.get("weight")), ("add", given.get("bias"))):
        if arg is None:
            continue
        by = reading.operand(arg)
        if by is None or math.prod(by[1]) != n:
            return None
        found = reading.map(op, found, values.spread(by[0], (1, outer, n)))
    return found


def _broadcast(reading: _Reading, name: str) -> V | None:
    """Definition (3)."""
    if len(reading.args) != 2 or reading.kwargs:
        return None
    found = [reading.operand(arg) for arg in reading.args]
    spread = [None if operand is None else _spread(reading, *operand) for operand in found]
    operands = [v for v in spread if v is not None]
    return reading.map(name, *operands) if len(operands) == 2 else None


def _spread(reading: _Reading, v: V, seen: Sequence[int]) -> V | None:
    """An operand as wide as the result."""
    shape, size = reading.step.op.result.shape, reading.step.result.size
    sizes = (1, 1, size) if v.size == size else _spread_sizes(seen, shape)
    return None if sizes is None else reading.values.spread(v, sizes)


def _widened(reading: _Reading, name: str) -> V | None:
    """`x.expand_as(y)`."""
    operand = reading.operand(reading.args[0])
    return None if operand is None else _spread(reading, *operand)


def _bounded(reading: _Reading, name: str) -> V | None:
    """Definition (4)."""
    names, defaults = _BOUNDS[name]
    given = reading.arguments("input", *names)
    operand = reading.first(given)
    if given is None or operand is None:
        return None
    low, high = ({**defaults, **given}.get(key) for key in ("min", "max"))
    if (low is None and high is None) or any(type(bound) not in (int, float, type(None)) for bound in (low, high)):
        return None
    v = operand[0] if low is None else reading.map("maximum", operand[0], low)
    return v if high is None else reading.map("minimum", v, high)


def _leaky_relu(reading: _Reading, name: str) -> V | None:
    """Definition (4), of x and slope times x."""
    given = reading.arguments("input", "negative_slope", "inplace")
    operand = reading.first(given)
    slope: Any = None if given is None else given.get("negative_slope", 0.01)
    if operand is None or type(slope) not in (int, float) or not 0 <= slope <= 1:
        return None
    return reading.map("maximum", operand[0], reading.map("mul", operand[0], slope))


_BOUNDS: dict[str, tuple[tuple[str, ...], dict[str, float]]] = {
    "clamp": (("min", "max"), {}),
    "clip": (("min", "max"), {}),
    "clamp_min": (("min",), {}),
    "clamp_max": (("max",), {}),
    "hardtanh": (("min", "max", "inplace"), {"min": -1.0, "max": 1.0}),
    "relu6": (("inplace",), {"min": 0.0, "max": 6.0}),
}
"""Functions' other arguments in order, and bounds that hold when none are given."""


def _linear(reading: _Reading, name: str) -> V | None:
    """Definition (5)."""
    given = reading.arguments("input", "weight", "bias")
    operand = reading.first(given)
    if given is None or operand is None or type(given.get("weight")) is not SharedRef:
        return None
    weight: SharedRef = given["weight"]
    (n, k), size = reading.shape_of(weight), reading.step.result.size
    if n * k > MOST_WEIGHTS:
        return None
    turned = reading.values.turned(reading.values.parameter(weight, 0, n * k), n, k)
    found = reading.values.matmul(operand[0], turned, size // n, k, n)
    if given.get("bias") is None:
        return found
    bias = reading.operand(given["bias"])
    return None if bias is None else reading.map("add", found, reading.values.spread(bias[0], (1, size // n, n)))


def _matmul(reading: _Reading, name: str) -> V | None:
    """Definition (5), of two matrices or vectors of a node's own, transposed perhaps, or of one and a parameter."""
    if len(reading.args) != 2 or reading.kwargs:
        return None
    found = [reading.operand(arg, may_be_turned=True) for arg in reading.args]
    (left, right) = (operand for operand in found if operand is not None) if None not in found else (None, None)
    if left is None or right is None or len(left[1]) not in (1, 2) or len(right[1]) not in (1, 2):
        return None
    k = left[1][-1]
    m, n = math.prod(left[1]) // max(k, 1), math.prod(right[1]) // max(k, 1)
    if not m * k * n or max(m * k, k * n) > MOST_WEIGHTS or right[1][0] != k:
        return None
    return reading.values.matmul(left[0], right[0], m, k, n)


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


_READERS: dict[str, Callable[[_Reading, str], V | None]] = {
    "softmax": _softmax,
    "log_softmax": _softmax,
    **dict.fromkeys(_OF_REDUCTION, _reduced),
    "layer_norm": _layer_norm,
    **dict.fromkeys(BINARY, _broadcast),
    "expand_as": _widened,
    **dict.fromkeys(_BOUNDS, _bounded),
    "leaky_relu": _leaky_relu,
    "linear": _linear,
    "matmul": _matmul,
}
