"""Query plans as PostgreSQL prints them with `EXPLAIN (FORMAT JSON)`, one JSON document per line.

Definitions (Marcus and Papaemmanouil, "Plan-Structured Deep Neural Network Models for Query Performance Prediction",
VLDB 2019).

(1) A plan is a tree of operators. An operator has a type (`ARITIES`) and reads as many operators as its type says.
(2) Its features are the optimiser's estimates, the logarithms of 1 + rows, width, start-up cost and total cost, and
    what belongs to its type (`EXTRAS`): a table or an index as one of 16 (its name's CRC-32), or one of the listed
    values of a property. Features of types have different widths.

PostgreSQL's names of operators are gathered into these types (`TYPE_OF_NAME`); another name is refused.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from _samples import Quartet, sample_sizes
from _text import read_lines, word_id

from edbc.errors import InputError
from edbc.vertex import VertexInstance

ESTIMATES = ("Plan Rows", "Plan Width", "Startup Cost", "Total Cost")
NUM_NAMES = 16
JOIN_TYPES = ("Inner", "Left", "Right", "Full", "Semi", "Anti")
EXTRAS: dict[str, dict[str, tuple[str, ...]]] = {
    "scan": {"Relation Name": ()},
    "index_scan": {"Relation Name": (), "Index Name": (), "Scan Direction": ("Forward", "Backward", "NoMovement")},
    "hash_join": {"Join Type": JOIN_TYPES},
    "merge_join": {"Join Type": JOIN_TYPES},
    "nested_loop": {"Join Type": JOIN_TYPES},
    "hash": {},
    "sort": {"Sort Method": ("quicksort", "top-N heapsort", "external merge")},
    "aggregate": {"Strategy": ("Plain", "Sorted", "Hashed", "Mixed")},
    "limit": {},
}
"""Properties of each type; a property without listed values is a name."""
ARITIES = {"scan": 0, "index_scan": 0, "hash_join": 2, "merge_join": 2, "nested_loop": 2, "hash": 1, "sort": 1,
           "aggregate": 1, "limit": 1}  # fmt: skip
TYPE_OF_NAME = {
    "Seq Scan": "scan",
    "Index Scan": "index_scan",
    "Index Only Scan": "index_scan",
    "Hash Join": "hash_join",
    "Merge Join": "merge_join",
    "Nested Loop": "nested_loop",
    "Hash": "hash",
    "Sort": "sort",
    "Aggregate": "aggregate",
    "Limit": "limit",
}
WIDTHS = {
    type_: len(ESTIMATES) + sum(len(values) or NUM_NAMES for values in extras.values())
    for type_, extras in EXTRAS.items()
}
"""Number of features of each type."""

OPERATORS: Quartet = (1, 9, 21, 40)
"""Operators per made-up plan: from a scan of one table to joins of a dozen."""
LARGEST_ESTIMATE = 1e30


@dataclass(slots=True)
class Operator:
    """An operator with its features and those that it reads."""

    type: str
    features: list[float]
    reads: list[Operator] = field(default_factory=list)


def read_plans(path: str) -> Iterator[Operator]:
    """Every plan of a file, in order. Raises InputError at the first line that is none."""
    for number, line in read_lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: expected one JSON document, got '{line[:40]}' ({error}); "
                             "write each plan on one line") from error  # fmt: skip
        if isinstance(document, list) and len(document) == 1:
            document = document[0]
        yield _operator(document["Plan"] if isinstance(document, dict) and "Plan" in document else document, where)


def _operator(plan: object, where: str) -> Operator:
    name = plan.get("Node Type") if isinstance(plan, dict) else None
    if not isinstance(plan, dict) or name not in TYPE_OF_NAME:
        got = f"{name!r}"[:40] if isinstance(plan, dict) else "no object"
        raise InputError(f"{where}: expected an operator with a 'Node Type' of {', '.join(TYPE_OF_NAME)}, got {got}; "
                         "see models/_plans.py")  # fmt: skip
    type_ = TYPE_OF_NAME[name]
    plans = plan.get("Plans", [])
    if not isinstance(plans, list) or len(plans) != ARITIES[type_]:
        found = len(plans) if isinstance(plans, list) else "no list"
        raise InputError(
            f"{where}: expected {ARITIES[type_]} 'Plans' under {name}, got {found}; the plan is incomplete"
        )
    features = [_estimate(plan, key, where) for key in ESTIMATES]
    for key, values in EXTRAS[type_].items():
        features += _one_hot(plan, key, values)
    return Operator(type_, features, [_operator(read, where) for read in plans])


def _estimate(plan: dict, key: str, where: str) -> float:
    value = plan.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_ESTIMATE:
        raise InputError(f"{where}: expected '{key}' to be a number from 0 to 1e30, got {value!r:.40}; "
                         "print the plan with costs")  # fmt: skip
    return math.log1p(value)


def _one_hot(plan: dict, key: str, values: tuple[str, ...]) -> list[float]:
    """All zeros for a property that is absent or not listed: the optimiser prints some of them only after a run."""
    value = plan.get(key)
    if not values:
        place = None if value is None else word_id(str(value), NUM_NAMES)
        return [float(k == place) for k in range(NUM_NAMES)]
    return [float(value == listed) for listed in values]


def plan_vertices(plan: Operator) -> VertexInstance:
    """The vertices of a plan, inputs before the operator that reads them: types are positions in `ARITIES`; an input
    for each type, its features, zeros at the vertices of other types."""
    types, operators, vertices = list(ARITIES), list[Operator](), list[tuple[int, list[int]]]()

    def add(operator: Operator) -> int:
        reads = [add(read) for read in operator.reads]
        operators.append(operator)
        vertices.append((types.index(operator.type), reads))
        return len(vertices) - 1

    add(plan)
    features = {type_: np.zeros((len(vertices), width)) for type_, width in WIDTHS.items()}
    for vertex, operator in enumerate(operators):
        features[operator.type][vertex] = operator.features
    return VertexInstance.build(vertices, features)


def sample_plans(count: int, seed: int) -> list[Operator]:
    """Made-up plans: bushy and left-deep joins of scans, sorted, hashed, aggregated and cut as planners do."""
    rng = random.Random(seed)
    return [_grow(size, rng) for size in sample_sizes(count, OPERATORS, rng)]


def _grow(size: int, rng: random.Random) -> Operator:
    arity = 0 if size == 1 else 1 if size == 2 or rng.random() < 0.4 else 2
    type_ = rng.choice([type_ for type_, number in ARITIES.items() if number == arity])
    right = rng.choice([1, 1, 2, rng.randint(1, max(1, size - 2))]) if arity == 2 else 0
    right = min(right, size - 2)
    sizes = [[], [size - 1], [size - 1 - right, right]][arity]
    return Operator(type_, _made_up_features(type_, rng), [_grow(child, rng) for child in sizes])


def _made_up_features(type_: str, rng: random.Random) -> list[float]:
    rows, width = rng.uniform(0, 14), math.log1p(rng.randint(4, 400))
    features = [rows, width, rng.uniform(0, 8), rng.uniform(8, 16)]
    for values in EXTRAS[type_].values():
        chosen = rng.randrange(len(values) or NUM_NAMES)
        features += [float(k == chosen) for k in range(len(values) or NUM_NAMES)]
    return features
