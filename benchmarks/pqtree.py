"""PQ trees and layouts: does reducing take time in proportion to its input, and how long does planning a cell take?

Each instance hides a random order of n leaves and reduces the universal tree by n / 4 random intervals of it, of mean
length 8, as the rows of a matrix with the consecutive-ones property. A second family has only pairs of neighbours, n of
them, and ends in one Q-node over all leaves. Prints medians over repetitions. The garbage collector is off while the
clock runs: its full collections look at every object there is, again and again.

The steps of the algorithm are told by *calls*, the number of Python calls per leaf and element, which stays level. Time
rises a little with the size where subsets come in random order, because the nodes that a reduction touches are then
spread over memory that no longer fits the caches: the third family, the same pairs from one end to the other, does the
same work on neighbouring memory, and its time stays level too.

Then layouts: cells as the papers' models have them, written out as batches, and a tree-LSTM with extra random batches
that no order meets, so that operands have to be chosen. Prints medians, what is dropped, and what the order in which
the variables are named would copy.

    python benchmarks/pqtree.py [--max-leaves 100000] [--repeat 3]
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise

from edbc.layout import LayoutBatch, PQTree, count_copies, plan_layout

Instance = list[list[int]]
Cell = tuple[list[str], list[LayoutBatch]]


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


def in_sequence(leaves: int, rng: random.Random) -> Instance:
    """The pairs of neighbours from one end to the other."""
    return [[i, i + 1] for i in range(leaves - 1)]


def calls(leaves: int, subsets: Instance) -> int:
    """Python calls of what `seconds` times."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        tree = PQTree(range(leaves))
        for subset in subsets:
            tree.reduce(subset)
    finally:
        sys.setprofile(None)
    return count


def seconds(leaves: int, subsets: Instance) -> float:
    """Time to make the universal tree and reduce it by all subsets, which must succeed."""
    gc.collect()
    gc.disable()
    start = time.process_time()
    tree = PQTree(range(leaves))
    feasible = all(tree.reduce(subset) for subset in subsets)
    elapsed = time.process_time() - start
    gc.enable()
    if not feasible:
        raise SystemExit(f"{leaves} leaves: an interval of the hidden order was refused")
    return elapsed


def measure(name: str, make: Callable[[int, random.Random], Instance], max_leaves: int, repeat: int) -> None:
    """One line per size, doubling from 1,000 or so to `max_leaves`."""
    title = f"{'leaves':>9} {'subsets':>9} {'size':>9} {'median ms':>10} {'us per (leaves + size)':>23} {'calls':>6}"
    print(f"{name}\n{title}")
    leaves = max_leaves
    sizes = []
    while leaves >= 1000:
        sizes.append(leaves)
        leaves //= 2
    for leaves in reversed(sizes):
        subsets = make(leaves, random.Random(leaves))
        size = sum(map(len, subsets))
        median = statistics.median(seconds(leaves, subsets) for _ in range(repeat))
        each = calls(leaves, subsets) / (leaves + size)
        figures = f"{median * 1e3:10.1f} {median * 1e6 / (leaves + size):23.2f} {each:6.2f}"
        print(f"{leaves:9,} {len(subsets):9,} {size:9,} {figures}", flush=True)


def gated_cell(gates: int, sources: int, products: int) -> Cell:
    """Batches of a gated cell: products of `sources` vectors, sums, biases, sigmoids, `products` gates times states.

    gates=4, sources=2, products=2 is an LSTM; 5, 2, 3 a binary tree-LSTM.
    """
    names: list[list[str]] = []
    batches = []
    for s in range(sources):
        names.append([f"a{s}{g}" for g in range(gates)])
        weights = tuple(f"W{s}{g}" for g in range(gates))
        batches.append(LayoutBatch(f"product{s}", (tuple(names[-1]), weights, (f"x{s}",) * gates)))
    total = names[0]
    for s in range(1, sources):
        result = [f"s{s}{g}" for g in range(gates)]
        batches.append(LayoutBatch(f"add{s}", (tuple(result), tuple(total), tuple(names[s]))))
        total = result
    biased, active = tuple(f"t{g}" for g in range(gates)), tuple(f"i{g}" for g in range(gates - 1))
    batches.append(LayoutBatch("bias", (biased, tuple(total), tuple(f"b{g}" for g in range(gates)))))
    batches.append(LayoutBatch("sigmoid", (active, biased[:-1])))
    batches.append(LayoutBatch("tanh", (("u",), biased[-1:])))
    states = ("u", *(f"c{g}" for g in range(1, products)))
    batches.append(LayoutBatch("mul", (tuple(f"p{g}" for g in range(products)), active[:products], states)))
    variables = dict.fromkeys(v for batch in batches for operand in batch.operands for v in operand)
    return list(variables), batches


def crossed(cell: Cell, extra: int, seed: int) -> Cell:
    """The cell with `extra` batches of three operations over variables drawn at random."""
    variables, batches = cell
    rng = random.Random(seed)
    drawn = [tuple(tuple(rng.sample(variables, 3)) for _ in range(3)) for _ in range(extra)]
    return variables, batches + [LayoutBatch(f"extra{i}", operands) for i, operands in enumerate(drawn)]


def measure_layouts(repeat: int) -> None:
    """One line per cell."""
    cells = {
        "LSTM": gated_cell(4, 2, 2),
        "GRU": gated_cell(3, 2, 2),
        "TreeLSTM": gated_cell(5, 2, 3),
        "TreeLSTM, 8 children": gated_cell(11, 8, 9),
        "TreeLSTM, 1 batch crossed": crossed(gated_cell(5, 2, 3), 1, 0),
        "TreeLSTM, 3 batches crossed": crossed(gated_cell(5, 2, 3), 3, 0),
    }
    print(f"layouts\n{'cell':28} {'variables':>9} {'batches':>8} {'median ms':>10} {'dropped':>8} {'as named':>9}")
    for name, (variables, batches) in cells.items():
        times = []
        for _ in range(repeat):
            start = time.process_time()
            plan = plan_layout(variables, batches)
            times.append(time.process_time() - start)
        naive = len(count_copies(variables, batches))
        print(
            f"{name:28} {len(variables):9} {len(batches):8} {statistics.median(times) * 1e3:10.2f} "
            f"{len(plan.dropped):8} {naive:9}"
        )


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-leaves", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    measure("intervals of a hidden order", intervals, args.max_leaves, args.repeat)
    measure("pairs of neighbours", neighbours, args.max_leaves, args.repeat)
    measure("pairs of neighbours, from one end to the other", in_sequence, args.max_leaves, args.repeat)
    measure_layouts(10 * args.repeat)


if __name__ == "__main__":
    main()
