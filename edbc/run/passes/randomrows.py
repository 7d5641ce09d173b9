"""The random numbers of a mini-batch: what the operands hold that `edbc.capture.record.draws` asks for.

Definitions.

(1) An instance that draws has a *seed*: 64 bits of torch's own generator, taken when the mini-batch runs, in the order
    of the instances. So `torch.manual_seed` makes runs repeat, no two steps are alike, and instances that run in other
    mini-batches, in the same order, draw what they drew before.
(2) Element e of a draw is made of word e % 4 of Philox-4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
    1, 2, 3", SC 2011) with the seed as its key and the counter (e // 4, 0, number of the draw in two words). No element
    depends on another one, on the policy or on the batches.
(3) A word w is the number w / 2**32, rounded down to 24 bits for float32 and narrower types. `keep` gives 0 where that
    is below its probability; `normal` makes two numbers of two words (Box and Muller).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from edbc.capture.record.draws import INSTANCE_BITS
from edbc.capture.record.table import Source
from edbc.capture.standins.standin import torch_dtype
from edbc.native.memory import require_memory
from edbc.run.passes.placement import Longs

KINDS = ("keep", "uniform", "normal")
"""Distributions; native code knows them by number."""


def draw_seeds(sources: Sequence[Source], external_source: Longs, external_index: Longs) -> Longs:
    """A seed per instance that draws, at its number; empty, and nothing taken from torch, when none does."""
    draws = [number for number, source in enumerate(sources) if source.kind == "draw"]
    if not draws:
        return np.zeros(0, np.int64)
    drawn = np.isin(external_source, draws)
    instances = np.unique(external_index[drawn] >> INSTANCE_BITS)
    seeds = np.zeros(int(instances[-1]) + 1 if len(instances) else 0, np.int64)
    if len(instances):
        bounds = torch.iinfo(torch.int64)
        seeds[instances] = torch.randint(bounds.min, bounds.max, (len(instances),)).numpy()
    return seeds


def drawn(source: Source, index: Longs, seeds: Longs) -> torch.Tensor:
    """The draws `index` of a source, `(len(index), *shape)`."""
    assert source.draw is not None
    dtype = torch_dtype(source.value_class.dtype)
    made_in = torch.float64 if dtype is torch.float64 else torch.float32
    size = source.value_class.size
    require_memory(len(index) * size * made_in.itemsize, "the random numbers of this mini-batch")
    numbers = torch.empty(len(index), size, dtype=made_in)
    _fill(numbers.numpy(), source, index, seeds)
    return numbers.to(dtype).view(len(index), *source.value_class.shape)


def _fill(out: np.ndarray, source: Source, index: Longs, seeds: Longs) -> None:
    assert source.draw is not None
    from edbc.native.philox import fill

    kind, first, second = source.draw
    bits = np.uint64(0 if out.dtype == np.float64 else 8)
    seed = seeds[index >> INSTANCE_BITS].view(np.uint64)
    number = (index & ((1 << INSTANCE_BITS) - 1)).view(np.uint64)
    fill(out, KINDS.index(kind), first, second, seed, number, bits)
