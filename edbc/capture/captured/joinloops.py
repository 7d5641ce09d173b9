"""The native loops of captured instances: splitting a recorded mini-batch, checking words, joining them.

Definitions.

(1) The *words* of an instance are 32-bit integers: the lengths n, m, k, r, d, s; the type of each node (n), where its
    operands end (n); the operands (m), a node of the instance or -1 - external, and which output of it (m); the source
    of each external (k); the results (r), like operands, their outputs (r) and slots (s, that is r, or 1 where all have
    one slot); the nodes recorded where gradients were off (d); and last what of its source each external is (k).
(2) Externals stand in an order that company does not change: whole parameters by source; then rows, draws and offsets
    as forward made them; then constants as nodes and results first read them. A constant is number i of its source's
    when i of that source stand before it.
(3) In a mini-batch a whole parameter is one external, that of the first instance which reads it, as in a recording.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from edbc.capture.record.draws import INSTANCE_BITS
from edbc.native.kernelcache import njit

HEADER = 6
ROW, WHOLE, CONSTANT, DRAW, OFFSET = range(5)
"""Kinds of sources."""
(FINE, TRUNCATED, LENGTHS, TYPE, ARITY, OPERAND, OUTPUT, CLASS, SOURCE, INDEX, EXCERPT, SLOT,
 DETACHED) = range(13)  # fmt: skip
"""What `check` finds."""
_DRAW_MASK = (1 << INSTANCE_BITS) - 1


@njit(cache=True)
def split(node_type, operand_ptr, operands, operand_output, external_source, external_index, kind_of_source, node_ptr,
          result_node, result_output, result_slot, result_ptr, detached):  # fmt: skip
    """The words of each instance of a mini-batch, definitions (1) and (2): words, where those of each begin, the
    constants' externals, and where those of each begin; last the first instance that reads another one, or whose
    numbers need more than 32 bits, or -1. O(nodes + operands), but for sorting externals.

    Instance i has the nodes from `node_ptr[i]` and the results from `result_ptr[i]` to the next; `detached` (n,) is
    empty where no node is.
    """
    count = len(node_ptr) - 1
    n, m, r = len(node_type), len(operands), len(result_node)
    words = np.empty(HEADER * count + 2 * n + 2 * m + 2 * (m + r) + 3 * r + n, np.int32)
    begin, constant_ptr = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    constants = np.empty(m + r, np.int64)
    place = np.full(len(external_source), -1, np.int32)
    pooled = np.zeros(len(kind_of_source), np.int64)
    at = made = 0
    for i in range(count):
        a, b = node_ptr[i], node_ptr[i + 1]
        first, last = operand_ptr[a], operand_ptr[b]
        used = np.empty(last - first + result_ptr[i + 1] - result_ptr[i], np.int64)
        keys = np.empty(len(used), np.int64)
        k = of_constants = 0
        for j in range(first, last + result_ptr[i + 1] - result_ptr[i]):
            u = np.int64(operands[j]) if j < last else result_node[result_ptr[i] + j - last]
            if u >= 0:
                if u < a or u >= b:
                    return words, begin, constants, constant_ptr, i
                continue
            e = -1 - u
            if place[e] >= 0:
                continue
            place[e] = 0
            kind = kind_of_source[external_source[e]]
            used[k] = e
            if kind == WHOLE:
                keys[k] = external_source[e] - (np.int64(1) << 40)
            elif kind == CONSTANT:
                keys[k] = (np.int64(1) << 40) + of_constants
                of_constants += 1
            else:
                keys[k] = e
            k += 1
        order = used[:k][np.argsort(keys[:k])]
        for j in range(k):
            place[order[j]] = j
        off = 0
        for v in range(a, b if len(detached) else a):
            off += detached[v]
        header = (b - a, last - first, k, result_ptr[i + 1] - result_ptr[i], off)
        slots = header[3]
        is_one = slots > 0
        for j in range(result_ptr[i], result_ptr[i + 1]):
            is_one &= result_slot[j] == result_slot[result_ptr[i]]
        slots = 1 if is_one else slots
        for j in range(HEADER - 1):
            words[at] = header[j]
            at += 1
        words[at] = slots
        at += 1
        for v in range(a, b):
            words[at] = node_type[v]
            words[at + b - a] = operand_ptr[v + 1] - first
            at += 1
        at += b - a
        for j in range(first, last):
            u = operands[j]
            words[at] = u - a if u >= 0 else -1 - place[-1 - u]
            words[at + last - first] = operand_output[j]
            at += 1
        at += last - first
        for j in range(k):
            words[at] = external_source[order[j]]
            at += 1
        for j in range(result_ptr[i], result_ptr[i + 1]):
            u, results = result_node[j], header[3]
            words[at] = u - a if u >= 0 else -1 - place[-1 - u]
            words[at + results] = result_output[j]
            at += 1
        at += header[3]
        for j in range(result_ptr[i], result_ptr[i] + slots):
            words[at] = result_slot[j]
            at += 1
        for v in range(a, b if len(detached) else a):
            if detached[v]:
                words[at] = v - a
                at += 1
        for j in range(k):
            e = order[j]
            kind, index = kind_of_source[external_source[e]], external_index[e]
            if kind == DRAW:
                index &= _DRAW_MASK
            elif kind == CONSTANT:
                index = pooled[external_source[e]]
                pooled[external_source[e]] += 1
                constants[made] = e
                made += 1
            if index >= 1 << 31:
                return words, begin, constants, constant_ptr, i
            words[at] = index
            at += 1
        for j in range(k):
            place[order[j]] = -1
            pooled[external_source[order[j]]] = 0
        begin[i + 1], constant_ptr[i + 1] = at, made
    return words[:at], begin, constants[:made], constant_ptr, -1


@njit(cache=True)
def join(packed, count, class_of_source, kind_of_source):
    """The graph and the externals of the instances whose words stand one after the other, definition (3). Returns node
    types, borders of operands, operands and their outputs; class, source and index of externals; nodes, outputs and
    slots of results; which nodes are detached (none is where that is empty); and where the results of each instance
    begin. O(words). Words are as `check` wants them."""
    n = m = k = r = d = at = 0
    for _ in range(count):
        n += packed[at]
        m += packed[at + 1]
        k += packed[at + 2]
        r += packed[at + 3]
        d += packed[at + 4]
        at += (
            HEADER
            + 2 * (packed[at] + packed[at + 1] + packed[at + 2] + packed[at + 3])
            + packed[at + 4]
            + packed[at + 5]
        )
    node_type, operand_ptr = np.empty(n, np.int32), np.empty(n + 1, np.int32)
    operands, operand_output = np.empty(m, np.int32), np.empty(m, np.int32)
    external_class, source_of, index_of = np.empty(k, np.int32), np.empty(k, np.int64), np.empty(k, np.int64)
    result_node, result_output, result_slot = np.empty(r, np.int64), np.empty(r, np.int64), np.empty(r, np.int32)
    detached = np.zeros(n if d else 0, np.bool_)
    result_ptr = np.zeros(count + 1, np.int64)
    whole = np.full(len(kind_of_source), -1, np.int64)
    pooled = np.zeros(len(kind_of_source), np.int64)
    place = np.empty(k, np.int64)
    operand_ptr[0] = node = operand = external = result = at = 0
    for i in range(count):
        n, m, k, r, d, s = packed[at], packed[at + 1], packed[at + 2], packed[at + 3], packed[at + 4], packed[at + 5]
        types = at + HEADER
        reads = types + 2 * n
        sources = reads + 2 * m
        results = sources + k
        off = results + 2 * r + s
        indices = off + d
        at = indices + k
        for j in range(k):
            source, index = np.int64(packed[sources + j]), np.int64(packed[indices + j])
            kind = kind_of_source[source]
            if kind == WHOLE:
                if whole[source] >= 0:
                    place[j] = -1 - whole[source]
                    continue
                whole[source] = external
            elif kind == CONSTANT:
                index = pooled[source]
                pooled[source] += 1
            elif kind == DRAW:
                index += np.int64(i) << INSTANCE_BITS
            place[j] = -1 - external
            external_class[external] = class_of_source[source]
            source_of[external] = source
            index_of[external] = index
            external += 1
        for v in range(n):
            node_type[node + v] = packed[types + v]
            operand_ptr[node + v + 1] = operand + packed[types + n + v]
        for j in range(m):
            u = packed[reads + j]
            operands[operand + j] = u + node if u >= 0 else place[-1 - u]
            operand_output[operand + j] = packed[reads + m + j]
        for j in range(r):
            u = packed[results + j]
            result_node[result + j] = u + node if u >= 0 else place[-1 - u]
            result_output[result + j] = packed[results + r + j]
            result_slot[result + j] = packed[results + 2 * r + (j if s > 1 else 0)]
        for j in range(d):
            detached[node + packed[off + j]] = True
        node += n
        operand += m
        result += r
        result_ptr[i + 1] = result
    return (node_type, operand_ptr, operands, operand_output, external_class[:external], source_of[:external],
            index_of[:external], result_node, result_output, result_slot, detached, result_ptr)  # fmt: skip


@njit(cache=True)
def translate(packed, begin, of_type, of_source, of_slot):
    """Write the numbers of another vocabulary in place of those of types, sources and slots. Returns what is wrong with
    them, in which instance, and where in it; see `check`."""
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
            for j in range(first, first + count):
                if packed[j] < 0 or packed[j] >= len(numbers):
                    return what, i, j - first
                packed[j] = numbers[packed[j]]
    return FINE, -1, -1


@njit(cache=True)
def check(packed, begin, types, operand_class_ptr, operand_class, output_class_ptr, output_class, class_size,
          class_dtype, sources, slot_class):  # fmt: skip
    """The first thing that is wrong with words from elsewhere: what (FINE, ...), in which instance, and where in it.

    `begin` says where the words of each instance begin. A type is a row of `types`: 0 for a plain one, 1 variadic, 2 an
    excerpt, -1 unknown; a source a row of `sources`: class, kind (-1 unknown), and what its indices are below. Lengths
    are as `translate` has found them.
    """
    pooled = np.zeros(len(sources), np.int64)
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
        indices = off + d
        for j in range(k):
            source = packed[of + j]
            if source < 0 or source >= len(sources) or sources[source, 1] < 0:
                return SOURCE, i, j
            if packed[indices + j] < 0 or packed[indices + j] >= sources[source, 2]:
                return INDEX, i, j
            if sources[source, 1] == CONSTANT:
                if packed[indices + j] != pooled[source]:
                    return INDEX, i, j
                pooled[source] += 1
        for j in range(k):
            pooled[packed[of + j]] = 0
        first = np.int64(0)
        for v in range(n):
            kind, last = packed[kinds + v], np.int64(packed[kinds + n + v])
            if kind < 0 or kind >= len(types) or types[kind] < 0:
                return TYPE, i, v
            group = operand_class_ptr[kind + 1] - operand_class_ptr[kind]
            given = last - first
            if last > m or given < 0 or (types[kind] == 1 and (group == 0 or given == 0 or given % group)):
                return ARITY, i, v
            if types[kind] != 1 and given != group:
                return ARITY, i, v
            for j in range(first, last):
                u, output = packed[reads + j], packed[reads + m + j]
                if u >= v or u < -k:
                    return OPERAND, i, v
                if u >= 0:
                    producer = packed[kinds + u]
                    outputs = output_class_ptr[producer + 1] - output_class_ptr[producer]
                    if output < 0 or output >= outputs:
                        return OUTPUT, i, v
                    found = output_class[output_class_ptr[producer] + output]
                else:
                    if output != 0:
                        return OUTPUT, i, v
                    found = sources[packed[of - 1 - u], 0]
                wanted = operand_class[operand_class_ptr[kind] + (j - first) % group]
                if types[kind] == 2 and j == first:
                    if class_dtype[found] != class_dtype[wanted]:
                        return CLASS, i, v
                    size, offset = class_size[found], packed[reads + j + 1]
                    if offset >= 0 or offset < -k or sources[packed[of - 1 - offset], 1] != OFFSET:
                        return EXCERPT, i, v
                    if packed[indices - 1 - offset] + class_size[output_class[output_class_ptr[kind]]] > size:
                        return EXCERPT, i, v
                elif found != wanted:
                    return CLASS, i, v
            first = last
        if first != m:
            return ARITY, i, n
        for j in range(r):
            u, output, slot = (
                packed[results + j],
                packed[results + r + j],
                packed[results + 2 * r + (j if s > 1 else 0)],
            )
            if u >= n or u < -k:
                return OPERAND, i, n + j
            if u >= 0:
                producer = packed[kinds + u]
                if output < 0 or output >= output_class_ptr[producer + 1] - output_class_ptr[producer]:
                    return OUTPUT, i, n + j
                found = output_class[output_class_ptr[producer] + output]
            else:
                if output != 0:
                    return OUTPUT, i, n + j
                found = sources[packed[of - 1 - u], 0]
            if slot < 0 or slot >= len(slot_class) or slot_class[slot] != found:
                return SLOT, i, j
        for j in range(d):
            v = packed[off + j]
            if v < 0 or v >= n or (j and v <= packed[off + j - 1]):
                return DETACHED, i, j
    return FINE, -1, -1
