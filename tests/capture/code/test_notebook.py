"""Models defined in the cells of a notebook: compiled as in files, and errors name the cell."""

from __future__ import annotations

from typing import Any

import pytest

from edbc.base.notebook import cell_texts, shown_name

IMPORTS = "import torch, edbc\nfrom torch import nn"
MODEL = """class Net(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.words = nn.Embedding(9, size)
        self.step = nn.Linear(2 * size, size)

    def forward(self, words):
        h = self.words.weight[0]
        for word in words:
            h = self.joined(h, word)
        return h

    def joined(self, h, word):
        return torch.tanh(self.step(torch.cat([h, self.words.weight[word]])))
"""
COMPILED = """data = [[1, 2, 3], [4], [5, 6]] * 4
net = edbc.compile(Net(), data, trials=10, measure_gain=False)
print(net.plan.types[0].source, sorted(net.plan.automatic.values()), net.plan.model.path)"""
REFUSED = """class Reading(Net):
    def forward(self, words):
        return [super(Reading, self).forward(words).data_ptr()]
try:
    edbc.compile(Reading(), data)
except edbc.EdbcError as error:
    print(error)"""
EXPLAINED = "net.explain()"


def outputs_of(*cells: str) -> list[Any]:
    """Outputs of a notebook's cells, run in a kernel of its own."""
    nbclient = pytest.importorskip("nbclient", reason="runs a notebook: needs nbclient and ipykernel")
    nbformat = pytest.importorskip("nbformat", reason="runs a notebook: needs nbformat")
    pytest.importorskip("ipykernel", reason="runs a notebook: needs ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, kernel_name="python3", timeout=300).execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestWarning")
@pytest.mark.long
def test_cells_are_named_as_files_are() -> None:
    """Plans and refusals name `In [2]:14`; methods of a notebook's classes become cells; `explain()` shows pictures."""
    *_, compiled, refused, explained = outputs_of(IMPORTS, MODEL, COMPILED, REFUSED, EXPLAINED)

    assert compiled[0].text.splitlines()[-1] == "In [2]:14 ['In [2]:14'] __main__:Net", compiled
    assert "In [4]:3" in refused[-1].text, refused
    assert "<svg" in explained[0].data["text/html"]


def test_files_are_known_by_their_names() -> None:
    """Outside of notebooks a source file is known by its last part."""
    assert shown_name("/tmp/ipykernel_1/2.py") == "2.py"
    assert shown_name("C:\\models\\trees.py") == "trees.py"
    assert cell_texts() is None
