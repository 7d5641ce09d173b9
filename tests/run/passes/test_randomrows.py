"""Random numbers: Philox against its published answers, rows against plain Python, distributions, seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from edbc.base.graph import ValueClass
from edbc.capture.record.table import Draw, Source
from edbc.native.philox import fill, philox
from edbc.run.passes.randomrows import KINDS, draw_seeds, drawn

WORDS = 0xFFFFFFFF


def philox_reference(counter: list[int], key: list[int]) -> list[int]:
    """Salmon et al. 2011, section 3.3, with Python's integers."""
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(right >> 32) ^ counter[1] ^ key[0], right & WORDS, (left >> 32) ^ counter[3] ^ key[1], left & WORDS]
        key = [(key[0] + 0x9E3779B9) & WORDS, (key[1] + 0xBB67AE85) & WORDS]
    return counter


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([WORDS] * 4, [WORDS] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox(counter: list[int], key: list[int], answer: str) -> None:
    """The known answers that come with Random123, by both implementations."""
    expected = [int(word, 16) for word in answer.split()]

    assert philox_reference(counter, key) == expected
    assert [int(word) for word in philox(*map(np.uint64, counter + key))] == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_by_definition(kind: str, dtype: type) -> None:
    """Element e of a draw is what the definition says, for sizes that are no multiple of four."""
    seeds, numbers = np.array([5, 2**63 + 7], np.uint64), np.array([0, 2**31 + 3], np.uint64)
    bits = 8 if dtype is np.float32 else 0
    out = np.empty((2, 7), dtype)
    fill(out, KINDS.index(kind), 0.25, 2.0, seeds, numbers, np.uint64(bits))

    for row, (seed, number) in enumerate(zip(seeds.tolist(), numbers.tolist(), strict=True)):
        for e in range(7):
            words = philox_reference([e // 4, 0, number & WORDS, number >> 32], [seed & WORDS, seed >> 32])
            u, v = [(w >> bits << bits) / 2**32 for w in words[e % 4 // 2 * 2 :][:2]]
            angle = (math.cos, math.sin)[e % 2](2 * math.pi * v)
            expected = {
                "keep": 2.0 if (u, v)[e % 2] >= 0.25 else 0.0,
                "uniform": 0.25 + 1.75 * (u, v)[e % 2],
                "normal": 0.25 + 2.0 * math.sqrt(-2 * math.log(1 - u)) * angle,
            }[kind]
            assert out[row, e] == pytest.approx(expected, rel=1e-6 if bits else 1e-14)


def numbers_of(draw: Draw, count: int = 400, dtype: str = "f32") -> torch.Tensor:
    source = Source("draw", None, ValueClass((250,), dtype), draw)
    return drawn(source, np.arange(count), np.array([1], np.int64)).double()


def test_distributions() -> None:
    """Mean and variance over 100,000 numbers within five standard errors, by kind and dtype."""
    n = 100_000
    for dtype in ("f32", "f64", "bf16"):
        kept = numbers_of(Draw("keep", 0.3, 1.0), dtype=dtype)
        assert set(kept.unique().tolist()) == {0.0, 1.0}
        assert abs(kept.mean() - 0.7) < 5 * math.sqrt(0.21 / n)
    uniform, normal = numbers_of(Draw("uniform", -1.0, 1.0)), numbers_of(Draw("normal", 0.0, 1.0), dtype="f64")
    assert abs(uniform.mean()) < 5 * math.sqrt(1 / 3 / n)
    assert abs(uniform.square().mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / n)
    assert abs(normal.mean()) < 5 / math.sqrt(n)
    assert abs(normal.square().mean() - 1) < 5 * math.sqrt(2 / n)


def test_draws_are_independent() -> None:
    """Neighbouring draws, neighbouring elements, and instances of other seeds do not correlate."""
    uniform = numbers_of(Draw("uniform", -1.0, 1.0))
    source = Source("draw", None, ValueClass((250,)), Draw("uniform", -1.0, 1.0))
    other = drawn(source, np.arange(400), np.array([2], np.int64)).double()
    bound = 5 / 3 / math.sqrt(uniform.numel())
    assert abs((uniform[1:] * uniform[:-1]).mean()) < bound
    assert abs((uniform[:, 1:] * uniform[:, :-1]).mean()) < bound
    assert abs((uniform * other).mean()) < bound


def test_seeds() -> None:
    """Instances take a seed each from torch's generator, in order, whatever mini-batch they are in; those that draw
    nothing take none."""
    sources = [
        Source("draw", None, ValueClass((2,)), Draw("normal", 0.0, 1.0)),
        Source("constant", None, ValueClass(())),
    ]

    def seeds(*instances: int) -> list[int]:
        index = np.array(instances, np.int64) << 32
        return draw_seeds(sources, np.zeros(len(index), np.int64), index)[list(instances)].tolist()

    torch.manual_seed(3)
    together = seeds(0, 1, 2, 4)
    torch.manual_seed(3)

    assert seeds(0) + seeds(0, 2) + seeds(1) == together
    assert len(set(together)) == 4
    before = torch.get_rng_state()
    assert len(draw_seeds(sources, np.ones(3, np.int64), np.zeros(3, np.int64))) == 0
    assert torch.equal(before, torch.get_rng_state())
