"""Changes of parameters that leave no trace on them: fused steps of optimisers, and in-place changes of `.data`, do not
count versions up.

A *generation* begins with every step of an optimiser of torch.optim and with every mini-batch that gradients are asked
of. What is derived from parameters is derived anew in every generation, though version counters may say that none
changed. Between two mini-batches without gradients only the version counters tell.
"""

from __future__ import annotations

import itertools
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

_events = itertools.count(1)
_latest = 0


def count() -> None:
    """Begin a new generation."""
    global _latest
    _latest = next(_events)


def generation() -> int:
    """The number of this generation."""
    return _latest


def _after_step(*_: Any) -> None:
    count()


register_optimizer_step_post_hook(_after_step)
