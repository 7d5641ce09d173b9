"""What forward returns last, and what a model kept of an earlier run."""

from __future__ import annotations

import pytest
import torch
from ordinary.registry import load_all
from torch import nn

import edbc
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import capture
from edbc.capture.record.table import TypeTable
from edbc.capture.standins import ended


class Returning(nn.Module):
    """Returns a list of states joined, and keeps it."""

    def __init__(self, joined):
        super().__init__()
        self.linear, self.joined, self.table = nn.Linear(2, 2), joined, nn.Embedding(3, 2)
        self.kept: list[torch.Tensor] = []

    def forward(self, instance):
        self.kept = [self.linear(torch.ones(1, 2)) * number for number in instance]
        return self.joined(self)


def sources(model) -> list[str]:
    """The lines of all types of a mini-batch."""
    view, table = ModelView(model), TypeTable()
    return [kind.source for kind in capture(*recording_shadow(view, table), [[1.0, 2.0]]).graph.types]


def looked_up(model: Returning) -> torch.Tensor:
    return model.table(torch.tensor([2, 0]))


def test_what_is_returned_last_has_a_line_of_the_model() -> None:
    """A node made of what forward returned has forward's line, whoever called: a plan's bytes hang on it."""
    here = sources(Returning(looked_up))
    there = sources(Returning(looked_up))
    assert here == there
    assert f"test_returned.py:{Returning.forward.__code__.co_firstlineno}" in here


def test_a_model_that_ran_with_gradients_is_recorded() -> None:
    """States with a history on the model's attributes, in lists too, do not stop it from being copied."""
    model = Returning(lambda model: torch.cat(model.kept))
    model.last = model([1.0, 2.0])
    assert model.kept[0].grad_fn is not None
    assert sources(model)


def test_attempts_that_fail_leave_nothing_to_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of one counts as left by forward: all objects of the process were looked through, for some 50
    milliseconds each time."""
    asked = []
    monkeypatch.setattr(ended.gc, "get_referrers", lambda *of: asked.append(of) or [])
    program = load_all()["SentencesAsLongAsTheirMasksSay"]
    net = edbc.compile(program.build(8), program.instances(0, 16), force=True)
    with torch.no_grad():
        net(program.instances(5, 32))
    assert not asked
