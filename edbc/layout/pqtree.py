"""PQ trees: all orders of a set in which given subsets are consecutive.

Problem: given a set X and subsets S1..Sk, find every order of X in which the elements of each subset stand side by
side. There may be exponentially many; a PQ tree holds them all in space O(|X|).

Definitions.

(1) A PQ tree over X is an ordered tree with the elements of X as leaves. The children of a P-node may be permuted at
    will, those of a Q-node only reversed. P-nodes have two or more children, Q-nodes three or more.
(2) The *frontier* is the order of the leaves from left to right. The tree *represents* every frontier that its legal
    rearrangements have. The universal tree, one P-node over all leaves, represents every order.
(3) To *reduce* the tree by S is to make it represent those of its orders in which S is consecutive. When there is none,
    S is *infeasible* and the tree keeps its orders.

A reduction takes time O(|S| + what it restructures), amortised O(|S|) over a sequence of reductions that starts from
the universal tree; nothing in it looks at the rest of the tree. The templates are in `edbc.layout.pqtemplates`, with
what differs from the paper; the nodes are in `edbc.layout.pqnode`.

In text, a P-node is written `(a b c)` and a Q-node `[a b c]`.

References
----------
.. [1] K. S. Booth and G. S. Lueker, "Testing for the Consecutive Ones Property, Interval Graphs, and Graph Planarity
   Using PQ-Tree Algorithms", Journal of Computer and System Sciences 13 (3), 335-379, 1976.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial
from typing import Any

from edbc.errors import LayoutError
from edbc.layout.pqnode import PQNode
from edbc.layout.pqtemplates import Reduction

__all__ = ["Change", "PQNode", "PQTree"]


@dataclass(frozen=True)
class Change:
    """What one reduction did. Nothing is created, deleted or changed when it was infeasible or already satisfied.

    A node is *changed* when it is still there with another set of children. Two cases are left out. A parent of which
    one child was replaced by another node: the child is then changed or deleted. And a Q-node into whose chain the
    children of another Q-node were spliced, with the chain's ends untouched, because finding it would take longer than
    the reduction: the child in whose place they stand is then changed or deleted.
    """

    feasible: bool
    templates: tuple[str, ...] = ()
    """The templates that matched, children before parents, in Booth and Lueker's names."""
    created: tuple[PQNode, ...] = ()
    deleted: tuple[PQNode, ...] = ()
    changed: tuple[PQNode, ...] = ()


class PQTree:
    """The orders of a set in which chosen subsets are consecutive.

    Parameters
    ----------
    elements : iterable of hashable
        The set X. The tree starts out universal: it represents every order.

    Raises
    ------
    LayoutError
        When an element is repeated.

    Examples
    --------
    >>> tree = PQTree("abcde")
    >>> tree.reduce("bc"), tree.reduce("cd")
    (True, True)
    >>> print(tree)
    (a e [b c d])
    >>> tree.reduce("bd")
    False
    >>> tree.count_orders()
    12

    Consecutive ones: can the columns of a 0/1 matrix be ordered so that the ones of every row are side by side?

    >>> rows = [{0, 2}, {1, 2}, {1, 3}]
    >>> columns = PQTree(range(4))
    >>> all(columns.reduce(row) for row in rows)
    True
    >>> columns.frontier()
    [0, 2, 1, 3]

    Notes
    -----
    Which of the represented orders `frontier` returns is a matter of the reductions' history, the same for the same
    history. Frontier and text take O(|X|); `orders` takes time in proportion to the number of orders.
    """

    def __init__(self, elements: Iterable[Hashable]) -> None:
        self.root: PQNode | None = None
        self._leaf_of: dict[Hashable, PQNode] = {}
        leaves = [self._add_leaf(element) for element in elements]
        self.root = _node_over(leaves, "P") if leaves else None

    @classmethod
    def parse(cls, text: str) -> PQTree:
        """The tree whose text form is given; elements are strings without blanks and brackets.

        >>> PQTree.parse("(a [b c d])").count_orders()
        4
        """
        tree = cls(())
        open_nodes: list[list[PQNode]] = [[]]
        for token in re.findall(r"[()\[\]]|[^\s()\[\]]+", text):
            if token in "([":
                open_nodes.append([])
            elif token in ")]":
                children = open_nodes.pop()
                kind = "P" if token == ")" else "Q"
                if len(children) < (2 if kind == "P" else 3) or not open_nodes:
                    raise LayoutError(f"PQ tree '{text}': a {kind}-node of {len(children)}; P-nodes have two or more "
                                      "children, Q-nodes three or more")  # fmt: skip
                open_nodes[-1].append(_node_over(children, kind))
            else:
                open_nodes[-1].append(tree._add_leaf(token))
        if len(open_nodes) != 1 or len(open_nodes[0]) != 1:
            raise LayoutError(f"PQ tree '{text}': expected one node with its brackets closed")
        tree.root = open_nodes[0][0]
        return tree

    def reduce(self, subset: Iterable[Hashable]) -> bool:
        """Keep the orders in which `subset` is consecutive.

        Returns
        -------
        bool
            False when there is none; the tree is then exactly as it was.

        Raises
        ------
        LayoutError
            When `subset` has something that is not in the tree. Repeats are ignored.

        Examples
        --------
        >>> tree = PQTree.parse("[a b (c d) e]")
        >>> tree.reduce("bc"), str(tree)
        (True, '[a b c d e]')
        """
        return self.reduce_and_get_changed(subset).feasible

    def reduce_and_get_changed(self, subset: Iterable[Hashable]) -> Change:
        """The same as `reduce`, with an account of the nodes that it touched.

        >>> change = PQTree("abcd").reduce_and_get_changed("ab")
        >>> change.templates, change.created
        (('L1', 'L1', 'P2'), (P-node of 2,))
        """
        leaves = self._leaves(subset)
        if len(leaves) < 2:
            return Change(feasible=True, templates=("L1",) * len(leaves))
        reduction = Reduction(leaves)
        if not reduction.match():
            return Change(feasible=False, templates=tuple(name for name, _ in reduction.steps))
        reduction.replace()
        if reduction.root is self.root and reduction.new_root is not None:
            self.root = reduction.new_root
        return Change(
            feasible=True,
            templates=tuple(name for name, _ in reduction.steps),
            created=tuple(reduction.created),
            deleted=tuple(reduction.deleted),
            changed=tuple(reduction.changed),
        )

    def cover(self, subset: Iterable[Hashable]) -> tuple[PQNode, ...] | None:
        """The nodes over exactly `subset`, when every represented order has it consecutive.

        Returns
        -------
        tuple of PQNode or None
            One node, or neighbouring children of one Q-node in the order of its chain or the reverse. None when the
            tree has an order in which `subset` is not consecutive, and for the empty set. O(pertinent subtree).

        Examples
        --------
        >>> tree = PQTree.parse("[a b (c d) e]")
        >>> tree.cover("dcb"), tree.cover("bc")
        (('b', P-node of 2), None)
        """
        leaves = self._leaves(subset)
        if len(leaves) < 2:
            return tuple(leaves) or None
        reduction = Reduction(leaves)
        return reduction.run() if reduction.match() else None

    def parent(self, node: PQNode) -> PQNode | None:
        """The parent, None for the root. O(1), for an inner child of a Q-node O(children of that node)."""
        previous: PQNode | None = None
        while len(node.siblings) == 2:
            previous, node = node, node.beyond(previous) if previous is not None else node.siblings[0]
        return node.parent

    def leaf(self, element: Hashable) -> PQNode:
        """The leaf that holds `element`."""
        if element not in self._leaf_of:
            raise LayoutError(f"PQ tree: expected an element of the tree, got {element!r}")
        return self._leaf_of[element]

    def nodes(self, start: PQNode | None = None) -> Iterator[PQNode]:
        """All nodes below and including `start` (default: the root), parents before children, left to right."""
        stack = [start or self.root] if start or self.root else []
        while stack:
            node = stack.pop()
            assert node is not None
            yield node
            stack.extend(reversed(node.children))

    def frontier(self) -> list[Any]:
        """One represented order: the elements from left to right.

        >>> PQTree.parse("(a [b c d])").frontier()
        ['a', 'b', 'c', 'd']
        """
        return [node.element for node in self.nodes() if node.kind == "leaf"]

    def orders(self) -> Iterator[tuple[Any, ...]]:
        """Every represented order, each once. For small trees.

        >>> sorted("".join(order) for order in PQTree.parse("[a b (c d)]").orders())
        ['abcd', 'abdc', 'cdba', 'dcba']
        """
        return _orders(self.root) if self.root is not None else iter([()])

    def count_orders(self) -> int:
        """How many orders the tree represents: the product of k! over P-nodes of k children and of 2 over Q-nodes."""
        count = 1
        for node in self.nodes():
            count *= factorial(len(node.members)) if node.kind == "P" else 2 if node.kind == "Q" else 1
        return count

    def copy(self, twin: dict[PQNode, PQNode] | None = None) -> PQTree:
        """A tree of its own with the same structure and elements; `twin` receives the copy of each node."""
        result = PQTree(())
        twin = {} if twin is None else twin
        for node in reversed(list(self.nodes())):
            children = [twin[child] for child in node.children]
            twin[node] = _node_over(children, node.kind) if children else result._add_leaf(node.element)
        result.root = twin[self.root] if self.root is not None else None
        return result

    def _add_leaf(self, element: Hashable) -> PQNode:
        if element in self._leaf_of:
            raise LayoutError(f"PQ tree: expected different elements, got {element!r} twice")
        leaf = self._leaf_of[element] = PQNode("leaf", element)
        return leaf

    def _leaves(self, subset: Iterable[Hashable]) -> list[PQNode]:
        return [self.leaf(element) for element in dict.fromkeys(subset)]

    def __len__(self) -> int:
        return len(self._leaf_of)

    def __contains__(self, element: Hashable) -> bool:
        return element in self._leaf_of

    def __str__(self) -> str:
        parts: list[str] = []
        stack: list[PQNode | str] = [self.root] if self.root is not None else []
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                parts.append(item)
            elif item.kind == "leaf":
                parts.append(f" {item.element}")
            else:
                opening, closing = "()" if item.kind == "P" else "[]"
                parts.append(f" {opening}")
                stack.extend([closing, *reversed(item.children)])
        return "".join(parts).replace("( ", "(").replace("[ ", "[").strip()

    def __repr__(self) -> str:
        return f"<PQTree {self}>"


def _node_over(children: list[PQNode], kind: str) -> PQNode:
    """A node over `children`; the child itself when there is but one, a P-node when there are two."""
    if len(children) == 1:
        return children[0]
    if kind == "Q":
        node = PQNode("Q")
        node.set_chain(children)
        return node
    node = PQNode("P")
    for child in children:
        node.add_member(child)
    return node


def _orders(node: PQNode) -> Iterator[tuple[Any, ...]]:
    if node.kind == "leaf":
        yield (node.element,)
        return
    children = node.children
    for arrangement in permutations(children) if node.kind == "P" else (children, children[::-1]):
        for parts in product(*(list(_orders(child)) for child in arrangement)):
            yield sum(parts, ())
