"""Methods that are cells though nobody marked them: the same numbers, and what is none is recorded as before."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from gradients import require_equal_gradients
from helpers import MODELS, bound, require_parity, seeded
from torch import Tensor, nn
from zoo_names import DYNAMIC, without_marks

import edbc
from edbc.capture.code.automatic import Candidate, Trial, candidates, choose, located
from edbc.capture.code.closed import Closed
from edbc.capture.code.regions import Regions
from edbc.capture.record import calls
from edbc.errors import StaleError
from edbc.plan.reader import parse_plan
from edbc.plan.writer import plan_text
from edbc.run.modelfile import import_model_file
from edbc.run.passes.minibatch import MiniBatch
from edbc.run.session import Net
from edbc.tools.compile import decisions
from edbc.tools.compile.compiler import capture_for_compiling, compile_model
from edbc.tools.compile.decisions import Decisions, Sample, decide
from edbc.tools.explain.observe import observe

SIZE = 6
Tree = tuple[Any, ...]
SCALE = 0.5


def trees(count: int, seed: int) -> list[Tree]:
    """Trees of words with up to three children."""
    random = Random(seed)

    def tree(depth: int) -> Tree:
        children = random.randrange(4) if depth else 0
        return (random.randrange(9), *(tree(depth - 1) for _ in range(children)))

    return [tree(3) for _ in range(count)]


class Gates(nn.Module):
    """A module that is a function of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, 3 * SIZE)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        i, o, u = (self.x(x) + self.h(h)).chunk(3)
        return torch.sigmoid(i), torch.sigmoid(o), torch.tanh(u)


class Unmarked(nn.Module):
    """A child-sum tree-LSTM as people write it, with one line that makes its method no cell; or without."""

    def __init__(self, oddity: str = "") -> None:
        super().__init__()
        self.oddity, self.words, self.gates = oddity, nn.Embedding(9, SIZE), Gates()
        self.f_x, self.f_h = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.drop, self.count, self.seen = nn.Dropout(0.5), 0, []

    def combine(self, x: Tensor, cs: list[Tensor], hs: list[Tensor]) -> tuple[Tensor, Tensor]:
        h = torch.stack(hs).sum(0) * SCALE if hs else torch.zeros_like(x)
        i, o, u = self.gates(x, h)
        c = i * u
        for child, below in zip(cs, hs, strict=True):
            c = c + torch.sigmoid(self.f_x(x) + self.f_h(below)) * child
        return c, o * torch.tanh(c)

    def odd(self, tree: Tree, h: Tensor) -> Tensor:
        return getattr(self, f"odd_{self.oddity}")(tree, h) if self.oddity else h

    def visit(self, tree: Tree) -> tuple[Tensor, Tensor]:
        below = [self.visit(child) for child in tree[1:]]
        c, h = self.combine(self.words.weight[tree[0]], [c for c, _ in below], [h for _, h in below])
        return c, self.odd(tree, h)

    def forward(self, tree: Tree) -> Tensor:
        return self.visit(tree)[1]

    # What must not be a cell, or not for every call.

    def odd_instance(self, tree: Tree, h: Tensor) -> Tensor:
        return self.reads_the_instance(tree, h)

    def reads_the_instance(self, tree: Tree, h: Tensor) -> Tensor:
        return torch.tanh(h) * len(tree) + h

    def odd_number(self, tree: Tree, h: Tensor) -> Tensor:
        return self.branches_on_a_number(len(tree), h)

    def branches_on_a_number(self, n: int, h: Tensor) -> Tensor:
        return torch.tanh(h) * 2 + h if n > 2 else torch.sigmoid(h) - h

    def odd_change(self, tree: Tree, h: Tensor) -> Tensor:
        g = h * 1
        return self.changes_its_argument(g) + g

    def changes_its_argument(self, g: Tensor) -> Tensor:
        g += 1
        return torch.tanh(g) * g

    def odd_list(self, tree: Tree, h: Tensor) -> Tensor:
        stack = [h, h * 2]
        top = self.takes_from_a_list(stack)
        return top + len(stack)

    def takes_from_a_list(self, stack: list[Tensor]) -> Tensor:
        return torch.tanh(stack.pop()) * 2

    def odd_state(self, tree: Tree, h: Tensor) -> Tensor:
        self.kept = h
        return self.reads_state(h) + h

    def reads_state(self, h: Tensor) -> Tensor:
        return torch.tanh(self.kept * 2) + h

    def odd_identity(self, tree: Tree, h: Tensor) -> Tensor:
        same, other = self.hands_back(h)
        return other if same is h else same

    def hands_back(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return h, torch.tanh(h) * 2


ODDITIES = sorted(name.removeprefix("odd_") for name in vars(Unmarked) if name.startswith("odd_"))


def cells_of(net: Net) -> set[str]:
    """The cells among a plan's types."""
    called = (t.signature.partition("(")[0] for t in net.plan.types)
    return {name.removeprefix("cell ") for name in called if name.startswith("cell ")}


def require_equal(model: nn.Module, instances: Sequence[Any]) -> Net:
    """Outputs and gradients in float64 of mini-batches of several sizes."""
    net = bound(model, instances[:8], cells="auto")
    for size in (1, len(instances)):
        batch = list(instances[-size:])
        for got, expected in zip(net(batch), map(model, batch), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
    require_equal_gradients(net, list(instances[:7]))
    return net


def test_a_method_and_what_it_calls_are_one_cell() -> None:
    """The outermost call is the node; a number of children that compiling did not see is one too, without a
    word."""
    model = seeded(Unmarked).double()
    few = [tree for tree in trees(40, 0) if len(tree) < 3]
    net = bound(model, few[:6], cells="auto")

    assert set(net.plan.automatic) == {"combine"}
    assert cells_of(net) == {"combine"}
    batch = trees(9, 1)
    for got, expected in zip(net(batch), map(model, batch), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("oddity", ["", *ODDITIES])
def test_numbers_and_gradients_equal_eager(oddity: str) -> None:
    """Whatever the other methods do."""
    require_equal(seeded(Unmarked, oddity).double(), trees(12, 3))


class NamedAsAMethod(nn.Module):
    """A child by the name of a method of nn.Module, which attributes find before it."""

    def __init__(self) -> None:
        super().__init__()
        up = nn.Linear(4, 4)
        self._modules["parameters"] = nn.ParameterList(up.parameters())
        self.up = up

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.up(x.to(next(self.parameters()).dtype))) + x


def test_a_child_by_the_name_of_a_method() -> None:
    """Its parameters are found by the names that `named_parameters` gives, and the method is the method."""
    require_equal(seeded(NamedAsAMethod).double(), list(torch.randn(12, 4, dtype=torch.float64)))


class HandsParametersOn(nn.Module):
    """Its method gives parameters beside what it computes, of matrices of several sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.log, self.bias = (
            nn.Linear(SIZE, SIZE),
            nn.Parameter(torch.randn(SIZE)),
            nn.Parameter(torch.ones(SIZE)),
        )

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.tanh(self.up(x) * 2), -self.log.double().exp(), self.bias.double()

    def forward(self, rows: Tensor) -> Tensor:
        h, scale, bias = self.parts(rows)
        for _ in range(2):
            h, _, bias = self.parts(h * scale + bias)
        return h + bias


def test_parameters_are_results_of_cells() -> None:
    """Of calls of several types, which are traced on the same copy of the model."""
    model = seeded(HandsParametersOn).double()
    made = torch.Generator().manual_seed(0)
    rows = [torch.randn(count, SIZE, generator=made, dtype=torch.float64) for count in (2, 3, 4, 2, 3)]
    net = bound(model, rows, "unmined")
    require_equal_gradients(net, rows)
    for got, expected in zip(net(rows), map(model, rows), strict=True):
        torch.testing.assert_close(got, expected)
    calls = [of for of in net.table.operation_of_type.values() if of.operation.name == "parts"]
    assert {len(net.cell(of).outputs) for of in calls} == {3}


NO_CELL = {"instance": "reads_the_instance", "change": "changes_its_argument", "list": "takes_from_a_list",
           "state": "reads_state", "identity": "hands_back"}  # fmt: skip


@pytest.mark.parametrize("oddity", NO_CELL)
def test_what_is_no_function_of_its_arguments_is_recorded(oddity: str) -> None:
    """It reads an instance or a state, or changes or hands back what it is given."""
    net = bound(seeded(Unmarked, oddity), trees(8, 3), cells="auto")

    assert "combine" in net.plan.automatic
    assert NO_CELL[oddity] not in cells_of(net)


def test_a_number_is_part_of_the_type() -> None:
    """What branches on a number is another cell for the other branch, or is recorded by its operations."""
    model = seeded(Unmarked, "number").double()
    require_equal(model, trees(12, 4))


def test_in_training_dropout_is_drawn() -> None:
    """A cell with dropout in it draws per node, as a marked one does."""

    class Dropping(Unmarked):
        def combine(self, x: Tensor, cs: list[Tensor], hs: list[Tensor]) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.drop(x)) + (torch.stack(hs).sum(0) if hs else x)
            return h, h * 2

    model = seeded(Dropping)
    net = bound(model, trees(6, 0), cells="auto")
    model.train()
    same = trees(1, 1) * 8
    assert len({out.sum().item() for out in net(same)}) > 1


def test_hooks_make_a_module_none() -> None:
    """They would not be called."""
    model = seeded(Unmarked)
    model.gates.register_forward_hook(lambda *_: None)
    found, obstacles = candidates(model, Closed(model))

    assert "gates" not in {c.name for c in found}
    assert "hooks" in obstacles["gates"].reason


def test_a_name_that_means_something_else_ends_automatic_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next mini-batch has the new numbers."""
    model = seeded(Unmarked).double()
    net = bound(model, trees(6, 0), cells="auto")
    batch = trees(5, 1)
    net(batch)

    monkeypatch.setitem(globals(), "SCALE", 2.0)

    for got, expected in zip(net(batch), map(model, batch), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


@pytest.fixture
def torch_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch runs (floats of two kinds, changes in place) is in cells like all else."""
    monkeypatch.setattr(decisions, "TORCH_US", 0.0)
    monkeypatch.setattr(decisions, "CALL_US", 0.0)


HELPER_LIMIT = 100


def squashed(h: Tensor) -> Tensor:
    """A helper that branches on a size."""
    return torch.tanh(h) * 2 if h.shape[0] < HELPER_LIMIT else -h


class Branching(nn.Module):
    """A recurrence whose calls do something else for flags that a sample need not have; a method, and inline lines."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.a, self.b = nn.Embedding(9, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(2 * SIZE, SIZE)

    def combine(self, x: Tensor, h: Tensor, flag: int, kept: list[Tensor]) -> Tensor:
        y = torch.tanh(self.a(x) + h)
        if flag == 2 and y.sum() > 0:
            y = y * 3 + x
        if flag == 3:
            for _ in range(500):
                y = y + 0.001 * y
        if flag == 4:
            h += 1
        if flag == 5:
            kept.append(y)
        return h if flag == 6 else squashed(y) + 1

    def forward(self, words: list[tuple[int, int]]) -> Tensor:
        h: Any = torch.zeros(SIZE)
        kept: list[Tensor] = []
        for word, flag in words:
            x = self.words.weight[word]
            g = h * 1
            h = self.combine(x, g, flag, kept) + g
            if flag == 7:
                x = torch.cat([x, x])[::2]
            if flag == 8:
                g = np.float64(0.5)
            z = torch.sigmoid(self.b(torch.cat([x, h])) + g)
            h = z * h + (1 - z) * torch.tanh(squashed(h))
        return h + sum(kept)


def flagged(count: int, flags: Sequence[int], seed: int) -> list[list[tuple[int, int]]]:
    """Sequences of words with flags among these."""
    random = Random(seed)
    return [[(random.randrange(9), random.choice(flags)) for _ in range(random.randint(2, 5))] for _ in range(count)]


BROKEN = {
    2: ("combine", "the value of a tensor was asked for"), 3: ("combine", "more than 400 operations"),
    4: ("combine", "in place"), 5: ("combine", "changes a list"), 6: ("combine", "hands back"),
    8: ("forward:1", "more than tensors"),
}  # fmt: skip


@pytest.mark.usefixtures("torch_is_free")
@pytest.mark.parametrize("flag", range(9))
def test_a_promise_that_breaks_at_run_time_costs_that_call_alone(flag: int) -> None:
    """Instances do what the sample had none of: the others of these calls stay nodes, numbers and gradients are
    eager's, and why is told, with how many calls."""
    model = seeded(Branching).double()
    net = bound(model, flagged(8, [0, 1], 0), cells="auto")
    net.alike = None  # forward runs for every instance
    assert set(net.plan.automatic) == {"combine", "forward:1"}

    batch = flagged(6, [0, flag], flag)
    for got, expected in zip(net(batch), map(model, batch), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
    require_equal_gradients(net, batch)

    net(batch)
    told = {name: (number, why) for (name, why), number in net.calls_without_nodes().items()}
    name, why = BROKEN.get(flag, (None, ""))
    assert told.keys() == ({name} if name else set())
    if name is not None:
        assert why in told[name][1]
        assert told[name][0] == sum(f == flag for words in batch for _, f in words)
        assert cells_of_graph(net, batch) == {"combine", "forward:1"}
        [line] = [line for line in observe(net, batch, "given").no_nodes if name in line]
        assert line.startswith(f"{told[name][0]} call")
        assert why in line


def cells_of_graph(net: Net, batch: Sequence[Any]) -> set[str]:
    """Automatic cells with nodes in a mini-batch, in any of its segments."""
    segments: list[MiniBatch] = []
    segments.append(net.prepare(batch, on_segment=segments.append))
    graphs = [segment.whole[0].graph for segment in segments]
    counted = [pair for graph in graphs for pair in zip(graph.types, graph.counts(), strict=True)]
    return {t.op.removeprefix("cell ") for t, n in counted if n} & net.plan.automatic.keys()


@pytest.mark.usefixtures("torch_is_free")
@pytest.mark.parametrize("way", ["replaced", "reloaded", "branches"])
def test_a_helper_that_begins_to_do_something_else(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another function by its name, other code in its place, as tools that reload files put it there, or a name that it
    branches on: what called it is recorded by its operations from then on, which explain tells once and for all."""
    model = seeded(Branching).double()
    net = bound(model, flagged(8, [0, 1], 0), cells="auto")
    batch = flagged(6, [0, 1], 9)
    net(batch)
    before = squashed.__code__
    if way == "replaced":
        monkeypatch.setitem(globals(), "squashed", lambda h: -h if h.sum() > 0 else h)
    elif way == "reloaded":
        squashed.__code__ = (lambda h: -h if h.sum() > 0 else h).__code__  # type: ignore[misc]
    else:
        monkeypatch.setitem(globals(), "HELPER_LIMIT", 2)
    try:
        for _ in range(2):
            for got, expected in zip(net(batch), map(model, batch), strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
        assert not net.view.follow_code()
        assert cells_of_graph(net, batch) == set()
        told = {"replaced": "squashed", "reloaded": "the code of squashed", "branches": "HELPER_LIMIT"}[way]
        lines = observe(net, batch, "given").no_nodes
        assert [line.partition(" means something else")[0] for line in lines] == [told, told]
        assert [name in line for line, name in zip(lines, ["combine", "forward:1"], strict=True)] == [True, True]
    finally:
        squashed.__code__ = before  # type: ignore[misc]


def doubled(h: Tensor) -> Tensor:
    """What one of the cells calls."""
    return torch.tanh(h) * 2


def halved(h: Tensor) -> Tensor:
    """What is called between cells, and is too little for one."""
    return h * 0.5


def passed_on(h: Tensor) -> Tensor:
    """What is not closed, and calls it."""
    global calls_seen
    calls_seen += 1
    return halved(h)


calls_seen = 0


class Inner(nn.Module):
    """A module of operators alone, of which there is nothing to copy."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return x * h + h * 0.5


class Several(nn.Module):
    """Three cells: a method, a region, and a method that calls a module."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.a, self.b = nn.Embedding(9, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.inner = Inner()

    def combine(self, x: Tensor, h: Tensor) -> Tensor:
        return doubled(self.a(x) + h)

    def mix(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.sigmoid(self.inner(x, h))

    def forward(self, words: list[int]) -> Tensor:
        h: Any = self.words.weight[0]
        for word in words:
            x = self.words.weight[word]
            h = self.combine(x, h)
            print(end="")
            h = self.mix(x, h)
            h = passed_on(h)
            z = torch.sigmoid(self.b(x) + h)
            h = z * h + torch.relu(x)
        return h


def _inner(self: Any, x: Tensor, h: Tensor) -> Tensor:
    return x - h * 3


def _forward(self: Any, words: list[int]) -> Tensor:
    h: Any = self.words.weight[0]
    for word in words:
        h = self.mix(self.combine(h, self.words.weight[word]), h)
    return h


BREAKS = {
    "called": (doubled, "__code__", (lambda h: -h * 3).__code__, {"combine": "the code of doubled"}),
    "method": (Several, "combine", lambda self, x, h: x - h * 2, {"combine": "the code of combine"}),
    "of a module": (Inner, "forward", _inner, {"mix": "forward"}),
    "around": (Several, "forward", _forward, {"forward:1": "the code of forward"}),
    "none": (halved, "__code__", (lambda h: h * 3).__code__, {}),
}


@pytest.mark.parametrize("way", BREAKS)
def test_what_breaks_costs_the_cells_that_rest_on_it_alone(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name, a method's class or code mean something else: numbers are eager's, other cells stay nodes, and which are
    none any more is told by name."""
    model = seeded(Several).double()
    sentences = [[w % 9 for w in range(n, 3 * n)] for n in range(1, 7)]
    net = bound(model, sentences, cells="auto")
    cells = {"combine", "mix", "forward:1"}
    assert set(net.plan.automatic) == cells
    net(sentences)
    where, name, what, broken = BREAKS[way]
    monkeypatch.setattr(where, name, what)
    for _ in range(2):
        for got, expected in zip(net(sentences), map(model, sentences), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
    require_equal_gradients(net, sentences)

    assert not net.view.follow_code()
    assert net.view.given_up == broken
    assert cells_of_graph(net, sentences) == cells - broken.keys()
    assert [name in line for line, name in zip(observe(net, sentences, "x").no_nodes, broken, strict=True)] == [
        True
    ] * len(broken)


@edbc.cell
class Scaled(nn.Module):
    """A marked cell that reads a name, through a method."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(SIZE, SIZE)

    def scaled(self, x: Tensor) -> Tensor:
        return x * SCALE

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(torch.tanh(self.a(x)))


class OfBase(Scaled):
    """One that calls another class's method."""

    def forward(self, x: Tensor) -> Tensor:
        return super().scaled(torch.tanh(self.a(x)))


class Around(Scaled):
    """One that calls the method that it overrides."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(super().forward(x))


@pytest.mark.parametrize("cell", [Scaled, OfBase, Around])
def test_a_marked_cell_is_a_promise_about_names_too(cell: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is traced once: a name that means something else is an error, no old number."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), cell()).eval()
    batch = [torch.ones(SIZE), torch.zeros(SIZE)]
    net = bound(model, batch)
    net(batch)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    with pytest.raises(StaleError, match="SCALE, which a marked cell reads, means something else"):
        net(batch)


def test_marked_cells_are_left_alone() -> None:
    """Nothing inside of one is a candidate, and it is none itself."""
    model = seeded(Unmarked)
    edbc.cell(model.gates)
    found, obstacles = candidates(model, Closed(model))

    assert "gates" not in {c.name for c in found} | obstacles.keys()


def test_names_say_module_and_method() -> None:
    """The longest path of modules, and what is left."""
    model = seeded(Unmarked)
    assert located(model, "gates") == ("gates", "forward")
    assert located(model, "gates.x") == ("gates.x", "forward")
    assert located(model, "combine") == ("", "combine")
    assert located(model, "gates.again") == ("gates", "again")


def test_the_cheaper_choice_is_taken() -> None:
    """A candidate is given up where its operations cost less, and what it called takes its place."""
    outer, inner, other = (Candidate(name, "forward", kind, "m.py:1") for name, kind in
                           [("outer", nn.GRU), ("inner", nn.Linear), ("other", nn.RNN)])  # fmt: skip
    costs = {"inner other": 5.0, "other outer": 9.0, "inner": 7.0, "": 20.0, "outer": 12.0, "other": 18.0}

    def attempt(names: frozenset[str]) -> Trial:
        used = sorted(names - {"inner"} if "outer" in names else names)
        return Trial(names, costs[" ".join(used)], dict.fromkeys(used, 1))

    chosen, trial = choose([outer, inner, other], attempt)
    assert [c.name for c in chosen] == ["inner", "other"]
    assert trial.cost == 5.0


@pytest.mark.parametrize(("enough", "types", "asked"), [(1e9, 1, 4), (1e9, 0, 2), (5.0, 1, 2)])
def test_what_cannot_matter_is_not_asked(enough: float, types: int, asked: int) -> None:
    """Candidates that no node is of are given up together; what costs too much is left with the first of them
    that saves nothing much."""
    found = [Candidate(kind.__name__, "forward", kind, "m.py:1") for kind in (nn.GRU, nn.Linear, nn.RNN)]
    tried: list[frozenset[str]] = []

    def attempt(names: frozenset[str]) -> Trial:
        tried.append(names)
        return Trial(names, 10.0, dict.fromkeys(names, types))

    chosen, _ = choose(found, attempt, enough)
    assert chosen == found
    assert len(tried) == asked


def test_cells_of_several_types_go_first() -> None:
    """They hide what is inside, each the next: without one of them nothing costs less, without all it does."""
    outer, inner, small = (Candidate(k.__name__, "forward", k, "m.py:1") for k in (nn.GRU, nn.Linear, nn.RNN))
    tried: list[list[str]] = []

    def attempt(names: frozenset[str]) -> Trial:
        tried.append(sorted(names))
        shown = next(c.name for c in (outer, inner, small) if c.name in names or c is small)
        return Trial(names, 1.0 if shown == "RNN" else 100.0, {shown: 1 if shown == "RNN" else 8} if names else {})

    chosen, trial = choose([outer, inner, small], attempt, 10.0)
    assert ([c.name for c in chosen], trial.cost) == (["RNN"], 1.0)
    assert tried[:3] == [["GRU", "Linear", "RNN"], ["Linear", "RNN"], ["RNN"]]


def test_one_of_those_that_went_together_may_stay() -> None:
    """A loop in forward and a step of several numbers of operands are cells of several types, at first."""
    loop, step = (Candidate(kind.__name__, "forward", kind, "m.py:1") for kind in (nn.GRU, nn.Linear))
    costs = {"GRU Linear": 18.6, "GRU": 18.8, "Linear": 17.2, "": 17.6}

    def attempt(names: frozenset[str]) -> Trial:
        return Trial(names, costs[" ".join(sorted(names))], dict.fromkeys(names, 4))

    chosen, trial = choose([loop, step], attempt)
    assert ([c.name for c in chosen], trial.cost) == (["Linear"], 17.2)


ZOO = DYNAMIC
QUICK = ("tree_lstm", "lstm_nmt", "neural_module_network", "tree_gru")


@pytest.fixture(scope="module")
def unmarked_zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The zoo's files without marks."""
    yield from without_marks(tmp_path_factory.mktemp("unmarked"))


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ZOO])
def test_the_zoo_without_marks_has_the_same_nodes(name: str, unmarked_zoo: Path) -> None:
    """What people marked is found, or more."""
    report: Any = lambda *_: None  # noqa: E731
    marked = capture_for_compiling(MODELS / f"{name}.py", (), {}, 0, report, decided=Decisions(()))
    unmarked = capture_for_compiling(unmarked_zoo / f"{name}.py", (), {}, 0, report)

    assert not marked.automatic
    assert unmarked.automatic
    assert unmarked.training[0].num_nodes <= marked.training[0].num_nodes


def test_plans_tell_automatic_cells(unmarked_zoo: Path) -> None:
    """By name, with the line where their code begins; the plan is read back, and bound with the same cells."""
    compiled = compile_model(unmarked_zoo / "tree_gru.py", settings={"hidden_size": 16}, policy="critical",
                             measure_gain=False)  # fmt: skip
    plan = parse_plan(plan_text(compiled.plan), "plan")

    assert plan.automatic == compiled.plan.automatic
    assert set(plan.automatic) == {"leaf", "internal"}
    assert all(re.fullmatch(r"tree_gru\.py:\d+", line) for line in plan.automatic.values())
    assert set(Net(plan, compiled.captured.model).view.automatic) == {"leaf", "internal"}


def test_marked_alone(unmarked_zoo: Path) -> None:
    """With `cells="marked"` nothing is automatic."""
    model = import_model_file(unmarked_zoo / "tree_gru.py").build({}, 0)

    assert decide(Sample(model, Regions(model, Closed(model)), []), Decisions((), (), ())).automatic == {}


def test_unmarked_models_equal_eager_after_recurrences_of_parameters() -> None:
    """A value that is computed from parameters alone and used twice at every step takes linear time."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.words = nn.Parameter(torch.randn(SIZE)), nn.Embedding(9, SIZE)

        def forward(self, word: int) -> Tensor:
            h = c = self.start
            for _ in range(60):
                c = torch.sigmoid(h) * c + torch.tanh(h)
                h = torch.tanh(c) * self.start
            return h + self.words.weight[word]

    require_equal_gradients(require_parity(seeded(Steps).double(), [1, 2, 3]), [1, 2, 3])


class FillsInACell(nn.Module):
    """A method that fills a buffer, a cell by itself, beside lines of `forward` that are one too."""

    def __init__(self) -> None:
        super().__init__()
        self.spread, self.step = nn.Linear(2 * SIZE, SIZE), nn.LSTMCell(SIZE, SIZE)

    def around(self, grid: Tensor, h: Tensor) -> Tensor:
        found = torch.zeros(2, 2 * SIZE)
        for node in range(2):
            found[node] = torch.mm(grid[node].t(), h).view(-1)
        return found

    def forward(self, grids: list[Tensor]) -> Tensor:
        h = c = torch.zeros(2, SIZE)
        for grid in grids:
            h, c = self.step(torch.relu(self.spread(self.around(grid, h))), (h, c))
        return h


@pytest.mark.usefixtures("torch_is_free")
def test_cells_that_change_tensors_beside_lines_that_are_one() -> None:
    """No pattern joins what keeps books with lines that are not run as they are written; both stay cells."""
    instances = [[torch.ones(2, 2, 2) * (k + 1) for k in range(1 + i % 4)] for i in range(8)]
    model = seeded(FillsInACell)
    net = bound(model, instances, "auto")

    assert {name.partition(":")[0] for name in net.view.automatic} >= {"around", "forward"}
    with torch.no_grad():
        for result, instance in zip(net(instances), instances, strict=True):
            torch.testing.assert_close(result, model(instance))


class Around(nn.Module):
    """A cell of the instance's own tensor and a state, made of no parameters, and one of two states."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.GRUCell(SIZE, SIZE)

    def gathered(self, grid: Tensor, h: Tensor, scale: Tensor) -> Tensor:
        return torch.tanh(grid @ h) * scale.sigmoid() + h.abs()

    def forward(self, grids: list[Tensor]) -> Tensor:
        h, kept = torch.ones(2, SIZE), {}
        for i, grid in enumerate(grids):
            kept[i] = self.gathered(grid, h, grid[:, :1] if i % 3 else h[:, :1])
            h = self.step(kept[i], h)
        return self.gathered(torch.eye(2), torch.eye(2, SIZE), h)


def test_calls_of_the_instance_s_tensors_are_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the other operands are recorded, the general call is left after the first instances; what has none that is
    recorded is no call."""
    instances = [[torch.rand(2, 2, generator=torch.Generator().manual_seed(9 * i + k)) for k in range(4 + i % 5)]
                 for i in range(10)]  # fmt: skip
    model = seeded(Around)
    net = bound(model, instances, "unmined")
    vars(net)["alike"] = None
    assert any(name.endswith("gathered") for name in net.view.automatic)
    asked: list[Any] = []
    which = calls._recorded
    with torch.no_grad():
        expected = [model(instance) for instance in instances]
        for _ in range(2):
            for result, wanted in zip(net(instances), expected, strict=True):
                torch.testing.assert_close(result, wanted)
        monkeypatch.setattr(calls, "_recorded", lambda *given: asked.append(given) or which(*given))
        for result, wanted in zip(net(instances[::-1]), expected[::-1], strict=True):
            torch.testing.assert_close(result, wanted)

    assert len(asked) <= 3 * len(instances) < sum(map(len, instances))  # the first step's, of ones, and the last
    graph = net.prepare(instances).capture.graph
    kinds = [kind for kind, t in enumerate(graph.types) if "gathered" in t.signature]
    assert np.isin(graph.node_type, kinds).sum() == sum(map(len, instances))  # one less a loop, and the last


class Gated(nn.Module):
    """A cell that gives constants before the first word, as large as what it computes later."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.step = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def gates(self, x: Tensor, h: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        found = torch.sigmoid(self.gate(x) + self.gate(h))
        if before is None:
            return torch.zeros_like(found), torch.ones_like(found)
        return found * before, found

    def forward(self, words: list[Tensor]) -> Tensor:
        h, before = self.step(words[0]), None
        for word in words:
            opened, before = self.gates(self.step(word), h, before)
            h = torch.tanh(h + opened)
        return h


def test_a_call_that_gives_constants_is_none() -> None:
    """Eager code has them at once, and may look at them without waiting, whatever the call was given."""
    instances = [[torch.rand(SIZE, generator=torch.Generator().manual_seed(9 * i + k)) for k in range(1 + i % 5)]
                 for i in range(10)]  # fmt: skip
    model = seeded(Gated)
    net = bound(model, instances, "unmined")
    with torch.no_grad():
        for result, instance in zip(net(instances), instances, strict=True):
            torch.testing.assert_close(result, model(instance))

    types = net.prepare(instances).capture.graph.types
    assert not [t.signature for t in types if "gates(" in t.signature and "None" in t.signature]


class Chunked(nn.Module):
    """As a library does that may cut its rows into pieces: it asks how many arguments a method takes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.on = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def chunk(self, h: Tensor) -> Tensor:
        return torch.tanh(self.up(h)) + torch.relu(self.on(h))

    def forward(self, xs: list[Tensor]) -> Tensor:
        h = torch.zeros(SIZE)
        for x in xs:
            h = applied(self.chunk, h + x)
        return h


def applied(function: Any, *pieces: Tensor) -> Tensor:
    if len(inspect.signature(function).parameters) != len(pieces):
        raise ValueError(f"expected as many pieces as arguments of {inspect.signature(function)}")
    return function(*pieces)


def test_an_automatic_cell_has_the_arguments_that_the_user_wrote() -> None:
    """From the first call on, and once it is unrolled."""
    net = bound(seeded(Chunked), [[torch.ones(SIZE)] * n for n in (1, 2, 3)], cells="auto")
    assert set(net.view.automatic) == {"chunk"}
    for n in (1, 4, 2):
        xs = [torch.full((SIZE,), 0.1 * i) for i in range(n)]
        torch.testing.assert_close(net([xs])[0], net.model(xs))


class Squash(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(h) + 1
        return h * 2


class Making(nn.Module):
    """Begins each instance with a module of its own, as a stack that was written as one is."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.squash = nn.Linear(SIZE, SIZE), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.squash = Squash()
        return self.squash(self.out(x))


def test_modules_that_eager_execution_makes_are_gone_when_it_is_compiled() -> None:
    """They are none of those whose code was read, and the user's model is left as it was."""
    torch.manual_seed(0)
    model, instances = Making().eval(), [torch.randn(SIZE) for _ in range(2)]
    net = edbc.compile(model, instances, stages=False, force=True, trials=1, measure_gain=False)
    assert model.squash is None
    assert list(model._modules) == ["out"]
    for now, x in zip(net(instances), instances, strict=True):
        torch.testing.assert_close(now, model(x))
