"""Gradients of values are torch autograd's, as values."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_values import Case, P, evaluate, run_natively, viewed

from edbc.cells.program import Load, Span
from edbc.cells.values.adjoint import added, gradients_of
from edbc.cells.values.value import Values
from edbc.train.backward.typeadjoint import adjoint_of


@settings(derandomize=True, deadline=None, max_examples=100)
@given(seed=st.integers(0, 100_000))
def test_gradients_of_random_values_are_autograds(seed: int) -> None:
    """With respect to operands and a parameter, and of every product its delta, to 1e-12."""
    case = Case(seed)
    values, first = case.values, len(case.sizes)
    given_ones = [values.load(first + j, 0, v.size) for j, v in enumerate(case.outputs)]
    found = gradients_of(values, case.outputs, given_ones)
    operands = [added(values, found.operands.get(k, []), size) for k, size in enumerate(case.sizes)]
    parameter = added(values, found.parameters.get(P, []), len(case.parameter))
    generator = torch.Generator().manual_seed(seed)
    d = [torch.randn(5, v.size, generator=generator, dtype=torch.float64) for v in case.outputs]

    rows = [row.clone().requires_grad_() for row in case.rows]
    p = case.parameter.clone().requires_grad_()
    biases = [bias.clone().requires_grad_() for _, bias in case.weights]
    weights = [(weight, bias) for (weight, _), bias in zip(case.weights, biases, strict=True)]
    outputs = evaluate(case.outputs, rows, viewed(p), weights)
    leaves = [*rows, p, *biases]
    loss = sum(((o * g).sum() for o, g in zip(outputs, d, strict=True)), torch.zeros(()))
    exact = torch.autograd.grad(loss + 0 * sum(leaf.sum() for leaf in leaves), leaves)

    deltas = {v.arg[0]: delta for v, delta in found.deltas.items()}
    ours = evaluate([*operands, parameter, *deltas.values()], [*case.rows, *d], viewed(case.parameter), case.weights)
    for mine, theirs in zip(ours[:first], exact[:first], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(ours[first].sum(0), exact[first], rtol=1e-11, atol=1e-12)
    for weight, delta in zip(deltas, ours[first + 1 :], strict=True):
        torch.testing.assert_close(delta.sum(0), exact[first + 1 + weight], rtol=1e-11, atol=1e-12)


class Program(NamedTuple):
    """What an adjoint asks of one."""

    loads: list[Load]
    dtype: str
    weights: list[None]


@pytest.mark.compiled
@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 100_000), lanes=st.sampled_from([4, 8]))
def test_backward_steps_compute_gradients(seed: int, lanes: int) -> None:
    """The adjoint of a type, with what its forward pass saves and keeps, natively: gradients of operands, deltas and
    those of the parameter are those of values without saving."""
    case = Case(seed)
    sizes = [Load(k, Span(0, size)) for k, size in enumerate(case.sizes)]
    adjoint = adjoint_of(Program(sizes, "f64", []), case.outputs)  # type: ignore[arg-type]
    slots, values = adjoint.slots, Values()
    generator = torch.Generator().manual_seed(seed)
    d = [torch.randn(5, v.size, generator=generator, dtype=torch.float64) for v in case.outputs]
    forward = run_natively(adjoint.forward, case.rows, lanes, case.parameter, case.weights)
    outputs, hidden = forward[: slots.outputs], [*forward[slots.outputs :], *[torch.zeros(5, 1)] * 2]
    saved = hidden.pop(0) if adjoint.saved else hidden[-1]
    rows = [*case.rows, *outputs, saved, hidden[0], *d]
    turned = [(weight.t().contiguous(), torch.zeros(len(weight), dtype=torch.float64)) for weight, _ in case.weights]
    last = slots.operands + 1
    ours = run_natively(adjoint.backward, [row.double() for row in rows], lanes, case.parameter, turned,
                        adds=[*range(slots.operands), last], late=[last - 1])  # fmt: skip

    given_ones = [values.load(3 + j, 0, v.size) for j, v in enumerate(case.outputs)]
    found = gradients_of(values, case.outputs, given_ones)
    exact = [added(values, found.operands.get(k, []), size) for k, size in enumerate(case.sizes)]
    exact += [values.cat(found.deltas.values())]
    theirs = evaluate(exact, [*case.rows, *d], viewed(case.parameter), case.weights)
    for mine, other in zip(ours[:-1], theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-12)
    begin = 0
    for vector in adjoint.vectors:
        pieces = [(at - vector.offset, v) for at, v in found.parameters[vector.ref]]
        whole = added(values, pieces, vector.size)
        (other,) = evaluate([whole], [*case.rows, *d], viewed(case.parameter), case.weights)
        torch.testing.assert_close(ours[-1][:, begin : begin + vector.size], other, rtol=1e-11, atol=1e-12)
        begin += vector.size
    for item in adjoint.inputs:
        assert item.place[0] < 3 + slots.gradients
