"""The native loops that join records to a mini-batch: the only ones, whoever made the records.

Definitions.

(1) The *words* of a record are 32-bit integers: the lengths n, m, k, r, d, s; the type of each node (n), where its
    operands end (n); the operands (m), a node of the record or -1 - external, and which output of it (m); the source of
    each external (k); the results (r), like operands, their outputs (r) and slots (s, that is r, or 1 where all have
    one slot); the nodes recorded where gradients were off (d); and last what of its source each external is (k).
(2) Externals stand in an order that company does not change: whole parameters by source; then rows, draws and offsets
    as forward made them; then constants as nodes and results first read them. A constant is number i of its source's
    when i of that source stand before it.
(3) In a mini-batch a whole parameter is one external, that of the first record which reads it, as in a recording.

A captured instance is a record. A fragment (`vertex.fragment`) is one of many vertices, and says what follows.

(4) An operand or result n + p is what predecessor p of the vertex scattered, and its output which value of it.
(5) Results of slot -1, which come first, are what the vertex scatters; the slot of others is the output's number.
(6) An external of its source's item -1 - 2c is what column c says of the vertex; -2 - 2j is constant j of the code,
    one external of a mini-batch.

(7) A mini-batch is a *block* of 64-bit words: its lengths, and then, each from a cache line on, of 32-bit numbers node
    types, borders of operands, operands, their outputs and slots of results; of bytes which nodes are detached (none
    where no node is); of 64-bit numbers sources of externals and what of them each is, nodes and outputs of results;
    where the nodes of each instance begin, and where its results do in each output; last of 32-bit numbers classes of
    externals, as the reader numbers them. Results stand output by output, instance after instance.

The parts are of one block because an allocator hands memory back to the system when much more than its largest block so
far is free, and takes fresh memory, a page fault per page: many arrays of some 100 KB, or two blocks, cost that at
every mini-batch, one does not (measured: 0.085 and 0.15 against 0.045 microseconds a vertex). And one block is what
travels between processes.

Indices are unsigned, see `kernelcache.U`. Loops stand in functions that make no array and are compiled without
reference counts, which numba would count at every step.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from edbc.capture.record.draws import INSTANCE_BITS, VERTEX_BITS
from edbc.native.kernelcache import INNER, UNCOUNTED, U, njit
from edbc.native.kinds import copy
from edbc.native.pointers import read_only

HEADER = 6
ROW, WHOLE, CONSTANT, DRAW, OFFSET = range(5)
"""Kinds of sources."""
LINE = 8
"""Words of 64 bits in a cache line, and lengths of a block: nodes, operands, results, detached nodes, room for
externals, instances, outputs, externals."""


class Records(NamedTuple):
    """Definition (1)."""

    words: Any
    begin: Any  # (records,)
    times: Any
    """How often each is joined."""


class Items(NamedTuple):
    """What is joined, in order: captured instances, or vertices with their predecessors."""

    record_of: Any  # (items,)
    item_ptr: Any  # (instances + 1,)
    edges: Any
    edge_at: Any
    """(items,) where in `edges` the predecessors of a vertex begin, counted in its instance."""
    columns: Any  # (columns, items)


class Sources(NamedTuple):
    """Of every source its kind, the class of its values, and what is above its items; of every constant of code its
    item."""

    kind: Any
    value_class: Any
    limit: Any
    item: Any


class Parts(NamedTuple):
    """The parts of a block, definition (7)."""

    node_type: Any
    operand_ptr: Any
    operands: Any
    operand_output: Any
    result_slot: Any
    detached: Any
    external_source: Any
    external_index: Any
    result_node: Any
    result_output: Any
    node_ptr: Any  # (instances + 1,)
    result_ptr: Any
    """(outputs x (instances + 1),) output by output."""
    external_class: Any


NUM_PARTS = 13


class Scratch(NamedTuple):
    """What joining remembers."""

    place: Any
    """External in the mini-batch of each of a record's, as -1 - external."""
    shared: Any
    """External of each source (whole parameters), then of each constant of code; -1 for none yet."""
    pooled: Any
    """Constants of each source so far."""
    given_start: Any
    given: Any
    """What vertices scatter, node x 2**32 + output; where that of each begins."""
    next_row: Any
    """Of each output."""


@njit(cache=True)
def join(packed, count, kind_of_source, class_of_source):
    """The block of `count` instances whose words stand one after the other, its parts, and the slot of its results
    (`one_of`). O(words). Words are as `check` wants them."""
    begin = np.empty(count, np.int64)
    at = 0
    for i in range(count):
        begin[i] = at
        n, m, k, r = packed[at], packed[at + 1], packed[at + 2], packed[at + 3]
        at += HEADER + 2 * (n + m + k + r) + packed[at + 4] + packed[at + 5]
    records = Records(packed, begin, np.ones(count, np.int64))
    items = Items(np.arange(count).astype(np.uint32), np.arange(count + 1), packed, begin, np.empty((0, 0), np.int64))
    none = np.empty(0, np.int64)
    block, parts, _, _ = written(records, items, Sources(kind_of_source, class_of_source, none, none), 1)
    return block, parts, one_of(parts_of(block).result_slot)


@njit(**INNER, **UNCOUNTED)
def one_of(numbers):
    """What all numbers are; -1 where they differ, or there are none."""
    for number in numbers:
        if number != numbers[0]:
            return np.int64(-1)
    return np.int64(numbers[0]) if len(numbers) else np.int64(-1)


@njit(**INNER)
def written(records, items, sources, num_outputs):
    """The block of records and its parts; then column and item of a number outside of its source, or -1."""
    sizes = np.zeros(LINE, np.int64)
    rows = np.zeros(num_outputs, np.int64)
    num_given, most = _count(records, sizes, rows)
    sizes[5], sizes[6], sizes[7] = len(items.item_ptr) - 1, num_outputs, sizes[4]
    block = np.empty(end_of(sizes), np.int64)
    copy(sizes, 0, LINE, block, 0)
    parts = parts_of(block)
    parts.detached[:] = 0
    num_items = len(items.record_of) if num_given else 0
    scratch = Scratch(
        np.empty(most, np.int64), np.full(len(sources.kind) + len(sources.item), -1, np.int64),
        np.zeros(len(sources.kind), np.int64), np.empty(num_items, np.int64), np.empty(num_given, np.int64),
        np.cumsum(rows) - rows,
    )  # fmt: skip
    parts.node_ptr[0] = 0
    for o in range(num_outputs):
        parts.result_ptr[o * (sizes[5] + 1)] = scratch.next_row[o]
    block[7], column, item = _write(records, items, sources, parts, scratch, num_given > 0)
    # block[7]: a shared external was counted as often as it is read
    return block, finished(block, sources.value_class), column, item


@njit(**INNER)
def finished(block, class_of_source):
    """The parts of a block whose classes of externals are still to be written, of which Python may write no graph; a
    plain tuple, which costs least to hand over."""
    parts = parts_of(block)
    _write_classes(parts, class_of_source)
    return (
        read_only(parts.node_type), read_only(parts.operand_ptr), read_only(parts.operands),
        read_only(parts.operand_output), parts.result_slot, parts.detached, parts.external_source, parts.external_index,
        parts.result_node, parts.result_output, parts.node_ptr, parts.result_ptr, read_only(parts.external_class),
    )  # fmt: skip


@njit(**INNER, **UNCOUNTED)
def _write_classes(parts, class_of_source):
    for j in range(U(len(parts.external_source))):
        parts.external_class[j] = class_of_source[U(parts.external_source[j])]


@njit(**INNER)
def _ends(sizes):
    """Where the parts of a block begin, and its end."""
    n, m, r, k = sizes[0], sizes[1], sizes[2], sizes[4]
    detached = n if sizes[3] else 0
    words = ((n + 1) // 2, (n + 2) // 2, (m + 1) // 2, (m + 1) // 2, (r + 1) // 2, (detached + 7) // 8, k, k, r, r,
             sizes[5] + 1, sizes[6] * (sizes[5] + 1), (k + 1) // 2)  # fmt: skip
    ends = np.empty(len(words) + 1, np.int64)
    ends[0] = LINE
    for i in range(len(words)):
        ends[i + 1] = ends[i] + (words[i] + LINE - 1) // LINE * LINE
    return ends


@njit(**INNER)
def end_of(sizes):
    """How many words a block of these lengths has."""
    return _ends(sizes)[-1]


@njit(**INNER)
def parts_of(block):
    """The parts of a block whose lengths fit, as views."""
    ends = _ends(block)
    n, m, r, k = block[0], block[1], block[2], block[7]
    return Parts(
        block[ends[0] : ends[1]].view(np.int32)[:n],
        block[ends[1] : ends[2]].view(np.int32)[: n + 1],
        block[ends[2] : ends[3]].view(np.int32)[:m],
        block[ends[3] : ends[4]].view(np.int32)[:m],
        block[ends[4] : ends[5]].view(np.int32)[:r],
        block[ends[5] : ends[6]].view(np.uint8)[: n if block[3] else 0],
        block[ends[6] : ends[6] + k],
        block[ends[7] : ends[7] + k],
        block[ends[8] : ends[8] + r],
        block[ends[9] : ends[9] + r],
        block[ends[10] : ends[10] + block[5] + 1],
        block[ends[11] : ends[11] + block[6] * (block[5] + 1)],
        block[ends[12] : ends[13]].view(np.int32)[:k],
    )


@njit(**INNER, **UNCOUNTED)
def _count(records, sizes, rows):
    """Add up the lengths of a block and the rows of each output. Returns how many values are scattered, and the most
    externals of a record. O(records + results)."""
    words, begin, times = records
    num_given = most = np.int64(0)
    for f in range(U(len(begin))):
        many = times[f]
        if not many:
            continue
        at = U(begin[f])
        n, m, k, r = U(words[at]), U(words[at + U(1)]), U(words[at + U(2)]), U(words[at + U(3)])
        sizes[0] += many * np.int64(n)
        sizes[1] += many * np.int64(m)
        sizes[3] += many * words[at + U(4)]
        sizes[4] += many * np.int64(k)
        most = max(most, np.int64(k))
        if len(rows) == 1 and (r == U(0) or words[at + U(HEADER) + U(2) * (n + m + r) + k] >= 0):
            rows[0] += many * np.int64(r)
            continue
        slots = at + U(HEADER) + U(2) * (n + m + r) + k
        for j in range(slots, slots + U(words[at + U(5)])):
            if words[j] < 0:
                num_given += many
            else:
                rows[U(words[j])] += many
    for output in range(len(rows)):
        sizes[2] += rows[output]
    return num_given, most


@njit(inline="always", **INNER, **UNCOUNTED)
def _value(u, output, n, node, item, base, items, scratch):
    """What an operand or result is in the mini-batch, node x 2**32 + output; definitions (1) and (4)."""
    if u < 0:
        return scratch.place[U(-1 - u)] << 32
    if u < np.int64(n):
        return ((np.int64(node) + u) << 32) + output
    predecessor = base + U(items.edges[U(items.edge_at[item]) + U(u) - n])
    return scratch.given[U(scratch.given_start[predecessor]) + U(output)]


@njit(**INNER, **UNCOUNTED)
def _write(records, items, sources, parts, scratch, scatters):
    """Write the records of all items: externals, nodes, operands, results, definitions (1) to (6). Returns the number
    of externals, and column and item of a number outside of its source, or -1. O(nodes + operands + externals)."""
    words = records.words
    one, two = U(1), U(2)
    node = operand = external = given = U(0)
    num_sources = len(sources.kind)
    parts.operand_ptr[0] = 0
    for i in range(U(len(items.item_ptr) - 1)):
        base, stop = U(items.item_ptr[i]), U(items.item_ptr[i + one])
        for item in range(base, stop):
            at = U(records.begin[U(items.record_of[item])])
            n, m, k, r = U(words[at]), U(words[at + one]), U(words[at + two]), U(words[at + U(3)])
            d, s = U(words[at + U(4)]), U(words[at + U(5)])
            types = at + U(HEADER)
            reads = types + two * n
            of = reads + two * m
            results = of + k
            off = results + two * r + s
            indices = off + d
            for j in range(k):
                source, index = U(words[of + j]), np.int64(words[indices + j])
                kind = sources.kind[source]
                once = np.int64(-1)
                if kind == WHOLE:
                    once = np.int64(source)
                elif index < 0:
                    which = U(-1 - index) >> one
                    if index & 1:
                        index = items.columns[which, item]
                        if index < 0 or index >= sources.limit[source]:
                            return np.int64(external), np.int64(which), np.int64(item)
                    else:
                        index = sources.item[which]
                        once = num_sources + np.int64(which)
                elif kind == CONSTANT:
                    index = scratch.pooled[source]
                    scratch.pooled[source] = index + 1
                elif kind == DRAW:
                    index += (np.int64(i) << INSTANCE_BITS) + (np.int64(item - base) << VERTEX_BITS)
                if once >= 0:
                    known = scratch.shared[U(once)]
                    if known >= 0:
                        scratch.place[j] = -1 - known
                        continue
                    scratch.shared[U(once)] = np.int64(external)
                scratch.place[j] = -1 - np.int64(external)
                parts.external_source[external] = np.int64(source)
                parts.external_index[external] = index
                external += one
            for j in range(n):
                parts.node_type[node + j] = words[types + j]
                parts.operand_ptr[node + j + one] = np.int64(operand) + words[types + n + j]
            for j in range(m):
                value = _value(np.int64(words[reads + j]), words[reads + m + j], n, node, item, base, items, scratch)
                parts.operands[operand + j] = value >> 32
                parts.operand_output[operand + j] = value & 0xFFFFFFFF
            if scatters:
                scratch.given_start[item] = np.int64(given)
            slots = results + two * r
            for j in range(r):
                value = _value(
                    np.int64(words[results + j]), words[results + r + j], n, node, item, base, items, scratch
                )
                slot = words[slots + (j if s > one else U(0))]
                if slot < 0:
                    scratch.given[given] = value
                    given += one
                    continue
                output = U(slot) if len(scratch.next_row) > 1 else U(0)
                row = U(scratch.next_row[output])
                scratch.next_row[output] = np.int64(row + one)
                parts.result_node[row] = value >> 32
                parts.result_output[row] = value & 0xFFFFFFFF
                parts.result_slot[row] = slot
            for j in range(d):
                parts.detached[node + U(words[off + j])] = 1
            node += n
            operand += m
        parts.node_ptr[i + one] = np.int64(node)
        for output in range(U(len(scratch.next_row))):
            parts.result_ptr[output * U(len(items.item_ptr)) + i + one] = scratch.next_row[output]
    return np.int64(external), np.int64(-1), np.int64(-1)
