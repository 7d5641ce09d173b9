"""Zero-shot query cost: a network per kind of node of an annotated query plan, from columns up to the root.

After Hilprecht and Binnig, Zero-Shot Cost Models for Out-of-the-box Learned Cost Prediction, VLDB 2022. A plan comes as
their parser writes it: nested dicts with `plan_parameters` and `children`, predicates as trees in `filter_columns`.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

OPERATORS = ("Seq Scan", "Index Scan", "Hash Join", "Nested Loop", "Sort", "Aggregate")
COMPARISONS = ("=", "<", ">", "AND", "OR")
KINDS = {"operator": len(OPERATORS) + 2, "predicate": len(COMPARISONS) + 1, "table": 2, "column": 2}
"""Features of each kind of node."""

Node = tuple[str, list[float], list[Any]]
"""Kind, features, children."""


class ZeroShotCost(nn.Module):
    """Encode a node's features, add its children's states, update; the root's state is the cost."""

    def __init__(self, size: int = 128):
        super().__init__()
        self.encode = nn.ModuleDict({k: nn.Sequential(nn.Linear(n, size), nn.LeakyReLU()) for k, n in KINDS.items()})
        self.update = nn.ModuleDict({k: nn.Sequential(nn.Linear(2 * size, size), nn.LeakyReLU()) for k in KINDS})
        self.cost, self.size = nn.Linear(size, 1), size

    def forward(self, plan: dict[str, Any]) -> Tensor:
        return self.cost(self.state(node_of(plan)))

    def state(self, node: Node) -> Tensor:
        kind, features, children = node
        own = self.encode[kind](torch.tensor(features))
        below = sum(self.state(child) for child in children) if children else torch.zeros(self.size)
        return self.update[kind](torch.cat([own, below]))


def node_of(plan: dict[str, Any]) -> Node:
    """An operator with its predicate, table and children as one graph of nodes."""
    facts = plan["plan_parameters"]
    children = [node_of(child) for child in plan["children"]]
    if "table" in facts:
        children.append(("table", facts["table"], []))
    if "filter_columns" in facts:
        children.append(_predicate(facts["filter_columns"]))
    return "operator", [*_one_hot(OPERATORS, facts["op_name"]), facts["est_card"], facts["est_width"]], children


def _predicate(tree: dict[str, Any]) -> Node:
    columns: list[Node] = [("column", tree["column"], [])] if "column" in tree else []
    children = [_predicate(child) for child in tree["children"]]
    return "predicate", [*_one_hot(COMPARISONS, tree["operator"]), tree["literal"]], [*columns, *children]


def _one_hot(names: tuple[str, ...], name: str) -> list[float]:
    return [float(name == other) for other in names]


def instances(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Made-up plans with 1 to 5 joins."""
    generator = random.Random(seed)

    def predicate(depth: int) -> dict[str, Any]:
        if depth == 0:
            column = [generator.random(), generator.random()]
            return {
                "operator": generator.choice("=<>"),
                "literal": generator.random(),
                "column": column,
                "children": [],
            }
        parts = [predicate(generator.randint(0, depth - 1)) for _ in range(2)]
        return {"operator": generator.choice(["AND", "OR"]), "literal": 0.0, "children": parts}

    def operator(name: str, children: list[Any], **more: Any) -> dict[str, Any]:
        sizes = {"est_card": generator.random(), "est_width": generator.random()}
        return {"plan_parameters": {"op_name": name, **sizes, **more}, "children": children}

    def joined(joins: int) -> dict[str, Any]:
        if joins == 0:
            table = [generator.random(), generator.random()]
            return operator(
                generator.choice(OPERATORS[:2]), [], table=table, filter_columns=predicate(generator.randint(0, 2))
            )
        left = generator.randint(0, joins - 1)
        return operator(generator.choice(OPERATORS[2:4]), [joined(left), joined(joins - 1 - left)])

    return [operator("Aggregate", [joined(generator.randint(1, 5))]) for _ in range(count)]
