"""Values in torch, for whole batches: what every other rendering is held to, and what autograd can follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from edbc.kernels.value import V, in_order
from edbc.runtime.reference import MAPS

Weight = tuple[torch.Tensor, torch.Tensor | None]
_ALONG: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "total": lambda x: x.sum(2), "largest": lambda x: x.amax(2), "smallest": lambda x: x.amin(2),
}  # fmt: skip


def evaluate(outputs: Sequence[V], rows: Sequence[torch.Tensor], parameter: Callable[[Any], torch.Tensor],
             weights: Sequence[Weight]) -> list[torch.Tensor]:  # fmt: skip
    """Outputs (n, size) of operands' rows (n, size); `parameter` gives those that are read whole, `weights` packed ones
    (rows, columns) with their biases."""
    known: dict[V, torch.Tensor] = {}
    for v in in_order(outputs):
        known[v] = _one(v, [known[source] for source in v.sources], rows, parameter, weights)
    return [known[v] for v in outputs]


def _one(v: V, sources: Sequence[torch.Tensor], rows: Sequence[torch.Tensor], parameter: Callable[[Any], torch.Tensor],
         weights: Sequence[Weight]) -> torch.Tensor:  # fmt: skip
    n = len(rows[0]) if rows else 1
    match v.op:
        case "load":
            return rows[v.arg[0]][:, v.arg[1] : v.arg[1] + v.size]
        case "parameter":
            return parameter(v.arg[0]).reshape(-1)[v.arg[1] : v.arg[1] + v.size].expand(n, -1)
        case "number":
            like = rows[0] if rows else weights[0][0]
            return like.new_full((n, v.size), v.arg)
        case "part":
            return sources[0][:, v.arg : v.arg + v.size]
        case "cat":
            return torch.cat(list(sources), 1) if sources else rows[0][:, :0]
        case "product":
            weight, bias = weights[v.arg[0]]
            found = sources[0] @ weight + (0 if bias is None else bias)
            return found + sources[1] if len(sources) > 1 else found
        case "matmul":
            m, k, inner = v.arg
            return (sources[0].reshape(n, m, k) @ sources[1].reshape(n, k, inner)).reshape(n, -1)
        case "spread":
            outer, times, inner = v.arg
            return sources[0].reshape(n, outer, 1, inner).expand(-1, -1, times, -1).reshape(n, -1)
        case "finite":
            return torch.where(sources[0].isfinite(), sources[0], 0)
        case op if op in _ALONG:
            return _ALONG[op](sources[0].reshape(n, *v.arg)).reshape(n, -1)
    return MAPS[v.op](*sources)
