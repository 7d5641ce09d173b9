"""Forwards that are open: loops over an instance's numbers call functions of rows, each of which is kept by its key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from helpers import bound
from rowparity import HIDDEN, VOCAB, model_of_text, of_model, require_eager
from torch import nn

from edbc.capture.ragged import rules
from edbc.capture.record import calls, recorder
from edbc.capture.record.recorder import Recorder

SOURCE = f"""
import torch
import torch.nn.functional as F
from torch import nn

class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.up = nn.Embedding({VOCAB}, {HIDDEN}), nn.Linear({HIDDEN}, {HIDDEN})
        self.cell, self.down = nn.GRUCell({HIDDEN}, {HIDDEN}), nn.Linear({2 * HIDDEN}, {HIDDEN})
        self.start = nn.Parameter(torch.randn({HIDDEN}))

    def forward(self, words):
        h = torch.tanh(self.words(torch.tensor(words)))
        total = h.sum(0)
        for i, word in enumerate(words):
            k = word % len(words)
            a, b = (i, k + 1) if i <= k else (k, i + 1)
            STATEMENT
        return total
"""
STATEMENTS = {
    "one row": "total = total + h[k : k + 1]",
    "one row and a value of it": "total = (h[k : k + 1] * h[k] + h[k : k + 1] * h[i]).sum(0) + total",
    "one row and a state that is one": "total = self.cell(h[k : k + 1], total[None])[0]",
    "a cell of one row, whose row goes on": "total = self.cell(self.cell(h[k : k + 1], h[i][None]), total[None])[0]",
    "one row and many": "total = total + (h[k : k + 1] + h).amax(0)",
    "the same rows twice": "total = total + torch.softmax(h[a:b] @ total, 0) @ h[a:b]",
    "the same rows or others": "x = h[: b - a]; total = total + (h[a:b] * (x if word % 2 else h[a:b])).sum(0)",
    "the square of some rows": "total = total + (h[a:b] * h[a:b]).sum(0)",
    "the largest, of a pair": "x = h[a:b].max(0); total = total + (x[0] if word % 3 else x.values * 2)",
    "the largest, and not which it is": "total = total + h[a:b].max(0)[0]",
    "the largest by its name": "total = total * 0.5 + torch.max(h[a:b], dim=0).values",
    "rows less a value": "total = (h[a:b] - total.expand(b - a, -1)).amax(0)",
    "rows beside a value": "total = self.down(torch.cat([h[a:b], total.unsqueeze(0).expand(b - a, -1)], 1)).sum(0)",
    "part of some rows": "total = total + h[a:b, 2:5].sum()",
    "a row by a tensor of its number": "total = total + h[torch.tensor(k)] * torch.tensor(words)[i]",
    "an element of a row": "total = total + h[k, 3] * h[i, -1]",
}  # fmt: skip


def sentence(rng: Random) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(rng.randint(2, 9))]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], nn.Module]:
    return lambda statement: model_of_text(SOURCE.replace("STATEMENT", statement), tmp_path, monkeypatch)


@pytest.mark.parametrize("name", STATEMENTS)
def test_functions_of_rows_are_eagers_and_known_when_they_come_again(
    name: str, made: Callable[[str], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(STATEMENTS[name])
    net = of_model(model, sentence)
    assert net.plan.ragged
    rng, met = Random(8), []
    with torch.no_grad():
        for _ in range(12):
            net([sentence(rng) for _ in range(12)])
        while net._idle[0][1]._mini_batches % recorder.LOOKS == 0:
            net([sentence(rng)])
        run = rules._ragged_call
        monkeypatch.setattr(rules, "_ragged_call", lambda *args: met.append(args[1]) or run(*args))
        net([sentence(rng) for _ in range(8)])
    assert len(met) <= 8, "expected at most one function of each instance, its embedding, to be recorded anew"


@pytest.mark.parametrize(
    "call",
    ["to(h.dtype)", "float()", "cpu()", "to('cpu')", "type_as(total)", "to(total)"],
)
def test_calls_that_give_what_they_are_given_are_known(
    call: str, made: Callable[[str], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(f"total = total + [h[k].{call}][0]")  # which no region takes in
    net, rng, met = of_model(model, sentence), Random(2), []
    run = Recorder._function
    monkeypatch.setattr(Recorder, "_function", lambda self, func, *of: met.append(func) or run(self, func, *of))
    require_eager(net, model, [sentence(rng) for _ in range(5)])
    assert not met


def test_a_clone_changes_alone(made: Callable[[str], nn.Module]) -> None:
    model = made("x = h[k].clone(); x += 1; x[2] = 0; total = total + x * h[k].contiguous()")
    of_model(model, sentence)


def test_a_row_and_a_value_that_is_the_same_once_are_two_arguments(made: Callable[[str], nn.Module]) -> None:
    """The first call that is kept gets one node twice, as a row and as a value; later ones get two."""
    model = made("total = total + self.cell(h[k : k + 1], h[i if i % 2 else k][None])[0]")
    of_model(model, sentence)


@pytest.mark.parametrize("name", ["rows beside a value", "one row and a state that is one"])
def test_values_that_are_seen_as_rows_are_no_excerpts(name: str, made: Callable[[str], nn.Module]) -> None:
    """Of a value that is shown again and again, and of one that is a matrix of one row."""
    model, rng = made(STATEMENTS[name]), Random(1)
    net = bound(model, [sentence(rng) for _ in range(6)], cells="auto", rows=True)
    graph = net.prepare([sentence(rng) for _ in range(12)]).capture.graph
    met = {t.name for t, n in zip(graph.types, graph.counts().tolist(), strict=True) if n}
    assert met <= {"tanh", "sum", "sum.2", "cat_linear", "add", "embedding", "cell"}


def test_which_is_the_largest_of_a_call_that_is_kept(made: Callable[[str], nn.Module]) -> None:
    model = made("x, which = h[a:b].max(0); total = total + x * (which.sum() + 1 if word % 5 == 0 else 2)")
    net, rng = of_model(model, sentence), Random(3)
    require_eager(net, model, [sentence(rng) for _ in range(9)])


@pytest.mark.parametrize("statement", [
    "total = total + torch.softmax(h @ total, 0) @ h", "total = total + h[: k + 1].amax(0)",
    "total = total + (h[:k] * h[1 : k + 1, :]).sum()", "total = total + h[i, 2:5].sum() * h[0, :]",
    "total = total + h[a:b, :20].sum(0) + h[a:b, 1:3].sum()", "total = total + h[a:b].view(-1)[:8] + h[a:][:2].sum(0)",
])  # fmt: skip
def test_rows_of_a_look_up_by_types(statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of them take no general way, also where each instance's first one gets a tensor that forward makes; and
    slices of them are seen in one tensor, for which each row is looked up once."""
    text = SOURCE.replace("torch.tanh(self.words(torch.tensor(words)))", "self.words(torch.tensor(words))")
    text = text.replace("total = h.sum(0)", f"total = torch.zeros({HIDDEN})").replace("STATEMENT", statement)
    text = text.replace("h = self", "words = [int(word) for word in words.split()]; h = self")
    model, rng = model_of_text(text, tmp_path, monkeypatch).eval(), Random(5)

    def instances() -> list[str]:
        return [" ".join(str(rng.randrange(VOCAB)) for _ in range(size)) for size in (1, 2, 4, 5, 7, 7)]

    net = bound(model, instances(), cells="auto", rows=None)
    for _ in range(recorder.LOOKS + 1):
        require_eager(net, model, instances())
    monkeypatch.setattr(calls, "is_packed", None)  # what general calls ask first
    with torch.no_grad():
        graph = net.mini_batch(instances())
    assert len(graph.external_index) <= 3 * 26 + 8 * 6


class Times(nn.Module):
    """A vector of one number, and one of as many as there are, beside states of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.up = nn.Embedding(VOCAB, 16), nn.Linear(33, 16)

    def forward(self, events: list[tuple[int, float]]) -> Any:
        h, seen = self.words.weight[0], {}
        for word, time in events:
            h = torch.tanh(self.up(torch.cat([h, seen.get(word, self.words.weight[word]), torch.tensor([time])])))
            seen[word] = h
        by = torch.tensor([events[0][1]])
        assert float(by) < 2.0  # which makes it a tensor
        scores = self.shifted(torch.stack([state.sum() for state in seen.values()]), by)
        return scores, torch.cat([h, scores]).sum()

    def shifted(self, scores: Any, by: Any) -> Any:
        return torch.tanh(scores * by) + by


def test_a_number_in_a_vector_is_no_row() -> None:
    """Where vectors of numbers are rows, states beside one were taken apart, element by element."""

    def make(rng: Random) -> list[tuple[int, float]]:
        return [(rng.randrange(VOCAB), rng.random()) for _ in range(rng.randint(2, 9))]

    torch.manual_seed(0)
    net, rng = of_model(Times(), make), Random(3)
    with torch.no_grad():
        for _ in range(3):
            net(events := [make(rng) for _ in range(32)])
    assert "f32[n]" in net.plan.ragged
    assert net.prepare(events).capture.graph.num_nodes < 9 * sum(map(len, events))
