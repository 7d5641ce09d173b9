"""The native checks of what came from elsewhere, before anything reads it: records' words and blocks of mini-batches
(`captured.joinloops`). Both are the same arrays, and are checked by the same loops."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.capture.captured.joinloops import CONSTANT, DRAW, HEADER, LINE, OFFSET, finished, one_of, parts_of
from edbc.capture.captured.travelloops import widened
from edbc.capture.record.draws import INSTANCE_BITS
from edbc.native.kernelcache import INNER, UNCOUNTED, U, njit

(FINE, TRUNCATED, LENGTHS, TYPE, ARITY, OPERAND, OUTPUT, CLASS, SOURCE, INDEX, EXCERPT, SLOT,
 DETACHED) = range(13)  # fmt: skip
"""What `check` finds."""


class Known(NamedTuple):
    """What the reader knows. Of a type a number (0 for a plain one, 1 variadic, 2 an excerpt, 3 segmented, -1 unknown),
    and classes of its operands and outputs (of one size and dtype they are one); of a source a row of class, kind (-1
    unknown), and what its items are below, and its class as externals number it; of a slot its class."""

    types: Any
    operand_class_ptr: Any
    operand_class: Any
    output_class_ptr: Any
    output_class: Any
    class_size: Any
    class_dtype: Any
    sources: Any
    external_class: Any
    slot_class: Any


NUM_KNOWN = len(Known._fields)


def facts_of(known: Known) -> NDArray[np.int64]:
    """As one array, of which a call passes one: how many numbers each field has, then these."""
    fields = [np.asarray(field, np.int64).reshape(-1) for field in known]
    return np.concatenate([np.array(list(map(len, fields)), np.int64), *fields])


class Arrays(NamedTuple):
    """Of one record, or of a block."""

    node_type: Any
    operand_end: Any
    operands: Any
    operand_output: Any
    source: Any
    index: Any
    result_node: Any
    result_output: Any
    result_slot: Any
    """One for each, or one for all."""


@njit(**INNER)
def _known(facts):
    """See `facts_of`."""
    ends = np.cumsum(facts[:NUM_KNOWN])
    at = ends + NUM_KNOWN
    return Known(
        facts[NUM_KNOWN : at[0]], facts[at[0] : at[1]], facts[at[1] : at[2]], facts[at[2] : at[3]],
        facts[at[3] : at[4]], facts[at[4] : at[5]], facts[at[5] : at[6]],
        facts[at[6] : at[7]].reshape((len(facts[at[7] : at[8]]), 3)), facts[at[7] : at[8]], facts[at[8] : at[9]],
    )  # fmt: skip


@njit(cache=True)
def translate(packed, begin, of_type, of_source, of_slot):
    """Write the numbers of another vocabulary in place of those of types, sources and slots. Returns what is wrong with
    them, in which record, and where in it; see `check`."""
    for i in range(len(begin) - 1):
        at, end = begin[i], begin[i + 1]
        if end - at < HEADER:
            return TRUNCATED, i, 0
        total = np.int64(HEADER)
        for j in range(HEADER):
            if packed[at + j] < 0:
                return LENGTHS, i, j
            total += np.int64(packed[at + j]) * (2 if j < 4 else 1)
        if total != end - at:
            return TRUNCATED, i, 0
        n, m, k, r, s = packed[at], packed[at + 1], packed[at + 2], packed[at + 3], packed[at + 5]
        sources = at + HEADER + 2 * n + 2 * m
        slots = sources + k + 2 * r
        for first, count, numbers, what in ((at + HEADER, n, of_type, TYPE), (sources, k, of_source, SOURCE),
                                            (slots, s, of_slot, SLOT)):  # fmt: skip
            fault = _renumbered(packed[first : first + count], numbers)
            if fault >= 0:
                return what, i, fault
    return FINE, -1, -1


@njit(**INNER, **UNCOUNTED)
def _renumbered(array, numbers):
    """Put other numbers in place of an array's. Returns where one has none, or -1."""
    for j in range(len(array)):
        if array[j] < 0 or array[j] >= len(numbers):
            return j
        array[j] = numbers[array[j]]
    return -1


@njit(cache=True)
def check(packed, begin, facts):
    """The first thing that is wrong with words from elsewhere: what (FINE, ...), in which record, and where in it.

    `begin` says where the words of each record begin; lengths are as `translate` has found them.
    """
    known = _known(facts)
    pooled = np.zeros(len(known.sources), np.int64)
    for i in range(len(begin) - 1):
        at = begin[i]
        n, m, k, r, d, s = packed[at], packed[at + 1], packed[at + 2], packed[at + 3], packed[at + 4], packed[at + 5]
        if s != r and (s != 1 or r == 0):
            return LENGTHS, i, HEADER - 1
        kinds = at + HEADER
        reads = kinds + 2 * n
        of = reads + 2 * m
        results = of + k
        off = results + 2 * r + s
        arrays = Arrays(
            packed[kinds : kinds + n], packed[kinds + n : reads], packed[reads : reads + m], packed[reads + m : of],
            packed[of:results], packed[off + d : off + d + k], packed[results : results + r],
            packed[results + r : results + 2 * r], packed[results + 2 * r : off],
        )  # fmt: skip
        what, where = _checked(arrays, known)
        if what != FINE:
            return what, i, where
        for j in range(k):  # definition (2) of `joinloops`
            source = arrays.source[j]
            if known.sources[source, 1] == CONSTANT:
                if arrays.index[j] != pooled[source]:
                    return INDEX, i, j
                pooled[source] += 1
        for j in range(k):
            pooled[arrays.source[j]] = 0
        for j in range(d):
            v = packed[off + j]
            if v < 0 or v >= n or (j and v <= packed[off + j - 1]):
                return DETACHED, i, j
    return FINE, -1, -1


@njit(cache=True)
def open_block(data, num_sources):
    """The parts of a block that travelled, where its lengths and borders say what can be; what is wrong with them, and
    where. `splitloops.split` may read it then."""
    block, what, where = _opened(data)
    parts = parts_of(block)
    if what == FINE:
        what, where = _checked_numbers(parts, num_sources)
    return what, where, parts


@njit(cache=True)
def check_block(data, of_type, of_source, of_slot, pool_lengths, facts):
    """The first thing that is wrong with a block that travelled, and where; and its parts, where numbers of its
    vocabulary have become ours, the slot of its results (`one_of`), and how many an instance has at least.
    `pool_lengths` says how many constants of each source there are."""
    known = _known(facts)
    block, what, where = _opened(data)
    parts = parts_of(block)
    if what == FINE:
        what, where = _put_into(parts, of_type, of_source, of_slot)
    if what == FINE:
        arrays = Arrays(
            parts.node_type, parts.operand_ptr[1:], parts.operands, parts.operand_output, parts.external_source,
            parts.external_index, parts.result_node, parts.result_output, parts.result_slot,
        )  # fmt: skip
        what, where = _checked(arrays, known)
    if what == FINE:
        what, where = _checked_indices(parts, known, pool_lengths)
    if what != FINE:
        block = np.zeros(3 * LINE, np.int64)  # of nothing
        parts = parts_of(block)
    return what, where, finished(block, known.external_class), one_of(parts.result_slot), _fewest(parts.result_ptr)


@njit(**INNER, **UNCOUNTED)
def _fewest(result_ptr):
    """The fewest results of an instance; 0 where there is none."""
    fewest = np.int64(0)
    for i in range(1, len(result_ptr)):
        count = result_ptr[i] - result_ptr[i - 1]
        if i == 1 or count < fewest:
            fewest = count
    return fewest


@njit(**INNER)
def _opened(data):
    """A block, and what is wrong with its lengths and borders."""
    block = widened(data)
    if len(block) == 0:
        return np.zeros(3 * LINE, np.int64), TRUNCATED, 0
    what, where = _checked_borders(parts_of(block))
    return block, what, where


@njit(**INNER, **UNCOUNTED)
def _checked_borders(parts):
    """Where operands, nodes and results begin: from 0 on, never before what stands before, and to the end."""
    for j in range(1, len(parts.operand_ptr)):
        if parts.operand_ptr[j] < parts.operand_ptr[j - 1]:
            return ARITY, j - 1
    for j in range(1, len(parts.node_ptr)):
        if parts.node_ptr[j] < parts.node_ptr[j - 1]:
            return LENGTHS, j
    for v in range(len(parts.detached)):
        if parts.detached[v] > 1:
            return DETACHED, v
    last = np.int64(0)
    for i in range(len(parts.result_ptr)):
        row = parts.result_ptr[i]
        if row < last or (i % len(parts.node_ptr) == 0 and row != last):
            return LENGTHS, i
        last = row
    is_whole = (
        parts.operand_ptr[0] == 0 and parts.operand_ptr[-1] == len(parts.operands) and parts.node_ptr[0] == 0
        and parts.node_ptr[-1] == len(parts.node_type) and last == len(parts.result_node)
    )  # fmt: skip
    return (FINE if is_whole else LENGTHS), 0


@njit(**INNER, **UNCOUNTED)
def _checked_numbers(parts, num_sources):
    """What operands, results and externals are: nodes and externals that there are, sources that there are."""
    n, k = len(parts.node_type), len(parts.external_source)
    for j in range(len(parts.operands)):
        if parts.operands[j] >= n or parts.operands[j] < -k:
            return OPERAND, j
    for j in range(len(parts.result_node)):
        if parts.result_node[j] >= n or parts.result_node[j] < -k:
            return OPERAND, n + j
    for j in range(k):
        if parts.external_source[j] < 0 or parts.external_source[j] >= num_sources:
            return SOURCE, j
        if parts.external_index[j] < 0:
            return INDEX, j
    return FINE, -1


@njit(**INNER, **UNCOUNTED)
def _put_into(parts, of_type, of_source, of_slot):
    fault = _renumbered(parts.node_type, of_type)
    if fault >= 0:
        return TYPE, fault
    fault = _renumbered(parts.external_source, of_source)
    if fault >= 0:
        return SOURCE, fault
    fault = _renumbered(parts.result_slot, of_slot)
    return (SLOT if fault >= 0 else FINE), fault


@njit(**INNER, **UNCOUNTED)
def _checked_indices(parts, known, pool_lengths):
    """Constants that there are, and draws of instances that there are."""
    for j in range(len(parts.external_source)):
        source, index = parts.external_source[j], parts.external_index[j]
        kind = known.sources[source, 1]
        if kind == CONSTANT and index >= pool_lengths[source]:
            return INDEX, j
        if kind == DRAW and index >> INSTANCE_BITS >= len(parts.node_ptr) - 1:
            return INDEX, j
    return FINE, -1


@njit(**INNER, **UNCOUNTED)
def _checked(arrays, known):
    """The first thing that is wrong with arrays, and where: nodes, then results. O(nodes + operands + externals)."""
    one, m, k, r = U(1), len(arrays.operands), len(arrays.source), len(arrays.result_node)
    num_types, num_sources, num_slots = len(known.types), len(known.sources), len(known.slot_class)
    for j in range(U(k)):
        source = np.int64(arrays.source[j])
        if source < 0 or source >= num_sources or known.sources[U(source), U(1)] < 0:
            return SOURCE, np.int64(j)
        if arrays.index[j] < 0 or arrays.index[j] >= known.sources[U(source), U(2)]:
            return INDEX, np.int64(j)
    first = np.int64(0)
    for v in range(U(len(arrays.node_type))):
        last = np.int64(arrays.operand_end[v])
        if arrays.node_type[v] < 0 or arrays.node_type[v] >= num_types:
            return TYPE, np.int64(v)
        kind = U(arrays.node_type[v])
        form = known.types[kind]
        classes = U(known.operand_class_ptr[kind])
        group, given = np.int64(known.operand_class_ptr[kind + one]) - np.int64(classes), last - first
        if form < 0:
            return TYPE, np.int64(v)
        is_variadic = form == 1 or form == 3
        if last > m or given < 0 or (is_variadic and (group == 0 or given == 0 or given % group)):
            return ARITY, np.int64(v)
        if not is_variadic and given != group:
            return ARITY, np.int64(v)
        at = classes
        for j in range(U(first), U(last)):
            what, found = _class_of(arrays.operands[j], arrays.operand_output[j], np.int64(v), arrays, known)
            if what != FINE:
                return what, np.int64(v)
            wanted = known.operand_class[at]
            at += one
            if at == classes + U(group):
                at = classes
            if form == 2 and j == U(first):
                if known.class_dtype[U(found)] != known.class_dtype[U(wanted)]:
                    return CLASS, np.int64(v)
                offset = np.int64(arrays.operands[j + one])
                if offset >= 0 or offset < -k or known.sources[U(arrays.source[U(-1 - offset)]), one] != OFFSET:
                    return EXCERPT, np.int64(v)
                size = known.class_size[U(known.output_class[U(known.output_class_ptr[kind])])]
                if arrays.index[U(-1 - offset)] + size > known.class_size[U(found)]:
                    return EXCERPT, np.int64(v)
            elif found != wanted:
                return CLASS, np.int64(v)
        first = last
    n = len(arrays.node_type)
    if first != m:
        return ARITY, n
    for j in range(U(r)):
        what, found = _class_of(arrays.result_node[j], arrays.result_output[j], n, arrays, known)
        if what != FINE:
            return what, np.int64(j) + n
        slot = np.int64(arrays.result_slot[j if len(arrays.result_slot) > 1 else U(0)])
        if slot < 0 or slot >= num_slots or known.slot_class[U(slot)] != found:
            return SLOT, np.int64(j)
    return FINE, -1


@njit(inline="always", **INNER, **UNCOUNTED)
def _class_of(u, output, end, arrays, known):
    """What is wrong with an operand or result that may read nodes before `end`, and its class."""
    if u >= end or u < -len(arrays.source):
        return OPERAND, np.int64(0)
    if u < 0:
        if output != 0:
            return OUTPUT, np.int64(0)
        return FINE, known.sources[U(arrays.source[U(-1 - u)]), U(0)]
    producer = U(arrays.node_type[U(u)])
    classes = known.output_class_ptr[producer]
    if known.types[producer] == 3:
        group = np.int64(known.operand_class_ptr[producer + U(1)] - known.operand_class_ptr[producer])
        given = np.int64(arrays.operand_end[U(u)]) - (np.int64(arrays.operand_end[U(u - 1)]) if u > 0 else np.int64(0))
        if output < 0 or output >= given // group:
            return OUTPUT, np.int64(0)
        return FINE, known.output_class[U(classes)]
    if output < 0 or output >= known.output_class_ptr[producer + U(1)] - classes:
        return OUTPUT, np.int64(0)
    return FINE, known.output_class[U(classes + output)]
