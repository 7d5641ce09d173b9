"""Cells in torch, block by block, with what rows share computed once: against the module on every row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from bound import plan_for
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import edbc
from edbc.cells.opgraph import CellGraph
from edbc.cells.rows import evaluation
from edbc.cells.rows.evaluation import BlockRows, Evaluation, distinct_keys
from edbc.run.session import Net
from edbc.train.backward.recompute import CellGradient

Tensor = torch.Tensor


@edbc.cell
class Look(nn.Module):
    """Convolutions, a pooling of windows that overlap, which no native code knows, attention over pixels, two results;
    one operand is read by itself, and one not."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = nn.Conv2d(2, 4, kernel_size=1)
        self.spread = nn.Conv2d(1, 12, kernel_size=3, padding=1)
        self.gather = nn.Conv2d(12, 1, kernel_size=3, padding=1)
        self.word = nn.Linear(3, 4)
        self.constant = nn.Parameter(torch.randn(4))
        self.out = nn.Linear(4, 2)

    def forward(self, picture: Tensor, word: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.relu(self.picture(picture))
        matched = seen * self.word(word)[:, None, None]
        pixels = (matched + at).flatten(1).transpose(0, 1)
        attended = functional.scaled_dot_product_attention(pixels, pixels, pixels).mean(0)
        small, _ = torch.max(functional.max_pool2d(seen, 3, stride=1).flatten(1), 1)
        moved = torch.sigmoid(self.gather(torch.relu(self.spread(at))))
        return self.out(attended + small * self.constant), moved


class Looks(nn.Module):
    """Looks at one picture for all words, one after the other; a user's own model, none of the zoo."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.pictures = nn.Parameter(torch.randn(5, 2, 4, 4))
        self.frozen = nn.Parameter(torch.randn(5, 2, 4, 4), requires_grad=False)
        self.words = nn.Parameter(torch.randn(7, 3))
        self.start = nn.Parameter(torch.randn(1, 4, 4))
        self.look = Look()

    def forward(self, instance: tuple[int, list[int]]) -> dict[str, list[Tensor]]:
        picture, words = instance
        table = self.pictures if picture >= 0 else self.frozen
        at, said = self.start, []
        for word in words:
            out, at = self.look(table[abs(picture)], self.words[word], at)
            said.append(out)
        return {"said": said, "at": [at]}


@pytest.fixture(scope="module")
def net() -> Net:
    """A bound net in float64."""
    model = Looks().double()
    return Net(plan_for(model, [(1, [1, 2]), (-2, [3])]), model)


INSTANCES = st.lists(st.tuples(st.integers(-4, 4), st.lists(st.integers(0, 6), min_size=1, max_size=4)), min_size=1,
                     max_size=6)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(instances=INSTANCES, block=st.sampled_from([1, 30_000, 1 << 20]), spread=st.sampled_from([0.0, 0.75, 1.0]))
def test_a_user_s_own_cell(net: Net, instances: list[Any], block: int, spread: float) -> None:
    """Results and all gradients equal eager's: whatever the blocks, whether what rows share is computed once or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "BLOCK_BYTES", block)
        patch.setattr(evaluation, "SPREAD", spread)
        ours, found = _step(net.model, net, instances)
    theirs, expected = _step(net.model, lambda group: [net.model(instance) for instance in group], instances)

    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert [g is None for g in found] == [g is None for g in expected]
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None]
    torch.testing.assert_close(*map(list, zip(*pairs, strict=True)), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_of_blocks_in_any_order(net: Net, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Operands, results and gradients of a row belong to the node that it is, wherever it stands in whichever block."""
    instances = [(4, [1, 2, 3]), (-1, [4, 1]), (4, [0, 0]), (2, [5]), (-1, [6, 3, 2])]
    rng = np.random.default_rng(size)

    def shuffled(self: Evaluation, rows: Sequence[np.ndarray], count: int) -> Iterator[BlockRows]:
        positions = rng.permutation(count)
        for begin in range(0, count, size):
            yield BlockRows(rows, positions[begin : begin + size], self._supports)

    monkeypatch.setattr(Evaluation, "blocks", shuffled)
    ours, found = _step(net.model, net, instances)
    theirs, expected = _step(net.model, lambda group: [net.model(instance) for instance in group], instances)

    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def _step(model: nn.Module, run: Callable[[Any], Sequence[Any]], instances: list[Any]) -> tuple[Any, Any]:
    model.zero_grad(set_to_none=True)
    results = [t for result in run(instances) for t in (*result["said"], *result["at"])]
    torch.stack([(t * t.numel()).sum() for t in results]).square().sum().backward()
    return [t.detach().clone() for t in results], [p.grad for p in model.parameters()]


def test_what_nobody_asks_for_is_not_computed(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of frozen pictures are not sought, those of others are."""
    wanted: list[tuple[bool, ...]] = []
    record = CellGradient.record
    monkeypatch.setattr(CellGradient, "record", lambda self, block, operands, sought, *rest: (
        wanted.append(tuple(sought)) or record(self, block, operands, sought, *rest)))  # fmt: skip
    for picture in (-1, 1):
        _step(net.model, net, [(picture, [2])])

    assert wanted == [(False, True, True), (True, True, True)]


def look(net: Net) -> CellGraph:
    """The operation graph of the cell."""
    net([(1, [1])])
    (kind,) = [k for k, t in enumerate(net.table.types) if t is not None and t.op.startswith("cell look")]
    return net.cell(net.table.operation_of_type[kind])


def test_shared_operands_are_read_once(net: Net) -> None:
    """Of six rows on two pictures, two pictures are taken and convolved; words and maps stand row by row."""
    cell = Evaluation(look(net))
    rows = [np.array([4, 9, 4, 4, 9, 4]), np.arange(6), np.arange(6)]
    (block,) = cell.blocks(rows, 6)

    assert [block.taken(k).tolist() for k in range(3)] == [[0, 1], [*range(6)], [*range(6)]]
    assert [block.count(frozenset(s)) for s in ((), (0,), (0, 1, 2))] == [1, 2, 6]


def test_blocks_hold_every_row_once(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are a partition of the batch, no larger than they may be, and rows of one picture stand together."""
    cell = Evaluation(look(net))
    monkeypatch.setattr(evaluation, "BLOCK_BYTES", 3 * cell.row_bytes)
    rows = [np.array([7, 3, 7, 3, 7, 3, 3]), np.arange(7), np.arange(7)]
    blocks = [block.positions.tolist() for block in cell.blocks(rows, 7)]

    assert sorted(row for block in blocks for row in block) == [*range(7)]
    assert blocks == [[1, 3, 5], [6, 0, 2], [4]]


@settings(max_examples=50, deadline=None)
@given(keys=st.lists(st.integers(-5, 5), max_size=12))
def test_distinct_keys(keys: list[int]) -> None:
    """As numpy's unique finds them."""
    _, first, which = np.unique(np.array(keys, np.int64), return_index=True, return_inverse=True)
    found = distinct_keys(np.array(keys, np.int64))

    assert [part.tolist() for part in found] == [first.tolist(), which.tolist()]
