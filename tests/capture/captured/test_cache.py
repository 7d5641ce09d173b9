"""The cache of structures: equal graphs, checked promises."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import model_file, seeded
from test_structures import Base

from edbc.capture.captured.joining import joined, part_of
from edbc.capture.captured.structurecache import CHECK_EVERY, StructureCache, structure_cache
from edbc.capture.captured.vocabulary import Lexicon
from edbc.capture.code.shadow import ModelView, recording_shadow
from edbc.capture.forward.build import Capture, capture
from edbc.capture.record.table import TypeTable
from edbc.errors import ModelError


def forward(net: Any, instance: dict[str, Any]) -> Any:
    """Look-ups, a constant of the instance, a whole parameter, sums and a nest of results."""
    states = [net.join(net.table.weight[w], instance["x"]) for w in instance["ids"]]
    return {"out": net.out(net.join(sum(states), net.start)), "states": states, "count": len(states)}


def instances(count: int) -> list[dict[str, Any]]:
    return [
        {"ids": [(i + j) % 20 for j in range(1 + i % 4)], "x": torch.full((6,), float(i % 7))} for i in range(count)
    ]


def whole_key(instance: dict[str, Any]) -> Hashable:
    return tuple(instance["ids"]), float(instance["x"][0])


def shape_key(instance: dict[str, Any]) -> Hashable:
    return len(instance["ids"])


def externals(instance: dict[str, Any]) -> list[Any]:
    first, *rest = instance["ids"]
    return [first, instance["x"], *rest]


def recording(run: Any = forward) -> Any:
    view, table = ModelView(seeded(Base, run)), TypeTable()
    return *recording_shadow(view, table), Lexicon(table, view, lambda: None, lambda: None)  # type: ignore[arg-type, return-value]


def through(cache: StructureCache, shadow: Any, recorder: Any, lexicon: Lexicon, batch: list[Any]) -> Capture:
    """The mini-batch, as a net with this cache makes it."""
    return joined(lexicon, [
        cache.part(lexicon, item, i, partial(part_of, shadow, recorder, lexicon, item, i, True))
        for i, item in enumerate(batch)
    ])  # fmt: skip


def described(capture: Capture) -> Any:
    """All that a capture says, comparable: externals by what they stand for, one by one."""
    g = capture.graph

    def external(e: int) -> Any:
        source, index = int(capture.external_source[e]), int(capture.external_index[e])
        if source in capture.constants:
            return capture.constants[source][index].tolist()
        return capture.sources[source], index

    operands = [external(-1 - u) if u < 0 else u for u in g.operands.tolist()]
    return (
        g.node_type.tolist(),
        operands,
        g.operand_output.tolist(),
        capture.result_node.tolist(),
        [slot.text for slot in capture.result_slots],
    )


@pytest.mark.parametrize(("key", "given"), [(whole_key, None), (shape_key, externals)])
def test_cached_captures_equal_fresh_ones(key: Any, given: Any) -> None:
    """Hits give the graph, the externals and the results that running forward gives."""
    leased = recording()
    cache = StructureCache(key, given, verify=True)

    for batch in (instances(8), instances(30)[5:], []):
        cached, fresh = through(cache, *leased, batch), capture(*leased[:2], batch)
        assert described(cached) == described(fresh)
        assert (cached.results, cached.result_ptr) == (fresh.results, fresh.result_ptr)

    assert cache.hits + cache.misses == 33
    assert cache.misses == len({key(i) for i in instances(30)})
    assert cache.checked == cache.hits > 0
    assert cache.hit_rate == cache.hits / 33


@pytest.mark.parametrize(("key", "given", "message"), [
    (shape_key, None, "look-up indices and constants too"),
    (lambda _: 0, externals, "expected 2 externals, got 3"),
    (shape_key, lambda i: [*i["ids"], i["x"]][::-1] if len(i["ids"]) == 1 else externals(i), "externals all look-ups"),
])  # fmt: skip
def test_a_broken_promise_is_told(key: Any, given: Any, message: str) -> None:
    """A key that covers too little, and externals in another order, do not pass in silence."""
    leased = recording()
    cache = StructureCache(key, given, verify=True)

    with pytest.raises((ModelError, TypeError, ValueError), match=f"{message}|element"):
        through(cache, *leased, instances(16))


def test_one_hit_in_a_hundred_is_checked() -> None:
    """Without verifying, the first hit is captured again, and one of every hundred after a hundred."""
    leased = recording()
    cache = StructureCache(whole_key)

    for _ in range(6):
        through(cache, *leased, instances(40))

    assert 2 <= cache.hits // CHECK_EVERY <= cache.checked <= 1 + cache.hits // CHECK_EVERY


def test_forgetting_starts_the_count_again() -> None:
    """After a warm-up has been forgotten, an instance that it held is a miss once more."""
    cache, leased = StructureCache(whole_key), recording()
    through(cache, *leased, instances(8))
    cache.forget()
    through(cache, *leased, instances(8) + instances(8))

    assert cache.as_json() == {"hits": 8, "misses": 8, "checked": 1, "hit_rate": 0.5}


def test_memory_between_instances_is_refused() -> None:
    """A state of another instance cannot be part of a repeated structure."""
    kept: list[Any] = []

    def remembers(net: Any, instance: Any) -> Any:
        kept.append(net.join(net.start, net.start))
        return net.out(kept[0])

    with pytest.raises(Exception, match="earlier"):
        through(StructureCache(lambda i: i), *recording(remembers), [1, 2])


def test_there_is_no_cache_without_a_key() -> None:
    """A model file without structure_key has none; one with it has."""
    assert structure_cache(model_file("tree_lstm")) is None or hasattr(model_file("tree_lstm"), "structure_key")
    assert structure_cache(SimpleNamespace()) is None  # type: ignore[arg-type]
    assert structure_cache(SimpleNamespace(structure_key=len)) is not None  # type: ignore[arg-type]
