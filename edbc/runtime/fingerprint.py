"""A fingerprint of memory: whether tensors hold what they held, told from a few of their words.

Writing through `.data` (`p.data.copy_(...)`, `p.data.mul_(...)`) moves no address and counts no version up, though user
code does it everywhere. What changes a tensor so nearly always changes all of it, so WORDS pairs of words spread over
the tensor tell; reading all of it would cost as much as a small mini-batch. A write through `.data` to a few elements
only can go unseen: `Net.refresh` is for those.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type"

from __future__ import annotations

import numpy as np
from numba import njit

from edbc.runtime.pointers import load

WORDS = 16
"""Places that are looked at in each tensor; at each, two words of 32 bits, so that float64 shows both halves."""
_FACTOR = np.int64(1_000_003)


@njit(cache=True)
def fingerprint(addresses, sizes):
    """Of tensors at `addresses`, of `sizes` words of 32 bits each; equal for equal words."""
    total = np.int64(len(addresses))
    like = np.int32(0)
    for i in range(len(addresses)):
        last = -1
        for k in range(WORDS):
            at = k * sizes[i] // WORDS
            if at == last:
                continue
            last = at
            for word in range(at, min(at + 2, sizes[i])):
                total = total * _FACTOR + load(addresses[i], word, like)
    return total
