"""Attention over runs in native code: softmax(Q K^T * scale) V of every node of a batch, with no scores stored.

A row holds `heads` pieces of `width` elements (of `depth`, those of values) from a column on. Keys are transposed head
by head, so that scores of one query are sums over columns of vectors over keys. The backward pass computes the weights
again, as FlashAttention's does (Dao et al., NeurIPS 2022, Algorithm 4). Node by node and head by head, so that a node
has the same bits in any company.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from edbc.native.kinds import inner, native

_FAST = {"reassoc", "contract", "nsz"}
_LOG2, _HIGH, _LOW = np.float32(1.442695040888963), np.float32(0.693359375), np.float32(-2.12194440e-4)
_LEAST = np.float32(-87.0)
LANES = 16
"""Columns of keys are taken so many at a time: a vector of float32, or two."""


def _inner(function):
    return inner(function, fastmath=_FAST)


@_inner
def _exponentials(scores, count, bits):
    """`scores[j] = exp(scores[j])` of none above 0, for j < count; in float32 by a polynomial of degree 6 between
    powers of 2, within 2 units of the last place. Returns their sum."""
    powers = bits.view(np.float32)
    for j in range(count):
        x = max(np.float32(scores[j]), _LEAST)
        k = np.floor(x * _LOG2 + np.float32(0.5))
        r = x - k * _HIGH - k * _LOW
        p = np.float32(1.9875691500e-4)
        p = p * r + np.float32(1.3981999507e-3)
        p = p * r + np.float32(8.3334519073e-3)
        p = p * r + np.float32(4.1665795894e-2)
        p = p * r + np.float32(1.6666665459e-1)
        p = p * r + np.float32(5.0000001201e-1)
        scores[j] = p * r * r + r + np.float32(1.0)
        bits[j] = (np.int32(k) + np.int32(127)) << np.int32(23)
    total = np.float32(0.0)
    for j in range(count):
        scores[j] = scores[j] * powers[j]
        total += scores[j]
    return total


@_inner
def _exponentials_of_doubles(scores, count, bits):
    """The same in float64."""
    total = 0.0
    for j in range(count):
        scores[j] = np.exp(scores[j])
        total += scores[j]
    return total


@_inner
def _combined(weights, rows, count, size, into):
    """`into[j]`, for j < size, is the sum of `weights[c] * rows[c, j]` over c < count; four rows at a time, so that a
    sum is read and written once for four products."""
    whole = count // 4 * 4
    for j in range(size):
        into[j] = 0.0
    for c in range(0, whole, 4):
        w, x, y, z = weights[c], weights[c + 1], weights[c + 2], weights[c + 3]
        for j in range(size):
            into[j] += w * rows[c, j] + x * rows[c + 1, j] + y * rows[c + 2, j] + z * rows[c + 3, j]
    for c in range(whole, count):
        w = weights[c]
        for j in range(size):
            into[j] += w * rows[c, j]


@_inner
def _weights(query, keys, count, width, scale, scores, bits):
    """Weights of `count` keys, in columns of `keys`, for a query, into `scores`. The loops are over whole vectors of
    columns: those behind the last key, up to LANES - 1, have a weight of 0."""
    padded = _padded(count)
    _combined(query, keys, width, padded, scores)
    for j in range(padded):
        scores[j] *= scale
    for j in range(count, padded):
        scores[j] = scores[0]
    largest = scores[0]
    for j in range(padded):
        largest = max(largest, scores[j])
    for j in range(padded):
        scores[j] -= largest
    for j in range(count, padded):
        scores[j] = -np.inf
    if scores.itemsize == 4:
        total = _exponentials(scores, padded, bits)
    else:
        total = _exponentials_of_doubles(scores, padded, bits)
    for j in range(padded):
        scores[j] = scores[j] / total


@_inner
def _padded(count):
    """So many columns, in whole vectors."""
    return (count + LANES - 1) // LANES * LANES


@_inner
def _transposed(rows, begin, end, at, width, into):
    """`into[c, j]` is element c of the piece at column `at` of row `begin + j`; 0 behind the last row."""
    for c in range(width):
        for j in range(end - begin):
            into[c, j] = rows[begin + j, at + c]
        for j in range(end - begin, _padded(end - begin)):
            into[c, j] = 0.0


def _attend(query, key, value, ptr, num_queries, num_keys, columns, heads, width, depth, scale, causal, output):
    """Outputs of every node: queries stand in rows `ptr[v]` to `ptr[v] + num_queries[v]` of a matrix, keys and values
    likewise, from `columns` on. Where it is `causal` query i sees keys 0 to i. O(queries * keys * width)."""
    most = _padded(max(num_keys.max(), 1))
    keys, scores = np.empty((width, most), query.dtype), np.empty(most, query.dtype)
    bits = np.empty(most, np.int32)
    for v in range(len(num_queries)):
        first, n = ptr[v], num_keys[v]
        for h in range(heads):
            q, k, w = columns[0] + h * width, columns[1] + h * width, columns[2] + h * depth
            _transposed(key, first, first + n, k, width, keys)
            values = value[first : first + n, w : w + depth]
            for i in range(num_queries[v]):
                count = min(i + 1, n) if causal else n
                _weights(query[first + i, q : q + width], keys, count, width, scale, scores, bits)
                _combined(scores, values, count, depth, output[first + i, h * depth : (h + 1) * depth])


def _attend_back(
    query, key, value, ptr, num_queries, num_keys, columns, heads, width, depth, scale, causal, given, of_query,
    of_key, of_value,
):  # fmt: skip
    """Gradients of what `attend` reads, added to zeros, given that of its output."""
    most = _padded(max(num_keys.max(), 1))
    keys, values = np.empty((width, most), query.dtype), np.empty((depth, most), query.dtype)
    scores, deltas, bits = np.empty(most, query.dtype), np.empty(most, query.dtype), np.empty(most, np.int32)
    for v in range(len(num_queries)):
        first, n = ptr[v], num_keys[v]
        for h in range(heads):
            q, k, w = columns[0] + h * width, columns[1] + h * width, columns[2] + h * depth
            _transposed(key, first, first + n, k, width, keys)
            _transposed(value, first, first + n, w, depth, values)
            for i in range(num_queries[v]):
                count = min(i + 1, n) if causal else n
                _weights(query[first + i, q : q + width], keys, count, width, scale, scores, bits)
                row = given[first + i]
                for j in range(count):
                    deltas[j] = row[h * depth] * values[0, j]
                for c in range(1, depth):
                    x = row[h * depth + c]
                    for j in range(count):
                        deltas[j] += x * values[c, j]
                mean = deltas[0] * scores[0]
                for j in range(1, count):
                    mean += deltas[j] * scores[j]
                for j in range(count):
                    for c in range(depth):
                        of_value[first + j, w + c] += scores[j] * row[h * depth + c]
                    deltas[j] = scores[j] * (deltas[j] - mean) * scale
                for j in range(count):
                    x = deltas[j]
                    for c in range(width):
                        of_query[first + i, q + c] += x * key[first + j, k + c]
                        of_key[first + j, k + c] += x * query[first + i, q + c]


attend = native(_attend, fastmath=_FAST)
attend_back = native(_attend_back, fastmath=_FAST)
