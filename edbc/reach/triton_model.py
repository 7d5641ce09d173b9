"""Triton Inference Server's python backend: `TritonPythonModel`, which joins requests into one mini-batch.

In a model repository `trees/1/model.py` is one line, and `trees/config.pbtxt` names the plan:

    from edbc.reach.triton_model import TritonPythonModel

    parameters: { key: "plan" value: { string_value: "plans/trees.yaml" } }     # from the model's folder
    input  [ { name: "TEXT"  data_type: TYPE_STRING  dims: [ -1 ] } ]
    output [ { name: "output"  data_type: TYPE_FP32  dims: [ -1 ] },
             { name: "output_offsets"  data_type: TYPE_INT64  dims: [ -1 ] } ]

(1) A request has any number of texts, each an instance by the model file's `parse`. `execute` gets the requests that
    wait (with `dynamic_batching`, all that the server joined) and runs the instances of all of them as one mini-batch.
(2) Each output (`edbc.run.outputs`) is the rows of the request's instances one after the other, and
    `NAME_offsets` says where each begins, and the end: instances differ in size.
(3) A request with a text that is no instance gets an error, and the others their answers; one that was cancelled does
    not execute.

Built to the protocol as NVIDIA documents it (`triton_python_backend_utils`); not run inside a server here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edbc.errors import ModelError
from edbc.reach.outcomes import Failure
from edbc.reach.predictor import Predictor

TEXT = "TEXT"


class TritonPythonModel:
    """See the module's docstring."""

    def initialize(self, args: dict[str, str]) -> None:
        """Bind the plan of the parameters `plan` and, if any, `weights` and `device`, once."""
        config = json.loads(args["model_config"])
        given = {name: value["string_value"] for name, value in config.get("parameters", {}).items()}
        if "plan" not in given:
            raise ModelError("config.pbtxt: expected a parameter 'plan', got none; name the plan's file there")
        folder = Path(args.get("model_repository", "."))
        plan, weights = (str(folder / given[name]) if name in given else None for name in ("plan", "weights"))
        self.predictor = Predictor(str(plan), weights, on_error="record", device=given.get("device", "cpu"))
        self.outputs = [output["name"] for output in config.get("output", [])]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """A response per request, in order; definitions (1) to (3)."""
        import triton_python_backend_utils as pb_utils

        texts = [[] if _is_cancelled(request) else _texts(pb_utils, request) for request in requests]
        places = [f"{TEXT}[{i}]" for some in texts for i in range(len(some))]
        found = iter(self.predictor.outcomes([text for some in texts for text in some], places))
        return [self._response(pb_utils, request, [next(found) for _ in some])
                for request, some in zip(requests, texts, strict=True)]  # fmt: skip

    def _response(self, pb_utils: Any, request: Any, found: Sequence[Any]) -> Any:
        failed = next((str(x.error) for x in found if isinstance(x, Failure)), None)
        if _is_cancelled(request):
            failed = "cancelled"
        if failed is not None:
            return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(failed))
        names = dict.fromkeys(name for outputs in found for name in outputs)
        tensors = [tensor for name in names for tensor in _joined(pb_utils, name, found)]
        wanted = [t for t in tensors if not self.outputs or t.name() in self.outputs]
        return pb_utils.InferenceResponse(output_tensors=wanted)


def _is_cancelled(request: Any) -> bool:
    ask = getattr(request, "is_cancelled", None)
    return ask is not None and bool(ask())


def _texts(pb_utils: Any, request: Any) -> list[Any]:
    return list(pb_utils.get_input_tensor_by_name(request, TEXT).as_numpy().reshape(-1))


def _joined(pb_utils: Any, name: str, found: Sequence[dict[str, torch.Tensor]]) -> list[Any]:
    """Definition (2)."""
    like = next(outputs[name] for outputs in found if name in outputs)
    parts = [outputs.get(name, like[:0]) for outputs in found]
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    rows = torch.cat(parts).cpu()
    rows = rows.float() if rows.dtype is torch.bfloat16 else rows
    return [pb_utils.Tensor(name, rows.numpy()), pb_utils.Tensor(f"{name}_offsets", offsets)]
