"""Graphs for Graphviz."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from budget import HANGS

from edbc.errors import EdbcError
from edbc.tools.explain.dots import cell_dot, dots, machine_dot, write_dots
from edbc.tools.explain.explanation import Explanation, explain_file
from edbc.tools.explain.observe import RULE


@pytest.fixture(scope="module")
def explanation(started: Path) -> Explanation:
    return explain_file(started / "plans" / "trees.yaml")


def test_the_machine_has_the_states_and_steps_of_the_mini_batch(explanation: Explanation) -> None:
    """A node per visited state; edges' counts add up to the steps between batches."""
    text = machine_dot(explanation)
    visited = [state for state in explanation.states if state.visits]
    counts = [int(n) for n in re.findall(r'-> \w+ \[label="(\d+)"\]', text)]

    assert text.count("runs ") == len(visited)
    assert sum(counts) == len(explanation.observed.steps) - 1
    assert "rule" not in text


def test_steps_outside_of_the_table_go_through_a_node_of_their_own(explanation: Explanation) -> None:
    """Batches that the fallback chose have no state; the rule stands for all of those."""
    observed = explanation.observed
    steps = tuple(replace(step, state=RULE) if i == 1 else step for i, step in enumerate(observed.steps))
    text = machine_dot(replace(explanation, observed=replace(observed, steps=steps)))

    assert "any other state" in text
    assert "-> rule" in text


def test_a_cell_shows_its_batches_as_boxes(explanation: Explanation) -> None:
    """A box per batch, every operation in one, and an arrow for every operand."""
    cell = explanation.plan.cells["combine"]
    text = cell_dot(cell)

    assert text.count("subgraph") == len(cell.batches)
    for name in (name for batch in cell.batches for name in batch):
        assert text.count(f'    "{name}";') == 1
    assert '"left" -> ' in text


def test_files_of_a_folder(explanation: Explanation, tmp_path: Path) -> None:
    """Written where asked; a graph only where a mini-batch ran; a folder that cannot be made is one line."""
    written = write_dots(explanation, tmp_path / "new" / "folder")
    assert [path.name for path in written] == ["states.dot", "graph.dot", "cell-combine.dot", "cell-out.dot"]
    assert "graph.dot" not in dots(replace(explanation, observed=None))
    (tmp_path / "file").write_text("")
    with pytest.raises(EdbcError, match="name another folder"):
        write_dots(explanation, tmp_path / "file" / "folder")


def test_names_that_are_no_file_names(explanation: Explanation) -> None:
    """A type called `a/b "c"` makes no folder and breaks no string."""
    cells = {'a/b "c"': explanation.plan.cells["out"]}
    texts = dots(replace(explanation, plan=replace(explanation.plan, cells=cells)))

    assert "cell-a_b__c_.dot" in texts


@pytest.mark.skipif(shutil.which("dot") is None, reason="no Graphviz on PATH")
def test_graphviz_reads_them(explanation: Explanation) -> None:
    """`dot` draws every file."""
    for name, text in dots(explanation).items():
        done = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, check=False, timeout=HANGS)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        assert "<svg" in done.stdout
