"""A fingerprint of memory: whether tensors hold what they held, told from a few of their elements.

Writing through `.data` (`p.data.copy_(...)`, `p.data.mul_(...)`) moves no address and counts no version up, though user
code does it everywhere. What changes a tensor so nearly always changes all of it, so ELEMENTS of them spread over the
tensor, the first and the last included, tell; reading all of it would cost as much as a small mini-batch. A write
through `.data` to a few elements only can go unseen: `Net.refresh` is for those.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type"

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import torch
from numba import config
from numpy.typing import NDArray

from edbc.native.kernelcache import njit
from edbc.native.pointers import load

ELEMENTS = 16
"""Elements that are looked at in each tensor."""
WORD = 2
"""Bytes that are read at once: every floating dtype but those of one byte is a whole number of words."""
_FACTOR = np.int64(1_000_003)


def places(tensors: Iterable[torch.Tensor]) -> NDArray[np.int64]:
    """Addresses of the words that tell, of all tensors on the CPU in whatever memory order. Who uses them keeps the
    tensors alive."""
    found = [np.zeros(0, np.int64)]
    for tensor in tensors:
        if tensor.device.type == "cpu" and tensor.numel():
            found.append(tensor.data_ptr() + _offsets(tuple(tensor.shape), tensor.stride(), tensor.itemsize))
    return np.concatenate(found)


@lru_cache(4096)  # training asks in every mini-batch
def _offsets(shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> NDArray[np.int64]:
    """Bytes from the first element to the words."""
    size = math.prod(shape)
    elements = np.linspace(0, size - 1, min(ELEMENTS, size)).astype(np.int64)
    index = np.unravel_index(elements, shape) if shape else ()
    steps = sum((i * s for i, s in zip(index, strides, strict=True)), np.zeros_like(elements))
    return (steps[:, None] * width + np.arange(0, width - WORD + 1, WORD)).reshape(-1)


@njit(cache=True)
def _fingerprint(addresses):
    total = np.int64(len(addresses))
    like = np.int16(0)
    for address in addresses:
        total = total * _FACTOR + load(address, 0, like)
    return total


def _plain_fingerprint(addresses: NDArray[np.int64]) -> int:
    """The same claim without the compiler."""
    return hash(tuple(ctypes.string_at(address, WORD) for address in addresses.tolist()))


fingerprint = _plain_fingerprint if config.DISABLE_JIT else _fingerprint  # type: ignore[attr-defined]
"""Of words at addresses that `places` gave: equal for equal words, in one process."""
