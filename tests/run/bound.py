"""Random models over trees, and plans for them made in memory: what the tests of the runtime run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from random_cells import RandomCell
from torch import nn

from edbc.capture.code.closed import Closed
from edbc.capture.code.mark import cell
from edbc.capture.code.regions import Regions
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import capture
from edbc.capture.record.table import TypeTable
from edbc.cells.batching import batch_operations, plan_cell_layout
from edbc.plan.plan import ModelRef, Plan, PlanCell, PlanPolicy, PlanType, TrainedOn
from edbc.run.passes.eagerparts import external_operands
from edbc.run.session import Net, cell_of
from edbc.tools.compile.decisions import Sample, ragged_classes
from edbc.tools.compile.unplanned import SegmentsUnplanned

Tree = int | tuple  # a word, or children


class RandomTreeModel(nn.Module):
    """Random cells at leaves and at inner nodes; children beyond two are summed; `mixed` puts a function that has no
    native code between cells."""

    def __init__(self, seed: int, size: int, mixed: bool = False):
        super().__init__()
        torch.manual_seed(seed)
        self.mixed = mixed
        self.table = nn.Parameter(torch.randn(20, size, dtype=torch.float64))
        self.start = nn.Parameter(torch.randn(size, dtype=torch.float64))
        self.leaf = cell(RandomCell(3 * seed + 1, 1, 6, size))
        self.inner = cell(RandomCell(3 * seed + 2, 3, 12, size))
        self.out = nn.Linear(size, 3).double()

    def forward(self, tree: Tree) -> dict[str, Any]:
        seen: list[torch.Tensor] = []
        root = self.encode(tree, seen)
        return {"logits": seen, "root": root}

    def encode(self, tree: Tree, seen: list[torch.Tensor]) -> torch.Tensor:
        if isinstance(tree, int):
            h = self.leaf(self.table[tree])[0]
        else:
            children = [self.encode(child, seen) for child in tree]
            total = sum(children[1:]) if len(children) > 1 else self.start
            if self.mixed and len(children) == 2:
                total = torch.logcumsumexp(total, 0)
            h = torch.tanh(self.inner(children[0], total, children[0])[0])
        seen.append(self.out(h))
        return h


def random_tree(rng: random.Random, depth: int = 4) -> Tree:
    """A tree of at most `depth` levels; some are one word."""
    if depth == 0 or rng.random() < 0.25:
        return rng.randrange(20)
    return tuple(random_tree(rng, depth - 1) for _ in range(rng.randrange(1, 5)))


def random_trees(seed: int, count: int) -> list[Tree]:
    """`count` trees."""
    rng = random.Random(seed)
    return [random_tree(rng) for _ in range(count)]


Splits = Callable[..., tuple[str, ...]]
"""Like `edbc.cells.parts.splittable`."""


def nothing(*_: Any) -> tuple[str, ...]:
    """Cells run whole."""
    return ()


def plan_for(model: nn.Module, instances: Sequence[Any], policy: str = "critical", split: Splits = nothing,
             rows: bool = False) -> Plan:  # fmt: skip
    """A plan with the types of these instances and planned layouts; `split` says what may be split off a cell. Classes
    that may be ragged are where there are to be `rows`."""
    ragged = ragged_classes(Sample(model, Regions(model, Closed(model)), instances)) if rows else ()
    view, table = ModelView(model, ragged=ragged), TypeTable()
    run_segment = SegmentsUnplanned(model, view, table)
    parts = run_segment.taken(capture(*recording_shadow(view, table), instances, run_segment))
    graphs = [replace(part.graph, types=table.graph_types()) for part in parts]
    external = np.logical_and.reduce([external_operands(graph) for graph in graphs])
    cells = {}
    for kind, node_type in enumerate(table.graph_types()):
        if node_type.variadic or node_type.is_excerpt:
            cells[node_type.name] = PlanCell((), (), (), (), 0)
            continue
        own = cell_of(table.operation_of_type[kind], view)
        batches = batch_operations(own)
        order = plan_cell_layout(own, batches).order if own.is_uniform() else tuple(own.classes())
        eager = split(own, batches, order, external[kind].tolist())
        cells[node_type.name] = PlanCell(own.lines(), batches, order, (), 0, eager)
    types = tuple(PlanType(t.name, t.signature, t.source) for t in table.graph_types())
    return Plan(
        edbc="0",
        model=ModelRef("model.py", "0" * 64, {}, 0),
        trained_on=TrainedOn("sample", (), len(instances), 0, sum(graph.num_nodes for graph in graphs)),
        requirements=(),
        types=types,
        policy=PlanPolicy(policy, None, policy, {}, {}),
        ragged=ragged,
        cells=cells,
        guards={},
    )


def net_for(model: nn.Module, instances: Sequence[Any], backend: str | None = None, **options: Any) -> Net:
    """The model bound to a plan for these instances."""
    return Net(plan_for(model, instances), model.eval(), backend=backend, **options)


def poison(net: Net) -> None:
    """Fill the idle memory of a native net with not-a-number, so that reading what nobody wrote shows; other back ends
    keep none."""
    pool = getattr(net.backend, "_pool", None)
    for buffer in [] if pool is None else pool._idle:
        buffer.view(torch.float32)[:] = torch.nan
