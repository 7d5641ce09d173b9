"""Values, their steps and their machine code: equal to torch, equal in any company, equal objects for equal parts."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_values import ALONG, Case, P, run_natively
from verified import verify

from edbc.base.graph import ValueClass
from edbc.cells.kernels.loops import text_of
from edbc.cells.kernels.microkernel import shape_of
from edbc.cells.kernels.steps import SCRATCH, Multiply, Pass, steps_of
from edbc.cells.values.evaluate import Batch, Interpreter
from edbc.cells.values.value import V, Values, in_order

SEEDS = st.integers(0, 100_000)


@pytest.mark.compiled
@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=SEEDS, lanes=st.sampled_from([2, 4, 16]))
def test_steps_compute_what_torch_does(seed: int, lanes: int) -> None:
    """In vectors of any width, in both element types."""
    case = Case(seed)
    verify(case.outputs, case.sizes, case.shapes)
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 3e-5)):
        for ours, exact in zip(case.run(dtype, lanes), case.exact(), strict=True):
            assert ((ours.double() - exact).abs() <= bound * (1 + exact.abs())).all()


@pytest.mark.compiled
@pytest.mark.skipif(shape_of(2) is None, reason="this processor multiplies no bfloat16")
@settings(derandomize=True, deadline=None, max_examples=40)
@given(seed=SEEDS)
def test_steps_in_bfloat16(seed: int) -> None:
    """No further from the values of the same operands in float64 than a few roundings, and than torch's bfloat16."""
    case = Case(seed)
    assume(steps_of(case.outputs, len(case.rows)).has_pairs)
    rounded = case.rounded(torch.bfloat16)
    with torch.no_grad():
        exact, short = rounded.exact(), rounded.exact(torch.bfloat16)
    for ours, by_torch, value in zip(rounded.run(torch.bfloat16, 16), short, exact, strict=True):
        error, of_torch = ((x.double() - value).abs().amax() for x in (ours, by_torch))
        assert error <= 4 * of_torch + 2e-2 * (1 + value.abs().amax())


@pytest.mark.compiled
@settings(derandomize=True, deadline=None, max_examples=20)
@given(seed=SEEDS)
def test_a_row_has_the_same_bits_in_any_company(seed: int) -> None:
    """Alone, in other order, several times."""
    case = Case(seed)
    together = case.run(torch.float32, 16)
    for which in ([3], [4, 0], [1, 1, 2]):
        for some, whole in zip(case.run(torch.float32, 16, which), together, strict=True):
            assert torch.equal(some, whole[which])


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (16, 2), (20, 3)])
def test_a_transposed_matrix_has_its_elements(rows: int, columns: int, dtype: torch.dtype) -> None:
    """Of any width, which stand apart in what is read."""
    values = Values()
    matrix = torch.randn(2, rows, columns).to(dtype)
    turned = values.turned(values.load(0, 0, rows * columns), rows, columns)
    (found,) = run_natively([turned], [matrix.reshape(2, -1)], 16)
    assert torch.equal(found.view(2, columns, rows), matrix.mT)


@pytest.mark.parametrize(("lanes", "registers"), [(4, 32), (8, 16), (16, 32)])
def test_a_tile_of_a_product_fits_the_registers(lanes: int, registers: int) -> None:
    """Its sums, a row of the right matrix and an element of the left one; AVX2 has 16 registers."""
    values = Values()
    product = values.matmul(values.load(0, 0, 64), values.load(1, 0, 2048), 4, 16, 128)
    (step,) = steps_of([product], 2).passes()
    sums = text_of(step, 4, lanes)[1].count(f" = phi <{lanes} x float>")
    assert sums + sums // 4 + 1 <= registers
    assert sums >= 8


def test_the_interpreter_lets_go_of_what_nobody_reads() -> None:
    """A chain of ten operations holds two values at a time, and its output in the end."""
    values = Values()
    v = values.load(0, 0, 4)
    for op in ("tanh", "sigmoid") * 5:
        v = values.map(op, (v,))
    interpreter, held = Interpreter([v]), set[V]()
    for value, read in zip(interpreter.order, interpreter.read, strict=True):
        held.add(value)
        assert len(held) <= 2
        held -= set(read)

    assert held == {v}


@settings(derandomize=True, deadline=None, max_examples=400)
@given(seed=SEEDS)
def test_steps_are_complete_and_in_order(seed: int) -> None:
    """Every output element is written once, nothing is read before it is written, or from the scratch row in another
    pass, and no place is of two values."""
    case = Case(seed)
    steps = steps_of(case.outputs, 3)
    first_output = 3 + len(case.sizes)
    written: dict[int, set[int]] = {}

    def write(slot: int, offset: int, size: int) -> None:
        places = written.setdefault(slot, set())
        assert places.isdisjoint(range(offset, offset + size))
        places.update(range(offset, offset + size))

    def read(slot: int, offset: int, size: int) -> None:
        if not 3 <= slot < first_output:
            assert written.get(slot, set()).issuperset(range(offset, offset + size))

    for step in steps.steps:
        before = frozenset(written.get(SCRATCH, set()))
        if isinstance(step, Multiply):
            for piece in step.pieces:
                assert piece.slot != SCRATCH
                read(piece.slot, piece.offset, piece.size)
            if step.addend is not None:
                read(*step.addend, case.shapes[step.weight][1])
            write(*step.target, case.shapes[step.weight][1])
            continue
        for loop in step.loops:
            for v, place in loop.places.items():
                assert place is not None or v.op == "parameter"
                if place is not None:
                    read(*place, v.size)
                    assert place[0] != SCRATCH or before.isdisjoint(range(place[1], place[1] + v.size))
            for (slot, offset), v, _ in loop.stores:
                write(slot, offset, v.size)
    for number, output in enumerate(case.outputs):
        assert written.get(first_output + number, set()) == set(range(output.size))
    assert max(written.get(0, {0})) < max(steps.width, 1)
    assert max(written.get(1, {0})) < max(steps.scratch, 1)


def test_equal_values_are_one_object() -> None:
    """Made of equal parts, also by cutting and joining them again."""
    values = Values()
    x, y = values.load(0, 0, 8), values.load(1, 0, 8)
    total = values.map("add", (x, y))
    halves = [values.part(total, 0, 4), values.part(total, 4, 4)]

    assert values.map("add", (x, y)) is total
    assert values.map("add", (y, x)) is not total
    assert halves[0] is values.map("add", (values.load(0, 0, 4), values.load(1, 0, 4)))
    assert values.cat([values.part(x, 0, 3), values.part(x, 3, 5)]) is x
    assert values.number(0.0, 2) is not values.number(-0.0, 2)
    product = values.product(x, 0, 6, False)
    assert values.cat([values.part(product, 0, 2), values.part(product, 2, 4)]) is product


def test_parts_of_shared_values_take_linear_time() -> None:
    """A chain in which every value is read twice has 2^200 paths."""
    values = Values()
    v = values.load(0, 0, 8)
    for _ in range(200):
        v = values.map("add", (v, values.map("tanh", (v,))))
    assert len(in_order([values.part(v, 2, 3)])) == 401


def test_a_cell_takes_few_steps() -> None:
    """Two products that need each other, and what follows: no copies, gates stay in registers."""
    values = Values()
    x, h = values.load(0, 0, 8), values.load(1, 0, 8)
    gates = values.product(values.cat([x, h]), 0, 24, True)
    r, z, n = (values.part(gates, 8 * k, 8) for k in range(3))
    reset = values.map("mul", (values.map("sigmoid", (r,)), h))
    new = values.map("tanh", (values.map("add", (n, values.product(reset, 1, 8, False))),))
    update = values.map("sigmoid", (z,))
    rest = values.map("sub", (values.number(1.0, 8), update))
    output = values.map("add", (values.map("mul", (update, h)), values.map("mul", (rest, new))))
    steps = steps_of([output], 2)

    assert [type(step) for step in steps.steps] == [Multiply, Pass, Multiply, Pass]
    assert [[(place, v.op) for place, v, _ in loop.stores] for loop in steps.loops()] == [
        [((0, 24), "mul")],
        [((5, 0), "add")],
    ]
    assert steps.width == 40


def test_pieces_of_a_sum_are_computed_by_later_passes() -> None:
    """`((f(x) + state(hs)) * cs).sum(0)`: what the first pass computes of `hs` is read behind the product `f(x)`."""
    case = Case(0)
    values, case.shapes, case.sizes = Values(), [(4, 4)], [4, 8, 4, 4]
    x, hs, *cs = (values.load(k, 0, size) for k, size in enumerate(case.sizes))
    gates = values.map("add", (values.spread(values.product(x, 0, 4, True), (1, 2, 4)),
                               values.matmul(hs, values.parameter(P, 0, 16), 2, 4, 4)))  # fmt: skip
    case.outputs = [values.reduce("total", values.map("mul", (gates, values.cat(cs))), (1, 2, 4))]
    steps = steps_of(case.outputs, 4)
    late = [place for step in steps.passes()[1:] for loop in step.loops for place in loop.places.values()]
    stored = {store.place for loop in steps.passes()[0].loops for store in loop.stores}
    assert stored.isdisjoint(place for place in late if place and place[0] == SCRATCH)


def test_costly_values_of_several_passes_are_computed_once() -> None:
    """One that the pass before a product and the one behind it read."""
    values = Values()
    gate = values.map("tanh", (values.load(0, 0, 8),))
    product = values.product(values.map("mul", (gate, values.load(1, 0, 8))), 0, 8, False)
    steps = steps_of([values.map("mul", (gate, product))], 2)
    stores = [v.op for loop in steps.loops() for _, v, _ in loop.stores]

    assert sorted(stores) == ["mul", "mul", "tanh"]


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("op", ALONG)
def test_reductions_of_every_length(op: str, dtype: torch.dtype) -> None:
    """Along elements that stand side by side and apart, in vectors with and without a rest."""
    generator = torch.Generator().manual_seed(0)
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 39, 128, 1000):
        for outer, inner in ((1, 1), (3, 1), (2, 5), (1, 20)):
            values = Values()
            x = (torch.randn(2, outer * n * inner, generator=generator) * 4 + 10).to(dtype)
            found = values.reduce(op, values.load(0, 0, x.shape[1]), (outer, n, inner))
            exact = ALONG[op](x.double().view(2, outer, n, inner)).view(2, -1)
            (ours,) = run_natively([found], [x], 64 // dtype.itemsize)
            assert ((ours - exact).abs() <= max(4, n / 20) * torch.finfo(dtype).eps * exact.abs()).all()


@pytest.mark.compiled
@pytest.mark.parametrize("op", ALONG)
def test_reductions_of_what_is_not_finite(op: str) -> None:
    """As torch has it, wherever it stands."""
    nan, inf = torch.nan, torch.inf
    rows = [[1, nan, 2], [nan, 1, 2], [inf, 1, 2], [-inf, 1, 2], [-inf] * 3, [inf, -inf, 0], [1, 2, nan], [inf] * 3]
    for inner in (1, 4):
        values = Values()
        x = torch.tensor(rows).unsqueeze(2).repeat(1, 1, inner)
        found = values.reduce(op, values.load(0, 0, 3 * inner), (1, 3, inner))
        (ours,) = run_natively([found], [x.view(8, -1)], 16)
        torch.testing.assert_close(ours, ALONG[op](x.unsqueeze(1)).view(8, -1), equal_nan=True)


X = V("load", (), (0, 0), 4)


@pytest.mark.parametrize(
    "bad",
    [
        V("load", (), (0, 2), 4),
        V("load", (), (3, 0), 1),
        V("number", (X,), 1.0, 4),
        V("part", (X,), 3, 2),
        V("cat", (X, X), None, 7),
        V("product", (X,), (0, False), 5),
        V("product", (V("load", (), (0, 0), 3),), (0, False), 6),
        V("product", (X, X), (0, False), 6),
        V("matmul", (X, X), (2, 2, 3), 6),
        V("total", (X,), (1, 3, 1), 1),
        V("spread", (X,), (4, 2, 1), 4),
        V("tanh", (X, X), None, 4),
        V("tanh", (X,), None, 3),
        V("unheard", (X,), None, 4),
    ],
    ids=lambda v: v.op,
)
def test_what_is_no_value_is_refused(bad: V) -> None:
    """Sizes, numbers of sources, names: each is named with what was expected."""
    verify([X], [4], [(4, 6)])
    with pytest.raises(AssertionError, match="expected "):
        verify([bad], [4], [(4, 6)])


def test_nothing_has_the_dtype_of_its_class() -> None:
    """No row tells it where a call mixes dtypes: an index of no elements is one of integers."""
    places = ValueClass((0,), "i64")
    step = SimpleNamespace(sources=[(None, places)], op=SimpleNamespace(template=(), output=None))
    given: list[torch.dtype] = []

    def function(_: Any, operands: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
        given.extend(x.dtype for x in operands)
        return [torch.zeros(count, 1)]

    batch = Batch(2, torch.empty(0, dtype=torch.float64), [], [], lambda _: torch.empty(0), function)
    Interpreter([V("call", (Values().cat([]),), step, 1)]).run(batch)
    assert given == [torch.int64]
