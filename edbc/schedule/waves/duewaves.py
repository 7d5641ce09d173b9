"""The rule `due` in closed form: every batch's first step without a walk from step to step.

Definitions, beside those of `edbc.schedule.waves.wavetable`.

(1) A type takes so many *stages*, consecutive steps of a device, one for waves as a policy counts them. The height of a
    node is the largest sum of stages on a path that starts at it; L is the largest height.
(2) The *latest* step at which a node may begin is L less its height: operands' are smaller by their stages at least. A
    node runs at the first step, not before its operands are done, at which its type is due; at its latest if there is
    none before, and that makes the type due there.

So nodes in the order of their latest steps find all earlier due steps of their type known, and one pass over them does
what the rule does step by step. O(n + m + L), and O(log) of a type's due steps for a node that waits long.
"""

# numba infers the types of kernels, and intrinsics are called without their typing context.
# mypy: disable-error-code="no-untyped-def,call-arg,arg-type,var-annotated,assignment"

from __future__ import annotations

import numpy as np

from edbc.native.kernelcache import U
from edbc.native.kinds import inner_uncounted, native

ONE = U(1)
MOST_KEYS = 4
"""Pairs of a step and a type for each node, up to which nodes are put in their order."""


@native
def due_waves(node_type, operand_ptr, operands, stages):
    """Batch types, batch bounds, nodes and the first step of every batch, in the order of steps and then of types;
    `stages` (types,) are definition (1). Where a node's type takes none, no batches."""
    n, num_types = len(node_type), len(stages)
    height = np.empty(n + 1, np.int32)
    bound = weighted_heights(node_type, operand_ptr, operands, stages, height)
    if bound < 0:
        return np.empty(0, np.int32), np.zeros(1, np.int32), np.empty(n, np.int32), np.empty(0, np.int64)
    width = num_types if bound * num_types <= MOST_KEYS * n else 1
    order, begin = np.empty(n, np.int32), np.zeros(bound * width + 2, np.int32)
    first = np.zeros(num_types + 1, np.int32)
    _by_latest(node_type, height, bound, width, order, begin, first)
    due, end = np.empty(first[num_types], np.int32), first[:num_types].copy()
    batch, done = np.empty(n, np.int32), np.zeros(n + 1, np.int32)
    place = np.empty(bound * num_types if width > 1 else 0, np.int32)
    _steps(node_type, operand_ptr, operands, stages, height, bound, order, first, end, due, place, batch, done)
    count = np.int64(0)
    for a in range(num_types):
        count += end[a] - first[a]
    kinds, steps, ptr = np.empty(count, np.int32), np.empty(count, np.int64), np.zeros(count + 1, np.int32)
    number = np.empty(len(due), np.int32)
    begin = np.zeros(bound + 2, np.int32)
    _in_order(first, end, due, begin, number, kinds, steps)
    _fill(batch, number, ptr, order)
    return kinds, ptr, order, steps


@inner_uncounted
def weighted_heights(node_type, operand_ptr, operands, stages, height):
    """Definition (1), written to `height[1:]`; returns the largest, or -1 for a node of a type that takes no stage."""
    n, bound, known = len(node_type), np.int32(0), np.True_
    height[:] = 0
    end = U(operand_ptr[U(n)])
    for back in range(U(n)):
        v = U(n) - ONE - back
        takes = np.int32(stages[U(node_type[v])])
        known &= takes > 0
        own = height[v + ONE] + takes
        height[v + ONE] = own
        bound = max(bound, own)
        first = U(operand_ptr[v])
        for i in range(first, end):
            u = U(max(operands[i], np.int32(-1)) + np.int32(1))
            height[u] = max(height[u], own)
        end = first
    return bound if known else np.int32(-1)


@inner_uncounted
def _by_latest(node_type, height, bound, width, order, begin, first):
    """Nodes by latest step, those of one step by type where there are `width` keys for each: a processor foresees how
    many operands nodes of one type have. And where due steps of each type stand, which has no more of them than nodes
    and than there are steps."""
    typed = np.int32(width > 1)
    for v in range(U(len(order))):
        begin[U((bound - height[v + ONE]) * width + node_type[v] * typed) + ONE] += 1
        first[U(node_type[v]) + ONE] += 1
    for s in range(U(bound * width)):
        begin[s + ONE] += begin[s]
    for v in range(U(len(order))):
        s = U((bound - height[v + ONE]) * width + node_type[v] * typed)
        order[U(begin[s])] = v
        begin[s] += 1
    for a in range(U(len(first)) - ONE):
        first[a + ONE] = first[a] + min(first[a + ONE], bound)


@inner_uncounted
def _steps(node_type, operand_ptr, operands, stages, height, bound, order, first, end, due, place, batch, done):
    """Definition (2): which of `due` is each node's step, and to `done[1:]` the step behind it. Where `place` has room,
    it says for each type and step which due step is the next."""
    foresees = len(place) > 0
    for p in range(U(len(order))):
        v = U(order[p])
        ready = np.int32(0)
        for i in range(U(operand_ptr[v]), U(operand_ptr[v + ONE])):
            ready = max(ready, done[U(max(operands[i], np.int32(-1)) + np.int32(1))])
        a = U(node_type[v])
        low, high = U(first[a]), U(end[a])
        if low == high or due[high - ONE] < ready:
            due[high] = bound - height[v + ONE]
            end[a] += 1
            if foresees:
                of_type = a * U(bound)
                for s in range(U(0) if low == high else U(due[high - ONE]) + ONE, U(due[high]) + ONE):
                    place[of_type + s] = high
        elif foresees:
            high = U(place[a * U(bound) + U(ready)])
        else:
            high -= ONE
            while low < high:
                middle = (low + high) // U(2)
                if due[middle] < ready:
                    low = middle + ONE
                else:
                    high = middle
        batch[v] = high
        done[v + ONE] = due[high] + np.int32(stages[a])


@inner_uncounted
def _in_order(first, end, due, begin, number, kinds, steps):
    """Batches by step and type: their numbers in that order, types and steps."""
    for a in range(U(len(end))):
        for k in range(U(first[a]), U(end[a])):
            begin[U(due[k]) + ONE] += 1
    for s in range(U(len(begin)) - ONE):
        begin[s + ONE] += begin[s]
    for a in range(U(len(end))):
        for k in range(U(first[a]), U(end[a])):
            b = U(begin[U(due[k])])
            begin[U(due[k])] += 1
            number[k], kinds[b], steps[b] = b, a, due[k]


@inner_uncounted
def _fill(batch, number, ptr, nodes):
    """Batch bounds, and nodes batch by batch as they are numbered."""
    for v in range(U(len(batch))):
        b = U(number[U(batch[v])])
        batch[v] = b
        ptr[b + ONE] += 1
    for b in range(U(len(ptr)) - ONE):
        ptr[b + ONE] += ptr[b]
    for v in range(U(len(batch))):
        b = U(batch[v])
        nodes[U(ptr[b])] = v
        ptr[b] += 1
    last = np.int32(0)
    for b in range(U(len(ptr))):
        last, ptr[b] = ptr[b], last
