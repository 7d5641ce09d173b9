"""Nodes of a PQ tree and the constant-time operations on them.

Definitions, after Booth and Lueker (1976); the reference is in `edbc.layout.pqtree`.

(1) A *leaf* holds one element. A *P-node* has two or more children in any order. A *Q-node* has three or more children
    in one order or its reverse. A node with two children is always a P-node: both kinds would mean the same.
(2) The children of a Q-node form a chain in which a child knows its neighbours, not which of them is the next one:
    `siblings` has one entry at the two ends of the chain, two inside. A chain can therefore be reversed or spliced into
    another one in constant time.
(3) `parent` is kept for the children of P-nodes and for the two *endmost* children of Q-nodes. It is None for the root
    and for the inner children of Q-nodes, since a splice could not correct theirs in constant time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import pairwise
from typing import Literal

Kind = Literal["leaf", "P", "Q"]


class PQNode:
    """A leaf, P-node or Q-node, definitions (1) to (3). Nodes are equal when they are the same object."""

    __slots__ = ("element", "ends", "kind", "members", "parent", "siblings")

    def __init__(self, kind: Kind, element: Hashable = None) -> None:
        self.kind: Kind = kind
        self.element = element
        """What a leaf holds; None elsewhere."""
        self.parent: PQNode | None = None
        self.siblings: list[PQNode] = []
        self.members: dict[PQNode, None] = {}
        """The children of a P-node, as a set in order of arrival."""
        self.ends: list[PQNode] = []
        """The two endmost children of a Q-node."""

    @property
    def children(self) -> list[PQNode]:
        """The children in the order in which the tree currently holds them; O(children)."""
        return list(self.members) if self.kind == "P" else list(self.chain())

    def chain(self) -> Iterator[PQNode]:
        """The children of a Q-node from `ends[0]` to `ends[1]`; nothing for other nodes."""
        if not self.ends:
            return
        previous, child = None, self.ends[0]
        while child is not self.ends[1]:
            yield child
            previous, child = child, child.beyond(previous)
        yield child

    def beyond(self, neighbour: PQNode | None) -> PQNode:
        """The sibling that is not `neighbour`; the walk along a chain."""
        return next(sibling for sibling in self.siblings if sibling is not neighbour)

    def add_member(self, child: PQNode) -> None:
        """Make `child` a child of this P-node."""
        self.members[child] = None
        child.parent = self
        child.siblings = []

    def set_chain(self, children: Iterable[PQNode]) -> None:
        """Make `children`, at least two, the children of this Q-node in that order."""
        chain = list(children)
        for child in chain:
            child.parent = None
            child.siblings = []
        for left, right in pairwise(chain):
            left.siblings.append(right)
            right.siblings.append(left)
        self.ends = [chain[0], chain[-1]]
        chain[0].parent = chain[-1].parent = self

    def extend_chain(self, end: int, child: PQNode) -> None:
        """Put `child` beyond `ends[end]` of this Q-node."""
        old = self.ends[end]
        old.parent = None
        old.siblings.append(child)
        child.siblings = [old]
        child.parent = self
        self.ends[end] = child

    def take_place_of(self, node: PQNode) -> None:
        """Stand where `node` stands: among its siblings and under its parent. `node` is left without either.

        The caller moves the tree's root when `node` is the root.
        """
        self.parent, self.siblings = node.parent, node.siblings
        for sibling in self.siblings:
            sibling.siblings[sibling.siblings.index(node)] = self
        if self.parent is not None and self.parent.kind == "P":
            del self.parent.members[node]
            self.parent.members[self] = None
        elif self.parent is not None:
            self.parent.ends[self.parent.ends.index(node)] = self
        node.parent, node.siblings = None, []

    def __repr__(self) -> str:
        return repr(self.element) if self.kind == "leaf" else f"{self.kind}-node of {len(self.children)}"
