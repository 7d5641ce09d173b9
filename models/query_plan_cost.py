"""Plan-structured network: how long a database query will take, predicted from its plan.

Marcus and Papaemmanouil, "Plan-Structured Deep Neural Network Models for Query Performance Prediction", VLDB 2019. Each
type of operator has a small network of its own, which reads the operator's features, of a width that depends on the
type, and what the networks of its inputs say; the network of a whole plan has the plan's shape.

Input: one plan per line, as PostgreSQL prints it with `EXPLAIN (FORMAT JSON)`.
Output: `latency`, one tensor of 1 (its logarithm) per operator, inputs before the operator that reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from _plans import ARITIES, WIDTHS, Operator, plan_vertices, read_plans, sample_plans
from torch import Tensor, nn

import edbc
from edbc.vertex import Vertex, VertexFunction, VertexInstance


@edbc.cell
class Unit(nn.Module):
    """What one operator does with what it reads."""

    def __init__(self, width: int, arity: int, size: int):
        super().__init__()
        self.hidden = nn.Linear(width + arity * size, size)
        self.deeper = nn.Linear(size, size)
        self.data = nn.Linear(size, size)

    def forward(self, features: Tensor, *reads: Tensor) -> Tensor:
        hidden = torch.relu(self.hidden(torch.cat([features, *reads], dim=-1)))
        hidden = torch.relu(self.deeper(hidden))
        return self.data(hidden)


class QueryPlanCost(nn.Module):
    """Runs a plan's units from its scans to its root and reads a latency off each."""

    def __init__(self, size: int):
        super().__init__()
        self.units = nn.ModuleDict({type_: Unit(WIDTHS[type_], arity, size) for type_, arity in ARITIES.items()})
        self.latency = nn.Linear(size, 1)

    def forward(self, plan: Operator) -> dict[str, list[Tensor]]:
        latencies: list[Tensor] = []
        self.evaluate(plan, latencies)
        return {"latency": latencies}

    def evaluate(self, operator: Operator, latencies: list[Tensor]) -> Tensor:
        reads = [self.evaluate(read, latencies) for read in operator.reads]
        weight = self.latency.weight
        features = torch.tensor(operator.features, dtype=weight.dtype, device=weight.device)
        data = self.units[operator.type](features, *reads)
        latencies.append(self.latency(data))
        return data

    def vertices(self) -> dict[str, VertexFunction]:
        return {type_: partial(self.operator, type_) for type_ in ARITIES}

    def operator(self, type_: str, vertex: Vertex) -> None:
        data = self.units[type_](vertex.pull(type_), *vertex.gather_all())
        vertex.scatter(data)
        vertex.push("latency", self.latency(data))


def build(hidden_size: int = 256, **config: Any) -> nn.Module:
    return QueryPlanCost(hidden_size)


def load(*paths: str, **config: Any) -> Iterator[Operator]:
    for path in paths:
        yield from read_plans(path)


def sample(count: int, seed: int, **config: Any) -> list[Operator]:
    return sample_plans(count, seed)


def vertex_instance(plan: Operator, **config: Any) -> VertexInstance:
    return plan_vertices(plan)
