"""On a GPU: what launches and graph nodes cost, cuDNN's LSTM, and the model of `gpu_model.py` beside what was measured.

    python benchmarks/gpu_gaps.py --measured build/gpu.json --model build/gpu.model.json [--json F]

Gaps are of the step kernel itself on steps without work: by pairs of launches, and in chains of 16, 64 and 256 nodes,
microseconds per step, between events on the device. cuDNN's LSTM runs packed sequences of 2 to 40 words, forward, in
float32. For every combination that both files have, the model's device time is printed beside the measured one, which
is what the model is for: a ratio far from 1 refutes an assumption.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from edbc.run.cuda.chains import LENGTHS, WarmUp
from edbc.run.cuda.issue import Issuer
from edbc.run.cuda.library import TritonKernel
from edbc.run.cuda.tritonsource import Field, copy_branch

ROUNDS = 20
STEPS = 256
"""For each gap."""


def microseconds(call: Callable[[], None]) -> float:
    """Of one call on the device, the median of ROUNDS."""
    call()
    found = []
    for _ in range(ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(1e3 * begin.elapsed_time(end))
    return sorted(found)[ROUNDS // 2]


def gaps() -> dict[str, float]:
    """Per step without work, by the length of the chain that it is in; 2 stands for launches."""
    device = torch.device("cuda")
    issuer = Issuer(device, WarmUp())
    issuer.library.numbers([TritonKernel((((copy_branch(128, "f32", "fill"),),),), "f32")])
    chains = issuer._chains()
    empty = torch.zeros(STEPS + 2, issuer.library.width, dtype=torch.int64)
    empty[:, Field.LEFT], empty[:, Field.BRANCH] = 1, -1
    empty = empty.to(device)
    begin = torch.tensor([empty.data_ptr(), 0]).to(device)

    def run(length: int) -> None:
        chains.cursor.copy_(begin)
        for _ in range(STEPS // length):
            chains._known[length]()

    return {str(length): microseconds(lambda n=length: run(n)) / STEPS for length in (2, *LENGTHS)}  # type: ignore[misc]


def cudnn(batch_size: int, hidden_size: int) -> float:
    """Microseconds of nn.LSTM on packed sequences, forward."""
    torch.manual_seed(0)
    lengths = torch.randint(2, 41, (batch_size,))
    lstm = torch.nn.LSTM(hidden_size, hidden_size).cuda()
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.randn(40, batch_size, hidden_size, device="cuda"), lengths, enforce_sorted=False
    )
    with torch.no_grad():
        return microseconds(lambda: lstm(packed) and None)


def beside(measured: dict[str, Any], model: dict[str, Any]) -> list[dict[str, Any]]:
    """Combinations that both have; microseconds of the device, and the measured time over the model's."""
    known = {(r["model"], r["batch_size"], r["hidden_size"]): r for r in model["rows"]}
    found = []
    for row in measured["rows"]:
        key = Path(row["name"]).stem, row["batch_size"], row["hidden_size"]
        seconds = row.get("device_seconds")
        if key in known and seconds:
            expected = known[key]["device"]
            found.append({"key": key, "model": expected, "measured": 1e6 * seconds, "ratio": 1e6 * seconds / expected})
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Gaps, cuDNN, the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured", default="build/gpu.json", help="record of end_to_end.py")
    parser.add_argument("--model", default="build/gpu.model.json", help="record of gpu_model.py")
    parser.add_argument("--json", default=None, help="where all figures go")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("expected a CUDA device, got none")
    found: dict[str, Any] = {"gap_us": gaps()}
    print("gap per step, us: " + ", ".join(f"{length}: {gap:.2f}" for length, gap in found["gap_us"].items()))
    found["cudnn_us"] = {f"{batch}, {hidden}": cudnn(batch, hidden) for batch, hidden in ((32, 128), (256, 512))}
    print("cuDNN's LSTM, us by batch and hidden size: " + str(found["cudnn_us"]))
    files = Path(options.measured), Path(options.model)
    if all(file.exists() for file in files):
        measured, model = (json.loads(file.read_text()) for file in files)
        found["beside"] = beside(measured, model)
        print("workload, batch, hidden: model us, measured us, ratio")
        for row in found["beside"]:
            print(f"{', '.join(map(str, row['key']))}: {row['model']:.0f}, {row['measured']:.0f}, {row['ratio']:.2f}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
