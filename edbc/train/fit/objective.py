"""What training minimises and what it counts: a model file's `loss` and `metrics`, checked at every call.

(1) `loss(outputs, instance)` is one number, differentiable: the loss of ONE instance from what `forward` returned for
    it. The loss of a mini-batch is the mean over its instances.
(2) `metrics(outputs, instance)`, optional, maps names to pairs (part, whole) of one instance, 12 of 15 nodes right for
    example. A metric over many instances is the sum of the parts over the sum of the wholes, so it does not depend on
    how instances are grouped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from edbc.errors import ModelError

Loss = Callable[[Any, Any], Any]
Metrics = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Objective:
    """The two functions, and the name of their file for messages."""

    loss: Loss
    metrics: Metrics | None = None
    where: str = "model file"

    def loss_of(self, outputs: Sequence[Any], instances: Sequence[Any]) -> Tensor:
        """The loss of a mini-batch, definition (1). Raises ModelError when a loss is no number."""
        losses = [self._number(self.loss(o, i)) for o, i in zip(outputs, instances, strict=True)]
        return torch.stack(losses).mean()

    def _number(self, loss: Any) -> Tensor:
        if not isinstance(loss, Tensor):
            raise ModelError(f"{self.where}: loss: expected a tensor of one number, got {type(loss).__name__}")
        if loss.numel() != 1 or not loss.is_floating_point():
            raise ModelError(
                f"{self.where}: loss: expected a floating-point tensor of one number, got {loss.dtype} of shape "
                f"{tuple(loss.shape)}; reduce it with .sum() or .mean()"
            )
        return loss.reshape(())

    def pairs_of(self, outputs: Any, instance: Any) -> Mapping[str, tuple[float, float]]:
        """The metrics of an instance, definition (2). Raises ModelError when they are no pairs of numbers."""
        if self.metrics is None:
            return {}
        found = self.metrics(outputs, instance)
        if not isinstance(found, Mapping) or not all(map(_is_pair, found.values())):
            raise ModelError(
                f"{self.where}: metrics: expected a dict of name: (part, whole), got {found!r:.80}; return for example "
                "{'accuracy': (right, nodes)}"
            )
        return {str(name): (float(part), float(whole)) for name, (part, whole) in found.items()}


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(v, int | float) for v in value)


@dataclass
class Tally:
    """Sums over the instances of an epoch so far."""

    instances: int = 0
    loss: float = 0.0
    pairs: dict[str, tuple[float, float]] = field(default_factory=dict)
    seconds: float = 0.0
    """Time in forward, loss, backward and optimiser."""

    def add(self, objective: Objective, loss: float, outputs: Sequence[Any], instances: Sequence[Any]) -> None:
        """Count one mini-batch in."""
        self.instances += len(instances)
        self.loss += loss * len(instances)
        with torch.no_grad():
            for output, instance in zip(outputs, instances, strict=True):
                for name, (part, whole) in objective.pairs_of(output, instance).items():
                    before = self.pairs.get(name, (0.0, 0.0))
                    self.pairs[name] = (before[0] + part, before[1] + whole)

    def means(self) -> dict[str, float]:
        """The loss per instance and the metrics; a metric without a whole is left out."""
        metrics = {name: part / whole for name, (part, whole) in self.pairs.items() if whole}
        return {"loss": self.loss / max(self.instances, 1), **metrics}
