"""A mini-batch as a value, and the named passes that it goes through.

    capture | share | schedule | parts | place | execute

(1) A `MiniBatch` holds what passes have made of it so far, and nothing changes in it: a pass takes one and gives
    another, with more in it. Asking for what no pass has made yet says which pass would.
(2) A `Pass` has a name, what it does, and what must hold of its result. `Passes` is a list of them, run in order; an
    *observer* is told between them. Times, counts, pictures and progress hang there, not in the passes.
(3) With EDBC_DEBUG set when a plan is bound, what must hold is checked between passes, by checkers that share nothing
    with what made it: a fault is told at the pass that made it, not where numbers come out wrong.

Joining captured instances is how `capture` is done for those; the order of nodes inside batches is chosen by the native
call that `schedule` makes; results are copied out at the end of `execute`, as its memory is the next mini-batch's then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from edbc.capture.forward.build import Capture
from edbc.errors import GraphError
from edbc.run.backend import Demand, Segment
from edbc.run.passes.arenas import Shared
from edbc.run.passes.boundary import Boundary
from edbc.run.passes.eagerparts import SplitBatch
from edbc.run.passes.placement import Placement
from edbc.schedule.schedule import Schedule

MADE_BY = {"capture": "capture", "schedule": "schedule", "placement": "place", "demand": "place",
           "boundary": "place", "results": "execute"}  # fmt: skip
"""What a MiniBatch may lack, and the pass that makes it."""


class MiniBatch:
    """Definition (1). What it is made of is given by name."""

    instances: Sequence[Any]
    """Before `capture` only."""
    first: int
    """The number of its first instance, for messages; this, too."""
    segments: Callable[[Capture], Sequence[Any]]
    """What executes segments whose values instances read; this, too."""
    capture: Capture
    schedule: Schedule
    placement: Placement
    demand: Demand
    boundary: Boundary
    split: SplitBatch | None
    """Set where cells run in parts, which `capture`, `schedule` and `placement` then speak of."""
    on_batch: OnBatch | None
    """Told after each batch that executes."""
    shared: Shared | None
    """What segments of one mini-batch have in common."""
    at_once: Any
    """What runs it whole with little Python (`edbc.run.cpu.atonce`), set by `place`; None where nothing does."""
    results: list[Any]

    def __init__(self, **fields: Any):
        self.__dict__.update(split=None, on_batch=None, shared=None, **fields)

    def changed(self, **fields: Any) -> MiniBatch:
        """The same mini-batch but for these fields."""
        other = object.__new__(MiniBatch)
        other.__dict__.update(self.__dict__)
        other.__dict__.pop("segment", None)
        other.__dict__.update(fields)
        return other

    def has(self, name: str) -> bool:
        """Whether a pass has made this."""
        return name in self.__dict__

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a MiniBatch does not change: make another with changed({name}=...)")

    def __getattr__(self, name: str) -> NoReturn:
        if name in MADE_BY:
            raise AttributeError(f"this mini-batch has no {name} yet: pass {MADE_BY[name]!r} makes it")
        raise AttributeError(f"a MiniBatch has no {name!r}")

    @property
    def shared_nodes(self) -> int:
        """Nodes that do not run, because they equal one that does; neither `capture` nor `whole` has them."""
        return self.capture.num_shared

    @property
    def shared_parts(self) -> int:
        """Nodes that read the eager part of another one, which has equal look-ups."""
        return 0 if self.split is None else self.split.shared_parts

    @property
    def whole(self) -> tuple[Capture, Schedule]:
        """The graph that the policy saw, and its schedule for it, no cell split."""
        return (self.capture, self.schedule) if self.split is None else self.split.whole

    @cached_property
    def segment(self) -> Segment:
        """All of its batches."""
        return Segment(self.capture.graph, self.schedule, self.placement)

    def __repr__(self) -> str:
        made = [name for name in MADE_BY if self.has(name)]
        return f"<MiniBatch: {', '.join(made) or 'instances'}>"

    def text(self, limit: int | None = None) -> str:
        """What passes have made, for people; at most `limit` lines of each."""
        parts = [(name, _TOLD[name]) for name in MADE_BY if self.has(name) and name in _TOLD]
        return "\n".join(line for name, tell in parts for line in _section(name, list(tell(self)), limit))


def _section(name: str, lines: list[str], limit: int | None) -> Iterator[str]:
    yield f"{name}:"
    yield from (f"    {line}" for line in lines[:limit])
    if limit is not None and len(lines) > limit:
        yield f"    ... {len(lines) - limit} more"


def _graph_lines(batch: MiniBatch) -> Iterator[str]:
    yield from batch.capture.graph.text().splitlines()
    pairs = zip(batch.capture.result_node.tolist(), batch.capture.result_output.tolist(), strict=True)
    yield f"returned: {', '.join(f'%{n}.{o}' if n >= 0 else f'x{-1 - n}' for n, o in pairs)}"


def _schedule_lines(batch: MiniBatch) -> Iterator[str]:
    types = batch.capture.graph.types
    for number, (kind, nodes) in enumerate(batch.schedule.batches()):
        yield f"batch {number}: {types[kind].name} x {len(nodes)}: {' '.join(f'%{node}' for node in nodes)}"


def _placement_lines(batch: MiniBatch) -> Iterator[str]:
    placed = batch.placement
    for name, rows, externals in zip(placed.classes, placed.class_rows, placed.class_externals, strict=True):
        yield f"arena {name}: {rows} rows, of which {externals} of externals"
    yield f"{len(placed.rows)} operand rows, of which {placed.gathered_rows} are gathered"


def _result_lines(batch: MiniBatch) -> Iterator[str]:
    for number, result in enumerate(batch.results):
        yield f"instance {number}: {_shape_of(result)}"


def _shape_of(result: Any) -> str:
    shape = getattr(result, "shape", None)
    return type(result).__name__ if shape is None else f"tensor of shape {tuple(shape)}"


_TOLD: dict[str, Callable[[MiniBatch], Iterator[str]]] = {
    "capture": _graph_lines,
    "schedule": _schedule_lines,
    "placement": _placement_lines,
    "demand": lambda batch: iter([f"{batch.demand.total:,} bytes"]),
    "results": _result_lines,
}

Observer = Callable[[str, MiniBatch], None]
"""Told between passes: the name of the one that has run, and what it made."""
OnBatch = Callable[[MiniBatch, int], None]
"""Told after each batch of a mini-batch, by its number."""
OnSegment = Callable[[MiniBatch], OnBatch | None]
"""Told before a segment executes that instances wait for; gives what is told after each of its batches."""


@dataclass(frozen=True)
class Pass:
    """Definition (2). `verify` is given the mini-batch before and after."""

    name: str
    run: Callable[[MiniBatch], MiniBatch]
    verify: Callable[[MiniBatch, MiniBatch], None]


class Passes:
    """Passes in their order. O(1) beside what they do."""

    def __init__(self, passes: Sequence[Pass], verifies: bool | None = None):
        self.passes = tuple(passes)
        self.verifies = bool(os.environ.get("EDBC_DEBUG")) if verifies is None else verifies

    def __iter__(self) -> Iterator[Pass]:
        return iter(self.passes)

    def span(self, first: str, last: str) -> Passes:
        """The passes from one to another, both included."""
        names = [each.name for each in self.passes]
        return Passes(self.passes[names.index(first) : names.index(last) + 1], self.verifies)

    def __call__(self, batch: MiniBatch, observer: Observer | None = None,
                 without: Collection[str] = ()) -> MiniBatch:  # fmt: skip
        """The mini-batch after all of them but those named in `without`.

        Raises what passes raise; with `verifies`, GraphError or ScheduleError for a pass whose result does not hold.
        """
        if observer is None and not without and not self.verifies:
            for each in self.passes:
                batch = each.run(batch)
            return batch
        for each in self.passes:
            if each.name in without:
                continue
            before, batch = batch, each.run(batch)
            if self.verifies:
                each.verify(before, batch)
            if observer is not None:
                observer(each.name, batch)
        return batch


def verify_captured(_: MiniBatch, after: MiniBatch) -> None:
    """The graph is well formed (`Graph.lint`), and what is returned is in it."""
    graph = after.capture.graph.lint()
    _require_results(after.capture, graph.num_nodes)


def verify_shared(before: MiniBatch, after: MiniBatch) -> None:
    """Well formed, returns as much, and lacks as many nodes as it says."""
    verify_captured(before, after)
    was, now = before.capture, after.capture
    if now.graph.num_nodes + now.num_shared != was.graph.num_nodes + was.num_shared:
        raise GraphError(
            f"pass share: expected {was.graph.num_nodes} nodes, those that are shared among them, got "
            f"{now.graph.num_nodes} and {now.num_shared}"
        )
    if len(now.result_node) != len(was.result_node):
        raise GraphError(f"pass share: expected {len(was.result_node)} results, got {len(now.result_node)}")


def verify_scheduled(_: MiniBatch, after: MiniBatch) -> None:
    """Every node is in one batch, after its operands (`edbc.schedule.checker`)."""
    from edbc.schedule.checker import check_schedule

    check_schedule(after.capture.graph, after.schedule)


def verify_parts(before: MiniBatch, after: MiniBatch) -> None:
    """Well formed, scheduled, and returns as much."""
    verify_captured(before, after)
    verify_scheduled(before, after)
    if len(after.capture.result_node) != len(before.capture.result_node):
        raise GraphError("pass parts: expected as many results as before")


def verify_placed(_: MiniBatch, after: MiniBatch) -> None:
    """Values have rows of their arenas, no two of them the same; operands are read where their values stand.

    Checked from the graph alone where no type is transient and the schedule is not cut: rows are used again there.
    """
    graph, placed = after.capture.graph, after.placement
    kinds = graph.node_type.astype(np.int64)
    available = graph.num_outputs().astype(np.int64)
    nodes = np.repeat(np.arange(graph.num_nodes), available)
    outputs = np.arange(len(nodes)) - np.repeat(np.cumsum(available) - available, available)
    rows, classes = placed.value_rows(nodes, outputs), placed.value_classes(kinds[nodes], outputs)
    outside = np.flatnonzero((rows < placed.class_externals[classes]) | (rows >= placed.class_rows[classes]))
    if len(outside):
        i = outside[0]
        raise GraphError(
            f"pass place: output {outputs[i]} of node {nodes[i]}: expected a row behind its arena's "
            f"{placed.class_externals[classes[i]]} externals and below {placed.class_rows[classes[i]]}, got {rows[i]}"
        )
    if len(placed.borders) > 2 or any(t.transient for t in graph.types):
        return
    places = np.stack([classes, rows])
    if len(np.unique(places, axis=1).T) != len(rows):
        raise GraphError("pass place: expected a row for every value, got two values in one")


def verify_executed(before: MiniBatch, after: MiniBatch) -> None:
    """As many results as instances have returned something."""
    if len(after.results) != len(before.capture.results):
        raise GraphError(f"pass execute: expected {len(before.capture.results)} results, got {len(after.results)}")


def _require_results(capture: Capture, num_nodes: int) -> None:
    nodes = capture.result_node
    if len(nodes) and not -len(capture.external_source) - 1 < int(nodes.min()) <= int(nodes.max()) < num_nodes:
        raise GraphError(f"results: expected nodes below {num_nodes} or externals, got {nodes.tolist()}")
