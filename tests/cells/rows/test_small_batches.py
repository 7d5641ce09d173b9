"""Small batches of a cell in one block: against eager, and only once its batched forms are known to be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import bound
from torch import nn
from torch.nn import functional as F

import edbc
from edbc.cells.rows import batched
from edbc.cells.rows.evaluation import SMALL, Evaluation
from edbc.run.cpu.cpubackend import CellKernel
from edbc.run.session import Net

Tensor = torch.Tensor

FUNCTIONS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "along": lambda net, x, y: x.logcumsumexp(1) * torch.softmax(x, 0),
    "all": lambda net, x, y: x.mean() * torch.logcumsumexp(torch.var(x, dim=0), 0),
    "several": lambda net, x, y: torch.sort(x, dim=0, descending=True),
    "named": lambda net, x, y: torch.topk(x, k=2, dim=1).values,
    "turned": lambda net, x, y: torch.logcumsumexp(x.t(), dim=0) @ x,
    "expanded": lambda net, x, y: torch.logcumsumexp(x.mean(0, keepdim=True).expand_as(x) + x, 0),
    "of-ranks": lambda net, x, y: torch.atan2(x, y[0]) + torch.logcumsumexp(x, 0),
    "parts": lambda net, x, y: torch.logcumsumexp(x.chunk(2, 1)[1], 0) + torch.logcumsumexp(y[1:2, :2], 1),
    "joined": lambda net, x, y: torch.cat([torch.logcumsumexp(x, 0), net.row], 0),
    "parameters": lambda net, x, y: torch.logcumsumexp(F.linear(x, net.weight), 0) * net.row + net.linear(x[0]),
    "a-number": lambda net, x, y: torch.logcumsumexp(x, 0) * 0.5 - 1,
    "constant": lambda net, x, y: torch.logcumsumexp(torch.ones(3, 4), 0) + torch.logcumsumexp(x, 0),
    "by-vmap": lambda net, x, y: torch.outer(x[0], y[0]).logcumsumexp(0),
    "other-dtype": lambda net, x, y: torch.logcumsumexp(x, 0).argmax(1),
    "of-integers": lambda net, x, y: torch.gather(torch.logcumsumexp(x, 0), 1, x.argsort(1)),
    "normed": lambda net, x, y: F.normalize(net.linear(x), dim=-1).roll(1, 0).logcumsumexp(0),
    "masked": lambda net, x, y: torch.where(x > 0, x, y.logcumsumexp(0)).softmax(0) @ y.t(),
    "detached": lambda net, x, y: torch.logcumsumexp(x.detach(), 0) * y,
}


class Model(nn.Module):
    """A cell of one function, on what an instance brings."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.cell = Cell(name)

    def forward(self, instance: tuple[Tensor, Tensor]) -> Any:
        return self.cell(*instance)


@edbc.cell
class Cell(nn.Module):
    """See Model."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.linear = name, nn.Linear(4, 4)
        self.weight, self.row = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return FUNCTIONS[self.name](self, x, y)


def instances(count: int, seed: int = 5) -> list[tuple[Tensor, Tensor]]:
    """Some."""
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(3, 4, generator=generator) for _ in range(2)) for _ in range(count)]  # type: ignore[misc]


def require_eager(net: Net, batch: list[Any]) -> None:
    """Results are eager's, in its shapes and dtypes."""
    with torch.no_grad():
        for found, right in zip(net(batch), map(net.model, batch), strict=True):
            torch.testing.assert_close(found, right)


def evaluation_of(net: Net) -> Evaluation:
    """The cell's."""
    return next(k for k in map(net.kernel, range(net.table.num_known)) if isinstance(k, CellKernel)).evaluation


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_equal_eager(name: str) -> None:
    """Before and after the function is written, in batches of every size."""
    net = bound(Model(name).eval(), instances(3))
    for seed, count in enumerate((1, 5, 2, 7, 3, 20, 1)):
        require_eager(net, instances(count, seed))
    assert evaluation_of(net).is_sure


def test_written_batches_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No blocks and no equal rows are looked for, once."""
    net = bound(Model("named").eval(), instances(3))
    require_eager(net, instances(5))
    monkeypatch.setattr(Evaluation, "blocks", None)
    require_eager(net, instances(6, 1))


def test_what_is_wrong_in_batches_runs_row_after_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batched form that gives other numbers than rows alone is never written."""
    right = batched._Writer._operator
    monkeypatch.setattr(batched._Writer, "_operator", lambda *given: right(*given) + " * 2")
    net = bound(Model("joined").eval(), instances(3))
    for count in (5, 20, 4):
        require_eager(net, instances(count, count))
    assert not evaluation_of(net).is_sure
    assert not evaluation_of(net).waits


def test_large_and_equal_rows_are_evaluated() -> None:
    """What rows share is computed once, and memory is bounded."""
    net = bound(Model("along").eval(), instances(3))
    net(instances(2))
    cell = evaluation_of(net)
    rows = [torch.arange(10).numpy(), torch.arange(10).numpy() // 5]
    assert cell.is_small(rows[:1], 10)
    assert not cell.is_small(rows, 10)
    assert not cell.is_small([torch.arange(SMALL + 1).numpy()], SMALL + 1)
    cell.row_bytes = 1 << 20
    assert not cell.is_small(rows[:1], 10)
