"""Values in torch, for whole batches: what every other rendering is held to, and what autograd can follow."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch

from edbc.kernels.value import TRANSPOSED, V, in_order
from edbc.operations import FORMULAS, parse
from edbc.runtime.reference import MAPS

Weight = tuple[torch.Tensor, torch.Tensor | None]
_ALONG: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "total": lambda x: x.sum(2), "largest": lambda x: x.amax(2), "smallest": lambda x: x.amin(2),
}  # fmt: skip
PRIMITIVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cdf": torch.special.ndtr,
    "density": lambda x: torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5,
    **{name: getattr(torch, name) for name in ("exp", "log", "log1p", "sqrt", "abs", "sigmoid", "tanh")},
}


def evaluate(outputs: Sequence[V], rows: Sequence[torch.Tensor], parameter: Callable[[Any], torch.Tensor],
             weights: Sequence[Weight]) -> list[torch.Tensor]:  # fmt: skip
    """Outputs (n, size) of operands' rows (n, size); `parameter` gives those that are read whole, `weights` packed ones
    (rows, columns) with their biases."""
    known: dict[V, torch.Tensor] = {}
    for v in in_order(outputs):
        known[v] = _one(v, [known[source] for source in v.sources], rows, parameter, weights)
    return [known[v] for v in outputs]


def _one(v: V, sources: Sequence[torch.Tensor], rows: Sequence[torch.Tensor], parameter: Callable[[Any], torch.Tensor],
         weights: Sequence[Weight]) -> torch.Tensor:  # fmt: skip
    n = len(rows[0]) if rows else 1
    match v.op:
        case "load":
            return rows[v.arg[0]][:, v.arg[1] : v.arg[1] + v.size]
        case "parameter":
            return parameter(v.arg[0]).reshape(-1)[v.arg[1] : v.arg[1] + v.size].expand(n, -1)
        case "number":
            like = rows[0] if rows else weights[0][0]
            return like.new_full((n, v.size), v.arg)
        case "part":
            return sources[0][:, v.arg : v.arg + v.size]
        case "cat":
            return torch.cat(list(sources), 1) if sources else rows[0][:, :0]
        case "product":
            weight, bias = weights[v.arg[0]]
            if v.arg[1] == TRANSPOSED:
                return sources[0] @ weight.t()
            found = sources[0] @ weight + (0 if bias is None else bias)
            return found + sources[1] if len(sources) > 1 else found
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
        case op if op in MAPS:
            return MAPS[op](*sources)
    formula = FORMULAS[v.op]
    found = _of_formula(parse(formula.text), dict(zip(formula.names, sources, strict=True)))
    return (found if torch.is_tensor(found) else torch.tensor(found)).to(sources[0].dtype).expand_as(sources[0])


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
