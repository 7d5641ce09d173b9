"""Whether parameters are as they were when something was made of them: weights that are packed side by side.

A parameter counts as changed when its storage's address, its strides, its version counter or its object differs:
`load_state_dict`, an optimiser's step, `.data = ...`, `.to()` and assignment of a new parameter are all seen. The
objects and storages are kept until then, so that nothing new can stand at their addresses. What is written through
`.data`, which counts nothing, is told from a sample of the words of parameters on the CPU (`weights.fingerprint`).

Fused steps of optimisers count no versions up either. A *generation* begins with every step of an optimiser of
torch.optim and with every mini-batch that gradients are asked of. What is derived from parameters is derived anew in
every generation, though version counters may say that none changed. Between two mini-batches without gradients only the
version counters tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.optimizer import register_optimizer_step_post_hook

from edbc.errors import ModelError, StaleError
from edbc.run.weights.fingerprint import fingerprint, places

Key = tuple[int, list[int], list[int], list[tuple[int, ...]], list[int]]

_events = itertools.count(1)
_latest = 0


def count() -> None:
    """Begin a new generation."""
    global _latest
    _latest = next(_events)


register_optimizer_step_post_hook(lambda *_: count())


@dataclass(frozen=True, eq=False)
class Seen:
    """Tensors as they were."""

    key: Key
    kept: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """The tensors, and their storages as tensors."""
    places: NDArray[np.int64]
    print: int

    @classmethod
    def now(cls, tensors: Sequence[torch.Tensor], names: Sequence[str], device: torch.device,
            before: Seen | None) -> Seen:  # fmt: skip
        """The tensors as they are, `before` itself where nothing has changed: one comparison per tensor. What changes
        from here on differs from it. Raises StaleError for a tensor that has left its device, ModelError for one whose
        storage was taken away: native code reads at addresses."""
        key = (_latest, *_state(tensors))
        if before is not None and key == before.key and fingerprint(before.places) == before.print:
            return before
        if before is not None and before.key[1:4] == key[1:4]:
            kept, words = before.kept, before.places
        else:
            kept = tuple((tensor, tensor.detach()) for tensor in tensors)
            words = places(storage for _, storage in kept)
        for name, (_, tensor) in zip(names, kept, strict=True):
            if tensor.device.type != device.type:
                raise StaleError(
                    f"{name} of the model was on {device} when it was bound and is on {tensor.device} now; bind the "
                    "model again"
                )
            if not tensor.is_meta:
                require_storage(tensor, name)
        return cls(key, kept, words, fingerprint(words))


def _state(tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[int], list[tuple[int, ...]], list[int]]:
    """Of every tensor its identity, address, strides and version, in half the time of asking tensor by tensor."""
    one = torch.Tensor
    try:
        versions = [tensor._version for tensor in tensors]
    except RuntimeError:  # made under inference_mode: has none
        versions = [0 if tensor.is_inference() else tensor._version for tensor in tensors]
    return [*map(id, tensors)], [*map(one.data_ptr, tensors)], [*map(one.stride, tensors)], versions


def require_storage(tensor: torch.Tensor, name: str) -> None:
    """Raise ModelError for a tensor whose storage does not hold all of its elements (`storage.resize_(0)`), or none."""
    if tensor.is_meta:
        raise ModelError(f"{name} of the model: expected numbers, got a tensor on the meta device; load weights again")
    count = tensor.numel()
    extent = count - 1
    if not tensor.is_contiguous():
        extent = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    last = tensor.storage_offset() + extent
    held = tensor.untyped_storage().nbytes()
    if count and (last + 1) * tensor.itemsize > held:
        raise ModelError(
            f"{name} of the model: expected {(last + 1) * tensor.itemsize:,} bytes of memory, got {held:,}: its "
            "storage was resized; give it its memory back before the call"
        )
