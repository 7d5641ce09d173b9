"""Units and blocks of the four networks, counted; and what fusing does with small graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import networkx as nx
import pytest
import torch
import torch.nn.functional as F
from networks import units
from torch import Tensor, nn

from edbc.errors import UnsupportedError
from edbc.stages.blocks import find_blocks
from edbc.stages.capture import is_stackable, trace
from edbc.stages.endings import members, set_of, transitions
from edbc.stages.fusion import fuse
from edbc.stages.graph import UnitGraph, block_dag


@pytest.mark.parametrize(
    ("name", "num_units", "num_blocks", "gflop"),
    [("inception_v3", 119, 13, 11.4), ("randwire", 120, 6, 15.8), ("nasnet_a", 374, 24, 47.6),
     ("squeezenet", 50, 12, 2.4)],
)  # fmt: skip
def test_networks_have_their_units_and_blocks(name: str, num_units: int, num_blocks: int, gflop: float) -> None:
    """Each network has the units, blocks and work that are known of it, and blocks cover the units in order."""
    graph = units(name)
    blocks = find_blocks(graph)

    assert len(graph.units) == num_units
    assert len(blocks) == num_blocks
    assert round(sum(unit.flops for unit in graph.units) / 1e9, 1) == gflop
    assert sorted(unit for block in blocks for unit in block.units) == list(range(num_units))
    done: set[int] = set()
    for block in blocks:
        done |= {*block.units}
        assert all(other in done or other < 0 for unit in block.units for other in graph.units[unit].reads)


@pytest.mark.long
def test_known_blocks_have_known_transitions() -> None:
    """The blocks whose counts are known have them as they come out of the networks."""
    inception, squeezenet = units("inception_v3"), units("squeezenet")

    last = transitions(block_dag(inception, find_blocks(inception)[-2]), 3, 8)
    fire = transitions(block_dag(squeezenet, find_blocks(squeezenet)[1]), 3, 8)

    assert (len(last.states), last.count, len(last.stages)) == (181, 4631, 790)
    assert (len(fire.states), fire.count) == (13, 51)


def width(dag_before: Sequence[int], units: Sequence[int]) -> int:
    """The largest number of units of which none is before another (Dilworth, by bipartite matching)."""
    pairs = nx.Graph()
    pairs.add_nodes_from(("late", unit) for unit in units)
    inside = set_of(units)
    for unit in units:
        pairs.add_edges_from((("late", unit), ("early", other)) for other in members(dag_before[unit] & inside))
    matched = nx.bipartite.hopcroft_karp_matching(pairs, [("late", unit) for unit in units])
    return len(units) - sum(("late", unit) in matched for unit in units)


def test_randwire_is_wide() -> None:
    """One of RandWire's blocks has a width of 9."""
    graph = units("randwire")
    before, _ = graph.dag.closures()

    assert max(width(before, block.units) for block in find_blocks(graph)) == 9


def test_equal_blocks_are_of_one_kind() -> None:
    """Inception's two blocks with the same channels are one kind; NASNet's cells are few."""
    inception, nasnet = find_blocks(units("inception_v3")), find_blocks(units("nasnet_a"))

    assert inception[6].kind == inception[7].kind != inception[5].kind
    assert len({block.kind for block in nasnet}) < len(nasnet)
    assert any("values are live" in block.note for block in nasnet)


def traced(forward: Callable[..., Tensor], *modules: nn.Module) -> UnitGraph:
    """The units of a forward over images of 8 channels."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(modules)

        def forward(self, x: Tensor) -> Tensor:
            return forward(x, *self.parts)

    return fuse(trace(Net().eval(), torch.zeros(1, 8, 6, 6), "net"))


def kinds(graph: UnitGraph) -> list[str]:
    return [unit.kind for unit in graph.units]


def conv(groups: int = 1, kernel: int = 3) -> nn.Conv2d:
    return nn.Conv2d(8, 8, kernel, padding=kernel // 2, groups=groups)


def test_a_value_that_others_read_is_not_fused_away() -> None:
    """A convolution whose result is read beside its relu stays a unit's value; the relu runs with its readers."""
    graph = traced(lambda x, a, b: (y := a(x)) + b(F.relu(y)), conv(), conv())

    assert kinds(graph) == ["conv", "conv", "sum"]
    assert len(graph.units[0].nodes) == 1
    assert len(graph.units[1].nodes) == 2


def test_chains_of_sums_and_of_concatenations_are_one() -> None:
    """`sum(list)` is one unit, and so is a concatenation of concatenations; of another dimension it is not."""
    three = lambda x, a, b, c: (a(x), b(x), c(x))  # noqa: E731
    summed = traced(lambda x, *parts: sum(three(x, *parts)), conv(), conv(), conv())
    nested = traced(lambda x, a, b, c: torch.cat([torch.cat([a(x), b(x)], 1), c(x)], 1), conv(), conv(), conv())
    crossed = traced(lambda x, a, b: torch.cat([torch.cat([a(x), b(x)], 1)] * 2, 2), conv(), conv())

    assert kinds(summed) == ["conv"] * 3 + ["sum"]
    assert kinds(nested) == ["conv"] * 3 + ["cat"]
    assert kinds(crossed) == ["conv"] * 2 + ["cat"] * 2


def test_a_separable_convolution_takes_in_the_sum_before_it() -> None:
    """Sum, relu, depthwise and pointwise convolution and batch norm are one unit, unless others read the sum."""
    parts = conv(), conv(8), conv(1, 1), nn.BatchNorm2d(8)
    one = traced(lambda x, a, d, p, n: n(p(d(F.relu(a(x) + x)))), *parts)
    two = traced(lambda x, a, d, p, n: (y := a(x) + x) * n(p(d(F.relu(y)))), *parts)

    assert kinds(one) == ["conv", "separable"]
    assert kinds(two) == ["conv", "sum", "separable", "mul"]


def test_forwards_that_read_values_are_no_static_graphs() -> None:
    """Control flow on values is refused with the reason and what to do."""
    with pytest.raises(UnsupportedError, match="compile without --profile"):
        traced(lambda x, a: a(x) if x.sum() > 0 else x, conv())


def test_stackable_instances() -> None:
    """Instances stack when they are nests of tensors of equal shapes that begin with 1."""
    assert is_stackable([torch.zeros(1, 3), torch.ones(1, 3)])
    assert is_stackable([(torch.zeros(1, 3), torch.zeros(1)), (torch.zeros(1, 3), torch.zeros(1))])
    assert not is_stackable([torch.zeros(1, 3), torch.zeros(1, 4)])
    assert not is_stackable([torch.zeros(2, 3)])
    assert not is_stackable([[1, 2]])
    assert not is_stackable([])
