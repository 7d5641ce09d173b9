"""Blocks (`captured.joinloops`) small enough to travel between processes, and the native loop that makes them large.

What travels is bytes: the lengths of a block, how many bytes wide the numbers of each part are (1, 2, 4 or 8, the
fewest that hold all of them), and the parts but classes of externals, each from the next 8 bytes on. A block of 32
trees is 90 KB and travels as 25: less than a pipe holds, so that no process waits for the other in the middle of it.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edbc.capture.captured.joinloops import LINE, NUM_PARTS, Parts, end_of, parts_of
from edbc.native.kernelcache import INNER, UNCOUNTED, njit

NUM_SENT = NUM_PARTS - 1
"""All parts but the last: readers have class numbers of their own."""
FIRST = 8 * (LINE + NUM_SENT)
"""Where the first part begins."""


def narrow(block: NDArray[np.int64], parts: Parts) -> bytes:
    """The bytes of a block with these parts. O(words)."""
    narrowed = [part.astype(_narrowest(part)) for part in parts[:NUM_SENT]]
    head = [*block[:LINE].tolist(), *(part.itemsize for part in narrowed)]
    head[4] = head[7]
    padded = [part.tobytes() + bytes(-part.nbytes % 8) for part in narrowed]
    return b"".join([np.array(head, np.int64).tobytes(), *padded])


def _narrowest(part: NDArray[np.integer]) -> str:
    low, high = (int(part.min()), int(part.max())) if len(part) else (0, 0)
    return next(f"<i{size}" for size in (1, 2, 4, 8) if -(1 << 8 * size - 1) <= low and high < 1 << 8 * size - 1)


@njit(**INNER)
def widened(data):
    """The block with these bytes; an empty array where there is none."""
    none = np.empty(0, np.int64)
    if len(data) < FIRST or len(data) % 8:
        return none
    longs = data.view(np.int64)
    for j in range(LINE + NUM_SENT):
        if longs[j] < 0 or longs[j] > len(data) or (j >= LINE and not 0 < longs[j] <= 8):
            return none
    begin = _begins(longs)
    if longs[4] != longs[7] or begin[-1] != len(data):
        return none
    block = np.empty(end_of(longs), np.int64)
    block[:LINE] = longs[:LINE]
    parts = parts_of(block)
    views = data.view(np.int8), data.view(np.int16), data.view(np.int32), longs
    _take(parts.node_type, views, begin, 0)
    _take(parts.operand_ptr, views, begin, 1)
    _take(parts.operands, views, begin, 2)
    _take(parts.operand_output, views, begin, 3)
    _take(parts.result_slot, views, begin, 4)
    _take(parts.detached, views, begin, 5)
    _take(parts.external_source, views, begin, 6)
    _take(parts.external_index, views, begin, 7)
    _take(parts.result_node, views, begin, 8)
    _take(parts.result_output, views, begin, 9)
    _take(parts.node_ptr, views, begin, 10)
    _take(parts.result_ptr, views, begin, 11)
    return block


@njit(**INNER)
def _begins(head):
    """Where the parts begin, and the end."""
    n, m, r, k = head[0], head[1], head[2], head[7]
    counts = (n, n + 1, m, m, r, n if head[3] else 0, k, k, r, r, head[5] + 1, head[6] * (head[5] + 1))
    begin = np.empty(NUM_SENT + 1, np.int64)
    begin[0] = FIRST
    for i in range(NUM_SENT):
        begin[i + 1] = begin[i] + (counts[i] * head[LINE + i] + 7) // 8 * 8
    return begin


@njit(**INNER, **UNCOUNTED)
def _take(target, views, begin, part):
    """Fill a part from where it begins, in the view of its width."""
    bytes_, shorts, ints, longs = views
    width = longs[LINE + part]
    first = begin[part] // width
    if width == 1:
        for i in range(len(target)):
            target[i] = bytes_[first + i]
    elif width == 2:
        for i in range(len(target)):
            target[i] = shorts[first + i]
    elif width == 4:
        for i in range(len(target)):
            target[i] = ints[first + i]
    else:
        for i in range(len(target)):
            target[i] = longs[first + i]
