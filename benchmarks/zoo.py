"""The whole zoo on real data, one row per model: graph, batches by policy, parity, speed against eager.

    python benchmarks/zoo.py [--data DIR] [--hidden 128] [--limit 256] [--plans plans] [--models NAME,...]

Batches are those of the first 32 instances (nodes, types, lower bound, by depth, by agenda, by the plan). Parity and
speed are over the first `--limit` instances in mini-batches of 32; eager runs in the same process, alternating with the
compiled net; medians over the rounds. `--set vocab_size=256` as in the peers' measurements.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

from edbc.modelfile import import_model_file
from edbc.parity import Eager, Parity
from edbc.plan.reader import read_plan
from edbc.runtime.session import Net
from edbc.schedule.policy import Policy
from edbc.schedule.run import lower_bound, run

INPUTS = {
    "bilstm_tagger": ["wikiner_tags/first1200.txt"],
    "bilstm_tagger_char": ["wikiner_tags/first1200.txt"],
    "lstm_nmt": ["iwslt15_envi/tst2012.en", "iwslt15_envi/tst2012.vi"],
    "tree_lstm": ["sst_trees/train-first4000.txt"],
    "tree_gru": ["sst_trees/train-first4000.txt"],
    "mv_rnn": ["sst_trees/train-first4000.txt"],
    "tree_lstm_2type": ["sst_trees/train-first4000.txt"],
    "lattice_lstm": ["zh_lattice_edbatch/train.txt"],
    "lattice_gru": ["zh_lattice_edbatch/train.txt"],
    "child_sum_tree_lstm": ["gum_const_trees/gum-const-train.txt"],
    "dag_gru": ["circuits/iscas85/c880.bench", "circuits/epfl/ctrl.aig"],
    "transition_parser": ["ud_ewt/en_ewt-ud-train-every10th.conllu"],
    "molecule_mpn": ["molecules/zinc-valid-first8000.smi"],
    "tree_lstm_regression": ["sst_trees/train-first4000.txt"],
    "lstm_lm": ["wikiner_tags/first1200.txt"],
}
"""Real input of each model; a model that is not here runs on its sample."""

BATCH = 32


def main() -> None:
    """Print the table."""
    options = parse()
    print(
        "| model | nodes | types | lower bound | depth | agenda | plan | max error | eager's error | instances/s | eager | gain |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for path in sorted(Path(options.plans).glob("*.yaml")):
        if not options.models or path.stem in options.models.split(","):
            print(row(path, options), flush=True)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("EDBC_DATA", "../shared/data"))
    parser.add_argument("--plans", default="plans")
    parser.add_argument("--models", default="")
    parser.add_argument("--hidden", type=int, default=None)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def row(path: Path, options: argparse.Namespace) -> str:
    """One model."""
    plan = read_plan(path)
    file = import_model_file(path.parent / plan.model.path)
    settings: dict[str, Any] = dict(plan.model.config)
    if options.hidden is not None:
        settings["hidden_size"] = options.hidden
    config = file.config(settings)
    instances = load(file, path.stem, config, options)
    net, eager = Net(plan, file.build(config, plan.model.seed)), None
    eager = Eager(net.model)
    graph = net.capture(instances[:BATCH]).graph
    counts = [run(graph, Policy(kind)).num_batches for kind in ("depth", "agenda")]
    counts.append(run(graph, net.policy).num_batches)
    parity = Parity()
    for ours, theirs, exact in zip(net(instances[:BATCH]), eager.run(instances[:BATCH]), eager.reference(instances[:BATCH]),
                                   strict=True):  # fmt: skip
        parity.add(ours, theirs, exact)
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(seconds(net, instances))
        theirs.append(seconds(eager.run, instances))
    rate, eager_rate = len(instances) / statistics.median(ours), len(instances) / statistics.median(theirs)
    verdict = "" if parity.holds else " (DIFFERS)"
    name = path.stem if path.stem in INPUTS else f"{path.stem} (sample)"
    return (
        f"| {name} | {graph.num_nodes:,} | {sum(graph.counts() > 0)} | {lower_bound(graph)} | "
        + " | ".join(map(str, counts))
        + f" | {parity.max_error:.1e}{verdict} | {parity.eager_error:.1e} | {rate:,.0f} | {eager_rate:,.0f} | "
        f"{rate / eager_rate:.1f} x |"
    )


def load(file: Any, name: str, config: Any, options: argparse.Namespace) -> list[Any]:
    """The first instances of the real input, or made-up ones where there is none."""
    paths = [Path(options.data) / p for p in INPUTS.get(name, [])]
    if paths and all(p.is_file() for p in paths):
        return list(file.load(paths, config, options.limit))
    return file.sample(options.limit, 1, config)


def seconds(function: Any, instances: list[Any]) -> float:
    """Time of all instances in mini-batches."""
    started = time.perf_counter()
    for at in range(0, len(instances), BATCH):
        function(instances[at : at + BATCH])
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
