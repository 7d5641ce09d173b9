"""Every model of the zoo, through both front ends: gradients equal eager's."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bound import plan_for
from gradients import Gradients, gradients, random_loss, require_equal, require_equal_gradients, tensors
from zoo_names import DYNAMIC, RAGGED, short_instances

from edbc.run.modelfile import import_model_file
from edbc.run.session import Net
from edbc.tools.parity import Parity

MODELS = Path(__file__).resolve().parents[2] / "models"
QUICK = ("tree_lstm", "lattice_gru", "tree_gru")
ZOO = DYNAMIC


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def small_net(name: str, dtype: torch.dtype, seed: int = 3) -> tuple[Net, list[Any], list[Any]]:
    """A small model of the zoo in training mode, some instances, and these as vertices where there are any."""
    file = import_model_file(MODELS / f"{name}.py")
    known = file.config({})
    wanted = {"hidden_size": 6, "vocab_size": 20, "num_matrices": 5}
    config = file.config({key: value for key, value in wanted.items() if key in known})
    torch.set_default_dtype(dtype)
    instances = short_instances(file, 4, seed, config)
    model = file.build(config, 0).to(dtype)
    net = Net(plan_for(model, instances, rows=name in RAGGED), model)
    model.train()
    packed = list(map(file.vertex_instance(config), instances)) if hasattr(file.module, "vertex_instance") else []
    return net, instances, packed


@pytest.mark.parametrize("name", ZOO)
def test_gradients_equal_eager(name: str) -> None:
    """In training mode, float64, all parameters, None included; as recorded instances and, where there are any, as
    vertices."""
    net, instances, packed = small_net(name, torch.float64)
    model = net.model
    ours = require_equal_gradients(net, instances)

    assert any(gradient is not None for gradient in ours.values())
    if packed:
        theirs = gradients(model, random_loss([model(instance) for instance in instances]))
        require_equal(gradients(model, random_loss(net(packed))), theirs)


def scaled(found: Gradients, exact: Gradients) -> dict[str, list[torch.Tensor]]:
    """All gradients as one output, each by the scale of its reference, or by a tenth of the largest scale where that
    is more: gradients that nearly cancel (a bias in front of a softmax) are errors only."""
    scales = {name: float(g.abs().max()) for name, g in exact.items() if g is not None}
    largest = max(scales.values())
    return {"gradients": [g.to_dense() / max(scales[n], 0.1 * largest) for n, g in found.items() if g is not None]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in ZOO])
def test_gradients_by_the_parity_rule(name: str, dtype: torch.dtype) -> None:
    """Gradients in float32 and bfloat16 are as near to float64's as eager's own are, by the rule for outputs: relative
    errors of all parameters together, as luck is large in a single one of eager's."""
    net, instances, _ = small_net(name, dtype, seed=5)

    def loss(results: list[Any]) -> torch.Tensor:
        rows = torch.cat([t.double().reshape(-1) for t in tensors(results)])
        return (rows * torch.linspace(-1, 2, len(rows), dtype=torch.float64)).sum()

    ours = gradients(net.model, loss(net(instances)))
    theirs = gradients(net.model, loss([net.model(instance) for instance in instances]))
    twin = copy.deepcopy(net.model).double()
    torch.set_default_dtype(torch.float64)
    exact = gradients(twin, loss([twin(instance) for instance in instances]))
    parity = Parity()
    parity.add(scaled(ours, exact), scaled(theirs, exact), scaled(exact, exact))

    assert {name: g is None for name, g in ours.items()} == {name: g is None for name, g in theirs.items()}
    assert parity.outputs
    parity.require()
