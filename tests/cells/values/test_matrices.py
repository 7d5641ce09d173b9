"""Products of rows' own matrices in native code, over concatenations that nobody makes."""

from __future__ import annotations

import pytest
import torch
from bound import net_for
from helpers import require_eager
from torch import nn

from edbc.capture.code.mark import cell
from edbc.cells.kernels.steps import Loop
from edbc.cells.values.value import pieces_of
from edbc.run.cpu.walktables import NativeKernel


class Stack(nn.Module):
    """Products over concatenations: with one part twice, and with results of the cell itself."""

    def __init__(self, size: int):
        super().__init__()
        self.wide = nn.Parameter(torch.randn(size, 3 * size))
        self.pair = nn.Parameter(torch.randn(size, 2 * size))

    def forward(self, m1, m2, v):
        own = torch.tanh(m1 @ m2)
        stacked = self.wide @ torch.cat([m1, own, m1])
        turned = self.wide[:, : len(v)] @ v
        return stacked, self.pair @ torch.cat([m2, own]), own @ turned


class Wide(nn.Module):
    """A concatenation side by side, whose rows are cut: it has to be copied."""

    def forward(self, m1, m2, v):
        return torch.cat([m1, m2], dim=1) @ torch.cat([v, v]), v


class Square(nn.Module):
    """Concatenations that are both factors of a product."""

    def forward(self, m1, m2, v):
        half = len(v) // 2
        both, doubled = torch.cat([m1[:half], m2[half:] + 1]), torch.cat([v, torch.tanh(v)])
        return both @ both, torch.dot(doubled, doubled), torch.cat([v, v]) @ torch.cat([v, v])


class Batched(nn.Module):
    """Products with a parameter that is several matrices."""

    def __init__(self, size: int):
        super().__init__()
        self.cube = nn.Parameter(torch.randn(3, size, size))

    def forward(self, m1, m2, v):
        return m1 @ self.cube, v @ self.cube


class Model(nn.Module):
    """The cell over rows of tables."""

    def __init__(self, inner: nn.Module, size: int):
        super().__init__()
        torch.manual_seed(0)
        self.matrices = nn.Parameter(torch.randn(5, size, size) / size)
        self.vectors = nn.Parameter(torch.randn(5, size))
        self.inner = cell(inner)

    def forward(self, words: tuple[int, int]):
        i, j = words
        return list(self.inner(self.matrices[i], self.matrices[j], self.vectors[i]))


INSTANCES = [(0, 1), (1, 1), (4, 2), (3, 0)]


def loops(net) -> list[Loop]:
    """All loops of the net's native types."""
    kernels = [net.kernel(kind) for kind in range(len(net.plan.types))]
    return [loop for kernel in kernels if isinstance(kernel, NativeKernel) for loop in kernel.rendered.steps.loops()]


@pytest.mark.compiled
@pytest.mark.parametrize("size", [2, 3, 16])
def test_stacked_matrices_are_multiplied_where_they_are(size: int) -> None:
    """A product over matrices below each other is a sum of products: nothing is copied, and the numbers are eager's."""
    net = net_for(Model(Stack(size), size), INSTANCES)
    require_eager(net, INSTANCES)
    stores = [(v, loop) for loop in loops(net) for _, v, _ in loop.stores]
    products = [(v, loop) for v, loop in stores if v.op == "matmul"]

    assert not [v for v, loop in stores if v in loop.places]
    assert sum(len(pieces_of(v.sources[1])) for v, _ in products) >= 3 + len(products)


def test_matrices_side_by_side_still_equal_eager() -> None:
    """A concatenation that no rule covers costs a copy, never a number."""
    require_eager(net_for(Model(Wide(), 4), INSTANCES), INSTANCES)


@pytest.mark.compiled
def test_a_concatenation_times_itself() -> None:
    """As the right matrix its parts may stand anywhere; as the left one they must not."""
    require_eager(net_for(Model(Square(), 4), INSTANCES), INSTANCES)


@pytest.mark.compiled
def test_products_with_several_matrices_are_torchs() -> None:
    """The result has a dimension more than that of a product of matrices, or as many as that."""
    require_eager(net_for(Model(Batched(4), 4), INSTANCES), INSTANCES)


class Weighed(nn.Module):
    """Products with a weight, also transposed, and one of matrices of which each node has its own, one of several."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size) / size)

    def forward(self, m1, m2, v):
        found = nn.functional.linear(m1[:2] @ self.weight, self.weight)
        return found, torch.bmm(m1[None], m2[None])


@pytest.mark.compiled
@pytest.mark.parametrize(("size", "is_native"), [(128, True), (1024, False)])
def test_weights_of_many_elements_are_torchs(size: int, is_native: bool) -> None:
    """Matrices of a node's own are native whatever their size, weights where they have few elements for each row."""
    net = net_for(Model(Weighed(size), size), INSTANCES)
    require_eager(net, INSTANCES)
    products = [v for loop in loops(net) for _, v, _ in loop.stores if v.op == "matmul"]
    assert bool(products) == is_native


@pytest.mark.compiled
def test_gradients_of_weights_that_are_read_in_two_ways() -> None:
    """As they stand and transposed, and a part of them: one gradient, which is eager's."""
    model = Model(Weighed(8), 8).double()
    net = net_for(model, INSTANCES)
    sum(x.square().sum() for results in net(INSTANCES) for x in results).backward()
    ours, model.inner.weight.grad = model.inner.weight.grad, None
    sum(x.square().sum() for instance in INSTANCES for x in model(instance)).backward()
    torch.testing.assert_close(ours, model.inner.weight.grad)
