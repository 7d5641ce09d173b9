"""A batched form is believed once it has been right; recurrent cells of torch lower on one row alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import require_parity, seeded
from torch import nn

import edbc
from edbc.capture.record.table import Hole
from edbc.cells.rows import batched
from edbc.cells.rows.batched import vmapped
from edbc.cells.rows.rowfunction import CHECKED, RowFunction


def _whole(x: torch.Tensor) -> torch.Tensor:
    """All rows of what vmap shows one of."""
    return torch._C._functorch.get_unwrapped(x) if torch._C._functorch.is_batchedtensor(x) else x


def _mixes_rows(x: torch.Tensor) -> torch.Tensor:
    """Another thing of a batch than of its rows, which nothing tells."""
    return x + _whole(x).sum()


_mixes_rows.__module__ = "torch"
_mixes_rows.__name__ = "tanh"


def test_a_wrong_batched_form_is_found_and_not_used() -> None:
    """A rule that is wrong for a call is noticed at the first rows that differ, whatever it is a rule of."""
    function = RowFunction(_mixes_rows, ((Hole(0),), {}), [()])
    alike, rows = torch.ones(3, 2), torch.arange(8.0).reshape(4, 2)

    function([torch.ones(1, 2)], 1, {}.__getitem__)
    (of_alike,) = function([alike], 3, {}.__getitem__)
    (found,) = function([rows], 4, {}.__getitem__)

    assert torch.equal(of_alike, alike + 2)
    assert torch.equal(found, rows + rows.sum(1, keepdim=True))
    assert function.is_slow


@pytest.mark.parametrize(("call", "is_slow"), [(torch.median, True), (torch.nanmedian, True), (torch.max, False)])
def test_gradients_of_equal_elements_are_eager_s(call: Any, is_slow: bool) -> None:
    """Each has a share; vmap gives all to one."""
    function = RowFunction(call, ((Hole(0),), {}), [()])
    rows = torch.randn(3, 4, requires_grad=True)
    function([rows], 3, {}.__getitem__)
    equal = torch.ones(3, 4, requires_grad=True)

    (found,) = function([equal], 3, {}.__getitem__)

    assert function.is_slow is is_slow
    (slopes,) = torch.autograd.grad(found.sum(), equal)
    assert torch.equal(slopes, torch.full((3, 4), 0.25))


def test_a_right_batched_form_is_compared_until_rows_differ() -> None:
    """Equal rows tell nothing of a form; of rows that differ a few are enough."""
    seen: list[int] = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.ndim)
        return torch.tanh(x)

    function = RowFunction(counted, ((Hole(0),), {}), [()])
    for rows in (torch.ones(5, 2).long(), torch.arange(18).view(9, 2), torch.arange(18).view(9, 2)):
        function([rows], len(rows), {}.__getitem__)

    assert len(seen) == 3 + 2 * CHECKED
    assert not function.is_slow


def _of_first(x: torch.Tensor) -> torch.Tensor:
    """Right for one row, and for equal ones."""
    whole = _whole(x)
    return x if whole is x else whole[0].clone()


_of_first.__module__ = "torch"
_of_first.__name__ = "tanh"


@pytest.mark.parametrize("numbers", [torch.arange(3.0), torch.ones(3), torch.tensor([True, True, True])])
def test_equal_rows_are_turned(numbers: torch.Tensor) -> None:
    """A form that has seen equal rows alone is believed if it is right for turned ones."""
    alike, rows = numbers.expand(4, 3), torch.rand(4, 3)
    right, wrong = (RowFunction(call, ((Hole(0),), {}), [()]) for call in (torch.tanh, _of_first))
    for function in (right, wrong):
        function([alike], 4, {}.__getitem__)

    assert right.is_believed
    assert not wrong.is_believed
    assert torch.equal(wrong([rows], 4, {}.__getitem__)[0], rows)


class Rows(nn.Module):
    """One of torch's recurrent cells on two rows."""

    def __init__(self, cell: type[nn.Module]):
        super().__init__()
        self.cell = cell(3, 4)

    def forward(self, h: Any) -> Any:
        x, state = h.view(2, 3), torch.stack([h[:4], h[2:]])
        if isinstance(self.cell, nn.LSTMCell):
            return torch.cat(self.cell(x, (state, state * 2)))
        return self.cell(x, state)


class Words(nn.Module):
    def __init__(self, cell: type[nn.Module], marked: bool):
        super().__init__()
        self.table = nn.Embedding(8, 6)
        self.rows = edbc.cell(Rows(cell)) if marked else Rows(cell)

    def forward(self, word: int) -> Any:
        return self.rows(torch.tanh(self.table.weight[word]))


@pytest.mark.parametrize("marked", [False, True], ids=["between", "inside"])
@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_recurrent_cells_on_matrices(cell: type[nn.Module], marked: bool) -> None:
    """nn.GRUCell and its like on a matrix of several rows give eager's numbers, in cells and between them."""
    require_parity(seeded(Words, cell, marked), [1, 2, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("call", [lambda x: x.flip(0), lambda x: x.flip(-1)])
def test_where_vmap_raises_for_scalars_rows_run_one_by_one(call: Any) -> None:
    """torch.vmap knows no dimension of a row without any; the call itself takes it."""
    function = RowFunction(call, ((Hole(0),), {}), [()])

    (found,) = function([torch.arange(3.0)], 3, {}.__getitem__)

    assert torch.equal(found, torch.arange(3.0))
    assert function.is_slow


def test_one_row_is_run_once() -> None:
    """What it computes alone is what any other form would be compared with."""
    seen: list[torch.Tensor] = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return torch.cumsum(x, 0)

    row = torch.rand(1, 3)
    (found,) = RowFunction(noted, ((Hole(0),), {}), [()])([row], 1, {}.__getitem__)

    assert [x.shape for x in seen] == [(3,)]
    assert torch.equal(found, torch.cumsum(row, 1))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (torch.outer(x, y),),
        lambda x, y: (x, torch.ones(2), y.sum()),
        lambda x, y: tuple(torch.sort(x * y)),
        lambda x, y: (torch.linalg.cross(x, y).flip(0), torch.einsum("i,i->", x, y)),
    ],
)
def test_vmap_by_its_parts_is_vmap(function: Any) -> None:
    """Values and gradients, of results that depend on no operand too."""
    results, gradients = [], []
    for vmap in (vmapped, lambda f, values: torch.vmap(f)(*values)):
        x, y = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1)).requires_grad_().unbind()
        found = list(vmap(function, [x, y]))
        results.append(found)
        total = sum((r * (1 + i)).sum() for i, r in enumerate(found) if r.is_floating_point())
        gradients.append(torch.autograd.grad(total, [x, y]))
    for ours, theirs in zip(results[0] + [*gradients[0]], results[1] + [*gradients[1]], strict=True):
        assert torch.equal(ours, theirs)
        assert ours.shape == theirs.shape


def test_vmap_without_its_parts_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without them runs its own; and what raises inside leaves no level behind."""
    x = torch.randn(5, 3)
    with pytest.raises(RuntimeError):
        vmapped(lambda row: (torch.outer(row, row[None]),), [x])
    assert torch._C._functorch.peek_interpreter_stack() is None
    monkeypatch.setattr(batched, "_has_primitives", lambda: False)
    assert torch.equal(vmapped(lambda row: (torch.outer(row, row),), [x])[0], torch.einsum("ni,nj->nij", x, x))


def test_rows_are_compared_in_eagers_order_of_memory() -> None:
    """A result of all rows may lie transposed where each row's would not: a view that eager can take is one."""
    turned = torch.arange(12.0).reshape(3, 2, 2).transpose(1, 2)
    (found,) = RowFunction(torch.Tensor.view, ((Hole(0), 4), {}), [()])([turned], 3, {}.__getitem__)

    assert torch.equal(found, turned.reshape(3, 4))
