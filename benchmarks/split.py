"""What eager parts gain (`edbc.cells.parts`): the same plan with every cell whole, and with its parts apart.

    python benchmarks/split.py [--data DIR] [--batch-size 1,8,32,256] [--hidden 128] [--models NAME,...] [--always]

Both nets take turns on the same mini-batches of real instances, in processor time; *exec* is the median of executing
one, *sched* how much longer the shortest scheduling and placing takes. *rows* are the nodes per batch of the types that
the plan lets split; *split* names what ran in parts, with the chunks of the eager part. *MB* are values and workspace.
The rule decides per mini-batch which types are split; `--always` splits wherever there is memory, to show what the rule
declines. A ratio below 1 is a gain.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo import INPUTS

from edbc.cells.parts import EAGER, SplitCell
from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.passes.minibatch import MiniBatch
from edbc.run.session import Net, Stats

MODELS = "lattice_lstm,lattice_gru,bilstm_tagger,bilstm_tagger_char,lstm_nmt,lstm_lm,transition_parser,dag_gru"
TURNS = {1: 60, 8: 30, 32: 15}


def turn(net: Net, instances: Sequence[Any]) -> tuple[MiniBatch, float, float]:
    """The prepared mini-batch, and seconds of scheduling and of executing it."""
    stats = Stats()
    prepared = net.prepare(instances, stats)
    started = time.process_time()
    net.execute(prepared)
    return prepared, stats.seconds.scheduling, time.process_time() - started


def rows_per_batch(prepared: MiniBatch, plan_types: Sequence[str]) -> str:
    """`12.3` nodes per batch of types that may be split; a dash without any."""
    captured, schedule = prepared.whole
    names = [captured.graph.types[kind].name for kind in schedule.batch_type.tolist()]
    sizes = [
        last - first
        for name, first, last in zip(
            names, schedule.batch_ptr[:-1].tolist(), schedule.batch_ptr[1:].tolist(), strict=True
        )
        if name in plan_types
    ]
    return f"{statistics.mean(sizes):.1f}" if sizes else "-"


def parts_of(prepared: MiniBatch) -> str:
    """`char in 12`: types that ran in parts, with their chunks; `none` without any."""
    if prepared.split is None:
        return "none"
    types, batches = prepared.whole[0].graph.types, prepared.schedule.batch_type
    return ", ".join(
        f"{types[kind].name} in {(batches == variant.type_of_part.get(EAGER, -1)).sum()}"
        for kind, variant in prepared.split.variants.items()
    )


def measure(name: str, batch_size: int, options: argparse.Namespace) -> str:
    """A row of the table."""
    plan = read_plan(Path(options.plans) / f"{name}.yaml")
    file = import_model_file(Path(options.models_folder) / f"{name}.py")
    known = {"hidden_size": options.hidden, "vocab_size": 256}
    config = file.config({**plan.model.config, **{k: v for k, v in known.items() if k in plan.model.config}})
    inputs = [Path(options.data) / part for part in INPUTS[name]]
    instances = list(file.load(inputs, config, batch_size))
    model = file.build(config, plan.model.seed)
    nets = [Net(plan, model, rebind=True, split=split) for split in (False, True)]
    samples: list[list[tuple[float, float]]] = [[], []]
    taken = [0, 0]
    for number in range(TURNS.get(batch_size, 7) + 1):
        for side, (net, sample) in enumerate(zip(nets, samples, strict=True)):
            prepared, scheduling, execution = turn(net, instances)
            taken[side] = prepared.demand.total
            if number:
                sample.append((scheduling, execution))
    sched, sched_split = (1e3 * min(scheduling for scheduling, _ in sample) for sample in samples)
    whole, split = (1e3 * statistics.median(execution for _, execution in sample) for sample in samples)
    names = {n for n, cell in plan.cells.items() if cell.eager}
    columns = [name, str(batch_size), rows_per_batch(prepared, names), parts_of(prepared), f"{whole:.2f}",
               f"{split:.2f}", f"{split / whole:.2f}", f"{sched_split - sched:+.2f}",
               *(f"{size / 1e6:.2f}" for size in taken)]  # fmt: skip
    return f"| {' | '.join(columns)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("EDBC_DATA", "../shared/data"))
    parser.add_argument("--plans", default="plans")
    parser.add_argument("--models-folder", default="models")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--batch-size", default="1,8,32,256")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--always", action="store_true")
    options = parser.parse_args()
    if options.always:
        SplitCell.pays = lambda *_: True  # type: ignore[method-assign]
    header = "model | batch | rows | split | exec ms, whole | parts | ratio | sched ms | MB, whole | parts"
    print(f"| {header} |\n" + 10 * "|---" + "|")
    for name in options.models.split(","):
        for batch_size in map(int, options.batch_size.split(",")):
            print(measure(name, batch_size, options), flush=True)


if __name__ == "__main__":
    main()
