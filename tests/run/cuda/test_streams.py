"""Weights that are packed on one stream and read on another, with streams that only note what is asked of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bound import RandomTreeModel, net_for, random_trees

from edbc.run.cuda.streams import Origin, origin
from edbc.run.weights import packed


class Stream:
    """A stream that notes what it waits for."""

    device = torch.device("cuda", 0)

    def __init__(self) -> None:
        self.waited: list[Any] = []
        self.cuda_stream = id(self)

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)


class Event:
    """An event that notes where it was recorded."""

    def record(self, stream: Stream) -> None:
        self.stream = stream


class Memory:
    """A tensor that notes which streams keep its memory."""

    def __init__(self) -> None:
        self.kept_for: list[Stream] = []

    def record_stream(self, stream: Stream) -> None:
        self.kept_for.append(stream)


def test_another_stream_waits_for_the_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the event recorded behind the packing and keeps the memory; the packing stream does neither."""
    first, second, memory = Stream(), Stream(), Memory()
    current = [first]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[0])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: current[0].cuda_stream, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    made = origin(torch.device("cuda", 0))
    assert made is not None

    made.follow(lambda: [memory])  # type: ignore[list-item]
    assert not first.waited
    assert not memory.kept_for

    current[0] = second
    made.follow(lambda: [memory])  # type: ignore[list-item]
    assert second.waited == [made.done]
    assert made.done.stream is first
    assert memory.kept_for == [second]


def test_every_reader_of_packed_weights_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mini-batch asks for the weights of its types by way of their origin, with all of their tensors."""
    followed: list[list[torch.Tensor]] = []

    class Noting(Origin):
        def follow(self, tensors: Any) -> None:
            followed.append(list(tensors()))

    monkeypatch.setattr(packed, "origin", lambda device: Noting(None, None))
    net = net_for(RandomTreeModel(2, 5), random_trees(2, 4), "reference")
    net(random_trees(2, 4))

    assert followed
    assert all(isinstance(tensor, torch.Tensor) for tensors in followed for tensor in tensors)
    assert any(len(tensors) >= 2 for tensors in followed)


def test_a_cpu_has_no_streams() -> None:
    """Nothing to follow, nothing to pay."""
    assert origin(torch.device("cpu")) is None
