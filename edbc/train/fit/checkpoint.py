"""Checkpoints: all that the rest of a training depends on, in one safetensors file, written whole or not at all.

Tensors: `model.NAME` (the state dict), `optimizer.SLOT.NAME` (edbc.train.fit.optimizers) and `random.DEVICE`, the
states of torch's generators. The header's metadata holds plain JSON under `edbc_checkpoint`: the format's version,
where training stands, the figures so far, and the *identity*, what must be the same for the rest of training to be the
same: model, config, data, seed, batch size, optimiser. Nothing is pickled, and reading a checkpoint executes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from edbc.base.files import require_file, write_tensors
from edbc.errors import EdbcError, StaleError
from edbc.train.fit.loop import Epoch, Loop, State
from edbc.train.fit.objective import Tally
from edbc.train.fit.optimizers import restore_state, state_tensors

FORMAT = 1
KEY = "edbc_checkpoint"
MODEL, OPTIMIZER, RANDOM = "model.", "optimizer.", "random."

Identity = Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read."""

    path: Path
    tensors: dict[str, Tensor]
    state: State
    identity: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors of a part, by their names in it."""
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}


def write_state(tensors: Mapping[str, Tensor], path: Path, what: str, metadata: dict[str, str] | None = None) -> None:
    """A safetensors file; tied tensors stand in it once per name. `what` it is, an error says."""
    held = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    write_tensors(held, path, what, "free space or name another --output", metadata)


def write_checkpoint(loop: Loop, identity: Identity, path: Path) -> None:
    """Write where a loop stands, between two steps of it. All ranks call it; the first one writes."""
    state = replace(loop.state, tally=loop.ranks.total(loop.state.tally))
    if loop.ranks.rank:
        return
    tensors = {MODEL + name: t for name, t in loop.model.state_dict().items()}
    tensors |= {OPTIMIZER + name: t for name, t in state_tensors(loop.model, loop.optimizer).items()}
    tensors |= {RANDOM + name: t for name, t in _generators().items()}
    write_state(
        tensors, path, "the checkpoint", {KEY: json.dumps({"format": FORMAT, "identity": identity, **_as_json(state)})}
    )


def _generators() -> dict[str, Tensor]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {"cpu": torch.get_rng_state(), **{f"cuda{i}": state for i, state in enumerate(cuda)}}


def _as_json(state: State) -> dict[str, Any]:
    tally = state.tally
    return {
        "epoch": state.epoch,
        "step": state.step,
        "tally": [tally.instances, tally.loss, tally.pairs, tally.seconds],
        "history": [epoch.as_json() for epoch in state.history],
    }


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises EdbcError when the file is none, StaleError for one of another format."""
    require_file(path, "a checkpoint", EdbcError, "train without --resume first")
    try:
        with safetensors.safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(KEY)
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise EdbcError(f"{path}: expected a checkpoint, got no safetensors file ({error}); start anew") from None
    if text is None:
        raise EdbcError(f"{path}: expected a checkpoint of edbc train, got a safetensors file without {KEY!r}")
    try:
        content = json.loads(text)
        _require_format(path, content["format"])
        return Checkpoint(path, tensors, _state(content), dict(content["identity"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EdbcError(f"{path}: expected the metadata of a checkpoint, got {error!r}; start anew") from None


def _require_format(path: Path, version: Any) -> None:
    if version != FORMAT:
        raise StaleError(f"{path}: expected checkpoint format {FORMAT}, got {version}; start anew")


def _state(content: dict[str, Any]) -> State:
    instances, loss, pairs, seconds = content["tally"]
    tally = Tally(int(instances), float(loss), {k: (float(a), float(b)) for k, (a, b) in pairs.items()}, float(seconds))
    return State(int(content["epoch"]), int(content["step"]), tally, [Epoch(**e) for e in content["history"]])


def require_same(checkpoint: Checkpoint, identity: Identity) -> None:
    """Raise StaleError at the first thing that is not what the checkpoint was trained with."""
    here = json.loads(json.dumps(identity))
    for key in {**checkpoint.identity, **here}:
        was, now = checkpoint.identity.get(key), here.get(key)
        if was != now:
            raise StaleError(
                f"{checkpoint.path}: {key}: expected {was!r} as in the checkpoint, got {now!r}; go on with what it was "
                "trained with, or start anew with another --output"
            )


def restore(loop: Loop, checkpoint: Checkpoint) -> None:
    """Put a loop where the checkpoint stands. Raises StaleError when its weights are not the model's."""
    weights = checkpoint.part(MODEL)
    ours, theirs = _shapes(loop.model.state_dict()), _shapes(weights)
    for name in {**ours, **theirs}:
        here, there = ours.get(name, "nothing"), theirs.get(name, "nothing")
        if here != there:
            raise StaleError(f"{checkpoint.path}: weight {name!r}: expected {here} from the model, got {there}")
    _restore_generators(checkpoint)
    loop.model.load_state_dict(weights)
    restore_state(loop.model, loop.optimizer, checkpoint.part(OPTIMIZER))
    state = checkpoint.state
    loop.state = (
        replace(state, tally=Tally(seconds=state.tally.seconds)) if loop.ranks.rank else state
    )  # the sums stand in one of them


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _restore_generators(checkpoint: Checkpoint) -> None:
    states = checkpoint.part(RANDOM)
    try:
        torch.set_rng_state(states.pop("cpu"))
        for name, state in states.items():
            torch.cuda.set_rng_state(state, int(name.removeprefix("cuda")))
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise EdbcError(f"{checkpoint.path}: expected the states of torch's generators, got {error!r}") from None
