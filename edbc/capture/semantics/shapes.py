"""What a torch function returns, found without data: shapes, the structure of its result, and whether it is a view."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from edbc.base.kept import Kept
from edbc.capture.record.signature import view_text
from edbc.capture.record.table import Hole, SharedRef, View, fill
from edbc.capture.semantics import rules
from edbc.capture.semantics.autocast import state
from edbc.capture.semantics.modes import DispatchMode, WithoutData
from edbc.capture.standins.nests import inside, mapped
from edbc.capture.standins.standin import Slot, refuse


def pick(tensor: torch.Tensor, *indices: Any) -> torch.Tensor:
    """`tensor[indices]` for tensors without dimensions as indices, in a form that vmap batches."""
    return tensor[tuple(i.reshape(1) if isinstance(i, torch.Tensor) else i for i in indices)].squeeze(0)


def flat(*trees: Any) -> list[Any]:
    """The leaves of nests of lists, tuples and dicts, in order."""
    found: list[Any] = []
    stack = list(reversed(trees))
    while stack:
        item = stack.pop()
        if isinstance(item, tuple | list):
            stack.extend(reversed(item))
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))
        else:
            found.append(item)
    return found


def run_on_meta(func: Callable[..., Any], template: Any, slots: Iterable[Slot],
                shared: Callable[[SharedRef], torch.Tensor], mode: DispatchMode | None = None) -> Any:  # fmt: skip
    """What `func` returns for tensors without data; where it has no such form, for tensors of ones. `mode` sees the
    operators.

    Raises UnsupportedError when the shape of the result depends on values.
    """
    slots = list(slots)
    args, kwargs = fill(template, [slot.meta() for slot in slots], shared)
    with WithoutData() if mode is None else mode:
        try:
            if state() is not None:
                raise NotImplementedError  # torch.autocast leaves tensors without data alone
            return func(*args, **kwargs)
        except (NotImplementedError, RuntimeError):  # RuntimeError: it looks at a value, if only to check it
            results = []
            for make in (torch.ones, torch.zeros):
                args, kwargs = filled_by(make, template, slots, shared)
                results.append(func(*args, **kwargs))
    if [t.shape for t in split_outputs(results[0])[1]] != [t.shape for t in split_outputs(results[1])[1]]:
        refuse(f"the shape of what {rules.name_of(func)} returns depends on the values of its operands",
               "compute with masks (torch.where) instead, or do it before the model sees the instance")  # fmt: skip
    return results[0]


class _Like(NamedTuple):
    """All of an operand that the shape of a result depends on."""

    shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def of(cls, operand: Slot | torch.Tensor) -> _Like:
        """A slot's, or a tensor's."""
        return cls(operand.shape, operand.dtype)


_TOLD = frozenset((torch.dtype, int, float, bool, str, type(None)))
KNOWN: Kept[Any, torch.Tensor] = Kept(10_000)
"""What functions of torch that do not look at values returned, without data, by `key_by_shape`: every model asks the
same."""


def key_by_shape(func: Callable[..., Any], template: Any, slots: Iterable[Slot],
                 shared: Callable[[SharedRef], torch.Tensor]) -> Any:  # fmt: skip
    """All that the shape and dtype of what such a function returns depend on; None for one that is not torch's own, or
    arguments of classes whose text does not tell what they are."""
    if (getattr(func, "__module__", None) or "torch").partition(".")[0] != "torch":
        return None
    like = fill(template, [*map(_Like.of, slots)], lambda ref: _Like.of(shared(ref)))
    if not _TOLD.issuperset(map(type, flat(like))):  # a size that is a symbol is written as a number
        return None
    return func, repr(like), state(), torch.get_default_dtype()


def filled_by(make: Callable[..., torch.Tensor], template: Any, slots: Iterable[Slot], shared: Any) -> Any:
    """Arguments and keywords with tensors made by `torch.ones` or its like."""
    data = [make(tuple(slot.shape), dtype=slot.dtype) for slot in slots]
    return fill(template, data, lambda ref: make(shared(ref).shape, dtype=shared(ref).dtype))


def told_by_shape(func: Callable[..., Any], name: str, template: Any, slots: Iterable[Slot],
                  shared: Callable[[SharedRef], torch.Tensor]) -> Any:  # fmt: skip
    """What `func` says that is no tensor. Refused unless it says the same of tensors that have shapes and dtypes in
    common and nothing else: not their values, their memory, nor their place in a graph of gradients."""
    slots = list(slots)

    def answer(make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        args, kwargs = fill(template, [make(slot.meta()) for slot in slots], lambda ref: make(shared(ref)))
        try:
            with torch.enable_grad():
                return func(*args, **kwargs)
        except Exception as error:
            return error

    answers = answer(_plain), answer(_peculiar)
    if type(answers[0]) is type(answers[1]) and not isinstance(answers[0], Exception) and answers[0] == answers[1]:
        return answers[0]
    return refuse(f"'{name}' of a recorded tensor says more than its shape and dtype, which are all that is known",
                  "do not ask for it: h.contiguous() of what is contiguous costs nothing, and gradients flow as in "
                  "eager PyTorch")  # fmt: skip


def _plain(meta: torch.Tensor) -> torch.Tensor:
    return torch.zeros(meta.shape, dtype=meta.dtype)


def _peculiar(meta: torch.Tensor) -> torch.Tensor:
    """A tensor of other values, with other strides, an offset, and gradients where it may have them."""
    has_gradient = meta.is_floating_point() or meta.is_complex()
    memory = torch.ones((*reversed(meta.shape), 2), dtype=meta.dtype, requires_grad=has_gradient)
    return memory[..., 1].permute(tuple(reversed(range(meta.ndim))))


def filled_with_zeros(template: Any, slots: Iterable[Slot], shared: Callable[[SharedRef], torch.Tensor]) -> Any:
    """Arguments and keywords with tensors that hold data, zeros everywhere."""
    return fill(template, [repeated(slot.meta()) for slot in slots], lambda ref: repeated(shared(ref)))


def repeated(meta: torch.Tensor) -> torch.Tensor:
    """A tensor with data, zeros everywhere, in the memory of one number."""
    return torch.zeros((), dtype=meta.dtype).expand(meta.shape)


def split_outputs(result: Any, name: str = "") -> tuple[Any, list[Any]]:
    """A template of a call's result and its tensors in order. With a name, to return none is an error."""
    tensors: list[Any] = []
    template = _split(result, tensors)
    if not tensors and name:
        refuse(f"{name} returned no tensor", "a cell must return a tensor, or tensors in tuples, lists and dicts")
    return template, tensors


def _split(item: Any, tensors: list[Any]) -> Any:
    if isinstance(item, torch.Tensor):
        tensors.append(item)
        return Hole(len(tensors) - 1)
    return inside(lambda x: _split(x, tensors), item)


def take_views(func: Any, name: str, template: Any, tensor: torch.Tensor,
               shared: Callable[[SharedRef], Any] | None = None) -> tuple[Any, list[Any], list[View]]:  # fmt: skip
    """The views of a tensor that a call returns: template of the result, tensors, and the step that makes each."""
    args, kwargs = fill(template, [tensor], shared)
    outputs, tensors = split_outputs(func(*args, **kwargs), name)
    single = type(outputs) is Hole
    text = view_text(name, template)
    steps = [View(func, template, None if single else i, text + ("" if single else f"[{i}]"))
             for i in range(len(tensors))]  # fmt: skip
    return outputs, tensors, steps


def replace_first(template: Any, ref: SharedRef) -> Any:
    """A template with the first place of one parameter made the hole that a view fills."""
    done = False

    def walk(item: Any) -> Any:
        nonlocal done
        if type(item) is SharedRef and item == ref and not done:
            done = True
            return Hole(0)
        return item

    return mapped(walk, template)


def of_rows(view: Callable[[torch.Tensor], torch.Tensor], stack: torch.Tensor) -> torch.Tensor:
    """A view of every row. Where the first one's is memory of it, the others' are as far apart as rows are: `vmap`
    takes ten times as long."""
    if len(stack) and not stack.requires_grad:
        row = stack[0]
        seen = view(row)
        if seen.untyped_storage().data_ptr() == stack.untyped_storage().data_ptr() and seen.dtype is stack.dtype:
            begin = stack.storage_offset() + seen.storage_offset() - row.storage_offset()
            return stack.as_strided((len(stack), *seen.shape), (stack.stride(0), *seen.stride()), begin)
    return torch.vmap(view)(stack)
