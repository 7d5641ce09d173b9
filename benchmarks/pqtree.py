"""PQ tree reductions: does the time grow with leaves plus total subset size, and with nothing else?

Each instance hides a random order of n leaves and reduces the universal tree by n / 4 random intervals of it, of mean
length 8, as the rows of a matrix with the consecutive-ones property. A second family has only pairs of neighbours, n of
them, and ends in one Q-node over all leaves. Prints medians over repetitions; the last column should stay level. The
garbage collector is off while the clock runs: its full collections look at every object there is, again and again.

    python benchmarks/pqtree.py [--max-leaves 100000] [--repeat 3]
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

from edbc.layout.pqtree import PQTree

Instance = list[list[int]]


def intervals(leaves: int, rng: random.Random) -> Instance:
    """Intervals of a hidden order, each of 2 to 14 leaves in any order."""
    hidden = rng.sample(range(leaves), leaves)
    result = []
    for _ in range(leaves // 4):
        length = rng.randint(2, 14)
        start = rng.randrange(leaves - length)
        result.append(rng.sample(hidden[start : start + length], length))
    return result


def neighbours(leaves: int, rng: random.Random) -> Instance:
    """All pairs of neighbours of a hidden order, shuffled."""
    hidden = rng.sample(range(leaves), leaves)
    return rng.sample([list(pair) for pair in pairwise(hidden)], leaves - 1)


def seconds(leaves: int, subsets: Instance) -> float:
    """Time to make the universal tree and reduce it by all subsets, which must succeed."""
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    tree = PQTree(range(leaves))
    feasible = all(tree.reduce(subset) for subset in subsets)
    elapsed = time.perf_counter() - start
    gc.enable()
    if not feasible:
        raise SystemExit(f"{leaves} leaves: an interval of the hidden order was refused")
    return elapsed


def measure(name: str, make: Callable[[int, random.Random], Instance], max_leaves: int, repeat: int) -> None:
    """One line per size, doubling from 1,000 or so to `max_leaves`."""
    print(f"{name}\n{'leaves':>9} {'subsets':>9} {'size':>9} {'median ms':>10} {'us per (leaves + size)':>23}")
    leaves = max_leaves
    sizes = []
    while leaves >= 1000:
        sizes.append(leaves)
        leaves //= 2
    for leaves in reversed(sizes):
        subsets = make(leaves, random.Random(leaves))
        size = sum(map(len, subsets))
        median = statistics.median(seconds(leaves, subsets) for _ in range(repeat))
        print(f"{leaves:9,} {len(subsets):9,} {size:9,} {median * 1e3:10.1f} {median * 1e6 / (leaves + size):23.2f}")


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-leaves", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    measure("intervals of a hidden order", intervals, args.max_leaves, args.repeat)
    measure("pairs of neighbours", neighbours, args.max_leaves, args.repeat)


if __name__ == "__main__":
    main()
