"""Streams: what tells them apart, graphs of what is launched on one, and weights that one packed and another reads.

Threads that call one net may each have a stream of their own (`torch.cuda.stream`). A mini-batch's arenas and upload
belong to the stream that runs it, but weights are packed once, on the stream of whoever asked first. Any other stream
must wait for the packing, and the allocator must not give the memory away while that stream still reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class Origin:
    """The stream on which tensors were made, and the point in it where they were done."""

    stream: Any
    done: Any

    def follow(self, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        """Let the current stream of the device read the tensors that were made here; asks for them only when it is
        another stream."""
        if number_of_stream(self.stream.device) == self.stream.cuda_stream:
            return
        current = torch.cuda.current_stream(self.stream.device)
        current.wait_event(self.done)
        for tensor in tensors():
            tensor.record_stream(current)


def captured_on(stream: Any, launches: Callable[[], None], pool: Any = None) -> Any:
    """A CUDA graph of what is launched on a stream, which does not run; other threads may use the device meanwhile.
    (`torch.cuda.graph` also collects garbage, waits for the device and gives its unused memory back, which takes longer
    than the rest.)"""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            launches()
        finally:
            graph.capture_end()
    return graph


def number_of_stream(device: torch.device) -> int | None:
    """What tells the device's current stream from others; None for a device without streams. `torch.cuda`'s way, which
    makes an object that knows everything of the stream, takes some 5 microseconds."""
    if device.type != "cuda":
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    number: int = torch._C._cuda_getCurrentRawStream(index)
    return number


def origin(device: torch.device) -> Origin | None:
    """Where tensors that were just made on the device come from; None for a device without streams."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.current_stream(device)
    done = torch.cuda.Event()
    done.record(stream)
    return Origin(stream, done)
