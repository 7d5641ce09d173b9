"""Convolutions as products, against torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edbc.cells.rows import convolution
from edbc.cells.rows.convolution import convolve

PAIR = st.integers(1, 3) | st.tuples(st.integers(1, 3), st.integers(1, 3))
CHANNELS = [(1, 9), (9, 1), (1, 1), (2, 3), (3, 18), (18, 3)]
"""Of maps and results: enough of either that small kernels are unfolded or folded, and neither."""


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_values_and_gradients_equal_torch_s(data: st.DataObject) -> None:
    """Any kernel, step, border and distance, any number of maps, none included; what torch refuses is refused."""
    inputs, outputs = data.draw(st.sampled_from(CHANNELS))
    height, width, count = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 3)))
    kernel = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    stride, dilation = data.draw(st.just(1) | PAIR), data.draw(st.just(1) | PAIR)
    padding: Any = data.draw(st.integers(0, 2) | st.tuples(st.integers(0, 2), st.integers(0, 2)) | st.just("valid"))
    same = stride == 1 and dilation == 1 and kernel[0] % 2 == 1 == kernel[1] % 2
    padding = data.draw(st.sampled_from([padding, "same"])) if same else padding
    generator = torch.Generator().manual_seed(1)
    maps, weight, bias = (
        torch.rand(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((count, inputs, height, width), (outputs, inputs, *kernel), (outputs,))
    )
    arguments = (maps, weight, data.draw(st.sampled_from([bias, None])), stride, padding, dilation)
    try:
        expected = torch.conv2d(*arguments)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            convolve(*arguments)
        return
    found = convolve(*arguments)

    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assume(count)
    seed = torch.rand(expected.shape, generator=generator, dtype=torch.float64)
    ours = torch.autograd.grad(found, [maps, weight], seed)
    theirs = torch.autograd.grad(expected, [maps, weight], seed)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("channels", "kernel", "call"), [
    ((4, 4), 1, "linear"), ((1, 9), 3, "unfold"), ((9, 1), 3, "fold"), ((4, 4), 3, "conv2d"),
])  # fmt: skip
def test_what_runs(channels: tuple[int, int], kernel: int, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions (1) to (4) choose what they say."""
    called: list[str] = []
    for module, name in ((convolution.functional, "linear"), (convolution.functional, "unfold"),
                         (convolution.functional, "fold"), (torch, "conv2d")):  # fmt: skip
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, name=name, function=function: called.append(name) or function(*a))
    convolve(
        torch.rand(2, channels[0], 4, 4), torch.rand(channels[1], channels[0], kernel, kernel), None, 1, kernel // 2
    )

    assert called[0] == call


def test_groups_are_torch_s() -> None:
    """A convolution in groups stays what it is."""
    maps, weight = torch.rand(2, 4, 3, 3), torch.rand(4, 1, 1, 1)

    torch.testing.assert_close(convolve(maps, weight, groups=4), torch.conv2d(maps, weight, groups=4))
