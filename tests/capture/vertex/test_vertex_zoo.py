"""The model zoo written both ways: one graph, one plan, one set of numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from both_ways import MODELS, NAMES, BothWays, canonical, model_file, small
from helpers import require_eager, same_graph

from edbc.run.session import Net
from edbc.schedule.learn.train import train
from edbc.schedule.policy import Policy
from edbc.schedule.scheduler import run
from edbc.tools.compile.compiler import compile_model
from edbc.vertex import VertexInstance, run_eagerly

WORKLOADS = [*"tree_lstm tree_lstm_2type tree_gru mv_rnn lattice_lstm lattice_gru".split(),
             *"bilstm_tagger bilstm_tagger_char lstm_nmt".split()]  # fmt: skip
COMPILED = [*WORKLOADS, "child_sum_tree_lstm", "dag_gru"]
QUICK = ("tree_lstm", "mv_rnn", "lattice_gru", "bilstm_tagger")
"""Models that are compiled in every run of the tests; the others in slow ones."""
SAME_NUMBERS = ("tree_lstm", "tree_lstm_2type", "tree_gru", "child_sum_tree_lstm", "lstm_nmt", "dag_gru")
"""Models whose `forward` makes nodes in the order of vertices."""


def both(name: str, count: int, seed: int) -> tuple[list[object], list[VertexInstance]]:
    """Sampled instances of a model, both ways."""
    instances = model_file(name).sample(count, seed, vocab_size=50)
    return instances, [model_file(name).vertex_instance(x) for x in instances]


def test_all_workloads_have_vertex_functions() -> None:
    """Every one of the nine workloads offers both front ends."""
    assert set(WORKLOADS) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_same_graph(name: str) -> None:
    """Both front ends give the same nodes of the same types with the same operands, in the same order within a type."""
    ways = BothWays(small(name))
    instances, vertices = both(name, 12, seed=3)

    assert canonical(ways.by_joining(vertices)) == canonical(ways.by_forward(instances))


@pytest.mark.parametrize("name", SAME_NUMBERS)
def test_same_node_numbers(name: str) -> None:
    """Where `forward` works in vertex order, the two graphs are equal number by number."""
    ways = BothWays(small(name))
    instances, vertices = both(name, 6, seed=4)
    recorded = ways.by_forward(instances).graph
    ways.by_joining(vertices)  # what is recorded for fragments adds to the table of types and classes
    joined = ways.by_joining(vertices).graph

    assert same_graph(joined, replace(recorded, types=joined.types, classes=joined.classes))


@pytest.mark.parametrize("name", NAMES)
def test_same_as_vertices_one_by_one(name: str) -> None:
    """Joining gives what define-by-run capture of the vertex functions gives."""
    ways = BothWays(small(name))
    _, vertices = both(name, 8, seed=5)

    assert canonical(ways.by_joining(vertices)) == canonical(ways.by_vertices_one_by_one(vertices))


@pytest.mark.parametrize("name", NAMES)
def test_vertices_run_eagerly_as_forward_does(name: str) -> None:
    """In plain PyTorch the vertex functions compute exactly what `forward` computes."""
    model = small(name)
    for instance, vertices in zip(*both(name, 3, seed=6), strict=True):
        with torch.no_grad():
            ours, theirs = run_eagerly(model, vertices), model(instance)

        assert {k: torch.stack(v).tolist() for k, v in ours.items()} == {
            k: torch.stack(list(v)).tolist() for k, v in theirs.items()
        }


@pytest.mark.parametrize("name", NAMES)
def test_same_schedules(name: str) -> None:
    """Every fixed policy needs the same batches for both graphs."""
    ways = BothWays(small(name))
    instances, vertices = both(name, 8, seed=7)
    recorded, joined = ways.by_forward(instances).graph, ways.by_joining(vertices).graph
    for kind in ("depth", "agenda", "sufficient", "critical"):
        a, b = run(recorded, Policy(kind)), run(joined, Policy(kind))

        assert a.batch_type.tolist() == b.batch_type.tolist(), kind


@pytest.mark.parametrize("name", ["tree_lstm_2type", "lattice_lstm", "dag_gru"])
def test_same_policy_is_learned(name: str) -> None:
    """Training on either graph gives the same table."""
    ways = BothWays(small(name))
    instances, vertices = both(name, 8, seed=8)
    graphs = ways.by_forward(instances).graph, ways.by_joining(vertices).graph
    names = [t.name for t in graphs[0].types]
    learned = [
        train([graph], encoding="sort", seed=0, trials=60, validation=()).policy.states_to_text(names)
        for graph in graphs
    ]

    assert learned[0] == learned[1]
    assert learned[0]


@pytest.mark.parametrize("name", [n if n in QUICK[:2] else pytest.param(n, marks=pytest.mark.slow) for n in COMPILED])
def test_one_plan_serves_both(name: str, tmp_path: Path) -> None:
    """Bound to one plan, both front ends execute the same batches and give eager's numbers."""
    result = compile_model(MODELS / f"{name}.py", settings={"hidden_size": 8}, plan_folder=tmp_path, trials=20)
    model = result.captured.model
    net = Net(result.plan, model)
    instances, vertices = both(name, 10, seed=9)
    outputs, prepared = net.run(vertices)

    assert prepared.schedule.num_batches == net.prepare(instances).schedule.num_batches
    require_eager(net, instances, outputs)
