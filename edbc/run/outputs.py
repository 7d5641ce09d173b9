"""Names for what a model returns, and one tensor per name for files.

Definitions.

(1) An *output* is all tensors of an instance that have one name, arrays of NumPy and floats among them: keys of dicts
    and fields of dataclasses and named tuples, joined by dots; positions of tuples; items of lists share their list's
    name. What has no name is `output`.
(2) The *rows* of an output: a list of equal shapes stacked (a list of one tensor has one row), a list of other tensors
    concatenated along the first dimension; a tensor outside of lists as it is (a scalar has one row).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from edbc.capture.semantics.modes import on_host


def named_tensors(result: Any, name: str = "", listed: bool = False) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Every tensor of one instance's result with its output's name, definition (1), and whether it stands in a list."""
    if isinstance(result, torch.Tensor):
        yield name or "output", result, listed
    elif isinstance(result, np.ndarray) and result.dtype.kind in "biuf":
        yield name or "output", torch.from_numpy(result), listed
    elif type(result) is float:
        yield name or "output", torch.tensor(result, dtype=torch.get_default_dtype()), listed
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from named_tensors(value, f"{name}.{key}" if name else str(key), listed)
    elif isinstance(result, tuple) and not hasattr(result, "_fields"):
        for index, value in enumerate(result):
            yield from named_tensors(value, f"{name or 'output'}.{index}", listed)
    elif isinstance(result, list | deque):
        for value in result:
            yield from named_tensors(value, name, True)
    else:
        for field in getattr(result, "_fields", None) or getattr(result, "__dataclass_fields__", None) or ():
            yield from named_tensors(getattr(result, field), f"{name}.{field}" if name else field, listed)


def by_name(result: Any) -> dict[str, list[torch.Tensor]]:
    """The tensors of each output of one instance, in order."""
    outputs: dict[str, list[torch.Tensor]] = {}
    for name, tensor, _ in named_tensors(result):
        outputs.setdefault(name, []).append(tensor)
    return outputs


def rows_by_name(result: Any) -> dict[str, torch.Tensor]:
    """The rows of each output of one instance."""
    listed = {name for name, _, in_list in named_tensors(result) if in_list}
    return {name: rows(tensors, name in listed) for name, tensors in by_name(result).items()}


def rows(tensors: Sequence[torch.Tensor], listed: bool) -> torch.Tensor:
    """Definition (2)."""
    if len(tensors) == 1 and not listed:
        return tensors[0].reshape(1) if tensors[0].ndim == 0 else tensors[0]
    if len({t.shape for t in tensors}) == 1:
        return torch.stack(list(tensors))
    return torch.cat([t.reshape(1) if t.ndim == 0 else t for t in tensors])


class OutputFile:
    """Collects results in input order; `tensors()` is what goes into a file: per output its rows and `<name>.offsets`,
    instances + 1 row numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.parts: dict[str, list[torch.Tensor]] = {}
        self.ends: dict[str, list[int]] = {}

    def add(self, result: Any) -> None:
        """Append one instance."""
        for name, part in rows_by_name(result).items():
            ends = self.ends.setdefault(name, [0] * (self.count + 1))
            ends.append(ends[-1] + len(part))
            self.parts.setdefault(name, []).append(part)
        self.count += 1
        for ends in self.ends.values():
            if len(ends) == self.count:  # this instance has no such output
                ends.append(ends[-1])

    @on_host
    def tensors(self) -> dict[str, torch.Tensor]:
        """See the class."""
        result: dict[str, torch.Tensor] = {}
        for name, parts in self.parts.items():
            result[name] = torch.cat(parts).contiguous().cpu()
            result[f"{name}.offsets"] = torch.tensor(self.ends[name], dtype=torch.int64)
        return result
