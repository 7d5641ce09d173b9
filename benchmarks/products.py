"""Products of our own against the library's, beside the measured peak of one core.

    python benchmarks/products.py [--double | --bfloat16] [--rounds 3]

Per size (n x K by K x N): microseconds and billions of operations per second of `edbc.cells.kernels.microkernel`, as
the walk calls it, and of `torch.mm`, in turns, and their share of the peak: multiply-adds in registers, measured in the
same run. The least time of a call counts. One core.
"""

from __future__ import annotations

import argparse
import itertools

import torch

from edbc.cells.kernels.microkernel import shape_of
from edbc.tools.health import processor_name
from edbc.tools.peak import describe, library_gflops, peak_gflops, product_gflops

ROWS = (1, 4, 15, 50, 256)
SIZES = ((256, 640), (128, 512), (512, 1280), (1024, 2560))
"""K and N: trees and lattices of hidden sizes 128 and more."""


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--double", action="store_true", help="float64")
    kinds.add_argument("--bfloat16", action="store_true", help="where the processor multiplies it")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    width = 8 if options.double else 2 if options.bfloat16 else 4
    if shape_of(width) is None:
        raise SystemExit("products.py: this processor multiplies no bfloat16")
    peak = peak_gflops(width)
    print(f"{processor_name()}, torch {torch.__version__}, {describe(width)}, peak {peak:.0f} GFLOP/s\n")
    print("| n, K, N | own us | GFLOP/s | of peak | library us | GFLOP/s | of peak | own is |\n" + "|---" * 8 + "|")
    for (inputs, columns), rows in itertools.product(SIZES, ROWS):
        speeds = [
            [speed(rows, inputs, columns, width) for speed in (product_gflops, library_gflops)]
            for _ in range(options.rounds)
        ]
        own, library = (max(speed) for speed in zip(*speeds, strict=True))
        work = 2e-3 * rows * inputs * columns
        cells = [f"{work / s:,.1f} | {s:.0f} | {s / peak:.0%}" for s in (own, library)]
        print(f"| {rows}, {inputs}, {columns} | {cells[0]} | {cells[1]} | {own / library:.2f} x |", flush=True)


if __name__ == "__main__":
    main()
