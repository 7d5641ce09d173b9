"""Ragged classes: which leading sizes are symbols.

A *ragged class* is a value class whose leading size is a symbol, `f32[n,64]`: rows of `f32[64]`, as many as the
instance brings. A class is ragged when its leading size differs within the sample that a model is compiled on: of rows
looked up by a list or tensor of indices, of lists that forward stacks, of tensors that the instance brings, of slices
of parameters. Compiling decides, and the plan states it; a size that is the same everywhere (heads, gates, channels)
stays a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from edbc.capture.standins.standin import dtype_name

SYMBOL = "n"
Sizes = dict[str, set[int]]
"""Leading sizes met, by class."""


def ragged_class(row_shape: Iterable[int], dtype: torch.dtype) -> str:
    """The class of any number of rows: `f32[n,64]`."""
    return f"{dtype_name(dtype)}[{','.join([SYMBOL, *map(str, row_shape)])}]"


def varying(sizes: Mapping[str, set[int]]) -> tuple[str, ...]:
    """The classes of several sizes, sorted."""
    return tuple(sorted(name for name, met in sizes.items() if len(met) > 1))
