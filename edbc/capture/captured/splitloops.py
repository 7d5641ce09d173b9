"""The native loop that takes a recorded mini-batch apart into the words of its instances (`captured.joinloops`)."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from edbc.capture.captured.joinloops import CONSTANT, DRAW, HEADER, WHOLE
from edbc.capture.record.draws import INSTANCE_BITS
from edbc.native.kernelcache import njit

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
