"""Expressions of a recorded vector of six numbers, between cells and inside of one, against eager: values, dtypes and
gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from helpers import bound, seeded
from torch import nn

import edbc

WORDS = [1, 2, 3, 4, 5, 6, 7, 0, 3]
Expression = Callable[[Any, Any], Any]
"""Of the model, whose modules it may use, and the vector."""


class Computes(nn.Module):
    """An expression of a word's vector; with `cell`, of a cell's operand."""

    def __init__(self, expression: Expression, modules: Callable[[], dict[str, Any]], in_cell: bool):
        super().__init__()
        self.table = nn.Embedding(8, 6)
        self.of = _Cell(expression, modules) if in_cell else _Plain(expression, modules)

    def forward(self, word: int) -> Any:
        return self.of(torch.tanh(self.table.weight[word]))


class _Plain(nn.Module):
    def __init__(self, expression: Expression, modules: Callable[[], dict[str, Any]]):
        super().__init__()
        self.expression = expression
        for name, module in modules().items():
            setattr(self, name, module)

    def forward(self, h: Any) -> Any:
        return self.expression(self, h)


@edbc.cell
class _Cell(_Plain):
    pass


def require_equal(expression: Expression, modules: Callable[[], dict[str, Any]] = dict, in_cell: bool = False) -> None:
    """Values, dtypes and gradients of an expression equal eager's, in float64."""
    with _default_dtype(torch.float64):
        model = seeded(Computes, expression, modules, in_cell)
        ours = bound(model, WORDS)(WORDS)
        eager = [model(word) for word in WORDS]
        for got, expected in zip(ours, eager, strict=True):
            assert got.dtype == expected.dtype
            assert got.shape == expected.shape
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
        _require_equal_gradients(model, ours, eager)


class _default_dtype:  # noqa: N801, a context
    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype

    def __enter__(self) -> None:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(self.before)


def _require_equal_gradients(model: nn.Module, ours: list[Any], eager: list[Any]) -> None:
    assert [x.requires_grad for x in ours] == [x.requires_grad for x in eager]
    if not eager[0].requires_grad:
        return
    parameters = list(model.parameters())
    found, expected = (
        torch.autograd.grad(sum(_loss(x) for x in results), parameters, allow_unused=True) for results in (ours, eager)
    )
    for got, wanted in zip(found, expected, strict=True):
        assert (got is None) == (wanted is None)
        if got is not None:
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9, equal_nan=True)


def _loss(result: torch.Tensor) -> torch.Tensor:
    return (result.abs() ** 2).sum()
