"""Values of one size and several shapes: they stand in one arena, and what reads them is of one type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import bound, counts, graph_of, require_eager
from torch import nn

from edbc.base.graph import Graph, NodeType, ValueClass
from edbc.run.passes.placement import place
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import run
from edbc.train.backward.backtables import hidden_class

Tree = int | tuple["Tree", "Tree"]
TREES: list[Tree] = [3, ((0, 1), 2), (4, ((1, (2, 0)), (3, 3))), (5, 1), ((0, 4), (2, (5, 5)))]


class Composes(nn.Module):
    """Words are rows of a table, as vectors or as matrices of one row; what is composed of them is a matrix of one. A
    model that `looks` asks for a number of each composition."""

    def __init__(self, of_one: bool, looks: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.of_one, self.looks = of_one, looks
        self.words, self.up = nn.Embedding(6, 4), nn.Linear(8, 4)

    def composed(self, tree: Tree) -> torch.Tensor:
        """`(1, 4)`."""
        if isinstance(tree, int):
            return self.words(torch.tensor([tree])) if self.of_one else self.words(torch.tensor(tree)).unsqueeze(0)
        left, right = map(self.composed, tree)
        if self.looks and (left - right).sum() > 0:
            left, right = right, left
        return torch.tanh(self.up(torch.cat([left, right], 1)))

    def forward(self, tree: Tree) -> Any:
        """In all shapes that the root may be seen in, with a word and a sum of both."""
        root, word = self.composed(tree), self.words(torch.tensor(0))
        return root, word, root.squeeze(0), (root + word)[None], torch.stack([root, root * 2]), word * 3


def is_composing(name: str) -> bool:
    """Whether nodes of a type read two children."""
    return name.startswith("cat")


@pytest.mark.parametrize("of_one", [True, False])
def test_rows_and_what_is_computed_make_one_type(of_one: bool) -> None:
    """Whichever of the children of a node are words."""
    found = counts(graph_of(Composes(of_one), TREES))
    assert len([name for name in found if is_composing(name)]) == 1


@pytest.mark.parametrize("cells", ["auto", "marked", "unmined"])
@pytest.mark.parametrize(("of_one", "looks"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_every_result_has_its_shape(backend: str, of_one: bool, looks: bool, cells: str) -> None:
    """Numbers, shapes and gradients are eager's, by nodes, cells and patterns, and where results are carried from one
    segment to the next."""
    model = Composes(of_one, looks).double()
    net = bound(model, TREES, cells, backend=backend)
    with torch.no_grad():
        require_eager(net, TREES)
        for ours, theirs in zip(net(TREES), map(model, TREES), strict=True):
            assert [x.shape for x in ours] == [x.shape for x in theirs]
    if looks:
        return

    def gradients(results: Any) -> list[torch.Tensor]:
        model.zero_grad()
        sum((x * torch.arange(1.0, 1 + x.numel()).view(x.shape)).sum() for of in results for x in of).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for ours, theirs in zip(gradients(net(TREES)), gradients(map(model, TREES)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_arenas_are_of_a_size_and_a_dtype() -> None:
    """Shapes share one; dtypes do not, nor what a type saves for its gradient."""
    shapes = [ValueClass((4,)), ValueClass((1, 4)), ValueClass((2, 2))]
    others = [ValueClass((4,), "i64"), ValueClass((5,)), hidden_class(4, "f32")]
    types = [NodeType(f"t{i}", "op", (shapes[0],), (c,)) for i, c in enumerate((*shapes, *others))]
    graph = Graph.build(types, [(i, [-1]) for i in range(len(types))], externals=[shapes[0]])
    placement = place(graph, run(graph, Policy("depth")), np.arange(len(types)))
    numbers = [placement.class_index[c] for c in (*shapes, *others)]
    assert numbers == [0, 0, 0, 1, 2, 3]
    assert placement.class_rows.tolist() == [4, 1, 1, 1]
