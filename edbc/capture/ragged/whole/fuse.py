"""Expressions that are attention, softmax(Q K^T * scale) V, as the one function that stores no scores.

A mask that is a triangle of minus infinities above the diagonal makes it causal, and so does one of numbers so low
(LOW) that nothing is left of their exponentials beside that of a score; with any other mask an expression stays as it
was written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from edbc.capture.ragged.whole.function import Apply, triangle
from edbc.capture.record.table import Hole

_WITH_NUMBERS = frozenset("eq ne lt le gt ge logical_not bitwise_not to bool float mul sub add rsub".split())
"""Functions of each element of a tensor and numbers."""
LOW = -1e8
"""Far below any score that a product of float32 is likely to be."""
ATTENTION = F.scaled_dot_product_attention


def fused(root: Any, places: Sequence[int], ndims: Sequence[int]) -> tuple[Any, tuple[int, ...]]:
    """The expression, or the one function that it is, and the places of its leaves, which have so many dimensions."""
    found = _attention(root, places, ndims)
    if found is None:
        return root, tuple(places)
    query, key, value, scale, causal = found
    moved = [ndims[key] - 2 if leaf == key else place for leaf, place in enumerate(places)]
    kwargs = {"is_causal": causal, "scale": scale}
    return Apply(ATTENTION, "attention", (Hole(query), Hole(key), Hole(value)), kwargs), tuple(moved)


def folded(root: Apply) -> Apply:
    """A function of each element of a triangle as the triangle that it gives: `mask[:n, :n] == 0`."""
    inner, *others = root.args or (None,)
    is_plain = root.name in _WITH_NUMBERS and not root.kwargs
    if not is_plain or not all(isinstance(x, int | float | torch.dtype) for x in others):
        return root
    if _is(inner, "reshape"):
        made = folded(root._replace(args=(inner.args[0], *others)))
        return inner._replace(args=(made, *inner.args[1:])) if _is(made, "triangle") else root
    if not _is(inner, "triangle") or inner.function is not triangle:
        return root
    *first, inside, outside, dtype = inner.args
    found = root.function(torch.tensor([inside, outside], dtype=dtype), *others)
    return inner._replace(args=(*first, *found.tolist(), found.dtype))


def _attention(
    root: Any, places: Sequence[int], ndims: Sequence[int]
) -> tuple[int, int, int, float | None, bool] | None:
    """Leaves of query, key and value, scale, and whether it is causal."""
    if _is(root, "scaled_dot_product_attention"):
        names = "attn_mask dropout_p is_causal scale enable_gqa".split()
        if len(root.args) < 3 or not root.kwargs.keys() <= {*names}:
            return None
        mask, dropout, causal, scale, grouped = _options(root, names)
        causal = bool(causal) or _is_causal(mask, 0.0, -math.inf) or _is_causal(mask, True, False)
        mask = None if causal else mask
        leaves = [x.index if type(x) is Hole else -1 for x in root.args[:3]]
        if mask is not None or dropout or grouped or min(leaves) < 0:
            return None
        if any(places[i] != ndims[i] - 2 for i in leaves) or len(set(leaves)) < 3:
            return None
        return leaves[0], leaves[1], leaves[2], scale, causal
    return _written(root, places, ndims)


def _options(root: Apply, names: Sequence[str]) -> list[Any]:
    return [root.args[3 + i] if len(root.args) > 3 + i else root.kwargs.get(name) for i, name in enumerate(names)]


def _written(root: Any, places: Sequence[int], ndims: Sequence[int]) -> tuple[int, int, int, float | None, bool] | None:
    """Attention as products and a softmax."""
    if not _is(root, "matmul", "bmm", "mm") or len(root.args) != 2 or type(root.args[1]) is not Hole:
        return None
    weights, value = root.args[0], root.args[1].index
    options = {key for key, option in getattr(weights, "kwargs", {}).items() if option is not None}
    if not _is(weights, "softmax") or not weights.args or options - {"dim", "_stacklevel"}:
        return None
    ndim = ndims[value]
    dims = [*weights.args[1:2], *[value for key, value in weights.kwargs.items() if key == "dim"]]
    is_cast = any(isinstance(item, torch.dtype) for item in (*weights.args[2:], weights.kwargs.get("dtype")))
    if is_cast or len(dims) != 1 or dims[0] not in (-1, ndim - 1):
        return None
    scores, causal = _unmasked(weights.args[0])
    scale = 1.0
    while _is(scores, "mul", "div", "true_divide", "multiply", "divide") and len(scores.args) == 2:
        is_product = scores.name.startswith("mul")
        inner, number = scores.args[::-1] if is_product and type(scores.args[1]) is Apply else scores.args
        if not isinstance(number, int | float) or scores.kwargs:
            return None
        scale = scale * number if is_product else scale / number
        scores = inner
    if not _is(scores, "matmul", "bmm", "mm") or not all(type(x) is Hole for x in scores.args) or len(scores.args) != 2:
        return None
    query, key = (x.index for x in scores.args)
    same = ndims[query] == ndims[key] == ndim and len({query, key, value}) == 3
    stand = (places[query], places[key], places[value]) == (ndim - 2, ndim - 1, ndim - 2)
    return (query, key, value, scale, causal) if same and stand else None


def _unmasked(scores: Any) -> tuple[Any, bool]:
    """Scores without a causal mask, and whether they had one."""
    is_added = _is(scores, "add") and len(scores.args) == 2 and not scores.kwargs
    is_filled = _is(scores, "masked_fill", "masked_fill_") and len(scores.args) == 3 and _is_low(scores.args[2])
    causal = (is_added and _is_causal(scores.args[1], 0.0, -math.inf)) or (
        is_filled and _is_causal(scores.args[1], False, True)
    )
    return (scores.args[0], True) if causal else (scores, False)


def _is_low(number: Any) -> bool:
    return isinstance(number, int | float) and number <= LOW


def _is_causal(mask: Any, inside: Any, outside: Any) -> bool:
    if _is(mask, "reshape") and all(size == 1 for size in mask.args[1][:-2]):
        mask = mask.args[0]
    return _is(mask, "triangle") and mask.function is triangle and tuple(mask.args[3:6]) == (0, inside, outside)


def _is(item: Any, *names: str) -> bool:
    return type(item) is Apply and item.name in names
