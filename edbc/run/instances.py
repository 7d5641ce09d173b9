"""What instances bring, in another element type: `edbc run --dtype float64`, and the reference of `edbc.tools.parity`.

(1) Converted are tensors, numpy arrays and numpy numbers of certain dtypes wherever `edbc.capture.standins.objects`
    looks: in attributes and slots, dicts, lists, deques, sets and tuples, nested in any way and in cycles. What may
    change is changed in place, so that objects stay who they are for `is`, for memos and for each other; tuples are
    made anew. What stands in two places stands there as one afterwards too.
(2) Numbers of Python have no dtype, and what forward makes of them gets torch's default one: `Cast.default` sets it.
(3) numpy has no bfloat16: its arrays stay as they are then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from edbc.capture.standins.nests import rebuilt
from edbc.capture.standins.objects import Sought, walked

_OF_NUMPY = {torch.float16: np.dtype(np.float16), torch.float32: np.dtype(np.float32),
             torch.float64: np.dtype(np.float64)}  # fmt: skip
_NUMBERS = (torch.Tensor, np.ndarray, np.floating)


@dataclass(frozen=True)
class Cast:
    """From some dtypes, those of a model as it was built, to the one that it runs in."""

    of: frozenset[torch.dtype]
    to: torch.dtype

    @classmethod
    def between(cls, built: torch.dtype, runs: torch.dtype) -> Cast:
        """Of a model that was built in one dtype and runs in another; converts nothing where they are one."""
        return cls(frozenset({built} - {runs}), runs)

    def rebind(self, has_other_config: bool) -> bool | Literal["dtype"] | None:
        """How a net of such a model finds the plan's types: see `edbc.run.session.Net`."""
        return has_other_config or ("dtype" if self.of else None)

    def __call__(self, instances: Iterable[Any]) -> list[Any]:
        """The instances, converted: definition (1). O(objects that they reach)."""
        box = list(instances)
        if self.of:
            conversion = _Conversion(self)
            for holding, of, key, value in walked([box], set(), _SOUGHT):
                made = conversion.of(value)
                if made is not value:
                    holding.put(of, key, made)
        return box

    def each(self, instances: Iterable[Any]) -> Iterator[Any]:
        """The instances of a stream, each converted when it comes."""
        return (self([instance])[0] for instance in instances) if self.of else iter(instances)

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that runs in `default`."""

        def run(*args: Any) -> Any:
            with self.default():
                return function(*args)

        return run if self.of else function

    @contextmanager
    def default(self) -> Iterator[None]:
        """A context in which torch's default dtype, where it is one of those converted, is the one they become."""
        before = torch.get_default_dtype()
        try:
            if before in self.of:
                torch.set_default_dtype(self.to)
            yield
        finally:
            torch.set_default_dtype(before)


_SOUGHT = Sought(lambda kind: issubclass(kind, (*_NUMBERS, tuple)))
"""What may have to become something else."""


class _Conversion:
    """What objects become, by identity; holds them, so that none can take another's."""

    def __init__(self, cast: Cast):
        self.cast = cast
        self._made: dict[int, tuple[Any, Any]] = {}
        self._of_numpy = {_OF_NUMPY[dtype] for dtype in cast.of if dtype in _OF_NUMPY}
        self._to_numpy = _OF_NUMPY.get(cast.to)

    def of(self, value: Any) -> Any:
        """What a value becomes: itself where there is nothing to convert."""
        if isinstance(value, tuple):
            self._convert_tuples(value)
        return self._known(value)

    def _known(self, value: Any) -> Any:
        if id(value) not in self._made and isinstance(value, _NUMBERS):
            self._made[id(value)] = value, self._number(value)
        return self._made.get(id(value), (value, value))[1]

    def _number(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().to(self.cast.to) if value.dtype in self.cast.of else value
        return value.astype(self._to_numpy) if value.dtype in self._of_numpy and self._to_numpy else value

    def _convert_tuples(self, root: tuple[Any, ...]) -> None:
        """Those inside first. Trees of tuples may be deeper than Python recurses."""
        stack = [root]
        while stack:
            waiting = [x for x in stack[-1] if isinstance(x, tuple) and id(x) not in self._made]
            if waiting:
                stack += waiting
                continue
            item = stack.pop()
            parts = list(map(self._known, item))
            is_same = all(new is old for new, old in zip(parts, item, strict=True))
            self._made[id(item)] = item, item if is_same else rebuilt(item, parts)


AS_BUILT = Cast(frozenset(), torch.float32)
"""Converts nothing."""
