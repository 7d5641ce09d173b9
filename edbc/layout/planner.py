"""The memory layout of a cell: an order of its variables in which batches run without copies.

Problem: given variables and batches, find an order in which every operand is adjacent and the operands of each batch
are aligned (`edbc.layout.problem`), or, when there is none, drop operands until there is, as few elements as we can.
Algorithm 2 of ED-Batch, MAIN; its two passes are `edbc.layout.constraints` and `edbc.layout.orders`.

Properties.

(1) When some order meets all demands, the plan meets all of them: nothing is dropped that need not be (but for partial
    repeats, which no order meets). `edbc.layout.orders` has the argument, the tests compare with enumeration.
(2) What is dropped is minimal: with any dropped operand added to those that are kept, no order is left.
(3) Which operands are dropped need not be the cheapest choice. Finding that contains the maximum consecutive-ones
    submatrix problem, which is NP-hard. `_choose` is a greedy method with local search.

How operands are chosen, which the paper leaves at "erase the batch". Demands are sorted by cost, dearest first, then as
given. Neighbours of one batch in that list are tried together, and one at a time when that fails; what fails is
refused, and everything that it did to the tree is undone. Then each refused demand is tried at the head of the list,
and the list stays so when less is copied in all, until none helps. On 800 random problems of up to six variables, 590
of them with something to drop, 98 in 100 of these drops were the cheapest that enumeration knows.

The order among those that meet the same demands is the tree's, the same for the same input; callers who put weights and
values into one layout restrict it to either afterwards, which keeps adjacency and alignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from edbc.errors import LayoutError
from edbc.layout.constraints import Broadcast
from edbc.layout.orders import NodeOrders, decide_orders, leaf_order
from edbc.layout.pqtree import PQTree
from edbc.layout.problem import Demand, DroppedOperand, LayoutBatch, LayoutPlan, Reason, demands_of


def plan_layout(
    variables: Sequence[str], batches: Sequence[LayoutBatch], sizes: Mapping[str, int] | None = None
) -> LayoutPlan:
    """Order `variables` so that `batches` need the fewest copies we can find.

    `sizes` gives the elements of each variable and so the cost of dropping an operand; without it, every variable
    counts as one. Deterministic. O(k n m^2) for k batches of at most m operations over n variables when nothing is
    dropped, times the number of demands otherwise.

    Raises LayoutError when a variable or a batch's name is repeated, or an operand names an unknown variable.

    >>> b1 = LayoutBatch("B1", (("x4", "x5"), ("x1", "x3"), ("x2", "x1")))
    >>> b2 = LayoutBatch("B2", (("x8", "x6", "x7"), ("x3", "x4", "x5")))
    >>> plan = plan_layout([f"x{i}" for i in range(1, 9)], [b1, b2])
    >>> print(plan)
    order      x2 x1 x3 x4 x5 x8 x6 x7
    adjacency  ([x2 x1 x3 (x4 x5)] (x8 x6 x7))
    aligned    ([x2 x1 x3 (x4 x5)] (x8 (x6 x7)))
    """
    demands = list(demands_of(batches, sizes))
    _check(variables, batches, demands)
    repeats = {demand: _dropped(demand, "repeats") for demand in demands if demand.has_repeats}
    wanted = [demand for demand in demands if not demand.is_trivial and demand not in repeats]
    state, refused = _keep_all(variables, wanted), {}
    if state is None:
        refused = _choose(variables, wanted)
        state = _keep_all(variables, [demand for demand in wanted if demand not in refused])
    assert state is not None
    dropped = repeats | {demand: _dropped(demand, reason) for demand, reason in refused.items()}
    return state.plan(tuple(dropped[demand] for demand in demands if demand in dropped))


class _State:
    """A PQ tree under the demands kept so far, with the orders of its nodes."""

    def __init__(self, variables: Sequence[str]) -> None:
        self.broadcast = Broadcast(PQTree(variables))
        self.orders = NodeOrders()
        self.adjacency_tree = ""

    def keep(self, demands: Iterable[Demand]) -> Reason | None:
        """Add demands; what stands against them, or None. After a refusal the state is of no further use."""
        for demand in demands:
            if not self._require(demand):
                return "adjacency"
        self.adjacency_tree = str(self.broadcast.tree)
        if not self.broadcast.settle():
            return "broadcast"
        orders = decide_orders(self.broadcast.tree, self.broadcast.trees)
        if orders is None:
            return "alignment"
        self.orders = orders
        return None

    def _require(self, demand: Demand) -> bool:
        if demand.kind == "adjacent_only":
            return self.broadcast.require(demand.variables)
        return self.broadcast.align(demand.batch, demand.variables)

    def extended(self, demands: Iterable[Demand]) -> tuple[_State, Reason | None]:
        """A copy with more demands, and what stands against them."""
        result = _State(())
        result.broadcast = self.broadcast.copy()
        return result, result.keep(demands)

    def plan(self, dropped: tuple[DroppedOperand, ...]) -> LayoutPlan:
        """The layout that the state has reached."""
        tree = self.broadcast.tree
        return LayoutPlan(tuple(leaf_order(tree, self.orders)), dropped, self.adjacency_tree, str(tree))


def _keep_all(variables: Sequence[str], demands: Sequence[Demand]) -> _State | None:
    state = _State(variables)
    return state if state.keep(demands) is None else None


def _choose(variables: Sequence[str], demands: Sequence[Demand]) -> dict[Demand, Reason]:
    """The demands to drop, with what stood against each: greedy, then better while a refused demand goes first."""
    sequence = sorted(demands, key=lambda demand: -demand.cost)
    refused = _keep_greedily(variables, sequence, limit=_cost(demands) + 1)
    improving = True
    while improving:
        improving = False
        for demand in refused:
            promoted = [demand, *(other for other in sequence if other is not demand)]
            candidate = _keep_greedily(variables, promoted, limit=_cost(refused))
            if _cost(candidate) < _cost(refused):
                sequence, refused, improving = promoted, candidate, True
                break
    return refused


def _keep_greedily(variables: Sequence[str], sequence: Sequence[Demand], limit: int) -> dict[Demand, Reason]:
    """The demands that cannot be kept beside those before them, with what stands against each.

    Gives up when they cost `limit`: what it returns then costs that much and is incomplete.
    """
    state = _State(variables)
    refused: dict[Demand, Reason] = {}
    for _, group in groupby(sequence, key=lambda demand: (demand.cost, demand.batch)):
        state = _keep_or_refuse(state, list(group), refused)
        if _cost(refused) >= limit:
            break
    return refused


def _keep_or_refuse(state: _State, demands: Sequence[Demand], refused: dict[Demand, Reason]) -> _State:
    """The state with `demands` kept, together if possible, else one by one; adds to `refused`."""
    extended, reason = state.extended(demands)
    if reason is None:
        return extended
    if len(demands) == 1:
        refused[demands[0]] = reason
        return state
    for demand in demands:
        state = _keep_or_refuse(state, [demand], refused)
    return state


def _cost(demands: Iterable[Demand]) -> int:
    return sum(demand.cost for demand in demands)


def _dropped(demand: Demand, reason: Reason) -> DroppedOperand:
    return DroppedOperand(**vars(demand), reason=reason)


def _check(variables: Sequence[str], batches: Sequence[LayoutBatch], demands: Sequence[Demand]) -> None:
    known = set(variables)
    if len(known) < len(variables):
        repeated = next(v for i, v in enumerate(variables) if v in variables[:i])
        raise LayoutError(f"layout: expected different variables, got '{repeated}' twice")
    names = [batch.name for batch in batches]
    if len(set(names)) < len(names):
        repeated = next(name for i, name in enumerate(names) if name in names[:i])
        raise LayoutError(f"layout: expected different names of batches, got '{repeated}' twice")
    for demand in demands:
        unknown = next((v for v in demand.variables if v not in known), None)
        if unknown is not None:
            raise LayoutError(f"{demand}: expected variables of the cell, got '{unknown}'; list it among the variables")
