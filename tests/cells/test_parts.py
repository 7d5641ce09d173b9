"""Splitting cells: parts in sequence compute what the whole cell computes, and hold what the definitions say."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cells import Holder, RandomCell, interpret, traced
from torch import nn

from edbc.base.graph import ValueClass
from edbc.capture.code.shadow import ModelView
from edbc.capture.record.table import Hole, Operation, TypeTable
from edbc.cells.batching import batch_operations, plan_cell_layout
from edbc.cells.canonical import cell_graph
from edbc.cells.lower import lower
from edbc.cells.opgraph import CellGraph
from edbc.cells.parts import CORE, EAGER, ON_DEVICE, PARTS, SplitCell, assign_parts, split_cell, splittable
from edbc.cells.program import Product


def planned(cell: CellGraph) -> tuple:
    """A cell with batches and order as compiling plans them."""
    batches = batch_operations(cell)
    return cell, batches, plan_cell_layout(cell, batches).order


def run_split(split: SplitCell, view: ModelView, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs of the whole cell, part after part."""
    computed: dict[str | None, list[torch.Tensor]] = {None: operands}
    for name in PARTS:
        if name in split.parts:
            given_rows = [computed[o.part][o.index] for o in split.parts[name].operands]
            if not given_rows:
                given_rows = [operands[0]]
            computed[name] = interpret(split.parts[name].program, view, given_rows)
    return [computed[home.part][home.index] for home in split.homes]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 100_000), eager=st.integers(0, 7), shuffle=st.booleans())
def test_parts_compute_the_cell(seed: int, eager: int, shuffle: bool) -> None:
    """Whatever operands are eager, in any memory order, the parts give the cell's outputs."""
    cell, view = traced(RandomCell(seed, 3, 12))
    _, batches, order = planned(cell)
    if shuffle:
        order = random.Random(seed).sample(list(order), len(order))
    names = [name for i, (name, _) in enumerate(cell.operands) if eager >> i & 1]
    split = split_cell(cell, batches, order, names)
    if split is None:
        assert len(set(assign_parts(cell, names).values())) <= 1
        return
    operands = [torch.randn(5, 4, dtype=torch.float64) for _ in range(3)]
    whole = interpret(lower(cell, batches, order), view, operands)
    for ours, expected in zip(run_split(split, view, operands), whole, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 100_000), eager=st.integers(0, 7))
def test_assignment_is_what_the_definitions_say(seed: int, eager: int) -> None:
    """Eager operations have operands, all paths to them start at eager operands; every other one is the core's."""
    cell, _ = traced(RandomCell(seed, 3, 12))
    names = {name for i, (name, _) in enumerate(cell.operands) if eager >> i & 1}
    inputs = {op.name: op.inputs for op in cell.ops}
    for op, part in assign_parts(cell, names).items():
        assert (part == EAGER) == all_paths_from(inputs, op, names)


def all_paths_from(inputs: dict[str, tuple[str, ...]], name: str, eager: set[str]) -> bool:
    """True when everything below an operation starts at an eager operand."""
    below = inputs[name]
    return bool(below) and all(all_paths_from(inputs, v, eager) if v in inputs else v in eager for v in below)


class LSTM(nn.Module):
    """Gates written out, one line each; also returns scores that no step needs."""

    def __init__(self, size: int):
        super().__init__()
        self.x = nn.ModuleList([nn.Linear(size, size) for _ in range(4)])
        self.h = nn.ModuleList([nn.Linear(size, size, bias=False) for _ in range(4)])
        self.scores = nn.Linear(size, 2 * size)

    def forward(self, x, h, c):
        f, i, o = (torch.sigmoid(self.x[k](x) + self.h[k](h)) for k in range(3))
        g = torch.tanh(self.x[3](x) + self.h[3](h))
        c = i * g + f * c
        h = o * torch.tanh(c)
        return h, c, torch.tanh(self.scores(h))


class GRU(nn.Module):
    """The candidate waits for the reset gate, so the whole cell has two products over x."""

    def __init__(self, size: int):
        super().__init__()
        self.x = nn.ModuleList([nn.Linear(size, size) for _ in range(3)])
        self.h = nn.ModuleList([nn.Linear(size, size, bias=False) for _ in range(3)])

    def forward(self, x, h):
        r, z = (torch.sigmoid(self.x[k](x) + self.h[k](h)) for k in range(2))
        n = torch.tanh(self.x[2](x) + self.h[2](r * h))
        return z * h + (1 - z) * n


def cell_of(module: nn.Module, arity: int, size: int = 8) -> CellGraph:
    """The operation graph of a module over vectors."""
    view = ModelView(Holder(module))
    slot = TypeTable().slot(ValueClass((size,)))
    operation = Operation("cell", "cell", None, (tuple(Hole(i) for i in range(arity)), {}), (slot,) * arity)
    return cell_graph(view.trace(operation), view, "cell.")


def products(split: SplitCell, part: str) -> list[tuple[int, int, bool]]:
    """(rows, columns, has an addend) of a part's products."""
    program = split.parts[part].program
    steps = [step for step in program.steps if isinstance(step, Product)]
    return [(program.weights[s.weight].rows, program.weights[s.weight].columns, s.addend is not None) for s in steps]


def test_parts_of_an_lstm() -> None:
    """x goes through one product to all gates, and the core adds h's to it without a copy."""
    cell, batches, order = planned(cell_of(LSTM(8), 3))
    split = split_cell(cell, batches, order, ["x"])

    assert products(split, EAGER) == [(8, 32, False)]
    assert products(split, CORE) == [(8, 32, True), (8, 16, False)]
    assert [part.program.num_copies for part in split.parts.values()] == [0, 0]
    assert split.parts[EAGER].outputs == (ValueClass((32,)),)
    assert [home.part for home in split.homes] == [CORE, CORE, CORE]
    assert not split.parts[CORE].program.weights[0].biases


def test_parts_of_a_gru() -> None:
    """Three halves make one product, although the whole cell computes them one after the other."""
    cell, batches, order = planned(cell_of(GRU(8), 2))
    split = split_cell(cell, batches, order, ["x"])

    assert products(split, EAGER) == [(8, 24, False)]
    assert sorted(products(split, CORE)) == [(8, 8, True), (8, 16, True)]


class Chosen(nn.Module):
    """An element of h by the largest one of x."""

    def __init__(self, size: int):
        super().__init__()
        self.x, self.h = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x, h):
        best = x.argmax(0)
        return torch.tanh(self.x(x) + self.h(h)) * h[best]


def test_numbers_do_not_cross() -> None:
    """Parts hand rows of one floating dtype over, where which element is largest is no number."""
    cell, batches, order = planned(cell_of(Chosen(8), 2))

    assert cell.is_uniform()
    assert split_cell(cell, batches, order, ["x"]) is None
    assert splittable(cell, batches, order, [True, False]) == ()


def test_what_can_be_split_is_found() -> None:
    """Names come from what is known of the graphs, and only where products move; nothing when all or none would."""
    cell, batches, order = planned(cell_of(LSTM(8), 3))

    assert splittable(cell, batches, order, [True, False, False]) == ("x",)
    assert splittable(cell, batches, order, [False, False, True]) == ()
    assert splittable(cell, batches, order, [True] * 3) == ()


@pytest.mark.parametrize(
    ("nodes", "batches", "chunks", "pays"),
    [(10, 10, 1, True), (36, 5, 1, True), (37, 5, 1, False), (18, 5, 3, True), (19, 5, 3, False), (9, 1, 1, False)],
)
def test_it_pays_below_a_seventh_of_the_inner_size(
    nodes: int, batches: int, chunks: int, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fixed costs apart, an LSTM of hidden size 64 is split while its batches, without one for every chunk, have fewer
    than 64 / 7 rows."""
    monkeypatch.setattr("edbc.cells.parts.MULTIPLICATIONS_PER_TYPE", 0)
    monkeypatch.setattr("edbc.cells.parts.ON_CPU.chunk", 0)
    monkeypatch.setattr("edbc.cells.parts.MULTIPLICATIONS_PER_NODE", 0)
    cell, plan_batches, order = planned(cell_of(LSTM(64), 3, 64))
    split = split_cell(cell, plan_batches, order, ["x"])

    assert split.pays(nodes, batches, chunks) is pays


def test_it_pays_only_with_enough_batches() -> None:
    """At one row per batch an LSTM of hidden size 64 needs some two hundred batches, one of 256 only some ten."""
    for size, batches in ((64, 260), (256, 14)):
        cell, plan_batches, order = planned(cell_of(LSTM(size), 3, size))
        split = split_cell(cell, plan_batches, order, ["x"])

        assert split.pays(batches, batches)
        assert not split.pays(batches // 2, batches // 2)


@pytest.mark.parametrize(
    ("size", "nodes", "batches", "rows", "pays"),
    [
        (128, 1501, 133, 256, False),
        (128, 809, 122, 185, False),
        (512, 5148, 122, 252, False),
        (512, 9974, 156, 256, True),
    ],
)
def test_on_a_device_it_pays_where_much_is_multiplied(
    size: int, nodes: int, batches: int, rows: int, pays: bool
) -> None:
    """As an H200 and its host measured lattices and translation in mini-batches of 32 and 256; a CPU gains in each."""
    cell, plan_batches, order = planned(cell_of(LSTM(size), 3, size))
    split = split_cell(cell, plan_batches, order, ["x"], shares=True)

    assert split.pays(nodes, batches, 1, rows)
    assert split.pays(nodes, batches, 1, rows, rates=ON_DEVICE) is pays
