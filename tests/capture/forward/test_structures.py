"""Python over the structure: what people write between cells."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
import torch
from helpers import bound, captured, counts, graph_of, model_file, require_parity, seeded
from torch import nn
from torch.nn import functional as F

import edbc
from edbc.capture.forward.deep import run_on_large_stack
from edbc.errors import UnsupportedError

SIZE = 6


@edbc.cell
class Join(nn.Module):
    """Two states to one."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(SIZE, SIZE)
        self.right = nn.Linear(SIZE, SIZE)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.left(a) + self.right(b))


class Base(nn.Module):
    """A table, a cell and a projection; what `forward` does differs."""

    def __init__(self, forward: Any = None) -> None:
        super().__init__()
        self.table = nn.Embedding(20, SIZE)
        self.join = Join()
        self.out = nn.Linear(SIZE, 3)
        self.start = nn.Parameter(torch.randn(SIZE))
        self._run = forward

    def forward(self, instance: Any) -> Any:
        return self._run(self, instance)


def words(count: int) -> list[list[int]]:
    """Instances: lists of word ids of several lengths."""
    return [[(3 * i + j) % 20 for j in range(1 + i % 5)] for i in range(count)]


def chain(net: Any, ids: list[int]) -> Any:
    h = net.start
    for word in ids:
        h = net.join(h, net.table.weight[word])
    return net.out(h)


def recursion(net: Any, ids: list[int]) -> Any:
    def encode(part: list[int]) -> Any:
        if len(part) == 1:
            return net.table(torch.tensor(part[0]))
        return net.join(encode(part[: len(part) // 2]), encode(part[len(part) // 2 :]))

    return encode(ids)


def memo(net: Any, ids: list[int]) -> Any:
    cache: dict[int, Any] = {}

    def state(word: int) -> Any:
        if word not in cache:
            cache[word] = net.join(net.table.weight[word], net.start)
        return cache[word]

    return [net.join(state(w % 3), state(w % 2)) for w in ids]


def dicts_and_tuples(net: Any, ids: list[int]) -> Any:
    rows = net.table(torch.tensor(ids))
    states = {i: net.join(row, row) for i, row in enumerate(rows)}
    total = sum(states.values())
    return {"total": total, "pair": (states[0], net.out(total)), "shape": rows, "names": [str(w) for w in ids]}


Pair = namedtuple("Pair", "h c")


@dataclass
class Both:
    first: Any
    rest: list[Any] = field(default_factory=list)


def records(net: Any, ids: list[int]) -> Any:
    states = [net.join(net.table.weight[w], net.start) for w in ids]
    pair = Pair(states[0], states[-1])
    return Both(net.join(*pair), [pair.h, OrderedDict(c=pair.c)])


def same_operand_twice(net: Any, ids: list[int]) -> Any:
    h = net.join(net.table.weight[ids[0]], net.start)
    return h + h, torch.cat([h, h]), net.join(h, h), h * h


def between_cells(net: Any, ids: list[int]) -> Any:
    h = net.join(net.table.weight[ids[0]], net.start)
    scores = F.log_softmax(net.out(h), dim=-1)
    gate = torch.sigmoid(h).mul(2.0) - 1
    return scores, (gate * h).view(2, -1).t(), h[1:4], h.unsqueeze(0) @ h.unsqueeze(1), 1 - h / 2, h.norm()


STRUCTURES = [chain, recursion, memo, dicts_and_tuples, records, same_operand_twice, between_cells]


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda f: f.__name__)
def test_structure_equals_eager(structure: Any) -> None:
    """BUGS 7, 8: loops, recursion, memoised and repeated operands, dicts, tuples, dataclasses give eager's outputs."""
    require_parity(seeded(Base, structure), words(32))


def test_results_keep_their_nest() -> None:
    """Dicts, lists, tuples, named tuples, dataclasses and plain values come back as forward returned them."""
    net = bound(seeded(Base, records), words(4))

    result = net(words(2))[1]

    assert isinstance(result, Both)
    assert torch.equal(result.rest[0], net(words(2))[1].rest[0])
    assert net.model(words(2)[1]).rest[1].keys() == result.rest[1].keys()


def test_a_memoised_node_is_one_node() -> None:
    """BUGS 8: a state with two readers is evaluated once."""
    graph = graph_of(seeded(Base, memo), [[0, 1, 2, 3]])

    assert counts(graph) == {"join": 3 + 4}


def test_look_ups_and_constants_are_no_nodes() -> None:
    """2,000 look-ups are externals of one source: one gather."""
    capture = captured(seeded(Base, chain), [[i % 20 for i in range(1000)]] * 2)

    assert counts(capture.graph) == {"join": 2000, "out": 2}
    rows = [i for i, source in enumerate(capture.sources) if source.kind == "row"]
    assert len(rows) == 1
    assert (capture.external_source == rows[0]).sum() == 2000


@pytest.mark.parametrize("count", [0, 1])
def test_empty_and_single(count: int) -> None:
    """BUGS 6: no instance, and one instance of one node."""
    model = seeded(Base, lambda net, ids: net.join(net.start, net.start))
    net = bound(model, [None])

    results = net([None] * count)

    assert len(results) == count
    assert all(torch.allclose(r, model(None)) for r in results)


def test_permuting_instances_permutes_outputs() -> None:
    """BUGS 20: the order and grouping of instances changes nothing but rounding."""
    net = bound(seeded(Base, chain), words(16))
    whole = net(words(16))

    backwards = net(words(16)[::-1])[::-1]
    single = [net([ids])[0] for ids in words(16)]

    for a, b, c in zip(whole, backwards, single, strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c)


def test_chain_of_5000_levels() -> None:
    """BUGS 10: recursion over a chain-shaped tree of 5,000 nodes works, and its nodes are counted once."""

    def encode(net: Any, depth: int) -> Any:
        return net.start if depth == 0 else net.join(net.step(depth - 1), net.start)

    class Deep(Base):
        def forward(self, depth: int) -> Any:
            return self.step(depth)

        def step(self, depth: int) -> Any:
            return encode(self, depth)

    model = seeded(Deep)

    assert counts(graph_of(model, [3, 5000, 2])) == {"join": 5005}
    net = bound(model, [3])
    deep, shallow = net([5000, 3])
    assert torch.isfinite(deep).all()
    torch.testing.assert_close(shallow, model(3))


def test_modules_call_each_other_as_deep_as_python_lets_eager() -> None:
    """1,000 modules inside each other are right or refused for what Python allows; what comes after is right."""

    class Deep(Base):
        def forward(self, depth: int) -> Any:
            return self.start if depth == 0 else self.join(self(depth - 1), self.start)

    model = seeded(Deep)
    net = bound(model, [3])
    try:
        right = run_on_large_stack(lambda: model(1000))
    except UnsupportedError:
        with pytest.raises(UnsupportedError, match="more modules inside each other than this Python allows"):
            net([1000])
    else:
        torch.testing.assert_close(net([1000])[0], right)
    torch.testing.assert_close(net([3])[0], model(3))


def test_an_aborted_attempt_keeps_what_the_users_objects_refer_to() -> None:
    """BUGS 10: states memoised while a first attempt ran out of stack stay valid in the second."""
    memory: dict[int, Any] = {}

    class Deep(Base):
        def forward(self, depth: int) -> Any:
            memory.clear()
            return self.step(depth)

        def step(self, depth: int) -> Any:
            if depth not in memory:
                kept = memory.setdefault(("leaf", depth % 3), self.join(self.start, self.start))
                memory[depth] = self.start if depth == 0 else self.join(self.step(depth - 1), kept)
            return memory[depth]

    class Kept(Deep):
        def forward(self, depth: int) -> Any:
            return self.step(depth)

    assert counts(graph_of(seeded(Deep), [3000])) == {"join": 3000 + 3001}
    memory.clear()
    assert graph_of(seeded(Kept), [3000]).num_nodes > 6000


class ReturnsWhatNobodyComputes(Base):
    """A result of parameters alone, after an attempt that a change through a view has ended."""

    def forward(self, x: torch.Tensor) -> Any:
        h = self.join(self.start, self.start)
        seen = h[:2]
        h *= 2.0
        return seen, torch.cat([h, *(x * i for i in range(40))]), torch.tanh(self.start)


def test_an_aborted_attempt_goes_with_more_constants_than_values() -> None:
    """Externals that forward returns are no values by their numbers: compiling ended with IndexError."""
    instances = [torch.randn(SIZE, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    require_parity(seeded(ReturnsWhatNobodyComputes), instances)


NODES = {"tree_lstm": 2396, "tree_lstm_2type": 2396}


@pytest.mark.parametrize("name", NODES)
def test_node_counts_on_real_trees(name: str, data_dir: Any) -> None:
    """The first 32 trees of the treebank give the graph that the reference figures were measured on."""
    file = model_file(name)
    trees = list(islice(file.load(str(data_dir / "sst_trees/train-first4000.txt"), vocab_size=50), 32))

    graph = graph_of(seeded(file.build, hidden_size=4, vocab_size=50), trees)

    assert graph.num_nodes == NODES[name]


@pytest.mark.parametrize(("count", "nodes"), [(1, 35), (8, 1093), (32, 4638)])
@pytest.mark.parametrize("name", ["lattice_lstm", "lattice_gru"])
def test_node_counts_on_real_lattices(name: str, count: int, nodes: int, data_dir: Any) -> None:
    """Lattices have exactly the reference's nodes, all sums of one type."""
    file = model_file(name)
    lattices = list(islice(file.load(str(data_dir / "zh_lattice_edbatch/train.txt"), vocab_size=50), count))

    graph = graph_of(seeded(file.build, hidden_size=4, vocab_size=50), lattices)

    assert graph.num_nodes == nodes
    assert sum(t.op == "sum" and c > 0 for t, c in zip(graph.types, graph.counts(), strict=True)) <= 1
