"""Call sites: every line of the user's code that makes nodes of a type is known to the type."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from helpers import bound, graph_of, model_file, seeded
from test_cells import IDS, Around
from test_structures import SIZE
from torch import nn

from edbc.base.graph import Graph, NodeType
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import capture
from edbc.capture.record.recorder import LOOKS
from edbc.capture.record.table import MAX_COUNTED_SITES, MAX_SITES, TypeTable
from edbc.errors import GraphError, StaleError


class Small(nn.Module):
    """A cell of one function."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return torch.tanh(a)


def first_line(function: Any) -> int:
    """Where a function starts."""
    return function.__code__.co_firstlineno


def here(function: Any, *offsets: int) -> tuple[str, ...]:
    """Call sites by line of a function of this file; its `def` is line 0."""
    return tuple(f"test_sites.py:{first_line(function) + offset}" for offset in offsets)


def sites_of(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Sites by type."""
    return {t.name: t.sites for t in graph.types}


def three_lines(net: Any, ids: list[int]) -> Any:
    a = net.inner(net.row(ids[0]))
    if len(ids) > 1:
        a = net.inner(a) + net.inner(a)
    return [net.inner(net.row(i)) for i in ids] + [a]


def test_every_call_site_of_a_cell_is_kept_in_order() -> None:
    """A cell called on three lines has three sites, in the order of their first use; a repeated line is one."""
    graph = graph_of(seeded(lambda: Around(Small(), three_lines)), [[1], [2], [1, 2]])

    assert sites_of(graph)["inner"] == here(three_lines, 1, 4, 3)


def test_a_site_met_in_a_later_mini_batch_is_kept_too() -> None:
    """Types learn their sites as they are used, whatever has been recorded before."""
    shadow, recorder = recording_shadow(ModelView(seeded(lambda: Around(Small(), three_lines))), TypeTable())

    before = capture(shadow, recorder, [[1]]).graph
    after = capture(shadow, recorder, [[1, 2]]).graph

    assert sites_of(before)["inner"] == here(three_lines, 1, 4)
    assert sites_of(after)["inner"] == here(three_lines, 1, 4, 3)


def test_lines_are_looked_at_now_and_then() -> None:
    """After many mini-batches a new line is still met, within LOOKS of them."""
    shadow, recorder = recording_shadow(ModelView(seeded(lambda: Around(Small(), three_lines))), TypeTable())

    for _ in range(2 * LOOKS + 1):
        before = capture(shadow, recorder, [[1]]).graph
    for _ in range(LOOKS):
        after = capture(shadow, recorder, [[1, 2]]).graph

    assert sites_of(before)["inner"] == here(three_lines, 1, 4)
    assert sites_of(after)["inner"] == here(three_lines, 1, 4, 3)


def functions(net: Any, ids: list[int]) -> Any:
    a, b = net.row(ids[0]), net.row(ids[-1])
    c = torch.tanh(a)
    c = c * torch.tanh(b)
    c = torch.nn.functional.relu(c) * a
    c = torch.nn.functional.relu(c) + b
    c = sum([a, b, c])
    return torch.stack([a, b, c]).sum(0) + c.tanh()


def test_functions_operators_and_reductions_have_sites() -> None:
    """Functions, operators, methods, functions that torch writes in Python, and sums, fused or stacked."""
    sites = sites_of(graph_of(seeded(lambda: Around(Small(), functions)), IDS[:3]))

    assert sites["tanh"] == here(functions, 2, 3, 7)
    assert sites["mul"] == here(functions, 3, 4)
    assert sites["relu"] == here(functions, 4, 5)
    assert sites["sum"] == here(functions, 5, 6, 7)


class Layers(nn.Module):
    """Layers inside a container, called from two lines."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, SIZE)
        self.layers = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU())

    def forward(self, ids: list[int]) -> Any:
        once = self.layers(self.table.weight[ids[0]])
        return self.layers(once)


def test_a_site_is_the_users_line_not_the_librarys() -> None:
    """Layers called by nn.Sequential belong to the lines that call the Sequential."""
    sites = sites_of(graph_of(seeded(Layers), IDS[:3]))

    assert set(sites.values()) == {here(Layers.forward, 1, 2)}


def test_vertex_functions_have_sites() -> None:
    """Both front ends name the model's own lines: of forward, and of the vertex function."""
    file = model_file("tree_lstm")
    model = file.build(8)
    instances = file.sample(3, 0)
    recorded = graph_of(model, instances)
    net = bound(model, instances)
    joined = net.mini_batch([file.vertex_instance(tree) for tree in instances]).graph

    assert [len(t.sites) for t in recorded.types] == [1, 1, 1]
    assert sorted(len(t.sites) for t in joined.types) == [1, 1, 2]
    assert all(site.startswith("tree_lstm.py:") for t in (*recorded.types, *joined.types) for site in t.sites)


def test_sites_are_bounded_and_counted() -> None:
    """Code that writes code cannot make a type grow: so many sites are kept, the others counted up to a bound."""
    table = TypeTable()
    index = table.add_type(NodeType("t", "torch.t"), ["a.py:0"])
    for line in [*range(MAX_SITES + 3), 2]:
        table.add_site(index, f"a.py:{line}")
    few = table.graph_types()[index]
    for line in range(2 * MAX_COUNTED_SITES):
        table.add_site(index, f"b.py:{line}")
    many = table.graph_types()[index]

    assert few.sites == tuple(f"a.py:{line}" for line in range(MAX_SITES))
    assert few.source.endswith(f"a.py:{MAX_SITES - 1} and 3 more")
    assert many.sites == few.sites
    assert many.more_sites == MAX_COUNTED_SITES - MAX_SITES


def test_errors_name_every_site() -> None:
    """A cell that the plan does not know, and a broken graph, are told with all lines that make their type."""
    model = seeded(lambda: Around(Small(), three_lines))
    net = bound(seeded(lambda: Around(nn.Identity(), lambda net, ids: net.row(ids[0]) + net.row(ids[0]))), IDS)
    net = type(net)(net.plan, model, strict=True)
    text = re.escape(", ".join(here(three_lines, 1, 3, 4)))
    graph = graph_of(model, [[1, 2]])
    broken = Graph.build(graph.types, [("inner", [0])])

    with pytest.raises(StaleError, match=text):
        net([[1, 2]])
    with pytest.raises(GraphError, match=rf"node 0 \(inner, {text}\): operand 0"):
        broken.lint()
