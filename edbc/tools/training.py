"""`edbc train` from its options to its files.

(1) The plan is bound to its model file as for running (edbc.tools.running), but what has no weights of a file is seeded
    by `Setting.seed` instead of the plan's seed. The model file must define `loss` (edbc.train.fit.objective).
(2) After every epoch the output folder holds `checkpoint.safetensors` (edbc.train.fit.checkpoint),
    `weights.safetensors`
    (the weights of the epoch with the smallest dev loss; of the last epoch without dev instances; fit for `edbc run
    --weights`), `curve.jsonl` (one JSON object per epoch) and `curve.svg`. Each is written whole or not at all.
(3) A folder with a checkpoint is never trained into anew: one resumes, or names another folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from edbc.base.arguments import FRONT_ENDS, require_count, require_name, require_rate
from edbc.base.files import found_at, one_line, require_file, write_text
from edbc.errors import EdbcError, InputError, ModelError, printable
from edbc.plan.plan import Plan
from edbc.plan.reader import read_plan
from edbc.run.dataset import CapturedDataset, items_of
from edbc.run.modelfile import ModelFile, file_sha256
from edbc.run.weights.weightsfile import SEEDED
from edbc.tools.report.curves import epochs_picture
from edbc.tools.running import SAMPLED, Bound, Warn, bind_plan
from edbc.tools.running import Setting as Binding
from edbc.train.fit.checkpoint import read_checkpoint, require_same, restore, write_checkpoint, write_state
from edbc.train.fit.loop import Alone, Data, Epoch, Loop, Run, Step
from edbc.train.fit.objective import Objective
from edbc.train.fit.optimizers import KINDS, optimizer_of

CHECKPOINT, WEIGHTS, CURVE, PICTURE = "checkpoint.safetensors", "weights.safetensors", "curve.jsonl", "curve.svg"


@dataclass(frozen=True)
class Setting:
    """The options of `edbc train`."""

    output: str | Path
    inputs: Sequence[str | Path] = ()
    dev: Sequence[str | Path] = ()
    epochs: int = 10
    batch_size: int = 32
    optimizer: str = "adam"
    lr: float | None = None
    seed: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    weights: str | None = None
    """What to start from, as in `edbc.tools.running.Setting`."""
    front_end: str = "record"
    trust_changed_model: bool = False
    resume: bool = False
    recompute: int | str | None = None
    recapture: bool = False
    """Run forward in every epoch, in place of capturing each instance once (`edbc.capture.captured`)."""

    def __post_init__(self) -> None:
        """Raise EdbcError for what no training can do; devices and dtypes are judged when the plan is bound."""
        require_count("epochs", self.epochs)
        require_count("batch_size", self.batch_size)
        require_count("seed", self.seed, 0)
        require_name("optimizer", self.optimizer, KINDS)
        require_rate("lr", self.rate)
        require_name("front_end", self.front_end, FRONT_ENDS)
        if self.limit is not None:
            require_count("limit", self.limit)
        if self.resume and self.weights is not None:
            raise EdbcError(
                f"weights: expected none with resume, got {printable(repr(self.weights))}; the checkpoint holds the "
                "weights: leave one of the two out"
            )

    @property
    def rate(self) -> float:
        """The learning rate: given, or the optimiser's own."""
        return KINDS[self.optimizer].rate if self.lr is None else self.lr


class Training:
    """One training: a loop bound to files. Iterate over `run()`; call `save()` between two steps to keep them."""

    def __init__(self, plan: str | Path, model: str | None, setting: Setting, warn: Warn, ranks: Alone | None = None):
        self.setting = setting
        self.folder = Path(setting.output)
        self._require_folder()
        if model is not None:
            require_file(model, "a model file", ModelError, "check the path")
        loaded = read_plan(plan)
        bound = bind_plan(Path(plan), loaded, _binding(model, loaded, setting), warn)
        objective = objective_of(bound.file)
        objective = replace(objective, loss=bound.cast.wrapped(objective.loss))
        data = _data(bound, setting)
        self.ranks = ranks or Alone()
        net = _net(bound, data, setting, self.ranks)
        optimizer = optimizer_of(bound.net.model, setting.optimizer, setting.rate)
        self.loop = Loop(net, bound.net.model, optimizer, objective, data, setting.batch_size, setting.seed,
                         ranks=self.ranks)  # fmt: skip
        self.identity = _identity(bound, setting)
        torch.manual_seed(setting.seed)
        if setting.resume:
            checkpoint = read_checkpoint(self.folder / CHECKPOINT)
            require_same(checkpoint, self.identity)
            restore(self.loop, checkpoint)
        self._make_folder()

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EdbcError(
                f"{self.folder}: expected to write there, got {error.strerror}; name another --output"
            ) from None

    def _require_folder(self) -> None:
        """Definition (3), before anything is read."""
        found = found_at(self.folder)
        if found not in ("a folder", "nothing"):
            raise EdbcError(
                f"{one_line(self.folder)}: expected a folder to write to, got {found}; name another --output"
            )
        if not self.setting.resume and (self.folder / CHECKPOINT).exists():
            raise EdbcError(
                f"{self.folder / CHECKPOINT}: expected a folder without a checkpoint, got one; give --resume to go on, "
                "or name another --output"
            )

    @property
    def history(self) -> list[Epoch]:
        """The epochs done, those before a resumption too."""
        return self.loop.state.history

    def run(self) -> Iterator[Step | Epoch]:
        """Train until the epochs are done; files are written when an epoch is."""
        for event in self.loop.run(self.setting.epochs):
            if isinstance(event, Epoch):
                self._keep_epoch(event)
            yield event

    def _keep_epoch(self, epoch: Epoch) -> None:
        if self.ranks.rank == 0:
            self._write_epoch(epoch)
        self.save()

    def _write_epoch(self, epoch: Epoch) -> None:
        if epoch.dev is None or epoch.dev["loss"] <= min(e.dev["loss"] for e in self.history if e.dev is not None):
            write_state(self.loop.model.state_dict(), self.folder / WEIGHTS, "the weights")
        lines = "".join(json.dumps(e.as_json()) + "\n" for e in self.history)
        picture = epochs_picture([(e.train, e.dev) for e in self.history])
        for name, text in ((CURVE, lines), (PICTURE, picture)):
            write_text(self.folder / name, text, "the curve", "name another --output")

    def save(self) -> Path:
        """Write the checkpoint and say where."""
        path = self.folder / CHECKPOINT
        write_checkpoint(self.loop, self.identity, path)
        return path


def objective_of(file: ModelFile) -> Objective:
    """The model file's loss and metrics, definition (1). Raises ModelError when it defines no loss."""
    loss, metrics = (getattr(file.module, name, None) for name in ("loss", "metrics"))
    if not callable(loss):
        raise ModelError(
            f"{file.path}: expected a function 'loss' to train with, got none; define loss(outputs, instance) "
            "-> Tensor, see docs/model-files.md"
        )
    return Objective(file.guarded("loss", loss), metrics and file.guarded("metrics", metrics), file.path.name)


def _binding(model: str | None, plan: Plan, setting: Setting) -> Binding:
    """Weights of a checkpoint come after binding: no others are read for them."""
    weights = SEEDED if setting.resume else setting.weights
    is_recorded = weights is None and plan.model.weights is not None
    return Binding(
        config=setting.config, device=setting.device, dtype=setting.dtype, weights=weights, model=model,
        seed=None if is_recorded else setting.seed, trust_changed_model=setting.trust_changed_model,
        recompute=setting.recompute,
    )  # fmt: skip


def _data(bound: Bound, setting: Setting) -> Data:
    """Training and dev instances, in memory. Raises InputError when there are none to train on."""
    file, config, limit = bound.file, bound.config, setting.limit
    if setting.inputs:
        train = bound.cast(file.load(setting.inputs, config, limit))
    else:
        train = bound.cast(file.sample(SAMPLED if limit is None else limit, 1, config))
    if not train:
        raise InputError(
            f"{', '.join(map(str, setting.inputs)) or file.path}: expected instances to train on, got none"
        )
    return Data(train, bound.cast(file.load(setting.dev, config)) if setting.dev else [])


def _net(bound: Bound, data: Data, setting: Setting, ranks: Alone) -> Run:
    """The bound net, on instances that are captured once, or with vertex functions become arrays once."""
    net = ranks.wrapped(bound.net)
    instances = [*data.train, *data.dev]
    number_of = {id(instance): number for number, instance in enumerate(instances)}
    known: Any = instances
    if setting.front_end == "vertex":
        convert: Callable[[Any], Any] = bound.file.vertex_instance(bound.config)
        known = list(map(convert, instances))
    elif not setting.recapture:
        known = CapturedDataset(instances, bound.net)
        known.is_read_beside = True  # by the model file's loss

    def run(batch: Sequence[Any]) -> Sequence[Any]:
        return net(items_of(known, [number_of[id(instance)] for instance in batch]))

    ranks.weigh(instances, lambda numbers: list(map(_nodes, items_of(known, numbers))))
    return run if setting.front_end == "vertex" else bound.cast.wrapped(run)


def _nodes(instance: Any) -> int:
    """Nodes of what stands for an instance; 1 for one that is recorded whenever it runs."""
    return int(getattr(instance, "num_nodes", getattr(instance, "num_vertices", 1)))


def _identity(bound: Bound, setting: Setting) -> dict[str, Any]:
    """What a checkpoint's rest of training depends on; files by content, not by name."""
    return {
        "model": bound.file.sha256,
        "config": bound.config,
        "input": [file_sha256(path) for path in setting.inputs],
        "dev": [file_sha256(path) for path in setting.dev],
        "limit": setting.limit,
        "batch-size": setting.batch_size,
        "optimizer": setting.optimizer,
        "lr": setting.rate,
        "seed": setting.seed,
        "dtype": setting.dtype,
    }
