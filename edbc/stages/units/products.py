"""Products with packed weights: convolutions and linear layers, several of them as one.

(1) A batch norm behind a product is folded into its weight and bias.
(2) Products of one input, one stride and one dilation can be *merged*: their weights stacked along the output channels.
    Kernels of different sizes are padded with zeros to one size. With paddings p_j, tap 0 of kernel j reads position
    -p_j of the first window; in a merged kernel with padding P = max p_j it is tap P - p_j. So kernel j is padded by
    P - p_j zeros before, and behind up to K = max(P - p_j + d (k_j - 1)) + 1, each way of its own. (Centring the
    smaller kernel is the same only where p_j is half of it: 3x3 with padding 1 beside 2x2 with padding 0, stride 2,
    is not.) With a dilation d > 1 the padding must be a multiple of d.
(3) Where the merged product makes more positions than the parts, what is too much is cut off; where it makes fewer
    (padding behind is smaller than before), the input is padded on that side first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edbc.run.weights.packing import Moves
from edbc.stages.graph import UnitGraph

MOST_MERGED = 8
"""Units of one input of which all subsets are tried."""
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Product:
    """A convolution or linear layer with its weights as they are computed with."""

    weight: Tensor
    """`(outputs, inputs / groups, height, width)`, or `(outputs, inputs)`."""
    bias: Tensor | None
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    @property
    def is_linear(self) -> bool:
        """Whether it is a matrix product."""
        return self.weight.dim() == 2

    @property
    def taps(self) -> Pair:
        """Height and width of the kernel; of a matrix, a row."""
        return (1, self.weight.shape[1]) if self.is_linear else (self.weight.shape[2], self.weight.shape[3])

    @property
    def outputs(self) -> int:
        """Output channels."""
        return self.weight.shape[0]


def product_of(module: nn.Module, norm: nn.Module | None) -> Product:
    """A layer's product, with the batch norm behind it folded in, (1)."""
    layer: Any = module
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    if norm is not None:
        weight, bias = _folded(weight, bias, norm)
    if isinstance(module, nn.Linear):
        return Product(weight, bias)
    return Product(weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def _folded(weight: Tensor, bias: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
    """In float64, so that folding adds no error of its own."""
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight.detach().double()
    shift = -norm.running_mean.double() if bias is None else bias.double() - norm.running_mean.double()
    shift = shift * scale if norm.bias is None else shift * scale + norm.bias.detach().double()
    shape = (-1,) + (1,) * (weight.dim() - 1)
    return (weight.double() * scale.reshape(shape)).to(weight.dtype), shift.to(weight.dtype)


def merged(products: Sequence[Product]) -> Product:
    """The products as one, definition (2), packed as a cell's gates are. They must be `mergeable`."""
    first, outputs = products[0], sum(p.outputs for p in products)
    padding, kernel = _merged_size(products)
    sizes = (outputs, *first.weight.shape[1:2]) if first.is_linear else (outputs, first.weight.shape[1], *kernel)
    size, area, at = math.prod(sizes), math.prod(kernel), 0
    moves, sources = [], list[Tensor]()
    for p in products:
        height, width = p.taps
        top, left = ((padding[i] - p.padding[i]) // p.dilation[i] for i in range(2))
        rows, to = p.weight.numel() // (height * width), at * size // outputs + top * kernel[1] + left
        for tap in range(height):
            source = len(sources), tap * width, rows, width, height * width
            moves.append((*source, to + tap * kernel[1], area, False, False))
        sources.append(p.weight)
        if p.bias is not None:
            moves.append((len(sources), 0, 1, p.outputs, 0, size + at, 0, False, False))
            sources.append(p.bias)
        at += p.outputs
    bias = (size if len(sources) > len(products) else -1, outputs)
    packing = Moves.of(moves, size + outputs, [(0, *sizes)], [bias])
    [(weight, merged_bias)] = packing.pack(sources, first.weight.dtype, first.weight.device)
    return Product(weight, merged_bias, first.stride, padding, first.dilation)


def _merged_size(products: Sequence[Product]) -> tuple[Pair, Pair]:
    """Padding and taps of the merged kernel, both ways."""
    padding = [max(p.padding[i] for p in products) for i in range(2)]
    taps = [max((padding[i] - p.padding[i]) // p.dilation[i] + p.taps[i] for p in products) for i in range(2)]
    return (padding[0], padding[1]), (taps[0], taps[1])


def mergeable(layers: Sequence[Any]) -> bool:
    """Whether layers that read one value can be one product: (2), one kind, stride and dilation, no groups."""
    first = layers[0]
    if all(type(layer) is nn.Linear for layer in layers):
        return True
    if any(type(layer) is not nn.Conv2d or layer.groups > 1 or layer.padding_mode != "zeros" for layer in layers):
        return False
    if any(isinstance(layer.padding, str) for layer in layers):
        return False
    alike = all((layer.stride, layer.dilation) == (first.stride, first.dilation) for layer in layers)
    most = [max(layer.padding[i] for layer in layers) for i in range(2)]
    return alike and all((most[i] - la.padding[i]) % la.dilation[i] == 0 for la in layers for i in range(2))


def merge_sets(graph: UnitGraph, units: Sequence[int], layer_of: dict[int, Any]) -> frozenset[int]:
    """The sets of units of a block that can be one product: positions in `units`, as bits. `layer_of` gives the layer
    of a unit that is nothing but a dense product, with element-wise functions behind it."""
    by_key: dict[Any, list[int]] = {}
    for position, number in enumerate(units):
        unit, layer = graph.units[number], layer_of.get(number)
        constants = [getattr(layer, name, None) for name in ("stride", "dilation")]
        if layer is not None:
            by_key.setdefault((unit.reads, type(layer), *constants, unit.shape[2:]), []).append(position)
    found = set()
    for alike in by_key.values():
        for count in range(2, len(alike[:MOST_MERGED]) + 1):
            for some in combinations(alike[:MOST_MERGED], count):
                if mergeable([layer_of[units[position]] for position in some]):
                    found.add(sum(1 << position for position in some))
    return frozenset(found)


class Runner:
    """A product as it runs, here as a plain call."""

    def __init__(self, product: Product, shape: Sequence[int], positions: Sequence[int]):
        """`shape` of the input, with its batch dimension; `positions` of the output, height and width."""
        self.product, self.positions = product, tuple(positions)
        self.pad = () if product.is_linear else self._missing(shape)
        self.padding = [0, 0] if self.pad else list(product.padding)
        layout = torch.contiguous_format if product.is_linear else torch.channels_last
        self.weight = product.weight.contiguous(memory_format=layout)

    def _missing(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Definition (3): what the input is padded by when symmetric padding makes too few positions; () if not."""
        p = self.product
        pads = []
        for i in (1, 0):
            reach = p.dilation[i] * (p.weight.shape[2 + i] - 1) + 1
            need = (self.positions[i] - 1) * p.stride[i] + reach - shape[2 + i] - p.padding[i]
            pads += [p.padding[i], need]
        return tuple(pads) if any(pads[2 * i + 1] > p.padding[1 - i] for i in range(2)) else ()

    def __call__(self, x: Tensor) -> Tensor:
        """The product, of the positions that are wanted."""
        p = self.product
        if p.is_linear:
            return F.linear(x, self.weight, p.bias)
        x = F.pad(x, self.pad) if self.pad else x
        return self._convolved(x)[:, :, : self.positions[0], : self.positions[1]]

    def _convolved(self, x: Tensor) -> Tensor:
        p = self.product
        return F.conv2d(x, self.weight, p.bias, p.stride, self.padding, p.dilation, p.groups)
