"""Views of ragged values: another shape of each row, other rows, or the ragged dimension in another place.

What only says sizes anew (`view`, `flatten`, `unsqueeze`) is told by the shape that results: the ragged dimension is
where as many elements stand before it as before, and n is its size. Where there is no such dimension the rows are mixed
up, and the value is taken whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edbc.capture.ragged.call import Call, Rule
from edbc.capture.ragged.program import JOIN, triple
from edbc.capture.ragged.rows import is_tensor, of_one_slot, repeated_row, rows_at, rows_of
from edbc.capture.ragged.symbols import Size
from edbc.capture.ragged.value import Ragged, each_row, filled, one_step
from edbc.capture.ragged.whole import pairs
from edbc.capture.semantics import sequences
from edbc.capture.standins.standin import Symbol, Value, is_matrix

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder

MOST_MERGED = 4
"""Rows that a view puts together into one."""


def reshaped(call: Call) -> Any:
    """`view`, `reshape`, `flatten`, `unflatten`, `squeeze()`, `view_as`, `ravel`."""
    ragged = call.args[0]
    if type(ragged) is not Ragged:
        return NotImplemented
    others = [a._meta() if isinstance(a, Symbol) else a for a in call.args[1:]]
    if others and isinstance(others[0], torch.dtype):
        return NotImplemented
    by_pairs = pairs.seen_by(ragged, call.args[1:])
    if by_pairs is not None:
        return by_pairs
    shape = tuple(call.func(ragged._meta(), *others, **call.kwargs).shape)
    found = as_shape(ragged, shape)
    return _merged(ragged, shape) if found is NotImplemented else found


def _merged(ragged: Ragged, shape: Sequence[int]) -> Any:
    """A ragged value every few rows of which are one: `h.view(n // 2, 2 * size)`, of an even number. How many these are
    is told by sizes, which another instance may have in another way."""
    count, rec = len(ragged.refs), ragged.rec
    places = [k for k, size in enumerate(shape) if 0 < size < count and torch.Size(shape[:k]).numel() == 1]
    if not places or torch.Size(ragged.row.shape[: ragged.at]).numel() > 1:
        return NotImplemented
    place = places[-1]
    number, over = divmod(count, shape[place])
    if over or number > MOST_MERGED:
        return NotImplemented
    rec.counted = True
    rest = (*shape[:place], *shape[place + 1 :])
    rows = ragged.like(ragged.refs, 0)
    parts = [rows.take(np.arange(k, count, number)) for k in range(number)]
    return each_row(rec, parts, lambda *of: torch.cat([row.reshape(-1) for row in of]).reshape(rest), place)


def as_shape(ragged: Ragged, shape: Sequence[int]) -> Any:
    """A ragged value in another shape; NotImplemented where its rows do not stay together."""
    count = len(ragged.refs)
    before = torch.Size(ragged.row.shape[: ragged.at]).numel()
    places = [k for k, size in enumerate(shape) if size == count and torch.Size(shape[:k]).numel() == before]
    found = next((k for k in places if len(shape) - k == ragged.behind), places[0] if places else -1)
    rec = ragged.rec
    if found < 0:
        if count == 1:
            return ragged.value(0).reshape(tuple(shape))
        return NotImplemented
    rest = (*shape[:found], *shape[found + 1 :])
    if rest == tuple(ragged.row.shape):
        return ragged.like(ragged.refs, found)
    if not count and torch.Size(rest).numel() != ragged.row.shape.numel():  # rows merged, of which there are none
        return NotImplemented
    return each_row(rec, [ragged], lambda row: row.reshape(rest), found)


def unsqueezed(call: Call) -> Any:
    """`unsqueeze(dim)`."""
    ragged = call.args[0]
    dim = call.given(1, "dim", None)
    if type(ragged) is not Ragged or type(dim) is not int:
        return NotImplemented
    dim %= ragged.ndim + 1
    at = ragged.at + (dim <= ragged.at)
    place = dim if dim <= ragged.at else dim - 1
    return each_row(ragged.rec, [ragged], lambda row: row.unsqueeze(place), at)


def squeezed(call: Call) -> Any:
    """`squeeze()` and `squeeze(dim)`."""
    ragged = call.args[0]
    dim = call.given(1, "dim", None)
    if type(ragged) is not Ragged or (dim is not None and type(dim) is not int):
        return NotImplemented
    if dim is None:
        return reshaped(call)
    dim %= ragged.ndim
    if dim == ragged.at:
        return ragged.value(0) if len(ragged.refs) == 1 else ragged
    if ragged.shape[dim] != 1:
        return ragged
    place, at = dim - (dim > ragged.at), ragged.at - (dim < ragged.at)
    return each_row(ragged.rec, [ragged], lambda row: row.squeeze(place), at)


def permuted(call: Call) -> Any:
    """`transpose`, `permute`, `t`, `T`, `mT`, `movedim`."""
    ragged = call.args[0]
    if type(ragged) is not Ragged or any(isinstance(a, Symbol) for a in call.args[1:]):
        return NotImplemented
    ndim = ragged.ndim
    tagged = torch.empty(tuple(range(2, 2 + ndim)), device="meta")
    order = [size - 2 for size in call.func(tagged, *call.args[1:], **call.kwargs).shape]
    return as_order(ragged, order)


def as_order(ragged: Ragged, order: Sequence[int]) -> Ragged:
    """A ragged value with its dimensions in another order."""
    at = order.index(ragged.at)
    rest = [d - (d > ragged.at) for d in order if d != ragged.at]
    if rest == sorted(rest):
        return ragged.like(ragged.refs, at)
    turned: Ragged
    if len(rest) == 2:
        turned = each_row(ragged.rec, [ragged], lambda row: row.transpose(0, 1), at)
    else:
        turned = each_row(ragged.rec, [ragged], lambda row: row.permute(rest), at)
    return turned


def same(call: Call) -> Any:
    """`contiguous`, `clone`, `detach` and their like."""
    ragged = call.args[0]
    return call.of_rows(call.args, call.kwargs, ragged.at) if type(ragged) is Ragged else NotImplemented


def expanded(call: Call) -> Any:
    """`expand`, `expand_as`, `broadcast_to`."""
    ragged = call.args[0]
    if type(ragged) is not Ragged:
        return NotImplemented
    sizes = call.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], Symbol | torch.Tensor):
        sizes = tuple(sizes[0].shape)
    elif len(sizes) == 1 and not isinstance(sizes[0], int):
        sizes = tuple(sizes[0])
    if not sizes or not all(type(s) is int for s in sizes):
        return NotImplemented
    at = len(sizes) - ragged.behind
    if at < 0:
        return NotImplemented
    sizes = tuple(
        ragged.shape[i - len(sizes)] if s == -1 and len(sizes) - i <= ragged.ndim else s for i, s in enumerate(sizes)
    )
    rest = (*sizes[:at], *sizes[at + 1 :])
    whole = ragged.repeated(sizes[at])
    if len(whole.refs) != sizes[at]:
        return NotImplemented
    if rest == tuple(ragged.row.shape):
        return whole.like(whole.refs, at)
    return each_row(ragged.rec, [whole], lambda row: row.expand(rest), at)


def parted(call: Call) -> Any:
    """`chunk`, `split`, `tensor_split`, `unbind`, `unflatten`, `narrow`, `select` along a dimension."""
    ragged = call.args[0]
    where = 1 if call.name in ("unbind", "narrow", "select") else 2
    dim = call.given(where, "dim", 0)
    if type(ragged) is not Ragged or type(dim) is not int:
        return NotImplemented
    dim %= ragged.ndim
    if dim == ragged.at:
        return _parts_of_rows(call, ragged)
    args, kwargs = call.with_argument(where, "dim", dim - (dim > ragged.at))
    gone = call.name in ("unbind", "select") and dim < ragged.at
    return call.of_rows(args, kwargs, ragged.at - gone)


def _parts_of_rows(call: Call, ragged: Ragged) -> Any:
    """Along the ragged dimension: which numbers go where is asked of torch, on the numbers themselves."""
    call.rec.counted = True
    numbers = torch.arange(len(ragged.refs))
    args, kwargs = call.with_argument(1 if call.name in ("unbind", "narrow", "select") else 2, "dim", 0)
    if call.name == "unbind":
        return tuple(ragged.values())
    if call.name == "split" and call.given(1, "split_size", None) == 1:  # each is one row in all instances
        return tuple([row.unsqueeze(ragged.at) for row in ragged.values()])
    found = call.func(numbers, *args[1:], **kwargs)
    if call.name == "select":
        return ragged.value(int(found))
    if isinstance(found, torch.Tensor):
        return ragged.take(found.numpy())
    return type(found)([ragged.take(part.numpy()) for part in found])


def gotten(call: Call) -> Any:
    """`x[index]`, of integers, slices, None, Ellipsis, lists and tensors of the instance's integers or booleans."""
    ragged, index = call.args
    if type(ragged) is not Ragged:  # rows of a table by integers that code computes
        is_by_rows = type(index) is Ragged and not index.row.shape and index.dtype is torch.int64
        return call.of_rows(call.args, call.kwargs, 0) if is_by_rows and is_matrix(ragged) else NotImplemented
    items = list(index) if type(index) is tuple else [index]
    if any(isinstance(i, Symbol) for i in items):
        return NotImplemented
    only: Any = items[0] if len(items) == 1 else None
    if _is_mask(only) and only.ndim > 1 and only.shape == ragged.shape[: only.ndim]:
        return ragged.flatten(0, only.ndim - 1)[only.reshape(-1)]
    alone = sequences.selected(call.rec, ragged, 0, only) if ragged.at else NotImplemented
    if alone is not NotImplemented:
        return alone
    items = [_as_index(i) for i in _of_one(items, ragged)]
    if any(i is NotImplemented for i in items):
        return NotImplemented
    used = sum(_num_dims(i) for i in items)
    if Ellipsis not in [i if not isinstance(i, torch.Tensor) else None for i in items]:
        items.append(Ellipsis)
    at = next(k for k, i in enumerate(items) if i is Ellipsis)
    items[at : at + 1] = [slice(None)] * (ragged.ndim - used)
    return _indexed(ragged, items)


def _is_mask(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype is torch.bool


def _of_one(items: list[Any], ragged: Ragged) -> list[Any]:
    """`x[:, [-1]]` as `x[:, -1:]`: what is one number in all instances is a slice to code that is kept."""
    place = next((k for k, i in enumerate(items) if type(i) is list and len(i) == 1 and type(i[0]) is int), None)
    others = [i for k, i in enumerate(items) if k != place and isinstance(i, list | np.ndarray | torch.Tensor)]
    if place is None or others:
        return items
    before, number = items[:place], items[place][0]
    dim = sum(map(_num_dims, before))
    if any(i is Ellipsis for i in before):
        dim = ragged.ndim - sum(map(_num_dims, items[place:]))
    count = len(ragged.refs)
    if dim != ragged.at or not -count <= number < count:
        return items
    return [*before, slice(number, number + 1 or None), *items[place + 1 :]]


def _indexed(ragged: Ragged, items: list[Any]) -> Any:
    """By one item per dimension, and None for new ones."""
    dim = place = 0
    while dim < ragged.at or items[place] is None:  # the item of the ragged dimension
        dim += _num_dims(items[place])
        place += 1
    if dim > ragged.at:
        return NotImplemented
    own, rest = items[place], [*items[:place], *items[place + 1 :]]
    others = [i for i in rest if isinstance(i, torch.Tensor)]
    if isinstance(own, torch.Tensor):
        if own.ndim != 1 or others:
            return _picked(ragged, own, rest)
        numbers = own.nonzero().reshape(-1).numpy() if _is_mask(own) else ragged.rec.numbers_of(own)
        taken: Any = ragged.take(numbers)
    elif type(own) is int:
        taken = ragged.value(own)
    else:
        taken = ragged if own == slice(None) else ragged.take(own)
    if type(taken) is not Ragged:
        return taken if _is_whole(rest) else taken[tuple(rest)]
    if _is_whole(rest):
        return taken
    if others and any(isinstance(i, torch.Tensor) for i in rest[:place]):
        return NotImplemented
    if len(others) > 1:
        return NotImplemented
    before = sum(i is None or isinstance(i, slice) for i in rest[:place])
    gone = _of_size_one(ragged, rest)
    take = (lambda row: row.squeeze(gone)) if gone else lambda row: row[tuple(rest)]
    return each_row(ragged.rec, [taken], take, before)


def _of_size_one(ragged: Ragged, rest: list[Any]) -> tuple[int, ...]:
    """The dimensions of a row that are of size 1 and indexed by a number, which makes a view; none of other indices."""
    if None in [i for i in rest if not isinstance(i, torch.Tensor)]:
        return ()
    gone = tuple(d for d, i in enumerate(rest) if type(i) is int)
    others = [i for i in rest if type(i) is not int]
    return gone if _is_whole(others) and all(ragged.row.shape[d] == 1 and rest[d] in (0, -1) for d in gone) else ()


def _picked(ragged: Ragged, own: torch.Tensor, rest: list[Any]) -> Any:
    """`x[rows, columns]`: one element of each row."""
    if ragged.at or len(rest) != 1 or not isinstance(rest[0], torch.Tensor) or own.ndim != 1 or rest[0].ndim != 1:
        return NotImplemented
    if _is_mask(own) or _is_mask(rest[0]) or len(own) != len(rest[0]) or not len(own):
        return NotImplemented
    ragged.rec.counted = True
    picked = [ragged.value(i)[j] for i, j in zip(own.tolist(), rest[0].tolist(), strict=True)]
    return rows_at(ragged.rec, [value.ref for value in picked], picked[0].slot)


def _as_index(item: Any) -> Any:
    if item is None or item is Ellipsis or type(item) is int or isinstance(item, slice):
        return item
    if isinstance(item, np.integer):
        return int(item)
    if isinstance(item, list | range | np.ndarray):
        try:
            item = torch.as_tensor(np.asarray(item))
        except (TypeError, ValueError):
            return NotImplemented
    is_index = type(item) is torch.Tensor and not item.is_floating_point() and item.ndim <= 1
    if is_index and item.ndim == 0 and item.dtype is not torch.bool:
        return int(item)
    return item if is_index and item.ndim == 1 else NotImplemented


def _num_dims(item: Any) -> int:
    return 0 if item is None or item is Ellipsis else 1


def _is_whole(items: list[Any]) -> bool:
    return all(isinstance(i, slice) and i == slice(None) for i in items)


def selected(call: Call) -> Any:
    """`index_select(dim, index)` by the instance's indices."""
    ragged = call.args[0]
    dim, index = call.given(1, "dim", None), call.given(2, "index", None)
    if type(ragged) is not Ragged or type(dim) is not int or type(index) is not torch.Tensor:
        return NotImplemented
    dim %= ragged.ndim
    if dim != ragged.at and (alone := sequences.selected(call.rec, ragged, dim, index)) is not NotImplemented:
        return alone
    if dim == ragged.at:
        return ragged.take(call.rec.numbers_of(index if index.ndim else index.reshape(1)))
    args, kwargs = call.with_argument(1, "dim", dim - (dim > ragged.at))
    return call.of_rows(args, kwargs, ragged.at)


def repeated(call: Call) -> Any:
    """`repeat_interleave` and `roll` of rows."""
    ragged = call.args[0]
    name, where = ("dims", 2) if call.name == "roll" else ("dim", 2)
    dim = call.given(where, name, None)
    dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
    if type(ragged) is not Ragged or type(dim) is not int or dim % ragged.ndim != ragged.at:
        return NotImplemented
    times = call.given(1, "repeats", None)
    if call.name == "repeat_interleave" and type(times) is Size:
        return ragged.tiled(times.like, True)
    call.rec.counted = True
    numbers = torch.arange(len(ragged.refs))
    args, kwargs = call.with_argument(where, name, 0)
    if any(isinstance(a, Symbol) for a in args[1:]):
        return NotImplemented
    return ragged.take(call.func(numbers, *args[1:], **kwargs).numpy())


def spread(rec: Recorder, name: str, args: tuple[Any, ...]) -> Any:
    """`v.repeat(n, 1)` and `v.expand(n, -1)` of one value in a batch of one, for a size that is a symbol: as many equal
    rows; NotImplemented for anything else."""
    if name not in ("repeat", "expand"):
        return NotImplemented
    value, *sizes = args
    sizes = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    is_one = value.ndim == len(sizes) > 1 and value.shape[0] == 1 and type(sizes[0]) is Size
    same = (1,) if name == "repeat" else (-1, *value.shape[1:])
    if not is_one or any(type(size) is not int or size not in same for size in sizes[1:]):
        return NotImplemented
    if name == "expand" and any(s not in (-1, own) for s, own in zip(sizes[1:], value.shape[1:], strict=True)):
        return NotImplemented
    row = value[0]
    return Ragged(rec, filled(rec, row.ref, sizes[0].value, sizes[0].like), row.slot)


def tiled(call: Call) -> Any:
    """`repeat(*sizes)`: rows again and again, and each row too."""
    ragged = call.args[0]
    sizes = call.args[1:]
    sizes = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if type(ragged) is not Ragged or len(sizes) != ragged.ndim:
        return NotImplemented
    rest, times = (*sizes[: ragged.at], *sizes[ragged.at + 1 :]), sizes[ragged.at]
    if ragged.ndim == 2 and type(times) is int and times == 1 and type(rest[0]) is Size and not ragged.at:
        return pairs.SideBySide(ragged, rest[0])
    if not all(type(s) is int for s in rest) or type(times) not in (int, Size):
        return NotImplemented
    if type(times) is Size:
        whole = ragged.tiled(times.like, False)
    else:
        whole = _behind_each_other([ragged] * times) if times else ragged.like(range(0))
    return whole if set(rest) <= {1} else each_row(ragged.rec, [whole], lambda row: row.repeat(rest), ragged.at)


def _behind_each_other(parts: Sequence[Ragged]) -> Ragged:
    """The rows of several values, of which there is one at least."""
    triples = [triple(part.refs) for part in parts]
    return parts[0] if len(parts) == 1 else parts[0].like(one_step(parts[0].rec, JOIN, (), triples))


def joined(call: Call) -> Any:
    """`torch.cat(tensors, dim)` and `torch.stack(tensors, dim)`."""
    parts, dim, rec = call.given(0, "tensors", None), call.given(1, "dim", 0), call.rec
    first = next((p for p in parts if type(p) is Ragged), None) if isinstance(parts, list | tuple) else None
    is_cat = call.name != "stack"
    if first is None or type(dim) is not int or not all(map(is_tensor, parts)):
        return NotImplemented
    if any(p.ndim != first.ndim if is_cat else p.shape != first.shape for p in parts):
        return NotImplemented
    if any(type(p) is Ragged and p.at != first.at for p in parts):
        return NotImplemented
    dim %= first.ndim + (not is_cat)
    if is_cat and dim == first.at:
        rows = [rows_of(rec, p, dim) for p in parts if p.shape[dim]]
        found = of_one_slot(rows) if rows else [first]
        return NotImplemented if found is None else _behind_each_other(found)
    if any(p.shape[first.at] != len(first.refs) for p in parts):
        return NotImplemented
    place, at = dim - (dim > first.at), first.at + (not is_cat and dim <= first.at)
    function = torch.cat if is_cat else torch.stack
    same = [repeated_row(rec, p, first.at) for p in parts]
    rows = [rows_of(rec, p, first.at) for p, row in zip(parts, same, strict=True) if row is None]

    def of_row(*values: Value) -> Any:
        of_parts = iter(values)
        return rec.node(function, ([next(of_parts) if row is None else row for row in same], place), {})

    return each_row(rec, rows, of_row, at)


RULES: dict[str, Rule] = {
    **dict.fromkeys("view reshape flatten unflatten view_as reshape_as ravel".split(), reshaped),
    **dict.fromkeys("transpose swapaxes swapdims permute t T mT movedim moveaxis".split(), permuted),
    **dict.fromkeys("contiguous clone alias positive detach".split(), same),
    **dict.fromkeys("expand expand_as broadcast_to".split(), expanded),
    **dict.fromkeys("chunk split tensor_split unbind narrow select".split(), parted),
    **dict.fromkeys("cat concat concatenate stack".split(), joined),
    "unsqueeze": unsqueezed,
    "squeeze": squeezed,
    "getitem": gotten,
    "index_select": selected,
    "repeat_interleave": repeated,
    "roll": repeated,
    "repeat": tiled,
}
BY_COUNT = frozenset(name for name, rule in RULES.items() if rule not in (permuted, same, unsqueezed, joined))
"""Functions whose numbers mean one thing or another depending on n."""
