"""What this machine does: the skinny product by which absolute figures of other machines are scaled, and memory.

    python benchmarks/calibrate.py [--threads N] [--peers ROWS.json]

The product of 15 x 256 by 256 x 512 in float32 takes 25 microseconds on the machine where the peers were measured;
their times are multiplied by this machine's figure over 25. Medians of repeats by processor time, with quartiles.

With --peers, rows that `benchmarks/end_to_end.py --json ROWS.json` wrote on this machine are put beside the peers'
times, scaled: how many times the peer's throughput edbc has. ED-Batch is its authors' C++ code with its state machine
and PQ-tree layout; DyNet the better of its two autobatching policies inside the same code. Both were built with Eigen,
one thread, float32, mini-batches of 32 in file order, hidden size 128 unless said, vocabularies of 256, graph
construction and scheduling included. A scale, not a race in one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

REFERENCE_MICROSECONDS = 25.0


class Peer(NamedTuple):
    """Milliseconds per mini-batch of 32; `other_graph` says how their network differs."""

    dynet: float | None
    ed_batch: float | None
    other_graph: str = ""


PEERS = {
    ("tree_lstm", 128): Peer(10.0, 6.6),
    ("tree_gru", 128): Peer(None, 6.0),
    ("tree_lstm_2type", 128): Peer(10.0, 7.9),
    ("mv_rnn", 128): Peer(87.0, 89.0),
    ("lattice_lstm", 128): Peer(41.0, 16.1),
    ("lattice_gru", 128): Peer(31.0, 18.1),
    ("bilstm_tagger", 128): Peer(44.0, 25.5, "two layers share one set of weights"),
    ("bilstm_tagger_char", 128): Peer(126.0, 54.0, "two layers share one set of weights"),
    ("lstm_nmt", 128): Peer(128.0, 16.0, "a layer more before the LSTM; one forward per step; 14 to 18 ms"),
    ("tree_lstm", 64): Peer(None, 32e3 / 9351),
    ("tree_lstm", 256): Peer(None, 32e3 / 1803),
    ("tree_lstm", 512): Peer(32e3 / 509, 32e3 / 410),
}
"""By workload and hidden size."""


def microseconds(function: Callable[[], object], repeats: int = 300) -> tuple[float, float, float]:
    """Quartiles of the time of one call."""
    times = []
    for _ in range(repeats):
        started = time.process_time_ns()
        function()
        times.append(1e-3 * (time.process_time_ns() - started))
    low, middle, high = statistics.quantiles(times[repeats // 10 :], n=4)
    return low, middle, high


def product(rows: int, inner: int, columns: int) -> Callable[[], object]:
    """One torch.mm(out=) of that shape."""
    a, b, c = torch.rand(rows, inner), torch.rand(inner, columns), torch.empty(rows, columns)
    return lambda: torch.mm(a, b, out=c)


def comparison(rows: list[dict[str, Any]], scale: float) -> Iterator[str]:
    """A Markdown table of the rows that have a peer: its scaled time and how many times its throughput ours is."""
    yield "| workload | hidden | front end | edbc ms | ED-Batch ms, scaled | over ED-Batch | over DyNet | their graph |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        peer = PEERS.get((row["name"], row["hidden_size"]))
        if peer is None or row["batch_size"] != 32 or row["front_end"] == "none":
            continue
        ms = 1e3 * row["batch_size"] / row["instances_per_second"]
        ed_batch, dynet = (None if x is None else x * scale for x in (peer.ed_batch, peer.dynet))
        yield (
            f"| {row['name']} | {row['hidden_size']} | {row['front_end']} | {ms:.2f} | {_number(ed_batch)} "
            f"| {_number(ed_batch, ms, ' x')} | {_number(dynet, ms, ' x')} | {peer.other_graph or 'the same'} |"
        )


def _number(value: float | None, over: float = 1.0, unit: str = "") -> str:
    return "-" if value is None else f"{value / over:.2f}{unit}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peers", type=Path, default=None, help="rows that benchmarks/end_to_end.py --json wrote here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print_machine()
    if options.peers is not None:
        scale = microseconds(product(15, 256, 512))[1] / REFERENCE_MICROSECONDS
        print("\n".join(["", *comparison(json.loads(options.peers.read_text())["rows"], scale)]))


def print_machine() -> None:
    """Products of several shapes, and copying."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s)")
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
