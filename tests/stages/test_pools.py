"""Pools of our own, interpreted where there is no GPU, against torch's."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import sequential, tiny, tiny_images
from torch import Tensor, nn

from edbc.plan.static import KERNELS
from edbc.run.precision import in_ieee
from edbc.stages.cuda import kernels
from edbc.stages.cuda.kernels import HOWS
from edbc.stages.cuda.net import DeviceNet
from edbc.stages.cuda.pools import can_pool, pooled, pooling_of
from edbc.stages.devices import kernels_on
from edbc.stages.net import StaticModel
from edbc.tools.parity import Eager, Parity

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OWN = KERNELS[-1]


def image(*shape: int) -> Tensor:
    """Of a seed, channels last."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return numbers.to(DEVICE).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("seed", range(12))
def test_pools_are_torchs(seed: int) -> None:
    """Either kind, as a layer or a call, whatever the sizes: the same numbers, channels last."""
    rng = random.Random(seed)
    kernel = (rng.randint(1, 3), rng.randint(1, 4))
    stride, padding = (rng.randint(1, 3), rng.randint(1, 3)), (rng.randint(0, kernel[0] // 2), kernel[1] // 2)
    x = image(rng.randint(1, 3), rng.choice([1, 5, 16]), rng.randint(4, 9), rng.randint(4, 9))
    counts = rng.random() < 0.5
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (nn.MaxPool2d(kernel, stride, padding), (), {}),
        (nn.AvgPool2d(kernel, stride, padding, count_include_pad=counts), (), {}),
        (F.max_pool2d, (kernel, stride, padding), {}),
        (F.max_pool2d, (kernel[0],), {}),
        (F.avg_pool2d, (kernel, stride), {"padding": padding, "count_include_pad": counts}),
    ]
    for called, args, named in calls:
        pooling = pooling_of(called, (x, *args), named)
        assert pooling is not None
        assert can_pool(x)
        got, expected = pooled(x, pooling), called(x, *args, **named)
        assert got.shape == expected.shape
        assert torch.allclose(got, expected, rtol=1e-6, atol=1e-6)
        assert got.is_contiguous(memory_format=torch.channels_last)


def test_what_is_not_a_number_stays() -> None:
    """As torch's: a window with one has it as its largest."""
    x = image(1, 3, 6, 6)
    x[0, 1, 2, 2] = float("nan")
    pooling = pooling_of(F.max_pool2d, (x, 3, 1), {})
    assert pooling is not None
    assert torch.equal(pooled(x, pooling).isnan(), F.max_pool2d(x, 3, 1).isnan())


def test_others_are_left_to_torch() -> None:
    """Sizes rounded up, dilation, indices, other divisors, other types and layouts, and what is no pool."""
    x = image(1, 3, 6, 6)
    for called, args, named in [
        (F.max_pool2d, (x, 3, 2, 0, 2), {}),
        (F.max_pool2d, (x, 3), {"ceil_mode": True}),
        (nn.MaxPool2d(2, return_indices=True), (x,), {}),
        (F.avg_pool2d, (x, 3), {"divisor_override": 2}),
        (F.relu, (x,), {}),
        ("relu", (x,), {}),
    ]:
        assert pooling_of(called, args, named) is None
    assert not can_pool(x.double())
    assert not can_pool(x.contiguous())
    assert not can_pool(x[:, :2])
    assert not can_pool(x[0])


def test_a_network_runs_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a plan says so all pools of a network are ours, and its numbers eager's."""
    name = "squeezenet"
    calls: list[int] = []

    def counted(x: Tensor, pooling: Any) -> Tensor:
        calls.append(1)
        return pooled(x, pooling)

    monkeypatch.setattr(kernels, "pooled", counted)
    static = StaticModel(tiny(name).to(DEVICE), tiny_images(name, 1)[0].to(DEVICE), name)
    parity, batch = Parity(), [image.to(DEVICE) for image in tiny_images(name, 2)]
    with in_ieee(), DeviceNet(static, sequential(static.graph), 1, how=HOWS[OWN]) as net:
        parity.add_all(net(batch), None, Eager(static.model), batch)
    parity.require()
    runs = 2  # before it is captured, and replayed
    assert len(calls) == runs * sum("MaxPool2d" in unit.text for unit in static.graph.units) > 0


def test_choices_of_kernels_are_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Triton a GPU has all but these."""
    static = StaticModel(nn.Conv2d(1, 1, 1).to("meta"), torch.empty(1, 1, 3, 3, device="meta"), "net")
    monkeypatch.setattr("edbc.stages.devices.missing", lambda device: None)
    assert OWN in kernels_on(static)
    monkeypatch.setattr("edbc.stages.devices.missing", lambda device: "not installed")
    assert [name for name in KERNELS if name not in kernels_on(static)] == [OWN]


CODE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from edbc.stages.cuda.poolkernel import pool

given = dict(KY=3, KX=3, SY=2, SX=2, PY=0, PX=0, AVERAGE={average}, COUNTS_PADDING=True, BLOCK=256)
names = pool.arg_names
types = {{n: "*fp32" if n in "xy" else "constexpr" if n in given else "i32" for n in names}}
constants = {{(names.index(n),): value for n, value in given.items()}}
attributes = {{(names.index(n),): [["tt.divisibility", 16]] for n in ("x", "y", "total", "channels")}}
source = ASTSource(pool, types, constants, attributes)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
assert made.asm["ptx"].count("ld.global.v2") == 9, made.asm["ptx"]
"""


@pytest.mark.slow
@pytest.mark.parametrize("average", [True, False])
def test_machine_code(average: bool) -> None:
    """It compiles for a GPU where there is none, and reads neighbouring channels at once."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    run = subprocess.run(
        [sys.executable, "-c", CODE.format(average=average)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
