"""Learning a policy when compiling: Q-learning on one or several mini-batches, then a local search on its table.

(1) Trials run in rounds of CHECK, the training graphs taking turns. After each round the greedy table is tried on every
    training graph, and the best table so far is kept (least cost in sum, the earlier on a tie). Exploration falls
    linearly to zero. Training stops when every graph is at its lower bound.
(2) The local search then flips the action of one visited state at a time, tries the table on every training graph that
    visits the state, and keeps what is no worse. `refinements` bounds the number of tries.
(3) The policy's table holds the states that it reaches on the training and validation graphs; a state that no
    trial has met enters with the fallback's action, so that it is no longer unseen.

`select` compares encodings and seeds, and the fixed rules beside them, by what they need on the validation graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edbc.graph import Graph
from edbc.schedule.policy import ENCODINGS, FALLBACK, RULES, Policy, State
from edbc.schedule.run import analysed, arrays_of, cheap_types, encoding_code, lower_bound, run, total_cost

if TYPE_CHECKING:
    from edbc.schedule.analysis import Dag
    from edbc.schedule.qlearn import Memory
    from edbc.schedule.tables import Table

UNSEEN_LIMIT = 0.01
"""Share of steps on validation graphs, rounded to four digits; (3) then about halves it on data of the same kind."""
CHECK = 50
"""Trials between two evaluations."""
BASELINES = ("depth", "agenda", "sufficient", "chains", "critical")

Progress = Callable[[int, int, int], None]
"""Called with trials so far, batches of the best table so far, lower bound."""


@dataclass(frozen=True)
class TrainingResult:
    """The policy and how it came about; `record` holds plain numbers, strings, lists and dicts."""

    policy: Policy
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters; the record repeats them."""

    exploration: float = 0.05
    learning_rate: float = 0.02
    n: int = 20
    alpha: float = 0.2
    prior: float = 0.5
    potential: bool = True
    refinements: int = 400


class _Trainer:
    """Training graphs and what is known about them; one `train` call."""

    def __init__(
        self, graphs: Sequence[Graph], encoding: str, fallback: str, cost: Sequence[float] | None, hyper: Hyper
    ) -> None:
        from edbc.schedule.analysis import analyse
        from edbc.schedule.engine import new_frontier
        from edbc.schedule.qlearn import new_memory

        self.num_types = max(graph.num_types for graph in graphs)
        self.dags: list[Dag] = [analyse(*arrays_of(g), self.num_types, True, True, True) for g in graphs]
        self.frontiers = [new_frontier(dag) for dag in self.dags]
        self.encoding, self.hyper = ENCODINGS.index(encoding), hyper
        self.rule = RULES.index(fallback)
        self.cost = np.ones(self.num_types) if cost is None else np.array(cost, np.float64)
        self.cheap = cheap_types(max(graphs, key=lambda graph: graph.num_types))
        self.bound = sum(float((dag.below.max(axis=0, initial=0) * self.cost).sum()) for dag in self.dags)
        self.memory: Memory = new_memory(self.num_types, 2 * max(g.num_nodes for g in graphs) + 1024)

    def learn(self, which: int, trials: int, exploration: float, generator: np.ndarray) -> None:
        """Trials on one graph; the table grows as it must."""
        from edbc.schedule.qlearn import Settings, copy_memory, learn, new_memory

        hyper = self.hyper
        settings = Settings(
            self.encoding,
            exploration,
            hyper.learning_rate,
            hyper.n,
            hyper.alpha,
            hyper.prior,
            float(hyper.potential),
        )
        dag, frontier = self.dags[which], self.frontiers[which]
        while trials:
            trials -= learn(dag, frontier, self.memory, settings, self.cost, trials, generator)
            if trials:
                larger = new_memory(self.num_types, 2 * len(self.memory.q))
                copy_memory(self.memory, larger)
                self.memory = larger

    def greedy(self) -> np.ndarray:
        """The best action of every row by Q."""
        return np.argmax(self.memory.q, axis=1).astype(np.int32)

    def walk(self, dag: Dag, actions: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Cost of the schedule, the rows that chose its batches (-1 where the fallback did), and their types."""
        from edbc.schedule.walk import walk

        batch_type, _, _, rows, _ = walk(dag, self.encoding, self.memory.table, actions, self.rule, self.cheap)
        return float(self.cost[batch_type].sum()), rows, batch_type

    def total(self, actions: np.ndarray) -> float:
        """Cost on all training graphs."""
        return sum(self.walk(dag, actions)[0] for dag in self.dags)

    def refine(self, actions: np.ndarray, generator: np.ndarray) -> np.ndarray:
        """The local search (2) from a table; no worse than it."""
        from edbc.schedule.qlearn import random_unit

        walks = [self.walk(dag, actions) for dag in self.dags]
        for _ in range(self.hyper.refinements):
            if sum(cost for cost, _, _ in walks) <= self.bound:
                break
            rows = walks[int(random_unit(generator) * len(walks))][1]
            row = int(rows[int(random_unit(generator) * len(rows))])
            ready = np.flatnonzero(np.isfinite(self.memory.q[row])) if row >= 0 else np.zeros(0, np.int64)
            if len(ready) < 2:
                continue
            tried = actions.copy()
            others = ready[ready != actions[row]]
            tried[row] = others[int(random_unit(generator) * len(others))]
            again = [
                self.walk(dag, tried) if row in rows else (cost, rows, types)
                for dag, (cost, rows, types) in zip(self.dags, walks, strict=True)
            ]
            if sum(cost for cost, _, _ in again) <= sum(cost for cost, _, _ in walks):
                actions, walks = tried, again
        return actions

    def table_of(self, actions: np.ndarray) -> dict[State, int]:
        """The states that the table reaches on the training graphs."""
        reached = {int(row) for dag in self.dags for row in self.walk(dag, actions)[1] if row >= 0}
        return _states(self.memory.table, actions, sorted(reached))


def _states(table: Table, actions: np.ndarray, rows: Iterable[int]) -> dict[State, int]:
    return {tuple(table.words[row, : table.num_words[row]].tolist()): int(actions[row]) for row in rows}


def train(
    graphs: Sequence[Graph],
    *,
    encoding: str = "sort",
    seed: int = 0,
    trials: int = 1000,
    validation: Sequence[Graph] = (),
    progress: Progress | None = None,
    fallback: str | None = None,
    cost: Sequence[float] | None = None,
    hyper: Hyper | None = None,
) -> TrainingResult:
    """Learn a table over `encoding` from `graphs`, which share their leading types. Equal arguments, equal results.

    `cost[a]` is what a batch of type a costs beside its rows; the cost of rows is the same in every schedule. Without
    it every batch counts 1.
    """
    hyper = hyper or Hyper()
    fallback = fallback or FALLBACK.get(encoding, "chains")
    trainer = _Trainer(graphs, encoding, fallback, cost, hyper)
    generator = np.array([seed], np.int64)
    best_cost, best, best_rows, done = np.inf, trainer.greedy(), 0, 0
    for round_ in range((trials + CHECK - 1) // CHECK):
        count = min(CHECK, trials - done)
        trainer.learn(round_ % len(graphs), count, hyper.exploration * (1 - done / trials), generator)
        done += count
        actions = trainer.greedy()
        reached = trainer.total(actions)
        if reached < best_cost:
            best_cost, best, best_rows = reached, actions, int(trainer.memory.table.used[0])
        if progress:
            progress(done, round(best_cost), round(trainer.bound))
        if best_cost <= trainer.bound:
            break
    actions = trainer.greedy()
    actions[:best_rows] = best[:best_rows]
    policy = Policy("fsm", encoding, fallback, trainer.table_of(trainer.refine(actions, generator)))
    policy = cover(policy, graphs)
    unseen = unseen_share(policy, validation)
    policy = prune(cover(policy, validation), [*graphs, *validation])
    record = {
        "encoding": encoding,
        "seed": seed,
        "trials": done,
        "unseen": round(unseen, 4),
        **{name: getattr(hyper, name) for name in hyper.__dataclass_fields__},
        **measure(policy, graphs, cost),
    }
    return TrainingResult(policy, record)


def cover(policy: Policy, graphs: Sequence[Graph]) -> Policy:
    """The policy with every state that it meets on `graphs` in its table: (3)."""
    from edbc.schedule.qlearn import adopt
    from edbc.schedule.tables import find, insert, new_table

    if not graphs:
        return policy
    room = len(policy.table) + sum(graph.num_nodes for graph in graphs)
    table = new_table(room, max(graph.num_types for graph in graphs) + 1)
    actions = np.zeros(room, np.int32)
    for state, action in policy.table.items():
        words = np.array(state, np.int32)
        actions[insert(table, find(table, words, len(words))[1], words, len(words))] = action
    for graph in graphs:
        dag = analysed(graph, policy)
        adopt(dag, encoding_code(policy), table, actions, RULES.index(policy.rule), cheap_types(graph))
    states = _states(table, actions, range(int(table.used[0])))
    return Policy(policy.kind, policy.encoding, policy.fallback, states)


def prune(policy: Policy, graphs: Sequence[Graph]) -> Policy:
    """The policy without the states that it does not reach on `graphs`.

    There are some when `cover` has fixed one action for a state in which the fallback would now and then take another.
    """
    from edbc.schedule.walk import walk

    states = list(policy.table)
    reached: set[int] = set()
    for graph in graphs:
        dag, rule = analysed(graph, policy), RULES.index(policy.rule)
        reached |= set(walk(dag, encoding_code(policy), *policy.compiled, rule, cheap_types(graph))[3].tolist())
    table = {states[row]: policy.table[states[row]] for row in sorted(reached) if row >= 0}
    return Policy(policy.kind, policy.encoding, policy.fallback, table)


def unseen_share(policy: Policy, graphs: Sequence[Graph]) -> float:
    """The share of steps that the table leaves to its fallback; 0 without graphs."""
    schedules = [run(graph, policy, compare=False) for graph in graphs]
    return sum(s.unseen_states for s in schedules) / max(1, sum(s.num_batches for s in schedules))


def measure(policy: Policy, graphs: Sequence[Graph], cost: Sequence[float] | None = None) -> dict[str, Any]:
    """What the policy and every baseline need on `graphs` in sum, and the lower bound."""
    schedules = [run(graph, policy, cost=cost) for graph in graphs]
    figures: dict[str, Any] = {
        "batches": sum(schedule.num_batches for schedule in schedules),
        "lower_bound": sum(lower_bound(graph) for graph in graphs),
        "baselines": {kind: sum(run(graph, Policy(kind)).num_batches for graph in graphs) for kind in BASELINES},
    }
    if cost is not None:
        figures["cost"] = round(sum(total_cost(schedule.batch_type, cost) for schedule in schedules), 6)
    return figures


def select(
    graphs: Sequence[Graph],
    validation: Sequence[Graph] = (),
    seeds: Sequence[int] = (0, 1),
    encodings: Sequence[str] = ENCODINGS,
    progress: Progress | None = None,
    **settings: Any,
) -> TrainingResult:
    """Train every encoding with every seed; keep what costs least on `validation`, then on `graphs`, then comes first.

    The fixed rules `critical` and `chains` compete too, as tables would that never depart from them. Out is a candidate
    that costs more on `graphs` than the best baseline, or whose table, before (3), left more than UNSEEN_LIMIT of its
    steps on `validation` to the fallback. The record lists all candidates under `compared`.
    """
    cost = settings.get("cost")
    results = [
        train(graphs, encoding=encoding, seed=seed, validation=validation, progress=progress, **settings)
        for encoding in encodings
        for seed in seeds
    ]
    for rule in ("critical", "chains"):
        record = {"encoding": rule, "seed": 0, "unseen": 0.0, **measure(Policy(rule), graphs, cost)}
        results.append(TrainingResult(Policy(rule), record))
    limit = min(_total(Policy(kind), graphs, cost) for kind in BASELINES)
    figures = [(_total(r.policy, validation, cost), _total(r.policy, graphs, cost)) for r in results]
    allowed = [
        i for i, r in enumerate(results) if figures[i][1] <= limit and r.record["unseen"] <= UNSEEN_LIMIT
    ] or list(range(len(results)))
    best = results[min(allowed, key=lambda i: figures[i])]
    compared = [
        {
            "kind": r.policy.kind,
            "encoding": r.record["encoding"],
            "seed": r.record["seed"],
            "validation": round(held_out, 6),
            "training": round(trained, 6),
            "unseen": r.record["unseen"],
        }
        for r, (held_out, trained) in zip(results, figures, strict=True)
    ]
    return TrainingResult(best.policy, {**best.record, "compared": compared})


def _total(policy: Policy, graphs: Sequence[Graph], cost: Sequence[float] | None) -> float:
    return sum(total_cost(run(graph, policy, cost=cost).batch_type, cost) for graph in graphs)
