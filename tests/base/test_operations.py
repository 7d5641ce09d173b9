"""Every entry of the table of operations: its formula is torch's function, its derivatives are autograd's and the slope
of the formula, and native loops are the formula within the entry's error."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from random_values import run_natively

from edbc.base.operations import ELEMENTWISE, FORMULAS, OPERATIONS, PRIMITIVES, Operation, derivative, parse
from edbc.cells.kernels.microkernel import lanes_of
from edbc.cells.values.evaluate import MAPS
from edbc.cells.values.value import Values
from edbc.plan.oplines import OPERATIONS as GRAMMAR

NAMES = sorted(OPERATIONS)
DERIVATIVES = [(name, k) for name in NAMES for k in range(OPERATIONS[name].operands)]
WIDTHS = {torch.float32: np.float32(0), torch.float64: np.float64(0)}
both_widths = pytest.mark.parametrize("dtype", WIDTHS, ids=str)

OF_TORCH = {
    "sigmoid": torch.sigmoid, "cdf": torch.special.ndtr,
    "density": lambda x: torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5,
    **{name: getattr(torch, name) for name in PRIMITIVES - {"sigmoid", "cdf", "density"}},
}  # fmt: skip
COMPARISONS: dict[type, Callable[..., Any]] = {
    ast.Lt: torch.lt, ast.LtE: torch.le, ast.Gt: torch.gt, ast.GtE: torch.ge, ast.Eq: torch.eq, ast.NotEq: torch.ne,
}  # fmt: skip
SIGNS: dict[type, Callable[..., Any]] = {
    ast.Add: torch.add, ast.Sub: torch.sub, ast.Mult: torch.mul, ast.Div: torch.div, ast.Pow: torch.pow,
}  # fmt: skip


def in_torch(node: ast.expr, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """A formula on tensors, by nothing that the renderers share but the tree."""
    again = [in_torch(child, values) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    if isinstance(node, ast.Name):
        return values.get(node.id, torch.zeros(()))
    if isinstance(node, ast.Constant):
        return torch.tensor(float(node.value), dtype=torch.float64)  # type: ignore[arg-type]
    if isinstance(node, ast.Call):
        return OF_TORCH[ast.unparse(node.func)](again[1])
    if isinstance(node, ast.Compare):
        return COMPARISONS[type(node.ops[0])](*again)
    if isinstance(node, ast.BoolOp):
        return torch.stack(torch.broadcast_tensors(*again)).all(0) if isinstance(node.op, ast.And) else sum(again) > 0
    if isinstance(node, ast.IfExp):
        return torch.where(*again)
    return -again[0] if isinstance(node, ast.UnaryOp) else SIGNS[type(node.op)](*again)  # type: ignore[attr-defined]


def formula(text: str, **values: torch.Tensor) -> torch.Tensor:
    return in_torch(parse(text), values)


def operands(operation: Operation, dtype: torch.dtype, wide: bool = True) -> list[torch.Tensor]:
    """Random numbers, small and large, and all pairs of the ends of the range, zeros, kinks, denormals, infinities and
    not-a-number."""
    tiny = torch.finfo(dtype).tiny
    edges = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 9.2, 20.0, 20.5, 88.0, -88.0, 1e-30, tiny / 8, -tiny / 8, 0.5, 2.0, -2.0]
    edges += [torch.inf, -torch.inf, torch.nan, torch.finfo(dtype).max, torch.finfo(dtype).max / 2] if wide else []
    pairs = torch.tensor(list(itertools.product(edges, edges)), dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(4001, 2, generator=generator, dtype=torch.float64) * torch.logspace(-4, 1.5, 4001)[:, None]
    return list(torch.cat([pairs, random]).to(dtype).T.contiguous()[: operation.operands])


def native(name: str, xs: list[torch.Tensor]) -> torch.Tensor:
    values, count = Values(), len(xs[0])
    v = values.map(name, [values.load(k, 0, count) for k in range(len(xs))])
    (found,) = run_natively([v], [x[None] for x in xs], lanes_of(xs[0].itemsize))
    return found[0]


def require_close(ours: torch.Tensor, exact: torch.Tensor, units: float, cancels: bool) -> None:
    """Within so many units in the last place of the exact numbers, and the same where these are not finite."""
    rounded = exact.to(ours.dtype)
    finite = rounded.isfinite()
    assert torch.equal(ours.isnan(), rounded.isnan())
    assert torch.equal(ours[~finite & ~rounded.isnan()], rounded[~finite & ~rounded.isnan()])
    info = torch.finfo(ours.dtype)
    unit = exact[finite].abs().clamp(min=info.eps if cancels else info.tiny) * info.eps
    error = (ours[finite].double() - exact[finite]).abs() / (unit.clamp(min=info.eps) if cancels else unit)
    assert error.max() <= units, (error.max(), exact[finite][error.argmax()])


@pytest.mark.parametrize("name", NAMES)
def test_a_formula_is_torchs_function(name: str) -> None:
    """In float64, at the edges too: the table says what torch computes."""
    operation = OPERATIONS[name]
    xs = operands(operation, torch.float64)
    ours, theirs = formula(operation.formula, **dict(zip("xy", xs, strict=False))), MAPS[name](*xs)
    skipped = xs[0].isinf() & (name == "gelu")  # torch's is not a number there
    torch.testing.assert_close(ours[~skipped], theirs[~skipped], rtol=1e-13, atol=1e-14 * operation.cancels,
                               equal_nan=True)  # fmt: skip


@pytest.mark.compiled
@both_widths
@pytest.mark.parametrize("name", NAMES)
def test_native_loops_are_the_formula(name: str, dtype: torch.dtype) -> None:
    """Within the entry's error of the formula in float64, at the edges too."""
    operation = OPERATIONS[name]
    xs = operands(operation, dtype)
    exact = formula(operation.formula, **dict(zip("xy", (x.double() for x in xs), strict=False)))
    require_close(native(name, xs), exact, operation.error[dtype is torch.float64], operation.cancels)


@pytest.mark.compiled
def test_tanh_ends_at_one() -> None:
    """Where torch's is 1 to the last bit, and no gradient comes back, from 9.02 on at the latest."""
    x = torch.tensor([9.02, 9.1, 10.0, 90.0, 1e30, torch.inf])
    assert torch.equal(native("tanh", [torch.cat([x, -x])]), torch.tanh(torch.cat([x, -x])))


@pytest.mark.parametrize(("name", "operand"), DERIVATIVES)
def test_derivatives_are_autograds(name: str, operand: int) -> None:
    """In float64, kinks and ties included; and what they name, d alone aside, is all that they read."""
    operation = OPERATIONS[name]
    xs = [x.requires_grad_() for x in operands(operation, torch.float64, wide=False)]
    result = MAPS[name](*xs)
    d = torch.randn(len(xs[0]), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    theirs = torch.autograd.grad(result, xs, d)[operand]
    values = {**dict(zip("xy", xs, strict=False)), "r": result, "d": d}
    ours = formula(operation.derivatives[operand], **values).detach()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14, equal_nan=True)


@pytest.mark.parametrize(("name", "operand"), DERIVATIVES)
def test_derivatives_are_slopes_of_the_formula(name: str, operand: int) -> None:
    """By differences in float64, away from kinks: the formula and its derivatives are one function's."""
    operation, step = OPERATIONS[name], 1e-6
    generator = torch.Generator().manual_seed(2)
    xs = [torch.rand(200, generator=generator, dtype=torch.float64) * 3 + 0.3 for _ in range(operation.operands)]
    apart = xs[-1] - xs[0] if operation.operands == 2 else torch.ones(1)
    xs[-1] = torch.where(apart.abs() < 1e-3, xs[-1] + 1, xs[-1])

    def at(shift: float) -> torch.Tensor:
        moved = [x + shift * (k == operand) for k, x in enumerate(xs)]
        return formula(operation.formula, **dict(zip("xy", moved, strict=False)))

    values = {**dict(zip("xy", xs, strict=False)), "r": at(0.0), "d": torch.ones_like(xs[0])}
    ours = formula(operation.derivatives[operand], **values).expand(200)
    torch.testing.assert_close(ours, (at(step) - at(-step)) / (2 * step), rtol=1e-7, atol=1e-7)


@pytest.mark.compiled
@both_widths
@pytest.mark.parametrize(("name", "operand"), DERIVATIVES)
def test_native_gradient_loops_are_the_derivatives(name: str, operand: int, dtype: torch.dtype) -> None:
    """For all that may stand in memory."""
    xs = operands(OPERATIONS[name], dtype)
    d = torch.randn(len(xs[0]), generator=torch.Generator().manual_seed(1)).to(dtype)
    known = {"d": d, **dict(zip("xy", xs, strict=False)), "r": native(name, xs)}
    text, names = FORMULAS[derivative(name, operand)]
    reads = {n: known[n] for n in names}
    same = formula(text, **reads).to(dtype).expand(len(d))
    ours = native(derivative(name, operand), list(reads.values()))
    assert torch.equal(ours.isnan(), same.isnan())
    # Of differences such as 1 - r * r in float32 d is the measure.
    error, scale = (ours - same).abs(), torch.maximum(same.abs(), d.abs())
    assert (error <= 60 * torch.finfo(dtype).eps * scale)[same.isfinite()].all()


def test_the_table_is_whole() -> None:
    """Plans may name every operation with its operands, each has a derivative per operand, no name has two meanings."""
    assert {*OPERATIONS, "sum"} == ELEMENTWISE
    assert {derivative(name, operand) for name, operand in DERIVATIVES} <= FORMULAS.keys()
    assert all((GRAMMAR[n].least, GRAMMAR[n].most) == (OPERATIONS[n].operands,) * 2 for n in NAMES)
    synonyms = [synonym for operation in OPERATIONS.values() for synonym in operation.synonyms]
    assert len({*synonyms, *NAMES}) == len(synonyms) + len(NAMES)


@pytest.mark.parametrize("text", ["x.real", "0.1 * x", "floor(x)", "x @ y", "exp(x, y)", "__import__('os')", "[x]"])
def test_what_is_no_formula_is_refused(text: str) -> None:
    """Attributes, other calls, numbers that float32 rounds: an error that quotes the formula."""
    with pytest.raises(ValueError, match=r"expected what edbc\.base\.operations defines"):
        parse(text)
