"""On a GPU: what launches and graph nodes cost, cuDNN's LSTM, and the model beside what was measured.

    python benchmarks/gpu_gaps.py --measured build/gpu.json --model build/gpu.model.json [--json F]

Gaps are of the step kernel itself on steps without work, in chains of each length: microseconds per step, between
events on the device. Then so many steps are issued as for a mini-batch. cuDNN's LSTM, whose products are as torch is
told for all others (torch's own setting for cuDNN allows TF32), runs packed sequences of 2 to 40 words, forward, in
float32, and texts of 64 words beside `lstm_lm`. For every combination that both files have, the time by `gpu_model.py`
is printed beside the measured one, which is what the model is for: a ratio far from 1 refutes an assumption; and the
floor's share of the measured time.

With `--device cpu` and TRITON_INTERPRET=1 all of it runs in Triton's interpreter: no figure means anything then, but
nothing is run for the first time where a GPU is at hand.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from end_to_end import REPOSITORY
from gpu_model import FIXED, WORDS

import edbc
from edbc.run.cuda.chains import LENGTHS, WarmUp
from edbc.run.cuda.compiled import missing
from edbc.run.cuda.issue import Issuer
from edbc.run.cuda.library import TritonKernel
from edbc.run.cuda.tritonsource import Field, copy_branch
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net
from edbc.tools.benchmark import held_up

ROUNDS = 20
STEPS = 256
"""For each gap."""
HOLD = 0.06
"""Seconds that the device does nothing while the host issues a call: 256 texts of 64 words are 16,384 results."""
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


def without_work(issuer: Issuer, steps: int) -> tuple[torch.Tensor, ...]:
    """A record without work, so many steps that have nothing else and some more, and a cursor to the first."""
    empty = torch.zeros(issuer.library.width, dtype=torch.int64)
    empty[Field.LEFT], empty[Field.BRANCH] = 1, -1
    empty = empty.to(issuer.device)
    starts = torch.full((steps + LENGTHS[0],), empty.data_ptr()).to(issuer.device)
    return empty, starts, torch.tensor([starts.data_ptr(), 0]).to(issuer.device)


def gaps(device: torch.device) -> dict[str, float]:
    """Per step without work, by the length of the chain that it is in."""
    issuer = issuer_of(device)
    chains = issuer.chains()
    *_held, begin = without_work(issuer, STEPS)

    def run(length: int) -> None:
        chains.begin(begin)
        for _ in range(STEPS // length):
            chains._known[length]()

    return {str(length): microseconds(partial(run, length), device) / STEPS for length in LENGTHS}


def stretches(device: torch.device, sizes: Sequence[int]) -> dict[str, float]:
    """Of so many steps without work, as they are cut."""
    issuer = issuer_of(device)
    chains = issuer.chains()
    *_held, begin = without_work(issuer, max(sizes))

    def run(steps: int) -> None:
        chains.begin(begin)
        chains.run(steps)

    return {str(steps): microseconds(partial(run, steps), device) for steps in sizes}


def device_time(call: Callable[[], Any], device: torch.device) -> float:
    """Microseconds of the device for a call that the host has issued before the device begins; the median of ROUNDS."""
    call()
    return 1e6 * statistics.median(held_up(call, HOLD, device) for _ in range(ROUNDS if device.type == "cuda" else 1))


def cudnn(batch_size: int, hidden_size: int, device: torch.device, words: int | None = None) -> float:
    """Microseconds of nn.LSTM, forward: on packed sequences of 2 to 40 words, or on texts of so many."""
    torch.manual_seed(0)
    lengths = torch.randint(2, 41, (batch_size,))
    lengths[0] = 40
    lstm = torch.nn.LSTM(hidden_size, hidden_size).to(device)
    given: Any = torch.randn(words or 40, batch_size, hidden_size, device=device)
    if words is None:
        given = torch.nn.utils.rnn.pack_padded_sequence(given, lengths, enforce_sorted=False)
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=torch.backends.cuda.matmul.allow_tf32):
        return device_time(lambda: lstm(given), device)


def fixed(batch_size: int, hidden_size: int, device: torch.device) -> float:
    """Microseconds of `lstm_lm` on texts of WORDS words, the scores of 256 words behind each counted in, which cuDNN
    does not compute."""
    file = import_model_file(REPOSITORY / "models" / f"{FIXED.model}.py")
    config = file.config({"hidden_size": hidden_size, "vocab_size": 256, **dict(FIXED.settings)})
    plan = edbc.load(REPOSITORY / "plans" / f"{FIXED.model}.yaml").plan
    net = Net(plan, file.build(config, 0).to(device), rebind=True)
    with torch.no_grad():
        prepared = net.prepare(file.sample(batch_size, 1, config))
        return device_time(lambda: net.execute(prepared), device)


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
                          "ratio": took / expected, "of_floor": floor / took})  # fmt: skip
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
    found: dict[str, Any] = {"gap_us": gaps(device), "steps_us": stretches(device, SIZES)}
    print("gap per step, us: " + ", ".join(f"{length}: {gap:.2f}" for length, gap in found["gap_us"].items()))
    print("us by steps without work: " + ", ".join(f"{n}: {time:.1f}" for n, time in found["steps_us"].items()))
    sizes = ((32, 128), (256, 512)) if device.type == "cuda" else ((2, 16),)
    found["cudnn_us"] = {f"{batch}, {hidden}": cudnn(batch, hidden, device) for batch, hidden in sizes}
    print("cuDNN's LSTM on packed sequences, us by batch and hidden size: " + str(found["cudnn_us"]))
    found["fixed_us"] = {
        f"{batch}, {hidden}": {"cudnn": cudnn(batch, hidden, device, WORDS), "ours": fixed(batch, hidden, device)}
        for batch, hidden in sizes
    }
    print(f"texts of {WORDS} words, cuDNN's LSTM and lstm_lm, us by batch and hidden size: {found['fixed_us']}")
    files = Path(options.measured), Path(options.model)
    if all(file.exists() for file in files):
        measured, model = (json.loads(file.read_text()) for file in files)
        found["beside"] = beside(measured, model)
        print("workload, batch, hidden: steps, model us, measured us, ratio, share of the floor")
        for row in found["beside"]:
            times = (
                f"{row['steps']}, {row['model']:.0f}, {row['measured']:.0f}, {row['ratio']:.2f}, {row['of_floor']:.2f}"
            )
            print(f"{', '.join(map(str, row['key']))}: {times}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
