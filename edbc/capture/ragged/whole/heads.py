"""`F.multi_head_attention_forward`, which `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call, in the
functions that it consists of: projections of rows, attention of runs."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F

from edbc.capture.ragged.call import Call
from edbc.capture.ragged.value import Ragged

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def multi_head_attention(call: Call) -> Any:
    """Of sequences along dimension 0; NotImplemented with options that append to the keys, and where it draws."""
    bound = _SIGNATURE.bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    given = bound.arguments
    query, key, value = given["query"], given["key"], given["value"]
    appends = given["add_zero_attn"] or any(given[k] is not None for k in ("bias_k", "bias_v", "static_k", "static_v"))
    draws = given["training"] and given["dropout_p"]
    if appends or draws or any(type(x) is not Ragged or x.at for x in (query, key, value)) or query.ndim not in (2, 3):
        return NotImplemented
    heads = given["num_heads"]
    q, k, v = (_of_heads(x, heads) for x in _projected(call, given))
    weights = None
    mask = _mask(call, given, query)
    if given["need_weights"]:
        weights = call.rec.function(torch.matmul, (q * math.sqrt(1 / q.shape[-1]), k.transpose(-2, -1)), {})
        weights = (weights if mask is None else weights + mask).softmax(-1)
    kwargs = {"attn_mask": mask} if mask is not None else {"is_causal": False}
    result = call.rec.function(F.scaled_dot_product_attention, (q, k, v), kwargs)
    result = result.transpose(-3, -2)  # (n, [batch,] heads, width)
    if query.ndim == 3:
        result = result.transpose(0, 1)
    joined = result.flatten(-2)
    projected = call.rec.function(F.linear, (joined, given["out_proj_weight"], given["out_proj_bias"]), {})
    if weights is not None and given["average_attn_weights"]:
        weights = weights.mean(-3)
    return projected, weights


def _projected(call: Call, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Queries, keys and values."""
    query, key, value = given["query"], given["key"], given["value"]
    linear = lambda x, w, b: call.rec.function(F.linear, (x, w, b), {})  # noqa: E731
    bias = given["in_proj_bias"]
    if given["use_separate_proj_weight"]:
        weights = given["q_proj_weight"], given["k_proj_weight"], given["v_proj_weight"]
    elif _same(query, key) and _same(key, value):
        return tuple(linear(query, given["in_proj_weight"], bias).chunk(3, -1))
    else:
        weights = given["in_proj_weight"].chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return tuple(map(linear, (query, key, value), weights, biases))


def _same(one: Ragged, other: Ragged) -> bool:
    return one.refs == other.refs and one.row is other.row


def _of_heads(x: Any, heads: int) -> Any:
    """(n, [batch,] width) as ([batch,] heads, n, width of a head)."""
    x = x.unflatten(-1, (heads, -1))
    return x.transpose(0, 1) if x.ndim == 3 else x.permute(1, 2, 0, 3)


def _mask(call: Call, given: dict[str, Any], query: Ragged) -> Any:
    """What is added to scores, or says which are kept; None for nothing."""
    mask, keys = given["attn_mask"], given["key_padding_mask"]
    if mask is not None:
        mask = _floats(mask, query.dtype)
        if mask.ndim == 3 and query.ndim == 3:
            mask = mask.view(query.shape[1], -1, *mask.shape[1:])
    if keys is not None:
        keys = _floats(keys, query.dtype)
        keys = keys[:, None, None] if query.ndim == 3 else keys[None]
        mask = keys if mask is None else mask + keys
    return mask


def _floats(mask: Any, dtype: torch.dtype) -> Any:
    """Minus infinity where a mask of booleans is true."""
    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, -math.inf)
