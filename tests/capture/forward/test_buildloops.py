"""The native loops over a recording against plain Python, on random recordings."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from edbc.capture.forward import buildloops


class Recorded:
    """A random recording: sums of two or more operands and other nodes, one or two outputs each."""

    def __init__(self, seed: int, count: int = 60) -> None:
        rng = random.Random(seed)
        self.is_sum: list[bool] = []
        self.operands: list[list[int]] = []
        self.node_of_value: list[int] = []
        value_base: list[int] = []
        for node in range(count):
            is_sum = rng.random() < 0.6
            known = len(self.node_of_value)
            pool = [rng.randrange(known) if known and rng.random() < 0.8 else -1 - rng.randrange(5) for _ in range(4)]
            size = rng.choice([2, 2, 3]) if is_sum else rng.randrange(4)
            if is_sum and known and rng.random() < 0.6:
                pool[0] = known - 1
            if is_sum and node and rng.random() < 0.3 and self.is_sum[-1]:
                pool = [self._sibling(ref) for ref in self.operands[-1]] + pool
                size = len(self.operands[-1])
            self.is_sum.append(is_sum)
            self.operands.append(pool[:size])
            value_base.append(known)
            self.node_of_value += [node] * (1 if is_sum else rng.choice([1, 2]))
        self.value_base = np.array([*value_base, len(self.node_of_value)])
        self.results = [rng.randrange(len(self.node_of_value)) for _ in range(3)]

    def _sibling(self, ref: int) -> int:
        """Another output of the same node, where there is one."""
        if ref < 0:
            return ref
        node = self.node_of_value[ref]
        return self.node_of_value.index(node) + (1 if self.node_of_value.count(node) > 1 else 0)

    def arrays(self) -> tuple[Any, ...]:
        ptr = np.cumsum([0, *map(len, self.operands)])
        refs = np.array([ref for operands in self.operands for ref in operands], np.int64)
        return np.array(self.is_sum), ptr, refs, np.array(self.node_of_value, np.int64)

    def values_of(self, node: int) -> range:
        return range(self.value_base[node], self.value_base[node + 1])

    def uses(self) -> list[int]:
        uses = [0] * len(self.node_of_value)
        for ref in [r for operands in self.operands for r in operands if r >= 0] + self.results:
            uses[ref] += 1
        return uses


def absorber_reference(r: Recorded) -> list[int]:
    """Each sum that is used once, as the first operand of another sum, with that sum."""
    absorber = [-1] * len(r.is_sum)
    for node, operands in enumerate(r.operands):
        first = operands[0] if operands else -1
        if r.is_sum[node] and first >= 0 and r.uses()[first] == 1 and r.is_sum[r.node_of_value[first]]:
            absorber[r.node_of_value[first]] = node
    return absorber


def terms_reference(r: Recorded, absorber: list[int], node: int) -> list[int]:
    """The terms of a sum with its absorbed first terms written out."""
    first, *rest = r.operands[node]
    if first >= 0 and absorber[r.node_of_value[first]] == node:
        return terms_reference(r, absorber, r.node_of_value[first]) + rest
    return [first, *rest]


def merge_reference(r: Recorded, terms: dict[int, list[int]]) -> tuple[list[int], dict[int, int]]:
    """For each sum the earlier sum over the same operand nodes that it joins, newest of the last ones first; fields."""
    leader = [node if node in terms else -1 for node in range(len(r.is_sum))]
    fields = dict.fromkeys(terms, 1)
    for node, mine in terms.items():
        if mine[0] < 0:
            continue
        leaders = [u for u in terms if u < node and leader[u] == u and terms[u][0] >= 0]
        for other in [u for u in leaders if r.node_of_value[terms[u][0]] == r.node_of_value[mine[0]]][::-1][:16]:
            theirs = terms[other]
            same = len(theirs) == len(mine) and all(
                a >= 0 and b >= 0 and r.node_of_value[a] == r.node_of_value[b]
                for a, b in zip(mine, theirs, strict=True)
            )
            if same and mine != theirs and fields[other] < buildloops.MAX_FIELDS:
                leader[node] = other
                fields[other] += 1
                break
    return leader, fields


@pytest.mark.parametrize("seed", range(60))
def test_sums_equal_their_reference(seed: int) -> None:
    """Absorbing, collecting terms, merging and writing give what plain Python gives."""
    r = Recorded(seed, count=4 if seed % 3 == 0 else 60)
    is_sum, ptr, refs, value_node = r.arrays()
    absorber = buildloops.absorbed_sums(is_sum, ptr, refs, value_node, np.array(r.uses(), np.int64))
    assert absorber.tolist() == absorber_reference(r)

    start, flat_terms = buildloops.chain_terms(is_sum, absorber, ptr, refs, value_node)
    terms = {v: terms_reference(r, absorber.tolist(), v) for v in range(len(is_sum)) if is_sum[v] and absorber[v] < 0}
    for node in range(len(is_sum)):
        assert flat_terms[start[node] : start[node + 1]].tolist() == terms.get(node, [])

    leader, field, num_fields = buildloops.merge_sums(start, flat_terms, value_node)
    expected_leader, expected_fields = merge_reference(r, terms)
    assert leader.tolist() == expected_leader
    assert all(num_fields[v] == expected_fields[v] for v in terms if leader[v] == v)

    kept, new_ptr, new_refs, new_node, new_output = buildloops.write_nodes(
        leader, absorber, num_fields, field, start, flat_terms, ptr, refs, r.value_base
    )
    for position, node in enumerate(kept.tolist()):
        written = new_refs[new_ptr[position] : new_ptr[position + 1]].tolist()
        members = sorted((v for v in terms if leader[v] == node), key=lambda v: field[v])
        columns = [terms[v] for v in members] if members else [[ref] for ref in r.operands[node]]
        expected = [ref for item in zip(*columns, strict=True) for ref in item] if members else r.operands[node]
        assert written == expected
        for v in members:
            assert (new_node[r.value_base[v]], new_output[r.value_base[v]]) == (position, field[v])
        for value in r.values_of(node) if not members else ():
            assert (new_node[value], new_output[value]) == (position, value - r.value_base[node])
    assert kept.tolist() == [v for v in range(len(is_sum)) if absorber[v] < 0 and leader[v] in (-1, v)]

    results = np.array(r.results, np.int64)
    value_output = np.arange(len(value_node)) - r.value_base[value_node]
    whole = buildloops.fuse_sums(is_sum, ptr, refs, results, r.value_base, value_node, value_output)
    assert np.shares_memory(whole[3][1], ptr) == (len(kept) == len(is_sum))  # where all stay, nothing is written
    apart = leader, field, num_fields, kept, new_ptr, new_refs, new_node, new_output
    for left, right in zip((*whole[:3], *whole[3]), apart, strict=True):
        assert left.tolist() == right.tolist()

    output_class = np.random.default_rng(seed).integers(2, size=len(is_sum))
    kinds, kind_of = buildloops.kinds_of_sums(kept, leader, field, num_fields, output_class)
    combinations = [
        tuple(output_class[v] for v in sorted((v for v in terms if leader[v] == node), key=lambda v: field[v]))
        for node in kept.tolist()
    ]
    known = list(dict.fromkeys(classes for classes in combinations if len(classes) > 1))
    assert [tuple(c for c in kind if c >= 0) for kind in kinds.tolist()] == known
    assert kind_of.tolist() == [known.index(c) if len(c) > 1 else -1 for c in combinations]


@pytest.mark.parametrize("seed", range(20))
def test_numbers_of_values(seed: int) -> None:
    """Values are numbered node by node and output by output; refs become pairs, externals stay as they are."""
    rng = random.Random(seed)
    num_operands, num_outputs = [rng.randrange(3) for _ in range(4)], [rng.randrange(3) for _ in range(4)]
    entries = [rng.randrange(4) for _ in range(rng.randrange(30))]
    pairs = [(v, j) for v, entry in enumerate(entries) for j in range(num_outputs[entry])]
    ptr, base, node, output = buildloops.number_values(
        *(np.array(x, np.int64) for x in (entries, num_operands, num_outputs))
    )
    refs = np.array([rng.randrange(-3, len(pairs)) for _ in range(20)], np.int64)
    nodes, outputs = buildloops.as_operands(refs, node, output)

    assert ptr.tolist() == [sum(num_operands[e] for e in entries[:v]) for v in range(len(entries) + 1)]
    assert base.tolist() == [sum(num_outputs[e] for e in entries[:v]) for v in range(len(entries) + 1)]
    assert list(zip(node.tolist(), output.tolist(), strict=True)) == pairs
    assert list(zip(nodes.tolist(), outputs.tolist(), strict=True)) == [
        pairs[ref] if ref >= 0 else (ref, 0) for ref in refs.tolist()
    ]


@pytest.mark.parametrize("refs", [[100, 104, -51, -53], [105, 99], [-54, -51, -50], [-50], []])
def test_refs_are_counted_from_the_start_of_their_mini_batch(refs: list[int]) -> None:
    """Of five values from 100 on and three externals from 50 on, what is not of this mini-batch is told first."""
    local, foreign = buildloops.local_refs(np.array(refs, np.int64), 100, 50, 5, 3)
    wrong = [i for i, ref in enumerate(refs) if not (100 <= ref < 105 or -53 <= ref <= -51)]
    assert foreign == (wrong[0] if wrong else -1)
    assert local.tolist() == [ref - 100 if ref >= 0 else ref + 50 for ref in refs]
