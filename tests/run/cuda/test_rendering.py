"""Text of random values, run by a step kernel on a GPU or in Triton's interpreter, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from devices import DEVICE, needs_triton
from hypothesis import given, settings
from hypothesis import strategies as st
from random_values import ALONG, Case, P, evaluate, viewed

from edbc.cells.values.adjoint import added, gradients_of
from edbc.cells.values.value import V, Values
from edbc.run.cuda.chains import WarmUp
from edbc.run.cuda.issue import Issuer, Operations
from edbc.run.cuda.library import TritonKernel
from edbc.run.cuda.stages import stages_of_values
from edbc.run.cuda.tritonsource import branches_of
from edbc.run.cuda.upload import Upload

pytestmark = needs_triton
interpreted = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
"""numpy warns of what a device does without a word."""
NAMES = {torch.float32: "f32", torch.float64: "f64"}


def run(outputs: list[V], rows: list[torch.Tensor], parameter: torch.Tensor | None = None,
        weights: Any = ()) -> list[torch.Tensor]:  # fmt: skip
    """Outputs of operands' rows, which stand in another order in their arenas; what is not written is not-a-number."""
    count, dtype = len(rows[0]), NAMES[rows[0].dtype]
    stages = stages_of_values(outputs, tuple(row.shape[1] for row in rows), dtype)
    work = torch.full((count, max(stages.workspace, 1)), torch.nan, dtype=rows[0].dtype, device=DEVICE)
    found = [torch.full((count + 2, v.size), torch.nan, dtype=rows[0].dtype, device=DEVICE) for v in outputs]
    orders = [torch.randperm(count, generator=torch.Generator().manual_seed(k)) for k in range(len(rows))]
    told: dict[str, Any] = {"work": work} | {f"at{k}": order.int().to(DEVICE) for k, order in enumerate(orders)}
    told |= {f"a{k}": row[order.argsort()].contiguous().to(DEVICE)
             for k, (row, order) in enumerate(zip(rows, orders, strict=True))}  # fmt: skip
    told |= {f"o{j}": output for j, output in enumerate(found)} | {f"row{j}": 1 for j in range(len(found))}
    if parameter is not None:
        seen = map(viewed(parameter), stages.parameters)
        told |= {f"p{i}": whole.reshape(-1).contiguous().to(DEVICE) for i, whole in enumerate(seen)}
    for i, (weight, bias) in enumerate(weights):
        told |= {f"w{i}": weight.contiguous().to(DEVICE), f"b{i}": bias.to(DEVICE)}
    issuer, kernel = Issuer(DEVICE, WarmUp()), TritonKernel(branches_of(stages), dtype)
    numbers = np.array(issuer.library.numbers([kernel]))

    def vectors(out: Any) -> None:
        out[0, : len(kernel.names)] = [x.data_ptr() if torch.is_tensor(x) else x for x in map(told.get, kernel.names)]

    operations = Operations(numbers, np.array([count]), np.zeros(1, np.int64), len(kernel.branches))
    upload = Upload(DEVICE)
    issuer.issue(upload, [operations], vectors, upload.send)
    assert all(output[[0, -1]].isnan().all() for output in found)
    return [output[1:-1].cpu() for output in found]


@settings(derandomize=True, deadline=None, max_examples=20)
@given(seed=st.integers(0, 100_000), dtype=st.sampled_from(list(NAMES)))
def test_text_computes_what_torch_does(seed: int, dtype: torch.dtype) -> None:
    """Reductions, spreads, parts, concatenations and products wherever one reads another."""
    case = Case(seed, adds=False)
    rows, bound = [row.to(dtype) for row in case.rows], 1e-12 if dtype is torch.float64 else 3e-5
    weights = [(weight.to(dtype), bias.to(dtype)) for weight, bias in case.weights]
    for ours, exact in zip(run(case.outputs, rows, case.parameter.to(dtype), weights), case.exact(), strict=True):
        assert ((ours.double() - exact).abs() <= bound * (1 + exact.abs())).all()


@settings(derandomize=True, deadline=None, max_examples=20)
@given(seed=st.integers(0, 100_000))
def test_text_computes_gradients(seed: int) -> None:
    """Of operands, of a parameter, and deltas of products."""
    case, first = Case(seed, adds=False), 3
    loads = [case.values.load(first + j, 0, v.size) for j, v in enumerate(case.outputs)]
    found = gradients_of(case.values, case.outputs, loads)
    outputs = [added(case.values, found.operands.get(k, []), size) for k, size in enumerate(case.sizes)]
    outputs += [added(case.values, found.parameters.get(P, []), len(case.parameter)), *found.deltas.values()]
    generator = torch.Generator().manual_seed(seed)
    rows = [*case.rows, *(torch.randn(5, v.size, generator=generator, dtype=torch.float64) for v in case.outputs)]
    exact = evaluate(outputs, rows, viewed(case.parameter), case.weights)
    for ours, theirs in zip(run(outputs, rows, case.parameter, case.weights), exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


@interpreted
@pytest.mark.parametrize("op", ALONG)
def test_reductions_of_what_is_not_finite(op: str) -> None:
    """As torch has it, wherever it stands; of elements side by side and apart, longer than a tile."""
    nan, inf = torch.nan, torch.inf
    rows = [[1, nan, 2], [nan, 1, 2], [inf, 1, 2], [-inf, 1, 2], [-inf] * 3, [inf, -inf, 0], [1, 2, nan], [inf] * 3]
    for inner, times in ((1, 1), (4, 1), (1, 60)):
        known = Values()
        x = torch.tensor(rows).repeat(1, times).unsqueeze(2).repeat(1, 1, inner)
        found = known.reduce(op, known.load(0, 0, 3 * times * inner), (1, 3 * times, inner))
        (ours,) = run([found], [x.flatten(1)])
        torch.testing.assert_close(ours, ALONG[op](x.unsqueeze(1)).view(8, -1), equal_nan=True)


@interpreted
def test_numbers_that_are_not_finite() -> None:
    """As parts of maps and as outputs; and none is less than itself."""
    known = Values()
    x = known.load(0, 0, 4)
    worst = [known.map("add", [x, known.number(number, 4)]) for number in (torch.inf, -torch.inf, torch.nan)]
    outputs = [*worst, *(known.map("less", [v, v]) for v in worst), known.number(torch.inf, 4)]
    ours = run(outputs, [torch.ones(2, 4)])

    assert [output[0, 0].item() for output in ours[:2]] == [torch.inf, -torch.inf]
    assert ours[2].isnan().all()
    assert all((output == 0).all() for output in ours[3:6])
    assert (ours[6] == torch.inf).all()
