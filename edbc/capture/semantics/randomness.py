"""Does a call draw random numbers? Torch is asked, not a list of names.

(1) An operator that may draw carries torch's tag `nondeterministic_seeded`. What a call dispatches to is seen once per
    new signature, while its shapes are found.
(2) One that carries it does not draw where an argument says that it is not training, or drops nothing out (`rrelu`,
    `scaled_dot_product_attention`).
(3) Operators of other libraries carry no tags. A call that dispatches to one runs on made-up numbers, and draws when
    the state of torch's generator is another one afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from edbc.capture.semantics import rules
from edbc.capture.standins.standin import refuse

_TORCH = frozenset(("aten", "prim", "prims"))
_SWITCHES = frozenset(("train", "training", "dropout_p"))
"""Names of arguments that, false or 0, switch an operator's random numbers off, definition (2)."""
DRAW_REMEDY = (
    "its result would differ from eager execution; draw outside of forward and pass the numbers in, or draw from "
    "recorded tensors (torch.rand_like(h), F.dropout(h.new_ones(n)))"
)


class Dispatched(TorchDispatchMode):
    """Sees which operators a call consists of. Torch's generator is left as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = False
        """Definitions (1) and (2)."""
        self.is_foreign = False
        """Whether one of them is not torch's own, definition (3)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, so that torch does not import its own compiler (three seconds) at the first operator seen."""
        return False

    def __enter__(self) -> Dispatched:
        self._before = torch.default_generator.get_state()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self.draws or self.is_foreign:
            torch.default_generator.set_state(self._before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _note(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.Tag.nondeterministic_seeded in operator.tags:
            self.draws |= not _is_off(operator, args, kwargs)
        self.is_foreign |= operator.namespace not in _TORCH


def _is_off(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = {argument.name: argument.default_value for argument in operator._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | kwargs
    return any(not given[name] for name in _SWITCHES & given.keys())


def draws(call: Callable[[], Any]) -> bool:
    """Whether a call draws from torch's generator, which it leaves as it was. What it raises is for others to find."""
    before = torch.default_generator.get_state()
    try:
        call()
    except Exception:
        return False
    finally:
        changed = not torch.equal(before, torch.default_generator.get_state())
        torch.default_generator.set_state(before)
    return changed


class NoRandomNumbers(TorchFunctionMode):
    """Refuses functions that draw random numbers, at the user's line."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.default_generator.get_state()
        result = func(*args, **(kwargs or {}))
        if not torch.equal(before, torch.default_generator.get_state()):
            torch.default_generator.set_state(before)
            refuse(f"'{rules.name_of(func)}' draws random numbers", DRAW_REMEDY)
        return result
