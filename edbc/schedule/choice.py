"""How the next type is chosen: what is known of every ready type, fixed rules, state encodings; native.

Definitions, on top of (1) to (4) of engine.py, a and b types:

(6) a *holds* the term b of the lower bound when a alone reaches top[b]: until a has run, no batch lowers that term.
    A productive type (3) holds its own term.
(7) a *blocks* b when b is ready and reaches top[b], and a is the only other type that does: once a has run, b is
    productive, unless it is joined by a third.
(8) critical score of a: 4 x (cost of the terms held - cost of a) + 2 x cost of the types blocked +
    |Frontier_a(G)| / |Frontier(G^a)|, the last term being Eq. 1's. The *cost* of a type is that of one of its batches
    beside its rows, relative to the others' (1 each where nothing was measured), and the cost of a term that of its
    type. With equal costs the subtraction changes no order; with others a batch that costs next to nothing need not be
    worth anything. The last term of the `chains` rule is the share of the type's unexecuted nodes that are ready, so it
    needs no same-type graph.

Rules take the ready type of largest score, the lowest index on a tie:

==========  ==================================================================================================
most        |Frontier_a(G)|
agenda      - mean depth of the unexecuted nodes of type a; types without a matrix product first on a tie
            (Neubig et al., "On-the-fly Operation Batching in Dynamic Computation Graphs", NIPS 2017, section 3.2)
sufficient  |Frontier_a(G)| / |Frontier(G^a)|, the second term of ED-Batch's Eq. 1
random      a hash of the type and of how many of its nodes have run and are ready: a yardstick for the others
chains      (8) with |Frontier_a(G)| / |unexecuted nodes of type a| as its last term
critical    (8)
==========  ==================================================================================================

Encodings give a state as a short sequence of integers, *words*; policy.py has their text form. Types are in index order
unless said.

========  ========================================================================================================
base      the ready types (ED-Batch 2.3, E_base)
max       the ready types, then the one with most ready nodes (E_max)
sort      the ready types by ascending number of ready nodes, ties by index (E_sort)
phase     which eighth of the graph's nodes runs now, then the ready types (the remedy that Appendix A.4 names)
critical  per ready type its index and three bits: productive (3), holds another type's term (6), blocks another (7)
rank      the two ready types of largest critical score, best first, each with its productive bit
========  ========================================================================================================
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Ints
from edbc.native.kernelcache import U
from edbc.native.kinds import inlined, inner_uncounted, native, native_uncounted
from edbc.schedule.analysis import Dag
from edbc.schedule.engine import Frontier
from edbc.schedule.rows import padded, raise_row, tally_row
from edbc.schedule.statetable import mix

BASE, MAX, SORT, PHASE, CRITICAL, RANK = range(6)
MOST, AGENDA, SUFFICIENT, RANDOM, CHAINS, CRITICAL_PATH = range(6)
PRODUCTIVE, HOLDS, BLOCKS = 1, 2, 4
BITS = 8
"""A word of an encoding with bits is `type * BITS + bits`."""
PHASES = 8
Floats = NDArray[np.float64]


class Scratch(NamedTuple):
    """What is known of the current state; filled by `describe` and `encode`."""

    top: Ints  # (T,) terms of the lower bound
    bits: Ints  # (T,) of every ready type
    score: Floats  # (T,) of every ready type, (8) without its last term
    words: Ints  # (T + 1,)
    cost: Floats  # (T,) of a batch of each type
    terms: Ints  # (2, W): `top`; how many types reach each term, and from bit SUM on, the sum of these types


SUM = 16
MANY = 64
"""Types from which on those that are not ready are left out, which takes a branch per type."""


@native
def new_scratch(cost: Floats) -> Scratch:
    """Room for graphs of as many types as there are costs."""
    num_types = len(cost)
    terms = np.zeros((2, padded(num_types)), np.int32)
    return Scratch(
        terms[0, :num_types],
        np.zeros(num_types, np.int32),
        np.zeros(num_types, np.float64),
        np.zeros(num_types + 1, np.int32),
        cost,
        terms,
    )


@native_uncounted
def describe(frontier: Frontier, scratch: Scratch) -> None:
    """Bits and scores of every ready type from `reach`. O(T^2), from MANY types on O(T x ready types).

    Which types are ready or reach what follows no pattern that a processor could learn, so nothing branches on it
    where types are few. Types that are not ready reach nothing, and get numbers without a meaning.
    """
    head, tail, reach = frontier.head, frontier.tail, frontier.reach
    terms, bits, score, cost = scratch.terms, scratch.bits, scratch.score, scratch.cost
    num_types, top, tally = U(len(cost)), U(0), U(1)
    terms[:] = 0
    all_types = num_types < U(MANY)
    for a in range(num_types):
        if all_types or head[a] < tail[a]:
            raise_row(terms, top, reach, a)
    for a in range(num_types):
        if all_types or head[a] < tail[a]:
            tally_row(terms, tally, reach, a, terms, top, U(1) + (a << U(SUM)))
        bits[a], score[a] = 0, -4.0 * cost[a]
    for b in range(num_types):
        count, reachers = terms[tally, b] & ((1 << SUM) - 1), terms[tally, b] >> SUM
        is_held = (count == 1) & (terms[top, b] > 0)
        is_blocked = (count == 2) & (head[b] < tail[b]) & (reach[b, b] == terms[top, b])
        a = U((is_held | is_blocked) * (reachers - is_blocked * np.int64(b)))
        score[a] += (4.0 * is_held + 2.0 * is_blocked) * cost[b]
        bits[a] |= is_held * (PRODUCTIVE if a == b else HOLDS) | is_blocked * BLOCKS


@inner_uncounted
def remaining(scratch: Scratch) -> float:
    """The least that the described state's remaining batches can cost."""
    cost, top = scratch.cost, scratch.top
    bound = 0.0
    for a in range(len(cost)):
        bound += cost[a] * top[a]
    return bound


@inlined
def critical_score(frontier: Frontier, scratch: Scratch, a: int) -> float:
    """Definition (8)."""
    return scratch.score[a] + (frontier.tail[a] - frontier.head[a]) / frontier.same_size[a]


@inlined
def best_two(frontier: Frontier, scratch: Scratch) -> tuple[int, int]:
    """The two ready types of largest critical score, best first; -1 where there are fewer. See `describe`."""
    head, tail, same_size, chains = frontier.head, frontier.tail, frontier.same_size, scratch.score
    first, second = -1, -1
    first_score, second_score = -np.inf, -np.inf
    for a in range(len(head)):
        count = tail[a] - head[a]
        score = chains[a] + count / max(same_size[a], 1) if count > 0 else -np.inf
        is_first, is_second = score > first_score, score > second_score
        second = first if is_first else (a if is_second else second)
        second_score = first_score if is_first else (score if is_second else second_score)
        first = a if is_first else first
        first_score = score if is_first else first_score
    return first, second


@inlined
def choose(dag: Dag, frontier: Frontier, scratch: Scratch, rule: int, cheap: Ints) -> int:
    """The type that a fixed rule takes; some type must be ready. O(T)."""
    if rule == CRITICAL_PATH:
        return best_two(frontier, scratch)[0]
    best, best_score = -1, -np.inf
    for a in range(len(frontier.head)):
        count = frontier.tail[a] - frontier.head[a]
        if count == 0:
            continue
        if rule == AGENDA:
            score = -frontier.depth_sum[a] / (dag.type_ptr[a + 1] - frontier.head[a])
            if score == best_score and cheap[a] > cheap[best]:
                best = a
        elif rule == SUFFICIENT:
            score = count / frontier.same_size[a]
        elif rule == RANDOM:
            score = float(mix((a * len(dag.node_type) + frontier.head[a]) * len(dag.node_type) + count))
        elif rule == CHAINS:
            score = scratch.score[a] + count / (dag.type_ptr[a + 1] - frontier.head[a])
        else:
            score = float(count)
        if score > best_score:
            best, best_score = a, score
    return best


@inlined
def encode(dag: Dag, frontier: Frontier, scratch: Scratch, encoding: int, executed: int) -> int:
    """Write the state's words and return how many there are. O(T), E_sort O(T^2)."""
    words = scratch.words
    if encoding == RANK:
        return encode_rank(frontier, scratch)
    size = 0
    if encoding == PHASE:
        words[0] = executed * PHASES // len(dag.node_type)
        size = 1
    most, most_count = -1, 0
    for a in range(len(frontier.head)):
        count = frontier.tail[a] - frontier.head[a]
        if count == 0:
            continue
        words[size] = a * BITS + scratch.bits[a] if encoding == CRITICAL else a
        size += 1
        if count > most_count:
            most, most_count = a, count
    if encoding == MAX:
        words[size] = most
        size += 1
    elif encoding == SORT:
        sort_words(frontier, words, size)
    return size


@inlined
def encode_rank(frontier: Frontier, scratch: Scratch) -> int:
    """The words of encoding `rank`: one, or two where two types are ready."""
    first, second = best_two(frontier, scratch)
    scratch.words[0] = first * BITS + (scratch.bits[first] & PRODUCTIVE)
    if second < 0:
        return 1
    scratch.words[1] = second * BITS + (scratch.bits[second] & PRODUCTIVE)
    return 2


@inner_uncounted
def sort_words(frontier: Frontier, words: Ints, size: int) -> None:
    """Insertion sort of the first `size` words, which are types, by ready nodes; stable."""
    for i in range(1, size):
        a = words[i]
        count = frontier.tail[a] - frontier.head[a]
        j = i
        while j > 0 and frontier.tail[words[j - 1]] - frontier.head[words[j - 1]] > count:
            words[j] = words[j - 1]
            j -= 1
        words[j] = a
