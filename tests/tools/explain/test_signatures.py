"""Signatures in words."""

from __future__ import annotations

import pytest

from edbc.base.graph import NodeType, ValueClass
from edbc.plan.plan import PlanCell, PlanType
from edbc.tools.explain.signatures import near_types, parse_signature

V8, V4 = ValueClass((8,)), ValueClass((4,))


@pytest.mark.parametrize(
    "node_type",
    [
        NodeType("leaf", "cell leaf", (V8,), (V8, V4)),
        NodeType("sum", "sum", (V8, V4), (V8, V4), variadic=True),
        NodeType("cat", "torch.cat", (V8, V8), (ValueClass((16,)),), constants="dim=-1, f(x)"),
        NodeType("one", "torch.tanh", (ValueClass((2, 3), "f64"),), (ValueClass((2, 3), "f64"),)),
        NodeType("none", "cell start", (), (V8,)),
    ],
    ids=lambda t: t.name,
)
def test_a_signature_reads_back_from_its_text(node_type: NodeType) -> None:
    """Parsing the text that the compiler writes gives its parts."""
    parsed = parse_signature(node_type.signature)

    assert parsed.op == node_type.op
    assert parsed.operands == tuple(map(str, node_type.operands))
    assert parsed.outputs == tuple(map(str, node_type.outputs))
    assert parsed.constants == node_type.constants
    assert parsed.variadic == node_type.variadic


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("cell a(f32[8]) -> f32[8]", "cell b(f32[8]) -> f32[8]", "weights of its own"),
        (
            "sum(f32[8]...) -> f32[8]",
            "sum(f32[8], f32[8]...) -> f32[8], f32[8]",
            "first has 1 operands, the second 2",
        ),
        (
            "torch.tanh(f32[8]) -> f32[8]",
            "torch.tanh(f64[8]) -> f64[8]",
            "f32[8] in the first and f64[8]",
        ),
        (
            "torch.cat(f32[8], f32[8]) {dim=0} -> f32[16]",
            "torch.cat(f32[8], f32[8]) {dim=1} -> f32[16]",
            "constants are dim=0 in the first and dim=1 in the second",
        ),
    ],
    ids=["weights", "arity", "dtype", "constants"],
)
def test_near_types_are_told_apart_in_words(first: str, second: str, reason: str) -> None:
    """Each part of a signature that keeps two near types apart is named."""
    (found,) = near_types([PlanType("one", first, ""), PlanType("two", second, "")])

    assert found.types == ("one", "two")
    assert reason in found.reason


def test_many_cells_of_one_shape_are_told_together() -> None:
    """Twenty cells of equal shapes are one group, not 190 pairs."""
    types = [PlanType(f"gate{i}", f"cell gate{i}(f32[8]) -> f32[8]", "") for i in range(20)]
    (found,) = near_types(types)

    assert found.types == tuple(f"gate{i}" for i in range(20))


def test_types_that_have_nothing_in_common_are_not_listed() -> None:
    """That a leaf and an inner node do not batch is no news."""
    types = [
        PlanType("leaf", "cell leaf(f32[8]) -> f32[8]", ""),
        PlanType("internal", "cell internal(f32[8], f32[8]) -> f32[8]", ""),
        PlanType("sum", "sum(f32[8]...) -> f32[8]", ""),
    ]

    assert list(near_types(types)) == []


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("h = maximum(a, b, output=0)", "other operations: minimum in one where two has maximum"),
        ("h = minimum(a, b, output=0)", "no weights, but each is a module of its own"),
        ('h = affine(a, b, weight="weight", output=0)', "other operations: minimum in one where two has affine"),
    ],
    ids=["operations", "no weights", "weights"],
)
def test_cells_of_equal_shapes_are_told_apart_by_what_they_compute(last: str, reason: str) -> None:
    """Two cells without weights are not said to differ in them: the first operation that differs is named."""
    inputs = ("a = input(index=0)", "b = input(index=1)")
    cells = {
        name: PlanCell((*inputs, line), (("h",),), ("a", "b", "h"), (), 0)
        for name, line in (("one", "h = minimum(a, b, output=0)"), ("two", last))
    }
    types = [PlanType(name, f"cell {name}(f32[8], f32[8]) -> f32[8]", "") for name in cells]
    (found,) = near_types(types, cells)

    assert reason in found.reason


def test_slices_of_one_module_are_not_modules_of_their_own() -> None:
    """Types of one module are told by the slice or constant that differs; another module by its weights."""
    line = 'v1 = affine(x, weight="weight", bias="bias", output=0)'
    signatures = {
        "lin": "module lin(f32[40]) {0[0:8]} -> f32[8]",
        "lin.2": "module lin(f32[40]) {0[8:16]} -> f32[8]",
        "lin.3": "module lin(f32[40]) {0[16:24]} -> f32[8]",
        "other": "module other(f32[40]) {0[0:8]} -> f32[8]",
    }
    cells = {name: PlanCell(("x = input(index=0)", line), (("v1",),), ("x", "v1"), (), 0) for name in signatures}
    one, two = near_types([PlanType(name, text, "") for name, text in signatures.items()], cells)

    assert one.types == ("lin", "lin.2", "lin.3")
    assert one.reason == "one module, but with other slices or constants: (0[0:8]) in lin, (0[8:16]) in lin.2"
    assert two.types == ("lin", "other")
    assert two.reason == "same shapes, but each is a module with weights of its own"


def test_one_module_with_other_parameters_inside_is_told_by_its_operations() -> None:
    """Where constants are equal, the first operation that differs is named, parameters included."""
    cells = {
        name: PlanCell(
            ("x = input(index=0)", f'v1 = affine(x, weight="w[{i}]", output=0)'), (("v1",),), ("x", "v1"), (), 0
        )
        for i, name in enumerate(("a", "b"))
    }
    (found,) = near_types([PlanType(name, "cell a(f32[8]) -> f32[8]", "") for name in cells], cells)

    here, there = (f'v1 = affine(x, weight="w[{i}]", output=0)' for i in range(2))
    assert found.reason == f"one module, but {here} in a where b has {there}"
