"""What forward returns last, and what a model kept of an earlier run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import capture
from edbc.capture.record.table import TypeTable


class Returning(nn.Module):
    """Returns a list of states joined, and keeps it."""

    def __init__(self, joined):
        super().__init__()
        self.linear, self.joined = nn.Linear(2, 2), joined
        self.kept: list[torch.Tensor] = []

    def forward(self, instance):
        self.kept = [self.linear(torch.ones(1, 2)) * number for number in instance]
        return self.joined(self.kept)


def sources(model) -> list[str]:
    """The lines of all types of a mini-batch."""
    view, table = ModelView(model), TypeTable()
    return [kind.source for kind in capture(*recording_shadow(view, table), [[1.0, 2.0]]).graph.types]


@pytest.mark.parametrize("joined", [torch.cat, torch.stack], ids=["cat", "stack"])
def test_what_is_returned_last_has_a_line_of_the_model(joined) -> None:
    """A node made of what forward returned has forward's line, whoever called: a plan's bytes hang on it."""
    here = sources(Returning(joined))
    there = sources(Returning(joined))
    assert here == there
    assert f"test_returned.py:{Returning.forward.__code__.co_firstlineno}" in here


def test_a_model_that_ran_with_gradients_is_recorded() -> None:
    """States with a history on the model's attributes, in lists too, do not stop it from being copied."""
    model = Returning(torch.cat)
    model.last = model([1.0, 2.0])
    assert model.kept[0].grad_fn is not None
    assert sources(model)
