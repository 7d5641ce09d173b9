"""Lowering: whatever legal order and batches a plan has, the program computes the cell."""

from __future__ import annotations

import random

import pytest
import torch
from layout_check import verify_layout
from random_cells import RandomCell, interpret, traced

from edbc.cells.batching import batch_operations, layout_batches, plan_cell_layout
from edbc.cells.lower import batch_key, lower
from edbc.cells.opgraph import CellGraph
from edbc.errors import LayoutError


def inputs_for(cell: RandomCell, seed: int) -> list[torch.Tensor]:
    """Three rows per operand."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, cell.size, generator=generator, dtype=torch.float64) for _ in range(cell.arity)]


def assert_computes(cell: RandomCell, graph: CellGraph, view, batches, order, seed: int) -> None:
    """The program's outputs are the cell's, row by row."""
    operands = inputs_for(cell, seed)
    outputs = interpret(lower(graph, batches, order), view, operands)
    for row in range(3):
        expected = cell(*[operand[row] for operand in operands])
        for ours, theirs in zip(outputs, expected, strict=True):
            torch.testing.assert_close(ours[row], theirs, rtol=1e-12, atol=1e-12)


def random_batches(graph: CellGraph, rng: random.Random) -> list[list[str]]:
    """A legal batching: ready operations of one key, some of them, at random."""
    done = {name for name, _ in graph.operands}
    waiting = list(graph.ops)
    batches = []
    while waiting:
        ready = [op for op in waiting if done.issuperset(op.inputs)]
        key = batch_key(rng.choice(ready))
        batch = [op for op in ready if batch_key(op) == key]
        batch = rng.sample(batch, rng.randrange(1, len(batch) + 1))
        batches.append([op.name for op in batch])
        done.update(batches[-1])
        waiting = [op for op in waiting if op.name not in done]
    return batches


@pytest.mark.parametrize("seed", range(150))
def test_planned_and_shuffled_layouts_compute_the_cell(seed: int) -> None:
    """The planned layout, the order of definition and a random permutation all give the cell's values."""
    rng = random.Random(seed)
    cell = RandomCell(seed, arity=rng.randrange(1, 5), length=rng.randrange(1, 14))
    graph, view = traced(cell)
    batches = batch_operations(graph)
    order = list(graph.classes())
    assert_computes(cell, graph, view, batches, plan_cell_layout(graph, batches).order, seed)
    assert_computes(cell, graph, view, batches, order, seed)
    rng.shuffle(order)
    assert_computes(cell, graph, view, random_batches(graph, rng), order, seed)


@pytest.mark.parametrize("seed", range(60))
def test_planned_layouts_pass_the_verifier_and_copy_no_more(seed: int) -> None:
    """What the planner keeps is adjacent and aligned, in no more steps than the order of definition takes."""
    cell = RandomCell(seed, arity=3, length=12)
    graph, _ = traced(cell)
    batches = batch_operations(graph)
    plan = plan_cell_layout(graph, batches)
    verify_layout(plan.order, layout_batches(graph, batches), plan.dropped)

    assert lower(graph, batches, plan.order).num_kernels <= lower(graph, batches, list(graph.classes())).num_kernels


def lstm() -> tuple[CellGraph, list[list[str]], list[str]]:
    """A cell with known batches, for corruption."""
    graph, _ = traced(RandomCell(3, arity=2, length=8))
    batches = [list(batch) for batch in batch_operations(graph)]
    return graph, batches, list(graph.classes())


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda batches, order: order.pop(),
        lambda batches, order: order.append(order[0]),
        lambda batches, order: order.__setitem__(0, "stranger"),
        lambda batches, order: order.__setitem__(0, order[1]),
        lambda batches, order: batches.pop(),
        lambda batches, order: batches.reverse(),
        lambda batches, order: batches.append(batches[0]),
        lambda batches, order: batches.insert(0, []),
        lambda batches, order: batches.insert(0, ["stranger"]),
        lambda batches, order: batches.append(["x0"]),
    ],
)
def test_illegal_layouts_are_refused(corrupt) -> None:
    """A variable missing, repeated or unknown, and batches that are incomplete or out of order, raise LayoutError."""
    graph, batches, order = lstm()
    lower(graph, batches, order)
    corrupt(batches, order)

    with pytest.raises(LayoutError, match="edbc compile"):
        lower(graph, batches, order)
