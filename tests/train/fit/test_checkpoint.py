"""Checkpoints: plain, whole or not at all, and refused when they do not fit."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import fresh, loop_of
from torch import nn

from edbc.errors import EdbcError, StaleError
from edbc.train.fit.checkpoint import KEY, read_checkpoint, require_same, restore, write_checkpoint


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A checkpoint after two steps."""
    loop = loop_of(fresh())
    events = loop.run(1)
    next(events), next(events)
    path = tmp_path / "checkpoint.safetensors"
    write_checkpoint(loop, {"seed": 3, "lr": 0.01}, path)
    return path


def metadata(path: Path) -> dict[str, Any]:
    """The header of a safetensors file, read from its bytes."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length])["__metadata__"]


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the JSON of a checkpoint."""
    content = json.loads(metadata(path)[KEY])
    change(content)
    save_file(load_file(path), path, {KEY: json.dumps(content)})


def test_metadata_is_plain_json(written: Path) -> None:
    """The header says in JSON where training stands and with what; no part of the file is pickled."""
    content = json.loads(metadata(written)[KEY])

    assert (content["format"], content["epoch"], content["step"], content["history"]) == (1, 0, 2, [])
    assert content["identity"] == {"seed": 3, "lr": 0.01}
    assert {"model.out.weight", "optimizer.exp_avg_sq.out.weight", "optimizer.step.out.bias", "random.cpu"} <= set(
        load_file(written)
    )


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    """A parameter with two names is written under both, trains once and comes back as one."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Embedding(16, 3), nn.Linear(3, 16, bias=False)
            self.b.weight = self.a.weight

        def forward(self, sequence: Any) -> torch.Tensor:
            return self.b(self.a.weight[sequence[0][0]])[:3]

    loop, again = loop_of(Tied()), loop_of(Tied())
    list(loop.run(1))
    write_checkpoint(loop, {}, tmp_path / "c")
    restore(again, read_checkpoint(tmp_path / "c"))

    assert torch.equal(again.model.b.weight, loop.model.a.weight)
    assert again.model.a.weight is again.model.b.weight


def test_a_write_that_fails_leaves_the_checkpoint_before(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a file written, then an error: the old checkpoint is whole, nothing else is in the folder."""
    before = written.read_bytes()

    def break_off(_tensors: object, path: Path, _metadata: object) -> None:
        Path(path).write_bytes(before[: len(before) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", break_off)

    with pytest.raises(EdbcError, match=r"expected to write the checkpoint there, got .*No space left"):
        write_checkpoint(loop_of(fresh()), {}, written)
    assert written.read_bytes() == before
    assert list(written.parent.iterdir()) == [written]


def test_another_identity_is_refused_with_both_sides(written: Path) -> None:
    """What was and what is, by name; also when a thing is new or gone."""
    found = read_checkpoint(written)
    require_same(found, {"seed": 3, "lr": 0.01})

    with pytest.raises(StaleError, match=r"lr: expected 0\.01 as in the checkpoint, got 0\.1"):
        require_same(found, {"seed": 3, "lr": 0.1})
    with pytest.raises(StaleError, match="seed: expected 3 as in the checkpoint, got None"):
        require_same(found, {"lr": 0.01})
    with pytest.raises(StaleError, match="dtype: expected None as in the checkpoint, got 'float64'"):
        require_same(found, {"seed": 3, "lr": 0.01, "dtype": "float64"})


def test_what_is_no_checkpoint_is_refused(written: Path, tmp_path: Path) -> None:
    """Nothing, a text, a cut file and a file of weights: each with what was expected."""
    text, cut, weights = tmp_path / "text", tmp_path / "cut", tmp_path / "weights"
    text.write_text("weights")
    cut.write_bytes(written.read_bytes()[:-100])
    save_file({"a": torch.zeros(2)}, weights)

    for path, message in (
        (tmp_path / "none", "expected a checkpoint, got nothing; train without --resume first"),
        (text, "got no safetensors file"),
        (cut, "got no safetensors file"),
        (weights, "got a safetensors file without 'edbc_checkpoint'"),
    ):
        with pytest.raises(EdbcError, match=message):
            read_checkpoint(path)


@pytest.mark.parametrize("key", ["format", "identity", "epoch", "step", "tally", "history"])
@pytest.mark.parametrize("value", [None, "x", [[]]])
def test_broken_metadata_is_refused(written: Path, key: str, value: Any) -> None:
    """Any part of the metadata replaced by something else is one error about this file, not a traceback."""
    rewrite(written, lambda content: content.update({key: value}))

    with pytest.raises(EdbcError, match=r"checkpoint\.safetensors: expected "):
        read_checkpoint(written)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("model.out.weight", torch.zeros(2, 2), r"weight 'out.weight': expected \(3, 8\) from the model, got \(2, 2\)"),
        ("model.other", torch.zeros(2), r"weight 'other': expected nothing from the model, got \(2,\)"),
        ("optimizer.exp_avg.out.weight", torch.zeros(5), r"expected \(3, 8\) from the model, got \(5,\)"),
        ("optimizer.exp_avg.other", torch.zeros(5), "expected no such parameter from the model"),
        ("random.cpu", torch.zeros(3, dtype=torch.uint8), "expected the states of torch's generators"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(written: Path, name: str, tensor: torch.Tensor, message: str) -> None:
    """Weights, optimiser state and generators of another model or torch are named with both shapes."""
    save_file(load_file(written) | {name: tensor}, written, metadata(written))

    with pytest.raises(EdbcError, match=message):
        restore(loop_of(fresh()), read_checkpoint(written))
