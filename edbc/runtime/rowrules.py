"""Batched forms of torch functions that have one: the call on whole batches that computes every row's result.

`torch.vmap` finds a batched form anew at every call, some 0.1 ms each, and runs a convolution whose kernel is one pixel
as a general convolution. For the functions here the form is known.

(1) An operand of n rows is `(n, *shape)`, a result too. A *rule* fills a result from a call whose holes see such
    operands.
(2) Element-wise functions broadcast: operands of fewer dimensions get ones after the batch dimension, not before it.
(3) `conv2d` of one feature map per row, `(channels, height, width)`, with shared weights: the rows are its batch. With
    a kernel of one pixel it is a product of the weights with every row's matrix `(channels, pixels)`.
(4) What an operand's views show of a row must be one run of its elements in order (a *glimpse*): then the same run of
    every row is what they show of a batch.

A call that no rule fits goes through `torch.vmap`; see `edbc.runtime.rowfunction`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from edbc.trace.table import Hole, SharedRef, View, fill, shared_refs

Shared = Callable[[SharedRef], torch.Tensor]
Rule = Callable[[Callable[..., Any], Any, Sequence[torch.Tensor], Shared, torch.Tensor], None]
"""Function, template, operands, parameters, result to fill."""

_ELEMENTWISE = (torch.add, torch.sub, torch.mul, torch.div, torch.true_divide, torch.maximum, torch.minimum, torch.pow)


class Glimpse(NamedTuple):
    """Elements `first` to `stop` of a row, in `shape`; definition (4)."""

    first: int
    stop: int
    shape: tuple[int, ...]

    @classmethod
    def through(cls, views: Sequence[View], shape: Sequence[int]) -> Glimpse | None:
        """What `views` show of a row of that shape; None when it is no run of its elements in order."""
        if any(shared_refs(view.template) for view in views):
            return None
        elements = torch.arange(torch.Size(shape).numel()).reshape(tuple(shape))
        for view in views:
            elements = view.apply(elements)
        flat = elements.reshape(-1).tolist()
        first = flat[0] if flat else 0
        return (
            cls(first, first + len(flat), tuple(elements.shape)) if flat == [*range(first, first + len(flat))] else None
        )

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """What is seen of every row of `value`."""
        return value.reshape(len(value), -1)[:, self.first : self.stop].reshape(len(value), *self.shape)


class BatchedForm(NamedTuple):
    """A call that a rule fits."""

    rule: Rule
    call: Callable[..., Any]
    template: Any
    glimpses: tuple[Glimpse, ...]

    @classmethod
    def find(cls, call: Callable[..., Any], template: Any, views: Sequence[Sequence[View]],
             shapes: Sequence[Sequence[int]]) -> BatchedForm | None:  # fmt: skip
        """The batched form of a call on rows of these shapes, if it has one."""
        seen = [Glimpse.through(chain, shape) for chain, shape in zip(views, shapes, strict=True)]
        glimpses = tuple(glimpse for glimpse in seen if glimpse is not None)
        rule = _rule_for(call, template, glimpses)
        return cls(rule, call, template, glimpses) if rule and glimpses and len(glimpses) == len(seen) else None

    def fill(self, values: Sequence[torch.Tensor], shared: Shared, out: torch.Tensor) -> None:
        """Compute every row into `out`, which shares no memory with `values`."""
        seen = [glimpse.of(value) for glimpse, value in zip(self.glimpses, values, strict=True)]
        self.rule(self.call, self.template, seen, shared, out)


def _rule_for(call: Callable[..., Any], template: Any, glimpses: Sequence[Glimpse]) -> Rule | None:
    if any(call is function for function in _ELEMENTWISE):
        return _broadcast
    args = template[0]
    of_maps = len(glimpses) == 1 and len(glimpses[0].shape) == 3 and bool(args) and type(args[0]) is Hole
    return _conv2d if call is torch.conv2d and of_maps else None


def _broadcast(
    call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared, out: torch.Tensor
) -> None:
    """Definition (2)."""
    rank = max([value.ndim for value in seen] + [1 + shared(ref).ndim for ref in shared_refs(template)])
    aligned = [value.reshape(len(value), *[1] * (rank - value.ndim), *value.shape[1:]) for value in seen]
    args, kwargs = fill(template, aligned, shared)
    call(*args, **kwargs, out=out)


def _conv2d(
    call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared, out: torch.Tensor
) -> None:
    """Definition (3)."""
    args, kwargs = fill(template, seen, shared)
    if not _product_of_pixels(out, *args, **kwargs):
        out.copy_(call(*args, **kwargs))


def _product_of_pixels(out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
                       stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> bool:  # fmt: skip
    """Fill the result of a convolution with a kernel of one pixel; False for any other convolution."""
    steps = {stride} if isinstance(stride, int) else set(stride)
    borders = {padding} if isinstance(padding, int | str) else set(padding)
    if weight.shape[2:] != (1, 1) or steps != {1} or not borders <= {0, "valid", "same"} or groups != 1:
        return False
    matrix, maps, result = (
        weight.flatten(1).expand(len(input), -1, -1),
        input.flatten(2),
        out.view(len(out), len(weight), -1),
    )
    if bias is None:
        torch.bmm(matrix, maps, out=result)
    else:
        torch.baddbmm(bias[:, None], matrix, maps, out=result)
    return True
