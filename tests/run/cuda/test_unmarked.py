"""Cells that nobody marked, on a GPU or in Triton's interpreter: they run, and are differentiated, as marked ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from devices import DEVICE, PoisonedBackend, needs_triton, paths, require_parity
from rounding import round_as_a_device
from test_gradients import kinds_of_gradients, require_gradients
from zoo_names import short_instances, without_marks

from edbc.run.modelfile import import_model_file
from edbc.run.session import Net
from edbc.tools.compile.compiler import compile_model
from edbc.train.backward.devicegradient import StepGradient

pytestmark = needs_triton


@pytest.fixture(scope="module")
def unmarked_zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The zoo's files without marks."""
    yield from without_marks(tmp_path_factory.mktemp("unmarked"))


@pytest.mark.parametrize("name", ["tree_gru", "lattice_lstm"])
def test_automatic_cells_are_as_any_other(name: str, unmarked_zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled as a user compiles; forward, gradients and vertex functions, each wholly in Triton."""
    if DEVICE.type == "cpu":
        round_as_a_device(monkeypatch)
    compiled = compile_model(unmarked_zoo / f"{name}.py", settings={"hidden_size": 16}, policy="critical",
                             measure_gain=False)  # fmt: skip
    net = Net(compiled.plan, compiled.captured.model.eval().to(DEVICE), backend=PoisonedBackend(DEVICE))
    file = import_model_file(unmarked_zoo / f"{name}.py")
    config = file.config({"hidden_size": 16})
    instances = short_instances(file, 2, 3, config)

    assert set(net.view.automatic) == set(compiled.plan.automatic) != set()
    require_parity(net, instances)
    assert set(paths(net, instances).values()) == {"triton"}
    torch.testing.assert_close(net(list(map(file.vertex_instance(config), instances))), net(instances))
    require_gradients(net, instances, 1e-4)
    assert kinds_of_gradients(net) == {StepGradient}
