"""Which torch functions are views, look at values or change tensors.

Functions are known by name: `torch.sigmoid`, `Tensor.sigmoid` and `F.sigmoid` are one operation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

VIEWS = frozenset(
    "getitem select narrow view reshape t T mT transpose swapaxes swapdims permute movedim squeeze unsqueeze "
    "flatten unflatten chunk split tensor_split unbind expand broadcast_to diagonal ravel contiguous detach clone "
    "alias positive view_as reshape_as expand_as".split()
)
"""One tensor and constants in; what comes out holds elements of that tensor and nothing else."""

IDENTITIES = frozenset("contiguous clone alias positive".split())
"""Views that return the same elements in the same shape (in-place changes being refused, a copy is one too), and let
gradients through as they are: not `detach`."""

AS_ANOTHER = {
    "view_as": torch.Tensor.view, "reshape_as": torch.Tensor.reshape, "expand_as": torch.Tensor.expand
}  # fmt: skip
"""Views that take of another tensor the shape alone, and what gives the same of a shape."""

MEMORY = frozenset("as_strided as_strided_copy as_strided_scatter slice_inverse is_set_to".split())
"""They read a tensor's memory by its address, its strides or beyond its bounds."""

LAYS_OUT = frozenset(("contiguous", "clone"))
"""Those of IDENTITIES that may bring elements into the order of memory, which a later `view` needs."""

CASTS = frozenset("to float double half bfloat16 type_as cpu cuda".split())
"""Identities when the dtype stays."""

READS = frozenset(
    "item tolist numpy bool int float index array contains equal allclose is_nonzero _assert _assert_async".split()
)
"""They need values and give no tensor: numbers, or nothing. What makes a shape that depends on values is told by torch
(`edbc.capture.semantics.randomness`)."""

MAKES_OF_NUMBERS = frozenset("arange zeros ones empty eye full linspace logspace".split())
"""They read the numbers of tensors that they are given, and no gradient reaches these."""

SHAPED_BY_VALUES = frozenset(
    "nonzero argwhere where masked_select unique unique_consecutive _unique _unique2 bincount one_hot "
    "repeat_interleave".split()
)
"""The shapes of what they give depend on values, in most of their calls."""

DROPOUTS = frozenset(
    "dropout dropout1d dropout2d dropout3d feature_dropout alpha_dropout feature_alpha_dropout".split()
)
"""They draw random numbers while training and do nothing otherwise."""

NUMERIC = frozenset("add sub mul div true_divide divide multiply subtract".split())
"""Element-wise functions of a tensor and a number that may as well be a tensor."""

FILLS = frozenset("zeros_like ones_like full_like new_zeros new_ones new_full".split())
"""Their first argument only lends its shape or dtype."""


class Along(NamedTuple):
    """Where a function has its dimension, or dimensions: the position among its arguments, the default, the name."""

    position: int = 1
    default: Any = None
    keyword: str = "dim"


ALONG = {
    **dict.fromkeys(
        "softmax log_softmax softmin logsumexp sum mean max min prod all any argmax argmin cumsum cumprod logcumsumexp "
        "cummax cummin var std".split(), Along()),
    "amax": Along(1, ()), "amin": Along(1, ()), "norm": Along(2), "normalize": Along(2, 1),
    "glu": Along(1, -1), "sort": Along(1, -1), "argsort": Along(1, -1), "topk": Along(2, -1), "kthvalue": Along(2, -1),
    "linalg_norm": Along(2), "linalg_vector_norm": Along(2), "linalg_cross": Along(2, -1),
    "median": Along(), "diff": Along(2, -1), "cosine_similarity": Along(2, 1), "flip": Along(1, None, "dims"),
    "roll": Along(2, None, "dims"), "repeat_interleave": Along(2), "gather": Along(), "scatter": Along(),
    "scatter_add": Along(), "take_along_dim": Along(2), "cross": Along(2, -1),
}  # fmt: skip
"""Functions of dimensions of their first argument."""


def name_of(function: Callable[..., Any]) -> str:
    """The operation's name: `__getitem__` gives `getitem`, `Tensor.T.__get__` is named by the caller."""
    name = getattr(function, "__name__", "") or type(function).__name__
    if name == "__get__":
        owner = getattr(function, "__self__", None)
        name = getattr(owner, "__name__", "get")
    if name.startswith("__") and name.endswith("__"):
        return name.strip("_")
    return name.removeprefix("_VF.")


def changes_in_place(function: Callable[..., Any], name: str, kwargs: dict[str, Any]) -> bool:
    """True for `add_`, `__iadd__`, `__setitem__`, `out=` and `inplace=True`."""
    raw = getattr(function, "__name__", "")
    if raw.startswith("__i") and raw not in ("__invert__", "__index__", "__int__", "__iter__"):
        return True
    if raw in ("__setitem__", "__set__"):
        return True
    if raw.endswith("_") and not raw.endswith("__"):
        return raw != "requires_grad_"
    return kwargs.get("out") is not None or kwargs.get("inplace") is True


def changes_nothing(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for `x.masked_fill_(mask, value)` and `x[mask] = value` where a tensor that is there already shows nothing,
    as the mask of what is padding does in a batch of one."""
    mask = (args[1] if len(args) > 1 else kwargs.get("mask")) if name in ("masked_fill_", "setitem") else None
    return type(mask) is torch.Tensor and mask.dtype is torch.bool and not mask.any()


def looks_at_values(function: Callable[..., Any], name: str) -> bool:
    """True for READS, where `__float__` is one and the cast `Tensor.float` is none."""
    is_cast = name in ("bool", "int", "float") and getattr(function, "__name__", "") == name
    return name in READS and not is_cast


@cache
def is_pointwise(name: str) -> bool:
    """True for what computes each element from the operands' elements at its place alone, as torch tells; of
    `masked_fill_` it tells out of place only."""
    functions = (getattr(torch.ops.aten, one, None) for one in (name, name.removesuffix("_")))
    return any(
        torch.Tag.pointwise in getattr(function, overload).tags
        for function in functions
        if function is not None
        for overload in function.overloads()
    )


_MAY_SHOW = frozenset(
    "einsum meshgrid broadcast_tensors atleast_1d atleast_2d atleast_3d sum_to_size chain_matmul cartesian_prod".split()
)
"""Functions that give a view for some arguments, of which their schemas say nothing."""


@cache
def makes_memory(name: str) -> bool:
    """True for functions whose results are memory of their own, as torch tells: no view of an argument."""
    function = getattr(torch.ops.aten, name, None)
    if function is None or name in _MAY_SHOW:
        return False
    returns = [of for overload in function.overloads() for of in getattr(function, overload)._schema.returns]
    return all(of.alias_info is None or of.alias_info.is_write for of in returns)


def is_off(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for calls that draw no random number: dropout and rrelu outside of training, dropout of nothing."""
    if name == "rrelu":
        return not kwargs.get("training", args[3] if len(args) > 3 else False)
    if name not in DROPOUTS:
        return False
    is_training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return not is_training or kwargs.get("p", args[1] if len(args) > 1 else 0.5) == 0.0


def is_constant_index(index: Any) -> bool:
    """True for what makes indexing a view: integers, slices, None, Ellipsis, and tuples of them."""
    if isinstance(index, tuple):
        return all(map(is_constant_index, index))
    return index is None or index is Ellipsis or type(index) in (int, slice)


def is_mask(name: str, args: tuple[Any, ...]) -> bool:
    """True for indexing with a mask, which is an excerpt else: its shape depends on values."""
    if name != "getitem":
        return False
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(i, torch.Tensor) and i.dtype in MASKS for i in index)


MASKS = (torch.bool, torch.uint8)
"""Dtypes of indices that tell what is taken, the second from before the first."""


@cache
def writes_operands(name: str) -> bool:
    """True for operators that change tensors they are given though their names do not say so, as their schemas do."""
    packet = None if name.endswith("_") else getattr(torch.ops.aten, name, None)
    return packet is not None and any(
        argument.alias_info is not None and argument.alias_info.is_write and not argument.is_out
        and isinstance(argument.real_type, torch.TensorType)
        for overload in packet.overloads() if "out" not in overload
        for argument in getattr(packet, overload)._schema.arguments
    )  # fmt: skip
