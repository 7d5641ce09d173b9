"""The native loop that finds patterns in a graph and makes each one node. A plain-Python reference is in the tests.

Definitions.

(1) Patterns of one exit are tried in an order, the largest first, at every node of the exit's type, from the last node
    to the first: a node belongs to the first that matches.
(2) Members of a pattern stand here in the reverse of their order, the exit first, so that each but the exit is read by
    one that has been found. The *code* of what a member reads is `member * OUTPUTS + output`, or `-1 - operand`.

O(nodes + operands + what is tried); a node is tried with the patterns of its type until a type differs.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from edbc.base.pattern import MOST_MEMBERS, MOST_OPERANDS
from edbc.native.kernelcache import njit

OUTPUTS = 256


class Matchers(NamedTuple):
    """Patterns as arrays, definition (2). p patterns, m members of all, r reads of all."""

    exit_ptr: Any  # (types + 1,)
    patterns: Any
    """Those of each type as an exit, in the order in which they are tried."""
    member_ptr: Any  # (p + 1,)
    member_type: Any  # (m,)
    num_readers: Any  # (m,)
    """How often a member is read by others."""
    read_ptr: Any  # (m + 1,)
    code: Any  # (r,)
    fused: Any  # (p,)
    """The type of a node of each."""
    num_operands: Any  # (p,)


@njit(cache=True)
def fuse(node_type, operand_ptr, operands, operand_output, result_node, detached, matchers):
    """The graph with patterns as nodes: which nodes remain, their types, operands as CSR, and results. None of it but
    the first means anything where all remain. `detached` (n,) are nodes without gradients."""
    n, m = len(node_type), len(operands)
    num_read, is_inner = np.zeros(n, np.int32), np.zeros(n, np.bool_)
    for u in operands:
        if u >= 0:
            num_read[u] += 1
    for u in result_node:
        if u >= 0:
            num_read[u] += 1
    pattern_of, begin = np.full(n, -1, np.int32), np.empty(n, np.int64)
    outer, outer_output = np.empty(m, np.int32), np.empty(m, np.int32)
    found = np.empty(MOST_MEMBERS, np.int64)
    given, given_output = np.empty(MOST_OPERANDS, np.int32), np.empty(MOST_OPERANDS, np.int32)
    num_types, total, inside = len(matchers.exit_ptr) - 1, 0, 0
    for v in range(n - 1, -1, -1):
        t = node_type[v]
        if is_inner[v] or t < 0 or t >= num_types:
            continue
        for at in range(matchers.exit_ptr[t], matchers.exit_ptr[t + 1]):
            p = matchers.patterns[at]
            first, last, count = matchers.member_ptr[p], matchers.member_ptr[p + 1], matchers.num_operands[p]
            found[: last - first] = -1
            for x in range(count):
                given_output[x] = -1
            found[0], is_one = v, True
            member = first
            while is_one and member < last:
                u = found[member - first]
                begun, i = operand_ptr[u], matchers.read_ptr[member]
                is_one = operand_ptr[u + 1] - begun == matchers.read_ptr[member + 1] - i
                is_one &= node_type[u] == matchers.member_type[member] and detached[u] == detached[v]
                is_one &= member == first or (num_read[u] == matchers.num_readers[member] and not is_inner[u])
                while is_one and i < matchers.read_ptr[member + 1]:
                    code, w, output = matchers.code[i], operands[begun], operand_output[begun]
                    if code < 0:
                        x = -1 - code
                        if given_output[x] < 0:
                            given[x], given_output[x] = w, output
                        is_one = given[x] == w and given_output[x] == output
                    else:
                        j = code // OUTPUTS
                        if found[j] < 0:
                            found[j] = w
                        is_one = w >= 0 and found[j] == w and output == code - j * OUTPUTS
                    i += 1
                    begun += 1
                member += 1
            if is_one:
                pattern_of[v], begin[v] = p, total
                for x in range(count):
                    outer[total + x], outer_output[total + x] = given[x], given_output[x]
                total += count
                for j in range(1, last - first):
                    is_inner[found[j]] = True
                inside += last - first - 1
                break
    kept = np.empty(n - inside, np.int64)
    if inside == 0:
        return (kept, node_type, operand_ptr, operands, operand_output, result_node)
    return _written(node_type, operand_ptr, operands, operand_output, result_node, is_inner, pattern_of, begin, outer,
                    outer_output, kept, matchers)  # fmt: skip


@njit(cache=True)
def _written(node_type, operand_ptr, operands, operand_output, result_node, is_inner, pattern_of, begin, outer,
             outer_output, kept, matchers):  # fmt: skip
    """What `fuse` returns where patterns were found. Nodes that remain stand in their order: all operands of a pattern
    stand before its exit."""
    number = np.full(len(node_type), -1, np.int32)
    count, entries = 0, 0
    for v in range(len(node_type)):
        if not is_inner[v]:
            kept[count], number[v] = v, count
            count += 1
            p = pattern_of[v]
            entries += operand_ptr[v + 1] - operand_ptr[v] if p < 0 else matchers.num_operands[p]
    new_type, new_ptr = np.empty(count, np.int32), np.zeros(count + 1, np.int32)
    new_operands, new_output = np.empty(entries, np.int32), np.empty(entries, np.int32)
    at = 0
    for i in range(count):
        v = kept[i]
        p = pattern_of[v]
        if p < 0:
            new_type[i] = node_type[v]
            for k in range(operand_ptr[v], operand_ptr[v + 1]):
                new_operands[at], new_output[at] = operands[k], operand_output[k]
                at += 1
        else:
            new_type[i] = matchers.fused[p]
            for k in range(begin[v], begin[v] + matchers.num_operands[p]):
                new_operands[at], new_output[at] = outer[k], outer_output[k]
                at += 1
        new_ptr[i + 1] = at
    for k in range(entries):
        if new_operands[k] >= 0:
            new_operands[k] = number[new_operands[k]]
    results = result_node.copy()
    for r in range(len(results)):
        if results[r] >= 0:
            results[r] = number[results[r]]
    return kept, new_type, new_ptr, new_operands, new_output, results
