"""Learning a policy when compiling: Q-learning over one or several mini-batches, best table kept.

Trials run in rounds of `CHECK`; after each the greedy table is tried on every training graph, and the best so far is
kept (fewest batches in sum, the earlier on a tie). Training stops when the sum of lower bounds is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edbc.graph import Graph
from edbc.schedule.policy import ENCODINGS, FALLBACKS, Policy, State
from edbc.schedule.run import cheap_types, lower_bound, run

CHECK = 50
HEURISTICS = ("depth", "agenda", "sufficient", "critical")

Progress = Callable[[int, int, int], None]
"""Called with trials so far, best batches so far, lower bound."""


@dataclass(frozen=True)
class TrainingResult:
    """The policy and how it came about; `record` holds plain numbers, strings, lists and dicts."""

    policy: Policy
    record: Mapping[str, Any]


def train(
    graphs: Sequence[Graph],
    *,
    encoding: str = "sort",
    seed: int = 0,
    trials: int = 1000,
    validation: Sequence[Graph] = (),
    progress: Progress | None = None,
    exploration: float = 0.1,
    learning_rate: float = 0.1,
    horizon: int = 1,
    alpha: float = 0.5,
    prior_weight: float = 0.3,
    fallback: str = "critical",
) -> TrainingResult:
    """Learn a table over `encoding` from `graphs`. Equal arguments give equal results."""
    from edbc.schedule.analysis import analyse
    from edbc.schedule.engine import new_frontier
    from edbc.schedule.qlearn import Settings, copy_memory, learn, new_memory

    num_types = max(graph.num_types for graph in graphs)
    dags = [analyse(g.node_type, g.operand_ptr, g.operands, num_types, True, True, True) for g in graphs]
    frontiers = [new_frontier(dag) for dag in dags]
    bound = sum(lower_bound(graph) for graph in graphs)
    memory = new_memory(num_types, 4096)
    generator = np.array([seed + 1], np.int64)
    fixed, per_row = np.ones(num_types), np.zeros(num_types)
    best_count, best_table, done, round_ = 10**9, {}, 0, 0
    while done < trials and best_count > bound:
        settings = Settings(
            ENCODINGS.index(encoding), exploration * (1 - done / trials), learning_rate, horizon, alpha, prior_weight
        )
        which = round_ % len(dags)
        left = min(CHECK, trials - done)
        while left:
            ran = learn(dags[which], frontiers[which], memory, settings, fixed, per_row, left, generator)
            left -= ran
            done += ran
            if left:
                larger = new_memory(num_types, 2 * len(memory.q))
                copy_memory(memory, larger)
                memory = larger
        count, table = _greedy(dags, memory, settings.encoding, fallback, cheap_types(graphs[0]))
        if count < best_count:
            best_count, best_table = count, table
        round_ += 1
        if progress:
            progress(done, best_count, bound)
    policy = Policy("fsm", encoding, fallback, best_table)
    record = {
        "trials": done,
        "batches": best_count,
        "lower_bound": bound,
        **{kind: sum(run(graph, Policy(kind)).num_batches for graph in graphs) for kind in HEURISTICS},
        "seed": seed,
        "exploration": exploration,
        "learning_rate": learning_rate,
        "n": horizon,
        "alpha": alpha,
    }
    return TrainingResult(policy, record)


def _greedy(dags: list[Any], memory: Any, encoding: int, fallback: str, cheap: Any) -> tuple[int, dict[State, int]]:
    """Batches that the greedy table needs on every graph in sum, and the table."""
    from edbc.schedule.walk import walk

    used = int(memory.table.used[0])
    actions = np.argmax(memory.q, axis=1).astype(np.int32)
    rule = FALLBACKS.index(fallback)
    count = sum(len(walk(dag, encoding, memory.table, actions, rule, cheap)[0]) for dag in dags)
    words, sizes = memory.table.words, memory.table.num_words
    return count, {tuple(words[row, : sizes[row]].tolist()): int(actions[row]) for row in range(used)}


def select(
    graphs: Sequence[Graph],
    validation: Sequence[Graph] = (),
    seeds: Sequence[int] = (0, 1),
    encodings: Sequence[str] = ENCODINGS,
    progress: Progress | None = None,
    **settings: Any,
) -> TrainingResult:
    """Train every encoding with every seed and keep what needs fewest batches on `validation`, then on `graphs`.

    The earlier encoding and seed win ties. The record has every candidate under `compared`.
    """
    candidates = []
    for encoding in encodings:
        for seed in seeds:
            result = train(graphs, encoding=encoding, seed=seed, validation=validation, progress=progress, **settings)
            unseen = sum(run(graph, result.policy).num_batches for graph in validation)
            candidates.append((unseen, result.record["batches"], result))
    best = min(candidates, key=lambda candidate: candidate[:2])[2]
    compared = [
        {"encoding": r.policy.encoding, "seed": r.record["seed"], "batches": batches, "validation": unseen}
        for unseen, batches, r in candidates
    ]
    return TrainingResult(best.policy, {**best.record, "compared": compared})
