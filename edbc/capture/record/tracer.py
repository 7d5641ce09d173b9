"""What a recorder asks about cells and parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch import nn

from edbc.base.graph import ValueClass
from edbc.capture.record.table import Draw, Operation, SharedRef


class CellTracer:
    """See the module's docstring; `trace.shadow.ModelView` implements it."""

    model: nn.Module
    """What is recorded, as the user made it: eager execution runs it."""
    boundary: CodeType
    """The function that runs cells when they are traced."""
    automatic: Mapping[str, Any] = {}
    """Cells that nobody marked (`trace.automatic`), by name."""
    written: Collection[tuple[str, str]] = ()
    """Paths of modules, and names of their attributes that forward has assigned to."""
    names_assigned: Collection[str] = ()
    """Names of attributes that code which forward may reach assigns (`code.assigned`)."""
    left_by_forward: frozenset[str] | None = None
    """Names of attributes that forward leaves on modules, where it is a function of instances but for these
    (`code.closed`, definition (4)); None where it is not."""

    def fields_of(self, kind: type) -> frozenset[str] | None:
        """What closed code may read of objects of a class, where copies of them do (`code.closed`)."""
        return None

    may_draw = False
    """True when random operations are recorded: in training."""

    def draws(self, operation: Operation) -> Sequence[tuple[Draw, ValueClass]]:
        """What a cell draws, in order."""
        raise NotImplementedError

    def output_classes(self, operation: Operation) -> tuple[Any, tuple[ValueClass, ...]]:
        """Template of the outputs of a cell or module and the class of each."""
        raise NotImplementedError

    def demands(self, operation: Operation) -> tuple[frozenset[int], ...]:
        """What calls of an automatic cell must give, see `Entry.demands`."""
        raise NotImplementedError

    def makes_memory(self, operation: Operation) -> bool:
        """Whether each output of a cell or module is memory of its own."""
        raise NotImplementedError

    def shared(self, ref: SharedRef) -> torch.Tensor:
        """The model's parameter or buffer behind a reference, with its views taken."""
        raise NotImplementedError

    def relied_on(self, ref: SharedRef) -> torch.Tensor | None:
        """What stands behind a reference to buffers, as it is now: where one of them changes, all is recorded anew.
        None of parameters, and where that has happened before."""
        return None

    def require_unchanged(self) -> None:
        """Raise when the model is no longer what recording started from."""
        raise NotImplementedError

    def has_assigned(self, path: str, name: str) -> bool:
        """Whether that was noted."""
        raise NotImplementedError

    def note_assigned(self, path: str, name: str) -> None:
        """Forward changes an attribute of the module at a path."""
        raise NotImplementedError
