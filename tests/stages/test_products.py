"""Merged products against the products alone: kernels of other sizes, strides, paddings and dilations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edbc.stages.units.products import Product, Runner, mergeable, merged, product_of


def conv(kernel: Any, stride: int = 1, padding: Any = 0, dilation: int = 1, outputs: int = 3) -> nn.Conv2d:
    """A convolution of two channels in float64."""
    return nn.Conv2d(2, outputs, kernel, stride, padding, dilation).double()


def require_merges(layers: list[nn.Conv2d], size: int) -> None:
    """The merged product's channels are the layers' own results."""
    x = torch.randn(2, 2, size, size, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.cat([layer(x) for layer in layers], 1)
        product = merged([product_of(layer, None) for layer in layers])
        got = Runner(product, x.shape, expected.shape[2:])(x)
    assert torch.allclose(got, expected, rtol=0, atol=1e-12)


def test_kernels_are_aligned_not_centred() -> None:
    """3x3 with and without padding at stride 3, and 3x3 padded beside 2x2 at stride 2, on 36 pixels: both are wrong
    where the smaller kernel, or the one of less padding, is centred."""
    require_merges([conv(3, 3, 1), conv(3, 3, 0)], 36)
    require_merges([conv(3, 2, 1), conv(2, 2, 0)], 36)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [conv((1, 3), 1, (0, 1)), conv((3, 1), 1, (1, 0))],
        lambda: [conv(1), conv(3, 1, 1), conv(5, 1, 2)],
        lambda: [conv(3, 1, 2, 2), conv(1, 1, 0, 2)],
        lambda: [conv(2, 2, 0), conv(4, 2, 1)],
        lambda: [conv(7, 1, 3), conv(1, 1, 0)],
    ],
    ids=["rows and columns", "1 3 5", "dilated", "even", "large"],
)
def test_kernels_of_different_sizes(layers: Any) -> None:
    """Smaller kernels are padded to the largest, each way."""
    require_merges(layers(), 12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=2, max_size=3), st.integers(1, 3),
       st.integers(8, 14))  # fmt: skip
def test_what_merges_is_right(sizes: list[tuple[int, int]], stride: int, size: int) -> None:
    """Any kernels and paddings that give equal sizes merge to the same numbers."""
    layers = [conv(kernel, stride, min(padding, kernel)) for kernel, padding in sizes]
    positions = {(size + 2 * min(p, k) - k) // stride for k, p in sizes}
    if len(positions) == 1:
        assert mergeable(layers)
        require_merges(layers, size)


def test_what_cannot_merge() -> None:
    """Other strides, dilations, groups, kinds and paddings that no kernel can hold are told apart."""
    assert not mergeable([conv(3, 1, 1), conv(3, 2, 1)])
    assert not mergeable([conv(3, 1, 1), conv(3, 1, 2, 2)])
    assert not mergeable([conv(3, 1, 2, 2), conv(3, 1, 1, 2)])
    assert not mergeable([conv(3), nn.Linear(2, 3)])
    assert not mergeable([nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 2, 3)])
    assert not mergeable([nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), nn.Conv2d(2, 2, 3, padding=1)])


def test_linear_layers_merge() -> None:
    """Layers with and without a bias are one product."""
    layers = [nn.Linear(4, 3).double(), nn.Linear(4, 2, bias=False).double()]
    x = torch.randn(5, 4, dtype=torch.float64)
    with torch.no_grad():
        got = Runner(merged([product_of(layer, None) for layer in layers]), x.shape, ())(x)
        assert torch.allclose(got, torch.cat([layer(x) for layer in layers], 1), rtol=0, atol=1e-14)


@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_is_folded(bias: bool) -> None:
    """A convolution with a batch norm folded in is the two of them."""
    layer, norm = nn.Conv2d(2, 4, 3, bias=bias).double(), nn.BatchNorm2d(4).double().eval()
    nn.init.uniform_(norm.running_mean, -1, 1)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64)
    product: Product = product_of(layer, norm)

    with torch.no_grad():
        assert torch.allclose(Runner(product, x.shape, (4, 4))(x), norm(layer(x)), rtol=0, atol=1e-13)
