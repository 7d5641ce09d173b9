"""Which values of a mini-batch need a gradient, and which get one.

Definitions.

(1) A value *requires* a gradient when it depends (`training.dependence`) on a trainable parameter, or on an external or
    a value that requires one, and its node was not recorded where gradients were off (`semantics.gradmode`). Eager's
    `requires_grad`.
(2) A value is *reached* when it requires a gradient and a result that the loss uses depends on it. Eager computes a
    gradient for exactly these values, and leaves `.grad` of what no reached value depends on as it was: None.

Values are numbered node by node, output by output. Each kernel has a plain-Python reference in the tests.
"""

# numba infers the types of kernels.
# mypy: disable-error-code="no-untyped-def,var-annotated"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edbc.base.graph import Graph
from edbc.native.kernelcache import njit
from edbc.train.dependence import Dependence

Bools = NDArray[np.bool_]
Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Reach:
    """A graph with what its types depend on, as arrays. t types, k externals."""

    graph: Graph
    depends: Bools  # (t, outputs, operands)
    trainable: Bools  # (t, outputs)
    first_value: Longs  # (n + 1,)
    detached: Bools | None = None  # (n,)
    """Nodes that no gradient passes."""

    @cached_property
    def segmented(self) -> Bools:  # (t,)
        """Types of which what is said of output 0 holds for all outputs."""
        return np.array([t.segmented for t in self.graph.types], np.bool_)

    def requires(self, externals: Bools) -> Bools:
        """Definition (1) for every value; `externals` says it of the externals."""
        graph = self.graph
        arity = _arities(graph)
        return requires_kernel(
            graph.node_type, graph.operand_ptr, graph.operands, graph.operand_output, arity, self.segmented,
            self.depends, self.trainable, self.first_value, externals,
            np.zeros(0, np.bool_) if self.detached is None else self.detached,
        )  # fmt: skip

    def reached(self, requires: Bools, used: Longs, externals: Bools) -> tuple[Bools, Bools]:
        """Definition (2) for values and externals; `used` are the values (or -1 - external) that a loss uses."""
        graph = self.graph
        arity = _arities(graph)
        values, given = np.zeros(len(requires), np.bool_), np.zeros(len(externals), np.bool_)
        values[used[used >= 0]] = True
        given[-1 - used[used < 0]] = True
        values &= requires
        given &= externals
        reached_kernel(
            graph.node_type, graph.operand_ptr, graph.operands, graph.operand_output, arity, self.segmented,
            self.depends, self.first_value, requires, externals, values, given,
        )  # fmt: skip
        return values, given

    def pick(self, values: Longs, of_values: Bools, of_externals: Bools) -> Bools:
        """What is said of values and externals, for values (or -1 - external)."""
        picked = np.zeros(len(values), np.bool_)
        internal = values >= 0
        picked[internal], picked[~internal] = of_values[values[internal]], of_externals[-1 - values[~internal]]
        return picked

    def outputs(self, reached: Bools) -> Bools:
        """For every type and output, whether any node's is reached; (t, outputs)."""
        table = np.zeros(self.trainable.shape, np.bool_)
        outputs_kernel(self.graph.node_type, self.first_value, self.segmented, reached, table)
        return table

    def values(self, nodes: Longs, outputs: Longs) -> Longs:
        """Numbers of values given as (node or -1 - external, output)."""
        internal = nodes >= 0
        return np.where(internal, self.first_value[np.where(internal, nodes, 0)] + outputs, nodes)


def reach_of(graph: Graph, dependences: Sequence[Dependence | None], trainable: Sequence[Sequence[bool]],
             detached: Bools | None = None) -> Reach:  # fmt: skip
    """`dependences[t]` is None, and `trainable[t]` empty, for types without nodes."""
    most = max([1, *(len(t.outputs) for t in graph.types)])
    widest = max([1, *(len(t.operands) for t in graph.types)])
    depends = np.zeros((len(graph.types), most, widest), np.bool_)
    own = np.zeros(depends.shape[:2], np.bool_)
    for kind, dependence in enumerate(dependences):
        if dependence is not None:
            outputs, operands = dependence.operands.shape
            depends[kind, :outputs, :operands] = dependence.operands
            own[kind, :outputs] = trainable[kind]
    first = np.zeros(graph.num_nodes + 1, np.int64)
    np.cumsum(graph.num_outputs(), out=first[1:])
    return Reach(graph, depends, own, first, detached)


def _arities(graph: Graph) -> Longs:
    """Operands of a node, or of one group of them."""
    return np.array([max(len(t.operands), 1) for t in graph.types], np.int64)


@njit(cache=True)
def requires_kernel(node_type, ptr, operands, output, arity, segmented, depends, trainable, first, externals, detached):
    """Definition (1), node by node."""
    requires = np.zeros(first[-1], np.bool_)
    for v in range(len(node_type)):
        t = node_type[v]
        if len(detached) and detached[v]:
            continue
        for j in range(first[v + 1] - first[v]):
            needed = trainable[t, j]
            for i in range(ptr[v], ptr[v + 1]):
                k = (i - ptr[v]) % arity[t]
                if not needed and depends[t, j, k]:
                    u = operands[i]
                    needed = externals[-1 - u] if u < 0 else requires[first[u] + output[i]]
            if segmented[t]:
                requires[first[v] : first[v + 1]] = needed
                break
            requires[first[v] + j] = needed
    return requires


@njit(cache=True)
def outputs_kernel(node_type, first, segmented, reached, table):
    """`Reach.outputs`, node by node."""
    for v in range(len(node_type)):
        for j in range(first[v + 1] - first[v]):
            table[node_type[v], 0 if segmented[node_type[v]] else j] |= reached[first[v] + j]


@njit(cache=True)
def reached_kernel(
    node_type, ptr, operands, output, arity, segmented, depends, first, requires, externals, values, given
):
    """Definition (2), from the last node to the first; `values` and `given` hold what the loss uses, and grow."""
    for v in range(len(node_type) - 1, -1, -1):
        t = node_type[v]
        for j in range(1 if segmented[t] else first[v + 1] - first[v]):
            if not (values[first[v] : first[v + 1]].any() if segmented[t] else values[first[v] + j]):
                continue
            for i in range(ptr[v], ptr[v + 1]):
                if not depends[t, j, (i - ptr[v]) % arity[t]]:
                    continue
                u = operands[i]
                if u < 0:
                    given[-1 - u] |= externals[-1 - u]
                else:
                    values[first[u] + output[i]] |= requires[first[u] + output[i]]
