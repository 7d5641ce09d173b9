"""Every model of the zoo, through both front ends: gradients equal eager's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from bound import plan_for
from gradients import gradients, random_loss, require_equal, require_equal_gradients

from edbc.modelfile import import_model_file
from edbc.runtime.session import Net

MODELS = Path(__file__).resolve().parents[2] / "models"
ZOO = sorted(path.stem for path in MODELS.glob("*.py") if not path.stem.startswith("_"))


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", ZOO)
def test_gradients_equal_eager(name: str) -> None:
    """In training mode, float64, all parameters, None included; as recorded instances and, where there are any, as
    vertices."""
    file = import_model_file(MODELS / f"{name}.py")
    known = file.config({})
    wanted = {"hidden_size": 6, "vocab_size": 20, "num_matrices": 5}
    config = file.config({key: value for key, value in wanted.items() if key in known})
    instances = file.sample(4, 3, config)
    model = file.build(config, 0).double()
    net = Net(plan_for(model, instances), model)
    model.train()
    ours = require_equal_gradients(net, instances)

    assert any(gradient is not None for gradient in ours.values())
    if hasattr(file.module, "vertex_instance"):
        packed = list(map(file.vertex_instance(config), instances))
        theirs = gradients(model, random_loss([model(instance) for instance in instances]))
        require_equal(gradients(model, random_loss(net(packed))), theirs)
