"""Reach, measured: ranks of torchrun, Ray Data, the Batcher against load, and joining at cells in simulation.

    python benchmarks/reach.py balance|ranks|ray|batcher|cells [--data DIR] [--json FILE] [--svg FILE] [--any-cores]

Definitions.

(1) A *scaling figure* is a ratio between a run on one core and one on two. It is printed on at least two *free* cores
    only: cores of this process less those that others used during a second of looking. `--any-cores` measures anyway,
    to try the script, and says so in place of ratios.
(2) balance: the slowest rank's share over the mean, drawn at random and dealt, over 300 global mini-batches of treebank
    trees. ranks: a step is forward, loss, backward and averaging, of captured trees in float32, one thread per rank;
    the least time of each mini-batch over the rounds, and the mean of these; the ways take turns.
(3) ray: lines of the treebank, repeated to `--trees`, through `edbc.reach.jobs.Writer`: in this process, on Ray Data
    with one actor, and with two; from the first part that is written to the last, so that starting is apart.
(4) batcher: one core, trees of the treebank at hidden size 128. Another process on the other core sends them at Poisson
    times; latency is from sending to the answer. Loads are shares of the *bare* throughput: of the net on mini-batches
    of 256. The *reference* at a load is the time T of one mini-batch of what arrives meanwhile, n = load x T(n). Timer:
    ten requests or 10 ms, as is usual; one: one request at a time. A second of warming up is not counted.
(5) cells: sentences through an LSTM, Poisson arrivals, in simulated time by measured costs. A mini-batch takes all that
    waits and answers when its last step is done; joining at cells, newcomers enter at the next step and an answer
    leaves with its last one. `free` counts nothing for stopping between steps; `joins` counts what edbc takes on the
    host to place and execute a segment, at steps at which newcomers enter; `measured` counts it at every step.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import itertools
import json
import os
import platform
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import edbc
from edbc.reach import Batcher, Busy
from edbc.reach.sampler import deal
from edbc.run.session import Net

REPOSITORY = Path(__file__).resolve().parents[1]
MODELS = REPOSITORY / "models"
LOADS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.5)
TIMES = struct.Struct("<d")
MODEL = '''
"""The treebank's tree-LSTM with `parse`, for engines that read lines."""

import sys
sys.path.insert(0, {models!r})
from tree_lstm import *
from _brackets import fold_brackets
from _trees import Tree
from _text import word_id

def parse(line, vocab_size=20000, **config):
    def close(parts, where):
        label, rest = int(parts[0]), parts[1:]
        return Tree(label, 0, word_id(rest[0], vocab_size)) if len(rest) == 1 else Tree(label, 0, 0, *rest)
    return fold_brackets(line, "row", close)
'''


def processor() -> str:
    """The machine's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def free_cores(seconds: float = 1.0) -> float:
    """Definition (1)."""

    def ticks() -> tuple[int, int]:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line[:3] == "cpu"][1:]
        mine = [line for line in lines if int(line[0][3:]) in os.sched_getaffinity(0)]
        return sum(int(line[4]) + int(line[5]) for line in mine), sum(sum(map(int, line[1:9])) for line in mine)

    before = ticks()
    time.sleep(seconds)
    idle, total = (b - a for a, b in zip(before, ticks(), strict=True))
    return len(os.sched_getaffinity(0)) * idle / max(total, 1)


def treebank(data: Path) -> list[str]:
    """Lines of the treebank."""
    return (data / "sst_trees" / "train-first4000.txt").read_text().splitlines()


def trees_of(lines: Sequence[str], vocab_size: int = 256) -> list[Any]:
    """Trees of lines, as the zoo reads them."""
    sys.path.insert(0, str(MODELS))
    from _trees import read_trees

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines))
        file.flush()
        return list(read_trees(file.name, vocab_size))


def bound(hidden: int) -> Net:
    """The zoo's tree-LSTM."""
    return edbc.load(REPOSITORY / "plans" / "tree_lstm.yaml").bind(config={"hidden_size": hidden, "vocab_size": 256})


# --- ranks -----------------------------------------------------------------------------------------------------------


def balance(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Definition (2)."""
    costs = np.array([4 * line.count("(") // 2 + 2 for line in treebank(options.data)], float)
    rows = []
    for ranks, size in ((2, 32), (8, 32), (8, 8)):
        generator, drawn, dealt, seconds = np.random.default_rng(0), [], [], 0.0
        for _ in range(300):
            some = generator.choice(costs, ranks * size, replace=False)
            drawn.append(some.reshape(ranks, size).sum(axis=1).max() * ranks / some.sum())
            started = time.perf_counter()
            hands = deal(some, ranks)
            seconds += time.perf_counter() - started
            dealt.append(max(some[hand].sum() for hand in hands) * ranks / some.sum())
        rows.append({"ranks": ranks, "per_rank": size, "drawn": np.mean(drawn), "dealt": np.mean(dealt),
                     "deal_ms": 1e3 * seconds / 300})  # fmt: skip
    return rows


def rank_worker(options: argparse.Namespace) -> None:
    """One rank: medians of steps, drawn and dealt by turns; the first rank prints them."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from edbc.reach.ranks import OPTIONS, Module

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = bound(options.hidden)
    captured = net.capture_all(trees_of(treebank(options.data)[:1024]))
    model = DistributedDataParallel(Module(net), **OPTIONS)
    ranks, rank, whole = dist.get_world_size(), dist.get_rank(), options.batch
    costs = np.array([float(instance.num_nodes) for instance in captured])
    order = np.random.default_rng(0).permutation(len(captured)).reshape(-1, whole)
    ways = {
        "drawn": [items.reshape(ranks, -1)[rank].tolist() for items in order],
        "dealt": [items[deal(costs[items], ranks)[rank]].tolist() for items in order],
    }
    least = {name: np.full(len(order), np.inf) for name in ways}

    def step(items: Sequence[int]) -> float:
        dist.barrier()
        started = time.perf_counter()
        outputs = model([captured[i] for i in items])
        torch.stack([o["logits"].square().sum() for o in outputs]).mean().backward()
        net.model.zero_grad(set_to_none=True)
        return time.perf_counter() - started

    for _ in range(options.rounds + 1):
        for number in range(len(order)):
            for name, batches in ways.items():
                least[name][number] = min(least[name][number], step(batches[number]))
    if rank == 0:
        print(
            json.dumps({"ranks": ranks, "batch": whole, **{f"{n}_ms": 1e3 * t.mean() for n, t in least.items()}}),
            flush=True,
        )
    dist.barrier()
    dist.destroy_process_group()


def measure_ranks(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Definition (2), under torchrun."""
    rows: list[dict[str, Any]] = []
    for batch, ranks in itertools.product((64, 256), (1, 2)):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
                   __file__, "rank-worker", "--data", str(options.data), "--hidden", str(options.hidden),
                   "--rounds", str(options.rounds), "--batch", str(batch)]  # fmt: skip
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows.append({"hidden": options.hidden, **json.loads(output[output.index("{") :])})
        if options.may_scale and ranks == 2:
            one, two = rows[-2:]
            two["speedup"] = one["dealt_ms"] / two["dealt_ms"]
            two["gain_of_dealing"] = two["drawn_ms"] / two["dealt_ms"]
    return rows


# --- Ray Data --------------------------------------------------------------------------------------------------------


def measure_ray(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Definition (3)."""
    from edbc.reach.jobs import Job, Writer, prepared
    from edbc.reach.processes import batches
    from edbc.reach.ray_engine import run_ray

    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "model.py").write_text(MODEL.format(models=str(MODELS)))
        config = {"hidden_size": options.hidden, "vocab_size": 256}
        edbc.compile(home / "model.py", home / "plan.yaml", config=config, policy="critical", measure_gain=False)
        lines = list(itertools.islice(itertools.cycle(treebank(options.data)), options.trees))
        for number in range(0, len(lines), 1000):
            (home / f"{number:07}.txt").write_text("\n".join(lines[number : number + 1000]))
        inputs = [str(path) for path in sorted(home.glob("*.txt"))]

        def job(name: str) -> Job:
            return prepared(Job(str(home / "plan.yaml"), inputs, str(home / name)), print)

        alone = job("alone")
        if "alone" in options.ways:
            writer = Writer(**alone.predictor)
            rows.append({"way": "this process", **paced(map(writer, batches(alone)))})
        for actors in (1, 2):
            if f"ray{actors}" in options.ways:
                import ray

                ray.init("local", num_cpus=actors + 1, object_store_memory=1 << 28, include_dashboard=False,
                         log_to_driver=False, logging_level="ERROR")  # fmt: skip
                started = time.perf_counter()
                parts = run_ray(job(f"ray{actors}"), actors, None)
                first = next(parts)
                begun = time.perf_counter() - started
                before, pace = memory_of_workers(), paced(itertools.chain([first], parts))
                rows.append({"way": f"Ray Data, actors: {actors}", "start_s": begun, **pace,
                             "resident_mb": {"first part": before, "last part": memory_of_workers()}})  # fmt: skip
                ray.shutdown()
    if options.may_scale and len(rows) == 3:
        rates = [row["instances_per_second"] for row in rows]
        rows.append({"ray_to_alone": rates[1] / rates[0], "two_to_one": rates[2] / rates[1]})
    return rows


def paced(parts: Iterator[Any]) -> dict[str, float]:
    """Rows per second from the first part to the last one."""
    counts, times = [], []
    for part in parts:
        rows = part["rows"]
        counts.append(int(sum(rows) if isinstance(rows, list) else rows))
        times.append(time.perf_counter())
    return {"instances": sum(counts), "instances_per_second": sum(counts[1:]) / (times[-1] - times[0])}


def memory_of_workers() -> list[int]:
    """Resident megabytes of this process and of Ray's actors."""
    found = [int(Path("/proc/self/statm").read_text().split()[1]) // 256]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cmdline").read_text().startswith("ray::MapWorker"):
                found.append(int((entry / "statm").read_text().split()[1]) // 256)
        except OSError:
            continue
    return found


# --- the Batcher -----------------------------------------------------------------------------------------------------

Server = Callable[[Any], "asyncio.Future[Any]"]


class Timer:
    """The usual way: ten requests, or 10 ms after the first of them."""

    def __init__(self, net: Net, size: int = 10, wait: float = 0.01):
        self.net, self.size, self.wait = net, size, wait
        self.waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self.timer: asyncio.TimerHandle | None = None

    def submit(self, instance: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self.waiting.append((instance, answer))
        if len(self.waiting) == self.size:
            self.flush()
        elif self.timer is None:
            self.timer = loop.call_later(self.wait, self.flush)
        return answer

    def flush(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        batch, self.waiting = self.waiting, []
        with torch.no_grad():
            for (_, answer), result in zip(batch, self.net([instance for instance, _ in batch]), strict=True):
                answer.set_result(result)


def send(descriptor: int, rate: float, seconds: float, core: int) -> None:
    """In another process, on another core: when requests come, in their place in time."""
    os.sched_setaffinity(0, {core})
    generator, at = random.Random(0), time.perf_counter() + 0.1
    end = at + seconds
    while at < end:
        while (left := at - time.perf_counter()) > 0:
            time.sleep(max(left - 1e-4, 0.0))
        os.write(descriptor, TIMES.pack(time.perf_counter()))
        at += generator.expovariate(rate)


async def load(submit: Server, trees: Sequence[Any], rate: float, seconds: float, core: int) -> dict[str, Any]:
    """Latencies of requests that come at a rate; definition (4)."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    sender = subprocess.Popen([sys.executable, __file__, "send", "--rate", str(rate), "--seconds", str(seconds),
                               "--descriptor", str(writing), "--core", str(core)], pass_fds=[writing])  # fmt: skip
    os.close(writing)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    answered: list[tuple[float, float]] = []
    refused: list[tuple[float, float]] = []
    open_answers: set[Any] = set()
    numbers = itertools.count()

    def one(at: float) -> None:
        try:
            answer = submit(trees[next(numbers) % len(trees)])
        except Busy:
            refused.append((at, time.perf_counter()))
            return
        open_answers.add(answer)
        answer.add_done_callback(lambda done: (open_answers.discard(done), answered.append((at, time.perf_counter()))))

    def ready() -> None:
        data = os.read(reading, TIMES.size * 1024)  # a turn of an event loop reads every socket that is ready
        for (at,) in TIMES.iter_unpack(data):
            one(at)
        if not data:
            loop.remove_reader(reading)
            ended.set()

    loop.add_reader(reading, ready)
    await ended.wait()
    while open_answers:
        await asyncio.sleep(0.005)
    sender.wait()
    os.close(reading)
    return latencies(answered, refused)


def latencies(answered: Sequence[tuple[float, float]], refused: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Percentiles in ms after the first second, and answers per second."""
    begin = min(at for at, _ in [*answered, *refused]) + 1.0
    good = np.array([1e3 * (done - at) for at, done in answered if at > begin])
    busy = np.array([1e3 * (done - at) for at, done in refused if at > begin])
    end = max(done for at, done in answered)
    found = {"p50_ms": np.percentile(good, 50), "p99_ms": np.percentile(good, 99), "busy": len(busy),
             "answers_per_second": len(good) / (end - begin)}  # fmt: skip
    return found | ({"busy_p99_ms": np.percentile(busy, 99)} if len(busy) else {})


def seconds_of(net: Net, trees: Sequence[Any], size: int, rounds: int = 15) -> float:
    """Median time of mini-batches of a size."""
    found = []
    for i in range(rounds):
        batch = [trees[(i * size + j) % len(trees)] for j in range(size)]
        started = time.perf_counter()
        net(batch)
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def measure_batcher(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Definition (4)."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    net = bound(128)
    trees = trees_of(treebank(options.data)[:1000])
    with torch.no_grad():
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        for size in sizes:
            net(trees[:size])
        times = [seconds_of(net, trees, size) for size in sizes]
    gc.collect()
    gc.freeze()
    bare = 256 / times[-1]
    times_ms = {size: 1e3 * t for size, t in zip(sizes, times, strict=True)}
    rows: list[dict[str, Any]] = [{"bare_per_second": bare, "times_ms": times_ms, "overhead_us": overhead(trees)}]
    for share in options.loads:
        rate = share * bare
        reference = float(times[0])
        for _ in range(1000):
            reference = float(np.interp(rate * reference, sizes, times))
        for name in options.servers:
            server = {
                "batcher": lambda: Batcher(net),
                "timer": lambda: Timer(net),
                "one": lambda: Batcher(net, max_instances=1),
            }
            found = asyncio.run(load(server[name]().submit, trees, rate, options.seconds, core))
            rows.append({"server": name, "load": share, "reference_ms": 1e3 * reference, **found})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def overhead(trees: Sequence[Any], count: int = 20_000) -> float:
    """Microseconds per request of a Batcher over a net that does nothing, requests awaited in tasks."""

    class Nothing:
        runs_eagerly = False

        def in_mode(self) -> Nothing:
            return self

        def run(self, instances: Sequence[Any], observer: Any) -> tuple[Sequence[Any], None]:
            return instances, None

    async def work() -> float:
        batcher = Batcher(Nothing(), max_waiting=count)  # type: ignore[arg-type]
        started = time.perf_counter()
        requests: list[Awaitable[Any]] = [batcher(trees[0]) for _ in range(count)]
        await asyncio.gather(*requests)
        return 1e6 * (time.perf_counter() - started) / count

    return asyncio.run(work())


def drawn(rows: Sequence[dict[str, Any]]) -> str:
    """Latency against load of the three servers, as a picture."""
    from edbc.tools.report.curves import Line, Panel, picture

    colours = {"batcher": "#d9480f", "timer": "#1971c2", "one": "#9aa5b1"}
    panels = []
    for name, title in (("p50_ms", "median latency, ms (log10)"), ("p99_ms", "99th percentile, ms (log10)")):
        below = [row for row in rows if "server" in row and row["load"] <= 1]
        lines = []
        for server, colour in colours.items():
            points = [(100 * row["load"], np.log10(row[name])) for row in below if row["server"] == server]
            lines.append(Line(server, points, colour))
        panels.append(Panel(title, [line for line in lines if line.points], "load, % of bare throughput"))
    return picture(panels)


# --- joining at cells, simulated -------------------------------------------------------------------------------------


def measure_cells(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Definition (5)."""
    torch.set_num_threads(1)
    lengths = [len(line.split()) for line in (options.data / "iwslt15_envi" / "tst2012.en").read_text().splitlines()]
    net = edbc.load(REPOSITORY / "plans" / "lstm_lm.yaml").bind(config={"hidden_size": 128, "vocab_size": 256})
    step, fixed, host, start = step_costs(net)
    rows: list[dict[str, Any]] = [
        {"step_us": 1e6 * step, "row_us": 1e6 * fixed, "host_us": 1e6 * host, "start_us": 1e6 * start}
    ]
    mean = float(np.mean(lengths))
    capacity = 256 / (256 * mean * fixed + start + max(lengths) * step)
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        generator = random.Random(1)
        arrivals = list(itertools.accumulate(generator.expovariate(share * capacity) for _ in range(20_000)))
        sizes = [lengths[i % len(lengths)] for i in range(len(arrivals))]
        ways = {
            "mini-batches": by_mini_batch(arrivals, sizes, step, fixed, start),
            "cells, free": by_cell(arrivals, sizes, step, fixed, 0.0, 0.0),
            "cells, joins": by_cell(arrivals, sizes, step, fixed, 0.0, host),
            "cells, measured": by_cell(arrivals, sizes, step, fixed, host, 0.0),
        }
        for name, found in ways.items():
            ms = 1e3 * np.array(found)[2000:]
            rows.append({"way": name, "load": share, "p50_ms": np.percentile(ms, 50), "p99_ms": np.percentile(ms, 99)})
    return rows


def step_costs(net: Net) -> tuple[float, float, float, float]:
    """Seconds of a step in a schedule that runs through, of a row in it, of the host for a segment of one step, and of
    the host for a mini-batch: by differences of measured mini-batches."""
    words = [[(7 * i + 13 * j) % 256 for i in range(200)] for j in range(64)]  # all different: equal nodes run once

    @torch.no_grad()
    def least(batch: Sequence[Any], run: Callable[[Any], Any] = net) -> float:
        run(batch)
        found = []
        for _ in range(30):
            started = time.perf_counter()
            run(batch)
            found.append(time.perf_counter() - started)
        return min(found)

    captured = {n: net.capture_all(words[:n]) for n in (1, 64)}
    prepared = {n: net.prepare(batch) for n, batch in captured.items()}
    single, wide = (least(prepared[n], net.execute) / 200 for n in (1, 64))
    row = (wide - single) / 63
    short = net.capture_all([words[0][:2]])
    host = least(short)
    return max(single - row, 0.0), row, host, host


def by_mini_batch(
    arrivals: Sequence[float], sizes: Sequence[int], step: float, row: float, start: float
) -> list[float]:
    """Latencies where a mini-batch takes all that waits, 256 at most."""
    now, i, found = 0.0, 0, []
    while i < len(arrivals):
        now = max(now, arrivals[i])
        taken = i
        while taken < len(arrivals) and arrivals[taken] <= now and taken - i < 256:
            taken += 1
        now += start + max(sizes[i:taken]) * step + sum(sizes[i:taken]) * row
        found += [now - at for at in arrivals[i:taken]]
        i = taken
    return found


def by_cell(arrivals: Sequence[float], sizes: Sequence[int], step: float, row: float, host: float,
            joining: float) -> list[float]:  # fmt: skip
    """Latencies where newcomers enter at the next step, 256 in all at most, and each leaves with its last one;
    `host` is paid for every step, `joining` for those at which somebody enters."""
    now, i, steps, found = 0.0, 0, 0, [0.0] * len(arrivals)
    running: list[tuple[int, int]] = []
    while i < len(arrivals) or running:
        if not running:
            now = max(now, arrivals[i])
        first = i
        while i < len(arrivals) and arrivals[i] <= now and len(running) < 256:
            heapq.heappush(running, (steps + sizes[i], i))
            i += 1
        now += host + step + len(running) * row + joining * (i > first)
        steps += 1
        while running and running[0][0] <= steps:
            _, number = heapq.heappop(running)
            found[number] = now - arrivals[number]
    return found


# --- the command -----------------------------------------------------------------------------------------------------

MEASURES: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {
    "balance": balance, "ranks": measure_ranks, "ray": measure_ray, "batcher": measure_batcher, "cells": measure_cells,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*MEASURES, "rank-worker", "send"])
    parser.add_argument("--data", type=Path, default=os.environ.get("EDBC_DATA", REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument(
        "--any-cores", action="store_true", help="measure on busy or few cores, without scaling figures"
    )
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trees", type=int, default=100_000)
    parser.add_argument("--ways", default="alone,ray1,ray2", type=lambda text: text.split(","))
    parser.add_argument("--loads", default=LOADS, type=lambda text: tuple(map(float, text.split(","))))
    parser.add_argument("--servers", default="batcher,timer,one", type=lambda text: text.split(","))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--descriptor", type=int)
    parser.add_argument("--core", type=int)
    options = parser.parse_args()
    options.data = Path(options.data)
    if options.what == "send":
        send(options.descriptor, options.rate, options.seconds, options.core)
        return
    if options.what == "rank-worker":
        rank_worker(options)
        return
    free = free_cores()
    options.may_scale = free >= 1.8
    print(f"{processor()}: {free:.1f} of {len(os.sched_getaffinity(0))} cores free", file=sys.stderr)
    if options.what in ("ranks", "ray", "batcher") and not options.may_scale and not options.any_cores:
        sys.exit(
            "expected two free cores for a scaling figure, got fewer or busy ones; stop other work, or --any-cores"
        )
    rows = MEASURES[options.what](options)
    for row in rows:
        print(json.dumps({key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}))
    if options.json is not None:
        kept = json.loads(options.json.read_text()) if options.json.exists() else {}
        kept[options.what] = {"processor": processor(), "free_cores": round(free, 1), "rows": rows}
        options.json.write_text(json.dumps(kept, indent=1, default=float) + "\n")
    if options.svg is not None:
        options.svg.write_text(drawn(rows))


if __name__ == "__main__":
    main()
