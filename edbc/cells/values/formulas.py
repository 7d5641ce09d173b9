"""Functions of torch in plain PyTorch: what calls are taken apart by (`cells.values.dispatched`, definition 6).

What a decomposition of torch's chooses between is computed on both sides: where the side that is not chosen may be
infinite, a gradient through it would not be a number, nor is one through the square root of 0. So such functions have
formulas here, and those that torch takes for one operation. A formula gives eager's values, the gradients of eager's
derivative, and NotImplemented for arguments that it does not know; what it writes out along a dimension is MOST_SLICES
long at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate, product
from typing import Any

import torch
from torch import Tensor

MOST_SLICES = 16
"""Of a dimension along which a call is written out, and of a movement that is done slice by slice."""


def _softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    raised = (x - x.amax(dim, True).detach()).exp()
    return raised / raised.sum(dim, True)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    less = x - x.amax(dim, True).detach()
    return less - less.exp().sum(dim, True).log()


def _logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    largest = x.amax(dim, True).detach()
    finite = torch.where(largest.abs() == math.inf, 0, largest)
    found = (x - finite).exp().sum(dim, True).log() + finite
    return found if keepdim else found.squeeze(dim)


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    total = x.sum(dim, keepdim, dtype=dtype)
    return total / (x.numel() / total.numel())


def _root(x: Tensor) -> Tensor:
    """A square root whose slope at 0 is 0, as that of norms and deviations is in torch."""
    is_zero = (x == 0).to(x.dtype)
    return (x + is_zero).sqrt() - is_zero


def _norm(x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if order not in (1, 2):
        return NotImplemented
    return x.abs().sum(dim, keepdim, dtype=dtype) if order == 1 else _root((x * x).sum(dim, keepdim, dtype=dtype))


def _var(x: Tensor, dim: Any = None, correction: Any = True, keepdim: bool = False) -> Tensor:
    """Of elements that are all equal exactly 0, as torch's: a root of what rounding leaves has a slope of any size."""
    mean = _mean(x, dim, True)
    mean = mean + _mean(x - mean, dim, True)
    found = ((x - mean) ** 2).sum(dim, keepdim)
    return found / max(x.numel() / mean.numel() - (1 if correction is None else correction), 0)


def _var_and_mean(x: Tensor, dim: Any = None, correction: Any = True, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _var(x, dim, correction, keepdim), _mean(x, dim, keepdim)


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    dims = list(range(-len(shape), 0))
    distance = x - _mean(x, dims, True)
    found = distance * (_mean(distance.square(), dims, True) + eps).sqrt().reciprocal()
    found = found if weight is None else found * weight
    return (found if bias is None else found + bias), None, None


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return x.relu() * scale + (x.clamp_max(0) * input_scale).expm1() * (alpha * scale)


def _leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    return x.relu() + x.clamp_max(0) * slope


def _hardtanh(x: Tensor, low: float = -1, high: float = 1) -> Tensor:
    """Without a slope at its bounds, where `clamp` has one."""
    return torch.where(x <= low, low, torch.where(x >= high, high, x))


def _sinc(x: Tensor) -> Tensor:
    is_zero = x == 0
    angle = torch.where(is_zero, 1.0, x * math.pi)
    return torch.where(is_zero, 1.0, angle.sin() / angle)


def _gelu(x: Tensor, approximate: str) -> Tensor:
    """The other one."""
    return 0.5 * x * (1 + ((2 / math.pi) ** 0.5 * (x + 0.044715 * x * x * x)).tanh())


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Any:
    return torch.nn.functional.softplus(x * beta) / beta if beta > 0 and threshold == 20 else NotImplemented


def _trilinear(a: Tensor, b: Tensor, c: Tensor, wide_a: Sequence[int], wide_b: Sequence[int], wide_c: Sequence[int],
               dims: Sequence[int], unroll: int = 1) -> Tensor:  # fmt: skip
    def wide(x: Tensor, dims: Sequence[int]) -> Tensor:
        return reduce(Tensor.unsqueeze, dims, x)

    return (wide(a, wide_a) * wide(b, wide_b) * wide(c, wide_c)).sum(list(dims))


def _padded(x: Tensor, pad: Sequence[int], value: float = 0) -> Any:
    if min(pad) < 0:
        return NotImplemented
    for d, sizes in enumerate(zip(pad[::2], pad[1::2], strict=True), 1):
        before, after = (
            [x.new_full((*x.shape[: x.ndim - d], n, *x.shape[x.ndim - d + 1 :]), value)] if n else [] for n in sizes
        )
        x = torch.cat([*before, x, *after], -d) if before or after else x
    return x


def _distances(x: Tensor, y: Tensor, order: float, mode: Any = None) -> Any:
    return _norm(x.unsqueeze(-2) - y.unsqueeze(-3), order, [-1])


def _accumulated(operation: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """`cumsum` and its like, written out."""

    def run(x: Tensor, dim: int, dtype: Any = None) -> Any:
        if not x.ndim or x.shape[dim] > MOST_SLICES or dtype not in (None, x.dtype):
            return NotImplemented
        return torch.stack(list(accumulate(x.unbind(dim), operation)), dim)

    return run


def _multiplied(x: Tensor, dim: int | None = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if dim is None:
        x, dim = x.reshape(-1), 0
    if not 0 < x.shape[dim] <= MOST_SLICES or dtype not in (None, x.dtype):
        return NotImplemented
    found = reduce(torch.mul, x.unbind(dim))
    return found.unsqueeze(dim) if keepdim else found


def _triangle(x: Tensor, diagonal: int, is_below: bool) -> Any:
    """`tril` or `triu`: of each row what stands on one side, and zeros."""
    count, size = x.shape[-2:]
    if not 0 < count <= MOST_SLICES or not size:
        return NotImplemented
    rows = []
    for number, row in enumerate(x.unbind(-2)):
        border = min(max(number + diagonal + is_below, 0), size)
        sides = ((0, border, is_below), (border, size - border, not is_below))
        parts = [(row.narrow(-1, at, n), kept) for at, n, kept in sides if n]
        rows.append(torch.cat([part if kept else torch.zeros_like(part) for part, kept in parts], -1))
    return torch.stack(rows, -2)


def _crossed(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    a, b = x.unbind(dim), y.unbind(dim)
    return torch.stack([a[i - 2] * b[i - 1] - a[i - 1] * b[i - 2] for i in range(3)], dim)


def _in_order(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """`sort`. How many stand before an element is its place; of equal ones the first comes first, and what is no number
    counts as largest. (`topk` takes any of equal ones, so gradients tell them apart.) O(n * n) elements."""
    n = x.shape[dim] if x.ndim else 0
    if not 0 < n <= MOST_SLICES:
        return NotImplemented
    rows = x.movedim(dim, 0)
    mine, others = rows.unsqueeze(1), rows.unsqueeze(0)  # (n, 1, ...) and (1, n, ...)

    def exceeds(a: Tensor, b: Tensor) -> Tensor:
        return ~(a <= b) & (b == b)

    above, below = exceeds(others, mine), exceeds(mine, others)
    before = above if descending else below
    ties = [[j < i for j in range(n)] for i in range(n)]
    place: list[Any] = [
        sum(before[i, j].to(x.dtype) + (ties[i][j] * (1 - above[i, j].to(x.dtype)) * (1 - below[i, j].to(x.dtype)))
            for j in range(n) if j != i)
        for i in range(n)
    ] if n > 1 else [torch.zeros_like(rows[0])]  # fmt: skip
    found = [reduce(torch.add, [torch.where(place[i] == k, rows[i], 0.0) for i in range(n)]) for k in range(n)]
    return torch.stack(found).movedim(0, dim), None


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
               dilation: Sequence[int], transposed: bool, more: Sequence[int], groups: int) -> Any:  # fmt: skip
    """As a sum of products, one per place of the kernel, of positions by channels. Parameters are turned once."""
    count, channels, *sizes = weight.shape
    if groups != 1 or len(x) > MOST_SLICES:
        return NotImplemented
    if transposed:
        is_apart = [*stride] == sizes and not any((*padding, *more)) and max(dilation) == 1
        return torch.stack([_spread(image, weight, bias) for image in x.unbind(0)]) if is_apart else NotImplemented
    pads = [0, 0, *(p for size in reversed(padding) for p in (size, size))]
    images = []
    for image in x.unbind(0):
        by_position = _padded(image.movedim(0, -1), pads)  # (*sizes, channels)
        spans = [(n - d * (k - 1) - 1) // s + 1
                 for n, d, k, s in zip(by_position.shape, dilation, sizes, stride, strict=False)]  # fmt: skip
        if channels == 1 and math.prod(spans) <= MOST_SLICES and max(dilation) == 1:
            found = _patches(by_position[..., 0], sizes, stride, spans) @ weight.reshape(count, -1).t()
        elif math.prod(sizes) <= MOST_SLICES:
            found = _by_place(by_position, weight, stride, dilation, spans)
        else:
            return NotImplemented
        images.append((found if bias is None else found + bias).t().reshape(count, *spans))
    return torch.stack(images)


def _spread(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What each position gives to places of its own: a product, whose columns are places of a kernel."""
    channels, count, *sizes = weight.shape
    spans, dims = x.shape[1:], len(sizes)
    found = x.movedim(0, -1).reshape(-1, channels) @ weight.reshape(channels, -1)
    found = found.reshape(*spans, count, *sizes)
    found = found.permute(
        dims, *(d for pair in zip(range(dims), range(dims + 1, 2 * dims + 1), strict=True) for d in pair)
    )
    found = found.reshape(count, *(span * size for span, size in zip(spans, sizes, strict=True)))
    return found if bias is None else found + bias.reshape(count, *[1] * dims)


def _patches(x: Tensor, sizes: Sequence[int], stride: Sequence[int], spans: Sequence[int]) -> Tensor:
    """What a kernel sees at each position, a row each."""
    seen = x
    for d, (size, step) in enumerate(zip(sizes, stride, strict=True)):
        seen = seen.unfold(d, size, step)
    return seen.reshape(math.prod(spans), math.prod(sizes))


def _by_place(
    x: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], spans: Sequence[int]
) -> Tensor:
    """The sum over places of a kernel of what stands there, at each position, times its weights."""
    count, channels, *sizes = weight.shape
    places = list(product(*map(range, sizes)))
    kernels = weight.reshape(count * channels, len(places)).t().reshape(len(places), count, channels)
    terms = []
    for kernel, place in zip(kernels.unbind(0), places, strict=True):
        seen = x
        for d, (at, step, n, s) in enumerate(zip(place, dilation, spans, stride, strict=True)):
            seen = seen.narrow(d, at * step, (n - 1) * s + 1)
            seen = seen if s == 1 else seen.unfold(d, 1, s).squeeze(-1)
        terms.append(seen.reshape(-1, channels) @ kernel.t())
    return reduce(torch.add, terms)


def _windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int], *others: Any) -> Tensor | None:
    """Pairs of dimensions, across windows and inside them, where these are all there is, side by side."""
    height, width = kernel if len(kernel) == 2 else (*kernel, *kernel)
    if tuple(stride or kernel) != tuple(kernel) or any(others) or x.shape[-2] % height or x.shape[-1] % width:
        return None
    return x.reshape(*x.shape[:-2], x.shape[-2] // height, height, x.shape[-1] // width, width)


def _largest_of_windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Any = 0,
                        dilation: Any = 1, is_ceiling: bool = False) -> Any:  # fmt: skip
    padding, dilation = ([x] if isinstance(x, int) else x for x in (padding, dilation))
    others = (*padding, *(d - 1 for d in dilation))
    seen = _windows(x, kernel, stride, *others)
    return NotImplemented if seen is None else (seen.max(-1)[0].max(-2)[0], None)


def _largest_of_so_many(x: Tensor, counts: Sequence[int]) -> Any:
    kernel = [n // count for n, count in zip(x.shape[-2:], counts, strict=True)]
    is_even = [k * count for k, count in zip(kernel, counts, strict=True)] == [*x.shape[-2:]]
    return _largest_of_windows(x, kernel) if is_even else NotImplemented


def _mean_of_windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
                     is_ceiling: bool = False, counts_padding: bool = True, divisor: Any = None) -> Any:  # fmt: skip
    seen = _windows(x, kernel, stride, *padding, divisor)
    return NotImplemented if seen is None else _mean(seen, [-3, -1])


def _columns(x: Tensor, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
             stride: Sequence[int]) -> Any:  # fmt: skip
    if max(dilation) > 1 or any(padding):
        return NotImplemented
    seen = x.unfold(-2, kernel[0], stride[0]).unfold(-2, kernel[1], stride[1])  # (..., channels, *positions, *kernel)
    d = seen.ndim - 5
    seen = seen.permute(*range(d + 1), d + 3, d + 4, d + 1, d + 2)
    return seen.reshape(*seen.shape[:d], math.prod(seen.shape[d : d + 3]), math.prod(seen.shape[d + 3 :]))


def _sum_and(x: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    return torch.add(x if beta == 1 else x * beta, a @ b, alpha=alpha)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """Torch's own imports its compiler."""
    wide_a, wide_b = a if a.ndim > 1 else a.unsqueeze(0), b if b.ndim > 1 else b.unsqueeze(-1)
    batch = torch._C._infer_size(wide_a.shape[:-2], wide_b.shape[:-2])
    if wide_b.ndim == 2:
        found = wide_a.reshape(-1, wide_a.shape[-1]).mm(wide_b).reshape(*wide_a.shape[:-1], wide_b.shape[-1])
    else:
        x, y = (z.expand(*batch, *z.shape[-2:]).reshape(-1, *z.shape[-2:]) for z in (wide_a, wide_b))
        found = x.bmm(y).reshape(*batch, wide_a.shape[-2], wide_b.shape[-1])
    found = found if b.ndim > 1 else found.squeeze(-1)
    return found if a.ndim > 1 else found.squeeze(-2 if b.ndim > 1 else -1)


FORMULAS: dict[str, Callable[..., Any]] = {
    "matmul": _matmul,
    **dict.fromkeys(("_softmax", "_safe_softmax"), _softmax),
    "_log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "mean": _mean,
    "linalg_vector_norm": _norm,
    "var": _var,
    "std": lambda *args, **kwargs: _root(_var(*args, **kwargs)),
    "var_mean": _var_and_mean,
    "native_layer_norm": _layer_norm,
    "elu": _elu,
    "celu": lambda x, alpha=1: _elu(x, alpha, 1, 1 / alpha),
    "leaky_relu": _leaky_relu,
    "hardtanh": _hardtanh,
    "hardsigmoid": lambda x: _hardtanh(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * _hardtanh(x + 3, 0, 6) / 6,
    "gelu": _gelu,
    "softplus": _softplus,
    "sinc": _sinc,
    "erf": lambda x: 2 * torch.special.ndtr(x * 2**0.5) - 1,
    "rsqrt": lambda x: x.sqrt().reciprocal(),
    "sign": lambda x: (x > 0).to(x.dtype) - (x < 0).to(x.dtype),
    "rsub": lambda x, other, alpha=1: torch.sub(other, x, alpha=alpha),
    "masked_fill": lambda x, mask, value: torch.where(mask, value, x),
    **dict.fromkeys(("addmm", "baddbmm"), _sum_and),
    "binary_cross_entropy": lambda *_: NotImplemented,
    "_trilinear": _trilinear,
    "constant_pad_nd": _padded,
    "_cdist_forward": _distances,
    "cumsum": _accumulated(torch.add),
    "cumprod": _accumulated(torch.mul),
    "prod": _multiplied,
    "tril": lambda x, diagonal=0: _triangle(x, diagonal, True),
    "triu": lambda x, diagonal=0: _triangle(x, diagonal, False),
    "linalg_cross": _crossed,
    "sort": _in_order,
    "convolution": _convolved,
    "max_pool2d_with_indices": _largest_of_windows,
    "adaptive_max_pool2d": _largest_of_so_many,
    "avg_pool2d": _mean_of_windows,
    "im2col": _columns,
}
"""By what reaches the mode; what gives NotImplemented stays unknown."""
