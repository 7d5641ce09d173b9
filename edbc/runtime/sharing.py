"""Native loops that find equal operands. Each has a plain-Python reference in the tests.

Equal externals are the same row of the same source (`Capture.external_source`, `external_index`). A draw is a row of
its own, so what reads random numbers equals nothing else.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated"

from __future__ import annotations

import numpy as np
from numba import njit

from edbc.schedule.native import wrapping

_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


@njit(inline="always")
def _mixed(hashed, item):
    """The hash of what was hashed so far and one more integer."""
    hashed = (hashed ^ np.uint64(item)) * _MIX
    return hashed ^ (hashed >> _HALF)


@njit(inline="always")
def _slots(count):
    """Slots of a hash table with at most `count` entries: a power of two, at most half of them taken."""
    slots = 4
    while slots < 2 * count:
        slots *= 2
    return slots


@wrapping
@njit(cache=True)
def find_equal_operands(nodes, node_type, operand_ptr, operands, external_source, external_index, asked_ptr, asked):
    """Per node the first of `nodes`, in their order, of its type with equal operands `asked[asked_ptr[t]:]`, which are
    externals in every node of type t; itself where its type t has none. And per type how many first ones there are, 0
    where it has none. O(nodes + their operands)."""
    num_types = len(asked_ptr) - 1
    leader = np.arange(len(node_type))
    distinct = np.zeros(num_types, np.int64)
    count = 0
    for v in nodes:
        count += asked_ptr[node_type[v] + 1] > asked_ptr[node_type[v]]
    slots = _slots(count)
    taken = np.full(slots, -1, np.int32)
    for v in nodes:
        t = node_type[v]
        first, last = asked_ptr[t], asked_ptr[t + 1]
        if first == last:
            continue
        hashed = _mixed(np.uint64(0), t)
        for i in range(first, last):
            e = -1 - operands[operand_ptr[v] + asked[i]]
            hashed = _mixed(_mixed(hashed, external_source[e]), external_index[e])
        at = np.int64(hashed) & (slots - 1)
        while True:
            u = taken[at]
            if u < 0:
                taken[at] = v
                distinct[t] += 1
                break
            equal = node_type[u] == t
            i = first
            while equal and i < last:
                d, e = -1 - operands[operand_ptr[u] + asked[i]], -1 - operands[operand_ptr[v] + asked[i]]
                equal = external_source[d] == external_source[e] and external_index[d] == external_index[e]
                i += 1
            if equal:
                leader[v] = u
                break
            at = (at + 1) & (slots - 1)
    return leader, distinct
