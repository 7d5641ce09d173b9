"""A forward that depends on what ran before is refused; one that only keeps things is not."""

from __future__ import annotations

import copy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from helpers import require_parity, seeded
from torch import nn

import edbc
from edbc.errors import UnsupportedError

MODEL = '''"""Chains whose forward keeps something."""

import random

import torch
from torch import nn

CALLS = 0


class Net(nn.Module):
    made = 0

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 4)
        self.start = nn.Parameter(torch.ones(4))
        self.k, self.kept, self.memo, self.box, self.row = 0, [], {}, [0], None

    def forward(self, n):
        global CALLS
        h = self.start
        BEFORE
        for _ in range(n):
            h = torch.tanh(self.cell(h))
        AFTER
        return h


def build():
    return Net()


def load(*paths):
    return iter(())


def sample(count, seed):
    return [(seed + i) % 23 + 1 for i in range(count)]
'''

REFUSED = {
    "a counter": ("self.k += 1", "h = h * self.k", "attribute 'k'"),
    "a counter of floats": ("self.k += 0.5", "h = h * self.k", "attribute 'k'"),
    "a switch": ("self.k = 1 - self.k", "h = h * (1 + self.k)", "attribute 'k'"),
    "the instance before": ("pass", "h = h * self.k; self.k = n", "attribute 'k'"),
    "a switch that stays": ("self.k = max(self.k, n // 20)", "h = h * (1 + self.k)", "attribute 'k'"),
    "a cache of the first instance": (
        "self.row = self.start * n if self.row is None else self.row",
        "h = h + self.row",
        "attribute",
    ),
    "a list that grows": ("self.kept.append(n)", "h = h * len(self.kept)", "attribute 'kept'"),
    "an item of a list": ("self.box[0] += 1", "h = h * self.box[0]", "attribute 'box'"),
    "a row that moves on": ("self.k = (self.k + 1) % 4", "h = h + self.cell.weight[self.k]", "attribute 'k'"),
    "a global variable": ("CALLS += 1", "h = h * CALLS", "outside of the model"),
    "an attribute of the class": ("Net.made += 1", "h = h * Net.made", "outside of the model"),
    "random numbers of Python": ("pass", "h = h * random.random()", "outside of the model"),
    "a random structure": ("n += random.randint(0, 9)", "pass", "outside of the model"),
}
ALLOWED = {
    "a counter that nobody reads": ("self.k += 1", "pass"),
    "a count of one instance": ("self.k = 0", "self.k += n; h = h * self.k"),
    "a list of one instance": ("self.kept = []", "self.kept.append(h); h = self.kept[-1]"),
    "a list that is cleared": ("self.kept.clear()", "self.kept.append(h); h = self.kept[-1]"),
    "a memo of numbers": ("pass", "h = h * self.memo.setdefault(n, 1 / n)"),
    "a constant made once": ("self.row = torch.arange(4.0) if self.row is None else self.row", "h = h + self.row"),
    "a cache": ("pass", "if self.k != n: self.k, self.row = n, self.start * n\n        h = h + self.row"),
    "a log": ("pass", "self.kept.append(n)"),
    "what somebody looks at later": ("pass", "self.last = h"),
    "many numbers": ("pass", "h = h * (0.1 * n); h = h + 1.5 * hash(n * 7) + n / 3"),
    "not-a-number": ("pass", "h = h + torch.tensor([float('nan'), 0.0, 0.0, 0.0])"),
    "a change in place": ("pass", "rows = torch.zeros(2, 4); rows[0] += h; h = rows.sum(0)"),
    "a recursion too deep for Python": ("pass", "down = lambda k: h * 2 if k == 0 else down(k - 1); h = down(1500)"),
    "both": ("pass", "down = lambda k: h * 2 if k == 0 else down(k - 1); h += 1; h = down(1500)"),
    "results of every kind": ("pass", "h = (h, n, float('nan'), None, {'a': h}, torch.ones(2), object)"),
}


def compile_with(folder: Path, before: str, after: str) -> None:
    path = folder / "net.py"
    path.write_text(MODEL.replace("BEFORE", before).replace("AFTER", after))
    edbc.compile(path, folder / "net.yaml", policy="critical")


@pytest.mark.parametrize("name", REFUSED)
def test_a_forward_that_remembers_is_refused(name: str, tmp_path: Path) -> None:
    """At the line where the graphs part, with the attribute that forward changes; no plan is written."""
    before, after, words = REFUSED[name]
    line = next(i for i, text in enumerate(MODEL.splitlines(), 1) if "AFTER" in text)
    with pytest.raises(UnsupportedError, match=rf"^(net\.py:\d+(, |: ))+expected the same graph .*{words}") as caught:
        compile_with(tmp_path, before, after)

    assert f"net.py:{line if after != 'pass' else line - 1}" in str(caught.value).partition(": ")[0].split(", ")
    assert not (tmp_path / "net.yaml").exists()


@pytest.mark.parametrize("name", ALLOWED)
def test_a_forward_that_only_keeps_things_compiles(name: str, tmp_path: Path) -> None:
    """What does not change what forward computes is nobody's business: no false alarm."""
    compile_with(tmp_path, *ALLOWED[name])
    assert (tmp_path / "net.yaml").exists()


def test_tensors_kept_for_other_instances_are_refused(tmp_path: Path) -> None:
    """A memo of tensors would hand out those of an earlier mini-batch."""
    with pytest.raises(UnsupportedError, match="a tensor that an earlier mini-batch computed"):
        compile_with(tmp_path, "pass", "h = self.memo.setdefault(n, h)")


WAYS = '''"""Rows of every length, side by side in a method that is a cell."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4)

    def beside(self, a, b):
        return torch.tanh(torch.cat([a, b], 1)) * 2, a - b

    def forward(self, n):
        h = self.out(torch.ones(1, n, 4))
        for i in range(1, n):
            both, left = self.beside(h[:, :i], h[:, n - i :])
            h = h + both.mean() + left.sum()
        return h.sum()


def build():
    return Net()


def sample(count, seed):
    return [2 + (seed + 5 * i) % 7 for i in range(count)]
'''


def test_a_cell_that_is_called_in_too_many_ways_remembers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ways beyond those that may be cells are recorded by their operations: the same ones whoever records again, and
    where the sample has more of them the method is no cell."""
    (tmp_path / "ways.py").write_text(WAYS)
    options = {"measure_gain": False, "policy": "critical"}
    whole = edbc.compile(tmp_path / "ways.py", tmp_path / "whole.yaml", **options)
    monkeypatch.setattr("edbc.capture.record.recorder.MOST_TYPES", 3)
    few = edbc.compile(tmp_path / "ways.py", tmp_path / "few.yaml", **options)

    assert whole.plan.automatic
    assert not few.plan.automatic


class ReadsLater(nn.Module):
    """Steps that decide by one value, look at another one later, and keep what nobody has read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.functions = [torch.tanh, torch.exp, torch.sin, torch.neg]

    def forward(self, instance: tuple[torch.Tensor, int]) -> torch.Tensor:
        h, kept, found = self.linear(instance[0]), [], []
        for _ in range(4):
            kept.append(torch.relu(h))
            value = h
            for function in self.functions * instance[1]:
                value = function(value)
            later = value.mean().item()
            h = h * 0.5 if h.sum().item() > 0 else -h
            found.append(later)
            if max(found) > 1:
                h = h + 1
        return torch.stack(kept)


def test_what_waits_for_company_is_no_difference() -> None:
    """Values that have been read before run at once, others wait for company up to a limit: what is left of an instance
    for its last segment hangs on what ran before, and not on forward."""
    rng = torch.Generator().manual_seed(0)
    instances = [(torch.randn(4, generator=rng), 2 if i == 0 else 1) for i in range(4)]
    require_parity(seeded(ReadsLater), instances)
    edbc.compile(seeded(ReadsLater), instances)


class OwnBesideRows(nn.Module):
    """Lines that compute with the instance's own tensors beside rows, nothing of which is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)

    def forward(self, instance: dict[str, Any]) -> torch.Tensor:
        ids, v, edges = instance["ids"], instance["v"], instance["edges"]
        h = self.words(torch.tensor(ids))
        list(h.unbind(0))
        h.new_zeros(6)
        state = {"h": torch.zeros(6), "c": torch.zeros(6)}
        other = copy.copy(state)
        other["h"] = other["h"] + v
        v = v + state["h"]
        h = h.index_add(0, torch.tensor([b for a, b in edges]), h[torch.tensor([a for a, b in edges])] * 0.3)
        return v


def test_which_instance_a_call_was_kept_of_is_no_difference() -> None:
    """Lines with rows are recorded of one instance for all: what they compute of its own tensors is nodes then, where
    the first instance of a new copy has numbers."""
    rng = Random(5)
    instances = []
    for _ in range(12):
        n = rng.randint(2, 7)
        ids = [rng.randrange(20) for _ in range(n)]
        edges = [(rng.randrange(n), rng.randrange(n)) for _ in range(rng.randint(1, 5))]
        instances.append({"ids": ids, "v": torch.ones(6), "edges": edges})
    edbc.compile(seeded(OwnBesideRows), instances)


class Sorted(nn.Module):
    """Orders of one, which the instance knows or which were computed."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 6)

    def forward(self, word: int) -> torch.Tensor:
        h = self.words(torch.tensor([word]))
        order = torch.tensor([0]) if word % 2 else h.argsort(0)[:, 0]
        return h[order] * 2


def test_whether_an_index_of_one_was_computed_before_is_no_difference() -> None:
    """Where the instance knows that it is 0 the call is no node, which a recorded index in an earlier instance does not
    change."""
    edbc.compile(seeded(Sorted), [1, 0, 3, 2])


class Filled(nn.Module):
    """Steps of a solver, which is no module and whose code runs as it is, so that its buffer needs books."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.step, self.out = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, instance: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.out(Solver(self.step).solve(self.up(instance[0]), len(instance[1])))


class Solver:
    """Euler's."""

    def __init__(self, function: nn.Module) -> None:
        self.function = function

    def solve(self, y: torch.Tensor, steps: int) -> torch.Tensor:
        states = torch.arange(6.0).expand(steps, 1, 6).clone()
        states[0] = y
        for i in range(1, steps):
            y = y + self.function(y)
            states[i] = y
        return states


def test_copies_with_rows_keep_books_before_they_record() -> None:
    """A copy that records once before it is compared has ended then, and can open no books."""
    rng = torch.Generator().manual_seed(0)
    lengths = [2, 3, 5, 4, 6, 7, 3, 2, 8, 5] * 3
    instances = [(torch.randn(1, 4, generator=rng), torch.zeros(n)) for n in lengths]
    edbc.compile(seeded(Filled), instances)


class KeepsStarts(nn.Module):
    """Keeps a parameter, and what is computed of one, beside what is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.start, self.rows, self.first = nn.Linear(4, 4), nn.Parameter(torch.ones(4)), None, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first = self.start * 2
        self.rows = [self.start, self.first]
        for row in x:
            self.rows.append(torch.tanh(self.step(row)) + self.rows[-1])
        return self.rows[-1]


def test_what_is_kept_of_parameters_is_the_models() -> None:
    """Stand-ins of parameters in what forward assigned came to stand on the user's model, which could not be copied."""
    rng = torch.Generator().manual_seed(0)
    instances = [torch.randn(2 + i % 3, 4, generator=rng) for i in range(12)]
    net = edbc.compile(seeded(KeepsStarts), instances, force=True)
    net(instances[:5])
    rows = [net.model.first, *net.model.rows]
    net.model(instances[4])

    assert rows[1] is net.model.start
    for one, other in zip(rows, [net.model.first, *net.model.rows], strict=True):
        torch.testing.assert_close(one, other)
