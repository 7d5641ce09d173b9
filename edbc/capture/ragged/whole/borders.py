"""Convolution and pooling along the ragged dimension: each row of the result is one function of the rows in its window.

The rows of tap t of all windows are a slice of the rows with borders on both ends, whatever n is, so a convolution is a
product of rows, and pooling an element-wise function of them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from edbc.capture.ragged.call import Call, Rule
from edbc.capture.ragged.program import JOIN, triple
from edbc.capture.ragged.rows import plain
from edbc.capture.ragged.symbols import Size
from edbc.capture.ragged.value import Ragged, each_row, filled, one_step
from edbc.capture.standins.standin import Shared


def _number(item: Any) -> Any:
    """A size for each dimension, of which there is one."""
    return item[0] if isinstance(item, tuple | list) and len(item) == 1 else item


def _taps(ragged: Ragged, size: int, stride: int, padding: int, dilation: int, border: float) -> list[Ragged] | None:
    """The rows of each tap of all windows; None where there is no window."""
    rec, rows, span = ragged.rec, plain(ragged), (size - 1) * dilation
    if len(rows.refs) + 2 * padding <= span:
        return None
    if padding:
        row = rec.constant_row(torch.full(rows.row.shape, border, dtype=rows.dtype))
        edge = filled(rec, row.ref, padding)
        rows = rows.like(one_step(rec, JOIN, (), [triple(edge), triple(rows.refs), triple(edge)]))
    last = [span - t * dilation for t in range(size)]
    return [rows.take(slice(t * dilation, -last[t] if last[t] else None, stride)) for t in range(size)]


def convolved(call: Call) -> Any:
    """`F.conv1d(input, weight, bias, stride, padding, dilation, groups)` of (channels, n), in one group."""
    ragged, padding = call.args[0], _number(call.given(4, "padding", 0))
    if type(ragged) is not Ragged or ragged.behind != 1 or ragged.ndim > 3 or padding == "same":
        return NotImplemented
    stride, dilation = _number(call.given(3, "stride", 1)), _number(call.given(5, "dilation", 1))
    return _of_windows(call, stride, 0 if padding == "valid" else padding, dilation)


def convolved_across(call: Call) -> Any:
    """`F.conv2d` of (channels, n, width) by kernels that are as wide as that, in one group."""
    ragged, weight, padding = call.args[0], call.given(1, "weight", None), _pair(call.given(4, "padding", 0))
    if type(ragged) is not Ragged or ragged.behind != 2 or ragged.ndim not in (3, 4) or type(weight) is not Shared:
        return NotImplemented
    if weight.shape[3] != ragged.row.shape[-1] or padding[1:] != (0,):
        return NotImplemented
    return _of_windows(call, _pair(call.given(3, "stride", 1))[0], padding[0], _pair(call.given(5, "dilation", 1))[0])


def _of_windows(call: Call, stride: int, padding: int, dilation: int) -> Any:
    """A product of the rows of each window, whose taps are in front of what is behind the ragged dimension."""
    ragged, weight, bias, rec = call.args[0], call.given(1, "weight", None), call.given(2, "bias", None), call.rec
    if type(weight) is not Shared or call.given(6, "groups", 1) != 1:
        return NotImplemented
    taps = _taps(ragged, weight.shape[2], stride, padding, dilation, 0.0)
    if taps is None:
        return NotImplemented
    matrix, at = weight.flatten(1), -ragged.behind

    def window(*values: Any) -> Any:
        row = rec.node(torch.stack, (list(values), at), {}) if len(values) > 1 else values[0].unsqueeze(at)
        found = rec.function(F.linear, (row.flatten(at - 1), matrix, bias), {})
        return found if at == -1 else found.unsqueeze(-1)

    return each_row(rec, taps, window, ragged.at)


def _pair(item: Any) -> tuple[Any, ...]:
    """A size for each of two dimensions; what says no sizes in a tuple of its own."""
    return tuple(item) if isinstance(item, tuple | list) else (item,) if isinstance(item, str) else (item, item)


def _of_all(call: Call, ragged: Any, size: Any, stride: Any, padding: Any) -> Any:
    """Pooling of all rows at once, whose number is asked of them (`F.max_pool1d(h, h.size(2))`)."""
    if type(ragged) is not Ragged or type(size) is not Size or ragged.behind != 1 or stride is not size or padding != 0:
        return NotImplemented
    if size.value != len(ragged.refs):
        return NotImplemented
    call.rec.equal_sizes.append((size.like, triple(ragged.refs)))
    if call.name.startswith("max"):
        return call.rec.function(torch.max, (ragged, -1, True), {})[0]
    return call.rec.function(torch.mean, (ragged, -1, True), {})


def pooled(call: Call) -> Any:
    """`F.max_pool1d` and `F.avg_pool1d` of (channels, n)."""
    is_max, size = call.name == "max_pool1d", _number(call.given(1, "kernel_size", None))
    stride, padding = _number(call.given(2, "stride", None)) or size, _number(call.given(3, "padding", 0))
    dilation = _number(call.given(4, "dilation", 1)) if is_max else 1
    options = [call.given(i, k, False) for i, k in (((5, "ceil_mode"), (6, "return_indices")) if is_max else
                                                    ((4, "ceil_mode"),))]  # fmt: skip
    ragged = call.args[0]
    if (
        dilation == 1
        and not any(options)
        and (found := _of_all(call, ragged, size, stride, padding)) is not NotImplemented
    ):
        return found
    if type(ragged) is not Ragged or ragged.behind != 1 or any(options) or type(size) is not int:
        return NotImplemented
    if not is_max and not call.given(5, "count_include_pad", True):
        return NotImplemented
    taps = _taps(ragged, size, stride, padding, dilation, float("-inf") if is_max else 0.0)
    if taps is None or size < 2:
        return NotImplemented

    def window(*values: Any) -> Any:
        found = values[0]
        for value in values[1:]:  # of equal ones the first has the gradient, which `maximum` shares
            found = found.clamp(min=value) if is_max else found + value
        return found if is_max else found / size

    return each_row(call.rec, taps, window, ragged.at)


RULES: dict[str, Rule] = {
    "conv1d": convolved,
    "conv2d": convolved_across,
    "max_pool1d": pooled,
    "max_pool1d_with_indices": pooled,
    "avg_pool1d": pooled,
}
