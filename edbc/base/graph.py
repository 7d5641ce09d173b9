"""The dataflow graph of one mini-batch: a typed DAG as arrays.

Definitions.

(1) A *type* is a signature (Neubig et al., "On-the-fly Operation Batching in Dynamic Computation Graphs", NIPS 2017,
    Appendix A): operation, constants, shared parameters, shapes and dtypes of the batched operands. Nodes of one type
    can run in one batch.
(2) A *node* is one application of a type. Its *operands* are outputs of earlier nodes or *externals*: rows of a table
    looked up by index, shared vectors, data of the instance. Externals are operands and never nodes, so they count in
    no batch.
(3) Nodes are numbered in the order in which the user's program made them, hence topologically: every operand of node
    v that is a node has a smaller number.
(4) A *segmented* type maps a run of any length to a run of the same length (attention over a sentence, a cumulative
    sum): a node has any number of groups of operands, its *items*, and as many outputs of one class.

The arrays are CSR: operands of node v are `operands[operand_ptr[v]:operand_ptr[v + 1]]`, in order, repeats kept. An
entry e >= 0 is a node, and `operand_output` says which of its outputs; an entry e < 0 is external number -1 - e.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from edbc.base.frozen import frozen
from edbc.errors import GraphError

Ints = NDArray[np.int32]
EXCERPT = "excerpt"
"""The operation of `NodeType.is_excerpt`."""
RUN = "run "
"""What the operations of `NodeType.is_run` begin with."""
HIDDEN_RANK = 16
"""Dimensions of the classes of what no model sees, which no value shares an arena with."""


@dataclass(frozen=True)
class ValueClass:
    """Shape and dtype of one value, without any batch dimension."""

    shape: tuple[int, ...]
    dtype: str = "f32"

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for dim in self.shape:
            size *= dim
        return size

    @property
    def row(self) -> tuple[int, str, bool]:
        """What the classes have in common whose values share an arena."""
        return self.size, self.dtype, len(self.shape) == HIDDEN_RANK

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class NodeType:
    """A signature, definition (1)."""

    name: str
    """Unique within a graph and readable: `internal`, `sum`, `cat.2`."""
    op: str
    """What runs: `cell internal`, `sum`, `torch.cat`."""
    operands: tuple[ValueClass, ...] = ()
    """Classes of the batched operands in order; of one group of operands when `variadic`."""
    outputs: tuple[ValueClass, ...] = (ValueClass(()),)
    constants: str = ""
    """Canonical text of everything else in the signature: constants, keywords, shared parameters, views."""
    variadic: bool = False
    """True when a node has any number of operand groups (a segment sum over children)."""
    transient: bool = False
    """True when the outputs of a batch are read before the type's next batch runs, and need not be kept beyond it."""
    sites: tuple[str, ...] = field(default=(), compare=False)
    """Call sites: `file:line` of the user's code wherever it makes nodes of this type, in the order of their first
    use. Those beyond a bound are counted in `more_sites` only."""
    more_sites: int = field(default=0, compare=False)
    segmented: bool = False
    """True of a variadic type when a node has an output for each group, definition (4), of class `outputs[0]`."""
    drawn: int = field(default=0, compare=False)
    """Operands, the last ones, that are random numbers (`edbc.capture.record.draws`): no part of the signature."""

    @property
    def is_excerpt(self) -> bool:
        """True for excerpts: a run of elements of any value of the first operand's dtype, whatever its class, from the
        element on that the second operand says."""
        return self.op == EXCERPT

    @property
    def is_run(self) -> bool:
        """True for functions of whole runs of rows (`edbc.capture.ragged.whole`)."""
        return self.op.startswith(RUN)

    @property
    def has_program(self) -> bool:
        """False for reductions and excerpts, which no cell says."""
        return not (self.variadic or self.is_excerpt)

    @property
    def source(self) -> str:
        """The call sites as text: `model.py:41, model.py:52 and 3 more`."""
        more = f" and {self.more_sites} more" if self.more_sites else ""
        return ", ".join(self.sites) + more

    @property
    def signature(self) -> str:
        """One line: `cell internal(f32[8], f32[8]) -> f32[8]`."""
        called_with = self.operands[: len(self.operands) - self.drawn]
        operands = ", ".join(map(str, called_with)) + ("..." if self.variadic else "")
        constants = f" {{{self.constants}}}" if self.constants else ""
        outputs = ", ".join(map(str, self.outputs)) + ("..." if self.segmented else "")
        return f"{self.op}({operands}){constants} -> {outputs}"


def ints(values: Iterable[int] | NDArray[Any]) -> Ints:
    """Read-only: numba compiles a loop anew for arrays that are not. The very array where it is one of such numbers."""
    array = np.ascontiguousarray(values if isinstance(values, np.ndarray) else list(values), dtype=np.int32)
    array.setflags(write=False)
    return array


class GraphArrays(NamedTuple):
    """A Graph's nodes and their operands, as native loops take them."""

    node_type: Any
    operand_ptr: Any
    operands: Any
    operand_output: Any


@frozen
class Graph:
    """A frozen typed DAG, definitions (1) to (3). n nodes, m operand entries, k externals.

    Invariants (checked by `lint`, not by the constructor): every type index is valid; `operand_ptr` starts at 0, never
    decreases and ends at m; a node operand is smaller than its user; an output index exists in the producer's type; an
    external index is below k; a type that is not variadic has as many operands as its signature.
    """

    types: tuple[NodeType, ...]
    node_type: Ints  # (n,)
    operand_ptr: Ints  # (n + 1,)
    operands: Ints  # (m,) node, or -1 - external
    operand_output: Ints  # (m,) 0 for externals
    external_class: Ints  # (k,) index into `classes`
    classes: tuple[ValueClass, ...] = ()
    """Classes of the externals."""

    @classmethod
    def build(
        cls,
        types: Sequence[NodeType | str],
        nodes: Iterable[tuple[int | str, Sequence[int | tuple[int, int]]]],
        *,
        externals: Sequence[ValueClass] = (),
    ) -> Graph:
        """A graph from a list of `(type, operands)`; for tests, readers of other formats and small examples.

        `types` may be bare names (then variadic, with one scalar output). A type in `nodes` is its index or its name;
        an operand is a node, `-1 - external`, or a pair `(node, output)`.

        >>> g = Graph.build(["leaf", "out"], [("leaf", []), ("out", [0]), ("out", [0])])
        >>> g.num_nodes, g.counts().tolist()
        (3, [1, 2])
        """
        full = tuple(
            t if isinstance(t, NodeType) else NodeType(t, t, (ValueClass(()),), (ValueClass(()),), variadic=True)
            for t in types
        )
        index_of_name = {t.name: i for i, t in enumerate(full)}
        node_type, ptr, operands, outputs = [], [0], [], []
        for kind, args in nodes:
            node_type.append(index_of_name[kind] if isinstance(kind, str) else kind)
            for arg in args:
                node, output = arg if isinstance(arg, tuple) else (arg, 0)
                operands.append(node)
                outputs.append(output)
            ptr.append(len(operands))
        classes = tuple(dict.fromkeys(externals))
        external_class = [classes.index(c) for c in externals]
        return cls(full, ints(node_type), ints(ptr), ints(operands), ints(outputs), ints(external_class), classes)

    @property
    def arrays(self) -> GraphArrays:
        """For native loops."""
        return GraphArrays(self.node_type, self.operand_ptr, self.operands, self.operand_output)

    @property
    def num_nodes(self) -> int:
        """Number of nodes n."""
        return len(self.node_type)

    @property
    def num_types(self) -> int:
        """Number of types, those without a node counted."""
        return len(self.types)

    @property
    def num_externals(self) -> int:
        """Number of externals k."""
        return len(self.external_class)

    def num_outputs(self) -> Ints:
        """Outputs of each node, (n,)."""
        of_type = np.array([len(t.outputs) for t in self.types], np.int32)[self.node_type]
        segmented = np.array([t.segmented for t in self.types], np.bool_)
        if not segmented.any():
            return of_type
        groups = np.array([max(len(t.operands), 1) for t in self.types], np.int32)[self.node_type]
        return np.where(segmented[self.node_type], np.diff(self.operand_ptr) // groups, of_type)

    def counts(self) -> Ints:
        """Nodes of each type, `(num_types,)`."""
        return np.bincount(self.node_type, minlength=self.num_types).astype(np.int32)

    def operands_of(self, node: int) -> list[tuple[int, int]]:
        """The operands of a node in order, as `(node or -1 - external, output)`."""
        span = slice(self.operand_ptr[node], self.operand_ptr[node + 1])
        return list(zip(self.operands[span].tolist(), self.operand_output[span].tolist(), strict=True))

    def lint(self) -> Graph:
        """Check every invariant of the class and return the graph itself.

        Raises GraphError that names the node, the fault and its likely cause. O(n + m).
        """
        n, m = self.num_nodes, len(self.operands)
        if len({t.name for t in self.types}) != self.num_types:
            raise GraphError("graph: expected unique type names, got a repeated one; rename one of the types")
        if len(self.operand_ptr) != n + 1 or (self.operand_ptr[0] != 0) or self.operand_ptr[-1] != m:
            raise GraphError(
                f"graph: expected operand_ptr to run from 0 to {m} over {n + 1} entries; rebuild the graph"
            )
        if np.any(np.diff(self.operand_ptr) < 0):
            raise GraphError("graph: operand_ptr decreases; the operands of two nodes overlap")
        if len(self.operand_output) != m:
            raise GraphError(f"graph: expected {m} operand outputs, got {len(self.operand_output)}")
        wrong = np.flatnonzero((self.node_type < 0) | (self.node_type >= self.num_types))
        if len(wrong):
            kind = int(self.node_type[wrong[0]])
            raise GraphError(f"node {wrong[0]}: expected a type in 0..{self.num_types - 1}, got {kind}")
        wrong = np.flatnonzero(self._is_wrong())
        if len(wrong):
            self._refuse(int(wrong[0]))
        if self.num_externals and not 0 <= self.external_class.min() <= self.external_class.max() < len(self.classes):
            raise GraphError(f"graph: an external names a class outside 0..{len(self.classes) - 1}")
        return self

    def _is_wrong(self) -> NDArray[np.bool_]:
        """The nodes that `_refuse` has something to say about, (n,)."""
        arity = np.array([len(t.operands) for t in self.types], np.int64)[self.node_type]
        variadic = np.array([t.variadic for t in self.types], np.bool_)[self.node_type]
        num_outputs = self.num_outputs()
        counts = np.diff(self.operand_ptr)
        wrong = np.where(variadic, (arity > 0) & (counts % np.maximum(arity, 1) > 0), counts != arity)
        user = np.repeat(np.arange(self.num_nodes), counts)
        late = (self.operands >= user) | (self.operands < -self.num_externals)
        internal = ~late & (self.operands >= 0)
        late[internal] |= (self.operand_output[internal] < 0) | (
            self.operand_output[internal] >= num_outputs[self.operands[internal]]
        )
        wrong[user[late]] = True
        return wrong

    def _refuse(self, node: int) -> NoReturn:
        """Raise for the first fault of a node that `_is_wrong`."""
        type_ = self.types[int(self.node_type[node])]
        where = f"node {node} ({', '.join(filter(None, (type_.name, type_.source)))})"
        operands = self.operands_of(node)
        arity = len(type_.operands)
        if type_.variadic and arity and len(operands) % arity:
            raise GraphError(f"{where}: expected groups of {arity} operands, got {len(operands)}")
        if not type_.variadic and len(operands) != arity:
            raise GraphError(f"{where}: expected {arity} operands, got {len(operands)}")
        raise GraphError(f"{where}: {next(filter(None, (self._fault(node, i) for i in range(len(operands)))))}")

    def _fault(self, node: int, position: int) -> str:
        """What is wrong with one operand of a node, or nothing."""
        operand, output = self.operands_of(node)[position]
        if operand >= node:
            return (
                f"operand {position} is node {operand}, used before it has been defined; nodes must be numbered in "
                "topological order"
            )
        if operand < -self.num_externals:
            return f"operand {position} is external {-1 - operand}, of {self.num_externals}"
        available = int(self.num_outputs()[operand]) if operand >= 0 else 0
        if operand >= 0 and not 0 <= output < available:
            return f"operand {position} is output {output} of node {operand}, which has {available}"
        return ""

    def text(self, limit: int | None = None) -> str:
        """One line per node: `%7 = internal(%3.0, %5.0, x2)`; at most `limit` of them."""
        lines = []
        for node in range(self.num_nodes if limit is None else min(limit, self.num_nodes)):
            operands = ", ".join(self._operand_text(*operand) for operand in self.operands_of(node))
            lines.append(f"%{node} = {self.types[int(self.node_type[node])].name}({operands})")
        if limit is not None and self.num_nodes > limit:
            lines.append(f"... {self.num_nodes - limit} more")
        return "\n".join(lines)

    def _operand_text(self, operand: int, output: int) -> str:
        if operand < 0:
            return f"x{-1 - operand}"
        outputs = self.types[int(self.node_type[operand])].outputs
        return f"%{operand}" if len(outputs) == 1 else f"%{operand}.{output}"

    def dot(self) -> str:
        """The graph in Graphviz's language, one colour per type, externals left out."""
        lines = ["digraph edbc {", "  rankdir=BT; node [shape=box, style=filled, colorscheme=set312];"]
        for node in range(self.num_nodes):
            kind = int(self.node_type[node])
            lines.append(f'  n{node} [label="{self.types[kind].name}", fillcolor={kind % 12 + 1}];')
            lines += [f"  n{operand} -> n{node};" for operand, _ in self.operands_of(node) if operand >= 0]
        return "\n".join([*lines, "}"])

    def __repr__(self) -> str:
        counts = ", ".join(f"{t.name} {c}" for t, c in zip(self.types, self.counts().tolist(), strict=True))
        return f"Graph({self.num_nodes} nodes: {counts})"
