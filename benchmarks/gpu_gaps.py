"""On a GPU: what launches, graph nodes and barriers cost, cuDNN's LSTM, and the model beside what was measured.

    python benchmarks/gpu_gaps.py --measured build/gpu.json --model build/gpu.model.json [--json F]

Gaps are of the step kernel itself on steps without work: by pairs of launches, and in chains of 16, 64 and 256 nodes,
microseconds per step, between events on the device. Then so many steps are issued as for a mini-batch, in chains and in
a loop, whose programs wait for each other at a barrier: numbers for which the loop is faster go into
`edbc.run.cuda.chains.LOOPS`, if workloads, measured both ways, say the same. cuDNN's LSTM runs
packed sequences of 2 to 40 words, forward, in float32. For every combination that both files have, the time by
`gpu_model.py` is printed beside the measured one, which is what the model is for: a ratio far from 1 refutes an
assumption; and the floor's share of the measured time.

With `--device cpu` and TRITON_INTERPRET=1 all of it runs in Triton's interpreter: no figure means anything then, but
nothing is run for the first time where a GPU is at hand.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from edbc.run.cuda.chains import LENGTHS, Launcher, WarmUp
from edbc.run.cuda.compiled import missing
from edbc.run.cuda.issue import Issuer
from edbc.run.cuda.library import TritonKernel
from edbc.run.cuda.tritonsource import Field, copy_branch

ROUNDS = 20
STEPS = 256
"""For each gap."""
SIZES = (8, 16, 32, 64, 128, 256, 512)
"""Steps of mini-batches."""


def microseconds(call: Callable[[], None], device: torch.device) -> float:
    """Of one call on the device, the median of ROUNDS; on the host, of one."""
    call()
    if device.type != "cuda":
        started = time.perf_counter()
        call()
        return 1e6 * (time.perf_counter() - started)
    found = []
    for _ in range(ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(1e3 * begin.elapsed_time(end))
    return sorted(found)[ROUNDS // 2]


def issuer_of(device: torch.device) -> Issuer:
    """One whose step kernel has a branch."""
    issuer = Issuer(device, WarmUp())
    issuer.library.numbers([TritonKernel((((copy_branch(128, "f32", "fill"),),),), "f32")])
    return issuer


def without_work(issuer: Issuer, steps: int) -> torch.Tensor:
    """Records of steps without work; some more than are asked for."""
    empty = torch.zeros(max(steps, STEPS) + LENGTHS[0], issuer.library.width, dtype=torch.int64)
    empty[:, Field.LEFT], empty[:, Field.BRANCH] = 1, -1
    return empty.to(issuer.device)


def gaps(device: torch.device) -> dict[str, float]:
    """Per step without work, by the length of the chain that it is in; 2 stands for launches."""
    issuer = issuer_of(device)
    chains: Any = issuer.launcher(STEPS)
    empty = without_work(issuer, STEPS)
    begin = torch.tensor([empty.data_ptr(), 0]).to(device)

    def run(length: int) -> None:
        chains.begin(begin)
        for _ in range(STEPS // length):
            chains._known[length]()

    return {
        str(length): microseconds(lambda n=length: run(n), device) / STEPS  # type: ignore[misc]
        for length in (2, *LENGTHS)
    }


def launchers(device: torch.device, sizes: Sequence[int]) -> dict[str, dict[str, float]]:
    """Of so many steps without work, in chains and in a loop."""
    found = {}
    for name, loops in (("chains", range(0)), ("loop", range(1 << 30))):
        issuer = issuer_of(device)
        issuer.loops = loops
        empty = without_work(issuer, max(sizes))
        begin = torch.tensor([empty.data_ptr(), 0]).to(device)

        launcher = issuer.launcher(1)
        found[name] = {str(n): microseconds(partial(_issued, launcher, begin, n), device) for n in sizes}
    return found


def _issued(launcher: Launcher, begin: torch.Tensor, steps: int) -> None:
    launcher.begin(begin)
    launcher.run(steps)


def cudnn(batch_size: int, hidden_size: int, device: torch.device) -> float:
    """Microseconds of nn.LSTM on packed sequences, forward."""
    torch.manual_seed(0)
    lengths = torch.randint(2, 41, (batch_size,))
    lengths[0] = 40
    lstm = torch.nn.LSTM(hidden_size, hidden_size).to(device)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.randn(40, batch_size, hidden_size, device=device), lengths, enforce_sorted=False
    )
    with torch.no_grad():
        return microseconds(lambda: lstm(packed) and None, device)


def beside(measured: dict[str, Any], model: dict[str, Any]) -> list[dict[str, Any]]:
    """Combinations that both have; microseconds of the device, the measured time over the model's, and the floor's
    share of it."""
    known = {(r["model"], r["batch_size"], r["hidden_size"]): r for r in model["rows"]}
    found = []
    for row in measured["rows"]:
        key = Path(row["name"]).stem, row["batch_size"], row["hidden_size"]
        seconds = row.get("device_seconds")
        if key in known and seconds:
            expected, floor, took = known[key]["device"], known[key]["floor"], 1e6 * seconds
            found.append({"key": key, "steps": known[key]["steps"], "model": expected, "measured": took,
                          "in_loop": 1e6 * (row.get("loop_seconds") or math.nan), "ratio": took / expected,
                          "of_floor": floor / took})  # fmt: skip
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Gaps, cuDNN, the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured", default="build/gpu.json", help="record of end_to_end.py")
    parser.add_argument("--model", default="build/gpu.model.json", help="record of gpu_model.py")
    parser.add_argument("--json", default=None, help="where all figures go")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: in Triton's interpreter")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("expected a CUDA device, got none")
    if (why := missing(device.type)) is not None:
        parser.error(f"expected Triton, whose launches are measured, but {why} ('make triton')")
    found: dict[str, Any] = {"gap_us": gaps(device), "launchers_us": launchers(device, SIZES)}
    print("gap per step, us: " + ", ".join(f"{length}: {gap:.2f}" for length, gap in found["gap_us"].items()))
    for name, times in found["launchers_us"].items():
        print(f"{name}, us by steps without work: " + ", ".join(f"{n}: {time:.1f}" for n, time in times.items()))
    sizes = ((32, 128), (256, 512)) if device.type == "cuda" else ((2, 16),)
    found["cudnn_us"] = {f"{batch}, {hidden}": cudnn(batch, hidden, device) for batch, hidden in sizes}
    print("cuDNN's LSTM, us by batch and hidden size: " + str(found["cudnn_us"]))
    files = Path(options.measured), Path(options.model)
    if all(file.exists() for file in files):
        measured, model = (json.loads(file.read_text()) for file in files)
        found["beside"] = beside(measured, model)
        print("workload, batch, hidden: steps, model us, measured us in chains, in a loop, ratio, share of the floor")
        for row in found["beside"]:
            times = f"{row['steps']}, {row['model']:.0f}, {row['measured']:.0f}, {row['in_loop']:.0f}, "
            times += f"{row['ratio']:.2f}, {row['of_floor']:.2f}"
            print(f"{', '.join(map(str, row['key']))}: {times}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
