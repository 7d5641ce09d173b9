"""The whole table: every workload of the zoo on real data, batched natively against eager and the other policies.

    python benchmarks/end_to_end.py [--data DIR] [--sweep] [--against eager,depth,agenda] [--only NAME,..] [--json FILE]
                                    [--processor-time]
    python benchmarks/end_to_end.py --device cuda --sweep --json cuda.json

Per workload: compile (or take from --plans), then `edbc.bench` at hidden size 128, mini-batches of 32, one thread,
vocabularies of 256. With --processor-time the clock is the process's own, for machines that are busy. With --sweep
also other batch sizes and hidden sizes for trees and lattices; on a GPU batch sizes 1, 32 and 256 with hidden sizes
128, 256 and 512 for every workload. Medians; read ratios, not absolute figures, and compare within one run only.
`benchmarks/calibrate.py --peers` puts the rows beside other systems.

On a GPU eager runs on the same GPU, `exec ms` is the time until the device is done, and the file of --json tells host
and device time apart (`issuing`) and counts launches. A combination that fails prints one line and the others go on;
then the exit code is 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edbc.bench import Row, Setting, bench_plan
from edbc.cli.bench import HEADER, line_of
from edbc.compiler import compile_model
from edbc.plan.reader import read_plan
from edbc.plan.writer import write_plan

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Workload:
    """A model and its data: files under the data folder."""

    model: str
    files: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...] = ()


SST, LATTICES, TAGS = "sst_trees/dev.txt", "zh_lattice_edbatch/train.txt", "wikiner_tags/first1200.txt"
PAIRS = ("iwslt15_envi/tst2012.en", "iwslt15_envi/tst2012.vi")
WORKLOADS = (
    Workload("tree_lstm", (SST,)),
    Workload("tree_gru", (SST,)),
    Workload("tree_lstm_2type", (SST,)),
    Workload("mv_rnn", (SST,)),
    Workload("lattice_lstm", (LATTICES,)),
    Workload("lattice_gru", (LATTICES,)),
    Workload("bilstm_tagger", (TAGS,)),
    Workload("bilstm_tagger_char", (TAGS,)),
    Workload("lstm_nmt", PAIRS),
)
SWEPT = ("tree_lstm", "lattice_lstm")
BATCH_SIZES, HIDDEN_SIZES = (1, 8, 64, 256), (64, 256, 512)


CUDA_BATCH_SIZES, CUDA_HIDDEN_SIZES = (32, 1, 256), (128, 256, 512)


def combinations(workload: Workload, sweep: bool, device: str) -> Iterator[tuple[int, int]]:
    """(batch size, hidden size)."""
    if sweep and device == "cuda":
        yield from itertools.product(CUDA_BATCH_SIZES, CUDA_HIDDEN_SIZES)
        return
    yield 32, 128
    if sweep and workload.model in SWEPT:
        yield from ((size, 128) for size in BATCH_SIZES)
        yield from ((32, size) for size in HIDDEN_SIZES)


def plan_of(workload: Workload, folder: Path) -> Path:
    """The compiled plan, compiled now when the folder has none."""
    path = folder / f"{workload.model}.yaml"
    if not path.is_file():
        model = REPOSITORY / "models" / f"{workload.model}.py"
        write_plan(compile_model(model, plan_folder=folder).plan, path)
    return path


def rows_of(workload: Workload, data: Path, folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Every row of a workload."""
    path = plan_of(workload, folder)
    plan = read_plan(path)
    for batch_size, hidden_size in combinations(workload, options.sweep, options.device):
        limit = max(options.mini_batches * batch_size, min(64, 32 * options.mini_batches))
        setting = Setting(batch_size, tuple(options.against.split(",")), limit, options.rounds, options.dtype,
                          device=options.device)  # fmt: skip
        settings = {"vocab_size": 256, "hidden_size": hidden_size, **dict(workload.settings)}
        inputs = [str(data / name) for name in workload.files]
        model = str(REPOSITORY / "models" / f"{workload.model}.py")
        try:
            yield from bench_plan(path, plan, inputs, settings, setting, model)
        except Exception as error:  # a long run without anybody beside it: say what failed, measure the rest
            options.failed = True
            print(f"{workload.model:20} batch {batch_size}, hidden {hidden_size}: {error!r}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("EDBC_DATA", str(REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("--data", default=default, help="folder with the shared data sets")
    parser.add_argument("--plans", default=None, help="folder with plans; missing ones are compiled into it")
    parser.add_argument("--only", default="", help="workloads, separated by commas")
    parser.add_argument("--against", default="eager")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mini-batches", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processor-time", action="store_true", help="other processes do not count; one thread only")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--json", default=None, help="also write the rows there")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: expected a CUDA device, got none")
    options.failed = False
    torch.set_num_threads(options.threads)
    if options.processor_time:
        time.perf_counter = time.process_time  # type: ignore[assignment]
    chosen = [w for w in WORKLOADS if not options.only or w.model in options.only.split(",")]
    print(HEADER)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.plans or temporary)
        for workload in chosen:
            for row in rows_of(workload, Path(options.data), folder, options):
                rows.append(row)
                print(line_of(row), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"rows": [row.as_json() for row in rows]}, indent=1) + "\n")
    sys.exit(int(options.failed))


if __name__ == "__main__":
    main()
