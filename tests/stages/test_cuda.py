"""Stages on a GPU: every form of schedule against eager, graphs that are replayed, and the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import command as edbc
from networks import TINY, sequential, tiny, tiny_images
from test_execution import merging, scheduled

from edbc.plan.static import KERNELS
from edbc.run.precision import convolution_precision, in_ieee
from edbc.stages.cuda.kernels import HOWS
from edbc.stages.cuda.measure import DeviceMeasurement
from edbc.stages.cuda.net import DeviceNet
from edbc.stages.graph import block_of
from edbc.stages.net import StaticModel
from edbc.tools.parity import Eager, Parity, compared, parity_on

pytestmark = pytest.mark.cuda
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=sorted(TINY))
def network(request: pytest.FixtureRequest) -> StaticModel:
    """Each of the four networks, small, on the GPU."""
    return StaticModel(tiny(request.param).cuda(), tiny_images(request.param, 1)[0].cuda(), request.param)


@pytest.fixture
def ieee() -> Iterator[None]:
    """torch multiplies in IEEE float32."""
    with in_ieee():
        yield


@pytest.mark.usefixtures("ieee")
@pytest.mark.parametrize("kernels", KERNELS)
def test_every_form_gives_eager_numbers(network: StaticModel, kernels: str) -> None:
    """One unit after the other, in stages, merged, and without barriers, captured and replayed on other images."""
    mixed, merged = scheduled(network), merging(network)
    forms = [(sequential(network.graph), True), (mixed, True), (mixed, False), (merged, True), (merged, False)]
    eager = Eager(network.model)
    for schedule, barriers in forms:
        with DeviceNet(network, schedule, 4, barriers, how=HOWS[kernels]) as net:
            for seed in range(2):
                batch = [image.cuda() for image in tiny_images(network.name, 3, seed)]
                parity = Parity()
                parity.add_all(net(batch), None, eager, batch)
                parity.require()


def test_in_tf32_numbers_are_compared_in_both(network: StaticModel) -> None:
    """As torch is set by itself, convolutions are in tf32; results are held against eager's in both settings."""
    batch = [image.cuda() for image in tiny_images(network.name, 3)]
    eager, parity, settings = Eager(network.model), parity_on(network.device), list[str]()

    def add(to: Parity) -> None:
        settings.append(convolution_precision())
        with DeviceNet(network, merging(network), 4) as net:
            to.add_all(net(batch), None, eager, batch)

    compared(parity, add)
    parity.require()
    assert settings == ["tf32", "ieee"]
    assert convolution_precision() == "tf32"
    assert "in IEEE float32 max error" in parity.remark


def test_stages_are_measured(network: StaticModel) -> None:
    """Stages of every kind take time, more than one that does nothing."""
    measurement = DeviceMeasurement(network, 1, 4)
    block, overhead = block_of(network.graph, range(len(network.graph.units))), measurement.overhead()
    for groups, run in (*merging(network)[:4], *scheduled(network)[-3:]):
        assert measurement.stage(block, groups, run).median > overhead / 2


def test_the_command_line(tmp_path: Path) -> None:
    """Compiled on the GPU, run there with parity, and planned again from the table."""
    plan, sizes = tmp_path / "net.yaml", ("--set", "width=2", "--set", "image_size=63")
    model = ROOT / "models" / "squeezenet.py"
    result = edbc("compile", model, "-o", plan, *sizes, "--profile", "--device", "cuda", "--gap", "50%", "-q")
    assert result.exit_code == 0, result.output
    result = edbc("run", plan, "--device", "cuda", "--limit", "5", "--batch-size", "2", "--verify")
    assert result.exit_code == 0, result.output
    assert edbc("check", plan).exit_code == 0
