"""What this machine does: the skinny product by which absolute figures of other machines are scaled, and memory.

    python benchmarks/calibrate.py [--threads N]

The product of 15 x 256 by 256 x 512 in float32 takes 25 microseconds on the machine of the reference table; multiply
that table's times by this machine's figure over 25. Medians of repeats, with quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from edbc.runtime import blas

REFERENCE_MICROSECONDS = 25.0


def microseconds(function: Callable[[], object], repeats: int = 300) -> tuple[float, float, float]:
    """Quartiles of the time of one call."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(1e6 * (time.perf_counter() - started))
    low, middle, high = statistics.quantiles(times[repeats // 10 :], n=4)
    return low, middle, high


def product(rows: int, inner: int, columns: int) -> Callable[[], object]:
    """One torch.mm(out=) of that shape."""
    a, b, c = torch.rand(rows, inner), torch.rand(inner, columns), torch.empty(rows, columns)
    return lambda: torch.mm(a, b, out=c)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), native products: {blas.vendor() or 'none'}")
    for shape in ((15, 256, 512), (1, 256, 512), (64, 256, 512), (256, 256, 1280), (256, 512, 2560)):
        low, middle, high = microseconds(product(*shape))
        rate = 2e-3 * shape[0] * shape[1] * shape[2] / middle
        scale = f", {middle / REFERENCE_MICROSECONDS:.2f} of the reference machine" if shape[0] == 15 else ""
        print(
            f"{'x'.join(map(str, shape)):>14}: {middle:8.1f} us ({low:.1f} to {high:.1f}), {rate:6.1f} GFLOP/s{scale}"
        )
    source, target = torch.rand(1 << 24), torch.empty(1 << 24)
    _, middle, _ = microseconds(lambda: target.copy_(source), 20)
    print(f"{'copy 64 MiB':>14}: {middle:8.1f} us, {2 * source.numel() * 4 / middle / 1e3:6.1f} GB/s read and written")


if __name__ == "__main__":
    main()
