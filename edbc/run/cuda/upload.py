"""One copy per mini-batch: everything that the device must be told goes up in one pinned buffer.

Parts are appended on the host and get an offset; `send` allocates, fills and copies, and parts are views of the
device's buffer from then on. The copy does not wait: the buffer comes from torch's pinned allocator, which gives its
memory to nobody else before the copy has happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

ALIGNMENT = 16


@dataclass(frozen=True, eq=False)
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
        return self.upload.buffer[self.begin : self.end].view(self.dtype).view(self.shape)


class Upload:
    """See the module's docstring. One per mini-batch; not shared between threads."""

    def __init__(self, device: torch.device):
        self.device = device
        self.size = 0
        self._parts: list[tuple[Part, NDArray[Any] | torch.Tensor]] = []
        self._buffer: torch.Tensor | None = None

    @property
    def is_sent(self) -> bool:
        """True once the buffer is on its way."""
        return self._buffer is not None

    def indices(self, values: NDArray[np.integer]) -> Part:
        """Append integers, as int32."""
        array = np.ascontiguousarray(values, np.int32)
        return self._append(array, array.nbytes, torch.int32, array.shape)

    def data(self, values: torch.Tensor) -> Part:
        """Append a host tensor."""
        values = values.contiguous()
        return self._append(values, values.numel() * values.itemsize, values.dtype, tuple(values.shape))

    def _append(self, values: NDArray[Any] | torch.Tensor, size: int, dtype: torch.dtype, shape: Any) -> Part:
        part = Part(self, self.size, self.size + size, dtype, shape)
        self.size = -(-part.end // ALIGNMENT) * ALIGNMENT
        self._parts.append((part, values))
        return part

    def send(self) -> None:
        """Copy everything appended so far, once."""
        host = torch.empty(self.size, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        for part, values in self._parts:
            tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
            host[part.begin : part.end].view(part.dtype).view(part.shape).copy_(tensor)
        self._buffer = host.to(self.device, non_blocking=True)
        self._parts = []

    @property
    def buffer(self) -> torch.Tensor:
        """The bytes on the device."""
        if self._buffer is None:
            self.send()
        assert self._buffer is not None
        return self._buffer
