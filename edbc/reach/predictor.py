"""`Predictor`: a plan bound once per process, which turns batches of rows into columns of outputs.

    ds.map_batches(edbc.reach.Predictor, fn_constructor_kwargs={"plan": "plan.yaml", "weights": "w.safetensors"},
                   batch_size=256, compute=ray.data.ActorPoolStrategy(size=2))

(1) A batch is a dict of columns, as Ray Data's are in "numpy" format. The texts in one of them become instances by the
    model file's `parse`; all other columns stay. Each output (`edbc.run.outputs`) is a column of arrays, of any
    first dimension.
(2) What travels to a process is paths and hashes. A plan, model file or weights file that is another one there, or
    another edbc or torch, is refused (`Facts`); weights are read once per process, and the bytes that were hashed are
    the bytes that are loaded.
(3) A broken row is named by its `file` and `line` columns where there are such. It fails the batch, is left out
    ("skip"), or stays with what was wrong in the column `error` ("record"), where outputs have no rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from edbc._version import __version__
from edbc.base.arguments import require_name
from edbc.base.files import require_file
from edbc.errors import EdbcError, InputError, ModelError, StaleError, described
from edbc.plan.reader import read_plan
from edbc.reach.outcomes import Failure, outcomes
from edbc.run.modelfile import file_sha256, hash_model_file
from edbc.run.outputs import rows_by_name
from edbc.run.weights.weightsfile import SEEDED, Weights
from edbc.tools.checking import model_path
from edbc.tools.running import Bound, Setting, bind_plan

if TYPE_CHECKING:
    from edbc.run.session import Net

ON_ERROR = ("fail", "skip", "record")
Columns = Mapping[str, Sequence[Any]]


class Facts(NamedTuple):
    """What a worker's results depend on, besides its rows; definition (2)."""

    edbc: str
    torch: str
    plan: str
    model: str
    weights: str | None

    @classmethod
    def here(cls, plan: str, model: str | None, weights: str | None) -> Facts:
        """Of this process."""
        own = model_path(Path(plan), read_plan(plan), model)
        has_file = weights not in (None, SEEDED)
        return cls(__version__, torch.__version__, file_sha256(plan), hash_model_file(own),
                   file_sha256(str(weights)) if has_file else None)  # fmt: skip

    def require(self, here: Facts) -> None:
        """Raise StaleError at the first that differs."""
        for name, there, own in zip(self._fields, self, here, strict=True):
            if there != own:
                raise StaleError(
                    f"worker: {name}: expected {there} as where the job was started, got {own}; give all workers the "
                    "same files and versions"
                )


@lru_cache(maxsize=4)
def _bound(plan: str, weights: str | None, sha256: str | None, options: tuple[tuple[str, Any], ...]) -> Bound:
    """Once per process."""
    named: dict[str, Any] = {name: dict(value) if name == "config" else value for name, value in options}
    has_file = weights not in (None, SEEDED)
    setting = Setting(weights=SEEDED if has_file else weights, **named)
    bound = bind_plan(Path(plan), read_plan(plan), setting, warnings.warn)
    if has_file:
        path = Path(str(weights))
        require_file(path, "a safetensors file", EdbcError, "check weights")
        read = Weights(path, path.read_bytes())
        found = read.reference.sha256
        if sha256 not in (None, found):
            raise StaleError(
                f"{path}: expected the weights of sha256 {str(sha256)[:16]}..., got {found[:16]}...; give workers the "
                "same file"
            )
        read.load(bound.net.model)
    return bound


class Predictor:
    """See the module's docstring. `binding` are fields of `edbc.tools.running.Setting` that say how the plan is bound:
    config, device, dtype, model, and so on."""

    def __init__(self, plan: str | Path, weights: str | Path | None = None, *, weights_sha256: str | None = None,
                 column: str = "text", on_error: str = "fail", facts: Facts | None = None, **binding: Any):  # fmt: skip
        require_name("on_error", on_error, ON_ERROR)
        self.column, self.on_error = column, on_error
        weights = None if weights is None else str(weights)
        if facts is not None:
            Facts(*facts).require(Facts.here(str(plan), binding.get("model"), weights))
            weights_sha256 = Facts(*facts).weights
        config = tuple(sorted(dict(binding.pop("config", None) or {}).items()))
        options = (*sorted(binding.items()), ("config", config))
        self.bound = _bound(str(plan), weights, weights_sha256, options)
        self.parse = self.bound.file.parse(self.bound.config)
        """None where instances come from files as a whole."""

    @property
    def net(self) -> Net:
        """The bound net."""
        return self.bound.net

    def named(self, result: Any) -> dict[str, torch.Tensor]:
        """The outputs of one instance by name."""
        return rows_by_name(result)

    def __call__(self, batch: Columns) -> dict[str, Any]:
        """Columns of a batch without the texts, and with outputs; definitions (1) and (3)."""
        found = self.outcomes(batch[self.column], places_of(batch, len(batch[self.column])))
        kept = [number for number, x in enumerate(found) if self.on_error == "record" or not isinstance(x, Failure)]
        columns = {n: _picked(values, kept) for n, values in batch.items() if n != self.column}
        outputs = [{} if isinstance(found[i], Failure) else found[i] for i in kept]
        for name in dict.fromkeys(name for output in outputs for name in output):
            like = next(output[name] for output in outputs if name in output)
            columns[name] = _column([output.get(name, like[:0]) for output in outputs])
        if self.on_error == "record":
            columns["error"] = np.array([str(found[i].error) if isinstance(found[i], Failure) else "" for i in kept])
        return columns

    def outcomes(self, texts: Sequence[Any], places: Sequence[str]) -> list[Any]:
        """Outputs by name of every text, or a Failure that names its place. Raises the first of them with "fail"."""
        if self.parse is None:
            raise ModelError(
                f"{self.bound.file.path}: expected a function 'parse' that makes an instance of a text, got none; "
                "define parse(text) -> instance, see docs/model-files.md"
            )
        parse = self.parse
        parsed = [one for text in texts for one in outcomes(lambda rows: [parse(_text(rows[0]))], [text])]
        return self.results(parsed, places)

    def results(self, instances: Sequence[Any], places: Sequence[str]) -> list[Any]:
        """The same for instances, in the place of some of which there is a Failure already."""
        good = [x for x in instances if not isinstance(x, Failure)]
        with self.bound.cast.default():
            ran = iter(outcomes(self._run, self.bound.cast(good)))
        found = [x if isinstance(x, Failure) else next(ran) for x in instances]
        found = [x if isinstance(x, Failure) else rows_by_name(x) for x in found]
        for number, x in enumerate(found):
            if isinstance(x, Failure):
                found[number] = Failure(InputError(f"{places[number]}: {_said(x.error)}"))
                if self.on_error == "fail":
                    raise found[number].error from None
        return found

    def _run(self, instances: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            return self.bound.net(instances)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, EdbcError) else described(error)


def places_of(batch: Columns, count: int) -> list[str]:
    """How messages name the rows of a batch."""
    if "file" in batch and "line" in batch:
        return [f"{file}:{line}" for file, line in zip(batch["file"], batch["line"], strict=True)]
    return [f"row {number} of its batch" for number in range(count)]


def _picked(values: Sequence[Any], kept: Sequence[int]) -> Any:
    return values[np.array(kept, int)] if isinstance(values, np.ndarray) else [values[i] for i in kept]


def _column(tensors: Sequence[torch.Tensor]) -> Any:
    """Arrays of any first dimension; numpy has no bfloat16, which becomes float32."""
    column = np.empty(len(tensors), object)
    for number, tensor in enumerate(tensors):
        whole = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
        column[number] = whole.cpu().numpy()
    return column
