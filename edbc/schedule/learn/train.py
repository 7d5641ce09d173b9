"""Learning a policy when compiling: Q-learning on one or several mini-batches, then a local search on its table.

(1) Trials run in rounds of CHECK, the training graphs taking turns. After each round the greedy table is tried on every
    training graph, and the best table so far is kept (least cost in sum, the earlier on a tie). Exploration falls
    linearly to zero. Training stops when every graph is at its lower bound.
(2) The local search then flips the action of one visited state at a time, tries the table on every training graph that
    visits the state, and keeps what is no worse. `refinements` bounds the number of tries.
(3) The policy's table holds the states that it reaches on the training and validation graphs; a state that no
    trial has met enters with the fallback's action, so that it is no longer unseen.
(4) A table over one of edbc's own encodings runs beside its fallback rule (policy.py, 3) where that pays: where it
    saves more on the validation graphs (without any, on those it was trained on) than SECOND_WALK for each of their
    nodes. Whatever costs more than a baseline on the training graphs runs beside that baseline. So no policy costs more
    than the best baseline there.

(5) Where no table can be learned, as types, nodes and batches are many, a rule's own walk counts too: what it reads of
    each node is a row of as many numbers as there are types (analysis.py, 2 and 3). So the agenda takes part, which
    reads none: 27,000 nodes of 311 types took it 0.8 ms for 488 batches, `sufficient` 396 ms for 433.

`select` compares encodings and seeds, and the fixed rules beside them, by what they cost on the validation graphs,
second walks included.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edbc.base.graph import Graph
from edbc.schedule.policy import ENCODINGS, FALLBACK, RULES, Policy, State
from edbc.schedule.scheduler import (
    analysed,
    arrays_of,
    cheap_types,
    costs_of,
    encoding_code,
    lower_bound,
    run,
    total_cost,
    work_of,
)

if TYPE_CHECKING:
    from edbc.schedule.analysis import Dag
    from edbc.schedule.learn.qlearn import Memory
    from edbc.schedule.statetable import Table

SECOND_WALK = 0.0001
"""What simulating a rule beside a table takes per node, in batches: 11 to 17 ns, by hand; a batch takes 5 us beside its
rows at hidden size 128, 36 at 256, 290 at 512 (`edbc compile --profile`). A plan serves all sizes."""
WALKS = {"chains": 0.00005, "critical": 0.00015, "sufficient": 0.00015}
"""What a walk by a rule takes, in batches, for each type of each node and of each of its operands: 0.4 to 8 ns of
`chains`, 0.5 to 19 of the others, the more the less of it fits a cache; batches of such graphs take 20 us and more."""
UNSEEN_LIMIT = 0.01
"""Share of steps on unseen graphs that a table may leave to its fallback, as `unseen_share` estimates it."""
CHECK = 50
"""Trials between two evaluations."""
BASELINES = ("depth", "agenda", "sufficient", "chains", "critical")

COMPETING = ("chains", "critical", "sufficient")
"""Fixed rules that `select` compares with tables: the best one depends on the model. The first one takes least time."""

WORK = 1_800_000_000
"""Work (`run.work_of`) of all candidates' trials and local searches: some 10 s. A graph of many types takes so much
per trial that few or none are left; then the fixed rules compete alone."""

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


class _OutOfTime(Exception):
    """Learning has taken all the time that it may."""


class _Clock:
    """Processor time that learning takes, kernels' compilation before the first round left out; the last resort, as
    what it cuts off depends on the machine. `affordable` bounds learning without it."""

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.started: float | None = None

    @property
    def is_over(self) -> bool:
        """True once the limit has passed."""
        now = time.process_time()
        self.started = now if self.started is None else self.started
        return self.limit is not None and now - self.started > self.limit

    def watching(self, progress: Progress | None) -> Progress:
        """The callback, which raises _OutOfTime when the time is over."""

        def watch(*figures: int) -> None:
            if progress:
                progress(*figures)
            if self.is_over:
                raise _OutOfTime

        return watch


class _Trainer:
    """Training graphs and what is known about them; one `train` call."""

    def __init__(
        self, graphs: Sequence[Graph], encoding: str, fallback: str, cost: Sequence[float], hyper: Hyper
    ) -> None:
        from edbc.schedule.analysis import analyse, terms
        from edbc.schedule.engine import new_frontier
        from edbc.schedule.learn.qlearn import new_memory

        self.num_types = max(graph.num_types for graph in graphs)
        self.dags: list[Dag] = [analyse(*arrays_of(g), self.num_types, True, True, True) for g in graphs]
        self.frontiers = [new_frontier(dag) for dag in self.dags]
        self.encoding, self.hyper = ENCODINGS.index(encoding), hyper
        self.rule = RULES.index(fallback)
        self.cost = costs_of(cost, self.num_types)
        self.cheap = cheap_types(max(graphs, key=lambda graph: graph.num_types))
        self.bound = sum(float((terms(dag) * self.cost).sum()) for dag in self.dags)
        self.memory: Memory = new_memory(self.num_types, 2 * max(g.num_nodes for g in graphs) + 1024)

    def learn(self, which: int, trials: int, exploration: float, generator: np.ndarray) -> None:
        """Trials on one graph; the table grows as it must."""
        from edbc.schedule.learn.qlearn import Settings, copy_memory, learn, new_memory

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
                larger = new_memory(self.num_types, 4 * len(self.memory.q))
                copy_memory(self.memory, larger)
                self.memory = larger

    def greedy(self) -> np.ndarray:
        """The best action of every row by Q."""
        used = int(self.memory.table.used[0])
        actions = np.zeros(len(self.memory.q), np.int32)
        actions[:used] = np.argmax(self.memory.q[:used], axis=1)
        return actions

    def walk(self, dag: Dag, actions: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Cost of the schedule, the rows that chose its batches (-1 where the fallback did), and their types."""
        from edbc.schedule.schedulewalk import walk

        batch_type, _, _, rows, _ = walk(
            dag, self.encoding, self.memory.table, actions, self.rule, self.cheap, self.cost
        )
        return float(self.cost[batch_type].sum()), rows, batch_type

    def total(self, actions: np.ndarray) -> float:
        """Cost on all training graphs."""
        return sum(self.walk(dag, actions)[0] for dag in self.dags)

    def refine(self, actions: np.ndarray, generator: np.ndarray) -> np.ndarray:
        """The local search (2) from a table; no worse than it."""
        from edbc.schedule.learn.qlearn import random_unit

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
    cost: Sequence[float] = (),
    hyper: Hyper | None = None,
) -> TrainingResult:
    """Learn a table over `encoding` from `graphs`, which share their leading types. Equal arguments, equal results.

    `cost` is the policy's (policy.py, 4).
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
    table = trainer.table_of(trainer.refine(actions, generator))
    policy = cover(Policy("fsm", encoding, fallback, table, cost=tuple(cost)), graphs)
    unseen = unseen_share(policy, validation)
    policy = prune(cover(policy, validation), [*graphs, *validation])
    policy = no_worse_than_baselines(beside_where_it_pays(policy, validation or graphs), graphs)
    record = {
        "encoding": encoding,
        "seed": seed,
        "trials": done,
        "unseen": round(unseen, 4),
        **{name: getattr(hyper, name) for name in hyper.__dataclass_fields__},
        **measure(policy, graphs),
    }
    return TrainingResult(policy, record)


def affordable(graphs: Sequence[Graph], candidates: int, trials: int) -> int:
    """Trials per candidate, at most `trials`, for which WORK suffices; 0 where it does not for one round."""
    each = WORK * len(graphs) / max(1, candidates * sum(map(work_of, graphs)))
    most = int(each) - Hyper.refinements
    return min(trials, most) if most >= CHECK else 0


def cover(policy: Policy, graphs: Sequence[Graph]) -> Policy:
    """The policy with every state that it meets on `graphs` in its table: (3)."""
    from edbc.schedule.learn.qlearn import adopt
    from edbc.schedule.statetable import compile_table

    if not graphs:
        return policy
    room, width = sum(graph.num_nodes for graph in graphs), max(graph.num_types for graph in graphs) + 1
    table, actions = compile_table(policy.table, room, width)
    for graph in graphs:
        dag = analysed(graph, policy)
        cost = costs_of(policy.cost, graph.num_types)
        adopt(dag, encoding_code(policy), table, actions, RULES.index(policy.rule), cheap_types(graph), cost)
    states = _states(table, actions, range(int(table.used[0])))
    return replace(policy, table=states)


def prune(policy: Policy, graphs: Sequence[Graph]) -> Policy:
    """The policy without the states that it does not reach on `graphs`.

    There are some when `cover` has fixed one action for a state in which the fallback would now and then take another.
    """
    from edbc.schedule.schedulewalk import walk

    states = list(policy.table)
    reached: set[int] = set()
    for graph in graphs:
        dag, rule = analysed(graph, policy), RULES.index(policy.rule)
        cost = costs_of(policy.cost, graph.num_types)
        reached |= set(walk(dag, encoding_code(policy), *policy.compiled, rule, cheap_types(graph), cost)[3].tolist())
    return replace(policy, table={states[row]: policy.table[states[row]] for row in sorted(reached) if row >= 0})


def beside_where_it_pays(policy: Policy, graphs: Sequence[Graph]) -> Policy:
    """The policy, beside its encoding's own rule where that costs less on `graphs`, second walks included: (4)."""
    rule = FALLBACK.get(policy.encoding or "")
    if rule is None:
        return policy
    both = replace(policy, beside=rule)
    return both if total(both, graphs) + second_walks(both, graphs) < total(policy, graphs) else policy


def second_walks(policy: Policy, graphs: Sequence[Graph]) -> float:
    """What simulating the rule beside the policy's table takes on `graphs`, in batches: (4). Nothing where the table's
    schedule is at the lower bound."""
    if policy.beside is None:
        return 0.0
    above = [g for g in graphs if run(g, policy, compare=False).num_batches > lower_bound(g)]
    return SECOND_WALK * sum(graph.num_nodes for graph in above)


def walks(rule: Policy, graphs: Sequence[Graph]) -> float:
    """What walking by a rule takes on `graphs`, in batches: (5)."""
    read = [len(np.unique(g.node_type)) * (g.num_nodes + len(g.operands)) for g in graphs]
    return WALKS.get(rule.kind, 0.0) * sum(read)


def no_worse_than_baselines(policy: Policy, graphs: Sequence[Graph]) -> Policy:
    """The policy, beside the best baseline where that costs less on `graphs`: (4)."""
    costs = {kind: total(Policy(kind, cost=policy.cost), graphs) for kind in BASELINES}
    best = min(BASELINES, key=costs.__getitem__)
    return replace(policy, beside=best) if costs[best] < total(policy, graphs) else policy


def unseen_share(policy: Policy, graphs: Sequence[Graph]) -> float:
    """The share of steps that the table leaves to its fallback on each of the graphs, once it holds the states that it
    meets on the others (3): what to expect of data like theirs. 0 without graphs."""
    schedules = [
        run(graph, cover(policy, [*graphs[:i], *graphs[i + 1 :]]), compare=False) for i, graph in enumerate(graphs)
    ]
    return sum(s.unseen_states for s in schedules) / max(1, sum(s.num_batches for s in schedules))


def measure(policy: Policy, graphs: Sequence[Graph]) -> dict[str, Any]:
    """What the policy and every baseline need on `graphs` in sum, and the lower bound."""
    figures: dict[str, Any] = {
        "batches": batches(policy, graphs),
        "lower_bound": sum(lower_bound(graph) for graph in graphs),
        "baselines": {kind: batches(Policy(kind, cost=policy.cost), graphs) for kind in BASELINES},
    }
    if policy.cost:
        figures["cost"] = round(total(policy, graphs), 6)
    return figures


def batches(policy: Policy, graphs: Sequence[Graph]) -> int:
    """Batches that the policy needs on `graphs` in sum."""
    return sum(run(graph, policy).num_batches for graph in graphs)


def total(policy: Policy, graphs: Sequence[Graph]) -> float:
    """What the policy's batches cost on `graphs` in sum, beside their rows."""
    return sum(total_cost(run(graph, policy).batch_type, policy.cost) for graph in graphs)


def select(
    graphs: Sequence[Graph],
    validation: Sequence[Graph] = (),
    seeds: Sequence[int] = (0, 1),
    encodings: Sequence[str] = ENCODINGS,
    progress: Progress | None = None,
    time_limit: float | None = None,
    **settings: Any,
) -> TrainingResult:
    """Train every encoding with every seed; keep what costs least on `validation`, then on `graphs`, then has no unseen
    state there, then comes first.

    The fixed rules COMPETING take part, as tables would that never depart from them, and the best baseline where it
    beats everything else (few tables were learned). Out is what costs more on `graphs` than the best baseline, and,
    where anything else is left, a table that only its rival keeps from that (4) or whose `unseen_share` of `validation`
    is above UNSEEN_LIMIT. Where no table is asked for: (5). The record lists all candidates under `compared`,
    with their batches on each validation graph. After `time_limit` seconds (`_Clock`) no further table takes part, and
    the record says so; what is then chosen can be trained again without a clock.
    """
    cost = tuple(settings.get("cost", ()))
    results, is_cut = _candidates(graphs, validation, seeds, encodings, progress, _Clock(time_limit), settings)
    rules = COMPETING if encodings else (*COMPETING, "agenda")
    results += [_of_rule(Policy(kind, cost=cost), graphs) for kind in rules]
    limit, baseline = min((total(Policy(kind, cost=cost), graphs), kind) for kind in BASELINES)
    if all(total(result.policy, graphs) > limit for result in results):
        results.append(_of_rule(Policy(baseline, cost=cost), graphs))
    figures = [(total(r.policy, validation), total(r.policy, graphs)) for r in results]
    spent = [held_out + second_walks(r.policy, validation) for r, (held_out, _) in zip(results, figures, strict=True)]
    within = [i for i in range(len(results)) if figures[i][1] <= limit]
    alone = [i for i in within if _stands_alone(results[i], graphs, limit)]
    if not encodings:
        told = validation or graphs
        spent = [total(r.policy, told) + walks(r.policy, told) for r in results]
        alone = [*range(len(results))]
    best = results[min(alone or within, key=lambda i: (spent[i], figures[i][1], results[i].record["unseen"] > 0))]
    compared = [
        _comparison(result, held_out, trained, validation)
        for result, (held_out, trained) in zip(results, figures, strict=True)
    ]
    cut = {"time_limit": time_limit} if is_cut else {}
    return TrainingResult(best.policy, {**best.record, **cut, "compared": compared})


def _of_rule(rule: Policy, graphs: Sequence[Graph]) -> TrainingResult:
    return TrainingResult(rule, {"encoding": rule.kind, "seed": 0, "unseen": 0.0, **measure(rule, graphs)})


def _candidates(
    graphs: Sequence[Graph], validation: Sequence[Graph], seeds: Sequence[int], encodings: Sequence[str],
    progress: Progress | None, clock: _Clock, settings: Mapping[str, Any],
) -> tuple[list[TrainingResult], bool]:  # fmt: skip
    """The tables that are ready in time, and whether there would have been more."""
    results: list[TrainingResult] = []
    watch = clock.watching(progress)
    try:
        for encoding, seed in itertools.product(encodings, seeds):
            results.append(
                train(graphs, encoding=encoding, seed=seed, validation=validation, progress=watch, **settings)
            )
    except _OutOfTime:
        return results, True
    return results, False


def _stands_alone(result: TrainingResult, graphs: Sequence[Graph], limit: float) -> bool:
    alone = replace(result.policy, beside=None)
    return total(alone, graphs) <= limit and result.record["unseen"] <= UNSEEN_LIMIT


def _comparison(result: TrainingResult, held_out: float, trained: float, validation: Sequence[Graph]) -> dict[str, Any]:
    """A candidate as the plan records it; costs only where batches have them."""
    policy = result.policy
    costs = {"training_cost": round(trained, 6), "validation_cost": round(held_out, 6)} if policy.cost else {}
    return {
        "kind": policy.kind,
        "encoding": result.record["encoding"],
        "seed": result.record["seed"],
        "training": result.record["batches"],
        "unseen": result.record["unseen"],
        "validation": [run(graph, policy).num_batches for graph in validation],
        **costs,
    }
