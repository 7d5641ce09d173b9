"""Types at other sizes: sizes may change, what a constant means may not."""

from pathlib import Path

import pytest
import torch

from edbc.base.graph import NodeType, ValueClass
from edbc.capture.record.table import TypeTable
from edbc.capture.semantics.sizes import meant
from edbc.errors import StaleError
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net, Stats
from edbc.tools.compile.compiler import compile_model

DIVISIONS = [f"torch.true_divide(f32[48]) {{_, {n}}} -> f32[48]" for n in (2, 3, 4)]
STACKS = [f"torch.matmul(f32[{n},48]) {{_, query}} -> f32[{n}]" for n in (2, 3, 4)]
SLICES = [f"torch.narrow(f32[144]) {{_, 1, {n}, 48}} -> f32[48]" for n in (0, 48, 96)]


@pytest.mark.parametrize("number", range(3))
def test_constants_tell_types_apart_at_other_sizes(number: int) -> None:
    """Divisions by 2, 3 and 4 stay what they are when sizes grow or the float width changes."""
    count = number + 2
    assert meant(f"torch.true_divide(f32[96]) {{_, {count}}} -> f32[96]", DIVISIONS) == [DIVISIONS[number]]
    assert meant(f"torch.true_divide(f64[48]) {{_, {count}}} -> f64[48]", DIVISIONS) == [DIVISIONS[number]]


@pytest.mark.parametrize("number", range(3))
def test_the_fewest_changes_win(number: int) -> None:
    """A stack of three at twice the size is the plan's stack of three, not its stack of two, half as large again."""
    count = number + 2
    assert meant(f"torch.matmul(f32[{count},96]) {{_, query}} -> f32[{count}]", STACKS) == [STACKS[number]]


@pytest.mark.parametrize("number", range(3))
def test_constants_made_of_sizes_grow_with_them(number: int) -> None:
    """The offsets of slices double when the size doubles."""
    signature = f"torch.narrow(f32[288]) {{_, 1, {number * 96}, 96}} -> f32[96]"
    assert meant(signature, SLICES) == [SLICES[number]]


def test_another_constant_is_another_type() -> None:
    """A division by 5 is none of the plan's, at any size; the root of a size may be any number."""
    assert meant("torch.true_divide(f32[96]) {_, 5} -> f32[96]", DIVISIONS) == []
    assert meant("torch.div(f32[96]) {_, 9.798} -> f32[96]", ["torch.div(f32[48]) {_, 6.928} -> f32[48]"])
    assert meant("cell leaf(f32[8], f32[9]) -> f32[8]", ["cell leaf(f32[4], f32[4]) -> f32[4]"]) == []


MODEL = """
import torch
from torch import nn

class Mean(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.words = nn.Embedding(9, size)
        self.out = nn.Linear(size, size)

    def forward(self, count):
        words = [self.words(torch.tensor(i)) for i in range(count)]
        return self.out(torch.tanh(sum(words) / count))

def build(size: int = 6):
    return Mean(size)

def load(*paths):
    return iter(())

def sample(count, seed):
    return [2 + number % 3 for number in range(count)]
"""


@pytest.mark.parametrize(("size", "dtype"), [(6, torch.float64), (10, torch.float32)])
def test_a_plan_with_constants_serves_other_sizes(size: int, dtype: torch.dtype, tmp_path: Path) -> None:
    """One plan with a type per divisor, at another float width and at another size: eager's numbers, no type unseen."""
    (tmp_path / "model.py").write_text(MODEL)
    plan = compile_model(tmp_path / "model.py", plan_folder=tmp_path, trials=10).plan
    model = import_model_file(tmp_path / "model.py").build({"size": size}, 0).to(dtype)
    counts = [4, 2, 3, 2]
    with torch.no_grad():
        stats = Stats()
        results, _ = Net(plan, model, rebind=True).run(counts, stats)
        for result, count in zip(results, counts, strict=True):
            torch.testing.assert_close(result, model(count))
    assert not stats.unseen_types


def test_a_type_of_a_size_that_the_plan_lacks_is_unseen_where_sizes_are_the_plans() -> None:
    """A model of another dtype brings nine rows, where the plan has five and seven: no plan for other sizes is asked
    for. Where nothing tells that sizes are the plan's it is."""

    def taken(count: int, dtype: str) -> NodeType:
        rows = ValueClass((12, 2), dtype), ValueClass((count,), "i64")
        return NodeType("getitem", "torch.getitem", rows, (ValueClass((count, 2), dtype),))

    def relu(dtype: str) -> NodeType:
        return NodeType("relu", "torch.relu", (ValueClass((12, 2), dtype),), (ValueClass((12, 2), dtype),))

    known = [(f"of_plan_{i}", each.signature) for i, each in enumerate((relu("f32"), taken(5, "f32"), taken(7, "f32")))]
    with pytest.raises(StaleError):
        TypeTable(known, other_sizes=True).add_type(taken(9, "f64"))
    table = TypeTable(known, other_sizes=True)
    assert [table.add_type(relu("f64")), table.add_type(taken(9, "f64"))] == [0, len(known)]
