"""Every committed plan computes what its model computes: batched equals eager at batch sizes 1, 4 and 12.

Plans are bound at hidden size 16, so the tests also show that one plan serves other sizes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from budget import PLAIN
from zoo_names import short_instances

import edbc
from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net, Stats
from edbc.stages.capture import is_stackable
from edbc.tools.parity import Eager, Parity

PLANS = sorted((Path(__file__).parents[2] / "plans").glob("*.yaml"))
INPUTS = {
    "adaptive_time": ["iwslt15_envi/tst2012.en"],
    "beam_nmt": ["iwslt15_envi/tst2012.en", "iwslt15_envi/tst2012.vi"],
    "bilstm_tagger": ["wikiner_tags/first1200.txt"],
    "bilstm_tagger_char": ["wikiner_tags/first1200.txt"],
    "early_exit": ["iwslt15_envi/tst2012.en"],
    "easy_first": ["iwslt15_envi/tst2012.en"],
    "greedy_parser": ["iwslt15_envi/tst2012.en"],
    "greedy_nmt": ["iwslt15_envi/tst2012.en", "iwslt15_envi/tst2012.vi"],
    "lstm_nmt": ["iwslt15_envi/tst2012.en", "iwslt15_envi/tst2012.vi"],
    "tree_lstm": ["sst_trees/dev.txt"],
    "tree_gru": ["sst_trees/dev.txt"],
    "mv_rnn": ["sst_trees/dev.txt"],
    "tree_lstm_2type": ["sst_trees/dev.txt"],
    "lattice_lstm": ["zh_lattice_edbatch/dev.txt"],
    "lattice_gru": ["zh_lattice_edbatch/dev.txt"],
    "child_sum_tree_lstm": ["gum_const_trees/gum-const-train.txt"],
    "tree_lstm_regression": ["sst_trees/dev.txt"],
    "dag_gru": ["circuits/iscas85/c432.bench", "circuits/epfl/ctrl.aig"],
    "transition_parser": ["ud_ewt/en_ewt-ud-dev-every2nd.conllu"],
    "molecule_mpn": ["molecules/zinc-valid-first8000.smi"],
    "lstm_lm": ["wikiner_tags/first1200.txt"],
}
WHOLLY_NATIVE = (
    "mv_rnn", "tree_lstm", "tree_gru", "tree_lstm_2type", "lattice_lstm", "lattice_gru", "bilstm_tagger", "lstm_nmt"
)  # fmt: skip


def bound(plan_path: Path) -> tuple[Any, dict[str, Any], Net]:
    """Model file, config and net of a plan, at hidden size 16 and a small vocabulary."""
    plan = read_plan(plan_path)
    file = import_model_file(plan_path.parent / plan.model.path)
    small = {"hidden_size": 16, "vocab_size": 256}
    config = file.config({**plan.model.config, **{k: v for k, v in small.items() if k in plan.model.config}})
    return file, config, Net(plan, file.build(config, plan.model.seed), rebind=True)


def assert_parity(net: Net, instances: list[Any], batch_size: int) -> None:
    """Batched outputs meet the parity rule."""
    eager = Eager(net.model)
    assert_equal(net, instances, batch_size, eager.run(instances), eager.reference(instances))


def assert_equal(net: Net, instances: list[Any], batch_size: int, eager: list[Any], exact: list[Any]) -> Stats:
    """Batched outputs meet the parity rule, given eager's; returns what was counted."""
    parity, stats, ours = Parity(), Stats(), []
    for at in range(0, len(instances), batch_size):
        ours += net.run(instances[at : at + batch_size], stats)[0]
    for three in zip(ours, eager, exact, strict=True):
        parity.add(*three)
    parity.require()
    return stats


def test_every_model_has_a_plan(repository: Path) -> None:
    """plans/ holds one plan per model of the zoo whose instances differ, and nothing else. Where instances stack, the
    plan is static: it follows the costs that a machine measured, so it belongs beside that machine's table."""
    files = {path.stem: import_model_file(path) for path in (repository / "models").glob("[!_]*.py")}
    dynamic = {name for name, file in files.items() if not is_stackable(file.sample(2, 0, file.config({})))}

    assert {path.stem for path in PLANS} == dynamic


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_made_up_instances(plan: Path) -> None:
    """On fresh made-up instances batched equals eager at batch sizes 1, 4 and 12, and no type is unseen; what can run
    natively does."""
    file, config, net = bound(plan)
    heavy = plan.stem in ("dag_gru", "tree_fc", "neural_module_network")
    instances = short_instances(file, 6 if heavy else 12, 5, config)
    eager = Eager(net.model)
    found, exact = eager.run(instances), eager.reference(instances)
    for batch_size, count in ((1, 2), (4, 4), (12, 12)):
        stats = assert_equal(net, instances[:count], batch_size, found[:count], exact[:count])

        assert not stats.unseen_types
    if plan.stem in WHOLLY_NATIVE and not PLAIN:
        graph = net.mini_batch(instances).graph
        assert all(net.backend.runs_natively(t, net.kernel(i)) for i, t in enumerate(graph.types))


@pytest.mark.parametrize("name", INPUTS)
def test_real_instances(name: str, data_dir: Path, repository: Path) -> None:
    """On the first 12 real instances batched equals eager."""
    file, config, net = bound(repository / "plans" / f"{name}.yaml")
    paths = [data_dir / path for path in INPUTS[name]]
    if not all(map(os.path.isfile, paths)):
        pytest.skip(f"no {paths[0]}")
    assert_parity(net, list(file.load(paths, config, 12)), 12)


@pytest.mark.parametrize("name", ["molecule_gnn", "set_encoder"])
def test_models_with_rows_compile(name: str, repository: Path, tmp_path: Path) -> None:
    """From their files, as their plans are made: with parity, and the same graph whenever forward runs."""
    plan = tmp_path / f"{name}.yaml"
    edbc.compile(
        repository / "models" / f"{name}.py", plan, config={"hidden_size": 8}, policy="critical", measure_gain=False
    )
    assert plan.exists()
