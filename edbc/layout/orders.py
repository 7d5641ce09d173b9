"""Orders of P- and Q-nodes that align the operands of batches.

Problem: the operands of each batch have isomorphic subtrees (`edbc.layout.constraints`). Choose an arrangement of the
children of every node so that corresponding nodes are arranged alike, and read the leaves off. Algorithms 2 (second
pass), 4, 5 and 6 of ED-Batch (reference in `edbc.layout.problem`).

Definitions.

(1) The *order* of a node is a permutation t: place s, from left to right, gets the child numbered t[s], in the
    numbering of `PQNode.children`. P-nodes of three or more children may have any order. Q-nodes have a *direction*,
    the order of two things, their ends: (0, 1) as held or (1, 0) reversed. A P-node of two children has a direction
    too, the order of its children. It may correspond to a run of two children in a Q-node, and there is no Q-node of
    two children in a PQ tree of ours.
(2) Nodes n1 and n2 *correspond* when they hold the same positions of two operands of a batch; their children then
    correspond one to one: child i of n1 to child b[i] of n2. The operands are aligned exactly when t2 = b t1 for all
    corresponding nodes (product of permutations, right factor first). For directions, b is (0, 1) when the children
    are held in corresponding sequences, (1, 0) when in opposite ones.
(3) A *class* of the union-find structure is a set of nodes of which one, the decider, determines the orders of the
    others: t[node] = f[node] t[parent], with f the identity for the decider. An *incompatible* pair says that a
    decider's order is both t and g t with g not the identity. Since permutations can be cancelled, no order satisfies
    that: the demands contradict each other, whatever the tree.

So, if any order of the variables meets all demands, then none of the steps fails, and the leaves are read off in such
an order: broadcasting loses none of those orders, and by (3) the choice of deciders' orders is free.

What the paper's pseudo-code leaves open or has otherwise, and what is done here.

- Algorithm 5 says that sigma turns a node's order into its parent's, but FIND collects sigma of the child before sigma
  of the parent, which is right for the converse, (3). Its line 20, sigma3^-1 sigma4 sigma2^-1 sigma1, and the test of
  line 21 are right for reversals, where all products commute, and wrong for permutations. With t2 = b t1, f1 and f2
  found: f[root1] = f1^-1 b^-1 f2, and the test is f2 = b f1.
- FIND has no path compression and UNION no weights; the bound alpha(n) needs both.
- After an incompatible pair the paper drops the pair and keeps the batch, whose operands are then not aligned. Here the
  planner learns of it and drops operands.
- Algorithm 4 searches all operands bottom-up in step. Here the nodes are paired by the positions below them, which
  gives the same pairs and needs no counters.
- Algorithm 6 asks POrder for the direction of Q-nodes, appends the list to itself instead of the leaf, and both pushes
  children and recurses. Here one structure holds both kinds of node, and one stack is enough.
- A run of children of a Q-node ties the direction of the whole Q-node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edbc.layout.constraints import OperandTree
from edbc.layout.pqnode import PQNode
from edbc.layout.pqtree import PQTree

Permutation = tuple[int, ...]


def compose(f: Permutation, g: Permutation) -> Permutation:
    """The product f g, g first: `compose(f, g)[s] == f[g[s]]`."""
    return tuple(f[i] for i in g)


def invert(f: Permutation) -> Permutation:
    """The permutation that undoes `f`."""
    inverse = [0] * len(f)
    for source, target in enumerate(f):
        inverse[target] = source
    return tuple(inverse)


def num_ordered(node: PQNode) -> int:
    """How many things the order of a node permutes, definition (1)."""
    return len(node.members) if node.kind == "P" else 2


class NodeOrders:
    """Union-find over the nodes of a tree with a permutation on every edge, definition (3)."""

    def __init__(self) -> None:
        self._parent: dict[PQNode, PQNode] = {}
        self._relative: dict[PQNode, Permutation] = {}
        self._weight: dict[PQNode, int] = {}

    def find(self, node: PQNode) -> tuple[PQNode, Permutation]:
        """The decider of a node and f with t[node] = f t[decider]. Compresses the path."""
        if node not in self._parent:
            self._parent[node] = node
            self._relative[node] = tuple(range(num_ordered(node)))
            self._weight[node] = 1
        path = []
        while self._parent[node] is not node:
            path.append(node)
            node = self._parent[node]
        for below in reversed(path):
            self._relative[below] = compose(self._relative[below], self._relative[self._parent[below]])
            self._parent[below] = node
        return node, self._relative[path[0] if path else node]

    def union(self, node: PQNode, other: PQNode, b: Permutation) -> bool:
        """Demand t[other] = b t[node]; False, with nothing changed, when that contradicts what was demanded before."""
        root, f = self.find(node)
        other_root, g = self.find(other)
        if root is other_root:
            return g == compose(b, f)
        if self._weight[root] > self._weight[other_root]:
            root, f, other_root, g, b = other_root, g, root, f, invert(b)
        self._parent[root] = other_root
        self._relative[root] = compose(compose(invert(f), invert(b)), g)
        self._weight[other_root] += self._weight[root]
        return True

    def order(self, node: PQNode) -> Permutation:
        """The order of a node when every decider keeps the order in which the tree holds it."""
        return self.find(node)[1]


def decide_orders(tree: PQTree, subtrees_of: Mapping[str, Sequence[OperandTree]]) -> NodeOrders | None:
    """Orders of nodes that align the operands of all batches; None when there are none."""
    orders = NodeOrders()
    for subtrees in subtrees_of.values():
        for node, other, b in equivalent_orders(tree, subtrees):
            if not orders.union(node, other, b):
                return None
    return orders


def equivalent_orders(tree: PQTree, subtrees: Sequence[OperandTree]) -> Iterator[tuple[PQNode, PQNode, Permutation]]:
    """The corresponding nodes of isomorphic operands as (n1, n2, b), definition (2); n1 is of the first operand."""
    if len(subtrees) < 2:
        return
    first, *others = (_chains(tree, subtree) for subtree in subtrees)
    for other in others:
        assert first.keys() == other.keys(), "operands are not isomorphic"
        for positions, (node, children) in first.items():
            twin, twins = other[positions]
            if num_ordered(node) > 2:
                place = {mask: i for i, mask in enumerate(twins)}
                yield node, twin, tuple(place[mask] for mask in children)
            else:
                yield node, twin, (0, 1) if children == twins else (1, 0)


def _chains(tree: PQTree, subtree: OperandTree) -> dict[int, tuple[PQNode, tuple[int, ...]]]:
    """The inner nodes of an operand's subtree by the positions below, each with the positions of its children in turn.

    A run stands for its Q-node.
    """
    result = {}
    if len(subtree.cover) > 1:
        parent = tree.parent(subtree.cover[0])
        assert parent is not None
        inside = set(subtree.cover)
        masks = tuple(subtree.mask[child] for child in parent.chain() if child in inside)
        result[sum(masks)] = (parent, masks)
    for node in subtree.inner_nodes():
        result[subtree.mask[node]] = (node, tuple(subtree.mask[child] for child in node.children))
    return result


def leaf_order(tree: PQTree, orders: NodeOrders) -> list[str]:
    """The leaves from left to right with every node in its order (GETLEAFORDER)."""
    result: list[str] = []
    stack = [tree.root] if tree.root is not None else []
    while stack:
        node = stack.pop()
        if node.kind == "leaf":
            result.append(str(node.element))
        else:
            stack.extend(reversed(_arranged(node, orders.order(node))))
    return result


def _arranged(node: PQNode, order: Permutation) -> list[PQNode]:
    children = node.children
    if len(order) > 2:
        return [children[i] for i in order]
    return children if order == (0, 1) else children[::-1]
