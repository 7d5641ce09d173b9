"""Broadcasting adjacency across the aligned operands of batches, until their subtrees are isomorphic.

Problem: a PQ tree has every operand adjacent. Aligned operands must also be ordered alike inside: when the positions
{0, 1} are adjacent in every order of one operand of a batch, they must be in its other operands. Algorithms 2 and 3 of
ED-Batch (reference in `edbc.layout.problem`), with REDUCE from `edbc.layout.pqtree`.

Definitions.

(1) The *subtree* of an operand is the node, or the run of neighbouring children of a Q-node, over exactly its leaves.
(2) The *constraints* of a subtree are sets of positions, kept as bit masks: the leaves of each P-node, and of each two
    neighbours in each Q-node or run. They determine the subtree: reducing a universal tree by them gives it back.
(3) Two operands are *isomorphic* when their subtrees have the same constraints. Then the same sets of positions have
    nodes in both, and the nodes correspond.

What the paper's pseudo-code leaves open, and what is done here.

- An operand need not fill its Q-node: after {x1, x2, x3} and {x2, x3, x4}, each holds a run of one Q-node's children.
  Algorithm 3 parses the children of the root of the subtree and would include leaves outside the operand. Here the
  subtree is a run, definition (1), and only pairs within it count.
- Line 12 of Algorithm 3 takes a next sibling for every child; the last one has none.
- Alg. 2's `visited` is filled and asked only by the outer loop, while the inner one may visit a batch again, as it
  must. Here one queue holds the batches to be parsed, all of them at first, and `reduce_and_get_changed` adds those
  with a changed or deleted node in a subtree. Nodes are mapped to batches and back, as Appendix B suggests. A node that
  is created appears in the map when its batch is parsed again, which is certain: it takes leaves from a changed node.
- A splice into the inside of a chain has a parent that the reduction does not know. Nothing is missed: a run's
  structure changes only when one of its own children is replaced, and that child is deleted or changed.
- A batch that turns out infeasible is erased in line 15 of Algorithm 2, but what it has done to the tree stays there
  and may make later batches infeasible. Here the caller keeps a `copy` and goes back to it.

Termination: each change of the tree removes orders. At the fixed point every constraint that was broadcast follows
from the demands, so no order that meets all of them was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from edbc.layout.pqnode import PQNode
from edbc.layout.pqtree import PQTree

Operand = tuple[str, ...]


@dataclass(frozen=True)
class OperandTree:
    """The subtree of an operand, definition (1), with the positions below each of its nodes as bit masks."""

    cover: tuple[PQNode, ...]
    mask: dict[PQNode, int]

    @classmethod
    def of(cls, tree: PQTree, operand: Operand) -> OperandTree:
        """Parse the subtree of an operand that is adjacent in `tree`. O(len(operand))."""
        cover = tree.cover(operand)
        assert cover is not None
        mask = {tree.leaf(variable): 1 << position for position, variable in enumerate(operand)}
        for top in cover:
            for node in reversed(list(tree.nodes(top))):
                if node.kind != "leaf":
                    mask[node] = sum(mask[child] for child in node.children)
        return cls(cover, mask)

    def constraints(self) -> set[int]:
        """The sets of positions that the subtree keeps adjacent, definition (2)."""
        result = set(self._pairs(self.cover))
        for node, mask in self.mask.items():
            if node.kind == "P":
                result.add(mask)
            elif node.kind == "Q":
                result.update(self._pairs(node.children))
        return result

    def inner_nodes(self) -> list[PQNode]:
        """The P- and Q-nodes of the subtree; a run's own Q-node is not among them."""
        return [node for node in self.mask if node.kind != "leaf"]

    def translated(self, twin: Mapping[PQNode, PQNode]) -> OperandTree:
        """The same subtree in a copy of the tree; without the nodes that are gone, if it is out of date."""
        return OperandTree(
            tuple(twin[node] for node in self.cover if node in twin),
            {twin[node]: mask for node, mask in self.mask.items() if node in twin},
        )

    def _pairs(self, chain: Iterable[PQNode]) -> Iterable[int]:
        masks = [self.mask[node] for node in chain]
        return (left | right for left, right in pairwise(masks))


class Broadcast:
    """A PQ tree whose aligned operands are kept isomorphic.

    `require` adds what has to be adjacent, `align` what has to be ordered alike; `settle` then broadcasts until
    nothing changes. After a False from `require` or `settle` only copies made before are of use.

    >>> state = Broadcast(PQTree("abcdef"))
    >>> state.require("ab") and state.align("B", tuple("abc")) and state.align("B", tuple("def")) and state.settle()
    True
    >>> print(state.tree)
    ((c (a b)) (f (d e)))
    """

    def __init__(self, tree: PQTree) -> None:
        self.tree = tree
        self.operands: dict[str, list[Operand]] = {}
        """The aligned operands of each batch."""
        self.trees: dict[str, list[OperandTree]] = {}
        """Their subtrees when the batch was last parsed; up to date when everything is settled."""
        self._batches_of: dict[PQNode, set[str]] = {}
        self._queue: deque[str] = deque()

    def require(self, subset: Iterable[str]) -> bool:
        """Make `subset` adjacent; False when no order of the tree has it so. Queues the batches that it changes."""
        change = self.tree.reduce_and_get_changed(subset)
        for node in change.deleted + change.changed:
            for batch in sorted(self._batches_of.get(node, ())):
                self._enqueue(batch)
        for node in change.deleted:
            self._batches_of.pop(node, None)
        return change.feasible

    def align(self, batch: str, operand: Operand) -> bool:
        """Make `operand` adjacent and align it with the batch's operands so far; settled by `settle` only."""
        self.operands.setdefault(batch, []).append(operand)
        self._enqueue(batch)
        return self.require(operand)

    def settle(self) -> bool:
        """Broadcast until the operands of every batch are isomorphic; False when a batch cannot be."""
        while self._queue:
            if not self._broadcast(self._queue.popleft()):
                return False
        return True

    def copy(self) -> Broadcast:
        """A state of its own, to go back to."""
        twin: dict[PQNode, PQNode] = {}
        result = Broadcast(self.tree.copy(twin))
        result.operands = {batch: list(operands) for batch, operands in self.operands.items()}
        result.trees = {batch: [tree.translated(twin) for tree in trees] for batch, trees in self.trees.items()}
        result._batches_of = {twin[node]: set(batches) for node, batches in self._batches_of.items() if node in twin}
        result._queue = deque(self._queue)
        return result

    def _broadcast(self, batch: str) -> bool:
        """Apply the constraints of each operand of a batch to its others (PARSECONSTRAINTS, APPLYCONSTRAINTS)."""
        trees = [OperandTree.of(self.tree, operand) for operand in self.operands[batch]]
        self._register(batch, trees)
        own = [tree.constraints() for tree in trees]
        everything = set().union(*own)
        return all(
            self.require([variable for position, variable in enumerate(operand) if mask >> position & 1])
            for operand, known in zip(self.operands[batch], own, strict=True)
            for mask in sorted(everything - known)
        )

    def _register(self, batch: str, trees: list[OperandTree]) -> None:
        """Keep the subtrees of a batch and the map from their inner nodes to it."""
        for tree in self.trees.get(batch, ()):
            for node in tree.inner_nodes():
                self._batches_of.get(node, set()).discard(batch)
        self.trees[batch] = trees
        for tree in trees:
            for node in tree.inner_nodes():
                self._batches_of.setdefault(node, set()).add(batch)

    def _enqueue(self, batch: str) -> None:
        if batch not in self._queue:
            self._queue.append(batch)
