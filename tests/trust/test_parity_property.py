"""Batched equals eager, as a property: random cells, random DAGs, random mini-batches, any policy, back end and layout.

A *universe* is a random model and a pool of instances, bound to one plan; a *case* is one mini-batch of instances drawn
from the pool, with repeats and in any order, under a policy of its own. So every instance runs in many mini-batches,
and each time must give what eager gives for it alone: grouping and order change nothing.
"""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from helpers import bound, default_dtype, graph_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_models import CODE, RandomModel
from randomforwards import instance, model_of, source_of

from edbc.errors import DeviceError
from edbc.run.backend import NAMES, backend_of
from edbc.run.cuda.cudabackend import CudaBackend
from edbc.run.passes import share as rule
from edbc.run.session import Net
from edbc.schedule.learn.train import cover
from edbc.schedule.policy import ENCODINGS, FALLBACK, KINDS, Policy, ready_types
from edbc.tools.parity import Eager, Parity

POOL, LONGEST = 10, 10
"""Instances of a universe, and operations of the longest."""
LAYOUTS = ("plan", "variable-order")
CASES = 40
"""Mini-batches of a universe."""


def _runs_here(name: str) -> bool:
    try:
        backend_of(name, torch.device("cpu"))
    except DeviceError:
        return False
    return True


BACKENDS = [*(name for name in NAMES if _runs_here(name)), "cuda's torch path"]


def _backend(name: str) -> str | CudaBackend:
    """What a net takes: the CUDA back end without Triton runs on the CPU as it does on a device."""
    return CudaBackend(torch.device("cpu"), use_triton=False) if name not in NAMES else name


codes = st.integers(0, LONGEST).flatmap(lambda n: st.binary(min_size=CODE * n, max_size=CODE * n))
pools = st.lists(codes, min_size=POOL, max_size=POOL)
mini_batches = st.lists(st.integers(0, POOL - 1), max_size=6)
cases = st.lists(st.tuples(mini_batches, st.integers(0, 10**6)), min_size=CASES, max_size=CASES)
variants = st.tuples(st.sampled_from(BACKENDS), st.sampled_from(LAYOUTS), st.booleans())
dtypes = st.sampled_from([torch.float64, torch.float32])


def examples(count: int) -> settings:
    """Settings of a property over `count` examples."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=slow)


class Universe:
    """A random model with what eager gives for every instance of its pool."""

    def __init__(self, seed: int, dtype: torch.dtype, pool: list[bytes]):
        self.pool = pool
        self.model = RandomModel(seed, dtype).eval()
        eager = Eager(self.model)
        self.eager, self.exact = eager.run(pool), eager.reference(pool)

    def require_parity(self, results: list[Any], which: list[int]) -> None:
        """The project's parity rule."""
        parity = Parity()
        for result, i in zip(results, which, strict=True):
            parity.add(result, self.eager[i], self.exact[i])
        parity.require()
        assert not parity.unstable


def random_policy(net: Net, batch: list[bytes], seed: int) -> Policy:
    """A rule, or a table over any encoding that knows half of the mini-batch's states and acts at random in them."""
    rng = random.Random(seed)
    kind = rng.choice([*KINDS, "fsm", "fsm", "fsm"])
    if kind != "fsm":
        return Policy(kind)
    encoding = rng.choice(ENCODINGS)
    fallback = FALLBACK.get(encoding, "chains")
    graph = net.mini_batch(batch).graph
    known = cover(Policy("fsm", encoding, fallback), [graph]).table if graph.num_nodes else {}
    table = {state: rng.choice(ready_types(encoding, state)) for state in known if rng.random() < 0.5}
    return Policy("fsm", encoding, fallback, table)


class RowsUniverse(Universe):
    """A random closed forward over rows, with instances of every length, one among them."""

    def __init__(self, seed: int, dtype: torch.dtype, folder: Path):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        text, form = source_of(rng)
        self.model = model_of(text, folder, f"rows_{seed}").eval().to(dtype)
        self.pool = [instance(rng, form, rng.choice([1, 2, 3, 4, 5, 6, 7])) for _ in range(POOL)]
        eager = Eager(self.model)
        self.eager, self.exact = eager.run(self.pool), eager.reference(self.pool)


def run_cases(universe: Universe, cases: list[tuple[list[int], int]], backend: str, layout: str, split: bool) -> None:
    """Every mini-batch under its policy, with equal nodes shared however few there are (every other one not at all):
    certified by the parity rule. Without gradients: in training cells run whole."""
    rows = True if isinstance(universe, RowsUniverse) else None
    cells = "marked" if rows is None else "auto"
    net = bound(universe.model, universe.pool, cells, rows, backend=_backend(backend), layout=layout, split=split)
    with pytest.MonkeyPatch.context() as patch:
        for limit, value in {"FEWEST": 1, "WORTHWHILE": 0, "MOST": 0}.items():
            patch.setattr(rule, limit, value)
        for which, seed in cases:
            batch = [universe.pool[i] for i in which]
            net.policy = random_policy(net, batch, seed)
            net.share = seed % 2 == 0
            universe.require_parity(net.run(batch)[0], which)


@examples(12)
@given(st.integers(0, 10**6), dtypes, pools, cases, variants)
def test_batched_equals_eager(
    seed: int, dtype: torch.dtype, pool: list[bytes], cases: list[tuple[list[int], int]], variant: tuple[str, str, bool]
) -> None:
    """BUGS 1, 7, 8, 16, 19, 20: 160 mini-batches (480 with `--slow`) of random DAGs of random cells give eager's
    outputs, whatever their grouping and order, under random policies, on every back end, both memory orders, cells
    split or whole."""
    run_cases(Universe(seed, dtype, pool), cases, *variant)


@examples(3)
@given(st.integers(0, 10**6), dtypes, cases, variants)
def test_rows_of_every_length_equal_eager(
    seed: int, dtype: torch.dtype, cases: list[tuple[list[int], int]], variant: tuple[str, str, bool]
) -> None:
    """The same of random forwards over rows of every length, in float32 as their constants are, too."""
    with default_dtype(dtype), TemporaryDirectory() as folder:
        run_cases(RowsUniverse(seed, dtype, Path(folder)), cases[:10], *variant)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_batched_equals_eager_at_length(part: int) -> None:
    """The same over 100,000 mini-batches: 2,000 universes of 50."""
    for number in range(200):
        rng = random.Random(1000 * part + number)
        pool = [rng.randbytes(CODE * rng.randrange(LONGEST + 1)) for _ in range(POOL)]
        cases = [(rng.choices(range(POOL), k=rng.randrange(7)), rng.randrange(10**6)) for _ in range(50)]
        universe = Universe(rng.randrange(10**9), rng.choice([torch.float64, torch.float32]), pool)
        run_cases(universe, cases, rng.choice(BACKENDS), rng.choice(LAYOUTS), rng.random() < 0.5)


@examples(10)
@given(st.integers(0, 10**6), pools, st.permutations(range(POOL)), st.integers(0, POOL))
@pytest.mark.long
def test_permuting_splitting_and_joining(seed: int, pool: list[bytes], order: list[int], cut: int) -> None:
    """BUGS 20: permuted, split in two and joined again, and one by one: the same outputs at permuted places, to
    rounding (1e-12 in float64)."""
    net = bound(RandomModel(seed).eval(), pool, rows=None)
    whole = net(pool)
    permuted = net([pool[i] for i in order])
    parts = [*net(pool[:cut]), *net(pool[cut:])]
    single = [net([code])[0] for code in pool]
    for i in range(POOL):
        for other in (permuted[order.index(i)], parts[i], single[i]):
            assert_same(other, whole[i])


def assert_same(ours: dict[str, list[torch.Tensor]], theirs: dict[str, list[torch.Tensor]]) -> None:
    """Equal kinds of outputs, as many of each, of equal values but for rounding."""
    assert ours.keys() == theirs.keys()
    for kind, tensors in theirs.items():
        tolerance = 1e-6 if kind == "o" else 1e-12
        torch.testing.assert_close(ours[kind], tensors, rtol=tolerance, atol=tolerance)


@examples(10)
@given(st.integers(0, 10**6), pools)
@pytest.mark.long
def test_twice_is_bit_equal(seed: int, pool: list[bytes]) -> None:
    """The same mini-batch twice gives the same bits, also when another one ran in between."""
    net = bound(RandomModel(seed, torch.float32).eval(), pool, rows=None)
    first = net(pool)
    net(pool[: POOL // 2])
    for ours, theirs in zip(net(pool), first, strict=True):
        for kind, tensors in theirs.items():
            assert all(torch.equal(a, b) for a, b in zip(ours[kind], tensors, strict=True))


@pytest.mark.long
def test_the_universes_hold_what_they_promise() -> None:
    """Cells of every arity from 0 to 4, of several outputs and of mixed dtypes; shared and repeated operands."""
    arities, outputs, dtypes_met, repeated, shared = set(), set(), set(), 0, 0
    for seed in range(8):
        rng = random.Random(seed)
        pool = [rng.randbytes(CODE * LONGEST) for _ in range(POOL)]
        graph = graph_of(RandomModel(seed), pool)
        cells = [t for t in graph.types if t.op.startswith("cell ")]
        arities |= {len(t.operands) for t in cells}
        outputs |= {len(t.outputs) for t in cells}
        dtypes_met |= {c.dtype for t in cells for c in (*t.operands, *t.outputs)}
        for v in range(graph.num_nodes):
            operands = graph.operands_of(v)
            repeated += len(set(operands)) < len(operands)
        inner = graph.operands[graph.operands >= 0]
        shared += int((np.bincount(inner) > 1).sum())
    assert arities >= {0, 1, 2, 3, 4}
    assert outputs >= {1, 2, 3}
    assert dtypes_met >= {"f64", "f32", "i64", "bool"}
    assert repeated > 10
    assert shared > 40
