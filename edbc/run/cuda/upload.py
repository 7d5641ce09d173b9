"""One copy per mini-batch: everything that the device must be told goes up in one pinned buffer.

Parts are appended on the host and get an offset; `send` allocates, fills and copies, and parts are views of the
device's buffer from then on. Late parts are written when the buffer's address is known. The copy does not wait: the
buffer comes from torch's pinned allocator, which gives its memory to nobody else before the copy has happened. Copies
have a stream of their own, so that one goes up while the device still executes the mini-batch before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edbc.base.frozen import frozen
from edbc.capture.standins.standin import bits_of

ALIGNMENT = 16
Write = Callable[[NDArray[Any]], None]
"""Fills a part on the host, given as its array."""


@frozen
class Part:
    """Bytes `begin` to `end` of an upload's buffer, seen as `dtype`."""

    upload: Upload
    begin: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def tensor(self) -> torch.Tensor:
        """The part on the device; its upload is sent first if need be."""
        words, size = self.upload.buffer, self.dtype.itemsize
        whole = words if self.dtype is words.dtype else words.view(self.dtype)
        flat = whole[self.begin // size : self.end // size]
        return flat if len(self.shape) == 1 else flat.view(self.shape)

    def part(self, first: int, count: int) -> Part:
        """So many of its elements, which stand in a row."""
        begin = self.begin + first * self.dtype.itemsize
        return Part(self.upload, begin, begin + count * self.dtype.itemsize, self.dtype, (count,))

    def behind(self) -> Part:
        """What stands behind it, as large as it is."""
        return self.part(*2 * self.shape)

    @property
    def address(self) -> int:
        """Where it begins on the device; known as soon as late parts are written."""
        return self.upload.address + self.begin


class Upload:
    """See the module's docstring. One per mini-batch; not shared between threads."""

    def __init__(self, device: torch.device):
        self.device = device
        self.size = 0
        self.address = 0
        """Of the buffer on the device, once it is there."""
        self._parts: list[tuple[Part, NDArray[Any] | torch.Tensor]] = []
        self._late: list[tuple[Part, Write]] = []
        self._buffer: torch.Tensor | None = None

    @property
    def is_sent(self) -> bool:
        """True once the buffer is on its way."""
        return self._buffer is not None

    def indices(self, values: NDArray[np.integer]) -> Part:
        """Append integers, as int32."""
        return self._append(values, 4 * values.size, torch.int32, values.shape)

    def data(self, values: torch.Tensor) -> Part:
        """Append a host tensor."""
        values = values.contiguous()
        return self._append(values, values.numel() * values.itemsize, values.dtype, tuple(values.shape))

    def late(self, shape: tuple[int, ...], write: Write) -> Part:
        """Append numbers of 64 bits that `write` fills when addresses are known, in the order of these calls."""
        part = self._part(8 * math.prod(shape), torch.int64, shape)
        self._late.append((part, write))
        return part

    def _append(self, values: NDArray[Any] | torch.Tensor, size: int, dtype: torch.dtype, shape: Any) -> Part:
        part = self._part(size, dtype, shape)
        self._parts.append((part, values))
        return part

    def _part(self, size: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Part:
        part = Part(self, self.size, self.size + size, dtype, shape)
        self.size = -(-part.end // ALIGNMENT) * ALIGNMENT
        return part

    def send(self) -> None:
        """Copy everything appended so far, once."""
        host = torch.empty(self.size // 8, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        if self.device.type == "cuda":
            self._buffer = copies_to(self.device).copy(host, self._fill)
        else:
            self._buffer = host if self.device.type == "cpu" else torch.empty_like(host, device=self.device)
            self._fill(host, self._buffer)
            if self._buffer is not host:
                self._buffer.copy_(host)
        self._parts, self._late = [], []

    def _fill(self, host: torch.Tensor, buffer: torch.Tensor) -> None:
        """Write all parts on the host, given where they will stand."""
        self.address = buffer.data_ptr()
        words = host.numpy()
        integers = words.view(np.int32)
        for part, values in self._parts:
            if isinstance(values, np.ndarray):
                integers[part.begin // 4 : part.end // 4] = values.reshape(-1)
            else:
                words.view(np.uint8)[part.begin : part.end] = bits_of(values).numpy()
        for part, write in self._late:
            write(words[part.begin // 8 : part.end // 8].reshape(part.shape))

    @property
    def buffer(self) -> torch.Tensor:
        """What is on the device, as words of 64 bits."""
        if self._buffer is None:
            self.send()
        assert self._buffer is not None
        return self._buffer


class CopyStream:
    """The stream of copies to a device. Threads may share it: another thread's copies only make one wait longer."""

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device)
        self.done = torch.cuda.Event()

    def copy(self, host: torch.Tensor, fill: Callable[[torch.Tensor, torch.Tensor], None]) -> torch.Tensor:
        """Memory of this stream that has what `fill(host, memory)` has left on the host; what the current stream does
        from here on waits for it."""
        current = torch.cuda.current_stream(self.stream.device)
        with torch.cuda.stream(self.stream):
            buffer = torch.empty_like(host, device=self.stream.device)
            fill(host, buffer)
            buffer.copy_(host, non_blocking=True)
        self.done.record(self.stream)
        current.wait_event(self.done)
        buffer.record_stream(current)
        return buffer


copies_to = cache(CopyStream)
"""Those to a device."""
