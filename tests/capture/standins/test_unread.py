"""What is read of recorded tensors and looked at later, or never: arrays, lists and numbers are eager's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import edbc
from edbc.run.outputs import by_name

SIZE = 4


class Reads(nn.Module):
    def __init__(self, how: Callable[[Any, Any], Any]):
        super().__init__()
        self.how, self.layer, self.words = how, nn.Linear(SIZE, SIZE), nn.Embedding(SIZE, SIZE)

    def forward(self, instance: Any) -> Any:
        return self.how(self, instance)


def returned(net: Reads, x: Any) -> Any:
    h = net.layer(x.x)
    weights = torch.softmax(h, -1).detach()
    return {"h": h, "weights": weights.numpy(), "best": weights.max().item(), "list": weights.tolist(),
            "which": weights.argmax().item(), "twice": (weights.cpu().numpy(), [weights.numpy()])}  # fmt: skip


def returned_of_rows(net: Reads, x: Any) -> Any:
    h = torch.tanh(net.layer(x.rows))
    weights = torch.softmax(h.sum(1), 0)
    return (weights.unsqueeze(1) * h).sum(0), weights.detach().numpy()


def kept(net: Reads, x: Any) -> Any:
    h = net.layer(x.x)
    x.note = h.tolist(), h.detach().numpy()
    return h * 2


def used(net: Reads, x: Any) -> Any:
    h = net.layer(x.x)
    array = h.detach().numpy()
    shifted = h + torch.from_numpy(array) + float(array[0])
    return shifted, np.tanh(array) + array[0] + array.sum() + 2 * array, len(array), isinstance(array, np.ndarray)


def used_as_numbers(net: Reads, x: Any) -> Any:
    h = net.layer(x.x)
    first, every, after = h[0].item(), h.tolist(), net.layer(h)
    made = torch.tensor([first, 1.0]) + torch.tensor(every).sum()
    return after * first + math.exp(first) + max(first, 0.1), made, sum(every), [*every, first], f"{first:.2f}"


def looked_up(net: Reads, x: Any) -> Any:
    h = net.layer(x.x)
    best = h.argmax().item()
    h = net.layer(h)
    return h + net.words(torch.tensor([best]))[0] + net.words(torch.LongTensor([[best]]))[0, 0]


def given_to_c(net: Reads, x: Any) -> Any:
    h = net.layer(x.x)
    first, best = h[0].item(), h.argmax().item()
    h = net.layer(h)
    return torch.FloatTensor([first, 1.0]) + h[0], json.loads(json.dumps([first, best, h.tolist()]))[1]


def changed_after(net: Reads, x: Any) -> Any:
    h = torch.tanh(net.layer(x.x)).detach()
    array = h.numpy()
    h += 1
    return h * 1, array


def buffer(net: Reads, x: Any) -> Any:
    filled, h = torch.zeros(3, SIZE), net.layer(x.x)
    for i in range(3):
        filled[i] = h
        h = torch.tanh(net.layer(h))
    return h, filled.detach().numpy(), filled.data * 2


def buffer_that_is_asked(net: Reads, x: Any) -> Any:
    filled, h = torch.zeros(2, SIZE), net.layer(x.x)
    for i in range(2):
        filled[i] = h
    is_blank = filled.equal(torch.zeros(2, SIZE))
    return h * (2 if is_blank else 3) + torch.tensor(filled.tolist()).sum()


def contained(net: Reads, x: Any) -> Any:
    h = net.layer(x.x).relu()
    return h + int(0.0 in h)


WITHOUT_READS = (returned, returned_of_rows, changed_after, buffer)
WITH_READS = (kept, used, used_as_numbers, looked_up, given_to_c, buffer_that_is_asked, contained)


def instances(count: int) -> list[Any]:
    made = torch.Generator().manual_seed(count)
    return [SimpleNamespace(x=torch.randn(SIZE, generator=made), rows=torch.randn(2 + i % 3, SIZE, generator=made))
            for i in range(count)]  # fmt: skip


def require_equal(ours: Any, theirs: Any) -> None:
    """Of the same classes, and equal but for rounding."""
    assert type(ours) is type(theirs)
    if isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            require_equal(one, other)
    elif isinstance(ours, dict):
        require_equal(list(ours.items()), list(theirs.items()))
    elif isinstance(ours, torch.Tensor | np.ndarray | float):
        torch.testing.assert_close(torch.as_tensor(ours).float(), torch.as_tensor(theirs).float())
    else:
        assert ours == theirs


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("how", WITHOUT_READS + WITH_READS, ids=lambda how: how.__name__)
def test_what_is_read_is_eagers(how: Callable[[Any, Any], Any], gradients: bool) -> None:
    """Once, again, in other company, and what forward keeps."""
    torch.manual_seed(0)
    model = Reads(how).eval()
    net = edbc.compile(model, instances(8), force=True)
    with torch.set_grad_enabled(gradients):
        for count in (8, 8, 3):
            batch, others = instances(count), instances(count)
            require_equal(net(batch), [model(x) for x in others])
            for one, other in zip(batch, others, strict=True):
                require_equal(getattr(one, "note", None), getattr(other, "note", None))


@pytest.mark.parametrize("how", WITHOUT_READS, ids=lambda how: how.__name__)
def test_what_is_only_returned_suspends_nobody(how: Callable[[Any, Any], Any]) -> None:
    """So instances that return it can be captured, alone and in company."""
    model = Reads(how).eval()
    net = edbc.compile(model, instances(8), force=True)
    with torch.no_grad():
        assert net.prepare(instances(8)).capture.reads is None
        captured = net.capture_all(instances(8))
        mixed = [*captured[:4], *instances(8)[4:]]
        for batch in (captured, mixed):
            require_equal(net(batch), [model(x) for x in instances(8)])


def test_arrays_and_floats_that_are_returned_are_outputs() -> None:
    """So parity is told of them."""
    found = by_name({"weights": np.ones((2, 3), np.float32), "loss": [0.5, 1.5], "name": "x", "count": 3})

    assert {name: [tuple(x.shape) for x in tensors] for name, tensors in found.items()} == {
        "weights": [(2, 3)], "loss": [(), ()]
    }  # fmt: skip
