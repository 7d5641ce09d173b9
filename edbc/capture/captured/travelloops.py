"""Blocks (`captured.joinloops`) small enough to travel between processes, and the native loop that makes them large.

What travels is bytes: the lengths of a block, then of each part but classes of externals the least of its numbers and
how many bytes wide they are above it (1, 2, 4 or 8, the fewest that hold all of them, or 0 where all are equal), and
the parts, each from the next 8 bytes on. Of borders of operands their differences travel. A block of 32 trees is 90 KB
and travels as 22: a pipe holds two such, so that no process waits for the other in the middle of one.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edbc.capture.captured.joinloops import LINE, NUM_PARTS, Parts, end_of, parts_of
from edbc.native.kernelcache import INNER, UNCOUNTED, njit
from edbc.native.kinds import copy

NUM_SENT = NUM_PARTS - 1
"""All parts but the last: readers have class numbers of their own."""
MAY_BE_EQUAL = np.array([0, 1, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0], np.bool_)
"""Parts that may have no bytes: another part of the same length has some, so that few bytes are no large block."""
FIRST = 8 * (LINE + 2 * NUM_SENT)
"""Where the first part begins."""


def narrow(block: NDArray[np.int64], parts: Parts) -> bytes:
    """The bytes of a block with these parts. O(words)."""
    sent = parts._replace(operand_ptr=np.diff(parts.operand_ptr))[:NUM_SENT]
    least = [int(part.min()) if len(part) else 0 for part in sent]
    narrowed = [_narrowed(*of_part) for of_part in zip(sent, least, MAY_BE_EQUAL.tolist(), strict=True)]
    head = [*block[:LINE].tolist(), *least, *(width for width, _ in narrowed)]
    head[4] = head[7]
    padded = [data + bytes(-len(data) % 8) for _, data in narrowed]
    return b"".join([np.array(head, np.int64).tobytes(), *padded])


def _narrowed(part: NDArray[np.integer], low: int, may_be_equal: bool) -> tuple[int, bytes]:
    """How many bytes wide the numbers of a part are above the least one, and they."""
    above = part.astype(np.int64) - low
    high = int(above.max(initial=0))
    width = next(width for width in (0, 1, 2, 4, 8) if high < 1 << 8 * width and (width or may_be_equal))
    return width, above.astype(f"<u{width}").tobytes() if width else b""


@njit(**INNER)
def widened(data):
    """The block with these bytes; an empty array where there is none."""
    none = np.empty(0, np.int64)
    if len(data) < FIRST or len(data) % 8:
        return none
    longs = data.view(np.int64)
    for j in range(LINE):
        if longs[j] < 0 or longs[j] > len(data):
            return none
    for i in range(NUM_SENT):
        width = longs[LINE + NUM_SENT + i]
        if width not in (1, 2, 4, 8) and not (width == 0 and MAY_BE_EQUAL[i]):
            return none
    begin = _begins(longs)
    if longs[4] != longs[7] or begin[-1] != len(data):
        return none
    block = np.empty(end_of(longs), np.int64)
    copy(longs, 0, LINE, block, 0)
    parts = parts_of(block)
    views = data.view(np.uint8), data.view(np.uint16), data.view(np.uint32), longs
    part = np.int64(0)  # a number in each call would make a version each
    part = _take(parts.node_type, views, begin, part)
    part = _take(parts.operand_ptr[1:], views, begin, part)
    part = _take(parts.operands, views, begin, part)
    part = _take(parts.operand_output, views, begin, part)
    part = _take(parts.result_slot, views, begin, part)
    part = _take(parts.detached, views, begin, part)
    part = _take(parts.external_source, views, begin, part)
    part = _take(parts.external_index, views, begin, part)
    part = _take(parts.result_node, views, begin, part)
    part = _take(parts.result_output, views, begin, part)
    part = _take(parts.node_ptr, views, begin, part)
    part = _take(parts.result_ptr, views, begin, part)
    _add_up(parts.operand_ptr)
    return block


@njit(**INNER)
def _begins(head):
    """Where the parts begin, and the end."""
    n, m, r, k = head[0], head[1], head[2], head[7]
    counts = (n, n, m, m, r, n if head[3] else 0, k, k, r, r, head[5] + 1, head[6] * (head[5] + 1))
    begin = np.empty(NUM_SENT + 1, np.int64)
    begin[0] = FIRST
    for i in range(NUM_SENT):
        begin[i + 1] = begin[i] + (counts[i] * head[LINE + NUM_SENT + i] + 7) // 8 * 8
    return begin


@njit(**INNER, **UNCOUNTED)
def _add_up(borders):
    """From differences, behind a place for the first border, to borders."""
    borders[0] = 0
    for j in range(1, len(borders)):
        borders[j] += borders[j - 1]


@njit(**INNER, **UNCOUNTED)
def _take(target, views, begin, part):
    """Fill a part from where it begins, in the view of its width; returns the number of the next one."""
    bytes_, shorts, ints, longs = views
    least, width = longs[LINE + part], longs[LINE + NUM_SENT + part]
    first = begin[part] // max(width, 1)
    if width == 0:
        target[:] = least
    elif width == 1:
        for i in range(len(target)):
            target[i] = least + bytes_[first + i]
    elif width == 2:
        for i in range(len(target)):
            target[i] = least + shorts[first + i]
    elif width == 4:
        for i in range(len(target)):
            target[i] = least + ints[first + i]
    else:
        for i in range(len(target)):
            target[i] = least + longs[first + i]
    return part + 1
