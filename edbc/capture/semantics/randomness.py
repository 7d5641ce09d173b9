"""Does a call draw random numbers, or make a shape of values? Torch is asked, not a list of names.

(1) An operator that may draw carries torch's tag `nondeterministic_seeded`, one whose result may have a shape that
    depends on values `dynamic_output_shape`. What a call dispatches to is seen once per new signature, while its shapes
    are found.
(2) One that carries it does not draw where an argument says that it is not training, or drops nothing out (`rrelu`,
    `scaled_dot_product_attention`).
(3) Operators of other libraries carry no tags. A call that dispatches to one runs on made-up numbers, and draws when
    the state of torch's generator is another one afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from edbc.capture.semantics import rules
from edbc.capture.semantics.modes import DispatchMode, is_settled, may_draw, run
from edbc.capture.standins.standin import refuse

_TORCH = frozenset(("aten", "prim", "prims"))
NO_VALUES = {
    "combinations": "the mask is of positions, not of values",
    "ctc_loss": "what has a shape by value is an intermediate; the loss has none",
}
"""Functions that dispatch to such operators, and whose results have shapes of their own."""
DRAW_REMEDY = (
    "its result would differ from eager execution; draw outside of forward and pass the numbers in, or draw from "
    "recorded tensors (torch.rand_like(h), F.dropout(h.new_ones(n)))"
)


class Dispatched(DispatchMode):
    """Sees which operators a call consists of. Torch's generator is left as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = False
        """Definitions (1) and (2)."""
        self.shape_by_value = False
        """Definition (1)."""
        self.looks = False
        """Whether one of them gives a number that depends on values."""
        self.is_foreign = False
        """Whether one of them is not torch's own, definition (3)."""

    def __enter__(self) -> Dispatched:
        self._before = state_of_generator()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self.draws or self.is_foreign:
            torch.default_generator.set_state(self._before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note(func, args, kwargs or {})
        return run(func, args, kwargs or {})

    def _note(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.draws |= may_draw(operator, args, kwargs)
        self.looks |= torch.Tag.data_dependent_output in operator.tags
        if torch.Tag.dynamic_output_shape in operator.tags:
            self.shape_by_value |= not is_settled(operator, args, kwargs)
        self.is_foreign |= operator.namespace not in _TORCH


def draws(call: Callable[[], Any]) -> bool:
    """Whether a call draws from torch's generator, which it leaves as it was. What it raises is for others to find."""
    before = state_of_generator()
    try:
        call()
    except Exception:
        return False
    finally:
        changed = not torch.equal(before, state_of_generator())
        torch.default_generator.set_state(before)
    return changed


_GENERATOR = threading.RLock()


def state_of_generator() -> torch.Tensor:
    """The state of torch's generator. torch holds the generator's mutex while it makes the tensor, which may collect
    garbage, and so let go of Python's lock; another thread that asks meanwhile holds Python's lock and waits for the
    mutex, and neither goes on for ever. Those who wait here hold neither."""
    with _GENERATOR:
        return torch.default_generator.get_state()


class NoRandomNumbers(TorchFunctionMode):
    """Refuses functions that draw random numbers, at the user's line."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = state_of_generator()
        result = func(*args, **(kwargs or {}))
        if not torch.equal(before, state_of_generator()):
            torch.default_generator.set_state(before)
            refuse(f"'{rules.name_of(func)}' draws random numbers", DRAW_REMEDY)
        return result
