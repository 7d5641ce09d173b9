"""Philox-4x32-10, and rows of random numbers made of it: the native loops of `edbc.run.passes.randomrows`."""

# numba infers the types of kernels.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import numpy as np

from edbc.native.kernelcache import njit

_KEEP, _UNIFORM = 0, 1
"""Numbers of `draws.KINDS`."""
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_UNIT = 1.0 / 4294967296.0


@njit(cache=True)
def philox(c0, c1, c2, c3, k0, k1):
    """Ten rounds: four words, of a counter of four words and a key of two, all held in 64 bits."""
    for _ in range(10):
        left, right = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (right >> _HALF) ^ c1 ^ k0, right & _MASK, (left >> _HALF) ^ c3 ^ k1, left & _MASK
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


@njit(cache=True)
def fill(out, kind, first, second, seed, number, bits):
    """Definitions (2) and (3) of `edbc.run.passes.randomrows` for rows of draws; words lose their last `bits`."""
    zero = np.uint64(0)
    for row in range(len(out)):
        k0, k1 = seed[row] & _MASK, seed[row] >> _HALF
        c2, c3 = number[row] & _MASK, number[row] >> _HALF
        size = out.shape[1]
        for block in range((size + 3) // 4):
            words = philox(np.uint64(block), zero, c2, c3, k0, k1)
            for pair in range(2):
                u = float((words[2 * pair] >> bits) << bits) * _UNIT
                v = float((words[2 * pair + 1] >> bits) << bits) * _UNIT
                if kind == _KEEP:
                    u = second if u >= first else 0.0
                    v = second if v >= first else 0.0
                elif kind == _UNIFORM:
                    u = first + (second - first) * u
                    v = first + (second - first) * v
                else:
                    radius = second * math.sqrt(-2.0 * math.log(1.0 - u))
                    u = first + radius * math.cos(2.0 * math.pi * v)
                    v = first + radius * math.sin(2.0 * math.pi * v)
                at = 4 * block + 2 * pair
                if at < size:
                    out[row, at] = u
                if at + 1 < size:
                    out[row, at + 1] = v
