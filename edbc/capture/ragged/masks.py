"""Functions of masks (`ragged.symbols`): what code computes of tensors whose elements are told by sizes alone.

`(ids != pad)` of a sentence without padding is true everywhere, `torch.ones(n, n).tril()` is a triangle. Code that was
written for padded batches makes such tensors, views and combines them, and fills scores where they say so.

Definitions.

(1) A function of masks, sizes and numbers is *told* where it gives a mask at two choices of lengths, of the same
    numbers, whose dimensions are the same symbols. So no function need be known by its name. An integer that is a
    symbol at both is that: the lengths of a batch of one are a mask too. Any other tensor that it gives is worked out
    for the sizes of each instance (`whole.worked`). What is told is a *claim* (`whole.recipes`), which other sizes may
    not hold: a band of 16 says the same everywhere in matrices of 7 and 11. But for functions of each element of masks,
    and of their shapes, it is held against the function for the sizes of each instance, too.
(2) A mask that changes nothing leaves another tensor as it is: filling nowhere, adding 0, multiplying by 1.
(3) Any other function takes a mask as what it is: equal rows where it has one symbol, a triangle in an expression of
    runs (`ragged.whole`) where it has two.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from edbc.capture.ragged.program import CannotKeep, Triple
from edbc.capture.ragged.rows import rows_described
from edbc.capture.ragged.symbols import Amount, Line, Mask, Range, Shape, Size, mask_of
from edbc.capture.ragged.whole.function import Apply, evaluated, pick, renumbered
from edbc.capture.ragged.whole.recipes import Claim, are_equal, sizes_of
from edbc.capture.ragged.whole.runs import LENGTHS, MARKS, Leaves, Pairs, of_triangle, triangle_of
from edbc.capture.ragged.whole.worked import Worked
from edbc.capture.record.table import Hole
from edbc.capture.semantics import rules, sequences
from edbc.capture.semantics.randomness import Dispatched
from edbc.capture.semantics.shapes import flat
from edbc.capture.standins.made import Description
from edbc.capture.standins.nests import inside, mapped
from edbc.capture.standins.standin import Symbol

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

_KEEPS_BY = {"add": 0, "sub": 0, "radd": 0, "iadd": 0, "isub": 0, "mul": 1, "imul": 1, "rmul": 1, "multiply": 1}
"""The number of a mask that leaves the other argument as it is, by the function."""


_MASKED = {"multi_head_attention_forward": ("attn_mask", "key_padding_mask")}
"""Functions that take masks as what is added to scores, by the keywords for these; of booleans, true is what is left
out."""


def call_of_masks(rec: Recorder, func: Callable[..., Any], name: str, args: tuple[Any, ...],
                  kwargs: dict[str, Any]) -> Any:  # fmt: skip
    """A torch function with masks among its arguments."""
    if name == "_pack_padded_sequence" and not kwargs:
        return sequences.packed(rec, *args)
    if name == "setitem" and type(args[1]) is Mask and args[1].number is False and args[1].ndim == args[0].ndim:
        return args[0]
    if name == "index_select" and len(args) == 3 and type(args[0]) is not Mask and args[2].number == 0:
        alone = sequences.selected(rec, args[0], args[1], args[2].tensor_of({}))
        if alone is not NotImplemented:
            return alone
    others = [x for x in flat(args, kwargs) if isinstance(x, Symbol | torch.Tensor) and not is_told(x)]
    if others and not any(isinstance(x, Symbol) for x in others):  # tensors that are as long as this instance
        rec.asked_size = True
        return func(*mapped(_as_long_as_now, args), **mapped(_as_long_as_now, kwargs))
    if len(others) == 1:
        kept = _kept(name, args, kwargs)
        if kept is not None:
            return kept
    if name in _MASKED:
        kwargs = {key: _added(rec, x) if key in _MASKED[name] else x for key, x in kwargs.items()}
    as_it_is = partial(_as_it_is, rec)
    return rec.function(func, mapped(as_it_is, args), mapped(as_it_is, kwargs))


def call_of_sizes(rec: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Definition (1): a torch function of what sizes tell, and no other stand-ins; None of others."""
    items = flat(args, kwargs)
    if not any(map(is_told, items)) or any(isinstance(x, Symbol) and not is_told(x) for x in items):
        return None
    name = rules.name_of(func)
    if rules.changes_in_place(func, name, kwargs) or rules.looks_at_values(func, name) or name in _ELSEWHERE:
        return None
    return of_sizes(rec, func, args, kwargs)


_ELSEWHERE = frozenset("_pack_padded_sequence size numel dim requires_grad is_contiguous embedding".split())
"""Functions that are no functions of their arguments' numbers, or ask more of them."""


def made_of_sizes(rec: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.ones(n, n)` and its like of several symbols, `torch.ones(1, n)` where these are no rows, and
    `torch.eye(n)`; None for others."""
    sizes = args[0] if args and isinstance(args[0], tuple | list) else args
    places = [place for place, size in enumerate(sizes) if type(size) is Size]
    if func is torch.eye:
        return of_sizes(rec, func, args, kwargs) if len(sizes) == len(places) == 1 and rec.flows else None
    if func is torch.ones and len(places) == 1 and rec.flows:
        shape = [size.value if type(size) is Size else size for size in sizes]
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        is_mask = places[0] > 0 and rec.place_of_rows(torch.Size(shape), dtype) != places[0]
    else:
        is_mask = len(places) > 1
    return of_sizes(rec, func, args, kwargs) if is_mask else None


def of_sizes(rec: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Definition (1), or an answer that is the same at both (`torch.is_floating_point`); None for anything else."""
    likes = tuple(dict.fromkeys(_symbols((*args, *kwargs.values()))))
    if len(likes) > MARKS:
        return None
    sizes = [Size(rec, value, like) for like, value in likes]
    expression = partial(_expression, {like: number for number, (like, _) in enumerate(likes)})
    root = Apply(func, rules.name_of(func), expression(args), expression(kwargs))
    made: list[Any] = []
    for lengths in (*LENGTHS, [size.value for size in sizes]):
        with Dispatched() as dispatched:
            try:
                made.append(evaluated(root, lengths))
            except Exception:  # whatever it is, the call itself will say so
                return None
        if dispatched.draws or dispatched.is_foreign:
            return None
    by_lengths = dict(zip(zip(*LENGTHS, strict=True), sizes, strict=False))
    begin = len(rec.claims)
    found = _of_all(rec, root, likes, by_lengths, made)
    if found is None or _is_sure(root.name, (*flat(args, kwargs),)):
        del rec.claims[begin:]
    return found


def _is_sure(name: str, items: Sequence[Any]) -> bool:
    """Whether a function of masks gives the same whatever sizes are: of each element, or of shapes."""
    kinds = {type(x.number) if type(x) is Mask and type(x.number) is Size else type(x) for x in items}
    others = kinds & {Size, Amount, Worked, Range, Line, slice}
    is_of_each = name in _OF_EACH or name in rules.CASTS or rules.is_pointwise(name)
    return (is_of_each and not others) or (name in _OF_SHAPES and others <= {Size})


_OF_EACH = frozenset("bool float int long double half bfloat16 logical_not bitwise_not bitwise_and bitwise_or".split())
_OF_SHAPES = frozenset(
    "ones zeros full ones_like zeros_like full_like unsqueeze squeeze expand expand_as view reshape clone "
    "contiguous".split()
)


def _of_all(rec: Recorder, root: Apply, likes: Any, by_lengths: dict[tuple[int, int], Size], made: list[Any]) -> Any:
    """What an expression gives that gives this at two choices of lengths and now; None where it is no tensor."""
    if all(isinstance(x, tuple) and not isinstance(x, torch.Size) and len(x) == len(made[0]) for x in made):
        parts = [_of_all(rec, Apply(pick, "pick", (root, k), {}), likes, by_lengths, [x[k] for x in made])
                 for k in range(len(made[0]))]  # fmt: skip
        return None if any(part is None for part in parts) else tuple(parts)
    found = _of_both(rec, by_lengths, *made[:2])
    expression = partial(_expression, {like: number for number, (like, _) in enumerate(likes)})
    own, claimed = tuple([like for like, _ in likes]), expression(found)
    if type(found) is Size:  # in the place of a tensor of it
        claimed = Apply(torch.full, "full", ((), claimed), {"dtype": torch.int64})
    if found is not None and are_equal(evaluated(claimed, [value for _, value in likes]), made[2]):
        rec.claims.append(Claim(root, claimed, own))
        return found
    if not likes or not all(type(x) is torch.Tensor and x.numel() for x in made[:2]):
        return None
    one, other, now = made
    if type(now) is not torch.Tensor or one.dtype is not other.dtype or not one.ndim == other.ndim == now.ndim:
        return None
    products = {(a[0] * b[0], a[1] * b[1]): (by_lengths[a], by_lengths[b]) for a in by_lengths for b in by_lengths}
    dims = [a if a == b else by_lengths.get((a, b)) or products.get((a, b))
            for a, b in zip(one.shape, other.shape, strict=True)]  # fmt: skip
    for place, (size, real) in enumerate(zip(dims, now.shape, strict=True)):
        told = math.prod(of.value for of in size) if type(size) is tuple else size.value if type(size) is Size else size
        dims[place] = size if told == real else None
    places = tuple([place for place, size in enumerate(dims) if size is not None])
    told = [Apply(operator.mul, "mul", expression(size), {}) if type(size) is tuple else expression(size)
            for size in map(dims.__getitem__, places)]  # fmt: skip
    rec.claims.append(Claim(Apply(sizes_of, "sizes", (root, places), {}), tuple(told), own))
    return Worked(rec, root, likes, dims, now) if now.layout is torch.strided else None


def _of_both(rec: Recorder, by_lengths: dict[tuple[int, int], Size], one: Any, other: Any) -> Any:
    """What a function gives that gives this at one choice of lengths, that at another; None where it is no mask."""
    if type(one) is type(other) is bool and one is other:
        return one
    if not all(type(x) is torch.Tensor and x.numel() for x in (one, other)) or one.dtype is not other.dtype:
        return None
    told, others = _numbers(one), _numbers(other)
    if told is None or others is None or one.ndim != other.ndim:
        return None
    if told != others:
        number = by_lengths.get((told[1], others[1]))
        if told[1] != told[2] or number is None or one.dtype not in (torch.int64, torch.get_default_dtype()):
            return None
        told = 0, number, number
    dims = [a if a == b else by_lengths.get((a, b)) for a, b in zip(one.shape, other.shape, strict=True)]
    if any(size is None for size in dims):
        return None
    is_size = not dims and type(told[1]) is Size and one.dtype is torch.int64
    return told[1] if is_size else Mask(rec, dims, told, one.dtype)


def is_told(item: Any) -> bool:
    """Whether sizes tell all numbers of a stand-in: of a mask, of 0, 1, ... as a vector and as a line, and of what is
    worked out of these."""
    return type(item) in (Mask, Range, Worked) or (type(item) is Line and type(item.index) is Range)


def _symbols(items: Iterable[Any]) -> Iterable[tuple[Triple, int]]:
    for item in items:
        if type(item) is Size:
            yield item.like, item.value
        elif type(item) is Mask:
            yield from _symbols((*item.dims, item.told[1]))
        elif type(item) is Worked:
            yield from item.likes
        elif type(item) is Amount:
            yield from _symbols(item.operands)
        elif type(item) is slice:
            yield from _symbols((item.start, item.stop, item.step))
        elif type(item) in (list, tuple, Shape):
            yield from _symbols(item)
        elif is_told(item):
            yield from _symbols(item.shape)


def _expression(numbers: dict[Triple, int], item: Any) -> Any:
    """An argument as an expression of lengths, by the numbers of registers."""
    expression, kind = partial(_expression, numbers), type(item)
    if kind is Size:
        return Hole(numbers[item.like])
    if kind is Amount:
        return Apply(item.call, "amount", expression(item.operands), {})
    if kind is slice:
        return Apply(slice, "slice", expression((item.start, item.stop, item.step)), {})
    if kind is Mask:
        return Apply(mask_of, "mask", expression((item.dims, item.told, item.dtype)), {})
    if kind is Worked:
        return renumbered(item.root, [numbers[like] for like, _ in item.likes])
    if is_told(item):
        places = Apply(torch.arange, "arange", (expression(item.shape[-1]),), {})
        return Apply(torch.reshape, "reshape", (places, (1,) * (item.ndim - 1) + (-1,)), {})
    return inside(expression, item)


def _as_long_as_now(item: Any) -> Any:
    if type(item) is Worked:
        return item.asked()
    if type(item) is not Mask:
        return item
    return item.tensor_of(dict(_symbols([item])))


def _numbers(tensor: torch.Tensor) -> tuple[int, Any, Any] | None:
    """What a mask is told by; None of any other tensor."""
    first = tensor.reshape(-1)[0]
    if bool((tensor == first).all()):
        return 0, first.item(), first.item()
    is_matrix = tensor.ndim > 1 and tensor.numel() == tensor.shape[-1] * tensor.shape[-2]
    return triangle_of(tensor) if is_matrix else None


def _kept(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Definition (2): the argument that stays as it is, None for none."""
    if kwargs or len(args) < 2:
        return None
    is_left = type(args[0]) is Mask
    mask, other = (args[0], args[1]) if is_left else (args[1], args[0])
    if type(mask) is not Mask or mask.number is None or not _is_as_large(other, mask):
        return None
    if name in ("masked_fill", "masked_fill_"):
        return None if is_left or mask.number else other
    is_same = other.dtype.is_floating_point and (mask.dtype is other.dtype or mask.dtype is torch.bool)
    is_difference = name in ("sub", "isub")
    fits = is_same and len(args) == 2 and not (is_difference and (is_left or mask.dtype is torch.bool))
    return other if fits and mask.number == _KEEPS_BY.get(name) else None


def _is_as_large(other: Any, mask: Mask) -> bool:
    """Whether a tensor has every dimension of a mask already, so that none is broadcast."""
    if not isinstance(other, Symbol) or other.ndim < mask.ndim:
        return False
    own = other.shape[other.ndim - mask.ndim :]
    pairs = zip(own, mask.dims, strict=True)
    return all(type(a) is Size if type(b) is Size else b == 1 or (type(a) is int and a == b) for a, b in pairs)


def _added(rec: Recorder, mask: Any) -> Any:
    """A mask of `multi_head_attention_forward` as what is added to scores; None where that is nothing."""
    if type(mask) is Mask and mask.dtype is torch.bool:
        mask = of_sizes(rec, _lowest, (mask,), {}) or mask
    return None if type(mask) is Mask and mask.number == 0 else mask


def _lowest(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape).masked_fill(mask, -math.inf)


def _as_it_is(rec: Recorder, item: Any) -> Any:
    """Definition (3)."""
    if type(item) is Worked:
        return item.value()
    if type(item) is not Mask:
        return item
    symbols = [place for place, size in enumerate(item.dims) if type(size) is Size]
    shape = torch.Size([size.value if type(size) is Size else size for size in item.dims])
    if not symbols and type(item.number) is Size and item.dtype.is_floating_point:  # as many ones
        described = Description(torch.full, torch.Size([item.number.value]), (1.0,), item.dtype)
        return rows_described(rec, described, item.number.like, 0).sum(0).view(shape)
    if not symbols and type(item.number) is Size:
        rec.asked_size = True
        return _as_long_as_now(item)
    if not symbols:
        return item.tensor_of({}) if item.dtype is torch.int64 else rec.constant(item.tensor_of({}))
    if len(symbols) == 1 and item.number is not None:
        described = Description(torch.full, shape, (item.number,), item.dtype)
        return rows_described(rec, described, item.dims[symbols[0]].like, symbols[0])
    if symbols != [item.ndim - 2, item.ndim - 1] or any(size != 1 for size in shape[:-2]):
        raise CannotKeep
    leaves = Leaves(rec)
    lengths = [leaves.length_of(rec, item.dims[place]) for place in symbols]
    root = of_triangle(lengths, item.told, torch.empty([1] * item.ndim, dtype=item.dtype))
    dims = *[-2] * (item.ndim - 2), *[leaves.symbols[size.args[0].index] for size in lengths]
    return Pairs(rec, root, leaves, dims, item.dtype)
