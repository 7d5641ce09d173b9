"""What a choice between rows and types weighs."""

from __future__ import annotations

import sys
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from edbc.capture.code.automatic import TORCH_US
from edbc.capture.code.closed import Closed
from edbc.capture.code.regions import Regions
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import capture
from edbc.capture.record.table import TypeTable
from edbc.native.threads import torch_threads
from edbc.run.session import Net
from edbc.tools.compile import decisions
from edbc.tools.compile.decisions import AHEAD, Decisions, Sample, Trial, decide, to_come, trial
from edbc.tools.compile.natives import Natives

SIZE = 4


class Body(nn.Module):
    """Convolutions over a series: one cell, for each length another type."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(2, SIZE, 3, padding=1), nn.Conv1d(SIZE, SIZE, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(torch.relu(self.first(x))))


class Series(nn.Module):
    """One that is called by the model."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Pooled(nn.Module):
    """Pictures of few sizes: as rows, torch runs a function of each picture's run of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, SIZE, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.adaptive_avg_pool2d(torch.relu(self.conv(x)), 1).flatten()


class Best(nn.Module):
    """What torch runs beside a product."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x).topk(2).values


def attempt(lengths: list[int], names: frozenset[str]) -> Trial:
    """Series of these lengths, with the names as cells."""
    model = Series().eval()
    instances = [torch.ones(1, 2, n) for n in lengths]
    return trial(Sample(model, Regions(model, Closed(model)), instances), (), names)


def test_types_that_are_to_come_count_by_their_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell is as dear as what it stands for: it is traced and compiled for each length that comes."""
    seen: list[tuple[int, int]] = []

    def noted(once: int, twice: int) -> float:
        seen.append((once, twice))
        return 0.0

    monkeypatch.setattr(decisions, "to_come", noted)
    for names in (frozenset({"body"}), frozenset[str]()):
        attempt([5, 6, 7, 7, 8, 8, 8], names)
    assert seen == [(8, 4), (8, 4)]


def test_sizes_of_few_values_run_out() -> None:
    """What has one node is to come, and the less the more has two: of all that is left a share for each mini-batch,
    and no more than what the next one brings."""
    assert to_come(0, 0) == to_come(0, 9) == 0
    assert to_come(30, 0) == 30
    assert 30 > to_come(30, 1) > to_come(30, 30) > to_come(5, 30) > 0
    assert to_come(30, 30) == pytest.approx(15 / AHEAD)
    assert to_come(3_000, 1) == pytest.approx(3_000, rel=0.4)


def test_what_torch_runs_is_weighed() -> None:
    """A batch that torch runs is as dear however many nodes it has."""
    model = Best().eval()
    sample = Sample(model, Regions(model, Closed(model)), [torch.ones(SIZE)] * 4)
    cost = trial(sample, (), frozenset()).cost
    assert TORCH_US < cost < 2 * TORCH_US


def test_a_sample_is_recorded_once_in_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is and with rows, which tells what sizes differ and whether rows can be followed; by a recorder of its own
    in each way, which tells what new instances cost; and for what those that are alike save."""
    ways: list[tuple[str, ...]] = []
    recorded = decisions.recording_shadow
    monkeypatch.setattr(
        decisions, "recording_shadow", lambda view, table: ways.append(view.ragged) or recorded(view, table)
    )
    rng, model = Random(0), Best().eval()
    series = [torch.ones(rng.randint(2, 9), SIZE) for _ in range(8)]

    decide(Sample(model, Regions(model, Closed(model)), series), Decisions((), None, ()))

    assert sorted(map(len, ways)) == [0, 0, 0, 1, 1]


def test_few_sizes_are_types_where_torch_would_run_rows() -> None:
    """Pictures of 16 sizes, each a type that native code runs, are no rows."""
    rng, model = Random(0), Pooled().eval()
    pictures = [torch.ones(1, rng.randint(4, 7), rng.randint(4, 7)) for _ in range(32)]
    assert decide(Sample(model, Regions(model, Closed(model)), pictures), Decisions()).ragged == ()


def test_functions_of_whole_runs_are_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of those of four widths, twice, costs Python however many pictures it has and whoever runs it."""
    rng, model = Random(0), Pooled().eval()
    pictures = [torch.ones(1, rng.randint(4, 7), rng.randint(4, 7)) for _ in range(32)]
    sample = Sample(model, Regions(model, Closed(model)), pictures)
    rows = decide(sample, Decisions(ragged=decisions.ragged_classes(sample)))
    cost = decisions.cost_of_new(sample, rows)
    monkeypatch.setattr(decisions, "TORCH_US", 0.0)
    assert cost - decisions.cost_of_new(sample, rows) == pytest.approx(8 * TORCH_US)


class Shapes(nn.Module):
    """A tree of boxes and of symmetries of what is below, each with its own number of features."""

    def __init__(self) -> None:
        super().__init__()
        self.box, self.symmetry, self.pair = nn.Linear(12, SIZE), nn.Linear(8, SIZE), nn.Linear(2 * SIZE, SIZE)

    def forward(self, node: Any) -> torch.Tensor:
        if isinstance(node, torch.Tensor):
            return torch.tanh(self.box(node))
        below, beside = node
        if isinstance(beside, torch.Tensor) and beside.shape[1] == 8:
            return torch.tanh(self.symmetry(beside) + self(below))
        return torch.tanh(self.pair(torch.cat([self(below), self(beside)], 1)))


def shapes(rng: Random, depth: int) -> Any:
    """A tree for `Shapes`."""
    kind = rng.random() if depth else 0.0
    if kind < 0.2:
        return torch.ones(1, 12)
    return shapes(rng, depth - 1), torch.ones(1, 8) if kind < 0.5 else shapes(rng, depth - 1)


def test_two_numbers_of_features_are_no_rows() -> None:
    """What rows are taken whole for is dear, which tells features from lengths."""
    model = Shapes().eval()
    sample = Sample(model, Regions(model, Closed(model)), [shapes(Random(i), 4) for i in range(8)])
    assert decisions.ragged_classes(sample) == ("f32[1,n]",)
    assert decide(sample, Decisions()).ragged == ()


class Masked(nn.Module):
    """A mean over what is no padding: three constants of each instance, where rows have them of all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.score = nn.Embedding(20, 8), nn.Linear(8, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        there = words.ne(1)
        x = torch.tanh(self.words(words))
        weights = torch.softmax(self.score(x).squeeze(-1) + (1.0 - there.float()) * -1e9, dim=1)
        kept = there.unsqueeze(-1).float()
        return (weights.unsqueeze(-1) * x + x * kept).sum(1) / kept.sum(1).clamp(min=1)


def test_what_python_does_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording three constants of each instance is dear, beside a forward that does not run; what is counted is nobody
    else's profile."""
    rng, model = Random(0), Masked().eval()
    padded = [torch.tensor([[rng.randrange(2, 20) for _ in range(rng.randint(3, 9))] + [1]]) for _ in range(32)]
    sample = Sample(model, Regions(model, Closed(model)), padded)
    monkeypatch.setattr(decisions, "PLACE_US", 0.0)
    assert decide(sample, Decisions(automatic=())).ragged
    monkeypatch.setattr(decisions, "PYTHON_US", 0.0)
    assert not decide(sample, Decisions(automatic=())).ragged


def test_calls_are_counted_once_all_that_is_kept_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has met before keeps some code a recording earlier or later."""
    rng, model = Random(0), Masked().eval()
    padded = [torch.tensor([[rng.randrange(2, 20) for _ in range(rng.randint(3, 9))] + [1]]) for _ in range(8)]
    sample = Sample(model, Regions(model, Closed(model)), padded)
    decided = decisions.Decided({}, decisions.ragged_classes(sample))
    at_once = decisions.cost_of_new(sample, decided)
    recorded, late = Sample.recorded_with, [60_000, 50_000, 20_000]

    def recorded_late(*of: Any) -> Any:
        for _ in range(late.pop(0) if late else 0):
            len("")
        return recorded(*of)

    monkeypatch.setattr(Sample, "recorded_with", recorded_late)
    assert decisions.cost_of_new(sample, decided) == pytest.approx(at_once, rel=0.1)


class ParentsBySpans(nn.Module):
    """A loop over spans, whose code is open."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, SIZE)

    def forward(self, words: list[int]) -> torch.Tensor:
        h = torch.tanh(self.words(torch.tensor(words)))
        total = h.sum(0)
        for i, word in enumerate(words):
            if word % 7:
                total = torch.tanh(total + h[i // 2 : i + 1]).amax(0)
        return total


def test_calls_are_counted_when_nobody_asks_for_lines() -> None:
    """Asking for them, as the first mini-batches do, takes several times what a call of rows does."""
    rng, model = Random(0), ParentsBySpans().eval()
    instances = [[rng.randrange(20) for _ in range(rng.randint(5, 20))] for _ in range(32)]
    assert decide(Sample(model, Regions(model, Closed(model)), instances), Decisions()).ragged


def test_calls_are_counted() -> None:
    """Those of Python's functions and C's, whatever they raise, and none while others profile."""
    seen: list[str] = []
    with decisions.counted() as calls, suppress(ValueError):
        [len(text) for text in map(str, range(10))]
        int("no number")
    assert 10 <= calls.count < 20
    assert sys.getprofile() is None
    sys.setprofile(lambda *_: seen.append("call"))
    try:
        with decisions.counted() as none:
            len("text")
    finally:
        sys.setprofile(None)
    assert none.count == 0
    assert seen


class Groups(nn.Module):
    """Means of groups of rows, whose numbers never come again."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)

    def forward(self, groups: list[torch.Tensor]) -> torch.Tensor:
        rows = torch.tanh(self.up(torch.cat(groups)))
        return torch.stack([part.mean(0) for part in rows.split([len(group) for group in groups])]).sum(0)


class Cells(nn.Module):
    """A step for each pixel of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(1 + SIZE, SIZE)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(SIZE)
        for row in range(picture.shape[0]):
            for column in range(picture.shape[1]):
                h = torch.tanh(self.step(torch.cat([picture[row, column].view(1), h])))
        return h


def test_shapes_that_run_out_are_alike_soon() -> None:
    """Half of the sample is of a shape that came before, and none came once: what comes after has met all. Where each
    came once, nothing tells that they run out."""
    model, shapes = Cells().eval(), [(rows, columns) for rows in range(4, 8) for columns in range(4, 8)]
    sample = Sample(model, Regions(model, Closed(model)), [torch.ones(shape) for shape in shapes + shapes])
    once = Sample(model, Regions(model, Closed(model)), [torch.ones(shape) for shape in shapes])
    costs = [decisions.cost_of_new(some, decide(some, Decisions(ragged=()))) for some in (sample, once)]

    assert decide(sample, Decisions()).ragged == ()
    assert 2 * costs[0] < costs[1]


class Waves(nn.Module):
    """Functions of the instance's own numbers, which torch computes for each."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(18, SIZE)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        parts = [f(2.0**i * points) for i in range(3) for f in (torch.sin, torch.cos)]
        return torch.relu(self.net(torch.cat(parts, -1))).mean(0)


def test_what_torch_computes_of_instances_is_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances are alike, but for what forward computes of them."""
    rng, model = Random(0), Waves().eval()
    points = [torch.ones(rng.randint(3, 6), 3) for _ in range(32)]
    sample = Sample(model, Regions(model, Closed(model)), points)
    assert decide(sample, Decisions(automatic=())).ragged
    monkeypatch.setattr(decisions, "TENSOR_US", 0.0)
    assert not decide(sample, Decisions(automatic=())).ragged


def test_sizes_that_never_come_again_are_rows() -> None:
    """A type for each combination of lengths would be met once."""
    rng, model = Random(0), Groups().eval()
    instances = [[torch.ones(rng.randint(1, 6), 4) for _ in range(rng.randint(1, 5))] for _ in range(32)]
    assert decide(Sample(model, Regions(model, Closed(model)), instances), Decisions()).ragged


def test_types_that_differ_in_a_size_are_lowered_once_to_tell_what_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of one place in two containers are two operations."""
    asked = []
    natives = Natives()
    monkeypatch.setattr(Natives, "_asked", lambda self, entry, *_: asked.append(entry.operation.name) or True)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).eval()
    view, table = ModelView(model), TypeTable()
    capture(*recording_shadow(view, table), [torch.ones(n, 4) for n in (2, 3, 5, 7)])
    kinds = [*table.operation_of_type]

    assert all(natives.run(table, kind, view) for kind in kinds)
    assert len(kinds) == 4 * len(asked)
    assert len(set(asked)) == len(asked) == 3


class Chooses(nn.Module):
    """Reads which row is largest."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        h = self.layer(rows)
        best = int(h.sum(1).argmax())
        return h[best] * (2 if best else 3)


def test_one_thread_runs_what_is_read_while_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of few rows: where other processes have the cores, threads wait for each other at every one."""
    counts, execute = [], Net.execute
    monkeypatch.setattr(Net, "execute", lambda *of: counts.append(torch.get_num_threads()) or execute(*of))
    model, instances = Chooses().eval(), [torch.randn(n, 4) for n in (2, 3, 5)]
    with torch_threads(2):
        recorded = Sample(model, Regions(model, Closed(model)), instances).recorded()
        assert torch.get_num_threads() == 2

    assert len(recorded.parts) == 2
    assert counts == [1]


class Layers(nn.Module):
    """A cell in a cell, one that is none, and lines between them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = Series(), nn.Linear(SIZE, SIZE)

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else self.outer(x)

    def step(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.outer(x) + h)
        return torch.tanh(self.inner(gate.view(1, 2, 2))).flatten()[:SIZE] * gate

    def forward(self, xs: list[torch.Tensor]) -> torch.Tensor:
        h = torch.zeros(SIZE)
        for x in xs:
            h = self.step(x, h) + torch.relu(self.outer(h)) * x
        return self.branch(h)


def test_trials_share_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial records with other cells, and what one has traced, or found to be no cell, no other traces again; what
    is decided is the same."""
    model = Layers().eval()
    instances = [[torch.randn(SIZE, generator=torch.Generator().manual_seed(n)) for _ in range(n)] for n in range(1, 5)]
    traced: list[int] = []
    trace = ModelView._trace

    def counted(self: ModelView, *given: Any, **named: Any) -> Any:
        traced.append(1)
        return trace(self, *given, **named)

    monkeypatch.setattr(ModelView, "_trace", counted)

    def decided() -> tuple[Any, int]:
        traced.clear()
        found = decide(Sample(model, Regions(model, Closed(model)), instances), Decisions())
        return found, len(traced)

    shared, few = decided()
    monkeypatch.setattr(ModelView, "share_traces", lambda *_: None)
    alone, many = decided()

    assert shared == alone
    assert 3 * few < 2 * many


def test_trials_share_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where instances read values each trial runs segments: types that one has met have their kernels in the next."""
    model = Layers().eval()
    instances = [[torch.full((SIZE,), float(n))] * n for n in range(1, 4)]
    made: list[str] = []
    new_kernel = Net._new_kernel

    def noted(self: Net, kind: int) -> Any:
        node_type = self.table.types[kind]
        assert node_type is not None
        made.append(node_type.signature)
        return new_kernel(self, kind)

    monkeypatch.setattr(Net, "_new_kernel", noted)
    decide(Sample(model, Regions(model, Closed(model)), instances), Decisions())

    assert made
    assert len(made) == len(set(made))
