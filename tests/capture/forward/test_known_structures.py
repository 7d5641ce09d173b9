"""Small mini-batches whose structure was met before are neither built, scheduled nor placed again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import bound, seeded
from torch import nn

from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward import build, left
from edbc.capture.forward.structures import LARGEST, MOST, structure_key
from edbc.capture.record.table import TypeTable
from edbc.errors import UnsupportedError
from edbc.run import session
from edbc.run.session import Net

SIZE = 4


class Trees(nn.Module):
    """Trees of words and vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.join, self.out = nn.Embedding(9, SIZE), nn.Linear(2 * SIZE, SIZE), nn.Linear(SIZE, 2)

    def forward(self, tree: Any) -> Any:
        return {"out": self.out(self.encode(tree)), "tree": tree}

    def encode(self, tree: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            return torch.tanh(tree)
        if isinstance(tree, int):
            return self.words(torch.tensor(tree))
        return torch.tanh(self.join(torch.cat([self.encode(tree[0]), self.encode(tree[1])])))


def chain(words: int, first: int = 0) -> Any:
    """A tree of so many words."""
    tree: Any = first
    for i in range(words - 1):
        tree = (tree, (first + i) % 9)
    return tree


@pytest.fixture(scope="module")
def net() -> Net:
    """Bound to what knows all types; instances are recorded, not joined from the record of one that is alike."""
    found = bound(seeded(Trees), [chain(3), ((1, torch.ones(SIZE)), (2, 3)), torch.ones(SIZE)])
    found.__dict__["alike"] = None
    return found


def require_eager(net: Net, batch: list[Any]) -> None:
    """Values and gradients are eager's."""
    for found, right in zip(net(batch), map(net.model, batch), strict=True):
        torch.testing.assert_close(found["out"], right["out"])
    parameters = list(net.model.parameters())
    ours = torch.autograd.grad(sum(r["out"].sum() for r in net(batch)), parameters, allow_unused=True)
    theirs = torch.autograd.grad(sum(net.model(i)["out"].sum() for i in batch), parameters, allow_unused=True)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other)


def test_data_of_a_known_structure_is_the_mini_batch_s_own(net: Net) -> None:
    """Equal structures with other words, vectors and results; and structures that differ in what is shared, in the
    order of operands, or in what is returned."""
    vectors = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(1))
    a, b, _ = vectors
    for batch in (
        [chain(3, 1)], [chain(3, 5)], [((1, 1), (1, 1))], [((1, 2), (1, 2))], [((1, 2), (3, 4))], [a], [b], [(a, 1)],
        [(1, a)], [(b, 2)], [(a, a)], [(a, b)], [a, a], [a, b], [1, 2], [2, 2], [chain(9, 2)] * 2,
        [chain(9, 2), chain(9, 3)],
    ):  # fmt: skip
        for _ in range(3):
            require_eager(net, batch)


def test_what_was_met_is_not_built_again(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mini-batch of a structure that was met is neither built, scheduled nor placed; a large one always is."""
    calls: list[str] = []

    def note(owner: Any, name: str) -> None:
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: (calls.append(name), function(*args, **kwargs))[1])

    large = [chain(LARGEST // 3)] * 2
    with torch.no_grad():
        for first in (0, 1, 2):
            net([chain(4, first)])
            net(large)
        for owner, name in ((build, "structure_of"), (session, "run"), (session, "place")):
            note(owner, name)
        result = net([chain(4, 7)])
        assert calls == []
        net(large)
    assert calls == ["structure_of", "run", "place"]
    torch.testing.assert_close(result[0]["out"], net.model(chain(4, 7))["out"])


def test_what_is_kept_is_bounded(net: Net) -> None:
    """However many structures are met, the newest MOST of them are kept, without their data."""
    with torch.no_grad():
        for count in range(2, 20):
            for other in range(1, 8):
                net([chain(count), chain(other)][: 1 + other % 2])
    kept = net.table.structures
    assert 0 < len(kept) <= MOST
    assert len(net._known) <= MOST
    assert all(len(structure.graph.operands) <= LARGEST for structure in kept.values())
    assert not any(isinstance(item, torch.Tensor) for structure in kept.values() for item in structure)


def test_what_is_of_another_mini_batch_is_of_no_known_structure() -> None:
    """Refs of values, and of externals, of mini-batches before, after, and of other recorders, are told from all that a
    mini-batch has, and refused still."""
    shadow, recorder = recording_shadow(ModelView(seeded(Trees).eval()), TypeTable())
    recording, collected = left.recorded(shadow, recorder, [chain(3)])
    for _ in range(2):
        build.build_collected(recording, collected)
    key = structure_key(recording, collected)
    refs = list(recording.refs)
    assert key in recording.table.structures
    for at, ref in enumerate(refs):
        for foreign in (recording.first_value - 1, recording.first_value - 2, ref + 3 + (1 << 40), ref - (1 << 41)):
            other = replace(recording, refs=[*refs[:at], foreign, *refs[at + 1 :]])
            assert structure_key(other, collected) not in recording.table.structures
            with pytest.raises(UnsupportedError, match="an earlier mini-batch"):
                build.build_collected(other, collected)


def test_types_that_a_table_learns_are_seen(net: Net) -> None:
    """A structure is of the types that there are: one more, and it is built anew."""
    net = bound(seeded(Trees), [chain(3)])
    with torch.no_grad():
        for batch in (
            [chain(3)],
            [chain(3)],
            [(1, torch.ones(SIZE))],
            [chain(3)],
            [(2, torch.zeros(SIZE))],
            [chain(3)],
        ):
            for found, right in zip(net(batch), map(net.model, batch), strict=True):
                torch.testing.assert_close(found["out"], right["out"])
