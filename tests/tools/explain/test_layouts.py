"""Memory before and after planning, read from a plan."""

from __future__ import annotations

from edbc.plan.plan import PlanCell
from edbc.tools.explain.layouts import cell_layout

CELL = PlanCell(
    operations=(
        "x = input(index=0)",
        'v1 = affine(x, weight="a", bias="p")',
        "i = sigmoid(v1)",
        'v2 = affine(x, weight="b", bias="q")',
        "o = sigmoid(v2)",
        'y = generic(i, o, function="torch.special", output=0)',
    ),
    batches=(("v1", "v2"), ("i", "o"), ("y",)),
    layout=("x", "v1", "v2", "i", "o", "y"),
    weights=("a", "b", "p", "q"),
    copies=0,
)


def test_operands_out_of_place_are_counted_before_and_after() -> None:
    """In the order of the code v1 v2 and i o alternate: three operands are out of place, none in the plan's order."""
    layout = cell_layout("cell", CELL)

    assert layout.before == ("x", "v1", "i", "v2", "o", "y")
    assert (layout.misplaced_before, layout.misplaced_after) == (3, 0)
    assert [batch.operation for batch in layout.batches] == ["affine", "sigmoid", "generic"]


def test_generic_operations_are_named() -> None:
    """A generic operation is listed by its function."""
    assert cell_layout("cell", CELL).generic == ("torch.special",)


def test_parameters_have_no_place_in_memory() -> None:
    """A parameter used as an operand is in no strip, and its position asks nothing of the layout."""
    cell = PlanCell(
        operations=(
            "x = input(index=0)",
            "y = input(index=1)",
            'p1 = parameter(name="scale")',
            "a = mul(x, p1, output=0)",
            "b = mul(y, p1, output=1)",
        ),
        batches=(("a", "b"),),
        layout=("x", "y", "b", "a"),
        weights=(),
        copies=0,
    )
    (batch,) = cell_layout("cell", cell).batches

    assert [operand.role for operand in batch.operands] == ["result", "operand 1"]
    assert [operand.in_place_after for operand in batch.operands].count(True) == 1
