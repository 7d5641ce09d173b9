"""The same bits in any company: an instance's outputs do not depend on what shares its mini-batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from zoo_names import short_instances

from edbc.capture.semantics.shapes import flat
from edbc.cells.parts import SplitCell
from edbc.plan.reader import read_plan
from edbc.run.modelfile import import_model_file
from edbc.run.session import Net

pytestmark = pytest.mark.compiled
REPOSITORY = Path(__file__).resolve().parents[2]
OTHER_ORDER = {"lattice_gru"}
"""Models with a cell whose eager operand is not the first of its product, so that parts add in another order."""
MODELS = sorted({path.stem for path in (REPOSITORY / "plans").glob("*.yaml")} - {"dag_gru"})
"""dag_gru has one size only, and takes long: it is tested in parts."""
SMALL = {"hidden_size": 24, "vocab_size": 50}


def zoo_net(name: str, dtype: torch.dtype, sizes: dict[str, int] = SMALL, **options: Any) -> tuple[Net, list[Any]]:
    """A model of the zoo under its committed plan, with other sizes, and instances."""
    plan, file = read_plan(REPOSITORY / "plans" / f"{name}.yaml"), import_model_file(REPOSITORY / f"models/{name}.py")
    small = {key: value for key, value in sizes.items() if key in plan.model.config}
    config = file.config({**plan.model.config, **({} if name == "dag_gru" else small)})
    net = Net(plan, file.build(config, 0).eval().to(dtype), rebind=True, **options)
    return net, short_instances(file, 9, 3, config)


def outputs(net: Net, instances: list[Any], **options: Any) -> list[list[torch.Tensor]]:
    """Of each instance."""
    with torch.no_grad():
        return [flat(result) for result in net.execute(net.prepare(instances, **options))]


def assert_same_bits(ours: list[list[torch.Tensor]], theirs: list[list[torch.Tensor]]) -> None:
    """Not one bit differs."""
    for a, b in zip(ours, theirs, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[pytest.mark.slow] if (i + j) % 2 else [], id=f"{name}-{dtype}")
        for i, name in enumerate(MODELS)
        for j, dtype in enumerate((torch.float32, torch.float64))
    ],
)
def test_alone_and_in_any_mini_batch(name: str, dtype: torch.dtype) -> None:
    """Alone, in every order and any number, in blocks of three rows, with equal nodes shared and not."""
    net, instances = zoo_net(name, dtype)
    alone = [outputs(net, [instance], without=("share",))[0] for instance in instances]
    rng = random.Random(0)
    for count in (9, 9, 5, 2):
        chosen = rng.sample(range(9), count)
        found = outputs(net, [instances[i] for i in chosen], without=("share",) if count == 5 else ())
        assert_same_bits(found, [alone[i] for i in chosen])


@pytest.mark.parametrize("name", ["tree_lstm_2type", "lattice_lstm", "transition_parser"])
def test_under_any_policy_block_and_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other schedules put other nodes into a batch, other blocks other rows; torch's threads are not ours."""
    net, instances = zoo_net(name, torch.float32)
    expected = outputs(net, instances)
    for policy in ("depth", "agenda", "critical"):
        assert_same_bits(outputs(zoo_net(name, torch.float32, policy=policy)[0], instances), expected)
    monkeypatch.setattr("edbc.run.cpu.cpubackend.BLOCK", 3)
    assert_same_bits(outputs(net, instances), expected)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert_same_bits(outputs(net, instances), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", sorted({"lattice_lstm", "lstm_nmt", "bilstm_tagger", "dag_gru", *OTHER_ORDER}))
def test_cells_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An eager half is the beginning of the sum that the whole cell computes, where its operand comes first; where it
    does not, `depends_on_company` says so."""
    monkeypatch.setattr(SplitCell, "gain", lambda *_: 1.0)
    net, instances = zoo_net(name, torch.float32)
    assert net.prepare(instances).split is not None
    whole, parts = outputs(net, instances, without=("parts",)), outputs(net, instances)

    if name not in OTHER_ORDER:
        assert_same_bits(parts, whole)
    assert any(net.depends_on_company(net.prepare(instances))) == (name in OTHER_ORDER)


def test_what_depends_on_company_is_named() -> None:
    """Types that torch runs, by name; nothing of a model without any; everything where torch multiplies."""
    net, instances = zoo_net("neural_module_network", torch.float32, {"side": 24})  # smaller maps are native
    assert any("find" in line and "torch" in line for line in net.depends_on_company(net.prepare(instances)))
    plain, instances = zoo_net("tree_lstm", torch.float32)
    assert list(plain.depends_on_company(plain.prepare(instances))) == []
    by_calls = zoo_net("tree_lstm", torch.float32, backend="reference")[0]
    assert len(list(by_calls.depends_on_company(by_calls.prepare(instances)))) == 1
