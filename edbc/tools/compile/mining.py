"""Mining the dataflow graph: patterns that are worth being one type, found on the training mini-batch.

What capture leaves, operations that are in no cell, is fused here: nodes of a pattern (`edbc.base.pattern`) become one.
Frequent connected subgraphs are grown along edges, from pairs of types, as byte-pair encoding grows words of symbols
(Gage, "A new algorithm for data compression", C Users Journal 1994; Sennrich et al., ACL 2016; for graphs, Yan and Han,
"gSpan", ICDM 2002, whose canonical forms are not needed where growth follows the edges of one graph). Definitions.

(1) A *pair* is two different types and the operands of the second that read the first, where nothing else reads that:
    a step of a recursion is no pattern with the next one, as how deep instances are is theirs. Its
    *pattern* is that of both, with operands that are the same value in all of its occurrences as one.
(2) A mini-batch *costs* NODE_US for every node and BYTE_US for what it writes, BATCH_US for every batch under the
    critical-path rule, the products of its types (`automatic.Work`), and TYPE_US for each type that it has. A pattern
    *pays* where the graph with it costs less by LEAST of all, as what hardly pays may not on other instances. It does
    not where its types have a batch of many nodes, which would wait for what its nodes do not need then.
(3) In each round the pairs of the graph as it is so far are tried, those first that would save most if all of their
    batches went, and the first that pays is kept. Rounds end where none pays.

A pattern is a type only where its program is native: what torch runs call by call gains nothing. Sums are members with
as many operands as they have; excerpts, other reductions and what draws random numbers are none. At most MOST_TRIED
graphs are scheduled, and no more once MOST_VISITED nodes of them, and types for each batch, have been looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Graph
from edbc.base.pattern import MOST_MEMBERS, MOST_OPERANDS, Pattern, grown, single
from edbc.capture.code.automatic import BATCH_US, PRODUCTS_PER_US, WEIGHTS_PER_US, Work
from edbc.capture.code.shadow import ModelView
from edbc.capture.code.work import work_of_call
from edbc.capture.forward.build import Capture, fused
from edbc.capture.patterns import fuseloops
from edbc.capture.patterns.fusions import Fusions, Planned
from edbc.capture.record.table import TypeTable
from edbc.capture.standins.standin import torch_dtype
from edbc.errors import UnsupportedError
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import run
from edbc.tools.compile.natives import Natives

NODE_US, BYTE_US = 0.05, 0.0001
"""Scheduling, placing and calling a node; a byte that is written and read again."""
FEWEST = 8
"""Occurrences of a pair."""
TYPE_US = 20.0
"""Of binding a type, some 0.1 s, what a mini-batch bears: a variant of a pattern has to save more."""
LEAST = 0.005
"""Of the mini-batch's cost. Without it four plans of the zoo had patterns, two of which cost batches on fresh ones."""
MOST_TRIED, MOST_VISITED = 256, 4_000_000
TYPES_LIKE_A_NODE = 3
"""Types that the rule looks at for one batch in the time that a node takes: 838 types and 1,277 batches took 40 ms."""
MOST_PLACES = 62
"""Operands of a reader that are looked at: bits of a number."""
_CRITICAL = Policy("critical")


def mine(table: TypeTable, view: ModelView, captures: Sequence[Capture]) -> tuple[Pattern, ...]:
    """The patterns, over signatures, that pay on captured graphs of a table without patterns, definition (3)."""
    parts = [captured for captured in captures if captured.graph.num_nodes]
    return _Mining(table, view, parts).patterns() if parts else ()


class _Pair(NamedTuple):
    """Definition (1): producers and their readers in each graph."""

    part: Capture
    producers: NDArray[np.int64]
    readers: NDArray[np.int64]


class _Mining:
    def __init__(self, table: TypeTable, view: ModelView, parts: Sequence[Capture]):
        self.table, self.view, self.parts = table, view, parts
        self._works: dict[int, Work] = {}
        self._natives = Natives()
        self._pattern_of: dict[int, Pattern] = {}
        self._refused: set[Pattern] = set()
        self._tries, self._visits = MOST_TRIED, MOST_VISITED

    def patterns(self) -> tuple[Pattern, ...]:
        """See `mine`."""
        kept: list[Pattern] = []
        parts, (cost, launches) = self.parts, self._cost(self.parts)
        while (found := self._first_that_pays(kept, parts, cost, launches)) is not None:
            pattern, parts, cost, launches = found
            kept.append(pattern)
        used = np.unique(np.concatenate([part.graph.node_type for part in parts])).tolist()
        return tuple(self._pattern_of[kind] for kind in used if kind in self._pattern_of)

    def _first_that_pays(self, kept: list[Pattern], parts: Sequence[Capture], cost: float,
                         launches: NDArray[np.float64]) -> Any:  # fmt: skip
        """Of the pairs of the graphs as they are: the pattern, the graphs with it, and what they cost."""
        for pattern in self._candidates(parts, launches):
            if min(self._tries, self._visits) <= 0:
                return None
            self._tries -= 1
            with_it = self._fused([*kept, pattern])
            try:
                new, new_launches = self._cost(with_it)
            except UnsupportedError:  # a member is read through a view that only changes in place make
                self._refused.add(pattern)
                continue
            kind = next(k for k, known in self._pattern_of.items() if known == pattern)
            if new < (1 - LEAST) * cost and self._natives.run(self.table, kind, self.view):
                return pattern, with_it, new, new_launches
            self._refused.add(pattern)
        return None

    def _fused(self, patterns: Sequence[Pattern]) -> list[Capture]:
        fusions = Fusions(self.table, map(Planned, patterns))
        matchers = fusions.matchers()
        self._pattern_of |= {kind: planned.pattern for planned, kind in fusions.types()}
        return [fused(part, self.table, matchers) for part in self.parts]

    # --- costs -----------------------------------------------------------------------------------------------------

    def _cost(self, parts: Sequence[Capture]) -> tuple[float, NDArray[np.float64]]:
        """Definition (2), and of every type the share of a batch that a node has."""
        num_types = len(self.table.types)
        nodes, batches = np.zeros(num_types), np.zeros(num_types)
        for part in parts:
            schedule, of_type = run(part.graph, _CRITICAL), np.bincount(part.graph.node_type, minlength=num_types)
            nodes += of_type
            batches += np.bincount(schedule.batch_type, minlength=num_types)
            looked_at = schedule.num_batches * np.count_nonzero(of_type) // TYPES_LIKE_A_NODE
            self._visits -= part.graph.num_nodes + int(looked_at)
        cost = 0.0
        for kind in np.flatnonzero(nodes).tolist():
            work = self._work(kind)
            cost += TYPE_US + nodes[kind] * (self._node_us(kind) + work.products / PRODUCTS_PER_US)
            cost += batches[kind] * (BATCH_US + work.weights / WEIGHTS_PER_US)
        return float(cost), batches / np.maximum(nodes, 1)

    def _node_us(self, kind: int) -> float:
        node_type = self.table.types[kind]
        assert node_type is not None
        return NODE_US + BYTE_US * sum(c.size * torch_dtype(c.dtype).itemsize for c in node_type.outputs)

    def _work(self, kind: int) -> Work:
        if kind not in self._works:
            entry = self.table.operation_of_type.get(kind)
            self._works[kind] = Work(0, 0) if entry is None else work_of_call(entry, self.view)
        return self._works[kind]

    # --- pairs -----------------------------------------------------------------------------------------------------

    def _candidates(self, parts: Sequence[Capture], launches: NDArray[np.float64]) -> Iterator[Pattern]:
        """The patterns of pairs, those that may save most first, that have not been refused."""
        found: dict[tuple[int, ...], list[_Pair]] = {}
        for part in parts:
            for key, pair in _pairs(part, self._may_be_members()):
                found.setdefault(key, []).append(pair)

        def saving(key: tuple[int, ...]) -> float:
            count = sum(len(pair.producers) for pair in found[key])
            return count * (self._node_us(key[0]) + BATCH_US * float(launches[key[0]])) if count >= FEWEST else 0.0

        for key in sorted(found, key=lambda key: (-saving(key), key)):
            pattern = self._pattern(found[key]) if saving(key) else None
            if pattern is not None and pattern not in self._refused:
                yield pattern

    def _may_be_members(self) -> NDArray[np.bool_]:
        types = self.table.graph_types()
        return np.array([not (t.is_excerpt or t.drawn) and (not t.variadic or (t.op == "sum" and len(t.outputs) == 1))
                         for t in types])  # fmt: skip

    def _pattern(self, pairs: Sequence[_Pair]) -> Pattern | None:
        """The pattern of a pair, wired as its first occurrence is; None for one that is too large."""
        rows = np.concatenate([np.hstack([_operands(part, readers), _operands(part, producers)])
                               for part, producers, readers in pairs])  # fmt: skip
        part, producers, readers = pairs[0]
        operands = part.graph.operands_of(int(readers[0]))
        outputs = [output if node == producers[0] else None for node, output in operands]
        same = [next(i for i in range(j + 1) if (rows[:, i] == rows[:, j]).all()) for j in range(rows.shape[1])]
        pattern = grown(self._of(part.graph, int(readers[0])), self._of(part.graph, int(producers[0])), outputs, same)
        is_small = len(pattern.members) <= MOST_MEMBERS and pattern.num_operands <= MOST_OPERANDS
        return pattern if is_small else None

    def _of(self, graph: Graph, node: int) -> Pattern:
        kind = int(graph.node_type[node])
        known = self._pattern_of.get(kind)
        return single(graph.types[kind].signature, len(graph.operands_of(node))) if known is None else known


def _operands(part: Capture, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The operands of nodes of one type, of one arity, as numbers that are equal where they are."""
    graph = part.graph
    first = graph.operand_ptr[nodes].astype(np.int64)
    places = first[:, None] + np.arange(graph.operand_ptr[nodes[0] + 1] - first[0])
    return graph.operands[places].astype(np.int64) * fuseloops.OUTPUTS + graph.operand_output[places]


def _pairs(part: Capture, may_be: NDArray[np.bool_]) -> Iterator[tuple[tuple[int, ...], _Pair]]:
    """The pairs of a graph by producer's type and arity, reader's type and arity, and bits of the operands that read
    it. O(nodes + operands), vectorised."""
    graph, n = part.graph, part.graph.num_nodes
    arity = np.diff(graph.operand_ptr)
    reader = np.repeat(np.arange(n), arity)
    place = np.arange(len(reader)) - graph.operand_ptr[reader]
    inside = graph.operands >= 0
    read, reader, place = graph.operands[inside].astype(np.int64), reader[inside], place[inside]
    first, last, bits = np.full(n, n), np.full(n, -1), np.zeros(n, np.int64)
    np.minimum.at(first, read, reader)
    np.maximum.at(last, read, reader)
    np.bitwise_or.at(bits, read, np.int64(1) << np.minimum(place, MOST_PLACES))
    alone = (first == last) & (bits < np.int64(1) << MOST_PLACES)
    alone[part.result_node[part.result_node >= 0]] = False
    producers = np.flatnonzero(alone)
    readers = first[producers]
    fits = may_be[graph.node_type[producers]] & may_be[graph.node_type[readers]]
    fits &= graph.node_type[producers] != graph.node_type[readers]
    if part.detached is not None:
        fits &= part.detached[producers] == part.detached[readers]
    producers, readers = producers[fits], readers[fits]
    columns = (graph.node_type[producers], arity[producers], graph.node_type[readers], arity[readers], bits[producers])
    keys, inverse = np.unique(np.stack(columns, axis=1).astype(np.int64), axis=0, return_inverse=True)
    for number, key in enumerate(keys.tolist()):
        here = inverse.reshape(-1) == number
        yield tuple(key), _Pair(part, producers[here], readers[here])
