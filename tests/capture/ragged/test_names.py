"""What an instance has by names that forward does not read tells no instances apart; what it reads does, however."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from helpers import bound
from rowparity import HIDDEN, VOCAB, kept_forwards, model_of_text, require_eager

from edbc.capture.ragged.kept import KeptCall
from edbc.capture.ragged.together.forwards import MOST_KEYS
from edbc.capture.record import recorder
from edbc.capture.standins.shown import Noted
from edbc.run.session import Net

TEXT = """
import torch
from torch import nn


def scaled(x, scale=1.0, **others):
    return x * scale


class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.up = nn.Embedding({vocab}, {hidden}), nn.Linear({hidden}, {hidden})

    def forward(self, it):
        h = torch.tanh(self.up(self.words(it["words"])))
        return {result}
"""
READS = {
    "by name": "h.sum(0) * it['scale']",
    "now and then": "h.sum(0) * it['scale'] if len(h) > 4 else h.sum(0)",
    "get": "h.sum(0) * it.get('scale', 2.0)",
    "copied": "h.sum(0) * dict(it)['scale']",
    "shallow copy": "h.sum(0) * it.copy()['scale']",
    "keywords": "scaled(h.sum(0), **it)",
    "in another": "h.sum(0) * {**it}['scale']",
    "values": "h.sum(0) * [x for x in it.values() if isinstance(x, float)][0]",
    "items": "h.sum(0) * [x for name, x in it.items() if name == 'scale'][0]",
    "its names": "h.sum(0) * sum([it[name] for name in it if name == 'scale'])",
    "joined": "h.sum(0) * (it | {'a': 1})['scale']",
    "by its class": "h.sum(0) * (it['scale'] if type(it) == dict else 1.0)",
    "returned": "{'sum': h.sum(0), 'of': it}",
    "pop": "h.sum(0) * it.pop('scale')",
}

OF_TUPLES = {
    "multiplied": "h.sum(0) * scale",
    "now and then": "h.sum(0) * scale if len(h) > 4 else h.sum(0)",
    "by place": "h.sum(0) * it[2]",
    "its kind": "h.sum(0) * (2.0 if isinstance(scale, float) and scale > 0.5 else 1.0)",
    "whether it is any": "h.sum(0) * (1.0 if scale is None else 2.0)",
    "a text": "h.sum(0) * (2.0 if key.startswith('0.1') else 1.0)",
    "written out": "h.sum(0) * float(f'{scale}')",
    "an index": "h[label % len(h)]",
    "a tensor's": "nn.functional.cross_entropy(h.sum(0)[None], label.view(1))",
    "given on": "scaled(h.sum(0), *it[2:3])",
    "returned": "{'sum': h.sum(0), 'of': scale}",
    "a loop": "h.sum(0) * sum(x for x in it if isinstance(x, float))",
    "equal": "h.sum(0) * (2.0 if label == 3 else 1.0)",
}


def instance(rng: Random) -> dict[str, Any]:
    """Words, a number, and what people have beside it."""
    words = torch.tensor([rng.randrange(VOCAB) for _ in range(rng.randint(1, 7))])
    return {"id": str(rng.random()), "words": words, "scale": rng.random(), "text": [str(x) for x in words.tolist()],
            "label": torch.tensor(rng.randrange(5)), "array": np.zeros(rng.randint(1, 4)),
            "kids": [[rng.randrange(9)] * rng.randint(0, 2) for _ in range(rng.randint(1, 3))]}  # fmt: skip


def of_tuple(rng: Random) -> tuple[Any, ...]:
    """The same as a tuple."""
    one = instance(rng)
    return one["id"], one["words"], one["scale"], one["label"]


def net_of(result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any = instance) -> Net:
    text = TEXT if make is instance else TEXT.replace('it["words"]', "words")
    text = (
        text if make is instance else text.replace("        h =", "        key, words, scale, label = it\n        h =")
    )
    model = model_of_text(text.format(vocab=VOCAB, hidden=HIDDEN, result=result), tmp_path, monkeypatch).eval()
    rng = Random(0)
    net = bound(model, [make(rng) for _ in range(6)], cells="auto", rows=True)
    with torch.no_grad():
        for _ in range(recorder.LOOKS + 2):
            net([make(rng) for _ in range(3)])
    return net


@pytest.mark.parametrize("make", [instance, of_tuple])
def test_what_is_not_read_tells_nothing_apart(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward is kept for all instances, whatever else they bring."""
    net = net_of("h.sum(0)", tmp_path, monkeypatch, make)
    before = len(kept_forwards(net))
    for seed in range(3):
        rng = Random(seed)
        require_eager(net, net.model, [make(rng) for _ in range(6)])
    assert len(kept_forwards(net)) == before < 8
    assert any(type(known) is KeptCall for known in kept_forwards(net))


@pytest.mark.parametrize("name", READS)
def test_what_is_read_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of(READS[name], tmp_path, monkeypatch)
    for seed in range(3):
        rng = Random(seed)
        ours = [instance(rng) for _ in range(6)]
        theirs = [dict(one) for one in ours]
        with torch.no_grad():
            for result, expected in zip(net(ours), [net.model(one) for one in theirs], strict=True):
                if name == "returned":
                    assert [result["of"][x] for x in ("id", "scale")] == [expected["of"][x] for x in ("id", "scale")]
                    assert type(result["of"]) is dict
                    result, expected = result["sum"], expected["sum"]
                torch.testing.assert_close(result, expected)
        assert [sorted(one) for one in ours] == [sorted(one) for one in theirs]


@pytest.mark.parametrize("name", OF_TUPLES)
def test_what_is_asked_of_a_tuple_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of(OF_TUPLES[name], tmp_path, monkeypatch, of_tuple)
    for seed in range(3):
        rng = Random(seed)
        instances = [of_tuple(rng) for _ in range(6)]
        with torch.no_grad():
            for result, expected in zip(net(instances), [net.model(one) for one in instances], strict=True):
                if name == "returned":
                    assert result["of"] == expected["of"]
                    result, expected = result["sum"], expected["sum"]
                torch.testing.assert_close(result, expected)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_an_object_is_not_what_stands_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`is` with a number, as some write it, finds the instance's own."""

    def make(rng: Random) -> tuple[Any, ...]:
        return (*of_tuple(rng)[:3], rng.randrange(3))

    net = net_of("h.sum(0) * (2.0 if label is 1 else 1.0)", tmp_path, monkeypatch, make)
    require_eager(net, net.model, [make(Random(seed)) for seed in range(9)])


def test_every_way_to_a_value_is_noted() -> None:
    """All methods of dicts by which items are seen or changed, but those that give names alone."""
    of_names = {"__contains__", "__iter__", "__len__", "keys", "__reversed__", "fromkeys", "__sizeof__"}
    plain = {"__class_getitem__", "__delattr__", "__dir__", "__doc__", "__format__", "__getattribute__", "__getstate__",
             "__hash__", "__init__", "__init_subclass__", "__new__", "__reduce__", "__setattr__", "__str__",
             "__subclasshook__", "__class__", "__ge__", "__gt__", "__le__", "__lt__"}  # fmt: skip
    assert set(dir(dict)) - of_names - plain <= set(vars(Noted))
    noted = Noted({"a": 1, "b": 2})
    assert (list(noted), len(noted), "a" in noted, [*noted.keys()]) == (["a", "b"], 2, True, ["a", "b"])
    assert not noted.read
    assert (noted["a"], noted.read) == (1, {"a"})
    assert dict(Noted({"a": 1})) == {"a": 1}
    for see in (dict, repr, str, lambda x: {**x}, lambda x: x == {}, lambda x: x | {}, lambda x: {} | x):
        noted = Noted({"a": 1, "b": 2})
        see(noted)  # type: ignore[operator]
        assert noted.read == {"a", "b"}


def test_names_without_end_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each instance has names of its own, what is known of names stays small."""
    net = net_of("h.sum(0)", tmp_path, monkeypatch)
    rng = Random(1)
    with torch.no_grad():
        for _ in range(12):
            instances = [instance(rng) | {str(rng.random()): 1} for _ in range(32)]
            for result, expected in zip(net(instances), map(net.model, instances), strict=True):
                torch.testing.assert_close(result, expected)
    assert len(net._idle[0][1].unread_names) <= MOST_KEYS
