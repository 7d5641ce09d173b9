"""What tells instances apart that bring rows: found of a mini-batch at once as of each alone."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from helpers import bound
from rowparity import VOCAB, graph, kept_forwards, of_model
from torch import nn

from edbc.capture.code.closed import Closed
from edbc.capture.forward.returned import Result, Run, Stacked, filled, filler_of
from edbc.capture.ragged.kept import KeptCall
from edbc.capture.ragged.symbols import COLUMNS_MET, ENDS_MET
from edbc.capture.ragged.together.forwards import _integers
from edbc.capture.ragged.together.reading import DEEPEST, Grid, Label, read, vectors_in, width_of


class Named(NamedTuple):
    first: Any
    second: Any


class Sends(nn.Module):
    """Closed, with objects of the class that is read below."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, 8)

    def forward(self, instance):
        h, (source, target) = instance
        return torch.zeros_like(self.up(h)).index_add(0, target, self.up(h)[source]).sum(0)


def item(rng: Random, depth: int = 0) -> Any:
    """A part of an instance, of any kind."""
    n = rng.randint(0, 3)
    numbers = [rng.randrange(VOCAB) for _ in range(n)]
    kinds = [
        lambda: numbers,
        lambda: [(i, i + 1) for i in numbers],
        lambda: [[i, i, i] for i in numbers],
        lambda: [*numbers, rng.choice([0.5, "x", None, True])],
        lambda: rng.choice([1, 2, True, False, 0.5, 0.0, -0.0, 1.5, "a", None, torch.float32, float("nan")]),
        lambda: torch.randn(n, 3),
        lambda: torch.randn(3, n, requires_grad=rng.random() < 0.2),
        lambda: torch.randn(n),
        lambda: torch.tensor(numbers, dtype=torch.int64),
        lambda: torch.randint(VOCAB, (2, n)),
        lambda: torch.randint(VOCAB, (n, 2)),
        lambda: torch.tensor(numbers, dtype=torch.int32),
        lambda: object(),
        lambda: range(n),
    ]
    if depth < 3:
        parts = [item(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        kinds += [
            lambda: parts,
            lambda: tuple(parts),
            lambda: dict(zip("abc", parts, strict=False)),
            lambda: dict(zip((1, "b", "c"), parts, strict=False)),
            lambda: dict(zip((("a", "b"), "a", ("a", 1)), parts, strict=False)),
            lambda: Named(item(rng, depth + 1), n),
            lambda: SimpleNamespace(x=numbers, n=n, m=rng.randint(1, 3), y=item(rng, depth + 1)),
        ] * 2
    return rng.choice(kinds)()


def same(a: Any, b: Any) -> bool:
    """Whether leaves are the same objects."""
    tensors = [[x.tensor if type(x) in (Grid, Label) else x for x in of] for of in (a, b)]
    return len(a) == len(b) and all(x is y for x, y in zip(*tensors, strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_instances_are_read_together_as_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, leaves, sizes, and which integers are sizes; each instance in one group, in order."""
    torch.manual_seed(seed)
    rng = Random(seed)
    rec = of_model(Sends(), graph, rounds=1)._idle[0][1]
    fields = frozenset(("x", "n", "y"))
    monkeypatch.setattr(Closed, "fields", lambda self, kind: fields if kind is SimpleNamespace else None)
    instances = [item(rng) for _ in range(12)]
    instances += [rng.choice(instances) for _ in range(4)]
    groups = read(rec, False, instances)
    assert sorted(i for _, members in groups for i in members) == [*range(len(instances))]
    for group, members in groups:
        assert members == sorted(members)
        for place, number in enumerate(members):
            ((alone, _),) = read(rec, False, [instances[number]])
            assert alone.key == group.key
            if alone.key is not None:
                assert same([c[0] for c in alone.leaves], [c[place] for c in group.leaves])
                assert [c[0] for c in alone.sizes] == [c[place] for c in group.sizes]
                assert [*alone.integers] == [*group.integers]
    keys = [group.key for group, _ in groups if group.key is not None]
    assert len(keys) == len(set(keys))


def test_what_a_key_tells() -> None:
    """Sizes are none of it, integers of objects that are sizes neither; all else is."""
    rec = of_model(Sends(), graph, rounds=1)._idle[0][1]

    def key(instance: Any) -> Any:
        ((group, _),) = read(rec, False, [instance])
        return group.key

    assert key([1, 2]) == key([5, 6, 7]) != key([(1, 2)])
    assert key([[1, 2], [3, 4]]) == key([(1, 2)] * 5) != key([(1, 2, 3)])
    assert key((torch.zeros(2, 3), 1)) == key((torch.ones(9, 3), 1)) != key((torch.ones(9, 3), True))
    assert key(("a", 1.5)) != key(("a", 2.5))
    assert key([]) != key(())
    assert None is not key({("a", "b"): 1}) == key({("a", "b"): 1}) != key({"a": 1}) != key({("a",): 1})
    nested: Any = [1, 2]
    for _ in range(DEEPEST):
        nested = (nested,)
    assert key(nested) is not None
    assert key((nested,)) is None
    assert [key(x) for x in (object(), 0.0, float("nan"), {1: 2}, {("a", 1): 2}, torch.zeros(2, dtype=torch.bool))] == [
        None
    ] * 6
    assert read(rec, False, []) == []


def test_shapes_that_could_be_two_things() -> None:
    """Are what others in their place were, in mini-batches before, that could be one alone: columns and ends of edges,
    rows as wide as there are, matrices of one row."""
    rec = of_model(Sends(), graph, rounds=1)._idle[0][1]
    for met in (rec.met, rec.told_by, rec.leaf_kinds):
        met.clear()

    def key(*instance: Any) -> Any:
        ((group, _),) = read(rec, False, [instance])
        return group.key

    def column(n: int) -> torch.Tensor:
        return torch.zeros(n, 1, dtype=torch.int64)

    of_rows = [(torch.zeros(n, 3), torch.zeros(m, 3)) for n, m in ((5, 4), (3, 3), (4, 3))]
    assert len({key(*instance) for instance in of_rows}) == 1
    matrices = [(torch.zeros(n, 3), torch.zeros(n, n)) for n in (1, 3, 5)]
    for _ in range(2):  # not before the next mini-batch, whatever comes first
        assert len({key(*instance) for instance in matrices}) == 3
        assert len({key(column(n)) for n in (2, 4)}) == 2
    assert COLUMNS_MET in rec.met
    assert ENDS_MET not in rec.met
    rec.begin()
    assert len({key(*instance) for instance in matrices}) == 1
    assert len({key(column(n)) for n in (1, 2, 4)}) == 1
    assert key(torch.zeros(2, 7, dtype=torch.int64)) != key(column(4))
    rec.begin()
    assert key(column(2)) != key(column(4))
    assert key(*of_rows[1]) != key(*of_rows[0])


def test_vectors_of_leaves() -> None:
    """How many vectors of indices lists and tensors are."""
    rec = of_model(Sends(), graph, rounds=1)._idle[0][1]
    for leaf, count in (([1, 2], 1), ([(1, 2)], 2), ([[1, 2, 3]] * 2, 3), (torch.zeros(4).long(), 1)):
        assert vectors_in(rec, leaf) == count
    for leaf in ([True], [1.0], [(1,)], [(1, 2), (1,)], [(1, 2.0)], ["ab"]):
        assert width_of(leaf) == 0


def test_integers_beyond_64_bits_are_none() -> None:
    """They overflow, as those of NumPy do."""
    assert _integers([1, -(2**63), 2**63 - 1]).tolist() == [1, -(2**63), 2**63 - 1]
    assert _integers([]).tolist() == []
    with pytest.raises(OverflowError):
        _integers([2**63])


def test_nests_are_filled_by_code_as_item_by_item() -> None:
    """Of one nest for all instances; those that are more than lists, tuples and dicts are not."""
    nests: list[Any] = [
        Result(0), [Result(0), Result(1)], (Result(1),), {"a'b": [Run(0, 2)], "\n": Stacked(1, 3)}, Run(1, None), [],
        {}, ((Result(0), [Run(0, 1)]), {}),
    ]  # fmt: skip
    tensors, bounds = [*range(12)], [(0, 4), (4, 8), (8, 12)]
    for nest in nests:
        for _ in range(2):
            fill: Any = filler_of(nest)
            assert fill(tensors, bounds) == [filled(nest, tensors, *of) for of in bounds]
    stack = torch.arange(6.0).view(2, 3)
    for at, shape in ((1, (3, 2)), (5, (3, 2))):  # beyond the last one somebody's bytes may say, who then gets that
        place: Any = Stacked(0, 2, at)
        fill = filler_of(place)
        assert fill is not None
        for found in (fill([stack], [(0, 2)])[0], filled(place, [stack], 0, 2)):
            assert found.shape == shape
            assert torch.equal(found, stack.T)
    deep: Any = Result(0)
    for _ in range(20):
        deep = [deep]
    for nest in (Named(Result(0), 1), [Result(0), 3], {1: Result(0)}, deep):
        assert filler_of(nest) is None


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.up(x)).sum(0)


def test_a_mini_batch_of_nothing_returns_nothing() -> None:
    """Before any forward is kept, and after."""
    net = bound(Layer(), [torch.randn(n, 3) for n in (2, 3, 5)], rows=True)
    with torch.no_grad():
        assert net([]) == net.run([])[0] == []
        net([torch.randn(4, 3)] * 2)
        assert kept_forwards(net)
        assert net([]) == net.run([])[0] == []
    assert net([]) == []


WIDTH = 3


class Columns(nn.Module):
    """Closed, of lists of tuples, whose elements it takes as people do."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.words, self.kinds = way, nn.Embedding(VOCAB, 8), nn.Embedding(VOCAB, 8)

    def forward(self, of):
        items = of["items"]
        if self.way == "comprehensions":
            first, last = [x[0] for x in items], [x[-1] for x in items]
            return self.words(torch.tensor(first)).sum(0) + self.kinds(torch.tensor(last)).mean(0)
        if self.way == "unpacked":
            return self.words(torch.tensor([b for _, b, _ in items])).sum(0)
        if self.way == "by numbers":
            parts = [self.words(torch.tensor([x[i] for x in items])) for i in range(WIDTH)]
            return torch.cat(parts, 1).amax(0)
        a, b, c = zip(*items, strict=True)
        return (self.words(torch.tensor(a)) * self.kinds(torch.tensor(c))).sum(0) + self.words(torch.tensor(b))[0]


@pytest.mark.parametrize("way", ["comprehensions", "unpacked", "by numbers", "zipped"])
def test_elements_of_tuples_are_columns(way: str) -> None:
    """Of a list of any length one forward is kept, where a list has one element of each of the instance's tuples."""

    def make(rng: Random) -> dict[str, Any]:
        return {"items": [tuple(rng.randrange(VOCAB) for _ in range(WIDTH)) for _ in range(rng.randint(1, 9))]}

    net = of_model(Columns(way), make)
    assert [type(known) for known in kept_forwards(net)].count(KeptCall) >= 1
    recorder, rng = net._idle[0][1], Random(7)
    before = recorder.found_forwards
    with torch.no_grad():
        net([make(rng) for _ in range(3)] + [{"items": [(1, 2, 3)] * 30}])
    assert recorder.found_forwards == before + 4


class Lists(nn.Module):
    """What a list of elements is besides: it has a length, can be added to, and items that are not alike."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, 8)

    def forward(self, items):
        a, b = [x[0] for x in items], [y for _, y in items]
        total = self.words(torch.tensor(a + b)).sum(0) * len(a) + max(b) + sum([x[1] for x in items if x[0]])
        others = (
            [x["n"] for x in ({"n": 1}, {"n": 2})] + [x[0] for x in "ab"] + [x[i] for i, x in enumerate(["c", "de"])]
        )
        pairs = list(zip(*[(1, 2), (3, 4)], strict=False))
        return total + others[1] + pairs[1][0] + (others[2:] == ["a", "b", "c", "e"])


def test_lists_of_elements_are_lists() -> None:
    def make(rng: Random) -> list[tuple[int, int]]:
        return [(rng.randrange(VOCAB), rng.randrange(VOCAB)) for _ in range(rng.randint(1, 6))]

    net = of_model(Lists(), make)
    for wrong in ([(1, 2), (3,)], [(1, 2, 3)]):
        with torch.no_grad(), pytest.raises(ValueError, match="unpack"):
            net([wrong])


OF_LISTS = {"is a list": True, "is no tensor": True, "has a length": True, "is sliced": True, "takes rows": True,
            "has its methods": False, "has no shape": False, "is added to": True, "is repeated": False,
            "is compared": False}  # fmt: skip
"""What code asks of a list, and whether what it records then serves other lists."""


class OfLists(nn.Module):
    """Closed, of a list of integers."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.words = way, nn.Embedding(VOCAB, 8)

    def forward(self, ids):
        if self.way == "is a list":
            return self.words(torch.tensor(ids) if isinstance(ids, list) else ids.flip(0)[:1]).sum(0)
        if self.way == "is no tensor":
            return self.words(ids[:1] if torch.is_tensor(ids) else torch.tensor(ids)).sum(0)
        if self.way == "has a length":
            return self.words(torch.tensor(ids if ids else [0])).sum(0)
        if self.way == "is sliced":
            return self.words(torch.tensor(ids)).sum(0) * self.words(torch.tensor(ids[:-1])).sum(0)
        if self.way == "takes rows":
            return self.words.weight[ids].sum(0)
        if self.way == "has its methods":
            return self.words(torch.tensor(ids)).sum(0) * (2 if hasattr(ids, "append") else 3)
        if self.way == "has no shape":
            return self.words(torch.tensor(ids)).sum(0) * (2 if hasattr(ids, "shape") else 3)
        if self.way == "is added to":
            return self.words(torch.tensor(ids + ids)).sum(0)
        if self.way == "is repeated":
            return self.words(torch.tensor(ids * 2)).sum(0)
        return self.words(torch.tensor(ids)).sum(0) * (2 if ids == [3] or 5 in ids else 3)


@pytest.mark.parametrize("way", OF_LISTS)
def test_lists_are_no_tensors(way: str) -> None:
    """Sums of lists were sums of their numbers, and a list was taken for a tensor where code asks which it is."""
    net = of_model(OfLists(way), lambda rng: [rng.randrange(VOCAB // 2) for _ in range(rng.randint(2, 7))])
    assert (KeptCall in map(type, kept_forwards(net))) == OF_LISTS[way]


class ReadsOne(nn.Module):
    """Of all that an instance has."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, 8)

    def forward(self, instance):
        ids, _, _, _, labels = instance
        return self.words(ids).sum(0) / len(labels)


def test_leaves_that_forward_does_not_read_are_not_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, an adjacency matrix, edges; of labels, whose number is read, no more than that."""

    def make(rng: Random) -> Any:
        n = rng.randint(4, 9)  # three rows of three would be a matrix
        ids, labels = [torch.tensor([rng.randrange(VOCAB) for _ in range(n)]) for _ in range(2)]
        return ids, torch.randn(n, 3), torch.randn(n, n), torch.randint(n, (2, n + 2)), labels

    torch.manual_seed(0)
    model = ReadsOne()
    net, rng = of_model(model, make), Random(4)
    (known,) = kept_forwards(net)
    assert type(known) is KeptCall
    assert len(known.unread) == 4
    monkeypatch.setattr("edbc.capture.ragged.together.forwards.packed", None)
    with torch.no_grad():
        for _ in range(2):
            batch = [make(rng) for _ in range(9)]
            torch.testing.assert_close(net(batch), [*map(model, batch)])
        assert not any(tuple(pool.shape) == (3,) for pool in net._idle[0][1].constants.values())


class Near(nn.Module):
    """Messages between points that are near each other, which is found of the instance's own numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.message = nn.Linear(3, 8), nn.Linear(16, 8)

    def forward(self, points: torch.Tensor) -> Any:
        return self.gathered(self.up(points), points).sum(0)

    def gathered(self, h: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        apart = points[:, None] - points[None]
        apart = torch.sqrt((apart**2).sum(2))
        near, to = torch.nonzero(apart < 1.5).t()
        return torch.zeros_like(h).index_add(0, to, self.message(torch.cat([h[near], h[to]], -1)))


def test_what_is_read_of_an_instance_s_own_numbers_leaves_rows() -> None:
    """Lines of the instance's tensors alone are computed at once, in calls that are given rows too; the types are of
    rows, so that points of other numbers bring no other."""
    made = torch.Generator().manual_seed(0)
    model = Near().eval()
    clouds = [torch.randn(3 + n, 3, generator=made) for n in range(6)]
    net = bound(model, clouds[:3], "unmined", True, backend="reference")
    seen = []
    for instances in (clouds[:3], clouds[3:]):
        with torch.no_grad():
            for ours, its in zip(net(instances), map(model, instances), strict=True):
                assert torch.allclose(ours, its, atol=1e-5)
        seen.append({str(t.signature) for t in net.prepare(instances).whole[0].graph.types})
    assert seen[0] == seen[1]
