"""The whole zoo on real data, one row per model: graph, batches by policy, parity, speed against eager.

    python benchmarks/zoo.py [--data DIR] [--hidden 128] [--limit 64] [--plans plans] [--models NAME,...] [--json FILE]

Batches are those of the first 32 instances (nodes, types, lower bound, by depth, by agenda, by the plan). Parity and
speed are over the first `--limit` instances in mini-batches of 32; eager runs in the same process, alternating with the
compiled net; medians over the rounds. The vocabulary has 256 words (`--vocab`) as in the peers'
measurements, so that tables stay in cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from edbc.base.graph import Graph
from edbc.capture.forward.build import Capture
from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.segments import Segments
from edbc.run.session import Net
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import lower_bound, run
from edbc.tools.parity import Eager, Parity

INPUTS = {
    "adaptive_time": ["iwslt15_envi/tst2012.en"],
    "beam_nmt": ["iwslt15_envi/tst2012.en", "iwslt15_envi/tst2012.vi"],
    "sentence_encoder": ["iwslt15_envi/tst2012.en"],
    "bilstm_tagger": ["wikiner_tags/first1200.txt"],
    "bilstm_tagger_char": ["wikiner_tags/first1200.txt"],
    "early_exit": ["iwslt15_envi/tst2012.en"],
    "easy_first": ["iwslt15_envi/tst2012.en"],
    "greedy_parser": ["iwslt15_envi/tst2012.en"],
    "greedy_nmt": ["iwslt15_envi/tst2012.en", "iwslt15_envi/tst2012.vi"],
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
    "molecule_gnn": ["molecules/zinc-valid-first8000.smi"],
    "molecule_mpn": ["molecules/zinc-valid-first8000.smi"],
    "tree_lstm_regression": ["sst_trees/train-first4000.txt"],
    "lstm_lm": ["wikiner_tags/first1200.txt"],
    "pointer_network": ["iwslt15_envi/tst2012.en"],
    "set_encoder": ["molecules/zinc-valid-first8000.smi"],
    "tree_attention": ["gum_const_trees/gum-const-train.txt"],
}
"""Real input of each model. Those without public data (`MADE_UP`) run on their sample."""
MADE_UP = ("neural_module_network", "query_plan_cost", "tree_fc")

BATCH = 32


COLUMNS = ("model", "nodes", "types", "lower bound", "depth", "agenda", "plan", "max error", "eager's error",
           "instances/s", "eager", "gain")  # fmt: skip


def main() -> None:
    """Print the table; with `--json` also keep it as data."""
    options = parse()
    rows = []
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    for path in sorted(Path(options.plans).glob("*.yaml")):
        if not options.models or path.stem in options.models.split(","):
            rows.append(measure(path, options))
            print(as_text(rows[-1]), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("EDBC_DATA", "../shared/data"))
    parser.add_argument("--plans", default="plans")
    parser.add_argument("--models", default="")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--json", default=None)
    return parser.parse_args()


@torch.no_grad()
def measure(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One model, without gradients: with them a net also keeps what backward passes read."""
    plan = read_plan(path)
    file = import_model_file(path.parent / plan.model.path)
    settings: dict[str, Any] = dict(plan.model.config)
    if "hidden_size" in settings:
        settings["hidden_size"] = options.hidden
    if "vocab_size" in settings:
        settings["vocab_size"] = options.vocab
    config = file.config(settings)
    instances, real = load(file, path.stem, config, options)
    net = Net(plan, file.build(config, plan.model.seed), rebind=True)
    eager = Eager(net.model)
    graphs = segments(net, instances[:BATCH])
    parity = Parity()
    some = instances[:BATCH]
    for ours, theirs, exact in zip(net.run(some)[0], eager.run(some), eager.reference(some), strict=True):
        parity.add(ours, theirs, exact)
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(seconds(net, instances))
        theirs.append(seconds(eager.run, instances))
    rate, eager_rate = len(instances) / statistics.median(ours), len(instances) / statistics.median(theirs)
    return {
        "name": path.stem if real else f"{path.stem} (sample)",
        "nodes": sum(graph.num_nodes for graph in graphs),
        "types": len({kind for graph in graphs for kind in graph.node_type.tolist()}),
        "lower_bound": sum(map(lower_bound, graphs)),
        "depth": sum(run(graph, Policy("depth")).num_batches for graph in graphs),
        "agenda": sum(run(graph, Policy("agenda")).num_batches for graph in graphs),
        "plan": sum(run(graph, net.policy).num_batches for graph in graphs),
        "max_error": parity.max_error,
        "eager_error": parity.eager_error,
        "parity": parity.holds,
        "instances_per_second": rate,
        "eager_instances_per_second": eager_rate,
    }


def segments(net: Net, instances: list[Any]) -> list[Graph]:
    """The graphs of a mini-batch: one, or one for each time that instances wait for values."""
    run_segment = Segments(net)
    graphs: list[Graph] = []

    def noted(part: Capture) -> Any:
        graphs.append(part.graph)
        return run_segment(part)

    last = net.mini_batch(instances, run_segment=noted)
    return [graph for graph in (*graphs, last.graph) if graph.num_nodes]


def as_text(row: dict[str, Any]) -> str:
    """A row of the table."""
    verdict = "" if row["parity"] else " (DIFFERS)"
    ours, eager = row["instances_per_second"], row["eager_instances_per_second"]
    counts = [row[key] for key in ("types", "lower_bound", "depth", "agenda", "plan")]
    errors = [f"{row['max_error']:.1e}{verdict}", f"{row['eager_error']:.1e}"]
    cells = [
        row["name"],
        f"{row['nodes']:,}",
        *counts,
        *errors,
        f"{ours:,.0f}",
        f"{eager:,.0f}",
        f"{ours / eager:.1f} x",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def load(file: Any, name: str, config: Any, options: argparse.Namespace) -> tuple[list[Any], bool]:
    """The first instances of the real input, or made-up ones where there is none."""
    paths = [Path(options.data) / p for p in INPUTS.get(name, [])]
    missing = [p for p in paths if not p.is_file()]
    if missing:
        print(
            f"{name}: no {missing[0]}, so its sample is used; name the data with --data or EDBC_DATA", file=sys.stderr
        )
    if not paths or missing:
        return file.sample(options.limit, 1, config), False
    return list(file.load(paths, config, options.limit)), True


def seconds(function: Any, instances: list[Any]) -> float:
    """Time of all instances in mini-batches."""
    started = time.perf_counter()
    for at in range(0, len(instances), BATCH):
        function(instances[at : at + BATCH])
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
