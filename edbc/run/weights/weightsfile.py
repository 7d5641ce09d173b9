"""Weights files: safetensors and nothing else, held against the plan and the model before anything is loaded.

(1) A plan may record a weights file (`edbc compile --weights`): a plain name, of a file that stands beside the plan,
    and its sha256. The record survives compiling again, so that a plan does not lose its weights in silence.
(2) The recorded file is opened once, and not where its name is a symbolic link or anything but a regular file. The
    bytes that are hashed are the bytes that are loaded, whatever happens to the file in between.
(3) Whoever builds a plan's model gives it the weights of `model_of_plan`: of the file that the user names (`--weights`
    of run, train and bench), which may stand anywhere; seeded ones for `none`, or for a seed alone (`--seed`); else
    those that the plan records; else seeded ones.
(4) Names, shapes and dtypes must be the model's, all of them, before one is changed. Nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edbc.base.files import found_at, require_file
from edbc.errors import EdbcError, StaleError
from edbc.plan.plan import FileRef, Plan
from edbc.plan.static import StaticPlan, read_any_plan
from edbc.plan.verify import is_weights_name

if TYPE_CHECKING:
    import torch
    from torch import nn

    from edbc.run.modelfile import Config, ModelFile

    State = dict[str, torch.Tensor]


SEEDED = "none"
"""In place of a file's name: seeded weights, whatever a plan records."""


@dataclass(frozen=True)
class Weights:
    """A weights file that was read, definition (2)."""

    path: Path
    data: bytes = field(repr=False)

    @property
    def reference(self) -> FileRef:
        """What a plan records of it."""
        return FileRef(self.path.name, hashlib.sha256(self.data).hexdigest())

    def load(self, model: nn.Module) -> None:
        """Give the model these weights. Raises what `load_weights` raises."""
        from safetensors.torch import load

        _fill(model, self.path, lambda: load(self.data))


def weights_for(plan: Path, path: str | Path | None) -> Weights | None:
    """The weights to compile a plan with that will stand at `plan`, and to record in it.

    None are for `none`; without a path they are those that the plan there records. Raises EdbcError unless the file
    stands beside the plan, by a name that a plan may hold, and what `recorded_weights` raises.
    """
    if path == SEEDED:
        return None
    if path is None:
        return recorded_weights(plan, _plan_at(plan))
    path = Path(path)
    if path.parent.resolve() != plan.parent.resolve():
        raise EdbcError(
            f"{path}: expected weights beside the plan, in {plan.parent}, got a file elsewhere; a plan records a plain "
            "name: copy the file there, or give --weights when running"
        )
    if not is_weights_name(path.name):
        raise EdbcError(f"{path}: expected a plain name that ends in .safetensors, got {path.name!r}; rename the file")
    return _read(path, EdbcError, "give a file of its own")


def _plan_at(path: Path) -> Plan | StaticPlan | None:
    """The plan that stands there, if any; a file that is no plan is simply replaced."""
    try:
        return read_any_plan(path) if found_at(path) != "nothing" else None
    except EdbcError:
        return None


def recorded_weights(plan_path: Path, plan: Plan | StaticPlan | None) -> Weights | None:
    """The weights file that a plan records, if any. Raises StaleError when it is missing, is not a file of its own, or
    is not the recorded one."""
    recorded = None if plan is None else plan.model.weights
    if recorded is None:
        return None
    path = plan_path.parent / recorded.name
    weights = _read(path, StaleError, "put the plan's weights there, or name others with --weights")
    have = weights.reference.sha256
    if have != recorded.sha256:
        raise StaleError(
            f"{path}: expected the weights that the plan records (sha256 {recorded.sha256[:16]}...), got "
            f"{have[:16]}...; put those there, run 'edbc compile --weights' again, or name others with --weights"
        )
    return weights


def model_of_plan(file: ModelFile, config: Config, plan: Plan | StaticPlan, plan_path: Path, seed: int | None = None,
                  weights: str | None = None) -> nn.Module:  # fmt: skip
    """The model that a plan is of, as built on the CPU, with the weights of definition (3). Raises what
    `ModelFile.build`, `load_weights` and `recorded_weights` raise."""
    model = file.build(config, plan.model.seed if seed is None else seed)
    if weights is None and seed is None:
        recorded = recorded_weights(plan_path, plan)
        if recorded is not None:
            recorded.load(model)
    elif weights is not None and weights != SEEDED:
        load_weights(model, weights)
    return model


def load_weights(model: nn.Module, path: str) -> None:
    """Load a safetensors file into the model as built, definitions (3) and (4). Raises StaleError with both sides when
    names, shapes or dtypes differ."""
    from safetensors.torch import load_file

    require_file(path, "a safetensors file", EdbcError, "check --weights")
    _fill(model, path, lambda: load_file(path))


def _read(path: Path, error: type[EdbcError], remedy: str) -> Weights:
    """The whole file, definition (2)."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise error(f"{path}: expected a safetensors file, got no regular file; {remedy}")
            return Weights(path, file.read())
    except OSError as reason:
        got = "a symbolic link" if reason.errno == errno.ELOOP else reason.strerror
        raise error(f"{path}: expected a safetensors file, got: {got}; {remedy}") from None


def _fill(model: nn.Module, path: str | Path, read: Callable[[], State]) -> None:
    """Definition (4)."""
    import safetensors

    try:
        state = read()
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise EdbcError(
            f"{path}: expected a safetensors file, got {error}; write one with safetensors.torch.save_file"
        ) from None
    own = model.state_dict()
    for name in [*own, *state]:
        ours, theirs = _described(own.get(name)), _described(state.get(name))
        if ours != theirs:
            raise StaleError(
                f"{path}: weight {name!r}: expected {ours} from the model, got {theirs}; give weights of this "
                f"model and config, or seeded ones with --weights {SEEDED}"
            )
    model.load_state_dict(state)


def _described(weight: torch.Tensor | None) -> str:
    return "nothing" if weight is None else f"{str(weight.dtype).removeprefix('torch.')} {tuple(weight.shape)}"
