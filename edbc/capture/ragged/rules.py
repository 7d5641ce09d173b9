"""Which calls are row-wise, and what the call of one row is; which rename rows; which reduce them.

A rule takes a `Call` some of whose arguments are ragged, and gives what the call returns, or NotImplemented. Rules by
how a function treats dimensions:

(1) *Element-wise* functions broadcast from the right. Ragged operands stand in one place counted from the right; what
    has no dimension there, or one of size 1, is the same for all rows.
(2) Functions of the *last dimensions* (`linear`, `layer_norm`) take a row as they take all rows, where the ragged
    dimension comes before those.
(3) Functions *along dimensions* (`softmax`, `sum`, `norm`) others than the ragged one: the row has one dimension less,
    and those behind it count one lower. Along the ragged one: `ragged.across`.
(4) *Products* of rows with a matrix that all share, and of batches of matrices.
(5) *Views* and joins: `ragged.views`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from edbc.capture.ragged import across, products, views
from edbc.capture.ragged.call import Call, Rule
from edbc.capture.ragged.kept import NO_ROWS, NOT_KEPT, Given, KeptCall, again_at_once, is_keyed, keep, may_keep, shared
from edbc.capture.ragged.masks import call_of_masks
from edbc.capture.ragged.rows import (
    adopted,
    excerpts_of_rows,
    is_tensor,
    repeated_row,
    rows_described,
    rows_of,
)
from edbc.capture.ragged.symbols import Cut, Index, Joined, Line, Mask, Range, Size, Spread
from edbc.capture.ragged.value import NotRagged, Ragged, each_row
from edbc.capture.ragged.whole import borders, recurrent
from edbc.capture.ragged.whole.heads import multi_head_attention
from edbc.capture.ragged.whole.pairs import call_of_cells
from edbc.capture.ragged.whole.runs import Pairs, run_call
from edbc.capture.ragged.whole.worked import Worked, by_worked
from edbc.capture.record.draws import DRAWN
from edbc.capture.record.functionalise import is_filled_by_chance, refuse_statistics
from edbc.capture.semantics import rules
from edbc.capture.semantics.shapes import flat
from edbc.capture.standins.made import Description
from edbc.capture.standins.nests import inside, mapped
from edbc.capture.standins.standin import PLAIN, Shared, Symbol, Value, turned

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder


def elementwise(call: Call) -> Any:
    """Definition (1)."""
    tensors = [a for a in (*call.args, *call.kwargs.values()) if is_tensor(a)]
    places = {t.behind for t in tensors if type(t) is Ragged}
    if len(places) != 1 or any(isinstance(a, list | tuple) for a in call.args):
        return NotImplemented
    place = places.pop()
    sizes = {t.shape[-place] for t in tensors if t.ndim >= place} - {1}
    if len(sizes) > 1:
        return NotImplemented
    count = sizes.pop() if sizes else 1
    beside = next((t for t in tensors if type(t) is Ragged and len(t.refs) == count), None)

    def row_of(item: Any) -> Any:
        if type(item) is Ragged:
            return item.repeated(count, beside)
        if not is_tensor(item) or item.ndim < place:
            return item
        if item.shape[-place] == 1:
            return item.squeeze(-place)
        row = repeated_row(call.rec, item, item.ndim - place)
        return rows_of(call.rec, item, item.ndim - place) if row is None else row

    args, kwargs = [row_of(a) for a in call.args], {k: row_of(v) for k, v in call.kwargs.items()}
    return call.of_rows(args, kwargs, max(t.ndim for t in tensors) - place)


def _of_last(count: Callable[[Call], int]) -> Rule:
    """Definition (2), for functions of so many last dimensions of their first argument."""

    def rule(call: Call) -> Any:
        first = call.args[0] if call.args else None
        if type(first) is not Ragged or first.behind <= count(call) or call.num_ragged != 1:
            return NotImplemented
        return call.of_rows(call.args, call.kwargs, first.at)

    return rule


_ALONG = frozenset(
    "softmax log_softmax softmin logsumexp sum mean amax amin max min prod all any argmax argmin cumsum cumprod var "
    "std norm linalg_norm linalg_vector_norm normalize glu sort argsort topk cosine_similarity flip".split()
)
_KEEP = frozenset("softmax log_softmax softmin cumsum cumprod normalize glu sort argsort topk flip".split())
"""Of these, those whose result has all dimensions."""


def along(call: Call) -> Any:
    """Definition (3)."""
    if call.name in ("max", "min") and len(call.args) > 1 and is_tensor(call.args[1]):
        return elementwise(call)
    where, ragged = rules.ALONG[call.name], call.args[0] if call.args else None
    others = [a for a in call.args[1:] if is_tensor(a)]
    if type(ragged) is not Ragged:
        return NotImplemented
    if call.name == "cosine_similarity":
        if len(others) != 1 or others[0].ndim != ragged.ndim:
            return NotImplemented
    elif others:
        return NotImplemented
    dim = call.given(where.position, where.keyword, where.default)
    dims = _normal(dim, ragged.ndim)
    if dims is None:
        return NotImplemented
    keepdim = bool(call.given(where.position + 1, "keepdim", False)) if call.name not in _KEEP else True
    if ragged.at in dims:
        return across.reduced(call, ragged, dims, keepdim)
    rest = tuple(d - (d > ragged.at) for d in dims)
    moved: Any = rest[0] if isinstance(dim, int) or dim is where.default else rest
    at = ragged.at if keepdim else ragged.at - sum(d < ragged.at for d in dims)
    args, kwargs = call.with_argument(where.position, where.keyword, moved)
    if others:
        args = [args[0], rows_of(call.rec, others[0], ragged.at), *args[2:]]
        if len(args[1].refs) != len(ragged.refs):
            return NotImplemented
    return call.of_rows(args, kwargs, at)


def _normal(dim: Any, ndim: int) -> tuple[int, ...] | None:
    """Dimensions counted from the left; all of them where none is named."""
    if dim is None or dim == () or dim == []:
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if not all(isinstance(d, int) and -ndim <= d < ndim for d in dims):
        return None
    return tuple(d % ndim for d in dims)


def _like(call: Call) -> Any:
    """`zeros_like` and its like: one row, the same for all."""
    first = call.args[0] if call.args else None
    if type(first) is not Ragged or any(isinstance(a, Symbol) for a in call.args[1:]):
        return NotImplemented
    return call.of_rows(call.args, call.kwargs, first.at)


def _new(call: Call) -> Any:
    """`h.new_zeros(n, H)`: equal rows, where such a class is ragged."""
    first, *given = call.args
    if type(first) is not Ragged:
        return NotImplemented
    kwargs = {k: v for k, v in call.kwargs.items() if k not in ("device", "requires_grad")}
    shape = given[0] if given and isinstance(given[0], tuple | list) else given
    like = shape[0].like if shape and type(shape[0]) is Size else None
    if like is not None:
        numbers = (shape[0].value, *shape[1:])
        given = [*numbers] if shape is given else [numbers, *given[1:]]
    made = call.func(torch.empty(0, dtype=first.dtype), *given, **kwargs)
    if like is not None and call.rec.place_of_rows(made.shape, made.dtype) == 0:
        number = made[0].reshape(-1)[0].item()
        described = Description(torch.full, made.shape, (number,), made.dtype)
        return rows_described(call.rec, described, like)
    found = adopted(call.rec, made)
    return made if found is made else found


def _kept(call: Call) -> Any:
    """Dropout that is off, and what returns its argument."""
    if call.name in rules.DROPOUTS and rules.is_off(call.name, call.args, call.kwargs):
        return call.args[0]
    result, first = elementwise(call), call.args[0]
    is_first = type(result) is Ragged and type(first) is Ragged and result.refs == first.refs
    return first if is_first and result.row is first.row else result


def _num_normalized(call: Call) -> int:
    shape = call.given(1, "normalized_shape", ())
    return 1 if isinstance(shape, int) else len(shape)


def _batch_norm(call: Call) -> Any:
    """`F.batch_norm(rows, mean, var, weight, bias)` with the statistics that are given: of each row. Channels are the
    second dimension of the whole."""
    names = "input running_mean running_var weight bias training momentum eps".split()
    given = {name: call.given(i, name, None) for i, name in enumerate(names)}
    rows, mean, variance = given["input"], given["running_mean"], given["running_var"]
    if call.func is torch.batch_norm:  # which has its arguments in another order
        return NotImplemented
    if type(rows) is not Ragged or rows.at == 1 or rows.ndim < 2 or given["training"] or call.num_ragged != 1:
        return NotImplemented
    function, ones = call.rec.function, (1,) * (rows.ndim - 2 - (rows.at > 0))

    def of_channel(tensor: Any) -> Any:
        return tensor.view(-1, *ones) if ones else tensor

    def one(row: Any) -> Any:
        scale = function(torch.rsqrt, (function(torch.add, (of_channel(variance), given["eps"]), {}),), {})
        if given["weight"] is not None:
            scale = function(torch.mul, (of_channel(given["weight"]), scale), {})
        result = function(torch.mul, (function(torch.sub, (row, of_channel(mean)), {}), scale), {})
        return result if given["bias"] is None else function(torch.add, (result, of_channel(given["bias"])), {})

    return each_row(call.rec, [rows], one, rows.at)


def _of_classes(call: Call) -> Any:
    """`cross_entropy` and `nll_loss` of rows and the numbers of their classes: an element of each row of negative
    log-probabilities, then reduced. No class is ignored where all are some row's element, and the one that is ignored
    is none."""
    rows, target = call.given(0, "input", None), call.given(1, "target", None)
    reduction, ignored = call.given(6, "reduction", "mean"), call.given(4, "ignore_index", -100)
    others = [call.given(2, "weight", None), call.given(3, "size_average", None), call.given(5, "reduce", None)]
    smoothing = call.given(7, "label_smoothing", 0.0)
    if type(target) is torch.Tensor and target.dtype is torch.int64 and target.ndim == 1 and len(target):
        target = call.rec.rows_of_numbers(call.rec.numbers_of(target))
    if type(rows) is not Ragged or type(target) is not Ragged or rows.ndim != 2 or rows.at or target.ndim != 1:
        return NotImplemented
    size, is_plain = rows.row.shape[0], smoothing == 0.0 and all(other is None for other in others)
    if not is_plain or 0 <= ignored < size or len(rows.refs) != len(target.refs):
        return NotImplemented
    if reduction not in ("none", "mean", "sum") or not call.rec.are_below(target, size):
        return NotImplemented
    function = call.rec.function

    def one(row: Any, number: Any) -> Any:
        if call.name == "cross_entropy":
            row = function(torch.log_softmax, (row, -1), {})
        return function(torch.neg, (call.rec.chosen(row, number),), {})

    losses = each_row(call.rec, [rows, target], one, 0)
    return losses if reduction == "none" else function(getattr(torch, reduction), (losses,), {})


def _of_differences(call: Call) -> Any:
    """`mse_loss` and `l1_loss`, of equal shapes, as what they are of differences."""
    given, target = call.args[:2]
    reduction, function = call.given(4, "reduction", "mean"), call.rec.function
    others = (2, "size_average"), (3, "reduce"), (5, "weight")
    is_plain = all(call.given(at, name, None) is None for at, name in others)
    if not is_plain or not all(map(is_tensor, (given, target))) or tuple(given.shape) != tuple(target.shape):
        return NotImplemented
    apart = function(torch.sub, (given, target), {})
    losses = function(torch.abs, (apart,), {}) if call.name == "l1_loss" else function(torch.mul, (apart, apart), {})
    return losses if reduction == "none" else function(getattr(torch, reduction), (losses,), {})


def _looked_up(call: Call) -> Any:
    """Rows of a table by rows of integers that code computes (`words(ids + 1)`)."""
    is_by_rows = call.func is functional.embedding and type(call.args[0]) is Ragged and call.num_ragged == 1
    return call.of_rows(call.args, call.kwargs, call.args[0].at) if is_by_rows else NotImplemented


def _requiring_grad(call: Call) -> Any:
    """`requires_grad_`, of rows that require none."""
    is_told = type(call.args[0]) is Ragged and call.rec.requires_none_of(call.args[0])
    return call.args[0] if is_told else NotImplemented


def _distances(call: Call) -> Any:
    """`cdist` by differences, as torch has it of up to 25 rows: by products, what is near has no digits left."""
    if call.given(3, "compute_mode", _OF_FEW) != _OF_FEW:
        return NotImplemented
    args, kwargs = call.with_argument(3, "compute_mode", "donot_use_mm_for_euclid_dist")
    return run_call(call._replace(args=tuple(args), kwargs=kwargs))


_OF_FEW = "use_mm_for_euclid_dist_if_necessary"


_RULES: dict[str, Rule] = {
    "cdist": _distances,
    **dict.fromkeys(("is_floating_point", "is_complex"), lambda call: getattr(call.args[0].dtype, call.name)),
    "requires_grad_": _requiring_grad,
    **dict.fromkeys(_ALONG, along),
    "_is_all_true": lambda call: call.rec.function(torch.all, call.args, {}),  # as torch's distributions ask
    "linear": _of_last(lambda _: 1),
    "layer_norm": _of_last(_num_normalized),
    "rms_norm": _of_last(_num_normalized),
    "batch_norm": _batch_norm,
    "embedding": _looked_up,
    **dict.fromkeys(("mse_loss", "l1_loss"), _of_differences),
    **dict.fromkeys(("cross_entropy", "nll_loss"), _of_classes),
    **dict.fromkeys("zeros_like ones_like full_like".split(), _like),
    **dict.fromkeys("new_zeros new_ones new_full".split(), _new),
    **dict.fromkeys(rules.DROPOUTS, _kept),
    **dict.fromkeys(
        "to float double half bfloat16 type_as softplus relu gelu silu elu selu leaky_relu celu mish hardtanh relu6 "
        "logsigmoid tanhshrink softsign hardsigmoid hardswish threshold prelu_ dropout where masked_fill true_divide "
        "sigmoid tanh clamp clip divide multiply subtract".split(),
        _kept,
    ),
    **products.RULES,
    **views.RULES,
    **across.RULES,
    **borders.RULES,
    **recurrent.RULES,
    "multi_head_attention_forward": multi_head_attention,
}


def rule_of(name: str) -> Rule | None:
    """What records a function of ragged values, by its name."""
    found = _RULES.get(name)
    return elementwise if found is None and rules.is_pointwise(name) else found


def ragged_call(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None) -> Any:
    """What a call with ragged arguments gives; NotImplemented where there are none, and where no rule fits and its
    arguments are to be taken whole."""
    first: Any = args[0] if args else None
    name_of = rules.name_of(func)
    is_cast = name_of in rules.CASTS
    like = next((x for x in (*args[1:], *kwargs.values()) if type(x) is Ragged), None) if is_cast else None
    if like is not None:  # of which the dtype alone counts
        return first if first.dtype is like.dtype else first.to(like.dtype)
    result = _known_call(rec, func, args, kwargs, name)
    if result is first or (name_of in _PASS_ON and _is_same(result, first)):  # another object where a call is known
        return first
    is_new = _computes(name_of) or name_of in _PASS_ON or (name_of == "einsum" and len(args) > 2)
    if _RULES.get(name_of) is views.permuted and type(first) is Ragged and first.is_own and _is_same(result, first):
        first.show(result)
        return result
    if not is_new and not (name_of == "getitem" and not rules.is_constant_index(args[1])):
        return shared(result, (*args, *kwargs.values()))
    for item in result if isinstance(result, tuple) else (result,):
        if type(item) is Ragged or type(item) is Pairs:
            item.is_own = True
    return result


def function_at_once(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`ragged_call` of a call that is `again_at_once`; NotImplemented for others, NO_ROWS for one without rows."""
    known = _known_at_once(func)
    if known is None:
        has_none = not (kwargs or rec.symbolic or rec.keeping) and _NO_ROWS.issuperset(map(type, args))
        return NO_ROWS if has_none else NotImplemented
    found = again_at_once(rec, [Ragged, func], args, kwargs, known.by_count)
    if found is NotImplemented or found is NO_ROWS:
        return found
    is_new, takes, _ = known
    if not is_new and not (takes and not rules.is_constant_index(args[1])):
        return shared(found, args)
    for item in found if isinstance(found, tuple) else (found,):
        if type(item) is Ragged:
            item.is_own = True
    return found


_NO_ROWS = PLAIN | {Value, Shared, float}
"""Classes of arguments that are no rows, and of which there are none to be made."""


class _AtOnce(NamedTuple):
    """What a call of a function by rows depends on beside what is kept."""

    is_new: bool
    """Whether it gives no view of an argument."""
    takes: bool
    """Whether it takes an index, which tells that."""
    by_count: bool
    """Whether numbers of rows are part of what is known."""


@cache
def _known_at_once(func: Any) -> _AtOnce | None:
    """None where what it gives may be its argument, or changes it, and where more than its name is to be looked at."""
    name = rules.name_of(func)
    if name in _PASS_ON or name == "einsum" or _RULES.get(name) is views.permuted:
        return None
    if rules.changes_in_place(func, name, {}):
        return None
    return _AtOnce(_computes(name), name == "getitem", name in views.BY_COUNT)


def _is_same(result: Any, first: Any) -> bool:
    return type(result) is type(first) is Ragged and result.refs == first.refs and result.row is first.row


@cache
def _computes(name: str) -> bool:
    """Whether what a function gives is no view of an argument, by the name that calls have."""
    is_known = name in _RULES or name in _OPERATORS or rules.makes_memory(name)
    return is_known and name not in _PASS and _RULES.get(name) is not views.permuted


_OPERATORS = frozenset("radd rmul truediv rtruediv rmatmul".split())
"""Names of calls that are none of functions."""
_PASS_ON = rules.CASTS | rules.DROPOUTS


def _known_call(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None) -> Any:
    if rec.symbolic and args and isinstance(args[0], Index) and rules.name_of(func) in rules.FILLS:
        args = Mask(rec, args[0]._shape(), (0, 0, 0), args[0].dtype), *args[1:]  # told by its sizes
    if rec.symbolic and Worked in map(type, flat(args, kwargs)):
        found = by_worked(rec, func, args, kwargs)
        if found is not NotImplemented:
            return found
    if rec.symbolic and not {Mask, Worked}.isdisjoint(map(type, flat(args, kwargs))):
        name = name or rules.name_of(func)
        result = call_of_masks(rec, func, name, args, kwargs)
        return result if rules.changes_in_place(func, name, kwargs) else _named_anew(result, name, args, kwargs)
    if rec.symbolic and args and type(args[0]) in (Value, Shared) and not kwargs:
        spread = views.spread(rec, rules.name_of(func), args)
        if spread is not NotImplemented:
            return spread
    key, known, given = None, None, Given.none()
    # in a call that is being kept a rule says what it asks
    if not rec.keeping and (rec.books is None or rules.name_of(func) not in rules.VIEWS | rules.CASTS):
        parts: list[Any] = [Ragged, func]
        is_of_numbers = rec.symbolic and Index in map(type, args)  # rows of integers, which no key has yet
        if (
            not is_of_numbers
            and is_keyed(rec, args, parts, given)
            and (not kwargs or is_keyed(rec, kwargs.items(), parts, given))
        ):
            if not given.rows:
                return NotImplemented
            if rules.name_of(func) in views.BY_COUNT:
                parts += [len(row.refs) for row in given.rows]
            key = tuple(parts)
            known = rec.functions.get(key)
            if type(known) is KeptCall:
                found = known.again(rec, given)
                if found is not NotImplemented:
                    if rec.looks:
                        rec.note_sites(known.program)
                    return found
    begin, asked, symbolic, contents = rec.place(), rec.asked_size, rec.symbolic, rec.contents
    rec.symbolic = False  # rules ask for sizes that follow from the call's arguments
    if symbolic:  # what a rule calls is asked for it
        rec.sizes_asked = []
    try:
        result = _ragged_call(rec, func, *_indexed(rec, func, args, kwargs), name)
    finally:
        rec.asked_size = asked or (symbolic and _has_asked_others(rec, rules.name_of(func), flat(args, kwargs)))
        rec.symbolic = symbolic
    if key is not None and rec.contents > contents:
        rec.functions[key] = NOT_KEPT
    elif key is not None and known is not NOT_KEPT and result is not NotImplemented and may_keep(given):
        keep(rec, key, begin, given, result)
    return result


_PLACES = frozenset(("getitem", "narrow"))
"""Functions that are told places among rows before (`whole.amounts`): what they ask is of columns."""


def _has_asked_others(rec: Recorder, name: str, items: Sequence[Any]) -> bool:
    """Whether a rule has asked other sizes than those of rows among a call's arguments, as they have to be then."""
    rows = [] if name in _PLACES else [item for item in items if type(item) is Ragged]
    return any(type(x) is not Size or not any(x.counts(item.refs) for item in rows) for x in rec.sizes_asked)


_BY_INDEX = frozenset("getitem index_select index_add index_reduce scatter_add scatter_reduce".split())
"""Functions that indices may be given to in code that is kept."""


def _indexed(rec: Recorder, func: Any, args: tuple[Any, ...],
             kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    """The arguments with the instance's tensors in the place of `Index`es, for functions by index; with rows of
    integers for others, as these may ask more of a tensor than a program says."""
    kinds = {*map(type, args), *map(type, kwargs.values())}
    if kinds.isdisjoint(_OF_INDICES):
        return args, kwargs
    is_by_index = rules.name_of(func).rstrip("_") in _BY_INDEX and type(args[0]) not in (Index, Spread, Cut, Joined)
    of = _bare if is_by_index else _as_integers
    return tuple(map(of, args)), {key: of(x) for key, x in kwargs.items()}


def _bare(item: Any) -> Any:
    return item.tensor if type(item) is Index and item.along < 0 else item


def _as_integers(item: Any) -> Any:
    return item.integers() if type(item) in _OF_INDICES else item


_OF_INDICES = frozenset((Index, Spread, Line, Cut, Joined, Range))


def _ragged_call(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None) -> Any:
    name = name or rules.name_of(func)
    if args and rules.changes_in_place(func, name, kwargs):
        return args[0] if rules.changes_nothing(name, args, kwargs) else changed(rec, func, args, kwargs, name)
    given, named = args, kwargs
    args = adopted_all(rec, args)
    kwargs = {key: value if key in _MASKS else adopted_all(rec, (value,))[0] for key, value in kwargs.items()}
    count = _num_ragged(args) + _num_ragged(kwargs.values())
    is_whole = Pairs in map(type, flat(args, kwargs))
    if not count and not is_whole:
        return NotImplemented
    refuse_statistics(func, args, kwargs)
    rule = None if is_whole and name != "multi_head_attention_forward" else rule_of(name)  # whose mask may be whole
    call = Call(rec, func, name, *_with_input_first(name, args, kwargs), count)
    result = call_of_cells(call) if is_whole else NotImplemented
    if result is NotImplemented and rule is not None:
        result = rule(call)
    if result is NotImplemented and not rules.looks_at_values(func, name):
        result = run_call(call)
        if result is NotImplemented and any(map(_is_square, (*given, *named.values()))):
            whole = [x if _is_square(x) else y for x, y in zip(given, args, strict=True)]
            kept = {key: named[key] if _is_square(named[key]) else value for key, value in kwargs.items()}
            result = run_call(call._replace(args=tuple(whole), kwargs=kept))
    if result is not NotImplemented:
        if rec.books is not None and name in rules.VIEWS and type(call.args[0]) is Ragged:
            for item in result if isinstance(result, tuple | list) else (result,):
                if type(item) is Value:
                    rec.books.memory_of(item).is_row = True
        return _named_anew(result, name, args, kwargs)
    if not (rules.looks_at_values(func, name) or name in ("requires_grad", "size", "is_contiguous")):
        rec.note_stacked(name)
    rec.counted |= Size in map(type, flat(args, kwargs))  # torch is given the integers that these are
    whole = mapped(_stacked, (args, kwargs))
    found = rec.function(func, whole[0], whole[1], name)
    if name in rules.VIEWS - {"clone"}:  # it shows memory that the rows are not
        if rec.books is not None:
            raise NotRagged
        rec.shown_wholes.update([x.ref for x in flat(found) if type(x) is Value])
    return _apart(rec, found)


def _named_anew(result: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What a function gives that computes something: where that is an argument as it is, by another name."""
    is_rows = type(result) is Ragged or type(result) is Pairs
    return (
        result.another() if is_rows and name not in _PASS and any(x is result for x in flat(args, kwargs)) else result
    )


_PASS = (rules.VIEWS - {"clone"}) | _PASS_ON | {"requires_grad_"}
"""Functions that return their argument where there is nothing to do."""
_MASKS = frozenset(("attn_mask", "key_padding_mask"))
"""Arguments that are of other dimensions than rows, whatever they are as long as."""


def _is_square(item: Any) -> bool:
    """Whether a tensor of the instance's may be a mask that is as long as it is wide, and no rows."""
    return type(item) is torch.Tensor and item.ndim == 2 and item.shape[0] == item.shape[1]


def _with_input_first(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments as rules expect them: what is called `input` is the first argument, but of the functions that are
    named here."""
    if args or "input" not in kwargs or name in ("where", "searchsorted", "polygamma"):
        return args, kwargs
    return (kwargs["input"],), {key: value for key, value in kwargs.items() if key != "input"}


def changed(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """A function that changes its first argument in place; NotImplemented where no rows have a part in it."""
    if is_filled_by_chance(rec, func, args):
        rows = adopted(rec, args[0])
        if type(rows) is not Ragged:
            return NotImplemented
        draw = lambda row: DRAWN[name](rec, name, row, *args[1:], **kwargs)  # noqa: E731
        return turned(args[0], each_row(rec, [rows], draw, rows.at))
    target, others = args[0], adopted_all(rec, args[1:])
    count = _num_ragged(others) + _num_ragged(kwargs.values())
    if type(target) is torch.Tensor:
        target = rec.open_books(torch.Tensor).stand_in(target)
    if type(target) in (Ragged, Pairs) or (type(target) is torch.Tensor and adopted(rec, target) is not target):
        return across.change_rows(Call(rec, func, name, (target, *others), kwargs, count + 1))
    rec.open_books()
    if not count:
        return NotImplemented
    rec.note_stacked(name)
    others, kwargs = mapped(_stacked, (others, kwargs))
    return rec.function(func, (args[0], *others), kwargs, name)


def _apart(rec: Recorder, result: Any) -> Any:
    """What a function gives of ragged values taken whole, in rows again where it is of a ragged class."""
    if isinstance(result, tuple) and not isinstance(result, torch.Size):
        return inside(partial(_apart, rec), result)
    if type(result) is not Value or rec.books is not None or result.slot.views or not result.shape[:1].numel():
        return result
    if rec.keeping and result.shape[:1].numel() not in rec.keeping:
        return result
    is_ragged = result.ndim > 0 and rec.is_ragged(result)
    return excerpts_of_rows(rec, result) if is_ragged and result.slot.floats else result


def adopted_all(rec: Recorder, items: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments with tensors of ragged classes as rows; those in lists too."""
    return tuple([type(x)(adopted_all(rec, x)) if type(x) in (list, tuple) else adopted(rec, x) for x in items])


def has_ragged(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    """Whether some argument is ragged, or one in a list."""
    return _num_ragged(args) + _num_ragged(kwargs.values()) > 0


def _num_ragged(items: Any) -> int:
    return sum(_num_ragged(x) if type(x) in (list, tuple) else type(x) is Ragged for x in items)


def _stacked(item: Any) -> Any:
    """What is whole in the place of an argument that is ragged."""
    return item.materialise() if type(item) in (Ragged, Pairs) else item
