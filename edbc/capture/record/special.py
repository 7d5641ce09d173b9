"""Torch functions that are no node of their own: refused, views, parameters by another name, constants, lazy stacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch

from edbc.capture.ragged.program import CannotKeep
from edbc.capture.ragged.rows import rows_at
from edbc.capture.ragged.symbols import Index
from edbc.capture.ragged.value import Ragged
from edbc.capture.record.draws import DRAWN
from edbc.capture.record.excerpts import rows_seen
from edbc.capture.record.functionalise import refuse_statistics
from edbc.capture.record.lookup import look_up_of, looked_up
from edbc.capture.record.numbers import LONG
from edbc.capture.record.table import Hole, SharedRef, fill, is_flat, shared_refs, through
from edbc.capture.semantics import rules, sequences
from edbc.capture.semantics.autocast import Under, state_text
from edbc.capture.semantics.customfunctions import refuse_namesake
from edbc.capture.semantics.shapes import filled_by, flat, pick, repeated, replace_first, take_views
from edbc.capture.standins.lazy import Stack
from edbc.capture.standins.made import MAKERS, described
from edbc.capture.standins.nests import inside, mapped
from edbc.capture.standins.standin import LOOK_REMEDY, Lazy, Rows, Shared, Slot, Symbol, Value, refuse

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder


class AsItIs(NamedTuple):
    """A call that gives the value that it is given, by another name where it `copies`."""

    copies: bool


class OfMany(NamedTuple):
    """Elements of the first dimension by their numbers, which are operands, and what is made of them."""

    numbers: tuple[int, ...]
    outputs: Any


CONSTRUCTORS = (torch.tensor, torch.as_tensor, torch.asarray)
CATS = frozenset((torch.cat, torch.concat, torch.concatenate))


def refuse_what_cannot_be_batched(
    rec: Recorder, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise UnsupportedError for what would need values, change tensors, or be taken for another function."""
    refuse_namesake(rec.table.functions, func, name)
    refuse_statistics(func, args, kwargs)
    if name in rules.MEMORY:
        refuse(f"'{name}' of a recorded tensor reads its memory", "index it, or use narrow, unfold, reshape")
    if rules.looks_at_values(func, name):
        refuse_look(name)
    if rules.writes_operands(name):
        refuse(f"'{name}' changes tensors that it is given", "compute new ones with other torch functions")


def refuse_look(name: str) -> NoReturn:
    """Refuse a function that needs values, or makes a shape of them."""
    refuse(f"'{name}' asks for the value of a tensor while recording", LOOK_REMEDY)


def by_values(rec: Recorder, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that makes a shape of values (`nonzero`, `h[mask]`): of masks and integers that are read. What it
    makes a shape of otherwise is read where it gives no floating numbers, which would lose their gradient. The
    instance's own masks need not be read."""
    if name == "masked_select" and len(args) == 2 and type(args[1]) is torch.Tensor:
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return args[0].expand(shape)[args[1].expand(shape)]
    if rules.is_mask(name, args) and not any(isinstance(item, Symbol) for item in flat(args[1:], {})):
        return _shown(*args)
    if rec.reading is None:
        refuse_look(name)
    if any(isinstance(item, Symbol) and _is_whole(item) for item in flat(args, kwargs)):
        args, kwargs = _read(args, _is_whole), _read(kwargs, _is_whole)
        if name == "masked_select" and len(args) == 2 and args[0].shape == args[1].shape:
            func, name = torch.Tensor.__getitem__, "getitem"
        if not any(isinstance(item, Symbol) for item in flat(args, kwargs)):
            return func(*args, **kwargs)
        return _shown(*args) if rules.is_mask(name, args) else rec.function(func, args, kwargs, name)
    slots: list[Slot] = []
    _, template = rec.describe((args, kwargs), [], slots)
    likes, options = filled_by(torch.zeros, template, slots, rec.shared_meta)
    if any(isinstance(x, torch.Tensor) and x.is_floating_point() for x in flat(func(*likes, **options))):
        refuse_look(name)
    return read_function(func, args, kwargs)


def with_numbers(
    first: tuple[Any, ...], rest: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Arguments and keywords in which tensors of one whole number are read, as torch does where it takes a size
    (`h.expand(count, -1)`); None where there are none. The first argument is what a function is of."""
    if not any(map(_is_count, flat(rest, kwargs))):
        return None
    return (*first, *_counted(rest)), _counted(kwargs)


def _is_count(item: Any) -> bool:
    is_one = isinstance(item, torch.Tensor) and item.ndim == 0
    return is_one and not (item.dtype is torch.bool or item.is_floating_point() or item.is_complex())


def _counted(item: Any) -> Any:
    return mapped(lambda each: int(each) if _is_count(each) else each, item)


def _shown(value: Symbol, index: Any) -> Any:
    """`value[index]` where masks are of the index: each is the numbers of what it shows."""
    if isinstance(index, torch.Tensor) and not index.ndim:  # all of it, or nothing
        return value.unsqueeze(0)[index.reshape(1)]
    found: list[Any] = []
    for item in index if type(index) is tuple else (index,):
        is_mask = isinstance(item, torch.Tensor) and item.dtype in rules.MASKS
        if is_mask and not item.ndim:
            refuse_look("getitem")  # among other indices it is None, or makes an axis of none
        found += item.nonzero(as_tuple=True) if is_mask else (item,)
    numbers = tuple(found) if len(found) > 1 else found[0]
    return value.rec.function(torch.Tensor.__getitem__, (value, numbers), {})


def read_function(func: Any, args: Any, kwargs: Any) -> Any:
    """What a torch function tells of values (`torch.equal`), given the tensors that stand-ins stand for."""
    return func(*_read(args), **_read(kwargs))


def made_of_numbers(rec: Recorder, func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What a function makes of numbers in tensors (`torch.arange(begins[i], ends[i])`, `torch.zeros(count, 6)`)."""
    if rec.reading is None:
        refuse_look(name)
    args, kwargs = _read(args), _read(kwargs)
    numbers = mapped(lambda each: each.item() if type(each) is torch.Tensor and not each.ndim else each, args)
    made = described(func, numbers, kwargs) if func in MAKERS else None
    return func(*args, **kwargs) if made is None else made


def _is_whole(symbol: Symbol) -> bool:
    """Whether it has no floating numbers: masks and integers."""
    return not symbol.dtype.is_floating_point


def _read(item: Any, wanted: Callable[[Symbol], bool] = lambda _: True) -> Any:
    """Arguments with the tensors that the wanted stand-ins stand for."""
    return mapped(lambda each: each._read() if isinstance(each, Symbol) and wanted(each) else each, item)


def special(rec: Recorder, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> Any:
    """Functions that are no node, or another node, in some cases. `key` is the call's, None where it has none."""
    if name in rules.DROPOUTS and rules.is_off(name, args, kwargs):
        return args[0]
    if name == "requires_grad_":
        return requiring_grad(rec, *args, **kwargs)
    if name in DRAWN and rec.tracer.may_draw and not rules.is_off(name, args, kwargs):
        drawn = DRAWN[name](rec, name, *args, **kwargs)
        if drawn is not NotImplemented:
            return drawn
    if name == "type" and isinstance(args[0], Symbol):
        return _typed(rec, *args, **kwargs)
    if name in rules.AS_ANOTHER and len(args) == 2 and not any(type(x) is Ragged for x in args):
        return _as_another(rec, rules.AS_ANOTHER[name], *args, key)
    if name in rules.CASTS:
        rest = [a for a in args[1:] if not isinstance(a, torch.device | str)]
        kwargs = _without_device(kwargs)
        like = next((a for a in (*rest, *kwargs.values()) if isinstance(a, torch.Tensor)), None)
        if like is not None:  # of which the dtype alone counts
            is_same = like.dtype is args[0].dtype
            return as_it_is(rec, args[0], key) if is_same else _of_either(rec, torch.Tensor.to, args[0], like.dtype)
        only_moves = name in ("cpu", "cuda") or (name == "to" and not rest and not kwargs)
        if isinstance(args[0], Symbol) and (
            only_moves or func(args[0]._meta(), *rest, **kwargs).dtype is args[0].dtype
        ):
            return args[0].clone() if kwargs.get("copy") else as_it_is(rec, args[0], key)
    if (
        name == "embedding"
        and len(args) == 2
        and type(args[1]) is Shared
        and (is_at_once(args[0]) or (rec.shows is not None and isinstance(args[0], Index)))
        and args[0].ndim <= 1
        and not any(kwargs.get(k) for k in ("max_norm", "scale_grad_by_freq"))
    ):
        return embedded(rec, looked_up(args[1], kwargs.get("padding_idx"), bool(kwargs.get("sparse"))), args[0])
    if name == "getitem" and isinstance(args[0], Symbol):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if len(index) == 1 and (alone := sequences.selected(rec, args[0], 0, index[0])) is not NotImplemented:
            return alone
        if any(isinstance(i, torch.Tensor) for i in index) and all(map(_is_index, index)):
            return rec.node(pick, (args[0], *index), {}, "pick", key)
    if name == "repeat_interleave" and args and isinstance(args[0], Symbol):
        return _interleaved(rec, *args, **kwargs)
    if name in sequences.FUNCTIONS and not kwargs:
        return sequences.FUNCTIONS[name](rec, *args)
    if func is torch.sparse.mm:  # the one that is sparse is the instance's, and dense by now
        return rec.function(torch.matmul, args, kwargs)
    return args[0].reduced(name, args[1:], kwargs) if args and type(args[0]) is Stack else NotImplemented


def _as_another(rec: Recorder, func: Any, value: Any, other: Any, key: Any) -> Any:
    """A tensor in the shape of another, of which nothing else counts; the next such call finds it by `key`."""
    shape = tuple(other.shape)
    made = _of_either(rec, func, value, shape)
    known = rec.functions.get(rec._key(func, (value, shape), {}, [])) if key is not None else None
    if type(known) is tuple:  # a view, which is made of the first operand alone
        rec.functions[key] = known
    return made


def _of_either(rec: Recorder, func: Any, value: Any, *args: Any) -> Any:
    """A function of one tensor, which is recorded or the instance's own."""
    return rec.function(func, (value, *args), {}) if isinstance(value, Symbol) else func(value, *args)


def requiring_grad(rec: Recorder, value: Any, requires_grad: bool = True) -> Any:
    """The tensor itself: whom gradients reach through it does not change, nor where none do."""
    if not requires_grad and not rec.requires_none_of(value):
        refuse("requires_grad_(False) of a recorded tensor", "use x.detach(), as eager PyTorch asks for")
    return value


def _interleaved(rec: Recorder, value: Any, repeats: Any, dim: int | None = None, output_size: Any = None) -> Any:
    """`repeat_interleave` as often as a tensor of the instance's says: a choice of elements by their numbers."""
    if type(repeats) is not torch.Tensor:
        return NotImplemented
    if dim is None:
        value, dim = rec.function(torch.flatten, (value,), {}), 0
    count, times = value.shape[dim], repeats.tolist() if repeats.dtype is torch.int64 else None
    if type(times) is list and len(times) == count and min(times, default=-1) >= 0 and output_size is None:
        numbers = torch.from_numpy(np.repeat(np.arange(count), times))  # in a third of torch's time
    else:
        numbers = torch.arange(count).repeat_interleave(repeats, output_size=output_size)
    return rec.function(torch.index_select, (value, dim, numbers), {})


def constructed(
    rec: Recorder, func: Any, data: Any, *, dtype: Any = None, requires_grad: bool = False, **_: Any
) -> Any:
    """`torch.tensor` and its like of data with stand-ins among them: their numbers, which no gradient reaches; of one
    stand-in `torch.as_tensor` and `torch.asarray` give itself."""
    if requires_grad:
        refuse(f"'{func.__name__}' of recorded tensors was to begin a graph of gradients of its own",
               "leave requires_grad out: gradients inside forward are not recorded")  # fmt: skip
    if isinstance(data, Index):
        if dtype not in (None, torch.int64):
            raise CannotKeep
        return data
    if isinstance(data, list | tuple):
        made = _of_numbers(rec, func, data, dtype or _common_dtype(data))
    else:
        made = data.detach().clone() if func is torch.tensor else data
    return made if dtype is None or made.dtype is dtype else rec.function(torch.Tensor.to, (made, dtype), {})


def _of_numbers(rec: Recorder, func: Any, data: Any, dtype: torch.dtype) -> Any:
    if isinstance(data, list | tuple):
        return rec.function(torch.stack, ([_of_numbers(rec, func, item, dtype) for item in data],), {})
    if not isinstance(data, torch.Tensor):
        return torch.tensor(data, dtype=dtype)
    if data.numel() != 1:
        refuse(f"'{func.__name__}' was given a list with a recorded tensor of shape {tuple(data.shape)} in it, where "
               "eager PyTorch takes those of one number only", "use torch.stack")  # fmt: skip
    return rec.function(torch.Tensor.to, (data.detach().reshape(()), dtype), {})


def _common_dtype(data: Any) -> torch.dtype:
    if isinstance(data, list | tuple):
        return functools.reduce(torch.promote_types, map(_common_dtype, data))
    return data.dtype if isinstance(data, torch.Tensor) else torch.tensor(data).dtype


def is_at_once(item: Any) -> bool:
    """Whether it is a tensor of the instance alone, or stands for one."""
    return type(item) is torch.Tensor or (issubclass(type(item), Symbol) and item.is_at_once)


def embedded(rec: Recorder, table: Shared, indices: Any) -> Any:
    """Rows of a table: copies of them, nobody else's. Raises IndexError for a negative number, which counts from the
    end when a tensor is indexed, and is no row of an embedding."""
    if type(indices) is torch.Tensor and indices.numel() and (least := int(indices.min())) < 0:
        raise IndexError(f"index {least} is out of bounds for {table.ref!r} with {len(table.tensor)} rows")
    if rec.in_cell:
        return rec.function(torch.Tensor.__getitem__, (table, indices), {})
    if type(indices) is torch.Tensor and LONG < len(table.tensor) == indices.numel() and _is_all(indices):
        look_up = look_up_of(table.ref)
        if look_up is None or not look_up.sparse:
            return rec.function(every_row, (table, look_up and look_up.padding_index), {})
    if type(indices) is not torch.Tensor:
        rows = indices.rows_of(table)
    else:
        rows = (table if rec.flows else rec.without_gradient(table))._rows(indices)
        if rows is None:  # what torch says of indices that are none
            return torch.nn.functional.embedding(indices, table.tensor)
    if type(rows) is Ragged:
        rows.is_own = True
    return rec.copied(rows) if type(rows) is Value else rows


def _is_all(indices: torch.Tensor) -> bool:
    return torch.equal(indices.long(), torch.arange(indices.numel()))


def every_row(table: torch.Tensor, padding_index: int | None) -> torch.Tensor:
    """What an embedding of 0, 1, ... gives: scores of all items are products with it. A function of parameters."""
    return torch.nn.functional.embedding(torch.arange(len(table), device=table.device), table, padding_index)


def _typed(rec: Recorder, tensor: Any, dtype: Any = None, **_: Any) -> Any:
    """`x.type()`, the name of its class from before dtypes, and `x.type(torch.FloatTensor)`."""
    if dtype is None:
        return torch.empty(0, dtype=tensor.dtype).type()
    wanted = dtype if isinstance(dtype, torch.dtype) else torch.empty(0).type(dtype).dtype
    return tensor if wanted is tensor.dtype else rec.function(torch.Tensor.to, (tensor, wanted), {})


def of_many(rec: Recorder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OfMany | None:
    """What a call takes of a value with so many elements that each number would be a type; None where it is no such
    call."""
    value, *rest = (*args, *kwargs.values())
    if type(value) is not Value or rec.in_cell or not value.slot.shape or value.slot.shape[0] <= LONG:
        return None
    if name == "getitem":
        return OfMany((rest[0],), Hole(0)) if type(rest[0]) is int else None
    numbers = tuple(range(value.slot.shape[0]))
    return OfMany(numbers, tuple(map(Hole, numbers))) if name == "unbind" and rest in ([], [0]) else None


def selected(rec: Recorder, value: Any, known: OfMany) -> Any:
    """Elements of the first dimension, as nodes whose type does not depend on their numbers."""
    if isinstance(value, Lazy):
        value = value.materialise()
    found = [rec.select(value, number) for number in known.numbers]
    for number, one in zip(known.numbers, found, strict=True) if rec.books is not None else ():
        _, _, steps = take_views(torch.Tensor.__getitem__, "getitem", ((Hole(0), number), {}), value.slot.meta())
        rec.books.share(value, one, steps)  # type: ignore[union-attr]
    return fill(known.outputs, found)


def lazy_stack(rec: Recorder, is_cat: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `torch.stack` or `torch.cat` gives of values of one class, as a lazy stack."""
    if len(args) == 1 and not kwargs:
        tensors, dim = args[0], 0
    else:
        given = dict(zip(("tensors", "dim"), args, strict=False)) | kwargs
        tensors, dim = given.pop("tensors", None), given.pop("dim", 0)
        if given or len(args) > 2:
            return NotImplemented
    if not isinstance(tensors, list | tuple) or not tensors or rec.books is not None:
        return NotImplemented
    first = tensors[0] if type(tensors[0]) is Value else next((x for x in tensors if type(x) is Value), None)
    if first is None:
        return NotImplemented
    slot = first.slot
    ndim = len(slot.shape) + (not is_cat)
    if type(dim) is not int or not -ndim <= dim < ndim or (is_cat and slot.shape[dim] != 1):
        return NotImplemented
    at = dim % ndim
    if at and rec.in_cell:  # whose items are as many in every node, and which native code reads as they stand
        return NotImplemented
    items = []
    for x in tensors:
        item = x if type(x) is Value else _as_value(rec, x)
        if item.slot is not slot:
            return NotImplemented
        items.append(item)
    row_shape = (*slot.shape[:at], *slot.shape[at + is_cat :])
    rec.note_size(len(items), row_shape, slot.dtype, at)
    if rec.ragged and rec.has_rows(row_shape, slot.dtype, at):
        row = items[0].squeeze(at).slot if is_cat else slot
        return rows_at(rec, [x.ref for x in items], row, at)
    if slot.views:
        return NotImplemented
    return Stack(rec, items, is_cat, at, (args[1:], {k: v for k, v in kwargs.items() if k != "tensors"}))


def _as_value(rec: Recorder, tensor: Any) -> Value:
    if isinstance(tensor, Lazy):
        return tensor.materialise()
    return rec.whole(tensor) if type(tensor) is Shared else rec.constant(tensor)


def filled(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Callable[[], torch.Tensor]] | None:
    """Key and maker of the constant that `zeros_like` and its like give, the same for all nodes that ask for it; None
    where it is none."""
    others = flat(args[1:], kwargs)
    if not isinstance(args[0], Symbol) or any(isinstance(a, Symbol | torch.Tensor) for a in others):
        return None  # a tensor's number, as which it fills or how many, is that of an instance
    rest, numbers = _without_device(kwargs), args[1:]  # what is kept holds no stand-in, which would not be alone
    like = args[0]._meta()
    shape, dtype = tuple(like.shape), like.dtype  # `empty_like` of a meta tensor runs as Python
    key = (name, shape, dtype, repr(numbers), repr(rest))
    return key, lambda: func(torch.empty(shape, dtype=dtype, device="cpu"), *numbers, **rest)


def as_it_is(rec: Recorder, value: Any, key: Any, copies: bool = False) -> Any:
    """The value, by another name where the call `copies`; the next such call finds it by `key`."""
    if key is not None and type(value) is Value:
        rec.functions[key] = AsItIs(copies)
    return rec.copied(value) if copies else value


def is_view(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True when the call takes one recorded tensor and constants, so that it is what `rules.VIEWS` says."""
    if not isinstance(args[0], Symbol):
        return False
    if name == "getitem":
        return rules.is_constant_index(args[1])
    return not any(isinstance(a, torch.Tensor) for a in flat(args[1:], kwargs))


def view(rec: Recorder, func: Any, name: str, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a view: no node; the value, or the parameter, seen in another way."""
    if type(args[0]) is Rows and name not in (*rules.IDENTITIES, "detach"):
        found = rows_seen(rec, func, args, kwargs)
        return rec.function(func, (args[0].materialise(), *args[1:]), kwargs, name) if found is None else found
    value = args[0].materialise() if isinstance(args[0], Lazy) else args[0]
    if name == "clone" and type(value) is Shared and rec.books is not None:  # it may change in place
        return rec.copied(rec.whole(value))
    is_as_it_is = name in rules.IDENTITIES and (name not in rules.LAYS_OUT or _is_laid_out(value))
    if is_as_it_is and (name != "clone" or type(value) is Value):  # a copy of a parameter is kept apart
        if key is not None and type(args[0]) is Value:
            rec.functions[key] = AsItIs(name == "clone")
        return rec.copied(value) if name == "clone" else value
    args = (value, *args[1:])
    if type(value) is Shared:
        described, template = rec.describe((args, kwargs), [], [])
        return derived(rec, func, name, described, template, value)
    _, template = rec.describe((args, kwargs), [], [])
    outputs, metas, views = take_views(func, name, template, value.slot.meta())
    slot = value.slot
    slots = [rec.table.slot(slot.base, (*slot.views, view), meta) for view, meta in zip(views, metas, strict=True)]
    if key is not None:
        rec.functions[key] = (outputs, slots, is_flat(outputs))
        if type(outputs) is Hole:
            rec.remember(slots[0], func, (value, *args[1:]), kwargs)
    return rec.seen(value, outputs, slots, is_flat(outputs))


def _is_laid_out(value: Any) -> bool:
    """Whether eager's tensor has its elements in memory in order, so that it may be seen in any other shape."""
    if type(value) is Shared:
        return value.tensor.is_contiguous()
    whole = torch.empty(value.slot.base.shape, device="meta")
    return through(value.slot.views, whole, value.rec.shared_meta).is_contiguous()


def detached_view(rec: Recorder, value: Any) -> Any:
    """`value.detach()`, once."""
    views = value.slot.views if type(value) is Value else value.ref.views
    if (views and views[-1].detaches) or not (value.is_floating_point() or value.is_complex()):
        return value
    return view(rec, torch.Tensor.detach, "detach", None, (value,), {})


def without_gradient(rec: Recorder, result: Any, first_value: int | None) -> Any:
    """What a call gave where gradients are off, such that none passes; values from `first_value` on are new nodes',
    which `Recorder.detached` tells."""
    kind = type(result)
    if kind is Ragged:
        is_new = first_value is not None and len(result.refs) and min(result.refs) >= first_value
        return result if is_new else result.without_gradient()
    if issubclass(kind, Lazy):
        return detached_view(rec, result.materialise())
    if kind in (Value, Shared):
        is_told = first_value is not None and not rec.in_cell and kind is Value and result.ref >= first_value
        return result if is_told else detached_view(rec, result)
    return inside(lambda item: without_gradient(rec, item, first_value), result)


MAX_STEPS = 64
"""Of functions of parameters only: a value that is used twice at every step of a recurrence would be told, and
computed, exponentially often."""


def num_steps(template: Any) -> int:
    """How many steps the parameters of a template are away from those of the model; at most what MAX_STEPS allows, and
    one call more, were made of them."""
    return sum(1 + num_steps(view.template) for ref in shared_refs(template) for view in ref.views)


def derived(rec: Recorder, func: Any, name: str, described: Any, template: Any, first: Shared) -> Any:
    """A function of parameters only: no node, but a parameter by another name, computed once per mini-batch."""

    def derive() -> tuple[Any, list[Shared]]:
        rest, shared, function, text = replace_first(template, first.ref), rec.shared_meta, func, name
        if name not in rules.VIEWS and rec.changes(func, template):
            shared = lambda ref: repeated(rec.shared_meta(ref))  # noqa: E731, autocast leaves what has no data alone
            function, text = Under(func, rec.autocast), f"{name} under {state_text(rec.autocast)}"
        outputs, found, views = take_views(function, text, rest, shared(first.ref), shared)
        metas = [tensor.to("meta") for tensor in found]
        base = SharedRef(first.ref.name)
        refs = [base._replace(views=(*first.ref.views, view)) for view in views]
        return outputs, [Shared(rec, ref, meta) for ref, meta in zip(refs, metas, strict=True)]

    outputs, shared = first.derived((func, described, rec.autocast), derive)
    return shared[0] if type(outputs) is Hole else fill(outputs, shared)


def _is_index(item: Any) -> bool:
    """True for an integer and for a tensor that is one."""
    if isinstance(item, torch.Tensor):
        return item.ndim == 0 and not item.is_floating_point() and item.dtype is not torch.bool
    return type(item) is int


def _without_device(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking")}
