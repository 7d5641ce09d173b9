"""Structure that no training mini-batch had: it runs, is counted and reported, and `strict` refuses it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from chains import MODEL, write_lengths
from gradients import gradients, random_loss, require_equal
from helpers import bound, require_eager
from torch import nn

import edbc as package
from edbc.errors import StaleError, Unplanned
from edbc.run.session import Net, Stats
from edbc.schedule.learn.train import cover
from edbc.schedule.policy import Policy
from edbc.tools.parity import Eager
from edbc.vertex import Vertex, VertexFunction, VertexInstance

RARE = MODEL.replace(
    'return {"h": [h]} if length else {}',
    "if length > 50:\n            h = self.rare(h, h)\n        if length > 20:\n            h = torch.cumsum(h, 0)\n"
    '        return {"h": [h]} if length else {}',
).replace("self.step = Step(size)", "self.step = Step(size)\n        self.rare = Rare(size)")
RARE = RARE.replace("class Chain(", "@edbc.cell\nclass Rare(Step):\n    pass\n\n\nclass Chain(")
"""Chains longer than 20 need a function, and those longer than 50 a cell, that no made-up chain has."""


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan of RARE."""
    folder = tmp_path_factory.mktemp("rare")
    (folder / "rare.py").write_text(RARE)
    package.compile(folder / "rare.py", folder / "rare.yaml", policy="critical")
    return folder / "rare.yaml"


@pytest.mark.filterwarnings("always::edbc.errors.Unplanned")
def test_an_unknown_cell_runs_generically(edbc, rare: Path, tmp_path: Path) -> None:
    """Eager's numbers, counted among the unseen types, and said: a warning with the cell's line, and what to do."""
    lengths = write_lengths(tmp_path, 3, 60)
    report = json.loads(edbc("run", rare, "--input", lengths, "--verify", "--format", "json").stdout)
    result = edbc("run", rare, "--input", lengths, "--verify")
    warned = [line for line in result.stderr.splitlines() if "rare" in line]

    assert result.exit_code == 0
    assert report["unseen_type_names"] == ["cumsum", "rare"]
    assert "2 types ran generically; compile again on instances like these" in result.stdout
    assert len(warned) == 1
    assert "rare.py:" in warned[0]
    assert "type cell rare(f32[8], f32[8]) -> f32[8] is not in the plan and runs generically" in warned[0]


@pytest.mark.filterwarnings("error::edbc.errors.Unplanned")
def test_a_warning_that_is_to_be_an_error_is_one_line(edbc, rare: Path, tmp_path: Path) -> None:
    """Under `python -W error` a command ends as with any error, in a line, and not as a check that failed."""
    result = edbc("run", rare, "--input", write_lengths(tmp_path, 3, 60))

    assert result.exit_code == 3
    assert "Error: rare.py:" in result.stderr
    assert "Traceback" not in result.stderr


def test_strict_refuses_an_unknown_cell_by_name(edbc, rare: Path, tmp_path: Path) -> None:
    """Exit 4: which cell, with which shapes, at which line of the model, and what to do."""
    result = edbc("run", rare, "--input", write_lengths(tmp_path, 3, 60), "--strict")

    assert result.exit_code == 4
    assert "rare.py:" in result.stderr
    assert "is not in the plan; compile again on instances that contain it" in result.stderr


def test_a_new_operation_runs_and_is_counted(edbc, rare: Path, tmp_path: Path) -> None:
    """A function that training did not meet gives eager's numbers by the generic rule; the report counts it by name."""
    lengths = write_lengths(tmp_path, 3, 30, 25)
    result = edbc("run", rare, "--input", lengths, "--verify", "--format", "json")
    report = json.loads(result.stdout)

    assert result.exit_code == 0
    assert (report["unseen_types"], report["unseen_type_names"]) == (1, ["cumsum"])
    text = edbc("run", rare, "--input", lengths).stdout
    assert "types: cumsum" in text
    assert "1 type ran generically" in text
    assert json.loads(edbc("run", rare, "--format", "json").stdout)["unseen_types"] == 0


def test_strict_refuses_a_new_operation(edbc, rare: Path, tmp_path: Path) -> None:
    """`--strict`: exit 4, the operation and both remedies."""
    result = edbc("run", rare, "--input", write_lengths(tmp_path, 30), "--strict")

    assert result.exit_code == 4
    assert "torch.cumsum" in result.stderr
    assert "compile again on instances that contain it, or run without --strict" in result.stderr


@package.cell
class Fold(nn.Module):
    """A node and any number of children: a type for each number."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gate, self.mix = nn.Linear(size, size), nn.Linear(2 * size, 2 * size)

    def forward(self, word: torch.Tensor, *kids: torch.Tensor):
        below = sum((kid * torch.sigmoid(self.gate(kid) + word) for kid in kids), word)
        state, update = self.mix(torch.cat([word, below])).chunk(2)
        return torch.tanh(state) * torch.sigmoid(update)


class Kids(nn.Module):
    """Trees `(word, child, ...)`, as a function and as a vertex function; float64, so that equal means equal."""

    def __init__(self, size: int = 5) -> None:
        super().__init__()
        self.table, self.fold = nn.Parameter(torch.randn(9, size)), Fold(size)
        self.double()

    def forward(self, tree: Any) -> dict[str, list[torch.Tensor]]:
        return {"h": list(self._states(tree))}

    def vertices(self) -> dict[str, VertexFunction]:
        return {"node": self._vertex}

    def _states(self, tree: Any) -> Iterator[torch.Tensor]:
        states = [list(self._states(kid)) for kid in tree[1:]]
        yield from (state for below in states for state in below)
        yield self.fold(self.table[tree[0]], *[below[-1] for below in states])

    def _vertex(self, vertex: Vertex) -> None:
        state = self.fold(vertex.pull("word", self.table), *vertex.gather_all())
        vertex.scatter(state)
        vertex.push("h", state)


def tree_of(draw: random.Random, most: int, depth: int = 3) -> Any:
    """A tree whose nodes have at most so many children."""
    count = draw.randint(0, most) if depth else 0
    return (draw.randrange(9), *[tree_of(draw, most, depth - 1) for _ in range(count)])


def as_vertices(tree: Any) -> VertexInstance:
    """The same tree as arrays, in the order of `Kids._states`."""
    vertices: list[tuple[int, list[int]]] = []
    words: list[int] = []

    def add(node: Any) -> int:
        below = [add(kid) for kid in node[1:]]
        vertices.append((0, below))
        words.append(node[0])
        return len(words) - 1

    add(tree)
    return VertexInstance.build(vertices, {"word": words})


@pytest.fixture(params=["cpu", "reference"])
def few_children(request: pytest.FixtureRequest) -> Net:
    """A net whose plan knows at most two children per node."""
    draw = random.Random(0)
    torch.manual_seed(0)
    return bound(Kids(), [tree_of(draw, 2) for _ in range(8)], backend=request.param)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", [lambda tree: tree, as_vertices], ids=["record", "vertex"])
def test_numbers_of_children_never_seen(few_children: Net, seed: int, form: Any) -> None:
    """A cell with more children than compiling saw: eager's numbers and gradients by both front ends, and counted."""
    draw, stats = random.Random(seed), Stats()
    trees = [tree_of(draw, 5) for _ in range(6)]
    model, given = few_children.model, [form(tree) for tree in trees]
    with pytest.warns(Unplanned, match=r"test_unseen\.py:\d+: type cell fold"):
        ours, _ = few_children.run(given, stats)
    loss = random_loss(few_children(given))

    with torch.no_grad():
        for batched, eager in zip(ours, map(model, trees), strict=True):
            torch.testing.assert_close(torch.stack(list(batched["h"])), torch.stack(eager["h"]), rtol=1e-12, atol=1e-12)
    require_equal(gradients(model, loss), gradients(model, random_loss([model(tree) for tree in trees])))
    assert {name.split(".")[0] for name in stats.unseen_types} == {"fold"}
    assert len(stats.unseen_types) == len({*arities(trees)} - {0, 1, 2})


def arities(trees: Sequence[Any]) -> Iterator[int]:
    """Numbers of children in some trees."""
    for tree in trees:
        yield len(tree) - 1
        yield from arities(tree[1:])


def test_streams_meet_unseen_cells_too(few_children: Net) -> None:
    """A stream goes on where a mini-batch in its middle meets a cell that the plan does not know."""
    draw = random.Random(3)
    trees = [tree_of(draw, most) for most in (1, 2, 4, 5, 2, 1)]
    with torch.no_grad(), pytest.warns(Unplanned):
        results = list(few_children.stream(trees, batch_size=2))
    for ours, tree in zip(results, trees, strict=True):
        torch.testing.assert_close(ours["h"], few_children.model(tree)["h"], rtol=1e-12, atol=1e-12)


class Sums(nn.Module):
    """Sums of as many rows as the instance says, and a product with as many rows of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(12, 4, dtype=torch.float64))

    def forward(self, count: int):
        rows = [torch.tanh(self.table[i]) for i in range(count)]
        weights = torch.softmax(torch.stack([row @ self.table[0] for row in rows]), 0)
        return sum(rows), weights


def test_an_arity_and_a_length_never_seen_run() -> None:
    """A sum of arity 9 is the plan's own type; an attention over 9 is a new one; both give eager's numbers."""
    model = Sums().eval()
    net, stats = bound(model, [2, 3], rows=None), Stats()
    ours, _ = net.run([9, 2], stats)
    require_eager(net, [9, 2], ours)
    assert stats.unseen_types
    assert not any(name.startswith("sum") for name in stats.unseen_types)
    with pytest.raises(StaleError, match="run without --strict"):
        Net(net.plan, model, strict=True)([9])


def test_unseen_states_fall_back_and_are_counted(edbc, chain: Path) -> None:
    """A table that knows the states of one instance only: others fall back to its rule, counted, and equal eager."""
    model = Sums().eval()
    net, stats = bound(model, [2, 3, 5], rows=None), Stats()
    blank = Policy("fsm", "sort", "chains")
    net.policy = Policy("fsm", "sort", "chains", dict(cover(blank, [net.mini_batch([2]).graph]).table))
    ours, _ = net.run([5, 3], stats)

    assert stats.unseen_states > 0
    assert stats.unseen_states + stats.table_steps == stats.batches
    for result, exact in zip(ours, Eager(model).run([5, 3]), strict=True):
        torch.testing.assert_close(result, exact, rtol=1e-12, atol=1e-12)
