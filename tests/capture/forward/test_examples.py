"""The examples of docs/capture.md: few changed lines, and eager's numbers."""

from __future__ import annotations

import difflib
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers import graph_of, imported, require_parity, seeded

from edbc.tools.parity import Eager, Parity

DOCS = Path(__file__).resolve().parents[3] / "docs"
NAMES = ("child_sum_tree_lstm", "dag_gru", "neural_module_network")


def example(name: str) -> ModuleType:
    """An example's file, imported."""
    return imported(DOCS / "examples" / f"{name}.py", f"example_{name}")


def changed_lines(name: str) -> list[str]:
    """Lines that differ from the eager version, those before and those after."""
    before, after = ((DOCS / "examples" / f"{name}{kind}.py").read_text().splitlines() for kind in ("_eager", ""))
    return [line for line in difflib.unified_diff(before, after, n=0, lineterm="") if line[:3] not in ("---", "+++")
            and line[0] in "+-" and line[1:].strip()]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_few_lines_change_and_the_page_shows_them(name: str) -> None:
    """Fewer than 15 changed lines, each printed in docs/capture.md."""
    changed = changed_lines(name)

    assert 0 < len(changed) < 15
    page = (DOCS / "capture.md").read_text()
    assert [line for line in changed if line not in page] == []


def instances(name: str, count: int, data_dir: Path | None = None) -> list[Any]:
    module = example(name)
    if data_dir is None or name == "neural_module_network":
        return module.sample(count, 1)
    path = {"child_sum_tree_lstm": "gum_const_trees/gum-const-train.txt", "dag_gru": "circuits/iscas85/c880.bench"}[
        name
    ]
    return list(islice(module.load(str(data_dir / path)), count))


@pytest.mark.parametrize("name", NAMES)
def test_made_up_instances_equal_eager(name: str) -> None:
    """Batches of 1, 5 and 12 made-up instances."""
    require_parity(seeded(example(name).build, 8), instances(name, 24))


@pytest.mark.parametrize("name", NAMES[:2])
def test_real_instances_equal_eager(name: str, data_dir: Path) -> None:
    """Batches of 1, 5 and 12 trees of a treebank and cones of a circuit."""
    require_parity(seeded(example(name).build, 8), instances(name, 16, data_dir))


def test_the_eager_version_computes_the_same(data_dir: Path) -> None:
    """Each example equals the file that it was made from, with the same weights."""
    for name in NAMES:
        batch = instances(name, 4, data_dir)
        changed = seeded(example(name).build, 8)
        eager = example(f"{name}_eager")
        kind = {"child_sum_tree_lstm": "ChildSumTreeLSTM", "dag_gru": "DAGGRU"}.get(name, "NeuralModuleNetwork")
        original = seeded(getattr(eager, kind), 8)
        with torch.no_grad():
            for instance in batch:
                torch.testing.assert_close(changed(instance), original(instance))


def test_children_of_any_number_are_few_types(data_dir: Path) -> None:
    """BUGS 16: a treebank with up to 39 children per node needs five types."""
    graph = graph_of(seeded(example("child_sum_tree_lstm").build, 4), instances("child_sum_tree_lstm", 200, data_dir))

    present = {t.name for t, c in zip(graph.types, graph.counts(), strict=True) if c}
    assert present == {"leaf", "forget", "sum", "inner", "out"}


@pytest.mark.long
def test_a_circuit_of_5000_gates(data_dir: Path) -> None:
    """A whole circuit as one instance, both directions; the kinds of gates are its types."""
    module = example("dag_gru")
    model = seeded(module.build, 4)
    rng_circuit = module.sample(1, 3)[0]
    gates, outputs = module.read_bench(data_dir / "circuits/iscas85/c5315.bench")
    whole = module.cone(gates, outputs)
    twice = module.Circuit(whole.kinds * 2, whole.reads + [[r + len(whole.kinds) for r in rs] for rs in whole.reads])
    assert len(twice.kinds) > 4900
    net = require_parity(model, [rng_circuit, twice], sizes=())

    both, eager, parity = [rng_circuit, twice], Eager(model), Parity()
    theirs, exact = eager.run(both), eager.reference(both)
    for results in zip([*net(both), *net([twice])], [*theirs, theirs[1]], [*exact, exact[1]], strict=True):
        parity.add(*results)
    parity.require()


def test_programs_have_3_to_20_modules_of_7_kinds() -> None:
    """The made-up questions are as long as they should be."""

    def kinds(step: tuple[Any, ...]) -> list[str]:
        return [step[0]] + [kind for part in step[1:] if isinstance(part, tuple) for kind in kinds(part)]

    programs = [kinds(question["program"]) for question in instances("neural_module_network", 300)]

    assert {len(program) for program in programs} == set(range(3, 21))
    assert len({kind for program in programs for kind in program}) == 7
