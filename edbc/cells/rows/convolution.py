"""Convolutions of many small maps in two dimensions as products, where products are what they cost.

The library that torch's convolutions call on the CPU compiles code for every number of maps that it meets: some
milliseconds and hundreds of kilobytes for each size of batch. Definitions.

(1) Maps stand channels last: `(maps, height, width, channels)` in memory. So what a kernel of one pixel does is a
    product of all pixels of all maps with one matrix, and so are both of its gradients.
(2) *Unfolded* maps hold for every pixel of the result what the kernel covers there, `kernel x channels` numbers. A
    convolution is a product of these with one matrix. Where they are no more numbers than the result has, that is how
    it runs.
(3) The other way round, every pixel of the input gives `kernel x channels` of the result, which are *folded*: added
    where they belong. Where these are no more numbers than the input has, and steps are of one pixel, this is how it
    runs.
(4) All others stay what they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def convolve(
    maps: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    """`torch.conv2d` of maps on the CPU, `(n, channels, height, width)`."""
    maps = maps.contiguous(memory_format=torch.channels_last)
    steps, apart = _pair(stride), _pair(dilation)
    kernel = tuple(weight.shape[2:])
    border = _border(padding, kernel, apart)
    outputs, inputs, taps = len(weight), weight.shape[1], weight[0, 0].numel()
    size = tuple(
        (extent + 2 * b - d * (k - 1) - 1) // s + 1
        for extent, b, d, k, s in zip(maps.shape[2:], border or (0, 0), apart, kernel, steps, strict=True)
    )
    if border is None or groups != 1 or min(size) < 1 or not len(maps) or not taps:
        return torch.conv2d(maps, weight, bias, stride, padding, dilation, groups)
    if taps == 1 and steps == (1, 1) and border == (0, 0):
        return functional.linear(maps.movedim(1, -1), weight.flatten(1), bias).movedim(-1, 1)
    if inputs * taps <= outputs:
        unfolded = functional.unfold(maps, kernel, apart, border, steps).transpose(1, 2)
        return functional.linear(unfolded, weight.flatten(1), bias).unflatten(1, size).movedim(-1, 1)
    outer = tuple(d * (k - 1) - b for d, k, b in zip(apart, kernel, border, strict=True))
    if outputs * taps <= inputs and steps == (1, 1) and min(outer) >= 0:
        matrix = weight.flip(2, 3).transpose(0, 1).flatten(1)
        given = maps.movedim(1, -1).flatten(1, 2) @ matrix
        folded = functional.fold(given.transpose(1, 2), size, kernel, apart, outer)
        return folded if bias is None else folded + bias[:, None, None]
    return torch.conv2d(maps, weight, bias, stride, padding, dilation, groups)


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])


def _border(padding: Any, kernel: tuple[int, ...], apart: tuple[int, int]) -> tuple[int, int] | None:
    """Zeros on each side, by height and width; None where the sides differ."""
    if padding == "valid":
        return 0, 0
    if padding != "same":
        return _pair(padding)
    total = [d * (k - 1) for d, k in zip(apart, kernel, strict=True)]
    return None if any(t % 2 for t in total) else (total[0] // 2, total[1] // 2)
