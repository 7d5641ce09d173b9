"""Functions of runs as loops: torch's numbers and gradients at every length, in memory that is theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from edbc.cells.arrays.kernel import Field, Loops, _rows, forward_loops, gradient_loops
from edbc.cells.arrays.program import program_of, require_inside
from edbc.cells.arrays.sizes import Fit, Poly, const
from edbc.cells.arrays.tape import NotInLoops, Tape

Function = Callable[[Sequence[int], Sequence[torch.Tensor]], torch.Tensor]
CANARY = 7.25
EDGE = 64
"""Elements before and behind what a function may write."""


def above(n: int) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, 4, 16).transpose(0, 1)


ONE, TWO, PAIR = [(20, 0)], [(20, 0), (20, 0)], [(20, 0), (20, 1)]
THREE = [(64, 0), (64, 0), (64, 0)]
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "relu": (lambda n, x: x[0].relu(), ONE),
    "sum": (lambda n, x: x[0].tanh().sum(0), ONE),
    "all": (lambda n, x: (x[0] * x[0]).mean(), ONE),
    "softmax along": (lambda n, x: x[0].softmax(0), ONE),
    "softmax across": (lambda n, x: x[0].log_softmax(1), [(5, 0)]),
    "gram": (lambda n, x: x[0] @ x[0].t(), [(17, 0)]),
    "attention": (lambda n, x: (x[0] @ x[1].t() / 8).softmax(-1) @ x[2], THREE),
    "two lengths": (lambda n, x: (x[0] @ x[1].t()).softmax(-1) @ x[1], PAIR),
    "three lengths": (lambda n, x: x[0] @ x[1].t() @ x[1] @ x[2].t(), [(6, 0), (6, 1), (6, 2)]),
    "heads": (lambda n, x: ((heads(x[0]) @ heads(x[1]).mT).softmax(-1) @ heads(x[2])).transpose(0, 1).reshape(n[0], 64),
              THREE),
    "causal": (lambda n, x: (x[0] @ x[0].t()).masked_fill(above(n[0]), -torch.inf).softmax(-1) @ x[0], ONE),
    "nearest first": (lambda n, x: x[0] * (torch.arange(n[0]).flip(0) < 3).unsqueeze(1), ONE),
    "mask": (lambda n, x: torch.where(x[1], x[0], 2 * x[0]).mean(0), [(3, 0), (3, 0, torch.bool)]),
    "pairs": (lambda n, x: (x[0][:, None] - x[0][None]).square().sum(-1).add(0.1).sqrt().sum(1), [(3, 0)]),
    "graph": (lambda n, x: F.leaky_relu(x[0] + x[1].t(), 0.2).softmax(-1) @ x[2], [(1, 0), (1, 0), (20, 0)]),
    "logsumexp": (lambda n, x: x[0].logsumexp(0), ONE),
    "var": (lambda n, x: x[0].var(0, unbiased=False), ONE),
    "std": (lambda n, x: x[0].std(0), ONE),
    "norms": (lambda n, x: F.normalize(x[0], dim=0), ONE),
    "padded": (lambda n, x: F.pad(x[0], (0, 5, 1, 2)).sum(1), ONE),
    "cut": (lambda n, x: F.pad(x[0], (-2, -3, 2, 0)).sum(0), ONE),
    "joined": (lambda n, x: torch.cat([x[0].flip(0), x[0]], 1), ONE),
    "stacked": (lambda n, x: torch.stack([x[0], x[1]]).prod(0), TWO),
    "einsum": (lambda n, x: torch.einsum("ti,tj->ij", x[0], x[1]), [(3, 0), (40, 0)]),
    "largest": (lambda n, x: x[0].amax(0) - x[0].amin(1).sum(), ONE),
    "layer norm": (lambda n, x: F.layer_norm(x[0] @ x[0].t() @ x[0], (20,)), ONE),
    "binary": (lambda n, x: F.binary_cross_entropy_with_logits(x[0], x[1].sigmoid()), [(1, 0), (1, 0)]),
    "repeated": (lambda n, x: x[0].repeat(2, 1), ONE),
    "cosine": (lambda n, x: F.cosine_similarity(x[0], x[1], dim=-1), TWO),
    "prefix sums": (lambda n, x: x[0].cumsum(0) - x[0].cumsum(1), ONE),
    "in place": (lambda n, x: x[0].clone().mul_(2).clamp_(-1, 1).add_(x[0], alpha=3), ONE),
    "sums before": (lambda n, x: torch.cat([torch.zeros(1, 20, dtype=x[0].dtype), x[0]]).cumsum(0)[:-1], ONE),
}  # fmt: skip
NOT_KNOWN: dict[str, tuple[Any, list[Any]]] = {
    "sort": (lambda n, x: x[0].sort(0).values, ONE),
    "integers": (lambda n, x: x[0].argmax(0), ONE),
    "by length": (lambda n, x: x[0].exp() if n[0] > 10 else x[0].sin(), ONE),
    "half": (lambda n, x: x[0][: (n[0] + 1) // 2].sum(0), ONE),
    "root of n": (lambda n, x: x[0] / n[0] ** 0.5, ONE),
    "read": (lambda n, x: x[0] * x[0][0, 0].item(), ONE),
    "random": (lambda n, x: F.dropout(x[0]), ONE),
    "the shorter": (lambda n, x: x[0][: n[1]].sum(0), PAIR),
    "filled up": (lambda n, x: torch.nn.utils.rnn.pad_sequence(x), PAIR),
    "cubic": (
        lambda n, x: (x[0][:, None, None] * x[0][None, :, None] * x[0][None, None]).sum(-1).sum((1, 2)),
        [(2, 0)],
    ),
}


def fields_of(fields: Sequence[Any], dtype: torch.dtype) -> list[Field]:
    return [Field(size, symbol, *(rest or (dtype,))) for size, symbol, *rest in fields]


def run(loops: Loops, lengths: Sequence[Sequence[int]], given: Sequence[Sequence[torch.Tensor]], count: int,
        shapes: Sequence[Sequence[Any]]) -> list[list[torch.Tensor]]:  # fmt: skip
    """What nodes write, with what stands around it untouched; `given` are the fields of each node, `shapes` those of
    what is written."""
    guarded = [[torch.full((2 * EDGE + shape.numel(),), CANARY, dtype=loops.dtype) for shape in of] for of in shapes]
    read = [[x.to(loops.dtype).contiguous() for x in of] for of in given]
    addresses = [np.array([of[k].data_ptr() for of in read]) for k in range(len(read[0]))]
    addresses += [np.array([of[k].data_ptr() + EDGE * loops.width for of in guarded]) for k in range(count)]
    of = np.array(lengths, np.int64)
    loops.run(of, addresses, int(loops.bytes_of(of).max()))
    for x in (x for of in guarded for x in of):
        assert (x[:EDGE] == CANARY).all()
        assert (x[-EDGE:] == CANARY).all()
    return [[x[EDGE:-EDGE].view(shape) for x, shape in zip(of, node, strict=True)]
            for of, node in zip(guarded, shapes, strict=True)]  # fmt: skip


def lengths_from(least: Sequence[int], seed: int, count: int = 12) -> list[tuple[int, ...]]:
    rng = Random(seed)
    return [tuple(rng.choice([low, low + 1, rng.randint(low, 70)]) for low in least) for _ in range(count)]


def symbols_of(fields: Sequence[Field]) -> int:
    return max(field.symbol for field in fields) + 1


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"atol": 3e-5, "rtol": 3e-5} if dtype is torch.float32 else {"atol": 1e-10, "rtol": 1e-10}


@pytest.mark.filterwarnings("ignore:std")  # of one row it is none
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_loops_give_torchs_numbers_and_gradients(name: str, dtype: torch.dtype) -> None:
    function, of = FUNCTIONS[name]
    fields = fields_of(of, dtype)
    loops = forward_loops(function, fields, symbols_of(fields), dtype)
    assert loops is not None
    lengths = lengths_from(loops.program.least, 1)
    rows = [_rows(fields, n, dtype) for n in lengths]
    expected = [function(n, x) for n, x in zip(lengths, rows, strict=True)]
    found = run(loops, lengths, rows, 1, [[x.shape] for x in expected])
    for x, (y,) in zip(expected, found, strict=True):
        torch.testing.assert_close(y, x, equal_nan=True, **tolerance(dtype))
    require_gradients(function, fields, dtype)


def require_gradients(function: Function, fields: Sequence[Field], dtype: torch.dtype) -> None:
    wanted = [field.dtype is dtype for field in fields]
    loops = gradient_loops(function, fields, wanted, symbols_of(fields), dtype)
    assert loops is not None
    lengths = lengths_from(loops.program.least, 2)
    given, expected = [], []
    for n in lengths:
        rows = [x.requires_grad_(w) for x, w in zip(_rows(fields, n, dtype), wanted, strict=True)]
        result = function(n, rows)
        upstream = torch.randn(result.shape, dtype=dtype, generator=torch.Generator().manual_seed(3))
        sought = [x for x in rows if x.requires_grad]
        found = torch.autograd.grad(result, sought, upstream, allow_unused=True)
        given.append([*(x.detach() for x in rows), upstream])
        expected.append([torch.zeros_like(x) if g is None else g for x, g in zip(sought, found, strict=True)])
    made = run(loops, lengths, given, sum(wanted), [[x.shape for x in of] for of in expected])
    for of, node in zip(expected, made, strict=True):
        for x, y in zip(of, node, strict=True):
            scale = 1 + float(x.abs().max())
            torch.testing.assert_close(y / scale, x / scale, equal_nan=True, **tolerance(dtype))


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_what_loops_do_not_know_stays_torchs(name: str) -> None:
    function, of = NOT_KNOWN[name]
    fields = fields_of(of, torch.float32)
    state = torch.random.get_rng_state()
    assert forward_loops(function, fields, symbols_of(fields), torch.float32) is None
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_node_has_the_same_bits_in_any_company() -> None:
    function, of = FUNCTIONS["attention"]
    fields = fields_of(of, torch.float32)
    loops = forward_loops(function, fields, 1, torch.float32)
    assert loops is not None
    lengths = [(9,), (40,), (1,), (17,)]
    rows = [_rows(fields, n, torch.float32) for n in lengths]
    shapes = [[torch.Size((n, 64))] for (n,) in lengths]
    together = run(loops, lengths, rows, 1, shapes)
    for n, x, shape, (y,) in zip(lengths, rows, shapes, together, strict=True):
        ((alone,),) = run(loops, [n], [x], 1, [shape])
        assert torch.equal(alone, y)


@pytest.mark.parametrize("count", [64, 65, 128, 20_000])
def test_long_sums_of_columns_round_little(count: int) -> None:
    """They are added up in parts: one after the other, 20,000 squares lost 4e-6 of their sum."""
    function: Function = lambda n, x: x[0].square().sum(0)  # noqa: E731
    loops = forward_loops(function, fields_of([(24, 0)], torch.float32), 1, torch.float32)
    assert loops is not None
    x = 1 + torch.rand(count, 24, generator=torch.Generator().manual_seed(0))
    ((found,),) = run(loops, [(count,)], [[x]], 1, [[torch.Size((24,))]])
    torch.testing.assert_close(found.double(), x.double().square().sum(0), rtol=1e-6, atol=0)


def test_a_function_of_one_row_may_be_another() -> None:
    """`squeeze` drops a dimension then: such nodes are torch's."""
    fields = fields_of(ONE, torch.float32)
    loops = forward_loops(lambda n, x: (x[0] @ x[0].t()).squeeze().sum(0), fields, 1, torch.float32)
    assert loops is not None
    assert loops.program.least == (2,)


def test_accesses_outside_of_buffers_are_found() -> None:
    function, of = FUNCTIONS["causal"]

    def taped(n: Sequence[int]) -> Tape:
        rows = _rows(fields_of(of, torch.float32), tuple(n), torch.float32)
        tape = Tape(torch.float32, [*rows, result := torch.empty(n[0], 20)])
        with torch.no_grad(), tape:
            result.copy_(function(n, rows))
        return tape

    program = program_of(2, 1, torch.float32, taped)
    require_inside(program, (5,))
    smaller = (*program.sizes[:1], program.sizes[1] + const(-1), *program.sizes[2:])
    with pytest.raises(NotInLoops, match="beyond its buffer"):
        require_inside(replace(program, sizes=smaller), (5,))
    with pytest.raises(NotInLoops, match="overlap"):
        require_inside(replace(program, begins=tuple(const(0) for _ in program.begins)), (5,))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.lists(st.integers(-5, 5), min_size=10, max_size=10))
def test_polynomials_are_found_by_their_numbers(count: int, factors: list[int]) -> None:
    fit = Fit(count)
    told = Poly(tuple(sorted((of, x) for of, x in zip(fit.monomials, factors, strict=False) if x)))
    numbers: list[int | None] = [told.at(lengths) for lengths in fit.lengths]
    assert fit.of(numbers) == told
    if not told.terms or told.number is not None:
        return
    numbers[-1] += 1  # type: ignore[operator]
    assert fit.of(numbers) is None


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_random_functions(seed: int) -> None:
    """Of arrays of one, two and three dimensions."""
    torch_function, fields = drawn(Random(seed))
    loops = forward_loops(torch_function, fields, symbols_of(fields), torch.float64)
    assert loops is not None
    lengths = lengths_from(loops.program.least, seed, 5)
    rows = [_rows(fields, n, torch.float64) for n in lengths]
    expected = [torch_function(n, x) for n, x in zip(lengths, rows, strict=True)]
    found = run(loops, lengths, rows, 1, [[x.shape] for x in expected])
    for x, (y,) in zip(expected, found, strict=True):
        torch.testing.assert_close(y, x, atol=1e-9, rtol=1e-9)
    require_gradients(torch_function, fields, torch.float64)


def drawn(rng: Random) -> tuple[Function, list[Field]]:
    fields = [Field(4, rng.randint(0, 1) if i else 0, torch.float64) for i in range(3)]
    fields = fields if any(f.symbol for f in fields) else [f._replace(symbol=0) for f in fields]
    steps = [rng.randrange(10) for _ in range(rng.randint(1, 5))]
    numbers = [rng.randrange(3) for _ in steps]

    def function(n: Sequence[int], x: Sequence[torch.Tensor]) -> torch.Tensor:
        made = x[0]
        for step, number in zip(steps, numbers, strict=True):
            made = _STEPS[step](made, x[number])
        return made.sum(-1) if made.ndim > 1 else made

    return function, fields


_STEPS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda made, x: made.tanh(),
    lambda made, x: made @ x.t() if made.shape[-1] == 4 else made.softmax(-1) @ made.mT,
    lambda made, x: made.softmax(0),
    lambda made, x: (made.unsqueeze(0) - made.unsqueeze(1)).square().sum(-1) if made.ndim == 2 else made * 2,
    lambda made, x: torch.cat([made, made.flip(0)], -1),
    lambda made, x: made.t().contiguous() if made.ndim == 2 else made,
    lambda made, x: made - made.mean(0, keepdim=True),
    lambda made, x: made.masked_fill(made > 0.5, -1.0),
    lambda made, x: made.cumsum(-1),
    lambda made, x: F.pad(made, (1, 2)),
]
