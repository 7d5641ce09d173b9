"""A cell's operations written out for one row: against the cell's evaluation and against eager."""

from __future__ import annotations

import dis
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from helpers import bound
from test_small_batches import require_eager
from torch import nn
from torch.nn import functional as F

import edbc
from edbc.cells.rows import rowcode, written
from edbc.cells.rows.evaluation import SMALL, EachRow, Evaluation
from edbc.cells.rows.rowcode import FEW, row_code
from edbc.run.reference import ProgramKernel
from edbc.run.session import Net

Tensor = torch.Tensor


@edbc.cell
class Everything(nn.Module):
    """Calls of all kinds: several results, named ones, lists and keywords with operands, parameters with views,
    products, element-wise operations, other dtypes, views of operands, a result that is a view, and numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight, self.row = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(3, 4))
        self.linear, self.cell = nn.Linear(4, 4), nn.GRUCell(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        best = torch.sort(x[1:], dim=1, descending=True)
        first, second = torch.aminmax(x.flip(0), dim=0)
        joined = torch.cumsum(torch.cat([x.t(), self.weight.t()[:, :2], best.values.t()], dim=1), 1)
        chosen = torch.where(x > 0, x, x.new_zeros(()) + 0.5)
        state = self.cell(torch.relu(self.linear(y) + 1.5 * y), second)
        return joined.roll(1), torch.lerp(chosen, self.row, weight=0.25), state.expand_as(x), first * best.indices.sum()


class Calls(nn.Module):
    """The cell on what an instance brings."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.up = Everything(), nn.Linear(4, 4)

    def forward(self, instance: Tensor) -> Any:
        return self.cell(self.up(instance), instance[0])


def instances(count: int) -> list[Tensor]:
    """Some, always the same."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(3, 4, generator=generator) for _ in range(count)]


@pytest.fixture(scope="module")
def net() -> Net:
    """Bound once."""
    return bound(Calls(), instances(3))


@pytest.mark.parametrize("count", [1, 2, FEW, FEW + 1, 20])
def test_equals_eager(net: Net, count: int) -> None:
    """Batches of few rows and of many."""
    require_eager(net, instances(count))


def test_few_rows_are_evaluated_by_nobody(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of one row, and small ones that have been written out, take none of what batches of many take: no blocks,
    no batched forms, no templates."""
    with torch.no_grad():
        for count in (2, FEW, FEW + 1):
            net(instances(count))
        for owner, name in ((Evaluation, "blocks"), (ProgramKernel, "run"), (written, "fill")):
            monkeypatch.setattr(owner, name, None)
        net(instances(1))
        net(instances(FEW))
        with pytest.raises(TypeError):
            net(instances(SMALL + 1))


def test_rows_of_many_bytes_are_few_sooner(net: Net) -> None:
    """What rows share is worth computing once where they are large; one row shares nothing."""
    net(instances(2))
    kernel = next(k for k in map(net.kernel, range(net.table.num_known)) if getattr(k, "by_row", None)).by_row
    kernel = object.__new__(type(kernel))
    kernel._bytes = rowcode.FEW_BYTES // 2
    assert [kernel.pays(count) for count in (1, 2, 3)] == [True, True, False]
    kernel._bytes = 1 << 30
    assert [kernel.pays(count) for count in (1, 2)] == [True, False]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.index_add(0, torch.tensor([0, 2]), x[1:] * 2.0),
        lambda x: torch.stack([x, x * 2.0]).amax((0, 1)),
        lambda x: F.pad(x, (1, 1), mode="constant", value=2.0),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: torch.topk(x, k=2, dim=1),
        lambda x: x.argmax(1),
        lambda x: x.view(4, 3).contiguous().unfold(0, 2, 1),
        lambda x: torch.conj(torch.view_as_complex(x.view(3, 2, 2))),
        lambda x: torch.fft.fft(x).conj().imag,
        lambda x: torch.imag(torch.conj(torch.fft.fft(x, dim=0))) * 2.0,
        lambda x: torch.tensor_split(torch.sin(x).tril(), 3, dim=0)[1],
    ],
)
def test_functions_equal_eager(function: Callable[[Tensor], Any]) -> None:
    """Functions as their users call them, in batches of one to some rows."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            return function(self.up(x))

    net = bound(Model(), instances(3))
    for count in (1, 5):
        require_eager(net, instances(count))


def test_views_take_what_torch_computed_in_any_order_of_memory() -> None:
    """`einsum` gives another order than that of its letters, of which `view` makes nothing where nobody lays it out."""

    @edbc.cell
    class Heads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            heads = torch.logcumsumexp(x, 1).view(3, 2, 2)  # torch runs the cell
            weights = torch.einsum("dhn,dhm->hnm", heads, heads).softmax(-1)
            mixed = torch.einsum("hnm,dhm->dhn", weights, heads)
            return mixed.contiguous().view(6, 2).cumsum(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.heads = nn.Linear(4, 4), Heads()

        def forward(self, x: Tensor) -> Tensor:
            return self.heads(self.up(x))

    net = bound(Model(), instances(3))
    for count in (1, 5, 2 * FEW):
        require_eager(net, instances(count))


def test_code_fills_nothing(net: Net) -> None:
    """One call of torch per operation, in one loop over rows: the code names functions and constants."""
    net(instances(1))
    (kind,) = [k for k, t in enumerate(net.table.types) if t is not None and t.op.startswith("cell")]
    run = row_code(net.cell(net.table.operation_of_type[kind]))
    assert not any(item is written.fill for item in run.__globals__.values())
    assert [i.opname for i in dis.get_instructions(run)].count("FOR_ITER") == 1


class Counting(torch.autograd.Function):
    """Notes how many of its results are there."""

    made: ClassVar[list[weakref.ref[Tensor]]] = []
    alive: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x + 1.0
        Counting.made.append(weakref.ref(y))
        Counting.alive.append(sum(ref() is not None for ref in Counting.made))
        return y


@edbc.cell
class Chain(nn.Module):
    """Results that the next operation alone needs."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(9):
            x = Counting.apply(x)
        return x


def test_what_nothing_reads_any_more_is_let_go() -> None:
    """Each operation finds its operand and what that was made of, however long the chain is."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.chain = nn.Linear(4, 4), Chain()

        def forward(self, x: Tensor) -> Tensor:
            return self.chain(self.up(x))

    net = bound(Model(), instances(3))
    with torch.no_grad():
        net(instances(1))
        (kind,) = [k for k, t in enumerate(net.table.types) if t is not None and t.op.startswith("cell")]
        evaluation = Evaluation(net.cell(net.table.operation_of_type[kind]))
        for run in (lambda: net(instances(1)), lambda: evaluation.values(EachRow(1), [torch.ones(1, 12)], {})):
            Counting.alive.clear()
            run()
            assert 0 < max(Counting.alive) <= 3
