"""What runs across the rows of a ragged value: nodes of any arity over rows.

Sums, means, maxima and minima over the ragged dimension are one node each, of a variadic type: one type whatever n is
(`standins.lazy`). Softmax and its like are made of those and of row-wise calls. Additions by index (`index_add`,
`scatter_add`) are a sum for each row that is added to, over the rows that the instance's indices send there: message
passing on a graph is rows taken by one list of indices and summed by the other.

A ragged value that changes in place shows other rows from then on, if nothing else shows its memory. What shares memory
with rows (`h[i]`, `h[1:]`, a view of a tensor that forward made) is not followed: the instance is recorded again
without ragged classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from edbc.capture.ragged.call import Call, Rule
from edbc.capture.ragged.program import GROUP, REDUCE, triple
from edbc.capture.ragged.rows import is_tensor, of_one_slot, rows_at, rows_of
from edbc.capture.ragged.symbols import Spread
from edbc.capture.ragged.value import NotRagged, Ragged, changed_rows, each_row, one_step
from edbc.capture.semantics import rules
from edbc.capture.standins.lazy import REDUCTIONS, Indices
from edbc.capture.standins.standin import Symbol, Value, value_of

_OF_ALL = {"max": "amax", "min": "amin"}
"""Of all elements, where equal ones share the gradient; along a dimension the first one has it."""
_OF_TRUTH = {"all": torch.amin, "any": torch.amax}
_REDUCE = ("sum", "mean", "amax", "amin")
"""Of `scatter_reduce` and `index_reduce`."""
_OPERATORS = {"iadd": torch.add, "isub": torch.sub, "imul": torch.mul, "idiv": torch.true_divide}


def reduced(call: Call, ragged: Ragged, dims: tuple[int, ...], keepdim: bool) -> Any:
    """A function along dimensions of which the ragged one is one."""
    name, count = call.name, len(ragged.refs)
    if count and name in _OF_TRUTH and ragged.dtype is torch.bool:
        numbers = call.rec.function(torch.Tensor.to, (ragged, torch.float32), {})
        return call.rec.function(_OF_TRUTH[name], (numbers, dims, keepdim), {}) != 0
    if not count or call.kwargs.get("dtype") is not None or not ragged.row.floats:
        return NotImplemented
    if name in ("softmax", "log_softmax", "softmin") and len(call.args) + len(call.kwargs) > 1:
        return _softmax(call, ragged)
    if name == "flip":
        turned = ragged.take(slice(None, None, -1))
        others = tuple(d - (d > ragged.at) for d in dims if d != ragged.at)
        return each_row(call.rec, [turned], lambda row: row.flip(others), ragged.at) if others else turned
    if name == "logsumexp" and len(dims) == 1:
        return _restored(_logsumexp(ragged), ragged.at, keepdim)
    if name not in REDUCTIONS:
        return NotImplemented
    others = tuple(d for d in dims if d != ragged.at)
    if name in ("max", "min") and (others or len(call.args) + len(call.kwargs) > 1):
        if others and len(call.args) + len(call.kwargs) > 1:
            return NotImplemented
        if not others:
            return _with_indices(call, ragged, keepdim)
    name = _OF_ALL.get(name, name)
    if others:
        rest, at = tuple(d - (d > ragged.at) for d in others), ragged.at
        function = getattr(torch, name)
        ragged = each_row(
            call.rec, [ragged], lambda row: function(row, rest, keepdim),
            at if keepdim else at - sum(d < at for d in others),
        )  # fmt: skip
    return _restored(reduce_rows(ragged, name), ragged.at, keepdim)


def _restored(value: Value, at: int, keepdim: bool) -> Any:
    return value.unsqueeze(at) if keepdim else value


def _with_indices(call: Call, ragged: Ragged, keepdim: bool) -> Any:
    """`h.max(0)`: the values, and the indices, which are those of the whole when somebody asks for them."""
    value = _restored(reduce_rows(ragged, call.name), ragged.at, keepdim)
    return getattr(torch.return_types, call.name)((value, Indices(ragged, call.name, ragged.at, keepdim)))


def reduce_rows(ragged: Ragged, op: str) -> Value:
    """Sum, mean, maximum or minimum of all rows, element by element. Reductions commute with views, so what is reduced
    are the values that the rows are views of."""
    rec, row = ragged.rec, ragged.row
    if len(ragged.refs) == 1:
        return value_of(rec, ragged.refs[0], row)
    number = rec.note_reduction(op, row if not row.views else rec.table.slot(row.base))
    return value_of(rec, one_step(rec, REDUCE, (number,), [triple(ragged.refs)]).start, row)


def _softmax(call: Call, ragged: Ragged) -> Any:
    """Stable as torch's: the largest is taken off first, which changes no gradient."""
    rec, at = ragged.rec, ragged.at
    if call.name == "softmin":
        ragged = each_row(rec, [ragged], lambda row: -row, at)
    if at == 0:  # calls that are known by their keys
        shifted = ragged - ragged.amax(0).detach()
        powers = shifted.exp()
        return shifted - powers.sum(0).log() if call.name == "log_softmax" else powers / powers.sum(0)
    largest = reduce_rows(ragged, "max").detach()
    shifted = each_row(rec, [ragged], lambda row: row - largest, at)
    powers = each_row(rec, [shifted], lambda row: row.exp(), at)
    total = reduce_rows(powers, "sum")
    if call.name == "log_softmax":
        logarithm = total.log()
        return each_row(rec, [shifted], lambda row: row - logarithm, at)
    return each_row(rec, [powers], lambda row: row / total, at)


def _logsumexp(ragged: Ragged) -> Any:
    rec, at = ragged.rec, ragged.at
    if len(ragged.refs) == 1:
        return value_of(rec, ragged.refs[0], ragged.row)
    # where all is infinite nothing is taken off, as by torch: the difference would be no number
    largest = reduce_rows(ragged, "max").detach().nan_to_num(math.nan, 0.0, 0.0)
    powers = each_row(rec, [ragged], lambda row: (row - largest).exp(), at)
    return reduce_rows(powers, "sum").log() + largest


# --- by index -----------------------------------------------------------------------------------------------------


def index_added(call: Call) -> Any:
    """`x.index_add(dim, index, source, alpha=1)`."""
    target, dim = call.args[0], call.given(1, "dim", None)
    index, source, alpha = call.given(2, "index", None), call.given(3, "source", None), call.kwargs.get("alpha", 1)
    if alpha != 1 and is_tensor(source):
        source = call.rec.function(torch.mul, (source, alpha), {})
    return by_index(call, target, dim, index, source, "sum", True)


def scatter_added(call: Call) -> Any:
    """`x.scatter_add(dim, index, src)`, of an index that is the same along all other dimensions."""
    dim, src = call.given(1, "dim", None), call.given(3, "src", None)
    index = _of_rows(call.given(2, "index", None), dim, src)
    return by_index(call, call.args[0], dim, index, src, "sum", True)


def scatter_reduced(call: Call) -> Any:
    """`x.scatter_reduce(dim, index, src, reduce, include_self=True)` and `index_reduce`."""
    dim, src = call.given(1, "dim", None), call.given(3, "source" if call.name == "index_reduce" else "src", None)
    index, how = call.given(2, "index", None), call.given(4, "reduce", "")
    if call.name != "index_reduce":
        index = _of_rows(index, dim, src)
    included = bool(call.kwargs.get("include_self", True))
    return by_index(call, call.args[0], dim, index, src, how, included) if how in _REDUCE else NotImplemented


def _of_rows(index: Any, dim: Any, source: Any) -> Any:
    """The index of each row, where a matrix of indices says the same of all that is in a row."""
    if type(dim) is not int or not is_tensor(source):
        return None
    if type(index) is Spread:  # its vector is as long as the source is checked to be
        found = index.vector_of(source.shape[1]) if source.ndim == 2 and dim in (0, -2) else None
        return None if found is None else found.tensor
    if type(index) is not torch.Tensor or not index.ndim:
        return None
    if index.shape != source.shape:
        return None
    if index.ndim == 1:
        return index
    moved = index.movedim(dim, 0)
    if index.numel() and not any(moved.stride()[1:]):  # `where.unsqueeze(1).expand(-1, 64)`
        return moved.as_strided(moved.shape[:1], moved.stride()[:1])
    moved = moved.flatten(1)  # of no rows, too
    return moved[:, 0] if moved.shape[1] and bool((moved == moved[:, :1]).all()) else None


def by_index(call: Call, target: Any, dim: Any, index: Any, source: Any, op: str, included: bool) -> Any:
    """Rows of `target`, each reduced with the rows of `source` that `index` sends there; without its own where they are
    not `included` and others come."""
    if type(dim) is not int or type(index) is not torch.Tensor or index.ndim > 1 or not is_tensor(source):
        return NotImplemented
    if target.ndim != source.ndim or target.dtype is not source.dtype or not target.dtype.is_floating_point:
        return NotImplemented
    dim %= target.ndim
    if any(type(x) is Ragged and x.at != dim for x in (target, source)) or not target.shape[dim]:
        return NotImplemented
    others = [tuple(x.shape[:dim]) + tuple(x.shape[dim + 1 :]) for x in (target, source)]
    numbers = call.rec.numbers_of(index if index.ndim else index.reshape(1))
    if others[0] != others[1] or numbers.size != source.shape[dim]:
        return NotImplemented
    if numbers.lowest < 0 or numbers.highest >= target.shape[dim]:
        return NotImplemented  # torch raises
    if not numbers.size:
        return target
    rows = of_one_slot([rows_of(call.rec, x, dim) for x in (target, source)])
    if rows is None:
        return NotImplemented
    own, sent = rows
    keeps = included and not (op == "sum" and own.refs.start in call.rec.zeros)
    reduction = call.rec.note_reduction(op, own.row)
    return own.like(
        one_step(call.rec, GROUP, (reduction, keeps), [triple(own.refs), triple(sent.refs), numbers.triple])
    )


def index_copied(call: Call) -> Any:
    """`x.index_copy(dim, index, source)`: rows by other rows."""
    target, dim, index = call.args[0], call.given(1, "dim", None), call.given(2, "index", None)
    source = call.given(3, "source", None)
    if type(dim) is not int or type(index) is not torch.Tensor or not is_tensor(source) or not target.shape[dim]:
        return NotImplemented
    return written(call, target, dim % target.ndim, index.reshape(-1).tolist(), source)


def written(call: Call, target: Any, dim: int, numbers: Sequence[int], source: Any) -> Any:
    """A ragged value with some rows replaced by those of `source`, each once: else all of these have gradients."""
    if target.ndim != source.ndim or not numbers or not source.shape[dim] == len(numbers) == len({*numbers}):
        return NotImplemented
    call.rec.counted = True
    rows = of_one_slot([rows_of(call.rec, x, dim) for x in (target, source)])
    if rows is None:
        return NotImplemented
    refs = list(rows[0].refs)
    for number, ref in zip(numbers, rows[1].refs, strict=True):
        refs[number] = ref
    return rows_at(call.rec, refs, rows[0].row, rows[0].at)


RULES: dict[str, Rule] = {
    "index_add": index_added,
    "scatter_add": scatter_added,
    "scatter_reduce": scatter_reduced,
    "index_reduce": scatter_reduced,
    "index_copy": index_copied,
}


def change_rows(call: Call) -> Any:
    """A function that changes its first argument, some of whose arguments are ragged."""
    target = _of_fresh(call) if type(call.args[0]) is torch.Tensor else call.args[0]
    if call.kwargs.get("out") is not None:
        raise NotRagged
    compute = _set_item if call.name == "setitem" else _changed
    return changed_rows(target, lambda: compute(call, target))


def _of_fresh(call: Call) -> Ragged:
    """The rows that stand for a tensor that forward has just made from now on."""
    item, books = call.args[0], call.rec.open_books()
    if not books.is_fresh(item) or not item.ndim or not item.is_floating_point() or not item.shape[0]:
        raise NotRagged
    found = rows_of(call.rec, item, 0)
    name = Ragged(call.rec, found.refs, found.row)
    name.is_own = True
    books.stand_for(item, name)
    return name


def _changed(call: Call, target: Any) -> Any:
    name = call.name
    if call.kwargs.get("inplace") is True:
        return call.rec.function(call.func, call.args, {**call.kwargs, "inplace": False})
    if name == "zero_" and type(target) is Ragged and target.refs.start in call.rec.zeros:  # torch.Tensor(n, 6).zero_()
        return target
    function: Any = _OPERATORS.get(name) or getattr(torch.Tensor, name.removesuffix("_"), None)
    if function is None or not (name in _OPERATORS or name.endswith("_")) or name in ("zero_", "fill_", "copy_"):
        raise NotRagged
    if any(x is target for x in call.args[1:]) and not rules.is_pointwise(name.removesuffix("_")):
        raise NotRagged
    return call.rec.function(function, (target, *call.args[1:]), call.kwargs)


def _set_item(call: Call, target: Any) -> Any:
    """`x[index] = value`, of whole rows."""
    _, index, value = call.args
    if type(target) is not Ragged or target.at or not isinstance(value, Symbol | torch.Tensor):
        raise NotRagged
    numbers = torch.arange(len(target.refs))
    if isinstance(index, tuple) or index is None or index is Ellipsis or isinstance(index, Symbol):
        raise NotRagged
    if isinstance(index, torch.Tensor) and index.ndim > 1:
        raise NotRagged  # of elements
    chosen = numbers[index]
    if type(index) is int:
        value = value.unsqueeze(0)
    if value.ndim != target.ndim or value.shape[0] != chosen.numel() or value.shape[1:] != target.shape[1:]:
        raise NotRagged
    return written(call, target, 0, chosen.reshape(-1).tolist(), value)
