"""Values in torch, for whole batches: what every other rendering is held to, and what autograd can follow.

A value is a tensor (rows, size); it goes when its last reader has run. Numbers are of no dimension where an operation
may broadcast them, so that they have the precision that torch gives to those of Python.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from edbc.base.operations import FORMULAS, OPERATIONS, parse
from edbc.capture.record.table import SharedRef
from edbc.capture.standins.standin import torch_dtype
from edbc.cells.program import Call
from edbc.cells.values.value import TRANSPOSED, V, in_order

Tensors = Sequence[torch.Tensor]
Weight = tuple[torch.Tensor, torch.Tensor | None]
Function = Callable[[Call, Tensors, int], Tensors]
"""The results of a call for operands (rows, *shape), and so many rows."""
MAPS: dict[str, Callable[..., torch.Tensor]] = {
    name: getattr(torch, name, None) or getattr(torch.nn.functional, name) for name in OPERATIONS
}
"""Element-wise operations but sums."""
_ALONG: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "total": lambda x: x.sum(2), "largest": lambda x: x.amax(2), "smallest": lambda x: x.amin(2),
}  # fmt: skip
PRIMITIVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cdf": torch.special.ndtr,
    "density": lambda x: torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5,
    **{name: getattr(torch, name) for name in ("exp", "log", "log1p", "sin", "cos", "sqrt", "abs", "sigmoid", "tanh")},
}


@dataclass(frozen=True, eq=False)
class Batch:
    """What the rows of a batch read: operands (count, size) and what all share. `like` has the dtype and the device of
    numbers; `function` runs calls."""

    count: int
    like: torch.Tensor
    rows: Tensors
    weights: Sequence[Weight]
    parameter: Callable[[SharedRef], torch.Tensor]
    function: Function | None = None


class Interpreter:
    """Of some outputs."""

    def __init__(self, outputs: Sequence[V]):
        self.outputs = outputs
        self.order = in_order(outputs)
        last = {u: number for number, v in enumerate(self.order) for u in v.sources}
        self.read = [[u for u in dict.fromkeys(v.sources) if last[u] == number and u not in outputs]
                     for number, v in enumerate(self.order)]  # fmt: skip
        """What nobody reads behind each value."""

    def run(self, batch: Batch) -> list[torch.Tensor]:
        """Every output, (count, size)."""
        known: dict[V, torch.Tensor] = {}
        results: dict[Any, Tensors] = {}
        for v, read in zip(self.order, self.read, strict=True):
            sources = [known[source] for source in v.sources]
            known[v] = _called(v, sources, batch, results) if v.op == "call" else _one(v, sources, batch)
            for u in read:
                del known[u]
        return [known[v] for v in self.outputs]


def _called(v: V, sources: Tensors, batch: Batch, results: dict[Any, Tensors]) -> torch.Tensor:
    """One of the results of a call, which is made once for all of them."""
    step: Call = v.arg
    key = id(step.op.template), v.sources
    found = results.get(key)
    if found is None:
        assert batch.function is not None
        shaped = [x.reshape(batch.count, *c.shape) for x, (_, c) in zip(sources, step.sources, strict=True)]
        shaped = [_of_class(x, c.dtype) for x, (_, c) in zip(shaped, step.sources, strict=True)]
        found = batch.function(step, shaped, batch.count)
    if step.op.output is not None:
        results[key] = found
    result = found[step.op.output or 0].reshape(batch.count, -1)
    return result.to(batch.like.dtype) if result.dtype is torch.bool else result


def _of_class(x: torch.Tensor, dtype: str) -> torch.Tensor:
    """What a call is given: truth values as they are, and nothing, which no row tells the dtype of, of its own."""
    if dtype == "bool":
        return x != 0
    return x if x.numel() else x.to(torch_dtype(dtype))


def _one(v: V, sources: Tensors, batch: Batch) -> torch.Tensor:
    n = batch.count
    match v.op:
        case "load":
            return batch.rows[v.arg[0]][:, v.arg[1] : v.arg[1] + v.size]
        case "parameter":
            return batch.parameter(v.arg[0]).reshape(-1)[v.arg[1] : v.arg[1] + v.size].expand(n, -1)
        case "number":
            return batch.like.new_tensor(v.arg).expand(n, v.size)
        case "part":
            return sources[0][:, v.arg : v.arg + v.size]
        case "cat":
            return torch.cat(list(sources), 1) if sources else batch.like.new_empty(n, 0)
        case "cast":
            return sources[0].to(torch_dtype(v.arg))
        case "product":
            return _product(v, sources, *batch.weights[v.arg[0]])
        case "matmul":
            m, k, inner = v.arg
            return (sources[0].reshape(n, m, k) @ sources[1].reshape(n, k, inner)).reshape(n, -1)
        case "spread":
            outer, times, inner = v.arg
            return sources[0].reshape(n, outer, 1, inner).expand(-1, -1, times, -1).reshape(n, -1)
        case "turned":
            return sources[0].reshape(n, *v.arg).transpose(1, 2).reshape(n, -1)
        case op if op in _ALONG:
            return _ALONG[op](sources[0].reshape(n, *v.arg)).reshape(n, -1)
    return _mapped(v, sources)


def _product(v: V, sources: Tensors, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if v.arg[1] == TRANSPOSED:
        return sources[0] @ weight.t()
    source, *added = [*sources, *([] if bias is None else [bias])]
    found = torch.addmm(added[0], source, weight) if added else source @ weight
    return found + added[1] if len(added) > 1 else found


def _mapped(v: V, sources: Tensors) -> torch.Tensor:
    of = [x for x, source in zip(sources, v.sources, strict=True) if source.op != "number"]
    like = of[0] if of else sources[0]
    if of:
        sources = [_number(source.arg, like) if source.op == "number" else x
                   for x, source in zip(sources, v.sources, strict=True)]  # fmt: skip
    if v.op in MAPS:
        return MAPS[v.op](*sources)
    formula = FORMULAS[v.op]
    found = _of_formula(parse(formula.text), dict(zip(formula.names, sources, strict=True)))
    return (found if torch.is_tensor(found) else torch.tensor(found)).to(like.dtype).expand_as(like)


def _number(x: float, like: torch.Tensor) -> torch.Tensor:
    """Of no dimension, so that what comes out has the dtype that it has with a number of Python."""
    is_whole = x.is_integer() and not like.is_floating_point()
    return torch.tensor(int(x)) if is_whole else torch.tensor(x, dtype=torch.float64)


_COMPARISONS: dict[type, Callable[..., Any]] = {
    ast.Lt: torch.lt, ast.LtE: torch.le, ast.Gt: torch.gt, ast.GtE: torch.ge, ast.Eq: torch.eq, ast.NotEq: torch.ne,
}  # fmt: skip
_SIGNS: dict[type, Callable[..., Any]] = {
    ast.Add: torch.add, ast.Sub: torch.sub, ast.Mult: torch.mul, ast.Div: torch.div, ast.Pow: torch.pow,
    ast.And: torch.logical_and, ast.Or: torch.logical_or,
}  # fmt: skip


def _of_formula(node: ast.expr, operands: dict[str, torch.Tensor]) -> torch.Tensor:
    """A formula on tensors."""
    like = next(iter(operands.values()))
    match node:
        case ast.Name(name):
            return operands[name]
        case ast.Constant(value):
            return like.new_tensor(value)
        case ast.UnaryOp(_, operand):
            return -_of_formula(operand, operands)
        case ast.Call(ast.Name(name), [argument]):
            return PRIMITIVES[name](_of_formula(argument, operands))
        case ast.IfExp(test, body, orelse):
            chosen, other = _of_formula(body, operands), _of_formula(orelse, operands)
            return torch.where(_of_formula(test, operands), chosen, other)
        case ast.Compare(left, [sign], [right]):
            return _COMPARISONS[type(sign)](_of_formula(left, operands), _of_formula(right, operands))
        case ast.BoolOp(sign, tests):
            return reduce(_SIGNS[type(sign)], (_of_formula(test, operands) for test in tests))
        case ast.BinOp(left, sign, right):
            return _SIGNS[type(sign)](_of_formula(left, operands), _of_formula(right, operands))
    raise AssertionError(f"{ast.unparse(node)} is in the language of formulas")
