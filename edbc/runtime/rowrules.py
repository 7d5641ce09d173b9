"""Batched forms of torch functions that have one: the call on whole batches that computes every row's result.

`torch.vmap` finds a batched form anew at every call, some 0.1 ms each, and runs a convolution whose kernel is one pixel
as a general convolution. For the functions here the form is known.

(1) An operand of n rows is `(n, *shape)`, a result too. A *rule* computes a result from a call whose holes see such
    operands. Autograd can follow it, unless it is given memory to fill.
(2) Element-wise functions broadcast: operands of fewer dimensions get ones after the batch dimension, not before it.
(3) `conv2d` of one feature map per row, `(channels, height, width)`, with shared weights: the rows are its batch. With
    a kernel of one pixel it is a product of the weights with every row's matrix `(channels, pixels)`.
(4) What an operand's views show of a row must be one run of its elements in order (a *glimpse*): then the same run of
    every row is what they show of a batch.
(5) Functions of one operand that treat its elements, or its last dimensions, alike wherever they stand (`gelu`,
    `layer_norm`, `linear`) take a batch as they take a row.
(6) Functions along dimensions of one operand (`softmax`, `sum`): the dimensions, counted from the left, are one
    further on; all dimensions of a row are all but the first of a batch.
(7) `matmul`: vectors become matrices of one row or column, so that the batch dimension is one of a batch of products.

A call that no rule fits goes through `torch.vmap`; see `edbc.runtime.rowfunction`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from edbc.trace.rules import name_of
from edbc.trace.table import Hole, SharedRef, View, fill, shared_refs

Shared = Callable[[SharedRef], torch.Tensor]
Rule = Callable[[Callable[..., Any], Any, Sequence[torch.Tensor], Shared, torch.Tensor | None], torch.Tensor]
"""Function, template, operands, parameters and, where it is known, memory for the result, which is then filled."""

_ELEMENTWISE = (torch.add, torch.sub, torch.mul, torch.div, torch.true_divide, torch.maximum, torch.minimum, torch.pow)
_ALIKE = frozenset(
    "abs celu clamp cos elu erf exp expm1 gelu hardsigmoid hardswish hardtanh layer_norm leaky_relu linear log log1p "
    "logsigmoid mish neg reciprocal relu relu6 rsqrt selu sigmoid silu sin softplus softsign sqrt square tanh".split()
)
_ALONG_ALL = frozenset("amax amin mean sum".split())
_ALONG = _ALONG_ALL | {"cumsum", "log_softmax", "logsumexp", "softmax"}


class Glimpse(NamedTuple):
    """Elements `first` to `stop` of a row, in `shape`; definition (4)."""

    first: int
    stop: int
    shape: tuple[int, ...]
    is_detached: bool = False
    """Whether one of the views lets no gradient through."""

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
        if flat != [*range(first, first + len(flat))]:
            return None
        return cls(first, first + len(flat), tuple(elements.shape), any(view.detaches for view in views))

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """What is seen of every row of `value`."""
        seen = value.reshape(len(value), -1)[:, self.first : self.stop].reshape(len(value), *self.shape)
        return seen.detach() if self.is_detached else seen


class BatchedForm(NamedTuple):
    """A call that a rule fits."""

    rule: Rule
    call: Callable[..., Any]
    template: Any
    glimpses: tuple[Glimpse, ...]

    @classmethod
    def find(cls, call: Callable[..., Any], template: Any, views: Sequence[Sequence[View]],
             shapes: Sequence[Sequence[int]], shared: Shared) -> BatchedForm | None:  # fmt: skip
        """The batched form of a call on rows of these shapes, if it has one."""
        seen = [Glimpse.through(chain, shape) for chain, shape in zip(views, shapes, strict=True)]
        glimpses = tuple(glimpse for glimpse in seen if glimpse is not None)
        if not glimpses or len(glimpses) != len(seen):
            return None
        rule = _rule_for(call, template, glimpses, shared)
        return cls(rule, call, template, glimpses) if rule else None

    def apply(self, values: Sequence[torch.Tensor], shared: Shared, out: torch.Tensor | None = None) -> torch.Tensor:
        """Every row's result; in `out`, which shares no memory with `values`, when it is given."""
        seen = [glimpse.of(value) for glimpse, value in zip(self.glimpses, values, strict=True)]
        result = self.rule(self.call, self.template, seen, shared, out)
        return result if out is None or result is out else out.copy_(result)


def _rule_for(call: Callable[..., Any], template: Any, glimpses: Sequence[Glimpse], shared: Shared) -> Rule | None:
    if any(call is function for function in _ELEMENTWISE):
        return _broadcast
    if (getattr(call, "__module__", None) or "torch").partition(".")[0] != "torch" or not template[0]:
        return None
    name = name_of(call)
    if name == "matmul":
        return _matmul if _is_product_of_rows(template, glimpses, shared) else None
    (first, *others), kwargs = template
    if len(glimpses) != 1 or type(first) is not Hole or _has_holes((others, kwargs)) or "out" in kwargs:
        return None
    if name in _ALIKE:
        return _alike
    if name in _ALONG:
        return _along if glimpses[0].shape and _can_move(name, others, kwargs) else None
    return _conv2d if call is torch.conv2d and len(glimpses[0].shape) == 3 else None


def _has_holes(item: Any) -> bool:
    if isinstance(item, dict):
        item = tuple(item.values())
    return type(item) is Hole or (isinstance(item, tuple | list) and any(map(_has_holes, item)))


def _can_move(name: str, others: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function's dimensions are where `_along` looks, and are of a kind that it can move."""
    dim = others[0] if others else kwargs.get("dim")
    return "axis" not in kwargs and (isinstance(dim, int) or name in _ALONG_ALL)


def _is_product_of_rows(template: Any, glimpses: Sequence[Glimpse], shared: Shared) -> bool:
    """Whether batches of products line up: matrices and vectors, or higher ranks with a matrix shared by all."""
    args, kwargs = template
    if len(args) != 2 or kwargs or any(type(arg) not in (Hole, SharedRef) for arg in args):
        return False
    ranks = [len(glimpses[arg.index].shape) if type(arg) is Hole else shared(arg).ndim for arg in args]
    return all(
        rank <= 2 or shared_by_all
        for rank, shared_by_all in zip(ranks, [type(arg) is SharedRef for arg in reversed(args)], strict=True)
    )


def _broadcast(
    call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared, out: torch.Tensor | None
) -> torch.Tensor:
    """Definition (2)."""
    rank = max([value.ndim for value in seen] + [1 + shared(ref).ndim for ref in shared_refs(template)])
    aligned = [value.reshape(len(value), *[1] * (rank - value.ndim), *value.shape[1:]) for value in seen]
    args, kwargs = fill(template, aligned, shared)
    result: torch.Tensor = call(*args, **kwargs) if out is None else call(*args, **kwargs, out=out)
    return result


def _alike(
    call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared, out: torch.Tensor | None
) -> torch.Tensor:
    """Definition (5)."""
    args, kwargs = fill(template, seen, shared)
    result: torch.Tensor = call(*args, **kwargs)
    return result


def _along(
    call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared, out: torch.Tensor | None
) -> torch.Tensor:
    """Definition (6)."""
    args, kwargs = fill(template, seen, shared)
    if len(args) > 1:
        args = (args[0], _next(args[1], seen[0].ndim), *args[2:])
    else:
        kwargs = {**kwargs, "dim": _next(kwargs.get("dim"), seen[0].ndim)}
    result: torch.Tensor = call(*args, **kwargs)
    return result


def _next(dim: Any, rank: int) -> Any:
    """A row's dimension, or dimensions, in a batch of that rank."""
    if dim is None or dim == ():
        return tuple(range(1, rank))
    return dim + (dim >= 0) if isinstance(dim, int) else tuple(d + (d >= 0) for d in dim)


def _matmul(
    call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared, out: torch.Tensor | None
) -> torch.Tensor:
    """Definition (7)."""
    (left, right), _ = fill(template, seen, shared)
    of_rows = [type(arg) is Hole for arg in template[0]]
    a, b = (value.ndim - rows for value, rows in zip((left, right), of_rows, strict=True))
    product = torch.matmul(left.unsqueeze(-2) if a == 1 else left, right.unsqueeze(-1) if b == 1 else right)
    product = product.squeeze(-1) if b == 1 else product
    return product.squeeze(-1 if b == 1 else -2) if a == 1 else product


def _conv2d(
    call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared, out: torch.Tensor | None
) -> torch.Tensor:
    """Definition (3)."""
    args, kwargs = fill(template, seen, shared)
    pixels = _product_of_pixels(*args, **{**kwargs, "out": out})
    if pixels is not None:
        return pixels
    result: torch.Tensor = call(*args, **kwargs)
    return result


def _product_of_pixels(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: Any = 1,
                       padding: Any = 0, dilation: Any = 1, groups: int = 1,
                       out: torch.Tensor | None = None) -> torch.Tensor | None:  # fmt: skip
    """A convolution with a kernel of one pixel; None for any other convolution."""
    steps = {stride} if isinstance(stride, int) else set(stride)
    borders = {padding} if isinstance(padding, int | str) else set(padding)
    if weight.shape[2:] != (1, 1) or steps != {1} or not borders <= {0, "valid", "same"} or groups != 1:
        return None
    matrix, maps = weight.flatten(1).expand(len(input), -1, -1), input.flatten(2)
    into = None if out is None else out.view(len(out), len(weight), -1)
    if bias is None:
        products = torch.bmm(matrix, maps, out=into)
    else:
        products = torch.baddbmm(bias[:, None], matrix, maps, out=into)
    return out if out is not None else products.view(len(input), len(weight), *input.shape[2:])
