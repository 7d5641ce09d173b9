"""Every model file keeps the contract of model files."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest
import torch
from zoo import MODELS, NAMES, model, run, small, tensors

from edbc.errors import ModelError
from edbc.run.modelfile import import_model_file

KIND = inspect.Parameter
HELPERS = sorted(path.stem for path in MODELS.glob("_*.py"))


def parameters(name: str, function: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(model(name), function)).parameters)


@pytest.mark.parametrize("name", NAMES)
def test_docstring_says_what_it_is(name: str) -> None:
    """The first line of the module's docstring is a sentence, and input and output are told."""
    docstring = inspect.getdoc(model(name)) or ""
    first = docstring.partition("\n")[0]

    assert 20 < len(first) <= 120
    assert first.endswith(".")
    assert "\nOutput: " in docstring
    assert "\nInput" in docstring


@pytest.mark.parametrize("name", NAMES)
def test_build_takes_config_by_name(name: str) -> None:
    """`build(hidden_size=256, ..., **config)`: every key has a default, and foreign keys are let through."""
    *named, rest = parameters(name, "build").values()

    assert rest.kind is KIND.VAR_KEYWORD
    assert named[0].name == "hidden_size"
    assert named[0].default == 256
    assert all(isinstance(key.default, int | float | str) for key in named)


@pytest.mark.parametrize("name", NAMES)
def test_load_takes_paths_and_config(name: str) -> None:
    """`load(*paths, key=default, ..., **config)`."""
    paths, *named, rest = parameters(name, "load").values()

    assert (paths.kind, rest.kind) == (KIND.VAR_POSITIONAL, KIND.VAR_KEYWORD)
    assert all(key.kind is KIND.KEYWORD_ONLY and key.default is not KIND.empty for key in named)


@pytest.mark.parametrize("name", NAMES)
def test_sample_takes_count_seed_and_config(name: str) -> None:
    """`sample(count, seed, key=default, ..., **config)`."""
    count, seed, *named, rest = parameters(name, "sample").values()

    assert (count.name, seed.name, rest.kind) == ("count", "seed", KIND.VAR_KEYWORD)
    assert all(key.default is not KIND.empty for key in named)


@pytest.mark.parametrize("name", NAMES)
def test_one_key_has_one_default(name: str) -> None:
    """A config key that several of the functions take has the same default in all of them."""
    defaults: dict[str, object] = {}
    for function in ("build", "load", "sample"):
        for key, parameter in parameters(name, function).items():
            if parameter.default is not KIND.empty:
                assert defaults.setdefault(key, parameter.default) == parameter.default


@pytest.mark.parametrize("name", NAMES)
def test_runs_eagerly_on_samples(name: str) -> None:
    """`forward` gives finite vectors by name, as rows of a tensor or in a list, the same when run again."""
    network = small(name)
    for instance in model(name).sample(2, seed=0, vocab_size=50):
        result = run(network, instance)
        values = list(tensors(result))

        assert all(isinstance(key, str) and len(items) for key, items in result.items())
        assert all(row.dim() == 1 and row.isfinite().all() for items in result.values() for row in items)
        assert all(torch.equal(a, b) for a, b in zip(values, tensors(run(network, instance)), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_samples_depend_on_the_seed_alone(name: str) -> None:
    """Equal seeds give equal instances, other seeds others; none and one can be asked for."""
    sample = model(name).sample

    assert sample(4, seed=3) == sample(4, seed=3)
    assert sample(4, seed=3) != sample(4, seed=4)
    assert sample(0, seed=3) == []
    assert len(sample(1, seed=3)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_sample_ids_fit_a_small_vocabulary(name: str) -> None:
    """With a vocabulary of three words every look-up of a sample succeeds."""
    network = small(name, vocab_size=3)
    for instance in model(name).sample(3, seed=1, vocab_size=3):
        assert list(tensors(run(network, instance)))


@pytest.mark.parametrize("name", NAMES)
def test_default_weights_keep_values_sane(name: str) -> None:
    """Freshly built at hidden size 64, float32, outputs of the largest of eight samples stay within [-50, 50]; a loss,
    which adds up over its nodes, per node."""
    torch.manual_seed(0)
    network = model(name).build(hidden_size=64, vocab_size=50)
    largest = max(model(name).sample(8, seed=0, vocab_size=50), key=lambda item: len(repr(item)))

    outputs = run(network, largest)
    parts = {name: len(next(iter(outputs.values()))) if name == "loss" else 1 for name in outputs}
    assert all(v.abs().max() < 50 * parts[name] for name, values in outputs.items() for v in tensors(values))


@pytest.mark.parametrize("name", HELPERS)
def test_examples_in_docstrings_hold(name: str) -> None:
    """The doctests of the modules that model files share."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(
    ("name", "setting", "length"), [("lstm_lm", {"length": "16"}, 16), ("tree_fc", {"leaves": "8"}, 8)]
)
def test_keys_of_the_samples_can_be_set(name: str, setting: dict[str, str], length: int) -> None:
    """What only `load` and `sample` take is part of the config when it is set, and converted like `build`'s."""
    file = import_model_file(MODELS / f"{name}.py")
    config = file.config({**setting, "hidden_size": "8", "vocab_size": "50"})
    instances = file.sample(3, 0, config)

    assert {len(instance) for instance in instances} == {length}
    assert file.build(config, 0)(instances[0])
    assert not setting.keys() & file.config({}).keys()
    with pytest.raises(ModelError, match="unknown config key"):
        file.config({"count": "3"})


def test_a_lexicon_can_be_named(tmp_path: Path) -> None:
    """The reader's own files and formats are settings: plain text becomes lattices by the words of a lexicon."""
    (tmp_path / "lexicon.txt").write_text("ab\nbc\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text("abc\n", encoding="utf-8")
    file = import_model_file(MODELS / "lattice_gru.py")
    config = file.config({"lexicon": str(tmp_path / "lexicon.txt"), "text": "plain", "vocab_size": "50"})
    (lattice,) = file.load([tmp_path / "text.txt"], config)

    assert sum(len(arcs) for arcs in lattice) == 5


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(model(name), "loss")])
def test_losses_are_differentiable_and_metrics_are_shares(name: str) -> None:
    """For `edbc train`: a positive number that depends on every parameter, and pairs (part, whole), part <= whole."""
    network = small(name)
    reached = set()
    for instance in model(name).sample(4, seed=0, vocab_size=50):
        outputs = network(instance)
        loss = model(name).loss(outputs, instance)
        loss.backward()
        reached |= {key for key, parameter in network.named_parameters() if parameter.grad is not None}

        assert loss.numel() == 1
        assert loss.isfinite().all()
        assert (loss > 0).all()
        for part, whole in getattr(model(name), "metrics", lambda *_: {})(outputs, instance).values():
            assert 0 <= part <= whole
    assert reached == {key for key, _ in network.named_parameters()}
