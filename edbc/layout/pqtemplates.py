"""One reduction of a PQ tree: bubble up, match templates, replace.

Problem: change a PQ tree so that it represents exactly those of its orders in which a set S of leaves is consecutive,
in time proportional to |S| and to what has to change, never to the size of the tree. K. S. Booth and G. S. Lueker,
"Testing for the Consecutive Ones Property, Interval Graphs, and Graph Planarity Using PQ-Tree Algorithms", Journal of
Computer and System Sciences 13 (1976); the names of phases, counts and templates are theirs.

Definitions.

(1) The *pertinent subtree* is the smallest one whose leaves hold all of S; its root is the *pertinent root*. A node is
    *full* when all its leaves are in S, *empty* when none is, *partial* otherwise; full and partial nodes are
    *pertinent*.
(2) Bubbling up finds the parents in the pertinent subtree. A node is *blocked* while it is an inner child of a Q-node
    and no unblocked sibling beside it could tell its parent. A *block* is a maximal run of blocked siblings. When one
    block is all that is left, it holds S, and a *pseudonode* stands for its Q-node, whose identity is not needed.
(3) Templates: L1 leaf. P-node: P1 full; P2 root, P3 not root, without partial child; P4 root, P5 not root, with one;
    P6 root with two. Q-node: Q1 full; Q2 one side full, at most one partial child between the sides; Q3 root, a run of
    full children with at most one partial child at either end.

Departures from the paper.

- Matching and replacing are separate phases. Which template fits depends on the labels of the children and on which of
  them are neighbours, and a replacement below a node changes neither. So `match` decides all templates first and
  nothing needs to be undone when one of them is missing: an infeasible set leaves the tree untouched.
- Marks, counts and labels live in a table of the reduction, not in the nodes, so there is nothing to reset.
- A replaced partial node is a Q-node whose `ends` are kept as [empty end, full end].
- Whether a Q-node's pertinent children are a run is decided by counting neighbouring pairs: k of them are one run
  exactly when k - 1 pairs are neighbours. This needs no direction and no walk over empty children.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import ClassVar

from edbc.layout.pqnode import Kind, PQNode


class Mark(Enum):
    """Where a node stands in bubbling up, definition (2)."""

    QUEUED = 0
    BLOCKED = 1
    UNBLOCKED = 2


class Label(Enum):
    """How much of a node is in S, definition (1)."""

    EMPTY = 0
    PARTIAL = 1
    FULL = 2


class Pertinent:
    """What one reduction knows of one node."""

    __slots__ = ("full", "label", "leaves", "mark", "parent", "partial", "pending")

    def __init__(self, label: Label = Label.EMPTY) -> None:
        self.mark = Mark.QUEUED
        self.parent: PQNode | None = None
        self.pending = 0  # pertinent children not yet matched
        self.leaves = 0  # pertinent leaves below, of the children matched so far
        self.label = label
        self.full: list[PQNode] = []
        self.partial: list[PQNode] = []


class Reduction:
    """One reduction by the set of `leaves`, two or more. `match` must be true before `replace` may be called."""

    def __init__(self, leaves: Sequence[PQNode]) -> None:
        self.leaves = leaves
        self.root: PQNode | None = None
        """The pertinent root, after `match`; it may be a pseudonode."""
        self.steps: list[tuple[str, PQNode]] = []
        """Templates in the order of replacement, children before parents, each with its node."""
        self.created: dict[PQNode, None] = {}
        self.deleted: dict[PQNode, None] = {}
        self.changed: dict[PQNode, None] = {}
        self.new_root: PQNode | None = None
        """What took the pertinent root's place, if anything did."""
        self._info: dict[PQNode, Pertinent] = {leaf: Pertinent() for leaf in leaves}
        self._stand_in: dict[PQNode, PQNode] = {}  # the Q-node that replaced a partial node

    def match(self) -> bool:
        """Find a template for every node of the pertinent subtree; False when S cannot be made consecutive.

        The tree is not changed. O(pertinent subtree).
        """
        return self._bubble() and self._match_all()

    def run(self) -> tuple[PQNode, ...] | None:
        """After `match`: the nodes that hold exactly S, one beside the other; None when the tree would have to change.

        One full node, or two or more neighbouring children of a Q-node.
        """
        assert self.root is not None
        info = self._info[self.root]
        if info.label is Label.FULL:
            return (self.root,)
        if self.root.kind == "P" or info.partial:
            return None
        inside = set(info.full)
        first = next(node for node in info.full if sum(s in inside for s in node.siblings) == 1)
        run = [first]
        while len(run) < len(inside):
            run.append(next(s for s in run[-1].siblings if s in inside and s not in run[-2:]))
        return tuple(run)

    @staticmethod
    def is_node(node: PQNode) -> bool:
        """False for a pseudonode, which is not in the tree."""
        return node.kind != "Q" or bool(node.ends)

    # Bubbling up

    def _bubble(self) -> bool:
        queue = deque(self.leaves)
        blocked: dict[PQNode, None] = {}
        blocks = off_the_top = 0
        while len(queue) + blocks + off_the_top > 1:
            if not queue:
                return False
            node = queue.popleft()
            neighbours = [s for s in node.siblings if s in self._info]
            walls = [s for s in neighbours if self._info[s].mark is Mark.BLOCKED]
            unblocked = next((s for s in neighbours if self._info[s].mark is Mark.UNBLOCKED), None)
            if unblocked is None and len(node.siblings) == 2:
                self._info[node].mark = Mark.BLOCKED
                blocked[node] = None
                blocks += 1 - len(walls)
                continue
            parent = node.parent if unblocked is None else self._info[unblocked].parent
            children = self._unblock(node, walls, parent, blocked)
            blocks -= len(walls)
            if parent is None:
                off_the_top = 1
                continue
            if parent not in self._info:
                self._info[parent] = Pertinent()
                queue.append(parent)
            self._info[parent].pending += children
        if blocked:
            self._make_pseudonode(blocked)
        return True

    def _unblock(self, node: PQNode, walls: list[PQNode], parent: PQNode | None, blocked: dict[PQNode, None]) -> int:
        """Tell `parent` to `node` and to the blocks beside it; how many nodes have learnt it."""
        self._info[node].mark, self._info[node].parent = Mark.UNBLOCKED, parent
        children = 1
        for wall in walls:
            previous, current = node, wall
            while current in blocked:
                del blocked[current]
                self._info[current].mark, self._info[current].parent = Mark.UNBLOCKED, parent
                children += 1
                previous, current = current, current.beyond(previous)
        return children

    def _make_pseudonode(self, blocked: dict[PQNode, None]) -> None:
        pseudonode = PQNode("Q")
        self._info[pseudonode] = info = Pertinent()
        info.pending = len(blocked)
        for node in blocked:
            self._info[node].parent = pseudonode

    # Matching

    def _match_all(self) -> bool:
        for leaf in self.leaves:
            self._info[leaf].leaves = 1
        queue = deque(self.leaves)
        while True:
            node = queue.popleft()
            info = self._info[node]
            is_root = info.leaves == len(self.leaves)
            template = self._template(node, info, is_root)
            if template is None:
                return False
            self.steps.append((template, node))
            if is_root:
                self.root = node
                return True
            assert info.parent is not None
            above = self._info[info.parent]
            above.leaves += info.leaves
            above.pending -= 1
            (above.full if info.label is Label.FULL else above.partial).append(node)
            if above.pending == 0:
                queue.append(info.parent)

    def _template(self, node: PQNode, info: Pertinent, is_root: bool) -> str | None:
        """The name of the template that fits `node`, whose label is set; None when there is none."""
        if node.kind == "Q":
            return self._template_q(node, info, is_root)
        if len(info.full) == len(node.members):
            info.label = Label.FULL
            return "L1" if node.kind == "leaf" else "P1"
        info.label = Label.PARTIAL
        names = ("P2", "P4", "P6") if is_root else ("P3", "P5")
        return names[len(info.partial)] if len(info.partial) < len(names) else None

    def _template_q(self, node: PQNode, info: Pertinent, is_root: bool) -> str | None:
        if not self._is_run(info):
            return None
        full_ends = sum(self._label(end) is Label.FULL for end in node.ends)
        if full_ends == 2:
            info.label = Label.FULL
            return "Q1"
        info.label = Label.PARTIAL
        reaches_end = full_ends == 1 if info.full else info.partial[0] in node.ends
        if reaches_end and len(info.partial) <= 1:
            return "Q2"
        return "Q3" if is_root else None

    def _is_run(self, info: Pertinent) -> bool:
        """True when the pertinent children are neighbours, with partial ones only where the run ends."""
        if len(info.partial) > 2:
            return False
        pairs = 0
        for child in info.full + info.partial:
            pertinent = sum(self._label(s) is not Label.EMPTY for s in child.siblings)
            if pertinent == 2 and self._label(child) is Label.PARTIAL:
                return False
            pairs += pertinent
        return pairs == 2 * (len(info.full) + len(info.partial) - 1)

    def _label(self, node: PQNode) -> Label:
        return self._info[node].label if node in self._info else Label.EMPTY

    # Replacing

    def replace(self) -> None:
        """Carry out the templates that `match` found. O(pertinent subtree)."""
        for template, node in self.steps:
            action = self._ACTIONS.get(template)
            if action is not None:
                action(self, node, self._info[node])
        for node in self.created:
            self.changed.pop(node, None)

    def _p2(self, node: PQNode, info: Pertinent) -> None:
        node.add_member(self._take_full(node, info))
        self.changed[node] = None

    def _p3(self, node: PQNode, info: Pertinent) -> None:
        full = self._take_full(node, info)
        partial = self._create("Q", Label.PARTIAL)
        self._replace_by(node, partial)
        empty = self._take_empty(node)
        assert empty is not None
        partial.set_chain([empty, full])
        self._stand_in[node] = partial

    def _p4(self, node: PQNode, info: Pertinent) -> None:
        partial = self._stand_in[info.partial[0]]
        partial.extend_chain(1, self._take_full(node, info))
        self.changed[partial] = None
        self._finish_p_root(node, partial)

    def _p5(self, node: PQNode, info: Pertinent) -> None:
        partial = self._stand_in[info.partial[0]]
        del node.members[partial]
        if info.full:
            partial.extend_chain(1, self._take_full(node, info))
        self._replace_by(node, partial)
        empty = self._take_empty(node)
        if empty is not None:
            partial.extend_chain(0, empty)
        self.changed[partial] = None
        self._stand_in[node] = partial

    def _p6(self, node: PQNode, info: Pertinent) -> None:
        left, right = (self._stand_in[child] for child in info.partial)
        if info.full:
            left.extend_chain(1, self._take_full(node, info))
        del node.members[right]
        inner, outer = right.ends[1], right.ends[0]
        left.ends[1].siblings.append(inner)
        inner.siblings.append(left.ends[1])
        left.ends[1].parent = inner.parent = None
        left.ends[1], outer.parent = outer, left
        self._delete(right)
        self.changed[left] = None
        self._finish_p_root(node, left)

    def _q2(self, node: PQNode, info: Pertinent) -> None:
        self._q3(node, info)
        if node is not self.root and self._label(node.ends[1]) is not Label.FULL:
            node.ends.reverse()
        self._stand_in[node] = node

    def _q3(self, node: PQNode, info: Pertinent) -> None:
        for child in info.partial:
            self._splice(self._stand_in[child])
            if self.is_node(node):
                self.changed[node] = None

    _ACTIONS: ClassVar[dict[str, Callable[[Reduction, PQNode, Pertinent], None]]] = {
        "P2": _p2, "P3": _p3, "P4": _p4, "P5": _p5, "P6": _p6, "Q2": _q2, "Q3": _q3,
    }  # fmt: skip

    def _splice(self, partial: PQNode) -> None:
        """Put the children of a partial Q-node in its place, the full end beside the pertinent sibling."""
        inner = next((s for s in partial.siblings if self._label(s) is not Label.EMPTY), None)
        outer = next((s for s in partial.siblings if s is not inner), None)
        empty_end, full_end = partial.ends
        for end, sibling in ((full_end, inner), (empty_end, outer)):
            end.parent = None
            if sibling is not None:
                sibling.siblings[sibling.siblings.index(partial)] = end
                end.siblings.append(sibling)
            else:
                assert partial.parent is not None
                end.parent = partial.parent
                end.parent.ends[end.parent.ends.index(partial)] = end
        self._delete(partial)

    def _take_full(self, node: PQNode, info: Pertinent) -> PQNode:
        """Take the full children from a P-node; one as it is, more under a new P-node."""
        for child in info.full:
            del node.members[child]
        if len(info.full) == 1:
            return info.full[0]
        group = self._create("P", Label.FULL)
        for child in info.full:
            group.add_member(child)
        return group

    def _take_empty(self, node: PQNode) -> PQNode | None:
        """What is left of a P-node that has lost its place: itself, its only child, or nothing."""
        self._info[node].label = Label.EMPTY
        if len(node.members) > 1:
            self.changed[node] = None
            return node
        self._delete(node)
        return next(iter(node.members), None)

    def _finish_p_root(self, node: PQNode, partial: PQNode) -> None:
        """Drop a pertinent root whose only child is left."""
        if len(node.members) > 1:
            self.changed[node] = None
            return
        self._replace_by(node, partial)
        self._delete(node)

    def _replace_by(self, node: PQNode, other: PQNode) -> None:
        if node is self.root:
            self.new_root = other
        other.take_place_of(node)

    def _create(self, kind: Kind, label: Label) -> PQNode:
        node = PQNode(kind)
        self._info[node] = Pertinent(label)
        self.created[node] = None
        return node

    def _delete(self, node: PQNode) -> None:
        self.changed.pop(node, None)
        if node in self.created:
            del self.created[node]
        else:
            self.deleted[node] = None
