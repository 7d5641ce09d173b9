"""The kernel of `stages.cuda.pools`. Importing it needs Triton, and decides for its interpreter or a device."""

# Triton infers the types of kernels.
# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def pool(
    x, y, total, channels, height, width, out_height, out_width,
    KY: tl.constexpr, KX: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    AVERAGE: tl.constexpr, COUNTS_PADDING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK numbers of the result: channels of one position after the other."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    position, channel = at // channels, at % channels
    row, column = position // out_width, position % out_width
    image, top, left = row // out_height, (row % out_height) * SY - PY, column * SX - PX
    fill = 0.0 if AVERAGE else float("-inf")
    value = tl.full((BLOCK,), fill, tl.float32)
    count = tl.full((BLOCK,), 0.0, tl.float32)
    for i in tl.static_range(KY):
        for j in tl.static_range(KX):
            is_there = (top + i >= 0) & (top + i < height) & (left + j >= 0) & (left + j < width)
            from_ = ((image * height + top + i) * width + left + j) * channels + channel
            taken = tl.load(x + from_, mask=inside & is_there, other=fill)
            if AVERAGE:
                value += taken
                count += is_there.to(tl.float32)
            else:
                value = tl.maximum(value, taken, propagate_nan=tl.PropagateNan.ALL)
    if AVERAGE:
        value = value / (KY * KX) if COUNTS_PADDING else value / count
    tl.store(y + at, value, mask=inside)
