"""Operations over any number of operands are one type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import counts, graph_of, require_parity, seeded
from test_structures import Base, words

REDUCED = {
    "stack-sum": lambda xs: torch.stack(xs).sum(0),
    "stack-sum-function": lambda xs: torch.sum(torch.stack(xs, dim=0), dim=0),
    "stack-mean": lambda xs: torch.stack(xs).mean(dim=0),
    "mean-function": lambda xs: torch.mean(torch.stack(tuple(xs)), 0, keepdim=True),
    "max-values": lambda xs: torch.stack(xs).max(0).values,
    "max-unpacked": lambda xs: torch.max(torch.stack(xs), dim=0)[0],
    "amax": lambda xs: torch.stack(xs).amax(0),
    "min": lambda xs: torch.stack(xs).min(dim=0)[0],
    "cat-sum": lambda xs: torch.cat([x.unsqueeze(0) * 2 for x in xs], dim=0).sum(dim=0, keepdim=True),
    "cat-mean": lambda xs: torch.cat([x.unsqueeze(0) * 2 for x in xs]).mean(0),
    "python-sum": lambda xs: sum(xs),
    "zeros-first": lambda xs: sum(xs, torch.zeros_like(xs[0])),
}


def over(reduce: Any) -> Any:
    """A forward that reduces as many states as the instance has words."""

    def forward(net: Any, ids: list[int]) -> Any:
        return net.out(reduce([net.join(net.table.weight[w], net.start) for w in ids]).reshape(-1))

    return forward


@pytest.mark.parametrize("name", REDUCED)
def test_reductions_equal_eager_and_are_one_type(name: str) -> None:
    """BUGS 16: mixed arity gives one type of reduction, and eager's numbers."""
    model = seeded(Base, over(REDUCED[name]))

    require_parity(model, words(32))

    types = [t for t in graph_of(model, words(20)).types if t.variadic]
    assert len(types) == 1


def test_children_of_arity_one_are_no_node() -> None:
    """Any reduction of one item is the item."""
    model = seeded(Base, over(REDUCED["stack-mean"]))

    assert counts(graph_of(model, [[1], [1, 2], [1, 2, 3]])) == {"join": 6, "mean": 2, "out": 3}


def test_items_of_a_stack_are_the_items() -> None:
    """Indexing, iterating and slicing a stack make no node; its length and shape are known."""

    def forward(net: Any, ids: list[int]) -> Any:
        stack = torch.stack([net.join(net.table.weight[w], net.start) for w in ids])
        assert stack.shape == (len(ids), 6)
        assert len(stack) == len(ids)
        first, *_ = stack
        return first, stack[-1], stack[:2].sum(0)

    model = seeded(Base, forward)

    assert counts(graph_of(model, [[1, 2, 3]])) == {"join": 3, "sum": 1}
    require_parity(model, [[1, 2, 3], [4, 5], [6, 7, 8]], sizes=(3,))


def test_where_the_number_matters_there_is_a_type_per_number() -> None:
    """Attention over children, and the index of the largest, depend on how many there are."""

    def forward(net: Any, ids: list[int]) -> Any:
        stack = torch.stack([net.join(net.table.weight[w], net.start) for w in ids])
        values, indices = stack.max(0)
        return torch.softmax(stack @ net.start, 0) @ stack, values, indices, torch.cat(list(stack))

    model = seeded(Base, forward)

    graph = graph_of(model, [[1, 2], [1, 2, 3], [3, 4, 5]])
    assert counts(graph)["max"] == 3
    assert sum(t.op == "torch.softmax" for t in graph.types) == 2
    require_parity(model, words(32), sizes=(1, 7))


def test_sums_over_the_same_children_are_one_node() -> None:
    """Sums of h and of c over the same operands are fields of one node; over others they are not."""

    def forward(net: Any, ids: list[int]) -> Any:
        states = [net.join(net.table.weight[w], net.start) for w in ids]
        pairs = [torch.chunk(net.join(h, h), 2) + (h,) for h in states]
        return sum(p[2] for p in pairs), sum(states[1:])

    model = seeded(Base, forward)

    assert counts(graph_of(model, [[1, 2, 3, 4]]))["sum"] == 2
    require_parity(model, words(16), sizes=(16,))


def test_not_a_number_is_the_largest() -> None:
    """Max and min of children propagate NaN as eager does."""

    def forward(net: Any, xs: list[float]) -> Any:
        states = [net.start * torch.tensor(x) for x in xs]
        return torch.stack(states).amax(0), torch.stack(states).amin(0)

    model = seeded(Base, forward)
    net = require_parity(model, [[1.0, 2.0], [1.0, 3.0, -1.0]], sizes=(2,))

    high, low = net([[1.0, float("nan")], [1.0, 2.0, 3.0]])[0]

    assert high.isnan().all()
    assert low.isnan().all()
