"""How much a call multiplies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import edbc
from edbc.capture.code.automatic import Work
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.code.work import work_of_call
from edbc.capture.forward.build import capture
from edbc.capture.record.table import TypeTable

SIZE, ROWS = 4, 1000


class Cell(nn.Module):
    """Looks rows of tables up, and multiplies."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.words, self.up = kind, nn.Embedding(ROWS, SIZE), nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        if self.kind == "embedding":
            return self.words(ids).sum(0) + self.up(x)
        if self.kind == "getitem":
            return self.words.weight[ids].sum(0) + self.up(x)
        if self.kind == "index_select":
            return self.words.weight.index_select(0, ids).sum(0) + self.up(x)
        return self.words.weight @ x


class Model(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.cell = nn.Linear(SIZE, SIZE), edbc.cell(Cell(kind))

    def forward(self, item: tuple[Tensor, Tensor]) -> Tensor:
        ids, x = item
        return self.cell(ids, self.first(x))


@pytest.mark.parametrize("kind", ["embedding", "getitem", "index_select", "product"])
def test_tables_are_looked_up_and_not_multiplied(kind: str) -> None:
    """Of a table that is multiplied whole it is all."""
    view, table = ModelView(Model(kind).eval()), TypeTable()
    capture(*recording_shadow(view, table), [(torch.tensor([1, 2]), torch.ones(SIZE))])
    (entry,) = [entry for entry in table.entries if entry.operation.name == "cell"]

    size = ROWS * SIZE if kind == "product" else SIZE * SIZE
    assert work_of_call(entry, view) == Work(size, size)


class Convolved(nn.Module):
    def __init__(self, kind: type[nn.Module], **options: int) -> None:
        super().__init__()
        self.first, self.cell = nn.Linear(SIZE, SIZE), edbc.cell(kind(1, 6, 3, bias=False, **options))

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(self.first(x))


@pytest.mark.parametrize(
    ("kind", "shape", "options", "places"),
    [
        (nn.Conv1d, (1, 1, SIZE), {}, SIZE - 2),
        (nn.Conv1d, (1, SIZE), {"padding": 1}, SIZE),
        (nn.Conv2d, (1, 1, 5, SIZE), {"stride": 2}, 2 * 1),
        (nn.ConvTranspose1d, (1, 1, SIZE), {"stride": 2}, SIZE),
    ],
)
def test_a_convolution_multiplies_at_every_place(
    kind: type[nn.Module], shape: tuple[int, ...], options: dict[str, int], places: int
) -> None:
    model, table = Convolved(kind, **options).eval(), TypeTable()
    view = ModelView(model)
    capture(*recording_shadow(view, table), [torch.ones(shape)])
    (entry,) = [entry for entry in table.entries if entry.operation.name == "cell"]

    weights = model.cell.weight.numel()
    assert work_of_call(entry, view) == Work(weights, weights * places)
