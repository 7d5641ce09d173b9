"""Pooling of images that stand channels last, in a kernel of our own.

torch's kernels for that layout take 10 and more times what reading and writing the images does (a max pool of 1.5 MB
took 47 us on an H200; pools were a third of SqueezeNet at one image and 44 % of Inception at 32). Here neighbouring
threads read neighbouring channels of one position. What the kernel has not (other types than float32, dilation, sizes
rounded up, indices) is torch's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[int, int]
BLOCK = 256
MOST = 2**30
"""Numbers of a batch, as the kernel's are of 32 bits."""


class Pooling(NamedTuple):
    """What a pool does."""

    average: bool
    kernel: Pair
    stride: Pair
    padding: Pair
    counts_padding: bool = True
    """Whether an average's divisor counts positions outside the image."""


def pooling_of(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pooling | None:
    """What a call does with the first of its arguments, if it is a pool that the kernel has."""
    if type(called) is nn.MaxPool2d:
        layer: Any = called
        return _max(layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode,
                    layer.return_indices)  # fmt: skip
    if type(called) is nn.AvgPool2d:
        layer = called
        return _average(layer.kernel_size, layer.stride, layer.padding, layer.ceil_mode, layer.count_include_pad,
                        layer.divisor_override)  # fmt: skip
    if called in (F.max_pool2d, torch.max_pool2d):
        return _max(*args[1:], **kwargs)
    return _average(*args[1:], **kwargs) if called is F.avg_pool2d else None


def _max(kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
         return_indices: bool = False) -> Pooling | None:  # fmt: skip
    if ceil_mode or return_indices or _pair(dilation) != (1, 1):
        return None
    return Pooling(False, _pair(kernel_size), _pair(stride or kernel_size), _pair(padding))


def _average(kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
             count_include_pad: bool = True, divisor_override: int | None = None) -> Pooling | None:  # fmt: skip
    if ceil_mode or divisor_override is not None:
        return None
    return Pooling(True, _pair(kernel_size), _pair(stride or kernel_size), _pair(padding), count_include_pad)


def _pair(value: Any) -> Pair:
    values = (value, value) if isinstance(value, int) else tuple(value)
    return values[0], values[-1]


def can_pool(x: Any) -> bool:
    """Whether the kernel takes a value."""
    is_image = isinstance(x, Tensor) and x.dim() == 4 and x.dtype is torch.float32 and 0 < x.numel() <= MOST
    return is_image and x.is_contiguous(memory_format=torch.channels_last)


def pooled(x: Tensor, pooling: Pooling) -> Tensor:
    """The result, channels last."""
    from edbc.stages.cuda.poolkernel import pool

    sizes = [(x.shape[2 + i] + 2 * pooling.padding[i] - pooling.kernel[i]) // pooling.stride[i] + 1 for i in range(2)]
    count, channels, height, width = x.shape
    y = torch.empty(count, channels, *sizes, device=x.device, memory_format=torch.channels_last)
    pool[(-(-y.numel() // BLOCK),)](
        x, y, y.numel(), channels, height, width, *sizes, *pooling.kernel, *pooling.stride, *pooling.padding,
        pooling.average, pooling.counts_padding, BLOCK,
    )  # fmt: skip
    return y
