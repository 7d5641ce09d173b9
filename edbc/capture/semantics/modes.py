"""Modes of torch: edbc's tensors on the host, and what sees operators, below torch's functions.

(1) edbc's own tensors are made on the host, whatever default device the caller has set. `torch.set_default_device` and
    `with torch.device(...)` move every tensor that is made without a device, edbc's buffers and tables too, of which
    native code takes the addresses: with a default device that is not the CPU it would read memory that is not there. A
    default device is a torch function mode, so where no mode is active nothing has to be done.
(2) Operators on tensors without data ("meta") run on zeros: without data torch has many of them in Python, and imports
    its compiler for the first, which takes a second. So what they return has the strides that it has on a CPU, and
    asking takes what the first call takes in eager PyTorch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from edbc.capture.standins.nests import mapped

MOST_MADE_UP = 1 << 23
"""Elements of an operator's operands, definition (2)."""
_SWITCHES = frozenset(("train", "training", "dropout_p"))
"""Names of arguments that, false or 0, switch an operator's random numbers off."""
SETTLED: dict[str, Callable[[dict[str, Any]], bool]] = {
    # without a mask there is an element per number
    "index": lambda given: not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in given["indices"]),
    # the number of classes is given
    "one_hot": lambda given: given["num_classes"] != -1,
    # the length of the result is given
    "repeat_interleave": lambda given: given["output_size"] is not None,
    # residuals are empty whatever the rank, unless there are more equations than unknowns
    "linalg_lstsq": lambda given: given["self"].shape[-2] <= given["self"].shape[-1],
}
"""Operators whose shapes depend on values for some arguments only: when they do not."""
F = TypeVar("F", bound=Callable[..., Any])
_num_modes = torch._C._len_torch_function_stack


def on_host(function: F) -> F:
    """A function in which tensors are made on the CPU unless it names a device."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not _num_modes():
            return function(*args, **kwargs)
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


class DispatchMode(TorchDispatchMode):
    """One of torch's that leaves torch's compiler alone: a subclass otherwise imports it, in three seconds, when it
    sees its first operator. Nobody compiles what runs in one of ours."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def _given(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, those left out by their defaults."""
    defaults = {argument.name: argument.default_value for argument in operator._schema.arguments}
    return defaults | dict(zip(defaults, args, strict=False)) | kwargs


def is_settled(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether one with the tag `dynamic_output_shape` gives a shape that does not depend on values, for once."""
    settled = SETTLED.get(operator._schema.name.removeprefix("aten::"))
    return settled is not None and settled(_given(operator, args, kwargs))


def may_draw(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it carries the tag `nondeterministic_seeded`, and no argument switches that off."""
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    given = _given(operator, args, kwargs)
    return all(given[name] for name in _SWITCHES & given.keys())


class WithoutData(DispatchMode):
    """Operators by `run`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator; of tensors without data by definition (2), unless it looks at values or draws. Where
    zeros are refused, and where more than MOST_MADE_UP would have to be made, torch is asked as it is."""
    operands: list[torch.Tensor] = []
    _each(operands.append, (args, *kwargs.values()))
    is_view = func.is_view or torch.Tag.inplace_view in func.tags
    if is_view or "out" in kwargs or not any(x.is_meta for x in operands) or _looks(func, args, kwargs):
        return func(*args, **kwargs)
    if func in _PRODUCTS and all(x.is_meta and x.dtype is operands[0].dtype for x in operands):
        shape = _shape_of_product(*[x.shape for x in operands])
        if shape is not None:
            return operands[0].new_empty(shape)
    if sum(x.numel() for x in operands[func in _LOOK_UPS :]) > MOST_MADE_UP:
        return func(*args, **kwargs)
    made: dict[int, torch.Tensor] = {}
    divides = torch.Tag.pointwise in func.tags  # integers perhaps, so their data are ones

    def with_data(x: torch.Tensor) -> torch.Tensor:
        if not x.is_meta:
            return x
        if x.numel() > MOST_MADE_UP:
            return torch.zeros((), dtype=x.dtype).expand(x.shape)
        data = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).fill_(divides)
        made[id(data)] = x
        return data

    def without_data(x: torch.Tensor) -> torch.Tensor:
        known = made.get(id(x))  # of what changes its operand
        if known is not None or x.layout is not torch.strided:  # who asks refuses what is not strided
            return x if known is None else known
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")

    try:
        given, named = _each(with_data, args), {key: _each(with_data, x) for key, x in kwargs.items()}
        return _each(without_data, func(*given, **named))
    except torch.linalg.LinAlgError:
        pass
    except (RuntimeError, IndexError) as error:  # of floats, which may all be 0, it is of their shapes
        if all(x.is_floating_point() for x in operands) and "not implemented" not in str(error):
            raise
    return func(*args, **kwargs)


def _each(function: Callable[[torch.Tensor], Any], item: Any) -> Any:
    """Lists and tuples with what a function gives for each tensor in them."""
    return mapped(lambda x: function(x) if isinstance(x, torch.Tensor) else x, item)


def _looks(func: Any, args: Any, kwargs: Any) -> bool:
    """At values, or it draws."""
    tags = func.tags
    if torch.Tag.data_dependent_output in tags or may_draw(func, args, kwargs):
        return True
    return torch.Tag.dynamic_output_shape in tags and not is_settled(func, args, kwargs)


def _shape_of_product(*shapes: torch.Size) -> torch.Size | None:
    """Of two matrices, or two batches of such, perhaps behind what is added; None for others."""
    *added, a, b = shapes
    shape = torch.Size((*a[:-1], b[-1]))
    if len(a) != len(b) or a[-1] != b[-2] or a[:-2] != b[:-2]:
        return None
    try:
        return shape if all(torch._C._infer_size(x, shape) == shape for x in added) else None
    except RuntimeError:
        return None


_PRODUCTS = {getattr(torch.ops.aten, name).default for name in ("addmm", "mm", "bmm", "baddbmm")}
"""Which may take long."""
_LOOK_UPS = {torch.ops.aten.embedding.default, torch.ops.aten.index_select.default, torch.ops.aten.index.Tensor}
"""Which take few elements of their first operand."""
