"""Batched forms of torch functions that have one: the call on whole batches that computes every row's result.

`torch.vmap` finds a batched form anew at every call, some 0.1 ms each. For the functions here the form is known.

(1) An operand of n rows is `(n, *shape)`, a result too, or each of several results. A *rule* computes results from a
    call whose holes see such operands. Autograd can follow it.
(2) Element-wise functions broadcast: operands of fewer dimensions get ones after the batch dimension, not before it.
(3) Convolutions and poolings of one feature map per row, `(channels, ...)`, with shared weights: the rows are their
    batch; rows that have a batch of their own, `(m, channels, ...)`, are n x m maps of one. On the CPU convolutions
    in two dimensions are those of `runtime.convolution`.
(4) What an operand's views show of a row is seen of every row of a batch: one run of its elements in order, or that run
    several times over in some dimensions (a *glimpse*), or every so many elements.
(5) Functions of one operand that treat its elements, or its last dimensions, alike wherever they stand (`gelu`,
    `layer_norm`, `linear`, all that torch calls pointwise) take a batch as they take a row.
(6) Functions along dimensions (`softmax`, `sum`, `sort`, `gather`): the dimensions, counted from the left, are one
    further on; all dimensions of a row are all but the first of a batch. Operands have one rank.
(7) `matmul`: vectors become matrices of one row or column, so that the batch dimension is one of a batch of products.
(8) `scaled_dot_product_attention` of operands of one rank: dimensions before the last two are batches to it.
(9) `cat` and `stack` along a dimension: it is one further on, and parameters are repeated for every row.
(10) Whole elements by numbers (`index_select`, `x[numbers]`, `index_add`) are single ones by numbers that are repeated.
(11) `einsum`: a letter more, in front of every operand and of the result.
(12) Recurrent networks of a sequence of vectors, in one batch of one: the rows are their batch.

A call that no rule fits goes through `torch.vmap`; see `edbc.cells.rows.rowfunction`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from edbc.base.operations import BINARY, UNARY
from edbc.capture.record.table import Hole, SharedRef, View, fill, shared_refs
from edbc.capture.semantics.rules import ALONG, Along, is_pointwise, name_of
from edbc.cells.rows.convolution import convolve

Shared = Callable[[SharedRef], torch.Tensor]
Rule = Callable[[Callable[..., Any], Any, Sequence[torch.Tensor], Shared], Any]
"""Function, template, operands and parameters."""

_ELEMENTWISE = BINARY.union(
    "addcdiv addcmul atan2 eq fmod ge gt hypot le lerp logaddexp lt masked_fill ne remainder rsub true_divide "
    "where".split()
)
_ALIKE = UNARY.union(
    "celu clamp cos elu embedding erf expm1 hardsigmoid hardswish hardtanh layer_norm leaky_relu linear log1p "
    "logsigmoid mish relu6 rsqrt selu sin softsign to".split()
)
_ALONG_ALL = frozenset("amax amin mean sum".split())
"""Functions of all dimensions where none is given, as of any number of them."""
_TOGETHER = frozenset("gather scatter scatter_add take_along_dim cosine_similarity cross".split())
"""Functions along a dimension of operands of one rank."""
_OF_MATRICES = frozenset("tril triu cdist bilinear inverse".split())
"""Functions of last dimensions, batches before them."""
_OF_VECTORS = {
    "outer": lambda a, b: a.unsqueeze(2) * b.unsqueeze(1),
    "dot": lambda a, b: (a * b).sum(-1),
    "inner": lambda a, b: (a * b).sum(-1),
}  # fmt: skip
_RECURRENT = frozenset("lstm gru rnn_tanh rnn_relu".split())
_MAPS = {
    f"{name}{dimensions}d": dimensions + 1
    for name in ("conv", "conv_transpose", "avg_pool", "max_pool", "adaptive_avg_pool")
    for dimensions in (1, 2, 3)
}
"""Dimensions of a feature map, definition (3)."""
_JOINS = frozenset(("cat", "stack"))


class Glimpse(NamedTuple):
    """Elements `first` to `stop` of a row, in `shape`, then with its dimensions in another order; definition (4)."""

    first: int
    stop: int
    shape: tuple[int, ...]
    is_detached: bool = False
    """Whether one of the views lets no gradient through."""
    order: tuple[int, ...] | None = None
    """Which of the dimensions of `shape` comes first, and so on."""
    wide: tuple[int, ...] | None = None
    """The shape that all of it is expanded to."""

    @classmethod
    def through(cls, views: Sequence[View], shape: Sequence[int]) -> Glimpse | None:
        """What `views` show of a row of that shape; None when it is no run of its elements in order."""
        if any(shared_refs(view.template) for view in views):
            return None
        elements = torch.arange(torch.Size(shape).numel()).reshape(tuple(shape))
        for view in views:
            elements = view.apply(elements)
        full = tuple(elements.shape)
        for d in range(elements.ndim):
            if elements.stride(d) == 0 and elements.shape[d] > 1:
                elements = elements.narrow(d, 0, 1)
        wide = None if elements.shape == full else full
        order = sorted(range(elements.ndim), key=elements.stride, reverse=True)
        of_several = [d for d in range(elements.ndim) if elements.shape[d] > 1]
        if of_several == sorted(of_several, key=elements.stride, reverse=True):
            order = list(range(elements.ndim))
        in_order = elements.permute(order)
        flat = in_order.reshape(-1).tolist()
        first = flat[0] if flat else 0
        if flat != [*range(first, first + len(flat))]:
            return None
        back = tuple(order.index(d) for d in range(len(order)))
        is_turned = back != tuple(range(len(order)))
        return cls(first, first + len(flat), tuple(in_order.shape), any(view.detaches for view in views),
                   back if is_turned else None, wide)  # fmt: skip

    @property
    def shown(self) -> tuple[int, ...]:
        """The shape in which a row is seen."""
        if self.wide is not None:
            return self.wide
        return self.shape if self.order is None else tuple(self.shape[d] for d in self.order)

    @property
    def rank(self) -> int:
        """Dimensions of what is seen of a row."""
        return len(self.shape)

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """What is seen of every row of `value`."""
        seen = value
        if not (self.first == 0 and seen.shape[1:] == self.shape):
            count = value.shape[0]
            seen = value.reshape(count, -1)[:, self.first : self.stop].reshape(count, *self.shape)
        if self.order is not None:
            seen = seen.permute(0, *(1 + d for d in self.order))
        if self.wide is not None:
            seen = seen.expand(seen.shape[0], *self.wide)
        return seen.detach() if self.is_detached else seen


class Strided(NamedTuple):
    """What is no run of a row's elements: every so many of them, along each dimension; definition (4)."""

    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_detached: bool

    @classmethod
    def through(cls, views: Sequence[View], shape: Sequence[int]) -> Strided | None:
        """What `views` show of a row of that shape; None when they make new elements."""
        if any(shared_refs(view.template) for view in views):
            return None
        row = torch.arange(torch.Size(shape).numel()).reshape(tuple(shape))
        elements = row
        for view in views:
            elements = view.apply(elements)
        if elements.untyped_storage().data_ptr() != row.untyped_storage().data_ptr():
            return None
        first, is_detached = int(elements.storage_offset()), any(view.detaches for view in views)
        return cls(first, tuple(elements.shape), elements.stride(), is_detached)

    @property
    def shown(self) -> tuple[int, ...]:
        """The shape in which a row is seen."""
        return self.shape

    @property
    def rank(self) -> int:
        """Dimensions of what is seen of a row."""
        return len(self.shape)

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """What is seen of every row of `value`."""
        flat = value.reshape(value.shape[0], -1).contiguous()
        at = flat.storage_offset() + self.first
        seen = flat.as_strided((len(flat), *self.shape), (flat.shape[1], *self.strides), at)
        return seen.detach() if self.is_detached else seen


Seen = Glimpse | Strided


class BatchedForm(NamedTuple):
    """A call that a rule fits."""

    rule: Rule
    call: Callable[..., Any]
    template: Any
    glimpses: tuple[Seen, ...]

    @classmethod
    def find(cls, call: Callable[..., Any], template: Any, views: Sequence[Sequence[View]],
             shapes: Sequence[Sequence[int]], shared: Shared) -> BatchedForm | None:  # fmt: skip
        """The batched form of a call on rows of these shapes, if it has one."""
        pairs = list(zip(views, shapes, strict=True))
        seen = [Glimpse.through(chain, shape) or Strided.through(chain, shape) for chain, shape in pairs]
        glimpses = tuple(glimpse for glimpse in seen if glimpse is not None)
        if not glimpses or len(glimpses) != len(seen):
            return None
        rule = _rule_for(call, template, glimpses, shared)
        return cls(rule, call, template, glimpses) if rule else None

    def plain(self) -> tuple[Any, int] | None:
        """A template that the call itself takes as it is, and the dimensions that its operands are to have, 0 for those
        that they have; None where the rule does more."""
        if self.rule is _plain:
            return self.template, 0
        if self.rule is _broadcast and not shared_refs(self.template):
            return self.template, 1 + max(glimpse.rank for glimpse in self.glimpses)
        if self.rule is _along:
            args, kwargs = self.template
            return _counted_on(ALONG[name_of(self.call)], args, kwargs, 1 + self.glimpses[0].rank), 0
        return None

    def apply(self, values: Sequence[torch.Tensor], shared: Shared) -> Any:
        """What the call returns, for every row."""
        seen = [glimpse.of(value) for glimpse, value in zip(self.glimpses, values, strict=True)]
        return self.rule(self.call, self.template, seen, shared)


def _rule_for(call: Callable[..., Any], template: Any, glimpses: Sequence[Seen], shared: Shared) -> Rule | None:
    if (getattr(call, "__module__", None) or "torch").partition(".")[0] != "torch" or not template[0]:
        return None
    name = name_of(call)
    if "out" in template[1]:
        return None
    if name in _ELEMENTWISE:
        return _broadcast if _holes_stand_alone(template) else None
    if name == "matmul":
        return _matmul if _is_product_of_rows(template, glimpses, shared) else None
    if name == "scaled_dot_product_attention":
        ranks = {glimpse.rank for glimpse in glimpses}
        return _plain if _holes_stand_alone(template) and len(ranks) == 1 and min(ranks) >= 2 else None
    if name in _JOINS:
        return _join if _can_join(template) else None
    if name == "einsum":
        return _einsum if _can_have_a_letter(template) else None
    if name in _RECURRENT:
        return _recurrent if _is_of_one_sequence(template, glimpses) else None
    return _rule_of_one(call, name, template, glimpses) or _rule_of_several(name, template, glimpses)


def _rule_of_several(name: str, template: Any, glimpses: Sequence[Seen]) -> Rule | None:
    """The rule of a function of operands that are arguments of the call."""
    if not _holes_stand_alone(template) or type(template[0][0]) is not Hole or shared_refs(template):
        return None
    args, kwargs = template
    ranks = {glimpse.rank for glimpse in glimpses}
    if name in _OF_MATRICES:
        return _plain if len(ranks) == 1 and min(ranks) >= (1 if name == "bilinear" else 2) else None
    if name in _OF_VECTORS:
        return _of_vectors if ranks == {1} and len(args) == 2 and not kwargs else None
    if name in _TOGETHER:
        return _along if len(ranks) == 1 and min(ranks) and _can_move(name, args, kwargs) else None
    return _chosen if name in _CHOSEN and _is_choice(name, args, kwargs, glimpses) else None


def _rule_of_one(call: Callable[..., Any], name: str, template: Any, glimpses: Sequence[Seen]) -> Rule | None:
    """The rule of a function of one operand."""
    (first, *others), kwargs = template
    if len(glimpses) != 1 or type(first) is not Hole or _has_holes((others, kwargs)):
        return None
    if name in ALONG and name not in _TOGETHER:  # first: `max` of two tensors is pointwise
        return _along if glimpses[0].rank and _can_move(name, template[0], kwargs) else None
    if name in _ALIKE or (is_pointwise(name) and not shared_refs(template)):
        return _plain
    rank = _MAPS.get(name)
    if rank is None or glimpses[0].rank not in (rank, rank + 1):
        return None
    return _maps


def _holes_stand_alone(template: Any) -> bool:
    """Whether operands are arguments of the call, not parts of them."""
    args, kwargs = template
    return not any(_has_holes(arg) for arg in (*args, *kwargs.values()) if type(arg) is not Hole)


def _has_holes(item: Any) -> bool:
    if isinstance(item, dict):
        item = tuple(item.values())
    return type(item) is Hole or (isinstance(item, tuple | list) and any(map(_has_holes, item)))


def _can_move(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function's dimensions are where `_along` looks, and are of a kind that it can move."""
    where = ALONG[name]
    is_more = len(args) > where.position + 1 and _is_dimension(args[-1])  # x.flip(0, 1)
    dim = args[where.position] if len(args) > where.position else kwargs.get(where.keyword, where.default)
    dims = dim if isinstance(dim, tuple | list) and len(dim) else [dim]
    is_known = all(map(_is_dimension, dims)) or name in _ALONG_ALL
    return "axis" not in kwargs and is_known and not (is_more and name == "flip")


def _is_dimension(dim: Any) -> bool:
    return isinstance(dim, int) and not isinstance(dim, bool)


def _can_join(template: Any) -> bool:
    (first, *others), kwargs = template
    if not isinstance(first, list | tuple) or any(type(item) not in (Hole, SharedRef) for item in first):
        return False
    dims = [*others, *kwargs.values()]
    return len(dims) <= 1 and set(kwargs) <= {"dim"} and all(map(_is_dimension, dims))


def _is_product_of_rows(template: Any, glimpses: Sequence[Seen], shared: Shared) -> bool:
    """Whether batches of products line up: matrices and vectors, or higher ranks with a matrix shared by all."""
    args, kwargs = template
    if len(args) != 2 or kwargs or any(type(arg) not in (Hole, SharedRef) for arg in args):
        return False
    ranks = [glimpses[arg.index].rank if type(arg) is Hole else shared(arg).ndim for arg in args]
    alike = all(type(arg) is Hole for arg in args) and ranks[0] == ranks[1]
    return alike or all(
        rank <= 2 or shared_by_all
        for rank, shared_by_all in zip(ranks, [type(arg) is SharedRef for arg in reversed(args)], strict=True)
    )


def _broadcast(call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared) -> Any:
    """Definition (2)."""
    rank = max([value.ndim for value in seen] + [1 + shared(ref).ndim for ref in shared_refs(template)])
    aligned = [value.reshape(value.shape[0], *[1] * (rank - value.ndim), *value.shape[1:]) for value in seen]
    return _plain(call, template, aligned, shared)


def _plain(call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared) -> Any:
    """Definitions (5) and (8)."""
    args, kwargs = fill(template, seen, shared)
    return call(*args, **kwargs)


def _along(call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared) -> Any:
    """Definition (6)."""
    given, named = fill(template, seen, shared)
    args, kwargs = _counted_on(ALONG[name_of(call)], given, named, seen[0].ndim)
    return call(*args, **kwargs)


def _counted_on(
    where: Along, args: tuple[Any, ...], kwargs: dict[str, Any], rank: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments whose dimensions are those of a batch of that rank."""
    at = where.position
    if len(args) > at:
        return (*args[:at], _next(args[at], rank), *args[at + 1 :]), kwargs
    return args, {**kwargs, where.keyword: _next(kwargs.get(where.keyword, where.default), rank)}


def _next(dim: Any, rank: int) -> Any:
    """A row's dimension, or dimensions, in a batch of that rank."""
    if dim in (None, (), []):
        return tuple(range(1, rank))
    return dim + (dim >= 0) if isinstance(dim, int) else tuple(d + (d >= 0) for d in dim)


def _join(call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared) -> Any:
    """Definition (9)."""
    (first, *others), kwargs = template
    dim = others[0] if others else kwargs.get("dim", 0)
    parts = [
        seen[item.index] if type(item) is Hole else (whole := shared(item)).expand(len(seen[0]), *whole.shape)
        for item in first
    ]
    return call(parts, dim + (dim >= 0))


def _matmul(call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared) -> Any:
    """Definition (7)."""
    (left, right), _ = fill(template, seen, shared)
    of_rows = [type(arg) is Hole for arg in template[0]]
    a, b = (value.ndim - rows for value, rows in zip((left, right), of_rows, strict=True))
    product = torch.matmul(left.unsqueeze(-2) if a == 1 else left, right.unsqueeze(-1) if b == 1 else right)
    product = product.squeeze(-1) if b == 1 else product
    return product.squeeze(-1 if b == 1 else -2) if a == 1 else product


def _maps(call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared) -> Any:
    """Definition (3)."""
    maps = seen[0]
    name = name_of(call)
    own = maps.shape[: maps.ndim - _MAPS[name]]
    if len(own) > 1:
        maps = maps.flatten(0, 1)
    if name == "conv2d" and maps.device.type == "cpu":
        call = convolve
    found = _plain(call, template, [maps], shared)
    return found.unflatten(0, own) if len(own) > 1 else found


def _of_vectors(call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared) -> Any:
    args, _ = fill(template, seen, shared)
    return _OF_VECTORS[name_of(call)](*args)


_CHOSEN = frozenset("index_select getitem index_add".split())


def _is_choice(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], glimpses: Sequence[Seen]) -> bool:
    """Whether a call takes, or adds to, whole elements by a list of numbers."""
    dim, *rest = (0, *args[1:]) if name == "getitem" else args[1:]
    if kwargs or not _is_dimension(dim) or len(rest) != 1 + (name == "index_add"):
        return False
    return all(type(x) is Hole for x in rest) and glimpses[rest[0].index].rank == 1


def _chosen(call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared) -> Any:
    """Definition (10)."""
    name, (whole, *rest) = name_of(call), fill(template, seen, shared)[0]
    dim, numbers, *added = (0, *rest) if name == "getitem" else rest
    if numbers.dtype is torch.bool:
        raise TypeError("a mask chooses as many elements as it says")
    at = dim + 1 if dim >= 0 else whole.ndim + dim
    shape = [*whole.shape[:at], numbers.shape[1], *whole.shape[at + 1 :]]
    numbers = numbers % whole.shape[at]
    alike = numbers.view(len(numbers), *(numbers.shape[1] if d == at else 1 for d in range(1, whole.ndim)))
    index = alike.expand(shape)
    return whole.scatter_add(at, index, *added) if added else whole.gather(at, index)


def _can_have_a_letter(template: Any) -> bool:
    """Whether an equation names every dimension."""
    (equation, *operands), kwargs = template
    operands = operands[0] if type(operands[0]) in (list, tuple) else operands
    is_plain = isinstance(equation, str) and "." not in equation and not kwargs
    return is_plain and all(type(x) in (Hole, SharedRef) for x in operands)


def _einsum(call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared) -> Any:
    """Definition (11)."""
    equation, *operands = template[0]
    operands = operands[0] if type(operands[0]) in (list, tuple) else operands
    given, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow:
        result = "".join(sorted(c for c in {*given} - {","} if given.count(c) == 1))
    letter = next(c for c in "zyxwvutsrqponmlkjihgfedcba" if c not in equation)
    terms = [letter + t if type(x) is Hole else t for x, t in zip(operands, given.split(","), strict=True)]
    values = [seen[x.index] if type(x) is Hole else shared(x) for x in operands]
    return call(f"{','.join(terms)}->{letter}{result}", *values)


def _is_of_one_sequence(template: Any, glimpses: Sequence[Seen]) -> bool:
    """Whether a call of a recurrent network has one sequence, (length, 1, size), and its first states as operands."""
    args, kwargs = template
    states = args[1] if type(args[1]) in (list, tuple) else (args[1],)
    holes = (args[0], *states)
    if kwargs or len(args) != 9 or args[8] or args[5] or not all(type(x) in (Hole, SharedRef) for x in holes):
        return False
    return type(args[0]) is Hole and all(
        glimpses[x.index].rank == 3 and glimpses[x.index].shown[1] == 1 for x in holes if type(x) is Hole
    )


def _recurrent(call: Callable[..., Any], template: Any, seen: Sequence[torch.Tensor], shared: Shared) -> Any:
    """Definition (12): `(n, length, 1, size)` is `(length, n, size)`."""
    count = len(seen[0])
    args, _ = fill(template, [x.squeeze(2).transpose(0, 1).contiguous() for x in seen], shared)

    def of_rows(state: torch.Tensor) -> torch.Tensor:
        return state if state.shape[1] == count else state.expand(-1, count, -1).contiguous()

    states = args[1]
    states = tuple(map(of_rows, states)) if isinstance(states, list | tuple) else of_rows(states)
    return tuple(x.transpose(0, 1).unsqueeze(2) for x in call(args[0], states, *args[2:]))
