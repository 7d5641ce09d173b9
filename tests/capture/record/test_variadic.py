"""Operations over any number of operands are one type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradients import require_equal_gradients
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
    "stack-behind": lambda xs: torch.stack([x.unsqueeze(0) * 2 for x in xs], 1).mean(1),
    "stack-last": lambda xs: torch.max(torch.stack(xs, dim=-1), dim=-1, keepdim=True)[0],
    "cat-behind": lambda xs: torch.cat([x.view(1, 1, -1) * 2 for x in xs], dim=1).sum(-2),
    "cat-behind-max": lambda xs: torch.cat([x.unsqueeze(1) * 2 for x in xs], -1).max(1, keepdim=True).values,
    "all-mean": lambda xs: torch.stack(xs).mean() + xs[0],
    "all-sum": lambda xs: torch.cat([x.unsqueeze(1) * 2 for x in xs], 1).sum() + xs[0],
    "numbers": lambda xs: torch.mean(torch.stack([x.sum() for x in xs])) + xs[0],
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


@pytest.mark.parametrize("off", [None, 1])
def test_what_is_known_is_recorded_as_it_was(off: int | None) -> None:
    """Concatenations, reductions by functions, products with parameters and views of looked-up rows, met again: the
    same nodes as at first, and eager's values and gradients, which may be off the second time."""

    def forward(net: Any, ids: list[int]) -> Any:
        found: list[torch.Tensor] = []
        for again in range(3):
            with torch.set_grad_enabled(again != off):
                rows = net.table(torch.tensor([ids[0], 1, 2])).unsqueeze(1)
                a, b = (net.join(net.table.weight[w], net.start) for w in (ids[0], ids[-1]))
                one = torch.stack([a, b])
                found += [torch.cat([a, b]), torch.cat((b, a), dim=-1), torch.cat([a[None], b[None]]), rows.squeeze(1)]
                found += [
                    torch.sum(one, 0),
                    torch.mean(one, dim=0),
                    torch.max(one, 0)[0],
                    torch.max(one, dim=0).indices,
                ]
                found += [torch.cat([a[None], b[None]], 1), F.linear(a, net.out.weight, net.out.bias)]
                found += [torch.matmul(net.out.weight, b), torch.cat([torch.stack([a, b]), one]), rows[1, 0]]
        return found

    model = seeded(Base, forward).double()
    require_equal_gradients(require_parity(model, words(12), sizes=(1, 7)), words(12))
    if off is None:
        assert {count % 3 for count in counts(graph_of(model, [[1, 2]])).values()} == {0}


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


STACKED = {
    "operator": lambda net, stack: torch.softmax(stack @ net.start, 0) @ stack,
    "on-the-right": lambda net, stack: torch.ones_like(stack).sum(0) * (net.start * stack).sum(0),
    "twice": lambda net, stack: (stack * stack + stack).mean(0),
    "view": lambda net, stack: stack.unsqueeze(0).transpose(0, 1)[0, 0] + stack.t()[:, 0],
    "keyword": lambda net, stack: (
        torch.logsumexp(input=stack, dim=0) + torch.add(stack[0], other=stack, alpha=2).sum(0)
    ),
    "view-by-keyword": lambda net, stack: (
        torch.unsqueeze(input=stack, dim=0)[0, 0] + torch.transpose(input=stack, dim0=0, dim1=1).sum(1)
    ),
    "in-a-list": lambda net, stack: torch.cat([stack, stack], 1).sum(0)[:6] + torch.cat((stack * 2, stack)).amax(0),
    "to-a-cell": lambda net, stack: net.join(stack, stack).sum(0),
    "other-dimension": lambda net, stack: stack.sum(0) + stack.sum(1).sum() + stack.max(1)[0].sum() + stack.amin(0),
    "indices": lambda net, stack: stack.to(stack.dtype) @ net.start + stack.argmax(0).sum() * stack.sum(0).sum(),
    "no-gradient": lambda net, stack: torch.no_grad()(lambda: (stack * net.start).sum(0) + stack.sum(0))(),
}


@pytest.mark.parametrize("name", STACKED)
def test_calls_on_stacks_are_recorded_the_same_again(name: str) -> None:
    """What a function of a stack was the first time it is every time: the graph of an instance and its equals has the
    nodes of that instance, once for each, whether the call was described or found by its key."""

    def forward(net: Any, ids: list[int]) -> Any:
        return STACKED[name](net, torch.stack([net.join(net.table.weight[w], net.start) for w in ids]))

    model = seeded(Base, forward)
    once, thrice = (graph_of(model, [[1, 2, 3]] * count) for count in (1, 3))

    assert counts(thrice) == {kind: 3 * count for kind, count in counts(once).items()}
    assert thrice.node_type.tolist() == once.node_type.tolist() * 3
    require_parity(model, [[1, 2, 3], [4, 5], [6, 7, 8], [9], [2, 2]], sizes=(1, 5))


def test_a_stack_is_one_node_for_all_that_read_it() -> None:
    """Also where the second function is found by its key, and none where only items and reductions are asked for."""

    def forward(net: Any, ids: list[int]) -> Any:
        stack = torch.stack([net.table.weight[w] for w in ids])
        return (stack * 2).sum(0) + (stack * 2 + stack).sum(0) + stack.sum(0) + stack[0]

    of_all = counts(graph_of(seeded(Base, forward), [[1, 2], [3, 4], [5, 6]]))

    assert of_all["stack"] == 3


IN_PLACE = {
    "row": lambda stack, x: stack.__setitem__(0, x), "rows": lambda stack, x: stack.__setitem__(slice(1), x * 2),
    "element": lambda stack, x: stack.__setitem__((0, 1), x[0]), "product": lambda stack, x: stack.mul_(x),
    "sum": lambda stack, x: stack.__iadd__(x), "of-a-row": lambda stack, x: stack[0].mul_(3.0),
    "zeros": lambda stack, x: stack[:1].zero_(),
}  # fmt: skip


@pytest.mark.parametrize("is_cat", [False, True])
@pytest.mark.parametrize("name", IN_PLACE)
def test_what_was_written_into_a_stack_is_in_its_reductions(name: str, is_cat: bool) -> None:
    """A stack that has changed answers as the tensor that it is then, not by the items that it was made of."""

    def forward(net: Any, ids: list[int]) -> Any:
        items = [net.join(net.table.weight[w], net.start) for w in ids]
        stack = torch.cat([item.unsqueeze(0) for item in items]) if is_cat else torch.stack(items)
        before = stack.mean(0)
        IN_PLACE[name](stack, before)
        found = [stack.sum(0), stack.mean(0), stack.amax(0), stack.amin(dim=0), stack.max(0).values, stack.min(0)[0]]
        return [*found, stack.sum(), sum(stack), torch.sum(stack, 0), stack[0] * len(stack), before]

    require_parity(seeded(Base, forward), [[1, 2, 3], [4, 5], [6, 7, 8], [9], [2, 2]], sizes=(1, 5))
