"""A stack that forward returns leaves as rows of the results, and is no node: eager's tensors and gradients."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from every_kind import gradients, tensors, told
from helpers import bound, seeded
from test_structures import Base, words

from edbc import collate


def states_of(net: Any, ids: list[int]) -> list[Any]:
    """A state per word."""
    states = [net.start]
    for word in ids:
        states.append(net.join(net.table.weight[word], states[-1]))
    return states[1:]


def two_shapes(net: Any, ids: list[int]) -> Any:
    """Stacks of two classes, and of batches of one."""
    states = states_of(net, ids)
    return torch.stack(states), torch.stack([net.out(h) for h in states]), [net.out(states[-1])]


FORWARDS: dict[str, Any] = {
    "stack": lambda net, ids: torch.stack(states_of(net, ids)),
    "of two shapes": two_shapes,
    "of batches of one": lambda net, ids: torch.cat([net.out(h.unsqueeze(0)) for h in states_of(net, ids)]),
    "behind a batch of one": lambda net, ids: torch.stack([net.out(h.unsqueeze(0)) for h in states_of(net, ids)], 1),
    "beside its rows": lambda net, ids: [torch.stack(h := states_of(net, ids)), h, h[-1]],
    "of which a row is read": lambda net, ids: {"all": (h := torch.stack(states_of(net, ids))), "last": net.out(h[-1])},
    "twice": lambda net, ids: [h := torch.stack(states_of(net, ids)), h],
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARDS)
def test_stacks_are_those_of_eager(name: str) -> None:
    """Recorded, captured and from a worker: values and gradients of eager, in one form for any number of rows."""
    net = bound(seeded(Base, FORWARDS[name]), words(8))
    instances = words(7)
    captured = net.capture_all(instances)
    batch = pickle.loads(pickle.dumps(collate(net)(instances)))

    with torch.no_grad():
        recorded = [net(instances), net(captured), net(batch), net([*captured[:3], *instances[3:]])]
        eager = [net.model(item) for item in instances]
    assert all(told(one) == told(recorded[0]) for one in recorded)
    for one, other in zip(tensors(recorded[0]), tensors(eager), strict=True):
        torch.testing.assert_close(one, other)
    assert gradients(net, instances) == gradients(net, captured) == gradients(net, batch)
    graph = net.mini_batch(instances).graph
    used = [graph.types[kind].signature for kind in set(graph.node_type.tolist())]
    assert not [signature for signature in used if signature.startswith(("torch.stack", "torch.cat"))]
    if name == "stack":
        assert len({item.nest_text for item in captured}) == 1


def test_gradients_through_stacks_are_those_of_eager() -> None:
    """A loss over some rows of some stacks: the others get none, as in eager."""
    net = bound(seeded(Base, FORWARDS["of two shapes"]), words(8))

    def loss(results: list[Any]) -> list[Any]:
        net.model.zero_grad()
        (results[0][0][-1].sum() + results[2][1].pow(2).sum()).backward()
        return [None if p.grad is None else p.grad.clone() for p in net.model.parameters()]

    found = loss(net(words(4)))
    expected = loss([net.model(item) for item in words(4)])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_stack_of_what_stays_on_the_instance() -> None:
    """Values that forward keeps and stacks too: both are there afterwards."""

    class Item(list):
        kept: Any = None

    def forward(net: Any, ids: Any) -> Any:
        ids.kept = states_of(net, ids)
        return torch.stack(ids.kept)

    net = bound(seeded(Base, forward), [Item(x) for x in words(4)])
    instances = [Item(x) for x in words(3)]
    with torch.no_grad():
        results = net(instances)
    for result, item in zip(results, instances, strict=True):
        assert torch.equal(torch.stack(item.kept), result)
